"""The worker processes as the runner sees them, and a line of text that describes this machine."""
from __future__ import annotations

import contextlib
import json
import os
import platform
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LIMIT = 300  # maximum seconds of one request


class Died(Exception):
    """A request failed; the text has the reason."""


def environment(python: str, cache: str = "") -> dict[str, str]:
    """Return the environment variables of an activated interpreter; with ``cache``, all disk caches are in that folder.

    Python may write its compiled files: pip-installed peers already have theirs.
    """
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    path = os.pathsep.join([str(Path(python).absolute().parent), os.environ.get("PATH", "")])
    caches = dict.fromkeys(("CACHE_DIR", "XDG_CACHE_HOME", "TORCHINDUCTOR_CACHE_DIR"), cache) if cache else {}
    return {**inherited, **caches, "PATH": path, "PYTHONPATH": str(ROOT)}


class Process:
    """One worker process. It is killed when a request takes longer than `LIMIT`."""

    def __init__(self, system: str, python: str, cache: str = "", *folder: str) -> None:
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - lives as long as the process
        self.process = subprocess.Popen(
            [python, "-m", "benchmarks.worker", system, *folder], cwd=tempfile.gettempdir(),
            env=environment(python, cache), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log,
            text=True)
        try:
            self.version = str(self._read().get("version"))
        except Died as e:
            self.version = f"({e})"

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout
        timer = threading.Timer(LIMIT, self.process.kill)
        timer.start()
        line = self.process.stdout.readline()
        timer.cancel()
        if line:
            return dict(json.loads(line))
        self.log.seek(0)
        last = [text for text in self.log.read().splitlines() if text.strip()][-1:] or [""]
        raise Died(f"exit {self.process.wait()} {last[0]}".strip())

    def ask(self, **request: Any) -> list[float]:
        assert self.process.stdin
        with contextlib.suppress(OSError):  # it has died: reading reports why
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        answer = self._read()
        if "error" in answer:
            raise Died(answer["error"])
        return list(answer["seconds"])

    def close(self) -> None:
        assert self.process.stdin
        with contextlib.suppress(OSError):  # unread input of a dead worker
            self.process.stdin.close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()


def machine() -> str:
    """Return the name, CPU and cores of this machine."""
    try:
        fields = [line.split(":") for line in Path("/proc/cpuinfo").read_text().splitlines() if ":" in line]
        info = {key.strip(): value.strip() for key, value, *_ in fields}
    except OSError:
        info = {}
    model = info.get("model name") or platform.processor() or platform.machine()
    units = [name for name in ("avx2", "avx512f", "amx_bf16") if name in info.get("flags", "").split()]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    system = f"{platform.system()} {platform.release()}, Python {platform.python_version()}"
    return f"{platform.node()}: {model} ({', '.join(units) or platform.machine()}), {cores} cores, {system}"

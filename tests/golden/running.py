"""Helpers that run scripts as a user would, and normalize their output to the part that must never change."""
from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SETTINGS = ("DEBUG", "DEV", "DYNAMIC", "NOOPT", "CHECKED", "CACHELEVEL", "CACHE_DIR", "ALIAS", "FASTMATH", "VERIFY",
            "CPU_FEATURES", "NO_COLOR", "BEAM", "BEAM_FILE", "PROFILE", "POISON",
            "VIZ", "GRAPH", "JITGRAPH", "TRACE_DIR",
            *("CPU", "CLANG", "LLVM", "PYTHON", "GPU", "CUDA", "METAL", "WEBGPU", "HIP"))


def environment(cache: Path, **settings: str) -> dict[str, str]:
    """Return this process's environment without Tinsmith's settings, with a cache for the test alone."""
    kept = {k: v for k, v in os.environ.items() if k not in SETTINGS}
    path = os.pathsep.join([str(ROOT), *filter(None, [kept.get("PYTHONPATH", "")])])
    return {**kept, "PYTHONPATH": path, "PYTHONIOENCODING": "utf-8", "CACHE_DIR": str(cache), **settings}


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Processes started in this block end at a SIGINT, even if it is ignored here, as in a background job of a shell:
    what is ignored stays so in a child, while a handler becomes the default."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def run(arguments: list[str], cwd: Path, **settings: str) -> subprocess.CompletedProcess[str]:
    """``python arguments`` in ``cwd`` with a cache there."""
    return subprocess.run([sys.executable, *arguments], cwd=cwd, env=environment(cwd / "cache", **settings), text=True,
                          encoding="utf-8", capture_output=True, timeout=100, check=False)


def run_tutorial(name: str, cwd: Path, **settings: str) -> str:
    """Return the output of ``python -m tinsmith.compat`` for a script of the tutorials."""
    done = run(["-m", "tinsmith.compat", str(HERE / "tutorials" / f"{name}.py")], cwd, **settings)
    assert done.returncode == 0, done.stderr
    return done.stdout


_VARIABLE = (
    (r"pid:\d+", "pid:P"),
    (r"tm +[\d.]+us/ *[\d.]+ms", "tm T"),
    (r"mem +[\d.]+ GB", "mem M"),
    (r"\( *[\d.]+ GFLOPS +[\d.]+\|[\d.]+ *GB/s\)", "(SPEED)"),
    (r"^avg: .*total: +(\d+) kernels .* ms$", r"avg: total: \1 kernels"),
    (r"(_[0-9]+)_[0-9a-f]{10}\b", r"\1_HASH"),
)


def normalised(log: str) -> list[str]:
    """Return lines with single spaces, without times, speeds, memory use, process ids and content hashes."""
    lines = []
    for line in log.splitlines():
        text = " ".join(line.split())
        for pattern, replacement in _VARIABLE:
            text = re.sub(pattern, replacement, text)
        if text:
            lines.append(text)
    return lines

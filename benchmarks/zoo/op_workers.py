"""Processes that check or time ops: a request and an answer are a line of JSON each.

An op on which a process dies, or that takes too long, is a row with an error; the next op gets a new process.
"""
from __future__ import annotations

import contextlib
import gc
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, Final

from benchmarks.process import ROOT
from benchmarks.zoo.runner import EMPTY

START: Final = 300.0  # seconds until a process must be ready


class NotStarted(Exception):
    """A process ended before its first request; the text is its last line."""


class Worker:
    """A process that answers one request at a time; it starts with the first.

    Args:
        device: PyTorch's device of the tensors.
        limit: seconds of a request, at most.
    """

    def __init__(self, device: str, threads: int, limit: float) -> None:
        self.command = [sys.executable, "-m", "benchmarks.zoo.op_workers", device, str(threads)]
        self.limit = limit
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start a process, and wait until it is ready.

        Raises:
            NotStarted: if it ends before, or is not ready in time.
        """
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - lives as long as the process
        self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log,
                                        text=True, cwd=ROOT, start_new_session=True)
        if not self._line(START):
            raise NotStarted(self._ended())

    def _line(self, seconds: float) -> str:
        """Return the next line of the process, which is killed after so many seconds; "" if it ends."""
        assert self.process is not None and self.process.stdout is not None
        timer = threading.Timer(seconds, self._kill)
        timer.start()
        line = self.process.stdout.readline()
        timer.cancel()
        return line

    def _kill(self) -> None:
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)  # with the compilers that it started

    def _ended(self) -> str:
        """Forget the process, and return how it ended."""
        assert self.process is not None
        self._kill()
        code, self.process = self.process.wait(), None
        self.log.seek(0)
        last = [line for line in self.log.read().splitlines() if line.strip()][-1:] or [""]
        return f"the process ended with {code}: {last[0]}"[:300]

    def ask(self, text: str, phase: str) -> dict[str, Any]:
        """Return the row of an op: "check" fills in if it is correct, "time" and "calls" the times."""
        if self.process is None:
            self.start()
        assert self.process is not None and self.process.stdin is not None
        begin = time.monotonic()
        with contextlib.suppress(OSError):  # it has died: reading reports why
            self.process.stdin.write(json.dumps([text, phase]) + "\n")
            self.process.stdin.flush()
        line = self._line(self.limit)
        if line:
            row, broken = json.loads(line)
            if broken:
                self.close()
            return dict(row)
        late = time.monotonic() - begin >= self.limit
        reason = f"no answer in {self.limit:.0f} s; " * late + self._ended()
        return {**EMPTY, "key": text, "error": f"{phase}: {reason}"}

    def close(self) -> None:
        if self.process is not None:
            self._ended()


def answers(workers: Sequence[Worker], texts: Sequence[str], phase: str,
            deadline: float) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield ops and their rows as they come; no op begins after the deadline, a value of ``time.monotonic``."""
    left, lock = iter(texts), threading.Lock()
    done: queue.Queue[tuple[str, dict[str, Any]] | None] = queue.Queue()

    def serve(worker: Worker) -> None:
        try:
            while time.monotonic() < deadline:
                with lock:
                    text = next(left, None)
                if text is None:
                    break
                done.put((text, worker.ask(text, phase)))
        except NotStarted as error:
            print(f"FAIL a process for ops did not start: {error}", flush=True)
        finally:
            done.put(None)

    running = [threading.Thread(target=serve, args=(w,), daemon=True) for w in workers[:len(texts)]]
    for thread in running:
        thread.start()
    ended = 0
    while ended < len(running):
        found = done.get()
        if found is None:
            ended += 1
        else:
            yield found


def main() -> None:
    """Answer the requests of standard input."""
    device, threads = sys.argv[1:]
    os.environ["THREADS"] = threads
    out = os.dup(1)
    os.dup2(2, 1)  # what libraries print is no answer
    warnings.simplefilter("ignore")

    import torch

    from benchmarks.zoo import ops

    torch.set_num_threads(int(threads))
    torch.zeros(1, device=device)
    gc.freeze()  # captures of CUDA graphs collect garbage
    os.write(out, b"{}\n")
    for line in sys.stdin:
        row = ops.run(*json.loads(line), device)
        os.write(out, (json.dumps([row, ops.is_broken(device)]) + "\n").encode())


if __name__ == "__main__":
    main()

"""Parallel compilation: threads compile kernels while the main thread generates the next sources, then it helps
them."""
from __future__ import annotations

import contextlib
import queue
import sys
import threading
from typing import Final

from tinsmith.backend.device import Device
from tinsmith.codegen.launch import KernelProgram, Launch
from tinsmith.core.settings import in_context
from tinsmith.core.signal_errors import raised_by_handler
from tinsmith.core.timeline import span
from tinsmith.runtime.compiled_schedule import is_loaded, load

# Interpreter switch interval in seconds while compiling. Compiler threads need the interpreter only briefly between
# native calls; Python's default of 5 ms per request would leave a core idle.
SWITCH: Final = 0.0005


class _Job:
    """One kernel to compile."""

    def __init__(self, device: str, kernel: KernelProgram) -> None:
        self.device, self.kernel = device, kernel
        self.binary: bytes | None = None
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            with span("compile", f"{self.device} compiler", self.kernel.name, self.kernel.symbol):
                self.binary = Device[self.device].compiler.compile(self.kernel.source)
        except BaseException as error:  # raised again in ``load``
            self.error = error


class Compilation:
    """The compilation of a schedule's kernels; used in a ``with`` block.

    Compilers that report no ``threads`` run in ``load``, as does everything if there is only one kernel.
    """

    def __init__(self) -> None:
        self._jobs: dict[tuple[str, str], _Job] = {}
        self._queue: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._most: dict[str, int] = {}  # device → maximum number of threads
        self._abandoned = False
        self._interval = sys.getswitchinterval()

    def __enter__(self) -> Compilation:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._abandoned = True
        sys.setswitchinterval(self._interval)  # also if an exception came before the first thread was noted
        self._finish()
        first = raised_by_handler(error)
        if first is not None and first is not error:
            raise first from None

    def add(self, device: str, kernel: KernelProgram) -> None:
        """Start to compile ``kernel``, unless it is loaded or was added before."""
        if is_loaded(device, kernel) or (device, kernel.symbol) in self._jobs:
            return
        job = self._jobs[device, kernel.symbol] = _Job(device, kernel)
        if device not in self._most:
            self._most[device] = Device[device].compiler.threads()
        if self._most[device]:
            self._queue.put(job)
            if len(self._threads) < min(self._most[device], len(self._jobs) - 1):
                sys.setswitchinterval(min(SWITCH, self._interval))
                work = in_context(self._serve)
                self._threads.append(threading.Thread(target=work, name="tinsmith compiler", daemon=True))
                self._threads[-1].start()

    def load(self) -> None:
        """Finish compilation and load all programs, device by device.

        Raises:
            CompileError: the first one that a compiler raised.
        """
        self._finish()
        batches: dict[str, list[tuple[Launch, bytes]]] = {}
        for job in sorted(self._jobs.values(), key=lambda job: job.error is None):  # failed jobs first
            if job.binary is None and job.error is None:
                job.run()
            if job.error is not None:
                raise job.error
            assert job.binary is not None
            batches.setdefault(job.device, []).append((job.kernel, job.binary))
        for device, batch in batches.items():
            load(device, batch)

    def _serve(self) -> None:
        """Compile jobs from the queue until it gives None (the loop of a compiler thread)."""
        while (job := self._queue.get()) is not None:
            self._run(job)

    def _run(self, job: _Job) -> None:
        if not self._abandoned:
            job.run()
            self._abandoned = self._abandoned or job.error is not None

    def _finish(self) -> None:
        """Help the compiler threads until the queue is empty, then end them."""
        if not self._threads:
            return
        try:
            with contextlib.suppress(queue.Empty):
                while True:
                    job = self._queue.get_nowait()
                    if job is not None:  # None: an earlier ``_finish`` was interrupted while it ended threads
                        self._run(job)
        finally:
            for _ in self._threads:
                self._queue.put(None)
            sys.setswitchinterval(self._interval)
        for thread in self._threads:
            if thread.is_alive():  # False: it has ended, or a signal handler raised before it started
                thread.join()
        self._threads.clear()

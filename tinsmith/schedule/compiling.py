"""Binaries of kernels: a second thread compiles one while the first writes the source of the next."""
from __future__ import annotations

import queue
import sys
import threading
from types import TracebackType
from typing import Final

from tinsmith.backend.device import Device
from tinsmith.codegen.program import KernelProgram, Launch
from tinsmith.core.settings import settings
from tinsmith.schedule.compiled import is_loaded, load

# Seconds after which a thread that writes sources lets the compiling one go on. Between its native calls that one needs
# the interpreter for moments only, and Python's usual 5 ms of waiting for each of them would leave a core idle.
SWITCH: Final = 0.0005


class _Job:
    """One kernel to compile."""

    def __init__(self, device: str, kernel: KernelProgram) -> None:
        self.device, self.kernel = device, kernel
        self.binary: bytes | None = None
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.binary = Device[self.device].compiler.compile(self.kernel.source)
        except BaseException as error:  # raised again by whoever asks for the binary
            self.error = error

    def result(self) -> bytes:
        if self.binary is None and self.error is None:
            self.run()
        if self.error is not None:
            raise self.error
        assert self.binary is not None
        return self.binary


class Compilation:
    """The kernels of a schedule on their way to loaded programs; used in a ``with`` block.

    Compilers that are not ``concurrent`` work in ``load``, as does everything where there is one kernel only.
    """

    def __init__(self) -> None:
        self._jobs: dict[tuple[str, str], _Job] = {}
        self._queue: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._abandoned = False
        self._settings = dict(vars(settings))
        self._interval = sys.getswitchinterval()

    def __enter__(self) -> Compilation:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._abandoned = True
        self._wait()

    def add(self, device: str, kernel: KernelProgram) -> None:
        """Begin to compile ``kernel``, unless it is loaded or was added before."""
        if is_loaded(device, kernel) or (device, kernel.symbol) in self._jobs:
            return
        job = self._jobs[device, kernel.symbol] = _Job(device, kernel)
        if Device[device].compiler.concurrent:
            self._queue.put(job)
            if self._thread is None and len(self._jobs) > 1:
                sys.setswitchinterval(min(SWITCH, self._interval))
                self._thread = threading.Thread(target=self._serve, name="tinsmith compiler", daemon=True)
                self._thread.start()

    def load(self) -> None:
        """Load all programs, device by device.

        Raises:
            CompileError: the first one that a compiler raised.
        """
        self._wait()
        batches: dict[str, list[tuple[Launch, bytes]]] = {}
        for job in self._jobs.values():
            batches.setdefault(job.device, []).append((job.kernel, job.result()))
        for device, batch in batches.items():
            load(device, batch)

    def _serve(self) -> None:
        vars(settings).update(self._settings)
        while (job := self._queue.get()) is not None:
            if not self._abandoned:
                job.run()

    def _wait(self) -> None:
        """Until the second thread has done its work."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None
            sys.setswitchinterval(self._interval)

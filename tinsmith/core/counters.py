"""Process-wide counters of kernels, operations and memory, and the timed lines of ``DEBUG=2``."""
from __future__ import annotations

import atexit
import os
import time
from collections import Counter
from collections.abc import Callable
from typing import Final, NamedTuple

from tinsmith.core.origin import layers_text
from tinsmith.core.settings import settings
from tinsmith.core.terminal import colored, show, visible_length, width

BEGIN: Final = time.perf_counter()  # seconds; approximately the time of the package's import


_imported = 0.0


def note_import() -> None:
    """Record that the package is imported."""
    global _imported
    _imported = time.perf_counter()


def import_seconds() -> float:
    """Return the seconds that the import of the package took; 0 while it is being imported.

    >>> 0 < import_seconds() < 600
    True
    """
    return max(_imported - BEGIN, 0.0)


class _Counters:
    """Totals since the start of the process (or the last ``reset``); ``mem_used`` is the bytes in live buffers.

    Attributes:
        memory: bytes in buffers, including dead buffers whose memory is not yet released.
        memory_on: the same per device.
        peak_on: the maximum of ``memory_on`` per device.
        settle: callback that releases the memory of dead buffers; set by ``backend.memory``.
    """

    __slots__ = ("compile_count", "global_mem", "global_ops", "kernel_count", "memory", "memory_on", "peak_on",
                 "schedule_count", "settle", "time_sum_s")

    def __init__(self) -> None:
        self.memory = 0
        self.memory_on: Counter[str] = Counter()
        self.peak_on: Counter[str] = Counter()
        self.settle: Callable[[], None] | None = None
        self.reset()

    def reset(self) -> None:
        """Set every counter except ``mem_used`` to zero; peaks restart from the current use."""
        if self.settle is not None:
            self.settle()
        self.peak_on = self.memory_on.copy()
        self.kernel_count = self.global_ops = self.global_mem = self.compile_count = self.schedule_count = 0
        self.time_sum_s = 0.0

    @property
    def mem_used(self) -> int:
        """Bytes in live buffers."""
        if self.settle is not None:
            self.settle()
        return self.memory

    @property
    def mem_used_per_device(self) -> dict[str, int]:
        """Bytes in live buffers, per device that has any."""
        if self.settle is not None:
            self.settle()
        return {device: nbytes for device, nbytes in self.memory_on.items() if nbytes}

    @property
    def mem_peak_per_device(self) -> dict[str, int]:
        """Peak bytes in buffers since the last ``reset``, per device."""
        return {device: nbytes for device, nbytes in self.peak_on.items() if nbytes}


GlobalCounters: Final = _Counters()


class Ran(NamedTuple):
    """A completed queue operation: a kernel, a copy or a synchronization.

    ``lines``: the user's lines that it computes, as (method, file, line). ``start``: on the clock of
    ``time.perf_counter``. ``key`` distinguishes kernels of the same name. ``occupancy``: as of ``Program``. ``unit``:
    as of ``Launch``. ``layers``: labels of the model layers that it computes.
    """

    device: str
    name: str
    args: int
    seconds: float
    ops: int = 0
    bytes: int = 0
    origin: tuple[str, ...] = ()
    kind: str = "kernel"
    lines: tuple[tuple[str, str, int], ...] = ()
    start: float = 0.0
    key: str = ""
    occupancy: float | None = None
    unit: str = ""
    layers: tuple[str, ...] = ()


def count_work(ops: int, nbytes: int, seconds: float) -> None:
    """Count one kernel or copy."""
    GlobalCounters.kernel_count += 1
    GlobalCounters.global_ops += ops
    GlobalCounters.global_mem += nbytes
    GlobalCounters.time_sum_s += seconds


def report(ran: Ran) -> None:
    """Count ``ran`` and, at ``DEBUG>=2``, print its line."""
    count_work(ran.ops, ran.bytes, ran.seconds)
    if settings.DEBUG < 2:
        return
    _print_summary_at_exit()
    show(timed_line(ran))


def timed_line(ran: Ran) -> str:
    """Return the ``DEBUG=2`` line: device, number, name, arguments, memory, time/total, throughput, the layers and
    methods that it computes.

    If the line is wider than the terminal, the first methods, or all methods, are omitted, or the layers get a line of
    their own; ``DEBUG=3`` shows everything.
    """
    color = {"kernel": "green", "copy": "yellow"}.get(ran.kind, "gray")
    rate = max(ran.seconds, 1e-9) * 1e9
    moved = f"{ran.bytes / rate:.1f}"
    line = (
        f"*** {colored(f'{ran.device:6s}', color)} {GlobalCounters.kernel_count:4d} {ran.name:20s} arg {ran.args:2d} "
        f"mem {GlobalCounters.mem_used / 1e9:.2f} GB tm {_number(ran.seconds * 1e6, 6)}us/"
        f"{_number(GlobalCounters.time_sum_s * 1e3, 6)}ms ({_number(ran.ops / rate, 5)} GFLOPS {moved}|{moved} GB/s)"
    )
    methods = [m for m in ran.origin if m]
    used = visible_length(line) + 1
    room = width() - used if used < width() else 2 * width() - used - 8  # narrow terminal: the line is folded
    forms = [str(methods), *(f"[…, {str(methods[i:])[1:]}" for i in range(1, len(methods))), str(methods[-1:]), ""]
    text = next(form for form in forms if len(form) <= room or not form) if methods else ""
    layers = layers_text(ran.layers)
    if layers and len(layers) <= room:
        both = f"{layers}: {methods}"
        return f"{line} {both if len(both) <= room else layers}"
    return f"{line} {text}".rstrip() + f"\n    {layers}" * bool(layers)


def _number(value: float, width: int) -> str:
    """Format with at least ``width`` columns and as many decimals (at most two) as fit.

    >>> [_number(v, 6) for v in (1.5, 1234.56, 123456.7)]
    ['  1.50', '1234.6', '123457']
    """
    return next((t for digits in (2, 1) if len(t := f"{value:{width}.{digits}f}") <= width), f"{value:{width}.0f}")


_summary_registered = False


def _print_summary_at_exit() -> None:
    global _summary_registered
    if not _summary_registered:
        _summary_registered = True
        atexit.register(print_summary, os.getpid())


def print_summary(pid: int | None = None) -> None:
    """Print the final line of ``DEBUG=2``: average throughput and totals."""
    if pid is not None and pid != os.getpid():
        return
    g = GlobalCounters
    seconds = max(g.time_sum_s, 1e-9)
    show(
        f"avg: {g.global_ops / seconds * 1e-9:8.2f} GFLOPS {g.global_mem / seconds * 1e-9:8.2f} GB/s           "
        f"total: {g.kernel_count:5d} kernels {g.global_ops * 1e-9:8.2f} GOPS {g.global_mem * 1e-9:8.2f} GB "
        f"{g.time_sum_s * 1e3:8.2f} ms"
    )

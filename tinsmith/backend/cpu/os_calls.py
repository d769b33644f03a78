"""Operating system calls of the CPU device, each with a fallback that works anywhere.

Linux first, then macOS and Windows: a missing service returns a default or ``False``, never an exception.
"""
from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import mmap
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from tinsmith.core.settings import settings

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

HUGE_PAGE: Final = 2 << 20
CACHE_LINE: Final = 64

_FUTEX: Final = {"x86_64": 202, "arm64": 98}
_GETTID: Final = {"x86_64": 186, "arm64": 178}
_ARCH_PRCTL: Final = 158
_ARCH_REQ_XCOMP_PERM: Final = 0x1023
_XFEATURE_TILE_DATA: Final = 18


def architecture() -> str:
    """Return ``x86_64``, ``arm64`` or the machine's own name for anything else."""
    machine = platform.machine().lower()
    return {"amd64": "x86_64", "x64": "x86_64", "aarch64": "arm64"}.get(machine, machine)


def futex_number() -> int | None:
    """Return the system call number of ``futex``; None where a native pool cannot sleep on it."""
    return _FUTEX.get(architecture()) if sys.platform == "linux" else None


def gettid_number() -> int | None:
    """Return the system call number of ``gettid``; None where it is not available."""
    return _GETTID.get(architecture()) if sys.platform == "linux" else None


@functools.cache
def libc() -> Any:
    """Return the C library that this process already uses (POSIX only)."""
    return ctypes.CDLL(None, use_errno=True)


class _SigAction(ctypes.Structure):
    """The C libraries' ``struct sigaction`` on Linux."""

    _fields_ = (("handler", ctypes.c_void_p), ("mask", ctypes.c_ulong * (128 // ctypes.sizeof(ctypes.c_ulong))),
                ("flags", ctypes.c_int), ("restorer", ctypes.c_void_p))


_SA_SIGINFO: Final = 4


@contextlib.contextmanager
def handled(number: int, handler: int) -> Iterator[None]:
    """Install machine code at ``handler`` as the handler of a signal with a value, inside the block (Linux only)."""
    before = _SigAction()
    libc().sigaction(number, ctypes.byref(_SigAction(handler=handler, flags=_SA_SIGINFO)), ctypes.byref(before))
    try:
        yield
    finally:
        libc().sigaction(number, ctypes.byref(before), None)


# Cores


def usable_cpus() -> list[int]:
    """Return the numbers of the logical CPUs that this process may run on."""
    if sys.platform == "linux":
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def usable_cores() -> int:
    """Return the number of threads that can run at once, bounded by affinity mask, container CPU quota and ``THREADS``.
    """
    count = math.ceil(min(len(usable_cpus()), _cpu_quota()))
    if settings.THREADS > 0:
        count = min(count, settings.THREADS)
    return max(count, 1)


def current_cpu() -> int:
    """Return the CPU that the calling thread runs on; 0 where unknown."""
    if sys.platform != "linux":
        return 0
    return max(int(libc().sched_getcpu()), 0)


def pin_thread(tid: int, cpu: int) -> bool:
    """Pin thread ``tid`` to ``cpu``; return False if that is not possible or not allowed."""
    if sys.platform != "linux":
        return False
    try:
        os.sched_setaffinity(tid, {cpu})
    except OSError:
        return False
    return True


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _control_groups(controller: str) -> Iterable[tuple[bool, Path]]:
    """Yield the folders of this process's control groups up to the root, as (is version 2, folder).

    Inside a container the path in ``/proc/self/cgroup`` may name folders of the host that are not mounted; the walk up
    then reaches the container's own limit at the root.
    """
    for line in _read(Path("/proc/self/cgroup")).splitlines():
        _, names, inner = line.split(":", 2)
        if names and controller not in names.split(","):
            continue
        root = Path("/sys/fs/cgroup") / (controller if names else "")
        folder = root / inner.lstrip("/")
        while True:
            yield not names, folder
            if folder == root or root not in folder.parents:
                break
            folder = folder.parent


def _cpu_quota() -> float:
    """Return the CPU quota of the control groups, in CPUs; infinity without a limit."""
    quota = math.inf
    for is_v2, folder in _control_groups("cpu"):
        if is_v2:
            words = _read(folder / "cpu.max").split()
        else:
            words = [_read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")]
        if len(words) == 2 and words[0].isdigit() and words[1].isdigit() and int(words[1]):
            quota = min(quota, int(words[0]) / int(words[1]))
    return quota


class CoreClaim:
    """An advisory claim of CPUs against other processes; it ends with ``release`` or with the process.

    One file in the temporary directory represents the machine and byte ``n`` of it CPU ``n``, so that partial overlaps
    are detected, too. A forked child does not inherit the locks: its parent's CPUs are claimed for it, which is
    correct. Make one claim per process: locks are per process.
    """

    def __init__(self, cpus: Iterable[int]) -> None:
        self.alone = True
        self._handle = _open_shared(Path(tempfile.gettempdir()) / "tinsmith-cores.lock")
        if self._handle >= 0:
            # Claim every free CPU, even after one that is taken.
            claimed = [_lock_byte(self._handle, cpu) for cpu in cpus]
            self.alone = all(claimed)

    def release(self) -> None:
        """Release the CPUs."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


def _open_shared(path: Path) -> int:
    """Return a handle on a file that every user of the machine can lock, or -1."""
    flags = os.O_RDWR | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
    # Opening before creating: Linux refuses O_CREAT on another user's file in a sticky folder.
    for extra in (0, os.O_CREAT):
        with contextlib.suppress(OSError):
            handle = os.open(path, flags | extra, 0o666)
            if extra:
                with contextlib.suppress(OSError):
                    os.chmod(path, 0o666)
            return handle
    return -1


def _lock_byte(handle: int, index: int) -> bool:
    try:
        if sys.platform == "win32":
            os.lseek(handle, index, os.SEEK_SET)
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        else:
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, index)
    except OSError:
        return False
    return True


# Memory


def alloc(nbytes: int) -> tuple[int, Callable[[], None]]:
    """Allocate memory; return (address, release function), aligned to a cache line, or to a huge page from 2 MiB on.

    Its contents are undefined.

    Raises:
        MemoryError: if the system refuses.
    """
    if nbytes < HUGE_PAGE:
        return _alloc_small(nbytes)
    # The slack is address space only: untouched pages take no memory.
    length = nbytes + HUGE_PAGE
    try:
        if sys.platform == "win32":
            block = mmap.mmap(-1, length)
        else:
            # Python's default is MAP_SHARED, which forked children would write through and which gets no huge pages.
            block = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError, ValueError) as e:
        raise MemoryError(str(e)) from None
    start = ctypes.addressof(ctypes.c_char.from_buffer(block))
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            block.madvise(mmap.MADV_HUGEPAGE)
    return start + -start % HUGE_PAGE, block.close


def _alloc_small(nbytes: int) -> tuple[int, Callable[[], None]]:
    holder = [np.zeros(nbytes + CACHE_LINE, np.uint8)]
    start: int = holder[0].__array_interface__["data"][0]
    return start + -start % CACHE_LINE, holder.clear


@functools.cache
def total_memory() -> int:
    """Return the bytes of memory available to this process: the machine's, or its container's limit if that is smaller.
    """
    import psutil  # imported lazily: it takes 20 ms

    total: int = psutil.virtual_memory().total
    for is_v2, folder in _control_groups("memory"):
        limit = _read(folder / ("memory.max" if is_v2 else "memory.limit_in_bytes"))
        if limit.isdigit():
            total = min(total, int(limit))
    return total


# The processor


class CacheSizes(NamedTuple):
    """Sizes in bytes of the data caches: L1 and L2 per core, L3 shared."""

    l1: int = 32 << 10
    l2: int = 512 << 10
    l3: int = 8 << 20


@functools.cache
def cache_sizes() -> CacheSizes:
    """Return the data cache sizes of the first CPU, with conservative defaults for unknown ones."""
    found: dict[str, int] = {}
    if sys.platform == "darwin":
        for field, name in (("l1", b"hw.l1dcachesize"), ("l2", b"hw.l2cachesize"), ("l3", b"hw.l3cachesize")):
            value, length = ctypes.c_int64(), ctypes.c_size_t(8)
            if not libc().sysctlbyname(name, ctypes.byref(value), ctypes.byref(length), None, 0) and value.value > 0:
                found[field] = value.value
    for folder in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        level, kind, size = (_read(folder / name) for name in ("level", "type", "size"))
        number, unit = size.rstrip("KMG"), size[-1:]
        if kind != "Instruction" and level in ("1", "2", "3") and number.isdigit():
            found["l" + level] = int(number) << {"K": 10, "M": 20, "G": 30}.get(unit, 0)
    return CacheSizes(**found)


@functools.cache
def request_amx() -> bool:
    """Request the AMX tile registers from the kernel, once per process; without permission the first tile raises
    SIGILL."""
    if sys.platform != "linux" or architecture() != "x86_64":
        return False
    return bool(libc().syscall(_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XFEATURE_TILE_DATA) == 0)

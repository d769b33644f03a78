"""Buffers, and the caching allocator below them.

A buffer is device memory, allocated on first use and freed when nothing refers to it. The allocator keeps freed blocks
in free lists, because fresh memory costs more than the kernel that fills it.
"""
from __future__ import annotations

import contextlib
import functools
import threading
import weakref
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np

from tinsmith.backend.allocator import Allocator
from tinsmith.backend.allocator import BufferSpec as BufferSpec  # re-exported
from tinsmith.core.counters import GlobalCounters
from tinsmith.core.dtypes import DType
from tinsmith.core.errors import DeviceError, KernelError, OutOfMemoryError, place
from tinsmith.core.settings import current
from tinsmith.core.timeline import timeline
from tinsmith.ir.uop import dead, forget_dead


class MemoryBlock:
    """Memory at ``address``: ``nbytes`` were requested, ``capacity`` bytes are allocated."""

    __slots__ = ("_release", "address", "capacity", "nbytes")

    def __init__(self, nbytes: int, capacity: int, address: int, release: Callable[[], None]) -> None:
        self.address, self.nbytes, self.capacity, self._release = address, nbytes, capacity, release


@functools.lru_cache(maxsize=1024)
def size_class(nbytes: int) -> int:
    """Return the capacity of a block for ``nbytes``: rounded up to a quarter of a power of two, and to a multiple of 64
    bytes.

    >>> [size_class(n) for n in (0, 65, 1000, 1100, 5000)]
    [64, 128, 1024, 1280, 5120]
    """
    step = max(64, 1 << max(0, (nbytes - 1).bit_length() - 3)) if nbytes > 1 else 64
    return max(-(-nbytes // step) * step, 64)


class FreeLists:
    """Free lists by size class; a request takes the most recently freed (warmest) block of its class.

    A subclass allocates fresh blocks.

    Args:
        cache_limit: bytes of free blocks to keep; the size classes freed into longest ago are released first.
    """

    def __init__(self, cache_limit: int) -> None:
        self.cache_limit = cache_limit
        self.in_use = 0
        self.cached = 0
        # capacity → free blocks; keys and blocks in order of the last free
        self._free: dict[int, list[MemoryBlock]] = {}
        self._lock = threading.RLock()  # reentrant: allocating a fresh block may release the free ones

    def alloc(self, nbytes: int) -> MemoryBlock:
        """Return a block of at least ``nbytes`` with undefined contents, aligned to 64 bytes.

        Raises:
            OutOfMemoryError: if the system has not enough memory.
        """
        capacity = size_class(nbytes)
        with self._lock:
            waiting = self._free.get(capacity)
            if waiting:
                block = waiting.pop()
                block.nbytes = nbytes
                self.cached -= capacity
            else:
                block = self._fresh(nbytes, capacity)
            self.in_use += nbytes
            GlobalCounters.memory += nbytes
        return block

    def free(self, block: MemoryBlock) -> None:
        """Take ``block`` back; nothing may read or write it afterwards."""
        capacity = block.capacity
        with self._lock:
            assert block.nbytes >= 0, f"the block of {capacity} bytes at {block.address:#x} was freed twice"
            self.in_use -= block.nbytes
            GlobalCounters.memory -= block.nbytes
            block.nbytes = -1
            waiting = self._free.pop(capacity, [])
            waiting.append(block)
            self._free[capacity] = waiting
            self.cached += capacity
            if self.cached > self.cache_limit:
                self._shrink(self.cache_limit)

    def trim(self) -> None:
        """Release all cached blocks to the system."""
        with self._lock:
            self._shrink(0)

    def _shrink(self, limit: int) -> None:
        while self.cached > limit:
            capacity = next(iter(self._free))
            waiting = self._free[capacity]
            if waiting:
                waiting.pop(0)._release()  # the block freed longest ago is the coldest
                self.cached -= capacity
            else:
                del self._free[capacity]

    def _fresh(self, nbytes: int, capacity: int) -> MemoryBlock:
        """Allocate a block of ``capacity`` bytes from the system.

        Raises:
            OutOfMemoryError: if the system has not enough memory.
        """
        raise NotImplementedError

GUARD: Final = 1024  # bytes of the guard areas before and after a buffer under CHECKED=2
HOLDERS: Final = 5  # buffers that an out-of-memory error lists
_POISON: Final = 0x7FFF  # 16-bit pattern of fresh non-float memory: no valid bool, a large integer
_POISON_NAN: Final = 0xFFFF  # NaN in every float type, and one that no processor produces (a 16-bit GPU NaN is 0x7FFF)
_GUARDED: Final = 0xA5A5
_CHUNK: Final = 1 << 20


_NO_WISHES = BufferSpec()


class MemoryDevice(Protocol):
    """The part of a device that buffers use."""

    @property
    def allocator(self) -> Allocator: ...
    def synchronize(self) -> None: ...


class DeviceTable(Protocol):
    """The registry of devices by name, as buffers use it."""

    def __getitem__(self, name: str) -> MemoryDevice: ...


_devices: DeviceTable


def connect(table: DeviceTable) -> None:
    """Set the registry in which buffers look up their devices. ``device.py``, above this module, calls it."""
    global _devices
    _devices = table


@dataclass(frozen=True)
class ShardLayout:
    """The layout of a value over several devices: replicated (``axis`` None), or split along an axis.

    Attributes:
        shape: shape of the full value; one-dimensional if replicated.
        bounds: part i holds the range from ``bounds[i]`` to ``bounds[i + 1]`` of the axis.

    >>> ShardLayout(("CPU", "CPU:1"), (2, 5), 1, (0, 3, 5)).part_shape(1)
    (2, 2)
    """

    devices: tuple[str, ...]
    shape: tuple[int, ...]
    axis: int | None = None
    bounds: tuple[int, ...] = ()

    def part_shape(self, number: int) -> tuple[int, ...]:
        if self.axis is None:
            return self.shape
        length = self.bounds[number + 1] - self.bounds[number]
        return (*self.shape[: self.axis], length, *self.shape[self.axis + 1 :])


class Buffer:
    """``size`` elements of ``dtype`` on the device with the canonical name ``device``.

    A view shares the memory of ``base``, starting at byte ``offset``. Other buffers begin at byte 0 of their memory, or
    at byte ``GUARD`` if their ends are guarded (``CHECKED=2``).

    >>> b = Buffer("CPU", 2, dtypes.int32)
    >>> b.copyin(memoryview(np.array([3, 4], np.int32))).numpy()
    array([3, 4], dtype=int32)
    """

    layout: ShardLayout | None = None  # set for a value over several devices (Shards)
    __slots__ = ("__weakref__", "_opaque", "base", "device", "dtype", "failed", "lent", "offset", "options", "origin",
                 "size")

    def __init__(self, device: str, size: int, dtype: DType, options: BufferSpec | None = None,
                 base: Buffer | None = None, offset: int = 0, opaque: Any = None) -> None:
        self.device, self.size, self.dtype = device, size, dtype
        self.options, self.base, self.offset = options or _NO_WISHES, base, offset
        if base is None and opaque is None and current().CHECKED >= 2:
            self.offset = GUARD
        self.failed: BaseException | None = None
        self.lent = False  # True if non-tensors also see the memory: it is never reused for another value in place
        self._opaque: Any = opaque
        self.origin: tuple[str, str, int] | None = None  # user's (method, file, line) that allocated the memory

    @property
    def shape(self) -> tuple[int, ...]:
        """(size,): memory is flat; only a sharded value has more axes."""
        return (self.size,)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    def is_allocated(self) -> bool:
        return self.base.is_allocated() if self.base is not None else self._opaque is not None

    @property
    def opaque(self) -> Any:
        """The allocator's handle; allocates the memory if necessary."""
        if self.base is not None:
            return self.base.opaque
        if self._opaque is None:
            self.allocate()
        return self._opaque

    def allocate(self) -> Buffer:
        """Allocate the memory now."""
        now, device = current(), self.device
        if _returned or dead:
            _give_back(now.timed)
        allocator, held = _devices[device].allocator, self.size * self.dtype.itemsize
        nbytes = held + 2 * self.offset
        try:
            plain = self.options is _NO_WISHES
            self._opaque = allocator.alloc(nbytes) if plain else allocator.alloc_as(nbytes, self.options)
        except OutOfMemoryError as error:
            raise OutOfMemoryError(error.op, f"{error.message}. {holders(device)}", error.mend) from None
        owned = _Owned(self, _note_death)
        owned.allocator, owned.opaque, owned.device, owned.nbytes = allocator, self._opaque, device, held
        count, peak = GlobalCounters.memory_on, GlobalCounters.peak_on
        used = count[device] = count[device] + held
        if used > peak[device]:
            peak[device] = used
        if now.timed:
            timeline.memory(device)
        _owned.add(owned)
        if now.POISON or now.CHECKED:
            self.poison()
        if self.offset:
            self.guard()
        return self

    def guard(self) -> None:
        """Fill the guard areas with their pattern."""
        for begin in self._guards():
            self._fill(begin, GUARD, _GUARDED)

    def poison(self) -> None:
        """Fill the contents with NaN (for floats) or a recognizable pattern, so that elements no kernel writes are
        noticed."""
        self._fill(self.offset, self.nbytes, self._poison)

    def is_poisoned(self) -> bool:
        """Return True if nothing seems to have been written since ``poison``; False for types whose values can hold the
        pattern."""
        if not self.nbytes or not (self.dtype.is_float or self.dtype.itemsize >= 4):
            return False
        patterns = {self._poison} | ({_POISON} if self.dtype.itemsize >= 4 else set())  # bytes may be viewed as floats
        return any(all(self._holds(self.offset, n, p) for n in (min(self.nbytes, 64), self.nbytes)) for p in patterns)

    @property
    def _poison(self) -> int:
        return _POISON_NAN if self.dtype.is_float else _POISON

    def is_intact(self) -> bool:
        """Return True if nothing has been written into the guard areas."""
        return all(self._holds(begin, GUARD, _GUARDED) for begin in self._guards())

    def _guards(self) -> tuple[int, ...]:
        return (0, self.offset + self.nbytes) if self.base is None and self.offset and self._opaque is not None else ()

    def _fill(self, begin: int, nbytes: int, pattern: int) -> None:
        allocator = _devices[self.device].allocator
        for at in range(begin, begin + nbytes, _CHUNK):
            count = min(_CHUNK, begin + nbytes - at)
            allocator.copyin(self.opaque, at, _repeated(pattern, count).data)

    def _holds(self, begin: int, nbytes: int, pattern: int) -> bool:
        found = np.empty(nbytes, np.uint8)
        _devices[self.device].allocator.copyout(found.data, self.opaque, begin)
        return bool((found == _repeated(pattern, nbytes)).all())

    def copyin(self, source: memoryview) -> Buffer:
        """Fill from host memory of the same size."""
        _devices[self.device].allocator.copyin(self.opaque, self.offset, source.cast("B") if source.nbytes else source)
        return self

    def copyout(self, target: memoryview) -> memoryview:
        """Copy into host memory of the same size."""
        self.check()
        if target.nbytes:
            _devices[self.device].allocator.copyout(target.cast("B"), self.opaque, self.offset)
        return target

    def check(self) -> None:
        """Raise if the kernel that should have written this buffer failed.

        Raises:
            KernelError: naming that failure.
        """
        if self.failed is not None:
            raise KernelError("read", f"the kernel that computes this value failed: {self.failed}",
                              "fix that failure and compute the value again") from self.failed

    def as_buffer(self) -> memoryview:
        """Return a copy of the contents as bytes."""
        return self.copyout(memoryview(bytearray(self.nbytes)))

    def host_view(self) -> memoryview | None:
        """Return the bytes without a copy, if the host can address them; else None."""
        return _devices[self.device].allocator.host_view(self.opaque, self.offset, self.nbytes)

    def numpy(self) -> np.ndarray[Any, Any]:
        """Return a copy as a one-dimensional NumPy array."""
        out = np.empty(self.size, self.dtype.numpy)
        self.copyout(out.view(np.uint8).data)
        return out

    def view(self, size: int, dtype: DType, offset: int) -> Buffer:
        """Return a view of ``size`` elements of ``dtype``, starting at byte ``offset``."""
        base = self if self.base is None else self.base
        return Buffer(self.device, size, dtype, self.options, base, self.offset + offset)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the contents, since addresses are meaningless elsewhere. A view becomes an independent buffer."""
        contents = bytes(self.as_buffer()) if self.is_allocated() else None
        return _loaded, (self.device, self.size, self.dtype, self.options, contents)

    def __repr__(self) -> str:
        return f"<Buffer {self.device} {self.size} x {self.dtype!r}{f' +{self.offset}' if self.offset else ''}>"


class Borrowed(MemoryBlock):
    """Memory of another library. ``owner`` is released when this block dies, after the device has finished its work."""

    __slots__ = ("device", "owner")

    def __init__(self, device: str, nbytes: int, address: int, owner: Any) -> None:
        super().__init__(nbytes, nbytes, address, lambda: None)
        self.device, self.owner = device, owner

    def __del__(self) -> None:
        with contextlib.suppress(DeviceError):  # the device is lost
            _devices[self.device].synchronize()


def borrowed(device: str, size: int, dtype: DType, address: int, owner: Any) -> Buffer:
    """Return a buffer over memory at an address, on a device whose handles are ``MemoryBlock``s."""
    found = Buffer(device, size, dtype, opaque=Borrowed(device, size * dtype.itemsize, address, owner))
    found.lent = True
    return found


class _Owned(weakref.ref[Buffer]):
    """A weak reference to a buffer that keeps the data needed to free its memory after its death."""

    __slots__ = ("allocator", "device", "nbytes", "opaque")
    allocator: Allocator
    opaque: Any
    device: str
    nbytes: int

_owned: set[Any] = set()
# references of dead buffers, to be freed later: callbacks run no Python (core.object_lifetime)
_returned: deque[Any] = deque()
_note_death = _returned.append


def _repeated(pattern: int, nbytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.full(-(-nbytes // 2), pattern, "<u2").view(np.uint8)[:nbytes]


def holders(device: str) -> str:
    """Return a text that lists the largest live buffers of a device."""
    sizes = Counter((b.dtype, b.size, b.origin) for b in (owned() for owned in list(_owned))
                    if b is not None and b.device == device)
    most = sorted(sizes.items(), key=lambda x: -x[1] * x[0][1] * x[0][0].itemsize)[:HOLDERS]
    texts = [f"{count} of {size} × {dtype.name} ({count * size * dtype.itemsize >> 20} MB"
             + (f", {origin[0]} at {place(*origin[1:])})" if origin is not None else ")")
             for (dtype, size, origin), count in most]
    return f"Held: {', '.join(texts) or 'nothing'}{', …' if len(sizes) > HOLDERS else ''}"


def damaged() -> list[Buffer]:
    """Return the guarded buffers whose guard areas have been overwritten."""
    return [b for b in (owned() for owned in list(_owned)) if b is not None and not b.is_intact()]


def give_back() -> None:
    """Free the memory of dead buffers. Every allocation and every read of ``mem_used`` calls this first."""
    _give_back(current().timed)


def _give_back(timed: bool) -> None:
    if dead:
        forget_dead()  # dead nodes in the intern table still hold buffers
    while _returned:
        try:
            owned = _returned.popleft()
        except IndexError:  # another thread emptied the queue
            return
        _owned.discard(owned)
        owned.allocator.free(owned.opaque)
        GlobalCounters.memory_on[owned.device] -= owned.nbytes
        if timed:
            timeline.memory(owned.device)

GlobalCounters.settle = give_back


def _loaded(device: str, size: int, dtype: DType, options: BufferSpec, contents: bytes | None) -> Buffer:
    b = Buffer(device, size, dtype, options)
    return b if contents is None else b.copyin(memoryview(contents))


def copied(source: Buffer) -> Buffer:
    """Return an independent buffer with the same contents."""
    target = Buffer(source.device, source.size, source.dtype)
    copy_buffer(target, source)
    return target


def copy_buffer(target: Buffer, source: Buffer) -> None:
    """Copy all bytes; without an intermediate copy if the host can address one of the two buffers."""
    if not source.nbytes:
        return
    view = source.host_view()
    if view is not None:
        target.copyin(view)
        return
    mapped = target.host_view()
    if mapped is not None:
        source.copyout(mapped)
    else:
        target.copyin(source.as_buffer())

"""Interchange with array libraries, memory addresses, URLs and einops.

DLPack, NumPy's array protocol and Python's buffer protocol share memory without a copy. Tensors can also be made of a
file, a memory address, or a URL.

einops finds backends among the subclasses of ``einops._backends.AbstractBackend``, which exists only after einops is
imported. An import hook registers the backend for tensors at that time, whichever package is imported first, and costs
nothing without einops.
"""
from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import numpy as np

from tinsmith.backend.device import Device, DeviceName
from tinsmith.backend.memory import Buffer, borrowed
from tinsmith.core.disk_cache import fetched
from tinsmith.core.dtypes import DTypeLike, dtypes, to_dtype
from tinsmith.core.errors import ArgumentError, DeviceError, DTypeError, ShapeError
from tinsmith.core.lazy_import import Late
from tinsmith.ir import Ops, UOp
from tinsmith.ir.algebra.sizes import bindings, value_of_size
from tinsmith.ir.uop import toposort
from tinsmith.runtime.compiled_schedule import CompiledSchedule
from tinsmith.tensor.arguments import integer
from tinsmith.tensor.base import check_tensors, device_name, leaf
from tinsmith.tensor.helpers import product, sizes
from tinsmith.tensor.interop import dlpack, files
from tinsmith.tensor.interop.dlpack import HOST
from tinsmith.tensor.interop.files import CHUNK, FUNCTIONS
from tinsmith.tensor.nnops.functional import Functional
from tinsmith.tensor.realize import realize_tensors

if TYPE_CHECKING:
    import gzip

else:
    gzip = Late("gzip")

T = TypeVar("T", bound="Interop")


class Interop(Functional):
    """Protocols and files of other array libraries, hashes, and tinygrad's older names."""

    __slots__ = ()

    # *** protocols ***

    @classmethod
    def from_dlpack(cls, x: Any, *, device: DeviceName | None = None,
                    copy: bool | None = None) -> Self:
        """Return a tensor over the memory of another library's array (NumPy, PyTorch, JAX, CuPy …).

        The memory lives as long as either of the two objects. Later writes of the other library are visible in values
        computed afterwards; writes of the tensor (``assign``, an optimizer's step) go to new memory.

        Args:
            x: an object with ``__dlpack__``, or a capsule, which must not be consumed elsewhere.
            device: the device of the tensor; if the memory is on another device, it is copied.
            copy: True: always copy; False: raise an error instead of copying; None: copy if necessary, such as for
                elements that are not dense in memory.

        >>> a = np.array([[1, 2], [3, 4]]); t = Tensor.from_dlpack(a.T); a[0, 1] = 7; t.tolist()
        [[1, 3], [7, 4]]

        Raises:
            ArgumentError: if ``x`` is no such array, or ``copy=False`` and a copy is needed.
            DTypeError: if no dtype is like its.
            DeviceError: if it is where no device is.
        """
        found = dlpack.received("from_dlpack", x, dlpack.stream_for(x))
        shared = dlpack.taken(found)
        there = shared is not None and (device is None or device_name(device) == shared[1])
        if shared is not None and there and not copy:
            return cls._wrap(*shared)
        if copy is False:
            why = "on another device" if shared is not None else "not one after the other"
            raise ArgumentError("from_dlpack", f"copy=False, but the elements are {why}", "copy=None")
        if found.on_host:
            return cls(found.array, device=device)
        if shared is None:
            raise ArgumentError("from_dlpack", "the elements do not lie one after the other, or begin between "
                                "multiples of 16 bytes, and the host cannot read them", "x.clone() over there")
        return cls._wrap(*shared).clone(device).realize()

    def __dlpack_device__(self) -> tuple[int, int]:
        """DLPack's kind and number of the device: (1, 0) is the host."""
        return dlpack.place_of(self._device)

    def __dlpack__(self, *, stream: Any = None, max_version: tuple[int, int] | None = None,
                   dl_device: tuple[int, int] | None = None, copy: bool | None = None) -> Any:
        """A DLPack capsule of this tensor's values, which are computed now: no copy where the memory can be shared.

        >>> t = Tensor([1.0, 2.0]) * 2; np.from_dlpack(t)
        array([2., 4.], dtype=float32)

        Raises:
            ArgumentError: if ``copy=False`` and a copy is needed.
        """
        here = self.__dlpack_device__()
        place = here if dl_device is None else (int(dl_device[0]), int(dl_device[1]))
        if place not in (here, dlpack.HOST):
            raise ArgumentError("__dlpack__", f"the tensor is on {self.device}, not on DLPack's {place}", ".to(...)")
        array = self._memory() if place == here and not copy else None
        if array is None and copy is False:
            raise ArgumentError("__dlpack__", f"the values of shape {self.shape} on {self.device} are no memory that "
                                "others can look at", "copy=None")
        if place != dlpack.HOST:
            if array is None:  # a dense copy on that device
                return self.clone().realize().__dlpack__(stream=stream)
            Device[self._device].hand_over(stream)
        return dlpack.capsule(self._array() if array is None else array, self.dtype, place)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        """Return the values as a NumPy array: a read-only view of their memory if the host can read it, else a copy.

        Args:
            copy: True: always copy; False: raise an error instead of copying.

        Raises:
            ArgumentError: if ``copy=False`` and a copy is needed.
        """
        seen = None if copy else self._seen()
        if seen is not None and np.dtype(dtype or seen.dtype) == seen.dtype:
            return seen
        if copy is False:
            wanted = "" if dtype is None else f" as {np.dtype(dtype).name}"
            raise ArgumentError("asarray", f"copy=False, but NumPy cannot look at the memory of {self.dtype!r} on "
                                f"{self.device}{wanted}", "copy=None")
        values = self._array() if seen is None else seen
        return values if dtype is None else values.astype(dtype, copy=False)

    def __buffer__(self, flags: int) -> memoryview:
        """Return a read-only ``memoryview`` of the tensor's own memory (Python 3.12 and later).

        NumPy calls this first, and ``__array__`` if it raises.
        """
        if self.dtype.numpy.kind == "V":
            raise DTypeError("memoryview", f"Python has no format for {self.dtype!r}", '.bitcast("uint16") or .float()')
        seen: Any = self._seen()
        if seen is None:
            raise DeviceError("memoryview", f"the values of shape {self.shape} on {self.device} are no memory that the "
                              "host can look at", ".data(), which copies them")
        return memoryview(seen)

    def _seen(self) -> np.ndarray[Any, Any] | None:
        """Return a read-only NumPy array over the tensor's memory; None if the host cannot access it."""
        found = self._memory() if self.__dlpack_device__() == dlpack.HOST else None
        if found is not None:
            found = found.view()
            found.flags.writeable = False
        return found

    def __bytes__(self) -> bytes:
        return self._array().tobytes()

    def _memory(self) -> np.ndarray[Any, Any] | None:
        """Return a NumPy array over the tensor's memory, after computing it if needed."""
        if 0 in self.shape:
            return np.empty([value_of_size(s) for s in self.shape], self.dtype.numpy)
        if not files.on_disk(self._device):
            self.realize()
        return dlpack.shared(self.uop)

    # *** sources ***

    @classmethod
    def from_blob(cls, ptr: int, shape: Any, dtype: DTypeLike | None = None,
                  device: DeviceName | None = None) -> Self:
        """Return a tensor over memory at address ``ptr`` of this process, without a copy on a device of the host.

        The memory must stay valid as long as tensors refer to it; later writes to it are visible. On a device with
        separate memory, or if the address is not aligned, the present content is copied.

        >>> numbers = (ctypes.c_float * 2)(1.5, 2.5)
        >>> x = Tensor.from_blob(ctypes.addressof(numbers), (2,)); numbers[0] = 9.0; x.tolist()
        [9.0, 2.5]
        """
        kind = dtypes.default_float if dtype is None else to_dtype(dtype)
        wanted = sizes("from_blob", (shape,))
        nbytes = product(wanted) * kind.itemsize
        address = integer("from_blob", "ptr", ptr, least=1)
        target = device_name(device)
        if not nbytes:
            return cls.empty(wanted, dtype=kind, device=target)
        if address % kind.itemsize == 0 and "," not in target and Device[target].dlpack == HOST:
            there = borrowed(target, product(wanted), kind, address, None)
            return cls._wrap(UOp(Ops.BUFFER, kind, (), there).reshape(wanted), target)
        block = (ctypes.c_uint8 * nbytes).from_address(address)
        buffer = Buffer("NPY", product(wanted), kind, opaque=np.array(np.frombuffer(block, np.uint8)))
        return cls._wrap(leaf(UOp(Ops.BUFFER, kind, (), buffer).copy_to(target).reshape(wanted)), target)

    @classmethod
    def from_url(cls, url: str, gunzip: bool = False, device: DeviceName | None = None) -> Self:
        """Return the bytes at ``url`` as a uint8 tensor; the file is downloaded once and cached.

        Args:
            gunzip: decompress the file.

        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "x"; _ = path.write_bytes(b"abc")
        >>> Tensor.from_url(path.as_uri()).tolist()
        [97, 98, 99]

        Raises:
            OSError: if the download fails.
        """
        path = fetched(url)
        if gunzip:
            return cls(gzip.decompress(path.read_bytes()), device=device)
        return cls(path, device=device)

    # *** hashes ***

    def keccak(self, cfg: str = "sha3_256") -> Self:
        """Return the hash of each row of bytes along the last axis, as bytes; the values are computed now.

        >>> bytes(Tensor(b"Hello World!").keccak().data()).hex()[:16]
        'd0e47486bbf4c16a'

        Args:
            cfg: "sha3_224", "sha3_256", "sha3_384", "sha3_512" or "shake_128" (of 16 bytes).

        Raises:
            ArgumentError: for another function.
        """
        if cfg not in FUNCTIONS:
            raise ArgumentError("keccak", f"unknown function {cfg!r}", f"one of {', '.join(FUNCTIONS)}")
        if not self.ndim:
            raise ShapeError("keccak", "a 0-d tensor has no last axis", ".reshape(1)")
        rows = np.ascontiguousarray(self._array())
        lines = rows.reshape(-1, rows.shape[-1])
        digests = [np.frombuffer(FUNCTIONS[cfg](line.tobytes()), np.uint8) for line in lines]
        size = len(FUNCTIONS[cfg](b""))
        found = np.stack(digests) if digests else np.empty((0, size), np.uint8)
        return type(self)(found.reshape(*self.shape[:-1], size), device=self.device)

    def hash(self) -> Self:
        """Return a hash (16 bytes) of the tensor's bytes; the values are realized at once.

        A tensor of more than 1 MiB is hashed as a tree: the hashes of its parts of 1 MiB are concatenated and hashed
        again, until one hash is left.

        >>> Tensor(b"Hello World!").hash().shape
        (16,)
        """
        data = np.ascontiguousarray(self._array()).tobytes()
        while True:
            parts = [data[i : i + CHUNK] for i in range(0, max(len(data), 1), CHUNK)]
            data = b"".join(hashlib.shake_128(p.ljust(CHUNK, b"\0")).digest(16) for p in parts)
            if len(parts) == 1:
                return type(self)(data, device=self.device)

    # *** older names ***

    @property
    def lazydata(self) -> UOp:
        """The node behind the tensor: ``uop``.

        >>> (Tensor([1, 2]) + 1).lazydata.shape
        (2,)
        """
        return self.uop

    def schedule_with_vars(self, *others: Self) -> tuple[CompiledSchedule, dict[UOp, int]]:
        """Return ``schedule``, and the values of the bound variables that it was made for.

        >>> v = Variable("v", 1, 4).bind(2)
        >>> Tensor([1, 2, 3, 4])[:v].sum().schedule_with_vars()[1].values()
        dict_values([2])
        """
        found = bindings(toposort([t.uop for t in (self, *others)]))
        return self.schedule(*others), {n.src[0]: n.src[1].arg for n in found}

    @staticmethod
    def corealize(tensors: Sequence[T]) -> None:
        """Compute several tensors in one program: ``realize``.

        >>> a, b = Tensor([1, 2]) + 1, Tensor([3]) * 2
        >>> Tensor.corealize([a, b]); a.tolist(), b.tolist()
        ([2, 3], [6])
        """
        if tensors:
            check_tensors("corealize", tensors)
            realize_tensors(list(tensors))


MODULE: Final = "einops._backends"
_made: Final[list[type]] = []  # einops itself holds its subclasses weakly


class Backend:
    """The framework operations that einops requires of a backend."""

    framework_name = "tinsmith"

    def __init__(self) -> None:
        self.tensor: type[Interop] = sys.modules["tinsmith.tensor.tensor"].Tensor

    def is_appropriate_type(self, tensor: Any) -> bool:
        return isinstance(tensor, self.tensor)

    def from_numpy(self, x: Any) -> Interop:
        return self.tensor(x)

    def to_numpy(self, x: Interop) -> Any:
        return x.numpy()

    def arange(self, start: int, stop: int) -> Interop:
        return self.tensor.arange(start, stop)

    def reshape(self, x: Interop, shape: Sequence[int]) -> Interop:
        return x.reshape(tuple(shape))

    def transpose(self, x: Interop, axes: Sequence[int]) -> Interop:
        return x.permute(tuple(axes))

    def reduce(self, x: Interop, operation: str, axes: Sequence[int]) -> Interop:
        reduced: Interop = getattr(x, operation)(axis=tuple(axes))
        return reduced

    def stack_on_zeroth_dimension(self, tensors: Sequence[Interop]) -> Interop:
        return self.tensor.stack(tensors)

    def add_axis(self, x: Interop, new_position: int) -> Interop:
        return x.unsqueeze(new_position)

    def add_axes(self, x: Interop, n_axes: int, pos2len: dict[int, int]) -> Interop:
        """Return ``x`` with new axes at the dict's keys, broadcast to the sizes that are its values, without a copy."""
        kept = iter(x.shape)
        wide = tuple(pos2len[n] if n in pos2len else next(kept) for n in range(n_axes))
        for n in sorted(pos2len):
            x = x.unsqueeze(n)
        return x.expand(wide)

    def tile(self, x: Interop, repeats: Sequence[int]) -> Interop:
        return x.repeat(tuple(repeats))

    def concat(self, tensors: Sequence[Interop], axis: int) -> Interop:
        return self.tensor.cat(tensors, dim=axis)

    def is_float_type(self, x: Interop) -> bool:
        return x.dtype.is_float

    def einsum(self, pattern: str, *x: Interop) -> Interop:
        return self.tensor.einsum(pattern, *x)


def _add_to(backends: ModuleType) -> None:
    base = getattr(backends, "AbstractBackend", None)
    if base is not None and not _made:
        _made.append(type("TinsmithBackend", (Backend, base), {}))


class _Finder:
    """Import hook that registers the backend when einops is imported."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        loader: Any = spec.loader if spec is not None else None
        if loader is not None:
            execute = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                _add_to(module)

            loader.exec_module = exec_module
        return spec


def install() -> None:
    """Register the backend with einops, now or when it is imported."""
    if MODULE in sys.modules:
        _add_to(sys.modules[MODULE])
    else:
        sys.meta_path.insert(0, _Finder())

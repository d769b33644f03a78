"""Zero-copy interchange with array libraries: DLPack, NumPy's array protocol, and Python's buffer protocol."""
# mypy: disable-error-code=misc
# ``self`` and ``cls`` are the Tensor that this class is mixed into.
from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tinsmith.backend.device import Device, DeviceName
from tinsmith.core.errors import ArgumentError, DeviceError, DTypeError
from tinsmith.ir.algebra.sizes import value_of_size
from tinsmith.tensor.base import device_name
from tinsmith.tensor.interop import dlpack, files

if TYPE_CHECKING:
    from tinsmith.tensor.tensor import Tensor


class Interop:
    """Conversions from and to other libraries (DLPack, array and buffer protocols), without a copy where possible."""

    __slots__ = ()

    @classmethod
    def from_dlpack(cls: type[Tensor], x: Any, *, device: DeviceName | None = None,
                    copy: bool | None = None) -> Tensor:
        """The array of another library (NumPy, PyTorch, JAX, CuPy …) as a tensor over the same memory.

        The memory lives as long as either of the two. What the other library writes there later is seen by what is
        computed afterwards; a tensor's own writes (``assign``, an optimizer's steps) go to new memory.

        Args:
            x: what has ``__dlpack__``, or a capsule, which nobody else must take then.
            device: where the tensor is to be; a copy, if that is elsewhere.
            copy: True for memory of its own; False to have an error instead of a copy. Elements that do not lie one
                after the other are copied.

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

    def __dlpack_device__(self: Tensor) -> tuple[int, int]:
        """DLPack's kind and number of the device: (1, 0) is the host."""
        return dlpack.place_of(self._device)

    def __dlpack__(self: Tensor, *, stream: Any = None, max_version: tuple[int, int] | None = None,
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

    def __array__(self: Tensor, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        """The values as a NumPy array: of their memory itself, which is not to be written, where the host can read it.

        Args:
            copy: True for memory of its own; False to have an error instead of a copy.

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

    def __buffer__(self: Tensor, flags: int) -> memoryview:
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

    def _seen(self: Tensor) -> np.ndarray[Any, Any] | None:
        """Return a read-only NumPy array over the tensor's memory; None if the host cannot access it."""
        found = self._memory() if self.__dlpack_device__() == dlpack.HOST else None
        if found is not None:
            found = found.view()
            found.flags.writeable = False
        return found

    def __bytes__(self: Tensor) -> bytes:
        return self._array().tobytes()

    def _memory(self: Tensor) -> np.ndarray[Any, Any] | None:
        """Return a NumPy array over the tensor's memory, after computing it if needed."""
        if 0 in self.shape:
            return np.empty([value_of_size(s) for s in self.shape], self.dtype.numpy)
        if not files.on_disk(self._device):
            self.realize()
        return dlpack.shared(self.uop)

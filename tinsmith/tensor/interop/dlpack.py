"""Zero-copy exchange with other array libraries by the DLPack protocol.

NumPy creates the exported capsules, over an array of unsigned integers of the element's width; the dtype and device,
which NumPy may not support, are patched in afterwards. A NumPy array over GPU memory is only a descriptor: the host
never reads it.
"""
from __future__ import annotations

import ctypes
import math
from typing import Any, Final, NamedTuple

import numpy as np

from tinsmith.backend.device import Device
from tinsmith.backend.memory import Buffer, borrowed
from tinsmith.backend.shards import Shards
from tinsmith.core.dtypes import DType, dtypes
from tinsmith.core.errors import ArgumentError, DeviceError, DTypeError
from tinsmith.ir import Ops, UOp
from tinsmith.ir.interpret.tensor import evaluate
from tinsmith.runtime.launch import recorders

Array = np.ndarray[Any, Any]
Place = tuple[int, int]  # DLPack's kind of device, and its number
HOST: Final[Place] = (1, 0)
_KINDS: Final = {1: "CPU", 2: "CUDA", 3: "CPU"}  # DLPack's device types; 3 is pinned host memory (kDLCUDAHost)
_CODES: Final = {"int": 0, "uint": 1, "float": 2, "bool": 6}
_CODE_OF: Final = {d: _CODES[d.kind] for d in dtypes.all} | {
    dtypes.bfloat16: 4, dtypes.fp8e4m3: 10, dtypes.fp8e4m3fnuz: 11, dtypes.fp8e5m2: 12, dtypes.fp8e5m2fnuz: 13}
_DTYPE_OF: Final = {(code, d.bits): d for d, code in _CODE_OF.items()}
_ALIGNED: Final = 16  # required alignment in bytes: generated GPU code uses vector loads


class _DLTensor(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), ("kind", ctypes.c_int32), ("number", ctypes.c_int32),
                ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
                ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64))


class _Versioned(ctypes.Structure):
    _fields_ = (("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p),
                ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64), ("tensor", _DLTensor))


_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi))
_is_named = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_IsValid", ctypes.pythonapi))


class Foreign(NamedTuple):
    """The descriptor of another library's memory, read from a DLPack capsule.

    Attributes:
        address: address of the first element.
        place: DLPack's device type and number.
        strides: in elements.
        owner: the capsule, which is not consumed: its destructor releases the memory.
    """

    address: int
    place: Place
    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    owner: Any

    @property
    def on_host(self) -> bool:
        """True if the memory is host memory."""
        return _KINDS.get(self.place[0]) == "CPU"

    @property
    def array(self) -> Array:
        """Return a NumPy array over the memory, which it keeps alive."""
        if 0 in self.shape:
            return np.empty(self.shape, self.dtype.numpy)
        low = sum(min(s, 0) * (n - 1) for s, n in zip(self.strides, self.shape))
        high = sum(max(s, 0) * (n - 1) for s, n in zip(self.strides, self.shape))
        width = self.dtype.itemsize
        block: Any = (ctypes.c_ubyte * ((high - low + 1) * width)).from_address(self.address + low * width)
        block.owner = self.owner
        return np.ndarray(self.shape, self.dtype.numpy, block, -low * width, [s * width for s in self.strides])

    def order(self) -> tuple[int, ...] | None:
        """Return the axis order in which the memory is dense and row-major; None if there is none."""
        order = sorted(range(len(self.shape)), key=lambda n: (-self.strides[n], -self.shape[n]))
        dense = 1
        for n in reversed(order):
            if self.shape[n] != 1 and self.strides[n] != dense:
                return None
            dense *= self.shape[n]
        return tuple(order)


def received(op: str, x: Any, stream: int | None = None) -> Foreign:
    """Return the memory descriptor of another library's array, or of a DLPack capsule, ``x``.

    Raises:
        ArgumentError: if ``x`` is neither.
        DTypeError: if its element type has no equivalent dtype.
    """
    capsule = x if type(x).__name__ == "PyCapsule" else _capsule_of(op, x, stream)
    if _is_named(capsule, b"dltensor_versioned"):
        tensor = _Versioned.from_address(_pointer(capsule, b"dltensor_versioned")).tensor
    elif _is_named(capsule, b"dltensor"):
        tensor = _DLTensor.from_address(_pointer(capsule, b"dltensor"))
    else:
        raise ArgumentError(op, "the capsule holds no DLPack tensor, or somebody has taken it", "the array itself")
    dtype = _DTYPE_OF.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None
    if dtype is None:
        kind = {5: "complex"}.get(tensor.code, f"type {tensor.code}")
        raise DTypeError(op, f"no dtype is like DLPack's {kind} of {tensor.bits} bits", "another dtype over there")
    shape = tuple(tensor.shape[:tensor.ndim])
    strides = tuple(tensor.strides[:tensor.ndim]) if tensor.strides else tuple(
        math.prod(shape[n + 1 :]) for n in range(tensor.ndim))
    address = (tensor.data or 0) + tensor.byte_offset
    return Foreign(address, (tensor.kind, tensor.number), dtype, shape, strides, capsule)


def _capsule_of(op: str, x: Any, stream: int | None) -> Any:
    if not hasattr(x, "__dlpack__"):
        raise ArgumentError(op, f"takes an array that has __dlpack__, got {type(x).__name__}", "Tensor(...)")
    wishes = {} if stream is None else {"stream": stream}
    try:
        return x.__dlpack__(max_version=(1, 0), **wishes)
    except TypeError:  # it is of before 2023
        return x.__dlpack__(**wishes)


def on_host(x: Any) -> Array:
    """Return another library's host array as a NumPy array over the same memory.

    Raises:
        DeviceError: if the array is not in host memory.
    """
    if getattr(x, "requires_grad", False) and hasattr(x, "detach"):  # PyTorch hands out no memory with a history
        x = x.detach()
    place = tuple(x.__dlpack_device__())
    if _KINDS.get(int(place[0])) != "CPU":
        raise DeviceError("Tensor", f"the {type(x).__name__} is on a device (DLPack's kind {int(place[0])})",
                          "Tensor.from_dlpack(x), which shares its memory, or a copy of it on the CPU")
    return received("Tensor", x).array


def stream_for(x: Any) -> int | None:
    """Return the stream on which work on the memory of ``x`` will be enqueued; None for a device without streams."""
    place = getattr(x, "__dlpack_device__", lambda: HOST)()
    device = _device("from_dlpack", (int(place[0]), int(place[1])))
    return Device[device].stream


def taken(found: Foreign) -> tuple[UOp, str] | None:
    """Return a node over another library's memory (no copy), and its device; None if the memory is not dense, not
    aligned, or empty."""
    device, order = _device("from_dlpack", found.place), found.order()
    aligned = found.dtype.itemsize if found.on_host else _ALIGNED
    if order is None or found.address % aligned or Device[device].dlpack is None or 0 in found.shape:
        return None
    buffer = borrowed(device, math.prod(found.shape), found.dtype, found.address, found.owner)
    node = UOp(Ops.BUFFER, found.dtype, (), buffer).reshape(tuple(found.shape[n] for n in order))
    inverse = tuple(order.index(n) for n in range(len(order)))
    return (node if inverse == tuple(range(len(order))) else node.permute(inverse)), device


def _device(op: str, place: Place) -> str:
    """Return the name of the device for a DLPack device; the default device if that is the one."""
    name = _KINDS.get(place[0])
    if name is None:
        raise DeviceError(op, f"no device has memory of DLPack's kind {place[0]}", "a copy of it on the CPU")
    wanted = (1, 0) if name == "CPU" else place
    return Device.DEFAULT if Device.default.dlpack == wanted else f"{name}:{wanted[1]}" if wanted[1] else name


def place_of(device: str) -> Place:
    """Return the DLPack device of a tensor on ``device``; HOST for memory that others cannot address, since such a
    tensor is exported as a copy on the host."""
    return HOST if "," in device else Device[device].dlpack or HOST


def shared(uop: UOp) -> Array | None:
    """Return an array over the memory of a view of a BUFFER (no copy), which it keeps alive; None if the memory is not
    addressable and writable for others, or the view has no nonnegative strides."""
    buffer = uop.base.arg
    if uop.base.op is not Ops.BUFFER or isinstance(buffer, Shards):
        return None
    on_device = place_of(buffer.device) != HOST
    node = uop
    while on_device and node.op is Ops.RESHAPE:
        node = node.src[0]
    if on_device and node.op is not Ops.BUFFER:  # a copy that the host would make reads what it cannot
        return None
    flat = _flat(buffer, on_device)
    if flat is None:
        return None
    for recorder in recorders:
        recorder.read()
    buffer.check()
    found: Array = evaluate([uop], {uop.base: flat})[0].reshape(uop.shape)
    if not found.flags.writeable or not np.may_share_memory(found, flat) or min(found.strides, default=0) < 0:
        return None
    buffer.lent = True
    return found


def _flat(buffer: Buffer, on_device: bool) -> Array | None:
    block: Any
    if on_device:
        block = (ctypes.c_ubyte * buffer.nbytes).from_address(buffer.opaque.address + buffer.offset)
    else:
        mapped = buffer.host_view()
        if mapped is None or mapped.readonly:
            return None
        block = (ctypes.c_ubyte * buffer.nbytes).from_buffer(mapped)
    block.owner = buffer
    return np.frombuffer(block, buffer.dtype.numpy)


def capsule(array: Array, dtype: DType, place: Place) -> Any:
    """Return a DLPack capsule over an array's memory, with elements of ``dtype``, on the DLPack device ``place``."""
    made = array.view(f"u{dtype.itemsize}").__dlpack__()
    tensor = _DLTensor.from_address(_pointer(made, b"dltensor"))
    tensor.code, (tensor.kind, tensor.number) = _CODE_OF[dtype], place
    return made

"""Tensors of files: mapped memory, of which parts are copied to where they are computed with.

A file's bytes are written at once. What was read from it before, and not computed yet, sees what is there then.
"""
from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from tinsmith.backend.device import Device
from tinsmith.backend.memory import Buffer
from tinsmith.core.dtypes import DType, dtypes
from tinsmith.core.errors import DeviceError, ShapeError
from tinsmith.ir import Ops, UOp
from tinsmith.ir.evaluate import evaluate

if TYPE_CHECKING:
    from tinsmith.tensor.base import TensorBase

Array = np.ndarray[Any, Any]


def on_disk(device: str) -> bool:
    """Whether a device's memory is a file."""
    return "," not in device and Device[device].persistent


def part(device: str, size: int, dtype: DType) -> UOp:
    """So many elements from the beginning of a device's file, which is made, or made longer, for them."""
    return _of_array(device, Device[device].allocator.alloc(size * dtype.itemsize), dtype)


def whole(path: os.PathLike[str], dtype: DType | None) -> UOp:
    """All of a file, as bytes or as elements of ``dtype``.

    Raises:
        FileNotFoundError: if there is none.
        ShapeError: if its length is no multiple of the element's.
    """
    name, kind = os.fspath(path), dtype or dtypes.uint8
    nbytes = os.stat(name).st_size
    if "," in name:
        raise DeviceError("Tensor", f"the path {name!r} has a comma, which separates the devices of a group",
                          "Tensor(path.read_bytes())")
    if nbytes % kind.itemsize:
        raise ShapeError("Tensor", f"{name!r} has {nbytes} bytes, {kind!r} has {kind.itemsize}", "another dtype")
    return part(Device.canonicalize(f"DISK:{name}"), nbytes // kind.itemsize, kind)


def _of_array(device: str, block: Array, dtype: DType) -> UOp:
    if not block.size:
        return UOp.const(dtype, 0).expand_to((0,))
    buffer = Buffer(device, block.size // dtype.itemsize, dtype, opaque=block)
    return UOp(Ops.BUFFER, dtype, (), buffer)


def values(uop: UOp) -> Array:
    """What a view of a file shows: an array over the mapped bytes themselves where strides can say it.

    Raises:
        DeviceError: for what was computed from it.
    """
    base = uop
    while base.op is not Ops.BUFFER:
        if not base.op.kind == "movement" and base.op is not Ops.DETACH:
            raise DeviceError(base.op.name, "files are memory without programs", ".to('CPU') before computing")
        base = base.src[0]
    flat = base.arg.opaque.view(base.dtype.numpy)
    found: Array = evaluate([uop], {base: flat})[0]
    return found


def moved(tensor: TensorBase, target: str) -> UOp:
    """A tensor's values on another device, where one of the two is a file."""
    if on_disk(target):
        out = part(target, tensor.numel(), tensor.dtype).reshape(tensor.shape)  # type: ignore[attr-defined]
        values(out)[...] = tensor.numpy()
        return out
    if 0 in tensor.shape:
        return tensor.uop
    dense = np.ascontiguousarray(values(tensor.uop))
    buffer = Buffer("NPY", dense.size, tensor.dtype, opaque=dense.reshape(-1).view(np.uint8))
    return UOp(Ops.BUFFER, tensor.dtype, (), buffer).copy_to(target).reshape(dense.shape)


def write(uop: UOp, value: Array) -> None:
    """Write to the file that ``uop`` is a view of.

    Raises:
        ShapeError: if it shows a copy.
        DeviceError: if the file may not be written.
    """
    here = values(uop)
    block = uop.base.arg.opaque if uop.base.op is Ops.BUFFER else None
    if block is None or not np.may_share_memory(here, block):
        raise ShapeError("assign", f"the view of shape {uop.shape} is a copy of the file's bytes", "a slice of it")
    if not here.flags.writeable:
        raise DeviceError("assign", f"the file of {uop.device} may only be read", "a file with write permission")
    here[...] = value


def bits(tensor: TensorBase, dtype: DType) -> UOp:
    """The mapped bytes of a view of a file, read as another dtype along the last axis."""
    seen = values(tensor.uop).view(dtype.numpy)
    device = tensor._device
    dense = np.ascontiguousarray(seen) if not seen.flags.c_contiguous else seen
    return _of_array(device, dense.reshape(-1).view(np.uint8), dtype).reshape(dense.shape)

"""Tensors backed by memory-mapped files, and hashes of their bytes.

The parts of a file that a program reads are copied to its device. Writes to a file take effect at once: an unrealized
tensor that reads the file sees later writes. Hashes are computed on the host by Python's own library.
"""
from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tinsmith.backend.device import Device
from tinsmith.backend.memory import Buffer
from tinsmith.backend.npy.device import check_file, file_of
from tinsmith.core.dtypes import DType, dtypes
from tinsmith.core.errors import DeviceError, ShapeError
from tinsmith.core.object_lifetime import WeakTable
from tinsmith.ir import Ops, UOp
from tinsmith.ir.interpret.tensor import evaluate
from tinsmith.ir.rewrite import readers_of
from tinsmith.ir.uop import toposort

if TYPE_CHECKING:
    from tinsmith.tensor.abstract import AbstractTensor

Array = np.ndarray[Any, Any]

# SHRINK of the copy of a file -> an equal SHRINK of a copy of only the enclosing part of the file.
_parts: WeakTable[UOp, UOp] = WeakTable()


def on_disk(device: str) -> bool:
    """Return True if the device's memory is a file."""
    return "," not in device and Device[device].persistent


def part(device: str, size: int, dtype: DType) -> UOp:
    """Return the first ``size`` elements of a device's file, which is created or extended if necessary."""
    return _of_array(device, Device[device].allocator.alloc(size * dtype.itemsize), dtype)


def whole(path: os.PathLike[str], dtype: DType | None) -> UOp:
    """Return the complete contents of a file, as bytes or as elements of ``dtype``.

    Raises:
        FileNotFoundError: if the file does not exist.
        ShapeError: if its size is not a multiple of the element size.
    """
    name, kind = os.fspath(path), dtype or dtypes.uint8
    nbytes = os.stat(name).st_size
    if "," in name:
        raise DeviceError("Tensor", f"the path {name!r} has a comma, which separates the devices of a group",
                          "Tensor(path.read_bytes())")
    if nbytes % kind.itemsize:
        raise ShapeError("Tensor", f"{name!r} has {nbytes} bytes, {kind!r} has {kind.itemsize}", "another dtype")
    return part(of_file(name), nbytes // kind.itemsize, kind)


def of_file(path: str) -> str:
    """Return the name of the device whose memory is the file."""
    return Device.canonicalize(f"DISK:{path}")


def _of_array(device: str, block: Array, dtype: DType) -> UOp:
    if not block.size:
        return UOp.const(dtype, 0).expand_to((0,))
    buffer = Buffer(device, block.size // dtype.itemsize, dtype, opaque=block)
    return UOp(Ops.BUFFER, dtype, (), buffer)


def values(uop: UOp) -> Array:
    """Return the values of a view of a file: an array over the mapped bytes if the view is strided, else a copy.

    Raises:
        DeviceError: if ``uop`` contains any other operation.
    """
    base = uop
    while base.op not in (Ops.BUFFER, Ops.CONST):
        if not base.op.kind == "movement" and base.op is not Ops.DETACH:
            raise DeviceError(base.op.name, "files are memory without programs", ".to('CPU') before computing")
        base = base.src[0]
    known = {} if base.op is Ops.CONST else {base: check_file(base.arg.opaque).view(base.dtype.numpy)}
    found: Array = evaluate([uop], known)[0]
    return found


def moved(tensor: AbstractTensor, target: str) -> UOp:
    """Return a tensor's values on device ``target``, where the tensor's device or ``target`` is a file."""
    if on_disk(target):
        out = part(target, tensor.numel(), tensor.dtype).reshape(tensor.shape)
        if 0 not in tensor.shape:
            values(out)[...] = tensor._array()
        return out
    if 0 in tensor.shape:
        return UOp.const(tensor.dtype, 0).expand_to(tensor.shape)
    return on_host(tensor).base.copy_to(target).reshape(tensor.shape)


def on_host(tensor: AbstractTensor) -> UOp:
    """Return a view of a file as a host BUFFER: over the mapped bytes if the view is contiguous, else a copy."""
    dense = np.ascontiguousarray(values(tensor.uop))
    buffer = Buffer("NPY", dense.size, tensor.dtype, opaque=dense.reshape(-1).view(np.uint8))
    return UOp(Ops.BUFFER, tensor.dtype, (), buffer).reshape(tensor.shape)


def write(uop: UOp, value: Array) -> None:
    """Write to the file that ``uop`` is a view of.

    Raises:
        ShapeError: if the view cannot be expressed by strides and is therefore a copy.
        DeviceError: if the file is read-only.
    """
    here = values(uop)
    block = uop.base.arg.opaque if uop.base.op is Ops.BUFFER else None
    if block is None or not np.may_share_memory(here, block):
        raise ShapeError("assign", f"the view of shape {uop.shape} is a copy of the file's bytes", "a slice of it")
    if not here.flags.writeable:
        raise DeviceError("assign", f"the file of {uop.device} may only be read", "a file with write permission")
    here[...] = value


def bits(tensor: AbstractTensor, dtype: DType) -> UOp:
    """Return the mapped bytes of a view of a file, reinterpreted as ``dtype`` along the last axis."""
    seen = values(tensor.uop).view(dtype.numpy)
    device = tensor._device
    dense = np.ascontiguousarray(seen) if not seen.flags.c_contiguous else seen
    return _of_array(device, dense.reshape(-1).view(np.uint8), dtype).reshape(dense.shape)


def of_parts(roots: Sequence[UOp], copies: Sequence[UOp]) -> dict[UOp, UOp]:
    """Return replacements for the boxes (SHRINK nodes) that a program reads of mapped files: boxes of copies of only
    the enclosing parts. Empty for a file of which the program reads more than boxes.

    Args:
        copies: COPY nodes of the program that have not been executed yet.
    """
    copies = [n for n in copies if file_of(n.src[0].arg.opaque) is not None and n not in roots]
    if not copies:
        return {}
    readers = readers_of(toposort(roots))
    found: dict[UOp, UOp] = {}
    for copy in copies:
        boxes: list[UOp] = []
        views = [copy]
        for view in views:
            views += (n for n in readers.get(view, ()) if n.op is Ops.RESHAPE)
            boxes += (n for n in readers.get(view, ()) if n.op is not Ops.RESHAPE)
        if all(map(_is_box, boxes)):
            parts = {n: _parts[n] if n in _parts else _part(n, copy) for n in boxes}
            if sum(p.base.size for p in parts.values()) < copy.size:
                found |= parts
    for n, p in found.items():
        _parts[n] = p
    return found


def _is_box(n: UOp) -> bool:
    return n.op is Ops.SHRINK and all(isinstance(v, int) for bounds in n.arg for v in bounds) and 0 not in n.shape


def _part(box: UOp, copy: UOp) -> UOp:
    """Return ``box`` as a box of a copy of the file's rows from the first to the last that it contains."""
    shape, bounds = box.src[0].shape, box.arg
    axis = next((a for a, (begin, end) in enumerate(bounds) if end - begin > 1), len(shape) - 1)
    begin, rows = 0, bounds[axis][1] - bounds[axis][0]
    for size, (b, _) in zip(shape[: axis + 1], bounds):
        begin = begin * size + b
    inner = shape[axis + 1 :]
    width = math.prod(inner) * copy.dtype.itemsize
    block = copy.src[0].arg.opaque[begin * width : (begin + rows) * width]
    buffer = Buffer("NPY", rows * math.prod(inner), copy.dtype, opaque=block)
    part = UOp(Ops.BUFFER, copy.dtype, (), buffer).copy_to(copy.arg).reshape((*(1,) * axis, rows, *inner))
    return part.shrink((*((0, 1),) * axis, (0, rows), *bounds[axis + 1 :]))

FUNCTIONS: Final[dict[str, Callable[[bytes], bytes]]] = {
    "sha3_224": lambda b: hashlib.sha3_224(b).digest(), "sha3_256": lambda b: hashlib.sha3_256(b).digest(),
    "sha3_384": lambda b: hashlib.sha3_384(b).digest(), "sha3_512": lambda b: hashlib.sha3_512(b).digest(),
    "shake_128": lambda b: hashlib.shake_128(b).digest(16)}
CHUNK: Final = 1 << 20



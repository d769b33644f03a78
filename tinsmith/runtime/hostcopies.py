"""Values between the host's memory and a device's."""
from __future__ import annotations

from typing import Any

import numpy as np

from tinsmith.backend.device import Device, members
from tinsmith.backend.memory import Buffer, Layout
from tinsmith.backend.shards import Shards, flattened
from tinsmith.ir import Ops, UOp
from tinsmith.ir.evaluate import evaluate
from tinsmith.runtime.record import recorders
from tinsmith.runtime.running import copy
from tinsmith.runtime.turns import looked_at, reading


def is_host_copy(node: UOp) -> bool:
    """A copy of host memory, as ``Tensor(array)`` makes it, to devices that compute."""
    if node.op is not Ops.COPY or node.src[0].op is not Ops.BUFFER or node.src[0].arg.layout is not None:
        return False
    return all(Device[d].has_programs for d in members(node.arg)) and not Device[node.src[0].arg.device].has_programs


def uncopied(node: UOp) -> Buffer:
    """The place for what a COPY of host memory gives: a buffer on its device, or one on each device of its group."""
    source, devices = node.src[0].arg, members(node.arg)
    parts = [Buffer(d, source.size, source.dtype) for d in devices]
    return parts[0] if len(parts) == 1 else Shards(parts, Layout(devices, (source.size,)))


def copy_from_host(node: UOp) -> Buffer:
    """What a COPY of host memory gives."""
    found = uncopied(node)
    for part in flattened([found]):
        copy(part, node.src[0].arg)
    return found


def copy_to_host(uop: UOp) -> np.ndarray[Any, Any]:
    """The values of a view of a BUFFER as a NumPy array: one copy, shown as such."""
    for recorder in recorders:
        recorder.read()
    buffer = uop.base.arg
    with reading(buffer):
        buffer.check()
        if isinstance(buffer, Shards):
            flat = buffer.joined([_host_copy(b) for b in buffer.needed()])
        else:
            flat = _host_copy(buffer)
    if uop is uop.base:
        return flat.reshape(uop.shape)
    (out,) = evaluate([uop], {uop.base: flat})
    return np.array(out, order="C")


def seen_on_host(uop: UOp) -> np.ndarray[Any, Any]:
    """The values of a view of a BUFFER over its memory itself, where the host can address it; else a copy.

    They are to be read at once, while something refers to the buffer.
    """
    buffer = uop.base.arg
    mapped = None if recorders or isinstance(buffer, Shards) else buffer.host_view()
    if mapped is None:
        return copy_to_host(uop)
    with reading(buffer):
        buffer.check()
        looked_at(mapped.obj, buffer)
    flat = np.frombuffer(mapped, buffer.dtype.numpy)
    found: np.ndarray[Any, Any] = flat if uop is uop.base else evaluate([uop], {uop.base: flat})[0]
    return found.reshape(uop.shape)


def _host_copy(buffer: Buffer) -> np.ndarray[Any, Any]:
    host = Buffer("NPY", buffer.size, buffer.dtype)
    copy(host, buffer)
    return np.frombuffer(host.host_view() or b"", buffer.dtype.numpy)

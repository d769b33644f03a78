"""Transfers between host memory and device memory."""
from __future__ import annotations

from typing import Any

import numpy as np

from tinsmith.backend.device import Device, members
from tinsmith.backend.memory import Buffer, ShardLayout
from tinsmith.backend.shards import Shards, flattened
from tinsmith.ir import Ops, UOp
from tinsmith.ir.interpret.tensor import evaluate
from tinsmith.runtime.launch import copy
from tinsmith.runtime.recorder import recorders
from tinsmith.runtime.thread_turns import looked_at, reading


def is_host_copy(node: UOp) -> bool:
    """Return True for a COPY of host memory (as ``Tensor(array)`` makes) to devices that compute."""
    if node.op is not Ops.COPY or node.src[0].op is not Ops.BUFFER or node.src[0].arg.layout is not None:
        return False
    return all(Device[d].has_programs for d in members(node.arg)) and not Device[node.src[0].arg.device].has_programs


def uncopied(node: UOp) -> Buffer:
    """Return an empty destination for a COPY of host memory: a buffer on its device, or one per device of its group."""
    source, devices = node.src[0].arg, members(node.arg)
    parts = [Buffer(d, source.size, source.dtype) for d in devices]
    return parts[0] if len(parts) == 1 else Shards(parts, ShardLayout(devices, (source.size,)))


def copy_from_host(node: UOp) -> Buffer:
    """Return the result of a COPY of host memory."""
    found = uncopied(node)
    for part in flattened([found]):
        copy(part, node.src[0].arg)
    return found


def copy_to_host(uop: UOp) -> np.ndarray[Any, Any]:
    """Return the values of a view of a BUFFER as a NumPy array: one copy, which is reported."""
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
    """Return the values of a view of a BUFFER without a copy where the host can address its memory; else a copy.

    Read them at once, while the buffer is referenced.
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

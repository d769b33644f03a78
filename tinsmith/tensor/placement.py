"""Device placement of tensors: copies between devices, clones, and replication or sharding over several devices."""
from __future__ import annotations

from itertools import pairwise

import numpy as np

from tinsmith.backend.device import Device, members
from tinsmith.backend.memory import Buffer
from tinsmith.core.errors import ShapeError
from tinsmith.ir import Ops, UOp
from tinsmith.schedule.multi.collectives import even_bounds


def parts(uop: UOp, axis: int, name: str, bounds: tuple[int, ...] | None = None, on_host: bool = False) -> UOp:
    """Return a value sharded along an axis, evenly unless ``bounds`` are given.

    Raises:
        ShapeError: if the axis is too short, or symbolic.
    """
    devices, size = members(name), uop.shape[axis]
    if isinstance(size, UOp):
        raise ShapeError("shard", f"axis {axis} of shape {uop.shape} has a size that is known only at run time",
                         "another axis, or axis=None")
    if size < len(devices):
        raise ShapeError("shard", f"axis {axis} of shape {uop.shape} is too short for {len(devices)} devices",
                         "fewer devices, another axis, or axis=None")
    ends = bounds or even_bounds(size, len(devices))
    found = []
    if uop.device is not None and not on_host and not Device[members(uop.device)[0]].has_programs:
        uop = uop.copy_to(devices[0])  # memory cannot cut what it has
    for d, (b, e) in zip(devices, pairwise(ends)):
        if on_host:
            found.append(_host_part(uop, axis, b, e).copy_to(d))
            continue
        part = uop.shrink(tuple((b, e) if i == axis else (0, s) for i, s in enumerate(uop.shape)))
        found.append(part if uop.device is None else part.copy_to(d))
    return UOp(Ops.SHARD, None, tuple(found), (axis, name))


def _host_part(uop: UOp, axis: int, begin: int, end: int) -> UOp:
    """Return a range of an axis of a host buffer as a new host buffer, so that a device receives only its shard."""
    whole = np.frombuffer(uop.base.arg.host_view(), uop.dtype.numpy).reshape(uop.shape)
    part = np.ascontiguousarray(whole[(slice(None),) * axis + (slice(begin, end),)])
    buffer = Buffer(uop.base.arg.device, part.size, uop.dtype, opaque=part.reshape(-1).view(np.uint8))
    return UOp(Ops.BUFFER, uop.dtype, (), buffer).reshape(part.shape)

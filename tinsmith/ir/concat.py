"""The tensor graph of a concatenation."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tinsmith.ir.uop import UOp

_PARTS_PER_KERNEL = 16  # more parts than this are joined in several steps: each element chooses among all parts


def joined(parts: Sequence[UOp], axis: int) -> UOp:
    """Return the concatenation of ``parts`` along ``axis``: each part is padded to the full size and selected by
    position, so every value, NaN and -0 included, is kept exactly."""
    parts = list(parts)
    while len(parts) > _PARTS_PER_KERNEL:
        groups = [parts[i : i + _PARTS_PER_KERNEL] for i in range(0, len(parts), _PARTS_PER_KERNEL)]
        parts = [joined(g, axis).contiguous() if len(g) > 1 else g[0] for g in groups]
    ends: list[Any] = []
    for p in parts:
        ends.append(p.shape[axis] if not ends else ends[-1] + p.shape[axis])
    total = ends[-1]
    padded = []
    for p, end in zip(parts, ends):
        amounts = ((end - p.shape[axis], total - end) if i == axis else (0, 0) for i in range(p.ndim))
        padded.append(p.pad(tuple(amounts)))
    out = padded[-1]
    if len(parts) > 1:
        place = out.iota_like(axis)
        for p, end in zip(padded[-2::-1], ends[-2::-1]):
            out = place.lt(end).where(p, out)
    return out

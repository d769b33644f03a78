"""A value in parts on several devices, and what becomes of the parts when it is reshaped, cut, padded or flipped."""
from __future__ import annotations

from dataclasses import dataclass

from tinsmith.ir import Ops, UOp
from tinsmith.schedule.collectives import sent

Bounds = tuple[int, ...]


@dataclass(frozen=True)
class Spread:
    """A value over several devices.

    Attributes:
        parts: a node per device; None where its part is empty.
        axis: what the parts lie along; None if each is the whole.
        bounds: part i is ``bounds[i]`` up to ``bounds[i + 1]`` of the axis.
    """

    devices: tuple[str, ...]
    parts: tuple[UOp | None, ...]
    axis: int | None = None
    bounds: Bounds = ()

    @property
    def full(self) -> tuple[UOp, ...]:
        """The parts where none is empty."""
        assert None not in self.parts, self
        return self.parts  # type: ignore[return-value]


def shaped(n: UOp, s: Spread, axis: int, bounds: Bounds) -> Spread:
    """A RESHAPE or EXPAND of parts."""
    parts = []
    for p, b, e in zip(s.full, bounds, bounds[1:]):
        shape = (*n.shape[:axis], e - b, *n.shape[axis + 1 :])
        parts.append(p.reshape(shape) if n.op is Ops.RESHAPE else p.expand(shape))
    return Spread(s.devices, tuple(parts), axis, bounds)


def shrunk(n: UOp, s: Spread, axis: int) -> Spread | None:
    """Each device keeps what it has of the box; some may have nothing left."""
    begin, end = n.arg[axis]
    if isinstance(begin, UOp) or isinstance(end, UOp):
        return None
    parts: list[UOp | None] = []
    for p, low, high in zip(s.parts, s.bounds, s.bounds[1:]):
        b, e = max(begin, low), min(end, high)
        box = (*n.arg[:axis], (b - low, e - low), *n.arg[axis + 1 :])
        parts.append(p.shrink(box) if p is not None and b < e else None)
    bounds = tuple(min(max(b, begin), end) - begin for b in s.bounds)
    return Spread(s.devices, tuple(parts), axis, bounds) if any(parts) else None


def padded(n: UOp, s: Spread, axis: int) -> Spread | None:
    """The outer devices take the zeros at the ends."""
    before, after = n.arg[axis]
    if isinstance(before, UOp) or isinstance(after, UOp):
        return None
    last = len(s.parts) - 1
    parts = []
    for i, p in enumerate(s.full):
        ends = (before if i == 0 else 0, after if i == last else 0)
        parts.append(p.pad((*n.arg[:axis], ends, *n.arg[axis + 1 :])))
    bounds = (0, *(b + before for b in s.bounds[1:-1]), s.bounds[-1] + before + after)
    return Spread(s.devices, tuple(parts), axis, bounds)


def flipped(n: UOp, s: Spread, axis: int) -> Spread:
    if axis not in n.arg:
        return Spread(s.devices, tuple(p.flip(n.arg) for p in s.full), axis, s.bounds)
    parts = tuple(sent(p, d).flip(n.arg) for p, d in zip(s.full[::-1], s.devices))
    return Spread(s.devices, parts, axis, tuple(s.bounds[-1] - b for b in s.bounds[::-1]))

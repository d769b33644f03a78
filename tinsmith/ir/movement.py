"""Conversion of a chain of movement ops to one ShapeTracker."""
from __future__ import annotations

from tinsmith.ir.ops import FOR_GRADIENTS, Ops
from tinsmith.ir.ops.op import Node
from tinsmith.shape import ShapeTracker

Moves = tuple[Node, ...]  # the movement nodes above a node, outermost first


def tracker(leaf: Node, moves: Moves) -> ShapeTracker | None:
    """Return the movement ops above a leaf as one index map; None if views cannot express them."""
    found: ShapeTracker | None = ShapeTracker.from_shape(leaf.shape)
    for m in reversed(moves):
        if found is None or m.op is Ops.UNWINDOW:
            return None
        found = _windowed(found, m) if m.op is Ops.WINDOW else getattr(found, m.op.name.lower())(m.arg)
    return None if found is None else found.simplify()


def _windowed(tracker: ShapeTracker, node: Node) -> ShapeTracker | None:
    """Apply WINDOW to a tracker. Every window position reads one element, so it is a view only if the window axis is a
    pure repetition (stride 0, unmasked); else return None."""
    w, shape = node.arg, tracker.shape
    last = tracker.views[-1]
    if last.strides[w.window_axis] != 0 or tracker.axis_is_masked(w.window_axis):
        return None
    size = shape[w.window_axis]
    one = tracker.shrink(tuple((0, 1 if i == w.window_axis else s) for i, s in enumerate(shape)))
    one = one.reshape(tuple(s for i, s in enumerate(shape) if i != w.window_axis))
    axis = w.axis - (w.axis > w.window_axis)
    seen = one.window(axis, size, w.stride, w.dilation, w.outputs)
    order = list(range(len(shape) - 1))
    order.insert(w.window_axis, len(shape) - 1)
    return seen.permute(tuple(order))


def tracker_of(node: Node) -> ShapeTracker:
    """Return the movement ops on top of ``node`` as a ShapeTracker over the first buffer or computed value below them.

    An op that no view can express, such as the gradient of overlapping windows, counts as a computed value.
    """
    above: list[Node] = []
    below = node
    while below.op.kind == "movement" or below.op in FOR_GRADIENTS:
        if below.op.kind == "movement":
            above.append(below)
        below = below.src[0]
    if all(m.op not in (Ops.WINDOW, Ops.UNWINDOW) for m in above):
        every = tracker(below, tuple(above))
        assert every is not None, "views express all other movement ops"
        return every
    moves: Moves = ()
    found = ShapeTracker.from_shape(node.shape)
    while node.op.kind == "movement" or node.op in FOR_GRADIENTS:
        node, moves = node.src[0], (*moves, node) if node.op.kind == "movement" else moves
        deeper = tracker(node, moves)
        if deeper is None:
            break
        found = deeper
    return found

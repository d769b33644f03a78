"""Floats are converted where they are computed, not where they are looked at.

    CAST(view(x))   →   view(CAST(x))        view: RESHAPE, PERMUTE, EXPAND, FLIP

What gets memory is then computed over its own axes and stored in 16 bits if it is rounded to them, once for all views
of it; over the axes of a view its places would be quotients and remainders, without lanes.
"""
from __future__ import annotations

from collections.abc import Sequence

from tinsmith.core.settings import settings
from tinsmith.ir import Ops, UOp
from tinsmith.schedule.cones import views_of
from tinsmith.schedule.origins import rebuilt

_VIEWS = (Ops.RESHAPE, Ops.PERMUTE, Ops.EXPAND, Ops.FLIP)


def cast_below_views(roots: Sequence[UOp]) -> list[UOp]:
    """The graph with such casts moved; what is computed itself stays as it is. Unchanged with NOOPT=1."""
    if settings.NOOPT:
        return list(roots)
    own = set(roots)

    def moved(node: UOp, n: UOp) -> UOp:
        floats = node.op is Ops.CAST and node.dtype.is_float and node.src[0].dtype.is_float
        return _below(node) if floats and n not in own and node.src[0].op in _VIEWS else node

    return rebuilt(roots, moved)


def _below(node: UOp) -> UOp:
    seen = views_of(node.src[0], lambda n: n.op in _VIEWS)
    return seen.of(seen.source.cast(node.dtype))

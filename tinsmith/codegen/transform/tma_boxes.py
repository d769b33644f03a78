"""Operands that bulk copies of boxes (TMA) bring to local memory: the stage of a ring, and the memory view of its box.

    MMA(load(a), load(b), m, n, k)   →   MMA(load(STAGE(load(a), chunk, row, column)), load(STAGE(load(b), …)), m, n, k)

A view has up to five dimensions. Its box runs along the columns and along the *digits* of a tile's rows, which are
pixels of a patch if lines and columns of an image were merged. All other ranges of the index shift the box: the
position in a window, the image, the slice of channels. Guards give the bounds of a dimension; a copy fills 0 outside of
them, as a guarded load does, so padding is free.

``ir.matrix_unit`` defines the layout of such a stage; ``rings.py`` fills it.
"""
from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tinsmith.codegen.lower.indexing import flatten
from tinsmith.codegen.lower.normalize import conjuncts
from tinsmith.codegen.transform.stage_builder import Side, from_stage
from tinsmith.core.dtypes import DType, dtypes
from tinsmith.ir import Ops, UOp
from tinsmith.ir.algebra.sizes import Linear, from_linear, linear_form
from tinsmith.ir.matrix_unit import (
    LEAST_ROW_BYTES,
    MOST_DIMENSIONS,
    MOST_STEP,
    ROW_BYTES,
    BulkView,
    StagedLayout,
    in_memory,
)
from tinsmith.ir.structure import Role, digits, range_size

MOST_ROWS = 256  # rows of a box


def staged_operand(product: UOp, which: int, inside: Sequence[UOp], depth: int, align: int, unread: Sequence[UOp],
                   new_range: Callable[[int, Role], UOp]) -> UOp | str:
    """Return operand ``which`` read from a ring's stage over ``inside``; or the reason why that is impossible.

    Args:
        align: alignment in bytes of starts and strides of a bulk copy.
        unread: conditions without which no result is stored, so that an operand may have any value there.
    """
    value, k = product.src[which], product.src[4]
    load = loaded(value)
    if load is None:
        return "a bulk copy needs an operand that is loaded without arithmetic"
    deep = [r for r in inside if r.arg[1] is Role.UNROLL or r is k]
    beside = [r for r in inside if r not in deep]
    whole, narrow = (row // value.dtype.itemsize for row in (ROW_BYTES, LEAST_ROW_BYTES))
    chains = [_in_order(load.src[1], ranges) for ranges in (deep, beside)]
    sizes = [math.prod(range_size(r) for r in chain) for chain in chains]
    for columns in (0, 1):
        (size, rows), (along, across) = (sizes, chains) if not columns else (sizes[::-1], chains[::-1])
        lies = any(t.ranges & {*along} for t, n in linear_form(load.src[1])[0].items() if n == 1)
        width = math.gcd(size, whole) if columns else whole  # a unit's step is in one chunk
        if not lies or size % width or width < narrow or rows % 8 or rows > MOST_ROWS:
            continue
        if columns and not product.arg.turned:
            continue
        chunk, down, over = (new_range(n, Role.LOOP) for n in (size // width, rows, width))
        table = digits(along, chunk * width + over) | digits(across, down)
        there = load.substitute(table).simplify()
        found = box_of(there, over, down, align, [c.substitute(table).simplify() for c in unread])
        if found is None:
            continue
        copy = value.substitute({load: there.replace(src=(*there.src[:2], *found.guard))})
        layout = StagedLayout(rows, width, size // width, bool(columns), width * value.dtype.itemsize)
        row, column = (flatten([range_size(r) for r in x[::-1]], x[::-1]) for x in (across, along))
        sides = (Side((chunk,), column // width), Side((down,), row), Side((over,), column % width))
        return from_stage(copy, sides, layout=layout, depth=depth)
    deep_only = "" if product.arg.turned else f" of the reduction, along which {product.arg.name} reads rows"
    return (f"its {sizes[0]} × {sizes[1]} elements are not a box of memory, which has 8 to {MOST_ROWS} rows aligned "
            f"to {align} bytes, of {whole} elements each{deep_only}")


def loaded(value: UOp) -> UOp | None:
    """Return the load of an operand, also below a CAST that the unit does itself (``ir.matrix_unit.in_memory``).

    Return None if the operand is computed.
    """
    if value.op is Ops.CAST and in_memory(value.dtype) is value.src[0].dtype:
        value = value.src[0]
    return value if value.op is Ops.LOAD and value.src[0].op is Ops.PARAM else None


def _in_order(index: UOp, ranges: Sequence[UOp]) -> list[UOp]:
    """Return the ranges of one axis of a tile, the fastest first: the unit's own, then by stride in memory."""
    terms = linear_form(index)[0]

    def stride(r: UOp) -> int:
        return min((abs(c) * (1 if t is r else r.vmax + 1) for t, c in terms.items() if r in t.ranges), default=0)
    return sorted((r for r in ranges if r.op is Ops.RANGE), key=lambda r: (r.arg[1] is not Role.FRAGMENT, stride(r)))


# *** views ***


class TmaBox(NamedTuple):
    """The box of a tile.

    Attributes:
        view: the memory view that it belongs to.
        starts: its start along each dimension of the view.
        axes: the position in the box along the first dimensions.
    """

    view: BulkView
    starts: tuple[UOp, ...]
    axes: tuple[UOp, ...]

    @property
    def guard(self) -> tuple[UOp, ...]:
        """The condition that an element lies inside of the view; empty if all do."""
        inside = UOp.const(dtypes.bool, True)
        for start, axis, size in itertools.zip_longest(self.starts, self.axes, self.view.sizes, fillvalue=UOp.index(0)):
            inside = inside & (start + axis).ge(0) & (start + axis).lt(size)
        inside = inside.simplify()
        return () if inside.is_const else (inside,)


@dataclass
class _Limits:
    """The bounds of a sum of terms: ``low`` <= sum < ``high``; None: unbounded."""

    terms: Linear
    low: int | None = None
    high: int | None = None


@dataclass
class _Dimension:
    """A part of an index: stride · (terms + first), with 0 <= terms + first < ``size``."""

    stride: int
    terms: Linear
    first: int
    size: int


def box_of(load: UOp, column: UOp, row: UOp, align: int, unread: Sequence[UOp] = ()) -> TmaBox | None:
    """Return the box of memory with a stage's rows and columns; None if they do not form a box.

    The view has a dimension for each bounded sum, one for each digit of the row and for the column without bounds, and
    one for the rest of the index. ``unread`` conditions only limit how far the positions of a window reach.
    """
    found = _limits([c for n in load.src[2:] for c in conjuncts(n)])
    terms, offset = linear_form(load.src[1])
    if found is None or terms.get(column) != 1:
        return None
    found = [(c, _with_column(limit, column)) for c, limit in found]
    cuts = _cuts([t for x in (terms, *(limit.terms for _, limit in found)) for t in x])
    terms, found = _refined(terms, cuts), [(c, _coarse(limit, cuts)) for c, limit in found]
    found = [(c, _over_all_terms(limit, [other for _, other in found])) for c, limit in found]
    digits = _digits([t for t in terms if row in t.ranges], row)
    if digits is None:
        return None
    digits = _together(digits, [terms, *(limit.terms for _, limit in found)])
    windows = {t for c, limit in found for t in limit.terms if c not in unread}
    ends = [limit for c, limit in found if c in unread and not windows.isdisjoint(limit.terms)]
    dimensions, left = list[_Dimension](), dict(terms)
    for limit in _united([limit for _, limit in found if limit not in ends]):
        made = _dimension(limit, left, ends)
        if made is None:
            return None
        dimensions.append(made)
        left = {t: n for t, n in left.items() if t not in made.terms}
    dimensions += _free(left, [column, *digits], [d.stride for d in dimensions], ends)
    return _box(load, dimensions, offset, column, digits, align)


def _limits(conditions: Sequence[UOp]) -> list[tuple[UOp, _Limits]] | None:
    """Return each condition with its bounds; None if one of them does not bound a sum."""
    out = list[tuple[UOp, _Limits]]()
    for c in conditions:
        below = not (c.op is Ops.CMPEQ and c.src[1].is_const and not c.src[1].arg)
        bound = c if below else c.src[0]
        if bound.is_const and bound.arg == below:
            continue
        if bound.op is not Ops.CMPLT or not bound.src[1].is_const:
            return None
        terms, constant = linear_form(bound.src[0])
        limit = int(bound.src[1].arg) - constant
        out.append((c, _Limits(terms, None if below else limit, limit if below else None)))
    return out


def _with_column(limit: _Limits, column: UOp) -> _Limits:
    """Return equivalent bounds over the full ``column`` instead of its upper digit: a + column//16 < 6 becomes 16·a +
    column < 96."""
    for t, n in limit.terms.items():
        base, pitch, count = _digit(t)
        if base is column and pitch > 1 and n == 1 and pitch * count == _count(column):
            others = {u: k * pitch for u, k in limit.terms.items() if u is not t}
            return _Limits({**others, column: 1}, *(None if n is None else n * pitch for n in (limit.low, limit.high)))
    return limit


def _over_all_terms(limit: _Limits, limits: Sequence[_Limits]) -> _Limits:
    """Return equivalent bounds over the terms of another sum that has more, smaller ones: beside 2·a + b >= 1 with
    b < 2, a < 7 becomes 2·a + b < 14."""
    for other in limits:
        step = max((n // limit.terms[t] for t, n in other.terms.items() if t in limit.terms), default=0)
        small = {t: n for t, n in other.terms.items() if t not in limit.terms}
        if small and step > 0 and all(other.terms.get(t) == n * step for t, n in limit.terms.items()) and (
                _least(small) >= 0 and _most(small, ()) < step):
            return _Limits(other.terms, *(None if n is None else n * step for n in (limit.low, limit.high)))
    return limit


def _united(limits: Sequence[_Limits]) -> list[_Limits]:
    """Return one bound for each sum, the strictest."""
    out = list[_Limits]()
    for x in limits:
        same = next((y for y in out if y.terms == x.terms), None)
        if same is None:
            out.append(_Limits(x.terms, x.low, x.high))
            continue
        same.low = max((n for n in (same.low, x.low) if n is not None), default=None)
        same.high = min((n for n in (same.high, x.high) if n is not None), default=None)
    return out


def _dimension(limit: _Limits, terms: Linear, ends: Sequence[_Limits]) -> _Dimension | None:
    """Return the dimension whose index a bound limits, if its sum is a part of the index; else None."""
    strides = {terms.get(t, 0) // n for t, n in limit.terms.items()}
    if len(strides) != 1 or any(terms.get(t, 0) % n for t, n in limit.terms.items()) or 0 in strides:
        return None
    (stride,) = strides
    if stride < 0:
        limit = _Limits({t: -n for t, n in limit.terms.items()}, *(
            None if n is None else 1 - n for n in (limit.high, limit.low)))
    low = min(_least(limit.terms), 0) if limit.low is None else limit.low
    high = _most(limit.terms, ends) + 1 if limit.high is None else limit.high
    return _Dimension(abs(stride), limit.terms, -low, high - low)


def _free(terms: Linear, axes: Sequence[UOp], taken: Sequence[int], ends: Sequence[_Limits]) -> list[_Dimension]:
    """Return the dimensions of terms without bounds: each axis of the box takes the terms that are multiples of its
    stride, the largest such stride first; the remaining terms shift the box along one more dimension."""
    parts = {abs(terms[t]): Linear() for t in axes if t in terms}
    rest = Linear()
    for t, n in terms.items():
        stride = max((s for s in (*parts, *taken) if n % s == 0), default=0)
        parts.get(stride, rest)[t] = n
    if rest:
        parts[-1] = rest
    found = list[_Dimension]()
    for stride, mine in parts.items():
        step = math.gcd(*mine.values()) if stride < 0 else stride
        mine = {t: n // step for t, n in mine.items()}
        low = min(_least(mine), 0)
        found.append(_Dimension(step, mine, -low, _most(mine, ends) + 1 - low))
    return found


def _least(terms: Linear) -> int:
    return sum(min(t.bounds[0] * n, t.bounds[1] * n) for t, n in terms.items())


def _most(terms: Linear, ends: Sequence[_Limits]) -> int:
    """Return the greatest value of a sum if the bounds ``ends`` hold."""
    total, left = 0, dict(terms)
    for e in ends:
        shared = {t: n for t, n in e.terms.items() if t in left}
        step = math.gcd(*shared.values())
        times = min((left[t] * step // n for t, n in shared.items()), default=0)
        if e.high is not None and times > 0 and min(shared.values()) > 0:
            rest = {t: n for t, n in e.terms.items() if t not in shared}
            total += times * ((e.high - 1 - _least(rest)) // step)
            left = {t: n - times * shared.get(t, 0) // step for t, n in left.items()}
    return total + sum(max(t.bounds[0] * n, t.bounds[1] * n) for t, n in left.items())


def _digits(terms: Sequence[UOp], row: UOp) -> list[UOp] | None:
    """Return the digits of ``row`` that an index contains, the fastest first, if they make up all of it; else None."""
    found = sorted((pitch, count, t) for t in terms for base, pitch, count in [_digit(t)] if base is row)
    size = 1
    for pitch, count, _ in found:
        if pitch != size:
            return None
        size *= count
    return [t for _, _, t in found] if size == range_size(row) and len(found) == len(terms) else None


def _together(digits: Sequence[UOp], sums: Sequence[Linear]) -> list[UOp]:
    """Merge neighbouring digits whose factors in all ``sums`` match; the sums are changed in place."""
    out = list(digits[:1])
    for t in digits[1:]:
        last, (row, pitch, count) = out[-1], _digit(out[-1])
        if any(x.get(t, 0) != x.get(last, 0) * count for x in sums):
            out.append(t)
            continue
        out[-1] = (row // pitch % (count * _count(t))).simplify()
        for x in sums:
            if x.pop(t, 0):
                x[out[-1]] = x.pop(last)
    return out


def _digit(x: UOp) -> tuple[UOp, int, int]:
    """Return (number, pitch, count) of a term that is a digit ``number // pitch % count``."""
    if x.op in (Ops.IDIV, Ops.MOD) and x.src[1].is_const:
        (base, pitch, count), by = _digit(x.src[0]), int(x.src[1].arg)
        if count % by == 0:
            return (base, pitch * by, count // by) if x.op is Ops.IDIV else (base, pitch, by)
    return x, 1, int(x.vmax) + 1


def _cuts(terms: Iterable[UOp]) -> dict[UOp, set[int]]:
    """Return, for each number, the pitches at which digits in ``terms`` begin and end."""
    cuts = dict[UOp, set[int]]()
    for base, pitch, count in map(_digit, terms):
        cuts.setdefault(base, set()).update((pitch, pitch * count))
    return cuts


def _refined(terms: Linear, cuts: dict[UOp, set[int]]) -> Linear:
    """Return a sum over digits that no cut divides, so that sums over parts of the same number share terms."""
    out = Linear()
    for t, n in terms.items():
        base, pitch, count = _digit(t)
        ends = [pitch, *sorted(c for c in cuts[base] if pitch < c < pitch * count), pitch * count]
        if any(end % start for start, end in itertools.pairwise(ends)):
            ends = [pitch, pitch * count]
        for start, end in itertools.pairwise(ends):
            part = (base // start % (end // start)).simplify() if base is not t or len(ends) > 2 else t
            out[part] = out.get(part, 0) + n * (start // pitch)
    return {t: n for t, n in out.items() if n}


def _coarse(limit: _Limits, cuts: dict[UOp, set[int]]) -> _Limits:
    """Return equivalent bounds without redundant small terms: 8·a + b < 56 with b < 8 becomes a < 7."""
    terms, ends = _refined(limit.terms, cuts), [n for n in (limit.low, limit.high) if n is not None]
    for step in sorted({abs(n) for n in terms.values()}, reverse=True):
        small = {t: n for t, n in terms.items() if n % step}
        if not any(n % step for n in ends) and _least(small) >= 0 and _most(small, ()) < step:
            return _Limits({t: n // step for t, n in terms.items() if t not in small}, *(
                None if n is None else n // step for n in (limit.low, limit.high)))
    return _Limits(terms, limit.low, limit.high)


def _count(digit: UOp) -> int:
    return int(digit.vmax) + 1


def _box(load: UOp, dimensions: Sequence[_Dimension], offset: int, column: UOp, digits: Sequence[UOp],
         align: int) -> TmaBox | None:
    """Assemble the box: the column's dimension first, then those of the row's digits, then those of width 1; None if
    alignment, strides or bounds do not allow a bulk copy."""
    unit = max(align // load.dtype.itemsize, 1)
    axes = [column, *digits]
    owners = [next((d for d in dimensions if t in d.terms), None) for t in axes]
    if None in owners or len({*map(id, owners)}) < len(axes):
        return None
    order = [d for d in owners if d is not None] + [d for d in dimensions if all(d is not o for o in owners)]
    more = (1,) * (len(order) - len(axes))
    steps = (*(d.terms[t] for d, t in zip(order, axes)), *more)
    offset -= sum(d.stride * d.first for d in order)
    lead = order[0]
    aligned = all(d.stride % unit == 0 for d in order[1:]) and offset % unit == 0 and lead.first % unit == 0 and all(
        n % unit == 0 for t, n in lead.terms.items() if t is not column)
    if not aligned or lead.stride != 1 or steps[0] != 1 or offset < 0 or len(order) > MOST_DIMENSIONS or not all(
            0 < s <= MOST_STEP for s in steps):
        return None
    memory = load.src[0].arg[1][0]
    if not isinstance(memory, int) or offset + sum(d.stride * (d.size - 1) for d in order) >= memory:
        return None
    starts = (from_linear({t: n for t, n in d.terms.items() if t not in axes}, d.first, UOp.index(0)) for d in order)
    view = BulkView(tuple(d.size for d in order), tuple(d.stride for d in order), (*map(_count, axes), *more), offset,
                steps if max(steps) > 1 else ())
    return TmaBox(view, tuple(s.simplify() for s in starts), tuple(t * n for t, n in zip(axes, steps)))


def maps(program: Sequence[UOp]) -> dict[BoxedOperand, int]:
    """Return the numbered views (tensor maps) of the boxes that a linear program copies."""
    found: dict[BoxedOperand, int] = {}
    for u in program:
        if u.op is Ops.ASYNC_COPY:
            found.setdefault(map_of(u), len(found))
    return found


def map_of(copy: UOp) -> BoxedOperand:
    """Return the tensor map of a copy."""
    near = copy.src[2]
    return BoxedOperand(copy.src[4], copy.arg, near.dtype.scalar, near.arg[2].row)


class BoxedOperand(NamedTuple):
    """A tensor map: a kernel argument and a view of it.

    Attributes:
        memory: the argument.
        view: the view.
        to: the element type in the slots.
        row: bytes of a row in the slots.
    """

    memory: UOp
    view: BulkView
    to: DType
    row: int

"""Operands that copies of boxes bring to local memory: the stage of a ring, and the view of memory that its box is of.

    MMA(load(a), load(b), m, n, k)   →   MMA(load(STAGE(load(a), chunk, row, column)), load(STAGE(load(b), …)), m, n, k)

How such a stage lies is ``ir.layout``'s subject, when it is filled that of ``rings``.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from tinsmith.codegen.roles import Role, range_size
from tinsmith.core.dtypes import DType
from tinsmith.ir import Ops, UOp
from tinsmith.ir.layout import ROW_BYTES, Layout, Placed, View
from tinsmith.ir.linear import linear_form
from tinsmith.ir.units import in_memory

MOST_ROWS = 256  # of a box


def staged_operand(product: UOp, which: int, inside: Sequence[UOp], depth: int, align: int,
                   new_range: Callable[[int, Role], UOp]) -> tuple[UOp, list[UOp]] | str:
    """Operand ``which`` read from a ring's stage over ``inside``, and the ranges that fill it; or why it cannot be.

    Args:
        align: bytes that starts and strides of a bulk copy must be multiples of.
    """
    value, k = product.src[which], product.src[4]
    load = loaded(value)
    if load is None:
        return "only what lies in memory as it is multiplied is copied by boxes"
    deep = [r for r in inside if r.arg[1] is Role.UNROLL or r is k]
    steps, conditions = linear_form(load.src[1])[0], _conditions(load)
    chains = [_chain(steps, conditions, ranges) for ranges in (deep, [r for r in inside if r not in deep])]
    if chains[0] is None or chains[1] is None:
        return "its ranges are no rows and columns of memory"
    columns = next((n for n, chain in enumerate(chains) if chain is not None and steps.get(chain[0]) == 1), None)
    if columns is None:
        return "its elements do not lie side by side along either of its axes"
    if columns and not product.arg.turned:
        return f"its elements lie side by side across the reduction, along which {product.arg.name} reads rows"
    (lead, size, column), (other, rows, row) = chains[columns], chains[1 - columns]  # type: ignore[misc]
    width = ROW_BYTES // value.dtype.itemsize
    if size % width or rows % 8 or rows > MOST_ROWS:
        return f"{rows} rows of {size} elements are no rows of {width} elements each, 8 to {MOST_ROWS} of them"
    layout = Layout(rows, width, size // width, deep=bool(columns))
    chunk, down, across = (new_range(n, Role.LOOP) for n in (layout.chunks, rows, width))
    table = {r: UOp.index(0) for r in inside} | {lead: chunk * width + across, other: down}
    copy = value.substitute(table).simplify()
    if view_of(load.substitute(table).simplify(), across, down, chunk, align) is None:
        return f"it is no box of memory whose rows begin at multiples of {align} bytes"
    over = [r for r in (chunk, down, across) if r.op is Ops.RANGE]
    sizes = Placed(tuple(range_size(r) for r in over), layout, depth)
    staged = UOp(Ops.STAGE, value.dtype.ptr(), (copy, *over), sizes)
    return staged.load(layout.place(row, column).simplify()), over


def loaded(value: UOp) -> UOp | None:
    """The load that an operand is; its elements may be rounded on their way (``units.in_memory``)."""
    if value.op is Ops.CAST and in_memory(value.dtype) is value.src[0].dtype:
        value = value.src[0]
    return value if value.op is Ops.LOAD and value.src[0].op is Ops.PARAM else None


def _chain(steps: dict[UOp, int], conditions: list[UOp] | None, ranges: list[UOp]) -> tuple[UOp, int, UOp] | None:
    """Ranges that enter an index, and its conditions, only as one sum a + b·size(a) + …: (a, size of all, the sum)."""
    ranges = sorted((r for r in ranges if r.op is Ops.RANGE), key=lambda r: steps.get(r, 0))
    if not ranges or conditions is None:
        return None
    position, size = UOp.index(0), 1
    for r in ranges:
        for terms in (steps, *(linear_form(c.src[0])[0] for c in conditions)):
            if any(r in t.ranges for t in terms if t is not r) or terms.get(r, 0) != size * terms.get(ranges[0], 0):
                return None
        position, size = position + r * size, size * range_size(r)
    return ranges[0], size, position


def _conditions(load: UOp) -> list[UOp] | None:
    """What must hold for a load, as index < number, the strictest for each index; None where it is something else."""
    found, stack = dict[UOp, UOp](), list(load.src[2:])
    while stack:
        c = stack.pop()
        if c.op is Ops.AND:
            stack += c.src
        elif c.op is Ops.CMPLT and c.src[1].is_const:
            found[c.src[0]] = min(c, found.get(c.src[0], c), key=lambda x: int(x.src[1].arg))
        elif not (c.is_const and c.arg):
            return None
    return list(found.values())


def view_of(load: UOp, column: UOp, row: UOp, chunk: UOp, align: int) -> tuple[View, tuple[UOp, ...]] | None:
    """The view that a stage's element (chunk, row, column) is read from, and where its box begins.

    A condition says where a dimension ends. What is not part of the sums for rows and columns is a third dimension.
    """
    conditions = _conditions(load)
    terms, offset = linear_form(load.src[1])
    pitch, unit = terms.get(row, 0), max(align // load.dtype.itemsize, 1)
    if conditions is None or terms.get(column) != 1 or pitch <= 0 or min(terms.values()) < 0 or offset % unit:
        return None
    width = range_size(column)
    starts: dict[UOp, UOp] = {}
    ends: dict[UOp, int] = {}
    for c in conditions:
        found, constant = linear_form(c.src[0])
        axis = next((r for r in (column, row) if found.get(r) == 1), None)
        if axis is None or axis in starts or constant:
            return None
        starts[axis], ends[axis] = c.src[0], c.src[1].arg
        step = 1 if axis is column else pitch
        for t, n in found.items():
            if terms.get(t, 0) != n * step:
                return None
            del terms[t]
    left = dict(terms)
    for axis, step in ((row, pitch), (column, 1)):
        if axis not in starts:
            mine = {t: n for t, n in left.items() if n % step == 0 and (step == pitch or n % pitch)}
            left = {t: n for t, n in left.items() if t not in mine}
            starts[axis] = _sum(t * (n // step) for t, n in mine.items())
            ends[axis] = int(starts[axis].vmax) + 1
    beyond = math.gcd(*left.values())
    batch = _sum(t * (n // beyond) for t, n in left.items()) if left else None
    at_zero = {column: UOp.index(0), row: UOp.index(0)}
    coordinates = tuple([c.substitute(at_zero).simplify() for c in (starts[column], starts[row])])
    inner = linear_form(coordinates[0].substitute({chunk: UOp.index(0)}).simplify() if chunk.op is Ops.RANGE else
                        coordinates[0])[0]
    if pitch % unit or beyond % unit or any(n % unit for n in inner.values()):
        return None
    if batch is None:
        return View((ends[column], ends[row]), (1, pitch), (width, range_size(row)), offset), coordinates
    return (View((ends[column], ends[row], int(batch.vmax) + 1), (1, pitch, beyond), (width, range_size(row), 1),
                 offset), (*coordinates, batch.simplify()))


def _sum(parts: Iterable[UOp]) -> UOp:
    total = UOp.index(0)
    for p in parts:
        total = total + p
    return total.simplify()


def maps(program: Sequence[UOp]) -> dict[tuple[UOp, View, DType], int]:
    """The views that a linear program copies boxes of, by argument, view and type of the slots, numbered."""
    found: dict[tuple[UOp, View, DType], int] = {}
    for u in program:
        if u.op is Ops.ASYNC_COPY:
            found.setdefault(map_of(u), len(found))
    return found


def map_of(copy: UOp) -> tuple[UOp, View, DType]:
    """What a copy reads, and what its elements become."""
    return copy.src[4], copy.arg, copy.src[2].dtype.scalar

"""Contractions on a matrix unit: the rewrites behind the opt TC, and the packing of a unit's operands.

    FOLD(a·b, …, k)   →   STAGE(FOLD(MMA(a, b, m, n, k), …, ko), mu, m, nu, n)

The result of a unit with accumulator tiles of its own (AMX) is staged, so that the rest of the kernel can read it with
any loops and lanes. An operand is read in place if a tile's rows lie in memory as the unit loads them, else from a
stage in the unit's order of elements, which is filled once for all ranges inside the stage.
"""
from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence

import numpy as np

from tinsmith.codegen.lower.indexing import Footprint, windows
from tinsmith.codegen.lower.normalize import conjuncts, implies
from tinsmith.codegen.transform.stage_builder import Side, from_stage
from tinsmith.core.dtypes import DType
from tinsmith.ir import Ops, UOp
from tinsmith.ir.algebra.sizes import from_linear, linear_form
from tinsmith.ir.matrix_unit import Fragment, MatrixUnit, in_memory
from tinsmith.ir.structure import Role, contraction, range_size
from tinsmith.ir.uop import toposort
from tinsmith.target.target import Target

NewRange = Callable[[int, Role], UOp]
_NUMBER = 1 << 20  # first number of the temporary ranges of digits in ``store_address``


def narrow(factor: UOp, dtype: DType, acc: DType) -> UOp | None:
    """Return the operand of type ``dtype`` that ``factor`` widens to ``acc``, or that a unit rounds to ``dtype`` itself
    (tf32); else None."""
    if factor.dtype is not acc:
        return None
    if in_memory(dtype) is acc:
        return factor
    if factor.op is Ops.CAST and factor.src[0].dtype is dtype:
        return factor.src[0]
    return None


def operands(fold: UOp, m: UOp, n: UOp, unit: MatrixUnit) -> tuple[UOp, UOp] | None:
    """Return the unit's operands a[m, k] and b[k, n] of a sum of products; None if it does not have the unit's
    types."""
    found = contraction(fold, guarded=True)
    if found is None or fold.dtype is not unit.acc:
        return None
    x, y, valid = found[:3]
    if m in y.ranges:
        x, y = y, x
    if m not in x.ranges or n not in y.ranges or n in x.ranges or m in y.ranges:
        return None
    a, b = narrow(x, unit.a, unit.acc), narrow(y, unit.b, unit.acc)
    if a is None or b is None or (valid is not None and not {m, n}.isdisjoint(valid.ranges)):
        return None
    return _zero_unless(valid, a).cast(unit.a), _zero_unless(valid, b).cast(unit.b)


def _zero_unless(valid: UOp | None, value: UOp) -> UOp:
    """Return ``value``, or 0 where ``valid`` is false, so that padding adds nothing. A load guarded by ``valid`` is
    returned unchanged, because it gives 0 already."""
    guarded = value.op is Ops.LOAD and len(value.src) == 3
    if valid is None or (guarded and implies(value.src[2], valid)):
        return value
    return valid.where(value, UOp.const(value.dtype, 0))


def product_of(fold: UOp) -> UOp | None:
    """Return the MMA node that a reduction sums; None if there is none."""
    node = fold.src[0] if fold.op is Ops.FOLD else fold
    return node if node.op is Ops.MMA else None


def on_unit(fold: UOp, m: UOp, n: UOp, k: UOp, unit: MatrixUnit, copies: tuple[int, int],
            new_range: NewRange) -> tuple[UOp, list[UOp]]:
    """Return the value of ``fold`` on a unit, and the new ranges. If the unit's depth is more than 1, ``k`` runs over
    one step of it.

    If the result stays in the threads' registers, ``m`` and ``n`` are the unit's own ranges. Else it is staged, and
    they run over ``copies`` tiles of the unit; if such a tile is a single row or column, they are outer ranges that the
    unit does not contain. The rows of the stage are those of the unit.
    """
    found = operands(fold, m, n, unit)
    assert found is not None
    loops = [r for r in fold.src[1:] if r is not k or unit.k == 1]
    if not unit.fragment_c.whole:
        ki = new_range(unit.k, Role.FRAGMENT)
        return summed(found, {k: ki} if unit.k > 1 else {}, (m, n, ki), unit, loops), [ki] * (ki.op is Ops.RANGE)
    if unit.flipped is not None:
        found = found[0], _flipped(found[1], unit.flipped.b)
        unit = unit.flipped
    mu, nu = (new_range(count, Role.UPCAST) for count in copies)
    mi, ni, ki = (new_range(step, Role.FRAGMENT) for step in (unit.m, unit.n, unit.k))
    row, column = m if unit.m * copies[0] > 1 else None, n if unit.n * copies[1] > 1 else None
    table = ({row: mu * unit.m + mi} if row else {}) | ({column: nu * unit.n + ni} if column else {})
    value = summed(found, table | ({k: ki} if unit.k > 1 else {}), (mi, ni, ki), unit, loops)
    sides = [Side((mu, mi), row or UOp.index(0)), Side((nu, ni), column or UOp.index(0))]
    load = from_stage(value, sides if unit.fragment_c.registers[-1][1] else sides[::-1])
    return load, [*load.src[0].src[1:], *(r for r in (ki,) if r.op is Ops.RANGE)]


def summed(factors: tuple[UOp, UOp], table: dict[UOp, UOp], own: tuple[UOp, UOp, UOp], unit: MatrixUnit,
           loops: Sequence[UOp]) -> UOp:
    """Return the sum of a unit's steps over ``loops``, with the ranges of the factors replaced by ``table``."""
    value = UOp(Ops.MMA, None, (*(x.substitute(table) for x in factors), *own), unit)
    over = [r for r in loops if r.op is Ops.RANGE]
    return UOp(Ops.FOLD, None, (value, *over), Ops.ADD) if over else value


def _flipped(x: UOp, dtype: DType) -> UOp:
    """Return integers of the other signedness, offset by half their range: their top bits are flipped."""
    top = 1 << (dtype.bits - 1)
    return x.bitcast(dtype) ^ (top if dtype.kind == "uint" else -top)


def taken_off(fold: UOp, m: UOp, n: UOp, unit: MatrixUnit, rows: int, new_range: NewRange) -> tuple[UOp, list[UOp]]:
    """Return the correction of a sum of products on a unit with flipped operands, and the new ranges: a multiple of the
    sum of a's row, computed once for all columns. ``m`` runs over a tile of ``rows`` rows; for 1 it is an outer range
    that the unit does not contain."""
    found = operands(fold, m, n, unit)
    assert found is not None and unit.flipped is not None
    row = new_range(rows, Role.LOOP)
    loops = {r: new_range(_size(r), Role.REDUCE) for r in fold.src[1:]}
    a = found[0].substitute(loops | ({m: row} if rows > 1 else {})).cast(unit.acc)
    total = UOp(Ops.FOLD, None, (a, *(r for r in loops.values() if r.op is Ops.RANGE)), Ops.ADD)
    fresh = [r for r in (row, *loops.values()) if r.op is Ops.RANGE]
    if rows > 1:
        total = from_stage(total, [Side((row,), m)])
    half = 1 << (unit.b.bits - 1)
    return total * (half if unit.b.kind == "uint" else -half), fresh


def axes(mma: UOp) -> tuple[tuple[Fragment, UOp, UOp], tuple[Fragment, UOp, UOp]]:
    """Return for each operand its fragment and the ranges of its rows and columns."""
    m, n, k = mma.src[2:]
    return (mma.arg.fragment_a, m, k), (mma.arg.fragment_b, k, n)


def slide(product: UOp, which: int, inside: Sequence[UOp]) -> Footprint | None:
    """Return the window that slides along the rows or columns of a unit's operand, if its positions overlap; else
    None."""
    value, axis = product.src[which], product.src[3 if which else 2]
    ranges = [r for r in (*inside, axis) if r.op is Ops.RANGE and r in value.ranges]
    for found in windows(value, ranges) if slid_digit(product, which) >= 0 else ():
        along = found.weights.get(axis) == 1 if axis.op is Ops.RANGE else any(
            r.arg[1] is Role.UPCAST for r in found.weights)
        if along and found.size < math.prod(_size(r) for r in found.weights):
            return found
    return None


def guarded_by_position(sink: UOp, r: UOp, count: int, depth: UOp) -> UOp:
    """Return a graph in which windows that slide along ``r``, the rows or columns of a unit that were padded from
    ``count``, read on to the end of the last window, so that all windows guard an element alike and share it.

        r < count   →   r * step + tap < (count - 1) * step + taps

    What padded rows read is in memory, and their results are not stored. Taps are no steps of the unit (``depth``),
    which may be padded themselves.
    """
    table = {}
    for load in (n for n in toposort(sink) if n.op is Ops.LOAD and len(n.src) > 2 and r in n.src[1].ranges):
        terms, guards = linear_form(load.src[1])[0], conjuncts(load.src[2])
        length = terms.get(r, 0)
        steps = {x: length // terms[x] for x in load.src[1].ranges if x.arg[1] is Role.REDUCE and x is not depth
                 and isinstance(range_size(x), int) and terms.get(x) and length % terms[x] == 0}
        tap = next((x for x, step in steps.items() if 0 < step < _size(x)), None)
        own = r.lt(count)
        if tap is not None and own in guards:
            position = (r * steps[tap] + tap).lt((count - 1) * steps[tap] + _size(tap))
            valid = functools.reduce(operator.and_, [position if g is own else g for g in guards])
            table[load] = load.replace(src=(*load.src[:2], valid))
    return sink.substitute(table) if table else sink


def packed_operand(mma: UOp, which: int, inside: Sequence[UOp], new_range: NewRange, target: Target) -> UOp:
    """Return operand ``which`` read from a stage over ``inside`` and its own two ranges, in the unit's order of
    elements (packing).

    Lanes fill the stage along memory if possible: along a digit of the fragment, or along the unit's copies, which are
    then adjacent. If a window slides along the operand, the digit of that axis counts its positions, and each element
    is staged once.
    """
    value, window = mma.src[which], slide(mma, which, inside)
    fragment, row, column = axes(mma)[which]
    vector = max(target.vector_bytes // 4, target.core.shortest_lanes)  # window elements staged per vector
    at, whole = -1, False
    if window is not None:
        at, inside = slid_digit(mma, which), [r for r in inside if r not in window.weights]
        whole = all(linear_form(n.src[1])[0].get(window.lead) == 1 for n in toposort(value) if n.op is Ops.LOAD)
        roles, beside = [Role.UPCAST if whole and n < at else Role.LOOP for n in range(len(fragment.registers))], None
    else:
        roles, beside = _fill_roles(value, fragment, row, column, inside, target.core.shortest_lanes)
    inside = [r for r in inside if r is not beside] + ([beside] if beside is not None else [])
    outer = [new_range(_size(r), Role.VECTOR if r is beside else Role.LOOP) for r in inside]
    sizes = [size if window is None or n != at else -(-window.size // vector) if whole else window.size
             for n, (size, _, _) in enumerate(fragment.registers)]
    digits = [new_range(size, role) for size, role in zip(sizes, roles)]
    lane = new_range(vector, Role.VECTOR) if whole else UOp.index(0)
    table, valid = dict(zip(inside, outer)) | _at_digits(fragment, row, column, digits), None
    places = [(row // down if down else column // across) % size for size, down, across in fragment.registers]
    if window is not None:
        offset = (digits[at] * vector + lane).simplify() if whole else digits[at]
        table |= dict.fromkeys(window.weights, UOp.index(0)) | {window.lead: offset}
        valid = offset.lt(window.size) if offset.vmax >= window.size else None
        places[at] = window.position
    sides = [Side((loop,), r) for loop, r in zip(outer, inside)]
    sides += [Side((digits[n], lane) if n == at else (digits[n],), places[n]) for n in reversed(range(len(digits)))]
    return from_stage(value, sides, table, valid)


def slid_digit(mma: UOp, which: int) -> int:
    """Return the register digit that counts an operand's rows (of a) or columns (of b), if it is a single one of stride
    1; else -1."""
    registers = axes(mma)[which][0].registers
    own = [n for n, (_, down, across) in enumerate(registers) if (across if which else down)]
    return own[0] if len(own) == 1 and max(registers[own[0]][1:]) == 1 else -1


def _fill_roles(value: UOp, fragment: Fragment, row: UOp, column: UOp,
                inside: Sequence[UOp], shortest: int) -> tuple[list[Role], UOp | None]:
    """Return the roles of the digits that fill a packed operand, and the copies range to vectorize instead. The fastest
    digit along which memory is contiguous gets lanes, and faster digits become interleaved copies. If there is no such
    digit, a range of copies along which memory is contiguous gets the lanes, and all digits are interleaved."""
    loads = [linear_form(n.src[1])[0] for n in toposort(value) if n.op is Ops.LOAD and n.src[0].op is Ops.PARAM]
    for at, (size, down, across) in enumerate(fragment.registers):
        axis, step = (row, down) if down else (column, across)
        if {terms[axis] * step for terms in loads if axis in terms} == {1} and 2 <= size <= 64 and is_power(size):
            return [Role.UPCAST] * at + [Role.VECTOR] + [Role.LOOP] * (len(fragment.registers) - at - 1), None
    for r in inside:
        along = {terms[r] for terms in loads if r in terms} == {1}
        if along and r.arg[1] is Role.UPCAST and _size(r) >= shortest and is_power(_size(r)):
            return [Role.UPCAST] * len(fragment.registers), r
    return [Role.LOOP] * len(fragment.registers), None


def is_power(size: int) -> bool:
    return size & (size - 1) == 0


def _at_digits(fragment: Fragment, row: UOp, column: UOp, digits: Sequence[UOp]) -> dict[UOp, UOp]:
    """Return the row and column ranges as sums over the digits of a fragment."""
    r, c = UOp.index(0), UOp.index(0)
    for (_, down, across), digit in zip(fragment.registers, digits):
        r, c = r + digit * down, c + digit * across
    return {row: r.simplify(), column: c.simplify()}


def tile_address(operand: UOp, fragment: Fragment, row: UOp, column: UOp) -> tuple[UOp, UOp, int] | None:
    """Return (memory, index, pitch) of a tile of the operand if its layout in memory is one that the unit loads; else
    None."""
    if operand.op is not Ops.LOAD or len(operand.src) > 2 or not fragment.whole:
        return None
    return store_address(operand.src[0], operand.src[1], fragment, row, column)


def held(stage: UOp) -> bool:
    """Return True if a stage is a unit's accumulator that the threads keep in registers."""
    if stage.op is not Ops.STAGE:
        return False
    product = product_of(stage.src[0])
    return product is not None and not product.arg.fragment_c.whole


def reads_held(value: UOp) -> list[UOp]:
    """Return the loads of accumulators in registers that a value is computed from, except through another MMA."""
    return [n for n in toposort(value, lambda n: n.op is not Ops.MMA) if n.op is Ops.LOAD and held(n.src[0])]


def made_ahead(product: UOp) -> bool:
    """Return True if a register operand is computed one iteration of the enclosing loop before the unit reads it."""
    return any(n.src[0].arg.depth > 1 for n in reads_held(product.src[0]))


def choice(have: Fragment, want: Fragment, column: int) -> list[int] | None:
    """Return the registers of fragment ``have`` that hold fragment ``want`` from ``column`` on; None if its elements
    are in other lanes."""
    wanted = want.places() + np.array([0, column])
    first = {tuple(x): n for n, x in enumerate(have.places()[0].tolist())}
    found = [first.get(tuple(x), -1) for x in wanted[0].tolist()]
    fits = have.places().shape[0] == wanted.shape[0] and min(found) >= 0
    return found if fits and (have.places()[:, found] == wanted).all() else None


def unloadable(mma: UOp) -> list[int]:
    """Return the operands (0, 1) that the unit loads itself, but whose layout in memory does not suit it."""
    if mma.arg.staged:
        return [n for n in (0, 1) if (mma.src[n].op is not Ops.LOAD or mma.src[n].src[0].op is not Ops.STAGE)
                and not reads_held(mma.src[n])]
    return [which for which, (fragment, row, column) in enumerate(axes(mma))
            if fragment.whole and tile_address(mma.src[which], fragment, row, column) is None]


def store_address(memory: UOp, index: UOp, fragment: Fragment, row: UOp, column: UOp) -> tuple[UOp, UOp, int] | None:
    """Return (memory, index, pitch) of the tile at ``index`` if its layout in memory is one that the unit loads or
    stores; else None."""
    digits = [UOp.range(size, _NUMBER + i, Role.FRAGMENT) for i, (size, _, _) in enumerate(fragment.registers)]
    expr = index.substitute(_at_digits(fragment, row, column, digits)).simplify()
    terms, constant = linear_form(expr)
    side_by_side = 1
    for digit, (size, _, _) in zip(digits[:-1], fragment.registers):
        if size > 1 and terms.pop(digit, 0) != side_by_side:
            return None
        side_by_side *= size
    pitch = terms.pop(digits[-1], 0)
    if pitch < 0 or any(d in t.ranges for t in terms for d in digits):
        return None
    return memory, from_linear(terms, constant, expr).simplify(), pitch


def lane_position(fragment: Fragment, lane: UOp) -> tuple[UOp, UOp]:
    """Return the row and column offset of a lane in a fragment, as expressions of the lane's number."""
    row, column, left = UOp.index(0), UOp.index(0), lane
    for size, down, across in fragment.lanes:
        digit = left % size
        row, column, left = row + digit * down, column + digit * across, left // size
    return row.simplify(), column.simplify()


def _size(r: UOp) -> int:
    size = r.src[-1].arg if r.op is Ops.RANGE else 1
    assert isinstance(size, int)
    return size

"""The opt STAGE, and the opts that order memory accesses: HINT, ROTATE and WALK.

STAGE copies a value to local memory in the layout in which it is filled and read. A load, or a value computed from
loads alone, becomes a *panel*: the boxes of elements that its readers need, with borders of overlapping windows stored
once; or rows of a *matrix* for the threads of a block. A value computed from reductions becomes a *tile* that all
readers share, up to renaming of ranges. An operand of a matrix unit is stored in the order or layout that the unit
reads. ``stage_builder.py`` builds all of these nodes.

HINT (prefetch and non-temporal stores), ROTATE (software-pipelined loads) and WALK (tile order) change no value.
"""
from __future__ import annotations

import math
from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tinsmith.codegen.kernel_graph import KernelGraph
from tinsmith.codegen.lower.indexing import Footprint, flatten, footprints, layout_rank, memory_order, strides
from tinsmith.codegen.lower.normalize import conditions_of, conjuncts
from tinsmith.codegen.opt import Opt
from tinsmith.codegen.transform import back_to_back_gemm, matrix_units
from tinsmith.codegen.transform.computed_operand import SIDE, equal_values
from tinsmith.codegen.transform.stage_builder import Side, from_stage, under_names
from tinsmith.codegen.transform.tma_boxes import loaded, staged_operand
from tinsmith.core.dtypes import dtypes
from tinsmith.core.errors import ArgumentError
from tinsmith.ir import Ops, UOp
from tinsmith.ir.algebra.sizes import from_linear, linear_form
from tinsmith.ir.algebra.symbolic import is_made_of, values_over
from tinsmith.ir.matrix_unit import MatrixUnit, in_memory
from tinsmith.ir.structure import THREADS, Role, contraction, count_of, digits, divides, is_partial, range_size
from tinsmith.ir.uop import toposort

if TYPE_CHECKING:
    from tinsmith.codegen.opt import Opt

MOST_NEAR = 32  # steps of a range along which packed elements of a block are read as vectors, at most


def stage(k: KernelGraph, opt: Opt) -> None:
    """Stage value number ``axis`` over all of its ranges except those at the positions ``amt``."""
    values = k.stageable
    opt.require(opt.axis is not None and 0 <= opt.axis < len(values), f"there are {len(values)} values to stage")
    assert opt.axis is not None
    kept = opt.amt if isinstance(opt.amt, tuple) else ()
    opt.require(all(0 <= i < len(k.ranges) for i in kept), f"there are {len(k.ranges)} ranges")
    outside = [k.ranges[i] for i in kept]
    value = values[opt.axis]
    for product in k.products:
        for which, operand in enumerate(product.src[:2]):
            within = value in toposort(operand, lambda n: n.op is not Ops.MMA)
            if within and not (opt.layout and _loads_elements(product.arg)):
                return _operand(k, opt, product, which, outside)
    opt.require(not k.roles, "STAGE comes before ROLES")
    if value.op is Ops.LOAD:
        value = converted(value, k.sink) if opt.layout else _factor_of(k, value) or _widened(k, value)
    around = {r.arg[1] for r in outside if r in value.ranges}
    opt.require(Role.VECTOR not in around and not k.scan_lanes, "a stage cannot be kept per lane of a vector")
    opt.require(around.isdisjoint(THREADS), "a stage cannot be kept per thread: leave LOCAL and GROUP ranges out")
    opt.require(opt.lanes != 1 and opt.lanes & (opt.lanes - 1) == 0, "lanes must be 0 or a power of two above 1")
    inside = [r for r in k.order if r in value.ranges and r not in outside]
    opt.require(bool(inside), "the amount leaves no range to stage over")
    fixed = all(isinstance(range_size(r), int) for r in inside)
    opt.require(fixed or not (opt.layout or opt.depth > 1), "a stage with a layout needs ranges of fixed size")
    opt.require(fixed or count_of(inside) * value.dtype.itemsize <= k.target.l2_bytes,
                "for the greatest size, the stage would exceed the second cache")
    bound = frozenset(r for n in toposort(k.sink) if n.op is Ops.SCATTER_STORE
                      for r in ({n.src[4]} if n.src[4].arg[1] is Role.BLOCK else n.ranges | {n.src[4]}))
    opt.require(not bound & set(inside), "an ordered scatter cannot be staged")
    if opt.layout or opt.depth > 1:
        return _rows(k, opt, value, inside, outside)
    if not any(n.op is Ops.FOLD for n in toposort(value)):
        return _panel(k, value, inside, opt.lanes)
    free = [r for r in inside if r.arg[1] is Role.VECTOR or (r.arg[1] is Role.REDUCE and is_partial(r))]
    opt.require(not free, "a computed value is staged before VECTOR, and without partial reductions")
    return _tile(k, value, inside, outside, max(opt.lanes, 1), opt.copies)


def _factor_of(k: KernelGraph, load: UOp) -> UOp | None:
    """Return the factor of a contraction that a load belongs to, so that a function of loaded elements, with its masks,
    is computed once when it is staged; None if the factor has other users or is made of more than loads."""
    found = [c for f in k.folds if (c := contraction(f, guarded=True)) is not None]
    factor = next((x for c in found for x in (c.a, c.b) if load in toposort(x)), None)
    if factor is None or factor is load or not factor.dtype.is_float:
        return None
    inside = dict.fromkeys(toposort(factor))
    inner: set[UOp] = set()  # values below the factor that depend on loaded elements
    for n in inside:
        if n.op in (Ops.FOLD, Ops.STAGE, Ops.MMA, Ops.PREFIX):
            return None
        if n is not factor and (n.op is Ops.LOAD or not inner.isdisjoint(n.src)):
            inner.add(n)
    return factor if all(n in inside or inner.isdisjoint(n.src) for n in toposort(k.sink)) else None


def _widened(k: KernelGraph, load: UOp) -> UOp:
    """Return the cast of a float load that is only read as float32 or tf32, so that it is converted once when staged;
    else the load."""
    users = [n for n in toposort(k.sink) if load in n.src]
    other = len(users) == 1 and users[0].op is Ops.CAST and in_memory(users[0].dtype) is dtypes.float32
    return users[0] if other and load.dtype in (dtypes.float16, dtypes.bfloat16, dtypes.float32) else load


def converted(load: UOp, top: UOp) -> UOp:
    """Return the largest value computed from a load by pointwise float operations with constants, if nothing else reads
    the values between: it is computed once when the tile is staged, instead of by every thread that reads it."""
    inside, value = toposort(top), load
    while True:
        users = [n for n in inside if value in n.src]
        more = users[0] if len(users) == 1 else value
        if not (more.op.elementwise and more.dtype.is_float and value.dtype.is_float) or not all(
                s is value or s.op is Ops.CONST for s in more.src):
            return value
        value = more


# *** panels: loaded values ***
def _panel(k: KernelGraph, value: UOp, inside: list[UOp], lanes: int) -> None:
    """Stage a loaded value, filled by vectors of ``lanes`` elements if memory is contiguous along it, else (or for 0)
    element by element.

    Ranges that only occur as one sum (position and offset of a window) are staged as that sum: a padded tile.
    """
    inside = sorted(inside, key=layout_rank)
    sides, table, valid = list[Side](), dict[UOp, UOp](), None
    turned = _turned(k, value)
    boxes = sorted(footprints(value, inside), key=lambda b: (b.lead is turned, memory_order(value, b)))
    # memory may be contiguous along two boxes, the sides of a window of symbolic sizes: one of them gets the lanes
    dense = next((b for b in reversed(boxes) if not (b.lead.arg[1].expanded or is_partial(b.lead))
                  and _is_dense(value, b.lead)), None)
    for box in boxes:
        lead = box.lead
        loops, at = _fill_loops(k, value, box, lanes if box is dense else 0)
        if at.vmax >= box.size if isinstance(box.size, int) else len(loops) > 1 and not divides(
                range_size(loops[-1]), box.size):
            valid = at.lt(box.size) if valid is None else valid & at.lt(box.size)
        table |= dict.fromkeys(box.weights, UOp.index(0)) | {lead: at + box.low}
        sides.append(Side(loops, box.position, int(lead is turned)))
    load = from_stage(value, sides, table, valid)
    k.read_staged(load, {value: load})


def _turned(k: KernelGraph, value: UOp) -> UOp | None:
    """Return the thread range along which stores are contiguous but the value's memory is not (a transposition); None
    if there is none. Each row of the stage runs along this range and is padded by one element, to avoid bank conflicts
    of threads that fill the stage column by column."""
    if any(r.arg[1] is Role.VECTOR for r in value.ranges):
        return None
    along = [r for r in k.order if r.arg[1] is Role.LOCAL and r in value.ranges
             and all(linear_form(s.src[1])[0].get(r) == 1 for s in k.stores)
             and all(linear_form(n.src[1])[0].get(r, 0) > 1 for n in toposort(value) if n.op is Ops.LOAD)]
    return along[0] if along else None


def _fill_loops(k: KernelGraph, value: UOp, box: Footprint, lanes: int) -> tuple[list[UOp], UOp]:
    """Return new ranges that fill a box, and the position in the box as an expression of them.

    With ``lanes``, memory is contiguous along the box: the ranges form full vectors, or, for a value with lanes, the
    number of copies that can be transposed in registers.
    """
    lead = box.lead
    if lanes:
        across = any(r.arg[1] is Role.VECTOR for r in value.ranges)
        fixed = isinstance(box.size, int)
        step, role = (math.gcd(box.size, SIDE) if fixed else 1, Role.UPCAST) if across else (lanes, Role.VECTOR)
        if step > 1 and (box.size if fixed else lead.vmax + 1) >= step // 2:
            outer = k.new_tiles(box.size, step, Role.LOOP)
            inner = k.new_range(step, role)
            return [outer, inner], (outer * step + inner).simplify()
    dealt = any(r.arg[1] in THREADS for r in k.order)  # elements are divided among the threads of a block
    copies = (Role.VECTOR,) if dealt else (Role.UPCAST, Role.VECTOR)
    role = lead.arg[1] if lead.arg[1] in copies else Role.LOOP
    partial = len(box.weights) == 1 and is_partial(lead)
    if partial and len(lead.src) == 2:
        f = lead.replace(arg=(k.new_number(), role, *lead.arg[2:]))
    else:
        f = k.new_range(box.size, role, partial)
    return [f], f


def _is_dense(value: UOp, lead: UOp) -> bool:
    """Return True if full vectors along ``lead`` can be loaded: memory is contiguous along it, or the packed elements
    that a short range reads lie next to each other."""
    loads = [n for n in toposort(value) if n.op is Ops.LOAD]
    if all(linear_form(n.src[1])[0].get(lead) == 1 for n in loads):
        return True
    return lead.vmax < MOST_NEAR and all(n.dtype.is_int and _is_near(n.src[1], lead) for n in loads)


def _is_near(index: UOp, lead: UOp) -> bool:
    """Return True if the elements along a range lie within as many adjacent ones as it has steps."""
    own = {t: step for t, step in linear_form(index)[0].items() if lead in t.ranges}
    at = values_over(from_linear(own, 0, index), lead) if own and all(is_made_of(t, lead) for t in own) else []
    return not own or (bool(at) and max(at) - min(at) <= lead.vmax)


def _rows(k: KernelGraph, opt: Opt, value: UOp, inside: list[UOp], outside: Sequence[UOp]) -> None:
    """Stage a contraction's operand as a matrix for the threads of a block. Layout ``deep``: each step of the reduction
    is a row; ``flat``: rows run along the reduction. Rows are padded by 16 bytes against bank conflicts of column-wise
    writes. With ``depth`` slots, the next steps' tiles are loaded while threads compute on one (``rings.py``)."""
    opt.require(opt.layout in ("deep", "flat") and k.target.block_threads > 0,
                "the layout must be deep or flat, on a target with thread blocks")
    filled = [n for n in toposort(k.sink) if n.op is Ops.STAGE and value in toposort(n)]
    copied = filled or any(n.op in (Ops.FOLD, Ops.STAGE) for n in toposort(value))
    opt.require(not copied and not any(r.arg[1].expanded for r in outside),
                "a deep or flat stage needs a loaded value, not staged yet, before UPCAST and VECTOR")
    opt.require(opt.depth == 1 or any(r.arg[1] is Role.REDUCE for r in outside),
                "depth > 1 needs a kept reduction loop", "the reduction loop in the amount")
    reduced = {r for f in k.folds for r in f.src[1:]} | {p.src[4] for p in k.products}
    weights = strides(value)
    groups = [sorted((r for r in inside if (r in reduced) == steps), key=lambda r: -weights.get(r, 0))
              for steps in ((True, False) if opt.layout == "deep" else (False, True))]
    terms = linear_form(next(n for n in toposort(value) if n.op is Ops.LOAD).src[1])[0]
    sides, table = list[Side](), dict[UOp, UOp]()
    for across, group in enumerate(g for g in groups if g):
        sizes = [range_size(r) for r in group]
        whole = opt.lanes > 1 and math.prod(sizes) % opt.lanes == 0 and terms.get(group[-1]) == 1
        lanes = opt.lanes if whole else 1
        loop, lane = k.new_range(math.prod(sizes) // lanes, Role.LOOP), k.new_range(lanes, Role.VECTOR)
        table |= digits(reversed(group), (loop * lanes + lane).simplify())
        apart = 16 // value.dtype.itemsize // lanes if across and loop.op is Ops.RANGE else 0
        sides.append(Side((loop, lane), flatten(sizes, group), apart))
    load = from_stage(value, sides, table, depth=opt.depth)
    k.read_staged(load, {value: load})


# *** tiles: values computed from reductions ***
def _tile(k: KernelGraph, value: UOp, inside: list[UOp], outside: Sequence[UOp], lanes: int, copies: int) -> None:
    """Stage a computed value row by row along the last reduced range, filled as a tile of ``copies`` vectors of
    ``lanes``; every equal value reads the stage, also in reductions that name their ranges differently."""
    *rows, last = sorted(inside, key=lambda r: r.arg[1] is Role.REDUCE)
    tiled = any(contraction(n) for n in toposort(value) if n.op is Ops.FOLD)
    sides, table = list[Side](), dict[UOp, UOp]()
    for r in rows:
        held, size = tiled and r.arg[1] is Role.UPCAST, range_size(r)
        height = k.target.tile_rows(size, even=True) if tiled and not held else 1
        loop, copy = k.new_range(size // height, Role.UPCAST if held else Role.LOOP), k.new_range(height, Role.UPCAST)
        table[r] = (loop * height + copy).simplify()
        sides.append(Side((loop, copy), r))
    size, group = range_size(last), lanes * copies
    guarded = not divides(group, size)
    own = [k.new_tiles(size, group, Role.LOOP), k.new_range(copies, Role.UPCAST), k.new_range(lanes, Role.VECTOR)]
    at = table[last] = (own[0] * group + own[1] * lanes + own[2]).simplify()
    same = equal_values(k.sink, value, frozenset(outside))
    load = from_stage(value, [*sides, Side(own, last)], table, at.lt(size) if guarded else None)
    k.read_staged(load, {n: under_names(load, names) for n, names in same.items()})
    left = set(toposort(k.sink))
    k.order = [r for r in k.order if r in left]


# *** operands of matrix units ***
def _loads_elements(unit: MatrixUnit) -> bool:
    """Return True if each lane of a unit loads its own elements of the operands, from any layout."""
    return not unit.fragment_a.whole and not unit.staged


def _operand(k: KernelGraph, opt: Opt, product: UOp, which: int, outside: list[UOp]) -> None:
    """Stage a complete operand of a matrix unit, in the unit's order of elements."""
    operand, unit = product.src[which], product.arg
    if matrix_units.reads_held(operand):
        return back_to_back_gemm.make_ahead(k, opt, product, outside)
    opt.require(unit.fragment_c.whole or unit.staged, f"{unit.name} loads its operands per lane and has no stage")
    opt.require(all(n.op is not Ops.STAGE for n in toposort(operand)), "the operand is staged already")
    layouts = ("swizzled",) if unit.staged else ("",)
    fits = opt.layout in layouts and (unit.staged or opt.depth == 1)
    opt.require(fits, f"{unit.name} reads {layouts[0] or 'packed'} operands{' from one slot' * (not unit.staged)}")
    around = {r.arg[1] for r in outside if r in operand.ranges}
    opt.require(around.isdisjoint(THREADS), "a stage cannot be kept per thread: leave LOCAL and GROUP ranges out")
    inside = [r for r in k.order if r in operand.ranges and r not in outside and r.arg[1] is not Role.FRAGMENT]
    fixed = all(isinstance(range_size(r), int) and not is_partial(r) for r in inside)
    opt.require(fixed, "a stage needs ranges of fixed size")
    why = _stage_operand(k, product, which, inside, opt.depth)
    opt.require(not why, why)
    return None


def _stage_operand(k: KernelGraph, product: UOp, which: int, inside: Sequence[UOp], depth: int = 1) -> str:
    """Stage an operand of a matrix unit over ``inside`` and the unit's own ranges; return the reason if that is
    impossible, else an empty string."""
    found: UOp | str
    if not product.arg.staged:
        found = matrix_units.packed_operand(product, which, inside, k.new_range, k.target)
    else:
        found = _in_ring(k, product, which, inside, depth) if k.target.bulk_copy else "the device has no bulk copies"
    if isinstance(found, str):
        return found
    src = (*product.src[:which], found, *product.src[which + 1 :])
    k.read_staged(found, {product: product.replace(src=src)})
    return ""


def _in_ring(k: KernelGraph, product: UOp, which: int, inside: Sequence[UOp], depth: int) -> UOp | str:
    """Return an operand that is read from a slot of its ring, or the reason why that is impossible."""
    fold = next((f for f in k.folds if f.src[0] is product), None)
    loops = [] if fold is None else [r for r in fold.src[1:] if not r.arg[1].expanded]
    loops += [r for r in product.src[which].ranges if r.arg[1] is Role.BLOCK]
    chained = len(k.products) > 1
    if len(loops) > 1 or not {*loops}.isdisjoint(inside) or depth < 1 or (chained and depth > 1 and not loops):
        return "a ring needs one loop outside of its stage: the reduction, or the BLOCK loop of its chain"
    if any(r.arg[1] is Role.LOOP for r in product.ranges):
        return "a ring cannot be inside a LOOP range"
    if not chained and any(n.op is Ops.STAGE and n.arg.depth != depth for n in toposort(product.src[:2])):
        return "both operands need the same depth"
    own = [r for n, r in enumerate(product.src[2:]) if n in (which, 2)]
    guards = [{c for g in s.src[3:] for c in conjuncts(g)} for s in k.stores]
    unread = [c for c in guards[0] if all(c in g for g in guards)]

    def staged(product: UOp) -> UOp | str:
        return staged_operand(product, which, [*inside, *own], depth, k.target.bulk_copy, unread, k.new_range)

    found = staged(product)
    return staged(_without_shared_guards(product, which)) if isinstance(found, str) and not chained else found


def _without_shared_guards(product: UOp, which: int) -> UOp:
    """Return the product with an operand that is also loaded where the other operand's conditions make that one 0, if
    its own bounds on more terms keep it in memory. As for a skipped block, values there are taken to be finite.

    Such conditions are those of the padded steps of a reduction over windows: the sum of step and position in the
    window has bounds of its own, those of the image.
    """
    own, known = loaded(product.src[which]), conditions_of(product.src[1 - which])
    if own is None:
        return product
    mine = [(c, _limited(c)) for g in own.src[2:] for c in conjuncts(g)]
    guard = UOp.const(dtypes.bool, True)
    for c, terms in mine:
        if c not in known or not any(terms < more for _, more in mine):
            guard = guard & c
    freed = own.replace(src=(*own.src[:2], *(() if guard.is_const else (guard.simplify(),))))
    value = product.src[which].substitute({own: freed})
    return product.replace(src=(*product.src[:which], value, *product.src[which + 1:]))


def _limited(condition: UOp) -> Set[UOp]:
    """Return the terms of the sum that a condition limits; all ranges of another condition."""
    inner = condition.src[0] if condition.op is Ops.CMPEQ else condition
    return linear_form(inner.src[0])[0].keys() if inner.op is Ops.CMPLT else condition.ranges


def stage_what_no_unit_loads(k: KernelGraph) -> None:
    """Stage the operands whose memory layout their unit cannot load, a tile at a time.

    Raises:
        ArgumentError: for a unit that reads from a ring's slots, if they cannot be staged there.
    """
    while found := next((p for p in k.products if matrix_units.unloadable(p)), None):
        which = matrix_units.unloadable(found)[0]
        within = (Role.UPCAST, Role.UNROLL, Role.LOCAL) if found.arg.staged else ()
        inside = [r for r in k.order if r in found.src[which].ranges and r.arg[1] in within]
        if why := _stage_operand(k, found, which, inside):
            raise ArgumentError("Opt", f"{found.arg.name} cannot read operand {which}: {why}", "another unit")


@dataclass(frozen=True)
class Ahead:
    """The argument of a load that is prefetched or issued early along loop number ``loop``.

    Attributes:
        loop: the number of the loop.
        prefetch: iterations that its cache line is prefetched ahead; 0: not.
        rotate: it is issued one iteration before its value is needed.
        last: if several reductions over the loop read it one after the other, only the last prefetches.
        first: only the first register copy prefetches, because the lines of the other copies belong to other
            iterations.
    """

    loop: int
    prefetch: int = 0
    rotate: bool = False
    last: bool = False
    first: bool = False


def may_stream(k: KernelGraph) -> bool:
    """Return True if every store writes full vectors aligned to their size; sums accumulated in memory do not count."""
    stores = _final(k)
    return bool(stores) and all(s.op is Ops.STORE and len(s.src) == 3 and _whole_vectors(s.src[1]) for s in stores)


def _final(k: KernelGraph) -> list[UOp]:
    """Return the stores into memory that the kernel only writes."""
    carried = {s.src[0] for s in k.stores if s.op is Ops.SCATTER_STORE and s.src[4].arg[1] is Role.BLOCK}
    return [s for s in k.stores if s.src[0] not in carried]


def _stream(k: KernelGraph, opt: Opt) -> None:
    opt.require(may_stream(k), "every store must write full aligned vectors")
    k.sink = k.sink.substitute({s: s.replace(arg="stream") for s in _final(k)})


def hint(k: KernelGraph, opt: Opt) -> None:
    if opt.axis is None:
        return _stream(k, opt)
    distance, last, outwards = (*opt.amt, 0, 0)[:3] if isinstance(opt.amt, tuple) and opt.amt else (opt.amt, 0, 0)
    opt.require(isinstance(distance, int) and 0 < distance < 1 << 20 and last in (0, 1),
                "the amount is a number of iterations, or (that, 1 if only the last reduction fetches[, loops "
                "outwards])")
    load, r = _load_and_loop(k, opt, outwards)
    steps = linear_form(load.src[1])[0]
    fixed = r in steps and not any(r in t.ranges for t in steps if t is not r)
    opt.require(fixed, "the load has no constant stride along the loop")
    assert isinstance(distance, int)
    ahead = Ahead(r.arg[0], distance, isinstance(load.arg, Ahead) and load.arg.rotate, bool(last), outwards > 0)
    k.sink = k.sink.substitute({load: load.replace(arg=ahead)})
    return None


def rotate(k: KernelGraph, opt: Opt) -> None:
    load, r = _load_and_loop(k, opt)
    opt.require(r.arg[1] is Role.REDUCE, "the load's innermost loop is not a reduction")
    opt.require(load.src[0] not in {s.src[0] for s in k.stores}, "the kernel stores to the memory that it loads")
    distance = load.arg.prefetch if isinstance(load.arg, Ahead) else 0
    k.sink = k.sink.substitute({load: load.replace(arg=Ahead(r.arg[0], distance, True))})


def _load_and_loop(k: KernelGraph, opt: Opt, outwards: int = 0) -> tuple[UOp, UOp]:
    """Return load number ``axis``, and the innermost loop that it depends on, or the one ``outwards`` loops outside of
    it."""
    loads = k.loads
    opt.require(opt.axis is not None and 0 <= opt.axis < len(loads), f"there are {len(loads)} loads")
    assert opt.axis is not None
    load = loads[opt.axis]
    loops = [r for r in k.order if r in load.src[1].ranges and not r.arg[1].expanded]
    opt.require(0 <= outwards < len(loops), f"the load has {len(loops)} enclosing loops")
    return load, loops[-1 - outwards]


def walk(k: KernelGraph, opt: Opt) -> None:
    """Order tiles in bands: a band is ``band`` tiles of one loop times all tiles of the other, so that consecutive
    tiles share operands in the cache. With amount -1 an axis of the grid runs from the last block to the first, so that
    the blocks with most work start first."""
    if opt.amt == -1:
        r = k.axis(opt)
        opt.require(r.arg[1] is Role.GLOBAL and r.arg[0] not in k.backwards,
                    "-1 needs a grid axis that is not reversed yet")
        k.backwards.add(r.arg[0])
        return
    amt = opt.amt if isinstance(opt.amt, tuple) else ()
    opt.require(len(amt) in (2, 3, 4) and amt[2:3] in ((), (0,), (1,)),
                "the amount is (the other loop, band[, one range[, blocks]])")
    a, b = k.axis(opt), k.axis(replace(opt, axis=amt[0]))
    one = amt[2:3] == (1,)
    alone = len(k.products) < 2  # the rings of a chain start counting at 0
    opt.require(len(amt) < 4 or (one and alone and a.arg[1] is Role.GLOBAL and amt[3] > 0 and not k.blocks),
                "persistent blocks need the grid tiles merged into one range, once, and no chain")
    if a is b and len(amt) == 4 and amt[1] == 1:  # a single range
        k.blocks = amt[3]
        return
    roles = {r.arg[1] if r in k.parallel else None for r in (a, b)}
    opt.require(a is not b and (roles == {Role.LOOP} or (one and roles == {Role.GLOBAL})),
                "WALK needs two loops, or two grid axes that are merged")
    size = range_size(a)
    fixed = isinstance(size, int) and isinstance(range_size(b), int)
    divides = fixed and 0 < amt[1] <= size - (not one) and size % amt[1] == 0
    opt.require(divides and (amt[1] > 1 or one), f"the band size must divide {size}")
    together = all((a in s.ranges) == (b in s.ranges) for s in k.stores)
    whole = not is_partial(a) and not is_partial(b)
    opt.require(whole and (together or not one), "partial loops, or loops of different stores, cannot be merged")
    outer, inner = k.split(a, amt[1], a.arg[1])
    loops = [r for r in (outer, b, inner) if r in k.order]
    first = min(k.order.index(r) for r in loops if r is not inner)
    rest = [r for r in k.order if r not in loops]
    k.order = [*rest[:first], *loops, *rest[first:]]
    while one and len(loops) > 1:
        loops[:2] = [k.merge(*loops[:2])]
    k.blocks = amt[3] if len(amt) == 4 else k.blocks


def _whole_vectors(index: UOp) -> bool:
    """Return True if an index starts every vector at a multiple of its lanes."""
    terms, constant = linear_form(index)
    lanes = [r for r in terms if r.op is Ops.RANGE and r.arg[1] is Role.VECTOR]
    if len(lanes) != 1 or terms.pop(lanes[0]) != 1:
        return False
    return all(c % range_size(lanes[0]) == 0 for c in (*terms.values(), constant))

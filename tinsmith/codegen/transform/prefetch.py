"""Opts that fetch, issue or order memory accesses early, without changing a value: HINT (prefetch and non-temporal
stores), ROTATE (software-pipelined loads) and WALK (tile order)."""
from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tinsmith.codegen.kernel_graph import KernelGraph
from tinsmith.ir import Ops, UOp
from tinsmith.ir.algebra.linear import linear_form
from tinsmith.ir.ranges import Role, is_partial, range_size

if TYPE_CHECKING:
    from tinsmith.codegen.opt import Opt


@dataclass(frozen=True)
class Ahead:
    """The argument of a load that is prefetched or issued early along loop number ``loop``.

    Attributes:
        loop: the number of the loop.
        prefetch: iterations that its cache line is prefetched ahead; 0: not.
        rotate: it is issued one iteration before its value is needed.
        last: of several reductions over the loop that read it in turn, only the last prefetches.
        first: of the copies only the first prefetches, because the others' lines belong to other iterations.
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
    """Order tiles in bands: ``band`` tiles of one loop, and in each band all of the other, so that neighbours share the
    cache. With amount -1 an axis of the grid runs from the last block to the first: the blocks with most work start
    first."""
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

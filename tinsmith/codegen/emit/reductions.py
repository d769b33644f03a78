"""Emission of reductions: in one thread, and shared by the warps of a block.

A thread has accumulators, a reduction loop, and a final combination. Block-wide reductions and scans use warp shuffles,
then one word per warp in local memory:

    FOLD(load(STAGE(part, g'), g), g)   →   x = part;  x = x ∘ SHUFFLE(x, 16);  … SHUFFLE(x, 1);  words of the warps

If s adjacent threads have different elements (columns), those of a warp that reduce the same one are s apart: the last
shuffle is SHUFFLE(x, s), and each warp has s words.

The kernel graph, which defines the semantics, keeps the partial result of every thread in local memory
(``codegen/transform/thread_blocks.py``). Targets without shuffles run this form.
"""
from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tinsmith.codegen.emit.emitter import Emitter
from tinsmith.codegen.emit.scopes import Coords, full_and_tail
from tinsmith.codegen.transform.back_to_back_gemm import finite
from tinsmith.codegen.transform.computed_operand import bind
from tinsmith.codegen.transform.matrix_units import product_of, reads_held
from tinsmith.codegen.transform.rings import RingPipeline, rings_of, slotted
from tinsmith.codegen.transform.stages import Ahead
from tinsmith.core.dtypes import dtypes
from tinsmith.core.errors import ArgumentError
from tinsmith.core.settings import settings
from tinsmith.ir import Op, Ops, UOp
from tinsmith.ir.algebra.bounds import bound_ranges, start_of
from tinsmith.ir.algebra.sizes import linear_form
from tinsmith.ir.algebra.symbolic import simplify
from tinsmith.ir.structure import Role, digits, is_partial, range_size, tiles_of
from tinsmith.ir.uop import toposort


class CommonFactor(NamedTuple):
    """A factor shared by unrolled steps of a sum of products: Σ f · rest · other = Σ_groups f · Σ rest · other.

    Attributes:
        factor: a scalar for all lanes and all steps of a group.
        rest: the remaining factor of the same operand.
        other: the other operand.
        groups: the unrolled steps, in groups with one value of ``factor``.
    """

    factor: UOp
    rest: UOp
    other: UOp
    groups: list[list[Coords]]


class FoldWriter:
    """Accumulators, loop and final combination of a group of reductions over the same ranges.

    ``held`` maps copies to the A operands of a matrix unit that are already in registers.
    """

    def __init__(self, lin: Emitter, group: list[UOp], coords: Coords, start: dict[Coords, UOp] | None = None,
                 held: dict[Coords, UOp] | None = None) -> None:
        self.lin, self.group, self.coords, self.start, self.held = lin, group, coords, start, held or {}
        self.product = product_of(group[0])
        self.ranges = bound_ranges(group[0]) if group[0].op is Ops.FOLD else ()
        self.loops = sorted((r for r in self.ranges if not r.arg[1].expanded), key=lambda r: lin.position[r.arg[0]])
        self.unrolled = frozenset(r for r in self.ranges if r.arg[1] in (Role.UNROLL, Role.UPCAST))
        self.vector = next((r for r in self.ranges if r.arg[1] is Role.VECTOR), None)
        self.copies = {f: self.in_order(f) for f in group}
        self.alone: Coords = ()  # in a tail: the copies of steps that are written as a loop
        steps = list(lin.all_coords(self.unrolled))
        self.factored = self.product is None and len(steps) > 1 and all(self.common_factor(f, f.src[0]) for f in group)
        # sums of products of values that are unpacked from narrower integers, such as quantized weights
        self.packed = self.product is None and all(f.dtype.is_float and f.src[0].op is Ops.MUL and any(
            n.op is Ops.LOAD and n.dtype.is_int and n.dtype.itemsize < f.dtype.itemsize
            and not n.ranges.isdisjoint(self.ranges) for n in toposort(f)) for f in group)
        # the accumulator of each unrolled step; adjacent steps have different ones
        chains = 1 if self.product is not None or self.factored else self.count_of_chains(len(steps))
        self.chain = {step: steps[n % chains] if chains > 1 else () for n, step in enumerate(steps)}
        self.values: dict[tuple[int, Coords, Coords], UOp] = {}

    def count_of_chains(self, steps: int) -> int:
        """Return the number of separate accumulators of each sum. Sums of values that are unpacked from words are
        limited by the unpacking, which needs the registers: as many as hide the latency of an addition."""
        core, total = self.lin.kernel.target.core, sum(len(c) for c in self.copies.values())
        if self.packed:
            return math.gcd(steps, max(1 << (core.latency // total).bit_length() >> 1, 1))
        return steps if total * steps <= core.separate_sums else 1

    def in_order(self, f: UOp) -> list[Coords]:
        """Return the register copies of a reduction in writing order. For a product, the indices of the factor with
        fewer copies vary fastest: its values stay in registers while each value of the other factor is used up."""
        copies = list(self.lin.all_coords(f.ranges))
        body = f.src[0] if f.op is Ops.FOLD else f
        while guarded(f, body):
            body = body.src[1]
        if body.op is Ops.MUL:
            few = min(body.src, key=lambda s: len(list(self.lin.all_coords(s.ranges & f.ranges))))
            copies.sort(key=lambda c: [at for r, at in c if r not in few.ranges])
        return copies

    def lanes_of(self, f: UOp) -> int:
        """Return the number of elements per thread of a value without a vector range (fragment size, else 1)."""
        return self.product.arg.fragment_c.size if self.product is not None else 1

    def run(self) -> None:
        bodies = self.begun()
        if self.product is not None and self.product.arg.staged:
            self.hold(self.product)
            rings_of(self.lin, self.product)[0].run(self, bodies)
        else:
            self.nest(self.loops, bodies)
        self.finished()

    def begun(self) -> list[UOp]:
        """Initialize the accumulators and return the expressions that each step adds."""
        lin = self.lin
        for g, f in enumerate(self.group):
            lanes = self.vector or lin.lanes(f)
            dtype = f.dtype.vec(range_size(lanes) if lanes is not None else self.lanes_of(f))
            nothing = UOp(Ops.CONST, dtype, (), 0 if self.product is not None else f.arg.identity(f.dtype))
            first = start_of(f) if self.vector is None else None
            for c in self.copies[f]:
                begin = lin.emit(0, nothing) if self.start is None else self.start[c]
                steps = list(dict.fromkeys(self.chain.values()))
                self.values |= {(g, c, s): begin for s in steps}
                if first is not None:
                    self.values[g, c, steps[0]] = lin.spread(lin.value(first, c), dtype.count)
        return [f.src[0] if f.op is Ops.FOLD else f for f in self.group]

    def finished(self) -> None:
        """Record the result of every reduction of the group as known in the current scope."""
        for g, f in enumerate(self.group):
            for c in self.copies[f]:
                self.lin.scopes[-1].values[(f, c)] = self.finish(g, f, c)

    def hold(self, product: UOp) -> None:
        """Compute an A operand made of values in registers before it is issued to the unit."""
        if reads_held(product.src[0]) and not self.held:
            self.held = {steps: self.lin.operand(product, 0, steps) for steps in self.lin.all_coords(self.unrolled)}

    def drained(self, in_flight: int = 0) -> None:
        """Wait until at most ``in_flight`` later groups of unit steps are unfinished, and use the drained accumulators.
        """
        for key, value in self.values.items():
            self.values[key] = self.lin.force(UOp(Ops.DRAIN, None, (value,), in_flight))
            self.lin.scopes[-1].values[self.values[key]] = self.values[key]

    def nest(self, loops: list[UOp], bodies: list[UOp]) -> None:
        """Open the loops with one accumulator per value; write the reduction step innermost."""
        if not loops:
            return self.step(bodies)

        def inside(inner: list[UOp]) -> None:
            self.nest(loops[1:], inner)

        copies = copies_of_steps(loops[0], bodies) if self.product is None else {}
        if not copies:
            return self.lin.over(loops[0], bodies, inside, self.counted)
        whole, _ = full_and_tail(loops[0])
        self.counted(whole, whole.src[-1], self.lin.without_guards(bodies, loops[0], whole), inside)
        tail, places = step_by_step(loops[0], whole.src[-1], copies)
        for r, place in places.items():
            bodies = [bind(b, r, place) for b in bodies]
        self.alone = tuple((u, 0) for u in copies)
        self.counted(tail, tail.src[-1], self.lin.without_guards([simplify(b) for b in bodies], tail, tail), inside)
        self.alone = ()
        return None

    def counted(self, r: UOp, size: UOp, bodies: list[UOp], inside: Callable[[list[UOp]], None]) -> None:
        """Write one loop; ``inside`` gets the expressions that its steps add."""
        start, end = self.lin.span_of(r)
        bodies = [simplify(b) for b in bodies]
        if start.is_const and end.is_const and (start.arg, end.arg) == (0, 1) and r.arg[1] is not Role.BLOCK:
            return inside([simplify(bind(b, r, UOp.index(0))) for b in bodies])
        stages = slotted(self.lin, r, bodies)
        if stages:
            return RingPipeline(self, r, end, stages).run(start, bodies, inside)
        return self.in_loop(r, start, end, lambda: inside(bodies), bodies)

    def in_loop(self, r: UOp, start: UOp, end: UOp, inside: Callable[[], None], bodies: Sequence[UOp] = ()) -> None:
        """Write a loop that carries the accumulators and the rotated loads (issued one iteration before their use). The
        last iteration loads its own elements again, so that no load is out of bounds."""
        lin, keys, span = self.lin, list(self.values), (self.lin.expression(start), self.lin.expression(end))
        rotated = [(n, c) for n in toposort(bodies) if self.is_rotated(n, r) for c in lin.all_coords(n.ranges)]

        def loads(step: UOp) -> dict[Any, UOp]:
            return {(n, c): lin.spread(lin.value(simplify(bind(n.replace(arg=None), r, step)), c), range_size(lanes)
                                       if (lanes := lin.lanes(n)) is not None else 1) for n, c in rotated}

        def turn(accs: dict[Any, UOp]) -> dict[Any, UOp]:
            self.values = {key: accs[key] for key in keys}
            lin.scopes[-1].values |= {load: accs[load] for load in rotated}
            following = loads((r + 1).minimum(end - 1)) if rotated else {}
            inside()
            return {**self.values, **following}

        found = lin.carrying(r, *span, {**self.values, **loads(start)}, turn, True)
        self.values = {key: found[key] for key in keys}

    def is_rotated(self, n: UOp, r: UOp) -> bool:
        """Return True if a load is issued one iteration of the loop over ``r`` before its use (ROTATE)."""
        if not (n.op is Ops.LOAD and isinstance(n.arg, Ahead) and n.arg.rotate and n.arg.loop == r.arg[0]):
            return False
        opened = self.lin.opened | {r}
        ready = r in n.src[1].ranges and r not in n.src[0].ranges and n.src[0] not in self.lin.written
        return ready and all(x in opened or x.arg[1].expanded for x in n.ranges)

    def step(self, bodies: list[UOp]) -> None:
        lin = self.lin
        before, lin.current_folds = lin.current_folds, [n for b in bodies for n in toposort(b) if n.op is Ops.FOLD]
        around, lin.writing = lin.writing, self.group
        factors = [found for f, body in zip(self.group, bodies) if self.factored and (
            found := self.common_factor(f, body)) is not None]
        if len(factors) == len(bodies) and all(x.groups == factors[0].groups for x in factors):
            self.step_by_factors(factors)
        else:
            for g, unroll in self.steps_in_order(bodies):
                self.step_of(g, bodies[g], unroll)
        lin.current_folds, lin.writing = before, around

    def steps_in_order(self, bodies: list[UOp]) -> list[tuple[int, Coords]]:
        """Return the unrolled steps of every reduction of the group in writing order. Sums of products of unpacked
        values take each step together: an operand that they share is used up before the next step loads its own."""
        steps, count = list(self.lin.all_coords(self.unrolled - {u for u, _ in self.alone})), range(len(bodies))
        if self.packed:
            return [(g, step) for step in self.by_words(bodies, steps) for g in count]
        return [(g, step) for g in count for step in steps]

    def by_words(self, bodies: Sequence[UOp], steps: list[Coords]) -> list[Coords]:
        """Return unrolled steps in an order in which those that unpack the same packed elements follow each other."""
        loads = [n for n in toposort(bodies) if n.op is Ops.LOAD and n.dtype.is_int and not n.ranges.isdisjoint(
            self.unrolled) and n.src[0].op is Ops.PARAM]
        found = [[self.lin.at(n.src[1], step) for step in steps] for n in loads]
        shared = sorted((words for words in found if len(set(words)) < len(steps)), key=lambda words: len(set(words)))
        keys = {step: [words.index(words[n]) for words in shared] for n, step in enumerate(steps)}
        return sorted(steps, key=lambda step: keys[step])

    def step_of(self, g: int, body: UOp, unroll: Coords) -> None:
        """Write an unrolled step of reduction number ``g`` for all its copies."""
        lin, f = self.lin, self.group[g]
        for c in self.copies[f]:
            if lin.adds_nothing((*c, *unroll)):
                continue
            key = (g, c, self.chain[lin.both(unroll, self.alone)])
            at = lin.both(c, unroll)
            if (added := self.added(f, body, at)) is None:
                continue
            self.values[key] = line = self.accumulate(f.arg, self.values[key], added, at)
            line.origin = line.origin or f.origin

    def common_factor(self, f: UOp, body: UOp) -> CommonFactor | None:
        """Return the factor that unrolled steps of a sum of products share, such as the scale of a block of quantized
        weights; None if multiplying each product by it costs no more than multiplying their sums.

        The other factor of the products is shared by the copies that it does not depend on; each of them multiplies
        its own sum.
        """
        if not (f.op is Ops.FOLD and f.arg is Ops.ADD and body.op is Ops.MUL and body.dtype.is_float) or (
                self.vector is None or settings.NOOPT):
            return None
        steps = [u for u in self.lin.all_coords(self.unrolled - {u for u, _ in self.alone})
                 if not self.lin.adds_nothing(u)]
        for weight, other in (body.src, body.src[::-1]):
            for factor, rest in (weight.src, weight.src[::-1]) if weight.op is Ops.MUL else ():
                if self.ranges and not factor.ranges.isdisjoint(self.ranges) and any(
                        n.op is Ops.LOAD for n in toposort(factor)):
                    groups = self.sharing(factor, steps)
                    readers = len(self.copies[f]) // len({self.lin.coords_of(weight, c) for c in self.copies[f]})
                    if groups and 2 * readers * len(groups) <= len(steps):
                        return CommonFactor(factor, rest, other, groups)
        return None

    def sharing(self, factor: UOp, steps: list[Coords]) -> list[list[Coords]]:
        """Return ``steps`` in groups of consecutive ones for which a factor is the same scalar; empty if it has lanes.
        """
        lin, known, groups = self.lin, None, list[list[Coords]]()
        inside = toposort(factor, lambda n: n.op is not Ops.STAGE)
        if any(n.op in (Ops.FOLD, Ops.PREFIX) for n in inside):
            return []
        values = [n for n in inside if n.op not in (Ops.STAGE, Ops.RANGE) and n.dtype is not dtypes.index]
        roots = list(dict.fromkeys(s for n in values for s in n.src if s.dtype is dtypes.index))
        for step in steps:
            at = [lin.at(root, step) for root in roots]
            if any(lin.lanes(x) is not None for x in at):
                return []
            if at != known:
                groups.append([])
            known = at
            groups[-1].append(step)
        return groups

    def step_by_factors(self, factors: list[CommonFactor]) -> None:
        """Write a step: the products of each group of unrolled steps are added up, then multiplied by their factor."""
        bodies, groups = [x.rest for x in factors], {group[0]: group for group in factors[0].groups}
        for group in (self.by_words(bodies, groups[first]) for first in self.by_words(bodies, list(groups))):
            for g, found in enumerate(factors):
                self.sum_by_factor(g, found, group)

    def sum_by_factor(self, g: int, found: CommonFactor, group: list[Coords]) -> None:
        """Add a factor times the sum of the products of a group of unrolled steps to reduction number ``g``."""
        lin, here, f = self.lin, self.lin.here, self.group[g]
        sums = dict[Coords, UOp]()
        for unroll in group:
            for c in self.copies[f]:
                at = lin.both(c, lin.both(unroll, self.alone))
                product = [lin.value(found.rest, at), lin.value(found.other, at)]
                op, more = (Ops.MULADD, [sums[c]]) if c in sums else (Ops.MUL, [])
                sums[c] = lin.combine(here, op, f.dtype.scalar, [*product, *more])
        for c in self.copies[f]:
            factor = lin.value(found.factor, lin.both(c, lin.both(group[0], self.alone)))
            self.values[g, c, ()] = line = lin.combine(here, Ops.MULADD, f.dtype.scalar, [
                factor, sums[c], self.values[g, c, ()]])
            line.origin = line.origin or f.origin

    def added(self, f: UOp, body: UOp, coords: Coords) -> UOp | None:
        """Return the value that a copy adds, without guards that always hold for it; None if a guard never holds."""
        while guarded(f, body) and self.lin.index_only(body.src[0]):
            valid = self.lin.at(body.src[0], coords)
            if not valid.is_const:
                break
            if not valid.arg:
                return None
            body = body.src[1]
        return body

    def accumulate(self, op: Op, acc: UOp, body: UOp, coords: Coords) -> UOp:
        lin, here = self.lin, self.lin.here
        if body.op is Ops.MMA:
            first, second = (lin.coords_of(s, coords) for s in body.src[:2])
            a, b = self.held[first] if self.held else lin.operand(body, 0, first), lin.operand(body, 1, second)
            return lin.emit(here, UOp(Ops.MMA, None, (acc, a, b), body.arg))
        if op is Ops.ADD and body.op is Ops.MUL and body.dtype.is_float:
            if settings.NOOPT:  # as written: a multiplication and an addition, not contracted
                return lin.combine(here, Ops.ADD, acc.dtype.scalar, [acc, lin.value(body, coords)])
            a, b = (lin.value(s, coords) for s in body.src)
            return lin.combine(here, Ops.MULADD, acc.dtype.scalar, [a, b, acc])
        return lin.combine(here, op, acc.dtype.scalar, [acc, lin.value(body, coords)])

    def finish(self, g: int, f: UOp, c: Coords) -> UOp:
        """Combine separate accumulators pairwise, then the lanes if the reduction ran along them."""
        lin = self.lin
        parts = [v for k, v in self.values.items() if k[0] == g and k[1] == c]
        here = lin.here
        while len(parts) > 1:
            pairs = [lin.combine(here, f.arg, f.dtype, list(p)) for p in zip(parts[::2], parts[1::2])]
            parts = pairs + ([parts[-1]] if len(parts) % 2 else [])
        line = parts[0]
        if self.vector is not None:
            line = lin.halved(f.arg, line)
            if (first := start_of(f)) is not None:
                line = lin.combine(here, f.arg, f.dtype, [lin.value(first, c), line])
        return line


def copies_of_steps(r: UOp, bodies: Sequence[UOp]) -> dict[UOp, int]:
    """Return the unrolled ranges into which the steps of a reduction of symbolic size are split, each with its weight
    in elements; empty if there are none."""
    if r.src[-1].is_const or not is_partial(r) or r.arg[1] is not Role.REDUCE:
        return {}
    for n in toposort(bodies):
        if n.op is Ops.CMPLT and n.src[0].dtype is dtypes.index and r in n.ranges:
            terms = linear_form(n.src[0] - n.src[1])[0]
            if r in terms and (found := {u: terms[u] for u in n.ranges if u.arg[1] is Role.UNROLL and u in terms}):
                return found
    return {}


def step_by_step(r: UOp, full: UOp, copies: dict[UOp, int]) -> tuple[UOp, dict[UOp, UOp]]:
    """Return the tail of a reduction as a loop over its steps: the loop's range, and the values of ``r`` and of the
    ``copies`` there. A step is one vector, or one element without lanes.

    ``full``: the number of full iterations of ``r``.
    """
    weight = min(copies.values())
    together = math.prod(map(range_size, copies))
    elements, _ = tiles_of(r)
    end = ((elements + (weight - 1)) // weight).simplify()
    tail = r.replace(src=((full * together).simplify(), end, end), arg=r.arg[:2])
    return tail, digits(sorted(copies, key=lambda u: copies[u]), tail) | {r: (tail // together).simplify()}


def guarded(f: UOp, body: UOp) -> bool:
    """Return True if a reduction adds its value under a condition and the identity elsewhere (a padded range)."""
    return body.op is Ops.WHERE and f.op is Ops.FOLD and body.src[2].is_const and (
        body.src[2].arg == f.arg.identity(f.dtype))


class OnlineWriter(FoldWriter):
    """Online softmax in one loop over blocks: a running maximum, and sums rescaled whenever the maximum changes."""

    def step(self, bodies: list[UOp]) -> None:
        lin, here = self.lin, self.lin.here
        before, lin.current_folds = lin.current_folds, [n for b in bodies for n in toposort(b) if n.op is Ops.FOLD]
        known = self.maxima(bodies[0])
        for g, (f, body) in enumerate(zip(self.group, bodies)):
            for c in self.copies[f] if g else ():
                old, shift = known[lin.coords_of(self.group[0], c)]
                weight, part, top = self.parts(body)
                keep = lin.value(weight.substitute({top: shift, top.src[0]: old}))
                scale = lin.value(weight.substitute({top: shift}), c)
                added = lin.combine(here, Ops.MUL, f.dtype, [scale, lin.value(part, c)])
                self.values[g, c, ()] = lin.combine(here, Ops.MULADD, f.dtype, [self.values[g, c, ()], keep, added])
        lin.current_folds = before

    def maxima(self, body: UOp) -> dict[Coords, tuple[UOp, UOp]]:
        """Update the running maximum. Return, per copy, the old one and the new one, the latter finite (a valid shift).
        """
        lin, known = self.lin, dict[Coords, tuple[UOp, UOp]]()
        for c in self.copies[self.group[0]]:
            old = self.values[0, c, ()]
            new = self.values[0, c, ()] = self.accumulate(Ops.MAX, old, body, c)
            known[c] = lin.named(old), finite(lin.named(new))
        return known

    def parts(self, body: UOp) -> tuple[UOp, UOp, UOp]:
        """Split the step of a sum into three parts: the weight exp(block maximum - maximum), the sum over the block,
        and the block maximum."""
        top = next(n for n in toposort(body) if n.op is Ops.FOLD and n.src[1:] == self.ranges)
        first, second = body.src
        return (first, second, top) if top in toposort(first) else (second, first, top)

    def finish(self, g: int, f: UOp, c: Coords) -> UOp:
        """Finish a sum. If all values are -inf, the sum is taken relative to 0 and is 0; relative to the infinite
        maximum it would be NaN."""
        line, lin = super().finish(g, f, c), self.lin
        if g == 0:
            return line
        weight, _, top = self.parts(f.src[0])
        return lin.combine(lin.here, Ops.MUL, f.dtype, [line, self.whole(weight, top, c)])

    def whole(self, weight: UOp, top: UOp, c: Coords) -> UOp:
        """Return the weight with the final maximum in place of the block's maximum."""
        at = self.lin.named(self.values[0, self.lin.coords_of(self.group[0], c), ()])
        return self.lin.value(weight.substitute({top: at, top.src[0]: at}))

_BETWEEN = (Ops.CONST, Ops.DEFINE_GLOBAL, Ops.GEP, Ops.VECTORIZE)


def shared_by_warps(lin: Emitter, fold: UOp, coords: Coords) -> bool:
    """Write ``fold`` with warp shuffles if it has the form in the module's docstring and its threads fill warps; return
    False otherwise."""
    found = _part_of_a_thread(fold)
    warp, threads = lin.kernel.target.warp, lin.block_size
    if found is None or not warp:
        return False
    part, own, readers = found
    if any(lin.known((mine, ())) is not lin.known((reader, ())) for mine, reader in readers.items()
           if mine.arg[1] is not Role.VECTOR):
        return False  # other threads read the partial results, too
    size, line = range_size(own), lin.known((own, ()))
    if line is None or line.op is not Ops.SPECIAL:
        return False
    apart = _threads_before(lin, line)
    if apart >= warp or warp % apart or ((size * apart) % warp and warp % (size * apart)):
        return False
    if threads % warp and threads > warp:  # an incomplete last warp
        return False
    depth = lin.depth_of(fold)
    with lin.at_depth(depth):
        x = lin.value(part, coords)
        step = min(size * apart, warp) // 2
        while step >= apart:
            x = lin.shuffled(fold.arg, x, step)
            step //= 2
        if size * apart > warp:  # combine the warps' results through local memory
            x = functools.reduce(lambda total, word: lin.combine(depth, fold.arg, fold.dtype, [total, word]),
                                 _words_of_warps(lin, x, line, warp // apart))
        lin.remember(fold, lin.coords_of(fold, coords), x)
    return True


def _threads_before(lin: Emitter, line: UOp) -> int:
    """Return the number of adjacent threads that have the same index ``line``: a product of the block's first axes."""
    before = [n for n in lin.threads_of if n[1].op is Ops.SPECIAL and n[1].arg[0] < line.arg[0]]
    return math.prod(lin.threads_along(axis, other) for axis, other in before)


def _words_of_warps(lin: Emitter, x: UOp, line: UOp, share: int) -> list[UOp]:
    """Return the results of all warps that reduce the same element, exchanged through local memory. ``line`` is the
    thread index along the reduction, of which a warp has ``share``."""
    count = x.dtype.count
    words = lin.threads_along(*next((a, n) for a, n in lin.threads_of if n is line)) // share
    memory = lin.local(x.dtype.scalar.ptr(), lin.block_size // share * count)
    first, pitch = UOp.index(0), words * count  # offset of the warps that reduce the same element
    for axis, other in lin.threads_of:
        if other is not line:
            first = first + other * pitch
            pitch *= lin.threads_along(axis, other)
    lin.barrier()
    valid = lin.spread(lin.raw((line % share).eq(0)), count)
    lin.force(UOp(Ops.STORE, None, (memory, lin.raw((first + line // share * count).simplify()), x, valid)))
    lin.barrier()
    out = []
    for word in range(words):
        offset = lin.raw((first + word * count).simplify())
        out.append(lin.force(UOp(Ops.LOAD, x.dtype, (memory, offset))))
        lin.scopes[-1].values[out[-1]] = out[-1]
    return out


def running_by_warps(lin: Emitter, op: Op, x: UOp, threads: UOp) -> tuple[UOp, UOp]:
    """Return the exclusive prefix of ``x`` over ``threads``, and the total: a block-wide scan by butterfly shuffles, in
    which the upper half of each group adds the total of the lower half (after Blelloch 1990).

    Raises:
        ArgumentError: if a warp is incomplete.
    """
    line, size, here = lin.known((threads, ())), range_size(threads), lin.here
    warp, dtype = lin.kernel.target.warp, x.dtype
    assert line is not None and op.identity is not None
    if lin.block_size > warp and lin.block_size % warp:
        raise ArgumentError("Opt", f"{size} threads share a scan in blocks of {lin.block_size}, not full warps",
                            "other amounts of LOCAL")
    nothing = lin.const(x, op.identity(dtype))

    def joined(upper: UOp, other: UOp, before: UOp) -> UOp:
        found = other if before is nothing else lin.combine(here, op, dtype, [other, before])
        return lin.combine(here, Ops.WHERE, dtype, [upper, found, before])

    before, step = nothing, 1
    while step < min(size, warp):
        other = lin.emit(here, UOp(Ops.SHUFFLE, dtype, (x,), step))
        before = joined(lin.raw((line // step % 2).simplify().eq(1)), other, before)
        x = lin.combine(here, op, dtype, [x, other])
        step *= 2
    if size <= warp:
        return before, x
    words, ahead = _words_of_warps(lin, x, line, warp), nothing
    total = words[0]
    for number, word in enumerate(words):
        if number:
            total = lin.combine(here, op, dtype, [total, word])
        if number + 1 < len(words):
            ahead = joined(lin.raw(UOp.index(number).lt(line // warp)), word, ahead)
    return lin.combine(here, op, dtype, [ahead, before]), total


def _part_of_a_thread(fold: UOp) -> tuple[UOp, UOp, dict[UOp, UOp]] | None:
    """Return a thread's partial result, the range of the threads that share the reduction, and a map from the stage's
    other ranges to the ranges that read them; None if ``fold`` has another form."""
    load = fold.src[0]
    if fold.op is not Ops.FOLD or len(fold.src) != 2 or load.op is not Ops.LOAD or len(load.src) != 2:
        return None
    stage, again = load.src[0], fold.src[1]
    if stage.op is not Ops.STAGE:
        return None
    terms, constant = linear_form(load.src[1])
    own: UOp | None = None
    table, pitch = dict[UOp, UOp](), 1
    for mine, size in zip(reversed(stage.src[1:]), reversed(stage.arg)):
        reader = next((t for t, k in terms.items() if k == pitch and t.op is Ops.RANGE), None)
        if reader is None or range_size(reader) != size or range_size(mine) != size:
            return None
        if reader is again and mine.arg[1] is Role.GROUP:
            own = mine
        elif reader.arg[1] is mine.arg[1]:
            table[mine] = reader
        else:
            return None
        pitch *= size
    if own is None or constant or len(terms) != len(stage.arg):
        return None
    return stage.src[0].substitute(table), own, table


def loads_first(lines: Sequence[UOp], most: int) -> list[UOp]:
    """Move loads of read-only global memory before those barriers of their loop that they need not follow, so that they
    are in flight while threads wait. At most ``most`` values per thread are moved."""
    if any(n.op is Ops.LOAD for line in lines if line.op is Ops.LOAD for n in toposort(line.src[1])):
        lines = _stores_later(lines, most)
    written = {u.src[0] for u in lines if u.op in (Ops.STORE, Ops.STORE_TILE)}
    now, since = 0, dict[UOp, int]()  # number of barriers so far, and before each line
    scopes: list[list[tuple[int, UOp]]] = [[]]  # the barriers of each open loop
    early: dict[UOp, list[UOp]] = {}
    lanes = 0
    moved = set[UOp]()
    for line in lines:
        at = max((since.get(s, 0) for s in line.src), default=0)
        if line.op in (Ops.RANGE, Ops.IF):
            scopes.append([])
        elif line.op in (Ops.ENDRANGE, Ops.ENDIF):
            scopes.pop()
        elif line.op is Ops.BARRIER:
            now += 1
            scopes[-1].append((now, line))
        elif line.op is Ops.LOAD and line.src[0].op is Ops.DEFINE_GLOBAL and line.src[0] not in written:
            barrier = next((b for b in scopes[-1] if b[0] > at), None)
            if barrier is not None and lanes + line.dtype.count <= most:
                lanes += line.dtype.count
                early.setdefault(barrier[1], []).append(line)
                moved.add(line)
                since[line] = barrier[0] - 1
                continue
        since[line] = now
    return [x for line in lines if line not in moved for x in (*early.get(line, ()), line)]


def _stores_later(lines: Sequence[UOp], most: int) -> list[UOp]:
    """Move global stores after later loads with only arithmetic in between: a compiler cannot know that they do not
    alias. Only for kernels with dependent loads (index, then element); others become slower."""
    written = {u.src[0] for u in lines if u.op in (Ops.STORE, Ops.STORE_TILE)}
    out, stores, waiting, lanes = list[UOp](), list[UOp](), list[UOp](), 0
    for line in lines:
        if line.op is Ops.LOAD and line.src[0].op is Ops.DEFINE_GLOBAL and line.src[0] not in written:
            lanes += sum(s.src[2].dtype.count for s in stores)
            if lanes <= most:
                out, waiting, stores = [x for x in out if x not in stores], [*waiting, *stores], []
        elif line.op is Ops.STORE and line.src[0].op is Ops.DEFINE_GLOBAL:
            if waiting:
                waiting.append(line)
                continue
            stores.append(line)
        elif not (line.op.alu or line.op.kind == "cast" or line.op in _BETWEEN):
            out, stores, waiting, lanes = [*out, *waiting], [], [], 0
        out.append(line)
    return [*out, *waiting]

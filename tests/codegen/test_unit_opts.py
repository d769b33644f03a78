"""Random lists of the opts of matrix units on a GPU grid: ring depths, warps, warp roles, ping-pong, chains."""
from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from tests.codegen.kernels import Draw, apply_or_refuse, one_opt
from tests.codegen.running import Array, expected, linearize_on, run_graph, run_on
from tests.codegen.test_chains import attention
from tests.codegen.test_chains import close as close_chain
from tests.codegen.test_matrix import close
from tests.codegen.test_rings import DEVICE, of_size
from tinsmith.backend.device import Device
from tinsmith.codegen.compile_kernel import compile_kernel
from tinsmith.codegen.kernel import Kernel
from tinsmith.codegen.opt import Opt, OptOps
from tinsmith.codegen.transform.matrix_units import reads_held
from tinsmith.core.dtypes import dtypes
from tinsmith.core.errors import ArgumentError
from tinsmith.ir import UOp
from tinsmith.ir.structure import Role, contraction, range_size

ORDERS = ("", ":S1", ":S2")  # that warps and blocks run in
Case = tuple[UOp, dict[UOp, Any]]


def product(draw: Draw) -> Case:
    m, n, k = (draw(st.sampled_from(sizes)) for sizes in ((40, 130, 64), (72, 136, 64), (64, 72, 136)))
    return of_size(m, k, n, draw(st.sampled_from(("", "b"))), epilogue=draw(st.booleans()))


def chain(draw: Draw) -> Case:
    rows, keys = draw(st.sampled_from((40, 64, 130))), draw(st.sampled_from((64, 77, 128)))
    return attention(rows, keys, 64, 0, 1, dtypes.bfloat16, draw(st.sampled_from(("", "causal", "added"))))


def draw_opts(draw: Draw, kernel: Kernel) -> None:
    """Apply opts that put a product, or a chain of two, on a matrix unit, then opts of that unit in random order, mixed
    with others, with random amounts; most of them are legal, illegal ones are skipped."""
    folds = [f for f in kernel.folds if contraction(f, guarded=True)]
    if len(folds) > 1 and draw(st.integers(0, 3)):
        for at in draw(st.permutations([kernel.ranges.index(r) for r in kernel.reduces])):
            if all(o.op is not OptOps.ONLINE for o in kernel.opts):
                apply_or_refuse(kernel, Opt(OptOps.ONLINE, at, draw(st.sampled_from((32, 64)))))
    for opt in onto_unit(draw, kernel):
        apply_or_refuse(kernel, opt)
    for step in (*draw(st.permutations((warps, unrolled, turns, any_other))), rings, ahead, roles):
        for opt in step(draw, kernel) if kernel.products else ():
            apply_or_refuse(kernel, opt)


def onto_unit(draw: Draw, kernel: Kernel) -> Iterator[Opt]:
    """Yield opts that put the last contraction on some unit, with or without padding to full slots."""
    read, whole = {n.dtype for n in kernel.loads}, draw(st.integers(0, 3)) > 0
    names = [u.name for u in kernel.target.units if u.emit != "muladd" and {u.a, u.b} <= read and u.n in (8, 64, 128)]
    for r in kernel.reduces if whole else ():
        if range_size(r) % 64:
            yield Opt(OptOps.PADTO, [x.arg[0] for x in kernel.ranges].index(r.arg[0]), 64)
    for _ in range(8):
        if kernel.products:
            return
        fold = [f for f in kernel.folds if contraction(f, guarded=True)][-1]
        m, n = draw(st.permutations([r for r in kernel.parallel if r in fold.ranges][-2:]))
        at, copies = kernel.ranges.index, draw(st.sampled_from(((1, 1), (1, 1), (2, 1), (1, 2), (2, 2), (1, 8))))
        yield Opt(OptOps.TC, at(fold.src[-1]), (at(m), at(n), *copies), unit=draw(st.sampled_from(names)))


def warps(draw: Draw, kernel: Kernel) -> Iterator[Opt]:
    for r in [r for r in kernel.parallel if r.arg[1] is Role.GLOBAL]:
        if draw(st.booleans()):
            yield Opt(OptOps.LOCAL, [x.arg[0] for x in kernel.ranges].index(r.arg[0]), draw(st.sampled_from((2, 3))))


def unrolled(draw: Draw, kernel: Kernel) -> Iterator[Opt]:
    for r in [r for r in kernel.reduces if r in {x for p in kernel.products for x in p.ranges}]:
        if amount := draw(st.sampled_from((0, 2, 4, 4, 4, 4))):
            yield Opt(OptOps.UNROLL, kernel.ranges.index(r), amount)


def turns(draw: Draw, kernel: Kernel) -> Iterator[Opt]:
    """Yield opts of the tile order: blocks alternate within a band of tiles, or run backwards."""
    grid = [kernel.ranges.index(r) for r in kernel.parallel if r.arg[1] is Role.GLOBAL]
    if len(grid) > 1 and draw(st.booleans()):
        a, b = draw(st.permutations(grid))[:2]
        size = range_size(kernel.ranges[a])
        band = draw(st.sampled_from([d for d in range(1, size + 1) if size % d == 0]))
        yield Opt(OptOps.WALK, a, (b, band, 1, *draw(st.sampled_from(((), (2,), (3,))))))
    elif grid:
        yield Opt(OptOps.WALK, draw(st.sampled_from(grid)), -1)


def any_other(draw: Draw, kernel: Kernel) -> Iterator[Opt]:
    yield draw(one_opt(kernel, True))


def rings(draw: Draw, kernel: Kernel) -> Iterator[Opt]:
    """Yield opts that stage operands in local memory: as TMA boxes if the unit reads them there, else row by row."""
    around, slots = (Role.GLOBAL, Role.REDUCE, Role.BLOCK), draw(st.sampled_from((1, 2, 3, 4)))
    for _ in range(3):
        values = [s for p in kernel.products for s in p.src[:2] if s in kernel.stageable and not reads_held(s)]
        if not values:
            return
        value, boxes = draw(st.sampled_from(values)), kernel.products[0].arg.staged
        kept = tuple(i for i, r in enumerate(kernel.ranges) if r in value.ranges and r.arg[1] in around)
        layouts = ("swizzled",) if boxes else ("deep", "flat")
        yield Opt(OptOps.STAGE, kernel.stageable.index(value), kept, 0 if boxes else 8, layout=draw(st.sampled_from(
            layouts)), depth=slots)


def ahead(draw: Draw, kernel: Kernel) -> Iterator[Opt]:
    """Yield opts that compute a register tile one block ahead of its consumer."""
    for value in [p.src[0] for p in kernel.products if reads_held(p.src[0])]:
        if draw(st.integers(0, 3)):
            yield Opt(OptOps.STAGE, kernel.stageable.index(value), (), depth=2)


def roles(draw: Draw, kernel: Kernel) -> Iterator[Opt]:
    if draw(st.integers(0, 3)):
        groups = next((range_size(r) for r in kernel.order if r.arg[1] is Role.LOCAL), 0) * kernel.goes_by_blocks
        places = kernel.blocks and len(kernel.products) == 1 and draw(st.booleans())
        yield Opt(OptOps.ROLES, None, groups if groups and draw(st.booleans()) else 2 if places else None)


def kinds(kernel: Kernel) -> Iterator[str]:
    """Yield the kinds of the applied opts, for coverage counts."""
    for o in kernel.opts if kernel.products else ():
        yield o.op.name
        yield from ["persistent"] * (o.op is OptOps.WALK and isinstance(o.amt, tuple) and len(o.amt) == 4)
        yield from [f"{o.layout or 'ahead'} {min(o.depth, 2)}"] * (o.op is OptOps.STAGE)


@pytest.mark.parametrize(("case", "examples", "equal", "asked"), [
    (product, 32, close, {"TC", "LOCAL", "UNROLL", "persistent", "swizzled 2", "flat 2", "ROLES"}),
    (chain, 16, close_chain, {"TC", "ONLINE", "LOCAL", "swizzled 2", "ROLES"})])
def test_any_opts_of_units_compute_the_same(case: Callable[[Draw], Case], examples: int,
                                            equal: Callable[[Array, Array], None], asked: set[str]) -> None:
    drawn: Counter[str] = Counter()

    @settings(max_examples=examples, deadline=None, derandomize=True, database=None,
              suppress_health_check=list(HealthCheck))
    @given(st.data())
    def run(data: st.DataObject) -> None:
        sink, inputs = case(data.draw)
        draw_opts(data.draw, kernel := linearize_on(DEVICE, sink))
        note(f"opts = {kernel.opts}")
        if not kernel.products:
            return  # one thread alone would go through all of it
        try:
            compile_kernel(sink, Device[DEVICE].renderer, kernel.opts)
        except ArgumentError:
            return  # a unit has no operands in local memory that it can read, or there is too much of that
        drawn.update(set(kinds(kernel)))
        want = expected(sink, inputs)[0]
        equal(run_graph(sink, inputs, kernel.opts, DEVICE)[0], want)
        equal(run_on(DEVICE + data.draw(st.sampled_from(ORDERS)), sink, inputs, kernel.opts)[0], want)

    run()
    assert asked <= set(drawn), f"nothing drew {asked - set(drawn)}"

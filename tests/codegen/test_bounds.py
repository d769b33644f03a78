"""Loop partitioning: loops are split where the formula of their body changes."""
from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.codegen.running import expected, optimized, run_graph, run_on
from tinsmith.backend.device import Device
from tinsmith.codegen.compile_kernel import compile_kernel
from tinsmith.codegen.lower.loop_partition import change_points
from tinsmith.codegen.opt import Opt, OptOps
from tinsmith.codegen.planner.cpu.loops import bounds_rules, one_load
from tinsmith.core.dtypes import DType, dtypes
from tinsmith.core.errors import ArgumentError
from tinsmith.ir import Ops, UOp
from tinsmith.ir.algebra.symbolic import values_over
from tinsmith.ir.graphs import joined
from tinsmith.ir.rewrite import Rule
from tinsmith.ir.structure import Role, range_size
from tinsmith.ir.uop import toposort

relaxed = settings(max_examples=40, deadline=None, derandomize=True, database=None)


def param(number: int, *shape: int) -> UOp:
    return UOp(Ops.PARAM, dtypes.float32, (), (number, shape))


def sink(value: UOp) -> UOp:
    return UOp(Ops.SINK, None, (value,))


def filled(root: UOp) -> dict[UOp, np.ndarray]:
    return {p: np.random.default_rng(p.arg[0]).standard_normal(p.arg[1]).astype(np.float32)
            for p in toposort(root) if p.op is Ops.PARAM}


@pytest.mark.parametrize("rule", bounds_rules.rules, ids=lambda r: r.name)
def test_every_rule_has_an_example(rule: Rule) -> None:
    node = rule.example()
    new = rule.apply(node)
    assert new is not None and new is not node and new.dtype is node.dtype


@relaxed
@given(st.integers(2, 40), st.sampled_from((1, 2, 3, -1, -3)), st.integers(-30, 30), st.integers(-60, 60),
       st.sampled_from(("CMPLT", "CMPEQ", "IDIV")))
def test_between_change_points_nothing_changes(size: int, step: int, start: int, other: int, op: str) -> None:
    """A comparison or a quotient changes its value at each change point, and none between them."""
    r = UOp.range(size, 0, Role.LOOP)
    node = (r * step + start).alu(op, UOp.index(abs(other) + 9 if op == "IDIV" else other))
    values = values_over(node, r)
    assert change_points([node], r) == [i for i in range(1, size) if values[i] != values[i - 1]]


def test_a_concatenation_becomes_a_copy_of_each_part() -> None:
    root = sink(joined([param(1, 40, 77), param(2, 40, 77), param(3, 40, 7)], 1))
    program = compile_kernel(root, Device["PYTHON:T3:V64"].renderer)
    assert program.opts[0].op is OptOps.CUT
    loads = [u for u in program.uops if u.op is Ops.LOAD]
    whole = [u for u in loads if u.dtype.count == 16 and len(u.src) == 2]
    assert len({u.src[0] for u in loads}) == 3 and len({u.src[0] for u in whole}) == 2
    assert not any(u.op is Ops.WHERE for u in program.uops)


def test_rows_of_several_inputs_are_shared_out_by_threads_piece_by_piece() -> None:
    root = sink(joined([param(1, 300, 64), param(2, 500, 64), param(3, 1, 64)], 0))
    program = compile_kernel(root, Device["PYTHON:T3:V64"].renderer)
    assert {OptOps.CUT, OptOps.THREAD} <= {o.op for o in program.opts} and not program.serial
    inputs = filled(root)
    for device in ("PYTHON:T3:V64", "CPU"):
        np.testing.assert_array_equal(run_on(device, root, inputs, None, 3)[0], expected(root, inputs)[0])


def test_one_element_beside_threads_is_stored_by_one_of_them() -> None:
    root = sink(joined([param(1, 1), param(2, 40000), param(3, 1)], 0))
    inputs = filled(root)
    opts = [Opt(OptOps.CUT, 0, (1, 40001)), Opt(OptOps.THREAD, 0)]
    for device in ("PYTHON", "CPU"):
        np.testing.assert_array_equal(run_on(device, root, inputs, opts, 3)[0], expected(root, inputs)[0])


def test_rows_that_are_reflected_are_one_load() -> None:
    x = param(1, 9, 33)
    rows = joined([x.shrink(((1, 4), (0, 33))).flip((0,)), x, x.shrink(((5, 8), (0, 33))).flip((0,))], 0)
    merged = one_load(optimized(sink(-rows), ()).sink)
    assert sum(n.op is Ops.LOAD for n in toposort(merged)) == 1
    assert all(len(n.src) == 2 for n in toposort(merged) if n.op is Ops.LOAD)


@relaxed
@given(st.data())
def test_pieces_compute_the_same(data: st.DataObject) -> None:
    """Splits at random points, with inner loops, reductions and guards of partial vectors."""
    rows, columns = data.draw(st.integers(2, 9)), data.draw(st.integers(2, 40))
    x = param(1, rows, columns)
    value = data.draw(st.sampled_from((
        x - x.reduce("MAX", (1,)).expand(x.shape), x.pad(((1, 0), (2, 3))), x.reduce("ADD", (1,)).reshape((rows,)),
        joined([x.flip((1,)), param(2, rows, 3)], 1))))
    root = sink(value)
    kernel, opts = optimized(root, ()), []
    for _ in range(data.draw(st.integers(1, 2))):
        loops = [r for r in kernel.parallel if range_size(r) > 2]
        if not loops:
            break
        r = data.draw(st.sampled_from(loops))
        cuts = data.draw(st.sets(st.integers(1, range_size(r) - 1), min_size=1, max_size=3))
        opts += [Opt(OptOps.CUT, kernel.ranges.index(r), tuple(sorted(cuts)))]
        kernel.apply(opts[-1])
    for r in kernel.parallel:
        if range_size(r) > 4 and kernel.may_have_lanes(r):
            opts += [Opt(OptOps.VECTOR, kernel.ranges.index(r), 4)]
            kernel.apply(opts[-1])
            break
    inputs = filled(root)
    want = expected(root, inputs)[0]
    for got in (run_graph(root, inputs, opts), run_on("PYTHON", root, inputs, opts), run_on("CPU", root, inputs, opts)):
        np.testing.assert_allclose(got[0], want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("points", [(), (0, 3), (3, 3), (5, 3), (9,), tuple(range(1, 300))])
def test_points_that_cut_nothing_off_are_refused(points: tuple[int, ...]) -> None:
    kernel = optimized(sink(param(1, 9 if len(points) < 9 else 999) + 1), ())
    before = kernel.sink, list(kernel.order)
    with pytest.raises(ArgumentError):
        kernel.apply(Opt(OptOps.CUT, 0, points))
    assert (kernel.sink, kernel.order) == before


def test_terms_of_a_sum_that_lie_apart_are_pieces_of_their_own() -> None:
    """The gradient of ``x[:, t]`` for many t: each row has one term, without a comparison at run time."""
    count, width = 30, 16
    terms = [(param(1 + t, 8, 1, width) * float(t + 1)).pad(((0, 0), (t, count - 1 - t), (0, 0))) for t in range(count)]
    total = terms[0]
    for t in terms[1:]:
        total = total + t
    program = compile_kernel(sink(total), Device["PYTHON:T3:V64"].renderer)
    assert program.opts[0] == Opt(OptOps.CUT, program.opts[0].axis, tuple(range(1, count)))
    assert sum(u.op is Ops.LOAD for u in program.uops) == sum(u.op is Ops.STORE for u in program.uops) == count
    assert not any(u.op is Ops.WHERE for u in program.uops)
    inputs = filled(sink(total))
    for device in ("PYTHON:T3:V64", "CPU"):
        np.testing.assert_array_equal(run_on(device, sink(total), inputs, None)[0], expected(sink(total), inputs)[0])


def test_a_sum_is_not_cut() -> None:
    kernel = optimized(sink(param(1, 9).reduce("ADD", (0,)).reshape(())), ())
    with pytest.raises(ArgumentError, match="parallel"):
        kernel.apply(Opt(OptOps.CUT, 0, (3,)))
    assert math.prod(range_size(r) for r in kernel.order) == 9


@pytest.mark.parametrize(("dtype", "lanes"), [(dtypes.float16, 32), (dtypes.int8, 64), (dtypes.float64, 8)])
def test_copies_of_narrow_elements_fill_whole_vectors(dtype: DType, lanes: int) -> None:
    parts = [UOp(Ops.PARAM, dtype, (), (n, (9, 150))) for n in (1, 2)]
    program = compile_kernel(sink(joined(parts, 1)), Device["PYTHON:T3:V64"].renderer)
    assert {u.src[2].dtype.count for u in program.uops if u.op is Ops.STORE} == {lanes}


def test_blocks_of_rows_and_columns_are_copies() -> None:
    parts = [joined([param(2 * n + 1, rows, 40), param(2 * n + 2, rows, 72)], 1) for n, rows in enumerate((50, 90))]
    root = sink(joined(parts, 0))
    program = compile_kernel(root, Device["PYTHON:T3:V64"].renderer)
    assert [o.op for o in program.opts].count(OptOps.CUT) == 2 and not program.serial
    loads = [u for u in program.uops if u.op is Ops.LOAD and len(u.src) == 2]
    assert len({u.src[0] for u in loads}) == 4
    np.testing.assert_array_equal(run_on("CPU", root, filled(root), None, 2)[0], expected(root, filled(root))[0])

"""The structure of linear programs: the position of each operation, and shared loops."""
from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.codegen.kernels import FAMILIES, apply_random
from tests.codegen.running import buffers, expected, optimized, run_linear, run_on
from tests.ir.test_printer import DOT_TABLE
from tinsmith.codegen.emit.linearize import Linearizer, linearize
from tinsmith.codegen.opt import Opt, OptOps
from tinsmith.codegen.transform.computed_operand import bind
from tinsmith.core.dtypes import DType, dtypes
from tinsmith.core.errors import ArgumentError
from tinsmith.ir import Op, Ops, UOp
from tinsmith.ir.algebra.bounds import bound_ranges
from tinsmith.ir.interpret.kernel import evaluate_kernel
from tinsmith.ir.structure import Role
from tinsmith.ir.text.printer import uop_table
from tinsmith.ir.verify import verify_kernel, verify_program


def param(number: int, *shape: int) -> UOp:
    return UOp(Ops.PARAM, dtypes.float32, (), (number, shape))


def program(*values: UOp, opts: Sequence[Opt] = ()) -> list[UOp]:
    return linearize(optimized(UOp(Ops.SINK, None, values), opts))


def count(lines: list[UOp], op: Op) -> int:
    return sum(u.op is op for u in lines)


def depth_of(lines: list[UOp], node: UOp) -> int:
    """Return the number of loops open at ``node``."""
    before = lines[: lines.index(node)]
    return count(before, Ops.RANGE) - count(before, Ops.ENDRANGE)


@pytest.mark.parametrize("family", FAMILIES)
def test_any_opts_give_well_formed_programs(family: str) -> None:
    @settings(max_examples=30, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def run(data: st.DataObject) -> None:
        kernel = optimized(data.draw(FAMILIES[family]).sink, ())
        apply_random(data.draw, kernel)
        verify_kernel(kernel.sink)
        verify_program(linearize(kernel))

    run()


@pytest.mark.parametrize("family", FAMILIES)
def test_places_of_copies_are_what_their_ranges_bound_one_by_one_make_them(family: str) -> None:
    @settings(max_examples=30, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def run(data: st.DataObject) -> None:
        kernel = optimized(data.draw(FAMILIES[family]).sink, ())
        apply_random(data.draw, kernel)
        lines = Linearizer(kernel)
        for place in [n.src[1] for n in kernel.nodes if n.op in (Ops.LOAD, Ops.STORE)]:
            for coords in itertools.islice(lines.all_coords(place.ranges), 40):
                one_by_one = place
                for r, v in coords:
                    one_by_one = bind(one_by_one, r, UOp.index(v))
                assert lines.at(place, coords) is one_by_one.simplify()

    run()


def test_a_place_inside_a_quotient_is_no_sum_of_steps() -> None:
    lines = Linearizer(optimized(UOp(Ops.SINK, None, (param(1, 6).alu(Ops.SQRT),)), ()))
    r = UOp.range(6, 7, Role.UPCAST)
    assert lines.affine(r * 4 + 3, (r,)) == (UOp.index(0), 3, [4])
    assert lines.affine(r // 4 + r, (r,)) is None
    assert [lines.at(r // 4 + r, ((r, v),)).arg for v in range(6)] == [0, 1, 2, 3, 5, 6]


def test_table_of_the_dot_product() -> None:
    a, b = (UOp(Ops.PARAM, dtypes.int32, (), (n, (2,))) for n in (1, 2))
    table = uop_table(program((a * b).reduce("ADD", (0,))))
    assert [line.rstrip() for line in table.splitlines()] == DOT_TABLE.splitlines()


def test_values_stand_in_the_outermost_loop_that_supplies_them() -> None:
    x, row = param(1, 5, 7), param(2, 5, 1)
    lines = program(x * row.expand((5, 7)) * row.expand((5, 7)).alu("SQRT"))
    (root,) = (u for u in lines if u.op is Ops.SQRT)
    (load,) = (u for u in lines if u.op is Ops.LOAD and u.src[0].arg == 2)
    assert depth_of(lines, root) == depth_of(lines, load) == 1
    (store,) = (u for u in lines if u.op is Ops.STORE)
    assert depth_of(lines, store) == 2


def test_independent_reductions_share_a_loop() -> None:
    x = param(2, 5, 7)
    lines = program(x.reduce("ADD", (1,)), x.reduce("MAX", (1,)))
    assert count(lines, Ops.RANGE) == 2
    assert count(lines, Ops.DEFINE_ACC) == 2
    assert count(lines, Ops.LOAD) == 1


def test_reductions_in_sequence_walk_the_row_again() -> None:
    x = param(1, 5, 7)
    centred = x - x.reduce("MAX", (1,)).expand((5, 7))
    lines = program((centred * centred).reduce("ADD", (1,)))
    assert count(lines, Ops.RANGE) == 3
    assert max(depth_of(lines, u) for u in lines if u.op is Ops.RANGE) == 1


def test_outputs_share_their_loops() -> None:
    x, y = param(2, 5, 7), param(3, 5, 7)
    lines = program(x + y, x * y)
    assert count(lines, Ops.RANGE) == 1  # both axes are walked as one
    assert count(lines, Ops.LOAD) == 2


def test_a_partial_iteration_is_peeled() -> None:
    x = param(1, 13)
    lines = program(x + x, opts=[Opt(OptOps.UPCAST, 0, 4)])
    assert count(lines, Ops.RANGE) == 1
    assert count(lines, Ops.STORE) == 5  # four in the loop, one for the rest
    assert not any(len(u.src) > 2 for u in lines if u.op is Ops.LOAD)


def test_unrolled_reductions_have_separate_accumulators() -> None:
    lines = program(param(1, 64).reduce("ADD", (0,)), opts=[Opt(OptOps.UNROLL, 0, 4)])
    assert count(lines, Ops.DEFINE_ACC) == 4


def test_lanes_of_a_reduction_are_combined_in_halves() -> None:
    lines = program(param(1, 64).reduce("ADD", (0,)), opts=[Opt(OptOps.VECTOR, 0, 8)])
    widths = [u.dtype.count for u in lines if u.op is Ops.GEP]
    assert widths == [4, 4, 2, 2, 1, 1]


def product(m: int = 8, k: int = 12, n: int = 10) -> UOp:
    a, b = param(1, m, 1, k).expand((m, n, k)), param(2, k, n).permute((1, 0)).reshape((1, n, k)).expand((m, n, k))
    return (a * b).reduce("ADD", (2,))


def test_a_hint_fetches_ahead_of_each_load() -> None:
    lines = program(product(), opts=[Opt(OptOps.VECTOR, 1, 4), Opt(OptOps.HINT, 1, 3)])
    fetched = [u for u in lines if u.op is Ops.PREFETCH]
    assert fetched and all(u.src[0].arg == 2 for u in fetched)
    for fetch in fetched:  # next to a load whose index is three rows less
        loads = [u for u in lines if u.op is Ops.LOAD and u.src[0] is fetch.src[0]]
        assert any(depth_of(lines, u) == depth_of(lines, fetch) for u in loads)


def test_a_rotated_load_is_carried_in_a_register() -> None:
    plain, rotated = (program(product(), opts=opts) for opts in ([], [Opt(OptOps.ROTATE, 0)]))
    assert count(rotated, Ops.DEFINE_ACC) == count(plain, Ops.DEFINE_ACC) + 1
    assert count(rotated, Ops.LOAD) == count(plain, Ops.LOAD) + 1  # the first, before the loop
    (sum_of,) = (u for u in rotated if u.op is Ops.MULADD)
    assert sum_of.src[0].op is Ops.DEFINE_ACC  # the reader takes what the last iteration loaded


@pytest.mark.parametrize("size", [8, 10, 11])
def test_neighbours_that_share_an_element_read_it_with_one_vector(size: int) -> None:
    pairs = param(2, 3, -(-size // 2), 1).expand((3, -(-size // 2), 2)).reshape((3, -(-size // 2) * 2))
    lines = program(param(1, 3, size) * pairs.shrink(((0, 3), (0, size))), opts=[Opt(OptOps.VECTOR, 1, 8)])
    loads = [u for u in lines if u.op is Ops.LOAD and u.src[0].arg == 2]
    assert [u.dtype.count for u in loads] == {8: [4], 10: [4, 1], 11: [4, 2]}[size]
    assert all(u.src[1].dtype.count == 1 for u in loads)


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64, dtypes.int16], ids=lambda d: d.name)
@pytest.mark.parametrize(("copies", "lanes"), [(3, 8), (4, 4), (4, 16), (5, 16), (7, 4), (10, 8), (16, 16)])
@pytest.mark.parametrize("device", ["PYTHON", "CPU", "CPU:C"])
def test_lanes_across_the_result_are_stored_in_blocks(device: str, copies: int, lanes: int, dtype: DType) -> None:
    """The rows of a tile are adjacent in the result and the lanes far apart; both run past the last full tile."""
    rows, columns, steps = 3 * copies - 1, 32, 6
    a = UOp(Ops.PARAM, dtype, (), (1, (rows, steps)))
    b = UOp(Ops.PARAM, dtype, (), (2, (columns, steps)))
    whole = (columns, rows, steps)
    product = b.reshape((columns, 1, steps)).expand(whole) * a.reshape((1, rows, steps)).expand(whole)
    total = product.reduce("ADD", (2,)).reshape((columns, rows))
    sink = UOp(Ops.SINK, None, (total + total.const_like(1),))
    opts = [Opt(OptOps.UPCAST, 1, copies), Opt(OptOps.VECTOR, 0, lanes)]
    inputs = {p: np.arange(math.prod(p.shape)).reshape(p.shape).astype(dtype.numpy) % 7 for p in (a, b)}
    (got,), (want,) = run_on(device, sink, inputs, opts), expected(sink, inputs)
    np.testing.assert_array_equal(got, want)
    places = [u.src[1] for u in linearize(optimized(sink, opts, device)) if u.op is Ops.STORE]
    assert any(p.dtype.count > 1 for p in places) is (copies - 1 < 4)  # the last tile is scattered


def test_a_walk_goes_through_bands() -> None:
    lines = program(product(), opts=[Opt(OptOps.WALK, 0, (1, 4))])
    assert [u.src[1].arg for u in lines if u.op is Ops.RANGE] == [2, 10, 4, 12]
    lines = program(product(), opts=[Opt(OptOps.WALK, 0, (1, 4, 1))])
    assert [u.src[1].arg for u in lines if u.op is Ops.RANGE] == [80, 12]


@pytest.mark.parametrize("opt", [Opt(OptOps.HINT, 0, 0), Opt(OptOps.HINT, 9, 1), Opt(OptOps.ROTATE, 5),
                                 Opt(OptOps.WALK, 0, (1, 3)), Opt(OptOps.WALK, 0, (0, 4)), Opt(OptOps.WALK, 0, 4)])
def test_opts_that_make_no_sense_are_refused(opt: Opt) -> None:
    with pytest.raises(ArgumentError):
        program(product(), opts=[opt])


def test_lines_depend_on_the_graph_alone() -> None:
    x = param(1, 9, 9)
    make = lambda: uop_table(program((x * x).reduce("ADD", (1,)), opts=[Opt(OptOps.UPCAST, 0, 2)]))  # noqa: E731
    assert make() == make()


@pytest.mark.parametrize("sizes", [(6, 4), (4, 6)])
def test_of_two_factors_the_one_with_fewer_copies_stays_in_registers(sizes: tuple[int, int]) -> None:
    m, n = sizes
    a, b = param(1, m, 9).reshape((m, 1, 9)).expand((m, n, 9)), param(2, n, 9).reshape((1, n, 9)).expand((m, n, 9))
    opts = [Opt(OptOps.UPCAST, 0, m), Opt(OptOps.UPCAST, 0, n)]
    lines = program((a * b).reduce("ADD", (2,)), opts=opts)
    many = [u for u in lines if u.op is Ops.LOAD and u.src[0].arg == 1 + (n > m)]
    used = [next(many.index(s) for s in u.src if s in many) for u in lines if u.op is Ops.MULADD]
    assert used == [value for value in range(6) for _ in range(4)], "each of the six values is used up before the next"


@pytest.mark.parametrize("steps", [2, 4])
def test_a_padded_reduction_multiplies_its_own_steps_alone(steps: int) -> None:
    m, n = 6, 4
    a, b = param(1, m, 9).reshape((m, 1, 9)).expand((m, n, 9)), param(2, n, 9).reshape((1, n, 9)).expand((m, n, 9))
    opts = [Opt(OptOps.UPCAST, 0, m), Opt(OptOps.UPCAST, 0, n), Opt(OptOps.UNROLL, 0, steps)]
    lines = program((a * b).reduce("ADD", (2,)), opts=opts)
    assert count(lines, Ops.MULADD) == (steps + 1) * m * n, "a loop's iteration, and the one step behind it"
    assert not any(u.op in (Ops.ADD, Ops.MUL) and u.dtype.is_float for u in lines)
    many = [u for u in lines if u.op is Ops.LOAD and u.src[0].arg == 1]
    used = [next(many.index(s) for s in u.src if s in many) for u in lines if u.op is Ops.MULADD]
    assert used[: m * n] == [value for value in range(m) for _ in range(n)], "each value is used up before the next"


def test_a_sum_of_nothing_has_a_loop_of_no_steps() -> None:
    lines = program((param(1, 2, 1, 0).expand((2, 3, 0)) * param(2, 1, 3, 0).expand((2, 3, 0))).reduce("ADD", (2,)))
    assert all(r.src[0].arg == 0 for r in lines if r.op is Ops.RANGE)


@pytest.mark.parametrize("opts", [
    (), [Opt(OptOps.UPCAST, 0, 3)], [Opt(OptOps.UPCAST, 0, 4), Opt(OptOps.UNROLL, 1, 4)], [Opt(OptOps.VECTOR, 0, 4)],
    [Opt(OptOps.VECTOR, 1, 4)], [Opt(OptOps.UNROLL, 1, 2)], [Opt(OptOps.UPCAST, 0, 2), Opt(OptOps.VECTOR, 1, 8)]],
    ids=str)
def test_accumulators_begin_at_a_sums_start(opts: Sequence[Opt]) -> None:
    x, bias = param(1, 9, 21), param(2, 9)
    sink = UOp(Ops.SINK, None, (x.reduce("ADD", (1,)).reshape((9,)) + bias,))
    inputs = {x: np.arange(9 * 21, dtype=np.float32).reshape(9, 21), bias: np.arange(9, dtype=np.float32) * 1000}
    kernel = optimized(sink, opts)
    (store,) = kernel.stores
    (fold,) = (s for s in store.src[2].src if s.op is Ops.FOLD)
    (load,) = (s for s in store.src[2].src if s is not fold)
    kernel.sink = kernel.sink.substitute({store.src[2]: fold.replace(src=(*fold.src, load))})
    verify_kernel(kernel.sink)
    arrays = buffers(sink, inputs)
    evaluate_kernel(kernel.sink, arrays)
    found, lines = run_linear(kernel, sink, inputs)
    for out in (arrays[0], found[0]):
        np.testing.assert_array_equal(out, expected(sink, inputs)[0])
    if Role.VECTOR not in {r.arg[1] for r in bound_ranges(fold)}:
        begun = {u.src[0].op for u in lines if u.op is Ops.DEFINE_ACC}
        assert Ops.LOAD in begun or Ops.VECTORIZE in begun

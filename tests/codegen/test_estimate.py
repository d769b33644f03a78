"""The cost model: what it counts, and relations between its terms that hold for every kernel."""
from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.codegen.kernels import Case, kernels
from tinsmith.codegen.compile_kernel import begin, choose
from tinsmith.codegen.decompose.decompose import decompose, expand
from tinsmith.codegen.kernel import Kernel
from tinsmith.codegen.lower.lower import lower
from tinsmith.codegen.lower.normalize import normalize
from tinsmith.codegen.opt import Opt, OptOps
from tinsmith.codegen.planner.gpu.bandwidth import transpose_opts
from tinsmith.codegen.planner.roofline import Machine, cycles, default_machine, estimate, unit_peak
from tinsmith.codegen.planner.work import transcendentals, work_of
from tinsmith.codegen.render.cuda import cuda_target
from tinsmith.core.dtypes import DType, dtypes
from tinsmith.ir import Ops, UOp
from tinsmith.target.target import Target

TARGET = Target("text", vector_bytes=64, vector_registers=32, threads=2)
MACHINE = default_machine(TARGET)


def param(number: int, shape: tuple[int, ...], dtype: DType = dtypes.float32) -> UOp:
    return UOp(Ops.PARAM, dtype, (), (number, shape))


def kernel(*values: UOp) -> Kernel:
    return Kernel(decompose(normalize(lower(UOp(Ops.SINK, None, values)))))


def matmul(m: int, n: int, k: int) -> UOp:
    x = param(1, (m, k)).reshape((m, 1, k)).expand((m, n, k))
    y = param(2, (k, n)).permute((1, 0)).reshape((1, n, k)).expand((m, n, k))
    return (x * y).reduce("ADD", (2,))


def test_a_contraction_reads_each_operand_once() -> None:
    work = work_of(kernel(matmul(64, 32, 16)))
    assert (work.operations, work.bytes_read, work.bytes_written) == (
        2 * 64 * 32 * 16, 4 * (64 * 16 + 16 * 32), 4 * 64 * 32)


def test_a_slice_reads_what_it_reaches() -> None:
    work = work_of(kernel(param(1, (1000,)).shrink(((10, 20),)) + 1))
    assert (work.operations, work.bytes_read, work.bytes_written) == (10, 40, 40)


def test_reading_twice_is_one_trip_through_memory() -> None:
    x = param(1, (100,))
    assert work_of(kernel(x + x.flip((0,)))).bytes_read == 400


def test_segments_have_as_many_steps_together_as_the_rows() -> None:
    """A sum over segments of sorted rows, which begin at the entries of a list, on a grid of one block per segment."""
    places, steps, width = 300, 1000, 64
    starts, rows, cube = param(1, (places + 1,), dtypes.int32), param(2, (steps, width)), (places, steps, width)
    first, last = (starts.shrink(((k, k + places),)).reshape((places, 1, 1)).expand(cube) for k in (0, 1))
    step = UOp.iota(steps, dtypes.int32).reshape((1, steps, 1)).expand(cube)
    mine = step.lt(first).logical_not() & step.lt(last)
    total = mine.where(rows.reshape((1, steps, width)).expand(cube), 0).reduce("ADD", (1,))
    found = begin(UOp(Ops.SINK, None, (total,)), cuda_target("sm_90a", 132))
    assert work_of(found).operations == 2 * steps * width  # a selection and an addition
    assert work_of(found).bytes_read == 4 * (places + 1 + steps * width)


def test_transcendentals_are_counted_before_they_are_written_out() -> None:
    lowered = normalize(lower(UOp(Ops.SINK, None, (param(1, (8, 4)).alu("EXP").reduce("ADD", (1,)).alu("LOG"),))))
    assert transcendentals(lowered) == 32 + 8
    assert transcendentals(expand(lowered)) == 0


def test_lanes_and_workers_make_arithmetic_faster() -> None:
    value = param(1, (1 << 20,)).alu("EXP")
    plain, lanes, both = kernel(value), kernel(value), kernel(value)
    for k in (lanes, both):
        k.apply(Opt(OptOps.VECTOR, 0, 16))
    both.apply(Opt(OptOps.THREAD, 0))
    times = [estimate(k, MACHINE).arithmetic for k in (plain, lanes, both)]
    assert times[0] / times[1] == pytest.approx(16) and times[1] / times[2] == pytest.approx(2)
    assert estimate(both, MACHINE).launch > estimate(lanes, MACHINE).launch


def test_one_accumulator_waits_for_its_additions() -> None:
    value = param(1, (1 << 16,)).reduce("ADD", (0,))
    plain, many = kernel(value), kernel(value)
    many.apply(Opt(OptOps.UNROLL, 0, 8))
    assert estimate(plain, MACHINE).arithmetic > 3 * estimate(many, MACHINE).arithmetic


def test_an_operand_that_outgrows_the_cache_is_read_again() -> None:
    """A matrix larger than L2, read row by row: without tiles it comes from memory again for every row."""
    k = kernel(matmul(8, 2048, 2048))
    e = estimate(k, MACHINE)
    assert e.memory * MACHINE.level(e.work.bytes).one > 6 * e.work.bytes
    assert estimate(kernel(matmul(8, 64, 64)), MACHINE).memory * MACHINE.level(1).one == pytest.approx(
        work_of(kernel(matmul(8, 64, 64))).bytes)


@pytest.mark.parametrize("size", [128, 512])
def test_the_chosen_opts_are_expected_to_be_faster_than_none(size: int) -> None:
    plain, chosen = kernel(matmul(size, size, size)), kernel(matmul(size, size, size))
    choose(chosen, TARGET)
    assert estimate(chosen, MACHINE).seconds < estimate(plain, MACHINE).seconds / 4


@settings(max_examples=60, deadline=None)
@given(kernels, st.booleans())
def test_no_estimate_beats_the_roofline(case: Case, opts: bool) -> None:
    k = Kernel(decompose(normalize(lower(case.sink))))
    work = work_of(k)
    if opts:
        choose(k, TARGET)
    e = estimate(k, MACHINE, work)
    assert 0 <= e.roofline <= e.seconds * (1 + 1e-9)
    assert min(e.memory, e.arithmetic, e.launch) >= 0 and e.bound in ("memory", "arithmetic", "launch")
    assert work.bytes_written > 0


GRID = cuda_target("sm_90a", 132)


def on_grid(value: UOp, *opts: Opt) -> Kernel:
    k = begin(UOp(Ops.SINK, None, (value,)), GRID)
    for opt in opts:
        k.apply(opt)
    return k


def test_threads_apart_in_memory_take_a_piece_of_it_each() -> None:
    """Threads for 32 rows or for 32 columns: across rows 4 of the 32 bytes of each sector are used."""
    value = param(1, (4096, 4096)) + param(2, (4096, 1)).expand((4096, 4096))
    beside, apart = (cycles(on_grid(value, Opt(OptOps.LOCAL, axis, 32))) for axis in (1, 0))
    assert sum(apart.values()) > 3 * sum(beside.values())


def test_few_threads_wait_for_what_they_load() -> None:
    """One thread per sum loads 4096 elements, few at a time; 128 threads share a sum, with eight loads in flight."""
    value = param(1, (512, 4096)).reduce("ADD", (1,))
    alone, shared, copies = (sum(cycles(on_grid(value, *opts)).values()) for opts in (
        [Opt(OptOps.LOCAL, 0, 32)], [Opt(OptOps.GROUP, 1, 128)], [Opt(OptOps.GROUP, 1, 128), Opt(OptOps.UNROLL, 1, 8)]))
    assert alone > 20 * shared and shared > copies


def test_the_cores_of_a_grid_share_out_its_blocks() -> None:
    rows = [param(1, (n, 1 << 14)).reduce("MAX", (1,)) for n in (2, 132, 132 * 256)]
    one, full, more = (sum(cycles(on_grid(value, Opt(OptOps.GROUP, 1, 32))).values()) for value in rows)
    assert one == full and more > 10 * full


def test_threads_fill_a_stage_along_memory_together() -> None:
    value = param(1, (4096, 4096)).permute((1, 0))
    tile = on_grid(value)
    assert transpose_opts(tile, GRID)
    assert cycles(tile)["memory"] < 0.5 * cycles(on_grid(value, Opt(OptOps.LOCAL, 1, 128)))["memory"]


def test_a_machine_survives_being_text() -> None:
    assert Machine.loads(MACHINE.dumps()) == MACHINE
    for text in ("", "[]", "{}", "1", MACHINE.dumps().replace('"peaks"', '"peak"')):
        with pytest.raises(ValueError):
            Machine.loads(text)


@pytest.mark.parametrize("arch, a_cycle", [("sm_90a", 4096), ("sm_80", 1024)])
def test_units_of_a_multiprocessor_bound_its_products(arch: str, a_cycle: int) -> None:
    """16-bit operations per cycle: four warp-level units, or all four together for a warp-group tile of any width."""
    target = cuda_target(arch)
    machine = default_machine(target)
    cycles_of_all = machine.peak(dtypes.float32).all / (2 * target.blocks.fma)
    widest = max(u.threads for u in target.units)
    units = [u for u in target.units if u.threads == widest and u.a.itemsize == 2]
    assert units and {round(unit_peak(u, target, machine).all / cycles_of_all) for u in units} == {a_cycle}
    assert machine.size == "132 multiprocessors"


@pytest.mark.parametrize("axis", [0, 1])
def test_loops_side_by_side_are_not_nested(axis: int) -> None:
    """The parts of a concatenation, once its loop is cut where they meet."""
    sides = [(0, 64), (64, 0)]
    parts = (param(n + 1, (64, 64)).pad(tuple(side if a == axis else (0, 0) for a in range(2))) for n, side in
             enumerate(sides))
    joined = kernel(next(parts) + next(parts))
    whole = estimate(joined, MACHINE).arithmetic
    joined.apply(Opt(OptOps.CUT, axis, (64,)))
    assert 0 < estimate(joined, MACHINE).arithmetic <= whole

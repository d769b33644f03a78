"""Barriers are necessary and sufficient: the interpreter finds a race after the removal of any one of them."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from tests.codegen.running import Array, buffers, each_is_needed, expected, linearize_on, ran
from tests.codegen.structures import Case, of_blocks
from tests.codegen.test_matrix import close, product
from tinsmith.backend.device import Device
from tinsmith.codegen.compile_kernel import begin, choose
from tinsmith.codegen.emit.barriers import needed_barriers
from tinsmith.codegen.emit.linearize import linearize
from tinsmith.codegen.render.cuda import cuda_target
from tinsmith.codegen.render.metal import metal_target
from tinsmith.codegen.render.wgsl import wgsl_target
from tinsmith.core.dtypes import dtypes
from tinsmith.core.errors import KernelError
from tinsmith.ir import Op, Ops, UOp
from tinsmith.ir.text.printer import uop_table

TARGETS = {name: replace(target, cores=4, resident=64) for name, target in (
    ("cuda", cuda_target()), ("metal", metal_target()), ("wgsl", wgsl_target()))}  # with warps; units; neither


@cache
def chosen(target: str) -> list[tuple[str, list[UOp], Case]]:
    """The programs of all block structures that have barriers or shuffles."""
    found = []
    for case in of_blocks():
        kernel = begin(case[1], TARGETS[target])
        choose(kernel, TARGETS[target])
        program = linearize(kernel)
        if any(u.op in (Ops.BARRIER, Ops.SHUFFLE) for u in program):
            found.append((case[0], program, case))
    return found


def inputs_of(case: Case) -> list[Array]:
    """Return distinct values, so that a wrong one is detected."""
    _, sink, inputs = case
    random = np.random.default_rng(3)
    return buffers(sink, {p: random.normal(size=p.shape).astype(p.dtype.numpy) for p in inputs})


def positions(program: Sequence[UOp], op: Op) -> list[int]:
    return [n for n, u in enumerate(program) if u.op is op]


@pytest.mark.parametrize("target", TARGETS)
def test_no_structure_has_a_barrier_too_many(target: str) -> None:
    taken = 0
    for name, program, case in chosen(target):
        arrays = inputs_of(case)
        right = ran(program, arrays)
        for at in positions(program, Ops.BARRIER):
            with pytest.raises(KernelError, match="race: ") as raised:
                ran([*program[:at], *program[at + 1 :]], arrays)
            assert "tmp" in str(raised.value), name
            taken += 1
        for got, want in zip(ran(program, arrays, seed=0), right, strict=True):
            np.testing.assert_array_equal(got, want)
    assert taken >= 12


@pytest.mark.parametrize("target", TARGETS)
def test_structures_of_blocks_compute_the_same(target: str) -> None:
    for _, program, (_, sink, inputs) in chosen(target):
        got = ran(program, buffers(sink, inputs), seed=2)
        for ours, want in zip(got, expected(sink, inputs)):
            close(ours, want)


def test_a_shuffle_of_other_threads_is_noticed() -> None:
    taken = 0
    for name, program, case in chosen("cuda"):
        arrays = inputs_of(case)
        right = ran(program, arrays)
        for at in positions(program, Ops.SHUFFLE) if name.startswith(("two sums", "running")) else ():
            u = program[at]
            other = u.replace(arg=u.arg * 2 if u.arg == 1 else u.arg // 2)
            got = ran([x.substitute({u: other}) for x in program], arrays)
            assert any(not np.array_equal(*pair, equal_nan=True) for pair in zip(got, right)), (name, at)
            taken += 1
    assert taken >= 20


def test_threads_beside_columns_shuffle_those_of_their_column() -> None:
    """They read one another's sums from local memory one after the other: 17 us for 768 columns, now 3."""
    for name, columns, warps in (("sum (512, 32) (0,)", 2, 1), ("sum (1024, 128) (0,)", 8, 2)):
        program = next(p for n, p, _ in chosen("cuda") if n == name)
        assert min(u.arg for u in program if u.op is Ops.SHUFFLE) == columns
        words = [u for u in program if u.op is Ops.LOAD and u.src[0].op is Ops.DEFINE_LOCAL]
        assert len(words) == (warps if warps > 1 else 0)


def test_a_guard_of_a_store_to_local_memory_is_needed() -> None:
    """Without its guard a second thread stores to the same address, or one stores out of bounds."""
    taken = 0
    for _, program, case in chosen("cuda"):
        for at, u in enumerate(program):
            if u.op is Ops.STORE and u.src[0].op is Ops.DEFINE_LOCAL and len(u.src) == 4:
                free = u.replace(src=u.src[:3])
                with pytest.raises(KernelError, match=r"race: |, which has .* elements, is written"):
                    ran([*program[:at], free, *program[at + 1 :]], inputs_of(case))
                taken += 1
    assert taken >= 5


# *** rings ***

ORDERS = (Ops.BARRIER, Ops.ARRIVE, Ops.ASYNC_COPY, Ops.WAIT, Ops.FENCE, Ops.COMMIT, Ops.DRAIN)


def test_all_that_a_ring_waits_for_is_needed() -> None:
    """Seven steps through a ring of four slots: each copy, wait, unit step and drain is removed once."""
    sink, inputs = product(128, 448, 256, dtypes.float16, dtypes.float32, "", False, 1)
    kernel = linearize_on("PYTHON:G256:B232448", sink)
    choose(kernel, Device["PYTHON:G256:B232448"].renderer.target)
    found = each_is_needed(linearize(kernel), inputs_of(("", sink, inputs)), lambda u: u.op in ORDERS)
    assert len(found) >= 24 and set(found) == set(ORDERS)


# *** the pass ***

NEAR = [UOp(Ops.DEFINE_LOCAL, dtypes.float32.ptr(), (), (f"tmp{n}", 64)) for n in (0, 1)]
OUT, THREAD = UOp(Ops.DEFINE_GLOBAL, dtypes.float32.ptr(), (), 0), UOp(Ops.SPECIAL, dtypes.index, (), ("lidx0", 64))
FILL = [UOp(Ops.STORE, None, (m, THREAD, UOp.const(dtypes.float32, 1))) for m in NEAR]
USE = [UOp(Ops.LOAD, dtypes.float32, (m, UOp.index(0))) for m in NEAR]


def barrier(number: int) -> UOp:
    return UOp(Ops.BARRIER, dtypes.void, (), number)


def loop(end: UOp) -> tuple[UOp, UOp]:
    line = UOp(Ops.RANGE, dtypes.index, (UOp.index(0), end), (0, False))
    return line, UOp(Ops.ENDRANGE, None, (line,))


def left(lines: Sequence[UOp]) -> list[int]:
    return [u.arg for u in needed_barriers(lines) if u.op is Ops.BARRIER]


BEFORE = """\
   0 UOps.RANGE          : dtypes.int                ['0', '4']                       (0, False)
   1 UOps.BARRIER        :                           []                               0
   2 UOps.STORE          :                           ['DEFINE_LOCAL#tmp0', 'lidx0', '1.0'] None
   3 UOps.BARRIER        :                           []                               1
   4 UOps.BARRIER        :                           []                               2
   5 UOps.STORE          :                           ['DEFINE_LOCAL#tmp1', 'lidx0', '1.0'] None
   6 UOps.BARRIER        :                           []                               3
   7 UOps.LOAD           : dtypes.float              ['DEFINE_LOCAL#tmp0', '0']       None
   8 UOps.LOAD           : dtypes.float              ['DEFINE_LOCAL#tmp1', '0']       None
   9 UOps.ENDRANGE       :                           [0]                              None"""


def test_two_operands_are_filled_between_two_barriers() -> None:
    begin, end = loop(UOp.index(4))
    lines = [begin, barrier(0), FILL[0], barrier(1), barrier(2), FILL[1], barrier(3), *USE, end]
    assert uop_table(lines) == BEFORE
    kept = [n for n in BEFORE.splitlines() if not n.rstrip().endswith((" 1", " 2"))]
    assert [row[5:] for row in uop_table(needed_barriers(lines)).splitlines()] == [row[5:] for row in kept]


def test_a_barrier_in_a_loop_that_may_not_run_orders_nothing_behind_it() -> None:
    variable = UOp(Ops.DEFINE_GLOBAL, dtypes.index, (), ("n", 0, 9))
    for size, wanted in ((variable, [0]), (UOp.index(4), [1])):
        begin, end = loop(size)
        assert left([FILL[0], barrier(0), begin, barrier(1), USE[1], end, USE[0]]) == wanted


def test_the_first_filling_waits_for_nobody() -> None:
    assert left([barrier(0), FILL[0], barrier(1), USE[0]]) == [1]
    assert left([barrier(0), FILL[0], barrier(1), USE[0], barrier(2), FILL[0], barrier(3), USE[0]]) == [1, 2, 3]


def test_a_condition_may_hide_a_barrier() -> None:
    branch = UOp(Ops.IF, None, (UOp.const(dtypes.bool, True),))
    assert left([FILL[0], branch, barrier(0), UOp(Ops.ENDIF, None, (branch,)), barrier(1), USE[0]]) == [1]


def test_what_is_accessed_in_other_ways_keeps_its_barriers() -> None:
    fetched = UOp(Ops.PREFETCH, None, (NEAR[0], UOp.index(0)))
    assert left([fetched, barrier(0), FILL[0], barrier(1), barrier(2), USE[0]]) == [0, 1, 2]

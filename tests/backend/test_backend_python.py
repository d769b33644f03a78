"""The PYTHON device: hand-built programs, bounds checks, warps and barriers, options."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tinsmith.backend.device import Device
from tinsmith.backend.python.device import NAMES, launch
from tinsmith.backend.python.memory import CheckedMemory
from tinsmith.backend.python.render import PythonRenderer
from tinsmith.core.dtypes import DType, dtypes
from tinsmith.core.errors import DeviceError, KernelError
from tinsmith.ir import Ops, UOp
from tinsmith.ir.verify import verify_program
from tinsmith.target.target import Target

Array = np.ndarray[Any, Any]
index = dtypes.index


def define(number: int, dtype: DType = dtypes.float32) -> UOp:
    return UOp(Ops.DEFINE_GLOBAL, dtype.ptr(), (), number)


def vector(dtype: DType, *values: Any) -> UOp:
    return UOp(Ops.VECTORIZE, dtype.vec(len(values)), tuple(UOp.const(dtype, v) for v in values))


def run(program: Sequence[UOp], *arrays: Array, threads: int = 1, verify: bool = True) -> None:
    """Render, compile and run a program on arrays, which are written in place."""
    lines = list(dict.fromkeys(c for u in program for c in u.src if c.op is Ops.CONST))
    first = [u for u in program if u.op is Ops.DEFINE_GLOBAL]
    if verify:
        verify_program([*first, *lines, *(u for u in program if u.op is not Ops.DEFINE_GLOBAL)])
    module: dict[str, Any] = dict(NAMES)
    exec(PythonRenderer(Target("python")).render("kernel", program), module)
    launch("kernel", module, [CheckedMemory("kernel", f"data{n}", a) for n, a in enumerate(arrays)], threads)


def test_a_vector_is_loaded_from_one_place_on() -> None:
    out, x = define(0), define(1)
    value = UOp(Ops.LOAD, dtypes.float32.vec(4), (x, UOp.index(2)))
    got = np.zeros(4, np.float32)
    run([out, x, value, UOp(Ops.STORE, None, (out, UOp.index(0), value))], got, np.arange(6, dtype=np.float32))
    assert got.tolist() == [2, 3, 4, 5]


def test_gathered_lanes_with_conditions() -> None:
    out, x = define(0), define(1)
    places, ok = vector(index, 3, 99, 0, -1), vector(dtypes.bool, True, False, True, False)
    value = UOp(Ops.LOAD, dtypes.float32.vec(4), (x, places, ok))
    got = np.full(4, 7, np.float32)
    program = [out, x, places, ok, value, UOp(Ops.STORE, None, (out, UOp.index(0), value))]
    run(program, got, np.arange(1, 5, dtype=np.float32))
    assert got.tolist() == [4, 0, 1, 0]


def test_scattered_lanes_with_conditions() -> None:
    out = define(0)
    places, ok = vector(index, 3, 99, 0), vector(dtypes.bool, True, False, True)
    got = np.zeros(4, np.float32)
    value = vector(dtypes.float32, 1.0, 2.0, 3.0)
    run([out, places, ok, value, UOp(Ops.STORE, None, (out, places, value, ok))], got)
    assert got.tolist() == [3, 0, 0, 1]


def test_lanes_are_spread_joined_and_taken() -> None:
    out, x = define(0), define(1)
    pair = UOp(Ops.LOAD, dtypes.float32.vec(2), (x, UOp.index(0)))
    four = UOp(Ops.VECTORIZE, dtypes.float32.vec(4), (pair,))
    part = UOp(Ops.GEP, dtypes.float32.vec(2), (four,), (3, 0))
    both = UOp(Ops.VECTORIZE, dtypes.float32.vec(4), (part, pair))
    got = np.zeros(4, np.float32)
    run([out, x, pair, four, part, both, UOp(Ops.STORE, None, (out, UOp.index(0), both))], got,
        np.array([1, 2], np.float32))
    assert got.tolist() == [2, 1, 1, 2]


@pytest.mark.parametrize(("place", "verb"), [(4, "read"), (-1, "read")])
def test_a_load_outside_is_an_error(place: int, verb: str) -> None:
    out, x = define(0), define(1)
    value = UOp(Ops.LOAD, dtypes.float32, (x, UOp.index(place)))
    with pytest.raises(KernelError, match=rf"index {place} of data1, which has 4 elements, is {verb}"):
        run([out, x, value, UOp(Ops.STORE, None, (out, UOp.index(0), value))], np.zeros(4), np.zeros(4))


def test_a_store_outside_is_an_error() -> None:
    out, value = define(0), vector(dtypes.float32, 1.0, 2.0)
    with pytest.raises(KernelError, match="index 2 of data0, which has 2 elements, is written"):
        run([out, value, UOp(Ops.STORE, None, (out, UOp.index(1), value))], np.zeros(2, np.float32))


def test_local_memory_is_checked_and_holds_rubbish_at_first() -> None:
    out, near = define(0), UOp(Ops.DEFINE_LOCAL, dtypes.float32.ptr(), (), ("tmp0", 4))
    value = UOp(Ops.LOAD, dtypes.float32, (near, UOp.index(1)))
    got = np.zeros(1, np.float32)
    run([out, near, value, UOp(Ops.STORE, None, (out, UOp.index(0), value))], got)
    assert got[0] != 0
    beyond = UOp(Ops.LOAD, dtypes.float32, (near, UOp.index(4)))
    with pytest.raises(KernelError, match="index 4 of tmp0, which has 4 elements, is read"):
        run([out, near, beyond, UOp(Ops.STORE, None, (out, UOp.index(0), beyond))], got)


def test_an_accumulator_in_a_loop() -> None:
    out, x = define(0, dtypes.int32), define(1, dtypes.int32)
    loop = UOp(Ops.RANGE, index, (UOp.index(0), UOp.index(5)), (0, True))
    acc = UOp(Ops.DEFINE_ACC, dtypes.int32, (UOp.const(dtypes.int32, 10), loop), 0)
    total = acc + UOp(Ops.LOAD, dtypes.int32, (x, loop))
    phi = UOp(Ops.PHI, None, (acc, total))
    got = np.zeros(1, np.int32)
    run([out, x, acc, loop, total.src[1], total, phi, UOp(Ops.ENDRANGE, None, (loop,)),
         UOp(Ops.STORE, None, (out, UOp.index(0), phi))], got, np.arange(5, dtype=np.int32))
    assert got[0] == 20


def test_workers_share_the_work() -> None:
    out = define(0, dtypes.int32)
    tid, count = (UOp(Ops.SPECIAL, index, (), name) for name in ("tid", "nthreads"))
    value = (count * 10 + tid).cast(dtypes.int32)
    got = np.zeros(3, np.int32)
    steps = [count * 10, count * 10 + tid, value]
    run([out, tid, count, *steps, UOp(Ops.STORE, None, (out, tid, value))], got, threads=3)
    assert got.tolist() == [30, 31, 32]


# *** blocks of threads ***


def lane(size: int, name: str = "lidx0") -> UOp:
    return UOp(Ops.SPECIAL, index, (), (name, size))


def reversed_through_local_memory(size: int) -> list[UOp]:
    """out[i] = near[size-1-i] where near[i] = i, written by other threads."""
    out, thread = define(0, dtypes.int32), lane(size)
    near = UOp(Ops.DEFINE_LOCAL, dtypes.int32.ptr(), (), ("tmp0", size))
    number, mirror = thread.cast(dtypes.int32), UOp.index(size - 1) - thread
    value = UOp(Ops.LOAD, dtypes.int32, (near, mirror))
    return [out, thread, near, number, UOp(Ops.STORE, None, (near, thread, number)), UOp(Ops.BARRIER, dtypes.void),
            mirror, value, UOp(Ops.STORE, None, (out, thread, value))]


@pytest.mark.parametrize("size", [1, 8, 32, 33, 100])
def test_warps_meet_at_a_barrier(size: int) -> None:
    got = np.zeros(size, np.int32)
    run(reversed_through_local_memory(size), got)
    assert got.tolist() == list(range(size))[::-1]


def test_a_block_has_two_axes_and_a_grid_many_blocks() -> None:
    out, x, y, block = define(0, dtypes.int32), lane(3), lane(2, "lidx1"), lane(4, "gidx0")
    place = block * 6 + y * 3 + x
    value = place.cast(dtypes.int32)
    steps = [block * 6, y * 3, block * 6 + y * 3, place, value]
    got = np.zeros(24, np.int32)
    run([out, x, y, block, *steps, UOp(Ops.STORE, None, (out, place, value))], got)
    assert got.tolist() == list(range(24))


def in_condition(limit: int, *body: UOp) -> list[UOp]:
    thread = lane(64)
    condition = thread.lt(limit)
    branch = UOp(Ops.IF, None, (condition,))
    return [define(0, dtypes.int32), thread, condition, branch, *body, UOp(Ops.ENDIF, None, (branch,))]


def test_threads_of_a_warp_part_ways() -> None:
    thread = lane(64)
    got = np.zeros(64, np.int32)
    value = UOp.const(dtypes.int32, 1)
    run(in_condition(10, UOp(Ops.STORE, None, (define(0, dtypes.int32), thread, value))), got)
    assert got.tolist() == [1] * 10 + [0] * 54


def test_a_barrier_that_some_threads_miss_is_a_deadlock() -> None:
    with pytest.raises(KernelError, match="deadlock: BARRIER 0 is executed by only some threads"):
        run(in_condition(10, UOp(Ops.BARRIER, dtypes.void)), np.zeros(64, np.int32))


def test_a_barrier_that_some_warps_miss_is_a_deadlock() -> None:
    with pytest.raises(KernelError, match="deadlock: warp 0 waits at BARRIER 0; warp 1 has finished"):
        run(in_condition(32, UOp(Ops.BARRIER, dtypes.void)), np.zeros(64, np.int32))


def test_a_loop_bound_is_the_same_for_all_threads() -> None:
    thread = lane(4)
    loop = UOp(Ops.RANGE, index, (UOp.index(0), thread), (0, False))
    with pytest.raises(KernelError, match="uniform across a warp"):
        run([define(0), thread, loop, UOp(Ops.ENDRANGE, None, (loop,))], np.zeros(4, np.float32))


# *** the device ***


def test_options_are_part_of_the_name() -> None:
    assert Device["PYTHON"].renderer.target.vector_bytes == 16
    assert Device["PYTHON:0:V64"].renderer.target.vector_bytes == 64
    assert Device["PYTHON:1:T3:V32"].renderer.target.threads == 3
    with pytest.raises(DeviceError, match="PYTHON has no option 'X'"):
        Device["PYTHON:X"]

"""The race-detecting interpreter: races, reads of uninitialized local memory, deadlocks, random warp and block
orders."""
from __future__ import annotations

import numpy as np
import pytest

from tests.backend.test_backend_python import define, in_condition, lane, run
from tinsmith import Tensor
from tinsmith.backend.python.memory import Clock, RaceDetector
from tinsmith.backend.python.warps import Barrier, Engine, ThreadBlock, Warp
from tinsmith.codegen.emit import linearize
from tinsmith.core.dtypes import DType, dtypes
from tinsmith.core.errors import KernelError
from tinsmith.ir import Ops, UOp

index = dtypes.index
BARRIER = UOp(Ops.BARRIER, dtypes.void)


def near(size: int, name: str = "tmp0") -> UOp:
    return UOp(Ops.DEFINE_LOCAL, dtypes.int32.ptr(), (), (name, size))


def put(memory: UOp, place: UOp, value: UOp | int) -> UOp:
    return UOp(Ops.STORE, None, (memory, place, UOp.const(dtypes.int32, value) if isinstance(value, int) else value))


def get(memory: UOp, place: UOp) -> UOp:
    return UOp(Ops.LOAD, dtypes.int32, (memory, place))


def reversing(size: int, *middle: UOp) -> list[UOp]:
    """out[i] = near[size-1-i] where near[i] = i, written by other threads."""
    out, thread, memory = define(0, dtypes.int32), lane(size), near(size)
    number, mirror = thread.cast(dtypes.int32), UOp.index(size - 1) - thread
    return [out, thread, memory, number, put(memory, thread, number), *middle, mirror, get(memory, mirror),
            put(out, thread, get(memory, mirror))]


@pytest.mark.parametrize("size", [2, 32, 64])
def test_reading_what_another_thread_writes_is_a_race(size: int) -> None:
    with pytest.raises(KernelError) as raised:
        run(reversing(size), np.zeros(size, np.int32))
    told = str(raised.value)
    assert told.startswith("[E051] kernel: race: thread ")
    assert f"(LOAD tmp0[{size - 1}-lidx0])" in told
    assert "(STORE tmp0[lidx0])" in told
    assert "tmp0[" in told.split("race: ")[1].split("(")[0]
    run(reversing(size, BARRIER), np.zeros(size, np.int32))


def test_writing_over_what_another_thread_reads_is_a_race() -> None:
    again = put(near(64), UOp.index(63) - lane(64), 5)
    body = reversing(64, BARRIER)
    run([*body, BARRIER, again], np.zeros(64, np.int32))
    other = put(near(64), lane(64), 5)
    with pytest.raises(KernelError, match=r"race: thread \d+ .* tmp0\[\d+\] .*STORE tmp0\[lidx0\]\)"):
        run([*body, other], np.zeros(64, np.int32))
    run([*body, again], np.zeros(64, np.int32))  # each thread over what it has read itself


def test_two_threads_that_write_one_element_of_local_memory_race() -> None:
    body = [define(0), lane(8), near(4), put(near(4), UOp.index(3), 1)]
    with pytest.raises(KernelError, match=r"race: thread \d writes tmp0\[3\] .*, written by thread \d \(STORE"):
        run(body, np.zeros(1, np.float32))


def test_a_barrier_orders_every_iteration() -> None:
    """Without a second barrier the next iteration's write races with this iteration's read."""
    out, thread, memory = define(0, dtypes.int32), lane(64), near(64)
    loop = UOp(Ops.RANGE, index, (UOp.index(0), UOp.index(3)), (0, False))
    mirror = UOp.index(63) - thread
    value = (loop + thread).cast(dtypes.int32)

    def program(*behind: UOp) -> list[UOp]:
        return [out, thread, memory, mirror, loop, loop + thread, value, put(memory, thread, value), BARRIER,
                get(memory, mirror), put(out, thread, get(memory, mirror)), *behind, UOp(Ops.ENDRANGE, None, (loop,))]

    got = np.zeros(64, np.int32)
    run(program(BARRIER), got)
    assert got.tolist() == [65 - i for i in range(64)]
    with pytest.raises(KernelError, match=r"race: thread \d+ .* tmp0\[\d+\] .*STORE tmp0\[lidx0\]\)"):
        run(program(), got)


def test_several_readers_are_known_as_such() -> None:
    out, thread, memory = define(0, dtypes.int32), lane(32), near(1)
    branch = UOp(Ops.IF, None, (thread.eq(0),))
    write = [thread.eq(0), branch, put(memory, UOp.index(0), 7), UOp(Ops.ENDIF, None, (branch,))]
    word = get(memory, UOp.index(0))
    body = [out, thread, memory, *write, BARRIER, word, put(out, thread, word)]
    got = np.zeros(32, np.int32)
    run(body, got)
    assert got.tolist() == [7] * 32
    with pytest.raises(KernelError, match="read by several threads"):
        run([*body, *write[1:]], got)


def test_local_memory_that_nobody_wrote_is_read_in_vain() -> None:
    out, thread, memory = define(0, dtypes.int32), lane(4), near(8)
    with pytest.raises(KernelError, match=r"thread 0 reads tmp0\[4\] \(LOAD tmp0\[lidx0\+4\]\), which is uninit"):
        run([out, thread, memory, put(memory, thread, 1), BARRIER, thread + 4, get(memory, thread + 4),
             put(out, thread, get(memory, thread + 4))], np.zeros(4, np.int32))


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float16, dtypes.bfloat16, dtypes.float64], ids=str)
def test_local_memory_of_one_thread_is_nan_at_first(dtype: DType) -> None:
    memory = UOp(Ops.DEFINE_LOCAL, dtype.ptr(), (), ("tmp0", 4))
    value = UOp(Ops.LOAD, dtype, (memory, UOp.index(1)))
    got = np.zeros(1, dtype.numpy)
    run([define(0, dtype), memory, value, UOp(Ops.STORE, None, (define(0, dtype), UOp.index(0), value))], got)
    assert np.isnan(got.astype(np.float32)).all()


# *** the device's memory ***


def test_blocks_that_write_one_place_must_agree() -> None:
    out, block = define(0, dtypes.int32), lane(3, "gidx0")
    got = np.zeros(2, np.int32)
    run([out, block, put(out, UOp.index(1), 4)], got)
    assert got.tolist() == [0, 4]
    number = block.cast(dtypes.int32)
    with pytest.raises(KernelError, match=r"race: block \d writes data0\[1\] .*, written by block \d"):
        run([out, block, number, put(out, UOp.index(1), number)], got)


def test_blocks_do_not_read_what_others_write() -> None:
    out, block = define(0, dtypes.int32), lane(4, "gidx0")
    own = [out, block, get(out, block), put(out, block, get(out, block) + 1)]
    got = np.arange(4, dtype=np.int32)
    run([*own[:3], get(out, block) + 1, own[3]], got)
    assert got.tolist() == [1, 2, 3, 4]
    mirror = UOp.index(3) - block
    with pytest.raises(KernelError, match="race: block"):
        run([out, block, mirror, get(out, mirror), put(out, block, get(out, mirror))], got)


def test_a_barrier_does_not_order_the_memory_of_the_device() -> None:
    """In Metal, OpenCL and WGSL a block barrier need not order device memory."""
    out, x, thread = define(0, dtypes.int32), define(1, dtypes.int32), lane(32)
    mirror = UOp.index(31) - thread
    body = [out, x, thread, put(out, thread, 1), BARRIER, mirror, get(out, mirror), put(x, thread, get(out, mirror))]
    with pytest.raises(KernelError, match=r"race: thread \d+ reads data0"):
        run(body, np.zeros(32, np.int32), np.zeros(32, np.int32))


def test_two_arguments_may_be_one_memory() -> None:
    out, x, block = define(0, dtypes.int32), define(1, dtypes.int32), lane(4, "gidx0")
    both = np.arange(4, dtype=np.int32)
    run([out, x, block, get(x, block), put(out, block, get(x, block))], both, both)
    mirror = UOp.index(3) - block
    with pytest.raises(KernelError, match="race: block"):
        run([out, x, block, mirror, get(x, mirror), put(out, block, get(x, mirror))], both, both)


def test_workers_race_too() -> None:
    out, tid = define(0, dtypes.int32), UOp(Ops.SPECIAL, index, (), "tid")
    number = tid.cast(dtypes.int32)
    with pytest.raises(KernelError, match=r"race: worker \d writes data0\[0\]"):
        run([out, tid, number, put(out, UOp.index(0), number)], np.zeros(1, np.int32), threads=3)


# *** deadlocks ***


def test_a_deadlock_says_what_every_warp_waits_for() -> None:
    thread = lane(96)
    first, second = (UOp(Ops.IF, None, (c,)) for c in (thread.lt(32), thread.lt(64)))
    body = [define(0), thread, *first.src, *second.src, first, BARRIER, UOp(Ops.ENDIF, None, (first,)), second, BARRIER,
            UOp(Ops.ENDIF, None, (second,))]
    with pytest.raises(KernelError, match="deadlock: warp 0 reaches BARRIER 0 while others wait at BARRIER 1"):
        run(body, np.zeros(1, np.float32))
    branch = UOp(Ops.IF, None, (thread.lt(64),))
    body = [define(0), thread, *branch.src, branch, BARRIER, UOp(Ops.ENDIF, None, (branch,))]
    with pytest.raises(KernelError, match=r"deadlock: warps 0, 1 wait at BARRIER 0; warp 2 has finished"):
        run(body, np.zeros(1, np.float32))


def test_a_shuffle_that_some_threads_miss_is_a_deadlock() -> None:
    number = lane(64).cast(dtypes.int32)
    body = in_condition(10, number, UOp(Ops.SHUFFLE, dtypes.int32, (number,), 4))
    with pytest.raises(KernelError, match=r"deadlock: SHUFFLE 4 is executed by only some threads of a warp: 10 of 32"):
        run(body, np.zeros(64, np.int32))


# *** asynchronous agents ***


def agents() -> tuple[RaceDetector, list[Warp], Engine, ThreadBlock]:
    """A block of two warps, asynchronous copies, and 64 elements of memory."""
    warps = [Warp(n, Clock(n, np.arange(32 * n, 32 * n + 32).reshape(-1, 1), 3), Clock(0, np.zeros((1, 1), int), 1))
             for n in (0, 1)]
    watch = RaceDetector("kernel", "tmp0", ["COPY", "LOAD"], 64, 3, lambda t: "the copy" if t == 64 else f"thread {t}",
                         True)
    return watch, warps, Engine(2, 3), ThreadBlock("kernel", warps, 0)


def meet(block: ThreadBlock) -> None:
    barrier = Barrier("BARRIER 0")
    for warp in block.warps:
        barrier.arrive(block, warp)
    assert all(barrier.ready(block, warp) for warp in block.warps)
    for warp in block.warps:
        barrier.leave(block, warp)


PLACE, YES = np.array([[5]]), np.array([[True]])


def copied(watch: RaceDetector, engine: Engine, warp: Warp) -> int:
    time = engine.begin(warp)
    watch.write(engine.clock, PLACE, YES, 0, np.zeros(64), np.ones((1, 1)))
    return time


def test_a_copy_is_read_by_those_who_have_waited_for_it() -> None:
    watch, warps, engine, block = agents()
    time = copied(watch, engine, warps[0])
    with pytest.raises(KernelError, match=r"race: thread \d+ reads tmp0\[5\] \(LOAD\), written by the copy \(COPY\)"):
        watch.read(warps[0].near, PLACE, YES, 1)
    engine.done(warps[0], time)
    watch.read(warps[0].near, PLACE, YES, 1)
    with pytest.raises(KernelError, match="written by the copy"):  # the others have not waited
        watch.read(warps[1].near, PLACE, YES, 1)
    meet(block)  # one who has waited tells
    watch.read(warps[1].near, PLACE, YES, 1)


def test_a_copy_begins_when_all_have_read_what_was_there() -> None:
    watch, warps, engine, block = agents()
    time = copied(watch, engine, warps[0])
    for warp in warps:
        engine.done(warp, time)
        watch.read(warp.near, PLACE, YES, 1)
    with pytest.raises(KernelError, match=r"race: the copy writes tmp0\[5\] \(COPY\), read by several threads"):
        copied(watch, engine, warps[0])
    meet(block)
    copied(watch, engine, warps[0])


# *** complete programs ***


def test_the_users_line_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linearize, "needed_barriers", lambda lines: [u for u in lines if u.op is not Ops.BARRIER])
    x = Tensor(np.ones((3, 1237), np.float32), device="PYTHON:G128").realize()
    with pytest.raises(KernelError, match=r"race: .*\(STORE tmp0.*, test_backend_python_races\.py:\d+\)"):
        (x * 1.25).sum(1).realize()


@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_results_do_not_depend_on_the_order_of_warps_and_blocks(seed: int) -> None:
    values = np.random.default_rng(0).normal(size=(5, 700)).astype(np.float32)
    found = []
    for device in (f"PYTHON:G64:S{seed}", "PYTHON:G64"):
        x = Tensor(values, device=device)
        found.append(np.concatenate([x.softmax().numpy(), x.cumsum(1).numpy()]))
    np.testing.assert_array_equal(found[0], found[1])

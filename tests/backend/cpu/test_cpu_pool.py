"""The worker pools: order, serial commands, Ctrl-C, forks."""
from __future__ import annotations

import ctypes
import multiprocessing
import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest

from tinsmith.backend.cpu import os_calls, pool, pool_program
from tinsmith.backend.cpu.llvm import Loaded, ObjectCompiler, load
from tinsmith.backend.cpu.pool import Commands, NativePool, PythonPool, build_table, get_pool

# dst[i] = 3 * src[n-1-i] + i: every thread reads elements that others wrote in the previous command.
STEP = """
define void @step(ptr %args, i64 %tid, i64 %threads) {
entry:
  %src = load ptr, ptr %args
  %dst_at = getelementptr i64, ptr %args, i64 1
  %dst = load ptr, ptr %dst_at
  %n_at = getelementptr i64, ptr %args, i64 2
  %n = load i64, ptr %n_at
  %low = mul i64 %n, %tid
  %first = udiv i64 %low, %threads
  %high = add i64 %low, %n
  %end = udiv i64 %high, %threads
  br label %head
head:
  %i = phi i64 [ %first, %entry ], [ %i1, %body ]
  %more = icmp ult i64 %i, %end
  br i1 %more, label %body, label %done
body:
  %mirror = sub i64 %n, %i
  %j = sub i64 %mirror, 1
  %from = getelementptr i64, ptr %src, i64 %j
  %x = load i64, ptr %from
  %x3 = mul i64 %x, 3
  %y = add i64 %x3, %i
  %to = getelementptr i64, ptr %dst, i64 %i
  store i64 %y, ptr %to
  %i1 = add i64 %i, 1
  br label %head
done:
  ret void
}

; Notes who ran: args[tid] += threads.
define void @who(ptr %args, i64 %tid, i64 %threads) {
  %at = getelementptr i64, ptr %args, i64 %tid
  %old = load i64, ptr %at
  %new = add i64 %old, %threads
  store i64 %new, ptr %at
  ret void
}
"""
native_only = pytest.mark.skipif(not pool.has_native_pool(), reason="the native pool needs Linux")
Pool = NativePool | PythonPool


@pytest.fixture(scope="module")
def code() -> Loaded:
    return load([ObjectCompiler().compile(STEP)], ["step", "who"])


@pytest.fixture(params=[(kind, threads) for kind in (NativePool, PythonPool) for threads in (1, 2, 3)], ids=str)
def workers(request: pytest.FixtureRequest) -> Iterator[Pool]:
    kind, threads = request.param
    if kind is NativePool and not pool.has_native_pool():
        pytest.skip("the native pool needs Linux")
    made = kind(threads)
    yield made
    made.close()


def run_steps(workers: Pool, step: int, serial: list[bool], n: int = 50) -> None:
    """Run one step per entry of ``serial`` between two arrays and compare with NumPy."""
    a, b = np.arange(n, dtype=np.int64), np.zeros(n, np.int64)
    expected = a.copy()
    with np.errstate(over="ignore"):
        for _ in serial:
            expected = 3 * expected[::-1] + np.arange(n)
    forth = np.array([a.ctypes.data, b.ctypes.data, n], np.int64)
    back = np.array([b.ctypes.data, a.ctypes.data, n], np.int64)
    commands = [(step, (back if i % 2 else forth).ctypes.data, flag) for i, flag in enumerate(serial)]
    table = build_table(commands)
    assert table.count == len(serial)
    workers.run(table.address, table.count)
    np.testing.assert_array_equal(b if len(serial) % 2 else a, expected)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.8, 1.0])
def test_a_thousand_dependent_commands(workers: Pool, code: Loaded, share: float) -> None:
    draw = random.Random(int(share * 10))
    run_steps(workers, code.addresses[0], [draw.random() < share for _ in range(1000)])


def test_serial_commands_at_every_place(workers: Pool, code: Loaded) -> None:
    for bits in range(64):
        run_steps(workers, code.addresses[0], [bool(bits >> i & 1) for i in range(6)], n=7)


def test_empty_table(workers: Pool) -> None:
    table = build_table([])
    workers.run(table.address, table.count)


@pytest.mark.parametrize(("count", "serial"), [(50, 3), (50, 1), (1, 1), (3, 1), (4, 1), (5, 1), (4, 2), (1, 2)])
def test_commands_are_filled_in_from_values(workers: Pool, code: Loaded, count: int, serial: int) -> None:
    """Every ``serial``-th command is serial; a short list of only serial commands runs without the pool."""
    n = 40
    steps = [[(0, 0), (1, 8), (2, -1)], [(1, 8), (0, 0), (2, -1)]] * 25  # the second array begins a word further on
    kernels = [(code.addresses[0], (i + 1) % serial == 0) for i in range(count)]
    commands = Commands(kernels, steps[:count], 3)
    assert commands.alone is (serial == 1 and count < 5)
    for seed in range(3):
        a, b = np.arange(seed, seed + n, dtype=np.int64), np.zeros(n + 1, np.int64)
        expected = a.copy()
        with np.errstate(over="ignore"):
            for _ in range(count):
                expected = 3 * expected[::-1] + np.arange(n)
        commands.words[:] = (a.ctypes.data, b.ctypes.data, n + 1)
        workers.replay(commands)
        np.testing.assert_array_equal(b[1:] if count % 2 else a, expected)
        assert b[0] == 0


def test_thread_numbers(workers: Pool, code: Loaded) -> None:
    counts: npt.NDArray[np.int64] = np.zeros(8, np.int64)
    table = build_table([(code.addresses[1], counts.ctypes.data, False)] * 10)
    workers.run(table.address, table.count)
    assert counts[: workers.threads].tolist() == [10 * workers.threads] * workers.threads
    assert not counts[workers.threads :].any()
    table = build_table([(code.addresses[1], counts.ctypes.data, True)])
    workers.run(table.address, table.count)
    assert counts[0] == 10 * workers.threads + 1


@native_only
def test_serial_commands_stay_on_the_calling_thread(code: Loaded) -> None:
    seen = []
    note = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(
        lambda args, tid, threads: seen.append((threading.get_native_id(), tid, threads))
    )
    address = ctypes.cast(note, ctypes.c_void_p).value or 0
    counts = np.zeros(8, np.int64)
    shared = (code.addresses[1], counts.ctypes.data, False)
    table = build_table([shared, (address, 0, True), (address, 0, True), shared])
    workers = NativePool(2)
    workers.run(table.address, table.count)
    workers.close()
    assert seen == [(threading.get_native_id(), 0, 1)] * 2


@native_only
@pytest.mark.parametrize("threads", [1, 2])
def test_time_slices_lose_no_command(code: Loaded, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "_SLICE_NS", 0)
    workers = NativePool(threads)
    draw = random.Random(0)
    run_steps(workers, code.addresses[0], [draw.random() < 0.4 for _ in range(300)])
    workers.close()


@native_only
def test_sleeping_workers_are_woken(code: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "_CROWDED_SPIN", 1)
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw0")
    workers = NativePool(2)
    for _ in range(20):
        run_steps(workers, code.addresses[0], [False, True, False, False] * 10)
    workers.close()


def test_restarts_after_close(workers: Pool, code: Loaded) -> None:
    for _ in range(3):
        run_steps(workers, code.addresses[0], [False] * 10)
        workers.close()


def test_user_threads_take_turns(workers: Pool, code: Loaded) -> None:
    errors: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(5):
                run_steps(workers, code.addresses[0], [False, True, False] * 10)
        except BaseException as e:
            errors.append(e)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def test_one_pool_per_process() -> None:
    assert get_pool() is get_pool()
    assert get_pool().threads == os_calls.usable_cores()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_fork_restarts_the_pool(code: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    workers = (NativePool if pool.has_native_pool() else PythonPool)(2)
    monkeypatch.setattr(pool, "_pool", workers)
    run_steps(workers, code.addresses[0], [False] * 10)

    def child() -> None:
        run_steps(get_pool(), code.addresses[0], [False, True, False] * 10)

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join(60)
    alive = process.is_alive()
    process.kill()
    assert not alive and process.exitcode == 0
    run_steps(workers, code.addresses[0], [False] * 10)
    workers.close()


INTERRUPTED = """
import ctypes, os, signal, threading
import numpy as np
from tinsmith.backend.cpu.llvm import ObjectCompiler, load
from tinsmith.backend.cpu import pool
text = '''
define void @count(ptr %args, i64 %tid, i64 %threads) {
entry:
  %own = getelementptr i64, ptr %args, i64 %tid
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %i1, %loop ]
  %i1 = add i64 %i, 1
  %spent = load volatile i64, ptr %own
  %end = icmp eq i64 %i1, 100000
  br i1 %end, label %done, label %loop
done:
  %old = load i64, ptr %own
  %new = add i64 %old, 1
  store i64 %new, ptr %own
  ret void
}
'''
code = load([ObjectCompiler().compile(text)], ["count"])
counts, total = np.zeros(8, np.int64), 10_000_000
words = np.empty((total, 3), np.int64)
words[:] = code.addresses[0], counts.ctypes.data, 0
workers = pool.NativePool(2)
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores the signal
threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    workers.run(words.ctypes.data, total)
except KeyboardInterrupt:
    assert counts[0] == counts[1] < total, counts
    workers.run(words.ctypes.data, 10)
    print("interrupted")
"""


@native_only
def test_ctrl_c_ends_a_long_table() -> None:
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "interrupted", done.stderr


def test_crowded_by_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYTEST_XDIST_WORKER", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"):
        monkeypatch.delenv(name, raising=False)
    every = list(range(os.cpu_count() or 1))
    assert not pool._crowded_by_environment(every)
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "1")
    assert not pool._crowded_by_environment(every)
    monkeypatch.setenv("PMI_SIZE", "4")
    assert pool._crowded_by_environment(every)
    assert not pool._crowded_by_environment([*every, 10_000]), "ranks bound to their own CPUs are not crowded"
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw1")
    assert pool._crowded_by_environment([10_000])


@native_only
def test_a_second_process_on_the_same_cores_is_noticed() -> None:
    far = 1 << 20  # a CPU that no real pool claims
    mine = os_calls.CoreClaim([far + os.getpid()])
    script = (
        "import sys; from tinsmith.backend.cpu.os_calls import CoreClaim; "
        "print([CoreClaim([int(a)]).alone for a in sys.argv[1:]])"
    )
    numbers = [str(far + os.getpid()), str(2 * far + os.getpid())]
    done = subprocess.run([sys.executable, "-c", script, *numbers], capture_output=True, text=True, check=True)
    mine.release()
    assert done.stdout.strip() == "[False, True]"


@pytest.mark.parametrize("architecture", pool_program.ARCHITECTURES)
def test_runtime_text_is_complete(architecture: str) -> None:
    assert "$" not in pool_program.runtime_text(architecture, 98, 178)

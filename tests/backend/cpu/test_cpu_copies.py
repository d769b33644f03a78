"""Copies between the queues of the worker pool, as commands of its table."""
from __future__ import annotations

import ctypes

import numpy as np
import pytest

from tinsmith import Device, Tensor
from tinsmith.backend.cpu import device
from tinsmith.backend.cpu.pool import PythonPool, build_table, get_pool
from tinsmith.backend.memory import Buffer
from tinsmith.backend.program import Call
from tinsmith.core.dtypes import dtypes

SIZES = (0, 1, 63, 64, 65, 1000, device.SHARED_BYTES - 1, device.SHARED_BYTES, device.SHARED_BYTES + 77)


@pytest.mark.parametrize("nbytes", SIZES)
@pytest.mark.parametrize("threads", [1, 2, 3, 7, 64])
def test_shares_cover_every_byte_once(nbytes: int, threads: int) -> None:
    source = np.random.default_rng(nbytes).integers(0, 256, nbytes + 64, np.uint8)
    target = np.zeros_like(source)
    arguments = (ctypes.c_int64 * 3)(target.ctypes.data, source.ctypes.data, nbytes)
    copy = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(device.loaded().addresses[0])
    for tid in range(threads):
        before = target.copy()
        copy(ctypes.addressof(arguments), tid, threads)
        assert not before[before != target].any(), "a byte that another thread had copied"
    assert np.array_equal(target[:nbytes], source[:nbytes]) and not target[nbytes:].any()


@pytest.mark.parametrize("nbytes", SIZES)
def test_the_program_of_a_device(nbytes: int) -> None:
    program = Device["CPU:1"].copier(Device["CPU"], nbytes)
    assert program is not None and program.kernel.serial == (nbytes < device.SHARED_BYTES)
    a, b = Buffer("CPU", nbytes, dtypes.uint8), Buffer("CPU:1", nbytes, dtypes.uint8)
    values = np.random.default_rng(1).integers(0, 256, nbytes, np.uint8)
    a.copyin(values.data)
    Device["CPU:1"].run([Call(program, [b, a], [])])
    assert np.array_equal(b.numpy(), values)


def test_pools_of_python_threads_copy_too() -> None:
    pool = PythonPool(2)
    source, target = np.arange(device.SHARED_BYTES, dtype=np.uint8), np.zeros(device.SHARED_BYTES, np.uint8)
    arguments = (ctypes.c_int64 * 3)(target.ctypes.data, source.ctypes.data, source.nbytes)
    table = build_table([(device.loaded().addresses[0], ctypes.addressof(arguments), False)])
    try:
        pool.run(table.address, table.count)
    finally:
        pool.close()
    assert np.array_equal(target, source)


def test_no_copier_between_workers() -> None:
    assert Device["CPU"].copier(Device["PYTHON"], 4) is None and Device["PYTHON"].copier(Device["CPU"], 4) is None
    assert Device["CPU"].copier(Device["NPY"], 4) is None


@pytest.mark.parametrize("count", [1, 5, 40_000])
def test_a_program_with_copies_in_the_middle_is_one_call(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x = Tensor(np.arange(count, dtype=np.float32)).realize()
    pool, calls = get_pool(), []
    monkeypatch.setattr(pool, "replay", lambda commands, run=pool.replay: (calls.append(commands), run(commands)))
    y = (((x + 1).to("CPU:1") * 2).to("CPU:2") - x.to("CPU:2")).realize()
    assert len(calls) == 1
    assert np.array_equal(y.numpy(), np.arange(count, dtype=np.float32) + 2)

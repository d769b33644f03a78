"""Host data are copied to their device once, by the first program that reads them."""
from __future__ import annotations

import gc

import numpy as np
import pytest

from tinsmith import Context, GlobalCounters, Tensor
from tinsmith.tensor.realize import _copied


def copies(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Return the copies from the host in the DEBUG=2 output since the last call."""
    lines = capsys.readouterr().out.splitlines()
    return [line.split("copy ")[1].split(" arg ")[0].strip() for line in lines if "<- NPY" in line]


@pytest.mark.parametrize("data", [[1, 2], [1.0, 2.0]])
def test_data_are_copied_once(capsys: pytest.CaptureFixture[str], data: list[float]) -> None:
    with Context(DEBUG=2):
        a, b = Tensor(data), Tensor(np.array([3, 4], np.int32))
        results = [(a * b).numpy().tolist() for _ in range(3)]
        assert copies(capsys) == ["8, CPU <- NPY"] * 2
        assert (a + b).tolist() == [4, 6] and a.tolist() == data and b.tolist() == [3, 4]
        assert copies(capsys) == []
    assert results == [[3, 8]] * 3


def test_a_schedule_has_the_copy_only_until_it_was_made() -> None:
    a = Tensor([1.0, 2.0])
    names = [[step.name for step in (a + 1).schedule().steps]]
    (a + 1).numpy()
    names += [[step.name for step in (a + 1).schedule().steps]]
    assert names == [["copy 8, CPU <- NPY", "E_2"], ["E_2"]]


def test_a_group_of_devices(capsys: pytest.CaptureFixture[str]) -> None:
    with Context(DEBUG=2):
        a = Tensor([1.0, 2.0, 3.0], device=("CPU", "CPU:1"))
        assert [(a * 2).tolist() for _ in range(2)] == [[2, 4, 6]] * 2
        assert copies(capsys) == ["12, CPU <- NPY", "12, CPU:1 <- NPY"]
        parts = Tensor([1, 2, 3]).shard_(("CPU", "CPU:1"), axis=0)
        assert [(parts * 2).tolist() for _ in range(2)] == [[2, 4, 6]] * 2
        assert copies(capsys) == ["8, CPU <- NPY", "4, CPU:1 <- NPY"]


def test_gradients_find_the_data() -> None:
    w = Tensor([1.0, 2.0])
    first = (w * 3).numpy()
    y = (w * w).realize()
    w.realize()
    y.sum().backward()
    assert first.tolist() == [3, 6] and w.grad is not None and w.grad.tolist() == [2, 4]


def test_a_write_leaves_what_was_computed() -> None:
    a = Tensor([1, 2])
    late = a + 1
    assert (a * 2).tolist() == [2, 4]
    a.realize()
    a.assign(Tensor([5, 6])).realize()
    assert late.tolist() == [2, 3] and a.tolist() == [5, 6]


def test_indices_from_the_host_are_still_checked() -> None:
    index = Tensor([0, 7])
    assert (index + 1).tolist() == [1, 8]
    with pytest.raises(IndexError, match="index 7 is out of range"):
        Tensor([1, 2, 3])[index]


def test_the_copy_goes_with_the_data() -> None:
    gc.collect()
    before, used = [n for n, _ in _copied.items()], GlobalCounters.mem_used  # kept: an id must not come again
    a = Tensor(np.ones(1000, np.float32))
    assert a.sum().item() == 1000
    (new,) = {id(n) for n, _ in _copied.items()} - set(map(id, before))
    assert GlobalCounters.mem_used >= used + 4000
    del a
    gc.collect()
    assert new not in {id(n) for n, _ in _copied.items()} and GlobalCounters.mem_used < used + 4000

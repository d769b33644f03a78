"""Small eager programs: the functions that a warm call executes, and reads of views from their place in memory."""
from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from benchmarks.eager import counted
from tests.schedule.helpers import given
from tinsmith import Context, GlobalCounters, Tensor, TinyJit


def test_a_warm_softmax_executes_few_functions() -> None:
    x = given(64, 64)
    with Context(POISON=0, CHECK_IR=0):
        for _ in range(3):
            x.softmax().realize()
        found = []
        for _ in range(3):  # a garbage collection calls functions of other tests' objects
            with counted() as files:
                x.softmax().realize()
            found.append(files)
    assert min(map(len, found)) <= 600
    assert min(len(set(files)) for files in found) <= 50


@pytest.mark.parametrize("program", ["constant", "size", "element"])
def test_new_values_execute_no_more_functions_than_the_first_ones(program: str) -> None:
    """A constant, a size and an index that change take one path, however many values there were."""
    x, numbers = given(4096), itertools.count(2)
    calls: dict[str, Callable[[int], Any]] = {
        "constant": lambda n: (x[:64] * float(n)).sum().item(),
        "size": lambda n: (x[:n] * 2.0).sum().item(),
        "element": lambda n: x.reshape(64, 64)[n % 64, n // 64].item()}
    call = calls[program]

    def functions() -> int:
        with counted() as files:
            call(next(numbers))
        return len(files)

    with Context(POISON=0, CHECK_IR=0, DYNAMIC=1):
        for _ in range(20):
            call(next(numbers))
        few = [functions() for _ in range(10)]
        for _ in range(300):
            call(next(numbers))
        many = [functions() for _ in range(10)]
    assert np.median(many) <= 1.2 * np.median(few)


VIEWS: dict[str, Callable[[Any], Any]] = {
    "element": lambda x: x[2, 3, 1], "last element": lambda x: x[-1, -1, -1], "row": lambda x: x[1, 2],
    "rows": lambda x: x[1:3], "part of a row": lambda x: x[1, 2, 1:4], "column": lambda x: x[:, 1, 2],
    "box": lambda x: x[1:3, 1:2, 2:4], "flat range": lambda x: x.reshape(-1)[7:31], "every second": lambda x: x[2, ::2],
    "element of the transpose": lambda x: x.swapaxes(0, 1)[3, 1, 2],
    "element of a flip": lambda x: x[::-1, 1, ::-1][1, 2], "element of steps": lambda x: x[1:, ::3, ::2][0, 1, 1],
    "range of a range": lambda x: x[1:3].reshape(-1)[5:9], "reshaped part": lambda x: x[2].reshape(5, 4)[3],
    "nothing": lambda x: x[1:1]}


@pytest.mark.parametrize("device", ["CPU", "PYTHON"])
@pytest.mark.parametrize("dtype", [np.float32, np.int8, np.bool_])
@pytest.mark.parametrize("view", VIEWS)
def test_views_are_read_as_numpy_reads_them(view: str, dtype: Any, device: str) -> None:
    values = np.random.default_rng(1).integers(0, 100, (4, 4, 5)).astype(dtype)
    np.testing.assert_array_equal(VIEWS[view](Tensor(values, device=device).realize()).numpy(), VIEWS[view](values))


def test_one_element_of_padded_and_expanded_views() -> None:
    x = Tensor([[1.0, 2.0], [3.0, 4.0]]).realize()
    padded, wide = x.pad((1, 1, 1, 1)), x.reshape(2, 1, 2).expand(2, 3, 2)
    assert [padded[1, 2].item(), padded[0, 2].item(), padded[2, 1].item()] == [2.0, 0.0, 3.0]
    assert [wide[1, 2, 0].item(), wide[0, 1, 1].item()] == [3.0, 2.0]


def test_a_consecutive_part_is_copied_alone_and_by_no_kernel() -> None:
    x = given(64, 64)
    for view, count in ((x[3, 5], 1), (x.T[3, 5], 1), (x[7], 64), (x[8:12], 256)):
        kernels, moved = GlobalCounters.kernel_count, GlobalCounters.global_mem
        view.numpy()
        assert (GlobalCounters.kernel_count - kernels, GlobalCounters.global_mem - moved) == (1, 4 * count)


def test_a_part_is_read_after_writes_to_the_whole() -> None:
    x = Tensor.zeros(4, 4).contiguous().realize()
    part = x[1:3, :]
    assert part[0, 1].item() == 0
    x[1, 1] = 5.0
    assert part[0, 1].item() == 5
    part += 1
    assert x[2].tolist() == [1, 1, 1, 1] and x[1, 1].item() == 6


def test_a_read_of_an_element_ends_a_capture_as_any_read_does() -> None:
    x = given(4, 4)
    step = TinyJit(lambda y: (y * x[1, 2].item()).realize())
    want = x.numpy() * x.numpy()[1, 2]
    for _ in range(4):
        np.testing.assert_array_equal(step(x + 0).numpy(), want)


def test_a_sharded_value_is_read_by_parts() -> None:
    values = np.arange(24, dtype=np.float32).reshape(4, 6)
    x = Tensor(values).shard(("CPU:0", "CPU:1"), 0).realize()
    np.testing.assert_array_equal(x[1:3].numpy(), values[1:3])
    assert x[3, 4].item() == values[3, 4]


def test_an_element_of_a_failed_value_raises() -> None:
    x = given(4).realize()
    x.uop.base.arg.failed = ValueError("broken")
    with pytest.raises(Exception, match="broken"):
        x[1].item()

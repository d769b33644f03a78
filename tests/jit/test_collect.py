"""Programs collected between ``CacheCollector.start`` and ``finish`` run again on the tensors' current values."""
from __future__ import annotations

from collections.abc import Callable

import pytest

from tinsmith import GlobalCounters, Tensor
from tinsmith.jit import CacheCollector, JitItem


def collected(function: Callable[[], object]) -> list[JitItem]:
    function()
    CacheCollector.start({})
    function()
    return CacheCollector.finish()


def replayed(items: list[JitItem]) -> None:
    for ji in items:
        ji.prg(ji.rawbufs, {}, wait=False, jit=True)


@pytest.mark.parametrize("realized", [False, True])
def test_an_assignment_between_replays_is_seen_and_data_is_copied_once(realized: bool) -> None:
    a, b = Tensor([1, 2]), Tensor([3, 4])
    if realized:
        Tensor.realize(a, b)
    results: list[Tensor] = []
    items = collected(lambda: results.append(a.dot(b).realize()))
    GlobalCounters.reset()
    replayed(items)
    assert GlobalCounters.kernel_count == 1 and results[-1].item() == 11
    for k in (10, 100):
        a.assign(Tensor([k, 2 * k])).realize()
        replayed(items)
        assert results[-1].item() == 11 * k


def test_an_assignment_that_gradients_keep_the_old_version_of_is_seen() -> None:
    x, results = Tensor([1.0]), list[Tensor]()
    items = collected(lambda: results.append((x * x).realize()))
    for k in (2.0, 3.0):
        x.assign(Tensor([k])).realize()
        replayed(items)
        assert results[-1].item() == k * k


@pytest.mark.parametrize("realized", [False, True])
def test_what_the_programs_assign_goes_on(realized: bool) -> None:
    x = Tensor([1.0]).realize() if realized else Tensor([1.0])
    items = collected(lambda: x.assign(x + 1).realize())
    seen = []
    for _ in range(3):
        replayed(items)
        seen.append(x.item())
    assert seen == [4.0, 5.0, 6.0]


def test_data_made_inside_are_made_again() -> None:
    results: list[Tensor] = []

    def function() -> None:
        total = Tensor([0.0]).realize()
        results.append(total.assign(total + 1).realize())

    items = collected(function)
    for _ in range(2):
        replayed(items)
        assert results[-1].item() == 1.0


def test_a_value_that_was_read_before_is_not_computed_again() -> None:
    x, results = Tensor([1.0]), list[Tensor]()
    y = x * 2
    assert y.item() == 2
    items = collected(lambda: results.append((y + 1).realize()))
    x.assign(Tensor([5.0])).realize()
    replayed(items)
    assert results[-1].item() == 3.0 == (y + 1).item()

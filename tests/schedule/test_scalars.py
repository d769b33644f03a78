"""Scalars that change from call to call, and the amount of compiled code kept in memory."""
from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest

from tests.schedule.helpers import given
from tinsmith import TinyJit
from tinsmith.codegen.launch import programs as kernel_programs
from tinsmith.core.counters import GlobalCounters
from tinsmith.core.settings import Context
from tinsmith.runtime import realize, symbolic_programs
from tinsmith.runtime.compiled_schedule import programs as compiled_programs
from tinsmith.schedule.passes import promote_constants
from tinsmith.tensor.tensor import Tensor

PROGRAMS: dict[str, Callable[[Tensor, float], Tensor]] = {
    "product": lambda x, v: x * v,
    "product and sum": lambda x, v: x * v + x,
    "quotient": lambda x, v: x / v,
    "comparison": lambda x, v: (x > v).where(x, v),
    "sum of products": lambda x, v: (x * v).sum(axis=1),
    "softmax": lambda x, v: (x * v).softmax(),
    "contraction": lambda x, v: (x * v) @ (x.T + v),
    "constants alone": lambda x, v: x + Tensor.full((8, 8), v).sin() * v,
    "padding": lambda x, v: x.pad(((1, 1), (0, 0)), value=v) - 1,
}
VALUES = [0.1, 0.3, 7.0, 1e-3, 1.0, 2.0, 0.0, -0.0, -1.0, 0.5, float("inf"), float("nan")]


@pytest.fixture(autouse=True)
def _nothing_known() -> None:
    realize._compiled.clear()
    promote_constants.histories.clear()


def schedules(function: Callable[[], object]) -> int:
    before = GlobalCounters.schedule_count
    with Context(CACHELEVEL=0):
        function()
    return GlobalCounters.schedule_count - before


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_scalar_that_is_an_argument_gives_the_same_bits(name: str) -> None:
    x, program = given(8, 8), PROGRAMS[name]
    for v in VALUES:
        found = program(x, v).numpy()
        known = promote_constants.histories
        promote_constants.histories = promote_constants.Recent()  # a form that is new has its constants
        np.testing.assert_array_equal(found.view(np.uint32), program(x, v).numpy().view(np.uint32), f"{v}")
        promote_constants.histories = known


def test_a_scalar_that_changes_is_compiled_three_times() -> None:
    x = given(8, 8)
    assert schedules(lambda: [(x * (0.1 + n) + 0.5).numpy() for n in range(50)]) == promote_constants.SEVERAL
    assert schedules(lambda: [(x * (0.1 + n) + 0.25).numpy() for n in range(50)]) == 1, "one of the two is a constant"
    assert schedules(lambda: [(x * (0.1 + n) + 0.75 / (n + 1)).numpy() for n in range(50)]) == 1, "none is"


def test_integers_that_change() -> None:
    x = Tensor(np.arange(8, dtype=np.int32)).realize()
    assert schedules(lambda: [(x // (n + 5) + x % (n + 20)).numpy() for n in range(10)]) == promote_constants.SEVERAL
    assert ((x // 77 + x % 3).numpy() == np.arange(8) // 77 + np.arange(8) % 3).all()


def test_a_captured_program_keeps_its_constants() -> None:
    x = given(8, 8)
    for v in (0.1, 0.2, 0.3, 0.4):
        step = TinyJit(lambda x, v=v: (x * v).realize())
        for _ in range(4):
            np.testing.assert_array_equal(step(x).numpy(), x.numpy() * np.float32(v))


def test_the_same_constant_at_two_places() -> None:
    x = given(8, 8)
    for a, b in itertools.product((0.1, 0.2, 0.3, 0.4), repeat=2):
        np.testing.assert_array_equal(((x + a) * b).numpy(), (x.numpy() + np.float32(a)) * np.float32(b))


def test_what_is_compiled_stays_bounded() -> None:
    given_values = [given(n) for n in range(1, 30)]

    def computed(x: Tensor) -> None:
        np.testing.assert_array_equal((x + 1).numpy(), x.numpy() + 1)

    with Context(PROGRAMS=12, DYNAMIC=1):
        for x in given_values:
            computed(x)
            assert all(len(t) <= 12 for t in (realize._compiled, compiled_programs, kernel_programs,
                                              promote_constants.histories, *symbolic_programs.tables))
    with Context(PROGRAMS=12, DYNAMIC=0):
        for x in given_values:
            computed(x)
            assert all(len(t) <= 12 for t in (realize._compiled, compiled_programs, kernel_programs,
                                              promote_constants.histories))
        assert schedules(lambda: computed(given_values[-1])) == 0, "the last one is still there"
        assert schedules(lambda: computed(given_values[0])) == 1, "the first one is not"

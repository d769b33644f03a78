"""FASTMATH=1 makes the documented changes, and nothing changes without it."""
from __future__ import annotations

import numpy as np
import pytest

from tinsmith import Context, Tensor
from tinsmith.ir.algebra.symbolic import fastmath
from tinsmith.ir.rewrite import Rule, rewrite


@pytest.mark.parametrize("rule", fastmath.rules, ids=lambda r: r.name)
def test_examples_are_rewritten(rule: Rule) -> None:
    before = rule.example()
    (after,) = rewrite([before], fastmath)
    assert after is not before and len(after.toposort()) < len(before.toposort())


def test_only_the_setting_changes_a_program() -> None:
    x = Tensor([1.0, float("inf"), float("nan"), 0.0]).realize()
    exact = [(x - x).numpy(), (x * 0).numpy(), (x / x).numpy()]
    np.testing.assert_array_equal(exact[0], [0, np.nan, np.nan, 0])
    np.testing.assert_array_equal(exact[1], [0, np.nan, np.nan, 0])
    np.testing.assert_array_equal(exact[2], [1, np.nan, np.nan, np.nan])
    with Context(FASTMATH=1):
        fast = [(x - x).numpy(), (x * 0).numpy(), (x / x).numpy()]
    np.testing.assert_array_equal(fast, [[0] * 4, [0] * 4, [1] * 4])

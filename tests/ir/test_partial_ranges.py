"""Printed ranges of symbolic sizes whose steps hold several elements."""
from __future__ import annotations

import pytest

from tests.schedule.helpers import given
from tinsmith import Variable


@pytest.mark.parametrize("most", [10, 400])
def test_graphs_of_symbolic_sums_are_shown(most: int) -> None:
    """The page of passes shows a kernel whose symbolic range is cut into tiles."""
    rows = given(most, 4)[: Variable("n", 1, most).bind(3)]
    assert "<svg" in rows.sum(0).graph().own_svg()

"""The errors of functions stay below the bounds that docs/numerics.md states."""
from __future__ import annotations

import re

import pytest

pytest.importorskip("mpmath", reason="the test extra (mpmath) is not installed")

from tests.numerics import FLOATS, PAGE, ROWS, bound, error


@pytest.mark.parametrize("name", ROWS)
def test_errors_in_ulp(name: str) -> None:
    for dtype in FLOATS:
        found, at = error(ROWS[name], dtype, 1500)
        assert found <= bound(ROWS[name], dtype), f"{name} of {dtype!r}: {found:.2f} ulp at {at}"


def test_the_page_states_the_bounds() -> None:
    rows = re.findall(r"^\| `(.+?)`.*?\|(.*)\|$", PAGE.read_text("utf-8"), re.MULTILINE)
    assert [name for name, _ in rows] == list(ROWS)
    for name, cells in rows:
        stated = re.findall(r"([\d.]+|inf) \(≤ ([\d.]+)\)", cells)
        assert [float(b) for _, b in stated] == [bound(ROWS[name], d) for d in FLOATS]
        assert all(float(e) <= float(b) for e, b in stated), name

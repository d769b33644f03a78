"""Random tensor graphs give the values of ``ir.interpret.tensor`` for any fusion, staging and opts."""
from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings

from tests.schedule.graphs import check, graphs
from tinsmith.core.settings import Context

FEW = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))


@FEW
@given(graphs())
def test_default(drawn: Any) -> None:
    check(*drawn)


@FEW
@given(graphs())
def test_noopt(drawn: Any) -> None:
    with Context(NOOPT=1):
        check(*drawn)


@settings(FEW, max_examples=10)
@given(graphs(12, "PYTHON"))
def test_interpreted(drawn: Any) -> None:
    check(*drawn)

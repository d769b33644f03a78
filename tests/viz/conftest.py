"""Traces shared by all tests of this folder in a process."""
from __future__ import annotations

from pathlib import Path

import pytest

from tests.viz.programs import DEEP, FOUR, traced


@pytest.fixture(scope="session")
def four(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the trace of the dot product, ``var``, a matmul and a training step."""
    return traced(FOUR, tmp_path_factory.mktemp("four"), GRAPH="1", JITGRAPH="1", PROFILE="1")


@pytest.fixture(scope="session")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the trace of a graph of more than 10,000 nodes."""
    return traced(DEEP.replace("COUNT", "210"), tmp_path_factory.mktemp("deep"))

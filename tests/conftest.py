"""Settings of all tests, and the test tiers.

Every program that a test compiles is checked against the rules of its dialects between passes, and runs on memory that
holds NaN where nothing is written: a lost kernel shows. Tests listed in ``slow.txt`` are marked ``slow``: ``pytest``
leaves them out, ``pytest -m ""`` runs all.
"""
import os
from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).parents[1]
SLOW = {line for line in (ROOT / "tests" / "slow.txt").read_text("utf-8").splitlines() if not line.startswith("#")}

os.environ.setdefault("CHECK_IR", "1")
os.environ.setdefault("POISON", "1")
# Tests draw many sizes: programs with variables for them would be compiled besides, and say nothing of the fixed ones.
# What tests such programs sets DYNAMIC=1; DYNAMIC=1 pytest runs all tests with them.
os.environ.setdefault("DYNAMIC", "0")

# How long an example takes depends on what else the machine does, and whether its kernels are compiled already.
settings.register_profile("tinsmith", deadline=None)
settings.load_profile("tinsmith")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of the full tier."""
    for item in items:
        if item.nodeid.partition("[")[0] in SLOW:
            item.add_marker(pytest.mark.slow)

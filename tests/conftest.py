"""Settings of all tests, and the test tiers.

Every program that a test compiles is checked against the rules of its dialects between passes, and runs on memory that
holds NaN where nothing is written: a lost kernel shows. Tests listed in ``slow.txt`` are marked ``slow``: ``pytest``
leaves them out, ``pytest -m ""`` runs all.
"""
from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import nullcontext
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import providers

ROOT = Path(__file__).parents[1]
SLOW = {line for line in (ROOT / "tests" / "slow.txt").read_text("utf-8").splitlines() if not line.startswith("#")}

os.environ.setdefault("CHECK_IR", "1")
os.environ.setdefault("POISON", "1")
# Most tests draw many sizes: programs with variables for them would be compiled besides, and say nothing of the fixed
# ones. The tests of two folders run as users' programs do, with DYNAMIC=1; so do all tests of DYNAMIC=1 pytest.
if "DYNAMIC" not in os.environ:
    os.environ["DYNAMIC"] = "0"
    os.environ["AS_USERS"] = "tensor nn"  # for the processes of xdist, too
AS_USERS = os.environ.get("AS_USERS", "").split()

# How long an example takes depends on what else the machine does, and whether its kernels are compiled already.
settings.register_profile("tinsmith", deadline=None)
settings.load_profile("tinsmith")
# Hypothesis draws constants of the project's modules that are imported already: what a test draws, even a derandomized
# one, would depend on the tests before it. The campaigns of tests.properties draw at random.
if hasattr(providers, "_get_local_constants"):
    providers._get_local_constants = lambda: providers._local_constants  # none


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, None, None]:
    """Run a test, its fixtures too, with the setting of its folder."""
    from tinsmith import Context  # after the settings above

    with Context(DYNAMIC=1) if item.path.parent.name in AS_USERS else nullcontext():
        yield


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of the full tier."""
    for item in items:
        if item.nodeid.partition("[")[0] in SLOW:
            item.add_marker(pytest.mark.slow)

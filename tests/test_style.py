"""Lint and type checks as tests."""
from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def check(*arguments: str) -> None:
    if importlib.util.find_spec(arguments[0]) is None:
        pytest.skip(f"{arguments[0]} is not installed: pip install -e '.[test]'")
    done = subprocess.run([sys.executable, "-m", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_ruff() -> None:
    check("ruff", "check", "--no-cache", ".")


def test_mypy_strict() -> None:
    check("mypy", "--strict", "tinsmith")


def test_the_list_of_slow_tests_names_tests() -> None:
    """``tests/slow.txt`` has no entry of a removed or renamed test."""
    gone = []
    for line in (ROOT / "tests" / "slow.txt").read_text("utf-8").splitlines():
        if not line.startswith("#"):
            path, *names = line.split("::")
            text = (ROOT / path).read_text("utf-8") if (ROOT / path).exists() else ""
            gone += [line] * any(not re.search(rf"\b{re.escape(n)}\b", text) for n in names if n != "runTest")
    assert not gone

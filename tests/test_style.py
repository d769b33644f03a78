"""Lint and type checks as tests."""
from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tomllib
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


def test_mypy_has_no_exemptions() -> None:
    """No line or file is exempt; pyproject.toml only names packages of others that have no types."""
    comments = re.compile(r"#\s*(type:\s*ignore|mypy:)|no_type_check")
    assert not [p for p in (ROOT / "tinsmith").rglob("*.py") if comments.search(p.read_text("utf-8"))]
    options = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["mypy"]
    assert all(set(o) <= {"module", "ignore_missing_imports", "follow_imports"} for o in options["overrides"])
    assert not [m for o in options["overrides"] for m in o["module"] if m.startswith("tinsmith")]


def test_the_list_of_slow_tests_names_tests() -> None:
    """``tests/slow.txt`` has no entry of a removed or renamed test."""
    gone = []
    for line in (ROOT / "tests" / "slow.txt").read_text("utf-8").splitlines():
        if not line.startswith("#"):
            path, *names = line.split("::")
            text = (ROOT / path).read_text("utf-8") if (ROOT / path).exists() else ""
            gone += [line] * any(not re.search(rf"\b{re.escape(n)}\b", text) for n in names if n != "runTest")
    assert not gone

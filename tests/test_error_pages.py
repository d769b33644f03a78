"""Explanations of error codes: every code has one, its example raises it, and docs/errors.md is generated from them."""
from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden.running import run
from tinsmith import Context, Tensor, dtypes, nn
from tinsmith.core.errors import ArgumentError
from tinsmith.tools.error_pages import EXPLANATIONS, classes, explain_error

PAGE = Path(__file__).parents[1] / "docs" / "errors.md"


def test_every_code_is_explained() -> None:
    assert list(EXPLANATIONS) == list(classes())


@pytest.mark.parametrize("code", [c for c, e in EXPLANATIONS.items() if e.example])
def test_an_example_raises_its_error(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = {"Path": Path, "Context": Context, "Tensor": Tensor, "dtypes": dtypes, "nn": nn}
    with pytest.raises(classes()[code]) as raised:
        exec(EXPLANATIONS[code].example, names)
    assert raised.type.id == code


@pytest.mark.parametrize("code", list(EXPLANATIONS))
def test_the_page_has_the_explanation(code: str) -> None:
    section = f"## {code}" + PAGE.read_text("utf-8").partition(f"## {code}")[2].partition("\n## ")[0]
    prose = explain_error(code).partition("```python")[0].strip()
    assert section.startswith(prose)
    assert all(line in section for line in EXPLANATIONS[code].example.split("\n"))


def test_the_command_prints_a_section(tmp_path: Path) -> None:
    done = run(["-m", "tinsmith", "explain-error", "[e040]"], tmp_path)
    assert done.returncode == 0 and done.stdout == explain_error("E040")
    done = run(["-m", "tinsmith", "explain-error", "E999"], tmp_path)
    assert done.returncode == 2 and "one of E010" in done.stderr
    with pytest.raises(ArgumentError):
        explain_error("E999")

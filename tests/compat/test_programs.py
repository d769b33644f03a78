"""Programs for tinygrad's documented public API run unchanged: forward and in training."""
from __future__ import annotations

import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest

from tinsmith import Tensor
from tinsmith.compat import install, uninstall
from tinsmith.core.settings import settings

PROGRAMS = sorted((Path(__file__).parent / "programs").glob("*.py"))


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    before = settings.ALIAS, settings.DEV, Tensor.training
    monkeypatch.setenv("ALIAS", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    install()
    yield
    uninstall()
    settings.ALIAS, settings.DEV = before[:2]
    Tensor.training = before[2]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.stem)
def test_runs(names: None, program: Path) -> None:
    runpy.run_path(str(program), run_name="__main__")


def test_there_are_enough() -> None:
    assert len(PROGRAMS) >= 40

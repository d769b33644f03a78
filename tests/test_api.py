"""docs/api.md has a row for every public name, and the status of each of tinygrad's."""
from __future__ import annotations

import importlib

import pytest

from tests import apidoc
from tinsmith import Tensor
from tinsmith.compat import install, uninstall
from tinsmith.compat.module_table import METHODS


def test_the_page_is_as_generated() -> None:
    assert apidoc.PAGE.read_text("utf-8") == apidoc.page(), "python tests/apidoc.py"


@pytest.mark.parametrize("section", sorted(apidoc.TINYGRAD))
def test_every_name_has_a_row(section: str) -> None:
    part = apidoc.PAGE.read_text("utf-8").split(f"\n## {section}\n")[1].split("\n## ")[0]
    missing = [n for n in (*apidoc.public(section), *apidoc.TINYGRAD[section].split()) if f"| `{n}` |" not in part]
    assert not missing


@pytest.mark.parametrize("section", sorted(apidoc.TINYGRAD))
def test_every_name_of_tinygrads_is_here_or_has_a_reason(section: str) -> None:
    assert not [n for n in apidoc.TINYGRAD[section].split() if not apidoc.place(section, n)[0]]


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_method_that_is_not_here_says_what_is(name: str) -> None:
    install()
    try:
        with pytest.raises(ValueError, match="only in tinygrad") as caught:
            getattr(Tensor([1.0]), name)()
        assert METHODS[name] in str(caught.value)
    finally:
        uninstall()
    assert name not in vars(Tensor)


def test_modules_that_are_here_under_compat() -> None:
    install()
    try:
        assert importlib.import_module("tinygrad").function(abs) is abs
        assert importlib.import_module("tinygrad.function").function(abs) is abs
    finally:
        uninstall()

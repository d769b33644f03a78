"""The examples in the docstrings of ir/ run."""
from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import tinsmith.ir

MODULES = ["tinsmith.ir", *(m.name for m in pkgutil.walk_packages(tinsmith.ir.__path__, "tinsmith.ir."))]


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0

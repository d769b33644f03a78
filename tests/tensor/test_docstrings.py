"""The examples in the docstrings of tensor/ run, and every public method has one."""
from __future__ import annotations

import doctest
import importlib
import inspect
import math
import pkgutil

import pytest

import tinsmith
import tinsmith.tensor

MODULES = [m.name for m in pkgutil.walk_packages(tinsmith.tensor.__path__, "tinsmith.tensor.")]
NAMES = {"Tensor": tinsmith.Tensor, "Variable": tinsmith.Variable, "dtypes": tinsmith.dtypes, "math": math}


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name), extraglobs=NAMES).failed == 0


def test_every_public_method_has_an_example() -> None:
    missing = []
    for name in dir(tinsmith.Tensor):
        member = inspect.getattr_static(tinsmith.Tensor, name)
        function = getattr(member, "__func__", getattr(member, "fget", member))
        if not name.startswith("_") and inspect.isfunction(function) and ">>>" not in (function.__doc__ or ""):
            missing.append(name)
    assert not missing, f"no example in the docstring of {missing}"

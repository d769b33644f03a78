"""The examples in the docstrings of nn/, and of the tensor methods that nn is made of, run."""
from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import tinsmith.nn
from tinsmith import Tensor

MODULES = [m.name for m in pkgutil.walk_packages(tinsmith.nn.__path__, "tinsmith.nn.")]
MODULES += [f"tinsmith.tensor.nnops.{name}" for name in ("activations", "windows", "functional")]


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name), extraglobs={"Tensor": Tensor}).failed == 0

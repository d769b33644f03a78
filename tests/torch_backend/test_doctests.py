"""The examples in the docstrings of ``tinsmith.torch`` run."""
from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

pytest.importorskip("torch", reason="the backend of torch.compile needs PyTorch")

import tinsmith.torch

MODULES = ["tinsmith.torch", *(m.name for m in pkgutil.walk_packages(tinsmith.torch.__path__, "tinsmith.torch."))]


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0

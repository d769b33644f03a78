"""The examples in docstrings run, but for those of ir/, tensor/, nn/ and torch/, which have their own tests."""
from __future__ import annotations

import doctest
import importlib
import pkgutil

import numpy as np
import pytest

import tinsmith
from tinsmith.backend.memory import Buffer
from tinsmith.core.settings import settings
from tinsmith.ir.interpret.tensor import evaluate

SKIPPED = ("tinsmith.ir", "tinsmith.tensor", "tinsmith.nn", "tinsmith.torch", "tinsmith.__main__",
           "tinsmith.compat.__main__")
NAMES = {"Tensor": tinsmith.Tensor, "Device": tinsmith.Device, "dtypes": tinsmith.dtypes, "Context": tinsmith.Context,
         "Buffer": Buffer, "evaluate": evaluate, "np": np, "settings": settings}
MODULES = [m.name for m in pkgutil.walk_packages(tinsmith.__path__, "tinsmith.") if not m.name.startswith(SKIPPED)]


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples(name: str) -> None:
    module = importlib.import_module(name)
    assert doctest.testmod(module, extraglobs={k: v for k, v in NAMES.items() if not hasattr(module, k)}).failed == 0

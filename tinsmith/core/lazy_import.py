"""Lazy import: a module is imported when one of its attributes is first used."""
from __future__ import annotations

import importlib
from typing import Any


class Late:
    """A placeholder for a module that is imported on first attribute access. For type checkers, write:

    ``if TYPE_CHECKING: from package import module`` ``else: module = Late("package.module")``.

    >>> Late("math").sqrt(4.0)
    2.0
    """

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self._name), name)

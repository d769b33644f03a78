"""Modules that most programs never ask for are imported when something in them is first used."""
from __future__ import annotations

import importlib
from typing import Any


class Late:
    """Stands for a module until then. Who names one says to type checkers what it is:

    ``if TYPE_CHECKING: from package import module`` ``else: module = Late("package.module")``.

    >>> Late("math").sqrt(4.0)
    2.0
    """

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self._name), name)

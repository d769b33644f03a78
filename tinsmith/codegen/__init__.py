"""From a kernel's tensor graph to source: lowering, optimizer choices, linearizer, renderers."""
from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tinsmith.codegen import program as program


def __getattr__(name: str) -> Any:
    """``codegen.program``, imported when it is first asked for: what the disk cache holds is run without it."""
    if name == "program":
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

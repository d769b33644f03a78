"""Visualization of programs: graphs as SVG and DOT, and the HTML page of a trace; docs/viz.md."""
from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tinsmith.viz import drawing as drawing
    from tinsmith.viz import ending as ending
    from tinsmith.viz import layouts as layouts
    from tinsmith.viz import page as page
    from tinsmith.viz import serve as serve
    from tinsmith.viz import showing as showing

# lazy import: most programs never use these
_AT_FIRST_USE = ("drawing", "ending", "layouts", "page", "serve", "showing")


def __getattr__(name: str) -> Any:
    """Return a module of this package (such as ``viz.page``), imported on first use."""
    if name in _AT_FIRST_USE:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""Pictures of programs: graphs as SVG and DOT, and the page that shows a trace; docs/viz.md."""
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

# Most programs never ask for these.
_AT_FIRST_USE = ("drawing", "ending", "layouts", "page", "serve", "showing")


def __getattr__(name: str) -> Any:
    """``viz.page`` and the like: the module, imported when it is first asked for."""
    if name in _AT_FIRST_USE:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

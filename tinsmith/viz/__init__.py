"""Visualization of programs: a trace goes in; SVG, DOT or an HTML page comes out (docs/viz.md).

- ``showing.py``: ``tensor.graph()`` and ``tensor.viz()``; ``VIZ``, ``GRAPH`` and ``JITGRAPH`` at a program's end.
- ``drawing.py``: drawings of graphs and of data layouts; ``fold.py``: large graphs as a tree of groups.
- ``page.py``, ``static/``: the page, its times and its server.
"""
from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tinsmith.viz import drawing as drawing
    from tinsmith.viz import page as page
    from tinsmith.viz import showing as showing

# lazy import: most programs never use these
_AT_FIRST_USE = ("drawing", "page", "showing")


def __getattr__(name: str) -> Any:
    """Return a module of this package (such as ``viz.page``), imported on first use."""
    if name in _AT_FIRST_USE:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

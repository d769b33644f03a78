"""The page of a trace: one self-contained HTML file, to serve or to send."""
from __future__ import annotations

import importlib.resources
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tinsmith.core.errors import FileFormatError
from tinsmith.inspect.trace import FORMAT, VERSION
from tinsmith.viz.fold import folding
from tinsmith.viz.times import costliest, times

_SCRIPTS = ("vendor/dagre.min.js", "vendor/highlight.min.js", "vendor/highlight-llvm.min.js", "rows.js", "syntax.js",
            "panes.js", "graph.js", "timeline.js", "search.js", "steps.js", "app.js")
_LICENSES = ("vendor/dagre.LICENSE", "vendor/highlight.LICENSE")


def read_trace(path: str | Path) -> dict[str, Any]:
    """Return the trace in a file.

    Raises:
        FileFormatError: if it is not a trace, or one of another version.
        OSError: if it cannot be read.
    """
    try:
        found = json.loads(Path(path).read_text("utf-8"))
    except ValueError as error:
        raise FileFormatError("viz", f"{path} is not a trace: {error}", "VIZ=2 python script.py writes one") from None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise FileFormatError("viz", f"{path} is JSON, but not a trace", "VIZ=2 python script.py writes one")
    missing = [name for name in ("programs", "origins", "files", "kernels", "events", "machines") if name not in found]
    if found.get("version") == VERSION and missing:
        raise FileFormatError("viz", f"{path} is a trace without {' and '.join(missing)}",
                              "VIZ=2 python script.py writes one")
    if found.get("version") != VERSION:
        raise FileFormatError("viz", f"{path} is a trace of version {found.get('version')}, this reads {VERSION}",
                              "VIZ=2 python script.py writes a new one")
    return found


def folded(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document with the groups and the times of every program, and the number of the costliest one."""
    found = times(document)
    programs = [{**p, "groups": folding(document, p).groups, "times": t}
                for p, t in zip(document["programs"], found, strict=True)]
    return {**document, "programs": programs, "costliest": costliest(found)}


def page(document: Mapping[str, Any]) -> str:
    """Return the HTML page of a trace. It loads nothing: scripts, styles and data are part of it."""
    data = json.dumps(folded(document), separators=(",", ":")).replace("<", "\\u003c")
    scripts = "\n".join(f"<script>\n{_script(_static(name))}\n</script>" for name in _SCRIPTS)
    licenses = "\n".join(_static(name) for name in _LICENSES).replace("--", "- -")
    parts = {"STYLE": _static("style.css"), "LICENSES": licenses, "TRACE": data, "SCRIPTS": scripts}
    text = _static("page.html")
    for name, part in parts.items():
        text = text.replace(f"<!--{name}-->", part, 1)
    return text


def _script(text: str) -> str:
    """Return a script without the sequences that change how HTML reads it; in JavaScript it means the same."""
    return re.sub(r"<(?=!--|/?script)", r"\\x3C", text, flags=re.IGNORECASE)


def _static(name: str) -> str:
    return importlib.resources.files("tinsmith.viz").joinpath("static", *name.split("/")).read_text("utf-8")

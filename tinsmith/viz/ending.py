"""Output of ``VIZ``, ``GRAPH`` and ``JITGRAPH`` at the end of a program, from the trace of its run."""
from __future__ import annotations

import shlex

from tinsmith.core.terminal import show
from tinsmith.core.timeline import output_path
from tinsmith.inspect.trace import Trace, trace_path
from tinsmith.viz.drawing import draw
from tinsmith.viz.page import page
from tinsmith.viz.serve import Server


def finish(trace: Trace) -> None:
    """Draw, write and serve the trace as the settings of the run or of a block require.

    Raises:
        OSError: if a file cannot be written.
    """
    document = trace.document()
    for name in ("graph", "jitgraph"):
        programs = [p for p in document["programs"] if name == "graph" or p["captured"]]
        if trace.wanted.get(name.upper()) and programs:
            drawing = draw(document, programs, document["program"])
            paths = [output_path(f".{name}.{kind}") for kind in ("svg", "dot")]
            paths[0].write_text(drawing.svg(), "utf-8")
            paths[1].write_text(drawing.dot(), "utf-8")
            show(f"{name.upper()}: {paths[0]} and {paths[1]}")
    viz = trace.wanted.get("VIZ", 0)
    if viz:
        path = trace_path()
        trace.write(path)
        show(f"VIZ: the trace is {path}; python -m tinsmith viz {shlex.quote(str(path))} shows it")
    if viz == 1:
        with Server(page(document)) as server:
            show(f"VIZ: {server.url} (Ctrl-C ends)")
            server.wait()

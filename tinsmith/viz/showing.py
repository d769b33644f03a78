"""The ways to show programs: methods of a tensor, and output at the end of a run.

``tensor.graph()`` and ``tensor.viz()`` draw one tensor's program, or show it as a page, without computing it. ``VIZ``,
``GRAPH`` and ``JITGRAPH`` write the trace of a run at its end.
"""
from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tinsmith.core.lazy_import import Late
from tinsmith.core.terminal import plural, show
from tinsmith.core.timeline import output_path
from tinsmith.inspect.trace import Trace, trace_path
from tinsmith.ir import Ops, UOp
from tinsmith.ir.uop import toposort
from tinsmith.runtime.compiled_schedule import CompiledSchedule
from tinsmith.viz.drawing import Box, Drawing, draw
from tinsmith.viz.page import Server, page

if TYPE_CHECKING:
    from tinsmith.inspect import explanation, trace
else:
    explanation = Late("tinsmith.inspect.explanation")
    trace = Late("tinsmith.inspect.trace")


class ServedPage:
    """A page that is being served; a notebook shows it below the cell. ``close`` ends it.

    Attributes:
        url: the address, for this machine's browser only.
        document: the trace.
        html: the page, to be written to a file and sent to someone.
    """

    def __init__(self, document: dict[str, Any]) -> None:
        self.document = document
        self.html = page(document)
        self._server = Server(self.html)
        self.url = self._server.url

    def close(self) -> None:
        """Stop serving."""
        self._server.close()

    def __enter__(self) -> ServedPage:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<View of {plural(len(self.document['programs']), 'program')} at {self.url}>"

    def _repr_html_(self) -> str:
        source = self.html.replace("&", "&amp;").replace('"', "&quot;")
        return f'<iframe srcdoc="{source}" width="100%" height="640" style="border:1px solid #999"></iframe>'


def recorded(make: Callable[[], CompiledSchedule], run: bool) -> dict[str, Any]:
    """Return the trace of the program that ``make`` lowers; ``run`` measures its kernels on separate memory."""
    with trace.recording() as recording:
        compiled = make()
    if run and compiled.steps:
        recording.measured(compiled, explanation.measured(compiled))
    return recording.document()


def graph(make: Callable[[], CompiledSchedule], values: Sequence[UOp]) -> Drawing:
    """Return the drawing of a program's graph; if there is nothing to compute, of the values
    in memory and their views."""
    document = recorded(make, False)
    return draw(document, [p for p in document["programs"] if p["nodes"]]) if document["programs"][0]["nodes"] else (
        _in_memory(values))


def _in_memory(values: Sequence[UOp]) -> Drawing:
    order = toposort(list(values))
    number = {n: i for i, n in enumerate(order)}
    boxes = [Box([n.op.name, f"{n.dtype!r} {n.shape}".removeprefix("dtypes.")],
                 "realized" if n.op is Ops.BUFFER else "view" if n.src else "constant") for n in order]
    return Drawing(boxes, [(number[s], number[n]) for n in order for s in dict.fromkeys(n.src)])


def view(make: Callable[[], CompiledSchedule], run: bool) -> ServedPage:
    """Return a page of the program, which is being served."""
    found = ServedPage(recorded(make, run))
    show(f"viz: {found.url}")
    return found


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

"""``repr`` and notebook display of a tensor: its values if they are cheap, else its shape, dtype and source line.

Cheap values are values in memory, data from the host, and at most FEW values of a small graph. Nothing else is
computed, however small the result: a scalar loss may depend on a full epoch.
"""
from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tinsmith import viz
from tinsmith.backend.device import Device, members
from tinsmith.core.dtypes import dtypes
from tinsmith.core.errors import TinsmithError, place
from tinsmith.core.lazy_import import Late
from tinsmith.core.origin import Origin
from tinsmith.ir import Ops, UOp
from tinsmith.runtime.launch import recorders, seen_on_host
from tinsmith.tensor.host_data import host_values
from tinsmith.tensor.interop import files
from tinsmith.tensor.realize import known_value

if TYPE_CHECKING:
    import html as markup

    from tinsmith.tensor.abstract import AbstractTensor

else:
    markup = Late("html")

FEW: Final = 64  # largest number of elements that is computed for display

NODES: Final = 256  # largest number of nodes of a graph that is computed for display

WORK: Final = 1 << 20  # largest total number of elements of the nodes of such a graph

INTERPRETED: Final = 1 << 12  # the same limit as WORK on a device that interprets kernels

SEEN: Final = 1 << 16  # largest number of elements copied to the host for display from memory it cannot address

WHOLE: Final = 200  # largest number of elements printed in full; above it, only the first and last along each axis

DRAWN: Final = 40  # largest number of nodes of a graph drawn in a notebook


def text(t: AbstractTensor) -> str:
    """Return the text of ``repr``: the values if they are cheap, else ``description``."""
    if t.dtype is dtypes.void or any(isinstance(s, UOp) for s in t.shape):
        return description(t)
    try:
        found = values(t)
    except TinsmithError as error:
        return f"{description(t)[:-1]}: {error.id} {error.op}: {error.message}>"
    if found is None:
        return description(t)
    if found.dtype.kind == "V":  # a float that NumPy has no type for: it would print 1.0 as 1
        found = found.astype(np.float32)
    shown = np.array2string(found, separator=", ", prefix="Tensor(", threshold=WHOLE)
    shape = f", shape={t.shape}" if found.size > WHOLE else ""
    return f"Tensor({shown}{shape}, dtype={t.dtype!r}, device={t.device!r})"


def description(t: AbstractTensor) -> str:
    """Return shape, dtype, device, and the user's source line that made a tensor."""
    origin = _origin(t.uop)
    made = "" if origin is None else f", {origin[0]} ({place(*origin[1:])})" if origin[0] else f", {place(*origin[1:])}"
    return f"<Tensor {t.shape} {t.dtype!r} on {t.device}{made}>"


def html(t: AbstractTensor) -> str:
    """Return the HTML for a notebook: the description of a tensor, its values if they are cheap, and its graph."""
    shown = text(t)
    rows = [f"<div><code>{markup.escape(description(t))}</code></div>"]
    if not shown.startswith("<"):
        rows.append(f"<pre>{markup.escape(shown)}</pre>")
    elif shown != description(t):
        rows.append(f"<pre>{markup.escape(shown[len(description(t)) + 1 : -1])}</pre>")
    order = _nodes(t.uop, DRAWN)
    if order is None:
        rows.append(f"<div>a graph of more than {DRAWN} nodes: <code>.graph()</code> draws it</div>")
    else:
        rows.append(f"<details><summary>graph</summary>{_picture(order)}</details>")
    return "\n".join(rows)


def values(t: AbstractTensor) -> np.ndarray[Any, Any] | None:
    """Return the values of a tensor if they are cheap, else None.

    Raises:
        TinsmithError: if the computation fails.
    """
    size: int = t.uop.size
    if 0 in t.shape or (size <= FEW and _is_quick(t.uop, t._device)):
        return t._array()
    if files.on_disk(t._device):
        return None
    known = known_value(t.uop)
    if known is None:
        return host_values(t.uop) if not recorders and (size <= WORK or _is_data(t.uop)) else None
    buffer = known.base.arg
    buffer.check()
    addressed = buffer.layout is None and not recorders and buffer.host_view() is not None
    return seen_on_host(known) if addressed else t._array() if size <= SEEN else None


def _is_data(uop: UOp) -> bool:
    """Return True if a value is unmodified data from the host: displaying it needs no copy, whatever its size."""
    while uop.op in (Ops.DETACH, Ops.COPY, Ops.RESHAPE):
        uop = uop.src[0]
    return uop.op is Ops.BUFFER


def _is_quick(uop: UOp, device: str) -> bool:
    """Return True if the graph of a value has at most NODES nodes and few elements (WORK or INTERPRETED) in total."""
    order = _nodes(uop, NODES)
    work = 0
    for n in order or ():
        if n.op not in (Ops.BUFFER, Ops.CONST) and n.op.kind != "movement":
            size = n.src[0].size if n.op is Ops.REDUCE else n.size
            work += size.vmax if isinstance(size, UOp) else size
    return order is not None and work <= (INTERPRETED if any(Device[d].interpreted for d in members(device)) else WORK)


def _nodes(uop: UOp, most: int) -> list[UOp] | None:
    """Return the nodes of a graph in topological order, sources first; None if there are more than ``most``."""
    order: dict[UOp, None] = {}
    stack = [uop]
    while stack:
        n = stack[-1]
        missing = [s for s in n.src if s not in order]
        if missing and n not in order:
            stack += missing
        else:
            order[n] = None
            stack.pop()
        if len(order) > most or len(stack) > 4 * most:
            return None
    return list(order)


def _origin(uop: UOp) -> Origin | None:
    """Return the origin (method, file, line) of a value; for a value in memory, that recorded on its buffer, if any."""
    made: Origin | None = uop.base.arg.origin if uop.base.op is Ops.BUFFER else None
    return made or next(reversed(uop.origin), None)


def _picture(order: list[UOp]) -> str:
    """Return an SVG of the recorded graph, before scheduling decides which values are stored or fused."""
    number = {n: i for i, n in enumerate(order)}
    boxes = []
    for n in order:
        state = ("realized" if n.op is Ops.BUFFER else "constant" if not n.src else
                 "view" if n.op.kind == "movement" else "fused")
        name = f"{n.op.name} {n.arg}" if n.op in (Ops.CONST, Ops.REDUCE, Ops.COPY) else n.op.name
        size = f"{n.dtype!r} ({', '.join(map(str, n.shape))})".removeprefix("dtypes.")
        origin = next(reversed(n.origin), None)
        title = "" if origin is None else f"{origin[0]} {place(*origin[1:])}".strip()
        boxes.append(viz.drawing.Box([name[:44], size[:44]], state, title))
    arrows = [(number[s], number[n]) for n in order for s in dict.fromkeys(n.src)]
    return viz.drawing.Drawing(boxes, arrows).own_svg()

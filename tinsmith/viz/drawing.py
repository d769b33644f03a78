"""Drawings: graphs of the programs of a trace (SVG and DOT), and data layouts as text.

Graphviz computes the layout if the package ``graphviz`` and its program ``dot`` are installed; else a built-in layered
layout (Sugiyama) does: each node is below its sources, and near them within its layer. Text drawings show fragments,
swizzles, results and packed panels, made from the compiler's own data.
"""
from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any, Final

from tinsmith.codegen.transform.thread_blocks import thread_axes
from tinsmith.core.terminal import plural
from tinsmith.ir import Ops, UOp
from tinsmith.ir.algebra.sizes import linear_form
from tinsmith.ir.matrix_unit import PIECE_BYTES, ROW_BYTES, StagedLayout
from tinsmith.ir.structure import Role, range_size
from tinsmith.ir.uop import toposort
from tinsmith.viz.fold import folding

if TYPE_CHECKING:
    from tinsmith.codegen.kernel import Kernel
    from tinsmith.ir.matrix_unit import MatrixUnit

MOST: Final = 150  # largest graph drawn node by node; a larger graph is drawn by its groups
# state → meaning, as the legend says it
MEANINGS: Final = {"realized": "in memory", "stored": "written by a kernel or copy",
                   "fused": "computed inside a kernel", "view": "view, costs nothing", "constant": "constant",
                   "group": "group of nodes"}

# State → (fill color, line color), readable in the light and the dark theme of a page.
COLORS: Final = {"realized": ("#cfe3ff", "#3569b5"), "stored": ("#ffe0b3", "#b56a00"), "fused": ("#e4f3dc", "#4f8a36"),
                 "view": ("#ffffff", "#8a8a8a"), "constant": ("#eeeeee", "#8a8a8a"), "group": ("#ece4fb", "#6c48b0")}

# pixels: width of a letter, height of a line, gap between boxes, gap between layers
_WIDE, _LINE, _GAP, _LAYER = 7.0, 15.0, 18.0, 34.0


@dataclass
class Box:
    """A node or group: its lines of text, its state, its tooltip (``title``), and the position of its center."""

    lines: list[str]
    state: str
    title: str = ""
    x: float = 0.0
    y: float = 0.0

    @property
    def width(self) -> float:
        return max(len(line) for line in self.lines) * _WIDE + 16

    @property
    def height(self) -> float:
        return len(self.lines) * _LINE + 10


@dataclass
class Drawing:
    """Boxes, and arrows between their numbers. A notebook shows it as a picture.

    Attributes:
        title: a line above the picture; with it comes a legend of the states.
        parts: (heading, number of the first box, number after the last box) of each program, if there are several.

    >>> d = Drawing([Box(["a"], "realized"), Box(["NEG"], "fused")], [(0, 1)])
    >>> print(d.dot())
    digraph {
      node [shape=box style="filled,rounded" fontname="monospace" fontsize=11]
      n0 [label="a" fillcolor="#cfe3ff" color="#3569b5"]
      n1 [label="NEG" fillcolor="#e4f3dc" color="#4f8a36"]
      n0 -> n1
    }
    >>> d.own_svg().count("<rect"), d.own_svg().count("<path")
    (3, 2)
    """

    boxes: list[Box] = field(default_factory=list)
    arrows: list[tuple[int, int]] = field(default_factory=list)
    title: str = ""
    parts: list[tuple[str, int, int]] = field(default_factory=list)

    def __repr__(self) -> str:
        return f"<Drawing of {plural(len(self.boxes), 'node')}; svg() and dot() return its text>"

    def dot(self) -> str:
        """Return the drawing in the DOT language."""
        rows = ['digraph {', '  node [shape=box style="filled,rounded" fontname="monospace" fontsize=11]']
        # after the clusters, which would take the attributes over
        end = [f'  labelloc=t fontname="sans-serif" label=<{self._dot_legend()}>'] if self.title else []
        boxes = [_dot_box(n, b) for n, b in enumerate(self.boxes)]
        if len(self.parts) > 1:
            for number, (heading, first, last) in enumerate(self.parts):
                rows += [f"  subgraph cluster_{number} {{",
                         f'    label="{_quoted(heading)}" fontname="sans-serif" color="#bbbbbb"',
                         *(f"  {row}" for row in boxes[first:last]), "  }"]
        else:
            rows += boxes
        return "\n".join([*rows, *(f"  n{a} -> n{b}" for a, b in self.arrows), *end, "}"])

    def _dot_legend(self) -> str:
        """Return the title and the legend as a label of the DOT language, an HTML table."""
        states = self._states()
        cells = "".join(f'<td bgcolor="{COLORS[s][0]}" color="{COLORS[s][1]}" border="1">{MEANINGS[s]}</td>'
                        for s in states)
        title = f'<td colspan="{max(1, len(states))}"><b>{escape(self.title)}</b></td>'
        legend = f"<tr>{cells}</tr>" if cells else ""
        return f'<table border="0" cellspacing="6"><tr>{title}</tr>{legend}</table>'

    def _states(self) -> list[str]:
        """Return the states of the boxes, in the order of the legend."""
        present = {b.state for b in self.boxes}
        return [s for s in MEANINGS if s in present]

    def svg(self) -> str:
        """Return the drawing as SVG, laid out by Graphviz if it is installed."""
        with contextlib.suppress(ImportError):
            import graphviz

            with contextlib.suppress(graphviz.ExecutableNotFound):
                return str(graphviz.Source(self.dot()).pipe("svg", encoding="utf-8"))
        return self.own_svg()

    def own_svg(self) -> str:
        """Return the drawing as SVG with our own layout."""
        top, head, wide = 0.0, list[str](), 0.0
        if self.title:
            head, wide = _svg_legend(self.title, self._states())
            top = 2 * _LINE + 18
        ways = list[list[Box]]()
        for heading, first, last in self.parts or [("", 0, len(self.boxes))]:
            if len(self.parts) > 1:
                head.append(f'<text x="10" y="{top + 16:.1f}" fill="#555">{escape(heading)}</text>')
                wide = max(wide, len(heading) * _WIDE + 10)
                top += _LINE + 6
            boxes = self.boxes[first:last]
            inside = [(a - first, b - first) for a, b in self.arrows if first <= a < last]
            ways += _placed(boxes, inside, top)
            top = max((b.y + b.height / 2 for b in boxes), default=top) + 10
        wide = max((wide, *(b.x + b.width / 2 for b in self.boxes))) + 10
        high = max(top, 10.0)
        rows = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide:.0f}" height="{high:.0f}" '
                f'viewBox="0 0 {wide:.0f} {high:.0f}" font-family="monospace" font-size="11.5">',
                '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
                'orient="auto"><path d="M0 0 8 4 0 8z" fill="#888"/></marker></defs>',
                '<rect width="100%" height="100%" fill="#fff"/>']
        rows += head
        rows += [_arrow(way) for way in ways]
        rows += [_box(b) for b in self.boxes]
        return "\n".join([*rows, "</svg>"])

    def _repr_svg_(self) -> str:
        return self.svg()


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _dot_box(number: int, b: Box) -> str:
    fill, line = COLORS[b.state]
    label = "\\n".join(_quoted(t) for t in b.lines)
    title = f' tooltip="{_quoted(b.title)}"' if b.title else ""
    dashed = ' style="filled,rounded,dashed"' if b.state == "view" else ""
    return f'  n{number} [label="{label}" fillcolor="{fill}" color="{line}"{dashed}{title}]'


def _svg_legend(title: str, states: Sequence[str]) -> tuple[list[str], float]:
    """Return the elements of the title and the legend in SVG, and their width."""
    rows, x = [f'<text x="10" y="20" font-weight="bold" fill="#111">{escape(title)}</text>'], 10.0
    for state in states:
        fill, line = COLORS[state]
        width = len(MEANINGS[state]) * _WIDE + 12
        rows.append(f'<rect x="{x:.1f}" y="28" rx="3" width="{width:.1f}" height="18" fill="{fill}" stroke="{line}"/>'
                    f'<text x="{x + width / 2:.1f}" y="41" text-anchor="middle" fill="#111">{MEANINGS[state]}</text>')
        x += width + 6
    return rows, max(x, len(title) * 1.1 * _WIDE + 10)


def _arrow(way: Sequence[Box]) -> str:
    """Return the SVG path of an arrow: a curve from a box through the gaps in the layers between to another box."""
    path = f"M{way[0].x:.1f} {way[0].y + way[0].height / 2:.1f}"
    for a, b in itertools.pairwise(way):
        y0, y1 = a.y + a.height / 2, b.y - b.height / 2
        middle = (y0 + y1) / 2
        path += f"L{a.x:.1f} {y0:.1f}C{a.x:.1f} {middle:.1f} {b.x:.1f} {middle:.1f} {b.x:.1f} {y1:.1f}"
    return f'<path d="{path}" fill="none" stroke="#888" marker-end="url(#arrow)"/>'


def _box(b: Box) -> str:
    fill, line = COLORS[b.state]
    dashed = ' stroke-dasharray="4 3"' if b.state == "view" else ""
    top = b.y - b.height / 2
    texts = "".join(f'<text x="{b.x:.1f}" y="{top + 16 + n * _LINE:.1f}" text-anchor="middle" fill="#111">'
                    f"{escape(t)}</text>" for n, t in enumerate(b.lines))
    return (f'<g><title>{escape(b.title)}</title><rect x="{b.x - b.width / 2:.1f}" y="{top:.1f}" rx="4" '
            f'width="{b.width:.1f}" height="{b.height:.1f}" fill="{fill}" stroke="{line}"{dashed}/>{texts}</g>')


# *** layout ***
def _placed(boxes: Sequence[Box], arrows: Sequence[tuple[int, int]], top: float) -> list[list[Box]]:
    """Set the position of every box, below ``top``; return the path of each arrow, with an empty box in each layer that
    it crosses."""
    depth = _depths(len(boxes), arrows)
    every, short, ways = list(boxes), list[tuple[int, int]](), list[list[int]]()
    for a, b in arrows:
        way = [a]
        for d in range(depth[a] + 1, depth[b]):
            way.append(len(every))
            every.append(Box([""], "view"))
            depth.append(d)
        ways.append([*way, b])
        short += itertools.pairwise(ways[-1])
    layers: list[list[int]] = [[] for _ in range(max(depth, default=-1) + 1)]
    for n, d in enumerate(depth):
        layers[d].append(n)
    _place(every, short, [layer for layer in layers if layer], top)
    return [[every[n] for n in way] for way in ways]


def _depths(count: int, arrows: Sequence[tuple[int, int]]) -> list[int]:
    """Return the layer of each box: below its sources, and as close above its readers as possible.

    Boxes are numbered sources first, except for the few arrows of folded graphs that lead back.
    """
    depth = [0] * count
    forward = sorted((a, b) for a, b in arrows if a < b)
    for a, b in forward:
        depth[b] = max(depth[b], depth[a] + 1)
    readers: dict[int, list[int]] = {}
    for a, b in forward:
        readers.setdefault(a, []).append(b)
    for n in reversed(range(count)):
        if n in readers:
            depth[n] = min(depth[r] for r in readers[n]) - 1
    return depth


def _place(boxes: Sequence[Box], arrows: Sequence[tuple[int, int]], layers: list[list[int]],
           top: float) -> None:
    """Order each layer by the mean of its neighbours, in eight alternating sweeps, and set
    positions (barycenter method)."""
    near: dict[int, list[int]] = {n: [] for n in range(len(boxes))}
    for a, b in arrows:
        near[a].append(b)
        near[b].append(a)
    y = top + 10.0
    for layer in layers:
        high = max(boxes[n].height for n in layer)
        for n in layer:
            boxes[n].y = y + high / 2
        y += high + _LAYER
        _spread(boxes, layer, dict.fromkeys(layer, 0.0))
    for turn in range(8):
        for layer in layers if turn % 2 == 0 else reversed(layers):
            wanted = {n: sum(boxes[m].x for m in near[n]) / len(near[n]) if near[n] else boxes[n].x for n in layer}
            layer.sort(key=wanted.__getitem__)
            _spread(boxes, layer, wanted)
    left = min((b.x - b.width / 2 for b in boxes), default=0.0)
    for box in boxes:
        box.x += 10 - left


def _spread(boxes: Sequence[Box], layer: Sequence[int], wanted: Mapping[int, float]) -> None:
    """Set x positions in a layer: as wanted if there is space; boxes that would overlap
    become a block around their mean."""
    blocks: list[tuple[list[int], float, float]] = []  # members, their middle, their width
    for n in layer:
        members, middle, width = [n], wanted[n], boxes[n].width
        while blocks and blocks[-1][1] + blocks[-1][2] / 2 + _GAP > middle - width / 2:
            others, their, wide = blocks.pop()
            middle = (their * len(others) + middle * len(members)) / (len(others) + len(members))
            members, width = others + members, wide + _GAP + width
        blocks.append((members, middle, width))
    for members, middle, width in blocks:
        x = middle - width / 2
        for n in members:
            boxes[n].x = x + boxes[n].width / 2
            x += boxes[n].width + _GAP


# *** from a trace ***
def draw(document: Mapping[str, Any], programs: Sequence[Mapping[str, Any]], name: str = "") -> Drawing:
    """Return a drawing of the graphs of some programs of a trace: each node by node, or by its groups if it is too
    large. Constants and their views have no boxes: they are shown in the box of their reader. The title begins with
    ``name``."""
    drawing = Drawing()
    for program in programs:
        first = len(drawing.boxes)
        if len(program["nodes"]) <= MOST:
            _nodes(drawing, document, program)
        else:
            _groups(drawing, document, program)
        drawing.parts.append((_heading(document, program), first, len(drawing.boxes)))
    kernels = sum(item["kernel"] is not None for p in programs for item in p["items"])
    counts = [plural(len(programs), "program")] * (len(programs) > 1) + [
        plural(kernels, "kernel"), plural(sum(len(p["nodes"]) for p in programs), "node")]
    drawing.title = ": ".join(filter(None, (name, ", ".join(counts))))
    return drawing


def _heading(document: Mapping[str, Any], program: Mapping[str, Any]) -> str:
    _, file, line = document["origins"][program["line"]] if program["line"] >= 0 else ("", "", 0)
    place = f"{file.rsplit('/', 1)[-1]}:{line}" if line else ""
    captured = f"captured by TinyJit from {program['captured']}" if program["captured"] else ""
    return ", ".join(filter(None, (f"program {program['number']}", captured, place,
                                   plural(sum(i["kernel"] is not None for i in program["items"]), "kernel"))))


def _nodes(drawing: Drawing, document: Mapping[str, Any], program: Mapping[str, Any]) -> None:
    """Add the nodes of a program's graph without its constants, and the arrows between them, to a drawing."""
    nodes = program["nodes"]
    constants = _constants(nodes)
    place: dict[int, int] = {}
    for n, row in enumerate(nodes):
        if n not in constants:
            place[n] = len(drawing.boxes)
            drawing.boxes.append(_node(document, program, row, constants))
            drawing.arrows += [(place[s], place[n]) for s in dict.fromkeys(row[4]) if s in place]


def _constants(nodes: Sequence[Sequence[Any]]) -> dict[int, str]:
    """Return the text of each constant, and of each view and cast of one, that other nodes read."""
    found: dict[int, str] = {}
    for n, (op, _, _, arg, sources, _, state, *_) in enumerate(nodes):
        if op == "CONST":
            found[n] = _number(arg)
        elif len(sources) == 1 and sources[0] in found and (state == "view" or (state == "fused" and op == "CAST")):
            found[n] = found[sources[0]]
    read = {s for row in nodes for s in row[4]}
    return {n: text for n, text in found.items() if n in read}


def _number(text: str) -> str:
    """Return a constant with at most six digits, as a label has space for.

    >>> _number("0.3333333432674408"), _number("7"), _number("True")
    ('0.333333', '7', 'True')
    """
    with contextlib.suppress(ValueError):
        return f"{float(text):.6g}" if "." in text else text
    return text


def _node(document: Mapping[str, Any], program: Mapping[str, Any], node: Sequence[Any],
          constants: Mapping[int, str]) -> Box:
    op, dtype, shape, arg, sources, origin, state, items = node[:8]
    size = ", ".join(map(str, shape))
    name = f"{op} {arg}".strip() if state in ("constant", "realized") or op in ("REDUCE", "COPY") else op
    if any(s in constants for s in sources):
        name = f"{name}({', '.join(constants.get(s, '·') for s in sources)})"
    lines = [name[:44], f"{dtype} ({size})"[:44]]
    if state == "stored" and items:
        lines.append(program["items"][items[0]]["name"][:44])
    method, file, line = document["origins"][origin] if origin >= 0 else ("", "", 0)
    return Box(lines, state, f"{state}: {op} {arg} {method} {file.rsplit('/', 1)[-1]}:{line}" if line else state)


def _groups(drawing: Drawing, document: Mapping[str, Any], program: Mapping[str, Any]) -> None:
    """Add the topmost groups of a program's graph, and the arrows between them, to a drawing, without constants."""
    nodes = program["nodes"]
    constants = _constants(nodes)
    groups = folding(document, program).groups
    place: dict[int, int] = {}
    for kid in groups[-1]["kids"]:
        inside = [n for n in _members(groups, kid) if n not in constants]
        if not inside:
            continue
        place |= dict.fromkeys(inside, len(drawing.boxes))
        if kid >= 0:
            drawing.boxes.append(_node(document, program, nodes[kid], constants))
        else:
            last = nodes[inside[-1]]
            drawing.boxes.append(Box([groups[-1 - kid]["label"][:44], plural(len(inside), "node"),
                                      f"{last[1]} ({', '.join(map(str, last[2]))})"[:44]], "group"))
    arrows = dict.fromkeys((place[s], place[n]) for n, row in enumerate(nodes) for s in row[4]
                           if n not in constants and s not in constants)
    drawing.arrows += [(a, b) for a, b in arrows if a != b]


def _members(groups: Sequence[Mapping[str, Any]], kid: int) -> list[int]:
    """Return the nodes in a group, or the node itself."""
    found, stack = list[int](), [kid]
    while stack:
        k = stack.pop()
        if k >= 0:
            found.append(k)
        else:
            stack += groups[-1 - k]["kids"]
    return sorted(found)

_DOTS = "…"


def table(rows: Iterable[Sequence[str]]) -> str:
    """Return cells aligned in columns.

    >>> print(table([("", "a"), ("10", "bc")]))
        a
    10  bc
    """
    lines = [list(row) for row in rows]
    widths = [max(len(line[n]) for line in lines if n < len(line)) for n in range(max(map(len, lines)))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines)


def fragment(unit: MatrixUnit, operand: str = "c", rows: int = 16, columns: int = 16) -> str:
    """Return a table of the lane and register (``l3.0``) that holds each element of a matrix unit's operand.

    For a unit that loads its own tiles: the index of the element in the tile's memory.

    Args:
        operand: ``"a"``, ``"b"`` or ``"c"``.
        rows, columns: the part that is drawn.

    >>> from tinsmith.target.units.x86 import fma
    >>> from tinsmith.core.dtypes import dtypes
    >>> print(fragment(fma(dtypes.float32, 16)))
       0     1     2     3
    0  l0.0  l0.1  l0.2  l0.3
    """
    found = getattr(unit, f"fragment_{operand}")
    places, held = found.places(), dict[tuple[int, int], str]()
    for lane, register in itertools.product(range(places.shape[0]), range(places.shape[1])):
        row, column = (int(x) for x in places[lane, register])
        held.setdefault((row, column), str(register) if found.whole else f"l{lane}.{register}")
    height, width = (max(at[n] for at in held) + 1 for n in (0, 1))
    more = [_DOTS] * (width > columns)
    lines = [["", *map(str, range(min(width, columns))), *more]]
    lines += [[str(r), *(held[r, c] for c in range(min(width, columns))), *more] for r in range(min(height, rows))]
    return table([*lines, [_DOTS]] if height > rows else lines)


def swizzle(layout: StagedLayout, rows: int = 8) -> str:
    """Return a table of the columns in each 16 bytes of a chunk's rows, by the banks of shared memory (4 bytes
    each).

    >>> print(swizzle(StagedLayout(64, 64, 1, deep=True), rows=3))
    banks  0…3    4…7    8…11   12…15  16…19  20…23  24…27  28…31
    row 0  0…7    8…15   16…23  24…31  32…39  40…47  48…55  56…63
    row 1  8…15   0…7    24…31  16…23  40…47  32…39  56…63  48…55
    row 2  16…23  24…31  0…7    8…15   48…55  56…63  32…39  40…47
    """
    wide = layout.columns * PIECE_BYTES // ROW_BYTES
    pieces = range(ROW_BYTES // PIECE_BYTES)
    banks = [f"{piece * 4}…{piece * 4 + 3}" for piece in pieces]
    lines = [["banks", *banks]]
    for row in range(rows):
        at = {layout.byte(row, piece * wide) % ROW_BYTES // PIECE_BYTES: piece for piece in pieces}
        lines.append([f"row {row}", *(f"{at[p] * wide}…{at[p] * wide + wide - 1}" for p in pieces)])
    return table(lines)


def result(kernel: Kernel, runs: int = 4, cells: int = 6) -> str:
    """Return a table of the thread, register and lanes that hold each element of a kernel's first result.

    Each line is a run of elements that are contiguous in memory, at the given offset from the first element.
    """
    threads, pitch = dict[UOp, int](), 1
    for axis in thread_axes(kernel):
        threads |= dict.fromkeys(axis, pitch)
        pitch *= range_size(axis[0])
    index = kernel.stores[0].src[1]
    terms, ranges = linear_form(index)[0], sorted(index.ranges, key=lambda r: r.arg[0])
    copies, lanes = ([r for r in ranges if r.arg[1] is role] for role in (Role.UPCAST, Role.VECTOR))
    found = []
    inside = [*(r for r in ranges if r in threads), *copies, *lanes]
    for values in itertools.product(*(range(range_size(r)) for r in inside)):
        at = dict(zip(inside, values))
        thread = f"t{sum(at[r] * step for r, step in threads.items() if r in at)}" if threads else ""
        name = " ".join(filter(None, (thread, f"r{_position(copies, at)}" if copies else "")))
        found.append((sum(terms.get(r, 0) * n for r, n in at.items()), name, _position(lanes, at)))
    lines, before = list[tuple[int, list[tuple[str, list[int]]]]](), -2
    for offset, name, lane in sorted(found):
        if offset != before + 1:
            lines.append((offset, []))
        parts, before = lines[-1][1], offset
        if not parts or parts[-1][0] != name:
            parts.append((name, []))
        parts[-1][1].append(lane)
    shown = [[f"+{offset}", *(_cell(*part) for part in parts[:cells]), *([_DOTS] * (len(parts) > cells))]
             for offset, parts in lines[:runs]]
    return table([*shown, [_DOTS]] if len(lines) > runs else shown)


def _position(ranges: Sequence[UOp], at: dict[UOp, int]) -> int:
    total = 0
    for r in ranges:
        total = total * range_size(r) + at[r]
    return total


def _cell(name: str, lanes: list[int]) -> str:
    return f"{name}[{lanes[0]}…{lanes[-1]}]" if len(lanes) > 1 else name or f"[{lanes[0]}]"


def panels(kernel: Kernel, rows: int = 3, cells: int = 8) -> str:
    """Return the content of each stage that copies an argument, in the order of its memory.

    Cells are indices into the argument; each line is one step of the stage's slowest range.
    """
    parts = []
    for stage in (n for n in toposort(kernel.sink) if n.op is Ops.STAGE):
        inside = toposort(stage.src[0])
        load = next((n for n in inside if n.op is Ops.LOAD and n.src[0].op is Ops.PARAM), None)
        if load is None or any(n.op in (Ops.FOLD, Ops.MMA) for n in inside):
            continue
        sizes, ranges = tuple(stage.arg), stage.src[1:]
        title, lines = f"data{load.src[0].arg[0]} in {' × '.join(map(str, sizes))}", []
        inner = 1
        for size in reversed(sizes[1:]):
            inner *= size
        for first in range(0, min(rows, sizes[0]) * inner, inner):
            found = [_source(load.src[1], ranges, sizes, place) for place in range(first, first + min(cells, inner))]
            lines.append([f"{first}:", *map(str, found), *([_DOTS] * (inner > cells))])
        parts.append(f"{title}\n{table(lines)}")
    return "\n".join(parts)


def _source(index: UOp, ranges: Sequence[UOp], sizes: Sequence[int], place: int) -> int:
    """Return the index in the argument of the element at ``place`` in the stage, with all enclosing ranges at 0."""
    values = {}
    for r, size in zip(reversed(ranges), reversed(sizes)):
        values[r], place = UOp.index(place % size), place // size
    at_zero = {r: UOp.index(0) for r in index.ranges if r not in values}
    return int(index.substitute(values | at_zero).simplify().arg)

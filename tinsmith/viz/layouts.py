"""Text drawings of data layouts (fragments, swizzles, results, packed panels), made from the compiler's own data."""
from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from tinsmith.codegen.transform.thread_blocks import thread_axes
from tinsmith.ir import Ops, UOp
from tinsmith.ir.algebra.linear import linear_form
from tinsmith.ir.ranges import Role, range_size
from tinsmith.ir.staged_layout import PIECE_BYTES, ROW_BYTES, StagedLayout
from tinsmith.ir.uop import toposort

if TYPE_CHECKING:
    from tinsmith.codegen.kernel import Kernel
    from tinsmith.ir.matrix_unit import MatrixUnit

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
        rows, columns: how much of it is drawn.

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
        name = " ".join(filter(None, (thread, f"r{_number(copies, at)}" if copies else "")))
        found.append((sum(terms.get(r, 0) * n for r, n in at.items()), name, _number(lanes, at)))
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


def _number(ranges: Sequence[UOp], at: dict[UOp, int]) -> int:
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

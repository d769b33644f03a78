"""Text forms of every level: the tutorials' tree and table, indented kernel graphs, and node listings.

The text is deterministic: it depends on the graph alone, never on ids or addresses, and tests compare it.
"""
from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tinsmith.core.dtypes import dtypes
from tinsmith.ir.algebra.bounds import bound_ranges, start_of
from tinsmith.ir.ops import Op, Ops
from tinsmith.ir.text.node import argument_text, expression, short
from tinsmith.ir.uop import Moves, UOp, toposort, tracker
from tinsmith.shape import ShapeTracker

# *** the table of a linear program ***

_ALU_GROUP = {"unary": "UnaryOps", "binary": "BinaryOps", "ternary": "TernaryOps"}


def uop_table(linear: Sequence[UOp]) -> str:
    """Return the tutorials' numbered table: number, op, dtype, sources (constants quoted, else row numbers), argument.

    Constants with the same text share one row.

    >>> print(uop_table([UOp.const(dtypes.int32, 2)]))
       0 UOps.CONST          : dtypes.int                []                               2
    """
    return "\n".join(text for _, text in table_rows(linear))


def table_rows(linear: Sequence[UOp]) -> list[tuple[UOp, str]]:
    """Return the rows of ``uop_table``, each with the node it shows (for merged constants, the first one)."""
    kept = list(_unlike(linear))
    last = {_identity(n): i for i, n in enumerate(kept)}
    seen: dict[Any, int] = {}
    rows = []
    for i, n in enumerate(kept):
        sources: list[str | int] = []
        for s in n.src:
            key = _identity(s)
            found = seen.get(key, last.get(key))
            sources.append(str(s.arg) if s.op is Ops.CONST else short(s) if found is None else found)
        seen[_identity(n)] = i
        name = "UOps.ALU" if n.op.alu else f"UOps.{n.op.name}"
        dtype = "" if n.dtype is dtypes.void else repr(n.dtype)
        rows.append((n, f"{i:4d} {name:20s}: {dtype:25s} {sources!s:32s} {_table_arg(n)}"))
    return rows


def _unlike(linear: Sequence[UOp]) -> Iterator[UOp]:
    seen = set()
    for n in linear:
        if n.op is Ops.CONST:
            if _identity(n) in seen:
                continue
            seen.add(_identity(n))
        yield n


def _identity(node: UOp) -> Any:
    return ("CONST", repr(node.dtype), str(node.arg)) if node.op is Ops.CONST else node


def _table_arg(n: UOp) -> str:
    if n.op.alu:
        return f"{_ALU_GROUP[n.op.kind]}.{n.op.name}"
    if n.op is Ops.DEFINE_ACC:
        return str((n.arg,))
    return argument_text(n.arg)


# *** the tree of a kernel's tensor graph ***

REDUCE_NAME = {"ADD": "SUM", "MUL": "PROD"}

State = tuple[UOp, Moves]
Writer = Callable[[UOp, Moves], tuple[str, list[State]]]


def kernel_tree(sink: UOp, notes: Mapping[UOp, str] | None = None, folded: Mapping[UOp, str] | None = None) -> str:
    """Return the tutorials' tree of a kernel: one STORE per output; movement ops appear in the ShapeTrackers of the
    leaves.

    PARAMs 0, 1, ... are the outputs. A movement op above a reduction stays a node. A subtree printed before is shown as
    a reference to its line.

    Args:
        notes: text appended to a node's line.
        folded: replacement text of a node; its sources are not printed.

    >>> x = UOp(Ops.PARAM, dtypes.int32, (), (1, (2,)))
    >>> for line in kernel_tree(UOp(Ops.SINK, None, (x.reduce("ADD", (0,)),))).splitlines():
    ...     print(line[:40])
      0 ━┳ STORE MemBuffer(idx=0, dtype=dtyp
      1  ┗━┳ SUM (0,)
      2    ┗━━ LOAD MemBuffer(idx=1, dtype=d
    """
    return "\n".join(text for _, text in tree_rows(sink, notes, folded))


def tree_rows(sink: UOp, notes: Mapping[UOp, str] | None = None,
              folded: Mapping[UOp, str] | None = None) -> list[tuple[UOp, str]]:
    """Return the lines of ``kernel_tree``, each with the node it shows."""
    lines: list[tuple[UOp, str]] = []
    seen: dict[State, int] = {}
    write = functools.partial(_tree_node, notes=notes or {}, folded=folded or {})
    for number, value in enumerate(sink.src):
        while value.op is Ops.RESHAPE:  # output memory is flat: a final RESHAPE changes nothing
            value = value.src[0]
        text = f"STORE {mem_buffer(number, value, ShapeTracker.from_shape(value.shape))}"
        lines.append((value, f"{len(lines):3d} ━┳ {text}"))
        _branches(lines, seen, (value, ()), write)
    return lines


def _branches(lines: list[tuple[UOp, str]], seen: dict[State, int], root: State, write: Writer) -> None:
    """Append the lines of the tree below ``root``, depth first."""
    stack: list[tuple[State, str, bool]] = [(root, "", True)]
    while stack:
        state, prefix, is_last = stack.pop()
        (node, moves) = state = collected(*state)
        branch = f"{prefix} {'┗' if is_last else '┣'}━"
        if state in seen:
            lines.append((node, f"{len(lines):3d} {branch}━ #{seen[state]}"))
            continue
        seen[state] = len(lines)
        text, children = write(node, moves)
        lines.append((node, f"{len(lines):3d} {branch}{'┳' if children else '━'} {text}"))
        below = prefix + ("  " if is_last else " ┃")
        stack += [(c, below, i == 0) for i, c in enumerate(reversed(children))]


def collected(node: UOp, moves: Moves) -> State:
    """Return the node below the movement ops on top of ``node``, and these ops behind ``moves``."""
    while node.op.kind == "movement":
        node, moves = node.src[0], (*moves, node)
    return node, moves


def _tree_node(node: UOp, moves: Moves, notes: Mapping[UOp, str],
               folded: Mapping[UOp, str]) -> tuple[str, list[State]]:
    """Return a line's text and the (node, movement ops) pairs printed below it."""
    if node in folded:
        return folded[node], []
    if not node.src or node.op is Ops.BIND:
        seen = tracker(node, moves)
        if seen is not None:
            return _leaf(node, seen), []
    elif not moves or (node.op.elementwise and may_push(node, moves)):
        return f"{_inner(node)} {notes.get(node, '')}".rstrip(), [(s, moves) for s in node.src]
    return f"{moves[0].op.name} {argument_text(moves[0].arg)}", [(node, moves[1:])]


def may_push(node: UOp, moves: Moves) -> bool:
    """Return True if ``moves`` on an elementwise node can be applied to its sources instead."""
    return node.op.keeps_zero or all(m.op not in (Ops.PAD, Ops.UNWINDOW) for m in moves)


def _inner(node: UOp) -> str:
    if node.op is Ops.REDUCE:
        return f"{REDUCE_NAME.get(node.arg[0].name, node.arg[0].name)} {node.arg[1]}"
    if node.op.kind == "cast":
        return f"{node.op.name} {node.dtype!r}"
    return node.op.name if node.arg is None else f"{node.op.name} {argument_text(node.arg)}"


def _leaf(node: UOp, tracker: ShapeTracker) -> str:
    if node.op is Ops.PARAM:
        return f"LOAD {mem_buffer(node.arg[0], node, tracker)}"
    name = short(node) if node.op is Ops.BIND else f"{node.op.name} {argument_text(node.arg)}"
    return f"{name} st={tracker}"


def mem_buffer(number: int, value: UOp, tracker: ShapeTracker) -> str:
    """Return the tutorials' text of a kernel's buffer."""
    return f"MemBuffer(idx={number}, dtype={value.dtype.scalar!r}, st={tracker})"


# *** the lowered kernel graph ***

def kernel_graph_text(sink: UOp) -> str:
    """Return a lowered kernel as indented text: its ranges, then each store with its index, condition and value.

    >>> i = UOp.range(16, 0, None)
    >>> to, of = (UOp(Ops.PARAM, dtypes.float32.ptr(), (), (n, (16,))) for n in (0, 1))
    >>> print(kernel_graph_text(UOp(Ops.SINK, None, (to.store(i, of.load(i).alu("EXP")),))))
      0 SINK over R0:16
      1   STORE data0[R0]
      2     EXP dtypes.float
      3       LOAD data1[R0] dtypes.float
    """
    return "\n".join(text for _, text in graph_rows(sink))


def graph_rows(sink: UOp) -> list[tuple[UOp, str]]:
    """Return the lines of ``kernel_graph_text``, each with the node it shows."""
    rows: list[tuple[UOp, str]] = []
    line: dict[UOp, int] = {}
    stack: list[tuple[UOp, int]] = [(sink, 0)]
    while stack:
        node, level = stack.pop()
        start = f"{len(rows):3d} {'  ' * level}"
        if node in line and node.src:
            rows.append((node, f"{start}#{line[node]}"))
            continue
        line[node] = len(rows)
        text, below = _graph_node(node)
        rows.append((node, start + text))
        stack += [(s, level + 1) for s in reversed(below)]
    return rows


def _graph_node(n: UOp) -> tuple[str, tuple[UOp, ...]]:
    """Return a line's text and the nodes that get their own lines below it."""
    if n.op is Ops.SINK:
        ranges = sorted((r for r in toposort(n) if r.op is Ops.RANGE), key=lambda r: r.arg[0])
        over = f" over {_ranges(ranges)}" if ranges else ""
        return n.op.name + over, n.src
    if n.op in (Ops.LOAD, Ops.STORE, Ops.SCATTER_STORE) and len(n.src) >= 2:
        place = f"{_memory(n.src[0])}[{expression(n.src[1])}]"
        at = 3 if n.op is not Ops.LOAD else 2
        valid = f" if {expression(n.src[at])}" if len(n.src) > at else ""
        ordered = f" in order of {_ranges(n.src[4:])}" if n.op is Ops.SCATTER_STORE else ""
        dtype = f" {n.dtype!r}" if n.op is Ops.LOAD else ""
        below = (*n.src[2:3], *_values(n.src[1])) if n.op is not Ops.LOAD else _values(n.src[1])
        memory = (n.src[0],) if n.src[0].op is Ops.STAGE else ()
        return f"{n.op.name} {place}{dtype}{valid}{ordered}", (*memory, *below, *(_values(n.src[at]) if valid else ()))
    if n.op in (Ops.FOLD, Ops.STAGE):
        what = f"{n.arg.name} " if isinstance(n.arg, Op) else f"{argument_text(n.arg)} "
        start = start_of(n)
        more, below = (" from the second", (n.src[0], start)) if start is not None else ("", n.src[:1])
        return f"{n.op.name} {what}{n.dtype!r} over {_ranges(bound_ranges(n))}{more}", below
    if n.op is Ops.PREFIX:
        return f"PREFIX {n.arg.name} {n.dtype!r} in order of {expression(n.src[1])}", (n.src[0], *n.src[2:])
    if n.op is Ops.MMA:
        return f"MMA {n.arg} {n.dtype!r} at {_ranges(n.src[2:4])} over {_ranges(n.src[4:])}", n.src[:2]
    if not n.src or _is_index(n):
        return expression(n), _values(n)
    arg = "" if n.arg is None else f" {argument_text(n.arg)}"
    dtype = "" if n.dtype is dtypes.void else f" {n.dtype!r}"
    return f"{n.op.name}{dtype}{arg}", n.src


def _ranges(ranges: Sequence[UOp]) -> str:
    return ", ".join(_range(r) for r in ranges)


def _range(r: UOp) -> str:
    if r.op is not Ops.RANGE:
        return short(r)
    role = getattr(r.arg[1], "name", "")
    bounds = ":".join(short(s) for s in r.src)
    notes = [f"×{note}" if isinstance(note, int) else note for note in r.arg[2:]]  # elements per step of a partial one
    return " ".join([f"R{r.arg[0]}:{bounds}", *([role] if role else []), *notes])


def _memory(n: UOp) -> str:
    return f"data{n.arg[0]}" if n.op is Ops.PARAM else "stage" if n.op is Ops.STAGE else short(n)


def _is_index(n: UOp) -> bool:
    return n.dtype is dtypes.index or (n.dtype is dtypes.bool and n.op.alu)


def _values(index: UOp) -> tuple[UOp, ...]:
    """Return the loads and reductions that an index or condition is computed from."""
    found = []
    for n in toposort(index, lambda n: n.op not in (Ops.FOLD, Ops.LOAD) and not _is_leaf_value(n)):
        found += [s for s in n.src if s.op in (Ops.FOLD, Ops.LOAD) or _is_leaf_value(s)]
    return tuple(dict.fromkeys(found)) if index.op not in (Ops.FOLD, Ops.LOAD) else (index,)


def _is_leaf_value(n: UOp) -> bool:
    return bool(n.src) and n.op is not Ops.RANGE and not n.op.elementwise


# *** any graph, as a list: what the verifiers print ***


def listing_rows(root: UOp) -> list[tuple[UOp, str]]:
    """Return one line per node of the graph, sources first, with sources given as line numbers."""
    number = {n: i for i, n in enumerate(toposort(root))}
    rows = []
    for n, i in number.items():
        sources = [number[s] for s in n.src]
        rows.append((n, f"{i:4d} {n.op.name:14s}: {n.dtype!r:22s} {sources!s:16s} {argument_text(n.arg)}"))
    return rows

"""A kernel as the tutorials' ``LazyOp``: nested ops, with the views of their buffers at the leaves."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from tinsmith.ir import Ops, UOp
from tinsmith.ir.movement import Moves, tracker
from tinsmith.ir.text.node import argument_text
from tinsmith.ir.text.printer import REDUCE_NAME, State, collected, may_push, mem_buffer
from tinsmith.runtime.listing import ScheduledItem
from tinsmith.shape import ShapeTracker

_GROUP: Final = {"unary": "UnaryOps", "cast": "UnaryOps", "binary": "BinaryOps", "ternary": "TernaryOps",
                 "movement": "MovementOps"}


@dataclass(frozen=True, eq=False)
class LazyOp:
    """One op of a kernel; printed, the whole kernel below it.

    >>> from tinsmith import Tensor
    >>> print("\\n".join(line[:43] for line in str(kernel(Tensor([1, 2]).sum().schedule()[-1].sink)).splitlines()))
    LazyOp(MetaOps.KERNEL, arg=None, src=(
      LazyOp(BufferOps.STORE, arg=MemBuffer(idx
        LazyOp(ReduceOps.SUM, arg=(0,), src=(
          LazyOp(BufferOps.LOAD, arg=MemBuffer(

    Attributes:
        op: its group and name, as in ``BinaryOps.MUL``.
        arg: text of its argument.
        src: the ops that it reads.
    """

    op: str
    arg: str
    src: tuple[LazyOp, ...]

    def __repr__(self) -> str:
        """The tutorials' text; an op that several read is written once and named ``x0``, ``x1``, …"""
        names: dict[int, str] = {}
        shared = _shared(self)
        lines: list[str] = []
        stack: list[tuple[LazyOp | str, int]] = [(self, 0)]
        while stack:
            node, depth = stack.pop()
            if isinstance(node, str):
                lines[-1] += node
                continue
            known = names.get(id(node))
            if known is not None:
                lines.append("  " * depth + known)
                continue
            name = ""
            if id(node) in shared:
                names[id(node)] = name = f"x{len(names)}"
                name += ":="
            lines.append(f"{'  ' * depth}{name}LazyOp({node.op}, arg={node.arg}, src=({'' if node.src else '))'}")
            stack += [("))", 0)] if node.src else []
            for s in reversed(node.src):
                stack += [(",", 0), (s, depth + 1)]
        return "\n".join(lines)


def _shared(root: LazyOp) -> set[int]:
    """Return the ids of the ops that are read more than once and read something themselves."""
    seen: set[int] = set()
    shared: set[int] = set()
    stack = [root]
    while stack:
        node = stack.pop()
        if id(node) in seen:
            shared |= {id(node)} if node.src else set()
            continue
        seen.add(id(node))
        stack += node.src
    return shared


def kernel(sink: UOp) -> LazyOp:
    """Return a kernel's graph as ``LazyOp``: a STORE for each output."""
    made: dict[State, LazyOp] = {}
    stores = []
    for number, value in enumerate(sink.src):
        while value.op is Ops.RESHAPE:  # the output's memory has no shape of its own
            value = value.src[0]
        memory = mem_buffer(number, value, ShapeTracker.from_shape(value.shape))
        stores.append(LazyOp("BufferOps.STORE", memory, (_built((value, ()), made),)))
    return LazyOp("MetaOps.KERNEL", "None", tuple(stores))


def _built(root: State, made: dict[State, LazyOp]) -> LazyOp:
    """Return the LazyOp of ``root``, built bottom-up; ``made`` holds the ones built already."""
    root = collected(*root)
    stack = [root]
    while stack:
        state = stack[-1]
        op, arg, children = _parts(*state)
        below = [collected(*c) for c in children]
        missing = [c for c in below if c not in made]
        if missing:
            stack += missing
            continue
        stack.pop()
        made.setdefault(state, LazyOp(op, arg, tuple(made[c] for c in below)))
    return made[root]


def _parts(node: UOp, moves: Moves) -> tuple[str, str, list[State]]:
    """Return the op's name, the text of its argument, and its sources."""
    if not node.src or node.op is Ops.BIND:
        seen = tracker(node, moves)
        if seen is not None:
            return _leaf(node, seen)
    elif not moves or (node.op.elementwise and may_push(node, moves)):
        return *_inner(node), [(s, moves) for s in node.src]
    return f"MovementOps.{moves[0].op.name}", argument_text(moves[0].arg), [(node, moves[1:])]


def _leaf(node: UOp, seen: ShapeTracker) -> tuple[str, str, list[State]]:
    if node.op is Ops.PARAM:
        return "BufferOps.LOAD", mem_buffer(node.arg[0], node, seen), []
    if node.op is Ops.CONST:
        return "BufferOps.CONST", f"ConstBuffer(val={node.arg}, dtype={node.dtype!r}, st={seen})", []
    return f"MetaOps.{node.op.name}", f"{argument_text(node.arg)} st={seen}", []


def _inner(node: UOp) -> tuple[str, str]:
    if node.op is Ops.REDUCE:
        name = node.arg[0].name
        return f"ReduceOps.{REDUCE_NAME.get(name, name)}", str(node.arg[1])
    group = _GROUP.get(node.op.kind, "MetaOps")
    return f"{group}.{node.op.name}", repr(node.dtype) if node.op.kind == "cast" else argument_text(node.arg)


def ast(item: ScheduledItem) -> Any:
    """Return the kernel of a schedule item as ``LazyOp``; of a copy, the item itself."""
    return item if item.sink is None else kernel(item.sink)

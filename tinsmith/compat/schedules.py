"""tinygrad's schedules, captures and ops, as the tutorials use them.

* Schedules, over ``Tensor.schedule`` and ``CommandQueue``.
* The capture API: ``TinyJit`` with its additional arguments, and ``function``.
* ``LazyOp``: a kernel as nested ops, with the views of its buffers at the leaves.
* Op groups of older tinygrad versions, and the op names of its linear programs, over Tinsmith's op table.
"""
from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final, TypeVar

from tinsmith.backend.memory import Buffer
from tinsmith.core.errors import ArgumentError
from tinsmith.ir import Ops, UOp
from tinsmith.ir.builder import SPELLINGS
from tinsmith.ir.ops import op_table
from tinsmith.ir.text.node import argument_text
from tinsmith.ir.text.printer import REDUCE_NAME, State, collected, may_push, mem_buffer
from tinsmith.ir.uop import Moves, tracker
from tinsmith.ir.verify import PROGRAM_OPS
from tinsmith.jit import TinyJit as _TinyJit
from tinsmith.runtime.command_queue import CommandQueue
from tinsmith.runtime.compiled_schedule import CompiledSchedule
from tinsmith.runtime.listing import ScheduledItem
from tinsmith.shape import ShapeTracker
from tinsmith.tensor.tensor import Tensor


def create_schedule(outs: Sequence[UOp | Tensor], seen: Any = None) -> CompiledSchedule:
    """Return the program that computes ``outs``: tensors, or their ``lazydata``.

    >>> len(create_schedule([Tensor([1, 2]).dot(Tensor([3, 4])).lazydata]).steps)
    3
    """
    first, *others = (Tensor(out) if isinstance(out, UOp) else out for out in outs)
    return first.schedule(*others)


def create_schedule_with_vars(outs: Sequence[UOp | Tensor],
                              seen: Any = None) -> tuple[CompiledSchedule, dict[UOp, int]]:
    """Return the program, and the values of the variables that it was made for."""
    return Tensor.schedule_with_vars(*(Tensor(out) if isinstance(out, UOp) else out for out in outs))


def run_schedule(schedule: CompiledSchedule, var_vals: Any = None, do_update_stats: bool = True) -> list[Buffer]:
    """Run a tensor's schedule on the buffers that it was made for; the results are the buffers that it returns.

    >>> [b.numpy().tolist() for b in run_schedule(create_schedule([Tensor([1, 2]) + 1]))]
    [[2, 3]]
    """
    return CommandQueue(schedule)()

R = TypeVar("R")


class TinyJit(_TinyJit[R]):
    """Tinsmith's ``TinyJit``; ``prune`` has no effect, because a replay runs only the kernels that its results depend
    on.

    >>> from tinsmith import Tensor
    >>> step = TinyJit(lambda x: x + 1, prune=True)
    >>> [step(Tensor([i])).tolist() for i in range(3)], step.captured is step
    ([[1], [2], [3]], True)

    A counter that the function raises, or a list that it appends to, sees two calls, as there: replays run no Python.
    """

    changes_state = True

    def __new__(cls, fxn: Callable[..., R] | None = None, **kwargs: Any) -> Any:
        return functools.partial(cls, **kwargs) if fxn is None else super().__new__(cls)

    def __init__(self, fxn: Callable[..., R], prune: bool = False, **kwargs: Any) -> None:
        super().__init__(fxn, **kwargs)
        self.prune = prune

    @property
    def captured(self) -> TinyJit[R] | None:
        """The capture that the next call of its kind replays, with its ``jit_cache``; None before there is one."""
        return self if self._last is not None else None


def function(fxn: Callable[..., R] | None = None, *, precompile: bool = False, precompile_backward: bool = False,
             allow_implicit: bool = False, grad_fxn: Callable[..., Any] | None = None) -> Any:
    """The function itself: its graph becomes part of its caller's, and equal parts of graphs are compiled once anyway.

    >>> @function
    ... def double(x): return x * 2
    >>> double(3)
    6

    Raises:
        ArgumentError: for a gradient of one's own.
    """
    if grad_fxn is not None:
        raise ArgumentError("function", "a gradient of one's own (grad_fxn) is a class here",
                            "a subclass of tinsmith.tensor.autograd.function.Function with forward and backward")
    return functools.partial(function, precompile=precompile) if fxn is None else fxn

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
        """Return the tutorials' text; an op that several read is written once and named ``x0``, ``x1``, …"""
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


def _group(kind: str, *more: str) -> SimpleNamespace:
    """Return the ops of a kind by name, with older spellings."""
    found = {op.name: op for op in op_table() if op.kind == kind}
    return SimpleNamespace(**found, **{name: getattr(Ops, SPELLINGS.get(name, name)) for name in more})

UnaryOps: Final = _group("unary", "CAST", "BITCAST")
BinaryOps: Final = _group("binary", "DIV")
TernaryOps: Final = _group("ternary", "MULACC")
ReduceOps: Final = SimpleNamespace(SUM=Ops.ADD, MAX=Ops.MAX)
BufferOps: Final = SimpleNamespace(LOAD=Ops.LOAD, STORE=Ops.STORE, CONST=Ops.CONST)
MetaOps: Final = SimpleNamespace(KERNEL=Ops.SINK, EMPTY=Ops.BUFFER, CONST=Ops.CONST, COPY=Ops.COPY,
                                 CONTIGUOUS=Ops.CONTIGUOUS, ASSIGN=Ops.ASSIGN)
LoadOps: Final = MetaOps  # as it was called before


def _realized(self: UOp) -> Any:
    """Return the memory of a value that has been computed, else None (there: ``LazyBuffer.realized``)."""
    base = self.base
    return base.arg if base.op is Ops.BUFFER and base.arg.is_allocated() else None


def _buffer(self: UOp) -> Any:
    """Return the memory of a value that has some.

    Raises:
        ArgumentError: for a value that is not computed yet.
    """
    base = self.base
    if base.op is not Ops.BUFFER:
        raise ArgumentError("UOp.buffer", f"{base.op.name} has no memory yet", "Tensor.realize() first")
    return base.arg

# Attributes of tinygrad's nodes, of today's UOp and of the tutorials' LazyBuffer.
ATTRIBUTES: Final = {
    "realized": property(_realized), "is_realized": property(lambda self: _realized(self) is not None),
    "buffer": property(_buffer), "srcs": property(lambda self: self.src), "_base": property(lambda self: self.base)}

# Names for ProgramBuilder.add (there: UOpGraph.add), as text.
UOps: Final = SimpleNamespace(**{name: name for name in (
    "ALU", *(op.name for op in op_table() if op in PROGRAM_OPS), *SPELLINGS)})

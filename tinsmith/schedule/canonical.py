"""Canonical graphs: what tells programs apart, whatever buffers and values they are run on."""
from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tinsmith.backend.memory import Buffer, Layout
from tinsmith.core.dtypes import dtypes
from tinsmith.ir import Ops, UOp
from tinsmith.ir.ops import FOR_GRADIENTS
from tinsmith.ir.symbols import bindings, symbols, with_symbols
from tinsmith.ir.uop import toposort

_NAMED = (Ops.ASSIGN, Ops.CONTIGUOUS)  # their argument matters to gradients only


def canonical(roots: Sequence[UOp]) -> tuple[list[UOp], list[UOp], list[int]]:
    """The graph with its BUFFERs and bound values numbered by first visit: (graph, buffers, values).

    A buffer over several devices takes a number for each of its parts.
    """
    new: dict[UOp, UOp] = {}
    buffers: list[UOp] = []
    count = 0
    order = toposort(roots)
    bound = bindings(order)
    for number, n in enumerate(bound):
        fresh = UOp.variable(f"v{number}", *n.src[0].arg[1:])
        new[n] = UOp(Ops.BIND, None, (fresh, UOp.const(dtypes.int32, number)))  # no index: it is no value of a size
    names = dict(new)
    for n in order:
        if n.op is Ops.BUFFER:
            name = buffer_name(count, n.arg)
            new[n] = UOp(Ops.BUFFER, n.dtype, (), name)
            buffers.append(n)
            count += len(part_names(name))
        elif n.op in FOR_GRADIENTS:
            new[n] = new.get(n.src[0], n.src[0])
        elif n.src and n not in names:
            src = tuple(new.get(s, s) for s in n.src)
            arg = with_symbols(n.arg, names) if names and n.op.kind == "movement" else None if n.op in _NAMED else n.arg
            if arg is not n.arg or any(a is not b for a, b in zip(src, n.src)):
                new[n] = made = n.replace(src=src, arg=arg)
                made.origin = n.origin or made.origin  # an equal graph of other lines may be there already
    values = [n.src[1].arg for n in bound]
    return [new.get(r, r) for r in roots], buffers, values


def structure(roots: Sequence[UOp]) -> tuple[tuple[Any, ...], list[UOp], list[int]] | None:
    """What tells canonical graphs apart, and their buffers and bound values, without building them.

    Two graphs of equal structure have equal canonical graphs. None: symbolic sizes need the whole graph.
    """
    numbers: dict[UOp, Any] = {}  # node → its row; leaves but BUFFERs stand for themselves where they are read
    rows: list[Any] = []
    buffers: list[UOp] = []
    values: list[int] = []
    number = numbers.__getitem__
    stack: list[tuple[Any, Iterator[UOp]]] = [(None, iter(roots))]
    while True:
        n, sources = stack[-1]
        for s in sources:
            if s in numbers:
                continue
            if s.src:
                stack.append((s, iter(s.src)))
                break
            if s.op is Ops.BUFFER:
                numbers[s] = len(rows)
                rows.append((s.dtype, s.arg.size, s.arg.layout or s.device))
                buffers.append(s)
            else:
                numbers[s] = s
        else:
            stack.pop()
            if n is None:
                return (*rows, *map(number, roots)), buffers, values
            op, src = n.op, n.src
            if op in FOR_GRADIENTS:
                numbers[n] = numbers[src[0]]
                continue
            numbers[n] = len(rows)
            if op is Ops.BIND:
                rows.append((op, *src[0].arg[1:], len(values)))
                values.append(src[1].arg)
            elif op.kind == "movement" and n.arg not in _plain and not _is_plain(n.arg):
                return None
            else:
                rows.append((op, n.dtype, None if op in _NAMED else n.arg, *map(number, src)))


_plain: set[Any] = set()  # arguments of movement ops without symbolic sizes


def _is_plain(arg: Any) -> bool:
    if any(True for _ in symbols(arg)):
        return False
    if len(_plain) > 10_000:
        _plain.clear()
    _plain.add(arg)
    return True


@dataclass(frozen=True)
class BufferName:
    """Stands for a buffer in a canonical graph; one over several devices has a ``layout``."""

    number: int
    size: int
    device: str
    layout: Layout | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.size,) if self.layout is None else self.layout.shape


def buffer_name(number: int, b: Buffer) -> BufferName:
    """The name of ``b`` as the ``number``-th buffer."""
    return BufferName(number, b.size, b.device, b.layout)


def part_names(name: BufferName) -> list[BufferName]:
    """The names of a buffer's parts, which are numbered from the buffer's number on."""
    layout = name.layout
    if layout is None:
        return [name]
    return [BufferName(name.number + i, math.prod(layout.part_shape(i)), device)
            for i, device in enumerate(layout.devices)]

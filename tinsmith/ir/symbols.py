"""Symbolic integers inside the arguments of movement ops, and their variable bindings."""
from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from tinsmith.ir.ops import Ops
from tinsmith.ir.uop import UOp, Window, toposort


def symbols(arg: Any) -> Iterator[UOp]:
    """Yield the symbolic integers inside an argument: a shape, padding, box or Window."""
    if isinstance(arg, UOp):
        yield arg
    elif type(arg) is tuple:
        for a in arg:
            yield from symbols(a)
    elif isinstance(arg, Window):
        yield from symbols((arg.inputs, arg.outputs))


def with_symbols(arg: Any, table: dict[UOp, UOp]) -> Any:
    """Return an argument with ``table`` substituted in its symbolic integers."""
    if isinstance(arg, UOp):
        return arg.substitute(table)
    if isinstance(arg, Window):
        inputs, outputs = with_symbols((arg.inputs, arg.outputs), table)
        return replace(arg, inputs=inputs, outputs=outputs)
    return tuple(with_symbols(a, table) for a in arg) if type(arg) is tuple else arg


def bindings(order: Iterable[UOp]) -> list[UOp]:
    """Return the BIND nodes among ``order`` and in the arguments of its movement ops, in first-visit order."""
    found: dict[UOp, None] = {}
    for n in order:
        if n.op is Ops.BIND:
            found[n] = None
        elif n.op.kind == "movement":
            for u in symbols(n.arg):
                found.update(dict.fromkeys(b for b in toposort(u) if b.op is Ops.BIND))
    return list(found)

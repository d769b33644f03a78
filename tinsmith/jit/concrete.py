"""Graphs of captures over ranges of sizes with plain sizes in place of their variables."""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from tinsmith.ir import Ops, UOp
from tinsmith.ir.algebra.sizes import bindings, symbols, with_symbols
from tinsmith.ir.uop import toposort
from tinsmith.schedule.passes.dynamic_sizes import WITHOUT_SIZES

NAME: Final = "size#"  # of variables, with their numbers


def flat(arg: Any) -> Iterator[Any]:
    """Yield the items of nested tuples."""
    if isinstance(arg, tuple):
        for a in arg:
            yield from flat(a)
    else:
        yield arg


def plain_arg(arg: Any) -> Any:
    """Return the argument of a view operation with values in place of variables."""
    return concrete_arg(arg, {b: b.src[1] for b in bindings_in(arg)}) if isinstance(arg, tuple) else arg


def bindings_in(arg: Any) -> list[UOp]:
    """Return the variables of captures over ranges in the sizes of an argument."""
    return [b for s in flat(arg) if isinstance(s, UOp) for b in toposort(s) if is_range(b)]


def is_range(node: UOp) -> bool:
    """Return True for a bound variable of a capture over a range of sizes."""
    return node.op is Ops.BIND and node.src[0].arg[0].startswith(NAME) and node.src[0].arg[0][len(NAME):].isdigit()


def concrete_arg(arg: Any, table: dict[UOp, UOp]) -> Any:
    """Return sizes with variables replaced by constants, as integers where nothing else is left."""
    if isinstance(arg, UOp):
        found = arg.substitute(table).simplify()
        return found.arg if found.is_const else found
    if type(arg) is tuple:
        return tuple(concrete_arg(a, table) for a in arg)
    return with_symbols(arg, table)


def plain(uops: Sequence[UOp], whole: dict[int, UOp]) -> dict[UOp, UOp]:
    """Return the nodes of a graph that depend on sizes, with values in place of their variables and buffers of the
    actual sizes.

    Args:
        whole: id of a buffer of the greatest size → the node of the actual one.
    """
    order = toposort(uops)
    table = {b: UOp.index(b.src[1].arg) for b in bindings(order) if is_range(b)}
    if not table and not any(n.op is Ops.BUFFER and id(n.arg) in whole for n in order):
        return {}
    return concrete(uops, table, lambda b: whole.get(id(b)) or _actual(b))


def _actual(buffer: Any) -> UOp | None:
    """Return the node of the memory below a result of the greatest size."""
    base = getattr(buffer, "base", None)
    return None if base is None or buffer.size <= base.size else UOp(Ops.BUFFER, base.dtype, (), base)


def concrete(uops: Sequence[UOp], table: dict[UOp, UOp], memory: Callable[[Any], UOp | None]) -> dict[UOp, UOp]:
    """Return the nodes of a graph with constants for variables, by their old nodes. A shrink that keeps everything is
    dropped.

    Args:
        table: the constants of the variables; other replacements are kept as they are.
        memory: a function from a buffer to the node that replaces its BUFFER, or None.
    """
    new = dict(table)
    for n in toposort(uops, lambda n: n not in table):
        if n in new:
            continue
        src = tuple(new.get(s, s) for s in n.src)
        if n.op is Ops.BUFFER:
            new[n] = memory(n.arg) or n
        elif n.op.kind == "movement":
            arg = concrete_arg(n.arg, table) if n.op not in WITHOUT_SIZES and any(symbols(n.arg)) else n.arg
            if n.op is Ops.SHRINK and all(box == (0, size) for box, size in zip(arg, src[0].shape)):
                new[n] = src[0]
            elif arg is n.arg and src == n.src:
                new[n] = n
            else:
                new[n] = n.replace(src=src, arg=arg)
        else:
            new[n] = n if src == n.src else n.replace(src=src)
    return new

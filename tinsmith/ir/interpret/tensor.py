"""Reference interpreter for tensor graphs: evaluates them op by op with NumPy and so defines their meaning.

The value of each op is its row's ``meaning`` and nothing else. It is slow and simple on purpose: the scheduler, fusion,
the optimizer and the renderers are tested against it. ``evaluate_kernel`` is the counterpart for kernel graphs.
"""
from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from tinsmith.core.dtypes import DType, dtypes
from tinsmith.ir.ops import Op, Ops
from tinsmith.ir.ops.op import Array
from tinsmith.ir.uop import UOp, toposort

_GIVEN = (Ops.BUFFER, Ops.PARAM, Ops.VARIABLE)


def evaluate(roots: Sequence[UOp], inputs: Mapping[UOp, Any] | None = None) -> list[Array]:
    """Return the values of ``roots`` as arrays (scalars as 0-d arrays); ``inputs`` holds the values of BUFFERs, PARAMs
    and VARIABLEs.

    A variable that has a BIND needs no input.

    >>> x = UOp(Ops.PARAM, dtypes.int32, (), (0, (3,)))
    >>> evaluate([x * 2, x.reduce("ADD", (0,))], {x: np.array([1, 2, 3], np.int32)})
    [array([2, 4, 6], dtype=int32), array([6], dtype=int32)]

    Raises:
        KeyError: if an input is missing.
        ValueError: if the dtype or size of an input differs from its node's.
        TypeError: if a node's op has no meaning in a tensor graph.
    """
    given = dict(inputs or {})
    nodes = toposort(roots)
    sizes = {n: int(v) for n, v in given.items() if n.op is Ops.VARIABLE}
    sizes |= {n.src[0]: n.src[1].arg for n in nodes if n.op is Ops.BIND}
    values: dict[UOp, Array] = {}
    with np.errstate(all="ignore"):
        for node in nodes:
            values[node] = _value(node, [values[s] for s in node.src], given, sizes)
    return [values[r] for r in roots]


def _value(node: UOp, sources: list[Array], given: Mapping[UOp, Any], sizes: Mapping[UOp, int]) -> Array:
    if node.op in _GIVEN:
        return _given(node, given, sizes)
    if node.op.meaning is None or node.dtype is dtypes.void:
        raise TypeError(f"{node.op.name} has no value in a tensor graph: {node!r}")
    out = np.asarray(node.op.meaning(_concrete(node, sizes), *sources))
    shape = _plain(node.shape, sizes)
    if out.dtype != node.dtype.numpy or out.shape != shape:
        raise AssertionError(f"{node.op.name}: its meaning returned {out.dtype}{out.shape}, its rules say "
                             f"{node.dtype}{shape}: {node!r}")
    return out


def _given(node: UOp, given: Mapping[UOp, Any], sizes: Mapping[UOp, int]) -> Array:
    if node.op is Ops.VARIABLE and node in sizes:
        return np.asarray(sizes[node], node.dtype.numpy)
    if node not in given:
        raise KeyError(f"no input for {node!r}")
    value, shape = np.asarray(given[node]), _plain(node.shape, sizes)
    if value.dtype != node.dtype.numpy or value.size != int(np.prod(shape)):
        raise ValueError(f"{node!r} is {node.dtype} of shape {shape}; its input {value.dtype} of shape {value.shape}")
    return value.reshape(shape)


def _concrete(node: UOp, sizes: Mapping[UOp, int]) -> UOp:
    """Return ``node`` with the symbolic sizes in its argument replaced by this run's values."""
    if node.op.kind != "movement" and node.op is not Ops.IOTA:
        return node
    arg = _plain(node.arg, sizes)
    return node if arg == node.arg else node.replace(arg=arg)


def _plain(value: Any, sizes: Mapping[UOp, int]) -> Any:
    if isinstance(value, UOp):
        return evaluate_scalar(value, sizes)
    return tuple(_plain(v, sizes) for v in value) if isinstance(value, tuple) else value


# *** scalars, in Python integers, which never overflow ***


def _shift(f: Callable[[int, int], int]) -> Callable[[int, int], int]:
    """Wrap a shift: amounts that are negative or ≥ 64 give -1 for a right shift of a negative number, else 0."""
    return lambda x, y: f(x, y) if 0 <= y < 64 else (-1 if x < 0 and f is operator.rshift else 0)


_EXACT: dict[Op, Callable[..., int]] = {
    Ops.NEG: operator.neg, Ops.TRUNC: int, Ops.ADD: operator.add, Ops.SUB: operator.sub, Ops.MUL: operator.mul,
    Ops.IDIV: lambda x, y: x // y if y else 0, Ops.MOD: lambda x, y: x % y if y else 0, Ops.MAX: max, Ops.MIN: min,
    Ops.CMPLT: operator.lt, Ops.CMPEQ: operator.eq, Ops.CMPNE: operator.ne, Ops.AND: operator.and_,
    Ops.OR: operator.or_, Ops.XOR: operator.xor, Ops.SHL: _shift(operator.lshift), Ops.SHR: _shift(operator.rshift),
    Ops.WHERE: lambda c, x, y: x if c else y, Ops.MULADD: lambda x, y, z: x * y + z, Ops.CAST: int,
}


_INFIX: Final = {Ops.ADD: "+", Ops.SUB: "-", Ops.MUL: "*", Ops.CMPLT: "<", Ops.CMPEQ: "==", Ops.CMPNE: "!="}


def evaluate_scalar(node: UOp, known: Mapping[UOp, int]) -> int:
    """Return the value of an integer or bool expression as a Python int; ``known`` holds the values of its ranges,
    variables and parameters.

    Index arithmetic is exact; arithmetic of other dtypes wraps.

    >>> i = UOp.variable("i", 0, 9)
    >>> evaluate_scalar((i * 5 + 3) // 4, {i: 7})
    9
    """
    values: dict[UOp, int] = dict(known)
    for n in toposort(node, lambda n: n not in known and n.op not in _LEAVES):
        if n.op is Ops.CONST:
            values[n] = n.arg
        elif n.op is Ops.BIND:
            values[n] = n.src[1].arg
        elif n.op in _EXACT:
            values[n] = _wrapped(n.dtype, _EXACT[n.op](*(_known(values, s) for s in n.src)))
        else:
            raise TypeError(f"{n.op.name} is not index arithmetic: {n!r}")
    return _known(values, node)


_LEAVES = (Ops.RANGE, *_GIVEN)


def evaluator(nodes: Sequence[UOp], inputs: Sequence[UOp]) -> Callable[[Sequence[int]], list[int]]:
    """Return a compiled function from values of ``inputs`` to values of ``nodes``, which must be index arithmetic on
    them.

    >>> i, j = UOp.variable("i", 0, 9), UOp.variable("j", 0, 9)
    >>> evaluator([i * j + 1, i // 2], [i, j])([5, 3])
    [16, 2]
    """
    found = toposort(nodes, lambda n: n not in inputs and n.op is not Ops.VARIABLE)
    names = {n: f"given[{at}]" for at, n in enumerate(inputs)}
    space: dict[str, Any] = {}
    lines: list[str] = []
    for n in found:
        if n in names:
            continue
        if n.op in (Ops.CONST, Ops.BIND):
            names[n] = repr(n.arg if n.op is Ops.CONST else n.src[1].arg)
        elif n.op in _EXACT:
            sources = [names[s] for s in n.src]
            if n.op in _INFIX:
                text = f"({sources[0]}) {_INFIX[n.op]} ({sources[1]})"
            else:
                space[f"f{len(lines)}"] = _EXACT[n.op]
                text = f"f{len(lines)}({', '.join(sources)})"
            names[n] = f"t{len(lines)}"
            lines.append(f"    {names[n]} = {text}")
    source = "\n".join(["def values(given):", *lines, f"    return [{', '.join(names[n] for n in nodes)}]"])
    exec(compile(source, "<sizes>", "exec"), space)
    values: Callable[[Sequence[int]], list[int]] = space["values"]
    return values


def _known(values: Mapping[UOp, int], node: UOp) -> int:
    if node not in values:
        raise KeyError(f"no value for {node!r}")
    return values[node]


def _wrapped(dtype: DType, value: int) -> int:
    if dtype is dtypes.index:
        return int(value)
    found = dtype.as_const(value)
    assert isinstance(found, int), dtype
    return found

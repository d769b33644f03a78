"""Random tensor graphs, their values by ``ir.interpret.tensor``, and a bound on the rounding error of any evaluation
order."""
from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tinsmith.backend.memory import Buffer
from tinsmith.core.dtypes import dtypes
from tinsmith.ir import Ops, UOp
from tinsmith.ir.interpret.tensor import evaluate
from tinsmith.ir.uop import Window, toposort
from tinsmith.runtime.realize import realize

Array = np.ndarray[Any, Any]
INTS = (dtypes.int32, dtypes.uint8, dtypes.int64)
FLOATS = (dtypes.float32, dtypes.float64)
LARGEST = 600  # elements of any node


@dataclass
class Graph:
    """The nodes created so far. Floats that are small integers stay exact in every order of computation."""

    device: str = "CPU"
    inputs: dict[UOp, Array] = field(default_factory=dict)
    pool: list[UOp] = field(default_factory=list)
    magnitude: dict[UOp, float] = field(default_factory=dict)  # of exact floats; none: rounded

    def add(self, node: UOp, magnitude: float | None = None) -> UOp:
        if magnitude is not None and magnitude < 1 << 24:
            self.magnitude[node] = max(magnitude, self.magnitude.get(node, 0))
        self.pool.append(node)
        return node

    def buffer(self, values: Array) -> UOp:
        dtype = dtypes.from_numpy(values.dtype)
        memory = Buffer(self.device, values.size, dtype).copyin(memoryview(values.reshape(-1).view(np.uint8)))
        base = UOp(Ops.BUFFER, dtype, (), memory)
        self.inputs[base] = values
        return base.reshape(values.shape)


class Builder:
    """A generator of a random graph, step by step."""

    def __init__(self, number: Callable[[int, int], int], device: str = "CPU") -> None:
        self.number, self.graph = number, Graph(device)  # number(low, high): both ends included

    def one(self, values: Any) -> Any:
        return values[self.number(0, len(values) - 1)]

    def shape(self, most: int = 3) -> tuple[int, ...]:
        return tuple(self.one((1, 2, 3, 4, 5, 7, 8)) for _ in range(self.number(1, most)))

    def pick(self, *kinds: str) -> UOp | None:
        found = [n for n in self.graph.pool if not kinds or any(getattr(n.dtype, k) for k in kinds)]
        return self.one(found[::-1]) if found else None

    # *** leaves ***

    def leaf(self) -> None:
        shape = self.shape()
        dtype = self.one((*FLOATS, *INTS, dtypes.bool))
        random = np.random.default_rng(self.number(0, 5))
        values = random.integers(0 if dtype.is_unsigned else -4, 5, shape).astype(dtype.numpy)
        self.graph.add(self.graph.buffer(values), 5)

    def constant(self) -> None:
        shape = self.shape()
        if self.number(0, 1):
            dtype = self.one((*FLOATS, *INTS))
            self.graph.add(UOp.const(dtype, self.number(0, 3)).expand_to(shape), 3)
        else:
            self.graph.add(UOp.iota(shape[0]).reshape((shape[0], *(1,) * (len(shape) - 1))).expand(shape))

    # *** movement ***

    def same(self, new: UOp, old: UOp) -> UOp:
        return self.graph.add(new, self.graph.magnitude.get(old))

    def movement(self) -> None:
        x = self.pick()
        assert x is not None
        how = self.one(("reshaped", "permuted", "padded", "shrunk", "flipped", "repeated", "windowed"))
        new = getattr(self, how)(x)
        if new.size <= LARGEST:
            self.same(new, x)

    def reshaped(self, x: UOp) -> UOp:
        left, shape = x.size, []
        for prime in (2, 2, 2, 3, 5, 7):
            if left % prime == 0 and self.number(0, 1):
                shape.append(prime)
                left //= prime
        shape.insert(self.number(0, len(shape)), left)
        return x.reshape(tuple(shape))

    def permuted(self, x: UOp) -> UOp:
        order: list[int] = []
        for a in range(x.ndim):
            order.insert(self.number(0, a), a)
        return x.permute(tuple(order))

    def padded(self, x: UOp) -> UOp:
        return x.pad(tuple((self.number(0, 2), self.number(0, 2)) for _ in x.shape))

    def shrunk(self, x: UOp) -> UOp:
        box = []
        for s in x.shape:
            begin = self.number(0, s - 1)
            box.append((begin, self.number(begin + 1, s)))
        return x.shrink(tuple(box))

    def flipped(self, x: UOp) -> UOp:
        return x.flip(tuple(a for a in range(x.ndim) if self.number(0, 1)))

    def repeated(self, x: UOp) -> UOp:
        at, count = self.number(0, x.ndim), self.number(2, 3)
        apart = x.reshape((*x.shape[:at], 1, *x.shape[at:]))
        return apart.expand((*x.shape[:at], count, *x.shape[at:]))

    def windowed(self, x: UOp) -> UOp:
        axis = self.number(0, x.ndim - 1)
        taps, stride, dilation = self.number(1, 3), self.number(1, 2), self.number(1, 2)
        outputs = (x.shape[axis] - dilation * (taps - 1) - 1) // stride + 1
        if outputs < 1:
            return x
        wide = x.reshape((*x.shape, 1)).expand((*x.shape, taps))
        window = Window(axis, x.ndim, stride, dilation, x.shape[axis], outputs)
        seen = wide.window(window)
        return seen.unwindow(window) if self.number(0, 3) == 0 else seen

    def fit(self, x: UOp, shape: tuple[int, ...]) -> UOp:
        """Return ``x`` shrunk, padded and expanded to ``shape``."""
        while x.ndim > len(shape):
            x = x.reshape((x.shape[0] * x.shape[1], *x.shape[2:]))
        x = x.reshape((*x.shape, *(1,) * (len(shape) - x.ndim)))
        x = x.shrink(tuple((0, min(a, b)) for a, b in zip(x.shape, shape)))
        x = x.pad(tuple((0, b - a if a != 1 else 0) for a, b in zip(x.shape, shape)))
        return x.expand(shape)

    # *** computing ***

    def unary(self) -> None:
        x = self.pick("is_float", "is_int")
        if x is None:
            return
        m = self.graph.magnitude.get(x)
        kind = self.number(0, 3)
        if kind == 0:
            self.graph.add(-x, m)
        elif kind == 1 and (m is not None or x.dtype.is_int):
            to = self.one((*FLOATS, *INTS))
            exact = to.is_float and (x.dtype is dtypes.uint8 or m is not None)
            if not to.is_float or exact:
                self.graph.add(x.cast(to), 255 if x.dtype is dtypes.uint8 else m)
        elif x.dtype.is_float:
            self.graph.add(UOp(self.one((Ops.SIN, Ops.EXP2)), None, (self.bounded(x),)))

    def bounded(self, x: UOp) -> UOp:
        return x.maximum(-4).minimum(4)

    def binary(self) -> None:
        x = self.pick()
        assert x is not None
        other = self.one([n for n in self.graph.pool if n.dtype is x.dtype][::-1])
        y = self.fit(other, x.shape)
        a, b = self.graph.magnitude.get(x), self.graph.magnitude.get(other)
        if x.dtype.is_bool:
            self.graph.add(UOp(self.one((Ops.AND, Ops.OR, Ops.XOR)), None, (x, y)))
            return
        op = self.one((Ops.ADD, Ops.SUB, Ops.MUL, Ops.MAX, Ops.MIN, Ops.CMPLT, Ops.CMPEQ, Ops.IDIV, Ops.XOR))
        if x.dtype.is_float and op in (Ops.IDIV, Ops.XOR):
            return
        exact = a is not None and b is not None
        if op in (Ops.CMPLT, Ops.CMPEQ) and x.dtype.is_float and not exact:
            return
        size = None if not exact else a * b if op is Ops.MUL else a + b  # type: ignore[operator]
        if x.dtype.is_float and size is not None and size >= 1 << 24:
            size = None
        if x.dtype.is_float and not exact and op is Ops.MUL:
            x, y = self.bounded(x), self.bounded(y)
        self.graph.add(UOp(op, None, (x, y)), size if x.dtype.is_float else None)

    def where(self) -> None:
        c, x = self.pick("is_bool"), self.pick()
        if c is None or x is None:
            return
        y = self.fit(self.one([n for n in self.graph.pool if n.dtype is x.dtype]), x.shape)
        self.graph.add(UOp(Ops.WHERE, None, (self.fit(c, x.shape), x, y)))

    def reduce(self) -> None:
        x = self.pick()
        assert x is not None
        axes = tuple(a for a in range(x.ndim) if self.number(0, 1)) or (x.ndim - 1,)
        if x.dtype.is_bool:
            self.graph.add(x.reduce(self.one(("OR", "AND")), axes))
            return
        op = self.one(("ADD", "ADD", "MAX", "MIN"))
        m = self.graph.magnitude.get(x)
        count = math.prod(x.shape[a] for a in axes)
        self.graph.add(x.reduce(op, axes), None if m is None else m * count if op == "ADD" else m)

    def normalized(self) -> None:
        """Add a value minus a reduction of its own rows, as in a normalization."""
        x = self.pick("is_float", "is_int")
        if x is None:
            return
        axes = (self.number(0, x.ndim - 1),)
        self.graph.add(x - x.reduce(self.one(("ADD", "MAX")), axes).expand(x.shape))

    def matmul(self) -> None:
        x = self.pick("is_float", "is_int")
        if x is None or x.ndim < 2 or x.ndim > 3:
            return
        n = self.one((1, 3, 4))
        y = self.fit(self.one([p for p in self.graph.pool if p.dtype is x.dtype]), (x.shape[-1], n))
        shape = (*x.shape, n)
        left = x.reshape((*x.shape, 1)).expand(shape)
        right = y.reshape((*(1,) * (x.ndim - 1), *y.shape)).expand(shape)
        if math.prod(shape) <= LARGEST:
            if x.dtype.is_float:
                left, right = self.bounded(left), self.bounded(right)
            total = (left * right).reduce("ADD", (x.ndim - 1,))
            self.graph.add(total.reshape((*x.shape[:-1], n)))

    def gather(self) -> None:
        x, i = self.pick(), self.pick("is_int")
        if x is None or i is None or i.dtype.is_unsigned:
            return
        axis = self.number(0, x.ndim - 1)
        shape = (*x.shape[:axis], self.number(1, 5), *x.shape[axis + 1 :])
        if math.prod(shape) <= LARGEST:
            self.same(x.gather(self.fit(i, shape), axis), x)

    def scatter(self) -> None:
        x, i = self.pick("is_int", "is_float"), self.pick("is_int")
        if x is None or i is None or i.dtype.is_unsigned:
            return
        axis = self.number(0, x.ndim - 1)
        base = self.fit(self.one([n for n in self.graph.pool if n.dtype is x.dtype]),
                        (*x.shape[:axis], self.number(1, 5), *x.shape[axis + 1 :]))
        op = self.one((None, "ADD", "MAX"))
        self.graph.add(base.scatter(self.fit(i, x.shape), x, axis, op))

    def memory(self) -> None:
        x = self.pick()
        assert x is not None
        if self.number(0, 1):
            self.same(x.contiguous(), x)
        else:
            old = self.fit(self.one([n for n in self.graph.pool if n.dtype is x.dtype]), x.shape)
            self.same(UOp(Ops.ASSIGN, None, (old, x)), x)

    STEPS = ("leaf", "constant", "movement", "movement", "movement", "unary", "binary", "binary", "binary", "where",
             "reduce", "reduce", "normalized", "matmul", "gather", "scatter", "memory")

    def build(self, steps: int) -> tuple[list[UOp], Graph]:
        self.leaf()
        for _ in range(steps):
            getattr(self, self.one(self.STEPS))()
        pool = self.graph.pool
        roots = [pool[-1], *(self.one(pool) for _ in range(self.number(0, 2)))]
        plain = (Ops.CONST, Ops.IOTA, Ops.BUFFER)
        return list(dict.fromkeys(UOp(Ops.CONTIGUOUS, None, (r,)) if r.op.kind == "movement" or r.op in plain else r
                                  for r in roots)), self.graph


@st.composite
def graphs(draw: Any, steps: int = 30, device: str = "CPU") -> tuple[list[UOp], Graph]:
    """Draw (roots, graph) of up to ``steps`` operations."""
    return Builder(lambda low, high: draw(st.integers(low, high)), device).build(draw(st.integers(1, steps)))


# *** rounding error bounds ***


def rounding(roots: list[UOp], inputs: dict[UOp, Array], exact: dict[UOp, float]) -> tuple[list[Array], list[Array]]:
    """Return the values, and for each element a bound on the difference between any two evaluation orders.

    Running error analysis: every operation adds at most a few units in the last place of its result to what its
    operands bring, and a sum at most n·eps·Σ|x|, whatever its order.
    """
    order = toposort(roots)
    values = dict(zip(order, evaluate(order, inputs)))
    errors: dict[UOp, Array] = {}
    with np.errstate(all="ignore"):
        for n in order:
            errors[n] = _error(n, values, errors) if n not in exact else np.zeros(n.shape)
    return [values[r] for r in roots], [errors[r] for r in roots]


def _error(n: UOp, values: dict[UOp, Array], errors: dict[UOp, Array]) -> Array:
    if not n.dtype.is_float or not n.src:
        return np.zeros(n.shape)
    eps = np.finfo(n.dtype.numpy).eps
    v = [values[s].astype(np.float64) for s in n.src]
    e = [errors[s] for s in n.src]
    if n.op.kind in ("movement", "memory") and n.op is not Ops.ASSIGN:
        return _moved(n, e)
    if n.op is Ops.REDUCE:
        axes = n.arg[1]
        if n.arg[0] is Ops.ADD:
            count = math.prod(n.src[0].shape[a] for a in axes)
            return 2 * count * eps * np.abs(v[0]).sum(axes, keepdims=True) + e[0].sum(axes, keepdims=True)
        return e[0].max(axes, keepdims=True)
    if n.op is Ops.SCATTER:
        largest = np.abs(v[0]).max() + np.abs(v[2]).sum()
        return np.full(n.shape, e[0].max(initial=0) + e[2].sum() + v[2].size * eps * largest)
    if n.op is Ops.GATHER:
        return np.full(n.shape, e[0].max(initial=0))
    return _elementwise(n, values[n].astype(np.float64), v, e, eps)


def _moved(n: UOp, e: list[Array]) -> Array:
    source = UOp(Ops.PARAM, dtypes.float64, (), (0, n.src[0].shape))
    return np.asarray(evaluate([UOp(n.op, dtypes.float64, (source,), n.arg)], {source: e[0]})[0])


def _elementwise(n: UOp, out: Array, v: list[Array], e: list[Array], eps: float) -> Array:
    ulp = 4 * eps * np.abs(out)
    if n.op is Ops.MUL:
        return np.abs(v[0]) * e[1] + np.abs(v[1]) * e[0] + e[0] * e[1] + ulp
    if n.op is Ops.SIN:
        return e[0] + 8 * eps
    if n.op is Ops.EXP2:
        return out * (np.exp2(e[0]) - 1) + 4 * ulp
    if n.op in (Ops.MAX, Ops.MIN):
        return np.maximum(e[0], e[1])
    if n.op is Ops.ASSIGN:
        return e[1]
    if n.op is Ops.WHERE:
        return np.where(v[0] != 0, e[1], e[2])
    assert n.op in (Ops.ADD, Ops.SUB, Ops.NEG, Ops.CAST), n.op
    return sum(e) + ulp + 2 * eps * (np.abs(v[0]) if n.op is Ops.CAST else 0)  # type: ignore[return-value]


def check(roots: list[UOp], graph: Graph) -> None:
    """Realize ``roots`` and compare with the interpreter's values."""
    want, bounds = rounding(roots, graph.inputs, graph.magnitude)
    got = realize(roots, graph.device)
    for root, buffer, value, bound in zip(roots, got, want, bounds):
        array = buffer.numpy().reshape(value.shape)
        if not root.dtype.is_float:
            np.testing.assert_array_equal(array, value)
            continue
        off = np.abs(array.astype(np.float64) - value.astype(np.float64))
        assert (off <= bound).all() or np.array_equal(array, value, equal_nan=True), (array, value, bound)

"""Hypothesis strategies: kernels of every kind with their inputs, and lists of opts."""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from tinsmith.codegen.kernel import Kernel
from tinsmith.codegen.opt import Opt, OptOps
from tinsmith.core.dtypes import DType, dtypes
from tinsmith.core.errors import ArgumentError
from tinsmith.ir import Ops, UOp
from tinsmith.ir.graphs import joined
from tinsmith.ir.uop import Window, toposort

Array = np.ndarray[Any, Any]
Draw = Any
SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 13, 16, 17)
AMOUNTS = (0, 2, 3, 4, 5, 8, 16)


@dataclass
class Case:
    """A kernel and its inputs. ``terms``: the approximate number of roundings in an output element."""

    sink: UOp
    inputs: dict[UOp, Array] = field(default_factory=dict)
    terms: int = 8

    def __repr__(self) -> str:
        return f"Case({[repr(s) for s in self.sink.src]}, {list(self.inputs)})"


class Builder:
    """A factory of parameters with random values, numbered after the outputs."""

    def __init__(self, draw: Draw, outputs: int = 1) -> None:
        self.draw, self.next = draw, outputs
        self.random = np.random.default_rng(draw(st.integers(0, 1 << 16)))
        self.inputs: dict[UOp, Array] = {}

    def param(self, shape: tuple[int, ...], dtype: DType, low: int = -4, high: int = 5) -> UOp:
        p = UOp(Ops.PARAM, dtype, (), (self.next, shape))
        self.next += 1
        if dtype.is_float and self.draw(st.booleans()):
            values = self.random.normal(size=shape)
        else:
            values = self.random.integers(max(low, 0 if dtype.is_unsigned else low), high, shape)
        self.inputs[p] = np.asarray(values).astype(dtype.numpy)
        return p

    def case(self, *outputs: UOp, terms: int = 8) -> Case:
        return Case(UOp(Ops.SINK, None, outputs), self.inputs, terms)


shapes = st.lists(st.sampled_from(SIZES), min_size=1, max_size=3).map(tuple)
number_types = st.sampled_from((dtypes.float32, dtypes.int32, dtypes.float64, dtypes.int8, dtypes.uint16, dtypes.int64,
                                dtypes.float16, dtypes.bfloat16))


def moved(draw: Draw, x: UOp) -> UOp:
    """Apply one random movement op to ``x``."""
    kind = draw(st.sampled_from(("none", "permute", "flip", "pad", "shrink", "reshape", "expand")))
    n = x.ndim
    if kind == "permute":
        return x.permute(tuple(draw(st.permutations(range(n)))))
    if kind == "flip":
        return x.flip(tuple(a for a in range(n) if draw(st.booleans())))
    if kind == "pad":
        return x.pad(tuple((draw(st.integers(0, 2)), draw(st.integers(0, 2))) for _ in range(n)))
    if kind == "shrink":
        return x.shrink(tuple((b := draw(st.integers(0, s - 1)), draw(st.integers(b + 1, s))) for s in x.shape))
    if kind == "reshape":
        return x.reshape((x.size,))
    if kind == "expand":
        return x.reshape((*x.shape, 1)).expand((*x.shape, draw(st.sampled_from((2, 3, 5)))))
    return x


def mixed(draw: Draw, x: UOp, y: UOp) -> UOp:
    """Combine two values by one exactly rounded op."""
    op = draw(st.sampled_from(("ADD", "SUB", "MUL", "MAX", "MIN", "WHERE")))
    return x.lt(y).where(x, y) if op == "WHERE" else x.alu(op, y)


@st.composite
def elementwise(draw: Draw) -> Case:
    b, dtype = Builder(draw), draw(number_types)
    x = b.param(draw(shapes), dtype)
    for _ in range(draw(st.integers(0, 2))):
        x = moved(draw, x)
    for _ in range(draw(st.integers(1, 2))):
        x = mixed(draw, x, b.param(x.shape, dtype))
    return b.case(x)


@st.composite
def pieces(draw: Draw) -> Case:
    """Concatenate views of one memory and of others: rolls, reflections, concatenations, and their consumers."""
    b, dtype = Builder(draw), draw(number_types)
    x = b.param((draw(st.sampled_from((2, 3, 5))), draw(st.sampled_from((3, 7, 20)))), dtype)
    for _ in range(draw(st.integers(1, 2))):
        axis, parts = draw(st.integers(0, 1)), []
        for _ in range(draw(st.integers(2, 3))):
            begin = draw(st.integers(0, x.shape[axis] - 1))
            end = draw(st.integers(begin + 1, x.shape[axis]))
            part = x.shrink(tuple((begin, end) if a == axis else (0, s) for a, s in enumerate(x.shape)))
            how = draw(st.sampled_from(("view", "flip", "other", "negative")))
            parts.append(part.flip((axis,)) if how == "flip" else -part if how == "negative" else
                         b.param(part.shape, dtype) if how == "other" else part)
        x = joined(parts, axis)
    return b.case(mixed(draw, x, b.param(x.shape, dtype)) if draw(st.booleans()) else x)


@st.composite
def reduction(draw: Draw) -> Case:
    b, dtype = Builder(draw), draw(number_types)
    x = b.param(draw(shapes), dtype)
    x = moved(draw, moved(draw, x))
    if draw(st.booleans()):
        x = mixed(draw, x, b.param(x.shape, dtype))
    axes = tuple(sorted(draw(st.sets(st.integers(0, x.ndim - 1), min_size=1))))
    r = x.reduce(draw(st.sampled_from(("ADD", "MAX", "MIN", "ADD"))), axes)
    if draw(st.booleans()):
        r = mixed(draw, r, b.param(r.shape, dtype))
    return b.case(r, terms=8 + x.size // max(1, r.size))


@st.composite
def matmul(draw: Draw) -> Case:
    b, dtype = Builder(draw), draw(number_types)
    m, n, k = (draw(st.sampled_from(SIZES)) for _ in range(3))
    batch = draw(st.sampled_from((1, 1, 2)))
    a = b.param((batch, m, 1, k), dtype).expand((batch, m, n, k))
    if draw(st.booleans()):
        c = b.param((batch, 1, n, k), dtype).expand((batch, m, n, k))
    else:
        c = b.param((batch, k, n), dtype).permute((0, 2, 1)).reshape((batch, 1, n, k)).expand((batch, m, n, k))
    out = (a * c).reduce("ADD", (3,)).reshape((batch, m, n))
    if draw(st.booleans()):
        out = (out + b.param((1, 1, n), dtype).expand((batch, m, n))).maximum(out.const_like(0))
    return b.case(out, terms=8 + k)


@st.composite
def narrow_matmul(draw: Draw) -> Case:
    """A product with operands narrower than its sums, as matrix units compute."""
    dtype, acc = draw(st.sampled_from(((dtypes.bfloat16, dtypes.float32), (dtypes.int8, dtypes.int32),
                                       (dtypes.uint8, dtypes.int32), (dtypes.float16, dtypes.float32))))
    b = Builder(draw)
    m, n, k = (draw(st.sampled_from((3, 15, 16, 17, 33))) for _ in range(3))
    x = b.param((m, 1, k), dtype)
    if draw(st.booleans()):
        x = mixed(draw, x, b.param(x.shape, dtype))
    y = b.param((1, n, k), dtype) if draw(st.booleans()) else b.param((k, n), dtype).permute((1, 0)).reshape((1, n, k))
    products = x.cast(acc).expand((m, n, k)) * y.cast(acc).expand((m, n, k))
    out = products.reduce("ADD", (2,)).reshape((m, n))
    if draw(st.booleans()):
        out = (out + b.param((1, n), acc).expand((m, n))).cast(dtype)
    return b.case(out, terms=8 + k)


@st.composite
def convolution(draw: Draw) -> Case:
    b, dtype = Builder(draw), draw(number_types)
    n, o, c = (draw(st.sampled_from((1, 2, 3, 5))) for _ in range(3))
    size, taps = draw(st.sampled_from((4, 7, 9, 16))), draw(st.sampled_from((1, 2, 3)))
    stride, dilation, pad = draw(st.integers(1, 2)), draw(st.integers(1, 2)), draw(st.integers(0, 2))
    x = b.param((n, c, size), dtype).pad(((0, 0), (0, 0), (pad, pad)))
    inputs = size + 2 * pad
    assume(inputs > dilation * (taps - 1))
    outputs = (inputs - dilation * (taps - 1) - 1) // stride + 1
    x = x.reshape((n, 1, c, inputs, 1)).expand((n, o, c, inputs, taps))
    x = x.window(Window(3, 4, stride, dilation, inputs, outputs))
    w = b.param((1, o, c, 1, taps), dtype).expand((n, o, c, outputs, taps))
    return b.case((x * w).reduce("ADD", (2, 4)).reshape((n, o, outputs)), terms=8 + c * taps)


@st.composite
def transposed_convolution(draw: Draw) -> Case:
    b, dtype = Builder(draw), draw(number_types)
    n, o, c = (draw(st.sampled_from((1, 2, 3))) for _ in range(3))
    size, taps = draw(st.sampled_from((4, 7, 9))), draw(st.sampled_from((1, 2, 3)))
    stride, dilation = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    outputs = (size - 1) * stride + dilation * (taps - 1) + 1
    y = b.param((n, 1, c, size, 1), dtype).expand((n, o, c, size, taps))
    w = b.param((1, o, c, 1, taps), dtype).expand((n, o, c, size, taps))
    x = (y * w).unwindow(Window(3, 4, stride, dilation, outputs, size))
    return b.case(x.reduce("ADD", (2, 4)).reshape((n, o, outputs)), terms=8 + c * taps)


@st.composite
def gather(draw: Draw) -> Case:
    b, dtype = Builder(draw), draw(number_types)
    rows, columns, n = (draw(st.sampled_from(SIZES)) for _ in range(3))
    table = b.param((rows, columns), dtype)
    index = b.param((n, 1), draw(st.sampled_from((dtypes.int32, dtypes.int64, dtypes.uint8))), -2, rows + 2)
    out = table.gather(index.expand((n, columns)), 0)
    if draw(st.booleans()):
        out = mixed(draw, out, b.param((n, columns), dtype))
    if draw(st.booleans()):
        out = out.reduce("ADD", (draw(st.integers(0, 1)),))
    return b.case(out, terms=8 + max(n, columns))


@st.composite
def scatter(draw: Draw) -> Case:
    b, dtype = Builder(draw), draw(number_types)
    rows, columns, n = (draw(st.sampled_from(SIZES)) for _ in range(3))
    base = b.param((rows, columns), dtype)
    index = b.param((n, 1), dtypes.int32, -2, rows + 2).expand((n, columns))
    op = draw(st.sampled_from(("ADD", "MAX", "MIN", None)))
    return b.case(base.scatter(index, b.param((n, columns), dtype), 0, op), terms=8 + n)


@st.composite
def scan(draw: Draw) -> Case:
    """A scan of one or many rows, in blocks or not, weighted or not."""
    b, dtype = Builder(draw), draw(number_types)
    shape = tuple(draw(st.sampled_from(SIZES)) for _ in range(draw(st.integers(1, 3))))
    axis = draw(st.integers(0, len(shape) - 1))
    x = b.param(shape, dtype)
    x = mixed(draw, x, b.param(shape, dtype)) if draw(st.booleans()) else x
    if draw(st.booleans()):
        one = tuple(1 if i == axis else s for i, s in enumerate(shape))
        weight = b.param(shape, dtype)
        if dtype.is_float:  # within -1..1, so that nothing grows
            weight = weight * 0.125
        return b.case(x.scan("MULADD", axis, b.param(one, dtype), weight), terms=64 + 8 * shape[axis])
    op = draw(st.sampled_from(("ADD", "MAX", "MIN")))
    length = draw(st.integers(1, shape[axis]))
    starts = tuple(-(-s // length) if i == axis else s for i, s in enumerate(shape))
    start = (b.param(starts, dtype),) if draw(st.booleans()) else ()
    if start and -(-shape[axis] // starts[axis]) * (starts[axis] - 1) >= shape[axis]:
        start = ()  # the last block would be empty
    return b.case(x.scan(op, axis, *start), terms=16 + shape[axis])


@st.composite
def histogram(draw: Draw) -> Case:
    b = Builder(draw)
    rows, keys, n = (draw(st.sampled_from(SIZES)) for _ in range(3))
    dtype = draw(st.sampled_from((dtypes.int32, dtypes.float32)))
    base, x = b.param((rows, keys), dtype), b.param((rows, n), dtype)
    index = b.param((rows, n), dtypes.int32, -1, keys + 1)
    return b.case(base.histogram(index, x, 1, draw(st.sampled_from(("ADD", "MAX")))), terms=8 + n)


@st.composite
def multi_pass(draw: Draw) -> Case:
    """Several passes over each row, as in softmax or layer norm."""
    b, dtype = Builder(draw), draw(st.sampled_from((dtypes.float32, dtypes.float64, dtypes.int32)))
    shape = (draw(st.sampled_from(SIZES)), draw(st.sampled_from(SIZES)))
    x = b.param(shape, dtype)
    centred = x - x.reduce(draw(st.sampled_from(("MAX", "MIN"))), (1,)).expand(shape)
    square = centred * centred + 1
    total = square.reduce("ADD", (1,)).expand(shape)
    out = square / total if dtype.is_float else square * total
    outputs = (out,)
    if draw(st.booleans()):
        outputs = (out.reduce("ADD", (1,)),)
    return b.case(*outputs, terms=16 + 4 * shape[1])


@st.composite
def several_outputs(draw: Draw) -> Case:
    b, dtype = Builder(draw, 2), draw(number_types)
    x = b.param(draw(shapes), dtype)
    y = b.param(x.shape, dtype)
    first, second = mixed(draw, x, y), mixed(draw, y, x)
    if draw(st.booleans()):
        axes = (draw(st.integers(0, x.ndim - 1)),)
        first, second = first.reduce("ADD", axes), (second.reduce("MAX", axes) if draw(st.booleans()) else second)
    return b.case(first, second, terms=8 + x.size)


@st.composite
def symbolic(draw: Draw) -> Case:
    """A kernel with a shape that is known only at launch."""
    b, dtype = Builder(draw), draw(number_types)
    most, columns = draw(st.sampled_from((3, 8, 13))), draw(st.sampled_from((1, 4, 5)))
    v = UOp.variable("v0", 1, most)
    x = b.param((most, columns), dtype)
    part = x.shrink(((0, v), (0, columns)))
    out = part.reduce(draw(st.sampled_from(("ADD", "MAX"))), (0,))
    b.inputs[v] = draw(st.integers(1, most))
    return b.case(out, terms=8 + most)


@st.composite
def stream(draw: Draw) -> Case:
    """A contraction of an operand computed by another one, with or without row statistics."""
    b = Builder(draw, outputs := draw(st.integers(1, 3)))
    dtype = draw(st.sampled_from((dtypes.float32, dtypes.float64)))
    batch, rows, keys, inner, columns = (draw(st.sampled_from(s)) for s in ((1, 2), SIZES, SIZES, (1, 3, 4), SIZES))
    q = b.param((batch, rows, 1, inner), dtype, -1, 2).expand((batch, rows, keys, inner))
    k = b.param((batch, 1, keys, inner), dtype, -1, 2).expand((batch, rows, keys, inner))
    scores = (q * k).reduce("ADD", (3,)).reshape((batch, rows, keys))
    if draw(st.booleans()):
        scores = scores * 0.5 + b.param((1, rows, keys), dtype).expand((batch, rows, keys))
    top = scores.reduce("MAX", (2,))
    weights = scores.maximum(scores.const_like(0))
    if draw(st.booleans()):
        weights = UOp(Ops.EXP, None, (scores - top.expand(scores.shape),))
    over = draw(st.sampled_from((1, 2)))  # the transposed sum is that of a gradient
    shape = (batch, rows, columns, keys) if over == 2 else (batch, keys, columns, rows)
    p = weights if over == 2 else weights.permute((0, 2, 1))
    v = b.param((batch, 1, columns, shape[3]), dtype).expand(shape)
    out = (p.reshape((batch, shape[1], 1, shape[3])).expand(shape) * v).reduce("ADD", (3,))
    values = (out, top, weights.reduce("ADD", (2,)))[:outputs] if over == 2 else (out,) * outputs
    return b.case(*values, terms=32 * (8 + keys + rows + inner))


FAMILIES = {f.__name__: f() for f in (elementwise, pieces, reduction, matmul, narrow_matmul, convolution,
                                      transposed_convolution, gather, scatter, scan, histogram, multi_pass,
                                      several_outputs, symbolic, stream)}
kernels = st.one_of(*FAMILIES.values())


def state(kernel: Kernel) -> tuple[Any, ...]:
    return kernel.sink, tuple(kernel.order), tuple(kernel.opts), kernel.blocks, kernel.roles


OF_LOOPS = (OptOps.UPCAST, OptOps.VECTOR, OptOps.UNROLL, OptOps.TILE, OptOps.SWAP, OptOps.ORDER, OptOps.PADTO,
            OptOps.MERGE, OptOps.STAGE)
OF_BLOCKS = (OptOps.LOCAL, OptOps.GROUP, OptOps.GROUPTOP, OptOps.NOLOCALS, OptOps.WALK, OptOps.ROLES)


@st.composite
def one_opt(draw: Draw, kernel: Kernel, blocks: bool = False) -> Opt:
    loops = (*OF_LOOPS, OptOps.THREAD, OptOps.TC, OptOps.HINT, OptOps.ROTATE, OptOps.WALK, OptOps.SKIP,
             OptOps.CUT)
    op = draw(st.sampled_from((*OF_LOOPS, *OF_BLOCKS[:3], *OF_BLOCKS) if blocks else loops))
    count = max(1, len(kernel.ranges))
    axis = draw(st.integers(0, count - 1))
    if op is OptOps.STAGE:
        kept = tuple(sorted(draw(st.sets(st.integers(0, count - 1), max_size=count))))
        value = draw(st.integers(0, max(0, len(kernel.stageable) - 1)))
        return Opt(op, value, kept, draw(st.sampled_from((0, 2, 8, 16))),
                   copies=draw(st.sampled_from((1, 2, 3))), layout=draw(st.sampled_from(("", "", "deep", "flat"))),
                   depth=draw(st.sampled_from((1, 1, 2, 3))))
    if op is OptOps.ORDER:
        loops = len([r for r in kernel.order if not r.arg[1].expanded])
        return Opt(op, None, tuple(draw(st.permutations(range(loops)))))
    if op in (OptOps.SWAP, OptOps.MERGE):
        return Opt(op, axis, draw(st.integers(0, count - 1)))
    if op in (OptOps.THREAD, OptOps.NOLOCALS):
        return Opt(op, 0, None)
    if op in (OptOps.SKIP, OptOps.ROLES):
        return Opt(op, amt=draw(st.sampled_from((None, 2))) if op is OptOps.ROLES else None)
    if op in (OptOps.HINT, OptOps.ROTATE):
        load = draw(st.integers(0, max(0, len(kernel.loads) - 1)))
        return Opt(op, load, draw(st.sampled_from((1, 2, 16))) if op is OptOps.HINT else None)
    if op is OptOps.WALK:
        more = draw(st.sampled_from(((), (0,), (1,), (1, 1), (1, 3))))
        return Opt(op, axis, (draw(st.integers(0, count - 1)), draw(st.sampled_from((1, 2, 3, 4))), *more))
    if op is OptOps.TC:
        return matrix_opt(draw, kernel, count)
    if op is OptOps.CUT:
        return Opt(op, axis, tuple(sorted(draw(st.sets(st.integers(1, 12), min_size=1, max_size=3)))))
    return Opt(op, _fitting_axis(draw, kernel, op, axis), draw(st.sampled_from(AMOUNTS)))


def matrix_opt(draw: Draw, kernel: Kernel, count: int) -> Opt:
    parallel = [kernel.ranges.index(r) for r in kernel.parallel] or [0]
    reduces = [kernel.ranges.index(r) for r in kernel.reduces] or [0]
    m, n = draw(st.sampled_from(parallel)), draw(st.sampled_from(parallel))
    copies = draw(st.sampled_from(((), (1, 1), (2, 2), (1, 2), (2, 1), (4, 1))))
    fold = next((f for f in kernel.folds if f.arg is Ops.ADD), None)
    read = {n.dtype for n in toposort(fold)} if fold is not None else set()
    names = [u.name for u in kernel.target.units if u.emit != "muladd" and {u.a, u.b} <= read]
    return Opt(OptOps.TC, draw(st.sampled_from((*reduces, count - 1))), (m, n, *copies),
               unit=draw(st.sampled_from(("", *names))))


def _fitting_axis(draw: Draw, kernel: Kernel, op: OptOps, axis: int) -> int:
    """Draw an axis, in three of four cases one of the right kind, so that most opts are legal."""
    reduces, parallel = (OptOps.UNROLL, OptOps.GROUP, OptOps.GROUPTOP), (OptOps.UPCAST, OptOps.LOCAL)
    fits = kernel.reduces if op in reduces else kernel.parallel if op in parallel else []
    if not fits or draw(st.integers(0, 3)) == 0:
        return axis
    return kernel.ranges.index(draw(st.sampled_from(fits)))


def apply_random(draw: Draw, kernel: Kernel, most: int = 10, blocks: bool = False) -> list[Opt]:
    """Apply random opts; with ``blocks``, those of thread blocks too."""
    for _ in range(draw(st.integers(1, most))):
        apply_or_refuse(kernel, draw(one_opt(kernel, blocks)))
    return list(kernel.opts)


def apply_or_refuse(kernel: Kernel, opt: Opt) -> None:
    """Apply an opt; an illegal one is refused and leaves the kernel unchanged."""
    before = state(kernel)
    try:
        kernel.apply(opt)
    except ArgumentError:
        assert state(kernel) == before, f"illegal {opt} changed the kernel"

"""Reference interpreter for kernel graphs: applies a kernel to NumPy buffers without linearizer, renderer or device.

Each RANGE of the kernel owns one array axis, and a value has size 1 along the axes it does not depend on, so NumPy
broadcasting is the loop nest. A store whose arrays would exceed ``_PIECE`` elements runs in pieces of its ranges.
"""
from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tinsmith.ir.algebra.bounds import bound_ranges, start_of
from tinsmith.ir.algebra.symbolic import digits
from tinsmith.ir.interpret.tensor import evaluate_scalar
from tinsmith.ir.ops import Ops
from tinsmith.ir.ops.op import Array
from tinsmith.ir.ops.scans import running
from tinsmith.ir.ops.tensor import reduce_values
from tinsmith.ir.uop import UOp, toposort

_PIECE = 1 << 22  # limit on the elements of one temporary array, where ranges can be split


def evaluate_kernel(sink: UOp, buffers: Sequence[Array], variables: Mapping[UOp, int] | None = None) -> None:
    """Run a kernel graph on ``buffers``: PARAM ``n`` is ``buffers[n]``, which must be contiguous and is written in
    place.

    >>> from tinsmith.core.dtypes import dtypes
    >>> out, x = np.zeros(3, np.int32), np.array([1, 2, 3], np.int32)
    >>> i = UOp.range(3, 0, None)
    >>> to, of = (UOp(Ops.PARAM, dtypes.int32.ptr(), (), (n, (3,))) for n in (0, 1))
    >>> evaluate_kernel(UOp(Ops.SINK, None, (to.store(i, of.load(i) * 2),)), [out, x])
    >>> out
    array([2, 4, 6], dtype=int32)

    Raises:
        IndexError: if an unmasked load or store is out of bounds.
        ValueError: if a buffer does not fit its PARAM, or a store writes different values to one element.
    """
    run = _Run(sink, buffers, variables or {})
    with np.errstate(all="ignore"):
        for _, group in itertools.groupby(_statements(sink), _ordered_loop):
            run.statements(list(group))


def _statements(sink: UOp) -> Iterator[UOp]:
    """Yield the statements (STORE, SCATTER_STORE) in execution order."""
    stack = list(reversed(sink.src))
    while stack:
        node = stack.pop()
        if node.op is Ops.AFTER:
            stack += [node.src[0], *reversed(node.src[1:])]
        else:
            yield node


def _ordered_loop(node: UOp) -> UOp:
    """Return the group key of a statement: adjacent SCATTER_STOREs over one ordered range run together, step by
    step."""
    return node.src[4] if node.op is Ops.SCATTER_STORE else node


class _Run:
    """The execution of one kernel. ``span`` holds the part of each range being computed, ``memo`` the values for that
    part."""

    def __init__(self, sink: UOp, buffers: Sequence[Array], variables: Mapping[UOp, int]) -> None:
        nodes = toposort(sink)
        ranges = [n for n in nodes if n.op is Ops.RANGE]
        self.variables = variables
        self.axis = {r: i for i, r in enumerate(ranges)}
        self.whole = {r: self.bounds(r) for r in ranges}
        self.span = dict(self.whole)
        self.memory = {n: _flat(n, buffers) for n in nodes if n.op is Ops.PARAM}
        self.written = {s.src[0] for s in _statements(sink)}
        self.rereads = any(n.op is Ops.LOAD and n.src[0] in self.written for n in nodes)
        self.memo: dict[UOp, Array] = {}
        self.filled: dict[UOp, Array] = {}

    def bounds(self, r: UOp) -> tuple[int, int]:
        start = evaluate_scalar(r.src[0], self.variables) if len(r.src) == 2 and len(r.arg) < 3 else 0
        return start, max(start, evaluate_scalar(r.src[-1], self.variables))

    def size(self, r: UOp) -> int:
        low, high = self.span[r]
        return high - low

    # *** statements ***

    def statements(self, nodes: list[UOp]) -> None:
        node = nodes[0]
        if node.op is Ops.SCATTER_STORE:
            return self.scatter(nodes)
        assert node.op is Ops.STORE, node.op
        for _ in self.pieces(node):
            self.write(node)
        if self.rereads:
            self.memo.clear()
        return None

    def scatter(self, nodes: list[UOp]) -> None:
        """Run SCATTER_STOREs one value of their ordered range at a time; each step reads memory as it was before the
        step. Values that depend on neither the range nor the written memory are computed once."""
        loop, memories = nodes[0].src[4], {n.src[0] for n in nodes}
        stale: set[UOp] = set()
        for n in toposort(nodes):
            if n is loop or n in memories or any(s in stale for s in n.src):
                stale.add(n)
        low, high = self.whole[loop]
        for i in range(low, high):
            self.span[loop] = (i, i + 1)
            self.forget(stale)
            for node in nodes:
                for s in node.src[1:4]:
                    self.value(s)
            for node in nodes:
                self.write(node)
        self.span[loop] = (low, high)
        self.memo.clear()

    def pieces(self, node: UOp) -> Iterator[None]:
        """Iterate over blocks of the store's own ranges so that no array exceeds ``_PIECE`` elements."""
        needed = max(math.prod(self.size(r) for r in n.ranges) for n in toposort(node))
        cuts: list[tuple[UOp, list[tuple[int, int]]]] = []
        ordered = {r for n in toposort(node) if n.op is Ops.PREFIX for r in n.src[1].ranges}
        for r in sorted(node.ranges - ordered, key=self.size, reverse=True):
            if needed <= _PIECE or self.rereads:
                break
            low, high = self.whole[r]
            step = max(1, (high - low) * _PIECE // needed)
            needed = needed * step // (high - low)
            cuts.append((r, [(i, min(i + step, high)) for i in range(low, high, step)]))
        cut = {r for r, _ in cuts}
        stale = {n for n in toposort(node) if not cut.isdisjoint(n.ranges)}
        for spans in itertools.product(*(parts for _, parts in cuts)):
            self.span.update(zip((r for r, _ in cuts), spans))
            self.forget(stale)
            yield
        self.span.update({r: self.whole[r] for r in cut})
        self.forget(stale)

    def forget(self, stale: set[UOp]) -> None:
        for n in stale:
            self.memo.pop(n, None)
            self.filled.pop(n, None)

    def write(self, node: UOp) -> None:
        memory = self.memory[node.src[0]]
        valid = self.value(node.src[3]) if len(node.src) > 3 else np.asarray(True)
        at, new, ok = (a.reshape(-1) for a in np.broadcast_arrays(
            self.value(node.src[1]), self.value(node.src[2]), valid))
        at, new = at[ok], new[ok]
        _check_bounds(node, at, memory.size)
        memory[at] = new
        if memory[at].tobytes() != new.tobytes():
            raise ValueError(f"different values are stored to one element by {node!r}")

    # *** values ***

    def value(self, root: UOp) -> Array:
        for n in toposort(root, lambda n: n not in self.memo):
            self.memo[n] = self.compute(n)
        return self.memo[root]

    def compute(self, n: UOp) -> Array:
        sources = [self.memo[s] for s in n.src]
        if n.op is Ops.RANGE:
            return np.arange(*self.span[n]).reshape(self.along(n))
        if n.op is Ops.VARIABLE:
            return self.full(evaluate_scalar(n, self.variables), n)
        if n.op is Ops.CONST:
            return self.full(n.arg, n)
        if n.op is Ops.PARAM:
            return self.memory[n]
        if n.op is Ops.LOAD:
            return self.load(n, *sources)
        if n.op is Ops.FOLD:
            return self.fold(n, sources[0], sources[-1] if start_of(n) is not None else None)
        if n.op is Ops.PREFIX:
            return self.running(n, sources[0], *sources[2:])
        if n.op is Ops.MMA:
            return self.multiply(n, *sources[:2])
        if n.op is Ops.STAGE:
            return self.stage(n, sources[0])
        if not n.op.elementwise:
            raise TypeError(f"{n.op.name} is not allowed in a kernel graph: {n!r}")
        assert n.op.meaning is not None
        out = np.asarray(n.op.meaning(n, *sources))
        assert out.dtype == n.dtype.scalar.numpy, (n, out.dtype)
        return out

    def full(self, value: Any, like: UOp) -> Array:
        return np.full((1,) * len(self.axis), value, like.dtype.scalar.numpy)

    def along(self, r: UOp) -> tuple[int, ...]:
        return tuple(self.size(r) if a == self.axis[r] else 1 for a in range(len(self.axis)))

    def spread(self, x: Array, ranges: Sequence[UOp]) -> Array:
        """Return ``x`` broadcast to full size along the axes of ``ranges``."""
        shape = list(x.shape)
        for r in ranges:
            shape[self.axis[r]] = self.size(r)
        return np.broadcast_to(x, tuple(shape))

    def fold(self, n: UOp, x: Array, begin: Array | None) -> Array:
        ranges, nothing = bound_ranges(n), n.arg.identity(n.dtype)
        for r in ranges:
            if len(r.src) == 3:
                start, end, step = (self.memo[s] for s in (*r.src[:2], r))
                x = np.where((start <= step) & (step < end), x, np.asarray(nothing, x.dtype))
        y = reduce_values(n.arg, self.spread(x, ranges), tuple(self.axis[r] for r in ranges), n.dtype)
        return y if begin is None else np.asarray(n.arg.meaning(n, begin, y))

    def running(self, n: UOp, *sources: Array) -> Array:
        """Compute a PREFIX (scan). The ranges that are the digits of its index are flattened and scanned as one
        axis."""
        steps = digits(n.src[1])
        axes, last = [self.axis[r] for r in steps], tuple(range(-len(steps), 0))
        moved = [np.moveaxis(self.spread(s, steps), axes, last) for s in sources]
        shape = np.broadcast_shapes(*(s.shape for s in moved))
        x, start, *weight = (np.broadcast_to(s, shape).reshape(*shape[: -len(steps)], -1) for s in moved)
        y = running(n.arg, x, x.ndim - 1, start, weight[0] if weight else None)
        return np.moveaxis(y.reshape(shape), last, axes)

    def multiply(self, n: UOp, a: Array, b: Array) -> Array:
        """Compute one matrix-unit step: products and their sum in the accumulator's dtype."""
        product = np.asarray(a.astype(n.dtype.numpy) * b.astype(n.dtype.numpy))
        k = n.src[4:] if n.src[4].op is Ops.RANGE else ()
        return reduce_values(Ops.ADD, self.spread(product, k), tuple(self.axis[r] for r in k), n.dtype)

    def stage(self, n: UOp, x: Array) -> Array:
        """Fill a local-memory stage: an array whose last axis is the address. ``filled`` marks the addresses that hold
        a value."""
        ranges, sizes = n.src[1:], n.arg
        if len(ranges) != len(sizes):
            raise ValueError(f"a stage over {len(ranges)} ranges has {len(sizes)} sizes: {n!r}")
        axes = [self.axis[r] for r in ranges]
        columns = np.moveaxis(self.spread(x, ranges), axes, range(-len(axes), 0))
        outer = tuple(1 if a in axes else s for a, s in enumerate(x.shape))
        place = np.zeros((), np.int64)
        for r, size in zip(ranges, sizes):
            if self.span[r][1] > size:
                raise IndexError(f"range {r!r} exceeds the size {size} of its axis in {n!r}")
            place = place[..., None] * size + np.arange(*self.span[r])
        memory = np.zeros((*outer, math.prod(sizes)), x.dtype)
        memory[..., place.reshape(-1)] = columns.reshape((*outer, -1))
        self.filled[n] = np.zeros(math.prod(sizes), bool)
        self.filled[n][place] = True
        return memory

    def load(self, n: UOp, memory: Array, index: Array, valid: Array | None = None) -> Array:
        """Return the loaded elements; masked-off elements are 0 and are not accessed."""
        size = memory.shape[-1]
        ok = np.asarray(True) if valid is None else valid
        at, ok = np.broadcast_arrays(index, ok)
        _check_bounds(n, at[ok], size)
        if not ok.any():
            return np.zeros(at.shape, n.dtype.numpy)
        safe = np.where(ok, at, 0)
        if n.src[0].op is Ops.STAGE:
            if not self.filled[n.src[0]][safe[ok]].all():
                raise IndexError(f"an uninitialized element of a stage is read: {n!r}")
            shape = np.broadcast_shapes(memory.shape[:-1], safe.shape)
            places = np.broadcast_to(safe, shape)[..., None]
            taken = np.take_along_axis(np.broadcast_to(memory, (*shape, size)), places, -1)[..., 0]
        else:
            taken = memory[safe]
        return np.asarray(taken if valid is None else np.where(ok, taken, np.zeros((), taken.dtype)))


def _flat(param: UOp, buffers: Sequence[Array]) -> Array:
    number, shape = param.arg
    buffer = buffers[number]
    size = math.prod(s for s in shape if isinstance(s, int))
    if buffer.dtype != param.dtype.scalar.numpy or not buffer.flags.c_contiguous or buffer.size < size:
        raise ValueError(f"buffer {number} is {buffer.dtype}{buffer.shape}, needed are {size} contiguous elements of "
                         f"{param.dtype.scalar}")
    flat: Array = buffer.reshape(-1)
    return flat


def _check_bounds(node: UOp, at: Array, size: int) -> None:
    outside = at[(at < 0) | (at >= size)]
    if outside.size:
        raise IndexError(f"index {outside[0]} is out of bounds for size {size} in {node!r}")

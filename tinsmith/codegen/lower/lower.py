"""Lowering: a kernel's tensor graph becomes stores over ranges; movement ops become index expressions.

    SINK(value)   →   SINK(STORE(PARAM 0, index, value at index))

A REDUCE becomes a FOLD over its own ranges. Reductions at the same index over the same sizes share their ranges. A
validity condition (from PAD) is pushed down to the loads, which give 0 where it fails.
"""
from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

from tinsmith.codegen.lower.indexing import ZERO, Index, flatten, move, place_in
from tinsmith.codegen.lower.normalize import conjuncts, implies
from tinsmith.core.dtypes import dtypes
from tinsmith.ir import Ops, UOp
from tinsmith.ir.ops import FOR_GRADIENTS
from tinsmith.ir.structure import Role
from tinsmith.ir.uop import toposort

Request = tuple[UOp, Index, UOp | None]
Plan = tuple[list[Request], Callable[[list[UOp]], UOp]]


def _before_reshapes(value: UOp) -> UOp:
    """Strip reshapes and copies at the output: the ranges become those in which the value was computed."""
    while value.op in (Ops.CONTIGUOUS, *FOR_GRADIENTS) or (
            value.op is Ops.RESHAPE and all(isinstance(s, int) for s in value.src[0].shape)):
        value = value.src[0]
    return value


def _one(size: Any) -> bool:
    return type(size) is int and size == 1


class Lowering:
    """The lowering of one kernel; ``run`` returns its kernel graph."""

    def __init__(self) -> None:
        self.count = 0
        self.reduce_ranges: dict[Any, tuple[UOp, ...]] = {}
        self.output_ranges: dict[Any, tuple[UOp, ...]] = {}
        self.values: dict[Request, UOp] = {}

    def new_range(self, size: Any, role: Role) -> UOp:
        size = size.simplify() if isinstance(size, UOp) else size
        if _one(size):
            return ZERO
        self.count += 1
        return UOp.range(size, self.count - 1, role)

    def run(self, sink: UOp) -> UOp:
        """Lower a SINK of tensor values to a SINK of stores into PARAM 0, 1, …; outputs of one shape, but for axes of
        size 1, share their ranges."""
        if sink.arg is not None:
            return UOp(Ops.SINK, None, tuple(self.with_sums(sink.src, sink.arg)))
        if len(sink.src) == 1:
            return UOp(Ops.SINK, None, (self.output(0, _before_reshapes(sink.src[0])),))
        return UOp(Ops.SINK, None, tuple(self.output(n, value) for n, value in enumerate(sink.src)))

    def output(self, number: int, value: UOp) -> UOp:
        shape = value.shape
        if value.op is Ops.ASSIGN:  # a part of a concatenation, stored at its offset
            index = tuple(self.new_range(s, Role.LOOP) for s in shape)
            whole, place = place_in(value.src[0], index)
            memory = UOp(Ops.PARAM, value.dtype.ptr(), (), (number, (whole.size,)))
            return memory.store(flatten(whole.shape, place), self.value(value.src[1], index))
        memory = UOp(Ops.PARAM, value.dtype.ptr(), (), (number, (value.size,)))
        if value.op is Ops.SCATTER:
            return self.scatter(memory, value)
        if value.op is Ops.SCAN:
            return self.scan(memory, value)
        if value.op is Ops.HISTOGRAM:
            return self.histogram(memory, value)
        key = tuple(s for s in shape if not _one(s))
        if key not in self.output_ranges:
            self.output_ranges[key] = tuple(self.new_range(s, Role.LOOP) for s in key)
        ranges = iter(self.output_ranges[key])
        index = tuple(ZERO if _one(s) else next(ranges) for s in shape)
        return memory.store(flatten(shape, index), self.value(value, index))

    def with_sums(self, values: Sequence[UOp], sums: int) -> list[UOp]:
        """Lower outputs over the same axes, of which the last ``sums`` are sums over one axis of the others. The sums
        start as 0, stay in memory, and accumulate the value of each step along that axis."""
        axis = values[-1].arg[1][0] if sums else None
        sizes = values[-1].src[0].shape if sums else max((v.shape for v in values), key=math.prod)
        space = [self.new_range(s, Role.BLOCK if a == axis else Role.LOOP) for a, s in enumerate(sizes)]
        starts: list[UOp] = []
        statements: list[UOp] = []
        for number, value in enumerate(values):
            memory = UOp(Ops.PARAM, value.dtype.ptr(), (), (number, (value.size,)))
            index = tuple(ZERO if s == 1 else r for r, s in zip(space, value.shape))
            offset = flatten(value.shape, index)
            if number < len(values) - sums:
                statements.append(memory.store(offset, self.value(value, index)))
                continue
            assert axis is not None
            starts.append(memory.store(offset, UOp.const(value.dtype, 0)))
            added = self.value(value.src[0], tuple(space))
            statements.append(UOp(Ops.SCATTER_STORE, None, (memory, offset, memory.load(offset) + added,
                                                            UOp.const(dtypes.bool, True), space[axis])))
        return [*starts, *statements]

    def scatter(self, memory: UOp, node: UOp) -> UOp:
        """Copy the base, then combine x into it in order; iterations along the other axes are independent.

        A base that is the output itself holds its values already.
        """
        base, where, x = node.src
        axis, op = node.arg
        shape = base.shape
        index = tuple(self.new_range(s, Role.LOOP) for s in x.shape)
        at = self.value(where, index).cast(dtypes.index)
        valid = at.ge(0) & at.lt(UOp.index(shape[axis]))
        target = flatten(shape, (*index[:axis], at, *index[axis + 1 :]))
        if op is Ops.ASSIGN:
            return memory.store(target, self.value(x, index), valid)
        copies = []
        if base.base.op is not Ops.PARAM or base.base.arg[0] != memory.arg[0]:
            inner = self.new_range(base.shape[axis], Role.LOOP)
            copied = (*index[:axis], inner, *index[axis + 1 :])
            copies.append(memory.store(flatten(shape, copied), self.value(base, copied)))
        old = memory.load(target, valid)
        new = self.value(x, index)
        combined = new if op is None else UOp(op, None, (old, new))
        loop = index[axis] if index[axis].op is Ops.RANGE else UOp.range(1, self.count, Role.LOOP)
        self.count += 1
        store = UOp(Ops.SCATTER_STORE, None, (memory, target, combined, valid, loop))
        return UOp(Ops.AFTER, dtypes.void, (store, *copies)) if copies else store

    def scan(self, memory: UOp, node: UOp) -> UOp:
        """Lower a scan: parallel blocks with sequential steps in each. A shorter last block is guarded."""
        (op, axis), shape = node.arg, node.shape
        blocks = 1 if len(node.src) == 1 else node.src[1].shape[axis]
        length = shape[axis] if blocks == 1 else -(-shape[axis] // blocks)
        beside = [ZERO if i == axis else self.new_range(s, Role.LOOP) for i, s in enumerate(shape)]
        block, step = self.new_range(blocks, Role.LOOP), self.new_range(length, Role.LOOP)
        index = tuple((block * length + step).simplify() if i == axis else b for i, b in enumerate(beside))
        whole = blocks == 1 or shape[axis] % blocks == 0
        valid = None if whole else index[axis].lt(shape[axis])
        offset = flatten(shape, index)
        x, *rest = (self.value(s, tuple(block if i == axis and s in node.src[1:2] else b for i, b in enumerate(index)),
                               None if s in node.src[1:2] else valid) for s in node.src)
        if not rest:
            assert op.identity is not None
            rest = [UOp.const(node.dtype, op.identity(node.dtype))]
        if step.op is Ops.RANGE:
            result = UOp(Ops.PREFIX, None, (x, step, *rest), op)
        else:
            result = UOp(op, None, (rest[0], rest[1], x) if op is Ops.MULADD else (rest[0], x))
        return memory.store(offset, result, valid)

    def histogram(self, memory: UOp, node: UOp) -> UOp:
        """Lower a histogram: the output holds the counters, then each step's old count; one ordered loop stores both.
        """
        base, where, x = node.src
        op, axis = node.arg
        index = tuple(self.new_range(s, Role.LOOP) for s in x.shape)
        counter, loop = (UOp.range(size, self.count + k, Role.LOOP) for k, size in enumerate((base.shape[axis],
                                                                                               x.shape[axis])))
        self.count += 2
        index = (*index[:axis], loop, *index[axis + 1 :])

        def at(offset: UOp) -> Index:
            return (*index[:axis], offset, *index[axis + 1 :])

        copy = memory.store(flatten(node.shape, at(counter)), self.value(base, at(counter)))
        key = self.value(where, index).cast(dtypes.index)
        valid = key.ge(0) & key.lt(UOp.index(base.shape[axis]))
        target = flatten(node.shape, at(key))
        old = memory.load(target, valid)
        note = UOp(Ops.SCATTER_STORE, None, (memory, flatten(node.shape, at(loop + base.shape[axis])), old,
                                             UOp.const(dtypes.bool, True), loop))
        new = UOp(op, None, (old, self.value(x, index)))
        return UOp(Ops.AFTER, dtypes.void,
                   (UOp(Ops.SCATTER_STORE, None, (memory, target, new, valid, loop)), copy, note))

    def value(self, node: UOp, index: Index, valid: UOp | None = None) -> UOp:
        """Return ``node``'s element at ``index``; iterative, since graphs are deep."""
        root = (node, index, valid)
        stack = [root]
        plans: dict[Request, Plan] = {}
        while stack:
            request = stack[-1]
            if request in self.values:
                stack.pop()
                continue
            if request not in plans:
                plans[request] = self.plan(*request)
            needs, build = plans[request]
            missing = [r for r in needs if r not in self.values]
            if missing:
                stack.extend(reversed(missing))
                continue
            result = build([self.values[r] for r in needs])
            if node_origin := request[0].origin:
                result.origin = result.origin or node_origin
            self.values[request] = result
            stack.pop()
        return self.values[root]

    def plan(self, node: UOp, index: Index, valid: UOp | None) -> Plan:
        op = node.op
        if op.elementwise:
            return ([(s, index, valid) for s in node.src],
                    lambda v: UOp(op, node.dtype, tuple(v), node.arg))
        if op is Ops.CONST:
            return [], lambda v: node
        if op in (Ops.BIND, Ops.VARIABLE):
            return [], lambda v: node.src[0] if op is Ops.BIND else node
        if op is Ops.PARAM:
            memory = node.replace(dtype=node.dtype.ptr(), arg=(node.arg[0], (node.size,)))
            at = flatten(node.shape, index)
            return [], lambda v: memory.load(at, valid)
        if op is Ops.IOTA:
            return [], lambda v: index[0].cast(node.dtype)
        if op in (Ops.CONTIGUOUS, Ops.COPY, *FOR_GRADIENTS):
            return [(node.src[0], index, valid)], lambda v: v[0]
        if op.kind == "movement":
            return self.plan_movement(node, index, valid)
        if op is Ops.REDUCE:
            return self.plan_reduce(node, index, valid)
        if op is Ops.GATHER:
            return self.plan_gather(node, index, valid)
        raise NotImplementedError(f"{op.name} cannot stand inside a kernel: the scheduler gives it one of its own")

    def plan_movement(self, node: UOp, index: Index, valid: UOp | None) -> Plan:
        source, exists = move(node, index)
        if exists is None:
            return [(node.src[0], source, valid)], lambda v: v[0]
        both = exists if valid is None else (valid & exists).simplify()
        if both.is_const and not both.arg:
            return [], lambda v: UOp.const(node.dtype, 0)
        inner = None if both.is_const else both
        return [(node.src[0], source, inner)], lambda v: _zero_unless(inner, v[0])

    def plan_reduce(self, node: UOp, index: Index, valid: UOp | None) -> Plan:
        op, axes = node.arg
        sizes = tuple(node.src[0].shape[a] for a in axes)
        valid = _bounding(valid, index)  # else a statistic of rows would be computed in the loops of a padding
        around = frozenset().union(*(i.ranges for i in index), valid.ranges if valid is not None else frozenset())
        key = (sizes, around)
        if key not in self.reduce_ranges:
            self.reduce_ranges[key] = tuple(self.new_range(s, Role.REDUCE) for s in sizes)
        ranges = self.reduce_ranges[key]
        inner = list(index)
        for axis, r in zip(axes, ranges):
            inner[axis] = r
        loops = tuple(r for r in ranges if r.op is Ops.RANGE)
        return ([(node.src[0], tuple(inner), valid)],
                lambda v: UOp(Ops.FOLD, None, (v[0], *loops), op) if loops else v[0])

    def plan_gather(self, node: UOp, index: Index, valid: UOp | None) -> Plan:
        """Lower a GATHER in two steps: the index is needed before the source's address."""
        source, where = node.src
        at = self.value(where, index, valid).cast(dtypes.index)
        inside = at.ge(0) & at.lt(UOp.index(source.shape[node.arg]))
        both = inside if valid is None else valid & inside
        position = (*index[: node.arg], at, *index[node.arg + 1 :])
        return [(source, position, both)], lambda v: _zero_unless(both, v[0])


def _bounding(valid: UOp | None, index: Index) -> UOp | None:
    """Return the conditions of ``valid`` that can bound ``index``: those that share a range with it, directly or
    through other conditions. A load at ``index`` needs no others, and the value is masked above."""
    if valid is None:
        return None
    terms, linked = conjuncts(valid), frozenset().union(*(i.ranges for i in index))
    kept = [t for t in terms if not t.ranges or any(n.op is Ops.VARIABLE for n in toposort([t]))]
    while more := [t for t in terms if t not in kept and not linked.isdisjoint(t.ranges)]:
        kept += more
        linked = linked.union(*(t.ranges for t in more))
    return functools.reduce(operator.and_, (t for t in terms if t in kept)) if kept else None


def _zero_unless(valid: UOp | None, value: UOp) -> UOp:
    """Return the value where ``valid`` holds, else 0. A load with the same guard, possibly under casts, is returned
    unchanged, because it gives 0 already.
    """
    if valid is None or (value.is_const and value.arg == 0):
        return value
    load = value
    while load.op is Ops.CAST:
        load = load.src[0]
    if load.op is Ops.LOAD and len(load.src) == 3 and implies(load.src[2], valid):
        return value
    return valid.where(value, UOp.const(value.dtype, 0))


def lower(sink: UOp) -> UOp:
    """Return the kernel graph of a kernel's tensor graph (a SINK of values over PARAMs)."""
    return Lowering().run(sink)

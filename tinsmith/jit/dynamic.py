"""Captures over a range of sizes: the arguments of one call are shown to the function with variables for sizes.

The tensors among the arguments get nodes whose changing sizes are bound variables. The user's code sees these sizes as
integers that report how they are used (``tensor.sizes.traced``). Afterwards all tensors that the call made get plain
sizes again, so that nothing outside of the call meets a variable.
"""
from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Final

from tinsmith.backend.memory import Buffer
from tinsmith.core.errors import place, user_line
from tinsmith.ir import Ops, UOp
from tinsmith.ir.uop import toposort
from tinsmith.jit.aliases import sizes_in
from tinsmith.jit.concrete import NAME, flat, is_range, plain, plain_arg
from tinsmith.jit.guards.signature import base_of, view_of
from tinsmith.jit.guards.sizes import RangeHistory, SizeGuard, separated
from tinsmith.runtime.launch import exact_sizes
from tinsmith.schedule.passes.dynamic_sizes import WITHOUT_SIZES, Refused, bounds_of, variables_of, with_sizes
from tinsmith.tensor.base import TensorBase
from tinsmith.tensor.create import random
from tinsmith.tensor.sizes.traced import tracing
from tinsmith.tensor.storage import Looks, alone
from tinsmith.tensor.tensor import Tensor

_ROOM: Final = 1024  # the least upper bound of a variable


def guard_for(history: RangeHistory, factor: int = 4) -> SizeGuard:
    """Return the guard of a capture that serves the latest sizes and others like the earlier ones.

    Args:
        factor: the upper bound of a variable is at least ``factor`` times the greatest size seen.

    Raises:
        Refused: if the sizes have no such relation.
        TooSmall: if one of the latest sizes cannot be a variable.
    """
    samples = history.comparable()
    kept, places, expressions = variables_of(samples)
    columns = list(zip(*(samples[n] for n in kept)))
    bounds = []
    for low, most, _ in bounds_of(expressions, [columns[p] for p in places]):
        high = 1 << (factor * most - 1).bit_length()
        bounds.append((low, max(high, _ROOM) if factor > 1 else high))
    return SizeGuard(samples[-1], places, bounds, expressions)


class RangeTrace:
    """One call of a function with variables for the sizes of its arguments.

    Args:
        guard: the guard on the sizes.
        described: the signature's description of the arguments.
        arguments: the tensors among them, realized, in the signature's order.

    Raises:
        Refused: if an argument shares memory in a way that a replay could not restore.
    """

    def __init__(self, guard: SizeGuard, described: Sequence[Any], arguments: Sequence[Tensor]) -> None:
        self.guard = guard
        found = separated(described)
        assert found is not None
        values = guard.values(found[1])
        assert values is not None
        self.bound = [(f"{NAME}{k}", v) for k, v in enumerate(values)]
        self.symbols = [UOp.variable(name, *ends).bind(v) for (name, v), ends in zip(self.bound, guard.bounds)]
        self.nominal: dict[int, tuple[Buffer, Buffer]] = {}  # id of an argument's buffer → it, with the greatest size
        self.pins = Pins()
        self.before: dict[int, tuple[Tensor, UOp]] = {}
        self.inside: dict[int, UOp] = {}
        sizes = iter(guard.sizes(self.symbols))
        for t in arguments:
            node = self._symbolic(t.uop, sizes)
            if node is t.uop or id(t) in self.before:
                continue
            if t._shared is not None and not alone(t):
                raise Refused("an argument shares its memory with another tensor")
            if t.grad is not None:
                raise Refused("an argument has a gradient already")
            self.before[id(t)], self.inside[id(t)] = (t, t.uop), node

    def _symbolic(self, uop: UOp, sizes: Iterator[Any]) -> UOp:
        """Return the node of an argument with the next ``sizes``: of its buffer, then of its views, topmost first."""
        buffer, size = base_of(uop).arg, next(sizes)
        view = []
        for op, arg, rest in view_of(uop):
            if op is not Ops.DETACH and op not in WITHOUT_SIZES:
                arg = with_sizes(arg, sizes)
            view.append((op, arg, rest))
        if not isinstance(size, UOp) and not any(isinstance(s, UOp) for _, arg, _ in view for s in flat(arg)):
            return uop
        node = base_of(uop)
        if isinstance(size, UOp):
            if id(buffer) not in self.nominal:
                self.nominal[id(buffer)] = buffer, buffer.view(size.vmax, buffer.dtype, 0)
            node = UOp(Ops.BUFFER, node.dtype, (), self.nominal[id(buffer)][1]).shrink(((0, size),))
        for op, arg, rest in reversed(view):
            node = UOp(op, node.dtype, (node, *rest), arg)
        return node

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Show the variables to the function; afterwards, all tensors have plain sizes again."""
        exact: Any = self
        for key, (t, _) in self.before.items():
            t.uop = self.inside[key]
        exact_sizes.append(exact)
        try:
            with tracing():
                yield
        finally:
            exact_sizes.remove(exact)
            for key, (t, old) in self.before.items():
                if t.uop is self.inside[key]:
                    t.uop = old
            self._settle()

    def _settle(self) -> None:
        """Give plain sizes to all live tensors and their memory."""
        whole = {id(b): UOp(Ops.BUFFER, b.dtype, (), real) for real, b in self.nominal.values()}
        live = list(TensorBase.live)
        storages = {id(t._shared.storage): t._shared.storage for t in live if t._shared is not None}
        table = plain([*(t.uop for t in live), *(s.value for s in storages.values())], whole)
        for t in live:
            t.uop = table.get(t.uop, t.uop)
            if t._shared is not None and sizes_in(t._shared.looks):
                looks = Looks.of((look, plain_arg(arg)) for look, arg in t._shared.looks)
                t._shared = t._shared._replace(looks=looks)
        for storage in storages.values():
            storage.value = table.get(storage.value, storage.value)


class Undo:
    """The state of all tensors before a call that may fail half-way: the call itself can then be made again."""

    def __init__(self) -> None:
        self.tensors = [(t, t.uop, t.grad, t._shared) for t in TensorBase.live]
        self.storages = [(s, s.value) for s in {id(t[3].storage): t[3].storage for t in self.tensors
                                                if t[3] is not None}.values()]
        self.random = random.state()

    def __call__(self) -> None:
        """Restore the state."""
        for t, uop, grad, shared in self.tensors:
            t.uop, t.grad, t._shared = uop, grad, shared
        for storage, value in self.storages:
            storage.value = value
        random.restore(self.random)


class Pins:
    """A watcher that records which variables the function used by value, and where."""

    def __init__(self) -> None:
        self.found: dict[str, tuple[str, int]] = {}

    def __call__(self, size: UOp, value: int) -> None:
        if size.dtype.is_bool:
            return
        for b in toposort(size):
            if is_range(b):
                self.found.setdefault(b.src[0].arg[0], user_line())

    def numbers(self, guard: SizeGuard) -> set[int]:
        """Return the numbers of the sizes that are given by such variables."""
        pinned = {int(name[len(NAME):]) for name in self.found}
        return {n for n, e in guard.expressions.items() if pinned.intersection(e.variables)}

    def text(self) -> str:
        """Return the reason for the user."""
        return "a size is used as a number at " + ", ".join(sorted({place(*line) for line in self.found.values()}))

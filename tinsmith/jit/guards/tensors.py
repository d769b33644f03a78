"""Guards on tensors that a captured call read besides its arguments: where each buffer is found at a replay.

A buffer that was there before the capture belongs to a *group*: the argument that holds it and the tensors that the
function can reach and that looked at it. At a replay all of them must look at one buffer again, in the same way; two
groups at two buffers. That is what makes a replay read what the function would read.

Symbolic sizes and conditions that decided the control flow must have their captured values; if one differs, the
function itself runs, and takes another branch or raises its error.
"""
from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tinsmith.backend.memory import Buffer, ShardLayout
from tinsmith.core.dtypes import DType
from tinsmith.ir import Ops, UOp
from tinsmith.ir.algebra.sizes import bindings
from tinsmith.ir.interpret.tensor import evaluator
from tinsmith.ir.uop import toposort
from tinsmith.jit.guards.signature import base_of, placed, view_of
from tinsmith.jit.memory import settle
from tinsmith.tensor.storage import Looks, unseen
from tinsmith.tensor.tensor import Tensor


class TensorPath(NamedTuple):
    """The location of a tensor at a replay: argument ``number``, a weak reference, or the gradient of either."""

    number: int = -1
    ref: weakref.ref[Tensor] | None = None
    gradient: bool = False

    def owner(self, arguments: Sequence[Tensor]) -> Tensor | None:
        return self.ref() if self.ref is not None else arguments[self.number]

    def find(self, arguments: Sequence[Tensor]) -> Tensor | None:
        t = self.owner(arguments)
        return t.grad if self.gradient and t is not None else t


@dataclass
class Member:
    """A tensor of a group, and the view through which it sees the buffer."""

    place: TensorPath
    view: tuple[Any, ...]


@dataclass
class Group:
    """The tensors that one buffer is found through."""

    size: int
    dtype: DType
    device: str
    argument: int = -1
    members: list[Member] = field(default_factory=list)
    pinned: Buffer | None = None  # fixed buffer, referenced by a lazy tensor's graph
    layout: ShardLayout | None = None  # sharding, if on several devices
    latest: int = 0  # id of the buffer that was found last
    seen: tuple[weakref.ref[Buffer], list[tuple[weakref.ref[Tensor], weakref.ref[UOp]]]] | None = None

    def unchanged(self) -> Buffer | None:
        """Return the buffer found last if every tensor still has the same node; else None."""
        if self.seen is None:
            return None
        for ref, uop in self.seen[1]:
            t = ref()
            if t is None or t.uop is not uop():
                return None
        return self.seen[0]()

    def remember(self, found: Buffer) -> None:
        """Record the tensors' nodes for ``unchanged``, if the same buffer was found twice in a row."""
        self.seen = None
        if id(found) == self.latest and self.argument < 0:
            places = [m.place for m in self.members]
            tensors = [t for p in places if p.ref is not None and not p.gradient and (t := p.ref()) is not None]
            if len(tensors) == len(places):
                self.seen = weakref.ref(found), [(p.ref, weakref.ref(t.uop)) for p, t in zip(places, tensors) if p.ref]
        self.latest = id(found)

    def find(self, arguments: Sequence[Tensor]) -> Buffer | None:
        """Return the current buffer; None if the tensors no longer share one of the same kind."""
        found: Buffer | None = base_of(arguments[self.argument].uop).arg if self.argument >= 0 else None
        for member in self.members:
            t = member.place.find(arguments)
            if t is None:
                return None
            if t.uop.op is not Ops.BUFFER or member.view:
                if t._shared is not None or not placed(t.uop):
                    settle(t)
                if base_of(t.uop).op is not Ops.BUFFER or view_of(t.uop) != member.view:
                    return None
            b: Buffer = base_of(t.uop).arg
            if found is None:
                found = b
            elif found is not b:
                return None
        if found is None or (found.size, found.dtype, found.device, found.layout) != (
                self.size, self.dtype, self.device, self.layout):
            return None
        return found if self.pinned is None or self.pinned is found else None


class Gradient(NamedTuple):
    """The gradient state of a tensor: if it had one and, if the call clears unrequested ones, if it was requested."""

    place: TensorPath
    there: bool
    unasked: bool | None


class Decisions:
    """Sizes and conditions that depend on bound variables among the arguments, with their values in the captured call.

    Args:
        decided: node → value.
        bound: (name, value) of such a variable at the capture → its number among the arguments'.
    """

    def __init__(self, decided: dict[UOp, int], bound: dict[tuple[str, int], int]) -> None:
        variables: dict[UOp, int] = {}
        nodes: list[UOp] = []
        for node in decided:
            own = {b: bound[p] for b in bindings(toposort(node)) if (p := (b.src[0].arg[0], b.src[1].arg)) in bound}
            variables.update(own)
            nodes += [node] if own else []
        self.numbers = list(variables.values())
        self.values = evaluator(nodes, list(variables))
        self.wanted = [decided[n] for n in nodes]

    def hold(self, bound: Sequence[int]) -> bool:
        """Return True if the current values of the variables lead to the same decisions."""
        return not self.wanted or self.values([bound[n] for n in self.numbers]) == self.wanted


@dataclass
class Guards:
    """All guards of a replay on tensors; the signature and ``State`` guard the rest."""

    groups: list[Group] = field(default_factory=list)
    lazy: list[tuple[weakref.ref[Tensor], UOp]] = field(default_factory=list)  # unrealized tensors that were read
    gradients: list[Gradient] = field(default_factory=list)
    seed: int | None = None  # where numbers were drawn lazily before the capture
    shared: list[list[tuple[TensorPath, Looks]]] = field(default_factory=list)  # tensors of one memory that was written
    alone: list[TensorPath] = field(default_factory=list)  # tensors that are written and then given another memory
    decisions: Decisions | None = None

    def find(self, arguments: Sequence[Tensor], seed: int, bound: Sequence[int] = ()) -> list[Buffer] | None:
        """Return a buffer per group, or None if a guard fails.

        Args:
            arguments: the tensors among the arguments.
            seed: of the random numbers.
            bound: values of the bound variables among the arguments.
        """
        if self.seed is not None and self.seed != seed:
            return None
        if self.decisions is not None and not self.decisions.hold(bound):
            return None
        for ref, uop in self.lazy:
            t = ref()
            if t is None or t.uop is not uop:
                return None
        for place, there, unasked in self.gradients:
            t = place.find(arguments)
            if t is None or (t.grad is not None) is not there or (
                    unasked is not None and t.gradient_unasked() is not unasked):
                return None
        for place in self.alone:
            t = place.find(arguments)
            if t is None or not unseen(t):
                return None
        for places in self.shared:
            parts = [t._shared if (t := place.find(arguments)) is not None else None for place, _ in places]
            if any(p is None or p.looks != looks or p.storage is not parts[0].storage  # type: ignore[union-attr]
                   for p, (_, looks) in zip(parts, places)):
                return None
        found: list[Buffer] = []
        for group in self.groups:
            b = group.unchanged()
            if b is None:
                b = group.find(arguments)
                if b is None:
                    return None
                group.remember(b)
            found.append(b)
        return found if len({id(b) for b in found}) == len(found) else None

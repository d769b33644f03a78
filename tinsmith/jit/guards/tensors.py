"""Guards on tensors, and the fast path that checks all guards of the latest capture.

The guards cover tensors that a captured call read besides its arguments, and say where each buffer is found at a
replay. A buffer from before the capture belongs to a *group*: the argument that holds it, and the reachable tensors
with a view of it. At a replay all members of a group must share one buffer again, with the same views, and two groups
must have different buffers. So a replay reads the buffers that the function would read.

Symbolic sizes and conditions that decided the control flow must have their captured values. If one differs, the
function itself runs, and takes another branch or raises its error.

The fast path has the guards of the latest capture as flat lists, and replays a call that passes them at once. It
accepts only calls that the signature, ``State`` and ``Guards`` would accept; otherwise the full guards are checked.
"""
from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tinsmith.backend.memory import Buffer, ShardLayout
from tinsmith.core.dtypes import DType, dtypes
from tinsmith.core.errors import is_from_handler
from tinsmith.core.object_lifetime import WeakTable
from tinsmith.core.settings import current
from tinsmith.ir import Ops, UOp
from tinsmith.ir.algebra.sizes import bindings, symbols
from tinsmith.ir.interpret.tensor import evaluator
from tinsmith.ir.uop import toposort
from tinsmith.jit.guards.signature import EXACT, base_of, by_identity, placed, view_of
from tinsmith.jit.guards.sizes import SizeGuard
from tinsmith.jit.guards.state import State
from tinsmith.jit.memory import settle
from tinsmith.tensor.create import random
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
    """A tensor of a group, and its view of the buffer."""

    place: TensorPath
    view: tuple[Any, ...]


@dataclass
class Group:
    """The tensors by which a replay finds one buffer."""

    size: int  # -1: it changes
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
        if found is None or (self.size if self.size < 0 else found.size, found.dtype, found.device, found.layout) != (
                self.size, self.dtype, self.device, self.layout):
            return None
        return found if self.pinned is None or self.pinned is found else None


class Gradient(NamedTuple):
    """The gradient state of a tensor: True if it had a gradient; if the call clears unrequested gradients, also whether
    it was requested."""

    place: TensorPath
    there: bool
    unasked: bool | None


class Decisions:
    """Sizes and conditions that depend on bound variables among the arguments, with their values in the captured call.

    Args:
        decided: node → value.
        bound: (name, value) of such a variable at the capture → its number among the arguments' variables.
    """

    def __init__(self, decided: dict[UOp, int], bound: dict[tuple[str, int], int]) -> None:
        variables: dict[UOp, int] = {}
        nodes: list[UOp] = []
        for node in decided:
            own = {b: bound[p] for b in bindings(toposort(node)) if (p := (b.src[0].arg[0], b.src[1].arg)) in bound}
            variables.update(own)
            nodes += [node] if own else []
        self.numbers = list(variables.values())
        self.in_order = self.numbers == list(range(len(bound)))
        self.values = evaluator(nodes, list(variables))
        self.wanted = [decided[n] for n in nodes]

    def hold(self, bound: Sequence[int]) -> bool:
        """Return True if the current values of the variables lead to the same decisions."""
        return not self.wanted or self.values(
            bound if self.in_order else [bound[n] for n in self.numbers]) == self.wanted


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
            seed: the seed of the random numbers.
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
            first = parts[0]
            if first is None or any(p is None or p.looks != looks or p.storage is not first.storage
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


class _Kind:
    """The guard on a tensor argument: a given view of a buffer with given size, dtype and device.

    Attributes:
        known: nodes that passed the guard, with their buffers.
    """

    __slots__ = ("device", "dtype", "known", "size", "view")

    def __init__(self, size: int, dtype: DType, device: str, view: tuple[Any, ...]) -> None:
        self.size, self.dtype, self.device, self.view = size, dtype, device, view
        self.known: WeakTable[UOp, weakref.ref[Buffer]] = WeakTable()

    def buffer(self, uop: UOp) -> Buffer | None:
        """Return the node's buffer, if the tensor has this size, dtype, device and view; else None."""
        node = uop
        for op, arg, rest in self.view:
            if node.op is not op or node.arg != arg or (rest and node.src[1:] != rest):
                return None
            node = node.src[0]
        if node.op is not Ops.BUFFER:
            return None
        b: Buffer = node.arg
        if b.size != self.size or b.dtype is not self.dtype or b.device != self.device:
            return None
        self.known[uop] = weakref.ref(b)
        return b


class Quick:
    """Flat guards for calls whose arguments are positional: tensors, scalars and objects.

    Args:
        state, guards: the full guards of the capture.
        args: the arguments of a call that has just passed them.

    Raises:
        TypeError: if these arguments need the full guards.
    """

    def __init__(self, state: State, guards: Guards, args: tuple[Any, ...]) -> None:
        self.values = current()
        self.default_float, self.default_int = dtypes.default_float, dtypes.default_int
        self.kinds = vars(dtypes)  # read without the hook that explains unknown names
        self.guards = guards
        self.differs = state.differs
        self.count = len(args)
        self.tensors: list[tuple[int, bool | None, Callable[[int], Any], _Kind]] = []
        self.scalars: list[tuple[int, Any]] = []
        self.objects: list[tuple[int, int]] = []
        for n, value in enumerate(args):
            if type(value) is Tensor:
                b = base_of(value.uop).arg
                if base_of(value.uop).op is not Ops.BUFFER or b.layout is not None or any(
                        True for _, arg, _ in view_of(value.uop) for _ in symbols(arg)):
                    raise TypeError("a tensor with symbolic sizes, empty, or over several devices")
                kind = _Kind(b.size, b.dtype, b.device, view_of(value.uop))
                self.tensors.append((n, value.requires_grad, kind.known.entries.get, kind))
            elif type(value) in EXACT:
                self.scalars.append((n, value))
            elif by_identity(value):
                self.objects.append((n, id(value)))
            else:
                raise TypeError(f"{type(value).__name__} among the arguments")
        if len({id(base_of(args[n].uop).arg) for n, *_ in self.tensors}) != len(self.tensors):
            raise TypeError("two tensors that share a buffer")
        self.whole = len(self.tensors) == len(args)
        # Entries of the guards that are arguments and nothing else need no second look.
        simple = not (guards.lazy or guards.gradients or guards.seed is not None or guards.shared or guards.alone)
        plain = all(g.argument >= 0 and not g.members and g.pinned is None for g in guards.groups)
        self.order = [g.argument for g in guards.groups] if simple and plain else None
        self.in_order = self.order == list(range(len(self.tensors)))

    def match(self, args: tuple[Any, ...]) -> tuple[list[Buffer], Sequence[Tensor], Sequence[int]] | None:
        """Return (buffers of the guards, tensor arguments, no values of variables); None if the full guards must be
        checked."""
        if current() is not self.values or len(args) != self.count or (
                self.kinds["default_float"] is not self.default_float or
                self.kinds["default_int"] is not self.default_int):
            return None
        found: list[Buffer] = []
        sharing = 0
        for n, requires_grad, known, kind in self.tensors:
            t = args[n]
            if type(t) is not Tensor or t.requires_grad is not requires_grad:
                return None
            seen = known(id(t.uop))
            b = kind.buffer(t.uop) if seen is None else seen[1]()
            if b is None or b.failed is not None:
                return None
            found.append(b)
            if t._shared is not None:
                sharing += 1
        if len(found) > 1 and (sharing > 1 or len(set(found)) != len(found)):
            return None  # two that share memory may have been computed apart
        for n, scalar in self.scalars:
            if args[n] is not scalar and (type(args[n]) is not type(scalar) or args[n] != scalar):
                return None
        for n, identity in self.objects:
            if id(args[n]) != identity:
                return None
        if _has_changed(self.differs, args):
            return None
        tensors = args if self.whole else [args[row[0]] for row in self.tensors]
        if self.in_order:
            return found, tensors, ()
        if self.order is not None:
            return [found[n] for n in self.order], tensors, ()
        del found
        every = self.guards.find(tensors, random.state()[0])
        return None if every is None else (every, tensors, ())


class QuickSizes:
    """Flat guards, as ``Quick``, for tensors whose sizes change: those of a capture over a range, or views with bound
    variables.

    Args:
        state, guards: the full guards of the capture.
        args: the arguments of a call that has just passed them: tensors only.
        sizes: the guard on the sizes of a capture over a range, else None.

    Raises:
        TypeError: if these arguments need the full guards.
    """

    def __init__(self, state: State, guards: Guards, args: tuple[Any, ...], sizes: SizeGuard | None) -> None:
        self.values = current()
        self.default_float, self.default_int = dtypes.default_float, dtypes.default_int
        self.kinds = vars(dtypes)
        self.guards, self.differs = guards, state.differs
        self.sizes = None if sizes is None else sizes.values
        if any(type(t) is not Tensor for t in args):
            raise TypeError("arguments other than tensors")
        self.tensors: list[tuple[bool | None, DType, str, int, tuple[Any, ...]]] = []
        self.variables: list[UOp] = []
        for t in args:
            b = base_of(t.uop).arg
            if base_of(t.uop).op is not Ops.BUFFER or b.layout is not None:
                raise TypeError("a tensor without memory, or over several devices")
            view = tuple((op, self._pattern(arg)) for op, arg, rest in view_of(t.uop) if self._is_plain(op, rest))
            self.tensors.append((t.requires_grad, b.dtype, b.device, b.size if sizes is None else -1, view))
        if sizes is not None and any(op is not Ops.RESHAPE for row in self.tensors for op, _ in row[-1]):
            raise TypeError("views other than reshapes")
        simple = not (guards.lazy or guards.gradients or guards.seed is not None or guards.shared or guards.alone)
        plain = all(g.argument >= 0 and not g.members and g.pinned is None for g in guards.groups)
        self.order = [g.argument for g in guards.groups] if simple and plain else None

    def _is_plain(self, op: Any, rest: tuple[UOp, ...]) -> bool:
        if rest or op.kind != "movement":
            raise TypeError("a view with other operands")
        return True

    def _pattern(self, arg: Any) -> Any:
        """Return an argument of a movement op with its symbolic sizes in one-item lists."""
        if isinstance(arg, UOp):
            for n in toposort(arg):
                if n.op is Ops.BIND and n.src[0] not in self.variables:
                    self.variables.append(n.src[0])
            return [arg]
        return tuple(map(self._pattern, arg)) if type(arg) is tuple else arg

    def match(self, args: tuple[Any, ...]) -> tuple[list[Buffer], Sequence[Tensor], Sequence[int]] | None:
        """Return (buffers of the guards, tensor arguments, values of the variables); None if the full guards must be
        checked."""
        if current() is not self.values or len(args) != len(self.tensors) or (
                self.kinds["default_float"] is not self.default_float or
                self.kinds["default_int"] is not self.default_int):
            return None
        found: list[Buffer] = []
        sizes: list[int] = []
        values: list[int] = [-1] * len(self.variables)
        sharing = 0
        for t, (requires_grad, dtype, device, size, view) in zip(args, self.tensors):
            if type(t) is not Tensor or t.requires_grad is not requires_grad:
                return None
            sharing += t._shared is not None
            node = t.uop
            sizes.append(0)
            at = len(sizes) - 1
            for op, pattern in view:
                if node.op is not op or (self.sizes is None and not _fits(pattern, node.arg, self.variables, values)):
                    return None
                if self.sizes is not None:
                    if len(node.arg) != len(pattern):
                        return None
                    sizes += node.arg
                node = node.src[0]
            if node.op is not Ops.BUFFER:
                return None
            b: Buffer = node.arg
            if b.dtype is not dtype or b.device != device or b.failed is not None or (size >= 0 and b.size != size):
                return None
            sizes[at] = b.size
            found.append(b)
        if len(found) > 1 and (sharing > 1 or len(set(map(id, found))) != len(found)):
            return None
        bound = values if self.sizes is None else self.sizes(tuple(sizes))
        if bound is None:
            return None
        if _has_changed(self.differs, args):
            return None
        if self.order is not None:
            if self.guards.decisions is not None and not self.guards.decisions.hold(bound):
                return None
            return [found[n] for n in self.order], args, bound
        every = self.guards.find(args, random.state()[0], bound)
        return None if every is None else (every, args, bound)


def _has_changed(differs: Callable[[tuple[Any, ...], dict[str, Any]], object], args: tuple[Any, ...]) -> bool:
    """Return True if Python state differs from that of the capture, or can no longer be reached."""
    try:
        return differs(args, {}) is not None
    except Exception as why:
        if is_from_handler(why):
            raise
        return True


def _fits(pattern: Any, arg: Any, variables: list[UOp], values: list[int]) -> bool:
    """Return True if an argument is as ``pattern`` says; put the values of its variables into ``values``."""
    kind = type(pattern)
    if kind is tuple:
        return type(arg) is tuple and len(arg) == len(pattern) and all(
            _fits(p, a, variables, values) for p, a in zip(pattern, arg))
    if kind is not list:
        return type(arg) is kind and bool(arg == pattern)
    return type(arg) is UOp and _alike(pattern[0], arg, variables, values)


def _alike(pattern: UOp, size: UOp, variables: list[UOp], values: list[int]) -> bool:
    """Return True if two sizes are the same expression of variables, each with one value only."""
    if pattern.op is not size.op:
        return False
    if pattern.op is not Ops.BIND:
        return pattern.arg == size.arg and len(pattern.src) == len(size.src) and all(
            _alike(a, b, variables, values) for a, b in zip(pattern.src, size.src))
    if pattern.src[0] is not size.src[0]:
        return False
    number, value = variables.index(size.src[0]), size.src[1].arg
    if values[number] not in (-1, value):
        return False
    values[number] = value
    return True

"""The fast path: guards of the latest capture as flat lists; a call that passes them is replayed at once.

They accept a call only if its signature, ``State`` and ``Guards`` would; otherwise the full guards are checked.
"""
from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

from tinsmith.backend.memory import Buffer
from tinsmith.core.dtypes import DType, dtypes
from tinsmith.core.object_lifetime import WeakTable
from tinsmith.core.settings import current
from tinsmith.core.signal_errors import is_from_handler
from tinsmith.ir import Ops, UOp
from tinsmith.ir.algebra.sizes import symbols
from tinsmith.jit.guards.signature import EXACT, base_of, by_identity, view_of
from tinsmith.jit.guards.state import State
from tinsmith.jit.guards.tensors import Guards
from tinsmith.tensor.create import random
from tinsmith.tensor.tensor import Tensor


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
        """The node's buffer, if it is of this kind."""
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
        state, guards: of the capture.
        args: of a call that has just met them.

    Raises:
        TypeError: if these arguments need the full look.
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

    def match(self, args: tuple[Any, ...]) -> tuple[list[Buffer], Sequence[Tensor]] | None:
        """Return (buffers of the guards, tensor arguments); None if the full guards must be checked."""
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
        try:
            if self.differs(args, {}) is not None:
                return None
        except Exception as why:  # something on the way is gone
            if is_from_handler(why):
                raise
            return None
        tensors = args if self.whole else [args[row[0]] for row in self.tensors]
        if self.in_order:
            return found, tensors
        if self.order is not None:
            return [found[n] for n in self.order], tensors
        del found
        every = self.guards.find(tensors, random.state()[0])
        return None if every is None else (every, tensors)

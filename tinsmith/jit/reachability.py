"""Tensors that a function can reach, and tensors that hold the only reference to their buffer.

Reachability goes through arguments, closure, defaults and named globals, at any depth; sole ownership is read from
reference counts.
"""
from __future__ import annotations

import functools
import gc
import sys
import types
from collections.abc import Sequence
from typing import Any, Final

from tinsmith.backend.memory import Buffer, ShardLayout
from tinsmith.backend.shards import Shards
from tinsmith.core.dtypes import dtypes
from tinsmith.core.object_lifetime import references
from tinsmith.ir import Ops, UOp
from tinsmith.jit.guards.signature import all_names, ours
from tinsmith.jit.guards.state import State
from tinsmith.tensor.storage import NO_LOOKS, Share, Storage, alone, unseen
from tinsmith.tensor.tensor import Tensor

COUNTED: Final = hasattr(sys, "getrefcount")  # without it, sole ownership cannot be detected

_new: Final = object.__new__


def _sole(t: Tensor) -> list[int]:
    """Return the reference counts of a tensor's buffer, of its parts, of its nodes, and of its storage."""
    counts = []
    node = t.uop
    while node.op is not Ops.BUFFER:
        counts.append(references(node))
        node = node.src[0]
    parts = [references(p) for p in node.arg.parts] if isinstance(node.arg, Shards) else []
    kept = [] if t._shared is None else [references(t._shared), references(t._shared.storage)]
    return [references(node.arg), references(node), *reversed(counts), *parts, *kept]


def _direct(t: Tensor) -> tuple[int, int, int]:
    """Return the reference counts of a tensor's buffer, of the buffer's node, and of ``t.uop``, its only view."""
    view = t.uop
    return references(view.src[0].arg), references(view.src[0]), references(view)


@functools.cache
def _direct_counts() -> tuple[int, int, int]:
    """Return the result of ``_direct`` for a sole owner whose buffer is also in one list of the caller."""
    held = [Buffer("NPY", 1, dtypes.float32)]
    t: Tensor = _new(Tensor)
    t.uop, t._shared = UOp(Ops.BUFFER, dtypes.float32, (), held[0]).reshape((1, 1)), None
    return _direct(t)


@functools.cache
def _sole_counts(views: int, layout: ShardLayout | None, above: int | None) -> list[int]:
    """Return the reference counts (``_sole``) of a tensor that nothing else refers to: the expected counts.

    The counts are measured on a new tensor whose buffer is, as in the caller, also in one list.

    Args:
        views: number of movement ops from the buffer to the tensor's value.
        above: number of these movement ops below the value of the tensor's shared storage; None: it has no shared
            storage.
    """
    parts = () if layout is None else layout.devices
    held = [Shards([Buffer("NPY", 1, dtypes.float32) for _ in parts], layout) if layout is not None else
            Buffer("NPY", 1, dtypes.float32)]
    node = UOp(Ops.BUFFER, dtypes.float32, (), held[0])
    t: Tensor = _new(Tensor)
    t._shared = None
    for n in range(views + 1):
        if n == above:
            t._shared = Share(Storage(node), NO_LOOKS)
        if n < views:
            node = node.reshape((1,) * (n + 2))
    t.uop = node
    del node
    return _sole(t)


def is_sole(t: Tensor) -> bool:
    """Return True if only ``t`` and one list refer to its buffer.

    ``t`` must be a full view of the buffer, or any view of a storage that no other tensor shares and that is itself a
    full view of the buffer.
    """
    kept = not alone(t)
    if kept and not unseen(t):
        return False
    if not kept and t.uop.op is Ops.RESHAPE and t.uop.src[0].op is Ops.BUFFER and t.uop.src[0].arg.layout is None:
        return COUNTED and _direct(t) == _direct_counts() and t.uop.base.arg.base is None and not t.uop.base.arg.lent
    node, views = t.uop, 0
    whole = t._shared.storage.value if t._shared is not None else node
    while node is not whole and node.op.kind == "movement":
        node, views = node.src[0], views + 1
    if node is not whole:  # seen through more than views, or computed separately
        return False
    seen = views
    while node.op in (Ops.RESHAPE, Ops.PERMUTE):
        node, views = node.src[0], views + 1
    if not COUNTED or node.op is not Ops.BUFFER or node.arg.base is not None or node.arg.lent:
        return False
    above, layout = views - seen if kept else None, node.arg.layout
    del node, whole
    return _sole(t) == _sole_counts(views, layout, above)

_LEAVES = (int, float, str, bytes, type(None), complex, UOp, Buffer, types.CodeType, types.FrameType,
           types.BuiltinFunctionType, State)  # the last holds whole dictionaries of globals

LIMIT = 200_000


def reachable(roots: Sequence[Any]) -> dict[int, Tensor]:
    """Return the reachable tensors, by id. Modules are entered only through the names that functions look up."""
    found: dict[int, Tensor] = {}
    seen: dict[int, Any] = {}
    stack = list(roots)
    while stack and len(seen) < LIMIT:
        value = stack.pop()
        if isinstance(value, _LEAVES) or id(value) in seen:
            continue
        seen[id(value)] = value
        if isinstance(value, Tensor):
            found[id(value)] = value
        elif isinstance(value, types.FunctionType):
            stack += value.__closure__ or ()
            stack += [value.__defaults__, value.__kwdefaults__]
            names = all_names(value.__code__)
            named = [value.__globals__[n] for n in names if n in value.__globals__]
            stack += named
            stack += [getattr(m, n) for m in named if _foreign(m) for n in names if n in vars(m)]
        elif isinstance(value, type):
            if not ours(value.__module__):
                stack += [v for v in vars(value).values() if not isinstance(v, types.GetSetDescriptorType)]
        elif not isinstance(value, types.ModuleType):
            stack += gc.get_referents(value)
            if not isinstance(value, (dict, list, tuple, set)) and not ours(type(value).__module__):
                stack.append(type(value))
    return found


def _foreign(module: Any) -> bool:
    return isinstance(module, types.ModuleType) and not ours(module.__name__)

"""Tensors of a capture: reachable ones, sole owners of a buffer, and deferred gradients.

* Reachability follows arguments, closure, defaults and named globals, at any depth.
* A tensor is the sole owner of its buffer if reference counts say so.
* Tensors are realized such that aliases stay views of one buffer, which guards and replays compare.
* Deferred gradients are unrealized gradients of earlier calls. They are computed only if they are read; most are
  dropped. A capture must not depend on the graph of such a gradient, because a replay finds another one. So during the
  capture the gradient is a buffer, which is filled when its memory is needed.
"""
from __future__ import annotations

import functools
import gc
import sys
import types
import weakref
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from tinsmith.backend.memory import Buffer, ShardLayout
from tinsmith.backend.shards import Shards
from tinsmith.core.dtypes import dtypes
from tinsmith.core.object_lifetime import references
from tinsmith.ir import Ops, UOp
from tinsmith.ir.uop import forget_dead
from tinsmith.jit.guards.signature import all_names, base_of, ours, placed
from tinsmith.jit.guards.state import State
from tinsmith.runtime.launch import recorders
from tinsmith.tensor.autograd import history
from tinsmith.tensor.base import TensorBase
from tinsmith.tensor.realize import realize_tensors
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
        if isinstance(value, TensorBase):
            found[id(value)] = value  # type: ignore[assignment]
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



def whole(t: Tensor) -> Tensor | None:
    """Return a tensor of the complete storage that ``t`` shares, if it is not realized yet; else None."""
    if t._shared is None or alone(t) or placed(t._shared.storage.value):
        return None
    found = Tensor(t._shared.storage.value)
    found._device, found._shared = t._device, Share(t._shared.storage, NO_LOOKS)
    t._shared.storage.add(found)
    return found



def settle(t: Tensor) -> None:
    """Realize a tensor such that all tensors that share its memory are views of one buffer."""
    if t._shared is None:
        if not placed(t.uop):
            t.realize()
        return
    stand_in = whole(t)
    if stand_in is not None:
        stand_in.realize()
    if t._shared is None:
        return settle(t)
    if base_of(t.uop) is not base_of(t._shared.storage.value):  # it was computed alone
        t.uop = t._shared.seen()



def compute(results: Sequence[Tensor], written: Sequence[Tensor]) -> None:
    """Realize the results and the written tensors; if several share memory, realize their complete storage once."""
    counts = Counter(id(t._shared.storage) for t in {id(t): t for t in results}.values() if t._shared is not None)
    several = [t for t in results if t._shared is not None and counts[id(t._shared.storage)] > 1]
    wholes: dict[int, Tensor] = {}
    for t in (*several, *written):
        if t._shared is not None and id(t._shared.storage) not in wholes and (found := whole(t)) is not None:
            wholes[id(t._shared.storage)] = found
    pending = [t for t in (*results, *written) if not placed(t.uop) and (
        t._shared is None or id(t._shared.storage) not in wholes)]
    if pending or wholes:
        realize_tensors([*pending, *wholes.values()])



class Unread(Buffer):
    """A buffer that is computed on first access, hidden from recorders."""

    __slots__ = ("_graph", "_source")

    def __init__(self, t: Tensor) -> None:
        super().__init__(t._device, t.numel(), t.dtype)
        self._graph: UOp | None = t.uop
        self._source: Buffer | None = None  # the computed buffer that owns the memory

    def allocate(self) -> Buffer:
        """Compute the value, whose memory becomes the memory of this buffer."""
        value = Tensor(self._graph)
        others = recorders.exchange([])
        try:
            realize_tensors([value])
        finally:
            recorders.exchange(others)
        source: Buffer = value.uop.base.arg
        self._opaque, self.offset, self._source, self._graph = source.opaque, source.offset, source, None
        return self



def _can_wait(t: Tensor) -> bool:
    """Return True if a value can be deferred: detached, on one device, with a static shape."""
    return t.uop.op is Ops.DETACH and "," not in t._device and not any(isinstance(s, UOp) for s in t.shape)



class SetAside:
    """Lazy gradients that are represented by unfilled buffers until ``end``, and computed only if they are read.

    Gradients for which this is impossible are computed at once.
    """

    def __init__(self, gradients: Sequence[Tensor]) -> None:
        self._entries: list[tuple[Tensor, UOp, Unread]] = []
        now = [t for t in gradients if not _can_wait(t)]
        if now:
            realize_tensors(now)
        for t in gradients:
            if _can_wait(t):
                graph, unread = t.uop, Unread(t)
                node = UOp(Ops.BUFFER, t.dtype, (), unread)
                history.remember(node, history.prepared({graph: ()}, TensorBase.live)[graph], TensorBase.live)
                t.uop = node if t.shape == unread.shape else UOp(Ops.RESHAPE, None, (node,), t.shape)
                self._entries.append((t, graph, unread))

    def end(self) -> None:
        """Make unread gradients lazy again; compute the gradients that other lazy values now refer to."""
        entries, self._entries = self._entries, []
        left: list[weakref.ref[Any]] = []
        while entries:
            t, graph, unread = entries.pop()
            if not unread.is_allocated() and t.uop.base.arg is unread:
                t.uop = graph
            left.append(weakref.ref(unread))
            del t, unread
        forget_dead()
        for ref in left:
            b = ref()
            if b is not None and not b.is_allocated():
                b.allocate()

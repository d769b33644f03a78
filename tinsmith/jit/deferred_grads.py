"""Deferred gradients: unrealized gradients of earlier calls, computed only if they are read (most are dropped).

A capture must not see how such a gradient is made, since a replay finds another one. So for the time of the capture the
gradient is a buffer, which is filled when its memory is wanted.
"""
from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from tinsmith.backend.memory import Buffer
from tinsmith.ir import Ops, UOp
from tinsmith.ir.uop import forget_dead
from tinsmith.runtime.launch import recorders
from tinsmith.tensor.autograd import history
from tinsmith.tensor.base import TensorBase
from tinsmith.tensor.realize import realize_tensors
from tinsmith.tensor.tensor import Tensor


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

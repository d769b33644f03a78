"""Gradients that a replay leaves behind and nobody has read yet: their graphs are created on first access.

Such a gradient needs the values that it is computed from, old versions of the parameters among them. The next call
that replaces it gives their memory up first, so that parameters need two buffers, which alternate, and not three.
"""
from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, Final, Protocol

from tinsmith.backend.memory import Buffer
from tinsmith.core.errors import JitError
from tinsmith.core.object_lifetime import references
from tinsmith.ir import UOp
from tinsmith.jit.merged_schedule import Template
from tinsmith.tensor.base import TensorBase
from tinsmith.tensor.tensor import Tensor

_UOP: Final[Any] = TensorBase.__dict__["uop"]


class LateTensor(Tensor):
    """A gradient that has not been read yet."""

    __slots__ = ()

    @property
    def uop(self) -> UOp:
        node: Any = _UOP.__get__(self)
        if not isinstance(node, UOp):
            node = node()
            _UOP.__set__(self, node)
            object.__setattr__(self, "__class__", Tensor)
            TensorBase.live.add(self)
        found: UOp = node
        return found

    @uop.setter
    def uop(self, node: UOp) -> None:
        _UOP.__set__(self, node)


def late_tensor(make: Callable[[], UOp], device: str) -> Tensor:
    """Return a tensor whose node ``make`` builds on first access."""
    t: Tensor = object.__new__(LateTensor)
    _UOP.__set__(t, make)
    t._device, t.grad, t._requires_grad, t._shared = device, None, None, None
    return t


class KeptMemory(Protocol):
    """The memory of one output of a replay, which keeps it between calls."""

    buffer: Buffer


class LateGradients:
    """The unread gradients of one call that have common sources.

    Args:
        buffers: the values that they are computed from.
        entries: the memory of the replay's outputs, by the ``id`` of its buffer.
        value: the function (name, value at capture) → value of a variable at the call.

    Attributes:
        overwritten: the call that replaces them may have written to the released memory.
    """

    def __init__(self, buffers: Sequence[Buffer], entries: Mapping[int, KeptMemory],
                 value: Callable[[str, int], int]) -> None:
        self.buffers: list[Buffer | None] = list(buffers)
        self.outputs = [(n, entries[id(b)]) for n, b in enumerate(buffers) if id(b) in entries]
        self.value, self.made = value, list[weakref.ref[Tensor]]()
        self.next: LateGradients | None = None  # those of the call that replaced them
        self.ended, self.thread = threading.Event(), 0
        self.overwritten = False

    def add(self, template: Template, device: str) -> Tensor:
        """Return a gradient that is ``template`` of the buffers."""
        t = late_tensor(functools.partial(self._fill, template), device)
        self.made.append(weakref.ref(t))
        return t

    def _fill(self, template: Template) -> UOp:
        buffers = list(self.buffers)
        known = [b for b in buffers if b is not None]
        if len(known) == len(buffers):
            return template.fill(known, self.value)
        if self.thread != threading.get_ident():
            self.ended.wait()  # another thread took the gradient just before the call that replaces it
        if self.next is not None:
            return self.next._fill(template)
        if None not in self.buffers:
            return self._fill(template)
        raise JitError("this gradient is lost: a captured function left it, and a later call, which was about to "
                       "replace it, failed", "call zero_grad() and backward() again")

    @property
    def held(self) -> list[KeptMemory]:
        """The outputs' memory that the next call may release: none if a gradient has been read."""
        left = [t for ref in self.made if (t := ref()) is not None]
        return [entry for _, entry in self.outputs] if all(type(t) is LateTensor for t in left) else []

    def give_up(self, replaced: Container[int]) -> bool:
        """Release the memory of outputs if the call replaces all gradients that are left (``id`` in ``replaced``).
        Return True if it is released: then the caller calls ``end``."""
        if not all(id(t) in replaced for ref in self.made if (t := ref()) is not None):
            return False
        self.thread = threading.get_ident()
        for n, _ in self.outputs:
            self.buffers[n] = None
        return True

    def end(self) -> None:
        """Let other threads go on: the call that replaces the gradients has ended. If it failed before it had written
        to the memory, take that back."""
        if not self.overwritten:
            for n, entry in self.outputs:
                self.buffers[n] = entry.buffer
        self.thread = 0
        self.ended.set()


@functools.cache
def _alone() -> int:
    """Return the reference count of an object to which one tensor's ``.grad`` and one variable refer."""
    owner: Tensor = object.__new__(Tensor)
    owner.grad = late_tensor(lambda: UOp.index(0), "NPY")
    t = owner.grad
    return references(t)


def unread(owner: Tensor | None) -> int:
    """Return the ``id`` of a tensor's gradient if that is unread and nothing else refers to it; else 0.

    >>> unread(None), unread(Tensor([1.0]))
    (0, 0)
    """
    if owner is None:
        return 0
    t = owner.grad
    return id(t) if type(t) is LateTensor and references(t) == _alone() else 0

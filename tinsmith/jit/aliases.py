"""Results that share memory: with a tensor from before the call, with a gradient that it made, or among themselves.

A replay attaches such a result to the current storage with the views recorded at capture, so that a write through one
is visible through the other, as after a call that ran the function.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tinsmith.ir import Ops, UOp
from tinsmith.ir.algebra.sizes import bindings, with_symbols
from tinsmith.ir.uop import toposort
from tinsmith.jit.guards.tensors import TensorPath
from tinsmith.tensor.base import TensorBase
from tinsmith.tensor.indexing.slices import Slice
from tinsmith.tensor.storage import NO_LOOKS, Looks, Share, Storage
from tinsmith.tensor.tensor import Tensor

Value = Callable[[str, int], int]


class Alias(NamedTuple):
    """The aliasing of a result.

    Attributes:
        looks: view operations from the storage's value to the result, or from the value of ``place`` if ``relative``.
        place: the location of an earlier tensor with the same memory; None: only results share it.
        late: ``place`` is looked up after the call's writes, because it is a gradient that the call created.
        number: the index of a memory that only results share.
        seen: True if the memory is realized and the result is a view of it; else the result was computed separately.
    """

    looks: Looks
    place: TensorPath | None = None
    relative: bool = False
    late: bool = False
    number: int = -1
    seen: bool = True


def share(t: Tensor, other: Tensor | None, alias: Alias, storage: Storage | None, value: Value) -> None:
    """Make the result ``t`` a view of the memory of ``other``, or of ``storage``, the storage of another result."""
    looks = _rebound(alias.looks, value)
    if storage is None:
        assert other is not None, "a guard has found no tensor to share memory with"
        own = other._shared
        if own is None:
            own = other._shared = Share(Storage(other.uop), NO_LOOKS)
            own.storage.add(other)
        storage = own.storage
        if alias.relative:
            looks = Looks.of((*own.looks, *looks))
    t._shared = Share(storage, looks)
    storage.add(t)
    if alias.seen:
        t.uop = t._shared.seen()
    TensorBase.live.add(t)


def sizes_in(looks: Looks) -> list[UOp]:
    """Return the sizes and bounds in ``looks`` that depend on variables."""
    return [s for _, arg in looks if isinstance(arg, tuple) for part in arg
            for s in (part if isinstance(part, tuple) else (part,)) if isinstance(s, UOp)]


def _rebound(looks: Looks, value: Value) -> Looks:
    """Return ``looks`` with the current values of the variables in their sizes."""
    sizes = sizes_in(looks)
    if not sizes:
        return looks
    table = {n: UOp(Ops.BIND, None, (n.src[0], UOp.index(value(n.src[0].arg[0], n.src[1].arg))))
             for n in bindings(toposort(sizes))}
    return Looks.of((look, tuple(Slice(*with_symbols(tuple(part), table)) if isinstance(part, Slice) else
                              with_symbols(part, table) for part in arg) if isinstance(arg, tuple) else arg)
                 for look, arg in looks)

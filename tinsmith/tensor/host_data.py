"""Values that the host knows without running a kernel, and bounds checks of such indices.

These are lists, arrays, tensors made of them, and small realized tensors in host-addressable memory. An index among
them that is out of range raises an error where it is used. Any other out-of-range index reads 0, and its write is
dropped; ``CHECKED=1`` reports it.
"""
from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tinsmith.backend.npy.device import check_file
from tinsmith.backend.shards import Shards
from tinsmith.core.errors import AxisError
from tinsmith.ir import Ops, UOp
from tinsmith.ir.algebra.sizes import symbols
from tinsmith.runtime.host_copies import seen_on_host
from tinsmith.runtime.recorder import recorders
from tinsmith.tensor.realize import is_realized

if TYPE_CHECKING:
    from tinsmith.tensor.tensor import Tensor

_FEW: Final = 1 << 14  # elements; a smaller buffer is read in less time than a method call takes
_SAME_VALUES = (Ops.COPY, Ops.CONTIGUOUS, Ops.DETACH, Ops.SHARD)


def host_values(uop: UOp) -> np.ndarray[Any, Any] | None:
    """Return the values of host data below views, casts and copies; None for anything computed or realized.

    >>> from tinsmith import Tensor
    >>> host_values(Tensor([[1, 2], [3, 4]])[:, 1].uop), host_values((Tensor([1, 2]) + 1).uop)
    (array([2, 4], dtype=int32), None)
    """
    above: list[UOp] = []
    while uop.op.kind in ("movement", "cast") or uop.op in _SAME_VALUES:
        if uop.op not in _SAME_VALUES:
            above.append(uop)
        uop = uop.src[0]
    if uop.op is Ops.CONST:
        values = np.asarray(uop.arg, uop.dtype.numpy)
    elif uop.op is Ops.BUFFER and uop.device == "NPY":
        values = check_file(uop.arg.opaque).view(uop.dtype.numpy)
    else:
        return None
    for n in reversed(above):
        if n.op.kind == "movement" and any(True for _ in symbols(n.arg)):
            return None
        assert n.op.meaning is not None
        values = n.op.meaning(n, values)
    return values


def _seen_values(uop: UOp) -> np.ndarray[Any, Any] | None:
    """Return the values of a small realized tensor in host-addressable memory, else None. Also None during a capture,
    because a replay may find other values there."""
    base = uop.base
    if recorders or base.op is not Ops.BUFFER or isinstance(base.arg, Shards) or not is_realized(uop):
        return None
    few = not isinstance(uop.size, UOp) and 0 < base.arg.size <= _FEW
    return seen_on_host(uop) if few and base.arg.is_allocated() and base.arg.host_view() is not None else None


def check_indices(op: str, index: Tensor, low: int, size: Any, what: str = "index", ignored: int | None = None,
                  seen: bool = False) -> None:
    """Check an index tensor whose values the host knows against the range of an axis.

    Args:
        low: the least valid index.
        size: the size of the axis; a symbolic size is not checked.
        what: the role of the index in error messages.
        ignored: a value that is valid although out of range (``ignore_index``).
        seen: check small realized tensors in host-addressable memory, too.

    Raises:
        AxisError: naming the first index that is out of range.
    """
    if isinstance(size, UOp):
        return
    values = host_values(index.uop)
    if values is None and seen:
        values = _seen_values(index.uop)
    if values is None:
        return
    outside = (values < low) | (values >= size)
    if ignored is not None:
        outside &= values != ignored
    if outside.any():
        more = ", and ignore_index=... for rows to leave out" if what == "class" else ""
        raise AxisError(op, f"{what} {values[outside].flat[0]} is out of range for an axis of size {size}",
                        f"{low} to {size - 1}{more}")

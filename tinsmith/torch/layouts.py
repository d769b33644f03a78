"""PyTorch's dtypes and memory layouts as Tinsmith tensors: shapes and strides over flat memory."""
from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from tinsmith.backend.memory import Buffer
from tinsmith.core.dtypes import DType, dtypes
from tinsmith.ir import Ops, UOp
from tinsmith.tensor.sizes.traced import plain
from tinsmith.tensor.tensor import Tensor

_NAMES: Final = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
                 "float16", "bfloat16", "float32", "float64")
DTYPES: Final[dict[Any, DType]] = {getattr(torch, name): getattr(dtypes, name) for name in _NAMES}


def dtype_of(dtype: Any) -> DType:
    """Return the Tinsmith dtype of a PyTorch dtype.

    Raises:
        KeyError: if there is none (complex numbers, quantized types).
    """
    return DTYPES[dtype]


@dataclass(frozen=True)
class Meta:
    """Shape, strides (in elements) and dtype of a tensor, without its values.

    Sizes and strides are ints, or traced sizes where they depend on variables.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: DType

    @property
    def size(self) -> int:
        return math.prod(self.shape)


def meta_of(value: Any) -> Any:
    """Return the ``Meta`` of a PyTorch tensor; of a tuple or list a tuple of them; other values as None."""
    if isinstance(value, (tuple, list)):
        return tuple(map(meta_of, value))
    if not hasattr(value, "stride") or value.dtype not in DTYPES:
        return None
    return Meta(tuple(map(int, value.shape)), tuple(map(int, value.stride())), DTYPES[value.dtype])


def tensors_in(value: Any) -> list[Any]:
    """Return the tensors in a result: of one tensor, or of a nested tuple or list."""
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for v in value for t in tensors_in(v)] if isinstance(value, (tuple, list)) else []


def contiguous(meta: Meta) -> Meta:
    """Return the dense layout in row-major order of the same elements."""
    return ordered(meta, range(len(meta.shape)))


def ordered(meta: Meta, order: Sequence[int]) -> Meta:
    """Return the dense layout of the same elements whose axes lie in ``order``, the one with the largest stride
    first."""
    strides: list[Any] = [1] * len(order)
    step: Any = 1
    for n in reversed(order):
        strides[n] = step
        step = step * max(meta.shape[n], 1)
    return Meta(meta.shape, tuple(strides), meta.dtype)


def memory_order(shape: Sequence[int], strides: Sequence[int]) -> list[int]:
    """Return the axes by descending stride; those of one element stay where they are."""
    ordered = iter(sorted((n for n, s in enumerate(shape) if s != 1), key=lambda n: (-strides[n], n)))
    return [n if s == 1 else next(ordered) for n, s in enumerate(shape)]


def is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Return True if the elements fill their memory without gaps and overlaps, in any order of axes."""
    expected = 1
    for n in reversed(memory_order(shape, strides)):
        if shape[n] != 1:
            if strides[n] != expected:
                return False
            expected *= shape[n]
    return True


def is_readable(meta: Meta) -> bool:
    """Return True if ``placeholder`` can describe the memory: rows may have gaps and be repeated, but not overlap."""
    below = 1
    for n in reversed(memory_order(meta.shape, meta.strides)):
        if meta.shape[n] != 1 and meta.strides[n] != 0:
            if meta.strides[n] < below:
                return False
            below = meta.strides[n] * meta.shape[n]
    return True


def placeholder(meta: Meta, device: str) -> tuple[Tensor, Buffer]:
    """Return a tensor that reads memory of this layout from its first element on, and its buffer without memory.

    The buffer ends with the gap after the last row: no kernel reads that. Where its size is symbolic, the buffer has
    the greatest size, of which the tensor reads a part.
    """
    size = plain(span(meta.shape, meta.strides))
    buffer = Buffer(device, size.vmax if isinstance(size, UOp) else size, meta.dtype)
    node = UOp(Ops.BUFFER, meta.dtype, (), buffer)
    if isinstance(size, UOp):
        node = node.shrink(((0, size),))
    return strided(Tensor._wrap(node, device), meta.shape, meta.strides), buffer


def _axes(shape: Sequence[int], strides: Sequence[int]) -> list[int]:
    """Return the axes along which the address changes, the one with the largest stride first."""
    return [n for n in memory_order(shape, strides) if shape[n] != 1 and strides[n] != 0]


def span(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Return the elements of memory that a layout is a view of, with the gap after the last row."""
    axes = _axes(shape, strides)
    return shape[axes[0]] * strides[axes[0]] if axes else 1


def strided(flat: Tensor, shape: tuple[int, ...], strides: Sequence[int]) -> Tensor:
    """Return the view of a flat tensor of ``span`` elements with these strides, for a readable layout."""
    axes, t = _axes(shape, strides), flat
    done: list[int] = []
    for n, after in zip(axes, [*axes[1:], None]):
        rest = strides[n]
        done.append(shape[n])
        inner = 1 if after is None else shape[after] * strides[after]
        if inner != rest:  # rows with gaps
            t = t.reshape(*done, rest).shrink([*((0, s) for s in done), (0, inner)])
    t = t.reshape(done or (1,))
    order = sorted(range(len(axes)), key=axes.__getitem__)
    if order != list(range(len(order))):
        t = t.permute(order)
    kept = set(axes)
    t = t.reshape([s if n in kept else 1 for n, s in enumerate(shape)])
    return t.expand(shape) if t.shape != shape else t


def flattened(t: Tensor, strides: Sequence[int]) -> Tensor:
    """Return the elements of a tensor in the order of memory of dense strides."""
    return t.permute(memory_order(t.shape, strides)).reshape(-1) if t.ndim else t.reshape(1)


def unflattened(flat: Tensor, shape: Sequence[int], strides: Sequence[int]) -> Tensor:
    """Return the tensor of which ``flattened`` gives ``flat``."""
    order = memory_order(shape, strides)
    t = flat.reshape([shape[n] for n in order])
    return t.permute(sorted(range(len(order)), key=order.__getitem__)) if order else t

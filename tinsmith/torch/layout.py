"""Shapes, strides and dtypes of PyTorch's tensors, and Tinsmith tensors over memory that has them."""
from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tinsmith.backend.memory import Buffer
from tinsmith.core.dtypes import DType
from tinsmith.ir import Ops, UOp
from tinsmith.tensor.tensor import Tensor
from tinsmith.torch.dtypes import DTYPES


@dataclass(frozen=True)
class Meta:
    """Shape, strides (in elements) and dtype of a tensor, without its values."""

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


def memory_order(shape: Sequence[int], strides: Sequence[int]) -> list[int]:
    """Return the axes by descending stride; axes of one element come where they are."""
    return sorted(range(len(shape)), key=lambda n: (-strides[n] if shape[n] != 1 else -math.inf, n))


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

    The buffer ends with the gap after the last row: no kernel reads that.
    """
    axes = [n for n in memory_order(meta.shape, meta.strides) if meta.shape[n] != 1 and meta.strides[n] != 0]
    size = meta.shape[axes[0]] * meta.strides[axes[0]] if axes else 1
    buffer = Buffer(device, size, meta.dtype)
    t = Tensor._wrap(UOp(Ops.BUFFER, meta.dtype, (), buffer), device)
    done: list[int] = []
    for n, after in zip(axes, [*axes[1:], None]):
        rest = meta.strides[n]
        t = t.reshape(*done, meta.shape[n], rest)
        done.append(meta.shape[n])
        inner = 1 if after is None else meta.shape[after] * meta.strides[after]
        if inner != rest:
            t = t.shrink([*((0, s) for s in done), (0, inner)])
    t = t.reshape(done or (1,))
    order = sorted(range(len(axes)), key=axes.__getitem__)
    if order != list(range(len(order))):
        t = t.permute(order)
    kept = set(axes)
    t = t.reshape([s if n in kept else 1 for n, s in enumerate(meta.shape)])
    return t.expand(meta.shape) if t.shape != meta.shape else t, buffer

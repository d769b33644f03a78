"""Operators on sequences (Python lists) and optional values (None)."""
from __future__ import annotations

from typing import Any

import numpy as np

from tinsmith.nn.onnx.values import axis_of, constant, ints, number
from tinsmith.tensor.tensor import Tensor


def SequenceEmpty(dtype: int = 1) -> list[Tensor]:
    return []


def SequenceConstruct(*xs: Tensor) -> list[Tensor]:
    return list(xs)


def SequenceInsert(sequence: list[Tensor], x: Tensor, position: Any = None) -> list[Tensor]:
    out = list(sequence)
    out.insert(len(out) if position is None else axis_of(int(number(position)), len(out)), x)
    return out


def SequenceErase(sequence: list[Tensor], position: Any = None) -> list[Tensor]:
    out = list(sequence)
    del out[-1 if position is None else int(number(position))]
    return out


def SequenceAt(sequence: list[Tensor], position: Any) -> Tensor:
    return sequence[int(number(position))]


def SequenceLength(sequence: list[Tensor]) -> Tensor:
    return constant(np.int64(len(sequence)))


def ConcatFromSequence(sequence: list[Tensor], axis: int, new_axis: int = 0) -> Tensor:
    first, *rest = sequence
    return first.stack(*rest, dim=axis) if new_axis else first.cat(*rest, dim=axis)


def SplitToSequence(x: Tensor, split: Any = None, axis: int = 0, keepdims: int = 1) -> list[Tensor]:
    at = axis_of(axis, x.ndim)
    if split is None:
        parts = list(x.split(1, at))
        return parts if keepdims else [p.squeeze(at) for p in parts]
    sizes = ints(split)
    return list(x.split(sizes[0] if isinstance(split, Tensor) and split.ndim == 0 else sizes, at))


def Optional(x: Any = None, type: Any = None) -> Any:
    return x


def OptionalHasElement(x: Any = None) -> Tensor:
    return constant(np.bool_(x is not None))


def OptionalGetElement(x: Any) -> Any:
    return x

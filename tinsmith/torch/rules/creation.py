"""Rules for ops that make tensors from numbers."""
from __future__ import annotations

from typing import Any

from tinsmith.core.dtypes import dtypes
from tinsmith.tensor.tensor import Tensor
from tinsmith.torch.rules.registry import rule


@rule("full", "full_like", "new_full", "scalar_tensor", creates=True, meta=True)
def _full(*args: Any, device: str, meta: Any, **_: Any) -> Tensor:
    return _filled(args[-1], device, meta)


@rule("fill.Scalar", creates=True, meta=True)
def _fill(x: Tensor, value: Any, device: str, meta: Any) -> Tensor:
    return _filled(value, device, meta)


@rule("fill.Tensor")
def _fill_tensor(x: Tensor, value: Tensor) -> Tensor:
    return value.cast(x.dtype).reshape((1,) * x.ndim).expand(x.shape)


@rule("zeros", "zeros_like", "new_zeros", "empty.memory_format", "empty_like", "new_empty", "empty_strided",
      "empty_permuted", "new_empty_strided", "prims.empty_strided", creates=True, meta=True)
def _zeros(*_: Any, device: str, meta: Any, **__: Any) -> Tensor:
    """Zeros; memory whose contents PyTorch leaves open holds zeros, too."""
    return _filled(0, device, meta)


@rule("ones", "ones_like", "new_ones", creates=True, meta=True)
def _ones(*_: Any, device: str, meta: Any, **__: Any) -> Tensor:
    return _filled(1, device, meta)


def _filled(value: Any, device: str, meta: Any) -> Tensor:
    dtype = meta.dtype
    value = bool(value) if dtype is dtypes.bool else float(value) if dtype.is_float else int(value)
    return Tensor.full(meta.shape, value, dtype=dtype, device=device)


@rule("arange", "arange.start", "arange.start_step", creates=True, meta=True)
def _arange(*args: Any, device: str, meta: Any, **_: Any) -> Any:
    start, step = (0 if len(args) < 2 else args[0]), (args[2] if len(args) > 2 else 1)
    return _steps(meta.shape[0], start, step, device, meta)


@rule("prims.iota", creates=True, meta=True)
def _iota(length: int, *, start: int, step: int, device: str, meta: Any, **_: Any) -> Any:
    return _steps(length, start, step, device, meta)


def _steps(length: int, start: Any, step: Any, device: str, meta: Any) -> Any:
    numbers = Tensor.arange(length, dtype=dtypes.int64, device=device)
    if meta.dtype.is_float:
        wide = dtypes.float64 if meta.dtype is dtypes.float64 else dtypes.float32
        return numbers.cast(wide) * step + start
    return numbers * int(step) + int(start)


@rule("eye", "eye.m", creates=True, meta=True)
def _eye(*_: Any, device: str, meta: Any, **__: Any) -> Tensor:
    rows, columns = meta.shape
    return Tensor.eye(rows, columns, dtype=meta.dtype, device=device)


@rule("linspace", creates=True, meta=True)
def _linspace(start: Any, end: Any, steps: int, device: str, meta: Any, **_: Any) -> Tensor:
    return Tensor.linspace(start, end, steps, dtype=meta.dtype, device=device)

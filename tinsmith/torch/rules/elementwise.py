"""Rules for elementwise ops, creation and random numbers.

Random numbers are counter-based bits (``tensor/create/random.py``), seeded by PyTorch's generator.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tinsmith.core.dtypes import DType, dtypes
from tinsmith.ir import UOp
from tinsmith.tensor.helpers import rounded_once
from tinsmith.tensor.math.table import ELEMENTWISE, FUNCTIONS
from tinsmith.tensor.nnops.activations import gelu_slope, gelu_slope_of_half, gelu_tanh_slope
from tinsmith.tensor.sizes.traced import plain
from tinsmith.tensor.tensor import Tensor
from tinsmith.torch.rules.registry import Unsupported, rule

for _name, _row in FUNCTIONS.items():
    rule((_row.torch or _name).replace(".", "_"), promote="result")(getattr(Tensor, _name))

for _name, _elementwise in ELEMENTWISE.items():
    rule(*_elementwise.aten.split(), promote=_elementwise.promote)(getattr(Tensor, _name))


def _one(x: Any) -> Any:
    """Return ``x``, or the number of a Python bool: arithmetic has no bools."""
    return int(x) if isinstance(x, bool) else x


# *** arithmetic: the arguments are of the result's dtype ***
@rule("add.Tensor", "add.Scalar", promote="result")
def _add(x: Tensor, y: Any, alpha: Any = 1) -> Any:
    if x.dtype is dtypes.bool:
        return x | (y if isinstance(y, Tensor) else bool(y)) if alpha else x
    return x + (y if alpha == 1 else y * _one(alpha))


@rule("sub.Tensor", "sub.Scalar", promote="result")
def _sub(x: Tensor, y: Any, alpha: Any = 1) -> Any:
    return x - (_one(y) if alpha == 1 else _one(y) * _one(alpha))


@rule("rsub.Tensor", "rsub.Scalar", promote="result")
def _rsub(x: Tensor, y: Any, alpha: Any = 1) -> Any:
    return _one(y) - (x if alpha == 1 else x * _one(alpha))


@rule("mul.Tensor", "mul.Scalar", promote="result")
def _mul(x: Tensor, y: Any) -> Any:
    if x.dtype is dtypes.bool:
        return x & (y if isinstance(y, Tensor) else bool(y))
    return x * _one(y)


@rule("div.Tensor", "div.Scalar", "true_divide.Tensor", promote="result")
def _div(x: Tensor, y: Any) -> Any:
    return x / y


@rule("div.Tensor_mode", "div.Scalar_mode", promote="result")
def _div_mode(x: Tensor, y: Any, rounding_mode: str | None = None) -> Tensor:
    return x.div(y, rounding_mode=rounding_mode)


@rule("floor_divide.default", "floor_divide.Scalar", promote="result")
def _floor_divide(x: Tensor, y: Any) -> Tensor:
    return x.div(y, rounding_mode="floor")


@rule("pow.Tensor_Tensor", "pow.Tensor_Scalar", "pow.Scalar", promote="result")
def _pow(x: Tensor, y: Any) -> Tensor:
    return x.pow(_one(y))


@rule("addcmul", promote="result")
@rounded_once
def _addcmul(x: Tensor, a: Tensor, b: Tensor, value: Any = 1) -> Any:
    return x + a * b * value


@rule("addcdiv", promote="result")
@rounded_once
def _addcdiv(x: Tensor, a: Tensor, b: Tensor, value: Any = 1) -> Any:
    return x + a / b * value


@rule("lerp.Tensor", "lerp.Scalar", promote="result")
@rounded_once
def _lerp(x: Tensor, end: Tensor, weight: Any) -> Tensor:
    return x.lerp(end, weight)


@rule("clamp", "clamp.Tensor", "clamp_min", "clamp_min.Tensor", promote="result")
def _clamp(x: Tensor, low: Any = None, high: Any = None, *, min: Any = None, max: Any = None) -> Tensor:
    low, high = low if min is None else min, high if max is None else max
    return x.clamp(low, high)


@rule("clamp_max", "clamp_max.Tensor", promote="result")
def _clamp_max(x: Tensor, high: Any) -> Tensor:
    return x.clamp(None, high)


# *** activations ***
@rule("gelu", promote="result")
def _gelu(x: Tensor, approximate: str = "none") -> Tensor:
    return x.gelu(approximate)


@rule("gelu_backward", promote="result")
def _gelu_backward(grad: Tensor, x: Tensor, approximate: str = "none") -> Tensor:
    half = x.dtype.itemsize <= 2  # computed in float32, rounded once
    if half:
        grad, x = grad.cast(dtypes.float32), x.cast(dtypes.float32)
    slope = gelu_tanh_slope if approximate == "tanh" else gelu_slope_of_half if half else gelu_slope
    return slope(grad, x, x)[0]


@rule("leaky_relu", promote="result")
def _leaky_relu(x: Tensor, slope: float = 0.01) -> Tensor:
    return (x > 0).where(x, x * slope)


@rule("elu", promote="result")
@rounded_once
def _elu(x: Tensor, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Tensor:
    return (x > 0).where(x * scale, (x * input_scale).expm1() * (alpha * scale))


@rule("hardtanh", promote="result")
def _hardtanh(x: Tensor, low: Any = -1, high: Any = 1) -> Tensor:
    return x.clamp(low, high)


@rule("softplus", promote="result")
@rounded_once
def _softplus(x: Tensor, beta: float = 1, threshold: float = 20) -> Tensor:
    return (x * beta > threshold).where(x, (x * beta).exp().log1p() / beta)


@rule("threshold_backward", promote="result")
def _threshold_backward(grad: Tensor, x: Tensor, threshold: Any) -> Any:
    return (x <= threshold).where(0, grad)  # NaN keeps its gradient


@rule("sigmoid_backward", promote="result")
@rounded_once
def _sigmoid_backward(grad: Tensor, y: Tensor) -> Tensor:
    return grad * y * (1 - y)


@rule("tanh_backward", promote="result")
@rounded_once
def _tanh_backward(grad: Tensor, y: Tensor) -> Tensor:
    return grad * (1 - y * y)


# *** logic ***
def _truth(x: Any) -> Any:
    return x.cast(dtypes.bool) if isinstance(x, Tensor) else x


@rule("logical_and")
def _logical_and(x: Tensor, y: Tensor) -> Any:
    return _truth(x) & _truth(y)


@rule("logical_or")
def _logical_or(x: Tensor, y: Tensor) -> Any:
    return _truth(x) | _truth(y)


@rule("logical_xor")
def _logical_xor(x: Tensor, y: Tensor) -> Any:
    return _truth(x) ^ _truth(y)


@rule("bitwise_not")
def _bitwise_not(x: Tensor) -> Tensor:
    return x.logical_not() if x.dtype is dtypes.bool else x.bitwise_not()


@rule("where.self", "where.ScalarOther", "where.ScalarSelf", meta=True)
def _where(condition: Tensor, x: Any, y: Any, meta: Any) -> Any:
    dtype = meta.dtype
    x, y = (v.cast(dtype) if isinstance(v, Tensor) else v for v in (x, y))
    if not isinstance(x, Tensor) and not isinstance(y, Tensor):
        x = Tensor.full((), x, dtype=dtype, device=condition.device)
    return _truth(condition).where(x, y)


@rule("masked_fill.Scalar", "masked_fill.Tensor", promote="")
def _masked_fill(x: Tensor, mask: Tensor, value: Any) -> Any:
    return _truth(mask).where(value.cast(x.dtype) if isinstance(value, Tensor) else value, x)


@rule("polygamma")
def _polygamma(n: int, x: Tensor) -> Tensor:
    return (x if x.dtype.is_float else x.cast(dtypes.float32)).polygamma(n)


@rule("nan_to_num")
def _nan_to_num(x: Tensor, nan: float | None = None, posinf: float | None = None,
                neginf: float | None = None) -> Tensor:
    return x.nan_to_num(0.0 if nan is None else nan, posinf, neginf) if x.dtype.is_float else x


@rule("round", "round.decimals")
def _round(x: Tensor, decimals: int = 0) -> Tensor:
    return x.round(decimals) if x.dtype.is_float else x


# *** casts and copies ***
@rule("_to_copy")
def _to_copy(x: Tensor, dtype: DType | None = None) -> Tensor:
    return x if dtype is None else cast(x, dtype)


@rule("prims.convert_element_type")
def _convert(x: Tensor, dtype: DType) -> Tensor:
    return cast(x, dtype)


@rule("clone", "alias", "detach", "lift_fresh_copy", "contiguous", "_conj_physical", "prims.device_put")
def _identity(x: Tensor, *_: Any) -> Tensor:
    return x


@rule("copy")
def _copy(x: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    return cast(source, x.dtype).expand(x.shape)


def cast(x: Tensor, dtype: DType) -> Tensor:
    """Return ``x`` as ``dtype``, as PyTorch casts: floats beyond the range of a small integer wrap around."""
    if x.dtype.is_float and dtype.is_int and dtype.itemsize < 4:
        x = x.cast(dtypes.int32)
    return x if x.dtype is dtype else x.cast(dtype)


@rule("view.dtype")
def _bitcast(x: Tensor, dtype: DType) -> Tensor:
    if dtype.itemsize != x.dtype.itemsize:
        raise Unsupported("a view as a dtype of another size")
    return x.bitcast(dtype)


@rule("native_dropout", random=True)
def _dropout(x: Tensor, p: float, train: bool | None = True) -> tuple[Tensor, Tensor]:
    if train is False or p == 0:
        return x, Tensor.ones(*x.shape, dtype=dtypes.bool, device=x.device)
    kept = _below(x, 1 - p)
    return kept.where(x * (1 / (1 - p) if p < 1 else 0.0), 0), kept


@rule("bernoulli.p", random=True)
def _bernoulli(x: Tensor, p: float = 0.5, *, generator: Any = None) -> Tensor:
    if generator is not None:
        raise Unsupported("a generator of its own")
    return _below(x, p)


def _below(x: Tensor, p: float) -> Tensor:
    """Return True with probability ``p``, for each element of ``x``."""
    return _drawn(Tensor.rand, x.shape, dtypes.float32, x.device) < p


def _drawn(draw: Callable[..., Tensor], shape: Sequence[Any], dtype: DType, device: Any) -> Tensor:
    """Return random numbers of a shape; for a symbolic size the first ones of those for the greatest size."""
    count = plain(math.prod(shape))
    if not isinstance(count, UOp):
        return draw(*shape, dtype=dtype, device=device)
    return draw(count.vmax, dtype=dtype, device=device).shrink(((0, count),)).reshape(*shape)


@rule("rand", "rand_like", random=True, creates=True, meta=True)
def _rand(*_: Any, device: str, meta: Any, **__: Any) -> Tensor:
    return _drawn(Tensor.rand, meta.shape, meta.dtype, device)


@rule("randn", "randn_like", random=True, creates=True, meta=True)
def _randn(*_: Any, device: str, meta: Any, **__: Any) -> Tensor:
    return _drawn(Tensor.randn, meta.shape, meta.dtype, device)


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
    if isinstance(value, Tensor):  # a number that is computed from sizes
        return value.cast(dtype).reshape((1,) * len(meta.shape)).expand(meta.shape)
    if not isinstance(value, int) or type(value) in (int, bool):
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
    return numbers * _whole(step) + _whole(start)


def _whole(value: Any) -> Any:
    """Return a number as an integer."""
    return value if isinstance(value, int) else int(value)


@rule("eye", "eye.m", creates=True, meta=True)
def _eye(*_: Any, device: str, meta: Any, **__: Any) -> Tensor:
    rows, columns = meta.shape
    return Tensor.eye(rows, columns, dtype=meta.dtype, device=device)


@rule("linspace", creates=True, meta=True)
def _linspace(start: Any, end: Any, steps: int, device: str, meta: Any, **_: Any) -> Tensor:
    return Tensor.linspace(start, end, steps, dtype=meta.dtype, device=device)

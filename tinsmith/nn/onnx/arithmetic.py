"""Elementwise operators, by ONNX's names: functions of tensors, with attributes as keywords."""
from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

from tinsmith.core.dtypes import dtypes
from tinsmith.nn.onnx.values import DTYPES, cast, constant, number, type_of
from tinsmith.tensor.tensor import Tensor

Unary = Callable[[Tensor], Tensor]

SIMPLE: Final[dict[str, Unary]] = {
    "Abs": Tensor.abs, "Acos": Tensor.acos, "Acosh": Tensor.acosh, "Asin": Tensor.asin, "Asinh": Tensor.asinh,
    "Atan": Tensor.atan, "Atanh": Tensor.atanh, "BitwiseNot": Tensor.bitwise_not, "Ceil": Tensor.ceil,
    "Cos": Tensor.cos, "Cosh": Tensor.cosh, "Erf": Tensor.erf, "Exp": Tensor.exp, "Floor": Tensor.floor,
    "Identity": lambda x: x, "IsNaN": Tensor.isnan, "Log": Tensor.log, "Mish": Tensor.mish, "Neg": Tensor.neg,
    "Not": Tensor.logical_not, "Reciprocal": Tensor.reciprocal, "Relu": Tensor.relu, "Round": Tensor.round,
    "Sigmoid": Tensor.sigmoid, "Sign": Tensor.sign, "Sin": Tensor.sin, "Sinh": Tensor.sinh,
    "Softplus": Tensor.softplus, "Softsign": Tensor.softsign, "Sqrt": Tensor.sqrt, "Tan": Tensor.tan,
    "Tanh": Tensor.tanh, "HardSwish": Tensor.hardswish}


def Add(x: Tensor, y: Tensor) -> Tensor:
    return x + y


def Sub(x: Tensor, y: Tensor) -> Tensor:
    return x - y


def Mul(x: Tensor, y: Tensor) -> Tensor:
    return x * y


def Div(x: Tensor, y: Tensor) -> Tensor:
    return x / y if x.dtype.is_float else x.div(y, rounding_mode="trunc").cast(x.dtype)


def Mod(x: Tensor, y: Tensor, fmod: int = 0) -> Tensor:
    return x.fmod(y) if fmod else x.mod(y)


def Pow(x: Tensor, y: Tensor) -> Tensor:
    if x.dtype.is_int and y.dtype.is_float:
        return x.cast(dtypes.float64).pow(y.cast(dtypes.float64)).cast(x.dtype)
    return x.pow(y.cast(x.dtype))


def BitShift(x: Tensor, y: Tensor, direction: str) -> Tensor:
    return x << y if direction == "LEFT" else x >> y


def BitwiseAnd(x: Tensor, y: Tensor) -> Tensor:
    return x & y


def BitwiseOr(x: Tensor, y: Tensor) -> Tensor:
    return x | y


def BitwiseXor(x: Tensor, y: Tensor) -> Tensor:
    return x ^ y


And, Or, Xor = BitwiseAnd, BitwiseOr, BitwiseXor


def Equal(x: Any, y: Any) -> Tensor:
    if not isinstance(x, Tensor):  # text
        return constant(x == y)
    return x.eq(y)


def Less(x: Tensor, y: Tensor) -> Tensor:
    return x < y


def LessOrEqual(x: Tensor, y: Tensor) -> Tensor:
    return x <= y


def Greater(x: Tensor, y: Tensor) -> Tensor:
    return x > y


def GreaterOrEqual(x: Tensor, y: Tensor) -> Tensor:
    return x >= y


def Max(*xs: Tensor) -> Tensor:
    return functools.reduce(Tensor.maximum, xs)


def Min(*xs: Tensor) -> Tensor:
    return functools.reduce(Tensor.minimum, xs)


def Sum(*xs: Tensor) -> Tensor:
    return functools.reduce(Tensor.add, xs)


def Mean(*xs: Tensor) -> Tensor:
    return Sum(*xs) / len(xs)


def Where(condition: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return condition.where(x, y)


def Clip(x: Tensor, min: Any = None, max: Any = None) -> Tensor:
    """At least ``min``, then at most ``max``, where they are given."""
    if min is not None:
        x = x.maximum(min)
    return x if max is None else x.minimum(max)


def IsInf(x: Tensor, detect_negative: int = 1, detect_positive: int = 1) -> Tensor:
    found = x.isinf()
    found = found if detect_positive else found & (x < 0)
    return found if detect_negative else found & (x > 0)


def Elu(x: Tensor, alpha: float = 1.0) -> Tensor:
    return (x < 0).where(alpha * (x.minimum(0).exp() - 1), x)


def Celu(x: Tensor, alpha: float = 1.0) -> Tensor:
    return x.maximum(0) + (alpha * ((x / alpha).exp() - 1)).minimum(0)


def Selu(x: Tensor, alpha: float = 1.67326319217681884765625, gamma: float = 1.05070102214813232421875) -> Tensor:
    return gamma * (x > 0).where(x, alpha * x.minimum(0).exp() - alpha)


def Gelu(x: Tensor, approximate: str = "none") -> Tensor:
    return x.gelu(approximate)


def LeakyRelu(x: Tensor, alpha: float = 0.01) -> Tensor:
    return (x < 0).where(alpha * x, x)


def PRelu(x: Tensor, slope: Tensor) -> Tensor:
    return (x < 0).where(slope * x, x)


def ThresholdedRelu(x: Tensor, alpha: float = 1.0) -> Tensor:
    return (x > alpha).where(x, 0)


def HardSigmoid(x: Tensor, alpha: float = 0.2, beta: float = 0.5) -> Tensor:
    return (alpha * x + beta).clip(0, 1)


def Swish(x: Tensor, alpha: float = 1.0) -> Tensor:
    return x * (alpha * x).sigmoid()


def Shrink(x: Tensor, bias: float = 0.0, lambd: float = 0.5) -> Tensor:
    return (x < -lambd).where(x + bias, (x > lambd).where(x - bias, 0)).cast(x.dtype)


def Cast(x: Any, to: int, saturate: int = 1, round_mode: str = "up") -> Any:
    if not isinstance(x, Tensor):  # text of numbers
        return constant(x.astype(float)).cast(DTYPES[to])
    return cast(x, to, bool(saturate), round_mode)


def CastLike(x: Tensor, like: Tensor, saturate: int = 1) -> Tensor:
    return cast(x, type_of(like), bool(saturate))


def BitCast(x: Tensor, to: int) -> Tensor:
    return x.bitcast(DTYPES[to])


def Dropout(x: Tensor, ratio: Any = None, training_mode: Any = None, seed: int = 0) -> tuple[Tensor, Tensor]:
    p = 0.5 if ratio is None else float(number(ratio))
    if training_mode is None or not number(training_mode) or not p:
        return x, Tensor.ones(*x.shape, dtype=dtypes.bool)
    mask = Tensor.rand(*x.shape) >= p
    return x * mask / (1 - p), mask


def Bernoulli(x: Tensor, dtype: int = 0, seed: float = 0.0) -> Tensor:
    drawn = Tensor.rand(*x.shape) < x
    return drawn.cast(DTYPES[dtype] if dtype else x.dtype)


def RandomUniformLike(x: Tensor, dtype: int = 0, high: float = 1.0, low: float = 0.0, seed: float = 0.0) -> Tensor:
    return Tensor.uniform(*x.shape, low=low, high=high).cast(DTYPES[dtype] if dtype else x.dtype)


def RandomNormalLike(x: Tensor, dtype: int = 0, mean: float = 0.0, scale: float = 1.0, seed: float = 0.0) -> Tensor:
    return (Tensor.randn(*x.shape) * scale + mean).cast(DTYPES[dtype] if dtype else x.dtype)


def RandomUniform(shape: Any, dtype: int = 1, high: float = 1.0, low: float = 0.0, seed: float = 0.0) -> Tensor:
    return Tensor.uniform(*shape, low=low, high=high).cast(DTYPES[dtype])


def RandomNormal(shape: Any, dtype: int = 1, mean: float = 0.0, scale: float = 1.0, seed: float = 0.0) -> Tensor:
    return (Tensor.randn(*shape) * scale + mean).cast(DTYPES[dtype])

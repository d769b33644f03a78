"""Automatic mixed precision, by PyTorch's rules for CUDA: which ops run in 16 bits, and which in float32.

Inside an ``autocast`` block a contraction casts its operands to the 16-bit dtype and returns it (``contraction``,
``narrow_dtype``). Ops that lose digits or overflow in 16 bits (exponentials, powers, sums, softmax, layer norms,
losses) widen 16-bit operands and return float32 (``in_float32``). All other ops follow the dtypes of their operands.
The rules: https://docs.pytorch.org/docs/stable/amp.html, "CUDA Ops that can autocast".
"""
from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from tinsmith.core.dtypes import DType, dtypes, promote
from tinsmith.core.settings import current
from tinsmith.tensor.base import TensorBase
from tinsmith.tensor.helpers import operand, widened

T = TypeVar("T", bound=TensorBase)
R = TypeVar("R")
P = ParamSpec("P")
Method = Callable[Concatenate[T, P], R]
_ELIGIBLE: Final = (dtypes.float32, dtypes.float16, dtypes.bfloat16)


def narrow_dtype(*operands: Any) -> DType | None:
    """Return the 16-bit dtype that a contraction casts ``operands`` to; None outside of ``autocast``, and unless all
    are tensors of floats of at most 32 bits."""
    kind = current().autocast_dtype
    if kind is None or not all(isinstance(t, TensorBase) and t.dtype.is_float for t in operands):
        return None
    return kind if promote(*(t.dtype for t in operands)) in _ELIGIBLE else None


def contraction(method: Method[T, P, R]) -> Method[T, P, R]:
    """Decorate a contraction of two tensors or arrays (and a bias): inside ``autocast``, they are cast to the 16-bit
    dtype."""
    name, second = method.__code__.co_name, method.__code__.co_varnames[1]

    def narrowed(self: T, /, *args: P.args, **kwargs: P.kwargs) -> R:
        if current().autocast_dtype is None:
            return method(self, *args, **kwargs)
        given: dict[Any, Any] = {**dict(enumerate(args)), **kwargs}
        other = 0 if args else second
        if other in given:
            given[other] = operand(name, given[other], self)
        tensors = {k: t for k, t in given.items() if isinstance(t, TensorBase)}
        kind = narrow_dtype(self, *tensors.values())
        if kind is None:
            return method(self, *args, **kwargs)
        given |= {k: t.cast(kind) for k, t in tensors.items()}
        return method(self.cast(kind), *(given.pop(n) for n in range(len(args))), **given)

    narrowed.__code__ = narrowed.__code__.replace(co_name=method.__name__)  # nodes and errors name the method called
    return functools.wraps(method)(narrowed)


def in_float32(method: Method[T, P, R]) -> Method[T, P, R]:
    """Decorate a method that ``autocast`` runs in float32: there, 16-bit operands are widened, and so is the result."""

    def wide(self: T, /, *args: P.args, **kwargs: P.kwargs) -> R:
        if current().autocast_dtype is None:
            return method(self, *args, **kwargs)
        return method(widened(self), *map(widened, args), **{k: widened(v) for k, v in kwargs.items()})

    wide.__code__ = wide.__code__.replace(co_name=method.__name__)
    return functools.wraps(method)(wide)

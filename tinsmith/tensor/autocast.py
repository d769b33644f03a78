"""Automatic mixed precision: inside an ``autocast`` block, contractions round float32 operands to 16 bits."""
from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from tinsmith.core.dtypes import DType, dtypes, promote
from tinsmith.core.settings import current
from tinsmith.tensor.autograd.backward import with_slopes
from tinsmith.tensor.base import TensorBase
from tinsmith.tensor.math.functions import Functions

T = TypeVar("T", bound=Functions)
P = ParamSpec("P")
Method = Callable[Concatenate[T, T, P], T]


def narrow_dtype(*operands: Functions) -> DType | None:
    """Return the 16-bit dtype that a contraction rounds ``operands`` to; None outside of ``autocast``, and for operands
    that do not promote to float32."""
    kind = current().autocast_dtype
    if kind is None or not all(isinstance(t, TensorBase) and t.dtype.is_float for t in operands):
        return None
    return kind if promote(*(t.dtype for t in operands)) is dtypes.float32 else None


def widened(found: T, kind: DType) -> T:
    """Return the result ``found`` of a contraction with rounded operands as float32. Its gradient is rounded to
    ``kind`` even if the result was not, because the gradient is an operand of the backward contractions."""
    return found.cast(dtypes.float32) if found.dtype is kind else with_slopes(found, _ROUNDED[kind], found)


def contraction(method: Method[T, P]) -> Method[T, P]:
    """Decorate a contraction of two tensors: inside ``autocast``, its operands are cast to the 16-bit dtype."""

    second = method.__code__.co_varnames[1]

    def narrowed(self: T, /, *args: Any, **kwargs: Any) -> T:
        if not args and second in kwargs:
            args = (kwargs.pop(second),)
        kind = narrow_dtype(self, *args[:1])
        if kind is None:
            return method(self, *args, **kwargs)
        return widened(method(self.cast(kind), args[0].cast(kind), *args[1:], **kwargs), kind)

    narrowed.__code__ = narrowed.__code__.replace(co_name=method.__name__)  # nodes and errors name the method called
    return functools.wraps(method)(narrowed)


def _to_bfloat16(g: T, *_: T) -> tuple[T]:
    return (g.cast(dtypes.bfloat16).cast(g.dtype),)


def _to_float16(g: T, *_: T) -> tuple[T]:
    return (g.cast(dtypes.float16).cast(g.dtype),)


_ROUNDED: Final = {dtypes.bfloat16: _to_bfloat16, dtypes.float16: _to_float16}

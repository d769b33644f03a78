"""Automatic mixed precision: inside an ``autocast`` block, contractions round float32 operands to 16 bits."""
from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec

from tinsmith.core.dtypes import DType, dtypes, promote, to_dtype
from tinsmith.core.errors import DTypeError
from tinsmith.core.settings import current
from tinsmith.tensor.arguments import flag
from tinsmith.tensor.autograd.backward import with_slopes
from tinsmith.tensor.base import TensorBase
from tinsmith.tensor.modes import Mode

if TYPE_CHECKING:
    from tinsmith.tensor.tensor import Tensor

P = ParamSpec("P")
Method = Callable[Concatenate["Tensor", "Tensor", P], "Tensor"]


class Autocast:
    """The ``autocast`` method of ``Tensor``."""

    __slots__ = ()

    @staticmethod
    def autocast(dtype: DType | str = "bfloat16", enabled: bool = True) -> Mode:
        """Return a context manager (and decorator) in which contractions round their float32 operands to 16 bits.

        Contractions are matrix products, ``einsum``, convolutions and attention, and their gradients: the operations
        that matrix units accelerate. They accumulate in float32, round the result once, and return float32 tensors.
        Parameters stay float32. With float16, scale the loss with a ``nn.optim.GradScaler``.

        >>> x = Tensor([[1.0, 2.0**-9]])
        >>> with Tensor.autocast("bfloat16"):
        ...     y = (x + 2.0**-9) @ x.T
        >>> (x @ x.T).item(), y.item(), y.dtype
        (1.0000038146972656, 1.0, dtypes.float)

        Args:
            dtype: ``bfloat16`` or ``float16``.
            enabled: False computes in float32 inside an enclosing ``autocast`` block.

        Raises:
            DTypeError: for another dtype.
        """
        kind = to_dtype(dtype)
        if kind not in (dtypes.bfloat16, dtypes.float16):
            raise DTypeError("autocast", f"contractions in {kind!r}", "bfloat16 or float16")
        return Mode("autocast_dtype", kind if flag("autocast", "enabled", enabled) else None)


def narrow_dtype(*operands: Tensor) -> DType | None:
    """Return the 16-bit dtype that a contraction rounds ``operands`` to; None outside of ``autocast``, and for operands
    that do not promote to float32."""
    kind = current().autocast_dtype
    if kind is None or not all(isinstance(t, TensorBase) and t.dtype.is_float for t in operands):
        return None
    return kind if promote(*(t.dtype for t in operands)) is dtypes.float32 else None


def widened(found: Tensor, kind: DType) -> Tensor:
    """Return the result ``found`` of a contraction with rounded operands as float32. Its gradient is rounded to
    ``kind`` even if the result was not, because the gradient is an operand of the backward contractions."""
    return found.cast(dtypes.float32) if found.dtype is kind else with_slopes(found, _ROUNDED[kind], found)


def contraction(method: Method[P]) -> Method[P]:
    """Decorate a contraction of two tensors: inside ``autocast``, its operands are cast to the 16-bit dtype."""

    second = method.__code__.co_varnames[1]

    def narrowed(self: Tensor, /, *args: Any, **kwargs: Any) -> Tensor:
        if not args and second in kwargs:
            args = (kwargs.pop(second),)
        kind = narrow_dtype(self, *args[:1])
        if kind is None:
            return method(self, *args, **kwargs)
        return widened(method(self.cast(kind), args[0].cast(kind), *args[1:], **kwargs), kind)

    narrowed.__code__ = narrowed.__code__.replace(co_name=method.__name__)  # nodes and errors name the method called
    return functools.wraps(method)(narrowed)


def _to_bfloat16(g: Tensor, *_: Tensor) -> tuple[Tensor]:
    return (g.cast(dtypes.bfloat16).cast(g.dtype),)


def _to_float16(g: Tensor, *_: Tensor) -> tuple[Tensor]:
    return (g.cast(dtypes.float16).cast(g.dtype),)


_ROUNDED: Final = {dtypes.bfloat16: _to_bfloat16, dtypes.float16: _to_float16}

"""Python's operators, each a call of the named method; an in-place operator writes to the tensor's memory."""
# mypy: disable-error-code=misc
# ``self`` is the Tensor that this class is mixed into.
from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tinsmith.core.errors import DTypeError, ShapeError
from tinsmith.ir import UOp
from tinsmith.runtime.thread_turns import writing
from tinsmith.tensor.base import TensorBase
from tinsmith.tensor.helpers import as_sized, same_sizes

if TYPE_CHECKING:
    from tinsmith.tensor.tensor import Tensor

_OPERANDS = (TensorBase, bool, int, float, np.generic, np.ndarray, UOp, list, tuple)


def _known(value: Any) -> bool:
    if isinstance(value, _OPERANDS):
        return True
    if type(value).__name__ == "Tensor" and hasattr(value, "__dlpack__"):  # Python's message: Tensor and Tensor
        raise DTypeError(type(value).__module__, "its tensors are not ours", "tinsmith.from_dlpack(x), or x.numpy()")
    return False


class OperatorMethods:
    """``+ - * / // % ** @ & | ^ << >> ~ < <= > >= == !=``, with their reflected and in-place forms."""

    __slots__ = ()

    def __neg__(self: Tensor) -> Tensor: return self.neg()
    def __pos__(self: Tensor) -> Tensor: return self
    def __abs__(self: Tensor) -> Tensor: return self.abs()
    def __invert__(self: Tensor) -> Tensor: return self.bitwise_not()
    def __round__(self: Tensor, ndigits: int | None = None) -> Tensor: return self.round(ndigits or 0)
    def __add__(self: Tensor, x: Any) -> Tensor: return self.add(x) if _known(x) else NotImplemented
    def __sub__(self: Tensor, x: Any) -> Tensor: return self.sub(x) if _known(x) else NotImplemented
    def __mul__(self: Tensor, x: Any) -> Tensor: return self.mul(x) if _known(x) else NotImplemented
    def __truediv__(self: Tensor, x: Any) -> Tensor: return self.div(x) if _known(x) else NotImplemented
    def __floordiv__(self: Tensor, x: Any) -> Tensor: return self.idiv(x) if _known(x) else NotImplemented
    def __mod__(self: Tensor, x: Any) -> Tensor: return self.mod(x) if _known(x) else NotImplemented
    def __pow__(self: Tensor, x: Any) -> Tensor: return self.pow(x) if _known(x) else NotImplemented
    def __matmul__(self: Tensor, x: Any) -> Tensor: return self.matmul(x) if _known(x) else NotImplemented
    def __and__(self: Tensor, x: Any) -> Tensor: return self.bitwise_and(x) if _known(x) else NotImplemented
    def __or__(self: Tensor, x: Any) -> Tensor: return self.bitwise_or(x) if _known(x) else NotImplemented
    def __xor__(self: Tensor, x: Any) -> Tensor: return self.bitwise_xor(x) if _known(x) else NotImplemented
    def __lshift__(self: Tensor, x: Any) -> Tensor: return self.lshift(x) if _known(x) else NotImplemented
    def __rshift__(self: Tensor, x: Any) -> Tensor: return self.rshift(x) if _known(x) else NotImplemented

    def __radd__(self: Tensor, x: Any) -> Tensor: return self.add(x, True) if _known(x) else NotImplemented
    def __rsub__(self: Tensor, x: Any) -> Tensor: return self.sub(x, True) if _known(x) else NotImplemented
    def __rmul__(self: Tensor, x: Any) -> Tensor: return self.mul(x, True) if _known(x) else NotImplemented
    def __rtruediv__(self: Tensor, x: Any) -> Tensor: return self.div(x, True) if _known(x) else NotImplemented
    def __rfloordiv__(self: Tensor, x: Any) -> Tensor: return self.idiv(x, True) if _known(x) else NotImplemented
    def __rmod__(self: Tensor, x: Any) -> Tensor: return self.mod(x, True) if _known(x) else NotImplemented
    def __rpow__(self: Tensor, x: Any) -> Tensor: return self.pow(x, True) if _known(x) else NotImplemented
    def __rmatmul__(self: Tensor, x: Any) -> Tensor: return self.matmul(x, True) if _known(x) else NotImplemented
    def __rand__(self: Tensor, x: Any) -> Tensor: return self.bitwise_and(x, True) if _known(x) else NotImplemented
    def __ror__(self: Tensor, x: Any) -> Tensor: return self.bitwise_or(x, True) if _known(x) else NotImplemented
    def __rxor__(self: Tensor, x: Any) -> Tensor: return self.bitwise_xor(x, True) if _known(x) else NotImplemented
    def __rlshift__(self: Tensor, x: Any) -> Tensor: return self.lshift(x, True) if _known(x) else NotImplemented
    def __rrshift__(self: Tensor, x: Any) -> Tensor: return self.rshift(x, True) if _known(x) else NotImplemented

    def __divmod__(self: Tensor, x: Any) -> tuple[Tensor, Tensor]:
        return (self.idiv(x), self.mod(x)) if _known(x) else NotImplemented

    def __rdivmod__(self: Tensor, x: Any) -> tuple[Tensor, Tensor]:
        return (self.idiv(x, True), self.mod(x, True)) if _known(x) else NotImplemented

    def __lt__(self: Tensor, x: Any) -> Tensor: return self.lt(x) if _known(x) else NotImplemented
    def __le__(self: Tensor, x: Any) -> Tensor: return self.le(x) if _known(x) else NotImplemented
    def __gt__(self: Tensor, x: Any) -> Tensor: return self.gt(x) if _known(x) else NotImplemented
    def __ge__(self: Tensor, x: Any) -> Tensor: return self.ge(x) if _known(x) else NotImplemented

    def __eq__(self: Tensor, x: Any) -> Tensor:  # type: ignore[override]
        return self.eq(x) if _known(x) else NotImplemented

    def __ne__(self: Tensor, x: Any) -> Tensor:  # type: ignore[override]
        return self.ne(x) if _known(x) else NotImplemented

    def __iadd__(self: Tensor, x: Any) -> Tensor: return self._updated("add", x)
    def __isub__(self: Tensor, x: Any) -> Tensor: return self._updated("sub", x)
    def __imul__(self: Tensor, x: Any) -> Tensor: return self._updated("mul", x)
    def __itruediv__(self: Tensor, x: Any) -> Tensor: return self._updated("div", x)
    def __ifloordiv__(self: Tensor, x: Any) -> Tensor: return self._updated("idiv", x)
    def __imod__(self: Tensor, x: Any) -> Tensor: return self._updated("mod", x)
    def __ipow__(self: Tensor, x: Any) -> Tensor: return self._updated("pow", x)
    def __imatmul__(self: Tensor, x: Any) -> Tensor: return self._updated("matmul", x)
    def __iand__(self: Tensor, x: Any) -> Tensor: return self._updated("bitwise_and", x)
    def __ior__(self: Tensor, x: Any) -> Tensor: return self._updated("bitwise_or", x)
    def __ixor__(self: Tensor, x: Any) -> Tensor: return self._updated("bitwise_xor", x)
    def __ilshift__(self: Tensor, x: Any) -> Tensor: return self._updated("lshift", x)
    def __irshift__(self: Tensor, x: Any) -> Tensor: return self._updated("rshift", x)

    def _updated(self: Tensor, method: str, x: Any) -> Tensor:
        """Write the result of ``method`` to this tensor's memory, atomically with respect to other threads."""
        with writing(self):
            return self._become(method, getattr(self, method)(x))

    def _become(self: Tensor, op: str, value: Tensor) -> Tensor:
        """Write ``value``, the result of an in-place operator, to this tensor's memory."""
        if not same_sizes(value.shape, self.shape):
            raise ShapeError(op, f"in place, a tensor of shape {self.shape} cannot become {value.shape}",
                             "the form that makes a new tensor: x = x + y")
        if value.dtype is not self.dtype:
            if not (value.dtype.is_float and self.dtype.is_float):
                raise DTypeError(op, f"in place, a tensor of {self.dtype!r} cannot become {value.dtype!r}",
                                 "the form that makes a new tensor: x = x + y")
            value = value.cast(self.dtype)
        if value.device != self.device:
            return self.assign(value)  # raises the error that names both devices
        self._write(as_sized(value.uop, self.shape))
        return self

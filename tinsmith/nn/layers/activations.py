"""Activation layers with PyTorch's names. Where a function is enough, use the method: ``Tensor.relu``."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from tinsmith.nn.describe import Layer, arguments
from tinsmith.tensor.arguments import choice, flag, integer, number, size
from tinsmith.tensor.base import check_tensors
from tinsmith.tensor.tensor import Tensor

_SHOWN = {"neg_slope": "negative_slope", "axis": "dim"}  # argument name of the method → of the layer


class _Method(Layer):
    """A layer that calls one ``Tensor`` method. ``inplace`` is accepted and ignored: the result is a new tensor."""

    method: ClassVar[Callable[..., Tensor]]

    def __init__(self, inplace: bool = False) -> None:
        flag(type(self).__name__, "inplace", inplace)
        self._options: dict[str, Any] = {}

    def extra_repr(self) -> str:
        return arguments(**{_SHOWN.get(name, name): value for name, value in self._options.items()})

    def __call__(self, x: Tensor) -> Tensor:
        check_tensors(type(self).__name__, [x])
        return type(self).method(x, **self._options)


class ReLU(_Method):
    """``x.relu()`` as a layer.

    >>> from tinsmith import nn
    >>> nn.ReLU()(Tensor([-1., 2.])).tolist()
    [0.0, 2.0]
    """

    method = Tensor.relu


class ReLU6(_Method):
    """``x.relu6()`` as a layer."""

    method = Tensor.relu6


class SELU(_Method):
    """``x.selu()`` as a layer."""

    method = Tensor.selu


class SiLU(_Method):
    """``x.silu()`` as a layer."""

    method = Tensor.silu


class Mish(_Method):
    """``x.mish()`` as a layer."""

    method = Tensor.mish


class Hardswish(_Method):
    """``x.hardswish()`` as a layer."""

    method = Tensor.hardswish


class Hardsigmoid(_Method):
    """``x.hardsigmoid()`` as a layer."""

    method = Tensor.hardsigmoid


class Sigmoid(_Method):
    """``x.sigmoid()`` as a layer."""

    method = Tensor.sigmoid


class LogSigmoid(_Method):
    """``x.logsigmoid()`` as a layer."""

    method = Tensor.logsigmoid


class Tanh(_Method):
    """``x.tanh()`` as a layer."""

    method = Tensor.tanh


class Softsign(_Method):
    """``x.softsign()`` as a layer."""

    method = Tensor.softsign


class GELU(_Method):
    """``x.gelu(approximate)`` as a layer.

    >>> from tinsmith import nn
    >>> round(nn.GELU()(Tensor(1.)).item(), 4)
    0.8413
    """

    method = Tensor.gelu

    def __init__(self, approximate: str = "none") -> None:
        self._options = {"approximate": choice("GELU", "approximate", approximate, ("none", "tanh"))}


class LeakyReLU(_Method):
    """``x.leaky_relu(negative_slope)`` as a layer."""

    method = Tensor.leaky_relu

    def __init__(self, negative_slope: float = 0.01, inplace: bool = False) -> None:
        self._options = {"neg_slope": number("LeakyReLU", "negative_slope", negative_slope)}


class ELU(_Method):
    """``x.elu(alpha)`` as a layer."""

    method = Tensor.elu

    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None:
        self._options = {"alpha": number("ELU", "alpha", alpha)}


class CELU(ELU):
    """``x.celu(alpha)`` as a layer."""

    method = Tensor.celu


class Hardtanh(_Method):
    """``x.hardtanh(min_val, max_val)`` as a layer."""

    method = Tensor.hardtanh

    def __init__(self, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> None:
        self._options = {"min_val": number("Hardtanh", "min_val", min_val),
                         "max_val": number("Hardtanh", "max_val", max_val)}


class Softplus(_Method):
    """``x.softplus(beta, threshold)`` as a layer."""

    method = Tensor.softplus

    def __init__(self, beta: float = 1.0, threshold: float | None = None) -> None:
        self._options = {"beta": number("Softplus", "beta", beta), "threshold": threshold}


class Softmax(_Method):
    """``x.softmax(dim)`` as a layer.

    >>> from tinsmith import nn
    >>> nn.Softmax(dim=0)(Tensor([2., 2.])).tolist()
    [0.5, 0.5]
    """

    method = Tensor.softmax

    def __init__(self, dim: int = -1) -> None:
        self._options = {"axis": integer("Softmax", "dim", dim)}


class LogSoftmax(Softmax):
    """``x.log_softmax(dim)`` as a layer."""

    method = Tensor.log_softmax


class PReLU(Layer):
    """Parametric ReLU: ``x`` where ``x > 0``, else ``weight * x``; one learned weight, or one per channel (axis 1).

    >>> from tinsmith import nn
    >>> nn.PReLU()(Tensor([-4., 2.])).tolist()
    [-1.0, 2.0]
    """

    def __init__(self, num_parameters: int = 1, init: float = 0.25) -> None:
        count = size("PReLU", "num_parameters", num_parameters, 1)
        self.weight = Tensor.full((count,), number("PReLU", "init", init)).contiguous()

    def extra_repr(self) -> str:
        return arguments(num_parameters=self.weight.shape[0])

    def __call__(self, x: Tensor) -> Tensor:
        check_tensors("PReLU", [x])
        shape = () if self.weight.shape[0] == 1 else (-1, *[1] * max(x.ndim - 2, 0))
        weight = self.weight.reshape(shape)
        return (x > 0).where(x, weight * x)

"""Activation and loss layers with PyTorch's names.

If a function is enough, use the method (``Tensor.relu``). Losses are called with (predictions, targets).
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from tinsmith.core.errors import DTypeError
from tinsmith.nn.describe import Layer, arguments
from tinsmith.tensor.arguments import choice, flag, integer, number, shown, size
from tinsmith.tensor.base import TensorBase, check_tensors
from tinsmith.tensor.tensor import Tensor

_SHOWN = {"neg_slope": "negative_slope", "axis": "dim"}  # argument name of the method → of the layer


class _Method(Layer):
    """A layer that calls one ``Tensor`` method. ``inplace`` is accepted and ignored: the result is a new tensor."""

    method: ClassVar[Callable[..., Any]]

    def __init__(self, inplace: bool = False) -> None:
        flag(type(self).__name__, "inplace", inplace)
        self._options: dict[str, Any] = {}

    def extra_repr(self) -> str:
        return arguments(**{_SHOWN.get(name, name): value for name, value in self._options.items()})

    def __call__(self, x: Tensor) -> Tensor:
        check_tensors(type(self).__name__, [x])
        result: Tensor = type(self).method(x, **self._options)
        return result


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
        return x.prelu(self.weight)


class _Loss(Layer):
    """The base class of loss layers; ``reduction`` is "mean", "sum" or "none"."""

    def __init__(self, reduction: str = "mean") -> None:
        self.reduction = choice(type(self).__name__, "reduction", reduction, ("mean", "sum", "none"))

    def __call__(self, x: Tensor, target: Tensor) -> Tensor:
        check_tensors(type(self).__name__, [x, target])
        return self._loss(x, target)

    def _loss(self, x: Tensor, target: Tensor) -> Tensor:
        raise NotImplementedError


def _weight(layer: _Loss, name: str, given: Tensor | None) -> Tensor | None:
    if given is not None and not isinstance(given, TensorBase):
        raise DTypeError(type(layer).__name__, f"{name} is {shown(given)} ({type(given).__name__})", "a Tensor")
    return given


class MSELoss(_Loss):
    """``x.mse_loss(target)`` as a layer.

    >>> from tinsmith import nn
    >>> nn.MSELoss()(Tensor([1., 2.]), Tensor([1., 4.])).item()
    2.0
    """

    def _loss(self, x: Tensor, target: Tensor) -> Tensor:
        return x.mse_loss(target, self.reduction)


class L1Loss(_Loss):
    """``x.l1_loss(target)`` as a layer."""

    def _loss(self, x: Tensor, target: Tensor) -> Tensor:
        return x.l1_loss(target, self.reduction)


class SmoothL1Loss(_Loss):
    """``x.smooth_l1_loss(target, beta)`` as a layer."""

    def __init__(self, reduction: str = "mean", beta: float = 1.0) -> None:
        super().__init__(reduction)
        self.beta = number("SmoothL1Loss", "beta", beta, 0)

    def _loss(self, x: Tensor, target: Tensor) -> Tensor:
        return x.smooth_l1_loss(target, self.reduction, self.beta)


class HuberLoss(_Loss):
    """``x.huber_loss(target, delta)`` as a layer."""

    def __init__(self, reduction: str = "mean", delta: float = 1.0) -> None:
        super().__init__(reduction)
        self.delta = number("HuberLoss", "delta", delta, 0)

    def _loss(self, x: Tensor, target: Tensor) -> Tensor:
        return x.huber_loss(target, self.reduction, self.delta)


class BCELoss(_Loss):
    """``x.binary_crossentropy(target)`` of probabilities as a layer; ``weight`` scales each element's loss."""

    def __init__(self, weight: Tensor | None = None, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.weight = _weight(self, "weight", weight)

    def _loss(self, x: Tensor, target: Tensor) -> Tensor:
        return x.binary_crossentropy(target, self.reduction, self.weight)


class BCEWithLogitsLoss(BCELoss):
    """``x.binary_crossentropy_logits(target, pos_weight)`` as a layer; ``weight`` scales each element's loss."""

    def __init__(self, weight: Tensor | None = None, reduction: str = "mean",
                 pos_weight: Tensor | None = None) -> None:
        super().__init__(weight, reduction)
        self.pos_weight = _weight(self, "pos_weight", pos_weight)

    def _loss(self, x: Tensor, target: Tensor) -> Tensor:
        return x.binary_crossentropy_logits(target, self.reduction, self.pos_weight, self.weight)


class NLLLoss(_Loss):
    """Negative log-likelihood of the target class: ``x.nll_loss(target, weight)`` as a layer."""

    def __init__(self, weight: Tensor | None = None, ignore_index: int = -100, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.weight = _weight(self, "weight", weight)
        self.ignore_index = integer(type(self).__name__, "ignore_index", ignore_index)

    def _loss(self, x: Tensor, target: Tensor) -> Tensor:
        return x.nll_loss(target, self.weight, self.ignore_index, self.reduction)


class CrossEntropyLoss(NLLLoss):
    """Cross entropy of logits ``[N, classes, …]`` with class indices ``[N, …]``, or with probabilities.

    Args:
        weight: one factor per class; with class indices, "mean" divides by the sum of the targets' weights.
        ignore_index: target value that contributes neither to the loss nor to the mean.

    >>> from tinsmith import nn
    >>> round(nn.CrossEntropyLoss()(Tensor([[0., 0.], [9., 0.]]), Tensor([1, -100])).item(), 4)
    0.6931
    """

    def __init__(self, weight: Tensor | None = None, ignore_index: int = -100, reduction: str = "mean",
                 label_smoothing: float = 0.0) -> None:
        super().__init__(weight, ignore_index, reduction)
        self.label_smoothing = number("CrossEntropyLoss", "label_smoothing", label_smoothing, 0, 1)

    def _loss(self, x: Tensor, target: Tensor) -> Tensor:
        return x.cross_entropy(target, self.reduction, self.label_smoothing, self.ignore_index, self.weight)

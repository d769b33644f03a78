"""Loss layers with PyTorch's names, called with (predictions, targets)."""
from __future__ import annotations

from tinsmith.core.errors import DTypeError
from tinsmith.nn.describe import Layer
from tinsmith.tensor.arguments import choice, integer, number, shown
from tinsmith.tensor.base import TensorBase, check_tensors
from tinsmith.tensor.tensor import Tensor


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

# mypy: disable-error-code=misc
"""Activation functions and losses.

An activation is one elementwise expression, with finite values and gradients everywhere. A loss selects the column of a
class index by comparison inside the row's kernel: no gather, no stored one-hot.
"""
from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from tinsmith.core.dtypes import DType, dtypes, promote
from tinsmith.core.errors import DTypeError, ShapeError
from tinsmith.ir import UOp
from tinsmith.tensor.arguments import choice, number
from tinsmith.tensor.autograd.backward import with_slopes
from tinsmith.tensor.helpers import muladd, operand, rounded_once, same_sizes
from tinsmith.tensor.host_data import check_indices
from tinsmith.tensor.reduce.reduce import accumulator

if TYPE_CHECKING:
    from tinsmith.tensor.tensor import Tensor


def _positive(x: UOp) -> UOp:
    """Return x > 0 or NaN: selected NaN propagate."""
    return (x > 0) | x.ne(x)


def ramp_and_bend(x: UOp) -> tuple[UOp, UOp]:
    """Return max(x, 0) and log(1 + exp(-abs(x))); their sum is log(1 + exp(x)), the softplus."""
    below = x < 0
    return below.where(0, x), below.where(x, -x).alu("EXP").alu("LOG1P")


def _relu_slope(g: Tensor, out: Tensor, x: Tensor) -> tuple[Tensor]:
    """Return the gradient of ``relu``, from the result, so that the argument need not be kept; NaN keeps its
    gradient."""
    return (out.ne(0).where(g, 0),)


def _hardtanh_slope(g: Tensor, out: Tensor, x: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, None, None]:
    return (out.ne(low) & out.ne(high)).where(g, 0), None, None


def _hardswish_slope(g: Tensor, out: Tensor, x: Tensor) -> tuple[Tensor]:
    return (x.le(-3).where(0, x.lt(3).where(g * (x * (1 / 3) + 0.5), g)),)

# log(erfc(z) / t) + z² as a polynomial in t = 1 / (1 + z/2), z = abs(x)/√2: relative error of erfc below 1.2e-7
# (Press et al., Numerical Recipes in C, 2nd ed., section 6.2).
_TAIL = (0.17087277, -0.82215223, 1.48851587, -1.13520398, 0.27886807, -0.18628806, 0.09678418, 0.37409196, 1.00002368,
         -1.26551223)


def _share_below(x: Tensor) -> Tensor:
    """Return the standard normal distribution function; in float32 with full relative precision also in the left
    tail."""
    if x.dtype.itemsize > 4:
        return ((x * math.sqrt(0.5)).erf() + 1) * 0.5
    t = x._new(muladd(x.abs().uop, math.sqrt(0.125), 1.0)).reciprocal()
    exponent = t.uop.const_like(_TAIL[0])
    for c in _TAIL[1:]:
        exponent = muladd(exponent, t.uop, c)
    tail = t * 0.5 * x._new(muladd(x.uop * -0.5, x.uop, exponent)).exp()
    return (x < 0).where(tail, 1 - tail)


def _gelu_slope(g: Tensor, out: Tensor, x: Tensor) -> tuple[Tensor]:
    density = (x * x * -0.5).exp() * (1 / math.sqrt(2 * math.pi))
    return (g * (_share_below(x) + x * density),)


class Activations:
    """Activation functions."""

    __slots__ = ()

    def relu(self: Tensor) -> Tensor:
        """Return ``max(x, 0)``; NaN stays NaN, the derivative at 0 is 0.

        >>> Tensor([-1., 0., 2.]).relu().tolist()
        [0.0, 0.0, 2.0]
        """
        return with_slopes(self._new(self.uop.maximum(0)), _relu_slope, self)

    @rounded_once
    def leaky_relu(self: Tensor, neg_slope: float = 0.01) -> Tensor:
        """x where x > 0, else ``neg_slope * x``.

        >>> Tensor([-4., 2.]).leaky_relu(0.25).tolist()
        [-1.0, 2.0]
        """
        x, slope = self._float(), number("leaky_relu", "neg_slope", neg_slope)
        return x._new((x.uop > 0).where(x.uop, x.uop * slope))

    def relu6(self: Tensor) -> Tensor:
        """Return ``min(max(x, 0), 6)``."""
        return self.hardtanh(0, 6)

    @rounded_once
    def elu(self: Tensor, alpha: float = 1.0) -> Tensor:
        """x where x > 0, else ``alpha * (exp(x) - 1)``."""
        x, alpha = self._float().uop, number("elu", "alpha", alpha)
        up = _positive(x)
        return self._new(up.where(x, up.where(0, x).alu("EXPM1") * alpha))

    @rounded_once
    def celu(self: Tensor, alpha: float = 1.0) -> Tensor:
        """x where x > 0, else ``alpha * (exp(x / alpha) - 1)``."""
        x, alpha = self._float().uop, number("celu", "alpha", alpha, zero=False)
        up = _positive(x)
        return self._new(up.where(x, (up.where(0, x) * (1 / alpha)).alu("EXPM1") * alpha))

    @rounded_once
    def selu(self: Tensor, alpha: float = 1.6732632423543772, gamma: float = 1.0507009873554805) -> Tensor:
        """Return ``gamma * elu(x, alpha)``; the defaults keep mean 0 and variance 1 through deep networks."""
        return self.elu(alpha) * number("selu", "gamma", gamma)

    @rounded_once
    def sigmoid(self: Tensor) -> Tensor:
        """Return ``1 / (1 + exp(-x))``, without overflow.

        >>> Tensor([0., float("inf"), -float("inf")]).sigmoid().tolist()
        [0.5, 1.0, 0.0]
        """
        x = self._float().uop
        below = x < 0
        e = below.where(x, -x).alu("EXP")
        return self._new(below.where(e, 1) / (e + 1))

    @rounded_once
    def logsigmoid(self: Tensor) -> Tensor:
        """Return ``log(sigmoid(x))``, accurate where ``sigmoid(x)`` underflows."""
        return -((-self._float()).softplus())

    @rounded_once
    def silu(self: Tensor) -> Tensor:
        """Return ``x * sigmoid(x)``."""
        return self * self.sigmoid()

    def swish(self: Tensor) -> Tensor:
        """Return the same as ``silu``."""
        return self.silu()

    @rounded_once
    def quick_gelu(self: Tensor) -> Tensor:
        """Return ``x * sigmoid(1.702 * x)``, an approximation of ``gelu``."""
        return self * (self * 1.702).sigmoid()

    @rounded_once
    def gelu(self: Tensor, approximate: str = "none") -> Tensor:
        """x times the standard normal distribution function of x (https://arxiv.org/abs/1606.08415).

        Args:
            approximate: "none" for the error function; "tanh" for the formula that GPT-2 was trained with, cheaper and
                up to 0.0005 different.

        >>> [round(v, 4) for v in Tensor([-1., 0., 1.]).gelu().tolist()]
        [-0.1587, 0.0, 0.8413]
        >>> [round(v, 4) for v in Tensor([-1., 0., 1.]).gelu("tanh").tolist()]
        [-0.1588, 0.0, 0.8412]
        """
        x = self._float()
        if choice("gelu", "approximate", approximate, ("tanh", "none")) == "tanh":
            inner = (x + x * x * x * 0.044715) * math.sqrt(2 / math.pi)
            return x * 0.5 * (inner.tanh() + 1)
        return with_slopes(x * _share_below(x), _gelu_slope, x)

    @rounded_once
    def softplus(self: Tensor, beta: float = 1.0, threshold: float | None = None) -> Tensor:
        """Return ``log(1 + exp(beta * x)) / beta``.

        Args:
            threshold: return x where ``beta * x`` exceeds it; PyTorch's 20 makes no difference in float32.
        """
        x, beta = self._float().uop, number("softplus", "beta", beta, zero=False)
        x = x * beta if beta != 1 else x
        ramp, bend = ramp_and_bend(x)
        out = self._new((ramp + bend) * (1 / beta) if beta != 1 else ramp + bend)
        if threshold is None:
            return out
        return self._new(x).gt(number("softplus", "threshold", threshold)).where(self._float(), out)

    @rounded_once
    def mish(self: Tensor) -> Tensor:
        """Return ``x * tanh(softplus(x))``."""
        return self * self.softplus().tanh()

    def hardtanh(self: Tensor, min_val: float = -1.0, max_val: float = 1.0) -> Tensor:
        """Clamp x to ``[min_val, max_val]``; the derivative at both ends is 0."""
        low, high = number("hardtanh", "min_val", min_val), number("hardtanh", "max_val", max_val)
        out = self.maximum(low).minimum(high)
        return with_slopes(out, _hardtanh_slope, self.cast(out.dtype), out.full_like(low, requires_grad=False),
                           out.full_like(high, requires_grad=False))

    @rounded_once
    def hardsigmoid(self: Tensor, alpha: float = 1 / 6, beta: float = 0.5) -> Tensor:
        """Clamp ``alpha * x + beta`` to [0, 1]."""
        alpha, beta = number("hardsigmoid", "alpha", alpha), number("hardsigmoid", "beta", beta)
        return (self._float() * alpha + beta).hardtanh(0.0, 1.0)

    @rounded_once
    def hardswish(self: Tensor) -> Tensor:
        """Return ``x * relu6(x + 3) / 6``."""
        x = self._float()
        return with_slopes(x * (x + 3).relu6() * (1 / 6), _hardswish_slope, x)

    @rounded_once
    def softsign(self: Tensor) -> Tensor:
        """Return ``x / (1 + |x|)``."""
        return self / (self.abs() + 1)

    @rounded_once
    def tanhshrink(self: Tensor) -> Tensor:
        """Return ``x - tanh(x)``."""
        return self - self.tanh()


def _crossentropy_slopes(g: Tensor, loss: Tensor, x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return gradients that stay finite for predictions of exactly 0 and 1."""
    return g * (x - target) / ((1 - x) * x).clamp(1e-12), g * ((1 - x).log() - x.log())


def _classes(op: str, label: Tensor) -> Tensor:
    if label.dtype.is_float:
        raise DTypeError(op, f"class indices of dtype {label.dtype!r}", ".cast(dtypes.int32)")
    return label


class Losses:
    """Loss functions of predictions (``self``) and targets; ``reduction`` is "mean", "sum" or "none"."""

    __slots__ = ()

    def _reduced(self: Tensor, reduction: str, dtype: DType | None = None) -> Tensor:
        choice("loss", "reduction", reduction, ("mean", "sum", "none"))
        total = self if reduction == "none" else self.mean() if reduction == "mean" else self.sum()
        return total if dtype is None else total.cast(dtype)

    def _weighted(self: Tensor, op: str, weight: Tensor | None, reduction: str, dtype: DType) -> Tensor:
        return (self if weight is None else self * operand(op, weight, self))._reduced(reduction, dtype)

    def _beside(self: Tensor, op: str, target: Tensor) -> tuple[Tensor, Tensor, DType]:
        """Return predictions and targets in the working dtype (float32 for 16-bit floats), and the loss's dtype."""
        x, target = self._float(), operand(op, target, self)
        if not same_sizes(x.shape, target.shape):
            raise ShapeError(op, f"predictions {x.shape}, targets {target.shape}", "equal shapes")
        dtype = promote(x.dtype, target.dtype)
        wide = accumulator(dtype)
        return x.cast(wide), target.cast(wide), dtype

    def mse_loss(self: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
        """Return the squared differences.

        >>> Tensor([1., 2.]).mse_loss(Tensor([1., 4.])).item()
        2.0
        """
        x, y, dtype = self._beside("mse_loss", target)
        return (x - y).square()._reduced(reduction, dtype)

    def l1_loss(self: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
        """Return the absolute differences."""
        x, y, dtype = self._beside("l1_loss", target)
        return (x - y).abs()._reduced(reduction, dtype)

    def huber_loss(self: Tensor, target: Tensor, reduction: str = "mean", delta: float = 1.0) -> Tensor:
        """Return ``0.5 * d²`` for differences below ``delta``, else ``delta * (|d| - 0.5 * delta)``."""
        delta = number("huber_loss", "delta", delta)
        x, y, dtype = self._beside("huber_loss", target)
        d = x - y
        size = d.abs()
        return (size < delta).where(d * d * 0.5, (size - delta / 2) * delta)._reduced(reduction, dtype)

    def smooth_l1_loss(self: Tensor, target: Tensor, reduction: str = "mean", beta: float = 1.0) -> Tensor:
        """The Huber loss with ``delta=beta``, divided by ``beta``; the L1 loss for ``beta=0``."""
        beta = number("smooth_l1_loss", "beta", beta)
        return self.huber_loss(target, reduction, beta) * (1 / beta) if beta else self.l1_loss(target, reduction)

    def binary_crossentropy(self: Tensor, target: Tensor, reduction: str = "mean",
                            weight: Tensor | None = None) -> Tensor:
        """Return the binary cross entropy of probabilities in [0, 1]; logarithms are clamped to at least -100.

        Args:
            weight: a factor per element, broadcast to the loss.

        >>> Tensor([0.5]).binary_crossentropy(Tensor([1.0])).numpy().round(4).item()
        0.6930999755859375
        """
        x, y, dtype = self._beside("binary_crossentropy", target)
        loss = -(y * x.log().maximum(-100) + (1 - y) * (-x).log1p().maximum(-100))
        return with_slopes(loss, _crossentropy_slopes, x, y)._weighted("binary_crossentropy", weight, reduction, dtype)

    def binary_crossentropy_logits(self: Tensor, target: Tensor, reduction: str = "mean",
                                   pos_weight: Tensor | None = None, weight: Tensor | None = None) -> Tensor:
        """Return ``binary_crossentropy`` of ``sigmoid(self)``, accurate for large logits.

        Args:
            pos_weight: a factor of the term of targets 1.
            weight: a factor per element, broadcast to the loss.

        >>> round(Tensor([0., 200.]).binary_crossentropy_logits(Tensor([1., 0.])).item(), 4)
        100.3466
        """
        x, y, dtype = self._beside("binary_crossentropy_logits", target)
        if pos_weight is None:
            ramp, bend = map(x._new, ramp_and_bend(x.uop))
            loss = ramp - x * y + bend  # the large terms first: they cancel
            return loss._weighted("binary_crossentropy_logits", weight, reduction, dtype)
        pos_weight = operand("binary_crossentropy_logits", pos_weight, self)
        ramp, bend = map(x._new, ramp_and_bend(-x.uop))
        scale = 1 + (pos_weight.cast(promote(x.dtype, pos_weight.dtype)) - 1) * y
        loss = x * (1 - y) + ramp * scale + bend * scale
        return loss._weighted("binary_crossentropy_logits", weight, reduction, promote(dtype, pos_weight.dtype))

    def _row_logits(self: Tensor, axis: int) -> tuple[Tensor, Tensor]:
        """Return (logits minus their row's maximum, logarithm of the row's sum of exponentials of that).

        The maximum is detached: the difference of the two results does not depend on it.
        """
        x = self._float()
        x = x.float() if x.dtype.itemsize <= 2 else x
        shifted = x - x.max(axis=axis, keepdim=True).detach()
        return shifted, shifted.exp().sum(axis=axis, keepdim=True).log()

    def _picked(self: Tensor, label: Tensor, axis: int) -> Tensor:
        """Return the element of each row selected by ``label`` (size 1 along ``axis``); 0 where it is out of range.

        ``CHECKED=1`` recognizes this sum by its form.
        """
        wide = label.uop if label.dtype.is_int and label.dtype.itemsize >= 4 else label.uop.cast(dtypes.int32)
        hit = self.uop.iota_like(axis).cast(wide.dtype).eq(wide.expand(self.shape))
        return self._new(hit.where(self.uop, 0)).sum(axis=axis, keepdim=True)

    def _rows(self: Tensor, op: str, axis: int) -> tuple[Any, ...]:
        """Return the shape without the class axis."""
        if not self.ndim:
            raise ShapeError(op, "0-d logits have no axis of classes", "shape [classes] or [N, classes, …]")
        return (*self.shape[:axis], *self.shape[axis + 1 :])

    def _by_class(self: Tensor, op: str, weight: Tensor, axis: int) -> Tensor:
        """Expand one weight per class to the shape of the logits."""
        weight = operand(op, weight, self)
        if not same_sizes(weight.shape, (self.shape[axis],)):
            raise ShapeError(op, f"weight {weight.shape} for {self.shape[axis]} classes",
                             f"one weight per class: shape {(self.shape[axis],)}")
        return weight.reshape(*[1] * axis, -1, *[1] * (self.ndim - axis - 1)).expand(self.shape)

    def _class_loss(self: Tensor, label: Tensor, axis: int, ignore_index: int | None, label_smoothing: float,
                    reduction: str, weight: Tensor | None = None) -> Tensor:
        """Return the negative log-probability of the class indices ``label`` along ``axis``."""
        rows = self._rows("cross_entropy", axis)
        label = _classes("cross_entropy", operand("cross_entropy", label, self))
        if not same_sizes(label.shape, rows):
            raise ShapeError("cross_entropy", f"logits {self.shape}, class indices {label.shape}", f"indices {rows}")
        label_smoothing = number("cross_entropy", "label_smoothing", label_smoothing, 0, 1)
        check_indices("cross_entropy", label, 0, self.shape[axis], "class", ignore_index, seen=True)
        kept = None if ignore_index is None else label != ignore_index
        shifted, total = self._row_logits(axis)
        place = (label if kept is None else kept.where(label, 0)).unsqueeze(axis)
        loss, of_row = total - shifted._picked(place, axis), None
        by_class = None if weight is None else self._by_class("cross_entropy", weight, axis).cast(loss.dtype)
        if by_class is not None:
            of_row = by_class._picked(place, axis)
            loss = loss * of_row
        if label_smoothing:
            every = total - shifted
            smooth = (every if by_class is None else every * by_class).mean(axis=axis, keepdim=True)
            loss = loss * (1 - label_smoothing) + smooth * label_smoothing
        loss, count = loss.squeeze(axis), kept if of_row is None else of_row.squeeze(axis)
        if count is None:
            return loss._reduced(reduction)
        if kept is not None:
            loss, count = kept.where(loss, 0), kept.where(count, 0)
        return loss.sum() / count.sum() if reduction == "mean" else loss._reduced(reduction)

    def sparse_categorical_crossentropy(self: Tensor, Y: Tensor, ignore_index: int = -1, label_smoothing: float = 0.0,
                                        reduction: str = "mean") -> Tensor:
        """Cross entropy of logits ``[…, classes]`` with class indices ``[…]``.

        Args:
            ignore_index: rows with this label are ignored.

        >>> round(Tensor([[0., 0.], [9., 0.]]).sparse_categorical_crossentropy(Tensor([1, -1])).item(), 4)
        0.6931

        Raises:
            AxisError: if a label known on the host is out of range; a computed one contributes the row's log-sum-exp,
                and ``CHECKED=1`` reports it.
        """
        return self._class_loss(Y, self.ndim - 1, ignore_index, label_smoothing, reduction)

    def cross_entropy(self: Tensor, Y: Tensor, reduction: str = "mean", label_smoothing: float = 0.0,
                      ignore_index: int | None = None, weight: Tensor | None = None) -> Tensor:
        """Cross entropy of logits ``[N, classes, …]`` (or ``[classes]``) with class indices or probabilities.

        Args:
            Y: class indices ``[N, …]``, or probabilities in the logits' shape.
            ignore_index: rows with this label are ignored.
            weight: a factor per class; the mean over class indices divides by the sum of the labels' weights.

        >>> round(Tensor([[0., 0.]]).cross_entropy(Tensor([1])).item(), 4)
        0.6931
        >>> round(Tensor([[0., 0.]]).cross_entropy(Tensor([[0.5, 0.5]])).item(), 4)
        0.6931

        Raises:
            AxisError: if a label is out of range, as in ``sparse_categorical_crossentropy``.
        """
        axis = 1 if self.ndim > 1 else 0
        Y = operand("cross_entropy", Y, self)
        if Y.ndim == self.ndim - 1:
            return self._class_loss(Y, axis, ignore_index, label_smoothing, reduction, weight)
        if not same_sizes(Y.shape, self.shape):
            raise ShapeError("cross_entropy", f"logits {self.shape}, targets {Y.shape}",
                             "class indices without the class axis, or probabilities in the logits' shape")
        if not Y.dtype.is_float:
            raise DTypeError("cross_entropy", f"probabilities of dtype {Y.dtype!r}", ".float()")
        label_smoothing = number("cross_entropy", "label_smoothing", label_smoothing, 0, 1)
        self._rows("cross_entropy", axis)
        classes = self.shape[axis]
        target = Y * (1 - label_smoothing) + label_smoothing / classes if label_smoothing else Y
        shifted, total = self._row_logits(axis)
        target = target if weight is None else target * self._by_class("cross_entropy", weight, axis)
        loss = ((total - shifted) * target).sum(axis=axis)
        return loss.sum() / (loss.numel() or 1) if reduction == "mean" else loss._reduced(reduction)

    def nll_loss(self: Tensor, Y: Tensor, weight: Tensor | None = None, ignore_index: int | None = None,
                 reduction: str = "mean") -> Tensor:
        """Return the negative log-probability of the labelled class; ``self`` holds log-probabilities
        ``[N, classes, …]``.

        Args:
            weight: a factor per class; the mean divides by the sum of the weights used.
            ignore_index: samples with this class index contribute nothing.

        Raises:
            AxisError: if a class index known on the host is out of range. A computed one is not checked and
                contributes 0.
        """
        axis = 1 if self.ndim > 1 else 0
        rows = self._rows("nll_loss", axis)
        Y = _classes("nll_loss", operand("nll_loss", Y, self))
        if not same_sizes(Y.shape, rows):
            raise ShapeError("nll_loss", f"log-probabilities {self.shape}, class indices {Y.shape}", f"indices {rows}")
        check_indices("nll_loss", Y, 0, self.shape[axis], "class", ignore_index, seen=True)
        kept = None if ignore_index is None else Y.ne(ignore_index)
        label = (Y if kept is None else kept.where(Y, 0)).unsqueeze(axis)
        loss = -self._picked(label, axis).squeeze(axis)
        scale = None
        if weight is not None:
            scale = self._by_class("nll_loss", weight, axis)._picked(label, axis).squeeze(axis)
        if kept is not None:
            scale = kept.cast(self.dtype) if scale is None else scale * kept.cast(self.dtype)
        if scale is None:
            return loss._reduced(reduction)
        loss = (scale != 0).where(loss * scale, 0)
        return loss.sum() / scale.sum() if reduction == "mean" else loss._reduced(reduction)

# mypy: disable-error-code=misc
"""Neural-network operations: normalization, dropout, attention, embedding, and functions of ``torch.nn.functional``.

Activations, windows (convolutions, pools) and the classification losses are in separate modules of this folder."""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tinsmith.core.dtypes import dtypes, promote
from tinsmith.core.errors import ArgumentError, DTypeError, ShapeError
from tinsmith.ir import Ops, UOp
from tinsmith.tensor.arguments import Scalar, flag, integer, number, shown
from tinsmith.tensor.helpers import axes_of, axis_and_size, equal, operand, rounded_once, same_device, same_sizes
from tinsmith.tensor.host_data import check_indices
from tinsmith.tensor.modes import Mode, note_mode
from tinsmith.tensor.nnops.activations import Activations, Losses
from tinsmith.tensor.nnops.windows import WindowMethods
from tinsmith.tensor.reduce.reduce import accumulator

if TYPE_CHECKING:
    from tinsmith.tensor.tensor import Tensor

Axes = int | Sequence[int]


def _for_each_head(query: Tensor, key: Tensor, value: Tensor, grouped: bool) -> tuple[Tensor, Tensor]:
    """Return key and value with as many heads as the query; if ``grouped``, adjacent query heads share one."""
    ours, theirs, last = (x.shape[-3] if x.ndim > 2 else 1 for x in (query, key, value))
    if equal(ours, theirs) and equal(ours, last):
        return key, value
    divides = equal(theirs, last) and isinstance(ours, int) and isinstance(theirs, int) and ours % theirs == 0
    if not (divides if grouped else 1 in (ours, theirs) and 1 in (ours, last)):
        raise ShapeError("scaled_dot_product_attention", f"{ours} heads of query {query.shape}, {theirs} of key "
                         f"{key.shape}, {last} of value {value.shape}", "enable_gqa=True" if divides else
                         "as many heads of all three, or with enable_gqa=True fewer of key and value that divide them")
    if not grouped:
        return key, value
    return key.repeat_interleave(ours // theirs, dim=-3), value.repeat_interleave(ours // theirs, dim=-3)


class NNOps(Activations, WindowMethods, Losses):
    """Normalization, dropout, attention, embedding; inherits activations, windows and losses."""

    __slots__ = ()

    @classmethod
    def train(cls: type[Tensor], mode: bool = True) -> Mode:
        """Set training mode for a ``with`` block or a decorated function: dropout drops, batch norm uses its batch.

        >>> with Tensor.train():
        ...     Tensor.training
        True
        """
        return Mode("training", mode)

    @classmethod
    def test(cls: type[Tensor]) -> Mode:
        """Set evaluation mode for a ``with`` block or a decorated function: the opposite of ``train``."""
        return cls.train(False)

    def sequential(self: Tensor, layers: Sequence[Callable[[Tensor], Tensor]]) -> Tensor:
        """Apply layers one after the other.

        >>> Tensor([-1., 4.]).sequential([Tensor.relu, Tensor.sqrt]).tolist()
        [0.0, 2.0]
        """
        wrong = [v for v in layers if not callable(v)] if isinstance(layers, (tuple, list)) else [layers]
        if wrong:
            raise DTypeError("sequential", f"takes a list of layers, got {shown(wrong[0])}",
                             "a list of functions of a tensor")
        x = self
        for position, layer in enumerate(layers):  # noqa: B007  layer_names reads both variables
            x = layer(x)
        return x

    def _float(self: Tensor) -> Tensor:
        """Cast integers and bools to the default float."""
        return self if self.dtype.is_float else self.cast(dtypes.default_float)

    def _statistics(self: Tensor, axis: Axes) -> tuple[Tensor, Tensor, Tensor]:
        """Return (mean, x - mean, variance) along ``axis``, kept with size 1."""
        centred, variance, off = self._centred(axis)
        return self.detach().mean(axis=axis, keepdim=True) + off, centred, variance

    def _centred(self: Tensor, axis: Axes) -> tuple[Tensor, Tensor, Tensor]:
        """Return (x - mean, variance, rounding error of the computed mean) along ``axis``, kept with size 1."""
        away, off = self._away(axis)
        return away - off, ((away * away).mean(axis=axis, keepdim=True) - off * off).maximum(0), off

    def layernorm(self: Tensor, axis: Axes = -1, eps: float = 1e-5) -> Tensor:
        """Normalize to mean 0 and variance 1 along ``axis``; statistics of 16-bit floats are computed in float32.

        >>> [round(v, 3) for v in Tensor([1., 2., 3.]).layernorm().tolist()]
        [-1.225, 0.0, 1.225]
        """
        x, axis, eps = self._float(), axes_of("layernorm", self, axis), number("layernorm", "eps", eps)
        wide = x.float() if x.dtype.itemsize <= 2 else x
        centred, variance, _ = wide._centred(axis)
        return (centred * (variance + eps).rsqrt()).cast(x.dtype)

    def rms_norm(self: Tensor, axis: Axes = -1, *args: Any, weight: Tensor | None = None,
                 eps: float | None = None) -> Tensor:
        """Divide by the root mean square along ``axis`` and multiply by ``weight``.

        ``rms_norm(x, axis, eps=1e-6)`` is tinygrad's form. PyTorch's is ``rms_norm(x, normalized_shape, weight, eps)``:
        if a weight is given, or ``axis`` can only be a shape, ``axis`` holds the sizes of the last axes, and
        ``eps`` defaults to the machine epsilon of the dtype.

        >>> Tensor([3.0, 3.0]).rms_norm((2,), Tensor([2.0, 1.0])).tolist()
        [2.0, 1.0]
        """
        if args and not isinstance(args[0], Scalar):
            weight, args = args[0], args[1:]
        if len(args) > (eps is None):
            raise ArgumentError("rms_norm", f"{shown(args[-1])} is one argument too many",
                                "rms_norm(axis, eps), or rms_norm(normalized_shape, weight, eps)")
        x, eps = self._float(), args[0] if args else eps
        sizes = tuple(axis) if isinstance(axis, (tuple, list)) else None
        least = 1e-6
        if sizes and (weight is not None or any(s >= self.ndim for s in sizes)) and same_sizes(
                sizes, self.shape[-len(sizes) :]):
            axis, least = tuple(range(-len(sizes), 0)), float(dtypes.finfo(x.dtype).eps)
        wide = x.float() if x.dtype.itemsize <= 2 else x
        spread = (wide * wide).mean(axis=axis, keepdim=True) + number("rms_norm", "eps", least if eps is None else eps)
        normal = (wide * spread.rsqrt()).cast(x.dtype)
        return normal if weight is None else normal * operand("rms_norm", weight, self)

    def batchnorm(self: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, invstd: Tensor,
                  axis: Axes = 1) -> Tensor:
        """Return ``(x - mean) * invstd * weight + bias``, with one value of each per position along ``axis``.

        >>> Tensor([[1., 4.]]).batchnorm(None, None, Tensor([1., 2.]), Tensor([1., 0.5])).tolist()
        [[0.0, 1.0]]
        """
        axes = axes_of("batchnorm", self, axis)
        shape = tuple(s if n in axes else 1 for n, s in enumerate(self.shape))
        mean, invstd = operand("batchnorm", mean, self), operand("batchnorm", invstd, self)
        weight = None if weight is None else operand("batchnorm", weight, self)
        bias = None if bias is None else operand("batchnorm", bias, self)
        for name, t in (("weight", weight), ("bias", bias), ("mean", mean), ("invstd", invstd)):
            if t is not None and t.numel() != math.prod(shape):
                raise ShapeError("batchnorm", f"input {self.shape} with {math.prod(shape)} positions along {axes}, "
                                 f"{name} {t.shape}", f"{name} of shape {tuple(self.shape[a] for a in axes)}")
        scale = invstd if weight is None else invstd * weight
        return _affine(self, mean.reshape(shape), scale.reshape(shape), None if bias is None else bias.reshape(shape))

    def dropout(self: Tensor, p: float = 0.5) -> Tensor:
        """Zero elements with probability ``p`` and scale the others by 1 / (1 - p); the identity outside training mode.

        >>> Tensor([1., 2.]).dropout(0.9).tolist()
        [1.0, 2.0]
        """
        p = number("dropout", "p", p, 0, 1)
        if p and self.recording:
            note_mode("dropout", self.training)
        if not self.training or p == 0:
            return self
        if p == 1:
            return self * 0
        kept = type(self).rand(*self.shape, device=self.device) >= p
        return kept.where(self * (1 / (1 - p)), 0)

    def scaled_dot_product_attention(self: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
                                     dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None,
                                     enable_gqa: bool = False) -> Tensor:
        """Return ``softmax(q @ kᵀ · scale + mask) @ v`` with q ``[…, L, E]``, k ``[…, S, E]``, v ``[…, S, Ev]``.

        Args:
            attn_mask: bool (False = masked out) or float, added to the scores; broadcasts to ``[…, L, S]``. A fully
                masked row gives zeros.
            is_causal: position i attends to positions up to i.
            scale: default 1/√E.
            enable_gqa: fewer key and value heads than query heads; adjacent query heads share one.

        Scores and sums of 16-bit floats are float32; the weights are rounded to 16 bits, the input of matrix units.

        >>> q = Tensor([[[1., 0.], [0., 1.]]])
        >>> q.scaled_dot_product_attention(q, q, is_causal=True).shape
        (1, 2, 2)
        """
        if is_causal and attn_mask is not None:
            raise ArgumentError("scaled_dot_product_attention", "is_causal together with attn_mask", "one of the two")
        op = "scaled_dot_product_attention"
        key, value = operand(op, key, self), operand(op, value, self)
        attn_mask = None if attn_mask is None else operand(op, attn_mask, self)
        flat = min(self.ndim, key.ndim, value.ndim) < 2
        if flat or not (equal(self.shape[-1], key.shape[-1]) and equal(key.shape[-2], value.shape[-2])):
            raise ShapeError(op, f"query {self.shape}, key {key.shape}, value "
                             f"{value.shape}", "query […, L, E], key […, S, E], value […, S, Ev]")
        key, value = _for_each_head(self, key, value, enable_gqa)
        factor = 1 / math.sqrt(self.shape[-1]) if scale is None else number(op, "scale", scale)
        # 16-bit scores would overflow before scaling, and lose precision
        scores = self.matmul(key.transpose(-2, -1), dtype=accumulator(promote(self.dtype, key.dtype))) * factor
        if is_causal:
            line, column = scores.uop.iota_like(scores.ndim - 2), scores.uop.iota_like(scores.ndim - 1)
            scores = scores._new((line < column).where(-math.inf, scores.uop))
        elif attn_mask is not None and attn_mask.dtype.is_int:
            raise DTypeError(op, f"attn_mask of dtype {attn_mask.dtype!r}", ".bool() to mask, or .float() to add")
        elif attn_mask is not None and attn_mask.dtype.is_bool:
            scores = attn_mask.where(scores, -math.inf)
        elif attn_mask is not None:
            scores = scores + attn_mask
        # softmax(scores) @ v with the division after the product: one per element of the result, not of the scores
        shifted, axes = scores._shifted(op, -1, None, masked=attn_mask is not None)
        weights = shifted.exp()
        total = weights._reduce(Ops.ADD, axes, True)
        if attn_mask is not None:
            total = total.eq(0).where(1, total)  # a fully masked row
        weights, halves = weights.dropout(dropout_p), value.dtype.is_float and value.dtype.itemsize == 2
        if halves and self.dtype is value.dtype:
            weights = weights.cast(value.dtype)  # 16-bit operands for the matrix unit
        wide = weights.matmul(value, dtype=total.dtype)
        return (wide * total.reciprocal()).cast(value.dtype)

    def embedding(self: Tensor, weight: Tensor, padding_idx: int | None = None) -> Tensor:
        """Look up rows of ``weight``: indices ``[…] → […, width]``; a computed index out of range gives zeros.

        Args:
            padding_idx: an index (from the end if negative) whose row gets no gradient.

        >>> Tensor([1, 0]).embedding(Tensor([[1., 2.], [3., 4.]])).tolist()
        [[3.0, 4.0], [1.0, 2.0]]

        Raises:
            AxisError: if an index known on the host is out of range.
        """
        if not self.dtype.is_int:
            raise DTypeError("embedding", f"indices of dtype {self.dtype!r}", ".cast(dtypes.int)")
        weight = operand("embedding", weight, self)
        if weight.ndim != 2:
            raise ShapeError("embedding", f"a weight of shape {weight.shape}", "[rows, width]")
        same_device("embedding", self, weight)
        check_indices("embedding", self, 0, weight.shape[0], seen=True)
        count, width = self.numel(), weight.shape[1]
        index: UOp = self.uop.reshape((count, 1)).expand((count, width))
        out = weight._new(weight.uop.gather(index, 0).reshape((*self.shape, width)))
        if padding_idx is None:
            return out
        rows = weight.shape[0]
        silent = integer("embedding", "padding_idx", padding_idx, -rows, rows - 1) % rows
        return self.eq(silent).unsqueeze(-1).where(out.detach(), out)

    def one_hot(self: Tensor, num_classes: int) -> Tensor:
        """Return the one-hot encoding of class indices, ``[…] → […, num_classes]``, in the default int dtype."""
        x = self.uop.reshape((*self.shape, 1)).expand((*self.shape, num_classes))
        hit = x.iota_like(self.ndim).cast(x.dtype).eq(x)
        return self._new(hit.cast(dtypes.default_int))


@rounded_once
def _affine(x: Tensor, origin: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    out = (x - origin) * scale
    return out if bias is None else out + bias


class Functional:
    """``glu prelu threshold pixel_shuffle kl_div triplet_margin_loss`` and similar methods."""

    __slots__ = ()

    def glu(self: Tensor, dim: int = -1) -> Tensor:
        """Return the first half of an axis times the sigmoid of the second half (gated linear unit).

        >>> Tensor([2.0, 0.0]).glu().tolist()
        [1.0]
        """
        d, size = axis_and_size("glu", self, dim)
        if size % 2:
            raise ShapeError("glu", f"axis {d} of shape {self.shape} has no halves", "an even size")
        a, b = self.narrow(d, 0, size // 2), self.narrow(d, size // 2, size // 2)
        return a.mul(b.sigmoid())

    def prelu(self: Tensor, weight: Tensor) -> Tensor:
        """x where x > 0, else ``weight * x``; ``weight`` has one value, or one per channel (axis 1).

        >>> Tensor([-4.0, 2.0]).prelu(Tensor([0.25])).tolist()
        [-1.0, 2.0]
        """
        w = operand("prelu", weight, self).reshape(-1)
        w = w.reshape(1, -1, *(1,) * (self.ndim - 2)) if w.shape[0] != 1 and self.ndim > 1 else w
        return self.gt(0).where(self, self.mul(w if self.ndim else w.reshape(())))

    def threshold(self: Tensor, threshold: float, value: float) -> Tensor:
        """x where x > ``threshold``, else ``value``.

        >>> Tensor([1.0, 3.0]).threshold(2, -1).tolist()
        [-1.0, 3.0]
        """
        return self.le(number("threshold", "threshold", threshold)).where(number("threshold", "value", value), self)

    def hardshrink(self: Tensor, lambd: float = 0.5) -> Tensor:
        """x where abs(x) > ``lambd``, else 0.

        >>> Tensor([0.2, 1.0]).hardshrink().tolist()
        [0.0, 1.0]
        """
        return self.abs().le(number("hardshrink", "lambd", lambd)).where(0, self)

    def softshrink(self: Tensor, lambd: float = 0.5) -> Tensor:
        """x moved towards 0 by ``lambd``; 0 where abs(x) <= ``lambd``.

        >>> Tensor([0.2, 1.0, -2.0]).softshrink().tolist()
        [0.0, 0.5, -1.5]
        """
        lambd = number("softshrink", "lambd", lambd, least=0)
        return self.gt(lambd).where(self.sub(lambd), self.lt(-lambd).where(self.add(lambd), self.mul(0)))

    def gumbel_softmax(self: Tensor, tau: float = 1.0, hard: bool = False, dim: int = -1) -> Tensor:
        """Return a softmax of logits plus Gumbel noise: a differentiable draw of a category.

        >>> Tensor([0.0, 100.0]).gumbel_softmax(hard=True).tolist()
        [0.0, 1.0]

        Args:
            hard: return a one-hot draw, with the gradient of the soft one (straight-through).
        """
        noise = self.rand_like().clamp(1e-20).log().neg().clamp(1e-20).log().neg().detach()
        soft = self.add(noise).div(number("gumbel_softmax", "tau", tau, zero=False)).softmax(dim)
        if not flag("gumbel_softmax", "hard", hard):
            return soft
        d, size = axis_and_size("gumbel_softmax", self, dim)
        picked = soft.argmax(d).one_hot(size).cast(soft.dtype).movedim(-1, d)
        return picked.sub(soft.detach()).add(soft)

    def pixel_shuffle(self: Tensor, upscale_factor: int) -> Tensor:
        """Rearrange channels to pixels: ``[…, c·r², h, w] → […, c, h·r, w·r]``.

        >>> Tensor([[[[1]], [[2]], [[3]], [[4]]]]).pixel_shuffle(2).tolist()
        [[[[1, 2], [3, 4]]]]
        """
        r = integer("pixel_shuffle", "upscale_factor", upscale_factor, least=1)
        if self.ndim < 3 or self.shape[-3] % (r * r):
            raise ShapeError("pixel_shuffle", f"channels of shape {self.shape} into {r} x {r} pixels", "c·r² channels")
        *lead, c, h, w = self.shape
        x = self.reshape(*lead, c // (r * r), r, r, h, w)
        n = len(lead)
        return x.permute(*range(n + 1), n + 3, n + 1, n + 4, n + 2).reshape(*lead, c // (r * r), h * r, w * r)

    def pixel_unshuffle(self: Tensor, downscale_factor: int) -> Tensor:
        """Rearrange pixels to channels: ``[…, c, h·r, w·r] → […, c·r², h, w]``.

        >>> Tensor([[[[1, 2], [3, 4]]]]).pixel_unshuffle(2).tolist()
        [[[[1]], [[2]], [[3]], [[4]]]]
        """
        r = integer("pixel_unshuffle", "downscale_factor", downscale_factor, least=1)
        if self.ndim < 3 or self.shape[-1] % r or self.shape[-2] % r:
            raise ShapeError("pixel_unshuffle", f"pixels of shape {self.shape} by {r}", "sides that it divides")
        *lead, c, h, w = self.shape
        x = self.reshape(*lead, c, h // r, r, w // r, r)
        n = len(lead)
        return x.permute(*range(n + 1), n + 2, n + 4, n + 1, n + 3).reshape(*lead, c * r * r, h // r, w // r)

    def channel_shuffle(self: Tensor, groups: int) -> Tensor:
        """Interleave ``groups`` equal groups of channels (axis 1).

        >>> Tensor([[[1], [2], [3], [4]]]).channel_shuffle(2).flatten().tolist()
        [1, 3, 2, 4]
        """
        groups = integer("channel_shuffle", "groups", groups, least=1)
        if self.ndim < 3 or self.shape[1] % groups:
            raise ShapeError("channel_shuffle", f"channels of shape {self.shape} in {groups} groups", "equal groups")
        x = self.reshape(self.shape[0], groups, self.shape[1] // groups, *self.shape[2:])
        return x.transpose(1, 2).reshape(self.shape)

    # *** losses ***

    def kl_div(self: Tensor, target: Tensor, reduction: str = "mean", log_target: bool = False) -> Tensor:
        """The Kullback–Leibler divergence of ``target`` from the distribution whose log-probabilities are ``self``.

        >>> Tensor([-1.0]).kl_div(Tensor([0.0])).item()
        0.0

        Args:
            reduction: "mean", "sum", "none", or "batchmean": the sum divided by the size of axis 0.
            log_target: the target holds log-probabilities, too.
        """
        y = operand("kl_div", target, self)
        each = y.exp().mul(y.sub(self)) if flag("kl_div", "log_target", log_target) else y.xlogy(y).sub(y.mul(self))
        return each.sum().div(self.shape[0]) if reduction == "batchmean" else each._reduced(reduction)

    def poisson_nll_loss(self: Tensor, target: Tensor, log_input: bool = True, full: bool = False, eps: float = 1e-8,
                         reduction: str = "mean") -> Tensor:
        """Return the negative log-likelihood of a Poisson distribution with rate ``self`` (its logarithm if
        ``log_input``).

        >>> Tensor([0.0]).poisson_nll_loss(Tensor([1.0])).item()
        1.0
        """
        y = operand("poisson_nll_loss", target, self)
        loss = self.exp().sub(y.mul(self)) if log_input else self.sub(y.mul(self.add(eps).log()))
        if full:
            stirling = y.mul(y.clamp(1).log()).sub(y).add(y.clamp(1).mul(2 * math.pi).log().mul(0.5))
            loss = loss.add(y.le(1).where(0, stirling))
        return loss._reduced(reduction)

    def gaussian_nll_loss(self: Tensor, target: Tensor, var: Tensor, full: bool = False, eps: float = 1e-6,
                          reduction: str = "mean") -> Tensor:
        """Return the negative log-likelihood of a normal distribution with means ``self`` and variances ``var``.

        >>> Tensor([0.0]).gaussian_nll_loss(Tensor([0.0]), Tensor([1.0])).item()
        0.0
        """
        y, wide = operand("gaussian_nll_loss", target, self), operand("gaussian_nll_loss", var, self)
        if wide.shape != self.shape and wide.ndim and same_sizes(wide.shape, self.shape[:-1]):
            wide = wide.unsqueeze(-1)  # one variance per row, as in PyTorch
        wide = wide.add(wide.detach().clamp(eps).sub(wide.detach()))
        loss = wide.log().add(self.sub(y).square().div(wide)).mul(0.5)
        return (loss.add(0.5 * math.log(2 * math.pi)) if full else loss)._reduced(reduction)

    def soft_margin_loss(self: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
        """Return ``log(1 + exp(-target * x))`` for targets 1 and -1.

        >>> Tensor([0.0]).soft_margin_loss(Tensor([1.0])).numpy().round(4).item()
        0.6930999755859375
        """
        return operand("soft_margin_loss", target, self).mul(self).neg().softplus()._reduced(reduction)

    def hinge_embedding_loss(self: Tensor, target: Tensor, margin: float = 1.0, reduction: str = "mean") -> Tensor:
        """x where the target is 1, ``max(0, margin - x)`` where it is -1, the sum of both elsewhere.

        >>> Tensor([0.5, 0.25]).hinge_embedding_loss(Tensor([1.0, -1.0])).item()
        0.625
        """
        y = operand("hinge_embedding_loss", target, self)
        near, far = y.ne(-1).where(self, 0.0), y.ne(1).where(self.neg().add(margin).clamp(0), 0.0)
        return near.add(far)._reduced(reduction)

    def margin_ranking_loss(self: Tensor, other: Tensor, target: Tensor, margin: float = 0.0,
                            reduction: str = "mean") -> Tensor:
        """Return ``max(0, -target * (x - other) + margin)``.

        >>> Tensor([1.0]).margin_ranking_loss(Tensor([3.0]), Tensor([1.0])).item()
        2.0
        """
        y = operand("margin_ranking_loss", target, self)
        return y.neg().mul(self.sub(other)).add(margin).clamp(0)._reduced(reduction)

    def cosine_embedding_loss(self: Tensor, other: Tensor, target: Tensor, margin: float = 0.0,
                              reduction: str = "mean") -> Tensor:
        """Return ``1 - cosine`` where the target is 1, ``max(0, cosine - margin)`` where it is -1.

        >>> Tensor([[1.0, 0.0]]).cosine_embedding_loss(Tensor([[0.0, 1.0]]), Tensor([1.0])).item()
        1.0
        """
        y = operand("cosine_embedding_loss", target, self)
        cosine = self.cosine_similarity(other, dim=-1)
        return y.eq(1).where(cosine.neg().add(1), cosine.sub(margin).clamp(0))._reduced(reduction)

    def triplet_margin_loss(self: Tensor, positive: Tensor, negative: Tensor, margin: float = 1.0, p: float = 2.0,
                            eps: float = 1e-6, swap: bool = False, reduction: str = "mean") -> Tensor:
        """Return ``max(0, |x - positive| - |x - negative| + margin)``.

        >>> Tensor([[0.0]]).triplet_margin_loss(Tensor([[0.0]]), Tensor([[3.0]])).item()
        0.0
        """
        near, far = self.pairwise_distance(positive, p, eps), self.pairwise_distance(negative, p, eps)
        if flag("triplet_margin_loss", "swap", swap):
            far = far.minimum(operand("triplet_margin_loss", positive, self).pairwise_distance(negative, p, eps))
        return near.sub(far).add(margin).clamp(0)._reduced(reduction)

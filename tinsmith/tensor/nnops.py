"""Operations of neural networks: norms, dropout, attention; with activations, windows and losses beside this file."""
# mypy: disable-error-code=misc
# ``self`` is the Tensor that this class is mixed into.
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tinsmith.core.dtypes import dtypes, promote
from tinsmith.core.errors import ArgumentError, DTypeError, ShapeError
from tinsmith.ir import Ops, UOp
from tinsmith.tensor.activations import Activations
from tinsmith.tensor.arguments import integer, number, shown
from tinsmith.tensor.helpers import axes_of, equal, operand, rounded_once, same_device
from tinsmith.tensor.hostdata import check_indices
from tinsmith.tensor.losses import Losses
from tinsmith.tensor.modes import Mode, note_mode
from tinsmith.tensor.reduce import accumulator
from tinsmith.tensor.windows import Windows

if TYPE_CHECKING:
    from tinsmith.tensor.tensor import Tensor

Axes = int | Sequence[int]


def _for_each_head(query: Tensor, key: Tensor, value: Tensor, grouped: bool) -> tuple[Tensor, Tensor]:
    """Keys and values of as many heads as the query has; where they are ``grouped``, neighbours share one."""
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


class NNOps(Activations, Windows, Losses):
    """What layers are made of."""

    __slots__ = ()

    @classmethod
    def train(cls: type[Tensor], mode: bool = True) -> Mode:
        """Training mode for a block, or a function that it decorates: dropout drops, batch norm uses its batch.

        >>> with Tensor.train():
        ...     Tensor.training
        True
        """
        return Mode("training", mode)

    @classmethod
    def test(cls: type[Tensor]) -> Mode:
        """Evaluation mode for a block: the opposite of ``train``."""
        return cls.train(False)

    def sequential(self: Tensor, layers: Sequence[Callable[[Tensor], Tensor]]) -> Tensor:
        """The layers called one after the other.

        >>> Tensor([-1., 4.]).sequential([Tensor.relu, Tensor.sqrt]).tolist()
        [0.0, 2.0]
        """
        wrong = [v for v in layers if not callable(v)] if isinstance(layers, (tuple, list)) else [layers]
        if wrong:
            raise DTypeError("sequential", f"takes a list of layers, got {shown(wrong[0])}",
                             "a list of functions of a tensor")
        x = self
        for layer in layers:
            x = layer(x)
        return x

    def _float(self: Tensor) -> Tensor:
        """Integers and bools as the default float."""
        return self if self.dtype.is_float else self.cast(dtypes.default_float)

    def _statistics(self: Tensor, axis: Axes) -> tuple[Tensor, Tensor, Tensor]:
        """(mean, x - mean, variance) along ``axis``, which stays with size 1."""
        centred, variance, off = self._centred(axis)
        return self.detach().mean(axis=axis, keepdim=True) + off, centred, variance

    def _centred(self: Tensor, axis: Axes) -> tuple[Tensor, Tensor, Tensor]:
        """(x - mean, variance, what rounding the mean left) along ``axis``, which stays with size 1."""
        away, off = self._away(axis)
        return away - off, ((away * away).mean(axis=axis, keepdim=True) - off * off).maximum(0), off

    def layernorm(self: Tensor, axis: Axes = -1, eps: float = 1e-5) -> Tensor:
        """Mean 0 and variance 1 along ``axis``; statistics of 16-bit floats are taken in float32.

        >>> [round(v, 3) for v in Tensor([1., 2., 3.]).layernorm().tolist()]
        [-1.225, 0.0, 1.225]
        """
        x, axis, eps = self._float(), axes_of("layernorm", self, axis), number("layernorm", "eps", eps)
        wide = x.float() if x.dtype.itemsize <= 2 else x
        centred, variance, _ = wide._centred(axis)
        return (centred * (variance + eps).rsqrt()).cast(x.dtype)

    def rms_norm(self: Tensor, axis: Axes = -1, eps: float = 1e-6) -> Tensor:
        """Divided by the root of the mean square along ``axis``."""
        x, eps = self._float(), number("rms_norm", "eps", eps)
        wide = x.float() if x.dtype.itemsize <= 2 else x
        return (wide * ((wide * wide).mean(axis=axis, keepdim=True) + eps).rsqrt()).cast(x.dtype)

    def batchnorm(self: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, invstd: Tensor,
                  axis: Axes = 1) -> Tensor:
        """``(x - mean) * invstd * weight + bias`` with one value of each per position along ``axis``.

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
        """Elements zeroed with probability ``p``, the others scaled by 1 / (1 - p); nothing outside training.

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
        """``softmax(q @ kᵀ · scale + mask) @ v`` with q ``[…, L, E]``, k ``[…, S, E]``, v ``[…, S, Ev]``.

        Args:
            attn_mask: bool (False = not seen) or float, added to the scores; broadcasts to ``[…, L, S]``. A row that
                sees nothing gives zeros.
            is_causal: position i sees positions up to i.
            scale: 1/√E unless given.
            enable_gqa: fewer key and value heads than query heads, each shared by neighbours.

        Scores and sums of 16-bit floats are float32; the weights are rounded to 16 bits, as matrix units multiply them.

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
        # 16-bit scores would overflow before the scale, and lose what tells them apart
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
        # softmax(scores) @ v with the division behind the product: once per row and column of the result
        shifted, axes = scores._shifted(op, -1, None, masked=attn_mask is not None)
        weights = shifted.exp()
        total = weights._reduce(Ops.ADD, axes, True)
        if attn_mask is not None:
            total = total.eq(0).where(1, total)  # a row that sees nothing
        weights, halves = weights.dropout(dropout_p), value.dtype.is_float and value.dtype.itemsize == 2
        if halves and self.dtype is value.dtype:
            weights = weights.cast(value.dtype)  # what a matrix unit multiplies
        wide = weights.matmul(value, dtype=total.dtype)
        return (wide * total.reciprocal()).cast(value.dtype)

    def embedding(self: Tensor, weight: Tensor, padding_idx: int | None = None) -> Tensor:
        """Rows of ``weight`` by these indices: ``[…] → […, width]``; zeros for a computed one out of range.

        Args:
            padding_idx: an index (from the end if negative) whose row gets no gradient.

        >>> Tensor([1, 0]).embedding(Tensor([[1., 2.], [3., 4.]])).tolist()
        [[3.0, 4.0], [1.0, 2.0]]

        Raises:
            AxisError: for an index out of range that the host knows.
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
        """1 at the class, 0 elsewhere: ``[…] → […, num_classes]``, of the default int."""
        x = self.uop.reshape((*self.shape, 1)).expand((*self.shape, num_classes))
        hit = x.iota_like(self.ndim).cast(x.dtype).eq(x)
        return self._new(hit.cast(dtypes.default_int))


@rounded_once
def _affine(x: Tensor, origin: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    out = (x - origin) * scale
    return out if bias is None else out + bias

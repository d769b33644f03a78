"""Functions of ``torch.nn.functional`` that belong to no layer: activations, pixels and channels, losses."""
# mypy: disable-error-code=misc
# ``self`` is the Tensor that this class is mixed into.
from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tinsmith.core.errors import ShapeError
from tinsmith.tensor.arguments import flag, integer, number
from tinsmith.tensor.helpers import axis_and_size, operand, same_sizes

if TYPE_CHECKING:
    from tinsmith.tensor.tensor import Tensor


class Functional:
    """``glu prelu threshold pixel_shuffle kl_div triplet_margin_loss`` and their like."""

    __slots__ = ()

    def glu(self: Tensor, dim: int = -1) -> Tensor:
        """The first half of an axis times the sigmoid of the second.

        >>> Tensor([2.0, 0.0]).glu().tolist()
        [1.0]
        """
        d, size = axis_and_size("glu", self, dim)
        if size % 2:
            raise ShapeError("glu", f"axis {d} of shape {self.shape} has no halves", "an even size")
        a, b = self.narrow(d, 0, size // 2), self.narrow(d, size // 2, size // 2)
        return a.mul(b.sigmoid())

    def prelu(self: Tensor, weight: Tensor) -> Tensor:
        """x above 0, ``weight * x`` below: one weight, or one for each channel (axis 1).

        >>> Tensor([-4.0, 2.0]).prelu(Tensor([0.25])).tolist()
        [-1.0, 2.0]
        """
        w = operand("prelu", weight, self).reshape(-1)
        w = w.reshape(1, -1, *(1,) * (self.ndim - 2)) if w.shape[0] != 1 and self.ndim > 1 else w
        return self.gt(0).where(self, self.mul(w if self.ndim else w.reshape(())))

    def threshold(self: Tensor, threshold: float, value: float) -> Tensor:
        """x above ``threshold``, ``value`` elsewhere.

        >>> Tensor([1.0, 3.0]).threshold(2, -1).tolist()
        [-1.0, 3.0]
        """
        return self.le(number("threshold", "threshold", threshold)).where(number("threshold", "value", value), self)

    def hardshrink(self: Tensor, lambd: float = 0.5) -> Tensor:
        """x where its magnitude is more than ``lambd``, else 0.

        >>> Tensor([0.2, 1.0]).hardshrink().tolist()
        [0.0, 1.0]
        """
        return self.abs().le(number("hardshrink", "lambd", lambd)).where(0, self)

    def softshrink(self: Tensor, lambd: float = 0.5) -> Tensor:
        """x moved towards 0 by ``lambd``.

        >>> Tensor([0.2, 1.0, -2.0]).softshrink().tolist()
        [0.0, 0.5, -1.5]
        """
        lambd = number("softshrink", "lambd", lambd, least=0)
        return self.gt(lambd).where(self.sub(lambd), self.lt(-lambd).where(self.add(lambd), self.mul(0)))

    def gumbel_softmax(self: Tensor, tau: float = 1.0, hard: bool = False, dim: int = -1) -> Tensor:
        """A softmax of logits with Gumbel noise: a draw of a category that has a gradient.

        >>> Tensor([0.0, 100.0]).gumbel_softmax(hard=True).tolist()
        [0.0, 1.0]

        Args:
            hard: 0 and 1, with the gradient of the soft draw.
        """
        noise = self.rand_like().clamp(1e-20).log().neg().clamp(1e-20).log().neg().detach()
        soft = self.add(noise).div(number("gumbel_softmax", "tau", tau, zero=False)).softmax(dim)
        if not flag("gumbel_softmax", "hard", hard):
            return soft
        d, size = axis_and_size("gumbel_softmax", self, dim)
        picked = soft.argmax(d).one_hot(size).cast(soft.dtype).movedim(-1, d)
        return picked.sub(soft.detach()).add(soft)

    def pixel_shuffle(self: Tensor, upscale_factor: int) -> Tensor:
        """(…, c·r², h, w) as (…, c, h·r, w·r).

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
        """(…, c, h·r, w·r) as (…, c·r², h, w).

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
        """Channels (axis 1) distributed over groups.

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
        """The divergence of Kullback and Leibler from logarithms of probabilities here to those of ``target``.

        >>> Tensor([-1.0]).kl_div(Tensor([0.0])).item()
        0.0

        Args:
            reduction: "mean", "sum", "none", or "batchmean" for the sum over the size of axis 0.
            log_target: the target is of logarithms, too.
        """
        y = operand("kl_div", target, self)
        each = y.exp().mul(y.sub(self)) if flag("kl_div", "log_target", log_target) else y.xlogy(y).sub(y.mul(self))
        return each.sum().div(self.shape[0]) if reduction == "batchmean" else each._reduced(reduction)

    def poisson_nll_loss(self: Tensor, target: Tensor, log_input: bool = True, full: bool = False, eps: float = 1e-8,
                         reduction: str = "mean") -> Tensor:
        """Minus the logarithm of a Poisson distribution's density, its rate (or the logarithm of it) given here.

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
        """Minus the logarithm of a normal distribution's density, of means here and variances ``var``.

        >>> Tensor([0.0]).gaussian_nll_loss(Tensor([0.0]), Tensor([1.0])).item()
        0.0
        """
        y, wide = operand("gaussian_nll_loss", target, self), operand("gaussian_nll_loss", var, self)
        if wide.shape != self.shape and wide.ndim and same_sizes(wide.shape, self.shape[:-1]):
            wide = wide.unsqueeze(-1)  # one variance for each row, as in PyTorch
        wide = wide.add(wide.detach().clamp(eps).sub(wide.detach()))
        loss = wide.log().add(self.sub(y).square().div(wide)).mul(0.5)
        return (loss.add(0.5 * math.log(2 * math.pi)) if full else loss)._reduced(reduction)

    def soft_margin_loss(self: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
        """``log(1 + exp(-target * x))``, for targets 1 and -1.

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
        """``max(0, -target * (x - other) + margin)``.

        >>> Tensor([1.0]).margin_ranking_loss(Tensor([3.0]), Tensor([1.0])).item()
        2.0
        """
        y = operand("margin_ranking_loss", target, self)
        return y.neg().mul(self.sub(other)).add(margin).clamp(0)._reduced(reduction)

    def cosine_embedding_loss(self: Tensor, other: Tensor, target: Tensor, margin: float = 0.0,
                              reduction: str = "mean") -> Tensor:
        """1 minus the cosine where the target is 1, ``max(0, cosine - margin)`` where it is -1.

        >>> Tensor([[1.0, 0.0]]).cosine_embedding_loss(Tensor([[0.0, 1.0]]), Tensor([1.0])).item()
        1.0
        """
        y = operand("cosine_embedding_loss", target, self)
        cosine = self.cosine_similarity(other, dim=-1)
        return y.eq(1).where(cosine.neg().add(1), cosine.sub(margin).clamp(0))._reduced(reduction)

    def triplet_margin_loss(self: Tensor, positive: Tensor, negative: Tensor, margin: float = 1.0, p: float = 2.0,
                            eps: float = 1e-6, swap: bool = False, reduction: str = "mean") -> Tensor:
        """``max(0, |x - positive| - |x - negative| + margin)``.

        >>> Tensor([[0.0]]).triplet_margin_loss(Tensor([[0.0]]), Tensor([[3.0]])).item()
        0.0
        """
        near, far = self.pairwise_distance(positive, p, eps), self.pairwise_distance(negative, p, eps)
        if flag("triplet_margin_loss", "swap", swap):
            far = far.minimum(operand("triplet_margin_loss", positive, self).pairwise_distance(negative, p, eps))
        return near.sub(far).add(margin).clamp(0)._reduced(reduction)

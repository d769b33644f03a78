"""The optimizers: adaptive (LAMB, Adam and its variants, Adagrad, RMSprop) and with momentum (SGD, LARS, Muon)."""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tinsmith.core.errors import ArgumentError
from tinsmith.ir import Ops, UOp
from tinsmith.nn.optim.base import Optimizer, Params
from tinsmith.tensor.arguments import flag, integer, number
from tinsmith.tensor.base import TensorBase
from tinsmith.tensor.helpers import expand_uop, same_device
from tinsmith.tensor.tensor import Tensor


class Moments(Optimizer):
    """The base of Adam-like optimizers, with running means ``m`` of gradients and ``v`` of squared gradients.

    The moments of 16-bit parameters are float32, and so is the arithmetic: ``eps`` and squares of gradients would be 0.

    Args:
        betas: ``b1`` and ``b2`` as one pair.
        amsgrad: divide by the greatest ``v`` so far.
    """

    decoupled = True  # weight decay is not part of the gradient in the moments

    def __init__(self, params: Params, lr: float, b1: float, b2: float, eps: float, weight_decay: float,
                 master_weights: bool, betas: Sequence[float] | None, amsgrad: bool = False,
                 maximize: bool = False) -> None:
        super().__init__(params, lr, master_weights, maximize=maximize)
        name = type(self).__name__
        b1, b2 = (b1, b2) if betas is None else betas
        self.b1, self.b2 = number(name, "b1", b1, 0, 1), number(name, "b2", b2, 0, 1)
        self.eps, self.weight_decay = number(name, "eps", eps, 0), number(name, "weight_decay", weight_decay, 0)
        self.amsgrad = flag(name, "amsgrad", amsgrad)
        self.count = self._scalar(0.0)  # number of steps
        self.correction1, self.correction2 = self._scalar(0.0), self._scalar(0.0)  # 1 - b1^t and 1 - b2^t
        self.m, self.v = self.state_like(), self.state_like()
        self.greatest = self.state_like() if self.amsgrad else []

    def _step(self, params: list[Tensor], grads: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        self.count.assign(self.count + 1)
        self.correction1.assign(_correction(self.b1, self.count))
        self.correction2.assign(_correction(self.b2, self.count))
        scalars = [self.count, self.correction1, self.correction2, *self._advance()]
        updates = [self._update(n, p, g) for n, (p, g) in enumerate(zip(params, grads))]
        return updates, [*scalars, *self.m, *self.v, *self.greatest]

    def _advance(self) -> list[Tensor]:
        """Assign other state that changes once per step, and return it."""
        return []

    def _update(self, n: int, p: Tensor, grad: Tensor) -> Tensor:
        """Return the update to subtract from parameter ``n``. Implemented on UOps, without type promotion and
        broadcasting, since a step builds hundreds of nodes."""
        raise NotImplementedError

    def _moments(self, n: int, p: Tensor, grad: Tensor) -> tuple[UOp, UOp, UOp]:
        """Return (gradient with coupled weight decay, new ``m``, new ``v``) as nodes of the moments' dtype."""
        moment, square = self.m[n], self.v[n]
        same_device("step", moment, p, grad, self.lr)
        dtype = moment.dtype
        g = grad.uop.cast(dtype)  # the square of a small 16-bit float would be 0
        if self.weight_decay and not self.decoupled:
            g = g + p.detach().uop.cast(dtype) * self.weight_decay
        keep: Any = self._each(n, self.b1)[0] if isinstance(self.b1, Tensor) else self.b1
        m = moment.assign(moment._new(moment.uop * keep + g * (1 - keep))).uop
        v = square.assign(square._new(square.uop * self.b2 + (g * g) * (1 - self.b2))).uop
        if self.amsgrad:
            greatest = self.greatest[n]
            v = greatest.assign(greatest._new(greatest.uop.alu(Ops.MAX, v))).uop
        return g, m, v

    def _each(self, n: int, *scalars: Tensor) -> list[UOp]:
        """Expand one-element tensors to nodes of the moment's shape and dtype."""
        return [expand_uop(t.uop.reshape(()).cast(self.m[n].dtype), self.m[n].shape) for t in scalars]

    def _decay(self, p: Tensor, up: UOp) -> UOp:
        """Add decoupled weight decay to an update, before multiplication by the learning rate."""
        if not (self.weight_decay and self.decoupled):
            return up
        return up + (p.detach() * self.weight_decay).uop.cast(up.dtype)


def _correction(b: float | Tensor, count: Tensor) -> Tensor:
    """Return ``1 - b ** count`` by ``expm1``, without cancellation."""
    rate = b.log() if isinstance(b, TensorBase) else math.log(b) if b else -math.inf
    return -(count * rate).expm1()


class LAMB(Moments):
    """LAMB (You et al. 2020): Adam's update times the ratio of parameter norm to update norm, per tensor.

    The moments of 16-bit parameters are float32, and so is the arithmetic: ``eps`` and squares of gradients would be 0.

    Args:
        betas: ``b1`` and ``b2`` as one pair, as PyTorch has them; so in the other optimizers.
        adam: no scaling by norms (as in ``AdamW`` and ``Adam``).
    """

    def __init__(self, params: Params, lr: float = 0.001, b1: float = 0.9, b2: float = 0.999,
                 eps: float = 1e-6, weight_decay: float = 0.0, adam: bool = False, master_weights: bool = True, *,
                 betas: Sequence[float] | None = None, amsgrad: bool = False, maximize: bool = False) -> None:
        super().__init__(params, lr, b1, b2, eps, weight_decay, master_weights, betas, amsgrad, maximize)
        self.adam = flag(type(self).__name__, "adam", adam)

    def _update(self, n: int, p: Tensor, grad: Tensor) -> Tensor:
        _, m, v = self._moments(n, p, grad)
        correction1, correction2, lr = self._each(n, self.correction1, self.correction2, self.lr)
        up = self._decay(p, (m / correction1) / ((v / correction2).alu(Ops.SQRT) + self.eps))
        if self.adam:
            return p._new(up * lr)
        change = p._new(up)
        return change * (self.lr * self._trust(p.detach(), change))

    @staticmethod
    def _trust(p: Tensor, up: Tensor) -> Tensor:
        size, length = (p * p).sum().sqrt(), (up * up).sum().sqrt()
        return ((size > 0) & (length > 0)).where(size / length, 1.0)


class AdamW(LAMB):
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019).

    >>> w = Tensor([1.])
    >>> opt = AdamW([w], lr=0.1, weight_decay=0.5)
    >>> _ = w.sum().backward()
    >>> opt.step()
    >>> round(w.item(), 4)
    0.85

    Args:
        amsgrad: divide by the greatest ``v`` so far.
    """

    def __init__(self, params: Params, lr: float = 0.001, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8,
                 weight_decay: float = 0.01, master_weights: bool = True, *, betas: Sequence[float] | None = None,
                 amsgrad: bool = False, maximize: bool = False) -> None:
        super().__init__(params, lr, b1, b2, eps, weight_decay, True, master_weights, betas=betas, amsgrad=amsgrad,
                         maximize=maximize)


class Adam(LAMB):
    """Adam (Kingma and Ba, 2015): the running mean of gradients over the root of their running mean square.

    >>> w = Tensor([1.])
    >>> opt = Adam([w], lr=0.1)
    >>> _ = (w * w).sum().backward()
    >>> opt.step()
    >>> round(w.item(), 4)
    0.9

    Args:
        weight_decay: L2 penalty: ``weight_decay * p`` is added to the gradient.
        amsgrad: divide by the greatest ``v`` so far.
        decoupled_weight_decay: decouple weight decay from the gradient, as in ``AdamW``.
    """

    def __init__(self, params: Params, lr: float = 0.001, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8,
                 master_weights: bool = True, *, weight_decay: float = 0.0, betas: Sequence[float] | None = None,
                 amsgrad: bool = False, decoupled_weight_decay: bool = False, maximize: bool = False) -> None:
        super().__init__(params, lr, b1, b2, eps, weight_decay, True, master_weights, betas=betas, amsgrad=amsgrad,
                         maximize=maximize)
        self.decoupled = flag("Adam", "decoupled_weight_decay", decoupled_weight_decay)


class NAdam(Moments):
    """Adam with Nesterov momentum that increases with the steps (Dozat, 2016).

    >>> w = Tensor([1.])
    >>> opt = NAdam([w], lr=0.1)
    >>> _ = (w * w).sum().backward()
    >>> opt.step()
    >>> round(w.item(), 4)
    0.8944

    Args:
        momentum_decay: how fast the momentum ``b1 * (1 - 0.96 ** (t * momentum_decay) / 2)`` rises.
        decoupled_weight_decay: keep weight decay apart from the gradient.
    """

    def __init__(self, params: Params, lr: float = 0.002, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8,
                 weight_decay: float = 0.0, momentum_decay: float = 0.004, master_weights: bool = True, *,
                 decoupled_weight_decay: bool = False, betas: Sequence[float] | None = None,
                 maximize: bool = False) -> None:
        super().__init__(params, lr, b1, b2, eps, weight_decay, master_weights, betas, maximize=maximize)
        self.momentum_decay = number("NAdam", "momentum_decay", momentum_decay, 0)
        self.decoupled = flag("NAdam", "decoupled_weight_decay", decoupled_weight_decay)
        self.product = self._scalar(1.0)  # product of the momenta of all steps so far

    def _advance(self) -> list[Tensor]:
        self.product.assign(self.product * self._momentum(self.count))
        return [self.product]

    def _momentum(self, step: Tensor) -> Tensor:
        return (1 - (step * (math.log(0.96) * self.momentum_decay)).exp() * 0.5) * self.b1

    def _update(self, n: int, p: Tensor, grad: Tensor) -> Tensor:
        g, m, v = self._moments(n, p, grad)
        now, later = self._momentum(self.count), self._momentum(self.count + 1)
        of_g, of_m = (1 - now) / (1 - self.product), later / (1 - self.product * later)
        of_g_each, of_m_each, correction2, lr = self._each(n, of_g, of_m, self.correction2, self.lr)
        up = (g * of_g_each + m * of_m_each) / ((v / correction2).alu(Ops.SQRT) + self.eps)
        return p._new(self._decay(p, up) * lr)


class RAdam(Moments):
    """Rectified Adam: plain momentum in the first steps, while the variance estimate is unreliable (Liu et al., 2020).

    >>> w = Tensor([1.])
    >>> opt = RAdam([w], lr=0.1)
    >>> _ = (w * w).sum().backward()
    >>> opt.step()
    >>> round(w.item(), 4)
    0.8

    Args:
        decoupled_weight_decay: keep weight decay apart from the gradient.
    """

    def __init__(self, params: Params, lr: float = 0.001, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8,
                 weight_decay: float = 0.0, master_weights: bool = True, *, decoupled_weight_decay: bool = False,
                 betas: Sequence[float] | None = None, maximize: bool = False) -> None:
        super().__init__(params, lr, b1, b2, eps, weight_decay, master_weights, betas, maximize=maximize)
        self.decoupled = flag("RAdam", "decoupled_weight_decay", decoupled_weight_decay)

    def _length(self) -> Tensor:
        """Return the effective number of gradients in the running square, ``longest - 2·t·b2^t / (1 - b2^t)``, without
        cancellation: with x = -t·log(b2), the second term is 2/a · x / (exp(x) - 1)."""
        a = -math.log(self.b2)
        x = self.count * a
        series = x * (0.5 - x * (1 / 12 - x * x * (1 / 720 - x * x / 30240)))
        return (x < 0.5).where(series, 1 - x / (x.exp() - 1)) * (2 / a) + ((1 + self.b2) / (1 - self.b2) - 2 / a)

    def _update(self, n: int, p: Tensor, grad: Tensor) -> Tensor:
        _, m, v = self._moments(n, p, grad)
        longest, length = (1 + self.b2) / (1 - self.b2), self._length()
        ratio = (length - 4) * (length - 2) / length * (longest / ((longest - 4) * (longest - 2)))
        scale = (length > 5).where(ratio, 0).sqrt() * self.correction2.sqrt()  # 0: plain momentum
        correction1, scale_each, lr = self._each(n, self.correction1, scale, self.lr)
        adaptive = scale_each / (v.alu(Ops.SQRT) + self.eps)
        up = (m / correction1) * scale_each.eq(0.0).where(adaptive.const_like(1.0), adaptive)
        return p._new(self._decay(p, up) * lr)


class Adagrad(Optimizer):
    """Adagrad (Duchi et al., 2011): the gradient over the root of the sum of all its squares.

    >>> w = Tensor([1.])
    >>> opt = Adagrad([w], lr=0.1)
    >>> _ = (w * w).sum().backward()
    >>> opt.step()
    >>> round(w.item(), 4)
    0.9

    Args:
        lr_decay: the rate of step t is ``lr / (1 + (t - 1) * lr_decay)``.
        initial_accumulator_value: initial value of the sum.
    """

    def __init__(self, params: Params, lr: float = 0.01, lr_decay: float = 0.0, weight_decay: float = 0.0,
                 initial_accumulator_value: float = 0.0, eps: float = 1e-10, master_weights: bool = True, *,
                 maximize: bool = False) -> None:
        super().__init__(params, lr, master_weights, maximize=maximize)
        self.lr_decay = number("Adagrad", "lr_decay", lr_decay, 0)
        self.weight_decay = number("Adagrad", "weight_decay", weight_decay, 0)
        self.eps = number("Adagrad", "eps", eps, 0)
        start = number("Adagrad", "initial_accumulator_value", initial_accumulator_value, 0)
        self.count = Tensor(np.zeros(1, np.float32), device=self.device, requires_grad=False)
        self.sums = self.state_like()
        for total in self.sums if start else ():
            total.assign(total + start)

    def _step(self, params: list[Tensor], grads: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        rate = self.lr / (1 + self.count * self.lr_decay) if self.lr_decay else self.lr
        self.count.assign(self.count + 1)
        updates = []
        for total, p, g in zip(self.sums, params, grads):
            g = (g + p.detach() * self.weight_decay if self.weight_decay else g).cast(total.dtype)
            total.assign(total + g * g)
            updates.append(g / (total.sqrt() + self.eps) * rate)
        return updates, [self.count, *self.sums]


class RMSprop(Optimizer):
    """RMSprop: the gradient over the root of its running mean square.

    >>> w = Tensor([1.])
    >>> opt = RMSprop([w], lr=0.1)
    >>> _ = (w * w).sum().backward()
    >>> opt.step()
    >>> round(w.item(), 4)
    0.0

    Args:
        alpha: decay of the running mean square per step.
        momentum: of a running sum of these steps.
        centered: normalize by the variance: the running mean square minus the squared running mean.
    """

    def __init__(self, params: Params, lr: float = 0.01, alpha: float = 0.99, eps: float = 1e-8,
                 weight_decay: float = 0.0, momentum: float = 0.0, centered: bool = False,
                 master_weights: bool = True, *, maximize: bool = False) -> None:
        super().__init__(params, lr, master_weights, maximize=maximize)
        self.alpha, self.eps = number("RMSprop", "alpha", alpha, 0, 1), number("RMSprop", "eps", eps, 0)
        self.weight_decay = number("RMSprop", "weight_decay", weight_decay, 0)
        self.momentum = number("RMSprop", "momentum", momentum, 0)
        self.centered = flag("RMSprop", "centered", centered)
        self.v = self.state_like()
        self.m = self.state_like() if self.centered else []
        self.b = self.state_like() if self.momentum else []

    def _step(self, params: list[Tensor], grads: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        updates = [self._update(n, p, g) * self.lr for n, (p, g) in enumerate(zip(params, grads))]
        return updates, [*self.v, *self.m, *self.b]

    def _update(self, n: int, p: Tensor, g: Tensor) -> Tensor:
        g = (g + p.detach() * self.weight_decay if self.weight_decay else g).cast(self.v[n].dtype)
        spread = self.v[n].assign(self.v[n] * self.alpha + g * g * (1 - self.alpha))
        if self.centered:
            mean = self.m[n].assign(self.m[n] * self.alpha + g * (1 - self.alpha))
            spread = spread - mean * mean
        up = g / (spread.sqrt() + self.eps)
        return self.b[n].assign(self.b[n] * self.momentum + up) if self.b else up


class SGD(Optimizer):
    """``p -= lr * g``, with momentum ``b = momentum * b + (1 - dampening) * g`` if given, as PyTorch does it.

    >>> w = Tensor([2.])
    >>> opt = SGD([w], lr=0.25, momentum=0.9)
    >>> _ = (w * w).sum().backward()
    >>> opt.step()
    >>> w.item()
    1.0

    Args:
        nesterov: look ahead: the step is ``g + momentum * b``.
        dampening: applies to all gradients in ``b`` but the first.
    """

    def __init__(self, params: Params, lr: float = 0.001, momentum: float = 0.0, weight_decay: float = 0.0,
                 nesterov: bool = False, master_weights: bool = True, *, dampening: float = 0.0,
                 maximize: bool = False) -> None:
        super().__init__(params, lr, master_weights, maximize=maximize)
        self.momentum, self.nesterov = number("SGD", "momentum", momentum, 0), flag("SGD", "nesterov", nesterov)
        self.weight_decay = number("SGD", "weight_decay", weight_decay, 0)
        self.dampening = number("SGD", "dampening", dampening)
        if self.nesterov and self.dampening:
            raise ArgumentError("SGD", f"nesterov=True with dampening={dampening}", "dampening=0, or no nesterov")
        self.b = self.state_like() if self.momentum else []
        self.share = [self._scalar(1.0, ())] if self.dampening else []  # of the next gradient in b

    def _step(self, params: list[Tensor], grads: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        updates = []
        for n, (p, g) in enumerate(zip(params, grads)):
            if self.weight_decay:
                g = g + p.detach() * self.weight_decay
            if self.b:
                new = g * self.share[0] if self.share else g
                self.b[n].assign((self.b[n] * self.momentum + new).cast(self.b[n].dtype))
                g = g + self.b[n] * self.momentum if self.nesterov else self.b[n]
            updates.append(g * self.lr)
        for share in self.share:
            share.assign(share * 0 + (1 - self.dampening))
        return updates, [*self.b, *self.share]


class LARS(Optimizer):
    """SGD with momentum and a rate per tensor: ``tcoef`` times the ratio of the norms of parameter and gradient.

    Of You, Gitman and Ginsburg, "Large batch training of convolutional networks" (arXiv:1708.03888).

    >>> w = Tensor([3., 4.])
    >>> opt = LARS([w], lr=1.0, momentum=0.0, weight_decay=0.0, tcoef=0.1)
    >>> _ = w.sum().backward()
    >>> opt.step()
    >>> w.numpy().round(4).tolist()
    [2.646399974822998, 3.646399974822998]

    Args:
        ns_steps: steps of ``Tensor.newton_schulz``, with ``ns_coefficients``, that updates of two axes or more take.
        classic: the rate is in the momentum's sum; else it scales the sum.
        pre_wd: the decay is part of the gradient; else it is taken off the parameter, at the learning rate.
        tcoef: 0 leaves the ratio out.
    """

    def __init__(self, params: Params, lr: float = 0.001, momentum: float = 0.9, weight_decay: float = 1e-4,
                 ns_steps: int = 0, ns_coefficients: Sequence[float] | None = None, nesterov: bool = False,
                 classic: bool = True, pre_wd: bool = True, tcoef: float = 0.001, master_weights: bool = True,
                 *, maximize: bool = False) -> None:
        super().__init__(params, lr, master_weights, maximize=maximize)
        name = type(self).__name__
        self.momentum = number(name, "momentum", momentum, 0)
        self.weight_decay = number(name, "weight_decay", weight_decay, 0)
        self.ns_steps, self.ns_coefficients = integer(name, "ns_steps", ns_steps, least=0), ns_coefficients or ()
        if self.ns_steps and not self.ns_coefficients:
            raise ArgumentError(name, f"ns_steps={ns_steps} without ns_coefficients", "(3.4445, -4.775, 2.0315)")
        self.nesterov, self.classic = flag(name, "nesterov", nesterov), flag(name, "classic", classic)
        self.pre_wd, self.tcoef = flag(name, "pre_wd", pre_wd), number(name, "tcoef", tcoef, least=0)
        self.b = self.state_like() if self.momentum else []

    def _step(self, params: list[Tensor], grads: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        return [self._update(n, p.detach(), g) for n, (p, g) in enumerate(zip(params, grads))], self.b

    def _update(self, n: int, p: Tensor, g: Tensor) -> Tensor:
        rate = (self.lr * self._ratio(p, g)).reshape(())
        if self.pre_wd and self.weight_decay:
            g = g + p * self.weight_decay
        if self.classic:
            g = g * rate
        if self.b:
            self.b[n].assign((self.b[n] * self.momentum + g).cast(self.b[n].dtype))
            g = g + self.b[n] * self.momentum if self.nesterov else self.b[n]
        if self.ns_steps and p.ndim > 1:
            flat = g.reshape(p.shape[0], -1).newton_schulz(self.ns_steps, self.ns_coefficients)
            g = flat.reshape(p.shape)
        if not self.classic:
            g = g * rate * self._scale(p)
        return g if self.pre_wd or not self.weight_decay else g + p * (self.lr * self.weight_decay)

    def _ratio(self, p: Tensor, g: Tensor) -> Tensor | float:
        if not self.tcoef:
            return 1.0
        size, slope = p.square().sum().sqrt(), g.square().sum().sqrt()
        ratio = size * self.tcoef / (slope + size * self.weight_decay)
        return ((size > 0) & (slope > 0)).where(ratio, 1.0)

    def _scale(self, p: Tensor) -> float:
        """Return the factor of the parameter's update, which depends on its shape."""
        return 1.0


class Muon(LARS):
    """Momentum whose updates are made orthogonal by a Newton-Schulz iteration: for weights of two axes or more.

    Of Jordan et al. (kellerjordan.github.io/posts/muon). As in PyTorch, an update of a tall weight is scaled by the
    root of its sides' ratio; the iteration is done in float32.

    >>> w = Tensor([[3., 0.], [0., 4.]])
    >>> opt = Muon([w], lr=1.0, weight_decay=0.0)
    >>> _ = (w * w).sum().backward()
    >>> opt.step()
    >>> bool((w.numpy().diagonal() < [2.4, 3.4]).all())
    True

    Args:
        adjust_lr: False leaves that scaling out.
    """

    def __init__(self, params: Params, lr: float = 0.001, momentum: float = 0.95, weight_decay: float = 0.1,
                 ns_steps: int = 5, ns_coefficients: Sequence[float] = (3.4445, -4.775, 2.0315), nesterov: bool = True,
                 adjust_lr: bool = True, master_weights: bool = True, *, maximize: bool = False) -> None:
        super().__init__(params, lr, momentum, weight_decay, ns_steps, ns_coefficients, nesterov, classic=False,
                         pre_wd=False, tcoef=0.0, master_weights=master_weights, maximize=maximize)
        self.adjust_lr = flag("Muon", "adjust_lr", adjust_lr)

    def _scale(self, p: Tensor) -> float:
        if not self.adjust_lr or p.ndim < 2:
            return 1.0
        return float(max(1.0, p.shape[0] / (p.numel() // p.shape[0])) ** 0.5)

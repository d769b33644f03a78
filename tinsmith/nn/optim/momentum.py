"""Momentum optimizers: SGD, LARS, Muon."""
from __future__ import annotations

from collections.abc import Sequence

from tinsmith.core.errors import ArgumentError
from tinsmith.nn.optim.base import Optimizer, Params
from tinsmith.tensor.arguments import flag, integer, number
from tinsmith.tensor.tensor import Tensor


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

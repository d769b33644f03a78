"""Optimizers. State, learning rate and corrections live in buffers, so every step is the same program."""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from tinsmith.core.dtypes import DType, dtypes
from tinsmith.core.errors import ArgumentError, DTypeError, GradientError
from tinsmith.ir import Ops
from tinsmith.nn.state import called, note_name
from tinsmith.tensor.arguments import flag, integer, number, shown
from tinsmith.tensor.base import TensorBase
from tinsmith.tensor.helpers import expand_uop, same_device
from tinsmith.tensor.modes import check_modes
from tinsmith.tensor.realize import realize_tensors
from tinsmith.tensor.tensor import Tensor


class Optimizer:
    """The base of optimizers; yours implements ``_step``.

    Args:
        params: tensors to optimize. Those with ``requires_grad=False`` (running statistics) are only kept computed.
        lr: learning rate, a tensor of one number; ``opt.lr = 0.01`` writes it.
        master_weights: keep a float32 copy of each 16-bit parameter: a step may be too small for 16 bits.

    >>> class SignDescent(Optimizer):
    ...     def _step(self, params, grads):
    ...         return [self.lr * g.sign() for g in grads], []
    >>> w = Tensor([1., -2.])
    >>> opt = SignDescent([w], lr=0.5)
    >>> _ = (w * w).sum().backward()
    >>> opt.step()
    >>> w.tolist()
    [0.5, -1.5]

    Raises:
        ArgumentError: if there is nothing to optimize.
    """

    def __init__(self, params: Sequence[Tensor], lr: float, master_weights: bool = True) -> None:
        rate = self._rate(lr)
        unique = {id(p): p for p in self._checked(params)}
        for p in unique.values():
            if p.requires_grad is None and p.dtype.is_float:
                p.requires_grad = True
        self.params = [p for p in unique.values() if p.requires_grad]
        self.buffers = [p for p in unique.values() if not p.requires_grad]
        if not self.params:
            raise ArgumentError(type(self).__name__, "no tensor to optimize", "float tensors with gradients")
        self.device = self.params[0].device
        vars(self)["lr"] = Tensor(np.array([rate], np.float32), device=self.device, requires_grad=False)
        realize_tensors([*self.params, *self.buffers, self.lr])
        seen: set[Any] = set()
        for p in [*self.params, *self.buffers]:  # equal constants are one node: here they become tensors of their own
            if p.uop in seen:
                p.replace(Tensor(p.numpy()).shard_like(p)).realize()
            seen.add(p.uop)
        wanted = flag(type(self).__name__, "master_weights", master_weights)
        self.master_weights = [_master(p) if wanted and _is_narrow(p.dtype) else None for p in self.params]

    @property
    def lr(self) -> Tensor:
        """The learning rate, in a buffer that captured steps read too."""
        found: Tensor = vars(self)["lr"]
        return found

    @lr.setter
    def lr(self, rate: Any) -> None:
        for optimizer in self._parts():
            value = rate.detach().reshape(1) if isinstance(rate, TensorBase) else [self._rate(rate)]
            optimizer.lr.assign(Tensor(value, device=optimizer.device, dtype=dtypes.float32, requires_grad=False))

    def _parts(self) -> Sequence[Optimizer]:
        return [self]

    def _rate(self, lr: Any) -> float:
        if not isinstance(lr, (int, float, np.generic, TensorBase)):
            raise DTypeError(type(self).__name__, f"a learning rate is a number, not {shown(lr)}",
                             "lr=0.001")
        rate = float(lr)
        if not rate >= 0:
            raise ArgumentError(type(self).__name__, f"lr={rate}", "a learning rate of at least 0")
        return rate

    def _checked(self, params: Any) -> list[Tensor]:
        """The parameters as a list. One tensor would be taken for a list of its rows, which are no parameters."""
        if isinstance(params, TensorBase) or not isinstance(params, Iterable):
            raise DTypeError(type(self).__name__, f"takes a list of tensors, got one {type(params).__name__}",
                             "[tensor], or nn.state.get_parameters(model)")
        found = list(params)
        stray = next((p for p in found if not isinstance(p, TensorBase)), None)
        if stray is not None:
            raise DTypeError(type(self).__name__, f"takes tensors, got {shown(stray)}",
                             "nn.state.get_parameters(model)")
        return found

    def _step(self, params: list[Tensor], grads: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """What to subtract from each parameter, and the state tensors that were assigned. Of a parameter with a float32
        copy, ``params`` holds that, and its gradient is float32."""
        raise NotImplementedError(f"{type(self).__name__} must implement _step(params, grads)")

    def state_like(self, shape: tuple[int, ...] | None = None, dtype: DType | None = None) -> list[Tensor]:
        """A realized zero tensor for every parameter, in parts where the parameter is and of its shape; float32 where
        the parameter is a 16-bit float."""
        out = []
        for p in self.params:
            kind = dtype or (dtypes.float32 if _is_narrow(p.dtype) else p.dtype)
            zeros = np.zeros(p.shape if shape is None else shape, kind.numpy)
            made = Tensor(zeros, requires_grad=False)
            out.append(made.shard_like(p) if zeros.shape == p.shape else made.to(p.device))
            note_name(out[-1], called(p))
        realize_tensors(out)
        return out

    def zero_grad(self) -> None:
        """Forget the gradients: of the parameters, and of leaves that nobody asked gradients for."""
        for p in self.params:
            p.grad = None
        TensorBase.forget_gradients()

    def schedule_step(self) -> list[Tensor]:
        """Assign the next step's values; returns all tensors to realize for it, in one program."""
        grads = [p.grad for p in self.params]
        missing = [p for p, g in zip(self.params, grads) if g is None]
        if missing:
            which = ", ".join(f"{called(p) or 'one'} of shape {p.shape}" for p in missing[:4])
            raise GradientError(f"{type(self).__name__}.step",
                                f"{len(missing)} of {len(grads)} parameters have no gradient ({which})",
                                "loss.backward() before step(), and leave unused parameters out")
        masters = self.master_weights
        with Tensor.no_grad():
            current = [p if m is None else _current(p, m) for p, m in zip(self.params, masters)]
            given = [g.detach() if m is None else g.detach().cast(m.dtype)
                     for g, m in zip(grads, masters) if g is not None]
            updates, extra = self._step(current, given)
            for p, master, now, update in zip(self.params, masters, current, updates):
                value = (now.detach() - update).cast(now.dtype)
                if master is not None:
                    master.assign(value)
                p.assign(value.cast(p.dtype))
        extra = [*extra, *(m for m in masters if m is not None)]
        return [*extra, *self.params, *self.buffers, self.lr]

    def step(self) -> None:
        """One step: parameters, state, running statistics and the losses behind the gradients, in one program."""
        check_modes(f"{type(self).__name__}.step", Tensor.training)
        realize_tensors([*TensorBase.take_losses(), *self.schedule_step()])


def _is_narrow(dtype: DType) -> bool:
    return dtype.is_float and dtype.itemsize <= 2


def _master(p: Tensor) -> Tensor:
    """The float32 copy of a parameter, in parts where the parameter is."""
    found = p.detach().cast(dtypes.float32).realize()
    found.requires_grad = False
    note_name(found, called(p))
    return found


def _current(p: Tensor, master: Tensor) -> Tensor:
    """The parameter in float32: its copy, but what somebody else has written to the parameter since."""
    return p.detach().eq(master.cast(p.dtype)).where(master, p.detach().cast(master.dtype))


class OptimizerGroup(Optimizer):
    """Several optimizers that step together, in one program.

    >>> a, b = Tensor([1.]), Tensor([2.])
    >>> opt = OptimizerGroup(SGD([a], lr=0.5), SGD([b], lr=0.25))
    >>> _ = (a * b).sum().backward()
    >>> opt.step()
    >>> a.tolist(), b.tolist()
    ([0.0], [1.75])
    """

    def __init__(self, *optimizers: Optimizer) -> None:
        self.optimizers = optimizers
        self.params = [p for o in optimizers for p in o.params]
        self.buffers = [b for o in optimizers for b in o.buffers]
        self.device, vars(self)["lr"] = optimizers[0].device, optimizers[0].lr

    def _parts(self) -> Sequence[Optimizer]:
        return self.optimizers

    def __getitem__(self, number: int) -> Optimizer:
        return self.optimizers[number]

    def schedule_step(self) -> list[Tensor]:
        """The tensors of all optimizers' steps."""
        return [t for o in self.optimizers for t in o.schedule_step()]


class SGD(Optimizer):
    """``p -= lr * g``, with momentum ``b = momentum * b + g`` if given, as PyTorch does it.

    >>> w = Tensor([2.])
    >>> opt = SGD([w], lr=0.25, momentum=0.9)
    >>> _ = (w * w).sum().backward()
    >>> opt.step()
    >>> w.item()
    1.0
    """

    def __init__(self, params: Sequence[Tensor], lr: float = 0.001, momentum: float = 0.0, weight_decay: float = 0.0,
                 nesterov: bool = False, master_weights: bool = True) -> None:
        super().__init__(params, lr, master_weights)
        self.momentum, self.nesterov = number("SGD", "momentum", momentum), flag("SGD", "nesterov", nesterov)
        self.weight_decay = number("SGD", "weight_decay", weight_decay)
        self.b = self.state_like() if self.momentum else []

    def _step(self, params: list[Tensor], grads: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        updates = []
        for n, (p, g) in enumerate(zip(params, grads)):
            if self.weight_decay:
                g = g + p.detach() * self.weight_decay
            if self.momentum:
                self.b[n].assign((self.b[n] * self.momentum + g).cast(self.b[n].dtype))
                g = g + self.b[n] * self.momentum if self.nesterov else self.b[n]
            updates.append(g * self.lr)
        return updates, self.b


class LAMB(Optimizer):
    """Adam's update, scaled per tensor to the ratio of the norms of parameter and update.

    The moments of 16-bit parameters are float32, and so is the arithmetic: ``eps`` and squares of gradients would be 0.

    Args:
        adam: leave the scaling out (``AdamW`` and ``Adam`` are this).
    """

    def __init__(self, params: Sequence[Tensor], lr: float = 0.001, b1: float = 0.9, b2: float = 0.999,
                 eps: float = 1e-6, weight_decay: float = 0.0, adam: bool = False,
                 master_weights: bool = True) -> None:
        super().__init__(params, lr, master_weights)
        self.b1, self.b2 = number("LAMB", "b1", b1, 0, 1), number("LAMB", "b2", b2, 0, 1)
        self.eps, self.weight_decay = number("LAMB", "eps", eps, 0), number("LAMB", "weight_decay", weight_decay)
        self.adam = flag("LAMB", "adam", adam)
        # 1 - b1^t and 1 - b2^t: c ← c·b + (1 - b) keeps them exact to rounding where 1 - b^t would cancel.
        self.correction1 = Tensor(np.zeros(1, np.float32), device=self.device, requires_grad=False)
        self.correction2 = Tensor(np.zeros(1, np.float32), device=self.device, requires_grad=False)
        realize_tensors([self.correction1, self.correction2])
        self.m, self.v = self.state_like(), self.state_like()

    def _step(self, params: list[Tensor], grads: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        self.correction1.assign(self.correction1 * self.b1 + (1 - self.b1))
        self.correction2.assign(self.correction2 * self.b2 + (1 - self.b2))
        updates = [self._update(*each) for each in zip(self.m, self.v, params, grads)]
        return updates, [self.correction1, self.correction2, *self.m, *self.v]

    def _update(self, moment: Tensor, square: Tensor, p: Tensor, grad: Tensor) -> Tensor:
        """Written on nodes, whose arithmetic neither promotes nor broadcasts: a step makes hundreds of them."""
        same_device("step", moment, p, grad, self.lr)
        dtype = moment.dtype
        g = grad.uop.cast(dtype)  # the square of a small 16-bit float would be 0
        correction1, correction2, lr = (
            expand_uop(t.uop.cast(dtype), p.shape) for t in (self.correction1, self.correction2, self.lr))
        m = moment.assign(moment._new(moment.uop * self.b1 + g * (1 - self.b1))).uop
        v = square.assign(square._new(square.uop * self.b2 + (g * g) * (1 - self.b2))).uop
        up = (m / correction1) / ((v / correction2).alu(Ops.SQRT) + self.eps)
        if self.weight_decay:
            up = up + (p.detach() * self.weight_decay).uop.cast(dtype)
        if self.adam:
            return p._new(up * lr)
        change = p._new(up)
        return change * (self.lr * self._trust(p.detach(), change))

    @staticmethod
    def _trust(p: Tensor, up: Tensor) -> Tensor:
        size, length = (p * p).sum().sqrt(), (up * up).sum().sqrt()
        return ((size > 0) & (length > 0)).where(size / length, 1.0)


def AdamW(params: Sequence[Tensor], lr: float = 0.001, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8,
          weight_decay: float = 0.01, master_weights: bool = True) -> LAMB:
    """Adam whose weight decay is apart from the gradient.

    >>> w = Tensor([1.])
    >>> opt = AdamW([w], lr=0.1, weight_decay=0.5)
    >>> _ = w.sum().backward()
    >>> opt.step()
    >>> round(w.item(), 4)
    0.85
    """
    return LAMB(params, lr, b1, b2, eps, weight_decay, adam=True, master_weights=master_weights)


def Adam(params: Sequence[Tensor], lr: float = 0.001, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8,
         master_weights: bool = True) -> LAMB:
    """Steps of the gradient's running mean over the root of its running square.

    >>> w = Tensor([1.])
    >>> opt = Adam([w], lr=0.1)
    >>> _ = (w * w).sum().backward()
    >>> opt.step()
    >>> round(w.item(), 4)
    0.9
    """
    return LAMB(params, lr, b1, b2, eps, 0.0, adam=True, master_weights=master_weights)


class LARS(Optimizer):
    """Momentum, with a rate for each tensor: ``tcoef`` times the ratio of the norms of parameter and gradient.

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

    def __init__(self, params: Sequence[Tensor], lr: float = 0.001, momentum: float = 0.9, weight_decay: float = 1e-4,
                 ns_steps: int = 0, ns_coefficients: Sequence[float] | None = None, nesterov: bool = False,
                 classic: bool = True, pre_wd: bool = True, tcoef: float = 0.001, master_weights: bool = True) -> None:
        super().__init__(params, lr, master_weights)
        name = type(self).__name__
        self.momentum = number(name, "momentum", momentum)
        self.weight_decay = number(name, "weight_decay", weight_decay)
        self.ns_steps, self.ns_coefficients = integer(name, "ns_steps", ns_steps, least=0), ns_coefficients or ()
        if self.ns_steps and not self.ns_coefficients:
            raise ArgumentError(name, f"ns_steps={ns_steps} without ns_coefficients", "(3.4445, -4.775, 2.0315)")
        self.nesterov, self.classic = flag(name, "nesterov", nesterov), flag(name, "classic", classic)
        self.pre_wd, self.tcoef = flag(name, "pre_wd", pre_wd), number(name, "tcoef", tcoef, least=0)
        self.b = self.state_like() if self.momentum else []

    def _step(self, params: list[Tensor], grads: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        return [self._update(n, p.detach(), g) for n, (p, g) in enumerate(zip(params, grads))], self.b

    def _update(self, n: int, p: Tensor, g: Tensor) -> Tensor:
        rate = self.lr * self._ratio(p, g)
        if self.pre_wd and self.weight_decay:
            g = g + p * self.weight_decay
        if self.classic:
            g = g * rate
        if self.momentum:
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
        """What an update of a parameter of this shape is scaled by."""
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

    def __init__(self, params: Sequence[Tensor], lr: float = 0.001, momentum: float = 0.95, weight_decay: float = 0.1,
                 ns_steps: int = 5, ns_coefficients: Sequence[float] = (3.4445, -4.775, 2.0315), nesterov: bool = True,
                 adjust_lr: bool = True, master_weights: bool = True) -> None:
        super().__init__(params, lr, momentum, weight_decay, ns_steps, ns_coefficients, nesterov, classic=False,
                         pre_wd=False, tcoef=0.0, master_weights=master_weights)
        self.adjust_lr = flag("Muon", "adjust_lr", adjust_lr)

    def _scale(self, p: Tensor) -> float:
        if not self.adjust_lr or p.ndim < 2:
            return 1.0
        return float(max(1.0, p.shape[0] / (p.numel() // p.shape[0])) ** 0.5)

"""Learning rate schedulers with PyTorch's names: functions of the step count, computed on tensors.

A scheduler's ``step()`` can be inside or outside a captured function; neither causes a new capture.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tinsmith.core.dtypes import dtypes
from tinsmith.core.errors import ArgumentError, DTypeError
from tinsmith.nn.optim.base import Optimizer
from tinsmith.tensor.arguments import choice, flag, integer, number, shown
from tinsmith.tensor.realize import realize_tensors
from tinsmith.tensor.tensor import Tensor

ABSENT = {"ChainedScheduler": "LambdaLR of the product of the factors", "CyclicLR": "LambdaLR, or OneCycleLR",
          "MultiplicativeLR": "LambdaLR of the product so far, as gamma ** t"}


class LRScheduler:
    """The base of schedulers; a subclass implements ``factor``, the factor of the initial rate after ``t`` steps.

    ``step()`` follows ``optimizer.step()``. The rate of each group is its first one, times the factor.

    >>> from tinsmith.nn.optim import SGD
    >>> class InverseRoot(LRScheduler):
    ...     def factor(self, t):
    ...         return (t + 1).rsqrt()
    >>> opt = SGD([Tensor([1.])], lr=0.5)
    >>> schedule = InverseRoot(opt)
    >>> for _ in range(3):
    ...     schedule.step()
    >>> schedule.get_last_lr()
    [0.25]
    """

    def __init__(self, optimizer: Optimizer) -> None:
        if not isinstance(optimizer, Optimizer):
            raise DTypeError(type(self).__name__, f"the optimizer is {shown(optimizer)}", "an optimizer of nn.optim")
        self.groups = optimizer.parts  # a method, whose tensors are not the scheduler's state: they are the optimizer's
        for part in self.groups():
            vars(part).setdefault("initial_lr", part.lr.item())
        self.count = Tensor(np.zeros(1, np.int32), requires_grad=False)
        self.base_lrs = [Tensor(np.array([part.initial_lr], np.float32), device=part.device, requires_grad=False)
                         for part in self.groups()]
        realize_tensors([self.count, *self.base_lrs])
        realize_tensors(self._written())

    def factor(self, t: Tensor) -> Tensor | float:
        """Return the factor of the initial rates after ``t`` steps (a one-element tensor)."""
        raise NotImplementedError(f"{type(self).__name__} must implement factor(t)")

    def rate(self, first: Tensor, t: Tensor, group: int) -> Tensor:
        """Return the rate after ``t`` steps of group number ``group`` with initial rate ``first``."""
        return first * self.factor(t)

    def schedule_step(self) -> list[Tensor]:
        """Assign the next rates lazily; return the tensors to realize."""
        self.count.assign(self.count + 1)
        return [self.count, *self._written()]

    def _written(self) -> list[Tensor]:
        with Tensor.no_grad():
            t = self.count.cast(dtypes.float32)
            for n, (part, first) in enumerate(zip(self.groups(), self.base_lrs)):
                part.lr = self.rate(first, t.to(part.device), n)
        return [part.lr for part in self.groups()]

    def step(self) -> None:
        """Advance by one step."""
        realize_tensors(self.schedule_step())

    def get_last_lr(self) -> list[float]:
        """Return the current rates of all groups as Python floats."""
        return [float(part.lr.item()) for part in self.groups()]


class LambdaLR(LRScheduler):
    """The first rate times a function of the number of steps.

    The function gets a one-element tensor. If it uses only tensor arithmetic, it can be captured with the step;
    with ``if`` and ``math`` it works outside captured functions only.

    >>> from tinsmith.nn.optim import SGD
    >>> opt = SGD([Tensor([1.])], lr=0.5)
    >>> schedule = LambdaLR(opt, lambda t: 0.5 ** t)
    >>> schedule.step(), schedule.get_last_lr()
    (None, [0.25])

    Args:
        lr_lambda: a function, or one for each group.
    """

    def __init__(self, optimizer: Optimizer, lr_lambda: Callable[[Any], Any] | Sequence[Callable[[Any], Any]]) -> None:
        count = len(optimizer.parts()) if isinstance(optimizer, Optimizer) else 1
        self.functions = [lr_lambda] * count if callable(lr_lambda) else list(lr_lambda)
        if len(self.functions) != count or not all(map(callable, self.functions)):
            raise ArgumentError("LambdaLR", f"{len(self.functions)} functions for {count} groups", "one for each group")
        super().__init__(optimizer)

    def rate(self, first: Tensor, t: Tensor, group: int) -> Tensor:
        """Return the initial rate times the group's function of ``t``."""
        found: Tensor = first * self.functions[group](t.cast(dtypes.int32))
        return found


class StepLR(LRScheduler):
    """``gamma`` times the rate after every ``step_size`` steps.

    >>> from tinsmith.nn.optim import SGD
    >>> opt = SGD([Tensor([1.])], lr=0.5)
    >>> schedule = StepLR(opt, step_size=2, gamma=0.5)
    >>> [(schedule.step(), opt.lr.item())[1] for _ in range(4)]
    [0.5, 0.25, 0.25, 0.125]
    """

    def __init__(self, optimizer: Optimizer, step_size: int, gamma: float = 0.1) -> None:
        self.step_size = integer("StepLR", "step_size", step_size, least=1)
        self.gamma = number("StepLR", "gamma", gamma)
        super().__init__(optimizer)

    def factor(self, t: Tensor) -> Tensor:
        """Return ``gamma ** (t // step_size)``."""
        return self.gamma ** ((t + 0.5) / self.step_size).floor()


class MultiStepLR(LRScheduler):
    """``gamma`` times the rate at each of the ``milestones``.

    >>> from tinsmith.nn.optim import SGD
    >>> opt = SGD([Tensor([1.])], lr=0.5)
    >>> schedule = MultiStepLR(opt, [1, 3], gamma=0.5)
    >>> [(schedule.step(), opt.lr.item())[1] for _ in range(4)]
    [0.25, 0.25, 0.125, 0.125]
    """

    def __init__(self, optimizer: Optimizer, milestones: Sequence[int], gamma: float = 0.1) -> None:
        self.milestones = [integer("MultiStepLR", "milestones", m, least=0) for m in milestones]
        self.gamma = number("MultiStepLR", "gamma", gamma)
        super().__init__(optimizer)

    def factor(self, t: Tensor) -> Tensor:
        """Return ``gamma`` to the number of milestones passed."""
        return self.gamma ** sum(((t >= m).cast(dtypes.float32) for m in self.milestones), t * 0)


class ExponentialLR(LRScheduler):
    """``gamma`` times the rate at every step.

    >>> from tinsmith.nn.optim import SGD
    >>> opt = SGD([Tensor([1.])], lr=0.5)
    >>> schedule = ExponentialLR(opt, gamma=0.5)
    >>> [(schedule.step(), opt.lr.item())[1] for _ in range(2)]
    [0.25, 0.125]
    """

    def __init__(self, optimizer: Optimizer, gamma: float) -> None:
        self.gamma = number("ExponentialLR", "gamma", gamma, least=0)
        super().__init__(optimizer)

    def factor(self, t: Tensor) -> Tensor:
        """Return ``gamma ** t``."""
        return self.gamma ** t


class ConstantLR(LRScheduler):
    """``factor`` times the rate for the first ``total_iters`` steps.

    >>> from tinsmith.nn.optim import SGD
    >>> opt = SGD([Tensor([1.])], lr=0.5)
    >>> schedule = ConstantLR(opt, factor=0.5, total_iters=2)
    >>> [opt.lr.item(), *((schedule.step(), opt.lr.item())[1] for _ in range(2))]
    [0.25, 0.25, 0.5]
    """

    def __init__(self, optimizer: Optimizer, factor: float = 1 / 3, total_iters: int = 5) -> None:
        self.low = number("ConstantLR", "factor", factor, 0, 1)
        self.total_iters = integer("ConstantLR", "total_iters", total_iters, least=0)
        super().__init__(optimizer)

    def factor(self, t: Tensor) -> Tensor:
        """Return ``low``, and 1 from ``total_iters`` on."""
        return (t < self.total_iters).where(self.low, 1.0)


class LinearLR(LRScheduler):
    """From ``start_factor`` to ``end_factor`` times the rate along a line: a warm-up.

    >>> from tinsmith.nn.optim import SGD
    >>> opt = SGD([Tensor([1.])], lr=0.5)
    >>> schedule = LinearLR(opt, start_factor=0.5, total_iters=2)
    >>> [opt.lr.item(), *((schedule.step(), opt.lr.item())[1] for _ in range(3))]
    [0.25, 0.375, 0.5, 0.5]
    """

    def __init__(self, optimizer: Optimizer, start_factor: float = 1 / 3, end_factor: float = 1.0,
                 total_iters: int = 5) -> None:
        self.start_factor = number("LinearLR", "start_factor", start_factor, 0, 1)
        self.end_factor = number("LinearLR", "end_factor", end_factor, 0, 1)
        self.total_iters = integer("LinearLR", "total_iters", total_iters, least=1)
        super().__init__(optimizer)

    def factor(self, t: Tensor) -> Tensor:
        """Return the line, and its end from ``total_iters`` on."""
        return t.minimum(self.total_iters) * ((self.end_factor - self.start_factor) / self.total_iters) \
            + self.start_factor


class PolynomialLR(LRScheduler):
    """``(1 - t / total_iters) ** power`` times the rate.

    >>> from tinsmith.nn.optim import SGD
    >>> opt = SGD([Tensor([1.])], lr=0.5)
    >>> schedule = PolynomialLR(opt, total_iters=2)
    >>> [(schedule.step(), opt.lr.item())[1] for _ in range(3)]
    [0.25, 0.0, 0.0]
    """

    def __init__(self, optimizer: Optimizer, total_iters: int = 5, power: float = 1.0) -> None:
        self.total_iters = integer("PolynomialLR", "total_iters", total_iters, least=1)
        self.power = number("PolynomialLR", "power", power)
        super().__init__(optimizer)

    def factor(self, t: Tensor) -> Tensor:
        """Return ``(1 - t / total_iters) ** power``, 0 from ``total_iters`` on."""
        return (1 - t.minimum(self.total_iters) / self.total_iters) ** self.power


class CosineAnnealingLR(LRScheduler):
    """From the rate to ``eta_min`` in ``T_max`` steps along half a wave of a cosine (Loshchilov and Hutter, 2017).

    >>> from tinsmith.nn.optim import SGD
    >>> opt = SGD([Tensor([1.])], lr=0.5)
    >>> schedule = CosineAnnealingLR(opt, T_max=2)
    >>> [round((schedule.step(), opt.lr.item())[1], 4) for _ in range(2)]
    [0.25, 0.0]
    """

    def __init__(self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0) -> None:
        self.T_max = integer("CosineAnnealingLR", "T_max", T_max, least=1)
        self.eta_min = number("CosineAnnealingLR", "eta_min", eta_min, least=0)
        super().__init__(optimizer)

    def rate(self, first: Tensor, t: Tensor, group: int) -> Tensor:
        """Return the cosine interpolation from the initial rate to ``eta_min``."""
        return (first - self.eta_min) * _cosine(t / self.T_max) + self.eta_min


class CosineAnnealingWarmRestarts(LRScheduler):
    """Cosine annealing from the rate to ``eta_min`` over ``T_0`` steps, restarted with ``T_mult`` times the length.

    >>> from tinsmith.nn.optim import SGD
    >>> opt = SGD([Tensor([1.])], lr=0.5)
    >>> schedule = CosineAnnealingWarmRestarts(opt, T_0=2)
    >>> [round((schedule.step(), opt.lr.item())[1], 4) for _ in range(3)]
    [0.25, 0.5, 0.25]
    """

    def __init__(self, optimizer: Optimizer, T_0: int, T_mult: int = 1, eta_min: float = 0.0) -> None:
        self.T_0 = integer("CosineAnnealingWarmRestarts", "T_0", T_0, least=1)
        self.T_mult = integer("CosineAnnealingWarmRestarts", "T_mult", T_mult, least=1)
        self.eta_min = number("CosineAnnealingWarmRestarts", "eta_min", eta_min, least=0)
        super().__init__(optimizer)

    def rate(self, first: Tensor, t: Tensor, group: int) -> Tensor:
        """Return the cosine interpolation from the initial rate to ``eta_min`` within the present cycle."""
        t, length = t + 0.5, self.T_0  # between two steps, so that no rounding puts the last one into the next cosine
        if self.T_mult == 1:
            done = (t / length).floor()
            return (first - self.eta_min) * _cosine((t - done * length - 0.5) / length) + self.eta_min
        ratio = self.T_mult
        before = ((t * (ratio - 1) / length + 1).log() / math.log(ratio)).floor()
        begin, size = (ratio ** before - 1) * (length / (ratio - 1)), ratio ** before * length
        return (first - self.eta_min) * _cosine((t - 0.5 - begin.round()) / size.round()) + self.eta_min


class OneCycleLR(LRScheduler):
    """Up to ``max_lr`` in ``pct_start`` of all steps, then down to a last rate far below the first (Smith, 2018).

    >>> from tinsmith.nn.optim import SGD
    >>> opt = SGD([Tensor([1.])], lr=0.5)
    >>> schedule = OneCycleLR(opt, max_lr=0.5, total_steps=5, pct_start=0.4, anneal_strategy="linear")
    >>> [round(opt.lr.item(), 4), *(round((schedule.step(), opt.lr.item())[1], 4) for _ in range(4))]
    [0.02, 0.5, 0.3333, 0.1667, 0.0]

    Args:
        max_lr: the highest rate, or one for each group.
        total_steps: of the cycle; else ``epochs * steps_per_epoch``.
        anneal_strategy: ``"cos"`` or ``"linear"``.
        div_factor: the first rate is ``max_lr / div_factor``.
        final_div_factor: the last rate is the first over this.
        three_phase: down to the first rate as fast as up, then to the last one.
        cycle_momentum: let the momentum (of Adam's kind: ``b1``) go the other way, from ``max_momentum`` down to
            ``base_momentum``, and back.
    """

    def __init__(self, optimizer: Optimizer, max_lr: float | Sequence[float], total_steps: int | None = None,
                 epochs: int | None = None, steps_per_epoch: int | None = None, pct_start: float = 0.3,
                 anneal_strategy: str = "cos", cycle_momentum: bool = True,
                 base_momentum: float | Sequence[float] = 0.85, max_momentum: float | Sequence[float] = 0.95,
                 div_factor: float = 25.0, final_div_factor: float = 1e4, three_phase: bool = False) -> None:
        name = "OneCycleLR"
        if total_steps is None:
            if epochs is None or steps_per_epoch is None:
                raise ArgumentError(name, "how many steps?", "total_steps=, or epochs= and steps_per_epoch=")
            total_steps = integer(name, "epochs", epochs) * integer(name, "steps_per_epoch", steps_per_epoch)
        total, start = integer(name, "total_steps", total_steps, least=2), number(name, "pct_start", pct_start, 0, 1)
        self.linear = choice(name, "anneal_strategy", anneal_strategy, ("cos", "linear")) == "linear"
        div, last = number(name, "div_factor", div_factor, zero=False), number(name, "final_div_factor",
                                                                              final_div_factor, zero=False)
        up = start * total - 1
        low, lowest = 1 / div, 1 / (div * last)
        three = flag(name, "three_phase", three_phase)
        self.ends = [up, *([2 * start * total - 2] if three else []), total - 1.0]
        self.factors = [low, 1.0, low, lowest] if three else [low, 1.0, lowest]
        self.cycle_momentum = flag(name, "cycle_momentum", cycle_momentum)
        parts = optimizer.parts() if isinstance(optimizer, Optimizer) else []
        for part, top in zip(parts, _by_group(name, "max_lr", max_lr, parts)):
            vars(part)["initial_lr"] = top
        if self.cycle_momentum:
            self.momenta = list(zip(*(_by_group(name, n, given, parts) for n, given in
                                      (("max_momentum", max_momentum), ("base_momentum", base_momentum)))))
            for part in parts:
                part.momentum_in_memory()
        super().__init__(optimizer)

    def factor(self, t: Tensor) -> Tensor:
        """Return the factor of ``max_lr`` in the phase of ``t``."""
        return self._along(t, self.factors)

    def _along(self, t: Tensor, values: Sequence[float]) -> Tensor:
        """Interpolate between ``values``, which are reached at the ends of the phases."""
        out, begin = t * 0 + values[-1], [0.0, *self.ends]
        for end, since, first, last in reversed(list(zip(self.ends, begin, values, values[1:]))):
            part = ((t - since) / (end - since)).clamp(0.0, 1.0) if end > since else t * 0 + 1.0
            bend = 1 - part if self.linear else _cosine(part)
            out = (t <= end).where(bend * (first - last) + last, out)
        return out

    def _written(self) -> list[Tensor]:
        rates = super()._written()
        if not self.cycle_momentum:
            return rates
        written = []
        with Tensor.no_grad():
            for part, (most, least) in zip(self.groups(), self.momenta):
                values = [most, least, *[most] * (len(self.ends) - 1)]
                written.append(part.momentum_in_memory())
                now = self._along(self.count.cast(dtypes.float32).to(part.device), values)
                written[-1].assign(now.reshape(()))
        return [*rates, *written]


def _by_group(op: str, name: str, given: Any, parts: Sequence[Optimizer]) -> list[float]:
    """Return one number per group, from one number or a list."""
    found = list(given) if isinstance(given, (list, tuple)) else [given] * len(parts)
    if len(found) != len(parts):
        raise ArgumentError(op, f"{name} has {len(found)} numbers for {len(parts)} groups", "one for each group")
    return [float(number(op, name, value, 0)) for value in found]


class SequentialLR(LRScheduler):
    """Several schedulers in sequence: each takes over at its milestone, from its own step 0.

    >>> from tinsmith.nn.optim import SGD
    >>> opt = SGD([Tensor([1.])], lr=0.5)
    >>> warm = LinearLR(opt, start_factor=0.5, total_iters=2)
    >>> schedule = SequentialLR(opt, [warm, ExponentialLR(opt, gamma=0.5)], milestones=[2])
    >>> [opt.lr.item(), *((schedule.step(), opt.lr.item())[1] for _ in range(4))]
    [0.25, 0.375, 0.5, 0.25, 0.125]
    """

    def __init__(self, optimizer: Optimizer, schedulers: Sequence[LRScheduler], milestones: Sequence[int]) -> None:
        self.schedulers = list(schedulers)
        self.milestones = [integer("SequentialLR", "milestones", m, least=1) for m in milestones]
        if len(self.milestones) != len(self.schedulers) - 1 or self.milestones != sorted(set(self.milestones)):
            raise ArgumentError("SequentialLR", f"milestones {self.milestones} for {len(self.schedulers)} schedulers",
                                "one less than schedulers, rising")
        if any(isinstance(s, ReduceLROnPlateau) for s in self.schedulers):
            raise ArgumentError("SequentialLR", "a ReduceLROnPlateau among the schedulers", "schedules of steps alone")
        super().__init__(optimizer)

    def rate(self, first: Tensor, t: Tensor, group: int) -> Tensor:
        """Return the rate of the active scheduler at ``t`` minus its milestone."""
        out = self.schedulers[0].rate(first, t, group)
        for milestone, scheduler in zip(self.milestones, self.schedulers[1:]):
            out = (t < milestone).where(out, scheduler.rate(first, (t - milestone).maximum(0), group))
        return out


class ReduceLROnPlateau(LRScheduler):
    """``factor`` times the rate after a metric has not improved for more than ``patience`` steps.

    The best value and the number of bad steps are tensors: ``step(loss)`` with a tensor reads nothing on the host.

    >>> from tinsmith.nn.optim import SGD
    >>> opt = SGD([Tensor([1.])], lr=0.5)
    >>> schedule = ReduceLROnPlateau(opt, factor=0.5, patience=1)
    >>> [(schedule.step(loss), opt.lr.item())[1] for loss in (3.0, 2.0, 2.0, 2.0, 2.0)]
    [0.5, 0.5, 0.5, 0.25, 0.25]

    Args:
        mode: ``"min"`` or ``"max"``: which values are better.
        threshold: by how much a better value must be better: as a part of the best one (``threshold_mode="rel"``), or
            as such (``"abs"``).
        cooldown: steps after a change in which no step counts as bad.
        min_lr: the lowest rate.
        eps: smaller changes are not made.
    """

    def __init__(self, optimizer: Optimizer, mode: str = "min", factor: float = 0.1, patience: int = 10,
                 threshold: float = 1e-4, threshold_mode: str = "rel", cooldown: int = 0, min_lr: float = 0.0,
                 eps: float = 1e-8) -> None:
        name = "ReduceLROnPlateau"
        self.sign = -1.0 if choice(name, "mode", mode, ("min", "max")) == "min" else 1.0
        self.relative = choice(name, "threshold_mode", threshold_mode, ("rel", "abs")) == "rel"
        self.shrink, self.threshold = number(name, "factor", factor, 0, 1), number(name, "threshold", threshold)
        self.patience = integer(name, "patience", patience, least=0)
        self.cooldown = integer(name, "cooldown", cooldown, least=0)
        self.min_lr, self.eps = number(name, "min_lr", min_lr, 0), number(name, "eps", eps, 0)
        self.best = Tensor(np.array([-self.sign * math.inf], np.float32), requires_grad=False)
        self.bad, self.cooling = (Tensor(np.zeros(1, np.int32), requires_grad=False) for _ in range(2))
        realize_tensors([self.best, self.bad, self.cooling])
        super().__init__(optimizer)

    def schedule_step(self, metrics: Any = None) -> list[Tensor]:
        """Update from a value of the metric lazily; return the tensors to realize."""
        if metrics is None:
            raise ArgumentError("ReduceLROnPlateau", "no value of the metric", "scheduler.step(loss)")
        with Tensor.no_grad():
            given = metrics.detach() if isinstance(metrics, Tensor) else Tensor([float(metrics)])
            value = given.reshape(1).cast(dtypes.float32).to(self.best.device)
            margin = self.best.abs() * self.threshold if self.relative else self.threshold
            better = (value - self.best) * self.sign > margin
            better = self.best.isinf().where((value - self.best) * self.sign > 0, better)
            bad = better.where(0, self.bad + 1)
            cooling = (self.cooling - 1).maximum(0)
            bad = (self.cooling > 0).where(0, bad)
            fall = bad > self.patience
            self.best.assign(better.where(value, self.best))
            self.cooling.assign(fall.where(self.cooldown, cooling))
            self.bad.assign(fall.where(0, bad))
            self.count.assign(self.count + 1)
            for part in self.groups():
                low = (part.lr * self.shrink).maximum(self.min_lr)
                falls = fall.to(part.device) & (part.lr - low > self.eps)
                part.lr = falls.where(low, part.lr)
        return [self.count, self.best, self.bad, self.cooling, *(part.lr for part in self.groups())]

    def step(self, metrics: Any = None) -> None:
        """Advance by one step, with the metric as a number or a one-element tensor."""
        realize_tensors(self.schedule_step(metrics))

    def _written(self) -> list[Tensor]:
        return []


def _cosine(part: Tensor) -> Tensor:
    """Return the half cosine wave from 1 at ``part = 0`` to 0 at ``part = 1``."""
    return ((part * math.pi).cos() + 1) * 0.5

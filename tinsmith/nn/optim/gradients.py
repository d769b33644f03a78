"""Gradient clipping, loss scaling for float16 training, and exponential moving averages of parameters."""
from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from tinsmith.core.dtypes import dtypes
from tinsmith.core.errors import ArgumentError, DTypeError, GradientError
from tinsmith.nn.optim.base import Optimizer
from tinsmith.nn.state import called, get_parameters, note_name
from tinsmith.tensor.arguments import flag, integer, number, shown
from tinsmith.tensor.base import TensorBase, check_tensors
from tinsmith.tensor.realize import realize_tensors
from tinsmith.tensor.tensor import Tensor


def clip_grad_norm_(parameters: Tensor | Iterable[Tensor], max_norm: float, norm_type: float = 2.0,
                    error_if_nonfinite: bool = False) -> Tensor:
    """Clip the total norm of all gradients to ``max_norm``; return the norm before clipping.

    Both are lazy: the following step computes them.

    >>> w = Tensor([3., 4.])
    >>> _ = (w * w / 2).sum().backward()
    >>> clip_grad_norm_([w], max_norm=1.0).item(), w.grad.numpy().round(4).tolist()
    (5.0, [0.6000000238418579, 0.800000011920929])

    Args:
        norm_type: 2, ``math.inf`` (maximum magnitude), or another p of the p-norm.
        error_if_nonfinite: read the norm on the host, and raise if it is not finite.

    Raises:
        GradientError: if the norm is not finite and ``error_if_nonfinite``.
    """
    found = _with_gradients("clip_grad_norm_", parameters)
    most = number("clip_grad_norm_", "max_norm", max_norm, least=0)
    power = number("clip_grad_norm_", "norm_type", norm_type, least=0, zero=False)
    with Tensor.no_grad():
        norm = _norm([g for _, g in found], power)
        if error_if_nonfinite and not math.isfinite(norm.item()):
            raise GradientError("clip_grad_norm_", f"the norm of {len(found)} gradients is {norm.item()}",
                                "a lower rate, a GradScaler, or error_if_nonfinite=False")
        factor = (most / (norm + 1e-6)).minimum(1.0)
        for p, g in found:
            p.grad = (g * factor.to(g.device)).cast(g.dtype)
    return norm


def clip_grad_value_(parameters: Tensor | Iterable[Tensor], clip_value: float) -> None:
    """Clamp every element of the gradients to ``[-clip_value, clip_value]``.

    >>> w = Tensor([3., -4.])
    >>> _ = (w * w).sum().backward()
    >>> clip_grad_value_([w], 7.0)
    >>> w.grad.tolist()
    [6.0, -7.0]
    """
    most = number("clip_grad_value_", "clip_value", clip_value, least=0)
    with Tensor.no_grad():
        for p, g in _with_gradients("clip_grad_value_", parameters):
            p.grad = g.clamp(-most, most)


def _with_gradients(op: str, parameters: Tensor | Iterable[Tensor]) -> list[tuple[Tensor, Tensor]]:
    given = [parameters] if isinstance(parameters, TensorBase) else list(parameters)
    check_tensors(op, given)
    return [(p, p.grad) for p in {id(p): p for p in given}.values() if p.grad is not None]


def _norm(gradients: list[Tensor], power: float) -> Tensor:
    """Return the ``power``-norm of all gradients as one vector, in float32 (float64 for float64 gradients)."""
    if not gradients:
        return Tensor(0.0)
    device = gradients[0].device
    wide = [g.abs().cast(g.dtype if g.dtype is dtypes.float64 else dtypes.float32) for g in gradients]
    if math.isinf(power):
        return Tensor.stack(*(g.max().to(device) for g in wide)).max()
    total = Tensor.stack(*((g * g if power == 2 else g**power).sum().to(device) for g in wide)).sum()
    return total.sqrt() if power == 2 else total ** (1 / power)


class GradScaler:
    """Dynamic loss scaling for float16: scales the loss, and skips steps whose gradients overflow.

    The scale decreases after a skipped step, and increases after ``growth_interval`` others. All state is in tensors:
    nothing is read on the host, and a captured step stays captured.

    >>> from tinsmith.nn.optim import SGD
    >>> w = Tensor([1.], dtype="float16").realize()
    >>> opt, scaler = SGD([w], lr=0.5), GradScaler(init_scale=2.0**16)
    >>> for _ in range(3):
    ...     opt.zero_grad()
    ...     _ = scaler.scale((w * w).sum()).backward()
    ...     scaler.step(opt)
    ...     scaler.update()
    >>> w.item(), scaler.get_scale()
    (0.0, 16384.0)

    Args:
        init_scale: initial factor of the loss.
        growth_factor: of the scale, after ``growth_interval`` steps without an overflow.
        backoff_factor: of the scale, after an overflow.
        enabled: False: do nothing.
    """

    def __init__(self, init_scale: float = 65536.0, growth_factor: float = 2.0, backoff_factor: float = 0.5,
                 growth_interval: int = 2000, enabled: bool = True) -> None:
        self.growth = number("GradScaler", "growth_factor", growth_factor, 1)
        self.backoff = number("GradScaler", "backoff_factor", backoff_factor, 0, 1)
        self.interval = integer("GradScaler", "growth_interval", growth_interval, least=1)
        self.enabled = flag("GradScaler", "enabled", enabled)
        first = number("GradScaler", "init_scale", init_scale, 0, zero=False)
        self.factor = Tensor(np.array([first], np.float32), requires_grad=False)
        self.tracker = Tensor(np.zeros(1, np.int32), requires_grad=False)  # steps since the scale has changed
        realize_tensors([self.factor, self.tracker])
        self._overflows: dict[int, Tensor] = {}  # id of optimizer → overflow flag, until update()

    def scale(self, outputs: Any) -> Any:
        """Return a loss (or a list of them) times the scale, in float32."""
        if isinstance(outputs, (list, tuple)):
            return type(outputs)(self.scale(t) for t in outputs)
        check_tensors("GradScaler.scale", [outputs])
        if not self.enabled:
            return outputs
        wide = outputs.cast(dtypes.float32) if outputs.dtype.itemsize < 4 else outputs
        return wide * self.factor.to(outputs.device).reshape(())

    def unscale_(self, optimizer: Optimizer) -> None:
        """Divide the gradients by the scale, for clipping before ``step``; otherwise ``step`` does it.

        Raises:
            ArgumentError: if the gradients are already unscaled.
        """
        if not isinstance(optimizer, Optimizer):
            raise DTypeError("GradScaler.unscale_", f"the optimizer is {shown(optimizer)}", "an optimizer of nn.optim")
        if not self.enabled:
            return
        if id(optimizer) in self._overflows:
            raise ArgumentError("GradScaler.unscale_", "the gradients are unscaled since the last update()",
                                "unscale_, step and update once for each backward pass")
        device = self.factor.device
        bad = []
        with Tensor.no_grad():
            for p, g in _with_gradients("GradScaler.unscale_", optimizer.params):
                wide = g.cast(dtypes.float32) if g.dtype.itemsize < 4 else g
                p.grad = wide * self.factor.to(g.device).reciprocal()
                bad.append(wide.isfinite().logical_not().any().to(device))
            self._overflows[id(optimizer)] = Tensor.stack(*bad).any().reshape(1) if bad else Tensor([False])

    def step(self, optimizer: Optimizer) -> None:
        """Unscale the gradients and do the optimizer's step; without effect if a gradient is infinite or NaN."""
        if not self.enabled:
            return optimizer.step()
        if id(optimizer) not in self._overflows:
            self.unscale_(optimizer)
        return optimizer.step(skip=self._overflows[id(optimizer)])

    def update(self) -> None:
        """Adapt the scale to the overflows of the steps since the last call.

        Raises:
            ArgumentError: if there was no step.
        """
        if not self.enabled:
            return
        if not self._overflows:
            raise ArgumentError("GradScaler.update", "no step since the last update", "scaler.step(optimizer)")
        with Tensor.no_grad():
            bad = Tensor.stack(*self._overflows.values()).any(0)
            good = bad.where(0, self.tracker + 1)
            grown = (good >= self.interval).where(self.factor * self.growth, self.factor)
            self.factor.assign(bad.where(self.factor * self.backoff, grown))
            self.tracker.assign((good >= self.interval).where(0, good))
        self._overflows.clear()
        realize_tensors([self.factor, self.tracker])

    def get_scale(self) -> float:
        """Return the scale as a Python float; 1 if not enabled."""
        return float(self.factor.item()) if self.enabled else 1.0


class EMA:
    """The exponential moving average of a model's parameters: ``a = decay * a + (1 - decay) * p`` at each ``update()``.

    It starts at the current parameters. Buffers such as running statistics (``requires_grad=False``) are not averaged.

    >>> from tinsmith import nn
    >>> layer = nn.Linear(1, 1, bias=False)
    >>> _ = layer.weight.assign(Tensor([[1.]]))
    >>> ema = EMA(layer, decay=0.75)
    >>> _ = layer.weight.assign(Tensor([[5.]]))
    >>> ema.update()
    >>> with ema.applied():
    ...     layer.weight.item()
    2.0
    >>> layer.weight.item()
    5.0

    Args:
        model: object that holds the parameters, or a list of them.
    """

    def __init__(self, model: Any, decay: float = 0.999) -> None:
        self.decay = number("EMA", "decay", decay, 0, 1)
        self.params = [p for p in get_parameters(model) if p.requires_grad is not False and p.dtype.is_float]
        if not self.params:
            raise ArgumentError("EMA", "no tensor to average", "a model, or a list of its parameters")
        self.averages = []
        for p in self.params:
            wide = p.detach().clone().cast(dtypes.float32 if p.dtype.itemsize < 4 else p.dtype)
            wide.requires_grad = False
            note_name(wide, called(p))
            self.averages.append(wide)
        realize_tensors([*self.params, *self.averages])

    def update(self) -> None:
        """Update the averages with the current parameters, in one program."""
        with Tensor.no_grad():
            for p, average in zip(self.params, self.averages):
                average.assign(average + (p.detach().cast(average.dtype) - average) * (1 - self.decay))
        realize_tensors(self.averages)

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Replace the parameters by their averages inside the ``with`` block."""
        before = [p._copy() for p in self.params]
        for p, average in zip(self.params, self.averages):
            p.replace(average.detach().cast(p.dtype))
        realize_tensors(self.params)
        try:
            yield
        finally:
            for p, old in zip(self.params, before):
                p.replace(old)

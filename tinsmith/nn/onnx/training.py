"""The optimizers of ONNX's preview of training: new values of parameters and of their state."""
from __future__ import annotations

from collections.abc import Sequence

from tinsmith.tensor.tensor import Tensor


def _parts(values: tuple[Tensor, ...], kinds: int) -> list[tuple[Tensor, ...]]:
    """Regroup inputs (all values, then all gradients, then all states, …) into one tuple per parameter."""
    count = len(values) // kinds
    return list(zip(*(values[n * count : (n + 1) * count] for n in range(kinds))))


def _in_order(updated: Sequence[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    return tuple(t for kind in zip(*updated) for t in kind)


def Adagrad(rate: Tensor, step: Tensor, *values: Tensor, decay_factor: float = 0.0, epsilon: float = 0.0,
            norm_coefficient: float = 0.0) -> tuple[Tensor, ...]:
    out = []
    for x, gradient, total in _parts(values, 3):
        g = gradient + norm_coefficient * x
        total = total + g * g
        out.append((x - rate / (1 + step * decay_factor) * g / (total.sqrt() + epsilon), total))
    return _in_order(out)


def Momentum(rate: Tensor, step: Tensor, *values: Tensor, alpha: float, beta: float, mode: str,
             norm_coefficient: float) -> tuple[Tensor, ...]:
    out = []
    for x, gradient, momentum in _parts(values, 3):
        g = gradient + norm_coefficient * x
        momentum = alpha * momentum + (step > 0).where(beta, 1.0) * g
        out.append((x - rate * (g + alpha * momentum if mode == "nesterov" else momentum), momentum))
    return _in_order(out)


def Adam(rate: Tensor, step: Tensor, *values: Tensor, alpha: float = 0.9, beta: float = 0.999, epsilon: float = 0.0,
         norm_coefficient: float = 0.0, norm_coefficient_post: float = 0.0) -> tuple[Tensor, ...]:
    out = []
    for x, gradient, first, second in _parts(values, 4):
        g = gradient + norm_coefficient * x
        first, second = alpha * first + (1 - alpha) * g, beta * second + (1 - beta) * g * g
        t = step.float()
        adjusted = (step > 0).where(rate * (1 - beta**t).sqrt() / (1 - alpha**t), rate)
        new = x - adjusted * first / (second.sqrt() + epsilon)
        out.append(((1 - norm_coefficient_post) * new, first, second))
    return _in_order(out)

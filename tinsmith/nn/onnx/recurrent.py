"""RNN, GRU and LSTM over given weights, in both directions."""
from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

from tinsmith.core.errors import ArgumentError
from tinsmith.nn.onnx import arithmetic
from tinsmith.tensor.tensor import Tensor

Step = Callable[..., tuple[Tensor, ...]]

_FUNCTIONS: Final[dict[str, Callable[[Tensor, float | None, float | None], Tensor]]] = {
    "relu": lambda x, a, b: x.relu(), "tanh": lambda x, a, b: x.tanh(), "sigmoid": lambda x, a, b: x.sigmoid(),
    "softsign": lambda x, a, b: x.softsign(), "softplus": lambda x, a, b: x.softplus(),
    "affine": lambda x, a, b: x * (1.0 if a is None else a) + (0.0 if b is None else b),
    "leakyrelu": lambda x, a, b: arithmetic.LeakyRelu(x, 0.01 if a is None else a),
    "thresholdedrelu": lambda x, a, b: arithmetic.ThresholdedRelu(x, 1.0 if a is None else a),
    "scaledtanh": lambda x, a, b: (x * (1.0 if b is None else b)).tanh() * (1.0 if a is None else a),
    "hardsigmoid": lambda x, a, b: arithmetic.HardSigmoid(x, 0.2 if a is None else a, 0.5 if b is None else b),
    "elu": lambda x, a, b: arithmetic.Elu(x, 1.0 if a is None else a)}


def _clipped(f: Callable[..., Tensor], a: float | None, b: float | None, clip: float | None, x: Tensor) -> Tensor:
    return f(x if clip is None else x.clip(-clip, clip), a, b)


def _activations(names: Any, usual: list[str], directions: int, alpha: Any, beta: Any,
                 clip: float | None) -> list[list[Callable[[Tensor], Tensor]]]:
    """Return the functions of each direction, in order."""
    wanted = list(names or usual * directions)
    alphas, betas = list(alpha or []), list(beta or [])
    out: list[Callable[[Tensor], Tensor]] = []
    for name in wanted:
        if name.lower() not in _FUNCTIONS:
            raise ArgumentError("OnnxRunner", f"the activation {name!r} of a recurrent layer",
                                f"one of {', '.join(_FUNCTIONS)}")
        a, b = (parts.pop(0) if parts else None for parts in (alphas, betas))
        f = _FUNCTIONS[name.lower()]
        out.append(functools.partial(_clipped, f, a, b, clip))
    size = len(usual)
    return [out[n * size : (n + 1) * size] for n in range(directions)]


def _run(x: Tensor, lengths: Tensor | None, states: list[Tensor], step: Step, backwards: bool) -> tuple[Any, ...]:
    """Outputs of all steps ``[time, batch, hidden]`` and the last states; a row beyond its length keeps its states."""
    outputs: list[Any] = [None] * x.shape[0]
    for t in (reversed(range(x.shape[0])) if backwards else range(x.shape[0])):
        new = list(step(x[t], *states))
        out = new[0]
        if lengths is not None:
            alive = (lengths > t).reshape(-1, 1)
            new = [alive.where(n, s) for n, s in zip(new, states)]
            out = alive.where(out, 0)
        states, outputs[t] = new, out
    return outputs[0].stack(*outputs[1:]), *states


def _layer(x: Tensor, w: Tensor, r: Tensor, lengths: Tensor | None, initial: list[Tensor | None], direction: str,
           layout: int, make: Callable[[int], Step]) -> tuple[Tensor, ...]:
    """All directions of a layer: (outputs, last states …) in ONNX's order of axes."""
    x = x.transpose(0, 1) if layout else x
    hidden, batch = r.shape[2], x.shape[1]
    outs: list[tuple[Tensor, ...]] = []
    for d in range(w.shape[0]):
        states = [Tensor.zeros(batch, hidden, dtype=x.dtype) if s is None else (s[:, d] if layout else s[d])
                  for s in initial]
        outs.append(_run(x, lengths, states, make(d), direction == "reverse" or d == 1))
    y, *last = (first.stack(*rest, dim=1 if not n else 0) for n, (first, *rest) in enumerate(zip(*outs)))
    if layout:
        y, last = y.permute(2, 0, 1, 3), [s.transpose(0, 1) for s in last]
    return y, *last


def _halves(b: Tensor | None, d: int, size: int) -> tuple[Any, Any]:
    """Return the biases of the input and of the state; zeros if there are none."""
    return (0.0, 0.0) if b is None else (b[d, :size], b[d, size:])


def RNN(x: Tensor, w: Tensor, r: Tensor, b: Tensor | None = None, sequence_lens: Tensor | None = None,
        initial_h: Tensor | None = None, activations: Any = None, activation_alpha: Any = None,
        activation_beta: Any = None, clip: float | None = None, direction: str = "forward", hidden_size: int = 0,
        layout: int = 0) -> tuple[Tensor, ...]:
    functions = _activations(activations, ["Tanh"], w.shape[0], activation_alpha, activation_beta, clip)

    def make(d: int) -> Step:
        of_input, of_state = _halves(b, d, r.shape[2])

        def step(now: Tensor, h: Tensor) -> tuple[Tensor]:
            return (functions[d][0](now @ w[d].T + h @ r[d].T + of_input + of_state),)
        return step

    return _layer(x, w, r, sequence_lens, [initial_h], direction, layout, make)


def GRU(x: Tensor, w: Tensor, r: Tensor, b: Tensor | None = None, sequence_lens: Tensor | None = None,
        initial_h: Tensor | None = None, activations: Any = None, activation_alpha: Any = None,
        activation_beta: Any = None, clip: float | None = None, direction: str = "forward", hidden_size: int = 0,
        layout: int = 0, linear_before_reset: int = 0) -> tuple[Tensor, ...]:
    functions = _activations(activations, ["Sigmoid", "Tanh"], w.shape[0], activation_alpha, activation_beta, clip)
    size = r.shape[2]

    def make(d: int) -> Step:
        f, g = functions[d]
        of_input, of_state = _halves(b, d, 3 * size)

        def step(now: Tensor, h: Tensor) -> tuple[Tensor]:
            a = now @ w[d].T + of_input
            gates = f(a[:, : 2 * size] + h @ r[d, : 2 * size].T + (of_state if b is None else of_state[: 2 * size]))
            z, reset = gates[:, :size], gates[:, size:]
            bias = of_state if b is None else of_state[2 * size :]
            new = r[d, 2 * size :].T
            seen = reset * (h @ new + bias) if linear_before_reset else (reset * h) @ new + bias
            return ((1 - z) * g(a[:, 2 * size :] + seen) + z * h,)
        return step

    return _layer(x, w, r, sequence_lens, [initial_h], direction, layout, make)


def LSTM(x: Tensor, w: Tensor, r: Tensor, b: Tensor | None = None, sequence_lens: Tensor | None = None,
         initial_h: Tensor | None = None, initial_c: Tensor | None = None, p: Tensor | None = None,
         activations: Any = None, activation_alpha: Any = None, activation_beta: Any = None,
         clip: float | None = None, direction: str = "forward", hidden_size: int = 0, input_forget: int = 0,
         layout: int = 0) -> tuple[Tensor, ...]:
    functions = _activations(activations, ["Sigmoid", "Tanh", "Tanh"], w.shape[0], activation_alpha, activation_beta,
                             clip)
    size = r.shape[2]

    def make(d: int) -> Step:
        f, g, o = functions[d]
        of_input, of_state = _halves(b, d, 4 * size)
        peep: Any = [0.0] * 3 if p is None else p[d].split(size)

        def step(now: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
            parts = (now @ w[d].T + h @ r[d].T + of_input + of_state).split(size, 1)
            i = f(parts[0] + peep[0] * c)
            forget = 1 - i if input_forget else f(parts[2] + peep[2] * c)
            cell = forget * c + i * g(parts[3])
            return f(parts[1] + peep[1] * cell) * o(cell), cell
        return step

    return _layer(x, w, r, sequence_lens, [initial_h, initial_c], direction, layout, make)

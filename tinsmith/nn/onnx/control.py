"""Operators that hold graphs. Conditions and counts are read on the host, so each path is a straight program.

Operators on sequences (Python lists) and optional values (None)."""
from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from tinsmith.nn.onnx.values import axis_of, constant, ints, number
from tinsmith.tensor.tensor import Tensor

if TYPE_CHECKING:
    from tinsmith.nn.onnx.graph import OnnxGraph

Scope = Mapping[str, Any]


def If(condition: Tensor, then_branch: OnnxGraph, else_branch: OnnxGraph, scope: Scope) -> Any:
    return tuple((then_branch if number(condition) else else_branch).run([], scope))


def _stacked(values: list[Tensor], axis: int = 0) -> Tensor:
    return values[0].stack(*values[1:], dim=axis)


def Loop(count: Any, condition: Any, *carried: Any, body: OnnxGraph, scope: Scope) -> Any:
    most = None if count is None else int(number(count))
    going = condition is None or bool(number(condition))
    states, n = list(carried), 0
    collected: list[list[Tensor]] = [[] for _ in body.outputs[1 + len(states) :]]
    while going and (most is None or n < most):
        again, *out = body.run([constant(np.int64(n)), constant(np.bool_(True)), *states], scope)
        states = out[: len(states)]
        for values, value in zip(collected, out[len(states) :]):
            values.append(value)
        going, n = bool(number(again)), n + 1
    return (*states, *(_stacked(values) if values else Tensor.empty(0) for values in collected))


def Scan(*given: Any, body: OnnxGraph, scope: Scope, num_scan_inputs: int, scan_input_axes: Any = None,
         scan_input_directions: Any = None, scan_output_axes: Any = None, scan_output_directions: Any = None,
         directions: Any = None, opset: int = 9) -> Any:
    if opset < 9:  # batches come first, and a length before all inputs
        given = given[1:]
        states, runs = list(given[: len(given) - num_scan_inputs]), list(given[len(given) - num_scan_inputs :])
        batches = [Scan(*(v[n] for v in (*states, *runs)), body=body, scope=scope, num_scan_inputs=num_scan_inputs,
                        scan_input_directions=directions) for n in range(runs[0].shape[0])]
        return tuple(_stacked(list(values)) for values in zip(*batches))
    count = len(given) - num_scan_inputs
    states, runs = list(given[:count]), list(given[count:])
    axes = [axis_of(a, t.ndim) for a, t in zip(scan_input_axes or [0] * len(runs), runs)]
    back = scan_input_directions or [0] * len(runs)
    outputs: list[list[Tensor]] = [[] for _ in body.outputs[count:]]
    steps = runs[0].shape[axes[0]]
    for n in range(steps):
        now = [t[(slice(None),) * a + ((steps - 1 - n) if b else n,)] for t, a, b in zip(runs, axes, back)]
        out = body.run([*states, *now], scope)
        states = out[:count]
        for values, value in zip(outputs, out[count:]):
            values.append(value)
    ahead = scan_output_directions or [0] * len(outputs)
    places = scan_output_axes or [0] * len(outputs)
    return (*states, *(_stacked(v[::-1] if a else v, axis_of(p, v[0].ndim + 1))
                       for v, a, p in zip(outputs, ahead, places)))


def SequenceEmpty(dtype: int = 1) -> list[Tensor]:
    return []


def SequenceConstruct(*xs: Tensor) -> list[Tensor]:
    return list(xs)


def SequenceInsert(sequence: list[Tensor], x: Tensor, position: Any = None) -> list[Tensor]:
    out = list(sequence)
    out.insert(len(out) if position is None else axis_of(int(number(position)), len(out)), x)
    return out


def SequenceErase(sequence: list[Tensor], position: Any = None) -> list[Tensor]:
    out = list(sequence)
    del out[-1 if position is None else int(number(position))]
    return out


def SequenceAt(sequence: list[Tensor], position: Any) -> Tensor:
    return sequence[int(number(position))]


def SequenceLength(sequence: list[Tensor]) -> Tensor:
    return constant(np.int64(len(sequence)))


def ConcatFromSequence(sequence: list[Tensor], axis: int, new_axis: int = 0) -> Tensor:
    first, *rest = sequence
    return first.stack(*rest, dim=axis) if new_axis else first.cat(*rest, dim=axis)


def SplitToSequence(x: Tensor, split: Any = None, axis: int = 0, keepdims: int = 1) -> list[Tensor]:
    at = axis_of(axis, x.ndim)
    if split is None:
        parts = list(x.split(1, at))
        return parts if keepdims else [p.squeeze(at) for p in parts]
    sizes = ints(split)
    return list(x.split(sizes[0] if isinstance(split, Tensor) and split.ndim == 0 else sizes, at))


def Optional(x: Any = None, type: Any = None) -> Any:
    return x


def OptionalHasElement(x: Any = None) -> Tensor:
    return constant(np.bool_(x is not None))


def OptionalGetElement(x: Any) -> Any:
    return x

"""Reverse-mode autograd, and custom gradients.

Gradients are graph nodes, built by the gradient rules of the op table: ``gradients`` on nodes, and the Tensor methods
``gradient``, ``backward``, ``no_grad`` and others. A custom gradient gives the derivative explicitly instead of
deriving it from the formula: ``with_slopes`` is the internal form, ``Function`` of ``function.py`` the public one.
"""
from __future__ import annotations

import functools
import itertools
import operator
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from tinsmith.backend.device import Device
from tinsmith.core.errors import GradientError
from tinsmith.ir import Ops, UOp
from tinsmith.schedule.multi.sharding import is_group, places_of
from tinsmith.tensor.base import TensorBase, mark
from tinsmith.tensor.interop import files
from tinsmith.tensor.layer_names import gradient_origins
from tinsmith.tensor.placement import parts

T = TypeVar("T", bound=TensorBase)
# (gradient, value, inputs...) -> a gradient for each input, None for zero. Written with tensor methods, so that it can
# be differentiated again.
Slopes = Callable[..., Sequence[TensorBase | None]]


@dataclass(frozen=True)
class _Rule:
    """The gradient rule of a CUSTOM_GRADIENT node, written with tensors."""

    slopes: Slopes
    kind: type[TensorBase]

    def __call__(self, node: UOp, gradient: UOp) -> tuple[UOp | None, ...]:
        device = node.device or Device.DEFAULT
        tensors = [self.kind._wrap(u, device) for u in (gradient, node, *node.src[1:])]
        return tuple(None if s is None else s.uop for s in self.slopes(*tensors))

    def __str__(self) -> str:
        return self.slopes.__name__.strip("_")

_rule = functools.lru_cache(_Rule)


def with_slopes(value: T, slopes: Slopes, *inputs: T) -> T:
    """Return ``value`` with the derivatives that ``slopes`` computes with respect to ``inputs`` (of the same shape and
    dtype as ``value``).

    Args:
        slopes: a module-level function, so that graphs can be pickled.
    """
    rule = _rule(slopes, type(value))
    return value._new(UOp(Ops.CUSTOM_GRADIENT, None, (value.uop, *(t.uop for t in inputs)), rule))


def gradients(output: UOp, targets: Sequence[UOp], seed: UOp | None, missing_ok: bool = False,
              order: Sequence[UOp] | None = None) -> list[UOp]:
    """Return the derivatives of ``output`` with respect to each target.

    Args:
        order: ``output.toposort()``, if the caller has computed it.
        seed: derivative of the final value with respect to ``output``, cast to its dtype; None for a scalar output.
        missing_ok: give zeros for targets that do not influence the output, instead of an error.

    Raises:
        GradientError: for an output that is no float, a non-scalar one without a seed, or a target without influence.
    """
    if not output.dtype.is_float:
        raise GradientError("backward" if missing_ok else "gradient", f"a tensor of {output.dtype!r} has no derivative",
                            "a loss computed from floats")
    if seed is None:
        if output.size != 1:
            raise GradientError("backward", f"the gradient of shape {output.shape} needs a starting gradient",
                                "reduce to a scalar, or pass gradient=")
        seed = output.const_like(1)
    elif seed.shape != output.shape:
        raise GradientError("gradient", f"gradient= has shape {seed.shape}, the tensor has {output.shape}",
                            "the derivative of the final value with respect to this tensor")
    else:
        seed = seed.cast(output.dtype)
    order = output.toposort() if order is None else order
    leads: set[UOp] = set(targets)
    for node in order:  # nodes that a target influences
        if not leads.isdisjoint(node.src):
            leads.add(node)
    found: dict[UOp, UOp] = {output: seed}
    wanted = set(targets)
    origins = gradient_origins(sys._getframe(1), TensorBase)
    for node in reversed(order):
        if node not in leads or node not in found:
            continue
        rule = node.op.gradient
        if rule is None:
            continue
        origin = origins(node.origin)
        for source, g in zip(node.src, rule(node, found[node])):
            if g is None or source not in leads or not source.dtype.is_float:
                continue
            found[source] = g if source not in found else found[source] + g
            if origin and found[source].base.op is not Ops.CONST:  # interned, shared by programs
                mark(found[source], origin)
        if node not in wanted:
            del found[node]
    out = []
    below: set[UOp] = set()
    for t in targets:
        if t not in found:  # below but without a gradient: 0, as it passed through floor, comparison or detach
            below = below or set(order)
            if not missing_ok and t not in below:
                raise GradientError("gradient", f"the tensor of shape {t.shape} does not influence the result",
                                    "a target that the result was computed from")
            out.append(t.const_like(0) if t.op is not Ops.CONST else UOp.const(t.dtype, 0))
        else:
            out.append(found[t])
    return out


def leaves_among(computed: dict[T, list[UOp]], leaves: dict[T, list[UOp]], order: Sequence[UOp]
                  ) -> dict[T, list[UOp]]:
    """Return the computed tensors that depend on no leaf and on no other computed tensor."""
    owners: dict[UOp, list[T]] = {}
    for t, nodes in computed.items():
        owners.setdefault(nodes[0], []).append(t)
    below = {n for nodes in leaves.values() for n in nodes}
    found: dict[T, list[UOp]] = {}
    for n in order:
        if any(s in below for s in n.src):
            below.add(n)
        elif n in owners:
            below.add(n)
            found.update((t, computed[t]) for t in owners[n])
    return found


def dense(g: T, *_: T) -> tuple[T]:
    return (g.contiguous(),)


def summed(nodes: Iterator[UOp], count: int) -> UOp:
    """Return the sum of the next ``count`` nodes."""
    return functools.reduce(operator.add, itertools.islice(nodes, count))


def where_they_are(tensors: Sequence[TensorBase], found: Sequence[UOp]) -> list[UOp]:
    """Return the gradients moved to the devices of their tensors, sharded in the same way."""
    moved = [g if g.device in (None, t._device) or files.on_disk(t._device) else
             UOp(Ops.COPY, None, (g,), t._device) for t, g in zip(tensors, found)]
    spread = [n for n, t in enumerate(tensors) if is_group(t._device)]
    if not spread:
        return moved
    wanted, places = places_of([tensors[n].uop for n in spread]), places_of([moved[n] for n in spread])
    for n, want, got in zip(spread, wanted, places):
        _, axis, bounds = want
        if (axis, bounds) != got[1:]:
            moved[n] = (UOp(Ops.COPY, None, (moved[n],), tensors[n]._device) if axis is None else
                        parts(moved[n], axis, tensors[n]._device, bounds))
    return moved

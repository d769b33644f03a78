"""Values with a gradient of their own: where that of the formula that computes them is undefined, or another."""
from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tinsmith.backend.device import Device
from tinsmith.ir import Ops, UOp

if TYPE_CHECKING:
    from tinsmith.tensor.tensor import Tensor

# (gradient, value, inputs...) -> a gradient for each input; None where it is zero. Made of tensor methods, so that it
# has a gradient again.
Slopes = Callable[..., "tuple[Tensor | None, ...]"]


@dataclass(frozen=True)
class _Rule:
    """The gradient rule of a CUSTOM_GRADIENT node, written with tensors."""

    slopes: Slopes
    kind: type[Tensor]

    def __call__(self, node: UOp, gradient: UOp) -> tuple[UOp | None, ...]:
        device = node.device or Device.DEFAULT
        tensors = [self.kind._wrap(u, device) for u in (gradient, node, *node.src[1:])]
        return tuple(None if s is None else s.uop for s in self.slopes(*tensors))

    def __str__(self) -> str:
        return self.slopes.__name__.strip("_")


_rule = functools.lru_cache(_Rule)


def with_slopes(value: Tensor, slopes: Slopes, *inputs: Tensor) -> Tensor:
    """``value``, whose derivatives with respect to ``inputs`` (of its shape and dtype) ``slopes`` gives.

    Args:
        slopes: a function of a module, so that graphs can be pickled.
    """
    rule = _rule(slopes, type(value))
    return value._new(UOp(Ops.CUSTOM_GRADIENT, None, (value.uop, *(t.uop for t in inputs)), rule))

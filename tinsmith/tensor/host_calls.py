"""Values that the host computes of whole values in memory, where the device's memory is the host's."""
from __future__ import annotations

from typing import TYPE_CHECKING

from tinsmith.backend.device import Device
from tinsmith.ir import Ops, UOp
from tinsmith.schedule.fusion.fusion import STAGED

if TYPE_CHECKING:
    from tinsmith.tensor.tensor import Tensor


def on_host(*tensors: Tensor) -> bool:
    """Return True if functions of the host can read these tensors, and they have elements."""
    return all(isinstance(t.device, str) and Device[t.device].calls_host and all(
        isinstance(s, int) and s > 0 for s in t.shape) for t in tensors)


def host_value(name: str, shape: tuple[int, ...], *sources: Tensor) -> Tensor:
    """What a function of ``ir.ops.host`` gives, as a value of the first source's dtype.

    Args:
        sources: of one dtype, ``on_host``.
    """
    shapes = tuple(tuple(t.shape) for t in sources)
    return sources[0]._new(UOp(Ops.HOST, None, tuple(_in_memory(t.uop) for t in sources), (name, shapes, shape)))


def _in_memory(node: UOp) -> UOp:
    """The value, in memory in row-major order, in any shape."""
    flat = node
    while flat.op in (Ops.RESHAPE, Ops.DETACH):
        flat = flat.src[0]
    return flat if flat.op is Ops.BUFFER or flat.op in STAGED else UOp(Ops.CONTIGUOUS, None, (node,))

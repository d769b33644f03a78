"""Host calls: operations that a function of the host computes from complete values in host-addressable memory."""
from __future__ import annotations

from typing import TYPE_CHECKING

from tinsmith.backend.device import Device
from tinsmith.ir import Ops, UOp
from tinsmith.schedule.values import STAGED

if TYPE_CHECKING:
    from tinsmith.tensor.tensor import Tensor


def on_host(*tensors: Tensor) -> bool:
    """Return True if functions of the host can read these tensors, and all their sizes are positive constants."""
    return all(isinstance(t.device, str) and Device[t.device].calls_host and all(
        isinstance(s, int) and s > 0 for s in t.shape) for t in tensors)


def host_value(name: str, shape: tuple[int, ...], *sources: Tensor) -> Tensor:
    """Return the result of the function ``name`` of ``ir.ops.host``, with the dtype of the first source.

    Args:
        shape: shape of the result.
        sources: the arguments, of one dtype; ``on_host`` must be true for them.
    """
    shapes = tuple(tuple(t.shape) for t in sources)
    return sources[0]._new(UOp(Ops.HOST, None, tuple(_in_memory(t.uop) for t in sources), (name, shapes, shape)))


def _in_memory(node: UOp) -> UOp:
    """Return a node with the elements of ``node`` in memory in row-major order; its shape may differ."""
    flat = node
    while flat.op in (Ops.RESHAPE, Ops.DETACH):
        flat = flat.src[0]
    return flat if flat.op is Ops.BUFFER or flat.op in STAGED else UOp(Ops.CONTIGUOUS, None, (node,))

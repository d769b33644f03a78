"""Float32 products that PyTorch's settings allow to be rounded to TF32, on devices whose matrix units do that.

``torch.backends.cudnn.allow_tf32`` holds for convolutions (True by default), ``torch.set_float32_matmul_precision`` for
products of matrices.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch

from tinsmith.backend.device import Device
from tinsmith.core.dtypes import dtypes
from tinsmith.ir.ops.op import MAY_ROUND, is_product
from tinsmith.ir.uop import toposort
from tinsmith.tensor.tensor import Tensor

_CONVOLUTIONS: Final = ("convolution", "convolution_backward")
_MATRICES: Final = ("mm", "addmm", "bmm", "baddbmm")


def may_round(target: Any, inputs: Sequence[Any], device: str) -> bool:
    """Return True if PyTorch may round the float32 operands of an op on our device to TF32."""
    if any(t.dtype is not dtypes.float32 for t in inputs if isinstance(t, Tensor)):
        return False
    name = target.overloadpacket.__name__ if isinstance(target, torch._ops.OpOverload) else ""
    if name not in (*_CONVOLUTIONS, *_MATRICES) or not any(u.rounds for u in Device[device].target.units):
        return False
    if name in _MATRICES:
        return bool(torch.get_float32_matmul_precision() != "highest")
    return _convolutions_round()


def _convolutions_round() -> bool:
    try:
        return bool(torch.backends.cudnn.allow_tf32)
    except RuntimeError:  # set by the newer ``fp32_precision``
        return bool(torch.backends.cudnn.conv.fp32_precision == "tf32")


def rounding(results: Any, inputs: Sequence[Any]) -> Any:
    """Return an op's results with the products of float32 between ``inputs`` and them allowed to round."""
    if isinstance(results, (tuple, list)):
        return type(results)(rounding(r, inputs) for r in results)
    if not isinstance(results, Tensor):
        return results
    table = {t.uop: t.uop for t in inputs if isinstance(t, Tensor)}
    table |= {n: n.replace(arg=MAY_ROUND) for n in toposort(results.uop, lambda n: n not in table)
              if n not in table and is_product(n) and n.dtype is dtypes.float32}
    return results._new(results.uop.substitute(table))

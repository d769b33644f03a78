"""Rules for random numbers: counter-based bits (``tensor/create/random.py``), seeded by PyTorch's generator."""
from __future__ import annotations

from typing import Any

from tinsmith.core.dtypes import dtypes
from tinsmith.tensor.tensor import Tensor
from tinsmith.torch.rules.registry import Unsupported, rule


@rule("native_dropout", random=True)
def _dropout(x: Tensor, p: float, train: bool | None = True) -> tuple[Tensor, Tensor]:
    if train is False or p == 0:
        return x, Tensor.ones(*x.shape, dtype=dtypes.bool, device=x.device)
    kept = _below(x, 1 - p)
    return kept.where(x * (1 / (1 - p) if p < 1 else 0.0), 0), kept


@rule("bernoulli.p", random=True)
def _bernoulli(x: Tensor, p: float = 0.5, *, generator: Any = None) -> Tensor:
    if generator is not None:
        raise Unsupported("a generator of its own")
    return _below(x, p)


def _below(x: Tensor, p: float) -> Tensor:
    """Return True with probability ``p``, for each element of ``x``."""
    return Tensor.rand(*x.shape, dtype=dtypes.float32, device=x.device) < p


@rule("rand", "rand_like", random=True, creates=True, meta=True)
def _rand(*_: Any, device: str, meta: Any, **__: Any) -> Tensor:
    return Tensor.rand(*meta.shape, dtype=meta.dtype, device=device)


@rule("randn", "randn_like", random=True, creates=True, meta=True)
def _randn(*_: Any, device: str, meta: Any, **__: Any) -> Tensor:
    return Tensor.randn(*meta.shape, dtype=meta.dtype, device=device)

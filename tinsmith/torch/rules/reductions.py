"""Rules for reductions, scans, softmax and sorting."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tinsmith.core.dtypes import DType, dtypes
from tinsmith.tensor.math.table import REDUCTIONS
from tinsmith.tensor.tensor import Tensor
from tinsmith.torch.rules.registry import Unsupported, rule

Dims = Sequence[int] | int | None


def _axes(x: Tensor, dim: Dims) -> tuple[int, ...]:
    """Return the axes of a reduction: all of them for None or ()."""
    if dim is None or (not isinstance(dim, int) and not dim):
        return tuple(range(x.ndim))
    return tuple(d % max(x.ndim, 1) for d in ((dim,) if isinstance(dim, int) else dim))


def _reduced(x: Tensor, dim: Dims, keepdim: bool, of: Any) -> Any:
    axes = _axes(x, dim)
    return of(x, axes, keepdim) if x.ndim else of(x.reshape(1), (0,), False)


def _wide(x: Tensor, dtype: DType) -> Tensor:
    """Return ``x`` in the dtype that its sum is computed in: at least float32 for floats."""
    if dtype in (dtypes.float16, dtypes.bfloat16):
        return x.cast(dtypes.float32)
    return x.cast(dtype)


def _reduction(name: str) -> Callable[..., Any]:
    """Return the rule of a method of ``REDUCTIONS``."""
    method = getattr(Tensor, name)
    in_result = REDUCTIONS[name].gives in ("sum", "float")

    def reduced(x: Tensor, dim: Dims = None, keepdim: bool = False, dtype: DType | None = None, *, meta: Any) -> Any:
        return _reduced(_wide(x, meta.dtype) if in_result else x, dim, keepdim, method)
    return reduced

for _name, _row in REDUCTIONS.items():
    if _row.aten:
        rule(*_row.aten.split(), meta=True)(_reduction(_name))


def _with_index(x: Tensor, dim: int, keepdim: bool, values: Any, indices: Any) -> tuple[Tensor, Tensor]:
    return _reduced(x, dim, keepdim, lambda t, a, k: values(t, a, k)), _reduced(
        x, dim, keepdim, lambda t, a, k: indices(t, a[0], k))


@rule("max.dim")
def _max(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    return _with_index(x, dim, keepdim, Tensor.amax, Tensor.argmax)


@rule("min.dim")
def _min(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    return _with_index(x, dim, keepdim, Tensor.amin, Tensor.argmin)


@rule("argmax", meta=True)
def _argmax(x: Tensor, dim: int | None = None, keepdim: bool = False, *, meta: Any) -> Tensor:
    return (x.flatten().argmax(0) if dim is None or not x.ndim else x.argmax(dim, keepdim)).reshape(meta.shape)


@rule("argmin", meta=True)
def _argmin(x: Tensor, dim: int | None = None, keepdim: bool = False, *, meta: Any) -> Tensor:
    return (x.flatten().argmin(0) if dim is None or not x.ndim else x.argmin(dim, keepdim)).reshape(meta.shape)


@rule("any", "any.dim", "any.dims")
def _any(x: Tensor, dim: Dims = None, keepdim: bool = False) -> Any:
    return _reduced(x.cast(dtypes.bool), dim, keepdim, lambda t, a, k: t.any(a, k))


@rule("all", "all.dim", "all.dims")
def _all(x: Tensor, dim: Dims = None, keepdim: bool = False) -> Any:
    return _reduced(x.cast(dtypes.bool), dim, keepdim, lambda t, a, k: t.all(a, k))


@rule("var.correction", meta=True)
def _var(x: Tensor, dim: Dims = None, correction: Any = 1, keepdim: bool = False, *, meta: Any) -> Any:
    correction = 1 if correction is None else correction
    return _reduced(_wide(x, meta.dtype), dim, keepdim, lambda t, a, k: t.var(a, k, correction))


@rule("var.dim", meta=True)
def _var_dim(x: Tensor, dim: Dims, unbiased: bool = True, keepdim: bool = False, *, meta: Any) -> Any:
    return _var(x, dim, int(unbiased), keepdim, meta=meta)


@rule("std.correction", meta=True)
def _std(x: Tensor, dim: Dims = None, correction: Any = 1, keepdim: bool = False, *, meta: Any) -> Any:
    return _var(x, dim, correction, keepdim, meta=meta).sqrt()


@rule("var_mean.correction", meta=True)
def _var_mean(x: Tensor, dim: Dims = None, correction: Any = 1, keepdim: bool = False, *,
              meta: Any) -> tuple[Tensor, Tensor]:
    first = meta[0]
    return _var(x, dim, correction, keepdim, meta=first), _reduction("mean")(x, dim, keepdim, meta=first)


@rule("linalg_vector_norm", meta=True)
def _vector_norm(x: Tensor, order: float = 2, dim: Dims = None, keepdim: bool = False, *, dtype: DType | None = None,
                 meta: Any) -> Any:
    if not x.numel():
        raise Unsupported("the norm of nothing")
    x = _wide(x, meta.dtype).abs()
    if order in (float("inf"), float("-inf")):
        return _reduced(x, dim, keepdim, lambda t, a, k: t.max(a, k) if order > 0 else t.min(a, k))
    if order == 0:
        return _reduced((x != 0).cast(x.dtype), dim, keepdim, lambda t, a, k: t.sum(a, k))
    power = x if order == 1 else x * x if order == 2 else x.pow(order)
    total = _reduced(power, dim, keepdim, lambda t, a, k: t.sum(a, k))
    return total if order == 1 else total.sqrt() if order == 2 else total.pow(1 / order)


@rule("_weight_norm_interface_backward")
def _weight_norm_backward(grad: Tensor, v: Tensor, g: Tensor, norms: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Gradients of ``g * v / norm(v)``, whose norm is over all axes but ``dim``."""
    wide = dtypes.float32 if v.dtype.itemsize < 4 else v.dtype
    grad, v, norms = grad.cast(wide), v.cast(wide), norms.cast(wide)
    along = (grad * v).sum(tuple(n for n in range(v.ndim) if n != dim % v.ndim), True)
    return (grad - v * (along / (norms * norms))) * (g.cast(wide) / norms), along / norms


# *** softmax ***


def _float(x: Tensor, narrow: bool = False) -> Tensor:
    return x.cast(dtypes.float32) if x.dtype in (dtypes.float16, dtypes.bfloat16) else x


@rule("_softmax")
def _softmax(x: Tensor, dim: int, half_to_float: bool = False) -> Tensor:
    return _float(x).softmax(dim) if x.ndim else Tensor.ones_like(x)


@rule("_safe_softmax")
def _safe_softmax(x: Tensor, dim: int, dtype: DType | None = None) -> Tensor:
    y = _float(x if dtype is None else x.cast(dtype))
    hidden = (y == float("-inf")).all(dim, True)
    return hidden.where(0.0, y.softmax(dim))


@rule("_softmax_backward_data")
def _softmax_backward(grad: Tensor, y: Tensor, dim: int, dtype: DType) -> Tensor:
    grad, y = _float(grad), _float(y)
    product = grad * y
    return product - y * product.sum(dim, True) if y.ndim else Tensor.zeros_like(y)


@rule("logsumexp")
def _logsumexp(x: Tensor, dim: Dims, keepdim: bool = False) -> Any:
    return _reduced(_float(x), dim, keepdim, lambda t, a, k: t.logsumexp(a, k))


# *** scans and sorting ***


@rule("cumsum", meta=True)
def _cumsum(x: Tensor, dim: int, dtype: DType | None = None, *, meta: Any) -> Tensor:
    x = _wide(x, meta.dtype)
    return x.cumsum(dim) if x.ndim else x


@rule("cumprod", meta=True)
def _cumprod(x: Tensor, dim: int, dtype: DType | None = None, *, meta: Any) -> Tensor:
    x = _wide(x, meta.dtype)
    return x.cumprod(dim) if x.ndim else x


@rule("logcumsumexp")
def _logcumsumexp(x: Tensor, dim: int) -> Tensor:
    return x.logcumsumexp(dim) if x.ndim else x


@rule("sort", "sort.stable", meta=True)
def _sort(x: Tensor, *args: Any, meta: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
    if "stable" in kwargs:
        dim, descending = kwargs.get("dim", -1 if len(args) < 1 else args[0]), kwargs.get("descending", False)
    else:
        dim = args[0] if args else kwargs.get("dim", -1)
        descending = args[1] if len(args) > 1 else kwargs.get("descending", False)
    if not x.ndim:
        return x, Tensor.zeros_like(x).cast(dtypes.int64)
    found = x.sort(dim, descending)
    return found[0], found[1]


@rule("topk")
def _topk(x: Tensor, k: int, dim: int = -1, largest: bool = True, is_sorted: bool = True) -> tuple[Tensor, Tensor]:
    if not x.ndim:
        return x, Tensor.zeros_like(x).cast(dtypes.int64)
    found = x.topk(k, dim, largest, True)
    return found[0], found[1]


@rule("cummax")
def _cummax(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    return _scan(x, dim, Tensor.cummax)


@rule("cummin")
def _cummin(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    return _scan(x, dim, Tensor.cummin)


def _scan(x: Tensor, dim: int, scan: Any) -> tuple[Tensor, Tensor]:
    if not x.ndim:
        return x, Tensor.zeros_like(x).cast(dtypes.int64)
    found = scan(x, dim)
    return found[0], found[1]

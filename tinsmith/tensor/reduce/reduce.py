# mypy: disable-error-code=misc
"""Reductions along axes (sums, extremes, moments, norms, softmax), and scans (``cumsum``, ``cummax``, …).

The axes are the argument ``axis`` or its PyTorch name ``dim``; ``max`` and ``min`` refuse ``dim``, which in PyTorch
returns pairs of values and indices.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tinsmith.core.dtypes import DType, DTypeLike, dtypes, sum_dtype, to_dtype
from tinsmith.core.errors import ArgumentError, DTypeError, ShapeError
from tinsmith.ir import Ops, UOp
from tinsmith.ir.ops import Op
from tinsmith.ir.ops.scans import extreme_position
from tinsmith.tensor.arguments import choice, number, shown
from tinsmith.tensor.autograd.backward import with_slopes
from tinsmith.tensor.base import TensorBase
from tinsmith.tensor.helpers import axes_of, axis_of, axis_or_dim, float_of, product, rounded_once

if TYPE_CHECKING:
    from tinsmith.tensor.tensor import Tensor

Axis = int | Sequence[int] | None


class Reduce:
    """Methods that reduce the elements along axes."""

    __slots__ = ()

    def _reduce(self: Tensor, op: Op, axes: tuple[int, ...], keepdim: bool, x: UOp | None = None,
                dtype: DType | None = None) -> Tensor:
        x = self.uop if x is None else x
        out = x
        if axes:
            out = x.reduce(op, axes)
            if not keepdim:
                out = UOp(Ops.RESHAPE, x.dtype, (out,), _reduced(x.shape, axes, False))
        return self._new(out if dtype is None or dtype is out.dtype else out.cast(dtype))

    def sum(self: Tensor, axis: Axis = None, keepdim: bool = False, dtype: DTypeLike | None = None, *,
            dim: Axis = None) -> Tensor:
        """Return the sum along axes. Integers below 32 bits are summed in 32 bits, 16-bit floats in float32.

        >>> Tensor([[1, 2], [3, 4]]).sum(axis=0).tolist()
        [4, 6]
        """
        axes = axes_of("sum", self, axis if dim is None else axis_or_dim("sum", axis, dim))
        result = sum_dtype(self.uop.dtype) if dtype is None else to_dtype(dtype)
        return self._reduce(Ops.ADD, axes, keepdim, self.uop.cast(accumulator(result)), result)

    def prod(self: Tensor, axis: Axis = None, keepdim: bool = False, dtype: DTypeLike | None = None, *,
             dim: Axis = None) -> Tensor:
        """Return the product along axes.

        >>> Tensor([[1, 2], [3, 4]]).prod(axis=1).tolist()
        [2, 12]
        """
        axes = axes_of("prod", self, axis_or_dim("prod", axis, dim))
        result = sum_dtype(self.dtype) if dtype is None else to_dtype(dtype)
        return self._reduce(Ops.MUL, axes, keepdim, self.uop.cast(accumulator(result)), result)

    def max(self: Tensor, axis: Axis | Tensor = None, keepdim: bool = False, *, dim: None = None) -> Tensor:
        """Return the maximum along axes; NaN if any value is NaN. Equal maxima share the gradient.

        >>> Tensor([[1, 5], [3, 4]]).max(axis=1).tolist()
        [5, 4]

        Args:
            axis: an axis or axes; or a tensor: then the result is ``maximum``.
        """
        _no_pair("max", dim)
        if isinstance(axis, TensorBase):
            return self.maximum(axis)
        return self._reduce(Ops.MAX, _nonempty("max", self, axis), keepdim)

    def min(self: Tensor, axis: Axis | Tensor = None, keepdim: bool = False, *, dim: None = None) -> Tensor:
        """Return the minimum along axes; NaN if any value is NaN.

        >>> Tensor([[1, 5], [3, 4]]).min(axis=1).tolist()
        [1, 3]

        Args:
            axis: an axis or axes; or a tensor: then the result is ``minimum``.
        """
        _no_pair("min", dim)
        if isinstance(axis, TensorBase):
            return self.minimum(axis)
        return self._reduce(Ops.MIN, _nonempty("min", self, axis), keepdim)

    def any(self: Tensor, axis: Axis = None, keepdim: bool = False, *, dim: Axis = None) -> Tensor:
        """Return True where any value along the axes is nonzero.

        >>> Tensor([[0, 2], [0, 0]]).any(axis=1).tolist()
        [True, False]
        """
        return self._reduce(Ops.OR, axes_of("any", self, axis_or_dim("any", axis, dim)), keepdim, self.bool().uop)

    def all(self: Tensor, axis: Axis = None, keepdim: bool = False, *, dim: Axis = None) -> Tensor:
        """Return True where all values along the axes are nonzero.

        >>> Tensor([[1, 2], [0, 3]]).all(axis=1).tolist()
        [True, False]
        """
        return self._reduce(Ops.AND, axes_of("all", self, axis_or_dim("all", axis, dim)), keepdim, self.bool().uop)

    def mean(self: Tensor, axis: Axis = None, keepdim: bool = False, dtype: DTypeLike | None = None, *,
             dim: Axis = None) -> Tensor:
        """Return the mean along axes, as a float.

        >>> Tensor([1, 2, 3, 4]).mean().item()
        2.5
        """
        axes = axes_of("mean", self, axis_or_dim("mean", axis, dim))
        x = float_of(self if dtype is None else self.cast(dtype))
        count = product([self.shape[a] for a in axes])
        total = self._reduce(Ops.ADD, axes, keepdim, x.cast(accumulator(x.dtype)))
        return _over(total, count).cast(x.dtype)

    @rounded_once
    def var(self: Tensor, axis: Axis = None, keepdim: bool = False, correction: float = 1, *,
            dim: Axis = None, unbiased: bool | None = None) -> Tensor:
        """Return the variance along axes: the sum of squared deviations over ``count - correction`` (0 if not
        ``unbiased``).

        For floats, the error from rounding the mean is corrected; for integers, the mean is used as computed.

        >>> Tensor([1, 2, 3, 5]).var(correction=0).item()
        2.1875
        """
        if isinstance(axis, bool):  # PyTorch's var(unbiased)
            axis, unbiased = None, axis
        axes = axes_of("var", self, axis_or_dim("var", axis, dim))
        x = self._new(float_of(self))
        if unbiased is not None or correction is None:
            correction = int(unbiased is not False)
        correction = number("var", "correction", correction)
        count = product([self.shape[a] for a in axes])
        if not self.dtype.is_float:
            squares = x.sub(x.mean(axes, keepdim=True)).square()
            return _over(squares._reduce(Ops.ADD, axes, keepdim), count - correction)
        away, off = x._away(axes)
        squares = away.square()._reduce(Ops.ADD, axes, True).sub(off.square().mul(count))
        squares = (squares < 0).where(0, squares)  # not a maximum: its tie at 0 would halve the gradient
        out = _over(squares, count - correction)
        return out if keepdim else out._new(out.uop.reshape(_reduced(self.shape, axes, False)))

    def _away(self: Tensor, axes: Axis) -> tuple[Tensor, Tensor]:
        """Return (values - computed mean, mean of that): the second is the rounding error of the computed mean.

        The computed mean is detached: derivatives of every order are still right, and the first difference needs no
        reduction in the backward pass.
        """
        away = self.sub(self.detach().mean(axes, keepdim=True))
        return away, away.mean(axes, keepdim=True)

    @rounded_once
    def std(self: Tensor, axis: Axis = None, keepdim: bool = False, correction: float = 1, *,
            dim: Axis = None, unbiased: bool | None = None) -> Tensor:
        """Return the standard deviation along axes; ``unbiased=False`` means ``correction=0``.

        >>> Tensor([1., 1., 3., 3.]).std(correction=0).item()
        1.0
        """
        axis = axis_or_dim("std", axis, dim)
        return _root(self.var(axis, keepdim, correction, unbiased=unbiased))

    def var_mean(self: Tensor, axis: Axis = None, keepdim: bool = False, correction: float = 1, *,
                 dim: Axis = None, unbiased: bool | None = None) -> tuple[Tensor, Tensor]:
        """Return the variance and the mean along axes.

        >>> [t.item() for t in Tensor([1., 3.]).var_mean()]
        [2.0, 2.0]
        """
        axis = axis_or_dim("var_mean", axis, dim)
        return (self.var(axis, keepdim, correction, unbiased=unbiased),
                self.mean(None if isinstance(axis, bool) else axis, keepdim))

    def std_mean(self: Tensor, axis: Axis = None, keepdim: bool = False, correction: float = 1, *,
                 dim: Axis = None, unbiased: bool | None = None) -> tuple[Tensor, Tensor]:
        """Return the standard deviation and the mean along axes.

        >>> [t.item() for t in Tensor([1., 3.]).std_mean(correction=0)]
        [1.0, 2.0]
        """
        axis = axis_or_dim("std_mean", axis, dim)
        return (self.std(axis, keepdim, correction, unbiased=unbiased),
                self.mean(None if isinstance(axis, bool) else axis, keepdim))

    def argmax(self: Tensor, axis: int | None = None, keepdim: bool = False, *, dim: int | None = None) -> Tensor:
        """Return the index of the first maximum along an axis; NaN counts as greatest. Without an axis: the flat index.

        >>> Tensor([[1, 5, 5], [7, 2, 3]]).argmax(axis=1).tolist()
        [1, 0]
        """
        axis = axis_or_dim("argmax", axis, dim)
        return _position("argmax", Ops.MAX, self, axis, keepdim)

    def argmin(self: Tensor, axis: int | None = None, keepdim: bool = False, *, dim: int | None = None) -> Tensor:
        """Return the index of the first minimum along an axis; NaN counts as smallest. Without an axis: the flat index.

        >>> Tensor([[1, 5, 1], [7, 2, 3]]).argmin(axis=1).tolist()
        [0, 1]
        """
        axis = axis_or_dim("argmin", axis, dim)
        return _position("argmin", Ops.MIN, self, axis, keepdim)

    # *** softmax and norms ***

    def _shifted(self: Tensor, op: str, axis: Axis, dtype: DTypeLike | None,
                 masked: bool = False) -> tuple[Tensor, tuple[int, ...]]:
        """Return (values minus their maximum along the axes, in the accumulation dtype; the axes).

        Args:
            masked: True if all values of a row may be -inf; such a row stays -inf.
        """
        axes = axes_of(op, self, axis)
        x = float_of(self) if dtype is None else self.uop.cast(to_dtype(dtype))
        wide = self._new(x.cast(accumulator(x.dtype)))
        if 0 in self.shape:
            return wide, axes
        # the result does not depend on the shift: no gradient needed
        top = self._new(UOp(Ops.DETACH, None, (wide.uop,))).max(axes, keepdim=True)
        return wide.sub(top.eq(float("-inf")).where(0, top) if masked else top), axes

    def softmax(self: Tensor, axis: int = -1, dtype: DTypeLike | None = None, *,
                dim: int | None = None) -> Tensor:
        """Return the softmax along an axis: ``exp(x) / exp(x).sum(axis)``, computed without overflow.

        >>> Tensor([0., 0.]).softmax().tolist()
        [0.5, 0.5]
        """
        axis = axis_or_dim("softmax", axis, dim, -1)
        shifted, axes = self._shifted("softmax", axis, dtype)
        e = shifted.exp()
        out = e.mul(e._reduce(Ops.ADD, axes, True).reciprocal())
        to = float_of(self).dtype if dtype is None else to_dtype(dtype)
        return out if to is out.dtype else out.cast(to)

    def log_softmax(self: Tensor, axis: int = -1, dtype: DTypeLike | None = None, *,
                    dim: int | None = None) -> Tensor:
        """Return the logarithm of ``softmax``, computed without overflow.

        >>> Tensor([5.]).log_softmax().tolist()
        [0.0]
        """
        axis = axis_or_dim("log_softmax", axis, dim, -1)
        shifted, axes = self._shifted("log_softmax", axis, dtype)
        total = shifted.exp()._reduce(Ops.ADD, axes, True)
        return shifted.sub(total.log()).cast(float_of(self).dtype if dtype is None else dtype)

    def softmin(self: Tensor, axis: int = -1, dtype: DTypeLike | None = None, *,
                dim: int | None = None) -> Tensor:
        """Return the softmax of the negated values.

        >>> Tensor([0., 0.]).softmin().tolist()
        [0.5, 0.5]
        """
        axis = axis_or_dim("softmin", axis, dim, -1)
        return self.neg().softmax(axis, dtype)

    def logsumexp(self: Tensor, axis: Axis = None, keepdim: bool = False, *, dim: Axis = None) -> Tensor:
        """Return ``log(exp(x).sum(axis))``, computed without overflow.

        >>> Tensor([3.]).logsumexp().item()
        3.0
        """
        axes = axes_of("logsumexp", self, axis_or_dim("logsumexp", axis, dim))
        dtype = float_of(self).dtype
        x = self.cast(accumulator(dtype))
        if 0 in self.shape:
            total = x._reduce(Ops.ADD, axes, True).log().cast(dtype)
        else:
            top = x.detach().max(axes, keepdim=True)
            shift = top.isfinite().where(top, 0)
            total = x.sub(shift).exp()._reduce(Ops.ADD, axes, True).log().add(shift).cast(dtype)
        return total if keepdim else self._new(total.uop.reshape(_reduced(self.shape, axes, False)))

    @rounded_once
    def normalize(self: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Tensor:
        """Scale to p-norm 1 along ``dim``; norms below ``eps`` count as ``eps``.

        >>> Tensor([[3., 4.]]).normalize().numpy().round(3).tolist()
        [[0.6000000238418579, 0.800000011920929]]
        """
        return self.div(self.norm(p, dim, keepdim=True).clamp(eps))

    @rounded_once
    def norm(self: Tensor, p: float | str = 2.0, axis: Axis = None, keepdim: bool = False, *,
             dim: Axis = None) -> Tensor:
        """Return the p-norm along axes: the greatest magnitude for infinite p, the number of nonzero values for p = 0.
        "fro" is the Frobenius norm, p = 2; "nuc" is the nuclear norm, the sum of the singular values along two axes.

        >>> Tensor([3., 4.]).norm().item()
        5.0
        """
        axis = axis_or_dim("norm", axis, dim)
        if isinstance(p, str) and choice("norm", "p", p, ("fro", "nuc")) == "nuc":
            return _nuclear(self, axis, keepdim)
        p = number("norm", "p", 2.0 if p is None or p == "fro" else p)
        if p == 0:
            return self.ne(0).sum(axis, keepdim).cast(self.dtype)
        if p == 2:
            return _root(self.square().sum(axis, keepdim))
        if abs(p) == float("inf"):
            return self.abs().max(axis, keepdim) if p > 0 else self.abs().min(axis, keepdim)
        zero = self.eq(0)  # abs(x) ** p has no derivative at 0 for p < 1: masked out
        powers = zero.where(0.0 if p > 0 else float("inf"), zero.where(1.0, self.abs()).pow(p))
        return powers.sum(axis, keepdim).pow(1 / p)


def _nuclear(x: Tensor, axis: Axis, keepdim: bool) -> Tensor:
    """Return the nuclear norm of the matrices along two axes."""
    axes = axes_of("norm", x, axis)
    if len(axes) != 2:
        raise ShapeError("norm", f"p='nuc' along {len(axes)} axes of shape {x.shape}", "two axes: dim=(-2, -1)")
    values = x.permute(*(a for a in range(x.ndim) if a not in axes), *axes).svdvals().sum(-1)
    return values.reshape(_reduced(x.shape, axes, True)) if keepdim else values


def _root(total: Tensor) -> Tensor:
    """Return the square root of a sum of squares, with gradient 0 where the sum is 0."""
    return with_slopes(total.sqrt(), _root_slope, total._new(float_of(total)))


def _root_slope(g: Tensor, out: Tensor, x: Tensor) -> tuple[Tensor]:
    zero = out.eq(0)
    return (zero.where(0, g.div(zero.where(1, out.mul(2)))),)


def accumulator(dtype: DType) -> DType:
    """Return the dtype in which values of ``dtype`` are summed."""
    return dtypes.float32 if dtype.is_float and dtype.itemsize < 4 else dtype


def _reduced(shape: tuple[Any, ...], axes: tuple[int, ...], keep: bool) -> tuple[Any, ...]:
    if keep:
        return tuple([1 if i in axes else s for i, s in enumerate(shape)])
    return () if len(axes) == len(shape) else tuple([s for i, s in enumerate(shape) if i not in axes])


def _over(total: Tensor, count: Any) -> Tensor:
    """Return ``total / count`` as a multiplication by a constant; ``total * inf`` if ``count`` <= 0."""
    if isinstance(count, UOp):
        return total.div(count)
    return total.mul(1 / count if count > 0 else float("inf"))


def _no_pair(op: str, dim: Any) -> None:
    """Refuse ``dim=``: in PyTorch, ``max(dim=1)`` returns a pair, so a ported program would fail later."""
    if dim is not None:
        raise ArgumentError(op, f"dim={dim!r} asks for PyTorch's pair of values and indices",
                            f"{op}(axis={dim!r}) and arg{op}(axis={dim!r})")


def _nonempty(op: str, x: Tensor, axis: Axis) -> tuple[int, ...]:
    axes = axes_of(op, x, axis)
    if any(x.shape[a] <= 0 for a in axes):
        raise ShapeError(op, f"nothing to take the {op} of along axes {axes} of shape {x.shape}",
                         "at least one element")
    return axes


def _position(op: str, extreme: Op, x: Tensor, axis: int | None, keepdim: bool) -> Tensor:
    if axis is None:
        flat = _position(op, extreme, x.flatten(), 0, False)
        return flat.reshape((1,) * x.ndim) if keepdim else flat
    if not isinstance(axis, int):
        raise DTypeError(op, f"axis must be one integer, got {shown(axis)}", "axis=0")
    number = axis_of(op, x, axis)
    if not x.ndim:
        return x._new(UOp.const(dtypes.default_int, 0))
    axes = _nonempty(op, x, number)
    best = x.detach()._reduce(extreme, axes, True)
    hit = x.eq(best) | x.isnan() if x.dtype.is_float else x.eq(best)
    size = x.shape[number]
    if isinstance(size, int) and size > dtypes.int32.max:  # positions overflow int32
        line = type(x).arange(size, dtype=dtypes.int64, device=x.device)
        places = line.reshape((size, *(1 for _ in x.shape[number + 1 :]))).expand(x.shape)
    else:
        places = x._new(x.uop.iota_like(number))
    return hit.where(places, size)._reduce(Ops.MIN, axes, keepdim)


class ValuesAndIndices(NamedTuple):
    """The result of ``cummax``, ``sort``, ``topk`` and others: unpack it, or read ``.values`` and ``.indices``."""

    values: Tensor
    indices: Tensor


class Scans:
    """Inclusive scans. Long axes are split into blocks that are scanned in parallel."""

    __slots__ = ()

    def _scan(self: Tensor, name: str, op: Op, axis: int, x: UOp) -> UOp:
        """Return the inclusive scan of ``x``, which has this tensor's shape, along ``axis``."""
        d = axis_of(name, self, axis)
        return x if not self.ndim or 0 in self.shape else x.scan(op, d)

    def cumsum(self: Tensor, axis: int = 0, dtype: DTypeLike | None = None, *, dim: int | None = None) -> Tensor:
        """Return the running sum along an axis. Integers below 32 bits are summed in 32 bits.

        >>> Tensor([1, 2, 3]).cumsum().tolist()
        [1, 3, 6]

        Raises:
            AxisError: if the axis does not exist.
        """
        result, axis = sum_dtype(self.dtype) if dtype is None else to_dtype(dtype), axis_or_dim("cumsum", axis, dim, 0)
        return self._new(self._scan("cumsum", Ops.ADD, axis, self.uop.cast(accumulator(result))).cast(result))

    def cumprod(self: Tensor, axis: int = 0, dtype: DTypeLike | None = None, *, dim: int | None = None) -> Tensor:
        """Return the running product along an axis.

        >>> Tensor([1, 2, 3, 4]).cumprod().tolist()
        [1, 2, 6, 24]

        Raises:
            AxisError: if the axis does not exist.
        """
        result, axis = sum_dtype(self.dtype) if dtype is None else to_dtype(dtype), axis_or_dim("cumprod", axis, dim, 0)
        return self._new(self._scan("cumprod", Ops.MUL, axis, self.uop.cast(accumulator(result))).cast(result))

    def cummax(self: Tensor, axis: int = 0, *, dim: int | None = None) -> ValuesAndIndices:
        """Return the running maximum along an axis and its index; NaN from the first NaN on.

        Of equal elements the last one's index is returned, as in PyTorch.

        >>> values, indices = Tensor([1, 3, 2, 3]).cummax()
        >>> values.tolist(), indices.tolist()
        ([1, 3, 3, 3], [0, 1, 1, 3])

        Raises:
            AxisError: if the axis does not exist.
        """
        return _extremes(self, "cummax", Ops.MAX, axis_or_dim("cummax", axis, dim, 0))

    def cummin(self: Tensor, axis: int = 0, *, dim: int | None = None) -> ValuesAndIndices:
        """Return the running minimum along an axis and its index; NaN from the first NaN on.

        >>> values, indices = Tensor([3, 1, 2, 1]).cummin()
        >>> values.tolist(), indices.tolist()
        ([3, 1, 1, 1], [0, 1, 1, 3])

        Raises:
            AxisError: if the axis does not exist.
        """
        return _extremes(self, "cummin", Ops.MIN, axis_or_dim("cummin", axis, dim, 0))

    def logcumsumexp(self: Tensor, axis: int = 0, *, dim: int | None = None) -> Tensor:
        """Return the logarithm of the running sum of exponentials, without overflow. With the running maximum m:
        ``s[k] = s[k-1] * exp(m[k-1] - m[k]) + exp(x[k] - m[k])``, and the result is ``m + log(s)``.

        >>> [round(v, 3) for v in Tensor([1000., 1000.]).logcumsumexp().tolist()]
        [1000.0, 1000.693]

        Raises:
            AxisError: if the axis does not exist.
        """
        d = axis_of("logcumsumexp", self, axis_or_dim("logcumsumexp", axis, dim, 0))
        dtype = float_of(self).dtype
        x = self._new(float_of(self).cast(accumulator(dtype)))
        if not self.ndim or 0 in self.shape:
            return x.cast(dtype)
        greatest = x.detach()._new(x.detach().uop.scan(Ops.MAX, d))
        m = greatest.isfinite().where(greatest, 0)
        shift = [(0, 0)] * self.ndim
        shift[d] = (1, -1)
        scale = m.pad(tuple(shift)).sub(m).minimum(0).exp()
        terms = x.sub(m).exp()
        first = terms.uop.shrink(tuple((0, 1) if i == d else (0, s) for i, s in enumerate(x.shape)))
        total = self._new(terms.uop.scan(Ops.MULADD, d, first.const_like(0), scale.detach().uop))
        return total.log().add(m).cast(dtype)


def _extremes(x: Tensor, name: str, op: Op, axis: int) -> ValuesAndIndices:
    wide = x.uop.cast(dtypes.uint8) if x.dtype.is_bool else x.uop
    running = x._scan(name, op, axis, wide)
    at = extreme_position(running) if running is not wide else wide.zeros(dtypes.int32)
    return ValuesAndIndices(x._new(running.cast(x.dtype)), x._new(at.cast(dtypes.default_int)))

"""Reductions along axes (sums, extremes, moments, norms), scans (``cumsum``, ``cummax``, …), and matrix products.

The axes are the argument ``axis`` or its PyTorch name ``dim``; ``max`` and ``min`` refuse ``dim``, which in PyTorch
returns pairs of values and indices.

A matrix product is a multiplication and a sum over one axis, which the code generator recognizes as a matmul.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, NamedTuple, Self, TypeVar

from tinsmith.core.dtypes import DType, DTypeLike, dtypes, sum_dtype, to_dtype
from tinsmith.core.errors import ArgumentError, DTypeError, ShapeError
from tinsmith.ir import Ops, UOp
from tinsmith.ir.ops import Op
from tinsmith.ir.ops.scans import extreme_position
from tinsmith.tensor.arguments import choice, integer, integers, number, shown
from tinsmith.tensor.autocast import contraction, in_float32, narrow_dtype
from tinsmith.tensor.autograd.backward import with_slopes
from tinsmith.tensor.base import TensorBase, check_tensors
from tinsmith.tensor.helpers import (
    axes_of,
    axis_and_size,
    axis_of,
    axis_or_dim,
    broadcast_shape,
    equal,
    expand_uop,
    float_of,
    one,
    operand,
    product,
    rounded_once,
    same_device,
)
from tinsmith.tensor.math.functions import Functions
from tinsmith.tensor.math.products import (
    added,
    contract,
    counted,
    diagonals,
    letter_sizes,
    ranked,
    result_and_work,
    subscript_letters,
)

T = TypeVar("T", bound="Reduce")
Axis = int | Sequence[int] | None


class Reduce(Functions):
    """Reductions, running values (scans), and products of matrices and tensors."""

    __slots__ = ()

    # *** reductions ***

    def _reduce(self, op: Op, axes: tuple[int, ...], keepdim: bool, x: UOp | None = None,
                dtype: DType | None = None) -> Self:
        x = self.uop if x is None else x
        out = x
        if axes:
            out = x.reduce(op, axes)
            if not keepdim:
                out = UOp(Ops.RESHAPE, x.dtype, (out,), _reduced(x.shape, axes, False))
        return self._new(out if dtype is None or dtype is out.dtype else out.cast(dtype))

    @in_float32
    def sum(self, axis: Axis = None, keepdim: bool = False, dtype: DTypeLike | None = None, *,
            dim: Axis = None) -> Self:
        """Return the sum along axes. Integers below 32 bits are summed in 32 bits, 16-bit floats in float32.

        >>> Tensor([[1, 2], [3, 4]]).sum(axis=0).tolist()
        [4, 6]
        """
        axes = axes_of("sum", self, axis if dim is None else axis_or_dim("sum", axis, dim))
        result = sum_dtype(self.uop.dtype) if dtype is None else to_dtype(dtype)
        return self._reduce(Ops.ADD, axes, keepdim, self.uop.cast(accumulator(result)), result)

    @in_float32
    def prod(self, axis: Axis = None, keepdim: bool = False, dtype: DTypeLike | None = None, *,
             dim: Axis = None) -> Self:
        """Return the product along axes.

        >>> Tensor([[1, 2], [3, 4]]).prod(axis=1).tolist()
        [2, 12]
        """
        axes = axes_of("prod", self, axis_or_dim("prod", axis, dim))
        result = sum_dtype(self.dtype) if dtype is None else to_dtype(dtype)
        return self._reduce(Ops.MUL, axes, keepdim, self.uop.cast(accumulator(result)), result)

    def max(self, axis: Axis | Self = None, keepdim: bool = False, *, dim: None = None) -> Self:
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

    def min(self, axis: Axis | Self = None, keepdim: bool = False, *, dim: None = None) -> Self:
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

    def any(self, axis: Axis = None, keepdim: bool = False, *, dim: Axis = None) -> Self:
        """Return True where any value along the axes is nonzero.

        >>> Tensor([[0, 2], [0, 0]]).any(axis=1).tolist()
        [True, False]
        """
        return self._reduce(Ops.OR, axes_of("any", self, axis_or_dim("any", axis, dim)), keepdim, self.bool().uop)

    def all(self, axis: Axis = None, keepdim: bool = False, *, dim: Axis = None) -> Self:
        """Return True where all values along the axes are nonzero.

        >>> Tensor([[1, 2], [0, 3]]).all(axis=1).tolist()
        [True, False]
        """
        return self._reduce(Ops.AND, axes_of("all", self, axis_or_dim("all", axis, dim)), keepdim, self.bool().uop)

    def mean(self, axis: Axis = None, keepdim: bool = False, dtype: DTypeLike | None = None, *,
             dim: Axis = None) -> Self:
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
    def var(self, axis: Axis = None, keepdim: bool = False, correction: float = 1, *,
            dim: Axis = None, unbiased: bool | None = None) -> Self:
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

    def _away(self, axes: Axis) -> tuple[Self, Self]:
        """Return (values - computed mean, mean of that): the second is the rounding error of the computed mean.

        The computed mean is detached: derivatives of every order are still right, and the first difference needs no
        reduction in the backward pass.
        """
        away = self.sub(self.detach().mean(axes, keepdim=True))
        return away, away.mean(axes, keepdim=True)

    @rounded_once
    def std(self, axis: Axis = None, keepdim: bool = False, correction: float = 1, *,
            dim: Axis = None, unbiased: bool | None = None) -> Self:
        """Return the standard deviation along axes; ``unbiased=False`` means ``correction=0``.

        >>> Tensor([1., 1., 3., 3.]).std(correction=0).item()
        1.0
        """
        axis = axis_or_dim("std", axis, dim)
        return _root(self.var(axis, keepdim, correction, unbiased=unbiased))

    def var_mean(self, axis: Axis = None, keepdim: bool = False, correction: float = 1, *,
                 dim: Axis = None, unbiased: bool | None = None) -> tuple[Self, Self]:
        """Return the variance and the mean along axes.

        >>> [t.item() for t in Tensor([1., 3.]).var_mean()]
        [2.0, 2.0]
        """
        axis = axis_or_dim("var_mean", axis, dim)
        return (self.var(axis, keepdim, correction, unbiased=unbiased),
                self.mean(None if isinstance(axis, bool) else axis, keepdim))

    def std_mean(self, axis: Axis = None, keepdim: bool = False, correction: float = 1, *,
                 dim: Axis = None, unbiased: bool | None = None) -> tuple[Self, Self]:
        """Return the standard deviation and the mean along axes.

        >>> [t.item() for t in Tensor([1., 3.]).std_mean(correction=0)]
        [1.0, 2.0]
        """
        axis = axis_or_dim("std_mean", axis, dim)
        return (self.std(axis, keepdim, correction, unbiased=unbiased),
                self.mean(None if isinstance(axis, bool) else axis, keepdim))

    def argmax(self, axis: int | None = None, keepdim: bool = False, *, dim: int | None = None) -> Self:
        """Return the index of the first maximum along an axis; NaN counts as greatest. Without an axis: the flat index.

        >>> Tensor([[1, 5, 5], [7, 2, 3]]).argmax(axis=1).tolist()
        [1, 0]
        """
        axis = axis_or_dim("argmax", axis, dim)
        return _position("argmax", Ops.MAX, self, axis, keepdim)

    def argmin(self, axis: int | None = None, keepdim: bool = False, *, dim: int | None = None) -> Self:
        """Return the index of the first minimum along an axis; NaN counts as smallest. Without an axis: the flat index.

        >>> Tensor([[1, 5, 1], [7, 2, 3]]).argmin(axis=1).tolist()
        [0, 1]
        """
        axis = axis_or_dim("argmin", axis, dim)
        return _position("argmin", Ops.MIN, self, axis, keepdim)

    # *** softmax and norms ***

    def _shifted(self, op: str, axis: Axis, dtype: DTypeLike | None,
                 masked: bool = False) -> tuple[Self, tuple[int, ...]]:
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
        top = self._new(UOp(Ops.DETACH, None, (wide.uop,)))._reduce(Ops.MAX, axes, True)  # also of 0 values
        return wide.sub(top.eq(float("-inf")).where(0, top) if masked else top), axes

    @in_float32
    def softmax(self, axis: int = -1, dtype: DTypeLike | None = None, *,
                dim: int | None = None) -> Self:
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

    @in_float32
    def log_softmax(self, axis: int = -1, dtype: DTypeLike | None = None, *,
                    dim: int | None = None) -> Self:
        """Return the logarithm of ``softmax``, computed without overflow.

        >>> Tensor([5.]).log_softmax().tolist()
        [0.0]
        """
        axis = axis_or_dim("log_softmax", axis, dim, -1)
        shifted, axes = self._shifted("log_softmax", axis, dtype)
        total = shifted.exp()._reduce(Ops.ADD, axes, True)
        return shifted.sub(total.log()).cast(float_of(self).dtype if dtype is None else dtype)

    @in_float32
    def softmin(self, axis: int = -1, dtype: DTypeLike | None = None, *,
                dim: int | None = None) -> Self:
        """Return the softmax of the negated values.

        >>> Tensor([0., 0.]).softmin().tolist()
        [0.5, 0.5]
        """
        axis = axis_or_dim("softmin", axis, dim, -1)
        return self.neg().softmax(axis, dtype)

    @in_float32
    def logsumexp(self, axis: Axis = None, keepdim: bool = False, *, dim: Axis = None) -> Self:
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

    @in_float32
    @rounded_once
    def normalize(self, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Self:
        """Scale to p-norm 1 along ``dim``; norms below ``eps`` count as ``eps``.

        >>> Tensor([[3., 4.]]).normalize().numpy().round(3).tolist()
        [[0.6000000238418579, 0.800000011920929]]
        """
        return self.div(self.norm(p, dim, keepdim=True).clamp(eps))

    @in_float32
    @rounded_once
    def norm(self, p: float | str = 2.0, axis: Axis = None, keepdim: bool = False, *,
             dim: Axis = None) -> Self:
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

    # *** scans ***

    def _scan(self, name: str, op: Op, axis: int, x: UOp) -> UOp:
        """Return the inclusive scan of ``x``, which has this tensor's shape, along ``axis``."""
        d = axis_of(name, self, axis)
        return x if not self.ndim or 0 in self.shape else x.scan(op, d)

    @in_float32
    def cumsum(self, axis: int = 0, dtype: DTypeLike | None = None, *, dim: int | None = None) -> Self:
        """Return the running sum along an axis. Integers below 32 bits are summed in 32 bits.

        >>> Tensor([1, 2, 3]).cumsum().tolist()
        [1, 3, 6]

        Raises:
            AxisError: if the axis does not exist.
        """
        result, axis = sum_dtype(self.dtype) if dtype is None else to_dtype(dtype), axis_or_dim("cumsum", axis, dim, 0)
        return self._new(self._scan("cumsum", Ops.ADD, axis, self.uop.cast(accumulator(result))).cast(result))

    @in_float32
    def cumprod(self, axis: int = 0, dtype: DTypeLike | None = None, *, dim: int | None = None) -> Self:
        """Return the running product along an axis.

        >>> Tensor([1, 2, 3, 4]).cumprod().tolist()
        [1, 2, 6, 24]

        Raises:
            AxisError: if the axis does not exist.
        """
        result, axis = sum_dtype(self.dtype) if dtype is None else to_dtype(dtype), axis_or_dim("cumprod", axis, dim, 0)
        return self._new(self._scan("cumprod", Ops.MUL, axis, self.uop.cast(accumulator(result))).cast(result))

    def cummax(self, axis: int = 0, *, dim: int | None = None) -> ValuesAndIndices[Self]:
        """Return the running maximum along an axis and its index; NaN from the first NaN on.

        Of equal elements the last one's index is returned, as in PyTorch.

        >>> values, indices = Tensor([1, 3, 2, 3]).cummax()
        >>> values.tolist(), indices.tolist()
        ([1, 3, 3, 3], [0, 1, 1, 3])

        Raises:
            AxisError: if the axis does not exist.
        """
        return _extremes(self, "cummax", Ops.MAX, axis_or_dim("cummax", axis, dim, 0))

    def cummin(self, axis: int = 0, *, dim: int | None = None) -> ValuesAndIndices[Self]:
        """Return the running minimum along an axis and its index; NaN from the first NaN on.

        >>> values, indices = Tensor([3, 1, 2, 1]).cummin()
        >>> values.tolist(), indices.tolist()
        ([3, 1, 1, 1], [0, 1, 1, 3])

        Raises:
            AxisError: if the axis does not exist.
        """
        return _extremes(self, "cummin", Ops.MIN, axis_or_dim("cummin", axis, dim, 0))

    def logcumsumexp(self, axis: int = 0, *, dim: int | None = None) -> Self:
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

    # *** differences and integrals ***

    def diff(self, n: int = 1, dim: int = -1, prepend: Self | None = None,
             append: Self | None = None) -> Self:
        """Return the differences between adjacent elements along ``dim``, taken ``n`` times.

        >>> Tensor([1, 4, 9]).diff().tolist()
        [3, 5]

        Args:
            prepend, append: tensors concatenated before and after the values along ``dim`` first.
        """
        d, _ = axis_and_size("diff", self, dim)
        if integer("diff", "n", n, least=0) == 0:
            return self._copy()
        parts = [t for t in (prepend, self, append) if t is not None]
        x = parts[0].cat(*parts[1:], dim=d) if len(parts) > 1 else self
        for _ in range(n):
            count = x.shape[d]
            below, above = x.narrow(d, 0, max(count - 1, 0)), x.narrow(d, min(1, count), max(count - 1, 0))
            x = above.ne(below) if x.dtype.is_bool else above.sub(below)
        return x

    def trapezoid(self, x: Self | None = None, *, dx: float = 1.0, dim: int = -1) -> Self:
        """Integrate along ``dim`` by the trapezoidal rule, at the points ``x`` or with spacing ``dx``.

        >>> Tensor([1.0, 2.0, 3.0]).trapezoid().item()
        4.0
        """
        d, count = axis_and_size("trapezoid", self, dim)
        pairs = self.narrow(d, 0, max(count - 1, 0)).add(self.narrow(d, min(1, count), max(count - 1, 0))).mul(0.5)
        if x is None:
            return pairs.sum(d).mul(dx)
        steps = x.diff(dim=-1 if x.ndim == 1 else d)
        return pairs.mul(steps.reshape((-1,) + (1,) * (self.ndim - d - 1)) if x.ndim == 1 else steps).sum(d)

    # *** products ***

    @contraction
    def dot(self, w: Self, dtype: DTypeLike | None = None) -> Self:
        """Return the matrix (or vector) product over the last axis of ``self`` and the second-to-last axis of ``w``.

        Leading axes broadcast. 16-bit floats are multiplied and summed in float32 and rounded once. Integers keep
        their dtype and wrap, as in PyTorch: ``dtype=dtypes.int32`` avoids that for narrower ones.

        >>> Tensor([[1, 2], [3, 4]]).dot(Tensor([1, 1])).tolist()
        [3, 7]

        Raises:
            ShapeError: if the sizes of the summed axes differ.
        """
        y = operand("dot", w, self)
        left, right = self.uop.shape, y.uop.shape
        n, m = len(left), len(right)
        if not n or not m:
            raise ShapeError("dot", f"takes vectors and matrices, got shapes {self.shape} and {y.shape}",
                             "* for scalars")
        inner = -min(m, 2)
        if not equal(left[-1], right[inner]):
            raise ShapeError("dot", f"shapes {self.shape} and {y.shape} do not multiply: axis {n - 1} of the first has "
                             f"{self.shape[-1]}, axis {m + inner} of the second has {y.shape[inner]}",
                             "transpose one of them, or equal sizes")
        if n > 2 and m > 2:
            for a, b in zip(self.shape[-3::-1], y.shape[-3::-1]):
                if not (equal(a, b) or one(a) or one(b)):
                    raise ShapeError("dot", f"the leading axes of shapes {self.shape} and {y.shape} do not broadcast: "
                                     f"{a} and {b}", "equal sizes, or 1, before the last two axes")
        same_device("dot", self, y)
        result, work = result_and_work(dtype, self, y)
        between = (1,) * min(n - 1, m - 1, 1)
        a = self.uop.cast(work).reshape((*left[:-1], *between, left[-1]))
        b = y.uop.cast(work).reshape((*right[:-2], *between, *right[inner:]))
        if m > 1:
            count = m + len(between)
            b = b.permute((*range(count - 2), count - 1, count - 2))
        shape = (left[0], right[1], left[1]) if n == m == 2 else broadcast_shape("dot", a.shape, b.shape)
        products = expand_uop(a, shape) * expand_uop(b, shape)
        return self._new(products.reduce("ADD", (len(shape) - 1,)).reshape(shape[:-1]).cast(result))

    def matmul(self, x: Self, reverse: bool = False, dtype: DTypeLike | None = None) -> Self:
        """Return the same as ``dot``.

        >>> Tensor([[1, 2], [3, 4]]).matmul(Tensor([[1, 0], [0, 1]])).tolist()
        [[1, 2], [3, 4]]
        """
        return operand("matmul", x, self).dot(self, dtype) if reverse else self.dot(x, dtype)

    def linear(self, weight: Self, bias: Self | None = None, dtype: DTypeLike | None = None) -> Self:
        """Return ``self @ weight + bias``; a 1-D weight is multiplied elementwise.

        >>> Tensor([1., 2.]).linear(Tensor([[1., 0.], [0., 2.]]), Tensor([1., 1.])).tolist()
        [2.0, 5.0]
        """
        x = self if dtype is None else self.cast(dtype)
        weight = operand("linear", weight, self)
        bias = None if bias is None else operand("linear", bias, self)
        w = weight if dtype is None else weight.cast(dtype)
        kind = None if dtype is not None or w.ndim < 2 else narrow_dtype(x, w, *([] if bias is None else [bias]))
        if kind is not None:
            out = x.cast(kind).dot(w.cast(kind), dtype=None if bias is None else dtypes.float32)
            return out if bias is None else out.add(bias).cast(kind)  # rounded once
        out = x.mul(w) if w.ndim == 1 else x.dot(w, dtype)
        return out if bias is None else out.add(bias if dtype is None else bias.cast(dtype))

    def outer(self, x: Self) -> Self:
        """Return the outer product of two vectors: ``out[i, j] = self[i] * x[j]``.

        >>> Tensor([1, 2]).outer(Tensor([3, 4])).tolist()
        [[3, 4], [6, 8]]
        """
        x = operand("outer", x, self)
        if self.ndim != 1 or x.ndim != 1:
            raise ShapeError("outer", f"takes two vectors, got shapes {self.shape} and {x.shape}", ".flatten()")
        return self.unsqueeze(1).mul(x.unsqueeze(0))

    @classmethod
    def einsum(cls, formula: str, *operands: Any, dtype: DTypeLike | None = None) -> Self:
        """Sum products of operands over repeated indices (Einstein's summation convention).

        >>> Tensor.einsum("ij,jk->ik", Tensor([[1, 2]]), Tensor([[3], [4]])).tolist()
        [[11]]

        Raises:
            ShapeError: if one letter has two sizes, or the letters do not match the number of axes.
        """
        tensors: list[Self] = list(operands[0]) if len(operands) == 1 and isinstance(operands[0], (tuple, list)) \
            else list(operands)
        if not isinstance(formula, str):
            raise DTypeError("einsum", f"the formula is {shown(formula)}", "Tensor.einsum('ij,jk->ik', a, b)")
        check_tensors("einsum", tensors)
        kind = narrow_dtype(*tensors) if len(tensors) > 1 else None
        if kind is not None:
            tensors = [t.cast(kind) for t in tensors]
        inputs, output = subscript_letters(formula, tensors)
        sizes = letter_sizes(formula, inputs, tensors)
        for letter in output:
            if letter not in sizes or output.count(letter) > 1:
                raise ArgumentError("einsum", f"{formula!r}: letter {letter!r} of the result "
                                    + ("occurs twice" if letter in sizes else "occurs in no operand"),
                                    "each letter once")
        result, work = result_and_work(dtype, *tensors)
        parts = [diagonals(t.cast(work), letters) for t, letters in zip(tensors, inputs)]
        x, have = parts[0]
        for n, (y, more) in enumerate(parts[1:], 2):
            later = {c for _, letters in parts[n:] for c in letters} | set(output)
            x, have = contract(x, have, y, more, later)
        gone = tuple(i for i, c in enumerate(have) if c not in output)
        x = x.sum(gone, dtype=work) if gone else x
        left = [c for c in have if c in output]
        return x.permute(*[left.index(c) for c in output]).cast(result) if output else x.cast(result)

    # *** products and sums ***

    def mm(self, mat2: Self) -> Self:
        """Return the product of two matrices.

        >>> Tensor([[1, 2]]).mm(Tensor([[3], [4]])).tolist()
        [[11]]

        Raises:
            ShapeError: if an operand is not a matrix; ``matmul`` takes vectors and batches.
        """
        return ranked("mm", self, mat2, 2, 2)

    def bmm(self, mat2: Self) -> Self:
        """Return the matrix products of two batches of equal size.

        >>> Tensor([[[1, 2]]]).bmm(Tensor([[[3], [4]]])).tolist()
        [[[11]]]
        """
        return ranked("bmm", self, mat2, 3, 3)

    def mv(self, vec: Self) -> Self:
        """Return the product of a matrix and a vector.

        >>> Tensor([[1, 2]]).mv(Tensor([3, 4])).tolist()
        [11]
        """
        return ranked("mv", self, vec, 2, 1)

    @contraction
    @rounded_once
    def addmm(self, mat1: Self, mat2: Self, *, beta: float = 1, alpha: float = 1) -> Self:
        """Return ``beta * self + alpha * mat1 @ mat2``.

        >>> Tensor([[1]]).addmm(Tensor([[1, 2]]), Tensor([[3], [4]])).tolist()
        [[12]]
        """
        return added(self, ranked("addmm", mat1, mat2, 2, 2, True), beta, alpha)

    @contraction
    @rounded_once
    def addmv(self, mat: Self, vec: Self, *, beta: float = 1, alpha: float = 1) -> Self:
        """Return ``beta * self + alpha * mat @ vec``.

        >>> Tensor([1]).addmv(Tensor([[1, 2]]), Tensor([3, 4])).tolist()
        [12]
        """
        return added(self, ranked("addmv", mat, vec, 2, 1, True), beta, alpha)

    @contraction
    @rounded_once
    def addr(self, vec1: Self, vec2: Self, *, beta: float = 1, alpha: float = 1) -> Self:
        """Return ``beta * self + alpha * outer(vec1, vec2)``.

        >>> Tensor([[1, 1]]).addr(Tensor([2]), Tensor([3, 4])).tolist()
        [[7, 9]]
        """
        return added(self, operand("addr", vec1, self).outer(vec2), beta, alpha)

    @contraction
    @rounded_once
    def baddbmm(self, batch1: Self, batch2: Self, *, beta: float = 1, alpha: float = 1) -> Self:
        """Return ``beta * self + alpha * batch1 @ batch2``.

        >>> Tensor([[[1]]]).baddbmm(Tensor([[[1, 2]]]), Tensor([[[3], [4]]])).tolist()
        [[[12]]]
        """
        return added(self, ranked("baddbmm", batch1, batch2, 3, 3, True), beta, alpha)

    @contraction
    @rounded_once
    def addbmm(self, batch1: Self, batch2: Self, *, beta: float = 1, alpha: float = 1) -> Self:
        """Return ``beta * self + alpha * (batch1 @ batch2).sum(0)``.

        >>> Tensor([[1]]).addbmm(Tensor([[[1]], [[2]]]), Tensor([[[3]], [[4]]])).tolist()
        [[12]]
        """
        return added(self, ranked("addbmm", batch1, batch2, 3, 3, True).sum(0), beta, alpha)

    def inner(self, other: Self) -> Self:
        """Return the sums of products over the last axis of both operands.

        >>> Tensor([1, 2]).inner(Tensor([[3, 4], [5, 6]])).tolist()
        [11, 17]
        """
        y = operand("inner", other, self)
        if not self.ndim or not y.ndim:
            return self.mul(y)
        return self.tensordot(y, ([-1], [-1]))

    def vdot(self, other: Self) -> Self:
        """Return the dot product of two vectors.

        >>> Tensor([1, 2]).vdot(Tensor([3, 4])).item()
        11
        """
        return ranked("vdot", self, other, 1, 1)

    @contraction
    @rounded_once
    def vecdot(self, other: Self, *, dim: int = -1) -> Self:
        """Return the dot product along ``dim``; the other axes broadcast.

        >>> Tensor([[1, 2], [3, 4]]).vecdot(Tensor([1, 1])).tolist()
        [3, 7]
        """
        return self.mul(other).sum(integer("vecdot", "dim", dim))

    def tensordot(self, other: Self, dims: int | Sequence[Sequence[int]] = 2) -> Self:
        """Contract several axes of both operands: sum their products over them.

        >>> Tensor([[1, 2], [3, 4]]).tensordot(Tensor([[1, 1], [1, 1]])).item()
        10

        Args:
            dims: a count (the last axes of ``self`` with the first of ``other``), or one list of axes for each.

        Raises:
            ShapeError: if the axes differ in number or size.
        """
        y = operand("tensordot", other, self)
        if isinstance(dims, (tuple, list)):
            own, its = (integers("tensordot", "dims", d) for d in dims)
        else:
            count = integer("tensordot", "dims", dims, 0, min(self.ndim, y.ndim))
            own, its = tuple(range(self.ndim - count, self.ndim)), tuple(range(count))
        own, its = (tuple(axis_of("tensordot", t, a) for a in axes) for t, axes in ((self, own), (y, its)))
        if len(own) != len(its) or not all(equal(self.shape[a], y.shape[b]) for a, b in zip(own, its)):
            raise ShapeError("tensordot", f"axes {own} of {self.shape} and {its} of {y.shape}", "axes of equal sizes")
        keep, rest = ([a for a in range(t.ndim) if a not in axes] for t, axes in ((self, own), (y, its)))
        left = self.permute(*keep, *own).reshape(counted(self, keep), counted(self, own))
        right = y.permute(*its, *rest).reshape(counted(y, its), counted(y, rest))
        return left.matmul(right).reshape(*[self.shape[a] for a in keep], *[y.shape[a] for a in rest])

    def kron(self, other: Self) -> Self:
        """The Kronecker product: blocks ``self[i, j] * other``.

        >>> Tensor([1, 10]).kron(Tensor([1, 2])).tolist()
        [1, 2, 10, 20]
        """
        y = operand("kron", other, self)
        n = max(self.ndim, y.ndim)
        a, b = ((1,) * (n - t.ndim) + t.shape for t in (self, y))
        left = self.reshape(*[s for size in a for s in (size, 1)])
        right = y.reshape(*[s for size in b for s in (1, size)])
        return left.mul(right).reshape(*[s * t for s, t in zip(a, b)])

    def cross(self, other: Self, dim: int | None = None) -> Self:
        """Return the cross product of 3-vectors along ``dim``.

        >>> Tensor([1, 0, 0]).cross(Tensor([0, 1, 0])).tolist()
        [0, 0, 1]

        Args:
            dim: default: the first axis of size 3.
        """
        y = operand("cross", other, self)
        shape = broadcast_shape("cross", self.shape, y.shape)
        d = next((i for i, s in enumerate(shape) if s == 3), -1) if dim is None else integer("cross", "dim", dim)
        if not shape or shape[d] != 3:
            raise ShapeError("cross", f"shapes {self.shape} and {y.shape} have no axis of size 3 there", "dim=")
        a, b = self.expand(*shape), y.expand(*shape)
        return a.roll(-1, d).mul(b.roll(-2, d)).sub(a.roll(-2, d).mul(b.roll(-1, d)))

    def trace(self) -> Self:
        """Return the sum of the main diagonal of a matrix.

        >>> Tensor([[1, 2], [3, 4]]).trace().item()
        5
        """
        if self.ndim != 2:
            raise ShapeError("trace", f"takes a matrix, got shape {self.shape}", ".diagonal(0, -2, -1).sum(-1)")
        return self.diagonal().sum()

    def vander(self, N: int | None = None, increasing: bool = False) -> Self:
        """The Vandermonde matrix: powers of a vector's elements as columns, the highest power first.

        >>> Tensor([1, 2, 3]).vander().tolist()
        [[1, 1, 1], [4, 2, 1], [9, 3, 1]]
        """
        if self.ndim != 1:
            raise ShapeError("vander", f"takes a vector, got shape {self.shape}", ".flatten()")
        count = int(self.shape[0]) if N is None else integer("vander", "N", N, least=0)
        if not count:
            return self.unsqueeze(1)[:, :0]
        columns = [self.ones_like(requires_grad=False)]
        for _ in range(count - 1):
            columns.append(columns[-1].mul(self))
        ordered = columns if increasing else columns[::-1]
        return ordered[0].stack(*ordered[1:], dim=1)


def _nuclear(x: T, axis: Axis, keepdim: bool) -> T:
    """Return the nuclear norm of the matrices along two axes."""
    axes = axes_of("norm", x, axis)
    if len(axes) != 2:
        raise ShapeError("norm", f"p='nuc' along {len(axes)} axes of shape {x.shape}", "two axes: dim=(-2, -1)")
    values = x.permute(*(a for a in range(x.ndim) if a not in axes), *axes).svdvals().sum(-1)
    return values.reshape(_reduced(x.shape, axes, True)) if keepdim else values


def _root(total: T) -> T:
    """Return the square root of a sum of squares, with gradient 0 where the sum is 0."""
    return with_slopes(total.sqrt(), _root_slope, total._new(float_of(total)))


def _root_slope(g: T, out: T, x: T) -> tuple[T]:
    zero = out.eq(0)
    return (zero.where(0, g.div(zero.where(1, out.mul(2)))),)


def accumulator(dtype: DType) -> DType:
    """Return the dtype in which values of ``dtype`` are summed."""
    return dtypes.float32 if dtype.is_float and dtype.itemsize < 4 else dtype


def _reduced(shape: tuple[Any, ...], axes: tuple[int, ...], keep: bool) -> tuple[Any, ...]:
    if keep:
        return tuple([1 if i in axes else s for i, s in enumerate(shape)])
    return () if len(axes) == len(shape) else tuple([s for i, s in enumerate(shape) if i not in axes])


def _over(total: T, count: Any) -> T:
    """Return ``total / count`` as a multiplication by a constant; ``total * inf`` if ``count`` <= 0."""
    if isinstance(count, UOp):
        return total.div(count)
    return total.mul(1 / count if count > 0 else float("inf"))


def _no_pair(op: str, dim: Any) -> None:
    """Refuse ``dim=``: in PyTorch, ``max(dim=1)`` returns a pair, so a ported program would fail later."""
    if dim is not None:
        raise ArgumentError(op, f"dim={dim!r} asks for PyTorch's pair of values and indices",
                            f"{op}(axis={dim!r}) and arg{op}(axis={dim!r})")


def _nonempty(op: str, x: Reduce, axis: Axis) -> tuple[int, ...]:
    axes = axes_of(op, x, axis)
    if any(x.shape[a] <= 0 for a in axes):
        raise ShapeError(op, f"nothing to take the {op} of along axes {axes} of shape {x.shape}",
                         "at least one element")
    return axes


def _position(op: str, extreme: Op, x: T, axis: int | None, keepdim: bool) -> T:
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


class ValuesAndIndices(NamedTuple, Generic[T]):
    """The result of ``cummax``, ``sort``, ``topk`` and others: unpack it, or read ``.values`` and ``.indices``."""

    values: T
    indices: T


def _extremes(x: T, name: str, op: Op, axis: int) -> ValuesAndIndices[T]:
    wide = x.uop.cast(dtypes.uint8) if x.dtype.is_bool else x.uop
    running = x._scan(name, op, axis, wide)
    at = extreme_position(running) if running is not wide else wide.zeros(dtypes.int32)
    return ValuesAndIndices(x._new(running.cast(x.dtype)), x._new(at.cast(dtypes.default_int)))

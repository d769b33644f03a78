"""Square matrices: Cholesky and LU factorization, triangular solves, inverse and determinant.

On a CPU a factorization is a host call (``tensor/host_data.py``). Elsewhere one of n columns takes n steps of a kernel
or three. The number of the step is a bound variable, so that all steps run the same compiled kernels: 64 columns are
scheduled and run in well under a second.
"""
from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

from tinsmith.core.dtypes import dtypes
from tinsmith.core.errors import DTypeError, ShapeError
from tinsmith.ir import Ops, UOp
from tinsmith.tensor.autograd.backward import with_slopes
from tinsmith.tensor.create.creation import Creation
from tinsmith.tensor.host_data import host_value, on_host

T = TypeVar("T", bound=Creation)
_MOST_STEPS = (1 << 31) - 1


class SignAndLogarithm(NamedTuple, Generic[T]):
    """The result of ``slogdet``: the determinant is ``sign * exp(logabsdet)``."""

    sign: T
    logabsdet: T


def square(op: str, x: Creation) -> int:
    """Return the side of a square matrix, or of each of a batch.

    Raises:
        ShapeError: if it is none.
        DTypeError: for integers and 16-bit floats.
    """
    if x.ndim < 2 or isinstance(x.shape[-1], UOp) or x.shape[-1] != x.shape[-2]:
        raise ShapeError(op, f"takes a square matrix or a batch of them, got shape {x.shape}",
                         "two equal axes at the end")
    check_wide(op, x)
    return int(x.shape[-1])


def check_wide(op: str, x: Creation) -> None:
    """Raise DTypeError unless the dtype is float32 or float64: 16-bit floats are too coarse to factorize."""
    if not x.dtype.is_float or x.dtype.itemsize < 4:
        raise DTypeError(op, f"takes float32 or float64, got {x.dtype!r}", ".float()")


def rows_of(x: T, n: int) -> T:
    """Return the row indices 0 to n - 1 as a column ``[n, 1]``."""
    return x._new(UOp.iota(n)).reshape(n, 1)


def bound_step(x: T, k: int) -> T:
    """Return the number of a step on ``x``, as a variable that a kernel is given when it is launched."""
    return x._new(UOp(Ops.BIND, None, (UOp.variable("step", 0, _MOST_STEPS), UOp.index(k))).cast(dtypes.int32))


def picked(x: T, axis: int, at: T) -> T:
    """Return the elements of ``x`` at index ``at`` (a computed scalar) along ``axis``, which is kept with size 1.

    The gather has a constant shape, so that all steps of an algorithm run one program.
    """
    axis %= x.ndim
    return x._new(x.uop.gather(at.uop.expand_to((*x.shape[:axis], 1, *x.shape[axis + 1 :])), axis))


def cholesky_factor(x: T, n: int) -> T:
    """Cholesky's lower factor."""
    row = rows_of(x, n)
    column = row.transpose(-1, -2)
    for k in range(n):
        at = bound_step(x, k)
        step = picked(x, -1, at)
        root = picked(step, -2, at).sqrt()
        below = row.gt(at).where(step.div(root), row.eq(at).where(root, 0))
        across = row.gt(at).where(below, 0).transpose(-1, -2)
        x = column.eq(at).where(below, x.sub(below.mul(across))).contiguous()
    return x.tril()


def eliminated(x: T, n: int) -> tuple[T, T]:
    """L below the diagonal and U above it, in one matrix, and which row of ``x`` each of its rows was."""
    if on_host(x):
        packed = host_value("lu", (*x.shape[:-1], n + 1), x)
        return packed[..., :n], packed[..., n].cast(dtypes.int32)
    row = rows_of(x, n)
    column = row.transpose(-1, -2)
    order = row.squeeze(-1).expand(*x.shape[:-1])
    for k in range(n):
        at = bound_step(x, k)
        size = row.squeeze(-1).ge(at).where(picked(x, -1, at).squeeze(-1).abs(), -1.0)
        pivot = size.argmax(-1, keepdim=True).contiguous()
        here = row.squeeze(-1)
        swapped = here.eq(at).where(pivot, here.eq(pivot).where(at, here))
        order = order.gather(-1, swapped).contiguous()
        x = x.gather(-2, swapped.unsqueeze(-1).expand(x.shape)).contiguous()
        step = picked(x, -1, at)
        greatest = picked(step, -2, at)  # 0 where all of them are: nothing is left to eliminate
        factor = step.div(greatest.eq(0).where(1, greatest))
        rest = column.eq(at).where(factor, x.sub(factor.mul(picked(x, -2, at))))
        x = (row.gt(at) & column.ge(at)).where(rest, x).contiguous()
    return x, order


def parity(order: T) -> T:
    """1 for an even permutation, -1 for an odd one: by its pairs that are out of order."""
    n = order.shape[-1]
    place = rows_of(order, n)
    pairs = order.unsqueeze(-1).lt(order.unsqueeze(-2)) & place.gt(place.transpose(-1, -2))
    return pairs.cast(dtypes.int32).sum((-2, -1)).mod(2).eq(0).where(1.0, -1.0)


def solved(matrix: T, b: T) -> T:
    if on_host(matrix, b) and matrix.dtype is b.dtype:
        x = host_value("solve", b.shape, matrix.detach(), b.detach())
        return with_slopes(x, _solve_slopes, matrix, b)
    inverse = matrix.detach().inv()
    x = inverse.matmul(b.detach())
    x = x.add(inverse.matmul(b.detach().sub(matrix.detach().matmul(x))))
    return with_slopes(x, _solve_slopes, matrix, b)


def cholesky_slope(g: T, out: T, x: T) -> tuple[T]:
    inverse, n = out.triangular_inverse(), out.shape[-1]
    row = rows_of(out, n)
    column = row.transpose(-1, -2)
    half = out.transpose(-1, -2).matmul(g.tril())
    half = row.gt(column).where(half, row.eq(column).where(half.mul(0.5), 0))
    whole = inverse.transpose(-1, -2).matmul(half).matmul(inverse)
    return (whole.add(whole.transpose(-1, -2)).mul(0.5),)


def lu_slopes(g: T, out: T, x: T) -> tuple[T]:
    """Return the gradient of ``lu`` for L (without its diagonal) and U packed in one matrix, as are their gradients."""
    row = rows_of(out, out.shape[-1])
    lower = row.gt(row.transpose(-1, -2))
    l = lower.where(out, row.eq(row.transpose(-1, -2)).where(1.0, out._zeros())).transpose(-1, -2)
    u = out.triu().transpose(-1, -2)
    inner = lower.where(l.matmul(lower.where(g, 0)), g.triu().matmul(u))
    return (l.triangular_inverse(upper=True, unitriangular=True).matmul(inner).matmul(u.triangular_inverse()),)


def inverse_slope(g: T, out: T, x: T) -> tuple[T]:
    turned = out.transpose(-1, -2)
    return (turned.matmul(g).matmul(turned).neg(),)


def _solve_slopes(g: T, out: T, matrix: T, b: T) -> tuple[T, T]:
    by_b = solved(matrix.transpose(-1, -2), g)
    return by_b.matmul(out.transpose(-1, -2)).neg(), by_b


def det_slope(g: T, out: T, x: T) -> tuple[T]:
    """Return the cofactors, the determinant times the inverse; zero pivots are replaced by small numbers."""
    n = x.shape[-1]
    packed, order = eliminated(x.detach(), n)
    pivots = packed.diagonal(0, -2, -1)
    away = pivots.eq(0).where(dtypes.finfo(x.dtype).eps, 0)
    lower = packed.tril(-1).add(rows_of(packed, n).eq(rows_of(packed, n).transpose(-1, -2)))
    regular = x.add(lower.mul(away.unsqueeze(-2)).gather(-2, order.argsort(-1).unsqueeze(-1).expand(x.shape)))
    near = away.any(-1).where(pivots.add(away).prod(-1).mul(parity(order)), out)
    return (g.mul(near).unsqueeze(-1).unsqueeze(-1).mul(regular.inv().transpose(-1, -2)),)


def slogdet_slope(g: T, out: T, x: T) -> tuple[T]:
    return (g.unsqueeze(-1).unsqueeze(-1).mul(x.inv().transpose(-1, -2)),)

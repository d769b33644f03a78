"""Square matrices: Cholesky and LU factorization, triangular solves, inverse and determinant.

On a CPU a factorization is a host call (``tensor/host_data.py``). Elsewhere one of n columns takes n steps of a kernel
or three. The number of the step is a bound variable, so that all steps run the same compiled kernels: 64 columns are
scheduled and run in well under a second.
"""
# mypy: disable-error-code=misc
# ``self`` is the Tensor that this class is mixed into.
from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tinsmith.core.dtypes import dtypes
from tinsmith.core.errors import ArgumentError, DTypeError, ShapeError
from tinsmith.ir import Ops, UOp
from tinsmith.tensor.arguments import flag
from tinsmith.tensor.autograd.backward import with_slopes
from tinsmith.tensor.base import check_tensors
from tinsmith.tensor.helpers import broadcast_shape
from tinsmith.tensor.host_data import host_value, on_host

if TYPE_CHECKING:
    from tinsmith.tensor.tensor import Tensor

_MOST_STEPS = (1 << 31) - 1


class SignAndLogarithm(NamedTuple):
    """The result of ``slogdet``: the determinant is ``sign * exp(logabsdet)``."""

    sign: Tensor
    logabsdet: Tensor


class Triangles:
    """``cholesky``, ``lu``, ``solve``, ``inv``, ``det``: of a square matrix, or of each of a batch."""

    __slots__ = ()

    def cholesky(self: Tensor, upper: bool = False) -> Tensor:
        """Return the lower triangular L with ``L @ Lᵀ`` the matrix, symmetric and positive definite; n steps of one
        kernel.

        The lower triangle is read. A matrix that is not positive definite gives NaN. The gradient is that of
        I. Murray, Differentiation of the Cholesky decomposition (arXiv:1602.07527), section 4.

        >>> Tensor([[4.0, 2.0], [2.0, 5.0]]).cholesky().tolist()
        [[2.0, 0.0], [1.0, 2.0]]

        Args:
            upper: give Lᵀ instead.

        Raises:
            ShapeError: for what is no square matrix of fixed size.
        """
        n = square("cholesky", self)
        x = self.detach()
        root = host_value("cholesky", x.shape, x) if on_host(x) else _root(x, n)
        out = with_slopes(root, _cholesky_slope, self)
        return out.transpose(-1, -2) if flag("cholesky", "upper", upper) else out

    def cholesky_inverse(self: Tensor, upper: bool = False) -> Tensor:
        """Return the inverse of the matrix that this is the Cholesky factor of.

        >>> Tensor([[2.0, 0.0], [0.0, 1.0]]).cholesky_inverse().tolist()
        [[0.25, 0.0], [0.0, 1.0]]
        """
        inverse = self._lower("cholesky_inverse", upper).triangular_inverse()
        return inverse.transpose(-1, -2).matmul(inverse)

    def cholesky_solve(self: Tensor, factor: Tensor, upper: bool = False) -> Tensor:
        """x with ``A @ x`` this matrix, where ``factor`` is the Cholesky factor of A.

        >>> Tensor([[4.0], [3.0]]).cholesky_solve(Tensor([[2.0, 0.0], [0.0, 1.0]])).tolist()
        [[1.0], [3.0]]
        """
        check_tensors("cholesky_solve", [factor])
        inverse = factor._lower("cholesky_solve", upper).triangular_inverse()
        return inverse.transpose(-1, -2).matmul(inverse.matmul(self))

    def _lower(self: Tensor, op: str, upper: bool) -> Tensor:
        square(op, self)
        return self.transpose(-1, -2) if flag(op, "upper", upper) else self

    def triangular_inverse(self: Tensor, upper: bool = False, unitriangular: bool = False) -> Tensor:
        """Return the inverse of a triangular matrix, from blocks along the diagonal that double: 2 log2(n) products.

        ``[[A, 0], [C, B]]`` has the inverse ``[[A⁻¹, 0], [-B⁻¹ C A⁻¹, B⁻¹]]`` (N. Higham, Accuracy and Stability of
        Numerical Algorithms, 14.2). The other triangle is not read.

        >>> Tensor([[2.0, 0.0], [1.0, 1.0]]).triangular_inverse().tolist()
        [[0.5, 0.0], [-0.5, 1.0]]

        Args:
            upper: the matrix is upper triangular.
            unitriangular: take the diagonal to be ones.
        """
        n = square("triangular_inverse", self)
        if flag("triangular_inverse", "upper", upper):
            return self.transpose(-1, -2).triangular_inverse(False, unitriangular).transpose(-1, -2)
        row = rows_of(self, n)
        column = row.transpose(-1, -2)
        diagonal = self.diagonal(0, -2, -1).unsqueeze(-1)
        first = diagonal.ones_like(requires_grad=False) if flag("triangular_inverse", "unitriangular", unitriangular) \
            else diagonal.reciprocal()
        inverse, size = row.eq(column).where(first, 0), 1
        while size < n:
            together = row.idiv(2 * size).eq(column.idiv(2 * size)) & row.idiv(size).gt(column.idiv(size))
            inverse = inverse.sub(inverse.matmul(together.where(self, 0)).matmul(inverse))
            size *= 2
        return inverse

    def solve_triangular(self: Tensor, other: Tensor, *, upper: bool, left: bool = True,
                         unitriangular: bool = False) -> Tensor:
        """x with ``self @ x`` (``x @ self`` if not ``left``) equal to ``other``, where this matrix is triangular.

        >>> Tensor([[2.0, 0.0], [1.0, 1.0]]).solve_triangular(Tensor([[2.0], [3.0]]), upper=False).tolist()
        [[1.0], [2.0]]
        """
        check_tensors("solve_triangular", [other])
        inverse = self.triangular_inverse(upper, unitriangular)
        return inverse.matmul(other) if flag("solve_triangular", "left", left) else other.matmul(inverse)

    def triangular_solve(self: Tensor, A: Tensor, upper: bool = True, transpose: bool = False,
                         unitriangular: bool = False) -> tuple[Tensor, Tensor]:
        """Return (x, A) with ``A @ x`` (``Aᵀ @ x`` if ``transpose``) this matrix, where A is triangular.

        >>> Tensor([[2.0], [3.0]]).triangular_solve(Tensor([[2.0, 0.0], [1.0, 1.0]]), upper=False)[0].tolist()
        [[1.0], [2.0]]
        """
        check_tensors("triangular_solve", [A])
        inverse = A.triangular_inverse(upper, unitriangular)
        inverse = inverse.transpose(-1, -2) if flag("triangular_solve", "transpose", transpose) else inverse
        return inverse.matmul(self), A

    def lu(self: Tensor, pivot: bool = True, get_infos: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        """Return (P, L, U) such that ``P @ L @ U`` is the matrix: a permutation, a unit lower and an upper triangular
        matrix; n steps.

        Algorithm: Gaussian elimination with partial pivoting. The gradients of L and U follow S. F. Walter, Structured
        higher-order algorithmic differentiation (2012), 5.2.

        >>> p, l, u = Tensor([[0.0, 2.0], [4.0, 2.0]]).lu()
        >>> p.tolist(), u.tolist()
        ([[0.0, 1.0], [1.0, 0.0]], [[4.0, 2.0], [0.0, 2.0]])

        Args:
            pivot: True, as on PyTorch's CPU.
            get_infos: False: a pivot of 0 is on U's diagonal.

        Raises:
            ArgumentError: for other values of these.
        """
        n = square("lu", self)
        if not flag("lu", "pivot", pivot) or flag("lu", "get_infos", get_infos):
            raise ArgumentError("lu", f"pivot={pivot}, get_infos={get_infos}", "pivot=True, and a look at u.diagonal()")
        packed, order = _eliminated(self.detach(), n)
        row = rows_of(self, n)
        column = row.transpose(-1, -2)
        both = with_slopes(packed, _lu_slopes, self.gather(-2, order.unsqueeze(-1).expand(self.shape)))
        lower = row.gt(column).where(both, row.eq(column).where(1.0, both._zeros()))
        return row.eq(order.unsqueeze(-2)).cast(self.dtype), lower, both.triu()

    def inv(self: Tensor) -> Tensor:
        """Return the inverse: by ``lu``, n steps and 4 log2(n) products. A singular matrix gives infinities or NaN.

        >>> Tensor([[2.0, 0.0], [0.0, 4.0]]).inv().tolist()
        [[0.5, 0.0], [0.0, 0.25]]

        Raises:
            ShapeError: for what is no square matrix of fixed size.
        """
        n = square("inv", self)
        x = self.detach()
        if on_host(x):
            return with_slopes(host_value("inv", x.shape, x), _inverse_slope, self)
        packed, order = _eliminated(x, n)
        lower = packed.triangular_inverse(unitriangular=True)
        whole = packed.triangular_inverse(upper=True).matmul(lower)
        place = order.argsort(-1).unsqueeze(-2).expand(self.shape)
        rough = whole.gather(-1, place).contiguous()
        return with_slopes(rough.mul(2).sub(rough.matmul(x).matmul(rough)), _inverse_slope, self)

    def solve(self: Tensor, other: Tensor, *, left: bool = True) -> Tensor:
        """x with ``self @ x`` (``x @ self`` if not ``left``) equal to ``other``: the inverse, and a step of refinement.

        >>> Tensor([[2.0, 0.0], [0.0, 4.0]]).solve(Tensor([2.0, 2.0])).tolist()
        [1.0, 0.5]

        Args:
            other: a matrix or a batch of them, or a vector for each matrix.
        """
        check_tensors("solve", [other])
        square("solve", self)
        if not flag("solve", "left", left):
            return self.transpose(-1, -2).solve(other.transpose(-1, -2)).transpose(-1, -2)
        vector = other.ndim == 1 or (other.ndim == self.ndim - 1 and other.shape == self.shape[:-1])
        b = other.unsqueeze(-1) if vector else other
        if b.shape[-2] != self.shape[-1]:
            raise ShapeError("solve", f"a matrix of shape {self.shape} and a right side of shape {other.shape}",
                             "as many rows as the matrix has")
        batch = broadcast_shape("solve", self.shape[:-2], b.shape[:-2])
        matrix, b = self.expand(*batch, *self.shape[-2:]), b.expand(*batch, *b.shape[-2:])
        x = _solved(matrix, b)
        return x.squeeze(-1) if vector else x

    def det(self: Tensor) -> Tensor:
        """Return the determinant, by ``lu``. For a singular matrix, the gradient is that of a regular matrix within
        rounding error.

        >>> Tensor([[1.0, 2.0], [3.0, 4.0]]).det().numpy().round(4).item()
        -2.0
        """
        n, x = square("det", self), self.detach()
        if on_host(x):
            return with_slopes(host_value("det", x.shape[:-2], x), _det_slope, self)
        packed, order = _eliminated(x, n)
        return with_slopes(packed.diagonal(0, -2, -1).prod(-1).mul(_parity(order)), _det_slope, self)

    def slogdet(self: Tensor) -> SignAndLogarithm:
        """Return the sign of the determinant, and the logarithm of its magnitude.

        >>> [round(t.item(), 4) for t in Tensor([[0.0, 1.0], [1.0, 0.0]]).slogdet()]
        [-1.0, 0.0]
        """
        n, x = square("slogdet", self), self.detach()
        if on_host(x):
            both = host_value("slogdet", (*x.shape[:-2], 2), x)
            return SignAndLogarithm(both[..., 0], with_slopes(both[..., 1], _slogdet_slope, self))
        packed, order = _eliminated(x, n)
        pivots = packed.diagonal(0, -2, -1)
        return SignAndLogarithm(pivots.sign().prod(-1).mul(_parity(order)),
                                with_slopes(pivots.abs().log().sum(-1), _slogdet_slope, self))

    def logdet(self: Tensor) -> Tensor:
        """Return the logarithm of the determinant; NaN where it is negative.

        >>> Tensor([[1.0, 0.0], [0.0, 1.0]]).logdet().item()
        0.0
        """
        sign, size = self.slogdet()
        return sign.lt(0).where(float("nan"), size)


def square(op: str, x: Tensor) -> int:
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


def check_wide(op: str, x: Tensor) -> None:
    """Raise DTypeError unless the dtype is float32 or float64: 16-bit floats are too coarse to factorize."""
    if not x.dtype.is_float or x.dtype.itemsize < 4:
        raise DTypeError(op, f"takes float32 or float64, got {x.dtype!r}", ".float()")


def rows_of(x: Tensor, n: int) -> Tensor:
    """Return the row indices 0 to n - 1 as a column ``[n, 1]``."""
    return x._new(UOp.iota(n)).reshape(n, 1)


def bound_step(x: Tensor, k: int) -> Tensor:
    """Return the number of a step on ``x``, as a variable that a kernel is given when it is launched."""
    return x._new(UOp(Ops.BIND, None, (UOp.variable("step", 0, _MOST_STEPS), UOp.index(k))).cast(dtypes.int32))


def picked(x: Tensor, axis: int, at: Tensor) -> Tensor:
    """Return the elements of ``x`` at index ``at`` (a computed scalar) along ``axis``, which is kept with size 1.

    The gather has a constant shape, so that all steps of an algorithm run one program.
    """
    axis %= x.ndim
    return x._new(x.uop.gather(at.uop.expand_to((*x.shape[:axis], 1, *x.shape[axis + 1 :])), axis))


def _root(x: Tensor, n: int) -> Tensor:
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


def _eliminated(x: Tensor, n: int) -> tuple[Tensor, Tensor]:
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


def _parity(order: Tensor) -> Tensor:
    """1 for an even permutation, -1 for an odd one: by its pairs that are out of order."""
    n = order.shape[-1]
    place = rows_of(order, n)
    pairs = order.unsqueeze(-1).lt(order.unsqueeze(-2)) & place.gt(place.transpose(-1, -2))
    return pairs.cast(dtypes.int32).sum((-2, -1)).mod(2).eq(0).where(1.0, -1.0)


def _solved(matrix: Tensor, b: Tensor) -> Tensor:
    if on_host(matrix, b) and matrix.dtype is b.dtype:
        x = host_value("solve", b.shape, matrix.detach(), b.detach())
        return with_slopes(x, _solve_slopes, matrix, b)
    inverse = matrix.detach().inv()
    x = inverse.matmul(b.detach())
    x = x.add(inverse.matmul(b.detach().sub(matrix.detach().matmul(x))))
    return with_slopes(x, _solve_slopes, matrix, b)


def _cholesky_slope(g: Tensor, out: Tensor, x: Tensor) -> tuple[Tensor]:
    inverse, n = out.triangular_inverse(), out.shape[-1]
    row = rows_of(out, n)
    column = row.transpose(-1, -2)
    half = out.transpose(-1, -2).matmul(g.tril())
    half = row.gt(column).where(half, row.eq(column).where(half.mul(0.5), 0))
    whole = inverse.transpose(-1, -2).matmul(half).matmul(inverse)
    return (whole.add(whole.transpose(-1, -2)).mul(0.5),)


def _lu_slopes(g: Tensor, out: Tensor, x: Tensor) -> tuple[Tensor]:
    """Return the gradient of ``lu`` for L (without its diagonal) and U packed in one matrix, as are their gradients."""
    row = rows_of(out, out.shape[-1])
    lower = row.gt(row.transpose(-1, -2))
    l = lower.where(out, row.eq(row.transpose(-1, -2)).where(1.0, out._zeros())).transpose(-1, -2)
    u = out.triu().transpose(-1, -2)
    inner = lower.where(l.matmul(lower.where(g, 0)), g.triu().matmul(u))
    return (l.triangular_inverse(upper=True, unitriangular=True).matmul(inner).matmul(u.triangular_inverse()),)


def _inverse_slope(g: Tensor, out: Tensor, x: Tensor) -> tuple[Tensor]:
    turned = out.transpose(-1, -2)
    return (turned.matmul(g).matmul(turned).neg(),)


def _solve_slopes(g: Tensor, out: Tensor, matrix: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    by_b = _solved(matrix.transpose(-1, -2), g)
    return by_b.matmul(out.transpose(-1, -2)).neg(), by_b


def _det_slope(g: Tensor, out: Tensor, x: Tensor) -> tuple[Tensor]:
    """Return the cofactors, the determinant times the inverse; zero pivots are replaced by small numbers."""
    n = x.shape[-1]
    packed, order = _eliminated(x.detach(), n)
    pivots = packed.diagonal(0, -2, -1)
    away = pivots.eq(0).where(dtypes.finfo(x.dtype).eps, 0)
    lower = packed.tril(-1).add(rows_of(packed, n).eq(rows_of(packed, n).transpose(-1, -2)))
    regular = x.add(lower.mul(away.unsqueeze(-2)).gather(-2, order.argsort(-1).unsqueeze(-1).expand(x.shape)))
    near = away.any(-1).where(pivots.add(away).prod(-1).mul(_parity(order)), out)
    return (g.mul(near).unsqueeze(-1).unsqueeze(-1).mul(regular.inv().transpose(-1, -2)),)


def _slogdet_slope(g: Tensor, out: Tensor, x: Tensor) -> tuple[Tensor]:
    return (g.unsqueeze(-1).unsqueeze(-1).mul(x.inv().transpose(-1, -2)),)

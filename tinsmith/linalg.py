"""Linear algebra with PyTorch's names: ``tinsmith.linalg.svd(A)`` is ``torch.linalg.svd(A)``.

Matrices are the last two axes; all axes before them are batches. Real numbers only; factorizations take float32 and
float64. On a CPU they call LAPACK, elsewhere they are kernels (see ``Tensor.qr``, ``Tensor.svd``, ``Tensor.lu``).

>>> from tinsmith import linalg
>>> round(linalg.det(Tensor([[2.0, 1.0], [1.0, 3.0]])).item(), 4)
5.0
"""
from __future__ import annotations

import math
import sys
from collections.abc import Sequence

from tinsmith.core.dtypes import DTypeLike
from tinsmith.core.errors import ArgumentError, ShapeError
from tinsmith.core.suggestions import guide
from tinsmith.tensor.arguments import integer
from tinsmith.tensor.base import check_tensors
from tinsmith.tensor.linalg.orthogonal import LeastSquares
from tinsmith.tensor.linalg.triangular import SignAndLogarithm
from tinsmith.tensor.tensor import Tensor

Bound = float | Tensor | None
Axes = int | Sequence[int] | None

_COMPLEX = ".eigh(), .eigvalsh() of symmetric matrices; others have complex ones: np.linalg.eig(x.numpy())"
_CHECKS = "the same without _ex, which does not check either"
ABSENT = {
    "eig": _COMPLEX, "eigvals": _COMPLEX, "cholesky_ex": _CHECKS, "inv_ex": _CHECKS, "solve_ex": _CHECKS,
    "lu_factor": "lu(A), or solve(A, B)", "lu_factor_ex": "lu(A), or solve(A, B)", "lu_solve": "solve(A, B)",
    "ldl_factor": "lu(A), or scipy.linalg.ldl(A.numpy())", "ldl_factor_ex": "lu(A)", "ldl_solve": "solve(A, B)",
    "householder_product": "qr(A)",
}

__all__ = ["cholesky", "cond", "cross", "det", "diagonal", "eigh", "eigvalsh", "inv", "lstsq", "lu", "matmul",
           "matrix_exp", "matrix_norm", "matrix_power", "matrix_rank", "multi_dot", "norm", "pinv", "qr", "slogdet",
           "solve", "solve_triangular", "svd", "svdvals", "tensorinv", "tensorsolve", "vander", "vecdot",
           "vector_norm"]


def norm(x: Tensor, ord: float | str | None = None, dim: Axes = None, keepdim: bool = False, *,
         dtype: DTypeLike | None = None) -> Tensor:
    """Return a vector norm along one axis, or a matrix norm along two.

    Without ``ord``, it is the 2-norm of all elements along ``dim``. With ``ord`` and without ``dim``, ``x`` is a vector
    or a matrix.

    >>> norm(Tensor([[3.0, 0.0], [0.0, 4.0]])).item()
    5.0
    >>> norm(Tensor([[3.0, 0.0], [0.0, 4.0]]), "nuc").numpy().round(4).item()
    7.0

    Raises:
        ShapeError: if ``ord`` is given for a tensor that is neither a vector nor a matrix, without ``dim``.
    """
    axes = (dim,) if isinstance(dim, int) else None if dim is None else tuple(dim)
    if ord is None:
        return vector_norm(x, 2.0, axes, keepdim, dtype=dtype)
    if axes is None and x.ndim not in (1, 2):
        raise ShapeError("norm", f"ord={ord!r} of a tensor of shape {x.shape}", "dim= with one axis or two")
    axes = axes if axes is not None else tuple(range(-x.ndim, 0))
    if len(axes) == 2:
        return matrix_norm(x, ord, axes, keepdim, dtype=dtype)
    if isinstance(ord, str):
        raise ArgumentError("norm", f"ord={ord!r} of vectors", "a number, or two axes")
    return vector_norm(x, ord, axes, keepdim, dtype=dtype)


def vector_norm(x: Tensor, ord: float = 2.0, dim: Axes = None, keepdim: bool = False, *,
                dtype: DTypeLike | None = None) -> Tensor:
    """Return the p-norm of all elements, or along axes; ``ord`` may be infinite, 0 counts the nonzero elements.

    >>> vector_norm(Tensor([3.0, -4.0]), 1).item()
    7.0
    """
    return (x if dtype is None else x.cast(dtype)).norm(ord, dim, keepdim)


def matrix_norm(A: Tensor, ord: float | str = "fro", dim: Sequence[int] = (-2, -1), keepdim: bool = False, *,
                dtype: DTypeLike | None = None) -> Tensor:
    """Return the norm of matrices: "fro", "nuc", 1 (greatest column sum), inf (greatest row sum), 2 (greatest singular
    value); -1, -inf and -2 are the least of these.

    >>> matrix_norm(Tensor([[1.0, -2.0], [3.0, 4.0]]), 1).item()
    6.0

    Raises:
        ArgumentError: for another ``ord``.
    """
    x = A if dtype is None else A.cast(dtype)
    rows, columns = (integer("matrix_norm", "dim", d) % x.ndim for d in dim)
    if ord in ("fro", "nuc"):
        return x.norm(ord, (rows, columns), keepdim)
    if ord in (1, -1, math.inf, -math.inf):
        summed, other = (rows, columns) if abs(float(ord)) == 1 else (columns, rows)
        sums = x.abs().sum(summed, keepdim=True)
        out = sums.max(other, keepdim=True) if float(ord) > 0 else sums.min(other, keepdim=True)
    elif ord in (2, -2):
        s = x.movedim((rows, columns), (-2, -1)).svdvals()
        out = (s[..., 0] if ord == 2 else s[..., -1]).unsqueeze(-1).unsqueeze(-1).movedim((-2, -1), (rows, columns))
    else:
        raise ArgumentError("matrix_norm", f"unknown ord {ord!r}", "'fro', 'nuc', 1, -1, 2, -2, inf or -inf")
    return out if keepdim else out.squeeze((rows, columns))


def diagonal(A: Tensor, *, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """Return the diagonals of matrices, along the last axis: a view.

    >>> diagonal(Tensor([[2.0, 1.0], [1.0, 3.0]])).tolist()
    [2.0, 3.0]
    """
    return A.diagonal(offset, dim1, dim2)


def det(A: Tensor) -> Tensor:
    """Return the determinant.

    >>> round(det(Tensor([[2.0, 1.0], [1.0, 3.0]])).item(), 4)
    5.0
    """
    return A.det()


def slogdet(A: Tensor) -> SignAndLogarithm[Tensor]:
    """Return the sign of the determinant, and the logarithm of its magnitude.

    >>> [round(t.item(), 4) for t in slogdet(Tensor([[2.0, 1.0], [1.0, 3.0]]))]
    [1.0, 1.6094]
    """
    return A.slogdet()


def cond(A: Tensor, p: float | str | None = None) -> Tensor:
    """Return the condition number: the norm of the matrix times that of its inverse; ``p`` as in ``matrix_norm``, 2 by
    default.

    >>> cond(Tensor([[4.0, 0.0], [0.0, 2.0]])).numpy().round(4).item()
    2.0
    >>> cond(Tensor([[4.0, 0.0], [0.0, 2.0]]), 1).item()
    2.0
    """
    if p in (None, 2, -2):
        return A.cond(2.0 if p is None else float(p))
    return matrix_norm(A, p).mul(matrix_norm(A.inv(), p))


def matrix_rank(A: Tensor, *, atol: Bound = None, rtol: Bound = None, hermitian: bool = False) -> Tensor:
    """Return the number of singular values that are greater than ``atol`` and ``rtol`` times the greatest.

    >>> matrix_rank(Tensor([[1.0, 2.0], [2.0, 4.0]])).item()
    1
    """
    return A.matrix_rank(rtol, atol=atol, hermitian=hermitian)


def cholesky(A: Tensor, *, upper: bool = False) -> Tensor:
    """Return the lower triangular L with ``L @ Lᵀ`` the symmetric positive definite matrix; ``upper``: its transpose.

    >>> cholesky(Tensor([[4.0, 2.0], [2.0, 2.0]])).tolist()
    [[2.0, 0.0], [1.0, 1.0]]
    """
    return A.cholesky(upper)


def qr(A: Tensor, mode: str = "reduced") -> tuple[Tensor, Tensor]:
    """Return (Q, R): orthonormal columns and an upper triangular matrix with ``Q @ R = A``.

    >>> [t.shape for t in qr(Tensor.ones(3, 2))]
    [(3, 2), (2, 2)]

    Args:
        mode: "reduced" or "complete".
    """
    return A.qr(mode)


def lu(A: Tensor, *, pivot: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    """Return (P, L, U) with ``P @ L @ U = A``: a permutation, a unit lower and an upper triangular matrix.

    >>> lu(Tensor([[0.0, 2.0], [4.0, 2.0]]))[2].tolist()
    [[4.0, 2.0], [0.0, 2.0]]
    """
    return A.lu(pivot)


def eigh(A: Tensor, UPLO: str = "L") -> tuple[Tensor, Tensor]:
    """Return the eigenvalues of a symmetric matrix in ascending order, and its eigenvectors as columns.

    >>> eigh(Tensor([[3.0, 0.0], [0.0, 2.0]]))[0].numpy().round(4).tolist()
    [2.0, 3.0]

    Args:
        UPLO: the triangle that is read: "L" or "U".
    """
    return A.eigh(UPLO)


def eigvalsh(A: Tensor, UPLO: str = "L") -> Tensor:
    """Return the eigenvalues of a symmetric matrix in ascending order.

    >>> eigvalsh(Tensor([[3.0, 0.0], [0.0, 2.0]])).numpy().round(4).tolist()
    [2.0, 3.0]
    """
    return A.eigvalsh(UPLO)


def svd(A: Tensor, full_matrices: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    """Return (U, S, Vh): orthonormal U and Vh, and singular values in descending order, with ``U @ diag(S) @ Vh = A``.

    >>> svd(Tensor([[0.0, 2.0], [3.0, 0.0]]))[1].numpy().round(4).tolist()
    [3.0, 2.0]

    Args:
        full_matrices: False: as many columns of U and rows of Vh as there are singular values.
    """
    return A.svd(full_matrices)


def svdvals(A: Tensor) -> Tensor:
    """Return the singular values in descending order.

    >>> svdvals(Tensor([[0.0, 2.0], [3.0, 0.0]])).numpy().round(4).tolist()
    [3.0, 2.0]
    """
    return A.svdvals()


def solve(A: Tensor, B: Tensor, *, left: bool = True) -> Tensor:
    """Return X with ``A @ X = B`` (``X @ A = B`` if not ``left``).

    >>> solve(Tensor([[2.0, 0.0], [0.0, 4.0]]), Tensor([2.0, 2.0])).tolist()
    [1.0, 0.5]
    """
    return A.solve(B, left=left)


def solve_triangular(A: Tensor, B: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Tensor:
    """Return X with ``A @ X = B`` (``X @ A = B`` if not ``left``) for a triangular A.

    >>> solve_triangular(Tensor([[2.0, 0.0], [1.0, 1.0]]), Tensor([[2.0], [3.0]]), upper=False).tolist()
    [[1.0], [2.0]]
    """
    return A.solve_triangular(B, upper=upper, left=left, unitriangular=unitriangular)


def lstsq(A: Tensor, B: Tensor) -> LeastSquares[Tensor]:
    """Return the least-squares solution of ``A @ X = B``, and the sum of squared residuals per column. A has full rank.

    >>> lstsq(Tensor([[1.0], [1.0]]), Tensor([[1.0], [3.0]])).solution.numpy().round(4).tolist()
    [[2.0]]
    """
    return A.lstsq(B)


def inv(A: Tensor) -> Tensor:
    """Return the inverse; infinities or NaN for a singular matrix.

    >>> inv(Tensor([[2.0, 0.0], [0.0, 4.0]])).tolist()
    [[0.5, 0.0], [0.0, 0.25]]
    """
    return A.inv()


def pinv(A: Tensor, *, atol: Bound = None, rtol: Bound = None, hermitian: bool = False) -> Tensor:
    """Return the Moore-Penrose pseudo-inverse; singular values up to ``atol`` or ``rtol`` times the greatest are 0.

    >>> pinv(Tensor([[2.0, 0.0], [0.0, 0.0]])).numpy().round(4).tolist()
    [[0.5, 0.0], [0.0, 0.0]]
    """
    return A.pinv(rtol, atol=atol, hermitian=hermitian)


def matrix_exp(A: Tensor) -> Tensor:
    """Return the exponential of a square matrix.

    >>> matrix_exp(Tensor([[0.0, 1.0], [0.0, 0.0]])).numpy().round(4).tolist()
    [[1.0, 1.0], [0.0, 1.0]]
    """
    return A.matrix_exp()


def matrix_power(A: Tensor, n: int) -> Tensor:
    """Return the ``n``-th power of a square matrix; of its inverse where ``n`` is negative.

    >>> matrix_power(Tensor([[1.0, 1.0], [0.0, 1.0]]), 5).tolist()
    [[1.0, 5.0], [0.0, 1.0]]
    """
    return A.matrix_power(n)


def cross(x: Tensor, other: Tensor, *, dim: int = -1) -> Tensor:
    """Return the cross product of 3-vectors along ``dim``.

    >>> cross(Tensor([1, 0, 0]), Tensor([0, 1, 0])).tolist()
    [0, 0, 1]
    """
    return x.cross(other, dim)


def matmul(x: Tensor, other: Tensor) -> Tensor:
    """Return the matrix product.

    >>> matmul(Tensor([[1, 2]]), Tensor([[3], [4]])).tolist()
    [[11]]
    """
    return x.matmul(other)


def vecdot(x: Tensor, y: Tensor, *, dim: int = -1) -> Tensor:
    """Return the sums of products along ``dim``.

    >>> vecdot(Tensor([[1, 2], [3, 4]]), Tensor([1, 1])).tolist()
    [3, 7]
    """
    return x.vecdot(y, dim=dim)


def multi_dot(tensors: Sequence[Tensor]) -> Tensor:
    """Return the product of several matrices, multiplied in an order with few multiplications.

    The first and the last may be vectors.

    >>> multi_dot([Tensor([1, 2]), Tensor([[1], [1]]), Tensor([[5, 6]])]).tolist()
    [15, 18]

    Raises:
        ArgumentError: for less than two tensors.
    """
    if len(tensors) < 2:
        raise ArgumentError("multi_dot", f"got {len(tensors)} tensors", "two or more")
    check_tensors("multi_dot", tensors)
    first, last = tensors[0], tensors[-1]
    left = first.unsqueeze(0) if first.ndim == 1 else first
    right = last.unsqueeze(-1) if last.ndim == 1 else last
    out = left.chain_matmul(*tensors[1:-1], right)
    out = out.squeeze(-1) if last.ndim == 1 else out
    return out.squeeze(0) if first.ndim == 1 else out


def tensorinv(A: Tensor, ind: int = 2) -> Tensor:
    """Return the inverse of the map that ``tensordot(A, X, X.ndim)`` is; the first ``ind`` axes of A are its result.

    >>> tensorinv(Tensor.eye(4).reshape(2, 2, 4), 2).shape
    (4, 2, 2)

    Raises:
        ShapeError: if the axes before ``ind`` and behind it have different numbers of elements.
    """
    ind = integer("tensorinv", "ind", ind, least=1)
    out, into = A.shape[:ind], A.shape[ind:]
    if math.prod(out) != math.prod(into):
        raise ShapeError("tensorinv", f"axes {out} and {into} of shape {A.shape}", "equal products of sizes")
    return A.reshape(math.prod(out), -1).inv().reshape(*into, *out)


def tensorsolve(A: Tensor, B: Tensor, dims: Sequence[int] | None = None) -> Tensor:
    """Return X with ``tensordot(A, X, X.ndim) = B``; axes ``dims`` of A are moved to its end first.

    >>> tensorsolve(Tensor.eye(4).reshape(2, 2, 4), Tensor([[1.0, 2.0], [3.0, 4.0]])).tolist()
    [1.0, 2.0, 3.0, 4.0]

    Raises:
        ShapeError: if the sizes do not fit.
    """
    moved = A if dims is None else A.movedim(tuple(dims), tuple(range(A.ndim - len(dims), A.ndim)))
    into = moved.shape[B.ndim :]
    if math.prod(into) != B.numel():
        raise ShapeError("tensorsolve", f"shapes {A.shape} and {B.shape}", "as many unknowns as B has elements")
    return moved.reshape(B.numel(), -1).solve(B.flatten()).reshape(into)


def vander(x: Tensor, *, N: int | None = None) -> Tensor:
    """Return Vandermonde matrices: powers 0 to ``N - 1`` of the elements of the last axis, ``[…, n] → […, n, N]``.

    >>> vander(Tensor([1, 2, 3])).tolist()
    [[1, 1, 1], [1, 2, 4], [1, 3, 9]]

    Raises:
        ShapeError: for a 0-d tensor.
    """
    if not x.ndim:
        raise ShapeError("vander", f"takes vectors, got shape {x.shape}", ".reshape(1)")
    columns = [x.ones_like(requires_grad=False)]
    for _ in range((x.shape[-1] if N is None else integer("vander", "N", N, least=1)) - 1):
        columns.append(columns[-1].mul(x))
    return columns[0].stack(*columns[1:], dim=-1)


guide(sys.modules[__name__])

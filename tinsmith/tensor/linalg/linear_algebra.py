"""Methods of linear algebra and Fourier transforms; ``tinsmith.linalg`` and ``tinsmith.fft`` are their functions."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from tinsmith.core.errors import ArgumentError, ShapeError
from tinsmith.tensor.arguments import choice, flag, integer, integers, number
from tinsmith.tensor.autograd.backward import with_slopes
from tinsmith.tensor.base import check_tensors
from tinsmith.tensor.create.creation import Creation
from tinsmith.tensor.fft import (
    Axes,
    Sizes,
    along_axis,
    complex_pairs,
    conjugation,
    fitted,
    inverse_real,
    overlapped,
    real_transformed,
    transform_axes,
    transform_axis,
    transformed,
    turned,
    window_values,
)
from tinsmith.tensor.helpers import axis_of, broadcast_shape, float_of
from tinsmith.tensor.host_data import host_value, on_host
from tinsmith.tensor.linalg.orthogonal import (
    MOST_SQUARES,
    TERMS,
    Bound,
    LeastSquares,
    cutoff,
    factor_slope,
    identity,
    matrix_sides,
    pseudo_inverse_slope,
    q_slope,
    reflected,
    rotated,
    side_by_side,
    singular_slope,
    symmetric_matrix,
    symmetric_slope,
    symmetric_vectors,
    value_slope,
    vector_slope,
)
from tinsmith.tensor.linalg.triangular import (
    SignAndLogarithm,
    cholesky_factor,
    cholesky_slope,
    det_slope,
    eliminated,
    inverse_slope,
    lu_slopes,
    parity,
    rows_of,
    slogdet_slope,
    solved,
    square,
)


class LinearAlgebra(Creation):
    """Factorizations, solvers and norms of matrices; Fourier transforms."""

    __slots__ = ()

    # *** triangular matrices and systems ***

    def cholesky(self, upper: bool = False) -> Self:
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
        root = host_value("cholesky", x.shape, x) if on_host(x) else cholesky_factor(x, n)
        out = with_slopes(root, cholesky_slope, self)
        return out.transpose(-1, -2) if flag("cholesky", "upper", upper) else out

    def cholesky_inverse(self, upper: bool = False) -> Self:
        """Return the inverse of the matrix that this is the Cholesky factor of.

        >>> Tensor([[2.0, 0.0], [0.0, 1.0]]).cholesky_inverse().tolist()
        [[0.25, 0.0], [0.0, 1.0]]
        """
        inverse = self._lower("cholesky_inverse", upper).triangular_inverse()
        return inverse.transpose(-1, -2).matmul(inverse)

    def cholesky_solve(self, factor: Self, upper: bool = False) -> Self:
        """x with ``A @ x`` this matrix, where ``factor`` is the Cholesky factor of A.

        >>> Tensor([[4.0], [3.0]]).cholesky_solve(Tensor([[2.0, 0.0], [0.0, 1.0]])).tolist()
        [[1.0], [3.0]]
        """
        check_tensors("cholesky_solve", [factor])
        inverse = factor._lower("cholesky_solve", upper).triangular_inverse()
        return inverse.transpose(-1, -2).matmul(inverse.matmul(self))

    def _lower(self, op: str, upper: bool) -> Self:
        square(op, self)
        return self.transpose(-1, -2) if flag(op, "upper", upper) else self

    def triangular_inverse(self, upper: bool = False, unitriangular: bool = False) -> Self:
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

    def solve_triangular(self, other: Self, *, upper: bool, left: bool = True,
                         unitriangular: bool = False) -> Self:
        """x with ``self @ x`` (``x @ self`` if not ``left``) equal to ``other``, where this matrix is triangular.

        >>> Tensor([[2.0, 0.0], [1.0, 1.0]]).solve_triangular(Tensor([[2.0], [3.0]]), upper=False).tolist()
        [[1.0], [2.0]]
        """
        check_tensors("solve_triangular", [other])
        inverse = self.triangular_inverse(upper, unitriangular)
        return inverse.matmul(other) if flag("solve_triangular", "left", left) else other.matmul(inverse)

    def triangular_solve(self, A: Self, upper: bool = True, transpose: bool = False,
                         unitriangular: bool = False) -> tuple[Self, Self]:
        """Return (x, A) with ``A @ x`` (``Aᵀ @ x`` if ``transpose``) this matrix, where A is triangular.

        >>> Tensor([[2.0], [3.0]]).triangular_solve(Tensor([[2.0, 0.0], [1.0, 1.0]]), upper=False)[0].tolist()
        [[1.0], [2.0]]
        """
        check_tensors("triangular_solve", [A])
        inverse = A.triangular_inverse(upper, unitriangular)
        inverse = inverse.transpose(-1, -2) if flag("triangular_solve", "transpose", transpose) else inverse
        return inverse.matmul(self), A

    def lu(self, pivot: bool = True, get_infos: bool = False) -> tuple[Self, Self, Self]:
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
        packed, order = eliminated(self.detach(), n)
        row = rows_of(self, n)
        column = row.transpose(-1, -2)
        both = with_slopes(packed, lu_slopes, self.gather(-2, order.unsqueeze(-1).expand(self.shape)))
        lower = row.gt(column).where(both, row.eq(column).where(1.0, both._zeros()))
        return row.eq(order.unsqueeze(-2)).cast(self.dtype), lower, both.triu()

    def inv(self) -> Self:
        """Return the inverse: by ``lu``, n steps and 4 log2(n) products. A singular matrix gives infinities or NaN.

        >>> Tensor([[2.0, 0.0], [0.0, 4.0]]).inv().tolist()
        [[0.5, 0.0], [0.0, 0.25]]

        Raises:
            ShapeError: for what is no square matrix of fixed size.
        """
        n = square("inv", self)
        x = self.detach()
        if on_host(x):
            return with_slopes(host_value("inv", x.shape, x), inverse_slope, self)
        packed, order = eliminated(x, n)
        lower = packed.triangular_inverse(unitriangular=True)
        whole = packed.triangular_inverse(upper=True).matmul(lower)
        place = order.argsort(-1).unsqueeze(-2).expand(self.shape)
        rough = whole.gather(-1, place).contiguous()
        return with_slopes(rough.mul(2).sub(rough.matmul(x).matmul(rough)), inverse_slope, self)

    def solve(self, other: Self, *, left: bool = True) -> Self:
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
        x = solved(matrix, b)
        return x.squeeze(-1) if vector else x

    def det(self) -> Self:
        """Return the determinant, by ``lu``. For a singular matrix, the gradient is that of a regular matrix within
        rounding error.

        >>> Tensor([[1.0, 2.0], [3.0, 4.0]]).det().numpy().round(4).item()
        -2.0
        """
        n, x = square("det", self), self.detach()
        if on_host(x):
            return with_slopes(host_value("det", x.shape[:-2], x), det_slope, self)
        packed, order = eliminated(x, n)
        return with_slopes(packed.diagonal(0, -2, -1).prod(-1).mul(parity(order)), det_slope, self)

    def slogdet(self) -> SignAndLogarithm[Self]:
        """Return the sign of the determinant, and the logarithm of its magnitude.

        >>> [round(t.item(), 4) for t in Tensor([[0.0, 1.0], [1.0, 0.0]]).slogdet()]
        [-1.0, 0.0]
        """
        n, x = square("slogdet", self), self.detach()
        if on_host(x):
            both = host_value("slogdet", (*x.shape[:-2], 2), x)
            return SignAndLogarithm(both[..., 0], with_slopes(both[..., 1], slogdet_slope, self))
        packed, order = eliminated(x, n)
        pivots = packed.diagonal(0, -2, -1)
        return SignAndLogarithm(pivots.sign().prod(-1).mul(parity(order)),
                                with_slopes(pivots.abs().log().sum(-1), slogdet_slope, self))

    def logdet(self) -> Self:
        """Return the logarithm of the determinant; NaN where it is negative.

        >>> Tensor([[1.0, 0.0], [0.0, 1.0]]).logdet().item()
        0.0
        """
        sign, size = self.slogdet()
        return sign.lt(0).where(float("nan"), size)

    # *** orthogonal factorizations ***

    def qr(self, mode: str = "reduced") -> tuple[Self, Self]:
        """Return (Q, R) with orthonormal columns in Q, R upper triangular, Q @ R the matrix: by Householder's
        reflections.

        The gradient is that of S. F. Walter, L. Lehmann and R. Lamour, On evaluating higher-order derivatives of the QR
        decomposition (2012): it supposes that the first columns are independent.

        >>> q, r = Tensor([[3.0, 1.0], [4.0, 2.0]]).qr()
        >>> (q @ r).numpy().round(4).tolist(), q[:, 0].numpy().round(4).tolist()
        ([[3.0, 1.0], [4.0, 2.0]], [-0.6000000238418579, -0.800000011920929])

        Args:
            mode: "reduced" for as many columns in Q as the shorter side has, "complete" for a square Q.

        Raises:
            ShapeError: for what is no matrix of fixed size.
        """
        rows, columns = matrix_sides("qr", self, empty=True)
        choice("qr", "mode", mode, ("reduced", "complete"))
        if not rows or not columns:
            q = identity(self, rows)
            return (q if mode == "complete" else q[..., :0]), self if mode == "complete" else self[..., :0, :]
        q = with_slopes(reflected(self.detach(), rows, columns), q_slope, self)
        q = q[..., : min(rows, columns)] if mode == "reduced" else q
        return q, q.transpose(-1, -2).matmul(self).triu()

    def svd(self, full_matrices: bool = True) -> tuple[Self, Self, Self]:
        """Return (U, S, Vh) such that U @ diag(S) @ Vh is the matrix, with orthonormal U and Vh, and S in descending
        order.

        Algorithm: one-sided Jacobi rotations (G. Golub, C. Van Loan, Matrix Computations, 8.6.3). Gradients of U and Vh
        require distinct singular values (J. Townsend, Differentiating the singular value decomposition, 2016). From 16
        columns on, the rotations are realized at once, sweep by sweep, so that one schedule serves all sweeps.

        >>> u, s, v = Tensor([[3.0, 0.0], [0.0, -4.0]]).svd()
        >>> s.numpy().round(4).tolist(), (u @ s.diag() @ v).numpy().round(4).tolist()
        ([4.0, 3.0], [[3.0, 0.0], [0.0, -4.0]])

        Args:
            full_matrices: square U and Vh; False leaves out what S has no value for.

        Raises:
            ShapeError: for what is no matrix of fixed size.
        """
        rows, columns = matrix_sides("svd", self, empty=True)
        full = flag("svd", "full_matrices", full_matrices)
        if not rows or not columns:
            u, v = identity(self, rows), identity(self, columns)
            none = self.sum((-2, -1)).unsqueeze(-1)[..., :0]
            return (u, none, v) if full else (u[..., :0], none, v[..., :0, :])
        if rows < columns:
            v, s, u = self.transpose(-1, -2).svd(full)
            return u.transpose(-1, -2), s, v.transpose(-1, -2)
        if on_host(self):
            packed = host_value("svd", (*self.shape[:-2], rows + columns + 1, rows + columns), self.detach())
            sides, s = packed[..., :-1, :], packed[..., -1, :columns]
        else:
            left, s, right = rotated(self.detach())
            sides = side_by_side(left, right)
        both = with_slopes(sides, factor_slope, self)
        u, v = both[..., :rows, :rows], both[..., rows:, rows:]
        s = with_slopes(s, singular_slope, self, both)
        return (u if full else u[..., :columns]), s, v.transpose(-1, -2)

    def svdvals(self) -> Self:
        """Return the singular values, from the greatest down.

        >>> Tensor([[3.0, 0.0], [0.0, -4.0]]).svdvals().numpy().round(4).tolist()
        [4.0, 3.0]
        """
        return self.svd(full_matrices=False)[1]

    def eigh(self, UPLO: str = "L") -> tuple[Self, Self]:
        """Return (values, vectors) of a symmetric matrix: values in ascending order, vectors in the columns.

        By the rotations of ``svd`` of the matrix shifted to be positive. Gradients of vectors suppose different values
        (M. Giles, An extended collection of matrix derivative results, 2008, 3.1).

        >>> values, vectors = Tensor([[2.0, 1.0], [1.0, 2.0]]).eigh()
        >>> values.numpy().round(4).tolist(), (vectors * values @ vectors.T).numpy().round(3).tolist()
        ([1.0, 3.0], [[2.0, 1.0], [1.0, 2.0]])

        Args:
            UPLO: the triangle that is read, "L" or "U".
        """
        square("eigh", self)
        x, lower = self.detach(), choice("eigh", "UPLO", UPLO, ("L", "U")) == "L"
        half, other = (x.tril(), x.tril(-1)) if lower else (x.triu(), x.triu(1))
        whole = with_slopes(half.add(other.transpose(-1, -2)), symmetric_slope, self)
        if on_host(x):
            packed = host_value("eigh", (*x.shape[:-2], x.shape[-1] + 1, x.shape[-1]), whole.detach())
            vectors = with_slopes(packed[..., :-1, :], vector_slope, whole)
            return with_slopes(packed[..., -1, :], value_slope, whole, vectors), vectors
        vectors = with_slopes(symmetric_vectors(whole.detach()), vector_slope, whole)
        values = vectors.mul(whole.matmul(vectors)).sum(-2)
        return values, vectors

    def eigvalsh(self, UPLO: str = "L") -> Self:
        """Return the eigenvalues of a symmetric matrix, in ascending order.

        >>> Tensor([[2.0, 1.0], [1.0, 2.0]]).eigvalsh().numpy().round(4).tolist()
        [1.0, 3.0]
        """
        return self.eigh(UPLO)[0]

    def newton_schulz(self, steps: int, params: Sequence[float], eps: float = 1e-7) -> Self:
        """Iterate an odd polynomial on the matrix, scaled to norm 1: with suitable coefficients, the singular values
        converge to 1.

        One step is ``p0 X + p1 (X Xᵀ) X + p2 (X Xᵀ)² X + …``, as in the optimizer Muon.

        >>> Tensor([[2.0, 0.0], [0.0, 1.0]]).newton_schulz(10, (2, -1.5, 0.5)).numpy().round(3).tolist()
        [[1.0, 0.0], [0.0, 1.0]]
        """
        matrix_sides("newton_schulz", self)
        steps = integer("newton_schulz", "steps", steps, least=0)
        factors = [number("newton_schulz", "params", p) for p in params]
        wide = self.shape[-2] <= self.shape[-1]
        x = self if wide else self.transpose(-1, -2)
        x = x.div(x.square().sum((-2, -1), keepdim=True).sqrt().add(number("newton_schulz", "eps", eps)))
        for _ in range(steps):
            square = x.matmul(x.transpose(-1, -2))
            total = x.mul(factors[-1])
            for p in reversed(factors[:-1]):
                total = square.matmul(total).add(x.mul(p))
            x = total
        return x if wide else x.transpose(-1, -2)

    # *** functions of matrices ***

    def lstsq(self, other: Self) -> LeastSquares[Self]:
        """Return the least-squares solution x of ``self @ x = other``, and the sum of squared residuals per column.

        If there are several solutions, x is that of least norm. By ``qr``, for matrices of full rank.

        >>> Tensor([[1.0], [1.0]]).lstsq(Tensor([[1.0], [3.0]])).solution.numpy().round(4).tolist()
        [[2.0]]

        Raises:
            ShapeError: if the sides do not fit.
        """
        check_tensors("lstsq", [other])
        vector = other.ndim == 1
        b = other.unsqueeze(-1) if vector else other
        if self.ndim < 2 or b.shape[-2] != self.shape[-2]:
            raise ShapeError("lstsq", f"a matrix of shape {self.shape} and a right side of shape {other.shape}",
                             "as many rows as the matrix has")
        tall = self.shape[-2] >= self.shape[-1]
        q, r = (self if tall else self.transpose(-1, -2)).qr()
        if tall:
            x = r.triangular_inverse(upper=True).matmul(q.transpose(-1, -2).matmul(b))
        else:
            x = q.matmul(r.triangular_inverse(upper=True).transpose(-1, -2).matmul(b))
        left = self.matmul(x).sub(b).square().sum(-2)
        return LeastSquares(x.squeeze(-1), left.squeeze(-1)) if vector else LeastSquares(x, left)

    def pinv(self, rtol: Bound = None, *, atol: Bound = None, hermitian: bool = False) -> Self:
        """Return the Moore-Penrose pseudo-inverse, by ``svd``; small singular values are treated as 0.

        The gradient follows G. Golub and V. Pereyra, The differentiation of pseudo-inverses (1973), (4.12).

        >>> Tensor([[2.0, 0.0], [0.0, 0.0]]).pinv().numpy().round(4).tolist()
        [[0.5, 0.0], [0.0, 0.0]]

        Args:
            rtol: those up to ``rtol`` times the greatest are small: a number, or a tensor of one for each matrix. By
                default the longer side times the distance of floats at 1, or 0 beside ``atol``.
            atol: those up to ``atol`` are small, too.
            hermitian: the matrix is symmetric: only its lower triangle is read.
        """
        x = self.detach()
        u, s, v = (symmetric_matrix("pinv", x) if flag("pinv", "hermitian", hermitian) else x).svd(full_matrices=False)
        large = s.gt(cutoff("pinv", self, s, rtol, atol))
        inverse = large.where(large.where(s, 1.0).reciprocal(), 0.0)
        return with_slopes(v.transpose(-1, -2).mul(inverse.unsqueeze(-2)).matmul(u.transpose(-1, -2)),
                           pseudo_inverse_slope, self)

    def matrix_rank(self, rtol: Bound = None, *, atol: Bound = None, hermitian: bool = False) -> Self:
        """Return the number of singular values that are not small: ``pinv`` has the arguments.

        >>> Tensor([[1.0, 2.0], [2.0, 4.0]]).matrix_rank().item()
        1
        """
        x = symmetric_matrix("matrix_rank", self) if flag("matrix_rank", "hermitian", hermitian) else self
        s = x.detach().svdvals()
        return s.gt(cutoff("matrix_rank", x, s, rtol, atol)).sum(-1)

    def cond(self, p: float = 2.0) -> Self:
        """Return the condition number: the greatest singular value over the smallest.

        >>> Tensor([[4.0, 0.0], [0.0, 2.0]]).cond().numpy().round(4).item()
        2.0

        Args:
            p: 2, or -2 for the inverse of it.
        """
        s = self.svdvals()
        large, small = s[..., 0], s[..., -1]
        return small.div(large) if number("cond", "p", p, -2, 2, zero=False) < 0 else large.div(small)

    def matrix_power(self, n: int) -> Self:
        """Return the n-th power of a square matrix, by repeated squaring; of its inverse where n is negative.

        >>> Tensor([[1.0, 1.0], [0.0, 1.0]]).matrix_power(5).tolist()
        [[1.0, 5.0], [0.0, 1.0]]
        """
        n = integer("matrix_power", "n", n)
        if self.ndim < 2 or self.shape[-1] != self.shape[-2]:
            raise ShapeError("matrix_power", f"takes a square matrix, got shape {self.shape}",
                             "two equal axes at the end")
        base, out = self.inv() if n < 0 else self, None
        for bit in bin(abs(n))[:1:-1]:
            out = (base if out is None else out.matmul(base)) if bit == "1" else out
            base = base.matmul(base) if n else base
        return identity(self, self.shape[-1]) if out is None else out

    def matrix_exp(self) -> Self:
        """Return the exponential of a square matrix: its series, of the matrix halved s times, squared s times (s <=
        24).

        >>> Tensor([[0.0, 1.0], [0.0, 0.0]]).matrix_exp().numpy().round(4).tolist()
        [[1.0, 1.0], [0.0, 1.0]]
        """
        n = square("matrix_exp", self)
        if not n:
            return self
        size = self.detach().abs().sum(-2, keepdim=True).max(-1, keepdim=True)
        halvings = size.maximum(1e-30).log2().add(1).ceil().clamp(0, MOST_SQUARES)
        x = self.mul(halvings.neg().exp2()).contiguous()
        out = term = identity(self, n).add(x)
        term = x
        for k in range(2, TERMS[self.dtype.itemsize] + 2):
            term = term.matmul(x).mul(1 / k)
            out = out.add(term)
        out = out.contiguous()
        for k in range(MOST_SQUARES):
            out = halvings.gt(k).where(out.matmul(out), out)
        return out

    def chain_matmul(self, *others: Self) -> Self:
        """Return the product of several matrices, multiplied in the order with the fewest multiplications.

        >>> Tensor([[1, 2]]).chain_matmul(Tensor([[1], [1]]), Tensor([[5, 6]])).tolist()
        [[15, 18]]
        """
        check_tensors("chain_matmul", others)
        parts = [self, *others]
        while len(parts) > 1:  # the pair whose inner axis is the longest saves the most
            at = max(range(len(parts) - 1), key=lambda i: parts[i].shape[-1])
            parts[at : at + 2] = [parts[at].matmul(parts[at + 1])]
        return parts[0]

    # *** Fourier transforms ***

    def complex(self, imag: Self | None = None) -> Self:
        """Complex numbers of real and imaginary parts: pairs along a new last axis.

        >>> Tensor([1.0, 2.0]).complex().tolist(), Tensor([1.0]).complex(Tensor([3.0])).tolist()
        ([[1.0, 0.0], [2.0, 0.0]], [[1.0, 3.0]])

        Args:
            imag: zeros by default.
        """
        real = self._new(float_of(self))
        if imag is None:
            return real.unsqueeze(-1).pad((None,) * self.ndim + ((0, 1),))
        check_tensors("complex", [imag])
        shape = broadcast_shape("complex", self.shape, imag.shape)
        return real.broadcast_to(shape).stack(imag.cast(real.dtype).broadcast_to(shape), dim=-1)

    def polar(self, angle: Self) -> Self:
        """Complex numbers of these magnitudes and angles in radians, as pairs.

        >>> Tensor([2.0]).polar(Tensor([0.0])).tolist()
        [[2.0, 0.0]]
        """
        check_tensors("polar", [angle])
        return self.mul(angle.cos()).complex(self.mul(angle.sin()))

    def complex_mul(self, other: Self) -> Self:
        """Return the product of complex numbers, given as pairs along the last axes.

        >>> Tensor([0.0, 1.0]).complex_mul(Tensor([0.0, 1.0])).tolist()
        [-1.0, 0.0]
        """
        check_tensors("complex_mul", [other])
        for t in (self, other):
            complex_pairs("complex_mul", t)
        (a, b), (c, d) = ((t[..., 0], t[..., 1]) for t in (self, other))
        return a.mul(c).sub(b.mul(d)).complex(a.mul(d).add(b.mul(c)))

    def fft(self, n: int | None = None, dim: int = -1, norm: str | None = None) -> Self:
        """Return the discrete Fourier transform of complex numbers, given and returned as pairs along the last axis.

        Of real values it is ``x.complex().fft()``, or ``x.rfft()`` for the half that is not redundant.

        >>> Tensor([1.0, 2.0, 3.0, 4.0]).complex().fft().numpy().round(4).tolist()
        [[10.0, 0.0], [-2.0, 2.0], [-2.0, 0.0], [-2.0, -2.0]]

        Args:
            n: cut or fill up with zeros to so many values first.
            dim: the axis to transform; the axis of pairs does not count.

        Raises:
            ShapeError: if the last axis has no pairs.
        """
        return transformed(self, "fft", n, dim, norm, False)

    def ifft(self, n: int | None = None, dim: int = -1, norm: str | None = None) -> Self:
        """Return the inverse of ``fft``.

        >>> Tensor([[4.0, 0.0], [0.0, 0.0]]).ifft().tolist()
        [[2.0, 0.0], [2.0, 0.0]]
        """
        return transformed(self, "ifft", n, dim, norm, True)

    def rfft(self, n: int | None = None, dim: int = -1, norm: str | None = None) -> Self:
        """Return the first ``n // 2 + 1`` values of the transform of real numbers, as pairs along a new last axis.

        >>> Tensor([1.0, 2.0, 3.0, 4.0]).rfft().numpy().round(4).tolist()
        [[10.0, 0.0], [-2.0, 2.0], [-2.0, 0.0]]
        """
        d = axis_of("rfft", self, dim)
        count = self.shape[d] if n is None else integer("rfft", "n", n, least=1)
        if isinstance(count, int) and count and count % 2 == 0:
            return real_transformed(fitted(self, count, d), d, norm)
        full = transformed(self.complex(), "rfft", n, d, norm, False)
        return full[(slice(None),) * d + (slice(0, full.shape[d] // 2 + 1),)]

    def irfft(self, n: int | None = None, dim: int = -1, norm: str | None = None) -> Self:
        """Return the real values whose ``rfft`` this is, given as pairs along the last axis.

        >>> Tensor([1.0, 2.0, 3.0, 4.0]).rfft().irfft().numpy().round(4).tolist()
        [1.0, 2.0, 3.0, 4.0]

        Args:
            n: how many; an even number by default.
        """
        d = transform_axis("irfft", self, dim)
        count = 2 * (self.shape[d] - 1) if n is None else integer("irfft", "n", n, least=1)
        half = fitted(self, count // 2 + 1, d)
        if count and count % 2 == 0:
            return inverse_real(half, d, norm)
        rest = half[(slice(None),) * d + (slice(1, (count + 1) // 2),)].flip(d).mul(conjugation(self))
        return transformed(half.cat(rest, dim=d), "irfft", None, d, norm, True)[..., 0]

    def hfft(self, n: int | None = None, dim: int = -1, norm: str | None = None) -> Self:
        """Return the transform of a signal whose second half mirrors the first (``n // 2 + 1`` pairs): real values.

        >>> Tensor([[1.0, 0.0], [0.0, 0.0]]).hfft().tolist()
        [1.0, 1.0]
        """
        complex_pairs("hfft", self)
        return self.mul(conjugation(self)).irfft(n, dim, turned(norm))

    def ihfft(self, n: int | None = None, dim: int = -1, norm: str | None = None) -> Self:
        """Return the inverse of ``hfft``, as pairs.

        >>> Tensor([1.0, 1.0]).ihfft().abs().tolist()
        [[1.0, 0.0], [0.0, 0.0]]
        """
        return self.rfft(n, dim, turned(norm)).mul(conjugation(self))

    def fftn(self, s: Sizes = None, dim: Axes = None, norm: str | None = None) -> Self:
        """Return ``fft`` along several axes: all of them by default.

        >>> Tensor([[1.0, 2.0]]).complex().fftn().tolist()
        [[[3.0, 0.0], [-1.0, 0.0]]]
        """
        return along_axis("fftn", self, s, dim, norm, False)

    def ifftn(self, s: Sizes = None, dim: Axes = None, norm: str | None = None) -> Self:
        """Return ``ifft`` along several axes.

        >>> Tensor([[1.0, 2.0]]).complex().fftn().ifftn().tolist()
        [[[1.0, 0.0], [2.0, 0.0]]]
        """
        return along_axis("ifftn", self, s, dim, norm, True)

    def rfftn(self, s: Sizes = None, dim: Axes = None, norm: str | None = None) -> Self:
        """Return ``rfft`` along the last of several axes, ``fft`` along the others.

        >>> Tensor([[1.0, 2.0]]).rfftn().tolist()
        [[[3.0, 0.0], [-1.0, 0.0]]]
        """
        axes, sizes = transform_axes("rfftn", self, s, dim, self.ndim)
        out = self.rfft(sizes[-1], axes[-1], norm)
        for d, n in zip(axes[:-1], sizes[:-1]):
            out = out.fft(n, d, norm)
        return out

    def irfftn(self, s: Sizes = None, dim: Axes = None, norm: str | None = None) -> Self:
        """Return the inverse of ``rfftn``.

        >>> Tensor([[1.0, 2.0]]).rfftn().irfftn().tolist()
        [[1.0, 2.0]]
        """
        axes, sizes = transform_axes("irfftn", self, s, dim, self.ndim - 1)
        out = self
        for d, n in zip(axes[:-1], sizes[:-1]):
            out = out.ifft(n, d, norm)
        return out.irfft(sizes[-1], axes[-1], norm)

    def fft2(self, s: Sizes = None, dim: Axes = (-2, -1), norm: str | None = None) -> Self:
        """Return ``fft`` along two axes.

        >>> Tensor([[1.0, 2.0]]).complex().fft2().tolist()
        [[[3.0, 0.0], [-1.0, 0.0]]]
        """
        return self.fftn(s, dim, norm)

    def ifft2(self, s: Sizes = None, dim: Axes = (-2, -1), norm: str | None = None) -> Self:
        """Return ``ifft`` along two axes.

        >>> Tensor([[1.0, 2.0]]).complex().fft2().ifft2().tolist()
        [[[1.0, 0.0], [2.0, 0.0]]]
        """
        return self.ifftn(s, dim, norm)

    def rfft2(self, s: Sizes = None, dim: Axes = (-2, -1), norm: str | None = None) -> Self:
        """Return ``rfftn`` of two axes.

        >>> Tensor([[1.0, 2.0]]).rfft2().tolist()
        [[[3.0, 0.0], [-1.0, 0.0]]]
        """
        return self.rfftn(s, dim, norm)

    def irfft2(self, s: Sizes = None, dim: Axes = (-2, -1), norm: str | None = None) -> Self:
        """Return ``irfftn`` of two axes.

        >>> Tensor([[1.0, 2.0]]).rfft2().irfft2().tolist()
        [[1.0, 2.0]]
        """
        return self.irfftn(s, dim, norm)

    def fftshift(self, dim: Axes = None) -> Self:
        """Move the zero frequency to the middle of each axis. For pairs, pass ``dim`` without the last axis.

        >>> Tensor([0, 1, 2, 3]).fftshift().tolist()
        [2, 3, 0, 1]
        """
        axes = tuple(range(self.ndim)) if dim is None else integers("fftshift", "dim", dim)
        return self.roll([self.shape[axis_of("fftshift", self, d)] // 2 for d in axes], axes) if axes else self

    def ifftshift(self, dim: Axes = None) -> Self:
        """Return the inverse of ``fftshift``.

        >>> Tensor([2, 3, 0, 1]).ifftshift().tolist()
        [0, 1, 2, 3]
        """
        axes = tuple(range(self.ndim)) if dim is None else integers("ifftshift", "dim", dim)
        return self.roll([-(self.shape[axis_of("ifftshift", self, d)] // 2) for d in axes], axes) if axes else self

    def stft(self, n_fft: int, hop_length: int | None = None, win_length: int | None = None,
             window: Self | None = None, center: bool = True, pad_mode: str = "reflect", normalized: bool = False,
             onesided: bool = True) -> Self:
        """Return the spectra of overlapping parts of a real signal: (..., frequencies, parts, 2).

        >>> Tensor.ones(8).stft(4, 2)[0, :, 0].tolist()
        [4.0, 4.0, 4.0, 4.0, 4.0]

        Args:
            n_fft: values of a part.
            hop_length: distance of parts; a quarter of ``n_fft`` by default.
            window: weights of a part, ``win_length`` of them, in its middle; ones by default.
            center: parts are centred at multiples of ``hop_length``, the signal continued by ``pad_mode``.
            normalized: divide by the square root of ``n_fft``.
            onesided: the ``n_fft // 2 + 1`` frequencies that are not redundant.
        """
        n = integer("stft", "n_fft", n_fft, least=1)
        hop = n // 4 if hop_length is None else integer("stft", "hop_length", hop_length, least=1)
        x = self if self.ndim > 1 else self.unsqueeze(0)
        if flag("stft", "center", center):
            x = x.pad((n // 2, n // 2), mode=pad_mode)
        if self.ndim not in (1, 2) or x.shape[-1] < n:
            raise ShapeError("stft", f"a signal of shape {self.shape} for parts of {n}", "one or two axes, no shorter")
        parts = x.unfold(-1, n, hop).mul(window_values("stft", self, n, win_length, window))
        norm = "ortho" if flag("stft", "normalized", normalized) else None
        out = parts.rfft(norm=norm) if flag("stft", "onesided", onesided) else parts.complex().fft(norm=norm)
        out = out.transpose(1, 2)
        return out if self.ndim > 1 else out.squeeze(0)

    def istft(self, n_fft: int, hop_length: int | None = None, win_length: int | None = None,
              window: Self | None = None, center: bool = True, normalized: bool = False, onesided: bool = True,
              length: int | None = None) -> Self:
        """Return the signal whose ``stft`` this is: parts added up, over the sum of squares of their windows.

        >>> x = Tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0])
        >>> x.stft(4, 2).istft(4, 2).numpy().round(4).tolist()
        [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]

        Args:
            length: of the signal; by default what whole parts cover.
        """
        n = integer("istft", "n_fft", n_fft, least=1)
        hop = n // 4 if hop_length is None else integer("istft", "hop_length", hop_length, least=1)
        x = (self if self.ndim > 3 else self.unsqueeze(0)).transpose(1, 2)
        norm = "ortho" if flag("istft", "normalized", normalized) else None
        parts = x.irfft(n, norm=norm) if flag("istft", "onesided", onesided) else x.ifft(norm=norm)[..., 0]
        weights = window_values("istft", parts, n, win_length, window)
        total = overlapped(parts.mul(weights), hop)
        sums = overlapped(weights.square().expand(1, parts.shape[1], n), hop)
        start = n // 2 if flag("istft", "center", center) else 0
        end = total.shape[-1] - start if length is None else start + integer("istft", "length", length, least=0)
        out = total[:, start:end].div(sums[:, start:end])
        out = out.pad((0, end - start - out.shape[-1]))
        return out if self.ndim > 3 else out.squeeze(0)

# mypy: disable-error-code=misc
"""Factorizations with orthonormal factors, and functions of matrices built on them.

The factorizations use Householder reflections, and Jacobi rotations of pairs of columns. On a CPU they are host calls
of NumPy's LAPACK. Elsewhere a reflection is three kernels, a round of rotations two; all rounds run the same compiled
kernels. The n columns of the shorter side take n reflections, or about ``n * (3 + log2(n))`` rounds: 64 columns are
factorized in one to three seconds, mostly Python time, hundreds of columns in a minute.

Built on them: least squares, pseudo-inverses, powers, rank, norms.
"""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, Union

from tinsmith.core.errors import ShapeError
from tinsmith.ir import UOp
from tinsmith.tensor.arguments import choice, flag, integer, number
from tinsmith.tensor.autograd.backward import with_slopes
from tinsmith.tensor.base import TensorBase, check_tensors
from tinsmith.tensor.host_data import host_value, on_host
from tinsmith.tensor.linalg.triangular import bound_step, check_wide, picked, rows_of, square

if TYPE_CHECKING:
    from tinsmith.tensor.tensor import Tensor

# Sweeps of Jacobi rotations by the bytes of a float, beside one for every doubling of the columns.
_SWEEPS = {4: 2, 8: 3}
_MANY = 16  # columns from which on a sweep is computed when it is made


class LinearAlgebra:
    """``qr``, ``svd``, ``eigh``, ``newton_schulz``: of a matrix, or of each matrix of a batch."""

    __slots__ = ()

    def qr(self: Tensor, mode: str = "reduced") -> tuple[Tensor, Tensor]:
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
        rows, columns = _sides("qr", self, empty=True)
        choice("qr", "mode", mode, ("reduced", "complete"))
        if not rows or not columns:
            q = _identity(self, rows)
            return (q if mode == "complete" else q[..., :0]), self if mode == "complete" else self[..., :0, :]
        q = with_slopes(_reflected(self.detach(), rows, columns), _q_slope, self)
        q = q[..., : min(rows, columns)] if mode == "reduced" else q
        return q, q.transpose(-1, -2).matmul(self).triu()

    def svd(self: Tensor, full_matrices: bool = True) -> tuple[Tensor, Tensor, Tensor]:
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
        rows, columns = _sides("svd", self, empty=True)
        full = flag("svd", "full_matrices", full_matrices)
        if not rows or not columns:
            u, v = _identity(self, rows), _identity(self, columns)
            none = self.sum((-2, -1)).unsqueeze(-1)[..., :0]
            return (u, none, v) if full else (u[..., :0], none, v[..., :0, :])
        if rows < columns:
            v, s, u = self.transpose(-1, -2).svd(full)
            return u.transpose(-1, -2), s, v.transpose(-1, -2)
        if on_host(self):
            packed = host_value("svd", (*self.shape[:-2], rows + columns + 1, rows + columns), self.detach())
            sides, s = packed[..., :-1, :], packed[..., -1, :columns]
        else:
            left, s, right = _rotated(self.detach())
            sides = _side_by_side(left, right)
        both = with_slopes(sides, _factor_slope, self)
        u, v = both[..., :rows, :rows], both[..., rows:, rows:]
        s = with_slopes(s, _singular_slope, self, both)
        return (u if full else u[..., :columns]), s, v.transpose(-1, -2)

    def svdvals(self: Tensor) -> Tensor:
        """Return the singular values, from the greatest down.

        >>> Tensor([[3.0, 0.0], [0.0, -4.0]]).svdvals().numpy().round(4).tolist()
        [4.0, 3.0]
        """
        return self.svd(full_matrices=False)[1]

    def eigh(self: Tensor, UPLO: str = "L") -> tuple[Tensor, Tensor]:
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
        whole = with_slopes(half.add(other.transpose(-1, -2)), _symmetric_slope, self)
        if on_host(x):
            packed = host_value("eigh", (*x.shape[:-2], x.shape[-1] + 1, x.shape[-1]), whole.detach())
            vectors = with_slopes(packed[..., :-1, :], _vector_slope, whole)
            return with_slopes(packed[..., -1, :], _value_slope, whole, vectors), vectors
        vectors = with_slopes(_symmetric_vectors(whole.detach()), _vector_slope, whole)
        values = vectors.mul(whole.matmul(vectors)).sum(-2)
        return values, vectors

    def eigvalsh(self: Tensor, UPLO: str = "L") -> Tensor:
        """Return the eigenvalues of a symmetric matrix, in ascending order.

        >>> Tensor([[2.0, 1.0], [1.0, 2.0]]).eigvalsh().numpy().round(4).tolist()
        [1.0, 3.0]
        """
        return self.eigh(UPLO)[0]

    def newton_schulz(self: Tensor, steps: int, params: Sequence[float], eps: float = 1e-7) -> Tensor:
        """Iterate an odd polynomial on the matrix, scaled to norm 1: with suitable coefficients, the singular values
        converge to 1.

        One step is ``p0 X + p1 (X Xᵀ) X + p2 (X Xᵀ)² X + …``, as in the optimizer Muon.

        >>> Tensor([[2.0, 0.0], [0.0, 1.0]]).newton_schulz(10, (2, -1.5, 0.5)).numpy().round(3).tolist()
        [[1.0, 0.0], [0.0, 1.0]]
        """
        _sides("newton_schulz", self)
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


def _sides(op: str, x: Tensor, empty: bool = False) -> tuple[int, int]:
    if x.ndim < 2 or any(isinstance(s, UOp) for s in x.shape[-2:]) or (not empty and 0 in x.shape[-2:]):
        raise ShapeError(op, f"takes a matrix or a batch of them, got shape {x.shape}", "two axes of fixed size")
    check_wide(op, x)
    return int(x.shape[-2]), int(x.shape[-1])


def _identity(x: Tensor, n: int) -> Tensor:
    return type(x).eye(n, dtype=x.dtype, device=x.device, requires_grad=False).expand(*x.shape[:-2], n, n)


def _reflected(x: Tensor, rows: int, columns: int) -> Tensor:
    """Return the square Q of ``x = Q R`` by Householder reflections of ``[x, identity]``, column by column."""
    if on_host(x):
        return host_value("qr", (*x.shape[:-2], rows, rows), x)
    both, row = x.cat(_identity(x, rows), dim=-1), rows_of(x, rows)
    for k in range(min(rows - 1, columns)):
        at = bound_step(both, k)
        step = picked(both, -1, at)
        column = row.ge(at).where(step, 0)
        first, rest = picked(step, -2, at), row.gt(at).where(column, 0).square().sum(-2, keepdim=True)
        away = rest.eq(0)
        root = away.where(1.0, first.square().add(rest)).sqrt()
        lead = first.lt(0).where(first.sub(root), first.add(root))
        v = row.eq(at).where(lead, column).contiguous()
        factor = away.where(0.0, away.where(1.0, v.square().sum(-2, keepdim=True)).reciprocal().mul(2.0))
        turned = v.mul(both).sum(-2, keepdim=True).mul(factor).contiguous()
        both = both.sub(v.mul(turned)).contiguous()
    return both[..., columns:].transpose(-1, -2)


def _q_slope(g: Tensor, q: Tensor, x: Tensor) -> tuple[Tensor]:
    """Return the gradient of the QR factor Q with respect to A.

    With L the part of ``Qᵀ dA R⁻¹`` below the diagonal, ``dQ = Q (L - Lᵀ)``, so Q stays orthonormal.
    """
    rows, columns = x.shape[-2:]
    k = min(rows, columns)
    turned = q.transpose(-1, -2).matmul(g)
    lower = turned.sub(turned.transpose(-1, -2))[..., :k].tril(-1)
    if k == rows:  # the last column of a square factor is bound by the others
        lower = rows_of(x, k).transpose(-1, -2).lt(k - 1).where(lower, 0)
    r = q.transpose(-1, -2).matmul(x)[..., :k, :k]
    if k == rows and k > 0:  # so that it takes no part where it is 0
        corner = rows_of(x, k).eq(k - 1) & rows_of(x, k).transpose(-1, -2).eq(k - 1)
        r = (corner & r.eq(0)).where(1.0, r)
    found = q.matmul(lower).matmul(r.triangular_inverse(upper=True).transpose(-1, -2))
    return (found.pad((None,) * (x.ndim - 1) + ((0, columns - k),)),)


def _rotated(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return U (square), S and V of a matrix with at least as many rows as columns (one-sided Jacobi)."""
    rows, columns = x.shape[-2:]
    right = _orthogonalizing(x)
    left = x.matmul(right)
    s, places = left.square().sum(-2).sqrt().sort(-1, descending=True)
    index = places.unsqueeze(-2)
    left, right = (t.gather(-1, index.expand(*t.shape)).contiguous() for t in (left, right))
    small = s.le(s[..., :1].mul(2.0 ** -(20 if x.dtype.itemsize == 4 else 49)))
    unit = small.unsqueeze(-2).where(0.0, left.div(small.where(1.0, s).unsqueeze(-2))).contiguous()
    q = _reflected(unit, rows, columns)
    sign = q[..., :columns].mul(unit).sum(-2).lt(0).where(-1.0, 1.0).cast(x.dtype)
    if rows > columns:
        sign = sign.pad((None,) * (sign.ndim - 1) + ((0, rows - columns),), value=1.0)
    return q.mul(sign.unsqueeze(-2)), s, right


def _orthogonalizing(x: Tensor) -> Tensor:
    """Return the orthogonal V for which the columns of ``x @ V`` are orthogonal (one-sided Jacobi sweeps).

    In round r of a sweep the columns i and j with i + j = r modulo the (odd) number of columns are a pair; a column
    that is its own partner is not rotated. A Newton-Schulz step removes the rounding errors of V.
    """
    rows, columns = x.shape[-2:]
    both = x.cat(_identity(x, columns), dim=-2).contiguous()
    count = columns + 1 - columns % 2
    place = x._new(UOp.iota(columns))
    for _ in range(_SWEEPS[x.dtype.itemsize] + int(columns - 1).bit_length() if columns > 1 else 0):
        for k in range(count):
            partner = place.neg().add(bound_step(x, k)).add(count).mod(count)
            partner = partner.ge(columns).where(place, partner)
            both = _turned(both, rows, place, partner)
        if columns >= _MANY:
            both.realize()
    v = both[..., rows:, :].contiguous()
    return v.mul(1.5).sub(v.matmul(v.transpose(-1, -2).matmul(v)).mul(0.5)).contiguous()


def _turned(both: Tensor, rows: int, place: Tensor, partner: Tensor) -> Tensor:
    """Each column rotated with its partner, so that their first ``rows`` elements are orthogonal."""
    other = both.gather(-1, partner.expand(both.shape))
    own_top, other_top = both[..., :rows, :], other[..., :rows, :]
    product = own_top.mul(other_top).sum(-2, keepdim=True)
    gap = other_top.square().sub(own_top.square()).sum(-2, keepdim=True)
    none = product.eq(0) | place.eq(partner)
    zeta = gap.div(none.where(1.0, product.mul(2.0))).clip(-1e18, 1e18)
    sign = (zeta.lt(0) | (zeta.eq(0) & place.gt(partner))).where(-1.0, 1.0)
    tangent = none.where(0.0, sign.div(zeta.abs().add(zeta.square().add(1.0).sqrt()))).contiguous()
    return both.sub(tangent.mul(other)).div(tangent.square().add(1.0).sqrt()).contiguous()


def _symmetric_vectors(x: Tensor) -> Tensor:
    """Return the eigenvectors in the columns, in ascending order of values."""
    size = x.square().sum((-2, -1), keepdim=True).sqrt()
    n = x.shape[-1]
    shifted = x.add(_identity(x, n).mul(size)).contiguous()
    vectors = _orthogonalizing(shifted)
    values = vectors.mul(x.matmul(vectors)).sum(-2)
    order = values.argsort(-1).unsqueeze(-2).expand(vectors.shape)
    return vectors.gather(-1, order).contiguous()


def _gaps(s: Tensor) -> Tensor:
    """1 / (s[j] - s[i]) at [i, j], 0 where they are equal."""
    gaps = s.unsqueeze(-2).sub(s.unsqueeze(-1))
    return gaps.eq(0).where(0.0, gaps.eq(0).where(1.0, gaps).reciprocal())


def _symmetric_slope(g: Tensor, whole: Tensor, x: Tensor) -> tuple[Tensor]:
    """As if both triangles had been read, as in PyTorch."""
    return (g.add(g.transpose(-1, -2)).mul(0.5),)


def _vector_slope(g: Tensor, vectors: Tensor, x: Tensor) -> tuple[Tensor]:
    turned = vectors.transpose(-1, -2)
    values = vectors.mul(x.matmul(vectors)).sum(-2)
    return (vectors.matmul(_gaps(values).mul(turned.matmul(g))).matmul(turned),)


def _value_slope(g: Tensor, values: Tensor, x: Tensor, vectors: Tensor) -> tuple[Tensor, None]:
    return vectors.mul(g.unsqueeze(-2)).matmul(vectors.transpose(-1, -2)), None


def _side_by_side(left: Tensor, right: Tensor) -> Tensor:
    """Two square matrices as the blocks of one."""
    m, n = left.shape[-1], right.shape[-1]
    rest = (None,) * (left.ndim - 2)
    return left.pad((*rest, (0, n), (0, n))).add(right.pad((*rest, (m, 0), (m, 0)))).contiguous()


def _singular_slope(g: Tensor, s: Tensor, x: Tensor, both: Tensor) -> tuple[Tensor, None]:
    rows, columns = x.shape[-2:]
    u, v = both[..., :rows, :columns], both[..., rows:, rows:]
    return u.mul(g.unsqueeze(-2)).matmul(v.transpose(-1, -2)), None


def _factor_slope(g: Tensor, both: Tensor, x: Tensor) -> tuple[Tensor]:
    """Return the gradient of the SVD's U and V with respect to A.

    With P = Uᵀ dA V and E[i, j] = 1 / (s[j]² - s[i]²): Uᵀ dU = E∘(P S + S Pᵀ), Vᵀ dV = E∘(S P + Pᵀ S). The further
    columns of a square U change with the part of dA outside the space of its first columns.
    """
    rows, n = x.shape[-2:]
    u, v = both[..., :rows, :rows], both[..., rows:, rows:]
    in_u = u.transpose(-1, -2).matmul(g[..., :rows, :rows])
    in_v = v.transpose(-1, -2).matmul(g[..., rows:, rows:])
    s = u[..., :n].mul(x.matmul(v)).sum(-2)
    inverse = _gaps(s.square())
    by_u, by_v = inverse.mul(in_u[..., :n, :n]), inverse.mul(in_v)
    change = by_u.add(by_u.transpose(-1, -2)).mul(s.unsqueeze(-2)).add(
        by_v.add(by_v.transpose(-1, -2)).mul(s.unsqueeze(-1)))
    if rows > n:
        below = in_u[..., n:, :n].sub(in_u[..., :n, n:].transpose(-1, -2))
        change = change.cat(below.div(s.eq(0).where(1.0, s).unsqueeze(-2)), dim=-2)
    return (u.matmul(change).matmul(v.transpose(-1, -2)),)

Bound: TypeAlias = Union[float, "Tensor", None]  # a tolerance: a number, or one for each matrix
_TERMS, _MOST_SQUARES = {4: 8, 8: 14}, 24  # of the exponential's series where the norm is at most 1/2


class LeastSquares(NamedTuple):
    """The result of ``lstsq``: x, and the sum of squared residuals of each column."""

    solution: Tensor
    residuals: Tensor


class Matrices:
    """``lstsq``, ``pinv``, ``matrix_power``, ``matrix_rank``, ``matrix_exp``, ``cond``: of a matrix or a batch."""

    __slots__ = ()

    def lstsq(self: Tensor, other: Tensor) -> LeastSquares:
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

    def pinv(self: Tensor, rtol: Bound = None, *, atol: Bound = None, hermitian: bool = False) -> Tensor:
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
        u, s, v = (_symmetric("pinv", x) if flag("pinv", "hermitian", hermitian) else x).svd(full_matrices=False)
        large = s.gt(_cutoff("pinv", self, s, rtol, atol))
        inverse = large.where(large.where(s, 1.0).reciprocal(), 0.0)
        return with_slopes(v.transpose(-1, -2).mul(inverse.unsqueeze(-2)).matmul(u.transpose(-1, -2)),
                           _pseudo_inverse_slope, self)

    def matrix_rank(self: Tensor, rtol: Bound = None, *, atol: Bound = None, hermitian: bool = False) -> Tensor:
        """Return the number of singular values that are not small: ``pinv`` has the arguments.

        >>> Tensor([[1.0, 2.0], [2.0, 4.0]]).matrix_rank().item()
        1
        """
        x = _symmetric("matrix_rank", self) if flag("matrix_rank", "hermitian", hermitian) else self
        s = x.detach().svdvals()
        return s.gt(_cutoff("matrix_rank", x, s, rtol, atol)).sum(-1)

    def cond(self: Tensor, p: float = 2.0) -> Tensor:
        """Return the condition number: the greatest singular value over the smallest.

        >>> Tensor([[4.0, 0.0], [0.0, 2.0]]).cond().numpy().round(4).item()
        2.0

        Args:
            p: 2, or -2 for the inverse of it.
        """
        s = self.svdvals()
        large, small = s[..., 0], s[..., -1]
        return small.div(large) if number("cond", "p", p, -2, 2, zero=False) < 0 else large.div(small)

    def matrix_power(self: Tensor, n: int) -> Tensor:
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
        return _identity(self, self.shape[-1]) if out is None else out

    def matrix_exp(self: Tensor) -> Tensor:
        """Return the exponential of a square matrix: its series, of the matrix halved s times, squared s times (s <=
        24).

        >>> Tensor([[0.0, 1.0], [0.0, 0.0]]).matrix_exp().numpy().round(4).tolist()
        [[1.0, 1.0], [0.0, 1.0]]
        """
        n = square("matrix_exp", self)
        if not n:
            return self
        size = self.detach().abs().sum(-2, keepdim=True).max(-1, keepdim=True)
        halvings = size.maximum(1e-30).log2().add(1).ceil().clamp(0, _MOST_SQUARES)
        x = self.mul(halvings.neg().exp2()).contiguous()
        out = term = _identity(self, n).add(x)
        term = x
        for k in range(2, _TERMS[self.dtype.itemsize] + 2):
            term = term.matmul(x).mul(1 / k)
            out = out.add(term)
        out = out.contiguous()
        for k in range(_MOST_SQUARES):
            out = halvings.gt(k).where(out.matmul(out), out)
        return out

    def chain_matmul(self: Tensor, *others: Tensor) -> Tensor:
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


def _cutoff(op: str, x: Tensor, s: Tensor, rtol: Bound, atol: Bound) -> Tensor:
    """Return the greatest singular value that counts as 0, of those in ``s``."""
    sides = [int(side) for side in x.shape[-2:] if not isinstance(side, UOp)]
    default = max(sides) * math.ldexp(1.0, -23 if x.dtype.itemsize == 4 else -52)
    absolute: Any = None if atol is None else _bound(op, "atol", atol)
    if rtol is not None:
        relative = _bound(op, "rtol", rtol)
    elif isinstance(atol, TensorBase):
        relative = absolute.gt(0).where(0.0, absolute.full_like(default))
    else:
        relative = 0.0 if absolute else default
    found = s[..., :1].mul(relative)
    return found if absolute is None else found.maximum(absolute)


def _bound(op: str, what: str, value: float | Tensor) -> Any:
    """Return a tolerance as a number, or as a tensor that broadcasts with rows of singular values."""
    if isinstance(value, TensorBase):
        return value.unsqueeze(-1) if value.ndim else value
    return float(number(op, what, value, least=0))


def _symmetric(op: str, x: Tensor) -> Tensor:
    """Return the symmetric matrix that has the lower triangle of ``x``."""
    square(op, x)
    return x.tril().add(x.tril(-1).transpose(-1, -2))


def _pseudo_inverse_slope(g: Tensor, p: Tensor, x: Tensor) -> tuple[Tensor]:
    turned, back = p.transpose(-1, -2), g.transpose(-1, -2)
    own = turned.matmul(g).matmul(turned).neg()
    outside = back.sub(x.matmul(p.matmul(back))).matmul(p).matmul(turned)
    inside = turned.matmul(p).matmul(back.sub(back.matmul(p).matmul(x)))
    return (own.add(outside).add(inside),)

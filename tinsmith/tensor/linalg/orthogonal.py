"""Factorizations with orthonormal factors, and functions of matrices built on them.

The factorizations use Householder reflections, and Jacobi rotations of pairs of columns. On a CPU they are host calls
of NumPy's LAPACK. Elsewhere a reflection is three kernels, a round of rotations two; all rounds run the same compiled
kernels. The n columns of the shorter side take n reflections, or about ``n * (3 + log2(n))`` rounds: 64 columns are
factorized in one to three seconds, mostly Python time, hundreds of columns in a minute.

Built on them: least squares, pseudo-inverses, powers, rank, norms.
"""
from __future__ import annotations

import math
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from tinsmith.core.errors import ShapeError
from tinsmith.ir import UOp
from tinsmith.tensor.arguments import number
from tinsmith.tensor.base import TensorBase
from tinsmith.tensor.create.creation import Creation
from tinsmith.tensor.host_data import host_value, on_host
from tinsmith.tensor.linalg.triangular import bound_step, check_wide, picked, rows_of, square

T = TypeVar("T", bound=Creation)
# Sweeps of Jacobi rotations by the bytes of a float, beside one for every doubling of the columns.
_SWEEPS = {4: 2, 8: 3}
_MANY = 16  # columns from which on a sweep is computed when it is made


def matrix_sides(op: str, x: Creation, empty: bool = False) -> tuple[int, int]:
    if x.ndim < 2 or any(isinstance(s, UOp) for s in x.shape[-2:]) or (not empty and 0 in x.shape[-2:]):
        raise ShapeError(op, f"takes a matrix or a batch of them, got shape {x.shape}", "two axes of fixed size")
    check_wide(op, x)
    return int(x.shape[-2]), int(x.shape[-1])


def identity(x: T, n: int) -> T:
    return type(x).eye(n, dtype=x.dtype, device=x.device, requires_grad=False).expand(*x.shape[:-2], n, n)


def reflected(x: T, rows: int, columns: int) -> T:
    """Return the square Q of ``x = Q R`` by Householder reflections of ``[x, identity]``, column by column."""
    if on_host(x):
        return host_value("qr", (*x.shape[:-2], rows, rows), x)
    both, row = x.cat(identity(x, rows), dim=-1), rows_of(x, rows)
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


def q_slope(g: T, q: T, x: T) -> tuple[T]:
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


def rotated(x: T) -> tuple[T, T, T]:
    """Return U (square), S and V of a matrix with at least as many rows as columns (one-sided Jacobi)."""
    rows, columns = x.shape[-2:]
    right = _orthogonalizing(x)
    left = x.matmul(right)
    s, places = left.square().sum(-2).sqrt().sort(-1, descending=True)
    index = places.unsqueeze(-2)
    left, right = (t.gather(-1, index.expand(*t.shape)).contiguous() for t in (left, right))
    small = s.le(s[..., :1].mul(2.0 ** -(20 if x.dtype.itemsize == 4 else 49)))
    unit = small.unsqueeze(-2).where(0.0, left.div(small.where(1.0, s).unsqueeze(-2))).contiguous()
    q = reflected(unit, rows, columns)
    sign = q[..., :columns].mul(unit).sum(-2).lt(0).where(-1.0, 1.0).cast(x.dtype)
    if rows > columns:
        sign = sign.pad((None,) * (sign.ndim - 1) + ((0, rows - columns),), value=1.0)
    return q.mul(sign.unsqueeze(-2)), s, right


def _orthogonalizing(x: T) -> T:
    """Return the orthogonal V for which the columns of ``x @ V`` are orthogonal (one-sided Jacobi sweeps).

    In round r of a sweep the columns i and j with i + j = r modulo the (odd) number of columns are a pair; a column
    that is its own partner is not rotated. A Newton-Schulz step removes the rounding errors of V.
    """
    rows, columns = x.shape[-2:]
    both = x.cat(identity(x, columns), dim=-2).contiguous()
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


def _turned(both: T, rows: int, place: T, partner: T) -> T:
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


def symmetric_vectors(x: T) -> T:
    """Return the eigenvectors in the columns, in ascending order of values."""
    size = x.square().sum((-2, -1), keepdim=True).sqrt()
    n = x.shape[-1]
    shifted = x.add(identity(x, n).mul(size)).contiguous()
    vectors = _orthogonalizing(shifted)
    values = vectors.mul(x.matmul(vectors)).sum(-2)
    order = values.argsort(-1).unsqueeze(-2).expand(vectors.shape)
    return vectors.gather(-1, order).contiguous()


def _gaps(s: T) -> T:
    """1 / (s[j] - s[i]) at [i, j], 0 where they are equal."""
    gaps = s.unsqueeze(-2).sub(s.unsqueeze(-1))
    return gaps.eq(0).where(0.0, gaps.eq(0).where(1.0, gaps).reciprocal())


def symmetric_slope(g: T, whole: T, x: T) -> tuple[T]:
    """As if both triangles had been read, as in PyTorch."""
    return (g.add(g.transpose(-1, -2)).mul(0.5),)


def vector_slope(g: T, vectors: T, x: T) -> tuple[T]:
    turned = vectors.transpose(-1, -2)
    values = vectors.mul(x.matmul(vectors)).sum(-2)
    return (vectors.matmul(_gaps(values).mul(turned.matmul(g))).matmul(turned),)


def value_slope(g: T, values: T, x: T, vectors: T) -> tuple[T, None]:
    return vectors.mul(g.unsqueeze(-2)).matmul(vectors.transpose(-1, -2)), None


def side_by_side(left: T, right: T) -> T:
    """Two square matrices as the blocks of one."""
    m, n = left.shape[-1], right.shape[-1]
    rest = (None,) * (left.ndim - 2)
    return left.pad((*rest, (0, n), (0, n))).add(right.pad((*rest, (m, 0), (m, 0)))).contiguous()


def singular_slope(g: T, s: T, x: T, both: T) -> tuple[T, None]:
    rows, columns = x.shape[-2:]
    u, v = both[..., :rows, :columns], both[..., rows:, rows:]
    return u.mul(g.unsqueeze(-2)).matmul(v.transpose(-1, -2)), None


def factor_slope(g: T, both: T, x: T) -> tuple[T]:
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

Bound: TypeAlias = float | Creation | None  # a tolerance: a number, or one for each matrix
TERMS, MOST_SQUARES = {4: 8, 8: 14}, 24  # of the exponential's series where the norm is at most 1/2


class LeastSquares(NamedTuple, Generic[T]):
    """The result of ``lstsq``: x, and the sum of squared residuals of each column."""

    solution: T
    residuals: T


def cutoff(op: str, x: T, s: T, rtol: Bound, atol: Bound) -> T:
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


def _bound(op: str, what: str, value: float | Creation) -> Any:
    """Return a tolerance as a number, or as a tensor that broadcasts with rows of singular values."""
    if isinstance(value, TensorBase):
        return value.unsqueeze(-1) if value.ndim else value
    return float(number(op, what, value, least=0))


def symmetric_matrix(op: str, x: T) -> T:
    """Return the symmetric matrix that has the lower triangle of ``x``."""
    square(op, x)
    return x.tril().add(x.tril(-1).transpose(-1, -2))


def pseudo_inverse_slope(g: T, p: T, x: T) -> tuple[T]:
    turned, back = p.transpose(-1, -2), g.transpose(-1, -2)
    own = turned.matmul(g).matmul(turned).neg()
    outside = back.sub(x.matmul(p.matmul(back))).matmul(p).matmul(turned)
    inside = turned.matmul(p).matmul(back.sub(back.matmul(p).matmul(x)))
    return (own.add(outside).add(inside),)

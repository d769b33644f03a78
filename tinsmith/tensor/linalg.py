"""Factorizations of matrices, written as graphs: reflections and rotations, one after the other.

A factorization of n columns takes n or more steps, each a few kernels: made for small matrices.
"""
# mypy: disable-error-code=misc
# ``self`` is the Tensor that this class is mixed into.
from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tinsmith.core.errors import DTypeError, ShapeError
from tinsmith.ir import UOp
from tinsmith.tensor.arguments import choice, flag, integer, number

if TYPE_CHECKING:
    from tinsmith.tensor.tensor import Tensor

# Sweeps of Jacobi rotations by the bytes of a float, beside one for every doubling of the columns.
_SWEEPS = {4: 5, 8: 6}


class LinearAlgebra:
    """``qr``, ``svd``, ``newton_schulz``: of a matrix, or of each matrix of a batch."""

    __slots__ = ()

    def qr(self: Tensor, mode: str = "reduced") -> tuple[Tensor, Tensor]:
        """(Q, R) with orthonormal columns in Q, R upper triangular, Q @ R the matrix: by Householder's reflections.

        >>> q, r = Tensor([[3.0, 1.0], [4.0, 2.0]]).qr()
        >>> (q @ r).numpy().round(4).tolist(), q[:, 0].numpy().round(4).tolist()
        ([[3.0, 1.0], [4.0, 2.0]], [-0.6000000238418579, -0.800000011920929])

        Args:
            mode: "reduced" for as many columns in Q as the shorter side has, "complete" for a square Q.

        Raises:
            ShapeError: for what is no matrix of fixed size.
        """
        rows, columns = _sides("qr", self)
        choice("qr", "mode", mode, ("reduced", "complete"))
        q, r = type(self).eye(rows, dtype=self.dtype, device=self.device).expand(*self.shape[:-2], rows, rows), self
        for k in range(min(rows - 1, columns)):
            v, factor = _reflection(r[..., k:, k : k + 1])
            turned = v.matmul(v.transpose(-1, -2).matmul(r[..., k:, k:])).mul(factor)
            r = r.sub(turned.pad((None,) * (r.ndim - 2) + ((k, 0), (k, 0))))
            turned = q[..., k:].matmul(v).matmul(v.transpose(-1, -2)).mul(factor)
            q = q.sub(turned.pad((None,) * (q.ndim - 1) + ((k, 0),)))
        if mode == "reduced":
            q, r = q[..., : min(rows, columns)], r[..., : min(rows, columns), :]
        return q, r.triu()

    def svd(self: Tensor, full_matrices: bool = True) -> tuple[Tensor, Tensor, Tensor]:
        """(U, S, Vh) with U @ diag(S) @ Vh the matrix, U and Vh orthonormal, S from the greatest value down.

        By one-sided Jacobi rotations. Gradients of U and Vh suppose different singular values.

        >>> u, s, v = Tensor([[3.0, 0.0], [0.0, -4.0]]).svd()
        >>> s.numpy().round(4).tolist(), (u @ s.diag() @ v).numpy().round(4).tolist()
        ([4.0, 3.0], [[3.0, 0.0], [0.0, -4.0]])

        Args:
            full_matrices: square U and Vh; False leaves out what S has no value for.

        Raises:
            ShapeError: for what is no matrix of fixed size.
        """
        rows, columns = _sides("svd", self)
        full = flag("svd", "full_matrices", full_matrices)
        if rows < columns:
            v, s, u = self.transpose(-1, -2).svd(full)
            return u.transpose(-1, -2), s, v.transpose(-1, -2)
        u, s, right = _rotated(self.detach())
        if not type(self).recording:
            return (u if full else u[..., :columns]), s, right.transpose(-1, -2)
        u, s, right = _with_first_order(self, u, s, right)
        return (u if full else u[..., :columns]), s, right.transpose(-1, -2)

    def newton_schulz(self: Tensor, steps: int, params: Sequence[float], eps: float = 1e-7) -> Tensor:
        """An odd polynomial of the matrix, scaled to norm 1, over and over: it can bring singular values to 1.

        A step is ``p0 X + p1 (X Xᵀ) X + p2 (X Xᵀ)² X + …``, as the optimizer Muon takes it.

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


def _sides(op: str, x: Tensor) -> tuple[int, int]:
    if x.ndim < 2 or any(isinstance(s, UOp) for s in x.shape[-2:]) or 0 in x.shape[-2:]:
        raise ShapeError(op, f"takes a matrix or a batch of them, got shape {x.shape}", "two axes of fixed size")
    if not x.dtype.is_float or x.dtype.itemsize < 4:
        raise DTypeError(op, f"takes float32 or float64, got {x.dtype!r}", ".float()")
    return int(x.shape[-2]), int(x.shape[-1])


def _reflection(x: Tensor) -> tuple[Tensor, Tensor]:
    """v and f with (1 - f·v·vᵀ)·x along the first axis; f is 0 where x lies there already."""
    first, rest = x[..., :1, :], x[..., 1:, :].square().sum(-2, keepdim=True)
    length = first.square().add(rest)
    away = rest.eq(0)
    root = away.where(1.0, length).sqrt()
    v0 = first.lt(0).where(first.sub(root), first.add(root))
    v = v0.cat(x[..., 1:, :], dim=-2)
    return v, away.where(0.0, away.where(1.0, v.square().sum(-2, keepdim=True)).reciprocal().mul(2.0))


def _rounds(count: int) -> list[list[tuple[int, int]]]:
    """Every pair of ``count`` columns once, in rounds of pairs that have no column in common."""
    ring = list(range(count + count % 2))
    out = []
    for _ in range(len(ring) - 1):
        pairs = [(ring[i], ring[-1 - i]) for i in range(len(ring) // 2)]
        out.append([(min(p), max(p)) for p in pairs if max(p) < count])
        ring = [ring[0], ring[-1], *ring[1:-1]]
    return out


def _rotated(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """U (square), S and V of a matrix with at least as many rows as columns."""
    rows, columns = x.shape[-2:]
    right = type(x).eye(columns, dtype=x.dtype, device=x.device).expand(*x.shape[:-2], columns, columns)
    both = x.cat(right, dim=-2)
    sweeps = _SWEEPS[x.dtype.itemsize] + max(int(columns - 1).bit_length(), 1)
    for pairs in _rounds(columns) * sweeps:
        order = [a for a, _ in pairs] + [b for _, b in pairs]
        order += [c for c in range(columns) if c not in order]
        back = sorted(range(columns), key=order.__getitem__)
        both = _turned(both[..., order], rows, len(pairs))[..., back].contiguous()
    left, right = both[..., :rows, :], both[..., rows:, :]
    s = left.square().sum(-2).sqrt()
    s, places = s.sort(-1, descending=True)
    index = places.unsqueeze(-2)
    left, right = (t.gather(-1, index.expand(*t.shape)) for t in (left, right))
    small = s.le(s[..., :1].mul(2.0 ** -(20 if x.dtype.itemsize == 4 else 49)))
    unit = small.unsqueeze(-2).where(0.0, left.div(small.where(1.0, s).unsqueeze(-2)))
    q, r = unit.qr("complete")
    sign = r.diagonal(0, -2, -1).lt(0).where(-1.0, 1.0).cast(x.dtype)
    if rows > columns:
        sign = sign.pad((None,) * (sign.ndim - 1) + ((0, rows - columns),), value=1.0)
    return q.mul(sign.unsqueeze(-2)), s, right


def _turned(x: Tensor, rows: int, count: int) -> Tensor:
    """Columns i and i + count rotated so that their first ``rows`` elements are orthogonal."""
    a, b, rest = x[..., :count], x[..., count : 2 * count], x[..., 2 * count :]
    top_a, top_b = a[..., :rows, :], b[..., :rows, :]
    product = top_a.mul(top_b).sum(-2, keepdim=True)
    gap = top_b.square().sum(-2, keepdim=True).sub(top_a.square().sum(-2, keepdim=True))
    none = product.eq(0)
    zeta = gap.div(none.where(1.0, product.mul(2.0)))
    zeta = zeta.clip(-1e18, 1e18)
    sign = zeta.lt(0).where(-1.0, 1.0)
    tangent = none.where(0.0, sign.div(zeta.abs().add(zeta.square().add(1.0).sqrt())))
    cosine = tangent.square().add(1.0).rsqrt()
    sine = cosine.mul(tangent)
    turned_a, turned_b = a.mul(cosine).sub(b.mul(sine)), a.mul(sine).add(b.mul(cosine))
    parts = [turned_a, turned_b, *([rest] if rest.shape[-1] else [])]
    return parts[0].cat(*parts[1:], dim=-1)


def _with_first_order(x: Tensor, u: Tensor, s: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The factors with the derivatives that a change of ``x`` has: each is a constant and a sum that is zero."""
    rows, columns = x.shape[-2:]
    u, s, v = (t.detach() for t in (u, s, v))
    change = u.transpose(-1, -2).matmul(x.sub(x.detach())).matmul(v)
    square = s.square()
    gaps = square.unsqueeze(-2).sub(square.unsqueeze(-1))
    inverse = gaps.eq(0).where(0.0, gaps.eq(0).where(1.0, gaps).reciprocal())
    top, wide, tall = change[..., :columns, :], s.unsqueeze(-2), s.unsqueeze(-1)
    mirrored = top.transpose(-1, -2)
    in_u = inverse.mul(top.mul(wide).add(mirrored.mul(tall)))
    in_v = inverse.mul(top.mul(tall).add(mirrored.mul(wide)))
    if rows > columns:  # what leaves the space of the columns; the rest of U turns against it
        below = change[..., columns:, :].div(wide.eq(0).where(1.0, wide))
        corner = type(x).zeros(*x.shape[:-2], rows - columns, rows - columns, dtype=x.dtype, device=x.device)
        in_u = in_u.cat(below.transpose(-1, -2).neg(), dim=-1).cat(below.cat(corner, dim=-1), dim=-2)
    return u.add(u.matmul(in_u)), s.add(top.diagonal(0, -2, -1)), v.add(v.matmul(in_v))

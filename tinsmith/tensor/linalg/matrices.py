"""Functions of whole matrices, made of factorizations: least squares, pseudo-inverses, powers, rank, norms."""
# mypy: disable-error-code=misc
# ``self`` is the Tensor that this class is mixed into.
from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, Union

from tinsmith.core.errors import ShapeError
from tinsmith.ir import UOp
from tinsmith.tensor.arguments import flag, integer, number
from tinsmith.tensor.autograd.custom_gradient import with_slopes
from tinsmith.tensor.base import TensorBase, check_tensors
from tinsmith.tensor.linalg.orthogonal import _identity
from tinsmith.tensor.linalg.triangular import square

if TYPE_CHECKING:
    from tinsmith.tensor.tensor import Tensor

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
        """The pseudo-inverse of Moore and Penrose, by ``svd``; small singular values count as 0.

        The gradient is that of G. Golub and V. Pereyra, The differentiation of pseudo-inverses (1973), (4.12).

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
        """The number of singular values that are not small: ``pinv`` has the arguments.

        >>> Tensor([[1.0, 2.0], [2.0, 4.0]]).matrix_rank().item()
        1
        """
        x = _symmetric("matrix_rank", self) if flag("matrix_rank", "hermitian", hermitian) else self
        s = x.detach().svdvals()
        return s.gt(_cutoff("matrix_rank", x, s, rtol, atol)).sum(-1)

    def cond(self: Tensor, p: float = 2.0) -> Tensor:
        """The condition number: the greatest singular value over the smallest.

        >>> Tensor([[4.0, 0.0], [0.0, 2.0]]).cond().numpy().round(4).item()
        2.0

        Args:
            p: 2, or -2 for the inverse of it.
        """
        s = self.svdvals()
        large, small = s[..., 0], s[..., -1]
        return small.div(large) if number("cond", "p", p, -2, 2, zero=False) < 0 else large.div(small)

    def matrix_power(self: Tensor, n: int) -> Tensor:
        """The n-th power of a square matrix, by repeated squaring; of its inverse where n is negative.

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
        """The exponential of a square matrix: its series, of the matrix halved s times, squared s times (s <= 24).

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
        """The product of matrices one after the other, in the order of the fewest multiplications.

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

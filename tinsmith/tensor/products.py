"""Products of vectors, matrices and their batches by PyTorch's names: all of them are ``dot``, ``mul`` and sums."""
# mypy: disable-error-code=misc
# ``self`` is the Tensor that this class is mixed into.
from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tinsmith.core.errors import ShapeError
from tinsmith.tensor.arguments import integer, integers
from tinsmith.tensor.base import check_tensors
from tinsmith.tensor.helpers import axis_of, broadcast_shape, equal, operand, rounded_once

if TYPE_CHECKING:
    from tinsmith.tensor.tensor import Tensor


class Products:
    """``mm bmm mv addmm tensordot inner kron cross trace`` and their like."""

    __slots__ = ()

    def mm(self: Tensor, mat2: Tensor) -> Tensor:
        """The product of two matrices.

        >>> Tensor([[1, 2]]).mm(Tensor([[3], [4]])).tolist()
        [[11]]

        Raises:
            ShapeError: for what is no matrix; ``matmul`` takes vectors and batches.
        """
        return _ranked("mm", self, mat2, 2, 2)

    def bmm(self: Tensor, mat2: Tensor) -> Tensor:
        """The products of two batches of matrices.

        >>> Tensor([[[1, 2]]]).bmm(Tensor([[[3], [4]]])).tolist()
        [[[11]]]
        """
        return _ranked("bmm", self, mat2, 3, 3)

    def mv(self: Tensor, vec: Tensor) -> Tensor:
        """The product of a matrix and a vector.

        >>> Tensor([[1, 2]]).mv(Tensor([3, 4])).tolist()
        [11]
        """
        return _ranked("mv", self, vec, 2, 1)

    def addmm(self: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
        """``beta * self + alpha * mat1 @ mat2``.

        >>> Tensor([[1]]).addmm(Tensor([[1, 2]]), Tensor([[3], [4]])).tolist()
        [[12]]
        """
        return _added(self, _ranked("addmm", mat1, mat2, 2, 2), beta, alpha)

    def addmv(self: Tensor, mat: Tensor, vec: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
        """``beta * self + alpha * mat @ vec``.

        >>> Tensor([1]).addmv(Tensor([[1, 2]]), Tensor([3, 4])).tolist()
        [12]
        """
        return _added(self, _ranked("addmv", mat, vec, 2, 1), beta, alpha)

    def addr(self: Tensor, vec1: Tensor, vec2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
        """``beta * self + alpha * outer(vec1, vec2)``.

        >>> Tensor([[1, 1]]).addr(Tensor([2]), Tensor([3, 4])).tolist()
        [[7, 9]]
        """
        return _added(self, operand("addr", vec1, self).outer(vec2), beta, alpha)

    def baddbmm(self: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
        """``beta * self + alpha * batch1 @ batch2``.

        >>> Tensor([[[1]]]).baddbmm(Tensor([[[1, 2]]]), Tensor([[[3], [4]]])).tolist()
        [[[12]]]
        """
        return _added(self, _ranked("baddbmm", batch1, batch2, 3, 3), beta, alpha)

    def addbmm(self: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
        """``beta * self`` plus ``alpha`` times the sum of the products of two batches.

        >>> Tensor([[1]]).addbmm(Tensor([[[1]], [[2]]]), Tensor([[[3]], [[4]]])).tolist()
        [[12]]
        """
        return _added(self, _ranked("addbmm", batch1, batch2, 3, 3).sum(0), beta, alpha)

    def inner(self: Tensor, other: Tensor) -> Tensor:
        """Sums of products over the last axes of both.

        >>> Tensor([1, 2]).inner(Tensor([[3, 4], [5, 6]])).tolist()
        [11, 17]
        """
        y = operand("inner", other, self)
        if not self.ndim or not y.ndim:
            return self.mul(y)
        return self.tensordot(y, ([-1], [-1]))

    def vdot(self: Tensor, other: Tensor) -> Tensor:
        """The sum of products of two vectors.

        >>> Tensor([1, 2]).vdot(Tensor([3, 4])).item()
        11
        """
        return _ranked("vdot", self, other, 1, 1)

    def vecdot(self: Tensor, other: Tensor, *, dim: int = -1) -> Tensor:
        """The sum of products along an axis; the others are broadcast.

        >>> Tensor([[1, 2], [3, 4]]).vecdot(Tensor([1, 1])).tolist()
        [3, 7]
        """
        return self.mul(other).sum(integer("vecdot", "dim", dim))

    def tensordot(self: Tensor, other: Tensor, dims: int | Sequence[Sequence[int]] = 2) -> Tensor:
        """Sums of products over several axes of both.

        >>> Tensor([[1, 2], [3, 4]]).tensordot(Tensor([[1, 1], [1, 1]])).item()
        10

        Args:
            dims: how many of the last axes here and the first there, or a list of axes of each.

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
        left = self.permute(*keep, *own).reshape(_count(self, keep), _count(self, own))
        right = y.permute(*its, *rest).reshape(_count(y, its), _count(y, rest))
        return left.matmul(right).reshape(*[self.shape[a] for a in keep], *[y.shape[a] for a in rest])

    def kron(self: Tensor, other: Tensor) -> Tensor:
        """The product of Kronecker: ``other`` times each element, as blocks.

        >>> Tensor([1, 10]).kron(Tensor([1, 2])).tolist()
        [1, 2, 10, 20]
        """
        y = operand("kron", other, self)
        n = max(self.ndim, y.ndim)
        a, b = ((1,) * (n - t.ndim) + t.shape for t in (self, y))
        left = self.reshape(*[s for size in a for s in (size, 1)])
        right = y.reshape(*[s for size in b for s in (1, size)])
        return left.mul(right).reshape(*[s * t for s, t in zip(a, b)])

    def cross(self: Tensor, other: Tensor, dim: int | None = None) -> Tensor:
        """The vectors at right angles to pairs of vectors along an axis of size 3.

        >>> Tensor([1, 0, 0]).cross(Tensor([0, 1, 0])).tolist()
        [0, 0, 1]

        Args:
            dim: the first axis of size 3 by default.
        """
        y = operand("cross", other, self)
        shape = broadcast_shape("cross", self.shape, y.shape)
        d = next((i for i, s in enumerate(shape) if s == 3), -1) if dim is None else integer("cross", "dim", dim)
        if not shape or shape[d] != 3:
            raise ShapeError("cross", f"shapes {self.shape} and {y.shape} have no axis of size 3 there", "dim=")
        a, b = self.expand(*shape), y.expand(*shape)
        return a.roll(-1, d).mul(b.roll(-2, d)).sub(a.roll(-2, d).mul(b.roll(-1, d)))

    def trace(self: Tensor) -> Tensor:
        """The sum of the diagonal of a matrix.

        >>> Tensor([[1, 2], [3, 4]]).trace().item()
        5
        """
        if self.ndim != 2:
            raise ShapeError("trace", f"takes a matrix, got shape {self.shape}", ".diagonal(0, -2, -1).sum(-1)")
        return self.diagonal().sum()

    def vander(self: Tensor, N: int | None = None, increasing: bool = False) -> Tensor:
        """The powers of a vector's elements in columns, the highest first.

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


def _count(x: Tensor, axes: Sequence[int]) -> Any:
    total = 1
    for a in axes:
        total *= x.shape[a]
    return total


def _ranked(op: str, x: Any, y: Any, left: int, right: int) -> Tensor:
    """The product of operands of so many axes."""
    check_tensors(op, [x, y])
    if x.ndim != left or y.ndim != right or (left == 3 and not equal(x.shape[0], y.shape[0])):
        raise ShapeError(op, f"takes {left} and {right} axes (and equal batches), got shapes {x.shape} and {y.shape}",
                         "matmul, which broadcasts")
    return x.dot(y)  # type: ignore[no-any-return]


def _added(x: Tensor, product: Tensor, beta: float, alpha: float) -> Tensor:
    """``beta * x + alpha * product``; nothing of ``x`` where beta is 0, be it NaN."""
    if beta == 0:
        return product if alpha == 1 else product.mul(alpha)
    return x.add(product) if alpha == beta == 1 else _added_scaled(x, product, beta, alpha)


@rounded_once
def _added_scaled(x: Tensor, product: Tensor, beta: float, alpha: float) -> Tensor:
    return (x if beta == 1 else x.mul(beta)).add(product if alpha == 1 else product.mul(alpha))

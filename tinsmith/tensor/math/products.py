# mypy: disable-error-code=misc
"""Matrix products: a multiplication and a sum over one axis, which the code generator recognizes as a matmul.

``Products`` gives PyTorch's names for products of vectors, matrices and batches; all use ``dot``, ``mul``, sums."""
from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tinsmith.core.dtypes import DType, DTypeLike, dtypes, promote, sum_dtype, to_dtype
from tinsmith.core.errors import ArgumentError, DTypeError, ShapeError
from tinsmith.tensor.arguments import integer, integers, shown
from tinsmith.tensor.autocast import contraction, narrow_dtype, widened
from tinsmith.tensor.base import check_tensors
from tinsmith.tensor.helpers import axis_of, broadcast_shape, equal, expand_uop, one, operand, rounded_once, same_device

if TYPE_CHECKING:
    from tinsmith.tensor.tensor import Tensor


class MatMul:
    """``dot``, ``matmul``, ``linear``, ``outer``, ``einsum``."""

    __slots__ = ()

    @contraction
    def dot(self: Tensor, w: Tensor, dtype: DTypeLike | None = None) -> Tensor:
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
        result, work = _result_and_work(dtype, self, y)
        between = (1,) * min(n - 1, m - 1, 1)
        a = self.uop.cast(work).reshape((*left[:-1], *between, left[-1]))
        b = y.uop.cast(work).reshape((*right[:-2], *between, *right[inner:]))
        if m > 1:
            count = m + len(between)
            b = b.permute((*range(count - 2), count - 1, count - 2))
        shape = (left[0], right[1], left[1]) if n == m == 2 else broadcast_shape("dot", a.shape, b.shape)
        products = expand_uop(a, shape) * expand_uop(b, shape)
        return self._new(products.reduce("ADD", (len(shape) - 1,)).reshape(shape[:-1]).cast(result))

    def matmul(self: Tensor, x: Tensor, reverse: bool = False, dtype: DTypeLike | None = None) -> Tensor:
        """Return the same as ``dot``.

        >>> Tensor([[1, 2], [3, 4]]).matmul(Tensor([[1, 0], [0, 1]])).tolist()
        [[1, 2], [3, 4]]
        """
        return operand("matmul", x, self).dot(self, dtype) if reverse else self.dot(x, dtype)

    def linear(self: Tensor, weight: Tensor, bias: Tensor | None = None, dtype: DTypeLike | None = None) -> Tensor:
        """Return ``self @ weight + bias``; a 1-D weight is multiplied elementwise.

        >>> Tensor([1., 2.]).linear(Tensor([[1., 0.], [0., 2.]]), Tensor([1., 1.])).tolist()
        [2.0, 5.0]
        """
        x = self if dtype is None else self.cast(dtype)
        weight = operand("linear", weight, self)
        bias = None if bias is None else operand("linear", bias, self)
        w = weight if dtype is None else weight.cast(dtype)
        out = x.mul(w) if w.ndim == 1 else x.dot(w)
        return out if bias is None else out.add(bias if dtype is None else bias.cast(dtype))

    def outer(self: Tensor, x: Tensor) -> Tensor:
        """Return the outer product of two vectors: ``out[i, j] = self[i] * x[j]``.

        >>> Tensor([1, 2]).outer(Tensor([3, 4])).tolist()
        [[3, 4], [6, 8]]
        """
        x = operand("outer", x, self)
        if self.ndim != 1 or x.ndim != 1:
            raise ShapeError("outer", f"takes two vectors, got shapes {self.shape} and {x.shape}", ".flatten()")
        return self.unsqueeze(1).mul(x.unsqueeze(0))

    @staticmethod
    def einsum(formula: str, *operands: Any, dtype: DTypeLike | None = None) -> Tensor:
        """Sum products of operands over repeated indices (Einstein's summation convention).

        >>> Tensor.einsum("ij,jk->ik", Tensor([[1, 2]]), Tensor([[3], [4]])).tolist()
        [[11]]

        Raises:
            ShapeError: if one letter has two sizes, or the letters do not match the number of axes.
        """
        tensors: list[Tensor] = list(operands[0]) if len(operands) == 1 and isinstance(operands[0], (tuple, list)) \
            else list(operands)
        if not isinstance(formula, str):
            raise DTypeError("einsum", f"the formula is {shown(formula)}", "Tensor.einsum('ij,jk->ik', a, b)")
        check_tensors("einsum", tensors)
        kind = narrow_dtype(*tensors) if len(tensors) > 1 else None
        if kind is not None:
            return widened(MatMul.einsum(formula, *(t.cast(kind) for t in tensors), dtype=dtype), kind)
        inputs, output = _letters(formula, tensors)
        sizes = _letter_sizes(formula, inputs, tensors)
        for letter in output:
            if letter not in sizes or output.count(letter) > 1:
                raise ArgumentError("einsum", f"{formula!r}: letter {letter!r} of the result "
                                    + ("occurs twice" if letter in sizes else "occurs in no operand"),
                                    "each letter once")
        result, work = _result_and_work(dtype, *tensors)
        parts = [_diagonals(t.cast(work), letters) for t, letters in zip(tensors, inputs)]
        x, have = parts[0]
        for n, (y, more) in enumerate(parts[1:], 2):
            later = {c for _, letters in parts[n:] for c in letters} | set(output)
            x, have = _contract(x, have, y, more, later)
        gone = tuple(i for i, c in enumerate(have) if c not in output)
        x = x.sum(gone, dtype=work) if gone else x
        left = [c for c in have if c in output]
        return x.permute(*[left.index(c) for c in output]).cast(result) if output else x.cast(result)


def _result_and_work(dtype: DTypeLike | None, *operands: Tensor) -> tuple[DType, DType]:
    """Return (result dtype, accumulation dtype) of a product; a single operand follows the rules of ``sum``."""
    result = promote(*(t.dtype for t in operands)) if dtype is None else to_dtype(dtype)
    if dtype is None and (result.is_bool or len(operands) == 1):
        result = sum_dtype(result)
    if result.is_float:
        return result, dtypes.float32 if result.itemsize < 4 else result
    return result, result if result.is_bool else sum_dtype(result)


def _letters(formula: str, tensors: list[Tensor]) -> tuple[list[str], str]:
    """Return the letters of each operand and of the result; axes of ``...`` get capital Greek letters."""
    text = formula.replace(" ", "")
    left, arrow, right = text.partition("->")
    inputs = left.split(",")
    if len(inputs) != len(tensors):
        raise ArgumentError("einsum", f"{formula!r} names {len(inputs)} operands, {len(tensors)} are given",
                            "one group of letters per operand")
    spare = [t.ndim - len(letters.replace("...", "")) for t, letters in zip(tensors, inputs)]
    dots = max([s for s, letters in zip(spare, inputs) if "..." in letters], default=0)
    greek = "".join(chr(0x391 + i) for i in range(dots))
    if not arrow:
        plain = left.replace(",", "").replace(".", "")
        right = ("..." if dots else "") + "".join(sorted(c for c in set(plain) if plain.count(c) == 1))
    filled = [letters.replace("...", greek[dots - s :] if s else "") for s, letters in zip(spare, inputs)]
    for t, letters in zip(tensors, filled):
        if t.ndim != len(letters):
            raise ShapeError("einsum", f"{formula!r}: {len(letters)} letters {letters!r} for shape {t.shape}",
                             "one per axis")
    return filled, right.replace("...", greek)


def _letter_sizes(formula: str, inputs: list[str], tensors: list[Tensor]) -> dict[str, Any]:
    sizes: dict[str, Any] = {}
    for t, letters in zip(tensors, inputs):
        for letter, size in zip(letters, t.shape):
            known = sizes.setdefault(letter, size)
            if letter < "\u0391" and not equal(known, size):
                raise ShapeError("einsum", f"{formula!r}: letter {letter!r} is {known} and {size} in shapes "
                                 f"{', '.join(str(x.shape) for x in tensors)}", "equal sizes for one letter")
    return sizes


def _diagonals(x: Tensor, letters: str) -> tuple[Tensor, str]:
    """Replace axes that share a letter by their diagonal; return the tensor and its letters."""
    for c in letters:
        while letters.count(c) > 1:
            i = letters.index(c)
            j = letters.index(c, i + 1)
            x = x.diagonal(0, i, j)
            letters = letters[:i] + letters[i + 1 : j] + letters[j + 1 :] + c
    return x, letters


def _contract(x: Tensor, have: str, y: Tensor, more: str, later: set[str]) -> tuple[Tensor, str]:
    """Return the product of two operands, summed over the letters not in ``later``, and its letters."""
    union = have + "".join(c for c in more if c not in have)
    order = "".join(c for c in union if c in later) + "".join(c for c in union if c not in later)
    product = _spread(x, have, order).mul(_spread(y, more, order))
    gone = tuple(i for i, c in enumerate(order) if c not in later)
    out = product.sum(gone, dtype=product.dtype) if gone else product
    return out, "".join(c for c in order if c in later)


def _spread(x: Tensor, letters: str, order: str) -> Tensor:
    """Permute the axes to ``order`` and insert axes of size 1 for missing letters."""
    sorted_axes = x.permute(*[letters.index(c) for c in order if c in letters])
    return sorted_axes.reshape(tuple(x.shape[letters.index(c)] if c in letters else 1 for c in order))


class Products:
    """``mm bmm mv addmm tensordot inner kron cross trace`` and similar methods."""

    __slots__ = ()

    def mm(self: Tensor, mat2: Tensor) -> Tensor:
        """Return the product of two matrices.

        >>> Tensor([[1, 2]]).mm(Tensor([[3], [4]])).tolist()
        [[11]]

        Raises:
            ShapeError: if an operand is not a matrix; ``matmul`` takes vectors and batches.
        """
        return _ranked("mm", self, mat2, 2, 2)

    def bmm(self: Tensor, mat2: Tensor) -> Tensor:
        """Return the matrix products of two batches of equal size.

        >>> Tensor([[[1, 2]]]).bmm(Tensor([[[3], [4]]])).tolist()
        [[[11]]]
        """
        return _ranked("bmm", self, mat2, 3, 3)

    def mv(self: Tensor, vec: Tensor) -> Tensor:
        """Return the product of a matrix and a vector.

        >>> Tensor([[1, 2]]).mv(Tensor([3, 4])).tolist()
        [11]
        """
        return _ranked("mv", self, vec, 2, 1)

    def addmm(self: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
        """Return ``beta * self + alpha * mat1 @ mat2``.

        >>> Tensor([[1]]).addmm(Tensor([[1, 2]]), Tensor([[3], [4]])).tolist()
        [[12]]
        """
        return _added(self, _ranked("addmm", mat1, mat2, 2, 2), beta, alpha)

    def addmv(self: Tensor, mat: Tensor, vec: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
        """Return ``beta * self + alpha * mat @ vec``.

        >>> Tensor([1]).addmv(Tensor([[1, 2]]), Tensor([3, 4])).tolist()
        [12]
        """
        return _added(self, _ranked("addmv", mat, vec, 2, 1), beta, alpha)

    def addr(self: Tensor, vec1: Tensor, vec2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
        """Return ``beta * self + alpha * outer(vec1, vec2)``.

        >>> Tensor([[1, 1]]).addr(Tensor([2]), Tensor([3, 4])).tolist()
        [[7, 9]]
        """
        return _added(self, operand("addr", vec1, self).outer(vec2), beta, alpha)

    def baddbmm(self: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
        """Return ``beta * self + alpha * batch1 @ batch2``.

        >>> Tensor([[[1]]]).baddbmm(Tensor([[[1, 2]]]), Tensor([[[3], [4]]])).tolist()
        [[[12]]]
        """
        return _added(self, _ranked("baddbmm", batch1, batch2, 3, 3), beta, alpha)

    def addbmm(self: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
        """Return ``beta * self + alpha * (batch1 @ batch2).sum(0)``.

        >>> Tensor([[1]]).addbmm(Tensor([[[1]], [[2]]]), Tensor([[[3]], [[4]]])).tolist()
        [[12]]
        """
        return _added(self, _ranked("addbmm", batch1, batch2, 3, 3).sum(0), beta, alpha)

    def inner(self: Tensor, other: Tensor) -> Tensor:
        """Return the sums of products over the last axis of both operands.

        >>> Tensor([1, 2]).inner(Tensor([[3, 4], [5, 6]])).tolist()
        [11, 17]
        """
        y = operand("inner", other, self)
        if not self.ndim or not y.ndim:
            return self.mul(y)
        return self.tensordot(y, ([-1], [-1]))

    def vdot(self: Tensor, other: Tensor) -> Tensor:
        """Return the dot product of two vectors.

        >>> Tensor([1, 2]).vdot(Tensor([3, 4])).item()
        11
        """
        return _ranked("vdot", self, other, 1, 1)

    def vecdot(self: Tensor, other: Tensor, *, dim: int = -1) -> Tensor:
        """Return the dot product along ``dim``; the other axes broadcast.

        >>> Tensor([[1, 2], [3, 4]]).vecdot(Tensor([1, 1])).tolist()
        [3, 7]
        """
        return self.mul(other).sum(integer("vecdot", "dim", dim))

    def tensordot(self: Tensor, other: Tensor, dims: int | Sequence[Sequence[int]] = 2) -> Tensor:
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
        left = self.permute(*keep, *own).reshape(_count(self, keep), _count(self, own))
        right = y.permute(*its, *rest).reshape(_count(y, its), _count(y, rest))
        return left.matmul(right).reshape(*[self.shape[a] for a in keep], *[y.shape[a] for a in rest])

    def kron(self: Tensor, other: Tensor) -> Tensor:
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

    def cross(self: Tensor, other: Tensor, dim: int | None = None) -> Tensor:
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

    def trace(self: Tensor) -> Tensor:
        """Return the sum of the main diagonal of a matrix.

        >>> Tensor([[1, 2], [3, 4]]).trace().item()
        5
        """
        if self.ndim != 2:
            raise ShapeError("trace", f"takes a matrix, got shape {self.shape}", ".diagonal(0, -2, -1).sum(-1)")
        return self.diagonal().sum()

    def vander(self: Tensor, N: int | None = None, increasing: bool = False) -> Tensor:
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


def _count(x: Tensor, axes: Sequence[int]) -> Any:
    total = 1
    for a in axes:
        total *= x.shape[a]
    return total


def _ranked(op: str, x: Any, y: Any, left: int, right: int) -> Tensor:
    """Return ``x.dot(y)``, requiring ``left`` and ``right`` axes."""
    check_tensors(op, [x, y])
    if x.ndim != left or y.ndim != right or (left == 3 and not equal(x.shape[0], y.shape[0])):
        raise ShapeError(op, f"takes {left} and {right} axes (and equal batches), got shapes {x.shape} and {y.shape}",
                         "matmul, which broadcasts")
    return x.dot(y)  # type: ignore[no-any-return]


def _added(x: Tensor, product: Tensor, beta: float, alpha: float) -> Tensor:
    """Return ``beta * x + alpha * product``; with beta 0, ``x`` is ignored, NaN included."""
    if beta == 0:
        return product if alpha == 1 else product.mul(alpha)
    return x.add(product) if alpha == beta == 1 else _added_scaled(x, product, beta, alpha)


@rounded_once
def _added_scaled(x: Tensor, product: Tensor, beta: float, alpha: float) -> Tensor:
    return (x if beta == 1 else x.mul(beta)).add(product if alpha == 1 else product.mul(alpha))

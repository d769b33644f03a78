"""Products of matrices: each is a multiplication and a sum over one axis, which the code generator recognizes."""
# mypy: disable-error-code=misc
# ``self`` is the Tensor that this class is mixed into.
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tinsmith.core.dtypes import DType, DTypeLike, dtypes, promote, sum_dtype, to_dtype
from tinsmith.core.errors import ArgumentError, DTypeError, ShapeError
from tinsmith.tensor.arguments import shown
from tinsmith.tensor.autocast import contraction, narrow_dtype, widened
from tinsmith.tensor.base import check_tensors
from tinsmith.tensor.helpers import broadcast_shape, equal, expand_uop, one, operand, same_device

if TYPE_CHECKING:
    from tinsmith.tensor.tensor import Tensor


class MatMul:
    """``dot``, ``matmul``, ``linear``, ``outer``, ``einsum``."""

    __slots__ = ()

    @contraction
    def dot(self: Tensor, w: Tensor, dtype: DTypeLike | None = None) -> Tensor:
        """The product of matrices (or vectors) over the last axis of this one and the last but one of ``w``.

        Leading axes are broadcast. 16-bit floats are multiplied and summed in float32 and rounded once. Integers keep
        their dtype and wrap, as in PyTorch: ``dtype=dtypes.int32`` has the whole sums of narrower ones.

        >>> Tensor([[1, 2], [3, 4]]).dot(Tensor([1, 1])).tolist()
        [3, 7]

        Raises:
            ShapeError: if the axes to be summed over differ.
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
        """The same as ``dot``.

        >>> Tensor([[1, 2], [3, 4]]).matmul(Tensor([[1, 0], [0, 1]])).tolist()
        [[1, 2], [3, 4]]
        """
        return operand("matmul", x, self).dot(self, dtype) if reverse else self.dot(x, dtype)

    def linear(self: Tensor, weight: Tensor, bias: Tensor | None = None, dtype: DTypeLike | None = None) -> Tensor:
        """``self @ weight + bias``; a weight with one axis is multiplied elementwise.

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
        """All products of an element of this vector and one of ``x``.

        >>> Tensor([1, 2]).outer(Tensor([3, 4])).tolist()
        [[3, 4], [6, 8]]
        """
        x = operand("outer", x, self)
        if self.ndim != 1 or x.ndim != 1:
            raise ShapeError("outer", f"takes two vectors, got shapes {self.shape} and {x.shape}", ".flatten()")
        return self.unsqueeze(1).mul(x.unsqueeze(0))

    @staticmethod
    def einsum(formula: str, *operands: Any, dtype: DTypeLike | None = None) -> Tensor:
        """A sum of products by Einstein's convention.

        >>> Tensor.einsum("ij,jk->ik", Tensor([[1, 2]]), Tensor([[3], [4]])).tolist()
        [[11]]

        Raises:
            ShapeError: if one letter stands for two sizes, or the letters do not fit the axes.
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
    """The dtype of a product of operands, and the one that it is summed in. What is no product is a sum."""
    result = promote(*(t.dtype for t in operands)) if dtype is None else to_dtype(dtype)
    if dtype is None and (result.is_bool or len(operands) == 1):
        result = sum_dtype(result)
    if result.is_float:
        return result, dtypes.float32 if result.itemsize < 4 else result
    return result, result if result.is_bool else sum_dtype(result)


def _letters(formula: str, tensors: list[Tensor]) -> tuple[list[str], str]:
    """The letters of each operand and of the result; the axes of ``...`` become capital Greek letters."""
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
    """An operand with a letter twice is its diagonal."""
    for c in letters:
        while letters.count(c) > 1:
            i = letters.index(c)
            j = letters.index(c, i + 1)
            x = x.diagonal(0, i, j)
            letters = letters[:i] + letters[i + 1 : j] + letters[j + 1 :] + c
    return x, letters


def _contract(x: Tensor, have: str, y: Tensor, more: str, later: set[str]) -> tuple[Tensor, str]:
    """The product of two operands, summed over the letters that nothing later needs."""
    union = have + "".join(c for c in more if c not in have)
    order = "".join(c for c in union if c in later) + "".join(c for c in union if c not in later)
    product = _spread(x, have, order).mul(_spread(y, more, order))
    gone = tuple(i for i, c in enumerate(order) if c not in later)
    out = product.sum(gone, dtype=product.dtype) if gone else product
    return out, "".join(c for c in order if c in later)


def _spread(x: Tensor, letters: str, order: str) -> Tensor:
    """Axes in the order of ``order``, of size 1 where the operand has none."""
    sorted_axes = x.permute(*[letters.index(c) for c in order if c in letters])
    return sorted_axes.reshape(tuple(x.shape[letters.index(c)] if c in letters else 1 for c in order))

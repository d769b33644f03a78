"""Subscripts, dtypes and gradients of matrix products and ``einsum``."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from tinsmith.core.dtypes import DType, DTypeLike, dtypes, promote, sum_dtype, to_dtype
from tinsmith.core.errors import ArgumentError, ShapeError
from tinsmith.tensor.base import check_tensors
from tinsmith.tensor.helpers import equal, rounded_once
from tinsmith.tensor.math.functions import Functions

T = TypeVar("T", bound=Functions)


def result_and_work(dtype: DTypeLike | None, *operands: Functions) -> tuple[DType, DType]:
    """Return (result dtype, accumulation dtype) of a product; a single operand follows the rules of ``sum``."""
    result = promote(*(t.dtype for t in operands)) if dtype is None else to_dtype(dtype)
    if dtype is None and (result.is_bool or len(operands) == 1):
        result = sum_dtype(result)
    if result.is_float:
        return result, dtypes.float32 if result.itemsize < 4 else result
    return result, result if result.is_bool else sum_dtype(result)


def subscript_letters(formula: str, tensors: Sequence[Functions]) -> tuple[list[str], str]:
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


def letter_sizes(formula: str, inputs: list[str], tensors: Sequence[Functions]) -> dict[str, Any]:
    sizes: dict[str, Any] = {}
    for t, letters in zip(tensors, inputs):
        for letter, size in zip(letters, t.shape):
            known = sizes.setdefault(letter, size)
            if letter < "\u0391" and not equal(known, size):
                raise ShapeError("einsum", f"{formula!r}: letter {letter!r} is {known} and {size} in shapes "
                                 f"{', '.join(str(x.shape) for x in tensors)}", "equal sizes for one letter")
    return sizes


def diagonals(x: T, letters: str) -> tuple[T, str]:
    """Replace axes that share a letter by their diagonal; return the tensor and its letters."""
    for c in letters:
        while letters.count(c) > 1:
            i = letters.index(c)
            j = letters.index(c, i + 1)
            x = x.diagonal(0, i, j)
            letters = letters[:i] + letters[i + 1 : j] + letters[j + 1 :] + c
    return x, letters


def contract(x: T, have: str, y: T, more: str, later: set[str]) -> tuple[T, str]:
    """Return the product of two operands, summed over the letters not in ``later``, and its letters."""
    union = have + "".join(c for c in more if c not in have)
    order = "".join(c for c in union if c in later) + "".join(c for c in union if c not in later)
    product = _spread(x, have, order).mul(_spread(y, more, order))
    gone = tuple(i for i, c in enumerate(order) if c not in later)
    out = product.sum(gone, dtype=product.dtype) if gone else product
    return out, "".join(c for c in order if c in later)


def _spread(x: T, letters: str, order: str) -> T:
    """Permute the axes to ``order`` and insert axes of size 1 for missing letters."""
    sorted_axes = x.permute(*[letters.index(c) for c in order if c in letters])
    return sorted_axes.reshape(tuple(x.shape[letters.index(c)] if c in letters else 1 for c in order))


def counted(x: Functions, axes: Sequence[int]) -> Any:
    total = 1
    for a in axes:
        total *= x.shape[a]
    return total


def ranked(op: str, x: T, y: T, left: int, right: int, wide: bool = False) -> T:
    """Return ``x.dot(y)``, requiring ``left`` and ``right`` axes; ``wide``: inside ``autocast``, too, it is float32."""
    check_tensors(op, [x, y])
    if x.ndim != left or y.ndim != right or (left == 3 and not equal(x.shape[0], y.shape[0])):
        raise ShapeError(op, f"takes {left} and {right} axes (and equal batches), got shapes {x.shape} and {y.shape}",
                         "matmul, which broadcasts")
    return x.dot(y, dtypes.float32 if wide and promote(x.dtype, y.dtype) is dtypes.float32 else None)


def added(x: T, product: T, beta: float, alpha: float) -> T:
    """Return ``beta * x + alpha * product``; with beta 0, ``x`` is ignored, NaN included."""
    if beta == 0:
        return product if alpha == 1 else product.mul(alpha)
    return x.add(product) if alpha == beta == 1 else _added_scaled(x, product, beta, alpha)


@rounded_once
def _added_scaled(x: T, product: T, beta: float, alpha: float) -> T:
    return (x if beta == 1 else x.mul(beta)).add(product if alpha == 1 else product.mul(alpha))

"""Validation of non-tensor arguments: integers, numbers, flags and string options. Each error names the argument.

Public methods validate on entry, so that internal code may assume plain Python ints and floats.
"""
from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

import numpy as np

from tinsmith.core.dtypes import dtypes
from tinsmith.core.errors import ArgumentError, DTypeError, ShapeError
from tinsmith.core.errors import shown as shown
from tinsmith.ir import UOp
from tinsmith.tensor.host_data import check_range

_LARGEST: Final = (1 << 63) - 1  # the largest size of an axis
Scalar = (bool, int, float, np.generic)


def listed(values: Sequence[Any]) -> tuple[Any, ...]:
    """Return the arguments as a tuple, whether given one by one or as one tuple, list or 1-d array.

    >>> listed(((2, 3),)), listed((2, 3))
    ((2, 3), (2, 3))
    """
    if len(values) == 1:
        only = values[0]
        if isinstance(only, (tuple, list)) or (isinstance(only, np.ndarray) and only.ndim == 1):
            return tuple(only)
    return tuple(values)


def given(op: str, what: str, values: Sequence[Any], named: Any) -> Sequence[Any]:
    """Return the arguments that were given by position, or as one sequence by keyword.

    >>> given("reshape", "shape", (), (2, 3)), given("reshape", "shape", (2, 3), None)
    (((2, 3),), (2, 3))

    Raises:
        ArgumentError: if both are given.
    """
    if named is None:
        return values
    if values:
        raise ArgumentError(op, f"{what}={shown(named)} beside {shown(tuple(values))}",
                            f"{op}({what}=...)")
    return (named,)


def integer(op: str, what: str, value: Any, least: int | None = None, most: int | None = None) -> int:
    """Return ``value`` as an int.

    Args:
        what: the name of the argument in error messages.
        least: the smallest valid value.
        most: the greatest valid value.

    >>> integer("chunk", "chunks", np.int8(3))
    3

    Raises:
        DTypeError: if it is no integer.
        ArgumentError: if it is out of range.
    """
    if type(value) is not int:
        try:
            value = int(value.__index__())
        except (AttributeError, TypeError):
            raise DTypeError(op, f"{what} must be an integer, got {shown(value)}", "int(...)") from None
    if (least is not None and value < least) or (most is not None and value > most):
        raise ArgumentError(op, f"{what} is {value}", _range("an integer", least, most))
    return int(value)


def symbolic(op: str, what: str, value: Any) -> Any:
    """Return ``value`` as an int, or unchanged if it is a symbolic integer.

    Raises:
        DTypeError: if it is neither.
    """
    if isinstance(value, UOp) and not value.dtype.is_float:
        return value
    return integer(op, what, value)


def size(op: str, what: str, value: Any, least: int = 0) -> int:
    """Return ``value`` as the size of an axis.

    >>> size("Linear", "in_features", 3)
    3

    Raises:
        DTypeError: if it is no integer.
        ArgumentError: if it is less than ``least``, or more than an axis can have.
    """
    return integer(op, what, value, least, _LARGEST)


def integers(op: str, what: str, value: Any, count: int | None = None, least: int | None = None) -> tuple[int, ...]:
    """Return ``value``, an integer or a sequence of integers, as a tuple.

    Args:
        count: the required length; a single integer is repeated to it.

    >>> integers("conv2d", "stride", 2, 3)
    (2, 2, 2)

    Raises:
        DTypeError: if one is no integer.
        ArgumentError: if one is out of range, or there are not ``count`` of them.
    """
    if not isinstance(value, (tuple, list)):
        return (integer(op, what, value, least, _LARGEST),) * (1 if count is None else count)
    found = tuple(integer(op, what, v, least, _LARGEST) for v in value)
    if count is not None and len(found) != count:
        raise ArgumentError(op, f"{what}={shown(value)} for {count} axes", f"one number or {count} of them")
    return found


def number(op: str, what: str, value: Any, least: float | None = None, most: float | None = None,
           zero: bool = True) -> int | float:
    """Return ``value`` as a Python number.

    Args:
        zero: True if 0 is valid.

    >>> number("dropout", "p", np.float32(0.5), 0, 1)
    0.5

    Raises:
        DTypeError: if it is no number.
        RangeError: if it is an integer beyond all floats.
        ArgumentError: if it is out of range, or NaN where there is a range.
    """
    if not isinstance(value, Scalar) or (isinstance(value, np.generic) and value.dtype.kind not in "biuf"):
        raise DTypeError(op, f"{what} must be a number, got {shown(value)}", "int(...) or float(...)")
    found: int | float = value.item() if isinstance(value, np.generic) else value
    check_range(op, found, dtypes.float64)
    if (least is not None and not found >= least) or (most is not None and not found <= most):
        raise ArgumentError(op, f"{what} is {found}", _range("a number", least, most))
    if not zero and found == 0:
        raise ArgumentError(op, f"{what} is 0", "another number")
    return found


def choice(op: str, what: str, value: Any, options: Collection[str | None]) -> Any:
    """Return ``value`` after checking that it is one of ``options``.

    >>> choice("loss", "reduction", "sum", ("mean", "sum"))
    'sum'

    Raises:
        ArgumentError: naming the options.
    """
    if not (value is None or isinstance(value, str)) or value not in options:
        raise ArgumentError(op, f"unknown {what}={value!r}" if isinstance(value, str) else
                            f"unknown {what}: {shown(value)}", f"one of {', '.join(map(repr, options))}")
    return value


def flag(op: str, what: str, value: Any) -> bool:
    """Return ``value`` as a bool; None is False.

    >>> flag("unique", "return_counts", 1)
    True

    Raises:
        DTypeError: if it is neither true nor false.
    """
    if value is None or isinstance(value, (bool, int, np.bool_)):
        return bool(value)
    raise DTypeError(op, f"{what} must be True or False, got {shown(value)}", "True or False")


def pairs(op: str, what: str, values: Any, shape: tuple[Any, ...]) -> list[tuple[Any, Any] | None]:
    """Return one pair of (possibly symbolic) integers per axis, or None for an axis that does not change.

    Raises:
        DTypeError: if ``values`` is not a sequence of pairs of integers.
        ShapeError: if its length differs from the number of axes.
    """
    if not isinstance(values, (tuple, list)):
        raise DTypeError(op, f"{what} must be a sequence, got {shown(values)}", "one pair per axis")
    if len(values) != len(shape):
        raise ShapeError(op, f"{len(values)} pairs for the {len(shape)} axes of {shape}", "one pair per axis")
    out: list[tuple[Any, Any] | None] = []
    for pair in values:
        if pair is None:
            out.append(None)
            continue
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise DTypeError(op, f"{what} has {shown(pair)} where a pair or None must be", "one pair per axis")
        out.append((symbolic(op, what, pair[0]), symbolic(op, what, pair[1])))
    return out


def _range(kind: str, least: float | None, most: float | None) -> str:
    most = None if most == _LARGEST else most
    if least is not None and most is not None:
        return f"{kind} in [{least}, {most}]"
    return f"{kind} of at least {least}" if most is None else f"{kind} of at most {most}"

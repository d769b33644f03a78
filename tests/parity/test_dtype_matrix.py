"""Random elementwise programs (op × dtypes × scalar or tensor × edge values) against PyTorch: dtype of the result,
every value, signs of zeros. ``DTYPE_MATRIX=10000`` sets their number, ``DTYPE_MATRIX_FROM`` the first seed.

What differs from PyTorch by intent is in ``wanted``, each with its reason.
"""
from __future__ import annotations

import math
import operator
import os
import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest

from tests.backend.opencl import missing as opencl_missing
from tests.parity.helpers import torch
from tinsmith import Tensor, dtypes
from tinsmith.tensor.math.table import FUNCTIONS

COUNT, FIRST = int(os.environ.get("DTYPE_MATRIX", "60")), int(os.environ.get("DTYPE_MATRIX_FROM", "0"))
DEVICES = [*["CPU"] * 6, *["PYTHON"] * 5, *([] if opencl_missing() else ["OPENCL"])]  # whose compiler takes longest
HALVES = ("float16", "bfloat16")
FLOATS = (*HALVES, "float32", "float64")
INTS = ("uint8", "int8", "int16", "int32", "int64")
ALL = ("bool", *INTS, *FLOATS)
NUMBERS = (*INTS, *FLOATS)
SUM = 2.0  # ulp of the greatest term: PyTorch rounds a product together with a sum on some processors


class Kind(NamedTuple):
    """A method of one or two operands. ``ulp``: the allowed error of a float result; ``zeros``: compare signs of
    zeros."""

    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    operands: int = 2
    left: Sequence[str] = NUMBERS
    right: Sequence[str] = NUMBERS
    ulp: float = 0
    zeros: bool = True


def _same(name: str, **fields: Any) -> Kind:
    return Kind(getattr(Tensor, name), getattr(torch.Tensor, name), **fields)


def _unary(name: str, **fields: Any) -> Kind:
    return _same(name, operands=1, **fields)


def _rounded(mode: str) -> Kind:
    return Kind(lambda x, y: x.div(y, rounding_mode=mode), lambda x, y: torch.div(x, y, rounding_mode=mode))


KINDS = {
    **{o.__name__: Kind(o, o, left=ALL, right=ALL) for o in (operator.add, operator.mul)},
    **{o.__name__: Kind(o, o) for o in (operator.sub, operator.truediv, operator.floordiv, operator.mod)},
    **{o.__name__: Kind(o, o, left=ALL, right=ALL) for o in (
        operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne)},
    **{o.__name__: Kind(o, o, left=("bool", *INTS), right=("bool", *INTS)) for o in (
        operator.and_, operator.or_, operator.xor)},
    **{f"r{o.__name__}": Kind(lambda x, y, o=o: o(y, x), lambda x, y, o=o: o(y, x)) for o in (
        operator.sub, operator.truediv, operator.floordiv, operator.mod)},
    "fmod": _same("fmod"), "trunc_div": _rounded("trunc"), "floor_div": _rounded("floor"),
    "pow": Kind(operator.pow, operator.pow, ulp=4, zeros=False),
    "maximum": _same("maximum", zeros=False), "minimum": _same("minimum", zeros=False),
    "clamp": Kind(lambda x, y: x.clamp(min=y), lambda x, y: x.clamp(min=y), zeros=False),
    "clip_top": Kind(lambda x, y: x.clamp(max=y), lambda x, y: x.clamp(max=y), zeros=False),
    "where": Kind(lambda x, y: (x > 1).where(x, y), lambda x, y: torch.where(x > 1, x, y)),
    "add_alpha": Kind(lambda x, y: x.add(y, alpha=3), lambda x, y: x.add(y, alpha=3), ulp=SUM,
                      zeros=False),
    "sub_alpha": Kind(lambda x, y: x.sub(y, alpha=0.3), lambda x, y: x.sub(y, alpha=0.3), left=FLOATS, right=FLOATS,
                      ulp=SUM, zeros=False),
    "addcmul": Kind(lambda x, y: x.addcmul(x, y, value=0.3), lambda x, y: x.addcmul(x, y, value=0.3), left=FLOATS,
                    right=FLOATS, ulp=SUM, zeros=False),
    "addcdiv": Kind(lambda x, y: x.addcdiv(x, y, value=0.3), lambda x, y: x.addcdiv(x, y, value=0.3), left=FLOATS,
                    right=FLOATS, ulp=SUM, zeros=False),
    **{n: _same(n, left=FLOATS, right=FLOATS) for n in ("copysign", "fmax", "fmin")},
    **{n: _same(n, left=FLOATS, right=FLOATS, ulp=4) for n in ("atan2", "hypot", "logaddexp", "xlogy")},
    **{n: _unary(n) for n in ("neg", "abs", "square")}, **{n: _unary(n, left=ALL) for n in ("logical_not", "sign")},
    **{n: _unary(n, left=FLOATS) for n in (
        "floor", "ceil", "trunc", "round", "relu", "sqrt", "reciprocal", "isnan", "isinf", "isfinite", "frac")},
    **{n: _unary(n, ulp=4) for n, row in FUNCTIONS.items() if row.edges and not row.torch and n not in (
        "reciprocal", "sqrt")},
    **{f"to_{d}": Kind(lambda x, d=d: x.cast(d), lambda x, d=d: x.to(getattr(torch, d)), 1, ALL) for d in ALL},
}


STEPWISE = ("add", "sub", "rsub", "trunc_div", "pow", "xlogy", "sinh", "cosh", "asinh")
SUMS = ("addcmul", "addcdiv", "add_alpha", "sub_alpha")
OF_TENSORS = ("addcmul", "addcdiv", "atan2", "hypot", "logaddexp", "fmax", "fmin", "maximum", "minimum", "and_", "or_",
              "xor", "copysign", "xlogy")


def edges(name: str) -> list[Any]:
    """Return the edge values of a dtype."""
    if name == "bool":
        return [False, True]
    d = getattr(dtypes, name)
    if d.is_int:
        return [v for v in (d.min, d.min + 1, d.max, d.max - 1, d.max // 2, d.max // 3, 0, 1, 2, 3, 7, 100, -1, -2, -3,
                            -7) if d.min <= v <= d.max]
    info = ml_dtypes.finfo(d.numpy)
    tiny, least = float(info.tiny), float(info.smallest_subnormal)
    found = [0.0, 1.0, 0.1, 0.5, 1.5, 2.5, 3.0, 7.0, 13.0, 1e-4, 100.0, 60000.0, float(info.max), tiny, least,
             3 * least, 1 + float(info.eps), math.inf]
    return [s * v for v in found for s in (1, -1)] + [math.nan]


def values(rng: random.Random, name: str, count: int) -> Any:
    d = getattr(dtypes, name)
    some = edges(name)
    out = [rng.choice(some) if rng.random() < 0.7 or name == "bool" else
           rng.uniform(-9, 9) if d.is_float else rng.randint(int(d.min), int(d.max)) for _ in range(count)]
    return np.array(out, np.float64 if d.is_float else None).astype(d.numpy)


def scalar(rng: random.Random, left: str) -> Any:
    """Return a Python number that the dtype of the other operand can hold."""
    if rng.random() < 0.5:
        return rng.choice([0.1, -0.1, 1e-4, 1e5, 1 / 65536, 1e-9, 2.5, -3.0, 0.0, -0.0, 1.0, math.inf, -math.inf,
                           math.nan])
    d, whole = getattr(dtypes, left), (0, 1, 2, 3, 7, 100, -1, -3, 65535, 2**31 - 1)
    return rng.choice([n for n in whole if not d.is_int or d.min <= n <= d.max])


def as_torch(x: Any) -> Any:
    if isinstance(x, np.ndarray) and x.dtype == ml_dtypes.bfloat16:
        return torch.tensor(x.view(np.int16)).view(torch.bfloat16)
    return torch.tensor(x) if isinstance(x, np.ndarray) else x


def as_numpy(t: Any) -> Any:
    return t.float().numpy().astype(ml_dtypes.bfloat16) if t.dtype is torch.bfloat16 else t.numpy()


class Program:
    """One call, generated from a seed and run on a device."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        self.device, self.name = rng.choice(DEVICES), rng.choice(list(KINDS))
        self.kind = KINDS[self.name]
        count = rng.choice([1, 5, 16, 19, 37])
        self.left = rng.choice(list(self.kind.left))
        self.operands = [values(rng, self.left, count)]
        if self.kind.operands == 2:
            by_scalar = rng.random() < 0.5 and self.name not in OF_TENSORS
            right = rng.choice(list(self.kind.right))
            self.operands.append(scalar(rng, self.left) if by_scalar else values(rng, right, count))

    def __str__(self) -> str:
        shown = [f"{o.dtype.name} {o.tolist()}" if isinstance(o, np.ndarray) else repr(o) for o in self.operands]
        return f"{self.name} on {self.device} of {', '.join(shown)}"

    def defined(self) -> bool:
        """Return True if PyTorch's result is defined, or an error there is one here."""
        x, *rest = self.operands
        of_integers = all(isinstance(o, int) or (isinstance(o, np.ndarray) and o.dtype.kind in "biu")
                          for o in self.operands)
        if self.name in ("floordiv", "mod", "fmod", "trunc_div", "floor_div", "rfloordiv", "rmod") and of_integers:
            divisor = x if self.name[:2] in ("rf", "rm") else rest[0]
            return bool(np.all(np.asarray(divisor) != 0))
        if self.name == "pow" and of_integers:
            return bool(np.all(np.asarray(rest[0]) >= 0))
        if self.name.startswith("to_") and x.dtype.kind not in "biu":  # C leaves open what is out of range
            d = getattr(dtypes, self.name[3:])
            wide = x.astype(np.float64)
            return not d.is_int or bool(np.all(np.isfinite(wide) & (wide > float(d.min)) & (wide < float(d.max))))
        return True

    def wanted(self) -> Any:
        """Return PyTorch's result, except where Tinsmith is more accurate by design."""
        theirs = [as_torch(np.repeat(o, 2) if isinstance(o, np.ndarray) and len(o) == 1 else o)
                  for o in self.operands]  # beside one element, PyTorch takes a scalar for another element
        out = self.kind.theirs(*theirs)
        tensors = [t for t in theirs if isinstance(t, torch.Tensor)]
        narrow = out.dtype in (torch.float16, torch.bfloat16)
        if narrow and ("floor" in self.name or self.name in STEPWISE):
            # PyTorch rounds every step of these, and the scalar of some: ours are float32's, rounded once
            # PyTorch's float32 of a scalar: for sums on GPUs alone, on CPUs their scalar is rounded
            wide = [t.to(out.dtype).float() if isinstance(t, torch.Tensor) else t for t in theirs]
            out = self.kind.theirs(*wide).to(out.dtype)
        if self.name == "sqrt" and out.dtype is torch.float64:
            with np.errstate(invalid="ignore"):
                out = torch.tensor(np.sqrt(theirs[0].numpy()))  # PyTorch's vectors are off by one digit
        if (self.kind.ulp > SUM or self.name == "sqrt") and self.name != "pow" and out.dtype is not torch.float64:
            # subnormals, which PyTorch loses, and last digits
            out = self.kind.theirs(*(t.float().double() for t in tensors)).to(out.dtype)
        if self.name == "rtruediv" and isinstance(self.operands[1], (int, float)):
            kind = out.dtype if out.dtype is torch.float64 else torch.float32  # PyTorch multiplies by the reciprocal
            out = (torch.tensor(self.operands[1], dtype=kind) / theirs[0].to(kind)).to(out.dtype)
        if self.name == "sign":
            out = torch.where(theirs[0] != theirs[0], theirs[0], out)  # NumPy's and our NaN; PyTorch has 0
        if out.dtype is torch.int64 and self.name != "to_int64" and not any(t.dtype is torch.int64 for t in tensors):
            out = out.to(torch.int32)  # our default integer
        if self.name in ("fmod", "mod", "rmod") and out.dtype.is_floating_point:
            # quotients overflow in PyTorch's vectors
            out = torch.where(out.isnan(), self.exact_remainder(theirs, out.dtype), out)
        return out

    def exact_remainder(self, theirs: list[Any], dtype: Any) -> Any:
        x, y = (torch.as_tensor(t).to(dtype).double().numpy() for t in theirs)
        x, y = (y, x) if self.name == "rmod" else (x, y)
        with np.errstate(all="ignore"):
            rest = np.fmod(x, y)
            if self.name != "fmod":
                rest = np.where((rest != 0) & ((rest < 0) != (y < 0)), rest + y, rest)
        return torch.tensor(rest).to(dtype)

    def check(self) -> None:
        if not self.defined():
            return
        try:
            want = self.wanted()[: len(self.operands[0])]
        except RuntimeError as error:
            if "without overflow" in str(error):  # PyTorch refuses the scalar, to us it is infinite
                return
            raise
        mine = [Tensor(o, device=self.device) if isinstance(o, np.ndarray) else o for o in self.operands]
        got = self.kind.ours(*mine)
        assert got.dtype is getattr(dtypes, str(want.dtype).removeprefix("torch.")), (got.dtype, want.dtype)
        found, known = got.numpy(), as_numpy(want)
        if found.dtype.kind not in "fV":
            np.testing.assert_array_equal(found, known)
            return
        info = ml_dtypes.finfo(found.dtype)
        with np.errstate(all="ignore"):
            wide, goal = found.astype(np.longdouble), known.astype(np.longdouble)
            terms = abs(goal)  # of a sum, one step of whose terms is rounded in one way or the other
            if self.name == "logaddexp":
                terms = np.fmax(terms, 1)
            if self.name in SUMS:
                terms = np.fmax(terms, abs(self.operands[0].astype(np.longdouble)))
                if not all(np.all(abs(np.asarray(v, np.longdouble)) < float(info.max) / 1e3)
                           for v in (goal, *self.operands)):
                    return  # a product that overflows alone does not do so together with a sum
            ulp = np.exp2(np.floor(np.log2(np.maximum(terms, float(info.tiny)))) - info.nmant)
            near = abs(wide - goal) <= (self.kind.ulp if found.dtype.itemsize > 2 else min(self.kind.ulp, 1)) * ulp
        same = (wide == goal) | near | (np.isnan(wide) & np.isnan(goal))
        if found.dtype == ml_dtypes.bfloat16 or any(
                isinstance(o, np.ndarray) and o.dtype == ml_dtypes.bfloat16 for o in self.operands):
            same |= (abs(goal) < 2.0**-126) & (wide == 0)  # a subnormal bfloat16 may become 0 (docs/ir.md)
        if self.kind.zeros:
            same &= (goal != 0) | (wide != 0) | (np.signbit(found) == np.signbit(known))
        lines = zip(*(np.broadcast_to(o, found.shape) for o in self.operands), found, known)
        assert same.all(), [line for line, ok in zip(lines, same) if not ok][:4]


def check(seed: int) -> None:
    program = Program(seed)
    try:
        program.check()
    except Exception as error:
        raise AssertionError(f"seed {seed}: {program}") from error


@pytest.mark.parametrize("first", range(FIRST, FIRST + COUNT, 20))
def test_dtype_matrix(first: int) -> None:
    for seed in range(first, min(first + 20, FIRST + COUNT)):
        check(seed)

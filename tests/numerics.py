"""Measurement of function errors in ulp over the full range of each float dtype, written to docs/numerics.md: ``python
tests/numerics.py``. tests/test_numerics.py checks the bounds."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import mpmath
import numpy as np

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tinsmith import Tensor, dtypes  # noqa: E402
from tinsmith.core.dtypes import DType  # noqa: E402

PAGE = ROOT / "docs" / "numerics.md"
FLOATS = (dtypes.float64, dtypes.float32, dtypes.float16, dtypes.bfloat16)
EXACT = 0.51  # half an ulp: the nearest number, where the reference is rounded too
MANY, BY_NUMBER = 200_000, 4000  # arguments: in NumPy's extended precision, and one by one in mpmath

INTRODUCTION = """# Numerics: how far functions are off

Errors in ulp, the distance of neighbouring floats at the exact result, over the full range of arguments: the greatest
measured, and the bound that [tests/test_numerics.py](../tests/test_numerics.py) holds. 0.5 is the nearest float.
`python tests/numerics.py` measures and writes this page, on a CPU of x86-64, against NumPy's extended precision and
mpmath at 160 bits: every number of the 16-bit dtypes; of the others 200,000 random ones (4,000 where mpmath computes),
half of them of every exponent alike, half of them between -16 and 16. Infinities, NaN and overflow must be those of the
exact result.
"""
REMARKS = """
\\* is the difference of greater numbers somewhere: results below 1 count as 1.

16-bit floats are computed in float32, and rounded once; a Python number beside them has float32's digits in sums,
differences, products and quotients, also those rounded down (comparisons, remainders, maxima and minima round it to the
tensor's dtype first, as in PyTorch). Remainders (`%`, `fmod`) are exact for every quotient, and `//` is what the exact
remainder makes it. Zeros keep their sign in `round`, `ceil`, `trunc`, `fmod`, `relu` and `clamp` by 0. `sin`, `cos` and
`tan` reduce every angle exactly. `lgamma`, `digamma` and `erfinv` are computed in float64. `silu` is `x * sigmoid(x)`:
its greatest errors lie where the sigmoid is subnormal (x < -87 in float32). `pow` is measured for positive bases.

Sums: `sum`, `mean` and products of matrices add in several accumulators of the dtype (float32 for 16-bit floats), so
that errors grow with the root of the count rather than with the count, and the order of additions is part of the
kernel: the same program gives the same bits. Matrix units for bfloat16 (AMX's `TDPBF16PS`, AVX512-BF16's `VDPBF16PS`)
take subnormal operands as 0 and make subnormal sums 0, whatever the processor's mode; magnitudes below 1.2e-38 are
lost, none above. `VDPBF16PS` adds the products of a pair one after the other to the float32 sum, the second first, each
rounded once to nearest even (Intel's Software Developer's Manual; checked bit by bit against the interpreter, on AMD's
Zen 4). Products of integers keep their dtype and wrap: `matmul(..., dtype=int32)` of 8-bit and 16-bit ones is exact
modulo 2**32. Factorizations are backward stable: `qr`, `svd`, `eigh`, `lu` and `cholesky` of 64 columns give the matrix
back to about 1e-6 of its norm in float32, 1e-15 in float64. A Fourier transform of 4096 values is off by about 1e-6 of
their root mean square in float32.
"""
Array = np.ndarray[Any, Any]


class Row(NamedTuple):
    """A function to measure, its reference and its error bounds.

    Attributes:
        f: the method under test.
        reference: NumPy's function, in extended precision, or mpmath's of one number (``by_number``).
        bounds: the largest error in ulp that tests allow for float64, float32 and the 16-bit dtypes.
        least: the magnitude whose ulp measures the error of smaller results, for results that are differences of larger
            numbers.
        low: the smallest argument; ``high``: the largest.
    """

    f: Callable[..., Tensor]
    reference: Callable[..., Any]
    bounds: tuple[float, float, float]
    least: float = 0.0
    low: float = -math.inf
    high: float = math.inf
    by_number: bool = False
    arguments: int = 1


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def _softplus(x: Array) -> Array:
    return np.logaddexp(x, np.zeros_like(x))


def _silu(x: Array) -> Array:
    return x * _sigmoid(x)


def _erfc(x: Any) -> Any:
    return mpmath.erfc(x) if abs(x) < 200 else mpmath.mpf(0 if x > 0 else 2)


def _erf(x: Any) -> Any:
    return mpmath.erf(x) if abs(x) < 200 else mpmath.sign(x)


def _gelu(x: Any) -> Any:
    return x * _erfc(-x / mpmath.sqrt(2)) / 2


def _sinc(x: Any) -> Any:
    return mpmath.sincpi(x)


def _lgamma(x: Any) -> Any:
    if x <= 0 and x == mpmath.floor(x):
        return mpmath.inf
    return mpmath.log(abs(mpmath.gamma(x))) if abs(x) < 1e3 else mpmath.re(mpmath.loggamma(x))


def _digamma(x: Any) -> Any:
    if x <= 0 and x == mpmath.floor(x):
        return mpmath.nan
    return mpmath.digamma(x)


ROWS: dict[str, Row] = {
    "reciprocal": Row(Tensor.reciprocal, np.reciprocal, (EXACT, EXACT, EXACT)),
    "sqrt": Row(Tensor.sqrt, np.sqrt, (EXACT, EXACT, EXACT), low=0),
    "rsqrt": Row(Tensor.rsqrt, lambda x: 1 / np.sqrt(x), (1.5, 1.5, EXACT), low=0),
    "exp": Row(Tensor.exp, np.exp, (1, 1, EXACT)),
    "exp2": Row(Tensor.exp2, np.exp2, (1, 1, EXACT)),
    "expm1": Row(Tensor.expm1, np.expm1, (2, 2, EXACT)),
    "log": Row(Tensor.log, np.log, (1, 1, EXACT), low=0),
    "log2": Row(Tensor.log2, np.log2, (1.5, 1.5, EXACT), low=0),
    "log10": Row(Tensor.log10, np.log10, (2.5, 2.5, EXACT), low=0),
    "log1p": Row(Tensor.log1p, np.log1p, (1.5, 1.5, EXACT), low=-1),
    "sin": Row(Tensor.sin, np.sin, (2, 2, EXACT)),
    "cos": Row(Tensor.cos, np.cos, (2, 2, EXACT)),
    "tan": Row(Tensor.tan, np.tan, (4, 4, EXACT)),
    "asin": Row(Tensor.asin, np.arcsin, (2.5, 2.5, EXACT), low=-1, high=1),
    "acos": Row(Tensor.acos, np.arccos, (2.5, 2.5, EXACT), low=-1, high=1),
    "atan": Row(Tensor.atan, np.arctan, (1.5, 1.5, EXACT)),
    "sinh": Row(Tensor.sinh, np.sinh, (2.5, 2.5, EXACT)),
    "cosh": Row(Tensor.cosh, np.cosh, (1.5, 1.5, EXACT)),
    "tanh": Row(Tensor.tanh, np.tanh, (2.5, 2.5, EXACT)),
    "asinh": Row(Tensor.asinh, np.arcsinh, (2.5, 2.5, EXACT)),
    "acosh": Row(Tensor.acosh, np.arccosh, (2.5, 2.5, EXACT), low=1),
    "atanh": Row(Tensor.atanh, np.arctanh, (2, 2, EXACT), low=-1, high=1),
    "sigmoid": Row(Tensor.sigmoid, _sigmoid, (2.5, 2.5, EXACT)),
    "softplus": Row(Tensor.softplus, _softplus, (2, 2, EXACT)),
    "silu": Row(Tensor.silu, _silu, (512, 64, EXACT)),
    "gelu": Row(Tensor.gelu, _gelu, (2, 2, EXACT), least=1, by_number=True),
    "erf": Row(Tensor.erf, _erf, (1, 1, EXACT), by_number=True),
    "erfc": Row(Tensor.erfc, _erfc, (8, 8, EXACT), by_number=True),
    "erfinv": Row(Tensor.erfinv, mpmath.erfinv, (4, EXACT, EXACT), low=-1, high=1, by_number=True),
    "sinc": Row(Tensor.sinc, _sinc, (3, 3, EXACT), by_number=True),
    "lgamma": Row(Tensor.lgamma, _lgamma, (64, EXACT, EXACT), least=1, by_number=True),
    "digamma": Row(Tensor.digamma, _digamma, (32, EXACT, EXACT), least=1, by_number=True),
    "div": Row(Tensor.div, np.divide, (EXACT, EXACT, EXACT), arguments=2),
    "pow": Row(Tensor.pow, np.power, (1, 1, EXACT), low=0, arguments=2),
    "atan2": Row(Tensor.atan2, np.arctan2, (2, 2, EXACT), arguments=2),
    "hypot": Row(Tensor.hypot, np.hypot, (2.5, 2.5, EXACT), arguments=2),
    "logaddexp": Row(Tensor.logaddexp, np.logaddexp, (1, 1, EXACT), least=1, arguments=2),
}


def points(dtype: DType, count: int, row: Row) -> list[Array]:
    """Return arguments: every number of a 16-bit dtype; of others, half with random exponents, half between -16 and
    16."""
    kind, rng = dtype.numpy, np.random.default_rng(7)
    out = []
    unsigned = {2: np.uint16, 4: np.uint32, 8: np.uint64}[dtype.itemsize]
    for _ in range(row.arguments):
        if dtype.itemsize == 2 and row.arguments == 1:
            x = np.arange(1 << 16, dtype=np.uint16).view(kind)
        else:
            bits = rng.integers(0, 1 << dtype.bits, count // 2, dtype=unsigned)
            near = rng.uniform(-16, 16, count - count // 2).astype(kind)
            x = np.concatenate([bits.view(kind), near])
        out.append(x)
    with np.errstate(invalid="ignore"):
        wide = [x.astype(np.float64) for x in out]
    inside = np.logical_and.reduce(
        [np.isfinite(w) & (w >= row.low) & (w <= row.high) & ((w != 0) | (not row.by_number)) for w in wide]
    )
    return [x[inside] for x in out]


def error(row: Row, dtype: DType, count: int) -> tuple[float, tuple[float, ...]]:
    """Return the largest error in ulp, and its argument."""
    xs = points(dtype, min(count, BY_NUMBER) if row.by_number else count, row)
    if row.by_number and dtype.itemsize == 2:
        xs = [x[::16] for x in xs]
    got = row.f(*(Tensor(x) for x in xs)).numpy()
    with np.errstate(all="ignore"):
        if row.by_number:
            with mpmath.workprec(160):
                want = np.array([_extended(row.reference(mpmath.mpf(float(x)))) for x in xs[0]], np.longdouble)
        else:
            want = row.reference(*(x.astype(np.longdouble) for x in xs))
        info = dtypes.finfo(dtype)
        exponent = np.floor(np.log2(np.maximum(np.maximum(abs(want), row.least), info.tiny)))
        ulp = np.exp2(np.where(np.isfinite(exponent), exponent, 0) - info.mantissa)
        most = np.longdouble(info.max) * (
            1 + np.exp2(np.longdouble(-info.mantissa - 2))
        )  # beyond is infinite, rounded
        want = np.where(abs(want) > most, np.copysign(np.inf, want), want)
        found = got.astype(np.longdouble)
        off = np.where((found == want) | (np.isnan(found) & np.isnan(want)), 0, abs(found - want) / ulp)
        off = np.where(np.isnan(off), np.inf, off)
    worst = int(off.argmax())
    return float(off[worst]), tuple(float(x[worst]) for x in xs)


def _extended(value: Any) -> Any:
    """Convert an mpmath number to NumPy's extended precision."""
    value = mpmath.re(value)
    if not mpmath.isfinite(value):
        return np.longdouble(float(value))
    high = float(value)
    return np.longdouble(high) + np.longdouble(float(value - high)) if math.isfinite(high) else np.longdouble(high)


def bound(row: Row, dtype: DType) -> float:
    return row.bounds[{8: 0, 4: 1, 2: 2}[dtype.itemsize]]


def page() -> str:
    """Return the text of docs/numerics.md."""
    lines = [INTRODUCTION, "| function | float64 | float32 | float16 | bfloat16 |", "| --- | --- | --- | --- | --- |"]
    for name, row in ROWS.items():
        found = [f"{error(row, d, MANY)[0]:.2f} (≤ {bound(row, d):g})" for d in FLOATS]
        star = "\\*" if row.least else ""
        lines.append(f"| `{name}`{star} | {' | '.join(found)} |")
    return "\n".join([*lines, REMARKS])


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")

"""sin and cos of any angle in basic operations; cos(x) = sin(x + pi/2), where half a half turn is added exactly.

Small angles are reduced by subtracting multiples of pi in parts (Cody and Waite, ch. 8). Large ones are reduced in
integers, in an unlikely branch: M. Payne and R. Hanek, "Radian reduction for trigonometric functions" (SIGNUM
Newsletter 18, 1983).
"""
from __future__ import annotations

import itertools
from collections.abc import Sequence

from tinsmith.codegen.decompose.floats import FORMATS, at_least, at_most, flip_sign, fma, polynomial, split_sign
from tinsmith.core.dtypes import DType, dtypes
from tinsmith.ir.ops import Ops
from tinsmith.ir.uop import UOp

_PI, _PI_LOW, _PI_WORD = 3.141592653589793, 1.2246467991473532e-16, 0xC90FDAA22168C235  # the last: 2**62·pi
_INV_PI = 0.3183098861837907


# pi as a sum of short numbers, whose multiples are subtracted without error up to the angle given first. Where a
# product is rounded together with a sum (FMA), parts of 24 bits suffice. Elsewhere the products must be exact
# themselves. The subtractions of all but the last two parts are exact, and the last part is below the last place unless
# the subtraction before it was exact: the angle is rounded once, which counts twice where its sine lies in the binade
# below its own.
_FUSED32 = 2.0**17, ("0x1.921fb6p+1", "-0x1.777a5cp-24", "-0x1.ee59dap-49")
_SHORT = {dtypes.float32: (2.0**9, ("0x1.922p+1", "-0x1.28p-17", "-0x1.777cp-24", "0x1.a308d4p-40")),
          dtypes.float64: (2.0**25, ("0x1.921fb54p+1", "0x1.10b46p-29", "0x1.1a62634p-53", "-0x1.d747f23e32ed7p-82"))}

# 1/pi in words of 64 bits, after one word of zeros for small angles
_INV_PI_WORDS = (
    0, 0x517CC1B727220A94, 0xFE13ABE8FA9A6EE0, 0x6DB14ACC9E21C820, 0xFF28B1D5EF5DE2B0, 0xDB92371D2126E970,
    0x0324977504E8C90E, 0x7F0EF58E5894D39F, 0x74411AFA975DA242, 0x74CE38135A2FBF20, 0x9CC8EB1CC1A99CFA,
    0x4E422FC5DEFC941D, 0x8FFC4BFFEF02CC07, 0xF79788C5AD05368F, 0xB69B3F6793E584DB, 0xA7A31FB34F2FF516,
    0xBA93DD63F5F2F8BD, 0x9E839CFBC5294975, 0x35FDAFD88FC6AE84, 0x2B0198237E3DB5D5)
_LOW_HALF, _LOW_BITS = (1 << 32) - 1, (1 << 11) - 1


def sin(x: UOp, fused: bool) -> UOp:
    """Return sin(x) = (-1)**n · sin(r), r = abs(x) - n·pi, with one polynomial for abs(r) up to about pi/2."""
    a, sign = split_sign(x)
    return flip_sign(_sine(_reduced(a, False, fused)), sign)


def cos(x: UOp, fused: bool) -> UOp:
    """Return cos(x) as the sine of abs(x) + pi/2; 1 where it rounds to 1."""
    a, _ = split_sign(x)
    return a.lt(2.0 ** -(FORMATS[x.dtype].mantissa / 2 + 1)).where(1.0, _sine(_reduced(a, True, fused)))


def _sine(r: UOp) -> UOp:
    z = r * r
    found = fma(r * z, polynomial(z, FORMATS[r.dtype].sin), r)
    return at_most(at_least(found, -1.0), 1.0) if r.dtype is dtypes.float64 else found  # the polynomial might exceed 1


def _reduced(a: UOp, quarter: bool, fused: bool) -> UOp:
    """Reduce a ≥ 0 to ±(a - n·pi), minus if n is odd; with ``quarter`` reduce a + pi/2."""
    most, parts = _FUSED32 if fused and a.dtype is dtypes.float32 else _SHORT[a.dtype]
    return UOp(Ops.UNLIKELY, None, (a > most, _by_integers(a, quarter), _by_parts(a, quarter, parts)))


def _by_parts(a: UOp, quarter: bool, parts: Sequence[str]) -> UOp:
    f = FORMATS[a.dtype]
    shifted = fma(a, _INV_PI, 0.5) + f.magic if quarter else fma(a, _INV_PI, f.magic)
    n = f.magic - shifted  # minus the number of half turns
    r, times = a, n + 0.5 if quarter else n
    for part in parts:
        r = fma(times, float.fromhex(part), r)
    return flip_sign(r, shifted.bitcast(f.uint) << (f.uint.bits - 1))


def _by_integers(a: UOp, quarter: bool) -> UOp:
    """Reduce any large float in integers (Payne and Hanek): for a = m·2**e, the product of m and the bits of 1/pi from
    weight 2**-e down is the number of half turns modulo 2. The top bit of the product is worth one half turn."""
    f, word = FORMATS[a.dtype], dtypes.uint64
    bits = a.bitcast(f.uint).cast(word)
    m = (bits & ((1 << f.mantissa) - 1)) | (1 << f.mantissa)
    place = (bits >> f.mantissa) + (64 - 1 - f.bias - f.mantissa)
    high, low = _product(m, _words_from(place, 2 if a.dtype is dtypes.float32 else 3))
    if quarter:
        high = high + (1 << 62)
    odd = (high + (1 << 62)) >> 63
    fraction, rest = (high << 1) | (low >> 63), low << 1  # in half turns, from -1/2 up
    negative = fraction >> 63
    flipped = UOp.const(word, 0) - negative
    r = _times_pi(fraction ^ flipped, rest ^ flipped, a.dtype)
    r = flip_sign(r, (odd ^ negative).cast(f.uint) << (f.uint.bits - 1))
    return a.lt(float("inf")).where(r, float("nan"))


def _times_pi(fraction: UOp, rest: UOp, dtype: DType) -> UOp:
    """Return pi times a 128-bit fraction, rounded about once."""
    if dtype is dtypes.float32:
        return _as_float(_upper_product(fraction, UOp.const(fraction.dtype, _PI_WORD)), dtype) * 2.0**-62
    first, left = (_as_float(part, dtype) * 2.0**-64 for part in (fraction & ~_LOW_BITS, fraction & _LOW_BITS))
    left = fma(_as_float(rest >> 1, dtype), 2.0**-127, left)
    return fma(first, _PI, fma(first, _PI_LOW, left * _PI))


def _as_float(bits: UOp, dtype: DType) -> UOp:
    """Convert a word below 2**63 to a float, as a signed integer, for which devices have an instruction."""
    return bits.bitcast(dtypes.int64).cast(dtype)


def _words_from(place: UOp, count: int) -> list[UOp]:
    """Return ``count`` words of 1/pi from bit number ``place`` on: words are skipped by selects, as in a barrel
    shifter."""
    skipped, shift = place >> 6, place & 63
    words = [UOp.const(dtypes.uint64, w) for w in _INV_PI_WORDS[:20 if count == 3 else 5]]
    for step in (16, 8, 4, 2, 1):
        chosen = (skipped & step).ne(0)
        words = [chosen.where(words[i + step], w) if i + step < len(words) else w
                 for i, w in enumerate(words[:count + step])]
    rest = 63 - shift
    return [(first << shift) | ((second >> 1) >> rest) for first, second in itertools.pairwise(words)]


def _product(m: UOp, words: Sequence[UOp]) -> tuple[UOp, UOp]:
    """Return the two upper words of m times a multi-word number, modulo its width."""
    results, carried = [], UOp.const(m.dtype, 0)
    for word in reversed(words):
        results.append(m * word + carried)
        carried = _upper_product(m, word) + results[-1].lt(carried).cast(m.dtype)
    return results[-1], results[-2]


def _upper_product(x: UOp, y: UOp) -> UOp:
    """Return the upper word of a 64 × 64 bit product."""
    x0, x1, y0, y1 = x & _LOW_HALF, x >> 32, y & _LOW_HALF, y >> 32
    middle = x0 * y1 + ((x0 * y0) >> 32)
    return x1 * y1 + (middle >> 32) + ((x1 * y0 + (middle & _LOW_HALF)) >> 32)

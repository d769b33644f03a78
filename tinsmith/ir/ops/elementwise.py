"""Elementwise ops: the arithmetic of one element, special values included.

Integers wrap. Comparisons with NaN are false except ``CMPNE``. Integer division and remainder round towards minus
infinity like Python's; division by zero gives 0, so that no input can trap.
"""
from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from tinsmith.core.dtypes import DType, rounded_to_tf32
from tinsmith.ir.ops.op import Array, Node, Op, boolean, same, shape_of_all


def _wide(f: Any) -> Any:
    """Compute floats of 16 bits or less in float32 and round once, as every renderer does."""

    def meaning(node: Node, *xs: Array) -> Array:
        narrow = xs[0].dtype.itemsize <= 2 and node.src[0].dtype.is_float
        out = f(*(x.astype(np.float32) if narrow and s.dtype.is_float else x for s, x in zip(node.src, xs)))
        return np.asarray(out).astype(node.dtype.scalar.numpy)

    return meaning


def _compare(f: Any) -> Any:
    return lambda node, x, y: np.asarray(f(x, y))


def floor_div(x: Array, y: Array) -> Array:
    """Return the integer quotient rounded down; 0 if the divisor is 0; the only overflow (least // -1) wraps."""
    safe = np.where(y == 0, np.ones_like(y), y)
    return np.where(y == 0, np.zeros_like(x), np.floor_divide(x, safe)).astype(x.dtype)


def floor_mod(x: Array, y: Array) -> Array:
    """Return the remainder with the sign of the divisor; 0 if the divisor is 0."""
    safe = np.where(y == 0, np.ones_like(y), y)
    return np.where(y == 0, np.zeros_like(x), np.remainder(x, safe)).astype(x.dtype)


def _shift(f: Any) -> Any:
    def meaning(node: Node, x: Array, y: Array) -> Array:
        bits = node.dtype.bits
        inside = (y >= 0) & (y < bits)
        shifted = f(x, np.where(inside, y, np.zeros_like(y)))
        beyond = np.where(x < 0, -1, 0) if f is np.right_shift and node.dtype.kind == "int" else np.zeros_like(x)
        return np.where(inside, shifted, beyond).astype(x.dtype)

    return meaning


def cast_values(x: Array, dtype: DType) -> Array:
    """Convert by the numeric contract: float to integer saturates (NaN gives 0), overflow between floats gives inf.

    >>> from tinsmith.core.dtypes import dtypes
    >>> cast_values(np.array([1e9, -1.5, np.nan]), dtypes.int8)
    array([127,  -1,   0], dtype=int8)
    """
    is_float = x.dtype.kind in "fV"  # the dtypes of ml_dtypes have kind V
    if is_float and dtype.is_int:
        wide = x.astype(np.float64)
        top = float(dtype.max)
        with np.errstate(invalid="ignore"):
            clipped = np.clip(np.nan_to_num(np.trunc(wide), nan=0.0), float(dtype.min), top)
            out = clipped.astype(dtype.numpy)
        return np.where(clipped >= top, np.asarray(dtype.max, dtype.numpy), out).astype(dtype.numpy)
    if dtype.name == "tf32":
        with np.errstate(over="ignore", invalid="ignore"):
            return rounded_to_tf32(np.asarray(x.astype(np.float32)))
    if dtype.name.startswith("fp8") or (dtype.name == "bfloat16" and x.dtype == np.float64):
        with np.errstate(over="ignore", invalid="ignore"):
            return x.astype(np.float32).astype(dtype.numpy)
    return x.astype(dtype.numpy)


def _bitcast(node: Node, x: Array) -> Array:
    return np.array(x, order="C").view(node.dtype.scalar.numpy)  # ascontiguousarray would give a scalar an axis


def _where_dtype(src: tuple[Node, ...], arg: Any) -> DType:
    if not src[0].dtype.is_bool or src[1].dtype is not src[2].dtype:
        raise TypeError(f"WHERE takes (bool, T, T), got {[s.dtype for s in src]}")
    return src[1].dtype


def _shift_dtype(src: tuple[Node, ...], arg: Any) -> DType:
    return same(src, arg)


def unary(doc: str, f: Any, gradient: Any = None, cost: int = 1, **facts: Any) -> Op:
    return Op("unary", doc, 1, same, shape_of_all, _wide(f), gradient, cost, **{"takes": "f", **facts})


def binary(doc: str, f: Any, gradient: Any = None, cost: int = 1, **laws: Any) -> Op:
    meaning = laws.pop("meaning", None) or _wide(f)
    return Op("binary", doc, 2, laws.pop("dtype", same), shape_of_all, meaning, gradient, cost, **laws)


def _erf(x: Array) -> Array:
    return np.vectorize(math.erf, otypes=[x.dtype])(x) if x.size else x


def _power(x: Array, y: Array) -> Array:
    return np.where((x < 0) & (y != 0), np.asarray(np.nan, x.dtype), np.power(x, y))


def _max_gradient(n: Node, g: Node) -> tuple[Node, Node]:
    """Return the gradients of MAX: ties get half each, as in PyTorch's maximum; if either operand is NaN, both get
    all."""
    x, y = n.src
    shared = x.eq(y).where(g * 0.5, g)
    return x.lt(y).where(0, shared), y.lt(x).where(0, shared)


def _min_gradient(n: Node, g: Node) -> tuple[Node, Node]:
    x, y = n.src
    shared = x.eq(y).where(g * 0.5, g)
    return y.lt(x).where(0, shared), x.lt(y).where(0, shared)


def _scaled(x: Array, y: Array) -> Array:
    """Return x · 2**y for integer y; an infinite y decides the result regardless of x."""
    finite = np.clip(np.nan_to_num(y), -4096, 4096).astype(np.int32)  # wider than the exponent range of any float
    value = np.where(np.isnan(y), y, np.ldexp(x, finite))
    return np.where(np.isinf(y), np.where(y > 0, y, np.zeros_like(x)), value)


def _maximum(x: Array, y: Array) -> Array:
    return np.where((x < y) | (y != y), y, x)


def _minimum(x: Array, y: Array) -> Array:
    return np.where((y < x) | (y != y), y, x)


CALLED: Final = "called"
"""Argument of FMOD of x, y >= 0: the target's own function, however slow."""

ROUGH: Final = "rough"
"""Argument of SQRT, RECIP, EXP2, LOG2, SIN and COS of float32 whose absolute error alone counts: about 1e-6 will do,
for angles within half a turn, results of SQRT, RECIP and EXP2 up to 1 (beyond, 1e-6 of them) and logarithms of what
lies around it."""


_ALL, _POSITIVE = (-8.0, 8.0), (0.01, 50.0)  # arguments of functions of all numbers, and of positive ones


class ElementwiseOps:
    """Op-table rows of elementwise ops."""

    NEG = unary("Minus x; integers wrap, the sign of zero flips.", np.negative, lambda n, g: (-g,),
                takes="if", keeps_zero=True)
    RECIP = unary("1/x; ±0 gives ±inf.", lambda x: 1 / x, lambda n, g: (-(g * n * n),), cost=4)
    SQRT = unary("Square root; NaN below 0, -0 stays -0.", np.sqrt, lambda n, g: (g * 0.5 / n,), cost=4,
                 keeps_zero=True)
    EXP = unary("e to the x.", np.exp, lambda n, g: (g * n,), cost=12, domain=_ALL)
    LOG = unary("Natural logarithm; -inf at 0, NaN below.", np.log, lambda n, g: (g / n.src[0],), cost=12,
                domain=_POSITIVE)
    EXP2 = unary("2 to the x.", np.exp2, lambda n, g: (g * n * math.log(2),), cost=10, domain=_ALL)
    LOG2 = unary("Logarithm to base 2; -inf at 0, NaN below.", np.log2, lambda n, g: (g / (n.src[0] * math.log(2)),),
                 cost=12, domain=_POSITIVE)
    EXPM1 = unary("e to the x, minus 1, exact near 0.", np.expm1, lambda n, g: (g * n.src[0].alu("EXP"),), cost=12,
                  domain=_ALL, keeps_zero=True)
    LOG1P = unary("Natural logarithm of 1 + x, exact near 0; -inf at -1, NaN below.", np.log1p,
                  lambda n, g: (g / (n.src[0] + 1),), cost=14, domain=_POSITIVE, keeps_zero=True)
    SIN = unary("Sine of x in radians; NaN for infinities.", np.sin, lambda n, g: (g * n.src[0].alu("COS"),), cost=16,
                domain=_ALL, keeps_zero=True)
    COS = unary("Cosine of x in radians; NaN for infinities.", np.cos, lambda n, g: (-(g * n.src[0].alu("SIN")),),
                cost=16, domain=_ALL)
    TANH = unary("Hyperbolic tangent.", np.tanh, lambda n, g: (g - g * n * n,), cost=16, domain=_ALL, keeps_zero=True)
    ERF = unary("The error function.", _erf,
                lambda n, g: (g * (-(n.src[0] * n.src[0])).alu("EXP") * (2 / math.sqrt(math.pi)),), cost=20,
                domain=_ALL, keeps_zero=True)
    TRUNC = unary("Round towards zero.", np.trunc, keeps_zero=True)

    ADD = binary("x + y; integers wrap, for bool it is OR.", np.add, lambda n, g: (g, g), commutative=True,
                 associative=True, identity=lambda d: d.as_const(0), takes="bif", keeps_zero=True)
    SUB = binary("x - y; integers wrap.", np.subtract, lambda n, g: (g, -g), takes="if", keeps_zero=True)
    MUL = binary("x * y; integers wrap, for bool it is AND. With the argument ``tf32``, a matrix unit may round "
                 "float32 factors.", np.multiply,
                 lambda n, g: (g * n.src[1], g * n.src[0]), commutative=True, associative=True,
                 identity=lambda d: d.as_const(1), takes="bif", keeps_zero=True)
    FDIV = binary("x / y of floats; IEEE for zero divisors.", np.divide,
                  lambda n, g: (g / n.src[1], -(g * n / n.src[1])), cost=4, takes="f")
    POW = binary("x to the y for x >= 0, 1 where x is 1 or y is 0; NaN below 0.", _power,
                 lambda n, g: (g * n.src[1] * n.src[0].alu("POW", n.src[1] - 1), g * n * n.src[0].alu("LOG")), cost=60,
                 takes="f", domain=_POSITIVE)
    FMOD = binary("x - n*y of floats, n the quotient rounded towards zero, without an error; it has the sign of x; NaN "
                  "where y is 0 or x infinite.", np.fmod,
                  lambda n, g: (g, -(g * (n.src[0] / n.src[1]).alu("TRUNC"))), cost=8, takes="f")
    IDIV = binary("x // y of integers, rounded down; 0 if y is 0.", floor_div, cost=16, takes="i", keeps_zero=True)
    MOD = binary("x % y of integers with the sign of y; 0 if y is 0.", floor_mod, cost=16, takes="i", keeps_zero=True)
    MAX = binary("The greater; NaN if either is NaN; of +0 and -0 either, but x where y is a constant 0.", _maximum,
                 _max_gradient, commutative=True, associative=True, identity=lambda d: d.min,
                 takes="bif", keeps_zero=True)
    MIN = binary("The smaller; NaN if either is NaN; of +0 and -0 either, but x where y is a constant 0.", _minimum,
                 _min_gradient, commutative=True, associative=True, identity=lambda d: d.max,
                 takes="bif", keeps_zero=True)
    CMPLT = binary("x < y.", None, dtype=boolean, meaning=_compare(np.less), takes="bif", keeps_zero=True)
    CMPNE = binary("x != y; true if either is NaN.", None, dtype=boolean, meaning=_compare(np.not_equal),
                   commutative=True, takes="bif", keeps_zero=True)
    CMPEQ = binary("x == y.", None, dtype=boolean, meaning=_compare(np.equal), commutative=True, takes="bif")
    AND = binary("Bitwise and.", np.bitwise_and, commutative=True, associative=True,
                 identity=lambda d: True if d.is_bool else d.as_const(-1), takes="bi", keeps_zero=True)
    OR = binary("Bitwise or.", np.bitwise_or, commutative=True, associative=True, identity=lambda d: d.as_const(0),
                takes="bi", keeps_zero=True)
    XOR = binary("Bitwise exclusive or.", np.bitwise_xor, commutative=True, associative=True,
                 identity=lambda d: d.as_const(0), takes="bi", keeps_zero=True)
    SHL = binary("x shifted left by y bits; 0 where y is not in [0, width).", None, meaning=_shift(np.left_shift),
                 dtype=_shift_dtype, takes="i", keeps_zero=True)
    SHR = binary("x shifted right by y bits, copying the sign; all sign bits where y is not in [0, width).", None,
                 meaning=_shift(np.right_shift), dtype=_shift_dtype, takes="i", keeps_zero=True)
    SCALE = binary("x * 2**y for an integer y, rounded once; whatever x is, y = -inf gives 0 and y = inf gives inf. "
                   "Below the tensor graph, on targets that have it.", _scaled)

    WHERE = Op("ternary", "y where the condition holds, else z.", 3, _where_dtype, shape_of_all,
               lambda node, c, y, z: np.where(c, y, z),
               lambda n, g: (None, n.src[0].where(g, 0), n.src[0].where(0, g)), cost=1, keeps_zero=True)
    UNLIKELY = Op("ternary", "WHERE with a rare condition: y is computed in a branch, only if the condition "
                "holds for some lane. Below the tensor graph.", 3, _where_dtype, shape_of_all,
                lambda node, c, y, z: np.where(c, y, z), cost=1)
    MULADD = Op("ternary", "x * y + z, rounded once where the device can.", 3, same, shape_of_all,
                lambda node, x, y, z: _wide(lambda a, b, c: a * b + c)(node, x, y, z),
                lambda n, g: (g * n.src[1], g * n.src[0], g), cost=2, keeps_zero=True)

    CAST = Op("cast", "Convert the value: floats truncate and saturate into integers (NaN gives 0), overflow to inf; "
              "a subnormal bfloat16 may become 0.", 1, None, shape_of_all,
              lambda node, x: cast_values(x, node.dtype.scalar), lambda n, g: (g.cast(n.src[0].dtype),), cost=1,
              keeps_zero=True)
    BITCAST = Op("cast", "Reinterpret the bits as a dtype of the same width.", 1, None, shape_of_all, _bitcast,
                 keeps_zero=True)

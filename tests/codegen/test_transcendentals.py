"""Accuracy and special values of the elementary functions, with MULADD rounded once and twice."""
from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import erf as scipy_erf

from tinsmith.codegen.decompose.decompose import expand
from tinsmith.codegen.decompose.elementary import transcendentals
from tinsmith.core.dtypes import DType, dtypes
from tinsmith.ir.ops import Op, Ops
from tinsmith.ir.rewrite import Pat, Rule, RuleSet, rewrite
from tinsmith.ir.uop import UOp

Array = np.ndarray[Any, Any]
INF, NAN = math.inf, math.nan
F32, F64 = dtypes.float32, dtypes.float64
PLAIN = transcendentals()
OPS = (Ops.EXP, Ops.EXP2, Ops.EXPM1, Ops.LOG, Ops.LOG2, Ops.LOG1P, Ops.SIN, Ops.COS, Ops.TANH, Ops.ERF, Ops.POW)
ANGLES = (Ops.SIN, Ops.COS)
BASIC = {Ops.ADD, Ops.SUB, Ops.MUL, Ops.MULADD, Ops.FDIV, Ops.NEG, Ops.MAX, Ops.MIN, Ops.WHERE, Ops.CMPLT, Ops.CMPNE,
         Ops.CMPEQ, Ops.AND, Ops.OR, Ops.XOR, Ops.SHL, Ops.SHR, Ops.TRUNC, Ops.SQRT, Ops.CAST, Ops.BITCAST, Ops.CONST,
         Ops.PARAM, Ops.UNLIKELY}
LONG = np.finfo(np.longdouble).nmant >= 63  # without it there is nothing better than float64 to compare with


def leaf(dtype: DType, number: int = 0) -> UOp:
    return UOp(Ops.PARAM, dtype, (), (number, ()))


def expression(op: Op, dtype: DType, rules: RuleSet = PLAIN) -> UOp:
    return rewrite([UOp(op, None, tuple(leaf(dtype, n) for n in range(op.arity)))], rules)[0]


@dataclass(frozen=True)
class Way:
    """A target's arithmetic: ``fused``, if MULADD rounds once, and the decomposition rules (with or without SCALE)."""

    fused: bool
    rules: RuleSet = PLAIN

    def __call__(self, op: Op, *x: Array) -> Array:
        return evaluate(expression(op, dtypes.from_numpy(x[0].dtype), self.rules), x, self.fused)


def fused_multiply_add(x: Array, y: Array, z: Array) -> Array:
    """Return x*y + z rounded once (float32), or almost always so (float64, error-free transforms of Dekker and
    Knuth)."""
    if x.dtype == np.float32:
        return (x.astype(np.float64) * y + z).astype(np.float32)
    p = x * y
    split = 134217729.0
    xh, yh = x * split - (x * split - x), y * split - (y * split - y)
    low = ((xh * yh - p) + xh * (y - yh) + (x - xh) * yh) + (x - xh) * (y - yh)
    s = p + z
    b = s - p
    rest = (p - (s - b)) + (z - b)
    exact = s + (rest + low)
    return np.where(np.isfinite(exact) & (exact != 0), exact, s)


def evaluate(root: UOp, value: Array | Sequence[Array], fused: bool) -> Array:
    given = (value,) if isinstance(value, np.ndarray) else value
    values: dict[UOp, Array] = {}
    with np.errstate(all="ignore"):
        for node in root.toposort():
            sources = [values[s] for s in node.src]
            if node.op is Ops.PARAM:
                values[node] = given[node.arg[0]]
            elif node.op is Ops.MULADD and fused:
                values[node] = fused_multiply_add(*np.broadcast_arrays(*sources))
            else:
                assert node.op.meaning is not None
                values[node] = node.op.meaning(node, *sources)
            assert values[node].dtype == node.dtype.numpy
    return values[root]


def reference(op: Op, x: Array, *others: Array) -> Array:
    """Return the value in extended precision; for erf of float64 the C library's, accurate to 1 ulp."""
    with np.errstate(all="ignore"):
        wide = x.astype(np.longdouble)
        if op is Ops.POW:
            return np.where(wide < 0, NAN, np.power(wide, others[0].astype(np.longdouble)))
        if op is Ops.ERF:
            return np.asarray(scipy_erf(x.astype(np.float64)) if x.dtype == np.float32 else
                              np.vectorize(math.erf, otypes=[np.float64])(x), np.longdouble)
        return {Ops.EXP: np.exp, Ops.EXP2: np.exp2, Ops.EXPM1: np.expm1, Ops.LOG: np.log, Ops.LOG2: np.log2,
                Ops.LOG1P: np.log1p, Ops.SIN: np.sin, Ops.COS: np.cos, Ops.TANH: np.tanh}[op](wide)


def ulps(got: Array, expected: Array) -> Array:
    """Return the distance in units in the last place of the expected value's binade."""
    info = np.finfo(got.dtype)
    with np.errstate(all="ignore"):
        rounded = expected.astype(got.dtype)
        _, exponent = np.frexp(np.where(np.isfinite(expected), expected, 1))
        unit = np.ldexp(np.longdouble(1), np.maximum(exponent - 1, info.minexp) - info.nmant)
        distance = np.abs(got.astype(np.longdouble) - expected) / unit
    same = (got == rounded) | (np.isnan(got) & np.isnan(expected))
    return np.where(same & ~np.isfinite(rounded), 0, np.where(np.isfinite(got), distance, INF)).astype(np.float64)


def samples(op: Op, dtype: DType, count: int = 100_000) -> tuple[Array, ...]:
    """Return arguments for the op."""
    return _powers(dtype, count) if op is Ops.POW else (_arguments(op, dtype, count),)


def _powers(dtype: DType, count: int) -> tuple[Array, Array]:
    """Return bases of any size, near 1 and subnormal, with exponents such that the powers cover the full range and
    beyond."""
    rng = np.random.default_rng(7)
    end = float(np.log2(np.finfo(dtype.numpy).max))
    base = np.concatenate([np.exp2(rng.uniform(-end, end, count)), 1 + np.abs(rng.normal(0, 1e-3, count)),
                           rng.uniform(0.3, 3, count), np.exp2(rng.uniform(-end - 20, -end, count))])
    base = base.astype(dtype.numpy)
    to = rng.uniform(-end - 10, end + 1, base.size)
    with np.errstate(divide="ignore"):
        exponent = np.where(rng.random(base.size) < 0.5, to / np.log2(base), rng.normal(0, 2, base.size))
    return base, exponent.astype(dtype.numpy)


def _arguments(op: Op, dtype: DType, count: int) -> Array:
    rng = np.random.default_rng(7)
    big = dtype is F64
    info = np.finfo(dtype.numpy)
    if op in (Ops.EXP, Ops.EXP2):
        end = (750 if big else 105) * (1 if op is Ops.EXP else 1.5)
        parts = [rng.uniform(-end, end, count), rng.normal(0, 1, count), rng.normal(0, 1e-3, count)]
    elif op in (Ops.LOG, Ops.LOG2):
        bits = rng.integers(1, int(np.asarray(info.max).view(f"u{dtype.itemsize}")), count)
        return np.concatenate([bits.astype(f"u{dtype.itemsize}").view(dtype.numpy),
                               np.asarray(np.concatenate([rng.uniform(0.4, 2.2, count), 1 + rng.normal(0, 1e-3, count),
                                                          rng.uniform(0, float(info.tiny) * 4, count)]), dtype.numpy)])
    elif op in ANGLES:
        n = np.round(rng.uniform(-1e5, 1e5, count) / math.pi) * (math.pi / 2)  # near zeros
        parts = [rng.uniform(-10, 10, count), rng.uniform(-1e5, 1e5, count), n, rng.normal(0, 0.01, count)]
        if big:
            parts.append(rng.uniform(-1e8, 1e8, count))
    elif op is Ops.EXPM1:
        parts = [rng.uniform(-40, 750 if big else 89, count), rng.normal(0, 1, count), rng.normal(0, 1e-3, count),
                 np.exp(rng.uniform(math.log(info.tiny) - 5, 3, count)) * rng.choice([-1, 1], count)]
    elif op is Ops.LOG1P:
        parts = [rng.uniform(-0.9999, 3, count), rng.normal(0, 0.1, count), rng.normal(0, 1e-3, count),
                 np.exp(rng.uniform(math.log(info.tiny) - 5, math.log(float(info.max)), count)),
                 np.exp2(rng.uniform(-info.nmant, 0, count)) - 1]
    else:
        end = 20 if op is Ops.TANH else 6.5
        parts = [rng.uniform(-end, end, count), rng.normal(0, 1, count), rng.normal(0, 1e-3, count),
                 np.exp(rng.uniform(math.log(info.tiny) - 5, 3, count))]
    return np.concatenate(parts).astype(dtype.numpy)


BOUNDS = {  # ulps
    (Ops.EXP, F32): 1.5, (Ops.EXP2, F32): 1.5, (Ops.LOG, F32): 1.5, (Ops.LOG2, F32): 2.0, (Ops.SIN, F32): 2.0,
    (Ops.TANH, F32): 4.0, (Ops.ERF, F32): 5.0, (Ops.EXPM1, F32): 2.0, (Ops.LOG1P, F32): 1.5, (Ops.COS, F32): 2.0,
    (Ops.POW, F32): 1.5,
    (Ops.EXP, F64): 3.0, (Ops.EXP2, F64): 3.0, (Ops.LOG, F64): 3.0, (Ops.LOG2, F64): 3.0, (Ops.SIN, F64): 2.5,
    (Ops.TANH, F64): 4.0, (Ops.ERF, F64): 4.0, (Ops.EXPM1, F64): 2.0, (Ops.LOG1P, F64): 2.0, (Ops.COS, F64): 2.5,
    (Ops.POW, F64): 1.5,
}
CASES = [pytest.param(op, dtype, id=f"{op.name}-{dtype.name}") for op, dtype in BOUNDS]
WAYS = [Way(False), Way(True), *(Way(True, transcendentals(True, scales)) for scales in (False, True))]
EVERY_WAY = pytest.mark.parametrize("way", WAYS, ids=["two-roundings", "fused", "for-fused", "scaled"])


@EVERY_WAY
@pytest.mark.parametrize(("op", "dtype"), CASES)
def test_accuracy(op: Op, dtype: DType, way: Way) -> None:
    if dtype is F64 and not LONG:
        pytest.skip("long double is no wider than double here")
    x = samples(op, dtype)
    error = ulps(way(op, *x), reference(op, *x))
    worst = [v[error.argmax()] for v in x]
    assert error.max() <= BOUNDS[op, dtype], f"{error.max():.2f} ulp at {worst}"


@EVERY_WAY
@pytest.mark.parametrize(("op", "dtype"), CASES)
def test_accuracy_over_all_exponents(op: Op, dtype: DType, way: Way) -> None:
    """Random bit patterns: most results are limits, and all must be accurate."""
    if dtype is F64 and not LONG:
        pytest.skip("long double is no wider than double here")
    bits = np.random.default_rng(3).integers(0, 1 << dtype.bits, (op.arity, 50_000), dtype=np.uint64)
    x = bits.astype(f"u{dtype.itemsize}").view(dtype.numpy)
    if op in ANGLES and dtype is F64:  # the sine of a wider float is not exact either
        x = x[:, ~(np.abs(x[0]) > 2.0**62)]
    error = ulps(way(op, *x), reference(op, *x))
    assert error.max() <= BOUNDS[op, dtype], f"{error.max():.2f} ulp at {x[:, error.argmax()]!r}"


SPECIAL: dict[Op, list[tuple[float, float]]] = {
    Ops.EXP: [(0.0, 1.0), (-0.0, 1.0), (INF, INF), (-INF, 0.0), (1e5, INF), (-1e5, 0.0)],
    Ops.EXP2: [(0.0, 1.0), (-0.0, 1.0), (INF, INF), (-INF, 0.0), (1e5, INF), (-1e5, 0.0), (10.0, 1024.0),
               (-3.0, 0.125)],
    Ops.LOG: [(0.0, -INF), (-0.0, -INF), (-1.0, NAN), (-INF, NAN), (-1e-40, NAN), (INF, INF), (1.0, 0.0)],
    Ops.LOG2: [(0.0, -INF), (-0.0, -INF), (-1.0, NAN), (-INF, NAN), (-1e-40, NAN), (INF, INF), (1.0, 0.0), (8.0, 3.0),
               (2.0**-130, -130.0), (2.0**-149, -149.0)],
    Ops.EXPM1: [(0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, -1.0), (1e5, INF), (-1e5, -1.0), (1e-40, 1e-40),
                (-1e-40, -1e-40)],
    Ops.LOG1P: [(0.0, 0.0), (-0.0, -0.0), (-1.0, -INF), (-1.5, NAN), (-INF, NAN), (INF, INF), (1e-40, 1e-40),
                (-1e-40, -1e-40)],
    Ops.COS: [(0.0, 1.0), (-0.0, 1.0), (INF, NAN), (-INF, NAN), (1e-40, 1.0)],
    Ops.SIN: [(0.0, 0.0), (-0.0, -0.0), (INF, NAN), (-INF, NAN), (1e-40, 1e-40), (-1e-40, -1e-40)],
    Ops.TANH: [(0.0, 0.0), (-0.0, -0.0), (INF, 1.0), (-INF, -1.0), (30.0, 1.0), (-30.0, -1.0), (1e-40, 1e-40)],
    Ops.ERF: [(0.0, 0.0), (-0.0, -0.0), (INF, 1.0), (-INF, -1.0), (7.0, 1.0), (-7.0, -1.0)],
}


ONE_ARGUMENT = [pytest.param(op, dtype, id=f"{op.name}-{dtype.name}") for op, dtype in BOUNDS if op.arity == 1]


@EVERY_WAY
@pytest.mark.parametrize(("op", "dtype"), ONE_ARGUMENT)
def test_special_values(op: Op, dtype: DType, way: Way) -> None:
    x, expected = (np.array(v, dtype.numpy) for v in zip(*SPECIAL[op], (NAN, NAN), (-NAN, NAN)))
    got = way(op, x)
    np.testing.assert_array_equal(got, expected)
    known = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(got[known]), np.signbit(expected[known]))


@EVERY_WAY
@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
def test_limits_of_powers(dtype: DType, way: Way) -> None:
    bases = np.array([0.0, INF, 1.0, 2.0, 0.5, NAN, -1.0, 1e-40, 3e38], dtype.numpy)
    exponents = np.array([0.0, -0.0, INF, -INF, NAN, 1.0, -1.0, 3e38, -3e38, 0.25, 1e-40], dtype.numpy)
    x, y = (v.ravel() for v in np.meshgrid(bases, exponents))
    with np.errstate(all="ignore"):
        expected = np.where((x < 0) & (y != 0), NAN, np.power(x, y)).astype(dtype.numpy)
    np.testing.assert_allclose(way(Ops.POW, x, y), expected, rtol=2.0 ** (1 - np.finfo(dtype.numpy).nmant))


@EVERY_WAY
@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
def test_the_first_power_is_the_base(dtype: DType, way: Way) -> None:
    base = samples(Ops.POW, dtype, 5_000)[0]
    np.testing.assert_array_equal(way(Ops.POW, base, np.ones_like(base)), base)


@EVERY_WAY
@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
def test_powers_of_two_are_exact(dtype: DType, way: Way) -> None:
    info = np.finfo(dtype.numpy)
    n = np.arange(info.minexp - info.nmant - 2, info.maxexp + 2).astype(dtype.numpy)
    power = way(Ops.EXP2, n)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(power, np.ldexp(dtype.numpy.type(1), n.astype(int)))
    inside = (power > 0) & np.isfinite(power)
    np.testing.assert_array_equal(way(Ops.LOG2, power[inside]), n[inside])


@EVERY_WAY
@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
def test_exp_at_the_ends_of_the_range(dtype: DType, way: Way) -> None:
    """The neighbours of the overflow, underflow and denormal thresholds."""
    info = np.finfo(dtype.numpy)
    ends = [math.log(2) * info.maxexp, math.log(2) * info.minexp, math.log(2) * (info.minexp - info.nmant - 1)]
    for end in ends:
        near = dtype.numpy.type(end)
        x = near + np.arange(-200, 200).astype(dtype.numpy) * np.abs(np.spacing(near))
        error = ulps(way(Ops.EXP, x), reference(Ops.EXP, x))
        wrong = error > 1.5
        got = way(Ops.EXP, x[wrong])  # 1 ulp around the threshold may say inf
        assert wrong.sum() <= 1 and np.all(np.isinf(got))


@EVERY_WAY
@pytest.mark.parametrize(("dtype", "most"), [(F32, 2.0**9), (F32, 2.0**17), (F64, 2.0**25)], ids=str)
@pytest.mark.parametrize("op", ANGLES, ids=lambda o: o.name)
def test_angles_whose_sine_lies_in_the_binade_below(op: Op, dtype: DType, most: float, way: Way) -> None:
    """If the reduced angle is just above a power of two and its sine just below, the rounding of the angle counts
    twice."""
    rng = np.random.default_rng(1)
    turns = rng.integers(1, int(most / np.pi), 100_000) + (0.5 if op is Ops.COS else 0)
    power = rng.choice([0.125, 0.25, 0.5], turns.size)
    distance = rng.choice([-1, 1], turns.size) * rng.uniform(power, np.arcsin(power))
    x = (turns * np.pi + distance).astype(dtype.numpy)
    assert ulps(way(op, x), reference(op, x)).max() <= 2.0


@EVERY_WAY
@pytest.mark.parametrize("op", ANGLES, ids=lambda o: o.name)
def test_huge_angles(op: Op, way: Way) -> None:
    rng = np.random.default_rng(11)
    x = np.exp2(rng.uniform(8, 128, 200_000)).astype(np.float32) * rng.choice([-1, 1], 200_000).astype(np.float32)
    edges = np.exp2(np.array([9, 17, 24, 50, 78, 106, 127], np.float32))
    x = np.concatenate([x[np.isfinite(x)], edges, np.nextafter(edges, np.float32(0)), np.array([3.4e38], np.float32)])
    # float64 reduces by all the bits of 1/pi too, but in the C library
    error = ulps(way(op, x), {Ops.SIN: np.sin, Ops.COS: np.cos}[op](x.astype(np.float64)).astype(np.longdouble))
    assert error.max() <= 2.0
    # the float32 nearest to a multiple of pi/2 (Muller, table 11.1): 16367173 * 2**72
    worst = np.array([16367173 * 2.0**72], np.float32)
    assert ulps(way(op, worst), reference(op, worst)).max() <= 2.0


@EVERY_WAY
@pytest.mark.parametrize("op", ANGLES, ids=lambda o: o.name)
def test_huge_angles_in_double(op: Op, way: Way) -> None:
    """Within 2 ulp of the C library, from the last angles reduced by parts to the largest."""
    x = np.exp2(np.random.default_rng(5).uniform(20, 1024, 20_000))
    x = np.concatenate([x, -x, np.array([1e18, 1e22, 1e300, 2.0**25, 2.0**1023])])
    exact = np.vectorize({Ops.SIN: math.sin, Ops.COS: math.cos}[op])(x).astype(np.longdouble)
    got = way(op, x)
    assert ulps(got, exact).max() <= 3.0
    assert np.all(np.abs(got) <= 1)
    # the double nearest to a multiple of pi/2 (Muller, table 11.1): its cosine is -4.68716592425462761112e-19
    worst = way(op, np.array([6381956970095103 * 2.0**797]))
    near = np.array([1.0 if op is Ops.SIN else -4.687165924254628e-19])
    assert ulps(worst, near.astype(np.longdouble)).max() <= 3.0


@EVERY_WAY
@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
@pytest.mark.parametrize("op", [Ops.SIN, Ops.COS, Ops.TANH, Ops.ERF], ids=lambda o: o.name)
def test_even_or_odd_and_bounded(op: Op, dtype: DType, way: Way) -> None:
    (x,) = samples(op, dtype)
    got = way(op, x)
    assert np.all(np.abs(got) <= 1)
    np.testing.assert_array_equal(way(op, -x), got if op is Ops.COS else -got)


@pytest.mark.parametrize(("op", "dtype"), ONE_ARGUMENT)
@given(data=st.data())
def test_any_float(op: Op, dtype: DType, data: st.DataObject) -> None:
    x = data.draw(st.floats(width=dtype.bits))
    for way in WAYS:
        got = way(op, np.array([x], dtype.numpy))[0]
        outside = (x < 0 if op in (Ops.LOG, Ops.LOG2) else x < -1 if op is Ops.LOG1P else
                   math.isinf(x) if op in ANGLES else False)
        assert math.isnan(got) == (math.isnan(x) or outside)


@EVERY_WAY
@pytest.mark.parametrize(("op", "dtype"), ONE_ARGUMENT)
def test_any_nan_payload(op: Op, dtype: DType, way: Way) -> None:
    bits = np.random.default_rng(1).integers(1, 1 << (dtype.bits - 10), 5_000, dtype=np.uint64)
    unsigned = np.asarray(INF, dtype.numpy).view(f"u{dtype.itemsize}") | bits.astype(f"u{dtype.itemsize}")
    sign = unsigned.dtype.type(1 << (dtype.bits - 1))
    x = np.concatenate([unsigned, unsigned | sign]).view(dtype.numpy)
    x = x[np.isnan(x)]
    assert np.all(np.isnan(way(op, x)))


_USUAL = RuleSet("usual", (Rule("usual", "UNLIKELY(c, x, y) = y mostly", Pat("n", (Ops.UNLIKELY,)), lambda n: n.src[2],
                                lambda: UOp(Ops.UNLIKELY, None, (UOp.const(dtypes.bool, False), leaf(F32),
                                                                 leaf(F32)))),))


@pytest.mark.parametrize(("op", "dtype"), CASES)
def test_expressions_are_small_and_basic(op: Op, dtype: DType) -> None:
    root = expression(op, dtype)
    nodes = root.toposort()
    assert root.dtype is dtype
    assert {n.op for n in nodes} <= BASIC
    assert dtype is F64 or all(n.dtype is not F64 for n in nodes), "some targets have no double"
    usual = rewrite([root], _USUAL)[0].toposort()
    work = [n for n in usual if n.op not in (Ops.CONST, Ops.PARAM, Ops.BITCAST)]
    assert len(work) <= (170 if op is Ops.POW else 40 if dtype is F32 else 60)


@pytest.mark.parametrize(("op", "dtype"), CASES)
def test_simplified_expression_has_the_same_value(op: Op, dtype: DType) -> None:
    x = samples(op, dtype, 2_000)
    root = expression(op, dtype)
    np.testing.assert_array_equal(evaluate(root.simplify(), x, False), evaluate(root, x, False))


def test_rules() -> None:
    for rules in (way.rules for way in WAYS):
        assert [r.name for r in rules.rules] == [op.name.lower() for op in OPS]
        for rule in rules.rules:
            node = rule.example()
            new = rules.apply(node)
            assert new is not None and new is rule.apply(node) and new.dtype is node.dtype


def test_other_dtypes_stay() -> None:
    for dtype in (dtypes.float16, dtypes.bfloat16):
        assert PLAIN.apply(UOp(Ops.EXP, None, (leaf(dtype),))) is None
    assert PLAIN.apply(UOp(Ops.SQRT, None, (leaf(F32),))) is None


@pytest.mark.parametrize("scales", [False, True])
@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
def test_one_plus_tanh_is_one_exponential(dtype: DType, scales: bool) -> None:
    """The error is relative to the result near tanh = -1; a tanh with another consumer is kept."""
    x = leaf(dtype)
    tanh = x.alu(Ops.TANH)
    root = expand(tanh + 1.0, fma=True, scales=scales)
    bits = 24 if dtype is F32 else 53
    values = np.concatenate([np.linspace(-40, 12, 20_001), np.random.default_rng(4).normal(0, 1e-3, 1000)])
    at = values.astype(dtype.numpy)
    t = np.exp(np.longdouble(-2) * at.astype(np.longdouble))
    error = np.abs(evaluate(root, at, True) - 2 / (1 + t)) / (2 / (1 + t))
    assert np.all(error <= (4 + 4 * np.abs(at)) * 2.0**-bits)
    limits = np.array([INF, -INF, NAN, 1e30, -1e30, 0.0], dtype.numpy)
    np.testing.assert_array_equal(evaluate(root, limits, True), np.array([2, 0, NAN, 2, 0, 1], dtype.numpy))
    for several in ((tanh + 1.0) * tanh, tanh + 2.0):
        rules = transcendentals(True, scales)
        assert expand(several, fma=True, scales=scales) is rewrite([several], rules)[0].simplify()


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
def test_a_magnitude_has_no_sign_bit(dtype: DType) -> None:
    """abs is max(x, -x) + 0: no maximum that propagates NaN is needed; without the + 0 a zero may keep its sign."""
    x = leaf(dtype)
    root = expand(x.maximum(-x) + 0.0, bits=True)
    assert not any(n.op in (Ops.MAX, Ops.ADD) for n in root.toposort())
    at = np.array([0.0, -0.0, 1.5, -1.5, INF, -INF, NAN, -1e-42], dtype.numpy)
    found = evaluate(root, at, True)
    np.testing.assert_array_equal(found, np.abs(at))
    assert not np.signbit(found).any()
    for other in (x.maximum(-x), x.maximum(-x) + 1.0):
        assert expand(other, bits=True) is other


@EVERY_WAY
@pytest.mark.parametrize(("dtype", "bits"), [(F32, 24), (F64, 32)], ids=str)
def test_log_of_whole_fractions_needs_no_limits(dtype: DType, bits: int, way: Way) -> None:
    """A value known to be positive and normal gets the same logarithm without selects; one that may be 0 keeps them."""
    whole = UOp(Ops.PARAM, dtypes.uint32, (), (0, ()))
    value = UOp.const(dtype, 2.0**-bits)
    positive = UOp(Ops.MULADD, None, ((whole >> (32 - bits)).cast(dtype), value, value))
    numbers = np.random.default_rng(2).integers(0, 1 << 32, 1000, dtype=np.uint32)
    numbers[:2] = [0, (1 << 32) - 1]
    roots = rewrite([positive.alu(Ops.LOG), positive], way.rules)
    got, fractions = (evaluate(root, numbers, way.fused) for root in roots)
    assert fractions.min() > 0 and fractions.max() == 1
    np.testing.assert_array_equal(got, way(Ops.LOG, fractions))
    plain, known, zero = (rewrite([n.alu(Ops.LOG)], way.rules)[0] for n in (leaf(dtype), positive, positive - value))
    chosen = [sum(n.op is Ops.WHERE for n in root.toposort()) for root in (plain, known, zero)]
    assert chosen[1] == 0 and chosen[0] == chosen[2] > 2

"""The op table: every row is complete, matches its doc line, and has the gradient that finite differences show."""
from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from ml_dtypes import bfloat16

from tests.ir.helpers import check_gradient, gradients, numeric, param
from tinsmith.core.dtypes import dtypes
from tinsmith.ir import Ops, UOp
from tinsmith.ir.interpret.tensor import evaluate
from tinsmith.ir.ops import op_table
from tinsmith.ir.ops.op import Op
from tinsmith.ir.uop import Window

ROWS = list(op_table())
INF, NAN = math.inf, math.nan
F32, I8, I32, U8 = np.float32, np.int8, np.int32, np.uint8

# ops whose value is not a function of the values of their sources
NO_MEANING = {
    "BUFFER": "an input", "PARAM": "an input", "VARIABLE": "an input",
    **dict.fromkeys(["RANGE", "LOAD", "STORE", "FOLD", "PREFIX", "STAGE", "SCATTER_STORE", "AFTER", "MMA"],
                    "kernel graphs: see evaluate_kernel"),
    **dict.fromkeys(["DEFINE_GLOBAL", "DEFINE_LOCAL", "DEFINE_ACC", "SPECIAL", "ENDRANGE", "IF", "ENDIF", "PHI",
                     "VECTORIZE", "GEP", "BARRIER", "WARP_BARRIER", "PREFETCH", "LOAD_TILE", "STORE_TILE",
                     "LOAD_MATRIX"],
                    "linear programs: a renderer defines them"),
    **dict.fromkeys(["DEFINE_RING", "ARRIVE", "RELEASE", "ASYNC_COPY", "WAIT", "TILE", "FENCE", "COMMIT", "DRAIN"],
                    "what a block's engines do meanwhile: see backend/python/warps.py"),
}
NO_GRADIENT = {
    **dict.fromkeys(["IDIV", "MOD", "CMPLT", "CMPNE", "CMPEQ", "AND", "OR", "XOR", "SHL", "SHR", "BITCAST"],
                    "integers or bits"),
    "HISTOGRAM": "counters are integers", "TRUNC": "flat almost everywhere", "DETACH": "its purpose",
    **dict.fromkeys(["BUFFER", "PARAM", "CONST", "VARIABLE", "BIND", "IOTA"], "no differentiable source"),
    "SINK": "no value", "HOST": "what it stands in has a rule of its own",
    **dict.fromkeys([*NO_MEANING, "SCALE", "UNLIKELY", "SHUFFLE", "MATCH"], "below the tensor graph"),
}


@pytest.mark.parametrize("row", ROWS, ids=lambda r: r.name)
def test_row_is_complete(row: Op) -> None:
    assert row.doc.endswith(".") or row.doc.endswith("].") or row.doc[-1] in ".0e"
    assert getattr(Ops, row.name) is row
    assert (row.meaning is None) == (row.name in NO_MEANING)
    assert (row.gradient is None) == (row.name in NO_GRADIENT)
    arity = {"unary": 1, "binary": 2, "ternary": 3, "cast": 1, "movement": 1}.get(row.kind)
    assert arity is None or row.arity == arity
    assert row.elementwise == (row.kind in ("unary", "binary", "ternary", "cast"))
    assert not row.elementwise or row.shape is not None
    assert row.identity is None or row.associative
    assert not row.alu or row.cost > 0


def of(op: str, *values: object, dtype: object = None) -> np.ndarray:
    """Return the op's value on Python lists converted to one NumPy dtype each."""
    arrays = [np.asarray(v) for v in values]
    nodes = [param(i, a.shape, dtypes.from_numpy(a.dtype)) for i, a in enumerate(arrays)]
    node = UOp(getattr(Ops, op), dtype, tuple(nodes))
    return evaluate([node], dict(zip(nodes, arrays)))[0]


def f32(*v: float) -> np.ndarray:
    return np.array(v, F32)


SPECIAL = [
    ("NEG", (f32(0.0, -0.0, INF, NAN),), f32(-0.0, 0.0, -INF, NAN)),
    ("NEG", (np.array([-128, 5], I8),), np.array([-128, -5], I8)),
    ("RECIP", (f32(0.0, -0.0, INF, -INF, NAN),), f32(INF, -INF, 0.0, -0.0, NAN)),
    ("SQRT", (f32(-1.0, -0.0, 4.0, INF),), f32(NAN, -0.0, 2.0, INF)),
    ("EXP", (f32(-INF, 0.0, 1000.0, NAN),), f32(0.0, 1.0, INF, NAN)),
    ("LOG", (f32(0.0, -1.0, 1.0, INF),), f32(-INF, NAN, 0.0, INF)),
    ("EXP2", (f32(-INF, 3.0, 128.0),), f32(0.0, 8.0, INF)),
    ("LOG2", (f32(0.0, -1.0, 8.0),), f32(-INF, NAN, 3.0)),
    ("SIN", (f32(0.0, INF, -INF),), f32(0.0, NAN, NAN)),
    ("COS", (f32(0.0, INF, -INF),), f32(1.0, NAN, NAN)),
    ("EXPM1", (f32(-INF, -0.0, 1e-20, 1000.0, NAN),), f32(-1.0, -0.0, 1e-20, INF, NAN)),
    ("LOG1P", (f32(-1.0, -2.0, -0.0, 1e-20, INF),), f32(-INF, NAN, -0.0, 1e-20, INF)),
    ("POW", (f32(0.0, INF, NAN, 1.0, -2.0, 9.0, 4.0), f32(-1.0, 2.0, 0.0, NAN, 2.0, 0.5, INF)),
     f32(INF, INF, 1.0, 1.0, NAN, 3.0, INF)),
    ("TANH", (f32(INF, -INF, 0.0, NAN),), f32(1.0, -1.0, 0.0, NAN)),
    ("ERF", (f32(INF, -INF, 0.0, NAN),), f32(1.0, -1.0, 0.0, NAN)),
    ("TRUNC", (f32(1.9, -1.9, INF, NAN, -0.5),), f32(1.0, -1.0, INF, NAN, -0.0)),
    ("ADD", (np.array([127], I8), np.array([1], I8)), np.array([-128], I8)),
    ("ADD", (np.array([True, False]), np.array([True, False])), np.array([True, False])),
    ("SUB", (np.array([0], U8), np.array([1], U8)), np.array([255], U8)),
    ("MUL", (np.array([64], I8), np.array([4], I8)), np.array([0], I8)),
    ("MUL", (np.array([True, True]), np.array([True, False])), np.array([True, False])),
    ("FDIV", (f32(1, -1, 0, INF), f32(0, 0, 0, INF)), f32(INF, -INF, NAN, NAN)),
    ("IDIV", (np.array([7, -7, 7, -7, 5], I32), np.array([2, 2, -2, -2, 0], I32)), np.array([3, -4, -4, 3, 0], I32)),
    ("IDIV", (np.array([-128], I8), np.array([-1], I8)), np.array([-128], I8)),
    ("MOD", (np.array([7, -7, 7, -7, 5], I32), np.array([2, 2, -2, -2, 0], I32)), np.array([1, 1, -1, -1, 0], I32)),
    ("MOD", (np.array([-128], I8), np.array([-1], I8)), np.array([0], I8)),
    ("MAX", (f32(NAN, 1.0, -INF, -0.0), f32(1.0, NAN, 2.0, 0.0)), f32(NAN, NAN, 2.0, -0.0)),
    ("MAX", (f32(0.0), f32(-0.0)), f32(0.0)),
    ("MIN", (f32(NAN, 1.0, INF, 0.0), f32(1.0, NAN, 2.0, -0.0)), f32(NAN, NAN, 2.0, 0.0)),
    ("FMOD", (f32(-1.0, 1e20, -4.0, 5.0, -0.0, NAN, INF, 1.0), f32(-0.5, 7.0, 2.0, INF, 3.0, 1.0, 2.0, 0.0)),
     f32(-0.0, 3.0, -0.0, 5.0, -0.0, NAN, NAN, NAN)),
    ("CMPLT", (f32(NAN, 1.0, -0.0, -INF), f32(1.0, NAN, 0.0, INF)), np.array([False, False, False, True])),
    ("CMPEQ", (f32(NAN, -0.0, INF), f32(NAN, 0.0, INF)), np.array([False, True, True])),
    ("CMPNE", (f32(NAN, -0.0, INF), f32(NAN, 0.0, INF)), np.array([True, False, False])),
    ("AND", (np.array([12], I32), np.array([10], I32)), np.array([8], I32)),
    ("OR", (np.array([12], I32), np.array([10], I32)), np.array([14], I32)),
    ("XOR", (np.array([True, True]), np.array([True, False])), np.array([False, True])),
    ("SHL", (np.array([1, 1, 1, 1], I32), np.array([31, 32, 33, -1], I32)), np.array([-(1 << 31), 0, 0, 0], I32)),
    ("SHR", (np.array([-8, -8, 8, -8], I32), np.array([1, 32, 99, -1], I32)), np.array([-4, -1, 0, -1], I32)),
    ("SHR", (np.array([200, 200], U8), np.array([1, 8], U8)), np.array([100, 0], U8)),
    ("SCALE", (f32(1.5, 3.0, NAN, NAN, 1.0, INF, 1.0), f32(-149, 2.0, -INF, INF, 128.0, -5.0, NAN)),
     f32(2.0**-148, 12.0, 0.0, INF, INF, INF, NAN)),
    ("WHERE", (np.array([True, False]), f32(NAN, 1.0), f32(2.0, -0.0)), f32(NAN, -0.0)),
    ("UNLIKELY", (np.array([True, False]), f32(NAN, 1.0), f32(2.0, -0.0)), f32(NAN, -0.0)),
    ("MULADD", (f32(INF, 2.0), f32(0.0, 3.0), f32(1.0, 4.0)), f32(NAN, 10.0)),
]


@pytest.mark.parametrize("op, sources, want", SPECIAL, ids=[f"{i}-{s[0]}" for i, s in enumerate(SPECIAL)])
def test_special_values(op: str, sources: tuple[np.ndarray, ...], want: np.ndarray) -> None:
    got = of(op, *sources)
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got, want)
    if want.dtype.kind == "f":
        known = ~np.isnan(want)
        np.testing.assert_array_equal(np.signbit(got)[known], np.signbit(want)[known])


def test_every_elementwise_row_has_a_special_value() -> None:
    assert {r.name for r in ROWS if r.elementwise} - {s[0] for s in SPECIAL} == {"CAST", "BITCAST"}


@pytest.mark.parametrize("value, dtype, want", [
    (300.0, dtypes.int8, 127), (-300.0, dtypes.int8, -128), (NAN, dtypes.int32, 0), (INF, dtypes.uint8, 255),
    (-1.5, dtypes.uint8, 0), (-1.9, dtypes.int32, -1), (INF, dtypes.int64, 2**63 - 1), (-INF, dtypes.int64, -(2**63)),
    (2.0**64, dtypes.uint64, 2**64 - 1), (2.0**31, dtypes.int32, 2**31 - 1), (1e300, dtypes.float32, INF),
    (70000.0, dtypes.float16, INF), (-1e39, dtypes.bfloat16, -INF), (NAN, dtypes.bool, True), (0.5, dtypes.bool, True),
    (-0.0, dtypes.bool, False),
])
def test_cast_from_float(value: float, dtype: object, want: object) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = of("CAST", np.array([value]), dtype=dtype)
    assert got.dtype == dtype.numpy and got[0] == want


def test_cast_from_int() -> None:
    np.testing.assert_array_equal(of("CAST", np.array([300, -1], I32), dtype=dtypes.uint8), np.array([44, 255], U8))
    np.testing.assert_array_equal(of("CAST", np.array([0, 256], I32), dtype=dtypes.bool), [False, True])
    assert of("CAST", np.array([1.00390625], F32), dtype=dtypes.bfloat16)[0] == bfloat16(1.0)  # ties to even


def test_bitcast_keeps_bits_and_shape() -> None:
    np.testing.assert_array_equal(of("BITCAST", f32(1.0), dtype=dtypes.int32), np.array([0x3F800000], I32))
    assert of("BITCAST", np.array(1.0, F32), dtype=dtypes.int32).shape == ()


@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16], ids=str)
@pytest.mark.parametrize("op", ["EXP", "TANH", "ADD", "MUL", "FDIV", "MAX", "MULADD"])
def test_narrow_floats_round_once(op: str, dtype: object) -> None:
    rng = np.random.default_rng(0)
    row = getattr(Ops, op)
    xs = [rng.uniform(0.5, 2, 50).astype(dtype.numpy) for _ in range(row.arity)]
    want = of(op, *(x.astype(F32) for x in xs)).astype(dtype.numpy)
    np.testing.assert_array_equal(of(op, *xs), want)


@pytest.mark.parametrize("dtype", dtypes.all, ids=str)
@pytest.mark.parametrize("row", [r for r in ROWS if r.identity is not None], ids=lambda r: r.name)
def test_identity_changes_nothing(row: Op, dtype: object) -> None:
    if row.name in ("AND", "OR", "XOR") and dtype.is_float:
        pytest.skip("bits of floats are not combined")
    x = np.array([0, 1, 3, 1], np.int64).astype(dtype.numpy)
    e = np.full(4, row.identity(dtype), dtype.numpy)
    np.testing.assert_array_equal(of(row.name, x, e), x)
    empty = param(0, (0, 2), dtype).reduce(row, (0,))
    got = evaluate([empty], {empty.src[0]: np.zeros((0, 2), dtype.numpy)})[0]
    assert got.shape == (1, 2) and got.dtype == dtype.numpy and (got == row.identity(dtype)).all()


def test_reduce_special_values() -> None:
    x = param(0, (3,), dtypes.float32)
    with_nan, wide = f32(1, NAN, 2), param(1, (4096,), dtypes.float16)
    assert np.isnan(evaluate([x.reduce("MAX", (0,)), x.reduce("MIN", (0,))], {x: with_nan})).all()
    assert evaluate([wide.reduce("ADD", (0,))], {wide: np.ones(4096, np.float16)})[0][0] == 4096
    y = param(0, (2,), dtypes.int8)
    assert evaluate([y.reduce("ADD", (0,))], {y: np.array([100, 100], I8)})[0][0] == -56


def test_gather_and_scatter_out_of_range() -> None:
    x, i, v = param(0, (3,)), param(1, (4,), dtypes.int32), param(2, (4,))
    at = np.array([-1, 0, 0, 3], I32)
    values = {x: np.array([1.0, 2.0, 3.0]), i: at, v: np.array([10.0, 20.0, 30.0, 40.0])}
    out = evaluate([x.gather(i, 0), x.scatter(i, v, 0, None), x.scatter(i, v, 0, "ADD"),
        x.scatter(i, v, 0, "MAX")], values)
    for got, want in zip(out, ([0, 1, 1, 0], [30, 2, 3], [51, 2, 3], [30, 2, 3])):
        np.testing.assert_array_equal(got, want)


def test_scan() -> None:
    x, w, s = param(0, (5,)), param(1, (5,)), param(2, (1,))
    values = {x: np.array([3.0, 1.0, NAN, 4.0, 1.0]), w: np.full(5, 0.5), s: np.array([2.0])}
    out = evaluate([x.scan("MAX", 0), x.scan("ADD", 0, s), x.scan("MULADD", 0, s, w)], values)
    for got, want in zip(out, ([3, 3, NAN, NAN, NAN], [5, 6, NAN, NAN, NAN], [4, 3, NAN, NAN, NAN])):
        np.testing.assert_array_equal(got, want)
    blocks = param(3, (2,))
    got = evaluate([x.scan("ADD", 0, blocks)], {x: np.arange(5.0), blocks: np.array([10.0, 20.0])})[0]
    np.testing.assert_array_equal(got, [10, 11, 13, 23, 27])
    small = param(0, (3,), dtypes.int8)
    wrapped = evaluate([small.scan("ADD", 0)], {small: np.array([100, 100, 1], I8)})[0]
    np.testing.assert_array_equal(wrapped, [100, -56, -55])


def test_histogram() -> None:
    """Final counts, and the count before each step; an out-of-range key gives 0 and is not counted."""
    base, i, x = param(0, (3,), dtypes.int32), param(1, (5,), dtypes.int32), param(2, (5,), dtypes.int32)
    values = {base: np.array([0, 10, 20], I32), i: np.array([1, 1, -1, 2, 3], I32), x: np.array([1, 2, 3, 4, 5], I32)}
    np.testing.assert_array_equal(evaluate([base.histogram(i, x, 0)], values)[0], [0, 13, 24, 10, 11, 0, 20, 0])


def test_window_is_a_sliding_view_and_unwindow_its_transpose() -> None:
    w = Window(axis=0, window_axis=1, stride=2, dilation=1, inputs=7, outputs=3)
    x, y = param(0, (7, 3)), param(1, (3, 3))
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((7, 3)), rng.standard_normal((3, 3))
    seen, back = evaluate([x.window(w), y.unwindow(w)], {x: a, y: b})
    np.testing.assert_array_equal(seen, [[a[2 * o + k, k] for k in range(3)] for o in range(3)])
    np.testing.assert_allclose((seen * b).sum(), (a * back).sum())


# *** gradients ***

X, Y, Z = param(0, (2, 3)), param(1, (2, 3)), param(2, (2, 3))
I = param(3, (2, 3), dtypes.int32)
LINE = param(4, (7, 3))
WINDOW = Window(axis=0, window_axis=1, stride=2, dilation=2, inputs=7, outputs=2)


def _values(low: float = -2.0, high: float = 2.0) -> dict[UOp, np.ndarray]:
    rng = np.random.default_rng(3)
    return {x: rng.uniform(low, high, x.shape) for x in (X, Y, Z)}


RANGES = {"RECIP": (0.5, 2), "SQRT": (0.5, 2), "LOG": (0.5, 3), "LOG2": (0.5, 3), "LOG1P": (-0.5, 2),
          "POW": (0.5, 2)}
GRADIENTS = {
    **{r.name: X.alu(r) for r in ROWS if r.kind == "unary" and r.gradient is not None},
    **{r.name: X.alu(r, Y) for r in ROWS if r.kind == "binary" and r.gradient is not None},
    "WHERE": X.lt(Y).where(Y * 2, Z), "MULADD": X.alu("MULADD", Y, Z), "CAST": UOp(Ops.CAST, dtypes.float64, (X,)),
    "RESHAPE": X.reshape((3, 2)), "PERMUTE": X.permute((1, 0)), "EXPAND": X.reshape((2, 1, 3)).expand((2, 4, 3)),
    "PAD": X.pad(((1, 0), (0, 2))), "SHRINK": X.shrink(((0, 1), (1, 3))), "FLIP": X.flip((0, 1)),
    "WINDOW": LINE.window(WINDOW), "UNWINDOW": X.unwindow(WINDOW), "CONTIGUOUS": (X * 2).contiguous(),
    "SHARD": UOp(Ops.SHARD, None, (X * Y, Y), (1, "CPU,CPU:1")),
    "REDUCE-ADD": X.reduce("ADD", (0, 1)), "REDUCE-MAX": X.reduce("MAX", (1,)), "REDUCE-MIN": X.reduce("MIN", (0,)),
    "REDUCE-MUL": X.reduce("MUL", (1,)), "GATHER": X.gather(I, 0), "GATHER-1": X.gather(I, 1),
    "SCATTER-ADD": X.scatter(I, Y, 1, "ADD"), "SCATTER-SET": X.scatter(I, Y, 1, None),
    **{f"SCATTER-{op}": X.scatter(I, Y, 1, op) for op in ("MUL", "MAX", "MIN")},
    "CUSTOM_GRADIENT": UOp(Ops.CUSTOM_GRADIENT, None, (X * X * Y, X, Y), lambda n, g: (g * X * Y * 2, g * X * X)),
    **{f"SCAN-{op}-{axis}": X.scan(op, axis) for op in ("ADD", "MUL", "MAX", "MIN") for axis in (0, 1)},
    "SCAN-MULADD": X.scan("MULADD", 1, Y.shrink(((0, 2), (0, 1))), Z),
    "ASSIGN": UOp(Ops.ASSIGN, None, (X, Y)),
    "COPY": UOp(Ops.COPY, None, (X,), "ELSEWHERE"),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradient(name: str) -> None:
    low, high = RANGES.get(name, (-2.0, 2.0))
    values = _values(low, high)
    if name == "ASSIGN":  # the old version's value has no part in the new one
        values[X] = np.zeros((2, 3))
    values[I] = np.array([[1, 0, 1], [-1, 2, 1]], I32)
    values[LINE] = np.random.default_rng(4).standard_normal((7, 3))
    used = {n for n in GRADIENTS[name].toposort() if n.op is Ops.PARAM}
    check_gradient(GRADIENTS[name], {x: v for x, v in values.items() if x in used})


def test_every_gradient_is_checked() -> None:
    assert {r.name for r in ROWS if r.gradient is not None} == {name.split("-")[0] for name in GRADIENTS}


@pytest.mark.parametrize("zeros", [0, 1, 2])
def test_gradient_of_product_with_zeros(zeros: int) -> None:
    x = np.array([[1.5, -2.0, 0.5], [3.0, 1.0, -1.0]])
    x[0, :zeros] = 0.0
    check_gradient(X.reduce("MUL", (1,)), {X: x})


def test_ties_share_the_gradient() -> None:
    seed, both = param(9, (2, 1)), param(9, (2, 3))
    x = np.array([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]])
    (g,) = evaluate(gradients(X.reduce("MAX", (1,)), seed, [X]), {X: x, seed: np.ones((2, 1))})
    np.testing.assert_allclose(g, [[0, 0.5, 0.5], [1 / 3] * 3])
    for op in ("MAX", "MIN"):
        pair = evaluate(gradients(X.alu(op, Y), both, [X, Y]), {X: x, Y: x, both: np.ones((2, 3))})
        np.testing.assert_allclose(pair, np.full((2, 2, 3), 0.5))


def test_scatter_set_keeps_the_last_of_equal_indices() -> None:
    seed = param(9, (2, 3))
    values = {I: np.array([[1, 1, 5], [0, 2, 0]], I32), seed: np.arange(6.0).reshape(2, 3) + 1}
    base, x = evaluate(gradients(X.scatter(I, Y, 1, None), seed, [X, Y]), values)
    np.testing.assert_array_equal(base, [[1, 0, 3], [0, 5, 0]])
    np.testing.assert_array_equal(x, [[0, 2, 0], [0, 6, 4]])


SECOND = {
    "SIN": X.alu("SIN"), "EXP": X.alu("EXP"), "TANH": X.alu("TANH"),
    "MUL": X * X * Y, "FDIV": Y / X, "RECIP": X.alu("RECIP"),
    "SQRT": X.alu("SQRT"), "LOG": X.alu("LOG"), "ERF": X.alu("ERF"), "PRODUCT": X.reduce("MUL", (1,)),
    "GATHER": (X * X).gather(I, 0), "SCATTER": (X * X).scatter(I, X * Y, 1, "ADD"),
    "SOFTMAX": X.alu("EXP") / X.alu("EXP").reduce("ADD", (1,)).expand((2, 3)),
    "WINDOW": (LINE * LINE).window(WINDOW), "UNWINDOW": (X * X).unwindow(WINDOW),
}


@pytest.mark.parametrize("name", SECOND)
def test_gradient_of_gradient(name: str) -> None:
    root, values = SECOND[name], _values(0.5, 2.0)
    values |= {I: np.array([[1, 0, 1], [-1, 2, 1]], I32), LINE: np.random.default_rng(4).uniform(1, 2, (7, 3))}
    by = LINE if name == "WINDOW" else X
    seed = param(98, root.shape)
    values[seed] = np.random.default_rng(5).standard_normal(root.shape)
    (first,) = gradients(root, seed, [by])
    used = {n for n in first.toposort() if n.op is Ops.PARAM}
    outer = param(99, by.shape)
    weights = np.random.default_rng(6).standard_normal(by.shape)
    inputs = {x: v for x, v in values.items() if x in used | {by, seed}}
    (second,) = evaluate(gradients(first, outer, [by]), {**inputs, outer: weights})
    want = numeric(lambda v: float((evaluate([first], {**inputs, by: v})[0] * weights).sum()), values[by])
    np.testing.assert_allclose(second, want, rtol=1e-4, atol=1e-5)

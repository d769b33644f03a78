"""Integer algebra: every rule satisfies its law, and simplified indices keep their value."""
from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
import z3
from hypothesis import given, settings
from hypothesis import strategies as st

from tinsmith.codegen.lower.indexing import flatten, unflatten
from tinsmith.core.dtypes import dtypes
from tinsmith.ir import Ops, UOp
from tinsmith.ir.algebra.sizes import from_linear, linear_form
from tinsmith.ir.algebra.symbolic import _is_collected, _recombined, simplify, symbolic
from tinsmith.ir.interpret.tensor import evaluate, evaluate_scalar
from tinsmith.ir.rewrite import Rule, rewrite
from tinsmith.ir.uop import toposort

FLOATS = [0.0, -0.0, 1.0, -1.5, np.inf, -np.inf, np.nan, 3e38, 1e-40, 65504.0]


def values_of(leaf: UOp) -> list[object]:
    """Return special and random values for a leaf of an example."""
    rng = np.random.default_rng(0)
    if leaf.op is Ops.VARIABLE:
        return list(range(leaf.arg[1], leaf.arg[2] + 1))
    if leaf.dtype.is_float:
        return [*FLOATS, *rng.standard_normal(10)]
    if leaf.dtype.is_bool:
        return [False, True]
    return [0, 1, -1, leaf.dtype.min, leaf.dtype.max, *rng.integers(-100, 100, 5)]


def same(a: np.ndarray, b: np.ndarray) -> bool:
    """Return True if both are the same value, NaN and the sign of zero included."""
    if a.dtype != b.dtype:
        return False
    if a.dtype.kind == "f":
        return bool(np.array_equal(a, b, equal_nan=True) and (np.isnan(a) | (np.signbit(a) == np.signbit(b))).all())
    return bool(np.array_equal(a, b))


def assert_same_meaning(before: UOp, after: UOp) -> None:
    leaves = [n for n in before.toposort() if n.op in (Ops.PARAM, Ops.VARIABLE)]
    for values in itertools.product(*map(values_of, leaves)):
        inputs = {n: np.asarray(v).astype(n.dtype.numpy) for n, v in zip(leaves, values)}
        was, now = evaluate([before, after], inputs)
        assert same(was, now), (inputs, was, now, before, after)


@pytest.mark.parametrize("rule", symbolic.rules, ids=lambda r: r.name)
def test_rule_example(rule: Rule) -> None:
    node = rule.example()
    new = rule.apply(node)
    assert new is not None and new is not node, "the example is not changed by its rule"
    assert new.dtype is node.dtype
    assert_same_meaning(node, new)
    assert_same_meaning(node, node.simplify())


def test_rules_have_names_and_laws() -> None:
    names = [r.name for r in symbolic.rules]
    assert len(set(names)) == len(names) and all(r.law for r in symbolic.rules)


def test_no_rule_is_wrong_for_special_floats() -> None:
    x = UOp(Ops.PARAM, dtypes.float32, (), (0, ()))
    for node in (x - x, x * 0, x / x, x + 0.0, x * 0.0 + 1.0, 0.0 - x, x.eq(x), x.lt(x), x.maximum(x), x * -1 * -1):
        assert_same_meaning(node, node.simplify())


@pytest.mark.parametrize("dtype", [dtypes.int8, dtypes.uint8, dtypes.int32], ids=str)
def test_wrapping_integers(dtype: object) -> None:
    x = UOp(Ops.PARAM, dtype, (), (0, ()))
    for node in (x + 100 - x + 100, x * 3 - x, (x + 1).lt(x), x * 2 // 2, (-x).__neg__(),
                 x.cast(dtypes.int64).cast(dtype),
                 (x + 1).cast(dtypes.int64) - x.cast(dtypes.int64), (x * 2) % 2, x - x, (x // 3) * 3 + x % 3):
        assert_same_meaning(node, node.simplify())


VARIABLES = [UOp.variable("a", 0, 5), UOp.variable("b", 0, 3), UOp.variable("c", -2, 4)]
SMALL = st.integers(-9, 9)


def grow(inner: st.SearchStrategy[UOp]) -> st.SearchStrategy[UOp]:
    divisor = st.integers(-4, 12)
    return st.one_of(
        st.tuples(inner, inner).map(lambda p: p[0] + p[1]), st.tuples(inner, inner).map(lambda p: p[0] - p[1]),
        st.tuples(inner, SMALL).map(lambda p: p[0] * p[1]), st.tuples(inner, divisor).map(lambda p: p[0] // p[1]),
        st.tuples(inner, divisor).map(lambda p: p[0] % p[1]), st.tuples(inner, inner).map(lambda p: p[0].maximum(p[1])),
        st.tuples(inner, inner).map(lambda p: p[0].minimum(p[1])), st.tuples(inner, inner).map(lambda p: p[0] * p[1]),
        st.tuples(inner, inner, inner).map(lambda p: p[0].lt(p[1]).where(p[2], p[1])))


INDEX = st.recursive(st.one_of(st.sampled_from(VARIABLES), SMALL.map(UOp.index)), grow, max_leaves=10)
CONDITION = st.one_of(
    st.tuples(INDEX, INDEX).map(lambda p: p[0].lt(p[1])), st.tuples(INDEX, SMALL).map(lambda p: p[0].lt(p[1])),
    st.tuples(INDEX, SMALL).map(lambda p: p[0].ge(p[1])), st.tuples(INDEX, INDEX).map(lambda p: p[0].eq(p[1])),
    st.tuples(INDEX, SMALL, SMALL).map(lambda p: p[0].lt(p[1]) & p[0].ge(p[2])))


def points(node: UOp) -> list[dict[UOp, int]]:
    used = [v for v in VARIABLES if v in node.toposort()]
    return [dict(zip(used, at)) for at in itertools.product(*(range(v.arg[1], v.arg[2] + 1) for v in used))]


@settings(max_examples=400, deadline=None)
@given(st.one_of(INDEX, CONDITION))
def test_simplified_expressions_keep_their_value_and_bounds_are_sound(node: UOp) -> None:
    new = node.simplify()
    assert new.dtype is node.dtype
    for at in points(node):
        value = evaluate_scalar(node, at)
        assert evaluate_scalar(new, at) == value, (node, new, at)
        assert node.vmin <= value <= node.vmax and new.vmin <= value <= new.vmax


@settings(max_examples=150, deadline=None)
@given(INDEX)
def test_simplify_comes_to_rest(node: UOp) -> None:
    new = node.simplify()
    assert new.simplify() is new and rewrite([new], symbolic)[0] is new


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=4))
def test_flattened_and_unflattened_indices_cancel(shape: list[int]) -> None:
    index = tuple(UOp.range(s, i, None) if s > 1 else UOp.index(0) for i, s in enumerate(shape))
    assert tuple(unflatten(tuple(shape), flatten(tuple(shape), index))) == index


def to_z3(node: UOp, names: dict[UOp, z3.ArithRef]) -> z3.ExprRef:
    """Translate an expression for z3, whose integer division by positive constants also rounds down."""
    out: dict[UOp, z3.ExprRef] = dict(names)
    fold = {Ops.ADD: lambda x, y: x + y, Ops.SUB: lambda x, y: x - y, Ops.MUL: lambda x, y: x * y,
            Ops.IDIV: lambda x, y: x / y, Ops.MOD: lambda x, y: x % y, Ops.CMPLT: lambda x, y: x < y,
            Ops.AND: z3.And, Ops.NEG: lambda x: -x, Ops.CMPEQ: lambda x, y: x == y}
    for n in node.toposort():
        if n.op is Ops.CONST:
            out[n] = z3.BoolVal(n.arg) if n.dtype.is_bool else z3.IntVal(n.arg)
        elif n not in out:
            out[n] = fold[n.op](*(out[s] for s in n.src))
    return out[node]


def prove_equal(before: UOp, after: UOp) -> None:
    variables = [n for n in before.toposort() if n.op is Ops.VARIABLE]
    names = {v: z3.Int(v.arg[0]) for v in variables}
    solver = z3.Solver()
    solver.set("timeout", 4000)
    solver.add(*(z3.And(n >= v.arg[1], n <= v.arg[2]) for v, n in names.items()))
    solver.add(to_z3(before, names) != to_z3(after, names))
    assert solver.check() != z3.sat, (before, after, solver.model())


@pytest.mark.parametrize("seed", range(40))
def test_z3_proves_division_remainder_and_comparison(seed: int) -> None:
    rng = np.random.default_rng(seed)
    big = [UOp.variable(n, int(low), int(low + size)) for n, low, size in
           zip("xyz", rng.choice([0, 0, -50], 3), rng.integers(1, 1000, 3))]
    total = UOp.index(int(rng.integers(-100, 100)))
    for v in big:
        total = total + v * int(rng.integers(-64, 64))
    d, e = (int(x) for x in rng.integers(1, 40, 2))
    for node in (total // d, total % d, total.lt(d * e), (total // d).lt(e), total // d // e, total % (d * e) % d,
                 (total // d) * d + total % d):
        prove_equal(node, node.simplify())


@pytest.mark.parametrize("text, want", [
    (lambda i, j: (i * 4 + j) // 4, "i"), (lambda i, j: (i * 4 + j) % 4, "j"),
    (lambda i, j: i * 2 + 3 + i - 3, "i*3"),
    (lambda i, j: (i * 8 + j * 2 + 1) // 2, "i*4+j"), (lambda i, j: (i * 4 + j) % 4 // 4, "0"),
    (lambda i, j: (i * 6 + 5).lt(12), "i<2"), (lambda i, j: (i // 2).lt(3), "i<6"),
])
def test_simplified_form(text: object, want: str) -> None:
    node = text(UOp.variable("i", 0, 8), UOp.variable("j", 0, 3)).simplify()
    assert node.render() == want


def test_sums_that_are_seen_to_be_canonical_are() -> None:
    """The quick test that a sum is canonical agrees with building its canonical form."""
    draw = random.Random(1)
    leaves = [*(UOp.variable(c, 0, k) for c, k in zip("abcde", (3, 9, 17, 5, 2))), *(UOp.range(6, i, None)
                                                                                  for i in range(3))]

    def expression(depth: int) -> UOp:
        if depth == 0 or draw.random() < 0.2:
            return draw.choice(leaves) if draw.random() < 0.8 else UOp.index(draw.randint(-3, 5))
        a, b = expression(depth - 1), expression(depth - 1)
        c = UOp.index(draw.randint(1, 5))
        return [a + b, a - b, a * UOp.index(draw.randint(-3, 4)), a // c, a % c, -a, a * b][draw.randint(0, 6)]

    seen = 0
    for _ in range(1000):
        made = expression(4)
        for n in toposort([made, simplify(made)]):
            if n.op in (Ops.ADD, Ops.SUB, Ops.NEG, Ops.MUL) and _is_collected(n):
                terms, constant = linear_form(n)
                assert from_linear(_recombined(terms), constant, n) is n
                seen += 1
    assert seen > 500


def test_unsigned_sums_keep_the_parts_that_they_share() -> None:
    x, y = (UOp(Ops.PARAM, dtypes.uint32, (), (n, ())) for n in (1, 2))
    for _ in range(20):  # as a counter is mixed: written out, every sum would hold all sums before it
        x = x + y
        y = (y << 3) ^ x
    assert len(toposort(simplify(x))) <= len(toposort(x))

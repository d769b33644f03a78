"""Integer expressions print as Python: evaluating the text gives the value."""
from __future__ import annotations

import random

import pytest

from tinsmith import Tensor, Variable
from tinsmith.core.dtypes import dtypes
from tinsmith.core.errors import ShapeError
from tinsmith.ir import Ops, UOp
from tinsmith.ir.interpret.tensor import evaluate_scalar
from tinsmith.ir.text.node import expression, short
from tinsmith.shape import ShapeTracker

NAMES = ("a", "b", "c")
VARIABLES = {name: UOp.variable(name, -5, 9) for name in NAMES}


def expressions(draw: random.Random, depth: int) -> UOp:
    if depth == 0 or draw.random() < 0.15:
        return draw.choice([*VARIABLES.values(), UOp.index(draw.randint(-3, 5))])
    x, y = (expressions(draw, depth - 1) for _ in range(2))
    k = UOp.index(draw.randint(1, 5))
    return draw.choice([x + y, x - y, x * y, x * UOp.index(-1), x + UOp.index(-2), x // k, x % k, -x, x.maximum(y),
                        x.minimum(y), conditions(draw, x, y).where(x, y)])


def conditions(draw: random.Random, x: UOp, y: UOp) -> UOp:
    less = x.lt(y)
    return draw.choice([less, x.eq(y), x.ne(y), less & y.lt(3), less | x.eq(2), less.eq(y.lt(0)), less.logical_not(),
                        (less ^ x.lt(1)) & (less | y.eq(0))])


def test_what_is_printed_is_the_value() -> None:
    draw = random.Random(3)
    for _ in range(500):
        node = expressions(draw, 4)
        for wanted in (node, conditions(draw, node, expressions(draw, 2))):
            values = {name: draw.randint(-5, 9) for name in NAMES}
            known = wanted.substitute({v: UOp.index(values[name]) for name, v in VARIABLES.items()})
            for text, scope in ((wanted.render(), values), (known.render(), {})):
                assert eval(text, {}, {**scope, "max": max, "min": min}) == evaluate_scalar(known, {}), text


def test_no_brackets_are_printed_that_python_does_not_need() -> None:
    a, b, c = VARIABLES.values()
    forms = {(a * 4 + b): "a*4+b", (a + (b + c)): "a+b+c", (a - (b - c)): "a-(b-c)", (a * (b + 1)) // c: "a*(b+1)//c",
             a * (b // c): "a*(b//c)", a * -1 + 3: "-a+3", a + UOp.index(-3): "a-3", (a < 3) & (b < c): "(a<3)&(b<c)",
             (a + 1).lt(b * 2): "a+1<b*2", (-a).lt(-2): "a>2", (a * -3).lt(-2): "a*-3<-2"}
    assert {n.render() for n in forms} == set(forms.values())
    assert all(repr(n) == text for n, text in forms.items())


def test_least_and_greatest() -> None:
    n = Variable("n", 2, 9)
    assert (repr(n), n.render(), n.min, n.max) == ("n", "n", 2, 9)
    assert ((n * 4 - 1).min, (n * 4 - 1).max, repr(n.bind(3)), repr(n.bind(3) + 1)) == (7, 35, "n=3", "n+1")


def test_the_index_of_a_view() -> None:
    tracker = ShapeTracker.from_shape((2, 4))
    assert repr(tracker.expr_idxs()) == "(idx0*4+idx1, True)"
    address, valid = tracker.permute((1, 0)).pad(((0, 1), (0, 0))).expr_idxs()
    assert (address.render(), valid.render(), address.min, address.max) == ("idx1*4+idx0", "idx0<4", 0, 8)


def test_shapes_and_errors() -> None:
    n = Variable("n", 1, 9)
    x = Tensor.ones(9, 4)[: n.bind(3)].cat(Tensor.ones(2, 4))
    assert repr(x.shape) == "(n+2, 4)"
    assert "shape=(n+2, 4), strides=(4, 1)" in repr(ShapeTracker.from_shape(x.shape))
    with pytest.raises(ShapeError, match=r"\(n\+2, 4\) has n\*4\+8 \(20 with n = 3\) elements"):
        x.reshape(5, 5)


def test_long_expressions_are_cut_off_in_reprs_alone() -> None:
    i = UOp.variable("i", 0, 3)
    total = i
    for k in range(100):
        total = total.maximum(i + k)
    assert len(repr(total)) < 300 < len(total.render()) and repr(total).endswith("…")
    assert eval(total.render(), {}, {"i": 2, "max": max}) == 101


def test_values_and_pointers_keep_their_constructors() -> None:
    x = UOp(Ops.PARAM, dtypes.int32, (), (1, (2,)))
    assert short(x + x) == "ADD(dtypes.int, PARAM#1, PARAM#1)"
    assert expression(UOp(Ops.LOAD, dtypes.int32, (x, UOp.index(0))) + 1) == "load+1"

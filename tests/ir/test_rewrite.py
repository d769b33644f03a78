"""The rewrite engine: rule order, patterns, termination, and the names of rules that cycle."""
from __future__ import annotations

import pytest

from tests.ir.helpers import param
from tinsmith.core.dtypes import dtypes
from tinsmith.ir import Ops, UOp
from tinsmith.ir.rewrite import Pat, Rule, RuleSet, literal, rewrite

X, Y, C = Pat("x"), Pat("y"), Pat("c", const=True)


def rule(name: str, pattern: Pat, result: object) -> Rule:
    return Rule(name, "", pattern, result, lambda: UOp.index(0))


def test_cycling_rules_are_named() -> None:
    cycle = RuleSet("merry-go-round", (rule("add-to-sub", X + Y, lambda x, y: x - y),
                                       rule("sub-to-add", X - Y, lambda x, y: x + y)))
    with pytest.raises(RuntimeError, match=r"merry-go-round.*add-to-sub.*sub-to-add"):
        rewrite([UOp.variable("i", 0, 9) + 1], cycle)


def test_growing_rule_is_stopped() -> None:
    grow = RuleSet("grow", (rule("more", X + C, lambda x, c: x + (c.arg + 1)),))
    with pytest.raises(RuntimeError, match="more"):
        rewrite([UOp.variable("i", 0, 9) + 1], grow)


def test_first_rule_wins_and_sets_add_up() -> None:
    to_sub, to_mul = rule("to-sub", X + Y, lambda x, y: x - y), rule("to-mul", X + Y, lambda x, y: x * y)
    i = UOp.variable("i", 0, 9)
    both = RuleSet("a", (to_sub,)) + RuleSet("b", (to_mul,))
    assert both.name == "a+b" and rewrite([i + 2], both) == [i - 2]


def test_commutative_ops_match_both_ways() -> None:
    i = UOp.variable("i", 0, 9)
    drop = RuleSet("drop", (rule("plus-one", X + 1, lambda x: x),))
    assert rewrite([i + 1, UOp.index(1) + i, i + 2], drop) == [i, i, i + 2]
    minus = RuleSet("minus", (rule("minus-one", X - 1, lambda x: x),))
    assert rewrite([UOp.index(1) - i], minus) == [UOp.index(1) - i]


def test_a_name_matches_one_node() -> None:
    i, j = UOp.variable("i", 0, 9), UOp.variable("j", 0, 9)
    double = RuleSet("double", (rule("twice", X + X, lambda x: x * 2),))
    assert rewrite([i + i, i + j], double) == [i * 2, i + j]


def test_result_none_leaves_the_node() -> None:
    i = UOp.variable("i", 0, 9)
    assert rewrite([i + 1], RuleSet("shy", (rule("no", X + C, lambda x, c: None),))) == [i + 1]


def test_literal_keeps_the_sign_of_zero() -> None:
    zero, minus = UOp.const(dtypes.float32, 0.0), UOp.const(dtypes.float32, -0.0)
    assert literal(0).match(zero, {}) and not literal(0).match(minus, {})


def test_origin_is_inherited() -> None:
    node = param(0, ()) + 1
    node.origin = (("add", "model.py", 1),)
    (new,) = rewrite([node], RuleSet("s", (rule("to-mul", X + C, lambda x, c: x * 5),)))
    assert new.op is Ops.MUL and new.origin == node.origin


def test_deep_graph_is_rewritten_without_recursion() -> None:
    node = x = UOp.variable("i", 0, 9)
    for _ in range(20_000):
        node = node.maximum(x)
    (new,) = rewrite([node], RuleSet("s", (rule("to-min", Pat("", (Ops.MAX,), (X, Y)), lambda x, y: x.minimum(y)),)))
    assert all(n.op in (Ops.MIN, Ops.VARIABLE) for n in new.toposort())


def test_memo_is_shared_between_calls() -> None:
    i = UOp.variable("i", 0, 9)
    memo: dict[UOp, UOp] = {}
    calls = []
    counting = RuleSet("s", (rule("count", X + C, lambda x, c: calls.append(1)),))
    rewrite([i + 1], counting, memo)
    rewrite([(i + 1) * 2], counting, memo)
    assert len(calls) == 1

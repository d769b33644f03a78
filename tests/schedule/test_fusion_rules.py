"""Fusion rules: a program for each verdict of the tables, and the answers of ``explain(why=…)``."""
from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given as given_by
from hypothesis import settings
from hypothesis import strategies as st

from tests.schedule.helpers import given
from tinsmith import Context, Tensor, explain
from tinsmith.core.dtypes import dtypes
from tinsmith.core.errors import UnknownNameError
from tinsmith.schedule.canonical import canonical
from tinsmith.schedule.fusion import rules
from tinsmith.schedule.fusion.fusion import fused
from tinsmith.schedule.fusion.rules import MOST_WORK, FusionRule
from tinsmith.schedule.passes.rewrites import cast_below_views
from tinsmith.target.schedule_costs import CORE_COSTS, GRID_COSTS, Costs
from tinsmith.tensor.nnops.attention import attended
from tinsmith.tensor.realize import _concrete


def _attention(*shape: int) -> list[Tensor]:
    q, k, v = (given(*shape, seed=n).half().realize().requires_grad_() for n in range(3))
    out = q.scaled_dot_product_attention(k, v)
    return [out, *(out * out).sum().gradient(q, k, v)]


def _gelu_gradient() -> list[Tensor]:
    x, first, second = given(64, 48), given(48, 80).requires_grad_(), given(80, 40).requires_grad_()
    return list(((x @ first).gelu("tanh") @ second).sum().gradient(first, second))


def _long_chain() -> list[Tensor]:
    x, y = given(4), given(4)
    for n in range(MOST_WORK + 100):
        x = x + y if n % 2 else x * y
    return [x]


def _gradient_of_slices() -> list[Tensor]:
    a, b = given(256, 256).requires_grad_(), given(256, 256).requires_grad_()
    return list((a[:, :128] @ b[:128]).tanh().sum().gradient(a, b))


def _gates() -> list[Tensor]:
    x = given(8, 64, 28, 28)
    return [x * ((x.mean((2, 3)) @ given(64, 16)).relu() @ given(16, 64)).sigmoid()[:, :, None, None]]


def _beside(*parts: Tensor) -> Tensor:
    """Return a matrix of rounded matrices side by side."""
    return parts[0].cast("bfloat16").cat(*(p.cast("bfloat16") for p in parts[1:]), dim=1)


def _read_twice(y: Tensor) -> list[Tensor]:
    return [y + 1, y.permute(1, 0) * 2]


def _mixed(y: Tensor) -> Tensor:
    """Return a sum that reads ``y`` at four indices."""
    return y + y.flip(0) + y.flip(1) + y.flip((0, 1))


def _costly(x: Tensor) -> Tensor:
    return x.sin().exp().sin().exp().sin()


def _shuffled(x: Tensor) -> Tensor:
    return x.reshape(2, 4, 2, 2, 12, 12).permute(0, 1, 4, 2, 5, 3).reshape(2, 4, 24, 24)


def _experts() -> list[Tensor]:
    products = (given(256, 128)[None] @ given(8, 128, 128)).permute(1, 0, 2)
    return [(given(256, 8)[:, :, None] * products).sum(1)]


def _depthwise() -> list[Tensor]:
    return [given(2, 24, 24, 32).permute(0, 3, 1, 2).conv2d(given(32, 1, 5, 5), groups=32, padding=2)]


def _labels() -> Tensor:
    return Tensor(np.arange(512, dtype=np.int32) % 300).realize()


X = given(64, 256)
STORED: dict[str, Callable[[], list[Tensor]]] = {
    "output": lambda: [X + 1],
    "kind": lambda: [(X + 1).contiguous() * 2],
    "gathered": lambda: [(X + 1)[Tensor([3, 1]).realize()]],
    "copied": lambda: [(X + 1).to("PYTHON")],
    "host function": lambda: [(given(8, 8) + 1).inv()],
    "sequential": lambda: [X.softmax().cumsum(1)],
    "seam": lambda: [_shuffled(given(2, 16, 12, 12)).conv2d(given(8, 4, 3, 3), padding=1)],
    "few results": lambda: [given(512, 300).sparse_categorical_crossentropy(_labels())],
    "permuted windows": _depthwise,
    "large kernel": _long_chain,
    "shared result": _gelu_gradient,
    "recompute": lambda: _read_twice(_costly(X)),
    "different indices": lambda: [(X @ given(256, 128)).softmax()],
    "per element": _gates,
    "windows of a reduction": lambda: [
        given(1, 8, 24, 24).conv2d(given(32, 8, 1, 1)).silu().conv2d(given(32, 1, 3, 3), groups=32, padding=1)],
    "nested matmul": lambda: [((given(256, 16) @ given(16, 256)).relu() @ given(256, 64)).sum(0)],
    "long matmul": lambda: [(given(256, 256) @ given(256, 256)).relu().sum(0)],
    "block": _experts,
    "padding": _gradient_of_slices,
    "epilogue only": lambda: [given(256, 64) @ given(64, 256) + given(256, 300) @ given(300, 256)],
    "repeated matmul": _gates,
    "other loops": lambda: [given(64, 64).softmax(0).softmax(1)],
    "few rows": lambda: [given(4, 1 << 15).softmax()],
    "split lanes": lambda: [given(64, 9, 3, 8).exp().sum(3).reshape(64, 27)[:, :26] + 1],
    "windows": lambda: [(given(2, 8, 24, 24) * 2 + 1).relu().max_pool2d((3, 3), stride=1)],
    "passes": lambda: [X.cat(X * 2, dim=1).softmax()],
    "indices": lambda: [_mixed(_costly(X))],
    "unpartitioned": lambda: [((y := X.exp()) + y.flip(1)).softmax()],
    "operand": lambda: [(X * (Tensor.rand(64, 256) > 0.5)) @ given(256, 128)],
    "operand reads": lambda: [X.relu() @ given(256, 512)],
    "scattered operand": lambda: [
        (x := given(2, 16, 12, 12)).cat(x + 1, dim=1).conv2d(given(8, 32, 3, 3), padding=1)],
    "scanned parts": lambda: [X.cat(X + 1, dim=0).cumsum(0)],
    "scanned scalars": lambda: [X.exp().cumsum(1)],
}
FUSED: dict[str, Callable[[], list[Tensor]]] = {
    "scattered source": lambda: [X.cat(X * 2, dim=1).softmax()],
    "one read": lambda: [X.exp() + 1],
    "stream": lambda: [(given(256, 16) @ given(16, 256)).relu() @ given(256, 64)],
    "view": lambda: [(X + 1).permute(1, 0) * 2],
    "random words": lambda: [Tensor.rand(4, 4)],
    "product": lambda: [X @ given(256, 128)],
    "tiles": lambda: _attention(1, 4, 64, 16),
    "shared result": _gelu_gradient,
    "recompute": lambda: _read_twice(X * 2),
    "short table": lambda: _read_twice(Tensor.arange(64).reshape(8, 8) // 3 % 5),
    "rows of a stream": lambda: _attention(1, 4, 64, 16),
    "own stream": lambda: _attention(1, 4, 64, 16),
    "nested loops": lambda: [X.softmax()],
    "split lanes": lambda: [given(64, 9, 3, 2).sum(3).reshape(64, 27)[:, :26] + 1],
    "spread": lambda: _read_twice(Tensor.arange(256).reshape(-1, 1) >= Tensor.arange(256)),
    "windows": lambda: [given(2, 8, 24, 24).relu().max_pool2d((3, 3), stride=1)],
    "indices": lambda: [_mixed(X * 2)],
    "unpartitioned": lambda: [(X * 2 + (X * 2).flip(1)).softmax()],
    "operand": lambda: [X.relu() @ given(256, 32)],
    "operand reads": lambda: [X.relu() @ given(256, 32)],
    "scanned scalars": lambda: [(X + 1).cumsum(1)],
    "rounded": lambda: [_beside(*(given(256, 64) @ given(64, 256) for _ in range(2)))],
}
# the other rules need a grid, or are rare: tests of streams and of attention by hand have their programs
GRID: dict[tuple[str, bool], Callable[[], list[Tensor]]] = {
    ("narrower", False): lambda: _attention(1, 8, 256, 64),
    ("row statistic", False): lambda: _attention(1, 8, 256, 64),
    ("light on statistics", False): lambda: [given(64, 64).softmax(0).softmax(1)],
    ("permuted windows", False): _depthwise,
    ("passes", False): STORED["passes"],
    ("scanned parts", False): STORED["scanned parts"],
}
ELSEWHERE = {("second matmul", True), ("matmul in a stream", True), ("rows of a stream", True), ("NOOPT", True),
             ("size", False), ("in memory", False)}
PROGRAMS = [*((name, True, CORE_COSTS, p) for name, p in STORED.items()),
            *((name, False, CORE_COSTS, p) for name, p in FUSED.items()),
            *((name, stored, GRID_COSTS, p) for (name, stored), p in GRID.items())]
TABLES = (rules.BY_KIND, rules.LARGE, rules.SHARED, rules.REDUCTION, rules.NESTING, rules.PLACES, rules.OPERAND,
          rules.SCANNED)


def all_rules() -> list[FusionRule]:
    alone = [r for r in vars(rules).values() if isinstance(r, FusionRule)]
    return list(dict.fromkeys([*alone, *(r for table in TABLES for r in table)]))


def verdicts(program: Callable[[], list[Tensor]], costs: Costs) -> dict[tuple[str, bool], str]:
    """Return the texts of the verdicts about a program, by rule."""
    roots = list(dict.fromkeys(_concrete(t.uop) for t in program()))
    found = fused(cast_below_views(canonical(roots)[0]), costs)
    return {(v.rule.name, v.stores): str(v) for n in found.decisions for v in found.verdicts(n)}


@pytest.mark.parametrize(("name", "stored", "costs", "program"), PROGRAMS,
                         ids=[f"{name}-{'stored' if stored else 'fused'}" for name, stored, _, _ in PROGRAMS])
def test_a_program_for_each_verdict(name: str, stored: bool, costs: Costs,
                                    program: Callable[[], list[Tensor]]) -> None:
    text = verdicts(program, costs).get((name, stored))
    assert text and "{" not in text


def test_each_rule_has_a_name_a_law_and_a_program_for_each_verdict() -> None:
    found = all_rules()
    assert len({r.name for r in found}) == len(found)
    assert all(r.law.endswith(".") and (r.stored or r.fused) for r in found)
    given_verdicts = {(r.name, stores) for r in found for stores, text in ((True, r.stored), (False, r.fused)) if text}
    assert given_verdicts == {(name, stored) for name, stored, _, _ in PROGRAMS} | ELSEWHERE


@pytest.mark.parametrize("kept", [True, False])
def test_a_costly_mask_is_stored_and_the_weights_of_attention_are_not(kept: bool) -> None:
    """The mask is an output, or two layers read it: the weights do not cost what it costs to compute."""
    positions = Tensor.arange(256)
    hidden = positions.reshape(256, 1) % 7 % 5 % 3 // 2 > positions % 11 % 9 % 5 % 3 // 2
    mask = hidden.where(float("-inf"), Tensor.zeros((), dtype="float16"))
    q, k, v = (given(1, 8, 256, 64, seed=n).half().realize() for n in range(3))

    def program() -> list[Tensor]:
        out = q
        for _ in range(1 if kept else 2):
            scores = out.matmul(k.transpose(-1, -2), dtype="float32") * 0.125 + mask.float()
            out, lse = attended(scores, v, True)
        return [out, lse, *([mask] if kept else [])]

    roots = list(dict.fromkeys(_concrete(t.uop) for t in program()))
    found = fused(cast_below_views(canonical(roots)[0]), GRID_COSTS)
    stored = [n for n in found.decisions if any(v.stores for v in found.verdicts(n))]
    assert any(n.shape == (256, 256) for n in stored) and not any(n.shape == (1, 8, 256, 256) for n in stored)


@settings(max_examples=20, deadline=None)
@given_by(st.sampled_from(("product", "sum", "maximum")), st.sampled_from(("bfloat16", "float16")),
          st.sampled_from(("beside", "padded", "multiplied")), st.booleans(), st.integers(1, 6))
def test_a_result_that_is_rounded_has_the_narrow_dtype(of: str, dtype: str, then: str, scaled: bool, size: int) -> None:
    x, y = given(256, 64), given(64, 64 * size)
    value = x @ y if of == "product" else getattr(given(256, 64 * size, 33), "sum" if of == "sum" else "max")(2)
    value = (value * 0.125 if scaled else value).cast(dtype)
    read = {"beside": lambda v: v.cat(v.const_like(2.0), dim=1), "padded": lambda v: v.pad(((3, 0), (8, 9))),
            "multiplied": lambda v: v @ v.permute(1, 0)}[then]
    result = read(value)
    slots = result.schedule().schedule.slots
    assert not any(s.dtype is dtypes.float32 and s.size == value.numel() and not s.input for s in slots)
    close = 1e-2 if then == "multiplied" else 0
    want = read(value.contiguous().realize())
    np.testing.assert_allclose(result.float().numpy(), want.float().numpy(), rtol=close, atol=close)


def test_a_new_row_decides_and_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """CONTRIBUTING.md adds a rule like this."""
    row = FusionRule("square root", "The square root of a value that a reduction reads is stored.",
               lambda c: (True, c.kernels) if c.node.op.name == "SQRT" else None, "{0} kernel reads this square root")
    monkeypatch.setattr(rules, "PLACES", (row, *rules.PLACES))
    text = str((X.abs().sqrt()).sum(1).explain(why="sqrt"))
    assert text.startswith("ABS and SQRT share kernel 1, ") or "SQRT is in kernel 1, " in text
    assert "stored by the rule square root: 1 kernel reads this square root" in text


# *** explain(why=…) ***

def test_why_softmax_is_one_kernel() -> None:
    lines = str(X.softmax().explain(why="softmax")).splitlines()
    assert lines[0].startswith("MAX, SUB, EXP, SUM, RECIP and MUL share kernel 1, ") and lines[0].endswith(", because")
    text = " ".join(" ".join(lines).split())
    assert "MAX (64, 1), SUM (64, 1) and RECIP (64, 1): fused by the rule nested loops: the loops nest so that" in text
    assert "MUL (64, 256): stored by the rule output: output" in text


def test_why_softmax_of_a_matmul_is_two_kernels() -> None:
    y = (X @ given(256, 128)).softmax()
    found = y.explain(run=False)
    assert "stored by the rule different indices: one kernel reads the reduction at different indices" in " ".join(
        found.why("matmul").split())
    assert "share kernel 2, " in found.why("softmax") and "kernel 1" not in found.why("softmax")
    assert found.why(found.kernels[0].name).startswith("MUL and SUM share kernel 1, ")
    with Context(NOOPT=1):
        assert "stored by the rule NOOPT: " in " ".join(str(y.explain(why="softmax")).split())


def test_why_a_convolution_is_not_computed_inside_its_pooling() -> None:
    y = given(8, 16, 24, 24).conv2d(given(32, 16, 5, 5)).relu().max_pool2d()
    found = explain(y, run=False)
    conv = next(v for v in found.values if v.op == "SUM")
    assert conv.stored and conv.rules == ("long matmul",) and "tiled, not computed per element" in conv.reason
    relu = next(v for v in found.values if v.op == "MAX" and any(o[0] == "relu" for o in v.origin))
    assert not relu.stored and relu.kernels == (2,) and "is fused because: one kernel reads it" in str(relu)


def test_a_value_that_several_kernels_compute_says_what_that_costs() -> None:
    y = X * 2
    found = explain(*_read_twice(y), run=False)
    shared = next(v for v in found.values if v.op == "MUL" and len(v.kernels) == 2)
    assert shared.rules == ("recompute",) and "costs 1 operations per element, of at most 48" in shared.reason


def test_unknown_names_are_answered_with_names_that_exist() -> None:
    with pytest.raises(UnknownNameError, match="softmax"):
        X.softmax().explain(why="sotfmax")

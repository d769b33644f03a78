"""Gradients of every differentiable method against central differences, and the rules of backward()."""
from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from tests.tensor.helpers import check_gradient
from tinsmith import Context, Tensor, TinyJit, dtypes
from tinsmith.core.errors import GradientError
from tinsmith.ir import Ops, UOp
from tinsmith.nn.optim import SGD
from tinsmith.tensor.autograd import history

RNG = np.random.default_rng(3)
A, B = RNG.uniform(0.3, 0.9, (2, 3)), RNG.uniform(0.3, 0.9, (2, 3))
SIGNED = np.array([[-1.3, 0.4, 2.2], [0.7, -0.2, -2.6]])
ROW, SQUARE = RNG.uniform(0.3, 0.9, (3,)), RNG.uniform(-1, 1, (3, 3))

UNARY = ["neg", "reciprocal", "square", "sqrt", "rsqrt", "exp", "exp2", "log", "log2", "log10", "log1p", "expm1",
         "sin", "cos",
         "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "atanh", "erf", "abs", "sum", "prod", "max",
         "min", "mean",
         "var", "std", "softmax", "log_softmax", "softmin", "logsumexp", "normalize", "norm", "flatten", "tril",
         "triu", "T"]
SIGNED_TOO = ["sin", "cos", "atan", "tanh", "asinh", "sinh", "abs", "erf", "square", "expm1", "prod", "floor", "ceil",
              "round",
              "trunc", "sign"]


def _apply(name):
    return lambda x: getattr(x, name)() if callable(getattr(x, name)) else getattr(x, name)


@pytest.mark.parametrize("name", UNARY)
def test_unary(name) -> None:
    check_gradient(_apply(name), A)


@pytest.mark.parametrize("name", SIGNED_TOO)
def test_unary_of_both_signs(name) -> None:
    check_gradient(_apply(name), SIGNED)


def test_beyond_one() -> None:
    for name in ("acosh", "atan", "asinh"):
        check_gradient(_apply(name), A * 4 + 1)


BINARY = {
    "add": lambda x, y: x + y, "sub": lambda x, y: x - y, "mul": lambda x, y: x * y, "div": lambda x, y: x / y,
    "pow": lambda x, y: x**y, "maximum": lambda x, y: x.maximum(y), "minimum": lambda x, y: x.minimum(y),
    "mod": lambda x, y: (x * 3) % y, "lerp": lambda x, y: x.lerp(y, 0.3), "where": lambda x, y: (x > 0.6).where(x, y),
    "copysign": lambda x, y: x.copysign(y - 0.6), "logaddexp": lambda x, y: x.logaddexp(y), "clamp": lambda x,
    y: x.clamp(y, 0.8),
    "cat": lambda x, y: x.cat(y, dim=1), "stack": lambda x, y: x.stack(y, dim=1), "dot": lambda x, y: x @ y.T,
    "einsum": lambda x, y: Tensor.einsum("ij,kj->ik", x, y), "fmod": lambda x, y: (x * 3).fmod(y),
    "masked_fill": lambda x, y: x.masked_fill(y > 0.6, 2.0) + y,
}


@pytest.mark.parametrize("name", BINARY)
def test_binary(name) -> None:
    check_gradient(BINARY[name], A, B)


def test_broadcast_operands() -> None:
    check_gradient(lambda x, y: x * y + y, A, ROW)
    check_gradient(lambda x, y: x / y, A, np.array(0.7))
    check_gradient(lambda x, y: x @ y, np.stack([A, B]), SQUARE)
    check_gradient(lambda x, w, b: x.linear(w, b), A, SQUARE, ROW)


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, -1, -2, 0.5, -0.5, 1.7, -2.3])
def test_powers(exponent) -> None:
    check_gradient(lambda x: x**exponent, A)
    check_gradient(lambda x: 2**x, A)


@pytest.mark.parametrize(("base", "exponent"), [(1, 3), (-1, 3), (1, 2.5), (2, 0), (-2, 2), (0, 1), (0.5, 0), (1, 0)])
def test_powers_where_the_value_is_special_but_the_slope_is_not(base, exponent) -> None:
    x, y = Tensor([float(base)]), Tensor([float(exponent)])
    (x**y).sum().backward()
    assert x.grad.item() == pytest.approx(exponent * float(base) ** (exponent - 1), rel=1e-5)
    if base > 0:
        assert y.grad.item() == pytest.approx(base**exponent * np.log(base), rel=1e-5, abs=1e-7)


def test_slope_of_asinh_at_zero_and_far_away() -> None:
    x = Tensor([0.0, 1e10, -2.0])
    x.asinh().sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), [1, 1e-10, 5**-0.5], rtol=1e-5)


def test_powers_at_zero_and_below() -> None:
    x = Tensor([0.0, -2.0, 3.0])
    (x**3 + x**2 + x).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [1, 9, 34]
    x = Tensor([0.0, 4.0])
    (x**1.5).sum().backward()
    assert x.grad is not None and np.allclose(x.grad.numpy(), [0, 3])


MOVEMENT = {
    "reshape": lambda x: x.reshape(3, 2), "permute": lambda x: x.permute(1, 0), "flip": lambda x: x.flip(1), "pad":
    lambda x: x.pad(((1, 2), (0, 1)), value=3), "shrink": lambda x: x.shrink(((0, 1), (1, 3))), "expand":
    lambda x: x.unsqueeze(1).expand(2, 4, 3), "repeat": lambda x: x.repeat(2, 3), "roll": lambda x: x.roll(1, 1),
    "split":
    lambda x: x.split(2, 1)[0] * x.split([1, 2], 1)[1], "repeat_interleave": lambda x: x.repeat_interleave(2, 0),
    "unfold":
    lambda x: x.unfold(1, 2, 1), "reflect": lambda x: x.pad((1, 1), mode="reflect"),
    "diagonal": lambda x: x.diagonal(1),
    "contiguous": lambda x: x.contiguous() * 2, "cast": lambda x: x.cast(dtypes.float64) * 2,
    "clone": lambda x: x.clone() * x,
    "slice": lambda x: x[:, ::-2], "int": lambda x: x[1], "none": lambda x: x[None, :, 0],
    "list": lambda x: x[[1, 0, 1]],
    "two lists": lambda x: x[[0, 1, 0], [2, 2, 2]], "mask": lambda x: x[np.array([True, False])],
    "column": lambda x: x[:, [0, 0]],
    "gather": lambda x: x.gather(1, Tensor([[0, 2], [1, 1]])),
    "gather of computed": lambda x: (x * x)[[1, 1, 0]] * 2,
}


@pytest.mark.parametrize("name", MOVEMENT)
def test_movement_and_indexing(name) -> None:
    check_gradient(MOVEMENT[name], A)


@pytest.mark.parametrize("axis", [0, 1, (0, 1), None], ids=str)
def test_reductions(axis) -> None:
    for name in ("sum", "prod", "max", "min", "mean", "var", "std", "logsumexp"):
        check_gradient(lambda x, name=name: getattr(x, name)(axis), SIGNED)


def test_product_with_zeros() -> None:
    check_gradient(lambda x: x.prod(1), np.array([[0.0, 2, 3], [0, 0, 3], [1, 2, 3]]))


def test_equal_extremes_share() -> None:
    x = Tensor([1.0, 3.0, 3.0])
    x.max().backward()
    assert x.grad is not None and x.grad.tolist() == [0, 0.5, 0.5]


def test_scatters() -> None:
    i = Tensor([[0, 2], [1, 1]])
    check_gradient(lambda x, y: x.scatter_add(1, i, y[:, :2]), A, B)
    check_gradient(lambda x, y: x.scatter(1, i, y[:, :2]), A, B)


def _written(index, value=None):
    def f(x, y):
        z = x * 1
        z[index] = y[index] if value is None else value
        return z * x

    return f


@pytest.mark.parametrize("index", [0, (slice(None), 1), (slice(None), slice(None, None, 2)), ([0, 1], [1, 2])], ids=str)
def test_writes(index) -> None:
    check_gradient(_written(index), A, B)
    x = Tensor(A)
    z = x * 1
    z[index] = 2.0
    z.sum().backward()
    want = np.ones_like(A)
    want[index] = 0
    assert x.grad is not None and x.grad.numpy().tolist() == want.tolist()


def test_second_derivatives() -> None:
    x = Tensor(A, dtype=dtypes.float64)
    (first,) = (x.sin() * x * x).sum().gradient(x)
    (second,) = first.sum().gradient(x)
    want = 2 * np.sin(A) + 4 * A * np.cos(A) - A * A * np.sin(A)
    np.testing.assert_allclose(second.numpy(), want, rtol=1e-9)
    check_gradient(lambda x: x.softmax().square().sum().gradient(x)[0], SIGNED)


# *** backward ***


def test_leaves() -> None:
    made = [Tensor([1.0, 2.0]), Tensor.rand(2), Tensor.ones(2), Tensor(np.ones(2, np.float32)),
            Tensor(np.arange(2), dtype="float32"),
            Tensor([1.0, 2.0]).realize(), Tensor.rand(2).realize(), Tensor.arange(2.0)]
    excluded = [Tensor([1.0, 2.0], requires_grad=False), Tensor([1.0, 2.0]).detach(), Tensor([1, 2])]
    computed = Tensor([1.0, 2.0]) * 2
    sum((t for t in made + excluded), computed).sum().backward()
    assert all(t.grad is not None and t.grad.tolist() == [1, 1] for t in made)
    assert all(t.grad is None for t in [*excluded, computed])


def test_gradients_add_up_and_asked_for() -> None:
    x = Tensor([1.0, 2.0])
    y = x * 3
    y.requires_grad = True
    for _ in range(2):
        (y * y).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [36, 72] and y.grad is not None and y.grad.tolist() == [12, 24]


def test_reading_a_value_keeps_its_history() -> None:
    w = Tensor([3.0])
    y = w * w
    loss = (y + 1).sum()
    assert (y.item(), loss.item()) == (9, 10) and "9" in repr(y)
    loss.backward()
    assert w.grad is not None and w.grad.item() == 6


def test_realizing_a_leaf_keeps_the_graph_together() -> None:
    for w in (Tensor([3.0]), Tensor.ones(1) , Tensor.rand(1)):
        y = (w * w).sum()
        w.realize()
        y.backward()
        assert w.grad is not None and abs(w.grad.item() - 2 * w.item()) < 1e-6


def test_realize_cuts_nothing() -> None:
    w = Tensor([3.0])
    y = (w * 2).realize()
    (y * y).sum().backward()
    assert w.grad is not None and w.grad.item() == 24 and y.grad is None


@pytest.mark.parametrize("extreme", [
    lambda y: y.max(1), lambda y: y.min(0), lambda y: y.cummax(1)[0], lambda y: y.reshape(1, 1, 8, 8).max_pool2d(),
    lambda y: y.zeros_like().scatter_reduce(0, Tensor(np.arange(64).reshape(8, 8) % 3), y, "amax")])
def test_extremes_of_values_that_round_otherwise_when_computed_again(extreme: Callable[[Tensor], Tensor]) -> None:
    rows = np.random.default_rng(0).standard_normal((8, 37)).astype(np.float32)

    def slopes(read: bool) -> np.ndarray:
        x = Tensor(rows)
        y = x @ x.T
        found = extreme(y + y.sin())
        if read:
            found.realize()
        return (found * (x.sum(1)[0] + 2)).sum().gradient(x)[0].numpy()

    np.testing.assert_allclose(slopes(True), slopes(False), rtol=1e-3, atol=1e-3)


def test_nothing_flows_through_a_sign() -> None:
    x = Tensor([0.0, 2.0, float("nan")])
    assert (x.sign() * Tensor([float("inf"), float("nan"), 1.0])).sum().gradient(x)[0].tolist() == [0, 0, 0]


def test_assign_is_a_new_version() -> None:
    w = Tensor([1.0, 2.0]).realize()
    y = w + 1
    w.assign(Tensor([0.0, 0.0]))
    assert y.tolist() == [2, 3] and w.tolist() == [0, 0]
    v = Tensor([1.0]).realize()
    for _ in range(5):
        v.assign(v + 1)
    assert v.item() == 6
    v.assign(v * 2).realize()
    v += 1
    assert v.item() == 13


def test_training_by_hand() -> None:
    x = Tensor(RNG.standard_normal((32, 3)).astype(np.float32))
    target = x @ Tensor([[1.0], [-2.0], [0.5]]) + 0.25
    target = target.detach().realize()
    w, b = Tensor.zeros(3, 1), Tensor.zeros(1)
    for _ in range(60):
        w.grad = b.grad = None
        ((x @ w + b - target) ** 2).mean().backward()
        w.assign((w - 0.2 * w.grad).detach())
        b.assign((b - 0.2 * b.grad).detach())
        w.realize(b)
    np.testing.assert_allclose(w.numpy().ravel(), [1, -2, 0.5], atol=1e-2)
    np.testing.assert_allclose(b.numpy(), [0.25], atol=1e-2)


def test_errors() -> None:
    x = Tensor([1.0, 2.0])
    with pytest.raises(GradientError, match="starting gradient"):
        (x * 2).backward()
    with pytest.raises(GradientError, match="does not influence"):
        (x * 2).sum().gradient(Tensor([1.0]))
    (x * x).backward(Tensor([1.0, 10.0]))
    assert x.grad is not None and x.grad.tolist() == [2, 40]


def test_leaves_of_a_view_that_has_been_read_are_found() -> None:
    x = Tensor(A)
    y = x.repeat(2, 1)
    y.numpy()
    (g,) = (y * 3).sum().gradient(x)
    np.testing.assert_allclose(g.numpy(), np.full(A.shape, 6), rtol=1e-6)


def test_writes_that_are_not_recorded_leave_earlier_results_their_gradient() -> None:
    def by_no_grad(w: Tensor) -> None:
        with Tensor.no_grad():
            w += 100

    def by_step(w: Tensor) -> None:
        opt = SGD([w], lr=0.5)
        (w * 0).sum().backward()
        opt.step()
        opt.zero_grad()

    def by_detach(w: Tensor) -> None:
        w.detach()[0] = 7

    for write in (by_no_grad, by_step, by_detach, lambda w: w.assign(w.clip(0, 1))):
        for read in (lambda w: w, Tensor.realize):
            w = Tensor([1.0, 2.0], requires_grad=True)
            y = (w * 3).sum()
            write(w)
            read(w)
            y.backward()
            assert w.grad is not None and w.grad.tolist() == [3, 3]
            assert [g.tolist() for g in (y + (w * 5).sum()).gradient(w)] == [[8, 8]]


def test_a_write_after_data_got_a_buffer_leaves_earlier_results_their_gradient() -> None:
    x = Tensor(np.ones((2, 3), np.float32))
    y = x.cumsum(1).realize()
    x.realize()
    x.detach()[1] = 5
    x.realize()
    (y.sum() + x.sum()).backward()
    assert x.grad is not None and x.grad.tolist() == [[4, 3, 2]] * 2


def test_writes_that_are_not_recorded_keep_the_gradient_of_what_was_computed() -> None:
    w = Tensor([1.0, 2.0])
    y = w * w
    y.detach()[0] = 5
    assert y.tolist() == [5, 4] and (y * 3).sum().gradient(w)[0].tolist() == [6, 12]


def test_what_was_computed_and_then_written_is_data_if_the_new_values_are() -> None:
    for read in (lambda s: s, Tensor.realize):
        for data, write in ((True, lambda s, v: s.assign(v)), (False, lambda s, v: s.assign(v * 2)),
                            (False, lambda s, v: s[:1].assign(v[:1]))):
            s, v = Tensor([1.0, 2.0]) * 2, Tensor([3.0, 4.0]).realize()
            read(s)
            write(s, v)
            (s * 3).sum().backward()
            assert v.grad is not None and (s.grad is not None) is data


def test_clones_realized_together_are_two_values() -> None:
    x = Tensor([1.0, 2.0])
    a, b = x.clone(), x.clone()
    a.realize(b)
    loss = (a * 3 + b * 5).sum()
    assert [g.tolist() for g in loss.gradient(a, b, x)] == [[3, 3], [5, 5], [8, 8]]
    a += 1
    assert a.tolist() == [2, 3] and b.tolist() == [1, 2]


def test_no_gradient_flows_behind_detach() -> None:
    x, w = Tensor([1.0, 2.0]), Tensor([3.0, 4.0])
    (x.detach() * w).sum().backward()
    assert x.grad is None and w.grad is not None
    with Tensor.no_grad():
        loss = (w * 3).sum()
    with pytest.raises(GradientError, match="no_grad"):
        loss.backward()


def test_backward_of_data_and_of_a_captured_result_is_an_error() -> None:
    w = Tensor([1.0, 2.0], requires_grad=True)
    loss = TinyJit(lambda: (w * w).sum())
    for _ in range(3):
        with pytest.raises(GradientError, match="TinyJit captures"):
            loss().backward()
    with pytest.raises(GradientError, match="is data"):
        Tensor([1.0]).backward()
    assert w.grad is None
    step = TinyJit(lambda: (w * w).sum().backward().realize())
    step()
    assert w.grad is not None and w.grad.tolist() == [2, 4]


def test_a_budget_for_histories_ends_in_an_error_and_never_in_a_wrong_gradient() -> None:
    x = Tensor(np.ones(1000, np.float32)).realize()
    with Context(HISTORY_BYTES=50_000):
        h = x
        for _ in range(100):
            h = (h * Tensor(np.ones(1000, np.float32))).realize()
        with pytest.raises(GradientError, match="HISTORY_BYTES"):
            h.sum().gradient(x)


def test_histories_of_loops_are_let_go() -> None:
    x = Tensor([1.0, 2.0]).realize()
    total = Tensor([0.0, 0.0])
    for _ in range(300):
        total = (total + x.detach()).realize()
    assert sum(m.kept is not None for _, m in history._made.items()) < 200
    assert total.tolist() == [300, 600]


def test_second_derivatives_at_edges() -> None:
    """A variance of 0 has its full second derivative; the quadratic part of a Huber loss excludes its ends, as in
    PyTorch."""
    def second(of: Callable[[Tensor], Tensor], x: Tensor, flow: list[float]) -> list[float]:
        g = of(x).gradient(x)[0]
        return (g * Tensor(flow, requires_grad=False)).sum().gradient(x)[0].tolist()

    assert second(lambda x: x.var(), Tensor([2.0, 2.0]), [3.0, 5.0]) == [-2.0, 2.0]
    zeros = Tensor([0.0] * 3)
    for loss in (lambda x: x.huber_loss(zeros, "sum"), lambda x: x.smooth_l1_loss(zeros, "sum")):
        assert second(loss, Tensor([1.0, 0.5, -1.0]), [1.0] * 3) == [0, 1, 0]


def test_gradients_computed_together_are_looked_through_in_one_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = [Tensor.rand(4, 4, requires_grad=True).realize() for _ in range(12)]
    x = Tensor.ones(2, 4).contiguous().realize()
    for w in weights:
        x = (x @ w).relu()
    grads = x.sum().gradient(*weights)
    walked: list[int] = []

    def toposort(roots: Sequence[UOp]) -> list[UOp]:
        walked.append(len(roots))
        return list(UOp(Ops.SINK, None, tuple(roots)).toposort())[:-1]

    monkeypatch.setattr(history, "toposort", toposort)
    Tensor.realize(*grads)
    assert walked == [12]


@pytest.mark.parametrize("whole", [False, True])
def test_a_buffer_may_occur_in_its_own_history(whole: bool) -> None:
    """After writes in place a history can name the buffer that it is the history of, as its earlier version."""
    p = Tensor([1.0, 2.0, 3.0], requires_grad=True).realize()
    unseen = UOp(Ops.DETACH, None, (UOp.const(p.dtype, 0).expand_to(p.shape),), -1)
    written = UOp(Ops.ASSIGN, None, (p.uop, unseen), True)
    made = history.Made(written)
    made.kept = written
    history._made[p.uop.base] = made
    loss = ((p._new(written) if whole else p) * 3).sum()
    (got,) = loss.gradient(p)
    assert got.tolist() == [3.0, 3.0, 3.0]

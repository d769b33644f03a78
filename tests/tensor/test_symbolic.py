"""Symbolic sizes in the public API: every family of methods, one program for all values, errors at the user's line."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tinsmith import GlobalCounters, Tensor, TinyJit, Variable, dtypes
from tinsmith.core.errors import ArgumentError, AxisError, DTypeError, RangeError, ShapeError
from tinsmith.core.settings import Context
from tinsmith.ir import UOp

N = Variable("n", 1, 12)
VALUES = (5, 12, 1, 7)
RNG = np.random.default_rng(0)
A, W = RNG.standard_normal((12, 6)).astype(np.float32), RNG.standard_normal((6, 5)).astype(np.float32)
B = RNG.standard_normal((12, 7)).astype(np.float32)
Case = tuple[Callable[[dict[str, Tensor], UOp], Tensor], Callable[[int], Any]]


def softmax(a: np.ndarray) -> np.ndarray:
    e = np.exp(a - a.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def scores(k: int) -> np.ndarray:
    return A[:k] @ A[:k].T / np.sqrt(6)


CASES: dict[str, Case] = {
    "slice": (lambda t, n: t["a"][:n], lambda k: A[:k]),
    "rest": (lambda t, n: t["a"][n:], lambda k: A[k:]),
    "from the end": (lambda t, n: t["a"][:n][:-1], lambda k: A[: k - 1]),
    "row": (lambda t, n: t["a"][n - 1], lambda k: A[k - 1]),
    "shrink": (lambda t, n: t["a"].shrink(((n - 1, n), None)), lambda k: A[k - 1 : k]),
    "quotient": (lambda t, n: t["a"][: n // 2 + 1].sum(0), lambda k: A[: k // 2 + 1].sum(0)),
    "elementwise": (lambda t, n: t["a"][:n] * 2 + t["a"][:n].exp(), lambda k: A[:k] * 2 + np.exp(A[:k])),
    "where": (lambda t, n: (t["a"][:n] > 0).where(t["a"][:n], 0), lambda k: np.where(A[:k] > 0, A[:k], 0)),
    "value in arithmetic": (lambda t, n: t["a"] * n, lambda k: A * k),
    "quotient of values": (lambda t, n: t["a"] * (n / (n + 1)), lambda k: A * (k / (k + 1))),
    "values and floats": (lambda t, n: t["a"] * (n * 2.5) - (1.5 - n) + 1 / n, lambda k: A * k * 2.5 - 1.5 + k + 1 / k),
    "sum": (lambda t, n: t["a"][:n].sum(), lambda k: A[:k].sum()),
    "sum of columns": (lambda t, n: t["a"][:n].sum(0), lambda k: A[:k].sum(0)),
    "max": (lambda t, n: t["a"][:n].max(0), lambda k: A[:k].max(0)),
    "argmax": (lambda t, n: t["a"][:n].argmax(0), lambda k: A[:k].argmax(0)),
    "mean": (lambda t, n: t["a"][:n].mean(0), lambda k: A[:k].mean(0)),
    "var": (lambda t, n: t["a"][:n].var(0, correction=0), lambda k: A[:k].var(0)),
    "matmul": (lambda t, n: t["a"][:n] @ t["w"], lambda k: A[:k] @ W),
    "matmul over it": (lambda t, n: t["a"][:n].T @ t["b"][:n], lambda k: A[:k].T @ B[:k]),
    "matmul to a square": (lambda t, n: t["a"][:n] @ t["a"][:n].T, lambda k: A[:k] @ A[:k].T),
    "softmax": (lambda t, n: (t["a"][:n] @ t["a"][:n].T).softmax(), lambda k: softmax(A[:k] @ A[:k].T)),
    "softmax of columns": (lambda t, n: t["a"][:n].softmax(0), lambda k: softmax(A[:k].T).T),
    "layernorm": (lambda t, n: t["a"][:n].layernorm(),
                  lambda k: (A[:k] - A[:k].mean(-1, keepdims=True)) / np.sqrt(A[:k].var(-1, keepdims=True) + 1e-5)),
    "attention": (lambda t, n: t["a"][:n].scaled_dot_product_attention(t["a"][:n], t["a"][:n]),
                  lambda k: softmax(scores(k)) @ A[:k]),
    "causal attention": (lambda t, n: t["a"][:n].scaled_dot_product_attention(t["a"][:n], t["a"][:n], is_causal=True),
                         lambda k: softmax(np.where(np.tri(k, dtype=bool), scores(k), -np.inf)) @ A[:k]),
    "one query": (lambda t, n: t["a"][n - 1 : n].scaled_dot_product_attention(t["a"][:n], t["a"][:n]),
                  lambda k: softmax(scores(k))[-1:] @ A[:k]),
    "triangle": (lambda t, n: Tensor.ones(3, n + 2).triu(n), lambda k: np.triu(np.ones((3, k + 2)), k)),
    "reshape": (lambda t, n: t["a"][:n].reshape(n * 6), lambda k: A[:k].reshape(-1)),
    "reshape in parts": (lambda t, n: t["a"][:n].reshape(n, 2, 3).permute(1, 0, 2).reshape(2, n * 3).sum(1),
                         lambda k: A[:k].reshape(k, 2, 3).transpose(1, 0, 2).reshape(2, -1).sum(1)),
    "open size": (lambda t, n: t["a"][:n].reshape(-1, 3), lambda k: A[:k].reshape(-1, 3)),
    "flatten": (lambda t, n: t["a"][:n].flatten() * 2, lambda k: A[:k].reshape(-1) * 2),
    "expand": (lambda t, n: t["a"][:1].expand(n, 6), lambda k: np.broadcast_to(A[:1], (k, 6))),
    "repeat": (lambda t, n: t["a"][:n].repeat(2, 1).sum(), lambda k: 2 * A[:k].sum()),
    "transpose": (lambda t, n: t["a"][:n].T.contiguous(), lambda k: A[:k].T),
    "flip": (lambda t, n: t["a"][:n].flip(0), lambda k: A[:k][::-1]),
    "pad": (lambda t, n: t["a"][:n].pad(((0, 12 - n), None)), lambda k: np.pad(A[:k], ((0, 12 - k), (0, 0)))),
    "pad with a value": (lambda t, n: t["a"][:n].pad(((1, 12 - n), None), value=5.0),
                         lambda k: np.pad(A[:k], ((1, 12 - k), (0, 0)), constant_values=5)),
    "cat": (lambda t, n: t["a"][:n].cat(t["a"][:3]), lambda k: np.concatenate([A[:k], A[:3]])),
    "cat of both parts": (lambda t, n: t["a"][:n].cat(t["a"][n:]), lambda k: A),
    "gather": (lambda t, n: t["a"][(t["a"][:n, 0] > 0).cast("int32")], lambda k: A[(A[:k, 0] > 0).astype(int)]),
    "ones": (lambda t, n: Tensor.ones(n, 3).sum(0), lambda k: np.full(3, k)),
    "full": (lambda t, n: Tensor.full((n + 1,), 3.0), lambda k: np.full(k + 1, 3.0)),
    "full of it": (lambda t, n: Tensor.full((2, n), n * 2), lambda k: np.full((2, k), k * 2)),
    "eye": (lambda t, n: Tensor.eye(n, 3), lambda k: np.eye(k, 3)),
    "tensor of it": (lambda t, n: Tensor(n) + 3, lambda k: k + 3),
    "tensor of it beside a slice": (lambda t, n: t["a"][:n] * Tensor(n), lambda k: A[:k] * k),
    "reflected": (lambda t, n: n - t["a"], lambda k: k - A),
    "reflected comparison": (lambda t, n: n > Tensor.arange(9), lambda k: k > np.arange(9)),
    "arange with a step": (lambda t, n: Tensor.arange(0, 20, n).pad((0, 0)).sum(), lambda k: np.arange(0, 20, k).sum()),
    "arange down": (lambda t, n: Tensor.arange(n, -n, -2), lambda k: np.arange(k, -k, -2)),
    "last rows": (lambda t, n: t["a"][-n:], lambda k: A[-k:]),
    "row from the end": (lambda t, n: t["a"][-n], lambda k: A[-k]),
    "narrow": (lambda t, n: t["a"].narrow(0, n - 1, 1), lambda k: A[k - 1 : k]),
    "select": (lambda t, n: t["a"].select(0, n - 1), lambda k: A[k - 1]),
    "split": (lambda t, n: t["a"].split([n, 12 - n])[0], lambda k: A[:k]),
    "repeat_interleave": (lambda t, n: t["a"].repeat_interleave(n, 0).sum(0), lambda k: A.sum(0) * k),
    "arange": (lambda t, n: Tensor.arange(n) * 2, lambda k: np.arange(k) * 2),
    "arange between": (lambda t, n: Tensor.arange(n, n + 20, 3), lambda k: np.arange(k, k + 20, 3)),
    "cumsum beside it": (lambda t, n: t["a"][:n].cumsum(1), lambda k: A[:k].cumsum(1)),
    "cumsum along it": (lambda t, n: t["a"][:n].cumsum(0), lambda k: A[:k].cumsum(0)),
    "realized": (lambda t, n: (t["a"][:n] * 2).realize().sum(0), lambda k: (A[:k] * 2).sum(0)),
}


def tensors(device: str | None = None) -> dict[str, Tensor]:
    return {name: Tensor(x, device=device).realize() for name, x in (("a", A), ("w", W), ("b", B))}


@pytest.mark.parametrize("name", CASES)
def test_one_program_for_every_value(name: str) -> None:
    ours, numpys = CASES[name]
    t = tensors()
    counts = set()
    for k in VALUES:
        got, want = ours(t, N.bind(k)).numpy(), np.asarray(numpys(k))
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
        counts.add(GlobalCounters.schedule_count)
    assert len(counts) == 1, "a new value was compiled again"


@pytest.mark.parametrize("name", ["softmax", "matmul over it", "causal attention", "reshape in parts", "cat"])
def test_everywhere(name: str) -> None:
    ours, numpys = CASES[name]
    np.testing.assert_allclose(ours(tensors("PYTHON"), N.bind(5)).numpy(), numpys(5), rtol=1e-4, atol=1e-5)
    with Context(NOOPT=1):
        np.testing.assert_allclose(ours(tensors(), N.bind(5)).numpy(), numpys(5), rtol=1e-4, atol=1e-5)


def test_two_variables() -> None:
    t = tensors()
    m = Variable("m", 0, 6)
    for k, j in ((3, 2), (12, 6), (7, 0), (1, 1)):
        part = t["a"][: N.bind(k), m.bind(j) :]
        np.testing.assert_allclose((part * 2).sum(1).numpy(), (A[:k, j:] * 2).sum(1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("width", [16, 24, 64, 80])
def test_lanes_copies_and_threads_beside_a_symbolic_size(width: int) -> None:
    """One query and many keys, as in a decoder step: rows of fixed width are reduced by vectors."""
    keys, values, query = (RNG.standard_normal((400, 4, width)).astype(np.float32) for _ in range(3))
    k, v, q = Tensor(keys).realize(), Tensor(values).realize(), Tensor(query[:1]).realize()
    n = Variable("n", 1, 400)
    for count in (1, 37, 400):
        t = n.bind(count)
        got = q.transpose(0, 1).scaled_dot_product_attention(k[:t].transpose(0, 1), v[:t].transpose(0, 1)).numpy()
        for head in range(4):
            weights = softmax(query[:1, head] @ keys[:count, head].T / np.sqrt(width))
            np.testing.assert_allclose(got[head], weights @ values[:count, head], rtol=1e-4, atol=1e-5)


def test_gradient() -> None:
    for k in VALUES:
        x = Tensor(A)
        (x[: N.bind(k)].square() * 3).mean().backward()
        want = np.zeros_like(A)
        want[:k] = 6 * A[:k] / (6 * k)
        np.testing.assert_allclose(x.grad.numpy(), want, rtol=1e-5)


def test_what_a_symbolic_tensor_says() -> None:
    part = tensors()["a"][: N.bind(5)]
    assert len(part) == 5 and part.numpy().shape == (5, 6) and np.array(part.tolist()).shape == (5, 6)
    assert tensors()["a"][: N.bind(1), :1].item() == A[0, 0]
    with pytest.raises(ShapeError, match="holds 30 elements"):
        part.item()
    assert part.shape[0] is tensors()["b"][: N.bind(5)].shape[0]


def test_a_variable() -> None:
    bound = N.bind(4)
    assert bound.val == 4 and bound.unbind() == (N, 4) and (bound + 1).vmax == 13
    for wrong in (0, 13, 2.0):
        with pytest.raises(ArgumentError, match="variable 'n' runs from 1 to 12"):
            N.bind(wrong)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="not an unbound variable"):
        bound.bind(3)
    with pytest.raises(ArgumentError, match="Variable"):
        Variable("n", 3, 2)


ERRORS: dict[str, tuple[Callable[[Tensor], Any], type[Exception], str]] = {
    "no value": (lambda x: x[:N], ArgumentError, "variable 'n' has no value"),
    "no value in a shape": (lambda x: Tensor.ones(N), ArgumentError, "variable 'n' has no value"),
    "slice too long": (lambda x: x[: N.bind(12) + 1], ShapeError, "leaves axis 0 with size 12"),
    "slice of a part": (lambda x: x[:, : N.bind(1)][:, :2], ShapeError, "leaves axis 1 with size n = 1"),
    "from the end of a part": (lambda x: x[: N.bind(2)][-3:-1], ShapeError, "0 is more than n-3 .* with n = 2"),
    "number in a part": (lambda x: x[: N.bind(2)][2], AxisError, "index 2 is out of range for axis 0"),
    "row out of range": (lambda x: x[N.bind(12)], ShapeError, "leaves axis 0"),
    "begin behind end": (lambda x: x[N.bind(6) : 5], ShapeError, "n = 6 is more than 5"),
    "shrink": (lambda x: x.shrink(((0, N.bind(7) * 2), None)), ShapeError, "leaves axis 0"),
    "reshape": (lambda x: x[: N.bind(3)].reshape(4, -1), ShapeError, "are not divisible by 4"),
    "reshape to others": (lambda x: x[: N.bind(3)].reshape(N.bind(3), 5), ShapeError, "18 with n = 3"),
    "reshape by a value": (lambda x: x[:2].reshape(3, N.bind(5)), ShapeError, r"has 12 elements, .* \(15 with n = 5\)"),
    "add": (lambda x: x[: N.bind(3)] + x[:5], ShapeError, "do not broadcast: axis -2 has sizes n = 3 and 5"),
    "two variables": (lambda x: x[: N.bind(3)] + x[: Variable("m", 1, 12).bind(4)], ShapeError, "do not broadcast"),
    "not repeated": (lambda x: x[: N.bind(1)] + x, ShapeError, "do not broadcast"),
    "matmul": (lambda x: x[: N.bind(3)].T @ x, ShapeError, "do not multiply"),
    "negative size": (lambda x: Tensor.ones(N.bind(1) - 2), ShapeError, r"\(-1 with n = 1\) is negative"),
    "cat": (lambda x: x[: N.bind(3)].cat(x[:5], dim=1), ShapeError, "axis 0 has 5 and n = 3"),
    "expand": (lambda x: x[: N.bind(3)].expand(4, 6), ShapeError, "axis 0 has n = 3, not 1 or 4"),
    "kernel of a convolution": (lambda x: x[:, : N.bind(2)].reshape(1, 12, N.bind(2)).conv2d(Tensor.ones(1, 12, 3)),
                                ShapeError, "does not fit size n = 2"),
    "max of nothing": (lambda x: x[: Variable("m", 0, 4).bind(0)].max(0), ShapeError, "nothing to take the max of"),
    "sort": (lambda x: x[: N.bind(3)].sort(0), ShapeError, "symbolic"),
    "initial weights": (lambda x: Tensor.kaiming_uniform(N.bind(3), 2), ShapeError, "n = 3, 2. has a symbolic size"),
    "a quotient as a size": (lambda x: Tensor.ones(N.bind(3) / 2), DTypeError, "size cannot be a dtypes.float"),
    "a float product as a size": (lambda x: x.reshape(N.bind(4) * 1.5, -1), DTypeError, "size must be an integer"),
    "a quotient as padding": (lambda x: x.pad(((0, N.bind(4) / 2), None)), DTypeError, "padding must be an integer"),
    "gather": (lambda x: x[: N.bind(3)].gather(1, Tensor.zeros(5, 2, dtype="int32")), ShapeError, "no larger"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name: str) -> None:
    make, kind, text = ERRORS[name]
    with pytest.raises(kind, match=text) as caught:
        make(tensors()["a"])
    assert "test_symbolic.py" in str(caught.value)


@pytest.mark.parametrize("kernel, step, around", [(3, 2, 0), (3, 1, 1), (2, 3, 1), (2, 2, 0), (3, 3, 1)])
def test_pools_that_overhang_a_symbolic_axis(kernel: int, step: int, around: int) -> None:
    images = Tensor(A.reshape(1, 1, 12, 6)).realize()
    options: dict[str, Any] = {"stride": (step, 1), "padding": (around, 0), "ceil_mode": True}
    for k in range(3, 13):
        for pool in (Tensor.avg_pool2d, Tensor.max_pool2d):
            want, got = (pool(images[:, :, :n], (kernel, 1), **options).numpy() for n in (k, N.bind(k)))
            np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16, dtypes.float32])
def test_a_stage_along_a_quotient_of_quotients(dtype: Any) -> None:
    """The limit of the stage's range was written in another way after simplification, and the range was lost."""
    rng = np.random.default_rng(3)
    signal, weight = (Tensor(rng.integers(-2, 3, s).astype(np.float32)).cast(dtype).realize()
                      for s in ((2, 3, 97), (3, 3, 5)))

    def result(n: Any) -> np.ndarray[Any, Any]:
        y = signal[..., :n].conv2d(weight, stride=2, padding=2)
        size = y.shape[2]
        z = y[..., : size - size % 2].reshape(2, 3, size // 2, 2).sum(3)[..., 1::3]
        return z[..., : z.shape[2] // 2].sum(2).float().numpy()

    for k in (50, 97, 20, 33):
        np.testing.assert_allclose(result(Variable("n", 1, 97).bind(k)), result(k), rtol=2e-2, atol=0.5)


def test_attention_over_a_symbolic_number_of_features() -> None:
    x = Tensor(A).realize()
    for k in (1, 4, 6):
        want, got = (x[:, :n].scaled_dot_product_attention(x[:, :n], x[:, :n]).numpy()
                     for n in (k, Variable("m", 1, 6).bind(k)))
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    nothing = x[:, :0]
    np.testing.assert_allclose(nothing.scaled_dot_product_attention(nothing, x).numpy(), np.tile(A.mean(0), (12, 1)),
                               rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_chunks_of_a_symbolic_size(count: int) -> None:
    x = Tensor(A).realize()
    for k in range(1, 13):
        want = [part.tolist() for part in x[:k].chunk(count)]
        assert [part.tolist() for part in x[: N.bind(k)].chunk(count)] == want


def test_a_bound_size_is_true_unless_it_is_0() -> None:
    n = Variable("n", 0, 9)
    for k in range(10):
        v = n.bind(k)
        assert [bool(v), bool(v * 2), bool(v // 2), bool(v % 3), not v % 2] == [
            bool(k), bool(k * 2), bool(k // 2), bool(k % 3), not k % 2]
    captured = TinyJit(lambda v: Tensor(A)[:v] * 2 if v % 2 else Tensor(A)[:v] * 3)
    for k in (4, 4, 6, 5, 7, 2, 9):
        got = captured(Variable("n", 1, 9).bind(k)).numpy()
        np.testing.assert_allclose(got, A[:k] * (2 if k % 2 else 3), rtol=1e-6)


DRAWS: dict[str, Callable[[Any], Tensor]] = {
    "rand": lambda n: Tensor.rand(n, 3),
    "rand of float64": lambda n: Tensor.rand(n, 3, dtype=dtypes.float64),
    "randn": lambda n: Tensor.randn(2, n),
    "randn of float64": lambda n: Tensor.randn(n, dtype=dtypes.float64),
    "randint": lambda n: Tensor.randint(n, n, high=100),
    "random_bits": lambda n: Tensor.random_bits(n, 5),
    "uniform": lambda n: Tensor.uniform(n, low=-1),
    "normal": lambda n: Tensor.normal(n + 1, mean=3),
}


@pytest.mark.parametrize("name", DRAWS)
def test_random_numbers_are_those_of_the_fixed_size(name: str) -> None:
    for k in VALUES:
        Tensor.manual_seed(k)
        want = DRAWS[name](k).numpy()
        Tensor.manual_seed(k)
        np.testing.assert_array_equal(DRAWS[name](N.bind(k)).numpy(), want)


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "bilinear", "bicubic"])
@pytest.mark.parametrize("given", ["half", "twice", "3/2", "inexact", "n + 3", "fixed"])
def test_resampling_of_a_symbolic_size(mode: str, given: str) -> None:
    images = Tensor(A.reshape(1, 1, 12, 6)).realize()
    options: Callable[[Any], dict[str, Any]] = {
        "half": lambda n: {"scale_factor": 0.5}, "twice": lambda n: {"size": (2 * n, 6)},
        "3/2": lambda n: {"scale_factor": 1.5},
        "inexact": lambda n: {"scale_factor": 1.3333}, "n + 3": lambda n: {"size": (n + 3, 11)},
        "fixed": lambda n: {"size": (20, 6)}}[given]
    for k, corners in ((5, True), (12, False), (2, False), (7, True)):
        ends = {"align_corners": corners} if mode.startswith("bi") else {}
        want = images[:, :, :k].interpolate(mode=mode, **options(k), **ends).numpy()
        got = images[:, :, : N.bind(k)].interpolate(mode=mode, **options(N.bind(k)), **ends).numpy()
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_indices_and_windows_with_the_same_symbolic_axis() -> None:
    a = np.random.default_rng(0).standard_normal((12, 4)).astype(np.float32)
    places = np.argsort(a, 1).astype(np.int32)
    x, index = Tensor(a).realize(), Tensor(places).realize()
    for k in (3, 12, 7):
        n = N.bind(k)
        np.testing.assert_array_equal(x[:n].gather(1, index[:n]).numpy(), np.sort(a[:k], 1))
        np.testing.assert_array_equal(x.gather(1, index[:n]).numpy(), np.sort(a[:k], 1))
        want = np.zeros((k, 4), np.float32)
        np.put_along_axis(want, places[:k], a[:k], 1)
        np.testing.assert_array_equal((x[:n] * 0).scatter(1, index[:n], x[:n]).numpy(), want)
        kernel = Tensor.ones(1, 1, 1, 2)
        got = x[:n].reshape(1, 1, n, 4).conv2d(kernel).numpy()
        np.testing.assert_allclose(got[0, 0], a[:k, 1:] + a[:k, :-1], rtol=1e-6)


@pytest.mark.parametrize("options", [{}, {"stride": 2, "padding": 1, "output_padding": 1}, {"groups": 2, "stride": 2},
                                     {"stride": 3, "dilation": 2, "padding": 2}])
def test_transposed_convolutions_along_a_symbolic_axis_with_gradients(options: dict[str, int]) -> None:
    images = Tensor(RNG.standard_normal((2, 4, 12, 6)).astype(np.float32)).realize()
    weight = Tensor(RNG.standard_normal((4, 6 // options.get("groups", 1), 3, 2)).astype(np.float32)).realize()
    for k in VALUES:
        found = []
        for n in (k, N.bind(k)):
            y = images[:, :, :n].conv_transpose2d(weight, **options)
            found.append((y.numpy(), y.square().sum().gradient(weight)[0].numpy()))
        for got, want in zip(*found, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-3)


def test_convolutions_and_pooling_along_a_symbolic_axis_with_gradients() -> None:
    n = Variable("n", 3, 10)
    a = np.random.default_rng(0).standard_normal((10, 4)).astype(np.float32)
    weight = np.random.default_rng(1).standard_normal((2, 4, 3)).astype(np.float32)

    def results(x: Tensor, length: Any, whole: Tensor) -> list[np.ndarray[Any, Any]]:
        w = Tensor(weight, requires_grad=True)
        y = x.T.reshape(1, 4, length).conv2d(w, padding=1)
        z = y.max_pool2d((3,), stride=1, padding=1) + y.avg_pool2d((3,), stride=1, padding=1)
        whole.grad = None
        (z.square().sum() + x.T.reshape(1, 4, length).conv2d(w, stride=2).sum()).backward()
        assert w.grad is not None and whole.grad is not None
        return [z.numpy(), w.grad.numpy(), whole.grad.numpy()]

    every, programs = Tensor(a, requires_grad=True).realize(), []
    for k in (3, 5, 10, 4):
        fixed = Tensor(a[:k], requires_grad=True)
        want = results(fixed, k, fixed)
        before = GlobalCounters.schedule_count
        got = results(every[: n.bind(k)], n.bind(k), every)
        programs.append(GlobalCounters.schedule_count - before)
        want[2] = np.pad(want[2], ((0, 10 - k), (0, 0)))
        for g, e in zip(got, want, strict=True):
            np.testing.assert_allclose(g, e, rtol=1e-4, atol=1e-4)
    assert programs[1:] == [0, 0, 0]


def test_cache_that_grows() -> None:
    """A cache written through ``cache[...] =`` and ``shrink().assign()``, and read up to the position."""
    start = Variable("start", 0, 7)
    cache, want = Tensor.zeros(2, 8, 3).contiguous().realize(), np.zeros((2, 8, 3), np.float32)
    counts = set()
    for k in range(8):
        s, new = start.bind(k), np.full((2, 1, 3), k + 1, np.float32)
        cache[:, s : s + 1] = Tensor(new)
        want[:, k : k + 1] = new
        np.testing.assert_array_equal(cache[:, : s + 1].numpy(), want[:, : k + 1])
        np.testing.assert_array_equal(cache.numpy(), want)
        cache.shrink((None, (s, s + 1), None)).assign(Tensor(-new)).realize()
        want[:, k : k + 1] = -new
        np.testing.assert_array_equal(cache.numpy(), want)
        counts.add(GlobalCounters.schedule_count)
    assert len(counts) <= 2  # the first round compiles


def test_a_slice_is_written_through() -> None:
    x = Tensor(np.arange(12, dtype=np.float32).reshape(3, 4)).realize()
    twice, column = x * 2, x[:, 1]
    x[1:, ::2].assign(Tensor([[100.0, 101.0], [102.0, 103.0]]))
    want = np.array([[0, 1, 2, 3], [100, 5, 101, 7], [102, 9, 103, 11]], np.float32)
    np.testing.assert_array_equal(x.numpy(), want)
    np.testing.assert_array_equal(twice.numpy(), 2 * np.arange(12).reshape(3, 4))  # an earlier use
    x.T[1, :2].assign(Tensor([-1.0, -2.0]))
    x[2, 3].assign(Tensor(7.0))
    want[:2, 1], want[2, 3] = [-1, -2], 7
    np.testing.assert_array_equal(x.numpy(), want)
    np.testing.assert_array_equal(column.numpy(), want[:, 1])  # a view of the same memory
    with pytest.raises(ShapeError, match="several places"):
        x[:1].expand(3, 4).assign(Tensor.zeros(3, 4))


def test_jit_replays_for_every_value() -> None:
    start = Variable("start", 0, 7)
    cache, want = Tensor.zeros(2, 8, 3).contiguous().realize(), np.zeros((2, 8, 3), np.float32)

    @TinyJit
    def step(x: Tensor, at: UOp) -> tuple[Tensor, Tensor]:
        cache[:, at : at + 1] = x
        return cache[:, : at + 1].sum(1), cache[:, : at + 1] * 2

    for k in range(8):
        new = np.full((2, 1, 3), 10 + k, np.float32)
        want[:, k : k + 1] = new
        total, doubled = step(Tensor(new).realize(), start.bind(k))
        np.testing.assert_allclose(total.numpy(), want[:, : k + 1].sum(1))
        np.testing.assert_array_equal(doubled.numpy(), want[:, : k + 1] * 2)
        np.testing.assert_array_equal(cache.numpy(), want)
    assert step.replays == 6 and len(step.captures) == 1


def test_jit_takes_symbolic_tensors_and_sizes() -> None:
    x = Tensor(A).realize()

    @TinyJit
    def double(part: Tensor) -> Tensor:
        return part * 2

    @TinyJit
    def head(n: UOp) -> Tensor:
        return x[:n].sum(0)

    for k in (3, 4, 5, 12, 1):
        np.testing.assert_array_equal(double(x[: N.bind(k)]).numpy(), A[:k] * 2)
        np.testing.assert_allclose(head(N.bind(k)).numpy(), A[:k].sum(0), rtol=1e-5, atol=1e-5)
    assert double.replays == head.replays == 3


def test_jit_keeps_two_values_of_one_variable_apart() -> None:
    x = Tensor(A).realize()

    @TinyJit
    def both(n: UOp, m: UOp) -> Tensor:
        return x[:n].sum() + x[:m].sum()

    @TinyJit
    def own(n: UOp) -> Tensor:
        return x[:n].sum() + x[: N.bind(2)].sum()

    for k in (3, 5, 4, 6, 2, 7):
        np.testing.assert_allclose(both(N.bind(k), N.bind(k + 1)).item(), A[:k].sum() + A[: k + 1].sum(), rtol=1e-4)
        np.testing.assert_allclose(own(N.bind(k)).item(), A[:k].sum() + A[:2].sum(), rtol=1e-4)
    assert both.replays


def test_values_are_integers_of_any_kind() -> None:
    assert N.bind(np.int64(3)) is N.bind(3) and N.bind(np.uint8(12)).val == 12  # type: ignore[arg-type]
    for wrong in (2.5, "3", None, np.float64(3)):
        with pytest.raises(ArgumentError, match="variable 'n' runs from 1 to 12, not to"):
            N.bind(wrong)  # type: ignore[arg-type]


def test_one_name_with_other_bounds_is_another_variable() -> None:
    x, few = tensors()["a"], Variable("n", 1, 2)
    np.testing.assert_array_equal((x[: N.bind(2)] + x[: few.bind(2)]).numpy(), 2 * A[:2])
    with pytest.raises(ShapeError, match="has sizes n = 3 and n = 2"):
        x[: N.bind(3)] + x[: few.bind(2)]


def test_equal_sizes_written_differently_are_one_size() -> None:
    t = tensors()
    for k in VALUES:
        n, x, a = N.bind(k), t["a"][: N.bind(k)], A[:k]
        assert x.repeat(2, 1).repeat(2, 1).shape[0] is x.repeat(4, 1).shape[0]
        rows = x.repeat(2, 1).repeat(2, 1).unsqueeze(1).expand(-1, 2, -1)[:, ::2]
        np.testing.assert_array_equal(rows.numpy(), np.tile(a, (4, 1))[:, None])
        np.testing.assert_array_equal(x[: (n + 1) // 2].cat(x).numpy(), np.concatenate([a[: (k + 1) // 2], a]))
        halves = x[: n // 2].cat(x[n // 2 :]) + x[: (n + 1) // 2].cat(x[(n + 1) // 2 :])
        np.testing.assert_array_equal((x + halves).numpy(), 3 * a)
        assert (x + halves).shape[0] is n


FITTING: dict[str, Case] = {
    "slice": (lambda t, n: t["a"][: n + 1], lambda k: A[: k + 1]),
    "part of a part": (lambda t, n: t["a"][:, :n][:, :2], lambda k: A[:, :2]),
    "from the end": (lambda t, n: t["a"][:, :n][:, -3:-1], lambda k: A[:, k - 3 : k - 1]),
    "begin": (lambda t, n: t["a"][n:7], lambda k: A[k:7]),
    "last third": (lambda t, n: t["a"][:n][-(n // 3):], lambda k: A[:k][-(k // 3):]),
    "up to the last third": (lambda t, n: t["a"][:n][: -(n // 3)], lambda k: A[:k][: -(k // 3)]),
    "from a difference": (lambda t, n: t["a"][:n][n - 4 :], lambda k: A[:k][k - 4 :]),
    "row": (lambda t, n: t["a"][n], lambda k: A[k]),
    "number": (lambda t, n: t["a"][:n][2], lambda k: A[2]),
    "last row": (lambda t, n: t["a"][:n][-3], lambda k: A[k - 3]),
    "reshape": (lambda t, n: t["a"][:n].reshape(3, -1), lambda k: A[:k].reshape(3, -1)),
    "equal sizes": (lambda t, n: t["a"][:n] + t["a"][: Variable("m", 1, 12).bind(n.val)], lambda k: 2 * A[:k]),
    "padding": (lambda t, n: t["a"].pad(((0, n - 3), None)), lambda k: np.pad(A, ((0, k - 3), (0, 0)))),
    "negative size": (lambda t, n: Tensor.ones(n - 2), lambda k: np.ones(k - 2)),
    "linspace": (lambda t, n: Tensor.linspace(1, 4, n + 1), lambda k: np.linspace(1, 4, k + 1)),
    "roll": (lambda t, n: t["a"][:n].roll((2, -1), (0, 1)), lambda k: np.roll(A[:k], (2, -1), (0, 1))),
    "roll by more": (lambda t, n: t["a"][:n].roll(-5, 0), lambda k: np.roll(A[:k], -5, 0)),
    "parts": (lambda t, n: t["a"][:n].split(2)[1] * 2 + t["a"][:n].chunk(2)[0][0], lambda k: A[2:4][:k - 2] * 2 + A[0]),
    "convolution": (lambda t, n: t["a"].T.reshape(1, 6, 12)[:, :, :n].conv2d(Tensor.ones(1, 6, 3)).reshape(-1),
                    lambda k: np.convolve(A[:k].sum(1), np.ones(3, np.float32), "valid")),
}


@pytest.mark.parametrize("name", FITTING)
def test_what_fits_by_its_value(name: str) -> None:
    ours, numpys = FITTING[name]
    t = tensors()
    captured = TinyJit(lambda n: ours(t, n) + 0)
    for k in (3, 6, 3, 6, 6 if name == "reshape" else 5):
        np.testing.assert_allclose(ours(t, N.bind(k)).numpy(), numpys(k), rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(captured(N.bind(k)).numpy(), numpys(k), rtol=1e-5, atol=1e-5)
    assert captured.replays


def test_a_key_value_cache_of_as_many_rows_as_positions() -> None:
    """``start`` may be declared up to one past the last row, as in published GPT-2 code; only that value is refused."""
    start = Variable("start", 0, 8)
    cache, want = Tensor.zeros(8, 2).contiguous().realize(), np.zeros((8, 2), np.float32)

    @TinyJit
    def step(row: Tensor, at: UOp) -> Tensor:
        cache[at : at + 1] = row
        return cache[: at + 1].sum(0)

    for k in range(8):
        want[k] = k, 1
        np.testing.assert_array_equal(step(Tensor([[k, 1.0]]).realize(), start.bind(k)).numpy(), want[: k + 1].sum(0))
    with pytest.raises(ShapeError, match=r"leaves axis 0 with size 8.*test_symbolic.py"):
        step(Tensor([[9.0, 9.0]]).realize(), start.bind(8))
    np.testing.assert_array_equal(cache.numpy(), want)
    assert step.replays == 6


def test_jit_goes_by_the_values_that_a_function_asks_for() -> None:
    x = Tensor(A).realize()

    @TinyJit
    def by_length(part: Tensor, n: UOp) -> Tensor:
        return part * len(part) if n < 5 else part + n.val

    for k in (2, 2, 2, 3, 6, 7, 2, 6):
        want = A[:k] * k if k < 5 else A[:k] + k
        np.testing.assert_allclose(by_length(x[: N.bind(k)], N.bind(k)).numpy(), want, rtol=1e-6)
    assert by_length.replays


STEPS = {
    "every second": lambda x: x[:, ::2], "every third": lambda x: x[:, ::3], "from one": lambda x: x[:, 1::2],
    "backwards": lambda x: x[:, ::-1], "backwards by two": lambda x: x[:, ::-2], "to the last": lambda x: x[:, :-1:2],
    "two axes": lambda x: x[::2, ::7], "of a slice": lambda x: x[:, ::-3][:, ::2], "behind": lambda x: x[:, -2::-2]}


@pytest.mark.parametrize("name", STEPS)
def test_steps_along_a_symbolic_axis(name: str) -> None:
    data = np.arange(36, dtype=np.float32).reshape(3, 12)
    for v in (2, 5, 8, 12):
        x = Tensor(data, requires_grad=True)
        found, want = STEPS[name](x[:, : Variable("v", 2, 12).bind(v)]), STEPS[name](data[:, :v])
        np.testing.assert_array_equal(found.numpy(), want)
        (found * 3).sum().backward()
        slope = np.zeros_like(data)
        STEPS[name](slope[:, :v])[...] = 3
        assert x.grad is not None
        np.testing.assert_array_equal(x.grad.numpy(), slope)


def test_steps_with_symbolic_bounds() -> None:
    data, v = np.arange(36, dtype=np.float32).reshape(3, 12), Variable("v", 0, 11)
    for k in (0, 4, 11):
        x, n = Tensor(data), v.bind(k)
        for found, want in ((x[:, :n:2], data[:, :k:2]), (x[:, n::3], data[:, k::3]), (x[:, n::-3], data[:, k::-3])):
            np.testing.assert_array_equal(found.numpy(), want)
        y, changed = Tensor(data).realize(), data.copy()
        y[:, n::2], changed[:, k::2] = 7.0, 7.0
        np.testing.assert_array_equal(y.numpy(), changed)
    with pytest.raises(ShapeError, match="leaves axis 1"):
        Tensor(data)[:, : v.bind(3)][:, 5::2]


def test_jit_replays_steps_for_every_value() -> None:
    step = TinyJit(lambda x, n: (x[:, :n][:, ::2]).sum(1).contiguous().realize())
    data, v = np.arange(36, dtype=np.float32).reshape(3, 12), Variable("v", 1, 12)
    for k in (3, 4, 5, 6, 12):
        np.testing.assert_array_equal(step(Tensor(data).realize(), v.bind(k)).numpy(), data[:, :k:2].sum(1))
    assert step.replays == 3 and len(step.captures) == 1


def test_a_variable_as_a_value() -> None:
    assert Tensor(N.bind(2)).dtype is dtypes.int32 and (Tensor(N.bind(2)) + 3).item() == 5
    assert (Tensor.ones(9)[: N.bind(2)] * Tensor(N.bind(2))).tolist() == [2.0, 2.0]
    far = Variable("far", 0, 1 << 40).bind(1 << 35)
    assert Tensor(far).dtype is dtypes.int64 and Tensor(far).item() == 1 << 35
    assert (Tensor([0], dtype="int64") + far).item() == 1 << 35
    assert Tensor(N.bind(2), dtype="float32").item() == 2.0
    assert Tensor.full((2,), N.bind(3), dtype="float16").tolist() == [3.0, 3.0]


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 0.5, -0.5, -1, 1.5])
def test_powers_of_a_variable(exponent: float) -> None:
    n = N.bind(4)
    assert (Tensor.ones(2) * n ** exponent).tolist() == [4 ** exponent] * 2
    if type(exponent) is int and 0 <= exponent < 3:
        assert Tensor.ones(n ** exponent).numpy().shape == (4 ** exponent,)


@pytest.mark.parametrize("bound", [0, 3])
def test_softmax_of_a_length_that_may_be_0(bound: int) -> None:
    x = RNG.standard_normal((4, 9)).astype(np.float32)
    part = Tensor(x)[:, : Variable("length", 0, 9).bind(bound)]
    np.testing.assert_allclose(part.softmax().numpy(), softmax(x[:, :bound]) if bound else x[:, :0], rtol=1e-5)
    assert part.log_softmax().numpy().shape == (4, bound)


def test_dtypes_of_variables() -> None:
    assert Tensor(Variable("k", 1, 9, dtype=dtypes.long).bind(2)).item() == 2
    with pytest.raises(RangeError, match="not 300"):
        Variable("k", 1, 300, dtype=dtypes.uint8)
    with pytest.raises(DTypeError, match="a size is an integer"):
        Variable("k", 1, 9, dtype="float32")


def test_variables_without_a_value() -> None:
    t = Tensor.empty(N, 2)
    assert t.shape[1] == 2 and t.max_shape == (12, 2) and Tensor.empty(N.bind(3)).numpy().shape == (3,)
    for f in (t.numpy, (t + 1).realize, t.sum().item, lambda: len(t), Tensor(N).item, lambda: Tensor.zeros(N),
              lambda: (Tensor([1.0]) * N).tolist(), lambda: Tensor.full((2,), N)):
        with pytest.raises(ArgumentError, match="variable 'n' has no value"):
            f()


@pytest.mark.parametrize("step", [0, Variable("s", -1, 1).bind(1)])
def test_a_step_that_may_be_0(step: Any) -> None:
    with pytest.raises(ArgumentError, match="may be 0"):
        Tensor.arange(N.bind(3), 9, step)


@pytest.mark.parametrize("levels", [100, 700])
def test_deep_expressions_of_sizes(levels: int) -> None:
    size, plain, straight = N.bind(3), 3, N.bind(3)
    for _ in range(levels):
        size, plain, straight = (size * 3 + 1) % 7, (plain * 3 + 1) % 7, straight + 1
    assert Tensor(size).item() == plain and Tensor.ones(2).mul(size).tolist() == [plain] * 2
    assert Tensor(straight).item() == 3 + levels and Tensor.ones(straight).sum().item() == 3 + levels

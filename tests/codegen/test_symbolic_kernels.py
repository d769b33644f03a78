"""Kernels of symbolic sizes against NumPy: full tiles, tails, threads, and memory beyond the size."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tinsmith import Context, Opt, OptOps, Tensor, Variable, with_opts
from tinsmith.core.errors import TinsmithError

MOST = 150
LENGTHS = (1, 2, 3, 7, 8, 9, 17, 31, 32, 33, 64, 67, 100, 127, 149, 150)
Compute = Callable[[Any, Any, Any], Any]


def numbers(*shape: int, seed: int = 0) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def softmax(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    e = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


def normalized(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.asarray((x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5))


# name: (on tensors, on arrays) of a (5, n), its transpose b (n, 24), and n
CASES: dict[str, tuple[Compute, Compute]] = {
    "elementwise": (lambda a, b, n: a * 2 + a.abs(), lambda a, b, n: a * 2 + np.abs(a)),
    "exp": (lambda a, b, n: a.exp(), lambda a, b, n: np.exp(a)),
    "transposed": (lambda a, b, n: a.T.contiguous(), lambda a, b, n: a.T),
    "flipped": (lambda a, b, n: a.flip(1) + a, lambda a, b, n: a[:, ::-1] + a),
    "padded": (lambda a, b, n: a.pad((2, 3)) + 1, lambda a, b, n: np.pad(a, ((0, 0), (2, 3))) + 1),
    "joined": (lambda a, b, n: a.cat(a * 2, dim=1), lambda a, b, n: np.concatenate([a, a * 2], 1)),
    "sum": (lambda a, b, n: a.sum(1), lambda a, b, n: a.sum(1)),
    "sum of all": (lambda a, b, n: b.sum(), lambda a, b, n: b.sum()),
    "sum of columns": (lambda a, b, n: b.sum(0), lambda a, b, n: b.sum(0)),
    "maximum": (lambda a, b, n: a.max(1), lambda a, b, n: a.max(1)),
    "minimum": (lambda a, b, n: a.min(1), lambda a, b, n: a.min(1)),
    "product of all": (lambda a, b, n: (a * 0.1 + 1).prod(1), lambda a, b, n: (a * 0.1 + 1).prod(1)),
    "mean": (lambda a, b, n: a.mean(1), lambda a, b, n: a.mean(1)),
    "argmax": (lambda a, b, n: a.argmax(1), lambda a, b, n: a.argmax(1)),
    "argmin of columns": (lambda a, b, n: b.argmin(0), lambda a, b, n: b.argmin(0)),
    "softmax": (lambda a, b, n: a.softmax(1), lambda a, b, n: softmax(a)),
    "softmax of rows": (lambda a, b, n: b.softmax(1), lambda a, b, n: softmax(b)),
    "norm": (lambda a, b, n: a.layernorm(), lambda a, b, n: normalized(a)),
    "cumsum": (lambda a, b, n: a.cumsum(1), lambda a, b, n: a.cumsum(1)),
    "cumsum of columns": (lambda a, b, n: b.cumsum(0), lambda a, b, n: b.cumsum(0)),
    "product over n": (lambda a, b, n: a @ b, lambda a, b, n: a @ b),
    "product with n rows": (lambda a, b, n: b @ b[:1].T.expand(24, 24), lambda a, b, n: b @ np.repeat(b[:1].T, 24, 1)),
    "product with n columns": (lambda a, b, n: b[:1] @ b.T, lambda a, b, n: b[:1] @ b.T),
    "product with n rows and columns": (lambda a, b, n: b @ b.T, lambda a, b, n: b @ b.T),
    "attention": (lambda a, b, n: b.scaled_dot_product_attention(b, b),
                  lambda a, b, n: softmax(b @ b.T / np.sqrt(np.float32(24))) @ b),
    "twice the size": (lambda a, b, n: (b @ b.T).reshape(n * n).sum(), lambda a, b, n: (b @ b.T).sum()),
    "quotients of the size": (lambda a, b, n: a[:, : (n + 2) // 3].sum(1), lambda a, b, n: a[:, : (n + 2) // 3].sum(1)),
}


def memory(beyond: float) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the arrays of the greatest length; ``beyond`` is written behind each length in turn."""
    return numbers(5, MOST + 10), numbers(MOST + 10, 24, seed=1)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("name", CASES)
def test_values_are_numpys_at_all_lengths(name: str, threads: int) -> None:
    """Memory beyond the size holds NaN and infinities, which no result may depend on."""
    ours, numpys = CASES[name]
    rows, columns = memory(np.nan)
    variable = Variable("n", 1, MOST)
    with Context(THREADS=threads, DYNAMIC=0):
        for length in LENGTHS:
            a, b = rows.copy(), columns.copy()
            a[:, length:], b[length:] = np.nan, np.inf
            x, y, n = Tensor(a).realize(), Tensor(b).realize(), variable.bind(length)
            got = ours(x[:, :n], y[:n], n).numpy()
            want = numpys(rows[:, :length], columns[:length], length)
            np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-4, err_msg=f"{name}, n = {length}")


@pytest.mark.parametrize("name", ["elementwise", "sum", "maximum", "softmax", "cumsum", "product over n", "padded",
                                  "product with n rows", "argmax"])
def test_the_interpreter_finds_no_access_out_of_bounds(name: str) -> None:
    ours, numpys = CASES[name]
    rows, columns = memory(np.nan)
    variable = Variable("n", 1, MOST)
    for length in (1, 33, 67):
        n = variable.bind(length)
        x, y = (Tensor(v, device="PYTHON").realize() for v in (rows[:, :MOST].copy(), columns[:MOST].copy()))
        want = numpys(rows[:, :length], columns[:length], length)
        np.testing.assert_allclose(ours(x[:, :n], y[:n], n).numpy(), want, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16", "int8", "uint8", "int32", "int64", "bool"])
def test_all_dtypes_have_tails(dtype: str) -> None:
    values = np.random.default_rng(3).integers(0, 2 if dtype == "bool" else 5, (3, MOST))
    x, n = Tensor(values.astype(np.int32)).cast(dtype).realize(), Variable("n", 1, MOST)
    for length in LENGTHS:
        part = x[:, : n.bind(length)]
        np.testing.assert_array_equal((part + part).cast("int32").numpy(),
                                      values[:, :length] * (1 if dtype == "bool" else 2) if dtype != "bool"
                                      else values[:, :length])
        np.testing.assert_array_equal(part.max(1).cast("int32").numpy(), values[:, :length].max(1))
        np.testing.assert_array_equal(part.cast("int32").sum(1).numpy(), values[:, :length].sum(1))


def test_a_size_of_zero() -> None:
    data, n = numbers(4, MOST), Variable("n", 0, MOST)
    x = Tensor(data).realize()
    for length in (0, 1, 40, 0, MOST):
        part = x[:, : n.bind(length)]
        np.testing.assert_allclose(part.sum(1).numpy(), data[:, :length].sum(1), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose((part @ part.T).numpy(), data[:, :length] @ data[:, :length].T, rtol=1e-4, atol=1e-4)
        assert (part * 2).numpy().shape == (4, length)


def test_writes_end_at_the_size() -> None:
    n = Variable("n", 1, MOST)
    for length in LENGTHS:
        x = Tensor(np.full((3, MOST), 7, np.float32)).realize()
        x[:, : n.bind(length)] = Tensor(numbers(3, MOST)).realize()[:, : n.bind(length)] * 2
        want = np.full((3, MOST), 7, np.float32)
        want[:, :length] = numbers(3, MOST)[:, :length] * 2
        np.testing.assert_array_equal(x.numpy(), want)


@pytest.mark.parametrize("opts", [
    [Opt(OptOps.VECTOR, 1, 8)], [Opt(OptOps.UNROLL, 1, 3)], [Opt(OptOps.UPCAST, 0, 4)], [Opt(OptOps.TILE, 0, 5)],
    [Opt(OptOps.VECTOR, 1, 8), Opt(OptOps.UNROLL, 1, 4)], [Opt(OptOps.VECTOR, 0, 4), Opt(OptOps.UPCAST, 0, 2)],
    [Opt(OptOps.TILE, 0, 6), Opt(OptOps.UPCAST, 1, 4)], [Opt(OptOps.UNROLL, 1, 4), Opt(OptOps.UPCAST, 0, 3)],
    [Opt(OptOps.THREAD, 0), Opt(OptOps.VECTOR, 1, 4)], [Opt(OptOps.UPCAST, 0, 3), Opt(OptOps.THREAD, 0)],
], ids=str)
def test_opts_split_symbolic_ranges(opts: list[Opt]) -> None:
    data = numbers(90, 90)
    x, n, m = Tensor(data).realize(), Variable("n", 1, 90), Variable("m", 1, 90)
    for rows, columns in ((1, 1), (2, 90), (7, 33), (24, 24), (90, 64), (89, 31)):
        part = x[: n.bind(rows), : m.bind(columns)]
        np.testing.assert_allclose(with_opts(part.sum(1), opts).run(), data[:rows, :columns].sum(1), rtol=1e-4,
                                   atol=1e-5)


@pytest.mark.parametrize("opts", [
    [Opt(OptOps.LOCAL, 0, 8)], [Opt(OptOps.GROUP, 1, 4)], [Opt(OptOps.LOCAL, 0, 4), Opt(OptOps.UNROLL, 2, 3)],
], ids=str)
def test_threads_of_a_block_split_symbolic_ranges(opts: list[Opt]) -> None:
    data = numbers(40, 40)
    x, n, m = Tensor(data, device="PYTHON").realize(), Variable("n", 1, 40), Variable("m", 1, 40)
    for rows, columns in ((1, 1), (7, 33), (40, 40)):
        part = x[: n.bind(rows), : m.bind(columns)]
        np.testing.assert_allclose(with_opts(part.sum(1), opts).run(), data[:rows, :columns].sum(1), rtol=1e-4,
                                   atol=1e-5)


def test_the_whole_of_a_symbolic_range_is_no_amount() -> None:
    part = Tensor(numbers(9, 9)).realize()[: Variable("n", 1, 9).bind(4)]
    with pytest.raises(TinsmithError, match="a range of symbolic size needs an amount"):
        with_opts(part + 1, [Opt(OptOps.UPCAST, 0)])

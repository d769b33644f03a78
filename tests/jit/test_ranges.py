"""Captures over ranges of sizes: results beside NumPy's and those of the function itself, gradients, optimizer state,
and the conditions that restrict or forbid a range."""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.properties.runner import FEW
from tinsmith import Context, Tensor, TinyJit, Variable, nn
from tinsmith.jit.guards.sizes import RangeHistory
from tinsmith.tensor.sizes.traced import TracedSize

RNG = np.random.default_rng(0)
WEIGHT = Tensor(RNG.standard_normal((6, 6)).astype(np.float32)).realize()
KERNEL = Tensor(RNG.standard_normal((4, 6, 3)).astype(np.float32)).realize()
BACK = Tensor(RNG.standard_normal((6, 4, 3)).astype(np.float32)).realize()
TABLE = Tensor(RNG.standard_normal((64, 6)).astype(np.float32)).realize()
SIZES = (5, 5, 9, 7, 12, 3, 33, 64, 2, 1, 0, 17)


@pytest.fixture(autouse=True)
def dynamic() -> Iterator[None]:
    with Context(DYNAMIC=1):
        yield


def data(*shape: int) -> Tensor:
    return Tensor(RNG.standard_normal(shape).astype(np.float32))


def heads(x: Tensor) -> Tensor:
    b, t, c = x.shape
    q = (x @ WEIGHT).reshape(b, t, 2, c // 2).transpose(1, 2)
    return q.scaled_dot_product_attention(q, q, is_causal=True).transpose(1, 2).reshape(b, t, c)


CASES: dict[str, Callable[[Tensor], Any]] = {
    "elementwise": lambda x: x * 2 + 1,
    "product": lambda x: x @ WEIGHT,
    "softmax along the size": lambda x: x.softmax(1),
    "mean": lambda x: x.mean(1),
    "variance": lambda x: x.var(1) if x.shape[1] > 1 else x.sum(1),
    "attention": heads,
    "positions": lambda x: x + TABLE[: x.shape[1]],
    "arange": lambda x: x * Tensor.arange(x.shape[1]).reshape(1, -1, 1),
    "last row": lambda x: x[:, -1] if x.shape[1] else x.sum(1),
    "all but the first row": lambda x: x[:, 1:].sum(1),
    "half": lambda x: x[:, : x.shape[1] // 2],
    "flattened": lambda x: x.reshape(x.shape[0] * x.shape[1], -1 if x.numel() else 6),
    "mask": lambda x: (x @ x.transpose(1, 2)).tril().sum(2),
    "joined": lambda x: x.cat(x[:, :2], dim=1),
    "divided": lambda x: x / max(x.shape[1], 1),
    "several results": lambda x: (x.sum(), {"x": x * 2, "n": [x.max() if x.shape[1] else x.sum()]}),
    "cumulative": lambda x: x.cumsum(1),
    "argmax": lambda x: x.argmax(1) if x.shape[1] else x.sum(1),
    "embedding": lambda x: TABLE[(x[:, :, 0] > 0).cast("int32")],
    "branch": lambda x: x * 2 if x.shape[1] > 8 else x - 1,
    "equality": lambda x: x * 2 if x.shape[1] == 12 else x - 1,
    "membership": lambda x: x * 2 if x.shape[1] in (9, 33) else x - 1,
    "table": lambda x: x * {9: 2, 33: 3}.get(x.shape[1], 4),
    "loop": lambda x: sum((x[:, n] for n in range(x.shape[1])), start=Tensor.zeros(2, 6)),
    "parity": lambda x: x * 2 if x.shape[1] % 2 else x - 1,
    "power": lambda x: x * (x.shape[1] + 1) ** -0.5,
    "text": lambda x: x * len(f"{x.shape[1]}"),
    "kind": lambda x: x * 2 if isinstance(x.shape[1], int) else x,
    "sorted": lambda x: x.sort(1)[0],
    "rolled": lambda x: x.roll(2, 1),
    "both halves": lambda x: (x[:, : x.shape[1] // 2].sum(1), x[:, x.shape[1] // 2 :] * 2),
    "pools that overhang": lambda x: [x.transpose(1, 2).reshape(2, 6, -1, 1).avg_pool2d((k, 1), (s, 1), ceil_mode=True)
                                      for k, s in ((3, 2), (2, 3), (2, 2), (3, 1)) if x.shape[1] > 3],
    "chunks": lambda x: [part.sum(1) for n in (2, 3) for part in x.chunk(n, 1)],
    "strided convolution": lambda x: x.transpose(1, 2).conv2d(KERNEL, stride=2, padding=1).gelu() if x.numel() else x,
    "transposed convolution": lambda x: x.transpose(1, 2).conv_transpose2d(BACK, stride=2) if x.numel() else x,
    "weights along it": lambda x: x * Tensor.linspace(0, 1, x.shape[1]).reshape(1, -1, 1),
    "windows": lambda x: x.unfold(1, 4, 2).sum(-1) if x.shape[1] > 3 else x,
    "twice as large": lambda x: x.reshape(2, 1, x.shape[1], 6).interpolate(scale_factor=2, mode="bilinear"),
    "as large as another": lambda x: x.reshape(2, 1, -1, 6).interpolate((x.shape[1] + 3, 9)) if x.numel() else x,
    "padded to a multiple": lambda x: x.pad(((0, 0), (0, -x.shape[1] % 4), (0, 0))).reshape(2, -1, 4, 6).sum(2),
    "next-token rows": lambda x: (x[:, :-1].flatten(0, 1) * x[:, 1:].flatten(0, 1)).sum(1),
    "length": lambda x: x.transpose(0, 1).sum(1) * len(x.transpose(0, 1)),
}


def values(result: Any) -> list[np.ndarray[Any, Any]]:
    if isinstance(result, Tensor):
        assert all(type(s) is int for s in result.shape)
        return [result.numpy()]
    items = result.values() if isinstance(result, dict) else result
    return [v for item in items for v in values(item)]


def agree(got: Any, want: Any, message: str) -> None:
    for a, b in zip(values(got), values(want), strict=True):
        assert a.shape == b.shape, message
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5, err_msg=message)


@pytest.mark.parametrize("name", CASES)
def test_results_are_those_of_the_function(name: str) -> None:
    function = CASES[name]
    captured = TinyJit(function)
    for n in SIZES:
        x = data(2, n, 6).realize()
        agree(captured(x), function(x), f"size {n}")


@settings(max_examples=FEW, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 20)), min_size=4, max_size=8))
def test_two_sizes_change_independently_or_together(sizes: list[tuple[int, int]]) -> None:
    captured = TinyJit(lambda x, y: (x @ y).sum(1) + y.sum())
    for n, m in [(4, 4), (4, 4), (6, 6), *sizes, (7, 7), (8, 9)]:
        x, y = data(3, n), data(n, m)
        np.testing.assert_allclose(captured(x, y).numpy(), (x.numpy() @ y.numpy()).sum(1) + y.numpy().sum(), rtol=1e-3,
                                   atol=1e-3)


def test_one_capture_serves_all_sizes() -> None:
    captured = TinyJit(heads)
    for n in (5, 5, 9, 7, 12, 3, 33, 64, 500):
        captured(data(2, n, 6)).realize()
    assert len(captured.captures) == 2
    assert captured.replays == 6


@pytest.mark.parametrize("sizes", [range(1, 30), (32, 1, 17, 0, 29, 1, 31, 18, 20), (7, 0, 1, 9, 0, 11, 1, 13)])
def test_sizes_of_0_and_1_do_not_forbid_a_range(sizes: Sequence[int]) -> None:
    """A length that grows from one, or a batch of one among others, made a capture for each size."""
    captured = TinyJit(lambda x: (x @ WEIGHT).tanh().sum(0))
    for n in sizes:
        x = data(n, 6).realize()
        agree(captured(x), (x @ WEIGHT).tanh().sum(0), f"size {n}")
    large = [k for k in captured.captures if k[0] == "sizes"]
    assert len(large) == 1 and len(captured.captures[large[0]].captures) == 1
    assert len(captured.captures) <= 4, "the range, 0, 1, and the size before it was known to change"


def test_forbidden_by_the_setting() -> None:
    captured = TinyJit(heads)
    with Context(DYNAMIC=0):
        for n in (5, 5, 9, 7, 12, 3):
            captured(data(2, n, 6)).realize()
    assert captured.replays == 0


def test_a_condition_on_a_size_limits_the_range() -> None:
    captured = TinyJit(CASES["branch"])
    for n in (5, 5, 7, 6, 20, 30, 40, 8, 9):
        captured(data(2, n, 6)).realize()
    assert len(captured.captures) == 2
    assert captured.replays == 5


def model() -> tuple[Any, Any]:
    Tensor.manual_seed(3)
    layers = [nn.Embedding(20, 8), nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 3)]
    optimizer = nn.optim.AdamW(nn.state.get_parameters(layers), lr=1e-2)

    def step(words: Tensor, classes: Tensor) -> Tensor:
        with Tensor.train():
            optimizer.zero_grad()
            x = layers[2](layers[1](layers[0](words)).relu())
            loss = layers[3](x.mean(1)).cross_entropy(classes).backward()
            optimizer.step()
            return loss

    return step, optimizer


def test_training_steps_update_weights_and_optimizer_state_alike() -> None:
    rng = np.random.default_rng(1)
    batches = [(rng.integers(0, 20, (4, n)), rng.integers(0, 3, 4)) for n in (6, 6, 9, 4, 11, 30, 2, 1, 9, 13)]
    kept = []
    for captured in (False, True):
        step, optimizer = model()
        run = TinyJit(step) if captured else step
        losses = [run(Tensor(x), Tensor(y)).item() for x, y in batches]
        kept.append((losses, [t.numpy() for t in nn.state.get_parameters(optimizer)]))
        if captured:
            assert run.replays >= 5
    np.testing.assert_allclose(kept[0][0], kept[1][0], rtol=1e-4)
    for a, b in zip(kept[0][1], kept[1][1], strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-5)


def convolutional() -> tuple[Callable[[Tensor], Tensor], tuple[Any, ...]]:
    """Return a training step with dropout and batch norm, and the layers that it trains."""
    layers = nn.Conv1d(6, 8, 3, stride=2, padding=1, bias=False), nn.BatchNorm1d(8), nn.Linear(8, 3)
    optimizer = nn.optim.Adam(nn.state.get_parameters(layers), lr=1e-2)

    def step(x: Tensor) -> Tensor:
        with Tensor.train():
            optimizer.zero_grad()
            y = layers[1](layers[0](x)).relu().dropout(0.25).mean(2)
            loss = layers[2](y).square().mean().backward()
            optimizer.step()
            return loss

    return step, layers


def test_dropout_and_batch_norm_draw_and_count_alike() -> None:
    """A capture over a range draws the numbers of each size, and its running variance divides by the size less 1."""
    rng = np.random.default_rng(2)
    batches = [rng.standard_normal((n % 3 + 2, 6, n)).astype(np.float32) for n in (8, 8, 12, 9, 30, 7, 8, 12, 21)]
    kept = []
    for captured in (False, True):
        Tensor.manual_seed(3)
        step, layers = convolutional()
        run = TinyJit(step) if captured else step
        losses = [run(Tensor(x)).item() for x in batches]
        kept.append((losses, [t.numpy() for t in nn.state.get_state_dict(layers).values()]))
        if captured:
            assert run.replays >= 5
    np.testing.assert_allclose(kept[0][0], kept[1][0], rtol=1e-4)
    for a, b in zip(kept[0][1], kept[1][1], strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-5)


def test_gradients_of_arguments_have_the_sizes_of_the_call() -> None:
    @TinyJit
    def loss(x: Tensor) -> Tensor:
        return (x @ WEIGHT).square().sum().backward()

    for n in (4, 4, 6, 9, 3):
        x = data(n, 6).realize()
        x.requires_grad = True
        loss(x)
        assert x.grad is not None and x.grad.shape == (n, 6)
        w = WEIGHT.numpy()
        np.testing.assert_allclose(x.grad.numpy(), 2 * x.numpy() @ w @ w.T, rtol=1e-4, atol=1e-4)


def test_state_is_kept_from_call_to_call() -> None:
    total, seen = Tensor.zeros(6).contiguous().realize(), Tensor.zeros(1).contiguous().realize()

    @TinyJit
    def add(x: Tensor) -> Tensor:
        total.assign(total + x.sum(0))
        seen.assign(seen + x.shape[0])
        return total / seen

    rows: list[np.ndarray[Any, Any]] = []
    for n in (4, 4, 6, 9, 3, 20):
        x = data(n, 6)
        rows += list(x.numpy())
        np.testing.assert_allclose(add(x).numpy(), np.mean(rows, 0), rtol=1e-4, atol=1e-4)


def test_memory_beyond_the_size_is_not_read() -> None:
    captured = TinyJit(lambda x: (x.softmax(1).sum(), x.max(1), (x @ x.transpose(1, 2)).sum((1, 2)), x.cumsum(1)))
    for n in (40, 40, 30, 3, 7, 17):
        whole = data(2, 64, 6).numpy()
        whole[:, n:] = np.nan
        x = Tensor(whole).realize()[:, :n].contiguous().realize()
        with Context(POISON=1):
            assert not any(np.isnan(v).any() for v in values(captured(x)))


def test_results_are_plain_tensors_afterwards() -> None:
    captured = TinyJit(lambda x: x * 2)
    for n in (4, 4, 6, 9):
        y = captured(data(n, 3).realize())
        z = (y + y.flip(0))[1:].reshape(-1)
        np.testing.assert_allclose(z.numpy(), (y.numpy() + y.numpy()[::-1])[1:].ravel(), rtol=1e-6)


def test_earlier_results_keep_their_values() -> None:
    captured = TinyJit(lambda x: (x + 1, x.sum(0)))
    inputs = [data(n, 3) for n in (4, 4, 6, 9, 6, 9, 4)]
    results = [captured(x) for x in inputs]
    for x, (y, s) in zip(inputs, results):
        np.testing.assert_allclose(y.numpy(), x.numpy() + 1, rtol=1e-6)
        np.testing.assert_allclose(s.numpy(), x.numpy().sum(0), rtol=1e-5, atol=1e-5)


def test_an_error_of_the_function_is_raised() -> None:
    @TinyJit
    def short(x: Tensor) -> Tensor:
        if x.shape[0] > 10:
            raise ValueError("too long")
        return x.sum(0)

    for n in (4, 4, 6, 12, 7, 11):
        if n > 10:
            with pytest.raises(ValueError, match="too long"):
                short(data(n, 2))
        else:
            short(data(n, 2)).realize()
    assert short(data(9, 2)).shape == (2,)


def test_arguments_that_share_memory() -> None:
    captured = TinyJit(lambda x, y: x * 2 + y)
    for n in (4, 4, 6, 9):
        x = data(n, 3).realize()
        np.testing.assert_allclose(captured(x, x).numpy(), 3 * x.numpy(), rtol=1e-6)
    for n in (4, 4, 6, 9):
        x, y = data(n, 3).realize(), data(n, 3).realize()
        np.testing.assert_allclose(captured(x, y).numpy(), 2 * x.numpy() + y.numpy(), rtol=1e-6)


def test_slices_of_a_larger_tensor() -> None:
    whole = data(100, 3).realize()
    captured = TinyJit(lambda x: x.sum(0))
    for begin, end in ((0, 4), (0, 4), (4, 12), (12, 24), (2, 9), (50, 100)):
        np.testing.assert_allclose(captured(whole[begin:end]).numpy(), whole.numpy()[begin:end].sum(0), rtol=1e-4,
                                   atol=1e-4)


def test_a_traced_size_compares_and_computes_as_an_integer() -> None:
    n = TracedSize(Variable("n", 2, 100).bind(7))
    assert (n * 3 - 1, 20 - n, n // 2, n % 4, 30 // n, n / 2, 2**n, -n, abs(n), divmod(n, 2)) == (
        20, 13, 3, 3, 4, 3.5, 128, -7, 7, (3, 1))
    assert n == 7 and n != 8 and n > 6 and n >= 7 and n < 8 and n <= 7 and n < 7.5 and n != "7"
    assert hash(n) == hash(7) and str(n) == "7" and f"{n:03}" == "007" and [*range(9)][n] == 7 and isinstance(n, int)


def test_a_mark_forces_a_range_at_the_first_capture() -> None:
    captured = TinyJit(lambda x, y: (x @ WEIGHT).sum(1) + y, dynamic={0: (0, 1), 1: (0,)})
    for n in (4, 9, 6, 33, 2):
        x, y = data(n + 1, n, 6), data(n + 1, 6)
        want = (x.numpy() @ WEIGHT.numpy()).sum(1) + y.numpy()
        np.testing.assert_allclose(captured(x, y).numpy(), want, rtol=1e-4, atol=1e-4)
    assert captured.replays == 3


def test_forbidden_for_one_function() -> None:
    captured = TinyJit(heads, dynamic=False)
    for n in (5, 5, 9, 7, 12):
        captured(data(2, n, 6)).realize()
    assert captured.replays == 0


def test_a_size_that_stays_gets_its_own_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    captured = TinyJit(heads)
    for n in (5, 5, 9, 7):
        captured(data(2, n, 6)).realize()
    monkeypatch.setattr(RangeHistory, "stays", lambda self, values: True)
    for n in (7, 7, 12, 7, 12, 12, 20):
        x = data(2, n, 6)
        agree(captured(x), heads(x), f"size {n}")
    assert captured.replays == 5

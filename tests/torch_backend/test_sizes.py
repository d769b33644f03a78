"""Graphs with symbolic sizes: one compilation serves all sizes, with the results of PyTorch."""
from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the backend of torch.compile needs PyTorch")

import tinsmith.torch as ours  # noqa: E402
from tests.torch_backend import models  # noqa: E402
from tests.torch_backend.test_models import fallbacks, is_close  # noqa: E402

F = torch.nn.functional
WEIGHT = torch.linspace(-1, 1, 36).view(6, 6)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    ours.report().clear()
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=UserWarning, module="torch")
        yield


def compilations() -> list[tuple[str, int, int]]:
    """Return (kind, compilations, those for ranges) of each graph."""
    return [(g.kind, g.sizes, g.ranges) for g in ours.report().graphs]


def check_sizes(function: Callable[[Any], Any], shapes: Sequence[tuple[int, ...]], axes: Sequence[int] = (1,),
                **options: Any) -> None:
    """Compare results, their strides and gradients of a compiled function with those without compilation."""
    run = ours.compile(function, **options)
    for number, shape in enumerate(shapes):
        data = torch.randn(shape)
        inputs = [data.clone().requires_grad_(True) for _ in range(2)]
        if not number:
            for axis in axes:
                torch._dynamo.mark_dynamic(inputs[0], axis)
        got, want = (_several(f(x)) for f, x in zip((run, function), inputs))
        for a, b in zip(got, want):
            if not isinstance(b, torch.Tensor):
                assert a == b
                continue
            assert a.shape == b.shape
            assert a.stride() == b.stride()
            assert is_close(a.detach(), b.detach())
        found = [torch.autograd.grad([t.square().sum() for t in results if isinstance(t, torch.Tensor)
                                      and t.requires_grad], x)[0] for results, x in zip((got, want), inputs)]
        assert is_close(*found, 1e-3)


def _several(result: Any) -> tuple[Any, ...]:
    return result if isinstance(result, tuple) else (result,)


SHAPES = [(3, 5, 6), (4, 9, 6), (5, 33, 6), (2, 8, 6)]
FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "pointwise": lambda x: x.relu() * 2,
    "norms": lambda x: ((x - x.mean(1, True)) / x.std(1, keepdim=True)).softmax(1) + x.sum((0, 1)) / x.shape[1],
    "products": lambda x: (x @ WEIGHT @ x.transpose(1, 2)).tril().sum(2),
    "views": lambda x: (x * 1)[:, 1:] + (x[:, :1] * torch.arange(x.shape[1])[1:, None]),
    "numbers": lambda x: (x * (x.shape[1] / math.sqrt(x.shape[0])), x.shape[1] * 2 + x.shape[0], x.sum(0)),
    "shapes": lambda x: (x.relu().view(x.shape[0] * x.shape[1], 6), torch.cat([x, x[:, :2]], 1).transpose(0, 2)),
    "windows": lambda x: F.conv1d(x.transpose(1, 2).contiguous(), WEIGHT[:, :, None].expand(6, 6, 3), stride=2),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_one_compilation_serves_all_sizes(name: str) -> None:
    both = name != "windows"
    check_sizes(FUNCTIONS[name], SHAPES if both else [(3, *s[1:]) for s in SHAPES], (0, 1) if both else (1,),
                strict=True)
    assert compilations() == [("forward", 1, 1), ("backward", 1, 1)]


def test_the_second_length_becomes_symbolic() -> None:
    """PyTorch compiles the first length by itself; further lengths after the second run the same programs."""
    check_sizes(lambda x: x.exp().sum(1), SHAPES, (), strict=True)
    assert compilations() == [("forward", 1, 0), ("backward", 1, 0), ("forward", 1, 1), ("backward", 1, 1)]


def test_a_transformer_with_tied_weights_trains_on_all_lengths() -> None:
    model = models.Transformer(words=20, width=16, heads=2, layers=1)
    other = copy.deepcopy(model)
    run = ours.compile(other, strict=True)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9) for m in (model, other)]
    for length in (17, 64, 33, 18, 50, 17):
        tokens = torch.randint(20, (3, length))
        torch._dynamo.mark_dynamic(tokens, 1, min=2, max=64)
        losses = []
        for f, optimizer in zip((model, run), optimizers):
            optimizer.zero_grad()
            losses.append(F.cross_entropy(f(tokens).flatten(0, 1), tokens.roll(-1, 1).flatten()))
            losses[-1].backward()
            optimizer.step()
        assert is_close(losses[1].detach(), losses[0].detach(), 1e-3)
    for a, b in zip(model.parameters(), other.parameters()):
        assert is_close(b, a, 5e-3)
    assert [(g.sizes, g.ranges, g.programs) for g in ours.report().graphs] == [(1, 1, 1), (1, 1, 1)]


def test_a_recurrent_network_runs_on_batches_of_all_sizes() -> None:
    model = models.Recurrent()
    run = ours.compile(model, dynamic=True, strict=True)
    for batch in (4, 9, 2):
        x = torch.randn(batch, 2, 5)
        gradients = []
        for f in (model, run):
            model.zero_grad()
            f(x).square().sum().backward()
            gradients.append(model.h.weight.grad.clone())
        assert is_close(*gradients, 1e-3)
    assert compilations() == [("forward", 1, 1), ("backward", 1, 1)]


def test_a_decision_of_a_rule_is_a_guard() -> None:
    """Means over two halves are a view where the length is even, else a product."""
    check_sizes(lambda x: F.adaptive_avg_pool1d(x, 2), [(3, 4, n) for n in (4, 6, 8, 5, 7, 10)], (2,), strict=True)
    assert all((sizes, ranges) == (2, 2) for _, sizes, ranges in compilations())


def test_sizes_that_cannot_be_variables_are_compiled_one_by_one() -> None:
    check_sizes(lambda x: x.sort(1)[0], [(2, 5), (2, 9), (2, 7), (2, 9)])
    forward, backward = ours.report().graphs
    assert (forward.sizes, forward.ranges, forward.calls) == (3, 0, 4)
    assert "sort" in forward.fixed
    assert "symbolic size" in str(ours.report())
    assert (backward.sizes, backward.ranges) == (1, 1)
    assert not fallbacks()


def test_ops_of_pytorch_get_the_sizes_of_the_call() -> None:
    run = ours.compile(lambda x: (torch.fft.rfft(x * 2, n=x.shape[0] + 2).abs() + 1).sum(), dynamic=True)
    for length in (8, 11, 30):
        x = torch.randn(length)
        assert is_close(run(x), (torch.fft.rfft(x * 2, n=length + 2).abs() + 1).sum())
    assert compilations() == [("inference", 1, 1)]
    assert "aten._fft_r2c.default" in fallbacks()


def test_random_numbers_of_symbolic_sizes() -> None:
    run = ours.compile(lambda x: F.dropout(x, 0.25), dynamic=True, strict=True)
    for length in (300, 20, 500):
        x = torch.ones(length, 100, requires_grad=True)
        torch.manual_seed(length)
        y = run(x)
        y.sum().backward()
        assert torch.equal(x.grad, y.detach())
        assert y.detach().mean().item() == pytest.approx(1, abs=0.1)
        torch.manual_seed(length)
        assert torch.equal(run(x), y)
    assert compilations() == [("forward", 1, 1), ("backward", 1, 1)]


def test_inputs_without_gaps_and_with_them() -> None:
    """The strides of inputs may depend on sizes."""
    run = ours.compile(lambda x: x * 2 + x.sum(0), dynamic=True, strict=True)
    for rows, columns in ((3, 5), (6, 4), (9, 2)):
        for x in (torch.randn(columns, rows).t(), torch.randn(rows, 2 * columns)[:, ::2], torch.randn(rows, columns)):
            assert is_close(run(x), x * 2 + x.sum(0))
    assert all(ranges == sizes == 1 for _, sizes, ranges in compilations())

"""Layouts of the tensors that a forward graph keeps for its backward graph."""
from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the backend of torch.compile needs PyTorch")

import tinsmith.torch as ours  # noqa: E402
from benchmarks.zoo import targets  # noqa: E402
from benchmarks.zoo.registry import Example  # noqa: E402
from tests.backend.gpus import needs_nvrtc  # noqa: E402
from tests.torch_backend import models  # noqa: E402
from tinsmith.torch import lowering  # noqa: E402
from tinsmith.torch.saved import graph_values  # noqa: E402

F = torch.nn.functional


pytestmark = pytest.mark.usefixtures("fresh_compiler")


class Blocks(torch.nn.Module):
    """Views of saved values, a layer norm over channels, and a saved value that is a result, too."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.Conv2d(8, 8, 3, stride=2)
        self.norm, self.linear = torch.nn.LayerNorm(8), torch.nn.Linear(8, 16)

    def forward(self, x: Any) -> Any:
        y = self.a(x).relu()
        z = self.linear(self.norm(y.permute(0, 2, 3, 1)).flatten(0, 2)).tanh()
        return y, self.b(y).exp(), z, z.view(-1, 2, 8).sin().transpose(1, 2).contiguous().cos()


def gradients(module: Any, run: Any, x: Any) -> list[Any]:
    module.zero_grad()
    x = x.clone().requires_grad_()
    results = run(x)
    results = results if isinstance(results, tuple) else (results,)
    sum((r * torch.linspace(-1, 1, r.numel()).reshape(r.shape)).sum() for r in results).backward()
    return [*results, x.grad, *(p.grad for p in module.parameters())]


def axes_in_turn(found: list[bool]) -> Callable[..., Any]:
    """Return a choice of orders for values that may have any: all orders in turn, the reversed one first."""
    turns = itertools.count()

    def choose(values: Sequence[Any], free: Sequence[bool], target: Any) -> list[Any]:
        found.extend(free)
        orders = [list(itertools.permutations(range(v.ndim))) for v in values]
        return [o[-1 - next(turns) % len(o)] if f else None for o, f in zip(orders, free)]

    return choose


@pytest.mark.parametrize("left", [(), ("convolution_backward", "native_layer_norm_backward", "tanh_backward")])
@pytest.mark.parametrize(("make", "shape"), [
    (Blocks, (2, 3, 8, 8)), (models.Convolutional, (4, 3, 16, 16)), (models.Hourglass, (2, 3, 16, 16))])
def test_saved_tensors_may_lie_in_any_order(make: Callable[[], Any], shape: tuple[int, ...], left: tuple[str, ...],
                                            monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch runs the ops in ``left``, on tensors of strides that it does not expect."""
    known = lowering.rule_for
    monkeypatch.setattr(lowering, "rule_for", lambda op: None if op._schema.name[6:] in left else known(op))
    module, x = make(), torch.randn(shape)
    other = copy.deepcopy(module)
    want, found = gradients(module, module, x), list[bool]()
    monkeypatch.setattr(lowering, "orders_computed", axes_in_turn(found))
    got = gradients(other, ours.compile(other), x)
    assert sum(found) > 2
    assert bool(left) == bool(ours.report().fallbacks)
    for g, w in zip(got, want, strict=True):
        assert g.stride() == w.stride()
        torch.testing.assert_close(g, w, rtol=2e-4, atol=2e-5)


def test_hooks_may_change_the_strides_of_saved_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of ``save_on_cpu`` return contiguous copies."""
    module, x = Blocks(), torch.randn(2, 3, 8, 8)
    want, found = gradients(module, module, x), list[bool]()
    monkeypatch.setattr(lowering, "orders_computed", axes_in_turn(found))
    run = ours.compile(module)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.contiguous().clone(), lambda t: t):
        got = gradients(module, run, x)
    assert sum(found) > 2
    for g, w in zip(got, want, strict=True):
        torch.testing.assert_close(g, w, rtol=2e-4, atol=2e-5)


def inputs_of_the_backward_graph(module: Any, x: Any) -> list[tuple[Any, Any]]:
    """Return the fake tensors of a backward graph's placeholders, as compiled for an H100 under autocast, and those of
    PyTorch's strides."""
    needs_nvrtc()
    seen = list[dict[Any, Any]]()

    def values(module: Any, inputs: Sequence[Any]) -> dict[Any, Any]:
        seen.append(graph_values(module, inputs))
        return seen[-1]

    fakes, mode = targets.without_values(Example(module, (x,)))
    with pytest.MonkeyPatch.context() as patch, mode:
        patch.setattr(targets, "graph_values", values)
        with torch.autocast("cpu", torch.bfloat16):
            y = torch.compile(fakes.module, backend=targets.backend("sm_90a", strict=True))(*fakes.inputs)
        assert y.is_contiguous(), "results of the model keep their strides"
        y.float().sum().backward()
    return [(v, n.meta["val"]) for n, v in seen[-1].items() if n.op == "placeholder"]


def test_activations_of_convolutions_lie_channels_last() -> None:
    """Those of a batch norm, a ReLU, a pool and a view; an image and weights stay as they are."""
    module = torch.nn.Sequential(
        torch.nn.Conv2d(16, 32, 3, padding=1), torch.nn.BatchNorm2d(32), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(32, 64, 3), torch.nn.GELU(), torch.nn.Conv2d(64, 32, 1))
    given = inputs_of_the_backward_graph(module, torch.randn(8, 16, 16, 16))
    images = [t for t, _ in given if t.ndim == 4 and t.shape[0] == 8]
    last = [t.is_contiguous(memory_format=torch.channels_last) for t in images]
    assert sum(last) >= 5
    assert {tuple(t.shape[1:]) for t, moved in zip(images, last) if not moved} <= {(16, 16, 16), (32, 6, 6)}


def test_tensors_without_convolutions_keep_their_strides() -> None:
    module = torch.nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
    given = inputs_of_the_backward_graph(module, torch.randn(2, 16, 64))
    assert len(given) > 10
    assert all(t.stride() == other.stride() for t, other in given)

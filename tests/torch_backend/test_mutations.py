"""Writes to the arguments of compiled functions: caches, statistics and parameters, in place and through views."""
from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the backend of torch.compile needs PyTorch")

from hypothesis import HealthCheck, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch.fx.passes.fake_tensor_prop import FakeTensorProp  # noqa: E402

import tinsmith.torch as ours  # noqa: E402
from tinsmith.torch import compiler, program  # noqa: E402
from tinsmith.torch.executable import Options  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh_compiler")


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The programs that are compiled."""
    found: list[Any] = []
    first = program.TorchProgram.__init__

    def noted(self: Any, *args: Any) -> None:
        first(self, *args)
        found.append(self)

    monkeypatch.setattr(program.TorchProgram, "__init__", noted)
    return found


# One step on a list of matrices of 6 × 8: a write to one of them, or a new value that is read later.
STEPS: dict[str, Callable[[list[Any], int, int], Any]] = {
    "add": lambda t, a, b: t[a].add_(t[b]),
    "scale": lambda t, a, b: t[a].mul_(0.5),
    "copy": lambda t, a, b: t[a].copy_(t[b]),
    "swap": lambda t, a, b: (old := t[a].clone(), t[a].copy_(t[b]), t[b].copy_(old)),
    "zero": lambda t, a, b: t[a].zero_(),
    "row": lambda t, a, b: t[a].index_copy_(0, torch.tensor([b]), t[b][:1] * 2),
    "slice": lambda t, a, b: t[a][1:3].copy_(t[b][2:4].clone()),
    "column": lambda t, a, b: t[a].t()[b].add_(1),
    "overlap": lambda t, a, b: t[a][1:].copy_(t[a][:-1].clone()),
    "transposed": lambda t, a, b: t[a][:, :6].copy_(t[b][:, :6].t().clone()),
    "product": lambda t, a, b: t[a].copy_((t[a] @ t[b].t() @ t[b]).tanh()),
    "new": lambda t, a, b: t.append(t[a] * 2 + t[b]),
    "sum": lambda t, a, b: t.append(t[a].sum(0, keepdim=True).expand(6, 8) * 0.1),
}
LAYOUTS: dict[str, Callable[[], Any]] = {
    "plain": lambda: torch.randn(6, 8), "turned": lambda: torch.randn(8, 6).t(),
    "gaps": lambda: torch.randn(6, 16)[:, :8],
    "middle": lambda: torch.randn(9, 8)[2:8], "apart": lambda: torch.randn(6, 16)[:, ::2]}


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(st.tuples(st.sampled_from(sorted(STEPS)), st.integers(0, 2), st.integers(0, 2)), min_size=1,
                      max_size=5),
       layouts=st.lists(st.sampled_from(sorted(LAYOUTS)), min_size=3, max_size=3),
       alias=st.sampled_from(("none", "same", "view")), returned=st.booleans())
def test_writes_are_those_of_pytorch(steps: list[tuple[str, int, int]], layouts: list[str], alias: str,
                                     returned: bool) -> None:
    def function(*given: Any) -> Any:
        t = list(given)
        for name, a, b in steps:
            STEPS[name](t, a, b)
        return [x + 1 for x in t] + (t[3:] + t[:1] if returned else [])

    def arguments() -> list[Any]:
        torch.manual_seed(1)
        t = [LAYOUTS[name]() for name in layouts]
        return [t[0], t[0], t[2]] if alias == "same" else [t[0], t[0].view_as(t[0]), t[2]] if alias == "view" else t

    torch._dynamo.reset()
    want, got = arguments(), arguments()
    compiled = ours.compile(function)
    for _ in range(2):
        for x, y in zip([*function(*want), *want], [*compiled(*got), *got], strict=True):
            torch.testing.assert_close(y, x, rtol=1e-4, atol=1e-5)


def test_a_cache_gets_its_new_rows_only(made: list[Any]) -> None:
    """The cache was copied twice per token: to a new value, and that to the cache."""
    cache, at = torch.zeros(4, 1024, 64), torch.tensor([5])

    def step(cache: Any, x: Any, at: Any, q: Any) -> Any:
        cache.index_copy_(1, at, x)
        return (q @ cache.transpose(1, 2)).softmax(-1) @ cache

    with torch.no_grad():
        x, q = torch.randn(4, 1, 64), torch.randn(4, 1, 64)
        want_cache = cache.clone()
        want = step(want_cache, x, at, q)
        torch.testing.assert_close(ours.compile(step)(cache, x, at, q), want)
    assert torch.equal(cache, want_cache)
    (found,) = made
    assert len(found.inside) == 1 and found.bound.carried
    written = {s for step in found.compiled.steps if not step.carries for s in step.written}
    assert [found.bound.slots[s].size for s in written].count(cache.numel()) == 1, "the new version only"


def test_a_cache_gets_rows_of_any_number(made: list[Any]) -> None:
    def step(cache: Any, x: Any, first: int) -> Any:
        cache[:, first : first + x.shape[1]] = x
        cache.index_copy_(1, torch.arange(x.shape[1]) + 20, x + 1)
        return cache.sum(1) + x.sum(1)

    compiled, cache = ours.compile(step), torch.zeros(2, 40, 5)
    want_cache = cache.clone()
    with torch.no_grad():
        for length in (3, 4, 7, 9, 4):
            x = torch.randn(2, length, 5)
            torch.testing.assert_close(compiled(cache, x, 2), step(want_cache, x, 2))
            assert torch.equal(cache, want_cache)
    assert all(p.inside for p in made) and ours.report().graphs[-1].ranges


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "RMSprop"])
def test_an_optimizer_writes_its_state_in_place(name: str, made: list[Any]) -> None:
    torch.manual_seed(2)
    model = torch.nn.Sequential(torch.nn.Linear(24, 16), torch.nn.Linear(16, 8))
    other = copy.deepcopy(model)
    more = {"momentum": 0.9} if name in ("SGD", "RMSprop") else {}
    optimizers = [getattr(torch.optim, name)(m.parameters(), 0.01, foreach=False, **more) for m in (model, other)]
    compiled = torch.compile(optimizers[0].step, backend="tinsmith")
    for _ in range(4):
        for m, step in ((model, compiled), (other, optimizers[1].step)):
            m(torch.arange(48.0).reshape(2, 24) / 48).square().sum().backward()
            step()
            m.zero_grad()
    for a, b in zip(model.parameters(), other.parameters()):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
    assert any(p.inside for p in made), "parameters are written in place"


def test_running_statistics_that_are_also_returned() -> None:
    """AOTAutograd saves the new statistics for the backward graph: these keep memory of their own."""
    norm, other = (torch.nn.BatchNorm2d(6).train() for _ in range(2))
    compiled, x, flow = ours.compile(norm), torch.randn(4, 6, 5, 5, requires_grad=True), torch.randn(4, 6, 5, 5)
    gradients = []
    for m in (compiled, other):
        first = m(x)
        m(x * 2 + 1)  # changes the statistics before the first call's backward pass
        gradients += torch.autograd.grad(first, x, flow)
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)
    for (name, a), b in zip(norm.state_dict().items(), other.state_dict().values()):
        torch.testing.assert_close(a, b, msg=name)


def test_an_argument_with_its_new_value_is_a_result(made: list[Any]) -> None:
    x, want = torch.ones(5), torch.full((5,), 4.0)
    with torch.no_grad():
        y, z = ours.compile(lambda x: (x.add_(1), x.mul_(2)))(x)
    assert y is x and z is x and torch.equal(x, want) and made[0].inside


def test_a_copy_to_another_argument_comes_before_the_write() -> None:
    """The graph copies a view of an argument to another one, and a computed value to the first."""
    graph = torch.fx.Graph()
    a, b = graph.placeholder("a"), graph.placeholder("b")
    new = graph.call_function(torch.ops.aten.add.Tensor, (b, 1))
    turned = graph.call_function(torch.ops.aten.permute.default, (b, [1, 0]))
    graph.call_function(torch.ops.aten.copy_.default, (a, turned))
    graph.call_function(torch.ops.aten.copy_.default, (b, new))
    graph.output((new,))
    module = torch.fx.GraphModule({}, graph)
    given = [torch.randn(3, 3), torch.randn(3, 3)]
    want = [given[1].t().clone(), given[1] + 1]
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fakes = [mode.from_tensor(t) for t in given]
        FakeTensorProp(module, mode).propagate(*fakes)
    compiled = compiler.CompiledGraph(module, fakes, "inference", Options())
    (result,) = compiled(list(given))
    assert not compiled.refused
    for got, wanted in zip([*given, result], [*want, want[1]], strict=True):
        assert torch.equal(got, wanted)


def test_a_frozen_parameter_keeps_its_version() -> None:
    """Autograd notices that a value which it saved was written by a compiled function."""
    weight, x = torch.randn(3, 3), torch.randn(3, 3, requires_grad=True)
    y = (x * weight).sum()
    with torch.no_grad():
        ours.compile(lambda w: w.add_(1))(weight)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()

"""Models that ``torch.compile(backend="tinsmith")`` runs, beside the same models without it."""
from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the backend of torch.compile needs PyTorch")

import tinsmith.torch as ours  # noqa: E402
from tests.torch_backend import models  # noqa: E402
from tinsmith import Tensor  # noqa: E402
from tinsmith.torch import devices  # noqa: E402
from tinsmith.torch.rules import RULES  # noqa: E402

F = torch.nn.functional


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A compiler without history, and memory that holds NaN until it is written."""
    monkeypatch.setattr(devices, "empty_strided", lambda shape, strides, dtype: torch.empty_strided(
        shape, strides, dtype=dtype))
    torch._dynamo.reset()
    ours.report().clear()
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True, warn_only=True)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=UserWarning, module="torch")
        yield
    torch.use_deterministic_algorithms(False)


def is_close(got: Any, want: Any, tolerance: float = 1e-4) -> bool:
    return bool(torch.allclose(got.double(), want.double(), rtol=tolerance, atol=tolerance * 0.1))


def fallbacks() -> set[str]:
    return set(ours.report().fallbacks)


CASES: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "perceptron": (models.perceptron, lambda: torch.randn(4, 8)),
    "convolutional": (models.Convolutional, lambda: torch.randn(4, 3, 16, 16)),
    "recurrent": (models.Recurrent, lambda: torch.randn(4, 6, 5)),
    "hourglass": (models.Hourglass, lambda: torch.randn(2, 3, 16, 16)),
}


def trained(model: Any, run: Any, x: Any, y: Any, steps: int = 10) -> list[float]:
    """Return the losses of training steps with momentum."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for _ in range(steps):
        loss = F.cross_entropy(run(x).flatten(0, -2), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def check_training(model: Any, x: Any, y: Any) -> None:
    """Train a model and its copy, one of them compiled; compare losses, parameters and buffers, then inference."""
    other = copy.deepcopy(model)
    run = ours.compile(other, strict=True)
    assert trained(other, run, x, y) == pytest.approx(trained(model, model, x, y), rel=2e-3)
    for (name, a), b in zip(model.state_dict().items(), other.state_dict().values()):
        assert is_close(b, a, 5e-3), name
    other.load_state_dict(model.state_dict())
    model.eval()
    run.eval()
    with torch.no_grad():
        assert is_close(run(x), model(x))
    assert not fallbacks()


@pytest.mark.parametrize("case", [case for case in CASES if case != "recurrent"])  # test_sizes.py has that one
def test_ten_training_steps_and_inference_agree(case: str) -> None:
    make, data = CASES[case]
    x = data()
    check_training(make(), x, torch.randint(10, (x.shape[0],)))


def test_the_name_of_the_backend_is_known() -> None:
    model = models.perceptron()
    x = torch.randn(3, 8)
    assert is_close(torch.compile(model, backend="tinsmith")(x), model(x))
    assert ours.report().graphs[0].calls == 1


def test_autocast_computes_in_bfloat16() -> None:
    model = models.perceptron()
    run = ours.compile(model, strict=True)
    x = torch.randn(4, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got, want = run(x), model(x)
    assert got.dtype is want.dtype is torch.bfloat16
    assert is_close(got, want, 5e-2)
    got.float().square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("exact", [False, True])
def test_dropout_is_seeded_by_the_generator_of_pytorch(exact: bool) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Dropout(0.5), torch.nn.Linear(64, 4))
    run = ours.compile(model, exact_random=exact)
    eager = torch.compile(model, backend="aot_eager")
    x = torch.randn(4, 8)
    results = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        results.append(run(x).detach())
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])
    torch.manual_seed(2)
    assert is_close(results[2], eager(x)) == exact
    assert fallbacks() == ({"aten.native_dropout.default"} if exact else set())
    model.zero_grad()
    run(x).sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_dropout_keeps_the_mean_and_its_gradient_follows_the_mask() -> None:
    x = torch.ones(1000, 100, requires_grad=True)
    y = ours.compile(lambda x: F.dropout(x, 0.3) + F.dropout(x, 0.3), strict=True)(x)
    share = [(y == v).double().mean().item() for v in (0, 1 / 0.7, 2 / 0.7)]
    assert share == pytest.approx([0.09, 0.42, 0.49], abs=0.01)
    y.sum().backward()
    assert torch.equal(x.grad, y.detach()), "the two draws are independent, and the backward pass uses both masks"


@pytest.mark.parametrize("seed", range(12))
def test_cross_entropies(seed: int) -> None:
    """Drawn shapes, weights, ignored classes, reductions and soft labels: losses and gradients as PyTorch's where each
    operation rounds, else about as far from those in float64."""
    rng = np.random.default_rng(seed)
    classes, rows = int(rng.integers(1, 40)), int(rng.integers(1, 9))
    shape = [(classes,), (rows, classes), (rows, classes, 3), (2, classes, 3, rows)][seed % 4]
    x = torch.randn(*shape, dtype=torch.bfloat16 if rng.random() < 0.3 else torch.float32)
    labels = (*shape[:1], *shape[2:]) if len(shape) > 1 else ()
    options = {"reduction": str(rng.choice(["mean", "sum", "none"])), "ignore_index": int(rng.integers(-1, classes))}
    if rng.random() < 0.5:
        options["weight"] = (torch.rand(classes) + 0.5).to(x.dtype)
    if rng.random() < 0.3:
        options["label_smoothing"] = 0.1
    y = torch.randint(classes, labels)
    y.view(-1)[0] = (options["ignore_index"] + 1) % classes  # one counts, if there are several classes
    if seed % 5 == 4:
        y, _ = torch.rand(shape).softmax(min(len(shape), 2) - 1).to(x.dtype), options.pop("ignore_index")

    tolerance = 1e-4 if x.dtype is torch.float32 else 2e-2
    x.requires_grad = True
    x64 = x.detach().double().requires_grad_()
    wide = {k: v.double() if k == "weight" else v for k, v in options.items()}
    exact = step_of(F.cross_entropy, x64, y.double() if y.is_floating_point() else y, wide)
    eager = step_of(F.cross_entropy, x, y, options)
    for rounding in (True, False):
        torch._dynamo.reset()
        compiled = ours.compile(F.cross_entropy, strict=True, exact_rounding=rounding)
        for got, want, true in zip(step_of(compiled, x, y, options), eager, exact, strict=True):
            assert got.dtype is want.dtype and got.shape == want.shape
            if rounding or x.dtype is torch.float32:
                assert torch.allclose(got.double(), want.double(), rtol=tolerance, atol=tolerance, equal_nan=True)
            else:
                assert (got - true).abs().mean() <= 1.25 * (want - true).abs().mean()
    assert not fallbacks()


def step_of(loss: Callable[..., Any], x: Any, y: Any, options: dict[str, Any]) -> tuple[Any, Any]:
    """Return a compiled loss of ``3 * x`` and the gradient of its squares' sum."""
    found = loss(x * 3, y, **options)
    return found, torch.autograd.grad(found.float().square().sum(), x)[0]


def test_a_training_step_keeps_logits_in_16_bits_and_no_one_hot_rows() -> None:
    model, saved = torch.nn.Linear(16, 1000), list[Any]()

    def loss(x: Any, y: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(x)
        return F.cross_entropy(logits.float(), y)

    x, y = torch.randn(64, 16), torch.randint(1000, (64,))
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        ours.compile(loss, strict=True)(x, y).backward()
    assert [t.dtype for t in saved if t.shape == (64, 1000)] == [torch.bfloat16]


def test_an_unknown_option_is_an_error() -> None:
    with pytest.raises(Exception, match=r"no option 'fast'.*strict or exact_random"):
        ours.compile(lambda x: x + 1, fast=True)(torch.ones(2))


def test_batch_norm_updates_its_buffers() -> None:
    model = torch.nn.Sequential(torch.nn.Conv1d(2, 3, 3), torch.nn.BatchNorm1d(3))
    other = copy.deepcopy(model)
    run = ours.compile(other, strict=True)
    for _ in range(3):
        x = torch.randn(4, 2, 9)
        assert is_close(run(x), model(x))
    assert is_close(other[1].running_mean, model[1].running_mean)
    assert is_close(other[1].running_var, model[1].running_var)
    assert other[1].num_batches_tracked.item() == 3


def check_optimizer(kind: str, device: str = "cpu", **more: float) -> None:
    """Check that some compiled steps of an optimizer leave the parameters that steps of PyTorch leave."""
    model = models.perceptron().to(device)
    other = copy.deepcopy(model)
    x, y = torch.randn(4, 8, device=device), torch.randint(10, (4,), device=device)
    optimizers = [getattr(torch.optim, kind)(m.parameters(), lr=0.01, **more) for m in (model, other)]
    step = torch.compile(optimizers[1].step, backend="tinsmith")
    for _ in range(4):
        for m, update in ((model, optimizers[0].step), (other, step)):
            m.zero_grad()
            F.cross_entropy(m(x), y).backward()
            update()
    for a, b in zip(model.parameters(), other.parameters()):
        assert is_close(b, a)


def test_an_optimizer_is_compiled_with_its_step() -> None:
    check_optimizer("AdamW")


# *** what graphs may do with memory ***


def check_writes_to_inputs(device: str) -> None:
    def function(x: Any) -> Any:
        x.mul_(2)
        x[0] = 7
        return x + 1

    x = torch.randn(3, 4, device=device)
    y = x.clone()
    got = ours.compile(function, strict=True)(x)
    assert torch.equal(got, function(y))
    assert torch.equal(x, y)


def check_views(device: str) -> None:
    """Results are views of inputs and of each other, as in eager PyTorch."""
    def function(x: Any) -> Any:
        y = x * 2
        return x.t(), x[1:, ::2], y, y.view(-1), y[0]

    x = torch.randn(4, 6, device=device)
    t, part, y, flat, row = ours.compile(function, strict=True)(x)
    for got, want in zip((t, part, y, flat, row), function(x)):
        assert torch.equal(got, want)
        assert got.stride() == want.stride()
        assert got.storage_offset() == want.storage_offset()
    x[1, 2] = 5
    assert t[2, 1] == part[0, 1] == 5
    y[0, 0] = 9
    assert t[2, 1] == part[0, 1] == 5
    assert flat[0] == row[0] == 9


def test_inputs_are_written_in_place() -> None:
    check_writes_to_inputs("cpu")


def test_results_may_be_views_of_inputs_and_of_each_other() -> None:
    check_views("cpu")


@pytest.mark.parametrize("view", [
    lambda x: x.t(), lambda x: x[::2, 1:5:3], lambda x: x[:, 2], lambda x: x[1:2].expand(5, 8),
    lambda x: x.as_strided((3, 4), (2, 1)), lambda x: x.as_strided((2, 3, 2), (1, 16, 4), 3), lambda x: x[3:3],
], ids=["transposed", "steps", "column", "expanded", "overlapping", "permuted", "empty"])
def test_inputs_of_any_strides_are_read_where_they_lie(view: Callable[[Any], Any]) -> None:
    x = view(torch.randn(8, 8))
    function = lambda x: (x * 2 + 1, x.sum(0), x.clone())  # noqa: E731
    for got, want in zip(ours.compile(function, strict=True)(x), function(x)):
        assert is_close(got, want)
        assert got.stride() == want.stride()


def test_channels_last_results_keep_their_strides() -> None:
    x = torch.randn(2, 3, 5, 7).to(memory_format=torch.channels_last)
    model = torch.nn.Conv2d(3, 4, 3, padding=1).to(memory_format=torch.channels_last)
    want = model(x).relu()
    got = ours.compile(lambda x: model(x).relu(), strict=True)(x)
    assert got.stride() == want.stride()
    assert is_close(got, want)


def test_gradients_may_have_other_strides_than_expected() -> None:
    model = torch.nn.Linear(4, 6)
    run = ours.compile(model, strict=True)
    x, grad = torch.randn(5, 4), torch.randn(6, 5).t()
    for gradient in (torch.randn(5, 6), grad, torch.ones(1, 1).expand(5, 6)):
        model.zero_grad()
        run(x).backward(gradient)
        found = model.weight.grad.clone()
        model.zero_grad()
        model(x).backward(gradient)
        assert is_close(found, model.weight.grad)


# *** what graphs may be ***


def test_code_between_two_graphs_runs_in_python() -> None:
    seen = []

    def function(x: Any) -> Any:
        y = (x * 2).sum()
        seen.append(y.item())
        return x + y

    x = torch.randn(3)
    assert is_close(ours.compile(function)(x), x + 2 * x.sum())
    assert seen == [pytest.approx(2 * x.sum().item())]


def test_a_size_may_be_a_result() -> None:
    run = ours.compile(lambda x: (x.view(x.shape[0] * 2, -1) * x.shape[0], x.shape[0] + 1), dynamic=True)
    for rows in (3, 4):
        x = torch.randn(rows, 6)
        got, number = run(x)
        assert torch.equal(got, x.view(rows * 2, -1) * rows)
        assert number == rows + 1


def test_complex_numbers_are_left_to_pytorch() -> None:
    run = ours.compile(lambda x: (torch.fft.rfft(x * 2).abs() + 1).sum())
    x = torch.randn(8)
    assert is_close(run(x), (torch.fft.rfft(x * 2).abs() + 1).sum())
    (graph,) = ours.report().graphs
    assert graph.programs == 2, "one before and one after"
    assert any("complex" in reason for f in ours.report().fallbacks.values() for reason in f.reasons)
    assert "aten.abs.default" in str(ours.report())


def test_a_number_may_stand_before_an_operator() -> None:
    b = torch.tensor([1, -2, 3, -4])
    for function in (lambda b: 7 // b, lambda b: torch.div(7, b, rounding_mode="trunc"), lambda b: 7.0 // b.float(),
                     lambda b: torch.div(7.5, b, rounding_mode="floor"), lambda b: 7 - b, lambda b: 7 % b,
                     lambda b: 5 & b, lambda b: 1 << b.abs(), lambda b: 2**b.abs()):
        got, want = ours.compile(function, strict=True)(b), function(b)
        assert got.dtype is want.dtype and torch.equal(got, want)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16"])
def test_floats_beyond_a_small_integer_wrap_around(dtype: str) -> None:
    x = torch.tensor([-1.5, -100.7, 300.0, -0.5, 70000.0, -40000.0, 255.9])
    run = ours.compile(lambda x: (x * 2).to(getattr(torch, dtype)), strict=True)
    assert torch.equal(run(x), (x * 2).to(getattr(torch, dtype)))


@pytest.mark.parametrize("kernel, stride, padding", [(2, 2, 0), (3, 2, 1), (5, 1, 2), (3, 1, 1), (2, 3, 1), (3, 4, 0)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("layout", ["contiguous_format", "channels_last"])
def test_gradients_of_pools_whose_windows_overlap(kernel: int, stride: int, padding: int, dtype: str,
                                                  layout: str) -> None:
    x = torch.randn(2, 3, 13, 11).to(getattr(torch, dtype)).to(memory_format=getattr(torch, layout)).requires_grad_()
    with torch.no_grad():
        x[0, 0, 0, 0] = float("nan")  # windows hand on their gradient all the same
    y = F.max_pool2d(x, kernel, stride, padding)
    grad = torch.randn_like(y)
    exact = x.detach().double().requires_grad_()
    (want,) = torch.autograd.grad(F.max_pool2d(exact, kernel, stride, padding), exact, grad.double())
    run = ours.compile(lambda x: F.max_pool2d(x, kernel, stride, padding), strict=True)
    (got,) = torch.autograd.grad(run(x), x, grad)
    assert is_close(got, want, 1e-4 if dtype == "float32" else 2**-8)


@pytest.mark.parametrize("kernel, stride, padding, dilation, ceil_mode", [
    (3, 2, 1, 1, False), (3, 2, 0, 1, True), (5, 1, 2, 1, False), (2, 3, 0, 1, False), (3, 2, 1, 2, True)])
def test_gradients_of_pools_are_one_kernel_on_a_grid(kernel: int, stride: int, padding: int, dilation: int,
                                                     ceil_mode: bool) -> None:
    """Through views of windows, a ResNet's first pool stored 39 million numbers twice: 4 kernels, now 1."""
    x = torch.randn(2, 3, 13, 12, requires_grad=True)
    y, at = F.max_pool2d(x, kernel, stride, padding, dilation, ceil_mode, return_indices=True)
    grad = torch.randn_like(y)
    (want,) = torch.autograd.grad(y, x, grad)
    own = [Tensor(t.detach().numpy(), device="PYTHON:G256:C8").realize() for t in (grad, x, at)]
    found = RULES["max_pool2d_with_indices_backward.default"].function(
        own[0], own[1], [kernel], [stride], [padding], [dilation], ceil_mode, own[2])
    assert len(found.contiguous().schedule().steps) == 1
    assert is_close(torch.from_numpy(found.numpy()), want, 1e-5)


@pytest.mark.parametrize("kernel, stride, padding", [
    (2, 2, 0), (3, 2, 1), (5, 1, 2), ((5, 2), (3, 1), (2, 0)), (3, 4, 0), (4, 3, 2), (3, (1, 2), 1)])
@pytest.mark.parametrize("ceil_mode, padded, divisor", [(False, True, None), (True, False, None), (True, True, None),
                                                        (False, True, 3)])
@pytest.mark.parametrize("layout", ["contiguous_format", "channels_last"])
def test_gradients_of_means_whose_windows_overlap(kernel: Any, stride: Any, padding: Any, ceil_mode: bool, padded: bool,
                                                  divisor: int | None, layout: str) -> None:
    def pool(x: torch.Tensor) -> torch.Tensor:
        return F.avg_pool2d(x, kernel, stride, padding, ceil_mode, padded, divisor)

    x = torch.randn(2, 3, 13, 12).to(memory_format=getattr(torch, layout)).requires_grad_()
    y = pool(x)
    grad = torch.randn_like(y)
    (want,) = torch.autograd.grad(y, x, grad)
    (got,) = torch.autograd.grad(ours.compile(pool, strict=True)(x), x, grad)
    assert is_close(got, want, 1e-5) and got.stride() == want.stride()


@pytest.mark.parametrize("layout", ["contiguous_format", "channels_last"])
def test_the_gradient_of_a_pool_is_one_kernel_along_memory(layout: str) -> None:
    x = torch.randn(2, 16, 13, 13).to(memory_format=getattr(torch, layout)).requires_grad_()
    y = ours.compile(lambda x: F.max_pool2d(x, 5, 1, 2), strict=True)(x)
    (got,) = torch.autograd.grad(y, x, torch.randn_like(y))
    assert got.stride() == x.stride() and ours.report().graphs[-1].kernels == 1


@pytest.mark.parametrize("layout", ["contiguous_format", "channels_last"])
def test_elements_add_up_the_means_around_them(layout: str) -> None:
    x = torch.randn(2, 16, 28, 28).to(memory_format=getattr(torch, layout)).requires_grad_()
    y = ours.compile(lambda x: F.avg_pool2d(x, 3, 2, 1), strict=True)(x)
    torch.autograd.grad(y, x, torch.randn_like(y))
    assert ours.report().graphs[-1].kernels <= 3, "shares of each window, a mask of offsets and windows, one sum"


@pytest.mark.parametrize("kernel, stride, padding, dilation", [
    (3, 1, 1, 1), (3, 2, 1, 1), (5, 2, 2, 1), (2, 3, 1, 1), (3, (2, 1), 0, 1), (3, 2, 2, 2)])
@pytest.mark.parametrize("layout", ["contiguous_format", "channels_last"])
@pytest.mark.parametrize("channels", [5, 32])
def test_gradients_of_depthwise_convolutions(kernel: int, stride: Any, padding: int, dilation: int, layout: str,
                                             channels: int) -> None:
    x, w = (t.requires_grad_() for t in (
        torch.randn(2, channels, 13, 12).to(memory_format=getattr(torch, layout)),
        torch.randn(channels, 1, kernel, kernel)))
    y = F.conv2d(x, w, None, stride, padding, dilation, channels)
    grad = torch.randn_like(y)
    run = ours.compile(lambda x, w: F.conv2d(x, w, None, stride, padding, dilation, channels), strict=True)
    for got, want in zip(torch.autograd.grad(run(x, w), (x, w), grad), torch.autograd.grad(y, (x, w), grad)):
        assert is_close(got, want, 1e-4)


def test_nan_keeps_the_gradient_of_relu() -> None:
    x = torch.tensor([float("nan"), 1, -1, 0], requires_grad=True)
    run = ours.compile(lambda x: x.relu(), strict=True)
    for got, want in zip(torch.autograd.grad(run(x).sum(), x), torch.autograd.grad(x.relu().sum(), x)):
        assert torch.equal(got, want)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gradients_of_gelu_in_16_bits_are_rounded_once(approximate: str) -> None:
    x = torch.linspace(-9, 9, 999).bfloat16().requires_grad_()
    run = ours.compile(lambda x: F.gelu(x, approximate=approximate), strict=True)
    (got,) = torch.autograd.grad(run(x).sum(), x)
    exact = x.detach().double().requires_grad_()
    (want,) = torch.autograd.grad(F.gelu(exact, approximate=approximate).sum(), exact)
    assert ((got.double() - want).abs() <= want.abs() * 2**-8 + 1e-5).all()


def test_an_op_whose_rule_fails_is_left_to_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(x: Any) -> Any:
        return x.no_such_method()

    monkeypatch.setitem(RULES, "tan.default", replace(RULES["tan.default"], function=fails))
    x = torch.randn(8)
    assert is_close(ours.compile(lambda x: (x * 2).tan() + 1)(x), (x * 2).tan() + 1)
    assert any("no_such_method" in reason for f in ours.report().fallbacks.values() for reason in f.reasons)
    with pytest.raises(Exception, match="no_such_method"):
        ours.compile(lambda x: (x * 2).tan() + 2, strict=True)(x)


@pytest.mark.parametrize("dim", [0, 2])
def test_weight_norm_has_a_rule_for_its_gradient(dim: int) -> None:
    model = torch.nn.utils.parametrizations.weight_norm(torch.nn.Conv1d(3, 4, 5), dim=dim)
    check_training(torch.nn.Sequential(model, torch.nn.Flatten(), torch.nn.Linear(16, 10)), torch.randn(2, 3, 8),
                   torch.randint(10, (2,)))


@pytest.mark.parametrize("padding", [None, 3])
@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_bags_of_embeddings_may_be_empty_and_padded(mode: str, padding: int | None) -> None:
    weight = torch.randn(7, 4, requires_grad=True)
    indices, offsets = torch.tensor([1, 3, 3, 0, 6, 3, 1]), torch.tensor([0, 2, 2, 5])
    per_sample = torch.rand(7) if mode == "sum" else None

    def function(weight: Any, indices: Any, offsets: Any) -> Any:
        return F.embedding_bag(indices, weight, offsets, mode=mode, padding_idx=padding, per_sample_weights=per_sample)

    want, got = function(weight, indices, offsets), ours.compile(function, strict=True)(weight, indices, offsets)
    assert is_close(got, want)
    slopes = [torch.autograd.grad(result.square().sum(), weight)[0] for result in (got, want)]
    assert is_close(*slopes)
    assert not fallbacks()


@pytest.mark.parametrize("kind", ["bool", "float"])
def test_queries_that_see_no_key_are_zero(kind: str) -> None:
    q, k, v = (torch.randn(2, 2, 5, 8, requires_grad=True) for _ in range(3))
    mask = torch.ones(2, 1, 5, 5, dtype=torch.bool)
    mask[1, :, 2:], mask[0, :, :, 4:] = False, False
    if kind == "float":
        mask = torch.zeros(mask.shape).masked_fill(~mask, float("-inf"))
    function = lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=mask)  # noqa: E731
    want = function(q, k, v)
    gradients = torch.autograd.grad(want.square().sum(), (q, k, v))
    got = ours.compile(function, strict=True)(q, k, v)
    assert torch.equal(got[1, :, 2:], torch.zeros(2, 3, 8))
    for a, b in zip((got, *torch.autograd.grad(got.square().sum(), (q, k, v))), (want, *gradients)):
        assert is_close(a, b)
    assert not fallbacks()


@pytest.mark.parametrize(("mask", "norm_first"), [("none", False), ("keys", True), ("scores", False)])
def test_the_inference_op_of_encoder_layers_is_decomposed(mask: str, norm_first: bool) -> None:
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, activation="gelu", batch_first=True, norm_first=norm_first)
    hidden = torch.tensor([[False] * 5, [False, False, True, False, True]])
    more = {"keys": {"src_key_padding_mask": hidden}, "scores": {"src_mask": torch.ones(5, 5).triu(1).bool()}}
    x, given = torch.randn(2, 5, 8), more.get(mask, {})
    layer.eval()
    with torch.no_grad():
        assert is_close(ours.compile(layer, strict=True)(x, **given), layer(x, **given))
    assert not fallbacks()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_roundings_between_operations(dtype: Any) -> None:
    """A GELU written out in 16 bits is computed with smaller errors than PyTorch's, or with its bits."""
    def gelu(x: Any) -> Any:
        return 0.5 * x * (1 + torch.tanh(0.7978846 * (x + 0.044715 * x * x * x)))

    def gradient(function: Any, x: Any) -> Any:
        x = x.detach().requires_grad_()
        y = function(x)
        return y.detach(), torch.autograd.grad(y.sum(), x)[0]

    x = torch.linspace(-4, 4, 3001).to(dtype)
    exact = gradient(gelu, x.double())
    eager, close = gradient(gelu, x), gradient(ours.compile(gelu), x)
    torch._dynamo.reset()
    same = ours.compile(lambda x: 0.5 * x * (x * x * 0.044715 + x), exact_rounding=True)(x)
    assert torch.equal(same, 0.5 * x * (x * x * 0.044715 + x))
    for want, there, here in zip(exact, eager, close):
        errors = [(got.double() - want).abs().mean() for got in (there, here)]
        assert errors[1] < errors[0], errors


def test_custom_ops_are_left_to_pytorch() -> None:
    @torch.library.custom_op("tinsmith_tests::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @twice.register_fake
    def _(x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x)

    x = torch.randn(8)
    assert is_close(ours.compile(lambda x: twice(x + 1) * 3)(x), (x + 1) * 6)
    (entry,) = ours.report().fallbacks.values()
    assert (entry.nodes, entry.calls, entry.reasons) == (1, 1, ["a custom op"])


def test_programs_run_from_several_threads() -> None:
    import threading

    run = ours.compile(lambda x: ((x @ x) * 2).softmax(-1).sum(), strict=True)
    x = torch.randn(64, 64)
    want = run(x)
    got: list[Any] = []
    threads = [threading.Thread(target=lambda: got.extend(run(x) for _ in range(20))) for _ in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(got) == 60
    assert all(torch.equal(g, want) for g in got)

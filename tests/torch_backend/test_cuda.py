"""``torch.compile(backend="tinsmith")`` on tensors of a GPU: results, memory, streams, captures, several devices."""
from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the backend of torch.compile needs PyTorch")

import tinsmith.torch as ours  # noqa: E402
from tests.backend.gpus import missing_cuda  # noqa: E402
from tests.torch_backend import models  # noqa: E402
from tests.torch_backend.test_models import (  # noqa: E402
    CASES,
    check_optimizer,
    check_training,
    check_views,
    check_writes_to_inputs,
    fallbacks,
    is_close,
)
from tinsmith.core.counters import GlobalCounters  # noqa: E402
from tinsmith.core.settings import Context  # noqa: E402

pytestmark = pytest.mark.cuda
F = torch.nn.functional


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """A GPU that PyTorch and Tinsmith can use, and a compiler without history."""
    if not torch.cuda.is_available():
        pytest.skip("this PyTorch finds no GPU")
    if missing_cuda():
        pytest.skip(missing_cuda())
    torch._dynamo.reset()
    ours.report().clear()
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=UserWarning, module="torch")
        yield


def kinds() -> list[tuple[str, str]]:
    """Return the kind of each graph, and why it was refused."""
    return [(g.kind, g.refused) for g in ours.report().graphs]


@pytest.mark.parametrize("case", CASES)
def test_ten_training_steps_and_inference_agree(case: str) -> None:
    make, data = CASES[case]
    x = data().cuda()
    check_training(make().cuda(), x, torch.randint(10, (x.shape[0],), device="cuda"))
    assert kinds() == [("forward", ""), ("backward", ""), ("inference", "")]


def test_a_transformer_with_tied_weights_trains() -> None:
    tokens = torch.randint(50, (2, 16), device="cuda")
    check_training(models.Transformer().cuda(), tokens, tokens.roll(-1, 1))
    assert [g.programs for g in ours.report().graphs] == [1, 1, 1]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype: Any) -> None:
    model = models.Transformer(width=64).cuda()
    other = copy.deepcopy(model)
    run = ours.compile(other, strict=True)
    tokens = torch.randint(50, (2, 16), device="cuda")
    with torch.autocast("cuda", dtype=dtype):
        got, want = run(tokens), model(tokens)
        assert got.dtype is want.dtype is dtype
        assert is_close(got, want, 5e-2)
        for y in (got, want):
            F.cross_entropy(y.flatten(0, 1), tokens.flatten()).backward()
    for (name, a), b in zip(model.named_parameters(), other.parameters()):
        assert float((a.grad - b.grad).norm()) <= 5e-2 * float(a.grad.norm()), name
    assert not fallbacks()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("form", ["causal", "mask", "plain", "shared heads"])
def test_attention_is_one_op_with_a_rule(dtype: Any, form: str) -> None:
    heads = 2 if form == "shared heads" and dtype is torch.bfloat16 else 4
    q, k, v = (torch.randn(2, h, 64, 32, device="cuda", dtype=dtype, requires_grad=True) for h in (4, heads, heads))
    mask = torch.rand(64, 64, device="cuda") > 0.3 if form == "mask" else None

    def function(q: Any, k: Any, v: Any) -> Any:
        return F.scaled_dot_product_attention(q, k, v, mask, 0.0, form == "causal", enable_gqa=heads == 2)

    grad = torch.randn_like(q)
    exact = [t.detach().double().requires_grad_(True) for t in (q, k, v)]
    want = function(*exact)
    got = ours.compile(function, strict=True)(q, k, v)
    tolerance = 1e-5 if dtype is torch.float32 else 2e-2
    pairs = [(got, want), *zip(torch.autograd.grad(got, (q, k, v), grad), torch.autograd.grad(
        want, exact, grad.double()))]
    assert all(float((g - w).norm()) <= tolerance * float(w.norm()) for g, w in pairs)
    assert not fallbacks()


def test_attention_on_parts_of_one_tensor_has_right_gradients() -> None:
    """The kernels of queries, keys and values differ in nothing but the part of the projection that they read."""
    x = torch.randn(2, 256, 3 * 4 * 64, device="cuda", dtype=torch.bfloat16)

    def function(x: Any) -> Any:
        q, k, v = (t.view(2, 256, 4, 64).transpose(1, 2) for t in x.chunk(3, -1))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)

    exact, given = x.double().requires_grad_(True), x.clone().requires_grad_(True)
    grad = torch.randn(2, 256, 4, 64, device="cuda", dtype=torch.bfloat16)
    want, got = function(exact), ours.compile(function, strict=True)(given)
    want.backward(grad.double())
    got.backward(grad)
    for g, w in ((got, want), (given.grad, exact.grad)):
        assert float((g - w).norm()) <= 2e-2 * float(w.norm())


@pytest.mark.parametrize("exact", [False, True])
def test_dropout_is_seeded_by_the_gpus_generator(exact: bool) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Dropout(0.5), torch.nn.Linear(64, 4)).cuda()
    run = ours.compile(model, exact_random=exact)
    x = torch.randn(4, 8, device="cuda")
    results = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        results.append([run(x).detach() for _ in range(4)])
    for a, b, c in zip(*results):
        assert torch.equal(a, b)
        assert not torch.equal(a, c)
    assert not torch.equal(results[0][0], results[0][1]), "the generator has advanced"
    assert fallbacks() == ({"aten.native_dropout.default"} if exact else set())
    run(x).sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_dropout_keeps_the_mean_and_its_gradient_follows_the_mask() -> None:
    x = torch.ones(1000, 100, requires_grad=True, device="cuda")
    y = ours.compile(lambda x: F.dropout(x, 0.3), strict=True)(x)
    assert (y == 0).double().mean().item() == pytest.approx(0.3, abs=0.01)
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())


def test_batch_norm_updates_its_buffers() -> None:
    model = torch.nn.Sequential(torch.nn.Conv1d(2, 3, 3), torch.nn.BatchNorm1d(3)).cuda()
    other = copy.deepcopy(model)
    run = ours.compile(other, strict=True)
    for _ in range(4):
        x = torch.randn(4, 2, 9, device="cuda")
        assert is_close(run(x), model(x))
    assert is_close(other[1].running_mean, model[1].running_mean)
    assert is_close(other[1].running_var, model[1].running_var)
    assert other[1].num_batches_tracked.item() == 4


@pytest.mark.parametrize("kind, more", [("AdamW", {}), ("SGD", {"momentum": 0.9})])
def test_an_optimizer_is_compiled_with_its_step(kind: str, more: dict[str, float]) -> None:
    check_optimizer(kind, "cuda", **more)


# *** memory ***


def test_inputs_are_written_in_place() -> None:
    check_writes_to_inputs("cuda")


def test_results_may_be_views_of_inputs_and_of_each_other() -> None:
    check_views("cuda")


@pytest.mark.parametrize("view", [
    lambda x: x.t(), lambda x: x[::2, 1:5:3], lambda x: x[:, 2], lambda x: x[1:2].expand(5, 64),
    lambda x: x.as_strided((3, 4), (2, 1)), lambda x: x[3:3], lambda x: x.flatten()[1:],
    lambda x: x.flatten()[3:4 * 64 + 3].view(4, 64)],
    ids=["transposed", "steps", "column", "expanded", "overlapping", "empty", "odd", "odd rows"])
def test_inputs_of_any_strides_and_addresses_are_read(view: Callable[[Any], Any]) -> None:
    x = view(torch.randn(64, 64, device="cuda"))
    function = lambda x: (x * 2 + 1, x.sum(0), x.clone())  # noqa: E731
    for got, want in zip(ours.compile(function, strict=True)(x), function(x)):
        assert is_close(got, want)
        assert got.stride() == want.stride()


def test_products_of_matrices_at_odd_addresses() -> None:
    run = ours.compile(lambda x, y: x @ y, strict=True)
    flat = torch.randn(2 * 128 * 128 + 8, device="cuda", dtype=torch.bfloat16)
    y = torch.randn(128, 128, device="cuda", dtype=torch.bfloat16)
    for start in (0, 1, 8, 3):
        x = flat[start:start + 128 * 128].view(128, 128)
        assert is_close(run(x, y).float(), x.float() @ y.float(), 3e-2)


def test_channels_last_results_keep_their_strides() -> None:
    model = torch.nn.Conv2d(8, 16, 3, padding=1).cuda().to(memory_format=torch.channels_last)
    x = torch.randn(2, 8, 5, 7, device="cuda").to(memory_format=torch.channels_last)
    want, got = model(x).relu(), ours.compile(lambda x: model(x).relu(), strict=True)(x)
    assert got.stride() == want.stride()
    assert is_close(got, want)


def test_all_memory_is_of_the_allocator_of_pytorch() -> None:
    model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(8))).cuda()
    run, x = ours.compile(model, strict=True), torch.randn(512, 256, device="cuda")
    for _ in range(3):
        run(x).sum().backward()
        model.zero_grad()
    mine, theirs = GlobalCounters.memory_on["CUDA"], torch.cuda.memory_allocated()
    for _ in range(3):
        run(x).sum().backward()
        model.zero_grad()
    assert GlobalCounters.memory_on["CUDA"] == mine <= 1 << 20
    assert torch.cuda.memory_allocated() == theirs


def test_earlier_results_stay_however_many_there_are() -> None:
    run = ours.compile(lambda x: ((x * 2).cumsum(0), (x + 1).sum(), x.softmax(0) - x), strict=True)
    inputs = [torch.full((1000,), float(n), device="cuda") for n in range(40)]
    results = [run(x) for x in inputs]
    for n, (scan, total, other) in enumerate(results):
        assert scan[-1].item() == 2000 * n
        assert total.item() == 1000 * (n + 1)
        assert is_close(other, torch.full((1000,), 0.001 - n, device="cuda"))


# *** streams ***


def test_programs_run_in_the_current_stream() -> None:
    run = ours.compile(lambda x: (x @ x).softmax(-1) + x, strict=True)
    x = torch.randn(64, 64, device="cuda")
    want = run(x).clone()
    torch.cuda.synchronize()
    for stream in (torch.cuda.Stream(), torch.cuda.Stream(), torch.cuda.default_stream()):
        with torch.cuda.stream(stream):
            y = torch.zeros_like(x)
            torch.cuda._sleep(50_000_000)  # what follows in this stream waits
            y.copy_(x)
            got = run(y)
            again = run(y)
            assert not stream.query(), "a call does not wait for the GPU"
            event = torch.cuda.Event()
            event.record(stream)
            event.synchronize()
        assert torch.equal(got, want)
        assert torch.equal(again, want)


def test_pytorch_captures_calls_in_its_cuda_graphs() -> None:
    model = models.Convolutional().cuda().eval()
    run = ours.compile(model, strict=True)
    x = torch.randn(4, 3, 16, 16, device="cuda")
    with torch.no_grad():
        for _ in range(3):
            run(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = run(x)
        for seed in (1, 2):
            torch.manual_seed(seed)
            x.copy_(torch.randn_like(x))
            graph.replay()
            assert is_close(y, model(x))


def test_random_numbers_in_a_captured_stream_are_an_error_that_names_the_option() -> None:
    run = ours.compile(lambda x: F.dropout(x, 0.5), strict=True)
    x = torch.ones(100, device="cuda")
    run(x)
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(Exception, match="exact_random=True"), torch.cuda.graph(graph):
        run(x)


def test_ops_without_a_rule_run_between_programs() -> None:
    def function(x: Any) -> Any:
        return (torch.fft.fft(x * 2).abs() + 1).sum(-1)

    x = torch.randn(8, 64, device="cuda")
    run = ours.compile(function)
    for _ in range(3):
        assert is_close(run(x), function(x))
    assert fallbacks()


def test_kernels_can_be_timed_one_by_one() -> None:
    run = ours.compile(lambda x: (x * 2).sum(0), strict=True)
    x = torch.randn(64, 64, device="cuda")
    with Context(DEBUG=2):
        assert is_close(run(x), (x * 2).sum(0))


# *** several devices ***


def test_a_graph_of_tensors_on_cpu_and_gpu_is_cut() -> None:
    def function(x: Any, y: Any) -> Any:
        return (x * 2 + y.cuda() + 1).sum(), (y * 3).sum() + x.cpu().mean()

    x, y = torch.randn(8, 8, device="cuda"), torch.randn(8, 8)
    for got, want in zip(ours.compile(function)(x, y), function(x, y)):
        assert got.device == want.device
        assert is_close(got, want)


def test_a_number_on_the_cpu_is_an_argument_on_the_gpu() -> None:
    run = ours.compile(lambda x, s: x * s + s, strict=True)
    x = torch.randn(8, 8, device="cuda")
    for s in (torch.tensor(2.0), torch.tensor(3.0)):
        assert is_close(run(x, s), x * s + s)


def test_a_model_runs_on_each_gpu() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("there is one GPU")
    for index in (1, 0, 1):
        device = torch.device("cuda", index)
        model = models.perceptron().to(device)
        x = torch.randn(4, 8, device=device)
        run = ours.compile(model, strict=True)
        for _ in range(3):
            y = run(x)
            assert y.device == device
            assert is_close(y, model(x))
        run(x).sum().backward()
        assert all(p.grad.device == device for p in model.parameters())
        assert torch.cuda.current_device() == 0

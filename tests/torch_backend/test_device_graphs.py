"""Graphs of other devices than this machine has: ops that PyTorch chooses on GPUs, partition by device, compilation."""
from __future__ import annotations

import json
import operator
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the backend of torch.compile needs PyTorch")

from torch._subclasses import FakeTensor, FakeTensorMode  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

import tinsmith.torch as ours  # noqa: E402
from benchmarks.corpus import record  # noqa: E402
from benchmarks.corpus.programs import CorpusProgram  # noqa: E402
from benchmarks.corpus.targets import device_name  # noqa: E402
from benchmarks.zoo import runner, targets  # noqa: E402
from tests.backend.gpus import needs_nvrtc  # noqa: E402
from tests.torch_backend import models  # noqa: E402
from tinsmith import Tensor  # noqa: E402
from tinsmith.torch.decompositions import decompositions  # noqa: E402
from tinsmith.torch.executable import Executable, Options  # noqa: E402
from tinsmith.torch.lowering import device_of, partition  # noqa: E402
from tinsmith.torch.report import GraphRecord  # noqa: E402
from tinsmith.torch.rules import attention  # noqa: E402

ATEN = torch.ops.aten
F = torch.nn.functional
GPU, OTHER = torch.device("cuda", 0), torch.device("cuda", 1)


def run_op(op: Any, *args: Any) -> list[Any]:
    """Return the results of one op by its rule; layouts are compared with PyTorch's."""
    graph, tensors = torch.fx.Graph(), [a for a in args if isinstance(a, torch.Tensor)]
    places = {id(t): graph.placeholder(f"x{n}") for n, t in enumerate(tensors)}
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    fakes = {id(t): mode.from_tensor(t) for t in tensors}
    with mode:
        want = op(*(fakes.get(id(a), a) for a in args))
    values = {places[id(t)]: fakes[id(t)] for t in tensors}
    node = graph.call_function(op, tuple(places.get(id(a), a) for a in args))
    values[node] = want
    found = []
    for n, value in enumerate(want):
        if isinstance(value, torch.Tensor):
            found.append(graph.call_function(operator.getitem, (node, n)))
            values[found[-1]] = value
    graph.output(found)
    module = torch.fx.GraphModule(torch.nn.Module(), graph)
    results = iter(Executable(module, values, GraphRecord("inference"), Options(strict=True))(tensors))
    got = [next(results) if isinstance(value, torch.Tensor) else value for value in want]
    for g, w in zip(got, want):
        assert not isinstance(w, torch.Tensor) or (g.shape, g.stride(), g.dtype) == (w.shape, w.stride(), w.dtype)
    return got


def forward_and_backward(kind: str, q: Any, k: Any, v: Any, bias: Any, causal: bool, grad: Any) -> list[Any]:
    """Return the result of one of the attention ops of GPUs, and its gradients."""
    forward = getattr(ATEN, f"_scaled_dot_product_{kind}_attention").default
    backward = getattr(ATEN, f"_scaled_dot_product_{kind}_attention_backward").default
    if kind == "flash":
        out, sums, _, _, most_q, most_k, seed, offset, _ = run_op(forward, q, k, v, 0.0, causal, False)
        return [out, *run_op(backward, grad, q, k, v, out, sums, None, None, most_q, most_k, 0.0, causal, seed, offset)]
    if kind == "cudnn":
        out, sums, _, _, most_q, most_k, seed, offset, _ = run_op(forward, q, k, v, bias, True, 0.0, causal, False)
        return [out, *run_op(backward, grad, q, k, v, out, sums, seed, offset, bias, None, None, most_q, most_k, 0.0,
                             causal)]
    out, sums, seed, offset = run_op(forward, q, k, v, bias, True, 0.0, causal)
    return [out, *run_op(backward, grad, q, k, v, bias, out, sums, seed, offset, 0.0, [True, True, True,
                                                                                       bias is not None], causal)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("kind", "heads", "rows", "keys", "causal", "biased"), [
    ("flash", 4, 16, 16, True, False), ("flash", 2, 9, 9, False, False), ("cudnn", 2, 9, 9, True, False),
    ("cudnn", 4, 5, 7, False, True), ("efficient", 4, 40, 40, True, False), ("efficient", 4, 5, 7, False, True)])
def test_attention_of_gpus(kind: str, heads: int, rows: int, keys: int, causal: bool, biased: bool,
                           dtype: Any) -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, n, h, 8).to(dtype).transpose(1, 2) for h, n in ((4, rows), (heads, keys), (heads, keys)))
    bias = torch.randn(2, 4, rows, keys).to(dtype) if biased else None
    exact = [None if t is None else t.double().requires_grad_(True) for t in (q, k, v, bias)]
    shared = [t.repeat_interleave(4 // heads, 1) for t in exact[1:3]]
    want = F.scaled_dot_product_attention(exact[0], *shared, exact[3], 0.0, causal)
    grad = torch.randn(2, rows, 4, 8).to(dtype).transpose(1, 2)
    given = [t for t in exact if t is not None]
    wanted = [want, *torch.autograd.grad(want, given, grad.double())]
    got = forward_and_backward(kind, q, k, v, bias, causal, grad)
    for g, w in zip(got, wanted):
        assert float((g.double() - w).norm()) <= (1e-5 if dtype is torch.float32 else 2e-2) * float(w.norm())


def test_views_of_memory_are_read_and_written() -> None:
    def function(x: Any, y: Any) -> Any:
        z = torch.zeros(6)
        z.as_strided((2, 3), (1, 2)).copy_(y)
        return x.as_strided((3, 4), (8, 2), 1) * 2, x.t().as_strided((2, 3), (3, 7), 5) + 1, z

    x, y = torch.arange(40.0).view(5, 8), torch.randn(2, 3)
    for got, want in zip(ours.compile(function, strict=True)(x, y), function(x, y)):
        assert torch.equal(got, want)


def test_ops_on_lists_of_tensors_are_ops_on_each() -> None:
    lists = [[torch.rand(3) + 0.5, torch.rand(2, 2) + 0.5] for _ in range(3)]

    def function(a: Any, b: Any, c: Any) -> Any:
        each = [torch._foreach_add(a, b, alpha=2), torch._foreach_mul(a, 3.0), torch._foreach_div(a, [2.0, 4.0]),
                torch._foreach_addcmul(a, b, c, value=0.5), torch._foreach_addcdiv(a, b, c, [0.5, 2.0]),
                torch._foreach_lerp(a, b, 0.25), torch._foreach_sqrt(a), torch._foreach_maximum(a, b),
                torch._foreach_minimum(a, 0.75), torch._foreach_pow(a, 2), torch._foreach_norm(a)]
        torch._foreach_sub_(a, b)
        torch._foreach_zero_(c)
        return [*each, a, c]

    run = ours.compile(function, strict=True)
    got, want = (f(*([t.clone() for t in some] for some in lists)) for f in (run, function))
    for some, others in zip(got, want):
        for g, w in zip(some, others):
            torch.testing.assert_close(g, w)
    assert not ours.report().fallbacks or not any("foreach" in op for op in ours.report().fallbacks)


# *** several devices ***


def faked(mode: Any, t: Any, device: Any) -> Any:
    """Return a fake tensor on a device that this machine need not have."""
    meta = torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="meta")
    return t if device.type == "cpu" else FakeTensor(mode, meta, device)


def traced(function: Any, *tensors: tuple[Any, Any]) -> Any:
    """Return the graph of a function of tensors on devices."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    fakes = [mode.from_tensor(t) if d.type == "cpu" else faked(mode, t, d) for t, d in tensors]
    with mode, torch.no_grad():
        return make_fx(function, decomposition_table=decompositions())(*fakes)


def values_of(module: Any) -> dict[Any, Any]:
    return {n: n.meta.get("val") for n in module.graph.nodes}


def parts_of(module: Any) -> list[tuple[bool, Any, Sequence[str]]]:
    values = values_of(module)
    nodes = [n for n in module.graph.nodes if n.op == "call_function"]
    found = partition(nodes, lambda n: device_of(n, values) is not None, lambda n: device_of(n, values))
    return [(p.ours, p.device, [n.name for n in p.nodes]) for p in found]


def test_a_program_is_on_one_device() -> None:
    cpu = torch.device("cpu")
    x, y, s = torch.ones(3), torch.ones(3), torch.tensor(2.0)
    module = traced(lambda x, y, z: (x * 2 + 1, y.exp() * 2, z - 1), (x, GPU), (y, cpu), (y, OTHER))
    assert sorted((str(device), len(names)) for _, device, names in parts_of(module)) == [
        ("cpu", 2), ("cuda:0", 2), ("cuda:1", 1)]
    module = traced(lambda x, s: x * s + s, (x, GPU), (s, cpu))
    assert [(ours, device) for ours, device, _ in parts_of(module)] == [(True, GPU)], "a number may be on the CPU"


def test_parts_come_in_the_order_of_their_dependencies() -> None:
    x, y, s = torch.ones(3), torch.ones(3), torch.tensor(2.0)

    def function(x: Any, y: Any, s: Any) -> Any:
        factor = s * 3 + 1  # on the CPU, then used on the GPU
        return x.exp() * factor, y + 1

    parts = parts_of(traced(function, (x, GPU), (y, OTHER), (s, torch.device("cpu"))))
    assert all(ours for ours, _, _ in parts)
    devices = [str(device) for _, device, _ in parts]
    assert devices.index("cpu") < len(devices) - 1 - devices[::-1].index("cuda:0")
    assert len(set(devices)) == 3


# *** GPUs that are not here ***


@pytest.mark.parametrize("name", ["perceptron", "transformer", "hourglass"])
def test_programs_of_fake_tensors_on_a_gpu_compile(name: str) -> None:
    """Graphs of tensors that have no memory, on a device that is not here, become kernels for sm_90a."""
    needs_nvrtc()
    torch.manual_seed(0)
    model, x = {"perceptron": (models.perceptron(), torch.randn(4, 8)),
                "transformer": (models.Transformer(width=64, layers=1), torch.randint(50, (2, 64))),
                "hourglass": (models.Hourglass(), torch.randn(2, 3, 16, 16))}[name]
    names, tensors = zip(*model.named_parameters(), *model.named_buffers())

    def function(x: Any, *state: Any) -> Any:
        return torch.func.functional_call(model, dict(zip(names, state)), (x,))

    module = traced(torch.func.functionalize(function, remove="mutations"), (x, GPU), *((t, GPU) for t in tensors))
    device = targets.CompileOnly("sm_90a")
    record = GraphRecord("inference")
    Executable(module, values_of(module), record, Options(strict=True), device.for_any)
    assert record.ops == record.ours
    assert record.kernels


def test_the_zoo_compiles_for_a_gpu_without_one(tmp_path: Path) -> None:
    needs_nvrtc()
    out = tmp_path / "zoo.json"
    assert runner.main(["--compile-only", "sm_80", "--models", "siren", "--rows", "training/bf16", "--strict", "--out",
                        str(out)]) == 0
    row = json.loads(out.read_text())["rows"]["siren/small/training/bf16"]
    assert row["passed"]
    assert row["kernels"]


def test_the_kernel_of_attention_stores_the_logarithms_of_its_sums() -> None:
    """In the layout of its tiles; the one that PyTorch wants, here positions before heads, is a copy."""
    q, k, v = (Tensor.empty(2, 4, 256, 64, dtype="bfloat16", device=device_name("sm_90a")) for _ in range(3))

    def run() -> Any:
        out, sums = attention._forward(q, k, v, False, None, None, 0.0)
        return Tensor.realize(out, sums.permute(0, 2, 1).contiguous())

    found = record.kernels(CorpusProgram("", lambda: run), "sm_90a")
    assert [bool(kernel.unit) for kernel in found] == [True, False]
    assert found[1].ops == 0

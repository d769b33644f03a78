"""Rules of ATen ops beside PyTorch, on samples of its own tests (OpInfo); ``PROPERTIES`` scales the number."""
from __future__ import annotations

import functools
import random
import warnings
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the backend of torch.compile needs PyTorch")
pytest.importorskip("expecttest", reason="PyTorch's test samples need expecttest")

from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

from tests.backend.gpus import missing_cuda  # noqa: E402
from tests.properties.runner import FEW  # noqa: E402
from tinsmith.torch.decompositions import decompositions  # noqa: E402
from tinsmith.torch.executable import Executable  # noqa: E402
from tinsmith.torch.report import GraphRecord  # noqa: E402
from tinsmith.torch.rules import RULES  # noqa: E402

# results that are random, or memory that nothing writes; ties in any order
OPEN = ("empty", "new_empty", "rand", "normal", "uniform", "exponential", "cauchy", "geometric", "bernoulli", "dropout",
        "multinomial", "rrelu", "fractional", "topk", "sort", "lowrank", "to_sparse", "resize", "as_strided",
        "jiterator", "attention_forward")
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.int64: 0, torch.bool: 0}


@functools.cache
def infos() -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db
    return [op for op in op_db if not any(word in op.name for word in OPEN)]


def flat(found: Any) -> list[Any]:
    """Return the tensors of a result."""
    if isinstance(found, torch.Tensor):
        return [found]
    return [t for v in found for t in flat(v)] if isinstance(found, (tuple, list)) else []


def traced(op: Any, sample: Any, gradients: bool = False) -> tuple[Any, list[Any], list[Any]] | None:
    """Return the graph of an op on a sample, its tensors and PyTorch's results; None if PyTorch cannot trace it.

    Args:
        gradients: the results are the gradients of a weighted sum of the op's results.
    """
    leaves, spec = torch.utils._pytree.tree_flatten(([sample.input, *sample.args], sample.kwargs))
    places = [n for n, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    def function(*tensors: Any) -> list[Any]:
        filled = list(leaves)
        for n, t in zip(places, tensors):
            filled[n] = t
        args, kwargs = torch.utils._pytree.tree_unflatten(filled, spec)
        return flat(op.op(*args, **kwargs))

    def slopes(*tensors: Any) -> list[Any]:
        wanted = [n for n, t in enumerate(tensors) if t.is_floating_point()]

        def total(*some: Any) -> Any:
            every = list(tensors)
            for n, t in zip(wanted, some):
                every[n] = t
            parts = [r for r in function(*every) if r.is_floating_point()]
            waves = [torch.cos(torch.arange(r.numel(), dtype=r.dtype, device=r.device)).view(r.shape) for r in parts]
            return sum((r * w).sum() for r, w in zip(parts, waves))

        value, pull = torch.func.vjp(total, *(tensors[n] for n in wanted))
        return list(pull(torch.ones_like(value)))

    tensors = [leaves[n].detach() for n in places]
    results = slopes if gradients else function
    try:
        want = results(*tensors)
        functional = torch.func.functionalize(results, remove="mutations")
        graph = make_fx(functional, decomposition_table=decompositions(), tracing_mode="fake")(*tensors)
    except Exception:  # sizes that depend on data, sparse tensors
        return None
    return graph, tensors, want


def check(op: Any, sample: Any, gradients: bool = False) -> bool:
    """Compare one sample; return True if our rules ran any op of it."""
    found = traced(op, sample, gradients)
    if found is None or any(t.layout is not torch.strided for t in (*found[1], *found[2])):
        return False
    graph, tensors, want = found
    nodes = [n for n in graph.graph.nodes if n.op == "call_function"]
    if sample.kwargs.get("dropout_p"):
        return False
    if any("unbacked_bindings" in n.meta or "dropout" in str(n.target) or "bernoulli" in str(n.target) or (
           getattr(n.target, "_schema", None) is not None and n.target._schema.is_mutable) for n in nodes):
        return False
    record = GraphRecord("inference")
    got = Executable(graph, {n: n.meta.get("val") for n in graph.graph.nodes}, record)(list(tensors))
    for g, w in zip(got, want):
        tolerance = TOLERANCE.get(w.dtype, 1e-4)
        tolerance = max(tolerance, TOLERANCE[torch.bfloat16]) if any(
            t.dtype is torch.bfloat16 for t in tensors) and w.dtype.is_floating_point else tolerance
        torch.testing.assert_close(g, w, rtol=tolerance, atol=tolerance, equal_nan=True,
                                   msg=lambda text: f"{op.name}: {text}\n{graph.code}")
    return record.ours > 0


DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]


def compare(ops: list[Any], device: str, dtype: Any, draw: random.Random, gradients: bool = False) -> None:
    """Compare drawn ops until enough of them were run by our rules."""
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("this PyTorch finds no GPU")
    if device == "cuda" and missing_cuda():
        pytest.skip(missing_cuda())
    wanted, run = max(FEW // 4, 1), 0
    draw.shuffle(ops)
    for op in ops:
        if run == wanted:
            break
        samples = list(op.sample_inputs(device, dtype, requires_grad=gradients))
        run += check(op, draw.choice(samples), gradients) if samples else 0
    assert run == min(wanted, len(ops)) or wanted > len(ops) // 2


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["float32", "bfloat16", "int64", "bool"])
@pytest.mark.filterwarnings("ignore")
def test_rules_agree_with_pytorch(name: str, device: str) -> None:
    dtype = getattr(torch, name)
    compare([op for op in infos() if dtype in op.supported_dtypes(device)], device, dtype, random.Random(name))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.filterwarnings("ignore")
def test_gradients_agree_with_pytorch(device: str) -> None:
    ops = [op for op in infos() if op.supports_autograd and torch.float32 in op.supported_backward_dtypes(device)]
    compare(ops, device, torch.float32, random.Random("gradients"), gradients=True)


def test_names_in_the_table_are_ops() -> None:
    """Each rule is of an op that PyTorch has, by its full name."""
    wrong = []
    for name in RULES:
        namespace, packet, overload = name.split(".") if name.startswith("prims.") and name.count(".") == 2 else (
            "prims", name.split(".")[1], "default") if name.startswith("prims.") else ("aten", *name.split("."))
        found = getattr(getattr(torch.ops, namespace), packet, None)
        if found is None or overload not in found.overloads():
            wrong.append(name)
    assert wrong == []

"""``python -m benchmarks zoo --ops``: the distinct ops of the zoo's graphs, each compared and timed.

An op is a name, its arguments, and shapes, strides and dtypes of its tensors. A process for each model finds those
of its graphs, forward and backward, after AOTAutograd's decompositions; they are run here, each compiled alone.
"""
from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
from torch._dynamo.backends.common import aot_autograd

from benchmarks.process import ROOT
from benchmarks.zoo import runner, summary
from benchmarks.zoo.measure import MODES, Subject, distance
from benchmarks.zoo.registry import models
from tinsmith.torch.compiler import _with_sizes
from tinsmith.torch.decompositions import decompositions
from tinsmith.torch.executable import Executable
from tinsmith.torch.lowering import VIEWS, is_getitem
from tinsmith.torch.report import REPORT, GraphRecord

_NAMED: Final = {"dtype": torch.dtype, "device": torch.device, "layout": torch.layout, "format": torch.memory_format}
TOLERANCE: Final = {torch.bfloat16: 3e-2, torch.float16: 1e-2}
RANDOM: Final = ("rand", "dropout", "bernoulli", "normal_", "empty", "multinomial")
SHORT, TURNS = 0.02, 3  # seconds of a sample, samples of each in turn


def encoded(value: Any) -> Any:
    """Return an argument of an FX node as JSON."""
    if isinstance(value, torch.fx.Node):
        return encoded(value.meta["val"])
    if isinstance(value, torch.Tensor):
        return {"tensor": [list(map(int, value.shape)), list(map(int, value.stride())), str(value.dtype).split(".")[1]]}
    if isinstance(value, (list, tuple)):
        return [encoded(v) for v in value]
    for name, kind in _NAMED.items():
        if isinstance(value, kind):
            return {name: str(value).removeprefix("torch.")}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"an argument {type(value).__name__}")


def decoded(value: Any, tensors: list[Any], bound: int) -> Any:
    """Return an argument from JSON; its tensors, of random values, go to ``tensors``. Integers are below ``bound``."""
    if isinstance(value, list):
        return [decoded(v, tensors, bound) for v in value]
    if not isinstance(value, dict):
        return value
    ((name, inner),) = value.items()
    if name == "device":
        return torch.device(inner)
    if name != "tensor":
        return getattr(torch, inner)
    shape, strides, dtype = inner[0], inner[1], getattr(torch, inner[2])
    memory = 1 + sum((n - 1) * stride for n, stride in zip(shape, strides)) if 0 not in shape else 0
    if dtype.is_floating_point:
        t = torch.rand(memory).add(0.1).to(dtype).as_strided(shape, strides)
    else:
        t = torch.randint(2 if dtype is torch.bool else bound, (memory,)).to(dtype).as_strided(shape, strides)
    tensors.append(t)
    return t


def found_in(graph: Any) -> set[str]:
    """Return the ops of a graph, as JSON; views, which cost nothing, are left out."""
    ops = set()
    for n in graph.graph.nodes:
        if n.op == "call_function" and not is_getitem(n) and str(n.target) not in VIEWS:
            try:
                ops.add(json.dumps([str(n.target), encoded(n.args), {k: encoded(v) for k, v in n.kwargs.items()}]))
            except (TypeError, KeyError):  # sizes that depend on data, functions as arguments
                continue
    return ops


def collect(name: str, size: str, precisions: Sequence[str]) -> list[str]:
    """Return the distinct ops of a model's graphs."""
    ops: set[str] = set()

    def compiler(graph: Any, inputs: Any) -> Any:
        ops.update(found_in(graph))
        return make_boxed_func(graph.forward)

    backend = aot_autograd(fw_compiler=compiler, bw_compiler=compiler, decompositions=decompositions(),
                           partition_fn=min_cut_rematerialization_partition)
    for mode in MODES:
        for precision in precisions:
            torch._dynamo.reset()
            subject = Subject(models()[name].build(size), mode, precision, True)
            subject.step(torch.compile(subject.module, backend=backend))
    return sorted(ops)


def _best(call: Callable[[], Any]) -> float:
    """Return the mean seconds of processor time of a call in one sample."""
    begin = time.process_time()
    count = 0
    while (spent := time.process_time() - begin) < SHORT or not count:
        call()
        count += 1
    return spent / count


def run(text: str) -> dict[str, Any]:
    """Return the row of one op: correct or not, its times, and if PyTorch ran it."""
    name, args, kwargs = json.loads(text)
    namespace, packet, overload = name.split(".")
    target = getattr(getattr(getattr(torch.ops, namespace), packet), overload)
    sizes = [s for t in _tensors([args, kwargs]) for s in t[0]]
    tensors: list[Any] = []
    torch.manual_seed(0)
    bound = max(min(sizes, default=1), 1)
    args, kwargs = decoded(args, tensors, bound), {k: decoded(v, tensors, bound) for k, v in kwargs.items()}
    if packet == "max_pool2d_with_indices_backward":  # indices that a forward pass gives
        args[-1].copy_(torch.ops.aten.max_pool2d_with_indices(args[1], *args[2:-1])[1])
    row: dict[str, Any] = {**runner._EMPTY, "key": text}
    try:
        module = _graph(target, args, kwargs, tensors)
        record = GraphRecord("inference")
        begin = time.perf_counter()
        ours = Executable(module, _with_sizes(module, tensors), record)
        row["first"] = {"tinsmith": time.perf_counter() - begin}
        want, got = torch.utils._pytree.tree_leaves(target(*args, **kwargs)), ours(tensors[:])
        pairs = [(g, w) for g, w in zip(got, want) if isinstance(w, torch.Tensor)]
        error = distance([g for g, _ in pairs], [w for _, w in pairs])
        low = max((TOLERANCE.get(t.dtype, 1e-4) for t in (*tensors, *(w for _, w in pairs))), default=1e-4)
        row["errors"], row["ops"], row["torch_ops"] = {"results": error}, record.ops, record.ops - record.ours
        row["correct"] = error <= low or any(word in name for word in RANDOM)
        row["kernels"] = dict.fromkeys(record.names, 1)
        calls = {"eager": lambda: target(*args, **kwargs), "tinsmith": lambda: ours(tensors[:])}
        for _ in range(TURNS):
            for system, call in calls.items():
                seconds = _best(call)
                row["seconds"] = {**row["seconds"], system: min(seconds, row["seconds"].get(system, seconds))}
    except Exception as error:
        row["error"] = f"{type(error).__name__}: {error}"[:300]
    row["fallbacks"] = {f.op: "; ".join(f.reasons) for f in REPORT.fallbacks.values()}
    REPORT.clear()
    row["passed"] = bool(row["correct"] and not row["error"] and not row["torch_ops"])
    return row


def _tensors(value: Any) -> list[Any]:
    """Return shape, strides and dtype of all tensors in encoded arguments."""
    if isinstance(value, dict):
        return [value["tensor"]] if set(value) == {"tensor"} else [t for v in value.values() for t in _tensors(v)]
    return [t for v in value for t in _tensors(v)] if isinstance(value, list) else []


def _graph(target: Any, args: Any, kwargs: Any, tensors: Sequence[Any]) -> Any:
    """Return the graph module that calls one op; all its results are those of the graph."""
    graph = torch.fx.Graph()
    places = {id(t): graph.placeholder(f"x{n}") for n, t in enumerate(tensors)}
    swapped = torch.utils._pytree.tree_map(lambda v: places.get(id(v), v), (tuple(args), kwargs))
    node = graph.call_function(target, *swapped)
    results = target(*args, **kwargs)
    graph.output([graph.call_function(_getitem, (node, n)) for n in range(len(results))] if isinstance(
        results, (tuple, list)) else [node])
    return torch.fx.GraphModule(torch.nn.Module(), graph)


def _getitem(value: Any, n: int) -> Any:
    return value[n]


_getitem.__name__ = "getitem"


def main(given: argparse.Namespace) -> int:
    """Collect the ops of the chosen models, run them, and keep the results; return 1 if one failed."""
    found = runner.opened(given.out, given)
    begin = time.monotonic()
    torch.set_num_threads(given.threads)
    precisions = sorted({kind.partition("/")[2] for kind in given.rows.split(",")})
    collected, rows = found.setdefault("collected", {}), found["rows"]
    warnings.simplefilter("ignore")
    for model in runner.chosen(given):
        if given.budget is not None and time.monotonic() - begin > given.budget * 60:
            print("the budget is spent; the same command continues", flush=True)
            break
        name = f"{model.name}/{given.sizes}"
        if name not in collected:
            done = subprocess.run([sys.executable, "-m", "benchmarks.zoo.ops", model.name, given.sizes, *precisions],
                                  capture_output=True, text=True, cwd=ROOT, timeout=given.limit * 4)
            collected[name] = json.loads(done.stdout) if done.returncode == 0 else []
        new = [text for text in collected[name] if text not in rows]
        for text in new:
            rows[text] = run(text)
            if not rows[text]["passed"]:
                print(f"FAIL {text[:300]}  {summary.reason(rows[text])}"[:500], flush=True)
        runner.save(given.out, found)
        print(f"     {name}: {len(new)} new ops of {len(collected[name])}", flush=True)
    if given.out is not None and rows:
        given.out.with_suffix(".md").write_text(summary.of_ops(found))
    return int(any(not row["passed"] for row in rows.values()))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print(json.dumps(collect(sys.argv[1], sys.argv[2], sys.argv[3:])))

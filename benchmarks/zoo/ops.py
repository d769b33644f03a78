"""``python -m benchmarks zoo --ops``: the distinct ops of the zoo's graphs, each compared and timed.

An op is a name, its arguments, and shapes, strides and dtypes of its tensors; not the device, so that the results of
two devices can be compared. A process for each model finds those of its graphs, forward and backward, after
AOTAutograd's decompositions and under autocast's rules of the device. Each is compiled alone: on the CPU here, one by
one; on a GPU, or with ``--workers``, several processes first compile and check ops, then one alone times them.
"""
from __future__ import annotations

import argparse
import functools
import json
import math
import os
import random
import re
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import torch
from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
from torch._dynamo.backends.common import aot_autograd

from benchmarks.process import ROOT
from benchmarks.zoo import op_clock, runner, summary
from benchmarks.zoo.measure import ALLOWED, MODES, Subject, distance, on_device
from benchmarks.zoo.op_workers import Worker, answers
from benchmarks.zoo.registry import Model, models
from tinsmith.torch.decompositions import decompositions
from tinsmith.torch.executable import Executable
from tinsmith.torch.lowering import VIEWS
from tinsmith.torch.report import REPORT, GraphRecord
from tinsmith.torch.saved import propagated

_NAMED: Final = {"dtype": torch.dtype, "layout": torch.layout, "format": torch.memory_format}
TOLERANCE: Final = {torch.bfloat16: 3e-2, torch.float16: 1e-2}
RANDOM: Final = ("rand", "dropout", "bernoulli", "normal_", "empty", "multinomial")
SHORT, TURNS = 0.02, 3  # seconds of a sample, samples of each in turn
LONGEST: Final = 60.0  # seconds that a process may take for an op
SHORT_OF_MEMORY: Final = "(?i)out ?of ?memory"
SAVED: Final = 20  # rows between two writes of the file


def encoded(value: Any) -> Any:
    """Return an argument of an FX node as JSON."""
    if isinstance(value, torch.fx.Node):
        return encoded(value.meta["val"])
    if isinstance(value, torch.Tensor):
        return {"tensor": [list(map(int, value.shape)), list(map(int, value.stride())), str(value.dtype).split(".")[1]]}
    if isinstance(value, (list, tuple)):
        return [encoded(v) for v in value]
    if isinstance(value, torch.device):
        return {"device": "any"}
    for name, kind in _NAMED.items():
        if isinstance(value, kind):
            return {name: str(value).removeprefix("torch.")}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"an argument {type(value).__name__}")


def decoded(value: Any, tensors: list[Any], bound: int, device: str = "cpu") -> Any:
    """Return an argument from JSON; its tensors, of random values, go to ``tensors``. Integers are below ``bound``."""
    if isinstance(value, list):
        return [decoded(v, tensors, bound, device) for v in value]
    if not isinstance(value, dict):
        return value
    ((name, inner),) = value.items()
    if name == "device":
        return torch.device(device)
    if name != "tensor":
        return getattr(torch, inner)
    shape, strides, dtype = inner[0], inner[1], getattr(torch, inner[2])
    memory = 1 + sum((n - 1) * stride for n, stride in zip(shape, strides)) if 0 not in shape else 0
    if dtype.is_floating_point:
        t = torch.rand(memory, device=device).add(0.1).to(dtype).as_strided(shape, strides)
    else:
        flat = torch.randint(2 if dtype is torch.bool else bound, (memory,), device=device)
        t = flat.to(dtype).as_strided(shape, strides)
    tensors.append(t)
    return t


def found_in(graph: Any) -> set[str]:
    """Return the ops of a graph, as JSON; views, which cost nothing, are left out."""
    ops = set()
    for n in graph.graph.nodes:
        ours = n.op == "call_function" and isinstance(n.target, torch._ops.OpOverload)
        if ours and str(n.target) not in VIEWS:
            try:
                ops.add(json.dumps([str(n.target), encoded(n.args), {k: encoded(v) for k, v in n.kwargs.items()}]))
            except (TypeError, KeyError):  # sizes that depend on data, functions as arguments
                continue
    return ops


def collect(name: str, size: str, device: str, precisions: Sequence[str]) -> list[str]:
    """Return the distinct ops of a model's graphs on a device: autocast and attention differ between devices."""
    ops: set[str] = set()
    failed: Exception | None = None

    def compiler(graph: Any, inputs: Any) -> Any:
        ops.update(found_in(graph))
        return make_boxed_func(graph.forward)

    backend = aot_autograd(fw_compiler=compiler, bw_compiler=compiler, decompositions=decompositions(),
                           partition_fn=min_cut_rematerialization_partition)
    for mode in MODES:
        for precision in precisions:
            torch._dynamo.reset()
            subject = Subject(on_device(models()[name].build(size), device), mode, precision, True, device)
            try:
                subject.step(torch.compile(subject.module, backend=backend))
            except Exception as error:  # a mode that the device refuses; the others have ops
                failed = error
    if not ops and failed is not None:
        raise failed
    return sorted(ops)


class Op:
    """An op with arguments of random values on a device, and its results in eager PyTorch."""

    def __init__(self, text: str, device: str) -> None:
        self.name, args, kwargs = json.loads(text)
        namespace, packet, overload = self.name.split(".")
        self.target = getattr(getattr(getattr(torch.ops, namespace), packet), overload)
        sizes = [s for t in _tensors([args, kwargs]) for s in t[0]]
        self.tensors: list[Any] = []
        torch.manual_seed(0)
        decode = functools.partial(decoded, tensors=self.tensors, bound=max(min(sizes, default=1), 1), device=device)
        self.args, self.kwargs = decode(args), {k: decode(v) for k, v in kwargs.items()}
        if packet == "max_pool2d_with_indices_backward":  # indices that a forward pass gives
            self.args[-1].copy_(torch.ops.aten.max_pool2d_with_indices(self.args[1], *self.args[2:-1])[1])
        if packet == "scatter" and overload == "src":  # of two updates of one element, any may be the last
            x, axis, index = self.args[:3]
            index.copy_(torch.rand([*index.shape[:axis % x.ndim], x.shape[axis], *index.shape[axis % x.ndim + 1:]],
                                   device=device).argsort(axis).narrow(axis, 0, index.shape[axis]))
        results = self.eager()
        self.several = isinstance(results, (tuple, list))
        self.kept = [n for n, r in enumerate(results) if self._is_kept(r)] if self.several else [0]
        self.results = self.chosen(results)

    def eager(self) -> Any:
        """Return the results of PyTorch's own call."""
        return self.target(*self.args, **self.kwargs)

    def _is_kept(self, result: Any) -> bool:
        """Return True for a tensor; of attention only for its numbers, not for random states and masks to debug."""
        return isinstance(result, torch.Tensor) and (
            "attention" not in self.name or (result.is_floating_point() and result.numel() > 0))

    def chosen(self, results: Any) -> list[Any]:
        """Return the results that are computed and compared."""
        return [results[n] for n in self.kept] if self.several else [results]

    def graph(self) -> Any:
        """Return the graph module that calls the op."""
        graph = torch.fx.Graph()
        places = {id(t): graph.placeholder(f"x{n}") for n, t in enumerate(self.tensors)}
        swapped = torch.utils._pytree.tree_map(lambda v: places.get(id(v), v), (tuple(self.args), self.kwargs))
        node = graph.call_function(self.target, *swapped)
        graph.output([graph.call_function(_getitem, (node, n)) for n in self.kept] if self.several else [node])
        return torch.fx.GraphModule(torch.nn.Module(), graph)

    def bytes(self) -> int:
        """Return the bytes of inputs and results; an axis of stride 0 is one element."""
        tensors = (*self.tensors, *(t for t in self.results if isinstance(t, torch.Tensor)))
        return sum(t.itemsize * math.prod(n for n, s in zip(t.shape, t.stride()) if s or not n) for t in tensors)

    def precise(self) -> list[Any]:
        """Return eager PyTorch's results without TF32 in its convolutions."""
        usual, torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.allow_tf32, False
        try:
            return self.chosen(self.eager())
        finally:
            torch.backends.cudnn.allow_tf32 = usual


def _check(op: Op, got: Sequence[Any], device: str, row: dict[str, Any]) -> None:
    """Fill in the error of our results, and if they are correct.

    On a GPU up to 4 times the error of eager PyTorch's own TF32 is, too.
    """
    number = [n for n, w in enumerate(op.results) if isinstance(w, torch.Tensor)]
    mine, want = [got[n] for n in number], [op.results[n] for n in number]
    error = distance(mine, want)
    low = max((TOLERANCE.get(t.dtype, 1e-4) for t in (*op.tensors, *want)), default=1e-4)
    is_random = any(word in op.name for word in RANDOM)
    if error > low and device != "cpu" and not is_random:
        precise = op.precise()
        error, low = min(error, distance(mine, precise)), max(low, ALLOWED * distance(want, precise))
    row["errors"], row["correct"] = {"results": error}, error <= low or is_random


def _best(call: Callable[[], Any]) -> float:
    """Return the mean seconds of processor time of a call in one sample."""
    begin = time.process_time()
    count = 0
    while (spent := time.process_time() - begin) < SHORT or not count:
        call()
        count += 1
    return spent / count


def _times(op: Op, ours: Executable, device: str, phase: str) -> dict[str, Any]:
    """Return the fields of a row that have times."""
    calls: dict[str, Callable[[], Any]] = {"eager": op.eager, "tinsmith": lambda: ours(op.tensors[:])}
    if device != "cpu":
        op.results = []  # their memory
        return op_clock.timed(calls, capture=phase != "calls")
    seconds: dict[str, float] = {}
    for _ in range(TURNS):
        for system, call in calls.items():
            seconds[system] = min(spent := _best(call), seconds.get(system, spent))
    return {"seconds": seconds, "timed": "processor"}


def run(text: str, phase: str = "all", device: str = "cpu") -> dict[str, Any]:
    """Return the row of one op: correct or not, its times, and if PyTorch ran it.

    Args:
        phase: "check": compile and compare; "time": time, "calls": without CUDA graphs; "all": compare and time.
    """
    row: dict[str, Any] = {**runner.EMPTY, "key": text, "timed": ""}
    try:
        op = Op(text, device)
        row["bytes"] = op.bytes()
        module, record = op.graph(), GraphRecord("inference")
        begin = time.perf_counter()
        ours = Executable(module, propagated(module, op.tensors), record)
        row["first"] = {"tinsmith": time.perf_counter() - begin}
        row["ops"], row["torch_ops"] = record.ops, record.ops - record.ours
        row["kernels"] = dict.fromkeys(record.names, 1)
        if phase in ("check", "all"):
            _check(op, ours(op.tensors[:]), device, row)
        if phase != "check":
            row.update(_times(op, ours, device, phase))
        if device != "cpu":
            torch.cuda.synchronize()
    except Exception as error:
        row["error"] = f"{type(error).__name__}: {error}".replace("\n", " ")[:300]
    row["fallbacks"] = {f.op: "; ".join(f.reasons) for f in REPORT.fallbacks.values()}
    REPORT.clear()
    row["passed"] = _passed(row)
    return row


def _passed(row: dict[str, Any]) -> bool:
    return bool(row["correct"] and not row["error"] and not row["torch_ops"])


def is_broken(device: str) -> bool:
    """Return True if no other op can run in this process, and release PyTorch's idle memory."""
    if device == "cpu":
        return False
    try:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    except RuntimeError:
        return True
    return False


def _tensors(value: Any) -> list[Any]:
    """Return shape, strides and dtype of all tensors in encoded arguments."""
    if isinstance(value, dict):
        return [value["tensor"]] if set(value) == {"tensor"} else [t for v in value.values() for t in _tensors(v)]
    return [t for v in value for t in _tensors(v)] if isinstance(value, list) else []


def _getitem(value: Any, n: int) -> Any:
    return value[n]


_getitem.__name__ = "getitem"


class Phases:
    """Compile and check ops in several processes, then time them in one.

    Args:
        given: the command line.
        found: the results; rows go there, which ``save`` writes.
    """

    def __init__(self, given: argparse.Namespace, found: dict[str, Any]) -> None:
        self.given, self.found, self.rows = given, found, found["rows"]
        limit = min(given.limit, LONGEST)
        self.workers = [Worker(given.device.lower(), given.threads, limit) for _ in range(given.workers)]

    def __call__(self, texts: Sequence[str], deadline: float) -> None:
        """Fill in the rows of ops. At most half of the time until the deadline goes to compiling."""
        new = [text for text in texts if text not in self.rows]
        now = time.monotonic()
        middle = now + (deadline - now) / 2
        self._each(new, "check", self.workers, middle)
        short = [t for t in new if t in self.rows and re.search(SHORT_OF_MEMORY, self.rows[t]["error"])]
        self._each(short, "check", self.workers[:1], middle)  # with all of the GPU's memory
        checked = [t for t in texts if t in self.rows and not self.rows[t]["error"] and not self.rows[t]["timed"]]
        print(f"     {len(new)} ops to compile: {time.monotonic() - now:.0f} s; {len(checked)} to time", flush=True)
        self._each(checked, "time", self.workers[:1], deadline)
        again = [t for t in checked if self.rows[t]["error"]]  # after a capture the GPU may be unusable
        self._each(again, "calls", self.workers[:1], deadline)
        for text in new:
            if text in self.rows and not self.rows[text]["passed"]:
                _report(text, self.rows[text])

    def _each(self, texts: Sequence[str], phase: str, workers: Sequence[Worker], deadline: float) -> None:
        for n, (text, row) in enumerate(answers(workers, texts, phase, deadline)):
            self.rows[text] = row if phase == "check" else _with_times(self.rows[text], row)
            if n % SAVED == SAVED - 1:
                runner.save(self.given.out, self.found)

    def close(self) -> None:
        for worker in self.workers:
            worker.close()


def _with_times(row: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Return a checked row with the times, or the error, of a second one."""
    fields = {k: new[k] for k in ("error", "seconds", "call_seconds", "timed", "not_captured") if k in new}
    found = {**row, **fields}
    return {**found, "passed": _passed(found)}


def _report(text: str, row: dict[str, Any]) -> None:
    print(f"FAIL {text[:300]}  {summary.reason(row)}"[:500], flush=True)


def _one_by_one(rows: dict[str, Any], texts: Sequence[str], deadline: float) -> None:
    """Fill in the rows of ops on the CPU, in this process."""
    for text in texts:
        if text not in rows and time.monotonic() < deadline:
            rows[text] = run(text)
            if not rows[text]["passed"]:
                _report(text, rows[text])


def _collected(model: Model, given: argparse.Namespace, deadline: float) -> list[str] | None:
    """Return the ops of a model, found by a process of its own; None, with a message, if it fails."""
    precisions = sorted({kind.partition("/")[2] for kind in given.rows.split(",")})
    command = [sys.executable, "-m", "benchmarks.zoo.ops", model.name, given.sizes, given.device.lower(), *precisions]
    seconds = min(given.limit * 4, max(0.4 * (deadline - time.monotonic()), 10))
    try:
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=seconds)
        if done.returncode == 0:
            return list(json.loads(done.stdout.splitlines()[-1]))
        reason = (done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"])[-1]
    except subprocess.TimeoutExpired:
        reason = f"no answer in {seconds:.0f} s"
    print(f"FAIL the ops of {model.name}: {reason}"[:500], flush=True)
    return None


def _batches(given: argparse.Namespace, found: dict[str, Any], deadline: float) -> Iterator[tuple[str, list[str]]]:
    """Yield ops to run together, with their name: those of a model, or the sample of all."""
    collected, chosen = found.setdefault("collected", {}), runner.chosen(given)
    step = len(chosen) if given.sample else max(given.workers, 1)
    for n in range(0, len(chosen), step):
        part = {f"{m.name}/{given.sizes}": m for m in chosen[n:n + step]}
        missing = [name for name in part if name not in collected]
        if time.monotonic() > deadline:
            break
        with ThreadPoolExecutor(max(given.workers, 1)) as pool:
            find = functools.partial(_collected, given=given, deadline=deadline)
            for name, ops in zip(missing, pool.map(find, [part[name] for name in missing])):
                if ops is not None:
                    collected[name] = ops
        if given.sample:
            runner.save(given.out, found)
            yield "the sample", drawn([op for name in part for op in collected.get(name, [])], given.sample, given.seed)
            continue
        for name in part:
            if time.monotonic() <= deadline:
                yield name, collected.get(name, [])
    if time.monotonic() > deadline:
        print("the budget is spent; the same command continues", flush=True)


def drawn(texts: Sequence[str], count: int, seed: int) -> list[str]:
    """Return ``count`` distinct ops, drawn at random: one of each name first, then any."""
    generator = random.Random(seed)
    left = sorted(set(texts))
    generator.shuffle(left)
    first = list({json.loads(text)[0]: text for text in left}.values())
    rest = [text for text in left if text not in set(first)]
    return [*first, *rest][:count]


def main(given: argparse.Namespace) -> int:
    """Collect the ops of the chosen models, run them, and keep the results; return 1 if one failed."""
    found = runner.opened(given.out, given)
    if found.setdefault("device", "CPU") != given.device:
        raise SystemExit(f"{given.out} has results of the device {found['device']}")
    deadline = time.monotonic() + (math.inf if given.budget is None else given.budget * 60)
    torch.set_num_threads(given.threads)
    warnings.simplefilter("ignore")
    if given.workers is None:
        given.workers = 0 if given.device == "CPU" else len(os.sched_getaffinity(0))
    rows, phases = found["rows"], Phases(given, found) if given.workers else None
    try:
        for name, texts in _batches(given, found, deadline):
            before = len(rows)
            if phases is not None:
                phases(texts, deadline)
            else:
                _one_by_one(rows, texts, deadline if given.sample else math.inf)
            runner.save(given.out, found)
            print(f"     {name}: {len(rows) - before} new ops of {len(texts)}", flush=True)
    finally:
        if phases is not None:
            phases.close()
    if given.out is not None and rows:
        given.out.with_suffix(".md").write_text(summary.of_ops(found))
    return int(any(not row["passed"] for row in rows.values()))


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    warnings.simplefilter("ignore")
    print(json.dumps(collect(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:])))

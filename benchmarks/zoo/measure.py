"""Correctness, times and memory of one model under eager PyTorch, Tinsmith and Inductor."""

from __future__ import annotations

import contextlib
import copy
import gc
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch

import tinsmith.torch as ours
from benchmarks.zoo import targets
from benchmarks.zoo.registry import Example, Model

MODES: Final = ("inference", "training")
PRECISIONS: Final = ("f32", "bf16")
STEPS: Final = 10  # training steps with equal losses
SLACK: Final = {"f32": 1e-4, "bf16": 1e-2}  # relative error allowed beside ALLOWED times eager PyTorch's own
ALLOWED: Final = 4.0
MOST: Final = 0.5  # relative error of all gradients together, at most, whatever eager PyTorch's own: zeros have 1.0
LOSSES: Final = {"f32": 2e-3, "bf16": 5e-2}  # relative difference of two losses
SECONDS: Final = 2.0  # of each system per row, at most, after the first round
SHORT: Final = 0.02  # seconds; shorter steps are repeated in a turn
SHARE: Final = 0.05  # of ops or time that PyTorch may run

System = str  # "eager", "tinsmith" or "inductor"


@dataclass(frozen=True)
class Settings:
    """Options of a measurement.

    Attributes:
        rounds: timed rounds in turn; 0: no times.
        inductor: time Inductor, too.
        device: PyTorch's device.
        compile_only: a GPU to compile for, without running anything on it; "" to measure.
    """

    rounds: int = 5
    inductor: bool = False
    strict: bool = False
    device: str = "cpu"
    compile_only: str = ""


@dataclass
class Row:
    """The results of one model, size, mode and precision; ``error`` is "" where all went well."""

    key: str
    correct: bool = False
    error: str = ""
    errors: dict[str, float] = field(default_factory=dict)  # relative errors, of results, gradients and losses
    seconds: dict[str, float] = field(default_factory=dict)  # the least of a call, by system
    first: dict[str, float] = field(default_factory=dict)  # the first call, by system, tracing included
    peak: dict[str, int] = field(default_factory=dict)  # bytes that a call needs at most, by system
    graphs: int = 0
    breaks: int = 0
    ops: int = 0
    torch_ops: int = 0  # ops that PyTorch ran
    torch_share: float = 0.0  # their share of time
    fallbacks: dict[str, str] = field(default_factory=dict)  # op → reason
    kernels: dict[str, int] = field(default_factory=dict)  # name → number of places

    @property
    def passed(self) -> bool:
        """Return True if results are right and PyTorch ran at most 5 % of ops and time."""
        return self.correct and not self.error and self.torch_ops <= SHARE * self.ops and self.torch_share <= SHARE


class Training(torch.nn.Module):  # type: ignore[misc, unused-ignore]
    """A model and its loss as one module."""

    def __init__(self, example: Example) -> None:
        super().__init__()
        self.model, self.loss = example.module, example.loss

    def forward(self, inputs: tuple[Any, ...], targets: tuple[Any, ...]) -> Any:
        return self.loss(self.model(*inputs), *targets)


def _leaves(found: Any) -> list[Any]:
    """Return the floating-point tensors of a result."""
    return [t for t in torch.utils._pytree.tree_leaves(found) if isinstance(t, torch.Tensor) and t.is_floating_point()]


def _moved(value: Any, device: str) -> Any:
    return torch.utils._pytree.tree_map(lambda t: t.to(device) if isinstance(t, torch.Tensor) else t, value)


def on_device(example: Example, device: str) -> Example:
    """Return an example with its module and tensors on a device."""
    return Example(
        example.module.to(device), _moved(example.inputs, device), _moved(example.targets, device), example.loss
    )


def finished(device: str) -> float:
    """Return the time after all work of the device has ended."""
    if device != "cpu":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def _cast(value: Any, dtype: Any) -> Any:
    return torch.utils._pytree.tree_map(
        lambda t: t.to(dtype) if isinstance(t, torch.Tensor) and t.is_floating_point() else t, value
    )


def distance(got: list[Any], want: list[Any]) -> float:
    """Return the greatest relative error (norm of the difference / norm) of the tensors of two results.

    A tensor that is small beside the others counts by their mean norm: a gradient that is zero but for rounding.
    """
    pairs = _pairs(got, want)
    if pairs is None:
        return float("inf")
    norms = [float(w.norm()) for _, w in pairs]
    floor = 1e-2 * sum(norms) / max(len(norms), 1) + 1e-12
    return max((_finite(float((g - w).norm()) / max(norm, floor)) for (g, w), norm in zip(pairs, norms)), default=0.0)


def distance_in_all(got: list[Any], want: list[Any]) -> float:
    """Return the relative error of all tensors of a result as one vector: 1.0 if ``got`` is zero."""
    pairs = _pairs(got, want)
    if pairs is None:
        return float("inf")
    difference = sum(float((g - w).norm()) ** 2 for g, w in pairs)
    return _finite((difference / (sum(float(w.norm()) ** 2 for _, w in pairs) + 1e-24)) ** 0.5)


def _pairs(got: list[Any], want: list[Any]) -> list[tuple[Any, Any]] | None:
    """Return the tensors of two results in float64; None if they differ in number or shapes.

    Elements that are not finite and equal are zero in both: -inf is a usual value of masked scores.
    """
    if len(got) != len(want) or any(
        (g is None) != (w is None) or (g is not None and g.shape != w.shape) for g, w in zip(got, want)
    ):
        return None
    pairs = [(g.detach().double(), w.detach().double()) for g, w in zip(got, want) if g is not None]
    for n, (g, w) in enumerate(pairs):
        same = (g == w) | (g.isnan() & w.isnan())
        w = w.masked_fill(same & ~w.isfinite(), 0)
        pairs[n] = torch.where(same, w, g), w
    return pairs


def _finite(value: float) -> float:
    return value if value == value else float("inf")


def without_dropout(module: Any) -> None:
    """Set all dropout of a module to zero: results of different generators have to agree."""
    for m in module.modules():
        if isinstance(m, torch.nn.modules.dropout._DropoutNd):
            m.p = 0.0


class Subject:
    """A model in one mode and precision.

    Args:
        small: compare with float64 as well; without it eager PyTorch is the reference.
        device: PyTorch's device, where the example's tensors are.
    """

    def __init__(self, example: Example, mode: str, precision: str, small: bool, device: str = "cpu") -> None:
        self.example, self.mode, self.precision, self.device = example, mode, precision, device
        without_dropout(example.module)
        example.module.train(mode == "training")
        self.module = Training(example) if mode == "training" else example.module
        self.args = (example.inputs, example.targets) if mode == "training" else example.inputs
        self.initial = copy.deepcopy(self.module.state_dict())
        self.small = small

    @contextlib.contextmanager
    def _mode(self) -> Any:
        grad = torch.enable_grad() if self.mode == "training" else torch.no_grad()
        low = torch.autocast(self.device.split(":")[0], dtype=torch.bfloat16, enabled=self.precision == "bf16")
        with grad, low:
            yield

    def forward(self, run: Callable[..., Any]) -> Any:
        with self._mode():
            return run(*self.args)

    def step(self, run: Callable[..., Any]) -> Any:
        """Run inference, or a forward and a backward pass; return the result."""
        if self.mode == "inference":
            return self.forward(run)
        for p in self.module.parameters():
            p.grad = None
        loss = self.forward(run)
        loss.backward()
        return loss

    def results(self, run: Callable[..., Any]) -> dict[str, list[Any]]:
        """Return results, gradients and changed buffers of one step from the initial state."""
        self.module.load_state_dict(self.initial)
        torch.manual_seed(1)
        found = {"results": [t.detach().clone() for t in _leaves(self.step(run))]}
        if self.mode == "training":
            found["gradients"] = [None if p.grad is None else p.grad.clone() for p in self.module.parameters()]
            found["buffers"] = [b.clone() for b in self.module.buffers() if b.is_floating_point()]
        return found

    def exact(self) -> tuple[dict[str, list[Any]], list[float]] | None:
        """Return results and losses in float64, or for bf16 in float32; None if the model cannot be run in it."""
        for dtype in (torch.float64, torch.float32)[: 1 + (self.precision == "bf16")]:
            self.module.load_state_dict(self.initial)
            wide = Subject(
                Example(
                    copy.deepcopy(self.example.module).to(dtype),
                    _cast(self.example.inputs, dtype),
                    _cast(self.example.targets, dtype),
                    self.example.loss,
                ),
                self.mode,
                "f32",
                True,
                self.device,
            )
            try:
                found = wide.results(wide.module)
            except RuntimeError:  # a dtype written in the model
                continue
            if all(t.dtype is dtype for t in found["results"]):
                return found, wide.losses(wide.module) if self.mode == "training" else []
        return None

    def losses(self, run: Callable[..., Any]) -> list[float]:
        """Return the losses of ``STEPS`` training steps from the initial state."""
        self.module.load_state_dict(self.initial)
        optimizer = torch.optim.SGD(self.module.parameters(), lr=1e-3, momentum=0.9)
        torch.manual_seed(1)
        found = []
        for _ in range(STEPS):
            found.append(float(self.step(run)))
            optimizer.step()
        return found


def compare(subject: Subject, run: Callable[..., Any], row: Row) -> None:
    """Fill in the errors of a compiled model, and if it is correct.

    Of a training step in bf16 that has an exact reference, what PyTorch computes from the graph that backends get is
    another: under autocast, products of its backward pass have other dtypes than eager PyTorch's.
    """
    eager = graph = subject.results(subject.module)
    if subject.small and subject.mode == "training" and subject.precision == "bf16":
        graph = subject.results(torch.compile(subject.module, backend="aot_eager"))
    begin = finished(subject.device)
    got = subject.results(run)
    row.first["tinsmith"] = finished(subject.device) - begin
    exact = subject.exact() if subject.small else None
    slack, right = SLACK[subject.precision], True
    for name, want in eager.items():
        ideal = exact[0][name] if exact is not None else want
        error, own = distance(got[name], ideal), distance(want, ideal)
        between = min(distance(got[name], want), distance(got[name], graph[name]))
        row.errors[name], row.errors[f"eager {name}"] = min(error, between), own
        right &= min(error, between) <= ALLOWED * own + slack * (1 if subject.small else 5)
        right &= distance_in_all(got[name], ideal) <= MOST
    if subject.mode == "training":
        ours_, theirs = subject.losses(run), subject.losses(subject.module)
        row.errors["losses"] = apart(ours_, theirs)
        own = row.errors["eager losses"] = apart(theirs, exact[1]) if exact is not None else 0.0
        right &= row.errors["losses"] <= ALLOWED * own + LOSSES[subject.precision]
    row.correct = right


def apart(losses: list[float], others: list[float]) -> float:
    """Return the greatest relative difference of losses; a loss that is NaN in both is equal."""
    return max(
        _finite(abs(a - b) / max(abs(b), 1e-3)) if a == a or b == b else 0.0 for a, b in zip(losses, others)
    )


def peak_of(call: Callable[[], Any], device: str = "cpu") -> int:
    """Return the bytes that a call needs beyond those in use before; 0 where Linux does not tell.

    On a GPU these are the bytes of PyTorch's allocator, which all systems use.
    """
    gc.collect()
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        call()
        return int(torch.cuda.max_memory_allocated(device)) - before
    try:
        Path("/proc/self/clear_refs").write_text("5")
        before = _status("VmRSS")
        call()
        return max(_status("VmHWM") - before, 0)
    except (OSError, KeyError):
        return 0


def _status(name: str) -> int:
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines[name].split()[0]) * 1024


def time_in_turn(subject: Subject, runs: dict[System, Callable[..., Any]], row: Row, rounds: int) -> None:
    """Fill in the least time of a step for each system, and PyTorch's share of ours.

    With one thread on the CPU, it is the processor's time, which other programs on the machine change little. Short
    steps are repeated in each turn.
    """
    alone = subject.device == "cpu" and torch.get_num_threads() == 1
    spent = dict.fromkeys(runs, 0.0)
    outside, total = 0.0, 0.0
    for turn in range(rounds + 1):
        for name, run in runs.items():
            if turn > 1 and spent[name] > SECONDS:
                continue
            before = sum(f.seconds for f in ours.report().fallbacks.values())
            here = 0.0
            while here < SHORT:
                begin, used = finished(subject.device), time.process_time()
                subject.step(run)
                used, seconds = time.process_time() - used, finished(subject.device) - begin
                if turn == 0:
                    break
                here += seconds
                measured = used if alone else seconds
                row.seconds[name] = min(measured, row.seconds.get(name, measured))
            if turn == 0:  # the caches of all are warm from here
                row.first.setdefault(name, seconds)
                continue
            spent[name] += here
            if name == "tinsmith":
                total += here
                outside += sum(f.seconds for f in ours.report().fallbacks.values()) - before
    if subject.device != "cpu" and row.torch_ops:
        outside, total = waited(subject, runs["tinsmith"])
    row.torch_share = outside / total if total else 0.0
    for name, run in runs.items():
        row.peak[name] = peak_of(lambda run=run: subject.step(run), subject.device)  # type: ignore[misc]


def waited(subject: Subject, run: Callable[..., Any]) -> tuple[float, float]:
    """Return the seconds of PyTorch's ops and of all work in a step on a GPU that waits for each of these ops."""
    report = ours.report()
    report.waits = True
    try:
        before, begin = sum(f.seconds for f in report.fallbacks.values()), finished(subject.device)
        subject.step(run)
        total = finished(subject.device) - begin
    finally:
        report.waits = False
    return sum(f.seconds for f in report.fallbacks.values()) - before, total


def account(row: Row) -> None:
    """Fill in what the backend reports about the graphs."""
    report = ours.report()
    row.graphs, row.breaks = len(report.graphs), sum(torch._dynamo.utils.counters["graph_break"].values())
    row.ops = sum(g.ops for g in report.graphs)
    row.torch_ops = sum(g.ops - g.ours for g in report.graphs)
    row.fallbacks = {f.op: "; ".join(f.reasons) for f in report.fallbacks.values()}
    for graph in report.graphs:
        if graph.refused:
            row.fallbacks[f"a {graph.kind} graph"] = graph.refused
        for name in graph.names:
            row.kernels[name] = row.kernels.get(name, 0) + 1


def compile_only(example: Example, mode: str, precision: str, settings: Settings, row: Row) -> None:
    """Compile the graphs of a model for a GPU; the row is correct if every kernel can be built.

    Nothing is computed: tensors are fake. A model whose code depends on values of tensors runs on the CPU instead.
    """
    begin = time.perf_counter()
    chosen = targets.backend(settings.compile_only, settings.strict)
    fakes, fake_mode = targets.without_values(example)
    try:
        with fake_mode:
            subject = Subject(fakes, mode, precision, False)
            subject.step(torch.compile(subject.module, backend=chosen))
    except Exception:  # wrapped in several types by TorchDynamo; an error of a kernel comes again
        torch._dynamo.reset()
        ours.report().clear()
        subject = Subject(example, mode, precision, False)
        subject.step(torch.compile(subject.module, backend=chosen))
    row.first["tinsmith"] = time.perf_counter() - begin
    row.correct = True
    account(row)


def measured(model: Model, size: str, mode: str, precision: str, settings: Settings) -> Row:
    """Return the row of one model, mode and precision.

    A wrong row is measured with a second seed, and against float64: where a rounding error moves an element across the
    kink of a ReLU, or to another expert, gradients differ without a mistake, but not with most weights, and no more
    than eager's own.
    """
    row = _measured(model, size, mode, precision, settings, 0)
    return row if row.correct or row.error else _measured(model, size, mode, precision, settings, 1)


def _measured(model: Model, size: str, mode: str, precision: str, settings: Settings, seed: int) -> Row:
    row = Row(f"{model.name}/{size}/{mode}/{precision}")
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    ours.report().clear()
    torch.manual_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            if settings.compile_only:
                compile_only(model.build(size), mode, precision, settings, row)
                return row
            example = on_device(model.build(size), settings.device)
            subject = Subject(example, mode, precision, size == "small" or seed > 0, settings.device)
            runs: dict[System, Callable[..., Any]] = {"tinsmith": ours.compile(subject.module, strict=settings.strict)}
            compare(subject, runs["tinsmith"], row)
            account(row)
            if settings.rounds:
                runs["eager"] = subject.module
                if settings.inductor:
                    runs["inductor"] = torch.compile(subject.module, backend="inductor")
                time_in_turn(subject, runs, row, settings.rounds)
        except Exception as error:
            row.error = f"{type(error).__name__}: {error}".replace("\n", " ")[:600]
            account(row)
    return row

"""``python -m benchmarks cuda``: memory-bound kernels on a GPU: Tinsmith, PyTorch eager and compiled, in turn.

All run in one process on one GPU, each call captured where its system can; a row's times are medians of rounds in which
the systems take turns, so that the card's power state is the same for all. The launch overhead is measured last.
tinygrad, which has the same names, runs the same rows in a process of its own before that: ``--tinygrad PYTHON``.
"""
from __future__ import annotations

import argparse
import datetime
import gc
import importlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

LIBRARY = os.environ.get("BENCHMARK_LIBRARY", "tinsmith")
if TYPE_CHECKING:
    from tinsmith import Device, Tensor, TinyJit, dtypes, nn
else:
    _library = importlib.import_module(LIBRARY)
    Device, Tensor, TinyJit, dtypes = (getattr(_library, n) for n in ("Device", "Tensor", "TinyJit", "dtypes"))
    nn = importlib.import_module(f"{LIBRARY}.nn")

Run = Callable[[], Any]


def training() -> Any:
    """Return a training-mode context manager, under either library's name."""
    if hasattr(Tensor, "train"):
        return Tensor.train()
    return importlib.import_module(f"{LIBRARY}.helpers").Context(TRAINING=1)


ROUNDS, SECONDS = 5, 0.02  # turns of each system, and the duration of one in seconds
WARM_UPS = 8  # calls before timing: the first ones build a graph for every buffer that results rotate through
SLOW = 0.25  # calls longer than this (seconds) are not repeated more than necessary
MB = 1 << 20
FLOATS = 256 * MB // 4


@dataclass(frozen=True)
class Row:
    """One row of the table. ``moved``: bytes that must move at least once, or elements if ``unit`` says so."""

    name: str
    moved: float
    ours: Callable[[], Run]
    torch: Callable[[Any, Callable[[Any], Any]], Run]
    reach: float


def captured(f: Callable[..., Any], *args: Tensor) -> Run:
    jitted = TinyJit(f)
    return lambda: jitted(*args)


def rand(*shape: int, dtype: Any = dtypes.float32) -> Tensor:
    return Tensor.rand(*shape, device="CUDA").cast(dtype).contiguous().realize()


def parameter(t: Tensor) -> Tensor:
    """Return a detached tensor that requires a gradient."""
    t = t.detach()
    t.requires_grad = True
    return t


def constant(t: Tensor) -> Tensor:
    """Mark ``t`` as not requiring a gradient, which would otherwise accumulate from call to call."""
    t.requires_grad = False
    return t


def realized(f: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda *args: f(*args).realize()


def one(f: Callable[..., Tensor], *shapes: tuple[int, ...], dtype: Any = dtypes.float32) -> Callable[[], Run]:
    """Return a maker of captured calls of ``f`` on random tensors."""
    return lambda: captured(realized(f), *(rand(*s, dtype=dtype) for s in shapes))


def torch_one(f: Callable[[Any], Callable[..., Any]], *shapes: tuple[int, ...], dtype: str = "float32") -> Any:
    def make(torch: Any, wrap: Callable[[Any], Any]) -> Run:
        args = [torch.rand(s, device="cuda").to(getattr(torch, dtype)) for s in shapes]
        call = wrap(f(torch))
        return lambda: call(*args)

    return make


# *** rows that are more than one function ***


def cross_entropy() -> Run:
    x, y = rand(8192, 50304, dtype=dtypes.bfloat16), Tensor.randint(8192, low=0, high=50304, device="CUDA").realize()

    def step(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        x = parameter(x)
        loss = x.cross_entropy(y)
        loss.backward()
        assert x.grad is not None
        Tensor.realize(loss, x.grad)
        return loss, x.grad

    return captured(step, x, y)


def torch_cross_entropy(torch: Any, wrap: Callable[[Any], Any]) -> Run:
    x = torch.randn(8192, 50304, device="cuda").bfloat16().requires_grad_()
    y = torch.randint(0, 50304, (8192,), device="cuda")
    f = wrap(lambda x: torch.nn.functional.cross_entropy(x, y))
    return lambda: torch.autograd.grad(f(x), x)


def layernorm_step() -> Run:
    x, g = rand(16384, 4096), constant(rand(16384, 4096))
    w, b = rand(4096), rand(4096)

    def step(x: Tensor, g: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        x, w, b = (parameter(t) for t in (x, w, b))
        out = x.layernorm() * w + b
        (out * g).sum().backward()
        grads = [t.grad for t in (x, w, b)]
        Tensor.realize(out, *grads)
        return (out, *grads)

    return captured(step, x, g, w, b)


def torch_layernorm_step(torch: Any, wrap: Callable[[Any], Any]) -> Run:
    x, g = (torch.randn(16384, 4096, device="cuda") for _ in range(2))
    w, b = (torch.randn(4096, device="cuda").requires_grad_() for _ in range(2))
    x.requires_grad_()
    f = wrap(lambda x, w, b: torch.nn.functional.layer_norm(x, (4096,), w, b))
    return lambda: torch.autograd.grad(f(x, w, b), (x, w, b), g)


PARAMETERS = [(50257, 768), (1024, 768), *[s for _ in range(12) for s in ((768, 2304), (768, 3072), (2304, 1024))],
              (768, 768), (768,)]  # about 124 million floats in 40 tensors


def adamw() -> Run:
    ws = [rand(*s) for s in PARAMETERS]
    gs = [rand(*s) for s in PARAMETERS]
    for w in ws:
        w.requires_grad = True
    opt = nn.optim.AdamW(ws, lr=1e-3)

    def step(*gs: Tensor) -> None:
        for w, g in zip(ws, gs):
            w.grad = g
        with training():
            opt.step()

    return captured(step, *gs)


def torch_adamw(torch: Any, wrap: Callable[[Any], Any]) -> Run:
    ws = [torch.rand(s, device="cuda", requires_grad=True) for s in PARAMETERS]
    for w in ws:
        w.grad = torch.rand_like(w)
    opt: Any = torch.optim.AdamW(ws, lr=1e-3, fused=True)
    return lambda: opt.step()


def batch_norm() -> Run:
    layer = nn.BatchNorm(64)
    x = rand(256, 64, 56, 56)

    def step(x: Tensor) -> Tensor:
        with training():
            out = layer(x)
        Tensor.realize(out, layer.running_mean, layer.running_var)
        return out

    return captured(step, x)


def torch_batch_norm(torch: Any, wrap: Callable[[Any], Any]) -> Run:
    layer = torch.nn.BatchNorm2d(64, device="cuda")
    x = torch.rand(256, 64, 56, 56, device="cuda")
    f = wrap(layer)
    return lambda: f(x)


def gather() -> Run:
    table, rows = rand(65536, 768), Tensor.randint(65536, low=0, high=65536, device="CUDA").realize()
    return captured(realized(lambda t, i: t[i]), table, rows)


def torch_gather(torch: Any, wrap: Callable[[Any], Any]) -> Run:
    table, rows = torch.rand(65536, 768, device="cuda"), torch.randint(0, 65536, (65536,), device="cuda")
    f = wrap(lambda t, i: t[i])
    return lambda: f(table, rows)


def gather_gradient() -> Run:
    rows, g = Tensor.randint(65536, low=0, high=65536, device="CUDA").realize(), constant(rand(65536, 768))
    table = rand(65536, 768)

    def step(table: Tensor, rows: Tensor, g: Tensor) -> Tensor:
        table = parameter(table)
        (table[rows] * g).sum().backward()
        assert table.grad is not None
        return table.grad.realize()

    return captured(step, table, rows, g)


def torch_gather_gradient(torch: Any, wrap: Callable[[Any], Any]) -> Run:
    g, rows = torch.rand(65536, 768, device="cuda"), torch.randint(0, 65536, (65536,), device="cuda")
    f = wrap(lambda g: torch.zeros(65536, 768, device="cuda").index_add_(0, rows, g))
    return lambda: f(g)


def randn() -> Run:
    return captured(lambda: Tensor.randn(64 << 20, device="CUDA").realize())


def rows() -> Iterator[Row]:
    """Yield the rows of the table."""
    line, grid = (FLOATS,), (16384, 4096)
    yield Row("add 256 MB", 3 * 4 * FLOATS, one(lambda x, y: x + y, line, line),
              torch_one(lambda t: lambda x, y: x + y, line, line), 0.97)
    yield Row("gelu(x·2+y)", 3 * 4 * FLOATS, one(lambda x, y: (x * 2 + y).gelu("tanh"), line, line),
              torch_one(lambda t: lambda x, y: t.nn.functional.gelu(x * 2 + y, approximate="tanh"), line, line), 0.97)
    yield Row("sum", 4 * FLOATS, one(lambda x: x.sum(), line), torch_one(lambda t: lambda x: x.sum(), line), 0.97)
    yield Row("layernorm 16384×4096", 2 * 4 * FLOATS, one(lambda x: x.layernorm(), grid),
              torch_one(lambda t: lambda x: t.nn.functional.layer_norm(x, (4096,)), grid), 0.97)
    yield Row("softmax 16384×4096", 2 * 4 * FLOATS, one(lambda x: x.softmax(), grid),
              torch_one(lambda t: lambda x: x.softmax(-1), grid), 1.15)
    yield Row("transpose 8192²", 2 * 4 * FLOATS, one(lambda x: x.transpose(0, 1).contiguous(), (8192, 8192)),
              torch_one(lambda t: lambda x: x.t().contiguous(), (8192, 8192)), 0.97)
    yield Row("column sum 16384×4096", 4 * FLOATS, one(lambda x: x.sum(0), grid),
              torch_one(lambda t: lambda x: x.sum(0), grid), 1.15)
    yield Row("cross-entropy f+b bf16", 2 * 2 * 8192 * 50304, cross_entropy, torch_cross_entropy, 2.0)
    yield Row("layernorm f+b", 5 * 4 * FLOATS, layernorm_step, torch_layernorm_step, 1.25)
    yield Row("AdamW 124M", 7 * 4 * 124e6, adamw, torch_adamw, 1.2)
    yield Row("max-pool 3/2", 4 * 64 * 64 * (112 * 112 + 56 * 56),
              one(lambda x: x.max_pool2d((3, 3), stride=2, padding=1), (64, 64, 112, 112)),
              torch_one(lambda t: lambda x: t.nn.functional.max_pool2d(x, 3, 2, 1), (64, 64, 112, 112)), 1.15)
    yield Row("batch norm training", 3 * 4 * 256 * 64 * 56 * 56, batch_norm, torch_batch_norm, 1.2)
    yield Row("softmax bf16", 2 * 2 * FLOATS, one(lambda x: x.softmax(), grid, dtype=dtypes.bfloat16),
              torch_one(lambda t: lambda x: x.softmax(-1), grid, dtype="bfloat16"), 2.0)
    yield Row("cumsum 16M", 2 * 4 * 16 * MB, one(lambda x: x.cumsum(0), (16 * MB,)),
              torch_one(lambda t: lambda x: x.cumsum(0), (16 * MB,)), 1.3)
    yield Row("randn 64M", 4 * 64 * MB, randn, torch_one(lambda t: lambda: t.randn(64 * MB, device="cuda")), 1.5)
    yield Row("gather rows", 2 * 4 * 65536 * 768, gather, torch_gather, 1.0)
    yield Row("gradient of it", 2 * 4 * 65536 * 768, gather_gradient, torch_gather_gradient, 0.9)
    yield Row("sort 16M", 2 * 4 * 16 * MB, one(lambda x: x.sort()[0], (16 * MB,)),
              torch_one(lambda t: lambda x: x.sort()[0], (16 * MB,)), 1.0)
    yield Row("matvec bf16 8192²", 2 * 8192 * 8192, one(lambda x, w: x @ w, (1, 8192), (8192, 8192),
                                                         dtype=dtypes.bfloat16),
              torch_one(lambda t: lambda x, w: x @ w, (1, 8192), (8192, 8192), dtype="bfloat16"), 0.95)


# *** timing ***


class Contender:
    """One system's call of a row, or the error that prevented it."""

    def __init__(self, make: Callable[[], Run], sync: Callable[[], object]) -> None:
        self.sync, self.samples, self.error, self.count = sync, list[float](), "", 1
        try:
            self.call = make()
            once = self.sample()  # compiles
            for _ in range(WARM_UPS):
                if once < 4 * SLOW or len(self.samples) < 2:
                    once = min(once, self.sample())
            self.samples.clear()
            self.count = max(1, min(200, int(SECONDS / max(once, 1e-6))))
            self.rounds = 1 if once > SLOW else ROUNDS
        except Exception as error:
            self.error = f"{type(error).__name__}: {error}"

    def sample(self) -> float:
        self.sync()
        gc.disable()  # as `timeit` does: a collection takes longer than the timed call
        start = time.perf_counter()
        for _ in range(self.count):
            self.call()
        self.sync()
        seconds = (time.perf_counter() - start) / self.count
        gc.enable()
        self.samples.append(seconds)
        return seconds

    def round(self, number: int) -> None:
        if not self.error and number < self.rounds:
            try:
                self.sample()
            except Exception as error:
                self.error = f"{type(error).__name__}: {error}"

    @property
    def seconds(self) -> float | None:
        return None if self.error or not self.samples else statistics.median(self.samples)


def compare(row: Row, torch: Any, compiled: bool) -> list[Contender]:
    contenders = [Contender(row.ours, Device["CUDA"].synchronize)]
    if torch is not None:
        contenders.append(Contender(lambda: row.torch(torch, lambda f: f), torch.cuda.synchronize))
        if compiled:
            torch.compiler.reset()
            contenders.append(Contender(
                lambda: row.torch(torch, lambda f: torch.compile(f, dynamic=False)), torch.cuda.synchronize))
    for number in range(ROUNDS):
        for c in contenders:
            c.round(number)
    return contenders


def alone(only: str) -> None:
    """Print this library's seconds of each row, one line of JSON each."""
    for row in rows():
        if row.name.startswith(tuple(only.split(","))):
            (found,) = compare(row, None, False)
            print(json.dumps([row.name, found.seconds, found.error[:200]]), flush=True)


def of_tinygrad(python: str, only: str) -> dict[str, tuple[float | None, str]]:
    """Return tinygrad's (seconds, error) per row, measured by the interpreter ``python``, which has tinygrad."""
    ran = subprocess.run([python, os.path.abspath(__file__), "--alone", "--only", only], text=True, check=False,
                         stdout=subprocess.PIPE, env={**os.environ, "BENCHMARK_LIBRARY": "tinygrad", "DEV": "CUDA"})
    lines = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("[")]
    return {name: (seconds, error) for name, seconds, error in lines}


def show(row: Row, contenders: Sequence[Contender], tinygrad: tuple[float | None, str] | None = None) -> None:
    texts = []
    for c in contenders:
        s = c.seconds
        spread = f" ±{(max(c.samples) - min(c.samples)) / s / 2:4.0%}" if s and len(c.samples) > 1 else ""
        texts.append(f"{s * 1e6:9.1f} µs {row.moved / s / 1e9:6,.0f} GB/s{spread}" if s else f"{'–':>27}")
    ours, peers = contenders[0].seconds, [c.seconds for c in contenders[1:] if c.seconds]
    ratio = f"{min(peers) / ours:6.2f} of {row.reach}" if ours and peers else ""
    if tinygrad is not None:
        seconds, error = tinygrad
        texts.append(f"{seconds * 1e6:9.1f} µs {row.moved / seconds / 1e9:6,.0f} GB/s" if seconds else f"– {error}")
    print(f"{row.name:24s} {'   '.join(f'{t:31s}' for t in texts)} {ratio}", flush=True)
    for system, c in zip(("ours", "eager", "compile"), contenders):
        if c.error:
            print(f"    {system}: {c.error[:600]}", flush=True)


# *** launches ***


def loop_step(steps: int = 100_000) -> float:
    """Return the nanoseconds of a step of an empty loop: the speed of this process's core."""
    start = time.perf_counter_ns()
    for _ in range(steps):
        pass
    return (time.perf_counter_ns() - start) / steps


def launches() -> None:
    """Print the cost of a realize() of 100 small kernels, of a tiny one, and of a replayed kernel."""
    device = Device["CUDA"]
    x = Tensor.rand(1000, device="CUDA").realize()

    def chain(count: int, x: Tensor = x) -> Tensor:
        for n in range(count):
            x = (x.flip(0) + n).contiguous()
        return x.realize()

    def median(call: Run, turns: int = 30) -> float:
        found = []
        gc.disable()
        for _ in range(turns):
            device.synchronize()
            start = time.perf_counter()
            call()
            device.synchronize()
            found.append(time.perf_counter() - start)
        gc.enable()
        return statistics.median(found) * 1e6

    def realized_only(count: int, turns: int = 30) -> float:
        """Return the median seconds of realizing graphs that are already built."""
        def graph() -> Tensor:
            y = x
            for n in range(count):
                y = (y.flip(0) + n).contiguous()
            return y

        for _ in range(5):
            graph().realize()
        graphs = [graph() for _ in range(turns)]
        device.synchronize()
        ran = iter(graphs)
        return median(lambda: next(ran).realize(), turns)

    print(f"a realize() of 100 small kernels: {realized_only(100) / 100:.2f} µs a kernel (reach 8), with its wait")
    print(f"a tiny realize(): {realized_only(1):.1f} µs with its wait (reach 60)")
    print(f"a step of a Python loop: {min(loop_step() for _ in range(5)):.0f} ns; where that is twice what other "
          "processes take, the core is shared, and the two above are, too")
    replayed = TinyJit(lambda x: chain(100, x))
    for _ in range(6):
        replayed(x)
    graphs = [p.graph for r in getattr(replayed, "runs", []) for p in getattr(r, "parts", [])]
    print(f"a captured function of 100 kernels: {median(lambda: replayed(x)) / 100:.2f} µs a kernel (reach 1) "
          f"{[getattr(g, 'updated', '') for g in graphs]}")


def machine() -> str:
    device: Any = Device["CUDA"]
    smi = shutil.which("nvidia-smi")
    state = "" if smi is None else subprocess.run(
        [smi, "--query-gpu=driver_version,power.limit,clocks.sm,temperature.gpu", "--format=csv,noheader"],
        capture_output=True, text=True, check=False).stdout.strip().splitlines()[0]
    return f"{datetime.date.today()}, {device.compiler.path}; driver, power limit, clock, temperature: {state}"


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks cuda", description=__doc__.split("\n")[0])
    parser.add_argument("--only", default="", help="rows whose names begin so, with commas between")
    parser.add_argument("--no-torch", action="store_true", help="ours alone")
    parser.add_argument("--no-compile", action="store_true", help="without torch.compile")
    parser.add_argument("--tinygrad", metavar="PYTHON", help="interpreter that has tinygrad")
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.alone:
        return alone(options.only)
    Device.DEFAULT, torch = "CUDA", cast(Any, None)
    if not options.no_torch:
        try:
            torch = importlib.import_module("torch")
        except ImportError as error:
            print(f"PyTorch is left out: {error}")
    print(machine(), flush=True)
    tinygrad = of_tinygrad(options.tinygrad, options.only) if options.tinygrad else {}
    for row in rows():
        if row.name.startswith(tuple(options.only.split(","))):
            show(row, compare(row, torch, not options.no_compile), tinygrad.get(row.name))
    if not options.only or "launches" in options.only:
        launches()
    return None


if __name__ == "__main__":
    main(sys.argv[1:])

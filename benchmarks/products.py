"""``python -m benchmarks.products``: GPU matmuls, alone and with an epilogue, compared with PyTorch in one process.

Each system's launches are recorded back to back in its own CUDA graph, on rotating operands, and the graphs run in
turn: medians between events, after a rest. Every result is compared with PyTorch's, and with itself in a second run.
"""
from __future__ import annotations

import argparse
import contextlib
import importlib
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

from benchmarks.cuda import machine
from tinsmith import Device, Tensor
from tinsmith.backend.cuda.device import CUDAProgram, _Replay
from tinsmith.core.settings import Context

ROUNDS, REST, SPAN = 5, 0.04, 4e-3  # turns per system, idle seconds before a turn, its duration in seconds

Timed = Callable[[int], float]


@dataclass(frozen=True)
class Row:
    """A product of M×K by K×N. ``form``: the operands that are transposed; ``more``: the epilogue.

    ``reach``: the target ratio to PyTorch (compiled, if there is an epilogue).
    """

    m: int
    k: int
    n: int
    reach: float
    form: str = ""
    batch: int = 1
    dtype: str = "bfloat16"
    more: str = ""

    @property
    def name(self) -> str:
        sizes = f"{self.m}³" if self.m == self.k == self.n else f"{self.m}×{self.k}×{self.n}"
        kind = {"bfloat16": "", "float16": "f16"}.get(self.dtype, self.dtype)
        parts = [f"{self.batch} × {sizes}" if self.batch > 1 else sizes, kind,
                 f"{self.form} transposed" * bool(self.form), self.more]
        return ", ".join(p for p in parts if p)

    @property
    def operations(self) -> float:
        return 2.0 * self.batch * self.m * self.k * self.n

    def operands(self, torch: Any, count: int) -> tuple[list[Any], Any, Any, Any]:
        """Return ``count`` left operands, the right one, a bias and a residual."""
        def made(*shape: int, turned: bool = False) -> Any:
            batch = (self.batch,) if self.batch > 1 else ()
            shape = (*batch, *(shape[::-1] if turned else shape))
            x = torch.randn(shape, device="cuda").to(getattr(torch, self.dtype.replace("tf32", "float32")))
            return x.transpose(-1, -2) if turned else x

        left = [made(self.m, self.k, turned="A" in self.form) for _ in range(count)]
        return left, made(self.k, self.n, turned="B" in self.form), made(1, self.n), made(self.m, self.n)

    def after(self, x: Any, residual: Any, gelu: Callable[[Any], Any]) -> Any:
        """Apply the epilogue after product and bias; works with either library's tensors."""
        x = gelu(x) if "gelu" in self.more else x
        return x + residual if "residual" in self.more else x


ROWS = (
    Row(4096, 4096, 4096, 0.97), Row(8192, 8192, 8192, 0.97), Row(2048, 2048, 2048, 0.95), Row(1024, 1024, 1024, 0.97),
    Row(4096, 4096, 4096, 0.97, dtype="float16"), Row(512, 4096, 4096, 0.95), Row(1536, 1536, 1536, 0.93),
    Row(4096, 4096, 4096, 0.95, "B"), Row(4096, 4096, 4096, 0.95, "A"), Row(4096, 4096, 4096, 0.95, "AB"),
    Row(1024, 1024, 1024, 0.95, batch=32), Row(4000, 4000, 4000, 0.95), Row(4104, 4104, 4104, 0.85),
    Row(4097, 4097, 4097, 3.5), Row(1023, 1023, 1023, 1.0),
    Row(4096, 4096, 4096, 0.93, "B", dtype="tf32"), Row(4096, 4096, 4096, 0.85, dtype="tf32"),
    Row(4096, 4096, 4096, 0.80, "A", dtype="tf32"), Row(8192, 8192, 8192, 0.93, "B", dtype="tf32"),
    Row(2048, 2048, 2048, 0.93, "B", dtype="tf32"), Row(2048, 2048, 2048, 0.8, dtype="tf32"),
    Row(1024, 1024, 1024, 0.93, "B", dtype="tf32"), Row(1024, 1024, 1024, 0.7, dtype="tf32"),
    Row(4097, 4097, 4097, 2.0, dtype="tf32"),
    Row(8192, 768, 3072, 1.3, "B", more="bias gelu"), Row(8192, 3072, 768, 1.0, "B", more="bias residual"),
    Row(8192, 768, 768, 1.1, "B", more="bias residual"), Row(4096, 4096, 4096, 1.0, "B", more="bias gelu residual"),
)


@contextlib.contextmanager
def recorded() -> Iterator[list[tuple[CUDAProgram, tuple[int, ...]]]]:
    """Record the launches made in the block, one by one."""
    found: list[tuple[CUDAProgram, tuple[int, ...]]] = []
    launch = CUDAProgram.launch

    def noted(self: CUDAProgram, values: Sequence[int]) -> None:
        found.append((self, tuple(int(v) for v in values)))
        launch(self, values)

    with Context(CUDA_SYNC=1), mock.patch.object(CUDAProgram, "launch", noted):  # no CUDA graphs
        yield found


def ours(calls: Sequence[Callable[[], Tensor]], device: Any) -> tuple[Timed, list[Tensor], Any]:
    """Return (timing function of one graph of all calls' launches, their results, the replay)."""
    with recorded() as launches:
        results = [call().realize() for call in calls]
        device.synchronize()
    gpu = device.gpu
    gpu.use()
    replay = _Replay(gpu, [p for p, _ in launches], [v for _, v in launches], range(len(launches)),
                     device.target.launches_early)

    def timed(count: int) -> float:
        gpu.use()
        start, end = gpu.event(timing=True), gpu.event(timing=True)
        for number in range(count + 1):
            gpu.call(gpu.driver.cuGraphLaunch, replay.ready, gpu.stream)
            if number == 0:
                gpu.record(start)
        gpu.record(end)
        gpu.settle()
        return float(gpu.call(gpu.driver.cuEventElapsedTime, start, end)) * 1e-3 / count / len(calls)

    return timed, results, replay


def torch_graph(torch: Any, calls: Sequence[Callable[[], Any]]) -> tuple[Timed, list[Any]]:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            calls[0]()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = [call() for call in calls]

    def timed(count: int) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        for number in range(count + 1):
            graph.replay()
            if number == 0:
                start.record()
        end.record()
        torch.cuda.synchronize()
        return float(start.elapsed_time(end)) * 1e-3 / count / len(calls)

    return timed, results


def in_turn(systems: dict[str, Timed], turns: int) -> dict[str, float]:
    """Return the median seconds of each system's call; a rest before each turn keeps the card equally cool for all."""
    samples: dict[str, list[float]] = {name: [] for name in systems}
    for _ in range(ROUNDS):
        for name, timed in systems.items():
            time.sleep(REST)
            samples[name].append(timed(turns))
    return {name: statistics.median(s) for name, s in samples.items()}


def rates(operations: float, seconds: dict[str, float]) -> str:
    """Format each system's rate and time."""
    return "  ".join(f"{name} {operations / s / 1e12:6.1f} TFLOP/s {s * 1e6:8.1f} µs" for name, s in seconds.items())


def measure(row: Row, torch: Any, device: Any, compiled: bool) -> str:
    """Return one line of the table."""
    count = 10 if row.operations < 5e11 else 4
    left, w, bias, residual = row.operands(torch, count)

    def shared(x: Any) -> Tensor:
        whole = x if x.is_contiguous() else x.transpose(-1, -2)
        lent = Tensor.from_dlpack(whole)
        return lent if whole is x else lent.transpose(-1, -2)

    functions, biased = torch.nn.functional, "bias" in row.more
    mine_w, mine_bias, mine_residual = (shared(x) for x in (w, bias, residual))

    def call(a: Tensor) -> Callable[[], Tensor]:
        return lambda: row.after(a @ mine_w + mine_bias if biased else a @ mine_w, mine_residual,
                                 lambda x: x.gelu("tanh"))

    def eager(a: Any) -> Any:
        x = functions.linear(a, w.transpose(-1, -2), bias[0]) if biased else a @ w
        return row.after(x, residual, lambda x: functions.gelu(x, approximate="tanh"))

    systems: dict[str, Timed] = {}
    systems["ours"], mine, replay = ours([call(shared(a)) for a in left], device)

    systems["eager"], theirs = torch_graph(torch, [lambda a=a: eager(a) for a in left])
    if compiled and row.more:
        torch.compiler.reset()
        fused = torch.compile(eager, dynamic=False)
        systems["compile"], _ = torch_graph(torch, [lambda a=a: fused(a) for a in left])
    once = {name: timed(1) for name, timed in systems.items()}
    first, want = torch.from_dlpack(mine[-1]).clone(), theirs[-1].float()
    if row.dtype == "tf32":  # neither result is exact: compare with float64
        want = (left[-1].double() @ w.double()).float()
    turns = max(1, min(20, int(SPAN / once["eager"] / count)))
    seconds = in_turn(systems, turns)
    device.synchronize()
    last = torch.from_dlpack(mine[-1])
    error, peers = (float((x.float() - want).norm() / want.norm()) for x in (last, theirs[-1]))
    same = "" if bool((first == last).all()) else "  NOT THE SAME AGAIN"
    del replay
    texts = rates(row.operations, seconds)
    peer = seconds.get("compile", seconds["eager"])
    return (f"{row.name:42s} {texts}  {peer / seconds['ours']:.3f} of {row.reach}  error {error:.1e}"
            f"{f', its {peers:.1e}' * (peers > 0)}{same}")


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.products", description=__doc__.split("\n")[0])
    parser.add_argument("--only", default="", help="rows whose names begin so, with commas between")
    parser.add_argument("--no-compile", action="store_true", help="without torch.compile")
    options = parser.parse_args(arguments)
    torch = importlib.import_module("torch")
    Device.DEFAULT = "CUDA"
    print(machine(), flush=True)
    for row in ROWS:
        if row.name.startswith(tuple(options.only.split(","))):
            tf32 = row.dtype == "tf32"
            torch.backends.cuda.matmul.allow_tf32 = tf32
            try:
                with Context(ALLOW_TF32=int(tf32)):
                    print(measure(row, torch, Device["CUDA"], not options.no_compile), flush=True)
            except Exception as error:
                print(f"{row.name}: {type(error).__name__}: {str(error)[:400]}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])

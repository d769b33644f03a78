"""``python -m benchmarks.bandwidth``: memory-bound kernels compared with a copy of as many bytes.

A share of 1 means that the kernel takes as long as a plain copy of the bytes that it must read and write once (inputs
and results, not intermediate buffers). Every function is captured, and its result kept until the next call. Kernel and
copy are timed in turn. Arrays of 16 MB may stay in a large last-level cache; those of the rows "4096²" do not.
"""
from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from benchmarks.process import machine
from benchmarks.timing import timed, warm_up
from tinsmith import Tensor, TinyJit, nn

ROWS = (2048, 2048)
IMAGES = (64, 32, 64, 64)
LARGE = (4096, 4096)
FLOAT = 4


@dataclass(frozen=True)
class Row:
    """One row of the table; ``moved``: arrays of the first input's size that are read or written."""

    name: str
    run: Callable[..., Tensor | list[Tensor]]
    inputs: tuple[Tensor, ...]
    moved: float

    @property
    def nbytes(self) -> float:
        return self.moved * self.inputs[0].numel() * FLOAT


def _random(*shape: int) -> Tensor:
    return Tensor.randn(*shape).realize()


def _gradients(of: Callable[..., Tensor]) -> Callable[..., list[Tensor]]:
    def run(*inputs: Tensor) -> list[Tensor]:
        leaves = [x.detach() for x in inputs]
        for x in leaves:
            x.requires_grad = True
        return list(of(*leaves).sum().gradient(*leaves))
    return run


def rows() -> list[Row]:
    """Return the rows of the table; a gradient also reads its upstream gradient."""
    x, flow, images = _random(*ROWS), _random(*ROWS), _random(*IMAGES)
    scale, shift = _random(ROWS[1]), _random(ROWS[1])
    large, labels = _random(*LARGE), Tensor(np.arange(LARGE[0], dtype=np.int32)).realize()
    places = Tensor(np.random.default_rng(0).integers(0, ROWS[0], ROWS[0]).astype(np.int32)).realize()
    norm = nn.BatchNorm(IMAGES[1])
    weights, first, second = _random(*ROWS), _random(*ROWS), _random(*ROWS)

    def normed(a: Tensor) -> Tensor:
        with Tensor.train():
            return norm(a)

    def adam(w: Tensor, g: Tensor, m: Tensor, v: Tensor) -> list[Tensor]:
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        return [w - 0.001 * m / (v.sqrt() + 1e-8), m, v]

    return [
        Row("softmax", lambda a: a.softmax(), (x,), 2),
        Row("softmax, gradient", _gradients(lambda a: a.softmax() * flow), (x,), 3),
        Row("log-softmax, gradient", _gradients(lambda a: a.log_softmax() * flow), (x,), 3),
        Row("cross-entropy", lambda a: a.sparse_categorical_crossentropy(places), (x,), 1),
        Row("cross-entropy, gradient", _gradients(lambda a: a.sparse_categorical_crossentropy(places)), (x,), 2),
        Row("layernorm", lambda a: a.layernorm(), (x,), 2),
        Row("layernorm, gradient", _gradients(lambda a: a.layernorm() * flow), (x,), 3),
        Row("layernorm, gradients of scale and shift too",
            _gradients(lambda a, s, b: (a.layernorm() * s + b) * flow), (x, scale, shift), 3),
        Row("sum", lambda a: a.sum(), (x,), 1),
        Row("column sums", lambda a: a.sum(0), (x,), 1),
        Row("transpose", lambda a: a.T.contiguous(), (x,), 2),
        Row("gather of rows", lambda a: a[places], (x,), 2),
        Row("scatter-add of rows", _gradients(lambda a: a[places] * flow), (x,), 2),
        Row("exp", lambda a: a.exp(), (x,), 2),
        Row("gelu", lambda a: a.gelu("tanh"), (x,), 2),
        Row("sin", lambda a: a.sin(), (x,), 2),
        Row("max-pool 2×2", lambda a: a.max_pool2d(2), (images,), 1.25),
        Row("max-pool 2×2, gradient", _gradients(lambda a: a.max_pool2d(2)), (images,), 2),
        Row("relu and max-pool, gradient", _gradients(lambda a: a.relu().max_pool2d(2)), (images,), 2),
        Row("batch norm", normed, (images,), 3),
        Row("batch norm, gradient", _gradients(lambda a: normed(a) * images), (images,), 5),
        Row("random uniform", lambda a: a.rand_like(), (x,), 1),
        Row("random normal", lambda a: a.randn_like(), (x,), 1),
        Row("Adam", adam, (weights, flow, first, second), 7),
        Row("softmax, 4096²", lambda a: a.softmax(), (large,), 2),
        Row("cross-entropy, 4096²", lambda a: a.sparse_categorical_crossentropy(labels), (large,), 1),
        Row("layernorm, 4096²", lambda a: a.layernorm(), (large,), 2),
        Row("transpose, 4096²", lambda a: a.T.contiguous(), (large,), 2),
    ]


def _captured(run: Callable[..., Tensor | list[Tensor]], inputs: tuple[Tensor, ...]) -> Callable[[], object]:
    captured = TinyJit(run)
    for _ in range(3):
        captured(*inputs)
    return lambda: captured(*inputs)


def _timed(call: Callable[[], object], samples: int) -> list[float]:
    warm_up(call)
    return [timed(call) for _ in range(samples)]


def measure(row: Row, samples: int, rounds: int) -> tuple[float, float]:
    """Return the seconds of the kernel and of a copy of its bytes: medians of alternating samples."""
    source = _random(int(row.nbytes) // (2 * FLOAT))
    calls = (_captured(row.run, row.inputs), _captured(lambda a: a + 1, (source,)))
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for call, taken in zip(calls, times):
            taken += _timed(call, samples)
    return statistics.median(times[0]), statistics.median(times[1])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bandwidth", description=__doc__.partition("\n")[0])
    parser.add_argument("--samples", type=int, default=15, help="calls per turn of a kernel or its copy (default 15)")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each (default 3)")
    parser.add_argument("--only", metavar="NAME,...", default="", help="rows whose names begin so; the default is all")
    options = parser.parse_args()
    wanted = tuple(name.strip() for name in options.only.split(","))
    print(machine(), end="\n\n")
    print("| kernel | time | GB/s | share of a copy |\n| --- | --- | --- | --- |")
    for row in (row for row in rows() if row.name.startswith(wanted)):
        taken, copy = measure(row, options.samples, options.rounds)
        cells = (row.name, f"{taken * 1e3:.2f} ms", f"{row.nbytes / taken / 1e9:.1f}", f"{copy / taken:.2f}")
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()

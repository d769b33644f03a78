"""``python -m benchmarks check``: find programs that became several times slower than recorded (lost plans).

Each row is a captured program (or an eager one, where it says so), measured in one thread's processor time against a
yardstick that NumPy or Python runs in the same process, in turn. The recorded ratio of row and yardstick belongs to a
class of processors (vector width and matrix units), so that the clock rate, the load and the machine drop out. A row
that takes more than `CLIFF` times its recorded ratio fails, after it was measured `TRIES` times. A class without
records is recorded and passes.
"""
from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.cases import BY_NAME
from benchmarks.peers import make
from benchmarks.process import machine
from benchmarks.timing import timed, warm_up

CLIFF = 3.0         # factor between a measured and a recorded ratio from which a row fails
TRIES = 3           # measurements of a row before it fails
ROUNDS, TURN = 3, 0.1  # samples of row and yardstick in turn; minimum seconds of one sample
RECORDS = Path(__file__).with_name("recorded.json")
Call = Callable[[], object]
Records = dict[str, dict[str, float]]  # class of processors → row → ratio to its yardstick


@dataclass(frozen=True)
class Row:
    """A named program: ``build`` makes its inputs and returns the call; ``yardstick`` names what it is compared to."""

    name: str
    yardstick: str
    build: Callable[[], Call]


def yardsticks() -> dict[str, Call]:
    """Return the calls that rows are compared with: a float32 product, a copy of 64 MB, a loop of the interpreter."""
    import numpy as np

    a = np.ones((512, 512), np.float32)
    source, target = np.ones(1 << 24, np.float32), np.empty(1 << 24, np.float32)

    def loop() -> int:
        table, total = dict.fromkeys(range(64), 1), 0
        for k in range(20_000):
            total += table[k & 63]
        return total
    return {"product": lambda: a @ a, "copy": lambda: np.copyto(target, source), "loop": loop}


def _case(name: str, variant: str = "jit") -> Call:
    case, peer = BY_NAME[name], make("tinsmith", variant)
    run = getattr(peer, case.kind)(**case.sizes)

    def call() -> None:
        for _ in range(case.loops):
            run()
        peer.sync()
    return call


def _captured(f: Callable[..., Any], *shapes: tuple[int, ...], grad: bool = False) -> Call:
    """Capture ``f`` of random tensors; with ``grad``, its sum's gradients for all of them."""
    from tinsmith import Tensor, TinyJit

    inputs = [Tensor.randn(*shape).realize() for shape in shapes]

    def step(*x: Tensor) -> Any:
        return Tensor.realize(*f(*x).sum().gradient(*x)) if grad else f(*x).realize()
    return partial(TinyJit(step), *inputs)


def _quantized(kind: str, rows: int, cols: int, vectors: int = 1) -> Call:
    """Return products of vectors and a matrix of GGML's format ``kind``, dequantized by the kernel that reads it."""
    import numpy as np

    from tinsmith import Tensor, TinyJit
    from tinsmith.nn.io.ggml import KINDS, matrix

    size, nbytes, _ = KINDS[kind]
    blocks = np.random.default_rng(0).integers(0, 64, rows * cols // size * nbytes, np.uint8)
    packed, x = Tensor(blocks).realize(), Tensor.randn(vectors, cols).realize()
    return partial(TinyJit(lambda b, v: v.linear(matrix(b, kind, (rows, cols)).T).realize()), packed, x)


def _lstm() -> Call:
    from tinsmith import Tensor, TinyJit, nn

    layer, x = nn.LSTM(64, 128), Tensor.randn(20, 16, 64).realize()
    weights = nn.state.get_parameters(layer)
    return TinyJit(lambda: Tensor.realize(*layer(x)[0].sum().gradient(*weights)))


def _batch_norm() -> Call:
    from tinsmith import Tensor, TinyJit, nn

    layer, x = nn.BatchNorm2d(64), Tensor.randn(16, 64, 56, 56).realize()

    def step() -> None:
        with Tensor.train():
            Tensor.realize(*(layer(x) * x).sum().gradient(x, layer.weight, layer.bias))
    return TinyJit(step)


def _taken(updated: bool) -> Call:
    """Return rows gathered by an index tensor, or rows added at its positions."""
    from tinsmith import Tensor, TinyJit

    table, index = Tensor.randn(20_000, 256).realize(), Tensor.randint(4096, high=20_000).realize()
    values = Tensor.randn(4096, 256).realize()
    if updated:
        return TinyJit(lambda: table.index_put((index,), values, accumulate=True).realize())
    return TinyJit(lambda: table[index].realize())


def _eager(ops: int, grad: bool = False) -> Call:
    from tinsmith import Tensor

    x = Tensor([1.0, 2.0, 3.0, 4.0]).realize()
    w = Tensor([1.0, 2.0, 3.0, 4.0], requires_grad=True).realize()

    def call() -> object:
        y = (w if grad else x) * 2
        for _ in range(ops - 1):
            y = y + x
        return y.sum().gradient(w)[0].tolist() if grad else y.sum().item()
    return call


def _svd() -> Call:
    from tinsmith import Tensor

    x = Tensor.randn(128, 128).realize()
    return lambda: Tensor.realize(*x.svd())


def rows() -> tuple[Row, ...]:
    """Return all rows: compute-bound ones, memory-bound ones, and such as the interpreter's speed decides."""
    product = [
        "matmul 512³", "matmul 64×1000×333", "matmul 784×100×512", "bf16 matmul 512³", "int8 matmul 512³",
        "conv 3×3 16×64×56×56→64", "conv 3×3 16×64×56×56→64 + backward", "conv 1×1 16×64×56×56→64",
        "depthwise 3×3 16×64×56×56→64 + backward", "conv 3×3/2 16×64×56×56→128", "attention 1×8×512×64",
        "attention forward+backward", "sort 100k", "mnist step", "gpt step", "bf16 gpt step"]
    copy = ["matvec 4096²", "bf16 matvec 4096²", "sum 64 MB", "column sum 64 MB", "add 64 MB", "transpose 64 MB",
            "softmax 4096²", "layernorm 4096²", "gelu(x·2+y) 16M", "cat of 5 × 1000×777 along columns",
            "roll 4000×1003", "pad reflect 16×64×56² by 2", "cumsum 1M"]
    images = (8, 32, 28, 28)
    return (
        *(Row(name, "product", partial(_case, name)) for name in product),
        Row("LSTM 20×16×64→128 + backward", "product", _lstm),
        Row("conv 3/2 2×256×2000→256 along one axis", "product",
            lambda: _captured(lambda x, w: x.conv2d(w, stride=2, padding=1), (2, 256, 2000), (256, 256, 3))),
        Row("conv, relu, max_pool 8×32×28²", "product",
            lambda: _captured(lambda x, w: x.conv2d(w, padding=1).relu().max_pool2d(2), images, (64, 32, 3, 3))),
        Row("pairwise distances 512×64", "product", lambda: _captured(
            lambda x, y: (x.unsqueeze(1) - y.unsqueeze(0)).square().sum(-1), (512, 64), (512, 64))),
        Row("svd 128²", "product", _svd),
        *(Row(name, "copy", partial(_case, name)) for name in copy),
        *(Row(f"{kind} matvec 4096²", "copy", partial(_quantized, kind, 4096, 4096))
          for kind in ("Q8_0", "Q4_0", "Q4_K", "Q6_K")),
        *(Row(f"{kind} 4 rows of 1024→2816", "product", partial(_quantized, kind, 2816, 1024, 4))
          for kind in ("Q8_0", "Q4_0", "Q4_K")),
        Row("batch norm 16×64×56² + backward", "copy", _batch_norm),
        Row("log_softmax 2048×1000 + backward", "copy", lambda: _captured(
            lambda x, y: x.log_softmax() * y, (2048, 1000), (2048, 1000), grad=True)),
        Row("gather 4096 rows of 256", "copy", partial(_taken, False)),
        Row("index_put 4096 rows of 256", "copy", partial(_taken, True)),
        Row("tiny add, captured", "loop", partial(_case, "tiny add")),
        Row("mul, sum, item; eager", "loop", partial(_eager, 1)),
        Row("ten ops and item; eager", "loop", partial(_eager, 10)),
        Row("small gradient; eager", "loop", partial(_eager, 2, True)))


def _seconds(call: Call) -> float:
    """Return the processor seconds of one call, from a sample of at least `TURN` seconds."""
    total, calls = timed(call, time.process_time), 1
    while total < TURN:
        total, calls = total + timed(call, time.process_time), calls + 1
    return total / calls


def measure(call: Call, yardstick: Call) -> tuple[float, float]:
    """Return the median processor seconds of ``call``, and the median ratio to the yardstick, measured in turn."""
    warm_up(call, 0, calls=4)  # a JIT captures in its second call
    pairs = [(_seconds(call), _seconds(yardstick)) for _ in range(ROUNDS)]
    return statistics.median(mine for mine, _ in pairs), statistics.median(mine / other for mine, other in pairs)


def processor_class() -> str:
    """Return the class of processors whose recorded ratios are comparable: vector width and matrix units."""
    from tinsmith import Device

    target = Device["CPU"].renderer.target
    units = sorted({unit.name for unit in target.units if unit.requires})
    return f"{target.vector_bytes * 8} bits: {', '.join(units) or 'no matrix units'}"


def read(path: Path) -> Records:
    """Return the records in ``path``, or none if there is no such file."""
    return dict(json.loads(path.read_text("utf-8"))) if path.exists() else {}


def write(path: Path, records: Records) -> None:
    """Replace the file ``path`` at once: a process that is killed leaves the old one."""
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as file:
        file.write(json.dumps(records, indent=1, ensure_ascii=False, sort_keys=True) + "\n")
    os.replace(file.name, path)


def check(chosen: tuple[Row, ...], recorded: dict[str, float],
          yards: dict[str, Call]) -> tuple[dict[str, float], list[str]]:
    """Measure rows, print a line for each, and return their ratios and the names of those behind a cliff."""
    ratios, lost = dict[str, float](), list[str]()
    print(f"{'':44}{'ms':>10}  {'ratio':>8} {'recorded':>9}")
    for row in chosen:
        call, old = row.build(), recorded.get(row.name)
        for _ in range(TRIES):
            seconds, ratio = measure(call, yards[row.yardstick])
            ratios[row.name] = min(ratio, ratios.get(row.name, ratio))
            if not old or ratios[row.name] <= CLIFF * old:
                break
        else:
            lost.append(row.name)
        mark = f"   {ratio / old:.1f} times the recorded ratio" if row.name in lost and old else ""
        before = f"{old:>9.3f}" if old else f"{'–':>9}"
        print(f"{row.name:44}{seconds * 1e3:>10.3f}  {ratios[row.name]:>8.3f} {before}{mark}", flush=True)
    return ratios, lost


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks check", description=__doc__.split("\n")[0])
    parser.add_argument("--only", default="", metavar="NAME,...", help="rows whose names begin so; the default is all")
    parser.add_argument("--record", action="store_true", help="record the ratios measured now, in place of older ones")
    parser.add_argument("--records", type=Path, default=RECORDS, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    os.environ.update(dict.fromkeys(("THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"), "1"))
    warnings.filterwarnings("ignore", message="this line has made")  # inputs of many sizes are made on one line
    records, kind = read(options.records), processor_class()
    chosen = tuple(row for row in rows() if row.name.startswith(tuple(options.only.split(","))))
    print(f"{machine()}; {kind}; one thread's processor time", end="\n\n")
    ratios, lost = check(chosen, {} if options.record else records.get(kind, {}), yardsticks())
    if new := {name: ratio for name, ratio in ratios.items() if options.record or name not in records.get(kind, {})}:
        write(options.records, {**records, kind: {**records.get(kind, {}), **{k: round(v, 4) for k, v in new.items()}}})
        print(f"\nrecorded {len(new)} rows of this class of processors in {options.records.name}")
    if lost:
        print(f"\n{len(lost)} rows take over {CLIFF:g} times their recorded ratio: {'; '.join(lost)}", file=sys.stderr)
    return bool(lost)


if __name__ == "__main__":
    sys.exit(main())

"""``python -m benchmarks symbolic``: kernels of symbolic sizes against kernels of fixed sizes.

Each row computes one kind of kernel, a product, attention, a norm, a reduction, a scan or an elementwise function, at
one length. A captured function with a `Variable` for the length, one program for all lengths, is measured in turn with
a captured function of that fixed length, in processor time on one thread. Both read the same memory. The rows are
sorted by their ratio, the worst first; a ratio above `MOST` fails.
"""
from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.cliffs import seconds
from benchmarks.process import machine

LENGTHS: Final = (17, 64, 100, 333, 1000)
GREATEST: Final = 1024  # upper bound of the variable
ROWS, DEPTH = 64, 256   # sizes of the other axes
MOST: Final = 1.3       # the highest ratio that passes


@dataclass(frozen=True)
class Kind:
    """A kind of kernel: a function of memory and a length, which is an int or a bound variable."""

    name: str
    compute: Callable[[dict[str, Any], Any], Any]


def _attention(m: dict[str, Any], n: Any) -> Any:
    q, k, v = (m[name][:, :n] for name in ("q", "k", "v"))
    return q.scaled_dot_product_attention(k, v)


def _normalized(x: Any, axis: int) -> Any:
    centered = x - x.mean(axis, keepdim=True)
    return centered * ((centered * centered).mean(axis, keepdim=True) + 1e-5).rsqrt()


KINDS: Final = (
    Kind("product (n, 256) @ (256, 256)", lambda m, n: m["tall"][:n] @ m["square"]),
    Kind("product (256, 256) @ (256, n)", lambda m, n: m["square"] @ m["wide"][:, :n]),
    Kind("product (256, n) @ (n, 256)", lambda m, n: m["wide"][:, :n] @ m["tall"][:n]),
    Kind("product (n, 256) @ (256, n)", lambda m, n: m["tall"][:n] @ m["wide"][:, :n]),
    Kind("product (n, 256) @ (256,)", lambda m, n: m["tall"][:n] @ m["square"][0]),
    Kind("attention (4, n, 64)", _attention),
    Kind("causal attention of one query (4, 1, 64), n keys", lambda m, n: m["q"][:, :1].scaled_dot_product_attention(
        m["k"][:, :n], m["v"][:, :n])),
    Kind("softmax (64, n) along n", lambda m, n: m["flat"][:, :n].softmax(1)),
    Kind("softmax (n, 256) along 256", lambda m, n: m["tall"][:n].softmax(1)),
    Kind("layer norm (64, n) along n", lambda m, n: _normalized(m["flat"][:, :n], 1)),
    Kind("layer norm (n, 256) along 256", lambda m, n: _normalized(m["tall"][:n], 1)),
    Kind("sum (64, n) along n", lambda m, n: m["flat"][:, :n].sum(1)),
    Kind("sum (n, 256) along n", lambda m, n: m["tall"][:n].sum(0)),
    Kind("maximum (64, n) along n", lambda m, n: m["flat"][:, :n].max(1)),
    Kind("argmax (64, n) along n", lambda m, n: m["flat"][:, :n].argmax(1)),
    Kind("mean (n, 256) of all", lambda m, n: m["tall"][:n].mean()),
    Kind("cumsum (64, n) along n", lambda m, n: m["flat"][:, :n].cumsum(1)),
    Kind("cumsum (n, 256) along n", lambda m, n: m["tall"][:n].cumsum(0)),
    Kind("gelu (64, n)", lambda m, n: m["flat"][:, :n].gelu()),
    Kind("gelu (n, 256)", lambda m, n: m["tall"][:n].gelu()),
    Kind("x * 2 + y (64, n)", lambda m, n: m["flat"][:, :n] * 2 + m["other"][:, :n]),
    Kind("transpose (64, n)", lambda m, n: m["flat"][:, :n].T.contiguous()),
)


def memory() -> dict[str, Any]:
    """Return the tensors that all kinds read, of the greatest length."""
    from tinsmith import Tensor

    shapes = {"tall": (GREATEST, DEPTH), "wide": (DEPTH, GREATEST), "square": (DEPTH, DEPTH), "flat": (ROWS, GREATEST),
              "other": (ROWS, GREATEST), **dict.fromkeys(("q", "k", "v"), (4, GREATEST, 64))}
    return {name: (Tensor.randn(*shape) * 0.3).realize() for name, shape in shapes.items()}


def launches(call: Callable[[], object]) -> Callable[[], object]:
    """Return a function that launches the kernels of ``call`` again, on the same memory, without the work in Python
    around them, which is the same few microseconds for every size."""
    from tinsmith.backend.cpu.device import CPUGraph

    found: list[tuple[Any, list[Any], list[int]]] = []
    usual = CPUGraph.__call__

    def recorded(graph: CPUGraph, bases: Any, values: Any) -> None:
        found.append((graph, list(bases), list(values)))
        usual(graph, bases, values)

    CPUGraph.__call__ = recorded  # type: ignore[method-assign, assignment]
    try:
        call()
    finally:
        CPUGraph.__call__ = usual  # type: ignore[method-assign]
    def again() -> None:
        for graph, bases, values in found:
            graph(bases, values)

    return again


def calls(kind: Kind, tensors: dict[str, Any], lengths: tuple[int, ...]) -> list[list[Callable[[], object]]]:
    """Return, per length, the launches of the symbolic and of the fixed program."""
    from tinsmith import Variable

    n = Variable("n", 1, GREATEST)

    def launched(size: Any) -> Callable[[], object]:
        return launches(lambda: kind.compute(tensors, size).realize())

    return [[launched(n.bind(length)), launched(length)] for length in lengths]


@dataclass(frozen=True)
class Row:
    """The measured seconds of a kind at a length."""

    kind: str
    length: int
    symbolic: float
    fixed: float

    @property
    def ratio(self) -> float:
        return self.symbolic / self.fixed

    def __str__(self) -> str:
        return (f"{self.ratio:6.2f}  {self.symbolic * 1e6:9,.1f} µs {self.fixed * 1e6:9,.1f} µs  {self.length:4}  "
                f"{self.kind}")


def measure(kind: Kind, tensors: dict[str, Any], lengths: tuple[int, ...]) -> list[Row]:
    """Measure a kind at all lengths; a ratio above `MOST` is measured again, since machines are noisy."""
    rows = []
    for length, pair in zip(lengths, calls(kind, tensors, lengths)):
        row = Row(kind.name, length, *seconds(pair))
        rows.append(row if row.ratio <= MOST else min(row, Row(kind.name, length, *seconds(pair)),
                                                      key=lambda r: r.ratio))
    return rows


def main(arguments: list[str]) -> int:
    """Measure all kinds; return 1 if a symbolic program takes more than `MOST` times the fixed one's time."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks symbolic", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", default="", metavar="TEXT", help="kinds with this text in their name")
    parser.add_argument("--lengths", default=",".join(map(str, LENGTHS)), help="lengths to measure")
    parser.add_argument("--markdown", action="store_true", help="print a table of ratios, a row for each kind")
    options = parser.parse_args(arguments)
    os.environ.setdefault("THREADS", "1")
    os.environ["DYNAMIC"] = "0"  # lengths in turn would become variables by themselves
    lengths = tuple(map(int, options.lengths.split(",")))
    print(f"{machine()}; processor time, one thread", flush=True)
    tensors = memory()
    rows = [row for kind in KINDS if options.only in kind.name for row in measure(kind, tensors, lengths)]
    if options.markdown:
        print("| | " + " | ".join(map(str, lengths)) + " |\n" + "| --- " * (1 + len(lengths)) + "|")
        for kind in dict.fromkeys(r.kind for r in rows):
            print(f"| {kind} | " + " | ".join(f"{r.ratio:.2f}" for r in rows if r.kind == kind) + " |")
    else:
        print(f"{'ratio':>6}  {'symbolic':>12} {'fixed':>12}  {'n':>4}  kind")
        print(*sorted(rows, key=lambda r: -r.ratio), sep="\n")
    above = sum(r.ratio > MOST for r in rows)
    print(f"{len(rows)} rows: {above} above {MOST}, median {statistics.median(r.ratio for r in rows):.2f}")
    return int(above > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

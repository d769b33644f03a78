"""The report of compiled graphs, and of the ops that PyTorch runs."""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final


@dataclass
class Fallback:
    """An op that PyTorch runs: the number of places in graphs, calls, their seconds, and the reasons."""

    op: str
    nodes: int = 0
    calls: int = 0
    seconds: float = 0.0
    reasons: list[str] = field(default_factory=list)


@dataclass
class GraphRecord:
    """One compiled graph.

    Attributes:
        kind: "forward", "backward" or "inference".
        ops: the number of its ATen ops; ours: the number of ops with a rule.
        sizes: the number of its compilations: for sizes, or for ranges of sizes.
        ranges: the number of these for ranges of sizes, in which the sizes are variables.
        fixed: the reason why its sizes cannot be variables; "" if they can, or never change.
        names: names of the kernels for the sizes compiled last, in order of execution.
    """

    kind: str
    ops: int = 0
    ours: int = 0
    programs: int = 0
    kernels: int = 0
    sizes: int = 0
    ranges: int = 0
    calls: int = 0
    compile_seconds: float = 0.0
    refused: str = ""
    fixed: str = ""
    names: list[str] = field(default_factory=list)


@dataclass
class Report:
    """All graphs that this process has compiled, and all ops that PyTorch runs for them; printing gives a table.

    Attributes:
        waits: on a GPU, wait before and after each op that PyTorch runs, so that its seconds are those of the GPU and
            not those of the launch.
    """

    graphs: list[GraphRecord] = field(default_factory=list)
    fallbacks: dict[str, Fallback] = field(default_factory=dict)
    waits: bool = False

    def fallback(self, op: str, reason: str) -> Fallback:
        """Return the entry of an op that PyTorch runs, with one more node."""
        found = self.fallbacks.setdefault(op, Fallback(op))
        found.nodes += 1
        if reason not in found.reasons:
            found.reasons.append(reason)
        return found

    def clear(self) -> None:
        """Forget all graphs and counts."""
        self.graphs.clear()
        self.fallbacks.clear()

    def __str__(self) -> str:
        rows: list[tuple[str, ...]] = [("graph", "ops", "ours", "programs", "kernels", "sizes", "calls", "compiled in")]
        rows += [(g.kind, *map(str, (g.ops, g.ours, g.programs, g.kernels, g.sizes, g.calls)),
                  g.refused or f"{g.compile_seconds:.2f} s{g.fixed and f'; for each size: {g.fixed}'}")
                 for g in self.graphs]
        lines = _table(rows)
        if self.fallbacks:
            run = sorted(self.fallbacks.values(), key=lambda f: (-f.seconds, f.op))
            lines += ["", *_table([("run by PyTorch", "nodes", "calls", "ms", "because"),
                                   *((f.op, str(f.nodes), str(f.calls), f"{f.seconds * 1000:.1f}",
                                      "; ".join(f.reasons)) for f in run)])]
        return "\n".join(lines)


def _table(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows)]
    return ["  ".join(cell.ljust(w) if n in (0, len(row) - 1) else cell.rjust(w)
                      for n, (cell, w) in enumerate(zip(row, widths))).rstrip() for row in rows]


REPORT: Final = Report()

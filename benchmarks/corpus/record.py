"""The stored corpus: opts and a hash of the text of each kernel of a program, as rows; reading, writing, comparison."""
from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.corpus.programs import CorpusProgram
from benchmarks.corpus.targets import device_name
from tinsmith import Tensor
from tinsmith.codegen.launch import KernelProgram
from tinsmith.codegen.opt import Opt
from tinsmith.core.errors import TinsmithError
from tinsmith.core.settings import Context
from tinsmith.runtime import realize
from tinsmith.runtime.compiled_schedule import CompiledSchedule, Step
from tinsmith.runtime.launch import lowered
from tinsmith.schedule.passes import promote_constants

FOLDER = Path(__file__).parent / "kept"
PLAIN = {"BEAM": 0, "CHECKED": 0, "CHECK_IR": 0, "DEBUG": 0, "DYNAMIC": 0, "MEMORY_BUDGET": "", "NOLOCALS": 0,
         "NOOPT": 0, "POISON": 0, "TC": 1}  # settings that choices or texts depend on, and that cost time
Kept = dict[str, list["Row"]]  # by program


class Row(NamedTuple):
    """One kernel: a hash of its text, its name, its opts."""

    text: str
    kernel: str
    opts: str

    def __str__(self) -> str:
        return f"{self.text} {self.kernel}{': ' if self.opts else ''}{self.opts}"


def short(opt: Opt) -> str:
    """Return an opt in the corpus's notation.

    >>> from tinsmith.codegen.opt import OptOps
    >>> short(Opt(OptOps.VECTOR, 1, 16)), short(Opt(OptOps.STAGE, 1, (0, 2), lanes=16)), short(Opt(OptOps.HINT))
    ('VECTOR(1,16)', 'STAGE(1,0+2,lanes=16)', 'HINT')
    """
    amount = "+".join(map(str, opt.amt)) if isinstance(opt.amt, tuple) else opt.amt
    inside = ["" if opt.axis is None else str(opt.axis), *([] if amount is None else [str(amount)])]
    inside += [f"lanes={opt.lanes}"] * bool(opt.lanes) + [opt.unit] * bool(opt.unit)
    inside += [f"copies={opt.copies}"] * (opt.copies > 1)
    return opt.op.name + (f"({','.join(inside)})" if any(inside) else "")


def steps(program: CorpusProgram, device: str) -> list[Step]:
    """Return the steps of a program on a device, each kernel once, in order, independent of cached programs."""
    found: dict[str, Step] = {}

    def tell(compiled: CompiledSchedule) -> None:
        found.update((k.symbol, step) for step in compiled.steps if isinstance(k := step.launch, KernelProgram))

    with Context(DEV=device, **PLAIN):
        Tensor.manual_seed(0)
        run = program.build()
        realize._compiled.clear()
        promote_constants.histories.clear()
        lowered.append(tell)
        try:
            run()
        finally:
            lowered.remove(tell)
            realize.forget_old()
    return list(found.values())


def kernels(program: CorpusProgram, target: str) -> list[KernelProgram]:
    """Return the kernels of a program on a target."""
    return [step.launch for step in steps(program, device_name(target)) if isinstance(step.launch, KernelProgram)]


def rows(program: CorpusProgram, target: str) -> list[Row]:
    """Return a program's kernels as stored rows; for a program that the target refuses, the reason.

    Raises:
        AssertionError: if an opt was refused that the planner offered.
    """
    try:
        found = kernels(program, target)
    except TinsmithError as error:
        return [Row("refused", type(error).__name__, "")]
    mistakes = [m for k in found if k.plan is not None for m in k.plan.mistakes]
    assert not mistakes, f"{target}, {program.name}: {mistakes}"
    return [Row(k.symbol.rpartition("_")[2], k.name, " ".join(map(short, k.opts))) for k in found]


def read(target: str) -> Kept:
    """Return the stored rows of a target; none if there is no file."""
    path, found = FOLDER / f"{target}.txt", Kept()
    made: list[Row] = []
    for line in path.read_text().splitlines() if path.exists() else ():
        if line.startswith("  "):
            head, _, opts = line.strip().partition(": ")
            text, _, kernel = head.partition(" ")
            made.append(Row(text, kernel, opts))
        elif line:
            found[line] = made = []
    return found


def write(target: str, kept: Mapping[str, Sequence[Row]]) -> None:
    """Store the rows, one line per kernel, so that a change of one kernel is a change of one line."""
    FOLDER.mkdir(exist_ok=True)
    lines = [line for name, made in kept.items() for line in (name, *(f"  {row}" for row in made))]
    (FOLDER / f"{target}.txt").write_text("\n".join(lines) + "\n")


class Change(NamedTuple):
    """A changed kernel: its old and new row; None for an added or removed one."""

    before: Row | None
    now: Row | None

    def __str__(self) -> str:
        before, now = self.before, self.now
        if before is None or now is None:
            return f"  {'new' if before is None else 'gone'}  {now or before}"
        if before.opts == now.opts:
            return f"  text  {now.kernel}: the same opts, {before.text} → {now.text}\n        {now.opts}"
        return f"  opts  {before}\n      → {now}"


def changes(before: Iterable[Row], now: Iterable[Row]) -> Iterator[Change]:
    """Yield the differences of two lists of rows: equal kernels are left out, the others paired in order.

    >>> a, b, c = Row("1a", "r_4", "VECTOR(0,4)"), Row("2b", "r_8", ""), Row("3c", "r_4", "UNROLL(0,4)")
    >>> print(*changes([a, b], [b, c]))
      opts  1a r_4: VECTOR(0,4)
          → 3c r_4: UNROLL(0,4)
    """
    old, new = list(before), list(now)
    left = [row for row in old if row not in new]
    for pair in itertools.zip_longest(left, [row for row in new if row not in old]):
        yield Change(*pair)


def matching(pattern: str, found: Sequence[CorpusProgram]) -> list[CorpusProgram]:
    """Return the programs whose names match a regular expression at the beginning."""
    return [p for p in found if re.match(pattern, p.name)]

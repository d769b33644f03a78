"""``explain(why=…)``: the verdicts of the fusion rules about the values of a program, stored and fused."""
from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tinsmith.core.errors import UnknownNameError
from tinsmith.core.origin import Origin
from tinsmith.core.suggestions import nearest
from tinsmith.core.terminal import WIDTH
from tinsmith.ir import Ops, UOp
from tinsmith.ir.text.node import argument_text
from tinsmith.ir.text.printer import REDUCE_NAME
from tinsmith.ir.uop import toposort
from tinsmith.runtime.compiled_schedule import CompiledSchedule
from tinsmith.schedule.schedule_item import Schedule


@dataclass(frozen=True)
class ValueReport:
    """A value that a program computes, and why it is stored or computed inside its readers' kernels.

    Attributes:
        op: its op; a reduction is named as in a kernel's tree, such as SUM.
        origin: methods and lines of the user's program that it computes.
        kernels: the numbers of the kernels that compute it, from 1; none if it is not computed.
        stored: True if it has memory.
        rules: the names of the rules that decided.
        reason: their texts, with the numbers that decided.
    """

    op: str
    shape: tuple[object, ...]
    origin: tuple[Origin, ...]
    kernels: tuple[int, ...]
    stored: bool
    rules: tuple[str, ...]
    reason: str

    def __str__(self) -> str:
        return f"{self.op} {argument_text(self.shape)} is {'stored' if self.stored else 'fused'} because: {self.reason}"


def op_name(node: UOp) -> str:
    """Return the name of a node's op; for a reduction that of its op: SUM, MAX, PROD.

    >>> op_name(UOp.iota(4).reduce("ADD", (0,)))
    'SUM'
    """
    reduced = node.arg[0].name if node.op is Ops.REDUCE else ""
    return REDUCE_NAME.get(reduced, reduced) or node.op.name


def value_reports(compiled: CompiledSchedule) -> tuple[ValueReport, ...]:
    """Return the report of each value that a program computes, views excepted, sources first."""
    fusion = compiled.schedule.fusion
    if fusion is None:
        return ()
    items, found = items_of(compiled.schedule), []
    for n in fusion.analysis.order:
        if (n.op.kind == "movement" and n not in compiled.schedule.slot_of) or n not in fusion.decisions:
            continue
        verdicts = fusion.verdicts(n)
        found.append(ValueReport(op_name(n), n.shape, tuple(n.origin), tuple(sorted(i + 1 for i in items.get(n, ()))),
                                 verdicts[0].stores, tuple(v.rule.name for v in verdicts), fusion.reason(n)))
    return tuple(found)


def items_of(schedule: Schedule) -> dict[UOp, set[int]]:
    """Return, for each node, the items that compute it: the item that stores it, or the items that fuse it."""
    writers: dict[int, int] = {}
    for number, item in enumerate(schedule.items):
        for slot in item.written:
            writers.setdefault(slot, number)
    found: dict[UOp, set[int]] = {}
    for node, slot in schedule.slot_of.items():
        number = writers.get(slot, -1)
        if number < 0:
            continue
        def is_inside(n: UOp, node: UOp = node) -> bool:
            return n is node or n not in schedule.slot_of

        for n in toposort(node, is_inside):
            found.setdefault(n, set()).add(number)
    return found


def answer(values: Sequence[ValueReport], names: Sequence[str], merges: Sequence[str], wanted: str) -> str:
    """Return why the values that ``wanted`` names share kernels, as text: a paragraph per kernel.

    Args:
        names: the name of each step.
        merges: for each step, the reason why several kernels were merged into it; empty if none were.
        wanted: an op (``SUM``), a method of the user's program (``softmax``), or a kernel's name.

    Raises:
        UnknownNameError: if no value has the name.
    """
    chosen = [v for v in values if v.op == wanted.upper() or any(o[0] == wanted for o in v.origin)
              or any(names[k - 1] == wanted for k in v.kernels)]
    if not chosen:
        known = [*names, *(v.op for v in values), *(o[0] for v in values for o in v.origin if o[0])]
        raise _unknown(wanted, list(dict.fromkeys(known)))
    paragraphs = []
    for number in sorted({k for v in chosen for k in v.kernels}):
        here = [v for v in chosen if number in v.kernels]
        ops = list(dict.fromkeys(v.op for v in here))
        lines = [f"{_joined(ops)} {'share' if len(ops) > 1 else 'is in'} kernel {number}, {names[number - 1]}, because"]
        reasons: dict[str, list[str]] = {}
        for v in here:
            verdict = f"{'stored' if v.stored else 'fused'} by the rule{'s' * (len(v.rules) > 1)} {', '.join(v.rules)}"
            reasons.setdefault(f"{verdict}: {v.reason}", []).append(f"{v.op} {argument_text(v.shape)}")
        lines += [f"{_joined(dict.fromkeys(named))}: {reason}" for reason, named in reasons.items()]
        lines += [f"the kernel: {merges[number - 1]}"] if merges[number - 1] else []
        paragraphs.append("\n".join(textwrap.fill(line, WIDTH, initial_indent="  " * bool(n), subsequent_indent="    ",
                                                  break_long_words=False, break_on_hyphens=False)
                                    for n, line in enumerate(lines)))
    return "\n".join(paragraphs)


def _unknown(wanted: str, known: Sequence[str]) -> UnknownNameError:
    close = nearest(wanted, known) or nearest(wanted.upper(), known)
    return UnknownNameError("explain", f"no value of the program has the name {wanted!r}",
                            f"did you mean {close!r}?" if close else f"one of {', '.join(known)}")


def _joined(words: Iterable[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last

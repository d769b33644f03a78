"""Promotion of changing constants: a constant that takes several values becomes an argument of the program.

Programs that differ only in the values of constants have one *form*. A constant is compiled into its program, where it
can be folded, until the same form arrives with a third value for it: from then on it is a buffer of one element, as if
it had been a tensor, and every further value reuses that program. Results are bit-identical: an operation on constants
only is folded at compile time, not computed on the device, so its constants are never promoted.
"""
from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tinsmith.backend.device import Device
from tinsmith.backend.memory import Buffer
from tinsmith.core.object_lifetime import Recent
from tinsmith.ir import Ops, UOp
from tinsmith.ir.uop import toposort
from tinsmith.schedule.canonical import Key, Seen
from tinsmith.schedule.multi.sharding import is_group

_AS_IT_IS = (Ops.CONTIGUOUS, Ops.COPY, Ops.DETACH)  # ops that return the values of their source
_MOST_PROGRAMS = 64  # programs of one history that are found without a second walk
SEVERAL = 3  # number of different values after which a constant is promoted


@dataclass
class Promoted:
    """The program that serves graphs which differ in the values of promoted constants.

    Attributes:
        key: the key of the graph with buffers in place of the constants.
        inputs: for each input of the program, the number n of a buffer of the graph, or -1 - n for constant n.
    """

    key: Key
    inputs: list[int]


@dataclass
class ConstantHistory:
    """The observations of graphs that differ in constants: the values seen of each constant (None: promoted), the
    constants that are arguments, and the programs by the constants that are not."""

    values: list[set[Any] | None]
    arguments: set[int] = field(default_factory=set)
    programs: dict[tuple[UOp, ...], Promoted] = field(default_factory=dict)

    def fixed(self, constants: Sequence[UOp]) -> tuple[UOp, ...]:
        """Return the constants of a graph that are no arguments."""
        return tuple([c for n, c in enumerate(constants) if n not in self.arguments])


histories: Recent[Any, ConstantHistory] = Recent()


def history_of(found: Seen, roots: Sequence[UOp], device: str, settled: Any) -> ConstantHistory | None:
    """Return the history of a graph's form and sizes, in which its constants are noted; None without constants.

    Args:
        found: the analysis of the graph of ``roots``.
        device: the device of the program.
        settled: the rest of the program's cache key.
    """
    form, sizes, constants = found.key
    if not constants:
        return None
    history = histories.get((form, sizes, settled))
    if history is None:
        history = histories[form, sizes, settled] = ConstantHistory([set() for _ in constants])
    several = set()
    for n, (c, values) in enumerate(zip(constants, history.values)):
        if values is not None:
            values.add(c)  # constants are interned, and 0.0 and -0.0 are two nodes
            if len(values) >= SEVERAL:
                history.values[n] = None
                several.add(n)
    if several:
        fit = fitting(roots, device)
        history.arguments |= {n for n in several if constants[n] in fit}
        history.programs.clear()
    return history


def arguments(history: ConstantHistory, constants: Sequence[UOp], device: str) -> dict[UOp, UOp]:
    """Return the constants that are arguments of the program, each with a buffer that holds its value."""
    return {constants[n]: _argument(constants[n], device) for n in sorted(history.arguments)}


def note_program(history: ConstantHistory, before: Seen, after: Seen, table: Mapping[UOp, UOp]) -> None:
    """Record the program of a graph whose promoted constants were replaced by ``table``: ``after`` is its analysis,
    ``before`` that of the graph."""
    constants = before.key[2]
    place = {b: n for n, b in enumerate(before.buffers)}
    place |= {table[c].base: -1 - n for n, c in enumerate(constants) if c in table}
    if len(history.programs) >= _MOST_PROGRAMS:  # the others are constants that change, too, and are compiled each time
        history.programs.clear()
    history.programs[history.fixed(constants)] = Promoted(after.key, [place[b] for b in after.buffers])


def fitting(roots: Sequence[UOp], device: str) -> set[UOp]:
    """Return the constants that may be promoted: those that are not read by an operation on constants alone. The empty
    set for a program on several devices."""
    order = toposort(roots)
    if not on_one_device(order, device):
        return set()
    fixed: set[UOp] = set()  # nodes that depend on constants only
    folded: set[UOp] = set()
    for n in order:
        if n.op is Ops.CONST:
            fixed.add(n)
        elif n.src and fixed.issuperset(n.src):
            fixed.add(n)
            if n.op.kind != "movement" and n.op not in _AS_IT_IS:
                folded.update(s.base for s in n.src)
    return {n for n in order if n.op is Ops.CONST} - folded


def on_one_device(nodes: Iterable[UOp], device: str) -> bool:
    """Return True if all kernels of a program run on ``device``, a single one."""
    others = {n.device or device for n in nodes} - {device}
    return not is_group(device) and not any(is_group(d) or Device[d].has_programs for d in others)


def _argument(constant: UOp, device: str) -> UOp:
    return UOp(Ops.BUFFER, constant.dtype, (), argument_buffer(constant, device)).reshape(())


def argument_buffer(constant: UOp, device: str) -> Buffer:
    """Return a buffer of one element with the value of a constant."""
    return Buffer(device, 1, constant.dtype).copyin(np.array([constant.arg], constant.dtype.numpy).view(np.uint8).data)

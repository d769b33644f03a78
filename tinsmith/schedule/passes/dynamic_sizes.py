"""Dynamic sizes: a graph that comes back with other sizes gets one program whose sizes are variables.

Graphs that differ only in sizes have one *form*. The first sizes are compiled into separate programs. When the same
form arrives with a third set of sizes, the sizes that changed are compared over all sets: sizes that take the same
values are one variable, and a size that is a multiple, a product or a shifted copy of variables becomes that
expression. A program with variables serves a graph only if all its expressions give exactly the graph's sizes, so that
it never depends on how they were guessed. Constants that changed along with the sizes become arguments.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations_with_replacement
from typing import Any, Final, NamedTuple

from tinsmith.core.dtypes import dtypes
from tinsmith.ir import Ops, UOp
from tinsmith.ir.algebra.sizes import SMALL, is_never_negative, normal_size
from tinsmith.ir.uop import Window, toposort
from tinsmith.schedule.canonical import BufferName, is_value
from tinsmith.schedule.passes.promote_constants import fitting, on_one_device
from tinsmith.schedule.slot_sizes import terms_of

SEVERAL: Final = 2  # sets of sizes after which those that changed become variables
MOST_VARIABLES: Final = 4
MOST_PROGRAMS: Final = 8  # programs with variables of one form
_COMPARED: Final = 4  # sets of sizes that are kept
LEAST: Final = 2  # of a variable
MOST_ELEMENTS: Final = 1 << 31  # of a value
WITHOUT_SIZES: Final = (Ops.PERMUTE, Ops.FLIP)


class Refused(Exception):
    """A form cannot have variable sizes; the message says why."""


class TooSmall(Refused):
    """A size that changes is 0 or 1. Such sizes cannot be variables, since recording decides whether an axis broadcasts
    or is empty; later sizes may be."""

    def __init__(self) -> None:
        super().__init__("a size that changes is 0 or 1")


class Expression(NamedTuple):
    """A size: ``factor`` times a product of variables (given by their numbers), plus ``more``."""

    factor: int
    variables: tuple[int, ...]
    more: int = 0

    def at(self, values: Sequence[int]) -> int:
        """Return the size for values of the variables.

        >>> Expression(2, (0, 1), 1).at([3, 5])
        31
        """
        size = self.factor
        for v in self.variables:
            size *= values[v]
        return size + self.more

    def of(self, symbols: Sequence[UOp]) -> Any:
        """Return the size as an expression of symbols for the variables."""
        value = UOp.index(self.factor)
        for v in self.variables:
            value = value * symbols[v]
        return normal_size(value + self.more)


class Form(NamedTuple):
    """A canonical graph, separated into structure, sizes and constants.

    Attributes:
        key: the graph without its sizes and constants.
        sizes: the integers that are sizes, in order of the nodes.
        constants: its distinct constants, in that order.
    """

    key: tuple[Any, ...]
    sizes: tuple[int, ...]
    constants: tuple[UOp, ...]


@dataclass(eq=False)
class SymbolicProgram:
    """A graph with variables for sizes, which serves all graphs of its form that have fitting sizes.

    Attributes:
        graph: the canonical graph; its values are those of the served graph, then the variables.
        places: for each variable, the number of a size that is equal to it.
        bounds: for each variable, the least and the greatest value.
        expressions: the number of a size → its expression; the other sizes are those of ``sample``.
        arguments: numbers of the constants that are arguments: inputs of one element, after the buffers.
    """

    graph: list[UOp]
    sample: Form
    places: list[int]
    bounds: list[tuple[int, int]]
    expressions: dict[int, Expression]
    arguments: list[int]

    def values_for(self, form: Form) -> list[int] | None:
        """Return the values of the variables for a graph of the same key; None if its sizes do not fit."""
        values = [form.sizes[p] for p in self.places]
        for v, (low, high) in zip(values, self.bounds):
            if not low <= v <= high:
                return None
        expressions = self.expressions
        for n, (size, fixed) in enumerate(zip(form.sizes, self.sample.sizes)):
            if size != (expressions[n].at(values) if n in expressions else fixed):
                return None
        if form.constants != self.sample.constants and any(
                a is not b and n not in self.arguments
                for n, (a, b) in enumerate(zip(form.constants, self.sample.constants))):
            return None
        return values


@dataclass
class SizeHistory:
    """The history of one form.

    Attributes:
        samples: the observed sets of sizes, with their constants.
        programs: the programs with variables.
        refused: the reason why the form can have no program with variables; empty if it can.
        too_small: the reason why the latest sizes cannot be variables, if others can; else empty.
        seconds: the maximum compile time of a program with fixed sizes.
        first_runs: the number of sets of sizes that ran on programs with variables, and the total seconds of the first
            run with each.
    """

    samples: list[Form] = field(default_factory=list)
    programs: list[SymbolicProgram] = field(default_factory=list)
    refused: str = ""
    too_small: str = ""
    seconds: float = 0.0
    first_runs: tuple[int, float] = 0, 0.0

    @property
    def is_slow(self) -> bool:
        """True if a run with variables takes longer than to compile another program."""
        count, seconds = self.first_runs
        return seconds > count * self.seconds

    @property
    def why_not(self) -> str:
        """The reason why new sizes are compiled separately; empty if a program with variables may serve them."""
        if self.is_slow:
            return "running with variables takes longer than compiling another program"
        return self.refused or self.too_small


def form_of(graph: Sequence[UOp]) -> Form | None:
    """Return the form of a canonical graph; None if it has symbolic sizes already. Variables used as values are
    allowed."""
    order = toposort(graph)
    number = {n: k for k, n in enumerate(order)}
    rows: list[Any] = []
    sizes: list[int] = []
    constants: list[UOp] = []
    for n in order:
        kept: Any = n.arg.hex() if type(n.arg) is float else n.arg  # 0.0 and -0.0 differ
        if n.op is Ops.CONST and is_value(n.dtype):
            constants.append(n)
            kept = None
        elif n.op is Ops.BUFFER:
            if n.arg.layout is None:
                sizes.append(n.arg.size)
            kept = (n.arg.number, n.arg.device, n.arg.layout)
        elif n.op is Ops.IOTA:
            sizes.append(n.arg)
            kept = None
        elif n.op.kind == "movement" and n.op not in WITHOUT_SIZES:
            kept = taken_apart(n.arg, sizes)
            if kept is None:
                return None
        rows.append((n.op, n.dtype, kept, *(number[s] for s in n.src)))
    return Form((*rows, *(number[r] for r in graph)), tuple(sizes), tuple(constants))


def taken_apart(arg: Any, sizes: list[int]) -> Any:
    """Append the integers of a movement op's argument to ``sizes`` and return the rest of it; None if one is
    symbolic."""
    found: list[Any] = []
    if isinstance(arg, Window):
        found += (arg.inputs, arg.outputs)
        kept: Any = (arg.axis, arg.window_axis, arg.stride, arg.dilation)
    else:
        kept = len(arg)
        for a in arg:
            if type(a) is tuple:
                found += a
            else:
                found.append(a)
    if UOp in map(type, found):
        return None
    sizes += found
    return kept


def flat_sizes(sizes: Sequence[Any]) -> tuple[tuple[Any, ...], tuple[int, ...]]:
    """Return the sizes of ``canonical.Seen``, separated into what stays and the integers that may change, which are
    those of ``form_of`` unless nodes coincide in the canonical graph."""
    found: list[int] = []
    kept: list[Any] = []
    for s in sizes:
        if type(s) is int:
            found.append(s)
        else:
            kept.append(taken_apart(s, found))
    return tuple(kept), tuple(found)


def program_for(graph: Sequence[UOp], form: Form, history: SizeHistory,
                device: str) -> tuple[SymbolicProgram, list[int]] | None:
    """Return a program with variables for a graph, with the variables' values; None if there is none yet, or none at
    all (``history.why_not``)."""
    if history.is_slow:
        return None
    for program in reversed(history.programs):
        values = program.values_for(form)
        if values is not None:
            return program, values
    if history.refused:
        return None
    history.samples = [*(s for s in history.samples if s.sizes != form.sizes), form][-_COMPARED:]
    if len(history.samples) < SEVERAL:
        return None
    try:
        if len(history.programs) == MOST_PROGRAMS:
            raise Refused(f"{MOST_PROGRAMS} programs with variable sizes do not fit")
        program = _generalized(graph, history.samples, device)
        values = program.values_for(form)
        if values is None:
            raise Refused("a size has no simple relation to the others")
    except TooSmall as reason:
        history.too_small = str(reason)
        return None
    except Refused as reason:
        history.refused = str(reason)
        return None
    history.programs.append(program)
    history.too_small = ""
    return program, values


def _generalized(graph: Sequence[UOp], samples: Sequence[Form], device: str) -> SymbolicProgram:
    """Return the program with variables of a graph, the last of ``samples``.

    Raises:
        Refused: if there is none.
        TooSmall: if there is none for these sizes.
    """
    kept, places, expressions = variables_of([s.sizes for s in samples])
    samples = [samples[n] for n in kept]
    columns = list(zip(*(s.sizes for s in samples)))
    constants = list(zip(*(s.constants for s in samples)))
    arguments = [n for n, column in enumerate(constants) if any(c is not column[0] for c in column)]
    _check(graph, samples[-1], arguments, device)

    ends = bounds_of(expressions, [columns[p] for p in places])
    bounds = [(low, most) for low, _, most in ends]
    while True:  # all upper bounds are halved, down to the values seen, until no value is too large or negative
        try:
            made = _rebuilt(graph, samples[-1], expressions, bounds, arguments, device)
            return SymbolicProgram(made, samples[-1], places, bounds, expressions, arguments)
        except Refused:
            if all(high == seen for (_, high), (_, seen, _) in zip(bounds, ends)):
                raise
        bounds = [(low, max(high // 2, seen)) for (low, high), (_, seen, _) in zip(bounds, ends)]


def variables_of(samples: Sequence[Sequence[int]]) -> tuple[list[int], list[int], dict[int, Expression]]:
    """Choose variables among the sizes that change in several sets of sizes.

    If a set has a size of 0 or 1 where the last one has another, and this size is no expression of others, the set is
    left out: a batch of one among others does not decide for all.

    Returns:
        The numbers of the sets that were compared, the last one included; the places of the variables; expressions of
        all sizes that change.

    Raises:
        TooSmall: if no other set is left to compare with the last one.
        Refused: if the sizes have no simple relation.

    >>> variables_of([(32, 64), (1, 2), (17, 34)])[:2]
    ([0, 2], [0])
    """
    kept = list(range(len(samples)))
    while True:
        columns = list(zip(*(samples[n] for n in kept)))
        varying = {n: column for n, column in enumerate(columns) if len(set(column)) > 1}
        if not varying:
            raise Refused("only constants change")
        try:
            return kept, *related(varying)
        except TooSmall:
            last = samples[-1]
            large = [n for n in kept if all(a == b or min(a, b) >= LEAST for a, b in zip(samples[n], last))]
            if len(large) < SEVERAL or len(large) == len(kept):
                raise
            kept = large


def related(varying: dict[int, tuple[int, ...]]) -> tuple[list[int], dict[int, Expression]]:
    """Choose variables among the sizes that change, and express the others by them.

    Greedy: the next variable is the size that expresses most of the remaining sizes. Ties go to the one with the least
    values, for example n rather than n - 1 if n * n occurs.

    Raises:
        TooSmall: if a size of 0 or 1 is no expression of the others.
        Refused: if too many sizes change independently.

    >>> related({0: (5, 6, 8), 1: (25, 36, 64), 2: (40, 48, 64), 3: (4, 5, 7), 4: (3, 9, 2)})[0]
    [0, 4]
    """
    places: list[int] = []
    seen: list[tuple[int, ...]] = []
    found: dict[tuple[int, ...], Expression] = {}
    left = {column: n for n, column in reversed(varying.items())}
    while left:
        fit = {c: [x for x in left if next(_expressed(x, [*seen, c]), None)] for c in left if min(c) >= LEAST}
        if not fit:
            raise TooSmall
        if len(places) == MOST_VARIABLES:
            raise Refused(f"more than {MOST_VARIABLES} sizes change independently of each other")
        best = min(fit, key=lambda c: (-len(fit[c]), c))
        places.append(left[best])
        seen.append(best)
        for column in fit[best]:
            found[column] = next(_expressed(column, seen))
            del left[column]
    return places, {n: found[column] for n, column in varying.items()}


def _expressed(column: tuple[int, ...], seen: Sequence[tuple[int, ...]]) -> Iterator[Expression]:
    """Yield the expressions of variables with the values ``seen`` that give ``column``, the simplest first.

    >>> [str(e) for e in _expressed((33, 16), [(2, 3)])], next(_expressed((5, 7), [(2, 3)]))
    ([], Expression(factor=2, variables=(0,), more=1))
    """
    products = [(of, tuple(math.prod(seen[v][k] for v in of) for k in range(len(column))))
                for degree in (1, 2, 3) for of in combinations_with_replacement(range(len(seen)), degree)]
    for of, values in products:
        if column[0] % values[0] == 0 and all(c == column[0] // values[0] * v for c, v in zip(column, values)):
            yield Expression(column[0] // values[0], of)
    for of, values in products:
        pair = next((k for k in range(1, len(values)) if values[k] != values[0]), None)
        if pair is None:
            continue
        factor, rest = divmod(column[pair] - column[0], values[pair] - values[0])
        more = column[0] - factor * values[0]
        if len(column) == SEVERAL and abs(factor) != 1 and abs(more) >= factor:
            continue  # two numbers fit any two sizes
        if not rest and factor and all(c == factor * v + more for c, v in zip(column, values)):
            yield Expression(factor, of, more)


def bounds_of(expressions: dict[int, Expression], columns: Sequence[tuple[int, ...]]) -> list[tuple[int, int, int]]:
    """Return, for each variable, the minimum for which no size is negative, the maximum seen so far, and the largest
    maximum to try."""
    found = []
    for number, column in enumerate(columns):
        alone = [e for e in expressions.values() if set(e.variables) == {number}]
        low = next(v for v in range(LEAST, min(column) + 1) if v == min(column) or all(
            e.factor * v ** len(e.variables) + e.more >= 0 for e in alone))
        found.append((low, max(column), max(SMALL, 1 << (2 * max(column)).bit_length())))
    return found


def _check(graph: Sequence[UOp], sample: Form, arguments: Sequence[int], device: str) -> None:
    """Raise Refused for graphs that a program with variables cannot compute."""
    order = toposort(graph)
    if not on_one_device(order, device):
        raise Refused("it uses several devices")
    if any(n.op in (Ops.COPY, Ops.HOST, Ops.SHARD) for n in order):
        raise Refused("it copies data or calls a function of the host")
    if not {sample.constants[n] for n in arguments} <= (fitting(graph, device) if arguments else set()):
        raise Refused("a constant that changes is computed with at compile time")


def _rebuilt(graph: Sequence[UOp], sample: Form, expressions: dict[int, Expression],
             bounds: Sequence[tuple[int, int]], arguments: Sequence[int], device: str) -> list[UOp]:
    """Return a canonical graph with expressions for its sizes.

    Raises:
        Refused: if an op does not accept the expressions. For example, it may require equal sizes where its sources
            have different expressions, because the samples cannot distinguish sizes that must be equal from sizes that
            are equal by chance.
    """
    order = toposort(graph)
    first = sum(n.op is Ops.BIND for n in order)
    symbols = [UOp(Ops.BIND, None, (UOp.variable(f"v{k}", *ends), UOp.const(dtypes.int32, k)))
               for k, ends in enumerate(bounds, first)]
    sizes = iter([expressions[n].of(symbols) if n in expressions else plain for n, plain in enumerate(sample.sizes)])
    count = sum(n.op is Ops.BUFFER for n in order)
    given = {sample.constants[n]: BufferName(count + k, 1, device) for k, n in enumerate(arguments)}
    changing: set[UOp] = set()  # buffers
    new: dict[UOp, UOp] = {}
    for n in order:
        src = tuple(new[s] for s in n.src)
        if n in given:
            made = UOp(Ops.BUFFER, n.dtype, (), given[n]).reshape(())
        elif n.op is Ops.BUFFER and n.arg.layout is None:
            made = _part_of_buffer(n, next(sizes))
            if made is not n:
                changing.add(n)
        elif n.op is Ops.IOTA:
            made = UOp.iota(next(sizes), n.dtype)
        elif n.op.kind == "movement" and n.op not in WITHOUT_SIZES:
            made = UOp(n.op, n.dtype, src, with_sizes(n.arg, sizes))
        else:
            made = n if src == n.src else UOp(n.op, n.dtype, src, n.arg)
        if n.op is Ops.ASSIGN and n.src[0].base in changing:
            raise Refused("it writes to a tensor whose size changes")
        check_size(made)
        made.origin = made.origin or n.origin
        new[n] = made
    return [new[r] for r in graph]


def check_size(node: UOp) -> None:
    """Raise Refused if an op does not accept its symbolic sizes, or if its result could not be planned."""
    size = checked_size(node)
    if isinstance(size, UOp):
        if terms_of(size) is None:
            raise Refused(f"a value has {size} elements, which is no sum of products of sizes")
        if size.vmax >= MOST_ELEMENTS:
            raise Refused(f"a value would have up to {size.vmax} elements")


def checked_size(node: UOp, may_be_negative: Callable[[UOp], bool] = lambda size: not is_never_negative(size)) -> Any:
    """Return the number of elements of a node's value; 0 for an operand that is a size.

    Args:
        may_be_negative: the test of a symbolic size; by default, ``is_never_negative``.

    Raises:
        Refused: if the op does not accept its symbolic sizes, or if a size could be negative.
    """
    if node.dtype is dtypes.index:
        return 0  # a variable, or computed of some
    try:
        size = node.size
    except (TypeError, ValueError) as error:
        raise Refused(str(error)) from None
    if isinstance(size, UOp) and any(isinstance(s, UOp) and may_be_negative(s) for s in node.shape):
        raise Refused(f"a value could have the shape {node.shape}, with a negative size")
    return size


def _part_of_buffer(node: UOp, size: Any) -> UOp:
    """Return a buffer's node, or the used part of the largest buffer if its size is symbolic."""
    if not isinstance(size, UOp):
        return node
    most = replace(node.arg, size=size.vmax)
    return UOp(Ops.BUFFER, node.dtype, (), most).shrink(((0, size),))


def with_sizes(arg: Any, sizes: Iterator[Any]) -> Any:
    """Return a movement op's argument with its integers replaced by the next ``sizes``, in the order of
    ``taken_apart``."""
    if isinstance(arg, Window):
        return replace(arg, inputs=next(sizes), outputs=next(sizes))
    return tuple(tuple(next(sizes) for _ in a) if type(a) is tuple else next(sizes) for a in arg)

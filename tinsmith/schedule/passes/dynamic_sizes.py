"""Dynamic sizes: a graph that comes back with other sizes gets one program whose sizes are variables.

Graphs that differ only in sizes have one *form*. The first sizes are compiled into programs of their own. When the same
form arrives with a third set of sizes, the sizes that changed are compared over all sets: those that take the same
values are one variable, and a size that is a multiple, a product or a shifted copy of variables becomes that
expression. A program with variables serves a graph only if all its expressions give exactly the graph's sizes, so that
it never depends on how they were guessed. Constants that changed along with the sizes become arguments.
"""
from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations_with_replacement
from typing import Any, Final, NamedTuple

import numpy as np

from tinsmith.backend.device import Device
from tinsmith.backend.memory import Buffer
from tinsmith.core.dtypes import dtypes
from tinsmith.ir import Ops, UOp
from tinsmith.ir.algebra.sizes import normal_size, polynomial
from tinsmith.ir.uop import Window, toposort
from tinsmith.schedule.canonical import BufferName
from tinsmith.schedule.multi.sharding import is_group

SEVERAL: Final = 3  # sets of sizes after which those that changed become variables
MOST_VARIABLES: Final = 4
MOST_PROGRAMS: Final = 8  # programs with variables of one form
_COMPARED: Final = 4  # sets of sizes that are kept
_LEAST, _MOST, _ROOM = 2, 1 << 16, 1 << 31  # bounds of variables, and of the elements of a value
_WITHOUT_SIZES = (Ops.PERMUTE, Ops.FLIP)


class Refused(Exception):
    """A form cannot have variable sizes; the message says why."""


class Expression(NamedTuple):
    """A size: ``factor`` times the product of the variables of these numbers, plus ``more``."""

    factor: int
    variables: tuple[int, ...]
    more: int = 0

    def at(self, values: Sequence[int]) -> int:
        """Return the size for values of the variables.

        >>> Expression(2, (0, 1), 1).at([3, 5])
        31
        """
        return self.factor * math.prod(values[v] for v in self.variables) + self.more


class Form(NamedTuple):
    """A canonical graph taken apart.

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
        graph: canonical; its values are those of the served graph, then the variables.
        places: for each variable, the number of a size that equals it.
        bounds: for each variable, the least and the greatest value.
        expressions: the number of a size → its expression; the other sizes are those of ``sample``.
        arguments: numbers of the constants that are arguments: inputs of one element, after the buffers.
        roots: elements of each result.
    """

    graph: list[UOp]
    sample: Form
    places: list[int]
    bounds: list[tuple[int, int]]
    expressions: dict[int, Expression]
    arguments: list[int]
    roots: list[Expression | int]

    def values_for(self, form: Form) -> list[int] | None:
        """Return the values of the variables for a graph of the same key; None if its sizes do not fit."""
        values = [form.sizes[p] for p in self.places]
        if any(not low <= v <= high for v, (low, high) in zip(values, self.bounds)):
            return None
        for n, (size, fixed) in enumerate(zip(form.sizes, self.sample.sizes)):
            if size != (self.expressions[n].at(values) if n in self.expressions else fixed):
                return None
        if any(a is not b and n not in self.arguments
               for n, (a, b) in enumerate(zip(form.constants, self.sample.constants))):
            return None
        return values

    def elements(self, values: Sequence[int]) -> list[int]:
        """Return the number of elements of each result for all values of the program."""
        return [r if isinstance(r, int) else r.at(values) for r in self.roots]

    def argument_buffers(self, form: Form, device: str) -> list[Buffer]:
        """Return a buffer with the value of each constant that is an argument."""
        found = []
        for n in self.arguments:
            buffer = Buffer(device, 1, form.constants[n].dtype)
            buffer.copyin(memoryview(np.array([form.constants[n].arg], buffer.dtype.numpy).tobytes()))
            found.append(buffer)
        return found


@dataclass
class SizeHistory:
    """What is known of one form.

    Attributes:
        samples: sets of sizes, with constants.
        programs: with variables.
        refused: why it can have none; empty if it can.
        seconds: that the last program with fixed sizes took to compile.
    """

    samples: list[Form] = field(default_factory=list)
    programs: list[SymbolicProgram] = field(default_factory=list)
    refused: str = ""
    seconds: float = 0.0


def form_of(graph: Sequence[UOp]) -> Form | None:
    """Return the form of a canonical graph; None if it has symbolic sizes already. Variables that are values may
    occur."""
    order = toposort(graph)
    number = {n: k for k, n in enumerate(order)}
    rows: list[Any] = []
    sizes: list[int] = []
    constants: list[UOp] = []
    for n in order:
        kept: Any = n.arg
        if n.op is Ops.CONST and _may_change(n):
            constants.append(n)
            kept = None
        elif n.op is Ops.BUFFER:
            if n.arg.layout is None:
                sizes.append(n.arg.size)
            kept = (n.arg.number, n.arg.device, n.arg.layout)
        elif n.op is Ops.IOTA:
            sizes.append(n.arg)
            kept = None
        elif n.op.kind == "movement" and n.op not in _WITHOUT_SIZES:
            kept = _taken_apart(n.arg, sizes)
            if kept is None:
                return None
        rows.append((n.op, n.dtype, kept, *(number[s] for s in n.src)))
    return Form((*rows, *(number[r] for r in graph)), tuple(sizes), tuple(constants))


def _may_change(constant: UOp) -> bool:
    kind = constant.dtype
    return kind is not dtypes.index and not kind.is_bool and kind.numpy.itemsize == kind.itemsize


def _taken_apart(arg: Any, sizes: list[int]) -> Any:
    """Append the integers of a movement op's argument to ``sizes`` and return the rest of it; None if one is
    symbolic."""
    if isinstance(arg, Window):
        found = (arg.inputs, arg.outputs)
        kept: Any = (arg.axis, arg.window_axis, arg.stride, arg.dilation)
    else:
        found = tuple(s for a in arg for s in a) if arg and type(arg[0]) is tuple else arg
        kept = len(arg)
    if any(isinstance(s, UOp) for s in found):
        return None
    sizes.extend(found)
    return kept


def served(graph: Sequence[UOp], form: Form, history: SizeHistory,
           device: str) -> tuple[SymbolicProgram, list[int]] | None:
    """Return a program with variables for a graph, with the variables' values; None if there is none yet, or none at
    all (``history.refused``)."""
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
    except (Refused, TypeError, ValueError) as reason:  # sizes that an op requires to be equal may have been told apart
        history.refused = str(reason)
        return None
    history.programs.append(program)
    return program, values


def _generalized(graph: Sequence[UOp], samples: Sequence[Form], device: str) -> SymbolicProgram:
    """Return the program with variables of a graph, the last of ``samples``.

    Raises:
        Refused: if there is none.
    """
    columns = list(zip(*(s.sizes for s in samples)))
    varying = {n: column for n, column in enumerate(columns) if len(set(column)) > 1}
    if not varying:
        raise Refused("only constants change")
    places, expressions = _related(varying)
    bounds = _bounds(expressions, [columns[p] for p in places])
    constants = list(zip(*(s.constants for s in samples)))
    arguments = [n for n, column in enumerate(constants) if any(c is not column[0] for c in column)]
    _check(graph, samples[-1], arguments, device)
    while True:
        made = _rebuilt(graph, samples[-1], expressions, bounds, arguments, device)
        most = max(r.size.vmax if isinstance(r.size, UOp) else r.size for r in toposort(made) if r.op is not Ops.BIND
                   and r.op is not Ops.VARIABLE and not (r.op is Ops.CONST and r.dtype is dtypes.index))
        if most < _ROOM:
            break
        bounds = [(low, high // 2) for low, high in bounds]
        if any(high < 2 * max(columns[p]) for p, (_, high) in zip(places, bounds)):
            raise Refused(f"with {bounds[0][1]} as the greatest size a value would have {most} elements")
    return SymbolicProgram(made, samples[-1], places, bounds, expressions, arguments, [_elements(r) for r in made])


def _related(varying: dict[int, tuple[int, ...]]) -> tuple[list[int], dict[int, Expression]]:
    """Choose variables among the sizes that change, and express the others by them.

    >>> _related({0: (5, 6, 8), 1: (25, 36, 64), 2: (40, 48, 64), 3: (4, 5, 7), 4: (3, 9, 2)})[0]
    [3, 4]
    """
    places: list[int] = []
    seen: list[tuple[int, ...]] = []
    expressions: dict[int, Expression] = {}
    for n, column in sorted(varying.items(), key=lambda x: (min(x[1]) < _LEAST, x[1][-1] < x[1][0], x[1][0])):
        found = next(_expressed(column, seen), None)
        if found is None:
            if min(column) < _LEAST:
                raise Refused("a size that changes is 0 or 1")
            if len(places) == MOST_VARIABLES:
                raise Refused(f"more than {MOST_VARIABLES} sizes change independently of each other")
            found = Expression(1, (len(places),))
            places.append(n)
            seen.append(column)
        expressions[n] = found
    return places, expressions


def _expressed(column: tuple[int, ...], seen: Sequence[tuple[int, ...]]) -> Iterator[Expression]:
    """Yield the expressions of variables with the values ``seen`` that give ``column``, the simplest first."""
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
        if not rest and factor and all(c == factor * v + more for c, v in zip(column, values)):
            yield Expression(factor, of, more)


def _bounds(expressions: dict[int, Expression], columns: Sequence[tuple[int, ...]]) -> list[tuple[int, int]]:
    """Return bounds of each variable, within which no size is negative."""
    found = []
    for number, column in enumerate(columns):
        alone = [e for e in expressions.values() if set(e.variables) == {number}]

        def fits(value: int, alone: Sequence[Expression] = alone, number: int = number) -> bool:
            return all(e.factor * value ** len(e.variables) + e.more >= 0 for e in alone)

        low = next(v for v in range(_LEAST, min(column) + 1) if fits(v) or v == min(column))
        high = max(_MOST, 1 << (2 * max(column)).bit_length())
        while high > max(column) and not fits(high):
            high //= 2
        found.append((low, max(high, max(column))))
    return found


def _check(graph: Sequence[UOp], sample: Form, arguments: Sequence[int], device: str) -> None:
    """Raise Refused for graphs that programs with variables do not compute."""
    order = toposort(graph)
    others = {n.device or device for n in order} - {device}
    if is_group(device) or any(is_group(d) or Device[d].has_programs for d in others):
        raise Refused("it uses several devices")
    if any(n.op in (Ops.COPY, Ops.HOST, Ops.SHARD) for n in order):
        raise Refused("it copies data or calls a function of the host")
    changing = {sample.constants[n] for n in arguments}
    fixed: set[UOp] = set()  # nodes that depend on constants only, which are computed at compile time
    for n in order if changing else ():
        if n.op is Ops.CONST:
            fixed.add(n)
        elif n.src and fixed.issuperset(n.src):
            fixed.add(n)
            if n.op.kind != "movement" and n.op not in (Ops.CONTIGUOUS, Ops.DETACH) and any(
                    s.base in changing for s in n.src):
                raise Refused("a constant that changes is computed with at compile time")


def _rebuilt(graph: Sequence[UOp], sample: Form, expressions: dict[int, Expression],
             bounds: Sequence[tuple[int, int]], arguments: Sequence[int], device: str) -> list[UOp]:
    """Return a canonical graph with expressions for its sizes."""
    order = toposort(graph)
    first = sum(n.op is Ops.BIND for n in order)
    symbols = [UOp(Ops.BIND, None, (UOp.variable(f"v{k}", *ends), UOp.const(dtypes.int32, k)))
               for k, ends in enumerate(bounds, first)]

    def symbolic(e: Expression) -> Any:
        value: Any = UOp.index(e.factor)
        for v in e.variables:
            value = value * symbols[v]
        return normal_size(value + e.more)

    at = iter(range(len(sample.sizes)))

    def size(plain: int) -> Any:
        n = next(at)
        return symbolic(expressions[n]) if n in expressions else plain

    given = {sample.constants[n]: k for k, n in enumerate(arguments)}
    count = sum(n.op is Ops.BUFFER for n in order)
    new: dict[UOp, UOp] = {}
    for n in order:
        src = tuple(new[s] for s in n.src)
        if n in given:
            made = UOp(Ops.BUFFER, n.dtype, (), BufferName(count + given[n], 1, device)).reshape(())
        elif n.op is Ops.BUFFER and n.arg.layout is None:
            made = _part_of_buffer(n, size(n.arg.size))
        elif n.op is Ops.IOTA:
            made = UOp.iota(size(n.arg), n.dtype)
        elif n.op.kind == "movement" and n.op not in _WITHOUT_SIZES:
            made = UOp(n.op, n.dtype, src, _with_sizes(n.arg, size))
        else:
            made = n if src == n.src else UOp(n.op, n.dtype, src, n.arg)
        if n.op is Ops.ASSIGN and n.src[0].base.op is Ops.BUFFER and src[0].base.arg is not n.src[0].base.arg:
            raise Refused("it writes to a tensor whose size changes")
        made.shape  # noqa: B018  checks the sizes
        made.origin = made.origin or n.origin
        new[n] = made
    return [new[r] for r in graph]


def _part_of_buffer(node: UOp, size: Any) -> UOp:
    """Return a buffer's node, or the used part of the largest buffer if its size is symbolic."""
    if not isinstance(size, UOp):
        return node
    most = replace(node.arg, size=size.vmax)
    return UOp(Ops.BUFFER, node.dtype, (), most).shrink(((0, size),))


def _with_sizes(arg: Any, size: Any) -> Any:
    """Return a movement op's argument with each integer replaced by ``size(integer)``, in the order of
    ``_taken_apart``."""
    if isinstance(arg, Window):
        return replace(arg, inputs=size(arg.inputs), outputs=size(arg.outputs))
    return tuple(tuple(map(size, a)) if type(a) is tuple else size(a) for a in arg)


def _elements(root: UOp) -> Expression | int:
    """Return the number of elements of a result as an expression over the program's values.

    Raises:
        Refused: if it has another form than ``Expression``.
    """
    if not isinstance(root.size, UOp):
        return int(root.size)
    terms = polynomial(root.size)
    more = terms.pop((), 0)
    if len(terms) != 1 or any(f.op is not Ops.BIND for f in next(iter(terms))):
        raise Refused("the size of a result is no product of variables")
    (of, factor), = terms.items()
    return Expression(factor, tuple(f.src[1].arg for f in of), more)

"""Canonical graphs: the key of a program, independent of the buffers and bound values it runs on."""
from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tinsmith.backend.memory import Buffer, ShardLayout
from tinsmith.core.dtypes import DType, dtypes
from tinsmith.core.object_lifetime import Recent
from tinsmith.ir import Ops, UOp
from tinsmith.ir.algebra.sizes import bindings, check_bound, symbols, with_symbols
from tinsmith.ir.ops import FOR_GRADIENTS
from tinsmith.ir.uop import toposort

_NAMED = (Ops.ASSIGN, Ops.CONTIGUOUS)  # ops whose argument matters to gradients only


def canonical(roots: Sequence[UOp]) -> tuple[list[UOp], list[UOp], list[int]]:
    """Return the graph with its BUFFERs and bound values numbered by first visit, the buffers, and the values.

    A buffer over several devices takes one number for each of its parts.

    Raises:
        ArgumentError: if a variable has no value.
    """
    new: dict[UOp, UOp] = {}
    buffers: list[UOp] = []
    count = 0
    order = toposort(roots)
    bound = bindings(order)
    _check_variables(order)
    for number, n in enumerate(bound):
        new[n] = _numbered(n, number)
    names = dict(new)
    for n in order:
        if n.op is Ops.BUFFER:
            name = buffer_name(count, n.arg)
            new[n] = UOp(Ops.BUFFER, n.dtype, (), name)
            buffers.append(n)
            count += len(part_names(name))
        elif n.op in FOR_GRADIENTS:
            new[n] = new.get(n.src[0], n.src[0])
        elif n.src and n not in names:
            src = tuple(new.get(s, s) for s in n.src)
            arg = with_symbols(n.arg, names) if names and n.op.kind == "movement" else None if n.op in _NAMED else n.arg
            if arg is not n.arg or any(a is not b for a, b in zip(src, n.src)):
                new[n] = made = n.replace(src=src, arg=arg)
                # nodes are shared: an equal graph from other source lines may exist already
                made.origin = n.origin or made.origin
    values = [n.src[1].arg for n in bound]
    return [new.get(r, r) for r in roots], buffers, values


def _check_variables(order: Sequence[UOp]) -> None:
    """Raise an ArgumentError if a node reads a variable that has no value, as an operand or as a size."""
    for n in order:
        if n.op is Ops.BIND:
            continue
        read = symbols(n.arg) if n.op.kind == "movement" else (s for s in n.src if s.op is Ops.VARIABLE)
        for node in read:
            check_bound("realize", node)


class ProgramForm:
    """The interned structure of a graph without its sizes and constants. Graphs of equal structure share one object, so
    that it is a cheap cache key.

    Attributes:
        rows: the structure, as ``structure`` returns it.
        copies: True if the graph contains a COPY.
        writes: True if the graph contains an ASSIGN.
    """

    __slots__ = ("_reads", "copies", "rows", "writes")

    def __init__(self, rows: tuple[Any, ...]) -> None:
        self.rows = rows
        ops = {row[0] for row in rows if type(row) is tuple}
        self.copies, self.writes = Ops.COPY in ops, Ops.ASSIGN in ops
        self._reads: list[int] | None = None

    @property
    def reads(self) -> list[int]:
        """Return a bit set for each root: bit 0 is set if float data is below it, bit n + 1 if buffer n is."""
        if self._reads is None:
            below: list[int] = []
            count = 0
            for row in self.rows:
                if type(row) is not tuple:
                    break
                bits = 0
                if isinstance(row[0], DType):
                    count += 1
                    bits = 1 << count | row[0].is_float
                elif row[0] is not Ops.BIND:
                    for source in row[3:]:
                        bits |= below[source] if type(source) is int else 0
                below.append(bits)
            self._reads = [below[r] if type(r) is int else 0 for r in self.rows[len(below) :]]
        return self._reads


forms: Recent[tuple[Any, ...], ProgramForm] = Recent()
Key = tuple[ProgramForm, tuple[Any, ...], tuple[UOp, ...]]


class Seen(NamedTuple):
    """The result of one walk over a graph: its form, and its sizes, constants, buffers and bound values in order of
    first visit.

    Attributes:
        key: the form, the sizes (of buffers and IOTAs, and arguments of movement ops), and the constants: graphs with
            equal keys have equal canonical graphs.
        plain: True if gradients see the same graph: no gradient-only node was skipped, and there is no ASSIGN.
        symbolic: True if there are sizes that are variables.
    """

    roots: Sequence[UOp]
    key: Key
    buffers: list[UOp]
    values: list[int]
    plain: bool
    symbolic: bool

    @property
    def form(self) -> ProgramForm:
        return self.key[0]


def seen(roots: Sequence[UOp]) -> Seen | None:
    """Return the form of the graph with its sizes, constants, buffers and values; None if a variable has no value.

    The canonical graph is not built.
    """
    plain = True
    bound: dict[UOp, int] = {}  # BIND → the number of its value
    symbolic = False
    # node → the number of its row; other leaves stand for themselves in the rows that read them
    numbers: dict[UOp, Any] = {}
    rows: list[Any] = []
    sizes: list[Any] = []
    constants: list[UOp] = []
    buffers: list[UOp] = []
    values: list[int] = []
    number = numbers.__getitem__
    stack: list[tuple[Any, Iterator[UOp]]] = []
    n, sources = None, iter(roots)
    while True:
        for s in sources:
            if s in numbers:
                continue
            if s.src:
                stack.append((n, sources))
                n, sources = s, iter(s.src)
                break
            op = s.op
            if op is Ops.BUFFER:
                buffer = s.arg
                numbers[s] = len(rows)
                buffers.append(s)
                if buffer.layout is None:
                    rows.append((s.dtype, s.device))
                    sizes.append(buffer.size)
                else:
                    rows.append((s.dtype, buffer.layout))
            elif op is Ops.CONST and is_value(s.dtype):
                numbers[s] = len(rows)
                rows.append((op, s.dtype))
                constants.append(s)
            elif op is Ops.IOTA:
                numbers[s] = len(rows)
                rows.append((op, s.dtype))
                sizes.append(s.arg)
            else:
                numbers[s] = s
        else:
            if n is None:
                rows.extend(map(number, roots))
                key = tuple(rows)
                form = forms.get(key)
                if form is None:
                    form = forms[key] = ProgramForm(key)
                return Seen(roots, (form, tuple(sizes), tuple(constants)), buffers, values, plain, symbolic)
            op, src = n.op, n.src
            if op in FOR_GRADIENTS:
                numbers[n], plain = numbers[src[0]], False
            else:
                numbers[n] = len(rows)
                if op is Ops.PERMUTE or op is Ops.FLIP:
                    rows.append((op, n.dtype, n.arg, numbers[src[0]]))
                elif op.kind == "movement":
                    arg = n.arg
                    if arg in _plain or _is_plain(arg):
                        sizes.append(arg)
                        rows.append((op, n.dtype, None, numbers[src[0]]))
                    else:
                        symbolic, read = True, _variables(arg)
                        for variable in read:
                            if variable.op is not Ops.BIND:
                                return None
                            if variable not in bound:
                                bound[variable] = len(values)
                                values.append(variable.src[1].arg)
                        rows.append((op, n.dtype, _with_numbers(arg, tuple(bound[v] for v in read)), numbers[src[0]]))
                elif op is Ops.BIND:
                    if n not in bound:
                        bound[n] = len(values)
                        values.append(src[1].arg)
                    rows.append((op, *src[0].arg[1:], bound[n]))
                elif op in _NAMED:
                    plain = plain and op is not Ops.ASSIGN
                    rows.append((op, n.dtype, None, *map(number, src)))
                elif len(src) == 2:
                    rows.append((op, n.dtype, n.arg, numbers[src[0]], numbers[src[1]]))
                else:
                    rows.append((op, n.dtype, n.arg, *map(number, src)))
            n, sources = stack.pop()


def _numbered(bound: UOp, number: int) -> UOp:
    """Return the BIND of a canonical graph that stands for ``bound``, the one of this number in order of first
    visit."""
    fresh = UOp.variable(f"v{number}", *bound.src[0].arg[1:])
    # dtype int32, not index: the constant is a number of a value, not a size
    return UOp(Ops.BIND, None, (fresh, UOp.const(dtypes.int32, number)))


@functools.lru_cache(4096)
def _variables(arg: Any) -> tuple[UOp, ...]:
    """Return the BINDs, and the variables without a value, in an argument of a movement op, in first-visit order."""
    nodes = dict.fromkeys(n for size in symbols(arg) for n in toposort(size))
    named = {n.src[0] for n in nodes if n.op is Ops.BIND}
    return tuple(n for n in nodes if n.op is Ops.BIND or (n.op is Ops.VARIABLE and n not in named))


@functools.lru_cache(4096)
def _with_numbers(arg: Any, numbers: tuple[int, ...]) -> Any:
    """Return an argument of a movement op with its BINDs replaced by those of a canonical graph, which have these
    numbers."""
    return with_symbols(arg, {bound: _numbered(bound, n) for bound, n in zip(_variables(arg), numbers)})


@functools.cache
def is_value(dtype: DType) -> bool:
    """Return True if tensors can have elements of this dtype, each with its own bytes in memory."""
    return dtype is not dtypes.index and not dtype.is_bool and dtype.numpy.itemsize == dtype.itemsize


_plain: set[Any] = set()  # arguments of movement ops without symbolic sizes


def _is_plain(arg: Any) -> bool:
    if type(arg) is not tuple:
        if any(True for _ in symbols(arg)):
            return False
    else:
        for a in arg:
            if type(a) is UOp or (type(a) is tuple and UOp in map(type, a)):
                return False
    if len(_plain) > 10_000:
        _plain.clear()
    _plain.add(arg)
    return True


@dataclass(frozen=True)
class BufferName:
    """The placeholder of a buffer in a canonical graph; a buffer over several devices has a ``layout``."""

    number: int
    size: int
    device: str
    layout: ShardLayout | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.size,) if self.layout is None else self.layout.shape


def buffer_name(number: int, b: Buffer) -> BufferName:
    """Return the placeholder of ``b`` as buffer ``number``."""
    return BufferName(number, b.size, b.device, b.layout)


def part_names(name: BufferName) -> list[BufferName]:
    """Return the placeholders of a buffer's parts, numbered from the buffer's own number on."""
    layout = name.layout
    if layout is None:
        return [name]
    return [BufferName(name.number + i, math.prod(layout.part_shape(i)), device)
            for i, device in enumerate(layout.devices)]

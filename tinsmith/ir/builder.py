"""Builder for hand-written linear programs: the node list that the linearizer otherwise generates from a kernel.

``ProgramBuilder.add`` takes an op, its dtype, its operands and its argument, and returns the new value. The builder
fills in the rest: loop counters and indices get the index dtype, buffer arguments come first, each accumulator is
attached to its loops, and the finished program is checked by ``verify_program``.
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, overload

from tinsmith.core.dtypes import DType, dtypes
from tinsmith.core.errors import ArgumentError
from tinsmith.core.lazy_import import Late
from tinsmith.ir.ops import Op, Ops
from tinsmith.ir.uop import UOp

if TYPE_CHECKING:
    from tinsmith.ir import verify as verifier
    from tinsmith.ir.text import printer
else:
    printer = Late("tinsmith.ir.text.printer")
    verifier = Late("tinsmith.ir.verify")

# Op names of older programs → current names. ALU has no row in the op table: `_row` resolves it through its argument.
SPELLINGS = {"LOOP": "RANGE", "ENDLOOP": "ENDRANGE", "DEFINE_VAR": "DEFINE_GLOBAL", "MULACC": "MULADD", "DIV": "FDIV"}
_ENDS = {Ops.ENDRANGE: Ops.RANGE, Ops.ENDIF: Ops.IF}
_LARGEST = (1 << 31) - 1
_ACCESSES: Final = (Ops.LOAD, Ops.STORE, Ops.LOAD_TILE, Ops.STORE_TILE)


@dataclass(eq=False)
class Value:
    """A line of a program under construction; ``number`` is its position in the program."""

    number: int
    op: Op
    dtype: DType | None
    src: tuple[Value, ...]
    arg: Any

    def __repr__(self) -> str:
        return f"<{self.number}: {self.op.name}>"


class ProgramBuilder(Sequence[UOp]):
    """A linear program, built one line at a time; as a sequence, the UOps of ``program()``.

    >>> g = ProgramBuilder()
    >>> out, x = (g.add("DEFINE_GLOBAL", dtypes.int32, arg=(n, f"data{n}", n == 0)) for n in (0, 1))
    >>> zero, ten = g.add("CONST", dtypes.int32, arg=0), g.add("CONST", dtypes.int32, arg=10)
    >>> total = g.add("DEFINE_ACC", dtypes.int32, arg=0)
    >>> i = g.add("LOOP", dtypes.int32, vin=(zero, ten))
    >>> value = g.add("LOAD", dtypes.int32, vin=(x, i))
    >>> new = g.add("PHI", dtypes.int32, vin=(total, g.add("ALU", dtypes.int32, vin=(total, value), arg=Ops.ADD)))
    >>> end, store = g.add("ENDLOOP", vin=(i,)), g.add("STORE", vin=(out, zero, new))
    >>> [u.op.name for u in g.program()][:5]
    ['DEFINE_GLOBAL', 'DEFINE_GLOBAL', 'CONST', 'CONST', 'CONST']

    ``tinsmith.runtime.custom_program.run_program`` runs a program on any device; docs/ir.md lists the ops.
    """

    def __init__(self) -> None:
        self.values: list[Value] = []
        self._finished: tuple[int, list[UOp]] = (0, [])  # lines that the UOps were made of, and these

    def __len__(self) -> int:
        return len(self.program())

    @overload
    def __getitem__(self, at: int) -> UOp: ...

    @overload
    def __getitem__(self, at: slice) -> list[UOp]: ...

    def __getitem__(self, at: int | slice) -> UOp | list[UOp]:
        return self.program()[at]

    def __iter__(self) -> Iterator[UOp]:
        return iter(self.program())

    def add(self, op: Op | str, dtype: DType | None = None, vin: Iterable[Value] = (), arg: Any = None) -> Value:
        """Append one line and return its value.

        Args:
            op: a row of the op table, or its name; ``LOOP``, ``ENDLOOP`` and ``ALU`` (with the op as ``arg``) as well.
            dtype: the dtype of the result; ops whose dtype follows from their operands ignore it.
            vin: the operands.
            arg: the op's argument. CONST: the value. DEFINE_GLOBAL: (number, name, written), or the number.
                DEFINE_LOCAL: (name, elements). DEFINE_ACC: the start value.

        Raises:
            ArgumentError: for an unknown op, too few operands, or operands that do not belong to this program.
        """
        row = _row(op, arg)
        src = tuple(vin)
        for s in src:
            if not (isinstance(s, Value) and s.number < len(self.values) and self.values[s.number] is s):
                raise ArgumentError("ProgramBuilder.add", f"{s!r} is not a value of this program",
                                    "a value returned by add()")
        least = row.arity if isinstance(row.arity, int) else row.arity[0]
        if len(src) < least and row not in (Ops.DEFINE_ACC, Ops.RANGE, Ops.ENDRANGE, Ops.ENDIF):
            raise ArgumentError("ProgramBuilder.add", f"{row.name} takes {least} values, got {len(src)}", row.doc)
        value = Value(len(self.values), row, dtype, src, None if row.alu else arg)
        self.values.append(value)
        return value

    def program(self) -> list[UOp]:
        """Return the finished program as a list of UOps.

        Raises:
            ArgumentError: for operands of incompatible ops or dtypes, or a loop that is never closed.
            VerifyError: if the program breaks a rule of linear programs, with the line marked.
        """
        if self._finished[0] != len(self.values):
            self._finished = len(self.values), _Writer(self.values).run()
        return list(self._finished[1])

    @property
    def uops(self) -> list[UOp]:
        """The same list as ``program()``."""
        return self.program()

    def print(self) -> None:
        """Print the table that ``DEBUG=5`` shows."""
        print(printer.uop_table(self.program()))


def _row(op: Op | str, arg: Any) -> Op:
    """Return the op-table row that a line names; for ALU, the row of its argument."""
    named = op.name if isinstance(op, Op) else str(op)
    if named == "ALU":
        if arg is None:
            raise ArgumentError("ProgramBuilder.add", "ALU needs the op as its argument", "arg=Ops.ADD")
        named = arg.name if isinstance(arg, Op) else str(arg)
    found = getattr(Ops, SPELLINGS.get(named, named), None)
    if not isinstance(found, Op):
        raise ArgumentError("ProgramBuilder.add", f"there is no op {named!r}", "a name of docs/ir.md")
    return found


class _Writer:
    """Converts Values to UOps. A value becomes data (its own dtype), an index (address arithmetic), or both, emitted at
    the position of its line."""

    def __init__(self, values: Sequence[Value]) -> None:
        self.values = values
        self.memories = {v.src[0] for v in values if v.op in _ACCESSES}
        self.ends: dict[Value, Value] = {}
        self.loops: dict[Value, tuple[Value, ...]] = {}
        self.stores: dict[Value, int] = {}
        self.data: dict[Value, UOp] = {}
        self.places: dict[Value, UOp] = {}
        self.lines: list[list[UOp]] = [[] for _ in values]
        self.readers: dict[Value, list[Value]] = {v: [] for v in values}
        for v in values:
            for s in v.src:
                self.readers[s].append(v)
        kinds = (Ops.RANGE, Ops.DEFINE_ACC)
        self.counts = {v: n for op in kinds for n, v in enumerate(v for v in values if v.op is op)}

    def run(self) -> list[UOp]:
        self.scopes()
        for v in self.values:
            self.write(v)
        heads = [u for line in self.lines for u in line if u.op is Ops.DEFINE_GLOBAL]
        heads.sort(key=lambda u: (not u.dtype.pointer, u.arg if u.dtype.pointer else 0))
        constants = dict.fromkeys(u for line in self.lines for u in line if u.op is Ops.CONST)
        out = [*heads, *constants]
        for line in self.lines:
            out += [u for u in line if u.op not in (Ops.DEFINE_GLOBAL, Ops.CONST)]
        out = list(self.once(out))
        verifier.verify_program(out)
        return out

    @staticmethod
    def once(program: list[UOp]) -> Iterable[UOp]:
        """Yield the program without lines that repeat a value still in scope."""
        scopes: list[set[UOp]] = [set()]
        for u in program:
            if u.op in _ENDS:
                scopes.pop()
            elif u.op is not Ops.STORE and u.op is not Ops.BARRIER and any(u in s for s in scopes):
                continue
            scopes[-1].add(u)
            if u.op in _ENDS.values():
                scopes.append({u})
            yield u

    def scopes(self) -> None:
        """Match each ENDRANGE and ENDIF with its opening line, and attach each accumulator to its enclosing loops."""
        opened: list[Value] = []
        since: dict[Value, int] = {}
        for v in self.values:
            if v.op in _ENDS.values():
                opened.append(v)
            elif v.op in _ENDS:
                if not opened or (v.src and v.src[0] is not opened[-1]) or opened[-1].op is not _ENDS[v.op]:
                    raise ArgumentError("ProgramBuilder", f"{v} does not close the innermost loop or condition", "")
                self.ends[v] = opened.pop()
            elif v.op is Ops.DEFINE_ACC:
                since[v] = len(opened)
            elif v.op is Ops.PHI:
                self.belongs(v, opened, since)
        if opened:
            raise ArgumentError("ProgramBuilder", f"{opened[-1]} is never closed",
                                "add('ENDLOOP', vin=(loop,)) or add('ENDIF', vin=(condition,))")

    def belongs(self, phi: Value, opened: list[Value], since: dict[Value, int]) -> None:
        acc = phi.src[0]
        if acc.op is not Ops.DEFINE_ACC:
            raise ArgumentError("ProgramBuilder", f"{phi}: {acc} is not an accumulator", "a value of DEFINE_ACC")
        inside = opened[since[acc]:]
        if any(v.op is Ops.IF for v in inside):
            raise ArgumentError("ProgramBuilder", f"{phi} is inside an IF", "WHERE chooses between two values")
        if not inside:
            raise ArgumentError("ProgramBuilder", f"{phi} is not inside a loop opened after {acc}",
                                "DEFINE_ACC before the loop, PHI inside it")
        self.loops[acc] = tuple(inside)

    # *** lines ***

    def write(self, v: Value) -> None:
        """Emit the UOps of line ``v`` that are not emitted on demand by a reader."""
        if v.op is Ops.STORE:
            self.stores[v.src[0]] = self.stores.get(v.src[0], 0) + 1
        if v.op in (Ops.CONST, Ops.DEFINE_GLOBAL) and v not in self.memories:
            return  # emitted when a reader asks for them
        if v.op.alu and self.is_integer(v) and self.readers[v] and not self.is_data(v):
            return
        self.as_data(v)

    def is_data(self, v: Value) -> bool:
        """Return True if ``v`` is used as data by some reader, and not only as an index or a loop bound."""
        return any(self.takes_data(reader, v) for reader in self.readers[v])

    def takes_data(self, reader: Value, v: Value) -> bool:
        if reader.op in _ENDS or reader.op is Ops.RANGE:
            return False
        if reader.op in (Ops.LOAD, Ops.STORE):
            return v in reader.src[2:]
        if reader.op is Ops.PHI:
            return v in reader.src[:2]
        return not (reader.op.alu and self.is_integer(reader)) or not self.readers[reader] or self.is_data(reader)

    def emit(self, v: Value, u: UOp) -> UOp:
        self.lines[v.number].append(u)
        return u

    def as_place(self, v: Value) -> UOp:
        """Return ``v`` as an index-typed UOp, for addressing memory or bounding a loop."""
        if v not in self.places:
            self.places[v] = self.place(v)
        return self.places[v]

    def place(self, v: Value) -> UOp:
        if v.op is Ops.CONST:
            lanes = 1 if v.dtype is None else v.dtype.count
            return self.emit(v, UOp.const(dtypes.index.vec(lanes), v.arg))
        if v.op is Ops.RANGE:
            begin, end = v.src if len(v.src) == 2 else (None, v.src[0])
            first = UOp.index(0) if begin is None else self.as_place(begin)
            if begin is None:
                self.emit(v, first)
            return self.emit(v, UOp(Ops.RANGE, dtypes.index, (first, self.as_place(end)), (self.counts[v], True)))
        if v.op is Ops.DEFINE_GLOBAL:
            if v in self.memories:
                raise ArgumentError("ProgramBuilder", f"{v} is a buffer but is used as an integer", "a LOAD from it")
            name = v.arg[1] if isinstance(v.arg, tuple) and len(v.arg) > 1 else f"data{_number(v)}"
            return self.emit(v, UOp(Ops.DEFINE_GLOBAL, dtypes.index, (), (str(name), -_LARGEST, _LARGEST)))
        if v.op is Ops.SPECIAL:
            return self.emit(v, UOp(Ops.SPECIAL, dtypes.index, (), v.arg))
        if v.op.alu and v.op.kind == "binary" and all(self.is_integer(s) for s in v.src):
            return self.emit(v, UOp(v.op, None, tuple(self.as_place(s) for s in v.src)))
        found = self.as_data(v)
        if found.dtype.scalar is dtypes.index:
            return found
        return self.emit(v, UOp(Ops.CAST, dtypes.index.vec(found.dtype.count), (found,)))

    def is_integer(self, v: Value) -> bool:
        """Return True if ``v`` is computed from loop counters, integer arguments and constants alone, so that it can be
        an index."""
        if v.op in (Ops.CONST, Ops.RANGE, Ops.SPECIAL):
            return v.dtype is None or v.dtype.is_int or v.dtype is dtypes.index
        if v.op is Ops.DEFINE_GLOBAL:
            return v not in self.memories
        return v.op in (Ops.ADD, Ops.SUB, Ops.MUL, Ops.IDIV, Ops.MOD) and all(self.is_integer(s) for s in v.src)

    def as_data(self, v: Value) -> UOp:
        """Return ``v`` as a UOp of the line's own dtype."""
        if v not in self.data:
            self.data[v] = self.line(v)
        return self.data[v]

    def line(self, v: Value) -> UOp:
        if v.op is Ops.CONST:
            return self.emit(v, UOp.const(self.dtype(v), v.arg))
        if v.op in (Ops.RANGE, Ops.SPECIAL) or (v.op is Ops.DEFINE_GLOBAL and v not in self.memories):
            place = self.as_place(v)
            dtype = v.dtype or dtypes.index
            cast = dtype is not dtypes.index and self.is_data(v)
            return self.emit(v, UOp(Ops.CAST, dtype, (place,))) if cast else place
        if v.op is Ops.DEFINE_GLOBAL:
            return self.emit(v, UOp(Ops.DEFINE_GLOBAL, self.dtype(v).scalar.ptr(), (), _number(v)))
        if v.op is Ops.DEFINE_LOCAL:
            return self.emit(v, UOp(Ops.DEFINE_LOCAL, self.dtype(v).scalar.ptr(), (), tuple(v.arg)))
        if v.op in _ENDS:
            return self.emit(v, UOp(v.op, None, (self.opening(self.ends[v]),)))
        if v.op is Ops.DEFINE_ACC:
            return self.accumulator(v)
        if v.op is Ops.PHI:
            return self.emit(v, UOp(Ops.PHI, None, tuple(map(self.as_data, v.src[:2]))))
        if v.op in (Ops.LOAD, Ops.STORE):
            return self.access(v)
        return self.arithmetic(v)

    def opening(self, v: Value) -> UOp:
        return self.as_place(v) if v.op is Ops.RANGE else self.as_data(v)

    def accumulator(self, v: Value) -> UOp:
        dtype = self.dtype(v)
        held = v.arg[0] if isinstance(v.arg, tuple) else v.arg
        start = [self.as_data(s) for s in v.src[:1] if s.op is not Ops.RANGE]
        start = start or [self.emit(v, UOp.const(dtype, 0 if held is None else held))]
        if v not in self.loops:
            raise ArgumentError("ProgramBuilder", f"{v} is never updated",
                                    "PHI, which updates an accumulator in its loop")
        return self.emit(v, UOp(Ops.DEFINE_ACC, dtype, (*start, *map(self.as_place, self.loops[v])), self.counts[v]))

    def access(self, v: Value) -> UOp:
        """Emit a LOAD (memory, index[, condition]) or STORE (memory, index, value[, condition])."""
        memory, place = self.as_data(v.src[0]), self.as_place(v.src[1])
        if v.op is Ops.STORE:
            return self.emit(v, UOp(Ops.STORE, None, (memory, place, *map(self.as_data, v.src[2:]))))
        dtype = v.dtype or memory.dtype.scalar
        again = self.stores.get(v.src[0])  # stores so far: a LOAD after a STORE must not be merged with an earlier LOAD
        return self.emit(v, UOp(Ops.LOAD, dtype, (memory, place, *map(self.as_data, v.src[2:])), again))

    def arithmetic(self, v: Value) -> UOp:
        src = tuple(map(self.as_data, v.src))
        dtype = v.dtype if v.op.dtype is None else None
        if v.op is Ops.FDIV and src and not src[0].dtype.is_float:
            return self.emit(v, UOp(Ops.IDIV, None, src))
        if v.op.dtype is None and dtype is None:
            raise ArgumentError("ProgramBuilder", f"{v} needs a dtype", "dtype=")
        try:
            return self.emit(v, UOp(v.op, dtype, src, v.arg))
        except TypeError as error:
            raise ArgumentError("ProgramBuilder", f"{v}: {error}", "sources of one dtype; CAST converts") from None

    def dtype(self, v: Value) -> DType:
        if v.dtype is None:
            raise ArgumentError("ProgramBuilder", f"{v} needs a dtype", "dtype=dtypes.int32")
        return v.dtype


def _number(v: Value) -> int:
    """Return the number of a buffer argument."""
    number = v.arg[0] if isinstance(v.arg, tuple) else v.arg
    if not isinstance(number, int):
        raise ArgumentError("ProgramBuilder", f"{v}: {v.arg!r} is not a buffer argument", "arg=(0, 'data0', True)")
    return number

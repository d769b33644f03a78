"""The renderer of Anvil: linear programs as assembly.

Indices, and conditions on indices, live in scalar registers; everything else in vector registers, a single value as a
vector of one lane. Lines are written with endless registers first; ``allocate`` then finds numbers for them.
"""
from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from anvil.isa import FORMS, REGISTERS, TILE, TYPES, Instruction
from tinsmith.codegen.render.base import Renderer
from tinsmith.core.dtypes import DType, dtypes
from tinsmith.core.errors import CompileError
from tinsmith.ir import Op, Ops, UOp

_TYPES: Final[dict[DType, str]] = {
    dtypes.bool: "bool", dtypes.int8: "i8", dtypes.uint8: "u8", dtypes.int16: "i16", dtypes.uint16: "u16",
    dtypes.int32: "i32", dtypes.uint32: "u32", dtypes.int64: "i64", dtypes.uint64: "u64", dtypes.float16: "f16",
    dtypes.bfloat16: "bf16", dtypes.float32: "f32", dtypes.float64: "f64", dtypes.index: "i64"}
_ALU: Final[dict[Op, str]] = {
    Ops.ADD: "add", Ops.SUB: "sub", Ops.MUL: "mul", Ops.FDIV: "div", Ops.IDIV: "idiv", Ops.MOD: "mod", Ops.FMOD: "fmod",
    Ops.MAX: "max",
    Ops.MIN: "min", Ops.AND: "and", Ops.OR: "or", Ops.XOR: "xor", Ops.SHL: "shl", Ops.SHR: "shr", Ops.CMPLT: "lt",
    Ops.CMPEQ: "eq", Ops.CMPNE: "ne", Ops.NEG: "neg", Ops.RECIP: "recip", Ops.SQRT: "sqrt", Ops.TRUNC: "trunc",
    Ops.WHERE: "where", Ops.MULADD: "muladd"}
_ON_SCALARS: Final[dict[Op, str]] = {
    Ops.ADD: "sadd", Ops.SUB: "ssub", Ops.MUL: "smul", Ops.IDIV: "sdiv", Ops.MOD: "smod", Ops.MAX: "smax",
    Ops.MIN: "smin", Ops.AND: "sand", Ops.OR: "sor", Ops.XOR: "sxor", Ops.CMPLT: "slt", Ops.CMPEQ: "seq",
    Ops.CMPNE: "sne", Ops.NEG: "sneg", Ops.WHERE: "ssel"}

Register = tuple[str, int]  # kind and a number that is not yet the machine's


def type_of(dtype: DType) -> str:
    """Return the assembler's name of an element type."""
    return _TYPES[dtype.scalar]


@dataclass
class Line:
    """An instruction before register allocation."""

    name: str
    registers: list[Register]
    type: str = ""
    lanes: int = 0
    constant: int = 0


class AnvilRenderer(Renderer):
    """The renderer of kernels as Anvil assembly."""

    comment = ";"

    def render(self, name: str, program: Sequence[UOp]) -> str:
        writer = _Writer(program)
        lines = writer.write()
        numbered = [Instruction(line.name, line.type, line.lanes, numbers, line.constant)
                    for line, numbers in zip(lines, allocate(lines))]
        text, depth = [f"; {name}", f".args {writer.arguments}", f".scratch {writer.scratch}"], 1
        for found in numbered:
            depth -= found.name in ("endloop", "endif")
            text.append("  " * depth + str(found))
            depth += found.name in ("loop", "if")
        return "\n".join(text) + "\n"


class _Writer:
    """The lines of one kernel; ``at`` maps values to the registers that hold them."""

    def __init__(self, program: Sequence[UOp]) -> None:
        self.program = program
        self.at: dict[UOp, Register] = {}
        self.head: list[Line] = []
        self.lines: list[Line] = []
        self.known: dict[tuple[object, ...], Register] = {}
        self.count = self.arguments = self.scratch = 0
        self.uses = Counter(s for u in program for s in u.src)

    def write(self) -> list[Line]:
        for u in self.program:
            if u.op in _WRITERS:
                _WRITERS[u.op](self, u)
            elif u.op.alu:
                self.arithmetic(u)
            else:
                raise CompileError("ANVIL", f"{u.op.name} has no place in a program of this machine", "report it")
        return self.head + self.lines

    # *** registers ***

    def fresh(self, kind: str) -> Register:
        self.count += 1
        return kind, self.count

    def emit(self, name: str, kind: str, *sources: Register, dtype: DType | None = None, constant: int = 0) -> Register:
        """Append a line with a new target register; return the register."""
        out = self.fresh(kind)
        self.line(name, out, *sources, dtype=dtype, constant=constant)
        return out

    def line(self, name: str, *registers: Register, dtype: DType | None = None, constant: int = 0) -> None:
        kind, lanes = ("", 0) if dtype is None else (type_of(dtype), dtype.count)
        self.lines.append(Line(name, list(registers), kind, lanes, constant))

    def once(self, name: str, kind: str, dtype: DType | None, constant: int) -> Register:
        """Return the register of a constant, defined before all loops."""
        key = (name, dtype, constant)
        if key not in self.known:
            out = self.known[key] = self.fresh(kind)
            self.head.append(Line(name, [out], "" if dtype is None else type_of(dtype),
                                  0 if dtype is None else dtype.count, constant))
        return self.known[key]

    def number(self, value: int) -> Register:
        return self.once("sconst", "s", None, value)

    def scalar(self, u: UOp) -> Register:
        """Return the scalar register of a single integer or condition."""
        if u.op is Ops.CONST:
            return self.number(int(u.arg))
        found = self.at[u]
        return found if found[0] == "s" else self.emit("take", "s", found, dtype=u.dtype)

    def vector(self, u: UOp, count: int = 0) -> Register:
        """Return the vector register of a value; a single value is broadcast to ``count`` lanes."""
        dtype = u.dtype.scalar.vec(max(count, u.dtype.count))
        if u.op is Ops.CONST:
            return self.once("const", "v", dtype, bits(u))
        found = self.at[u]
        if found[0] == "s":
            return self.emit("spread", "v", found, dtype=dtype)
        return found if dtype is u.dtype else self.emit("splat", "v", found, dtype=dtype)

    def in_scalars(self, u: UOp) -> bool:
        if u.op is Ops.CONST:
            return u.dtype.count == 1 and (u.dtype is dtypes.index or u.dtype.is_bool)
        return self.at[u][0] == "s"

    # *** one UOp ***

    def argument(self, u: UOp) -> None:
        self.at[u] = self.once("sarg", "s", None, self.arguments)
        self.arguments += 1

    def local_memory(self, u: UOp) -> None:
        self.at[u] = self.once("sscratch", "s", None, self.scratch)
        self.scratch += -(-u.arg[1] * u.dtype.itemsize // 64) * 64

    def nothing(self, u: UOp) -> None:
        """Emit nothing: constants are written at their uses."""

    def accumulator(self, u: UOp) -> None:
        if is_tile(u):
            self.at[u] = self.sum(u.src[0])
        elif u.dtype is dtypes.index:
            self.at[u] = self.emit("smov", "s", self.scalar(u.src[0]))
        else:
            self.at[u] = self.emit("mov", "v", self.vector(u.src[0]), dtype=u.dtype)

    def phi(self, u: UOp) -> None:
        acc, value = u.src
        target = self.at[u] = self.at[acc]
        if target[0] == "t":
            return None  # products are added in place
        if target[0] == "s":
            return self.line("smov", target, self.scalar(value))
        source = self.vector(value)
        if self.uses[value] == 1 and self.writes_last(source, target):
            return None
        return self.line("mov", target, source, dtype=acc.dtype)

    def writes_last(self, source: Register, target: Register) -> bool:
        """Make the line that computed ``source`` write ``target`` instead; return False if a later line uses either or
        a block lies between."""
        for line in reversed(self.lines):
            if FORMS[line.name].registers[:1] == "v" and line.registers[0] == source and line.name != "put":
                line.registers[0] = target
                return True
            if target in line.registers or source in line.registers or line.name in ("loop", "endloop", "if", "endif"):
                return False
        return False

    def open(self, u: UOp) -> None:
        start, end = (self.scalar(s) for s in u.src)
        self.at[u] = self.emit("loop", "s", start, end)

    def condition(self, u: UOp) -> None:
        self.line("if", self.scalar(u.src[0]))

    def close(self, u: UOp) -> None:
        self.line("endloop" if u.op is Ops.ENDRANGE else "endif")

    def cast(self, u: UOp) -> None:
        source = u.src[0]
        if u.dtype is dtypes.index:
            self.at[u] = self.scalar(source)
        elif self.in_scalars(source):
            self.at[u] = self.emit("spread", "v", self.scalar(source), dtype=u.dtype)
        else:
            old = TYPES.index(type_of(source.dtype))
            name = "bits" if u.op is Ops.BITCAST else "convert"
            self.at[u] = self.emit(name, "v", self.vector(source), dtype=u.dtype, constant=old)

    def arithmetic(self, u: UOp) -> None:
        if u.dtype.count == 1 and (u.dtype is dtypes.index or all(self.in_scalars(s) for s in u.src)):
            sources = [self.scalar(s) for s in u.src]
            if u.op is Ops.MULADD:
                sources = [self.emit("smul", "s", *sources[:2]), sources[2]]
            self.at[u] = self.emit("sadd" if u.op is Ops.MULADD else _ON_SCALARS[u.op], "s", *sources)
            return
        wide = u.src[0].dtype if u.dtype.is_bool else u.dtype  # comparisons are of their operands' type
        sources = [self.vector(s, u.dtype.count) for s in u.src]
        self.at[u] = self.emit(_ALU[u.op], "v", *sources, dtype=wide)

    def vectorize(self, u: UOp) -> None:
        if len(u.src) == 1:
            source = u.src[0]
            self.at[u] = self.vector(source, u.dtype.count) if source.dtype.count == 1 else self.emit(
                "repeat", "v", self.vector(source), dtype=u.dtype)
            return
        self.at[u] = out = self.emit("const", "v", dtype=u.dtype)
        first = 0
        for s in u.src:
            self.line("put", out, self.vector(s), dtype=s.dtype, constant=first << 16)
            first += s.dtype.count

    def lanes(self, u: UOp) -> None:
        source, wanted = self.vector(u.src[0]), list(u.arg)
        out = self.emit("const", "v", dtype=u.dtype)
        done = 0
        while done < len(wanted):
            run = 1
            while done + run < len(wanted) and wanted[done + run] == wanted[done] + run:
                run += 1
            self.line("put", out, source, dtype=u.dtype.scalar.vec(run), constant=done << 16 | wanted[done])
            done += run
        self.at[u] = self.emit("take", "s", out, dtype=u.dtype) if u.dtype is dtypes.index else out

    # *** memory ***

    def address(self, memory: UOp, index: UOp) -> tuple[Register, int]:
        """Return the address register and the constant offset of an element."""
        size, offset, base = memory.dtype.itemsize, 0, self.at[memory]
        if index.op is Ops.ADD and index.src[1].op is Ops.CONST:
            index, offset = index.src[0], int(index.src[1].arg) * size
        if index.op is Ops.CONST:
            return base, int(index.arg) * size
        at = self.scalar(index)
        scaled = at if size == 1 else self.emit("smul", "s", at, self.number(size))
        return self.emit("sadd", "s", base, scaled), offset

    def mask(self, u: UOp, position: int, count: int) -> Register | None:
        return self.vector(u.src[position], count) if len(u.src) > position else None

    def load(self, u: UOp) -> None:
        memory, index = u.src[:2]
        mask = self.mask(u, 2, u.dtype.count)
        if index.dtype.count > 1:
            mask = mask or self.once("const", "v", dtypes.bool.vec(u.dtype.count), 1)
            self.at[u] = self.emit("gather", "v", self.at[memory], self.vector(index), mask, dtype=u.dtype)
            return
        base, offset = self.address(memory, index)
        sources = [base] if mask is None else [base, mask]
        self.at[u] = self.emit("load" if mask is None else "loadm", "v", *sources, dtype=u.dtype, constant=offset)

    def store(self, u: UOp) -> None:
        memory, index, value = u.src[:3]
        mask, source = self.mask(u, 3, value.dtype.count), self.vector(value)
        if index.dtype.count > 1:
            mask = mask or self.once("const", "v", dtypes.bool.vec(value.dtype.count), 1)
            self.line("scatter", self.at[memory], self.vector(index), mask, source, dtype=value.dtype)
            return
        base, offset = self.address(memory, index)
        if mask is None:
            self.line("store", base, source, dtype=value.dtype, constant=offset)
        else:
            self.line("storem", base, mask, source, dtype=value.dtype, constant=offset)

    # *** the matrix unit ***

    def tile_address(self, u: UOp) -> tuple[Register, int]:
        """Return the register with the address of a tile, and the pitch of its rows in bytes."""
        memory, index, pitch = u.src[:3]
        base, offset = self.address(memory, index)
        if pitch.op is not Ops.CONST:
            raise CompileError("ANVIL", "rows of a tile lie a constant number of bytes apart", "report it")
        at = self.emit("sadd", "s", base, self.number(offset)) if offset else base
        return at, int(pitch.arg) * memory.dtype.itemsize

    def load_tile(self, u: UOp) -> None:
        address, pitch = self.tile_address(u)
        self.at[u] = self.emit("tload", "t", address, constant=pitch)

    def store_tile(self, u: UOp) -> None:
        address, pitch = self.tile_address(u)
        self.line("tstore", address, self.at[u.src[3]], constant=pitch)

    def sum(self, start: UOp) -> Register:
        """Return the tile of an accumulator; a new one at its start."""
        return self.emit("tzero", "t") if start.op is Ops.CONST else self.at[start]

    def multiply(self, u: UOp) -> None:
        acc, a, b = u.src
        self.at[u] = self.sum(acc)
        self.line("tmul", self.at[u], self.at[a], self.at[b])


def is_tile(u: UOp) -> bool:
    """Return True if a value is held in a tile; vectors are shorter."""
    return bool(u.dtype.count == TILE * TILE)


def bits(u: UOp) -> int:
    """Return a constant as 64 bits of its kind, read as a signed number."""
    if u.dtype.is_float:
        return int(struct.unpack("<q", struct.pack("<d", u.arg))[0])
    value = int(u.arg) & (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


def allocate(lines: Sequence[Line]) -> list[tuple[int, ...]]:
    """Numbers of the machine's registers. A register is free again after the last line that needs its value, which is
    the end of the loop if the value comes from before it.

    Raises:
        CompileError: if more values are alive than the machine has registers.
    """
    first: dict[Register, int] = {}
    last: dict[Register, int] = {}
    loops = _loops(lines)
    for number, line in enumerate(lines):
        for r in line.registers:
            first.setdefault(r, number)
            ends = [end for begin, end in loops if first[r] < begin <= number < end]
            last[r] = max(number, last.get(r, 0), *ends)
    ending: dict[int, list[Register]] = {}
    for r, number in last.items():
        ending.setdefault(number, []).append(r)
    free = {kind: list(range(count - 1, -1, -1)) for kind, count in REGISTERS.items()}
    held: dict[Register, int] = {}
    out = []
    for number, line in enumerate(lines):
        for r in line.registers:
            if r not in held:
                if not free[r[0]]:
                    raise CompileError("ANVIL", f"more than {REGISTERS[r[0]]} values are alive", "NOOPT=1")
                held[r] = free[r[0]].pop()
        out.append(tuple(held[r] for r in line.registers))
        for r in ending.get(number, ()):
            free[r[0]].append(held[r])
    return out


def _loops(lines: Sequence[Line]) -> list[tuple[int, int]]:
    """Return the first and last line of every loop."""
    out, open_loops = [], []
    for number, line in enumerate(lines):
        if line.name == "loop":
            open_loops.append(number)
        elif line.name == "endloop":
            out.append((open_loops.pop(), number))
    return out


_WRITERS: Final[dict[Op, Callable[[_Writer, UOp], None]]] = {
    Ops.DEFINE_GLOBAL: _Writer.argument, Ops.DEFINE_LOCAL: _Writer.local_memory, Ops.CONST: _Writer.nothing,
    Ops.PREFETCH: _Writer.nothing, Ops.DEFINE_ACC: _Writer.accumulator, Ops.PHI: _Writer.phi, Ops.RANGE: _Writer.open,
    Ops.ENDRANGE: _Writer.close, Ops.IF: _Writer.condition, Ops.ENDIF: _Writer.close, Ops.LOAD: _Writer.load,
    Ops.STORE: _Writer.store, Ops.CAST: _Writer.cast, Ops.BITCAST: _Writer.cast, Ops.VECTORIZE: _Writer.vectorize,
    Ops.GEP: _Writer.lanes, Ops.LOAD_TILE: _Writer.load_tile, Ops.STORE_TILE: _Writer.store_tile,
    Ops.MMA: _Writer.multiply,
}

"""What OpenCL, CUDA and Metal have in common: C over scalars, with vectors only where memory is touched.

A vector value is held as one scalar per lane, which these machines compute on anyway; loads and stores of whole
vectors use the language's vector types. 16-bit floats are kept as their bits where the language has no such type.
"""
from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from tinsmith.codegen.render.base import mentions
from tinsmith.codegen.render.cstyle import CRenderer, _addend, _strip
from tinsmith.core.dtypes import DType, dtypes
from tinsmith.core.errors import CompileError
from tinsmith.ir import Ops, UOp
from tinsmith.ir.linear import linear_form
from tinsmith.ir.units import MatrixUnit

RING_OPS = (Ops.DEFINE_RING, Ops.ARRIVE, Ops.RELEASE, Ops.ASYNC_COPY, Ops.WAIT, Ops.TILE, Ops.FENCE, Ops.COMMIT,
            Ops.DRAIN)
HALVES = (dtypes.float16, dtypes.bfloat16)
AXES = "xyz"


def bfloat16(inline: str, float_of: str, bits_of: str, uint: str = "uint", ushort: str = "ushort") -> dict[str, str]:
    """Both conversions of bfloat16, which compute on bits."""
    return {"bf16_float": f"{inline} float bf16_float({ushort} x) {{ return {float_of}({uint})x << 16); }}",
            "float_bf16": f"{inline} {ushort} float_bf16(float x) {{ {uint} u = {bits_of}x);\n"
                          "  return x != x ? (u >> 16) | 64 : (u + 0x7fff + ((u >> 16) & 1)) >> 16; }"}


def called(helpers: Mapping[str, str], text: str) -> list[str]:
    """The functions and names among ``helpers`` that occur in a text."""
    return [helper for name, helper in helpers.items() if mentions(text, name)]


def specials(program: Sequence[UOp]) -> dict[str, int]:
    """``gidx0``, ``lidx0``, … with their sizes."""
    return {u.arg[0]: u.arg[1] for u in program if u.op is Ops.SPECIAL and isinstance(u.arg, tuple)}


def is_uniform(condition: UOp) -> bool:
    """Whether a condition is the same for all lanes."""
    return condition.dtype.count == 1 or (condition.op is Ops.VECTORIZE and len(condition.src) == 1)


def in_blocks(program: Sequence[UOp]) -> bool:
    """Whether the program counts on its blocks: it has threads, or local memory that a block shares."""
    return any(name.startswith("lidx") for name in specials(program)) or any(
        u.op is Ops.DEFINE_LOCAL for u in program)


def is_wide(node: UOp) -> bool:
    """Whether an index may lie beyond 32 bits."""
    if node.dtype.scalar is not dtypes.index:
        return False
    return node.vmin < -(1 << 31) or node.vmax >= 1 << 31


class GPURenderer(CRenderer):
    """Base of the three languages. A subclass says how they spell things."""

    shared = ""  # before an array of local memory
    barrier = warp_barrier = ""
    vector_widths: tuple[int, ...] = (4, 2)
    guarded_vectors = False  # a vector may be declared empty, and be loaded under a condition
    bits16: tuple[DType, ...] = HALVES  # types that are kept as their bits
    reinterpreted = ""  # the bits of {value} as {kind}
    helpers: Mapping[str, str] = {}  # functions, by name: those are written that the kernel calls
    mixes_widths = True  # an operator takes integers of 32 and 64 bits, and an index may have either

    # *** what the languages spell differently ***

    def thread(self, name: str, program: Sequence[UOp]) -> str:
        """The expression of ``gidx0`` or ``lidx0``."""
        raise NotImplementedError

    def vector_load(self, memory: UOp, dtype: DType, pointer: str) -> str:
        """``dtype.count`` neighbouring elements as a value of the language's vector type."""
        raise NotImplementedError

    def vector_store(self, memory: UOp, dtype: DType, pointer: str, lanes: list[str]) -> str:
        raise NotImplementedError

    def vector_type(self, dtype: DType) -> str:
        return f"{self.memory_type(dtype.scalar)}{dtype.count}"

    def lane_of(self, vector: str, lane: int) -> str:
        return f"{vector}.{'xyzwstuv'[lane]}"

    def unaligned(self) -> bool:
        """Whether a vector may start at any element."""
        return False

    def type_name(self, dtype: DType) -> str:
        return self.scalar_types[dtype.scalar.name]

    def memory_type(self, dtype: DType) -> str:
        """The type of an element in memory: bools are bytes."""
        return self.type_name(dtypes.uint8) if dtype.is_bool else self.type_name(dtype)

    scalar_types: dict[str, str] = {
        "void": "void", "index": "int", "bool": "bool", "int8": "char", "uint8": "uchar", "int16": "short",
        "uint16": "ushort", "int32": "int", "uint32": "uint", "int64": "long", "uint64": "ulong",
        "float16": "ushort", "bfloat16": "ushort", "float32": "float", "float64": "double"}

    def to_float(self, dtype: DType, a: str) -> str:
        """A 16-bit float, kept as its bits, as a float."""
        return f"{'half' if dtype is dtypes.float16 else 'bf16'}_float({_strip(a)})"

    def from_float(self, dtype: DType, a: str) -> str:
        return f"float_{'half' if dtype is dtypes.float16 else 'bf16'}({_strip(a)})"

    def matrix_step(self, unit: MatrixUnit, acc: list[str], a: list[str], b: list[str]) -> str:
        """The statement that adds a·b to the sums ``acc`` in place."""
        raise CompileError(type(self).__name__, f"{unit.name} is no unit of this language", "a list of opts without TC")

    def matrix_load(self, u: UOp, pointer: str, names: list[str]) -> str:
        """The statement by which a warp loads matrices; ``names`` get a word of two elements each."""
        raise CompileError(type(self).__name__, "warps of this language load no matrices", "a list without TC")

    def ring_line(self, body: Body, u: UOp) -> None:
        """A line about a ring, or about steps of a unit that works on its own."""
        raise CompileError(type(self).__name__, f"{u.op.name} is nothing of this language", "a list of opts without TC")

    def registers(self, count: int, program: Sequence[UOp]) -> str:
        """From here on each thread has so many registers."""
        raise CompileError(type(self).__name__, "threads of this language share out no registers",
                           "a list of opts without ROLES")

    def shuffle(self, bits: int, value: str, program: Sequence[UOp]) -> str:
        """The value of the thread whose number in the warp differs in ``bits``."""
        raise CompileError(type(self).__name__, "threads of this language hand each other no values", "a smaller GROUP")

    def match(self, bits: int, key: str) -> str:
        """A call that gives two integers, x and y, of the threads of the warp with the same key."""
        raise CompileError(type(self).__name__, "threads of this language compare no keys",
                           "a list of opts without RANK")

    def regrouped(self, u: UOp, lanes: list[str], before: list[str]) -> list[str]:
        """Pairs of 16 bits as words, or words as such pairs; ``before``: what the pairs were cast from."""
        raise CompileError(type(self).__name__, "a BITCAST changes the number of lanes", "a list of opts without TC")

    def result(self, u: UOp, text: str) -> str:
        """What an operation gives, as the program means it."""
        return text

    # *** statements ***

    def declaration(self, kind: str, values: dict[str, str], mutable: bool = False) -> str:
        """Names for values of one type; ``mutable``: they are assigned to later."""
        return f"{kind} {', '.join(f'{name} = {value}' for name, value in values.items())};"

    def loop(self, kind: str, name: str, start: str, end: str) -> str:
        return f"for ({kind} {name} = {start}; {name} < {end}; {name}++) {{"

    def guarded(self, condition: str, statement: str) -> str:
        return f"if ({condition}) {statement}"

    def wide_type(self) -> str:
        """The type of indices beyond 32 bits."""
        return self.type_name(dtypes.int64)

    def widened(self, text: str) -> str:
        """An index of 32 bits in 64."""
        return f"({self.wide_type()}){text}"

    def narrowed(self, text: str) -> str:
        """An index of 64 bits in 32, where the language asks for it."""
        return text

    def choose(self, condition: str, a: str, b: str) -> str:
        """``a`` where the condition holds, else ``b``."""
        return f"({condition}?{a}:{b})"

    # *** scalars ***

    def literal(self, node: UOp) -> str:
        dtype = node.dtype.scalar
        if dtype in self.bits16:
            return str(int(np.asarray(node.arg, dtype.numpy).view(np.uint16)))
        if dtype.is_float and not math.isfinite(node.arg):
            text = "NAN" if math.isnan(node.arg) else "INFINITY" if node.arg > 0 else "(-INFINITY)"
            return text if dtype.itemsize <= 4 else f"((double){text})"
        return super().literal(UOp(Ops.CONST, dtype, (), node.arg) if node.dtype.count > 1 else node)

    def cast(self, u: UOp, a: str) -> str:
        dtype, source = u.dtype.scalar, u.src[0].dtype.scalar
        if dtype in self.bits16 and dtype is source:
            return a
        if dtype is dtypes.float16 and dtype in self.bits16 and source is dtypes.float64:
            return f"double_half({_strip(a)})"
        if source in self.bits16:
            a = self.to_float(source, a)
            if dtype is dtypes.float32:
                return a
            u = UOp(Ops.CAST, dtype, (UOp(Ops.PARAM, dtypes.float32, (), (0, ())),))
        if dtype in self.bits16:
            return self.from_float(dtype, a if u.src[0].dtype is dtypes.float32 else f"(float)({_strip(a)})")
        return super().cast(u, a)

    def bitcast(self, u: UOp, a: str) -> str:
        to, source = u.dtype.scalar, u.src[0].dtype.scalar
        value = f"({self.memory_type(source)}){a}" if source.is_bool else _strip(a)
        found = self.reinterpreted.format(kind=self.memory_type(to), value=value)
        return f"({found}!=0)" if to.is_bool else found

    def multiply_add(self, dtype: DType, src: list[str]) -> str:
        return f"fma({', '.join(_strip(s) for s in src)})"

    # *** memory ***

    def place(self, memory: str, index: str) -> str:
        return f"{memory}[{_strip(index)}]"

    def element(self, memory: UOp, name: str, index: str) -> str:
        """One element of memory as a value."""
        place = self.place(name, index)
        return f"({place}!=0)" if memory.dtype.scalar.is_bool else place

    def assign(self, memory: UOp, name: str, index: str, value: str) -> str:
        """The statement that stores one element."""
        return f"{self.place(name, index)} = {_strip(value)};"

    def pieces(self, u: UOp, index: UOp) -> list[int]:
        """How many lanes each access of a whole vector takes."""
        count = u.dtype.count if u.op is Ops.LOAD else u.src[2].dtype.count
        dtype = u.src[0].dtype.scalar
        if index.dtype.count > 1 or dtype.is_bool:
            return [1] * count
        step = count if self.unaligned() else divisor(index)
        width = next((w for w in self.vector_widths
                      if count % w == 0 and step % w == 0 and w * dtype.itemsize <= 16), 1)
        return [width] * (count // width)

    # *** the kernel ***

    def body(self, program: Sequence[UOp]) -> list[str]:
        return Body(self, program).lines

    def render(self, name: str, program: Sequence[UOp]) -> str:
        text = self.function(name, program)
        return self.prologue(program) + "\n".join([*called(self.helpers, text), text, ""])

    def local(self, u: UOp) -> str:
        name, elements = u.arg
        return f"{self.shared} {self.memory_type(u.dtype.scalar)} {name}[{elements}];"


class Body:
    """The lines of one kernel; ``text`` holds an expression per lane of every value."""

    def __init__(self, renderer: GPURenderer, program: Sequence[UOp]) -> None:
        self.renderer, self.program = renderer, program
        self.uses: Counter[UOp] = Counter()
        for u in program:
            for s in u.src:
                spread = u.op is Ops.VECTORIZE and len(u.src) == 1
                self.uses[s] += 2 if spread or renderer.repeats(u) else 1
        self.text: dict[UOp, list[str]] = {}
        self.counts: Counter[str] = Counter()
        self.lines: list[str] = []
        self.depth = 1
        for u in program:
            self.current = u
            self.write(u)

    def line(self, text: str) -> None:
        self.lines.append("  " * self.depth + text + self.renderer.mark(self.current))

    def declare(self, prefix: str, u: UOp, values: list[str]) -> None:
        """Names for a value, one per lane."""
        name = f"{prefix}{self.counts[prefix]}"
        self.counts[prefix] += 1
        names = [name] if len(values) == 1 else [f"{name}_{lane}" for lane in range(len(values))]
        given = {n: _strip(v) for n, v in zip(names, values)}
        self.line(self.renderer.declaration(self.type_of(u), given, u.op in (Ops.DEFINE_ACC, Ops.MMA)))
        self.text[u] = names

    def type_of(self, u: UOp) -> str:
        return self.renderer.wide_type() if is_wide(u) else self.renderer.type_name(u.dtype)

    def write(self, u: UOp) -> None:
        r, text = self.renderer, self.text
        if u.op is Ops.DEFINE_GLOBAL:
            name = f"data{u.arg}" if u.dtype.pointer else str(u.arg[0])
            text[u] = [name if r.mixes_widths or not is_wide(u) else r.widened(name)]
        elif u.op is Ops.SPECIAL:
            text[u] = [u.arg[0]]
            place = {u.arg[0]: r.thread(u.arg[0], self.program)}
            self.line(f"{r.declaration(self.type_of(u), place)} /* {u.arg[1]} */")
        elif u.op is Ops.CONST:
            text[u] = [r.literal(UOp(Ops.CONST, u.dtype.scalar, (), u.arg))] * u.dtype.count
        elif u.op is Ops.DEFINE_LOCAL:
            text[u] = [u.arg[0]]
            if r.local(u):
                self.line(r.local(u))
        elif u.op is Ops.DEFINE_ACC:
            self.declare("acc", u, text[u.src[0]])
        elif u.op is Ops.RANGE:
            text[u] = [f"ridx{u.arg[0]}"]
            start, end = (text[s][0] for s in u.src)
            if is_wide(u) and not r.mixes_widths:
                start, end = (x if is_wide(s) else r.widened(x) for s, x in zip(u.src, (start, end)))
            self.line(r.loop(self.type_of(u), text[u][0], start, end))
            self.depth += 1
        elif u.op is Ops.IF:
            self.line(f"if ({_strip(text[u.src[0]][0])}) {{")
            self.depth += 1
            if u.arg is not None:
                self.line(r.registers(u.arg, self.program))
        elif u.op in (Ops.ENDRANGE, Ops.ENDIF):
            self.depth -= 1
            self.line("}")
        elif u.op is Ops.BARRIER:
            self.line(r.barrier)
        elif u.op is Ops.PHI:
            for target, value in zip(text[u.src[0]], text[u.src[1]]):
                if target != value:
                    self.line(f"{target} = {value};")
            text[u] = text[u.src[0]]
        elif u.op is Ops.STORE:
            self.store(u)
        elif u.op is Ops.LOAD:
            self.load(u)
        elif u.op is Ops.SHUFFLE:  # a line of its own: not every thread computes what stands in an expression
            self.declare("alu", u, [r.shuffle(u.arg, x, self.program) for x in text[u.src[0]]])
        elif u.op is Ops.MATCH:
            found = f"same{self.counts['same']}"
            self.counts["same"] += 1
            self.line(f"{r.vector_type(u.dtype)} {found} = {r.match(u.arg, text[u.src[0]][0])};")
            text[u] = [r.lane_of(found, lane) for lane in range(2)]
        elif u.op is Ops.WARP_BARRIER:
            self.line(r.warp_barrier)
        elif u.op in RING_OPS or (u.op is Ops.MMA and u.arg.staged):
            r.ring_line(self, u)
        elif u.op is Ops.LOAD_MATRIX:
            words = [f"word{self.counts['word']}_{n}" for n in range(u.dtype.count // 2)]
            self.counts["word"] += 1
            self.line(f"{r.type_name(dtypes.uint32)} {', '.join(words)};")
            self.line(r.matrix_load(u, f"{text[u.src[0]][0]}+{_addend(self.at(u.src[1], 0))}", words))
            kind = r.type_name(dtypes.uint16)
            text[u] = [f"({kind})({w}{' >> 16' * half})" for w in words for half in (0, 1)]
        elif u.op is Ops.MMA:
            acc, a, b = (text[s] for s in u.src)
            self.declare("mma", u, acc)
            self.line(r.matrix_step(u.arg, text[u], a, b))
        elif u.op is not Ops.PREFETCH:
            self.value(u)

    def value(self, u: UOp) -> None:
        text = self.text
        if u.op is Ops.VECTORIZE:
            lanes = [lane for s in u.src for lane in text[s]]
            text[u] = lanes * (u.dtype.count // len(lanes))
            return
        if u.op is Ops.GEP:
            text[u] = [text[u.src[0]][lane] for lane in u.arg]
            return
        if u.op is Ops.BITCAST and u.dtype.count != u.src[0].dtype.count:
            values = self.renderer.regrouped(u, text[u.src[0]], text.get(u.src[0].src[0], []) if u.src[0].src else [])
        else:
            values = [self.scalar(u, lane) for lane in range(u.dtype.count)]
        if self.uses[u] > 1:
            self.declare("alu", u, values)
        else:
            text[u] = values

    def scalar(self, u: UOp, lane: int) -> str:
        """One lane of an arithmetic value."""
        r, src = self.renderer, [self.text[s][lane] for s in u.src]
        plain = [s if s.dtype.count == 1 else UOp(Ops.CONST, s.dtype.scalar, (), s.arg) if s.is_const else
                 UOp(Ops.GEP, s.dtype.scalar, (s,), (lane,)) for s in u.src]
        one = u if u.dtype.count == 1 else UOp(u.op, u.dtype.scalar, tuple(plain), u.arg)
        wide = is_wide(u) if r.mixes_widths else any(map(is_wide, (u, *u.src)))
        if wide:  # computed in 64 bits, not widened afterwards
            src = [s if (x.is_const and r.mixes_widths) or is_wide(x) or x.dtype.scalar is not dtypes.index
                   else r.widened(s) for x, s in zip(u.src, src)]
        if u.op is Ops.CAST:
            return r.widened(src[0]) if is_wide(u) else r.cast(one, src[0])
        if u.op is Ops.BITCAST:
            return r.bitcast(one, src[0])
        found = r.result(u, r.scalar(one, src))
        return r.narrowed(found) if wide and not is_wide(u) and u.dtype.scalar is dtypes.index else found

    # *** memory ***

    def at(self, index: UOp, lane: int) -> str:
        """The place of one lane: of a single index the lanes are neighbours."""
        text = self.text[index][lane if index.dtype.count > 1 else 0]
        text = self.renderer.narrowed(text) if is_wide(index) else text
        return text if lane == 0 or index.dtype.count > 1 else f"{_addend(text)}+{lane}"

    def load(self, u: UOp) -> None:
        r, (memory, index), dtype = self.renderer, u.src[:2], u.dtype.scalar
        name = self.text[memory][0]
        pieces = r.pieces(u, index)
        if len(u.src) > 2 and (pieces[0] == 1 or not r.guarded_vectors or not is_uniform(u.src[2])):
            zero = r.literal(UOp(Ops.CONST, dtype, (), dtype.as_const(0)))
            values = [r.choose(self.text[u.src[2]][lane], r.element(memory, name, self.at(index, lane)), zero)
                      for lane in range(u.dtype.count)]
            return self.declare("val", u, values)
        if pieces[0] == 1:
            values = [r.element(memory, name, self.at(index, lane)) for lane in range(u.dtype.count)]
            return self.declare("val", u, values)
        lanes: list[str] = []
        for piece in pieces:
            vector = f"vec{self.counts['vec']}"
            self.counts["vec"] += 1
            wide = dtype.vec(piece)
            found = r.vector_load(memory, wide, f"{name}+{_addend(self.at(index, len(lanes)))}")
            if len(u.src) > 2:
                self.line(f"{r.vector_type(wide)} {vector} = {{}};")
                self.line(f"if ({_strip(self.text[u.src[2]][0])}) {vector} = {found};")
            else:
                self.line(f"{r.vector_type(wide)} {vector} = {found};")
            lanes += [r.lane_of(vector, lane) for lane in range(piece)]
        self.text[u] = lanes
        return None

    def store(self, u: UOp) -> None:
        r, (memory, index, value) = self.renderer, u.src[:3]
        name, values, dtype = self.text[memory][0], self.text[value], value.dtype.scalar
        whole = r.guarded_vectors and len(u.src) > 3 and is_uniform(u.src[3])
        if len(u.src) > 3 and not whole:
            for lane, v in enumerate(values):
                self.line(r.guarded(_strip(self.text[u.src[3]][lane]),
                                    r.assign(memory, name, self.at(index, lane), v)))
            return
        lane = 0
        for piece in r.pieces(u, index):
            place = self.at(index, lane)
            if piece == 1:
                line = r.assign(memory, name, place, values[lane])
            else:
                lanes = values[lane : lane + piece]
                line = r.vector_store(memory, dtype.vec(piece), f"{name}+{_addend(place)}", lanes)
            self.line(r.guarded(_strip(self.text[u.src[3]][0]), line) if whole else line)
            lane += piece


def divisor(index: UOp) -> int:
    """A number that divides an index line for all threads and loops; 0 for the index 0."""
    terms, constant = linear_form(index)
    found = abs(constant)
    for factor in terms.values():
        found = math.gcd(found, abs(factor))
    return found

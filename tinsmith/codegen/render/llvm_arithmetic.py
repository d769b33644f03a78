"""LLVM IR of ops that are more than one instruction or intrinsic, and of the CPU's matrix units.

Dot products (VNNI, bf16): tiles are vectors, so that LLVM allocates their registers. Each 32-bit lane of an accumulator
gets the dot product of the two or four elements in that lane of both operands: b is a vector from memory, a is the same
32 bits in every lane.

AMX: fragments have fixed tile numbers. An accumulator keeps its tile for its live range. Operands are loaded at their
use into the remaining tiles (least recently used first), and loaded again after eviction or at the start of a basic
block (rematerialized), so that only addresses stay live.
"""
from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from tinsmith.codegen.render.base import Renderer, nonnegative
from tinsmith.core.dtypes import DType, dtypes
from tinsmith.ir import Op, Ops, UOp


class Lines:
    """The LLVM IR of a kernel under construction: lines, names of values, and declared functions."""

    def __init__(self, renderer: Renderer, name: str, program: Sequence[UOp]) -> None:
        self.renderer, self.name, self.program, self.current = renderer, name, program, program[0]
        self.lines: list[str] = []
        self.names: dict[UOp, str] = {}
        self.declarations: dict[str, None] = {}
        self.count = 0

    def line(self, text: str) -> None:
        self.lines.append("  " + text + self.renderer.mark(self.current))

    def value(self, text: str) -> str:
        self.count += 1
        self.lines.append(f"  %v{self.count} = {text}{self.renderer.mark(self.current)}")
        return f"%v{self.count}"

    def call(self, result: str, function: str, *arguments: tuple[str, str]) -> str:
        """Call an intrinsic and declare it."""
        kinds = ", ".join(t for t, _ in arguments)
        self.declarations[f"declare {result} @{function}({kinds})"] = None
        text = f"call {result} @{function}({', '.join(f'{t} {v}' for t, v in arguments)})"
        if result == "void":
            self.line(text)
            return ""
        return self.value(text)

    def typed(self, u: UOp) -> str:
        return f"{type_name(u.dtype)} {self.names[u]}"

    def joined(self, parts: list[str], dtype: DType) -> str:
        """Concatenate vectors of equal width, pairwise."""
        while len(parts) > 1:
            kind, both = type_name(dtype), 2 * dtype.count
            parts = [self.value(f"shufflevector {kind} {a}, {kind} {b}, {mask_of(range(both))}")
                     for a, b in zip(parts[::2], parts[1::2])]
            dtype = dtype.vec(both)
        return parts[0]


class LLVMArithmetic(Lines):
    """Elementwise operations on named values."""

    def alu(self, u: UOp) -> str:
        op, kind, source = u.op, type_name(u.dtype), u.src[0].dtype
        src = [self.names[s] for s in u.src]
        if (word := WORDS.get(op, {}).get(source.kind)) is not None:
            flags = " nsw" if source.scalar is dtypes.index and word in ("add", "sub", "mul") else ""
            return self.value(f"{word}{flags} {type_name(source)} {src[0]}, {src[1]}")
        if op is Ops.WHERE:
            return self.value(f"select {self.typed(u.src[0])}, {kind} {src[1]}, {kind} {src[2]}")
        if op is Ops.MULADD:
            return self.multiply_add(kind, src, source.is_float)
        if op is Ops.NEG:
            return self.value(f"fneg {kind} {src[0]}" if source.is_float else f"sub {kind} {self.zero(u)}, {src[0]}")
        if op is Ops.RECIP:
            return self.value(f"fdiv {kind} {constant(u.dtype, 1.0)}, {src[0]}")
        if op in (Ops.MAX, Ops.MIN):
            return self.greatest(u, kind, src)
        if op is Ops.TRUNC and not source.is_float:
            return src[0]
        if op is Ops.FMOD:
            return self.value(f"frem {kind} {src[0]}, {src[1]}")
        if op in (Ops.SQRT, Ops.TRUNC):
            return self.call(kind, f"llvm.{op.name.lower()}.{suffix_of(kind)}", (kind, src[0]))
        if op in (Ops.IDIV, Ops.MOD):
            return self.divide(u, kind, src)
        if op in (Ops.SHL, Ops.SHR):
            return self.shift(u, kind, src)
        if op is Ops.SCALE:
            return self.scale(u)
        raise NotImplementedError(f"{op.name} of {u.dtype} has no LLVM form: decompositions should have removed it")

    def zero(self, u: UOp) -> str:
        return "0" if u.dtype.count == 1 else "zeroinitializer"

    def multiply_add(self, kind: str, src: list[str], is_float: bool) -> str:
        if is_float and self.renderer.target.fma:
            return self.call(kind, f"llvm.fma.{suffix_of(kind)}", *((kind, s) for s in src))
        f = "f" * is_float
        return self.value(f"{f}add {kind} {self.value(f'{f}mul {kind} {src[0]}, {src[1]}')}, {src[2]}")

    def greatest(self, u: UOp, kind: str, src: list[str]) -> str:
        """Write MAX or MIN; a NaN operand propagates."""
        if not u.dtype.is_float:
            sign = "u" if u.dtype.is_unsigned else "s"
            return self.call(kind, f"llvm.{sign}{u.op.name.lower()}.{suffix_of(kind)}", *((kind, s) for s in src))
        wins = self.value(f"fcmp {'ogt' if u.op is Ops.MAX else 'olt'} {kind} {src[1]}, {src[0]}")
        best = self.choose(u, wins, src[1], src[0])
        return self.choose(u, self.value(f"fcmp uno {kind} {src[1]}, {src[1]}"), src[1], best)

    def scale(self, u: UOp) -> str:
        """Write SCALE on full registers: vectors below 128 bits are padded, those above 512 bits are split."""
        scalar, count = u.dtype.scalar, u.dtype.count
        lanes = min(max(count, 128 // scalar.bits), 512 // scalar.bits)
        kind, bits = type_name(scalar.vec(lanes)), lanes * scalar.bits
        function = f"llvm.x86.avx512.mask.scalef.p{'s' if scalar.bits == 32 else 'd'}.{bits}"
        rest = [(kind, "zeroinitializer"), ("i16" if lanes > 8 else "i8", "-1")] + [("i32", "4")] * (bits == 512)
        parts = [self.call(kind, function, *((kind, self.excerpt(s, start, lanes)) for s in u.src), *rest)
                 for start in range(0, count, lanes)]
        if count == 1:
            return self.value(f"extractelement {kind} {parts[0]}, i64 0")
        joined = self.joined(parts, scalar.vec(lanes))
        if len(parts) * lanes == count:
            return joined
        return self.value(f"shufflevector {kind} {joined}, {kind} poison, {mask_of(range(count))}")

    def excerpt(self, u: UOp, start: int, lanes: int) -> str:
        """Return ``lanes`` lanes of a value from ``start`` on, padded with zeros."""
        count = u.dtype.count
        if count == lanes:
            return self.names[u]
        wide = type_name(u.dtype.scalar.vec(lanes))
        if count == 1:
            return self.value(f"insertelement {wide} zeroinitializer, {self.typed(u)}, i64 0")
        order = [start + i if start + i < count else count for i in range(lanes)]
        return self.value(f"shufflevector {self.typed(u)}, {type_name(u.dtype)} zeroinitializer, {mask_of(order)}")

    def divide(self, u: UOp, kind: str, src: list[str]) -> str:
        """Write floor division or remainder; a divisor of 0 or -1 is replaced by 1, so that nothing can trap."""
        word = "div" if u.op is Ops.IDIV else "rem"
        positive = u.src[1].is_const and u.src[1].arg > 0
        if u.dtype.is_unsigned or (positive and all(nonnegative(s) for s in u.src)):
            if positive:
                return self.value(f"u{word} {kind} {src[0]}, {src[1]}")
            zero = self.value(f"icmp eq {kind} {src[1]}, {self.zero(u)}")
            safe = self.choose(u, zero, constant(u.dtype, 1), src[1])
            return self.choose(u, zero, self.zero(u), self.value(f"u{word} {kind} {src[0]}, {safe}"))
        zero = self.value(f"icmp eq {kind} {src[1]}, {self.zero(u)}")
        minus = self.value(f"icmp eq {kind} {src[1]}, {constant(u.dtype, -1)}")
        bits = condition_type(u)
        odd = self.value(f"or {bits} {zero}, {minus}")
        safe = self.choose(u, odd, constant(u.dtype, 1), src[1])
        quotient = self.value(f"sdiv {kind} {src[0]}, {safe}")
        rest = self.value(f"srem {kind} {src[0]}, {safe}")
        signs = self.value(f"xor {kind} {src[0]}, {safe}")
        differ = self.value(f"icmp slt {kind} {signs}, {self.zero(u)}")
        uneven = self.value(f"icmp ne {kind} {rest}, {self.zero(u)}")
        down = self.value(f"and {bits} {differ}, {uneven}")
        if u.op is Ops.MOD:
            fixed = self.choose(u, down, self.value(f"add {kind} {rest}, {safe}"), rest)
            return self.choose(u, odd, self.zero(u), fixed)
        lower = self.choose(u, down, self.value(f"sub {kind} {quotient}, {constant(u.dtype, 1)}"), quotient)
        negated = self.value(f"sub {kind} {self.zero(u)}, {src[0]}")
        return self.choose(u, zero, self.zero(u), self.choose(u, minus, negated, lower))

    def choose(self, u: UOp, condition: str, yes: str, no: str) -> str:
        kind = type_name(u.dtype)
        return self.value(f"select {condition_type(u)} {condition}, {kind} {yes}, {kind} {no}")

    def shift(self, u: UOp, kind: str, src: list[str]) -> str:
        word = "shl" if u.op is Ops.SHL else ("lshr" if u.dtype.is_unsigned else "ashr")
        bits = u.dtype.bits
        if u.src[1].is_const and 0 <= u.src[1].arg < bits:
            return self.value(f"{word} {kind} {src[0]}, {src[1]}")
        inside = self.value(f"icmp ult {kind} {src[1]}, {constant(u.dtype, bits)}")
        if word == "ashr":
            amount = self.choose(u, inside, src[1], constant(u.dtype, bits - 1))
            return self.value(f"ashr {kind} {src[0]}, {amount}")
        amount = self.choose(u, inside, src[1], self.zero(u))
        return self.choose(u, inside, self.value(f"{word} {kind} {src[0]}, {amount}"), self.zero(u))

    def cast(self, u: UOp) -> str:
        a, b, x = u.src[0].dtype, u.dtype, self.names[u.src[0]]
        source, kind, wide = type_name(a), type_name(b), type_name(dtypes.float32.vec(a.count))
        if source == kind:
            return x
        if b.is_bool:
            zero = literal_zero(source) if a.is_float else self.zero(u)
            return self.value(f"{'fcmp une' if a.is_float else 'icmp ne'} {source} {x}, {zero}")
        meets = a.is_float and a.itemsize == 2 and (b.is_int or b.itemsize == 2)
        if meets:  # half and bfloat go through float; LLVM's saturating conversion of half mistakes NaN
            x, source = self.value(f"fpext {source} {x} to {wide}"), wide
        if source == wide and b.scalar is dtypes.bfloat16:
            return self.to_bfloat(x, a.count)
        if a.is_float and b.is_int:
            sign = "u" if b.is_unsigned else "s"
            return self.call(kind, f"llvm.fpto{sign}i.sat.{suffix_of(kind)}.{suffix_of(source)}", (source, x))
        if a.is_float:
            word = "fpext" if b.itemsize > a.itemsize else "fptrunc"
        elif b.is_float:
            word = "uitofp" if a.is_unsigned else "sitofp"
        else:
            word = "trunc" if b.bits < a.bits and not a.is_bool else "zext" if a.is_unsigned else "sext"
        return self.value(f"{word} {source} {x} to {kind}")

    def bitcast(self, u: UOp) -> str:
        return self.value(f"bitcast {self.typed(u.src[0])} to {type_name(u.dtype)}")

    def to_bfloat(self, x: str, count: int) -> str:
        """Round float32 to bfloat16, to nearest with ties to even: add 0x7fff and the lowest kept bit. The processor's
        own conversion (vcvtneps2bf16) flushes subnormal numbers to 0."""
        floats, words, shorts, halves, bits = (type_name(d.vec(count)) for d in (
            dtypes.float32, dtypes.int32, dtypes.int16, dtypes.bfloat16, dtypes.bool))

        def all_lanes(value: int) -> str:
            return constant(dtypes.int32.vec(count), value)

        word = self.value(f"bitcast {floats} {x} to {words}")
        odd = self.value(f"and {words} {self.value(f'lshr {words} {word}, {all_lanes(16)}')}, {all_lanes(1)}")
        bias = self.value(f"add {words} {odd}, {all_lanes(0x7FFF)}")
        rounded = self.value(f"add {words} {word}, {bias}")
        quiet = self.value(f"or {words} {word}, {all_lanes(1 << 22)}")
        nan = self.value(f"fcmp uno {floats} {x}, {x}")
        chosen = self.value(f"select {bits} {nan}, {words} {quiet}, {words} {rounded}")
        high = self.value(f"lshr {words} {chosen}, {all_lanes(16)}")
        return self.value(f"bitcast {shorts} {self.value(f'trunc {words} {high} to {shorts}')} to {halves}")


def _integers(word: str, on_bools: str = "") -> dict[str, str]:
    return {"int": word, "uint": word, "bool": on_bools or word}

# Binary instructions, by the kind of their operands.
WORDS: dict[Op, dict[str, str]] = {
    Ops.ADD: {"float": "fadd", **_integers("add", "or")}, Ops.SUB: {"float": "fsub", **_integers("sub")},
    Ops.MUL: {"float": "fmul", **_integers("mul", "and")}, Ops.FDIV: {"float": "fdiv"},
    Ops.AND: _integers("and"), Ops.OR: _integers("or"), Ops.XOR: _integers("xor"),
    Ops.CMPLT: {"float": "fcmp olt", **_integers("icmp ult"), "int": "icmp slt"},
    Ops.CMPNE: {"float": "fcmp une", **_integers("icmp ne")}, Ops.CMPEQ: {"float": "fcmp oeq", **_integers("icmp eq")}}


def type_name(dtype: DType, memory: bool = False) -> str:
    """Return the LLVM type of a value; bools are bytes in memory."""
    if dtype.is_bool:
        base = "i8" if memory else "i1"
    elif dtype.is_float:
        base = {"float16": "half", "bfloat16": "bfloat", "float32": "float", "float64": "double"}[dtype.name]
    else:
        base = f"i{dtype.bits}"
    return base if dtype.count == 1 else f"<{dtype.count} x {base}>"


def condition_type(u: UOp) -> str:
    """Return the type of a condition for each lane of a value."""
    return type_name(dtypes.bool.vec(u.dtype.count))


def literal(dtype: DType, value: float | int | bool) -> str:
    """Return a scalar constant."""
    if dtype.is_bool:
        return "true" if value else "false"
    if not dtype.is_float:
        return str(int(value))
    if dtype.name == "float16":
        return f"0xH{struct.unpack('<H', dtypes.float16.numpy.type(value).tobytes())[0]:04X}"
    if dtype.name == "bfloat16":
        return f"0xR{struct.unpack('<H', dtypes.bfloat16.numpy.type(value).tobytes())[0]:04X}"
    return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"


def constant(dtype: DType, value: float | int | bool) -> str:
    """Return a constant with one value in all lanes."""
    text = literal(dtype.scalar, value)
    return text if dtype.count == 1 else f"splat ({type_name(dtype.scalar)} {text})"


def literal_zero(kind: str) -> str:
    return "zeroinitializer" if kind.startswith("<") else {"half": "0xH0000", "bfloat": "0xR0000"}.get(kind, "0.0")


def mask_of(lanes: Sequence[int]) -> str:
    """Return the mask of a shufflevector."""
    return f"<{len(lanes)} x i32> <{', '.join(f'i32 {i}' for i in lanes)}>"


def suffix_of(kind: str) -> str:
    """Return a type's suffix in an intrinsic's name: <16 x float> → v16f32."""
    names = {"half": "f16", "bfloat": "bf16", "float": "f32", "double": "f64"}
    if not kind.startswith("<"):
        return names.get(kind, kind)
    count, base = kind[1:-1].split(" x ")
    return f"v{count}{names.get(base, base)}"

COUNT = 8
ROW_BYTES = 64
ROWS = 16


class Fragments:
    """Hooks for operands and accumulators of a matrix unit; this base class is for a kernel without one."""

    def __init__(self, text: Lines) -> None:
        self.text = text

    def begin(self) -> None:
        """Write the lines at the start of the function."""

    def end(self) -> None:
        """Write the lines at the end of the function."""

    def forget(self) -> None:
        """Start a new basic block: forget the loaded operands."""

    def constants(self) -> str:
        """Return definitions outside of the function."""
        return ""

    def holds(self, u: UOp) -> bool:
        """Return True if a line is an accumulator outside of LLVM's registers."""
        return False

    def write(self, u: UOp) -> bool:
        """Write a line if it concerns fragments; return True if it did."""
        return False

    def at(self, u: UOp) -> str:
        """Return the address of a fragment in memory."""
        memory, index = u.src[:2]
        names, bits = self.text.names, 8 * memory.dtype.itemsize
        return self.text.value(f"getelementptr inbounds i{bits}, ptr {names[memory]}, i64 {names[index]}")


class Tiles(Fragments):
    """The tile allocation of one kernel: the fragment in each tile."""

    def __init__(self, text: Lines, program: Sequence[UOp]) -> None:
        super().__init__(text)
        self.root: dict[UOp, UOp] = {}
        self.sums: dict[UOp, int] = {}
        self.loaded: dict[UOp, int] = {}
        self.last: dict[UOp, UOp] = {}
        self.find_sums(program)

    def find_sums(self, program: Sequence[UOp]) -> None:
        """Map every line of an accumulator to its first line, which identifies its tile; record each accumulator's last
        use."""
        sums = set[UOp]()
        for u in program:
            if u.op is Ops.MMA or (u.op is Ops.PHI and u.src[1] in sums):  # of a loop and of its enclosing loops
                sums.add(u)
        for u in reversed(program):
            if u in sums and u.op in (Ops.PHI, Ops.DEFINE_ACC):
                sums.update(u.src[:2] if u.op is Ops.PHI else u.src[:1])
        for u in program:
            if u in sums and u.op in (Ops.MMA, Ops.PHI, Ops.DEFINE_ACC):
                self.root[u] = self.root.get(u.src[0], u)
            for s in u.src:
                if s in self.root:
                    self.last[self.root[s]] = u

    def holds(self, u: UOp) -> bool:
        return u in self.root

    def begin(self) -> None:
        """Configure every tile with 16 rows of 64 bytes."""
        self.text.call("void", "llvm.x86.ldtilecfg", ("ptr", f"@{self.text.name}_tiles"))

    def end(self) -> None:
        self.text.call("void", "llvm.x86.tilerelease")

    def constants(self) -> str:
        """Return the tile configuration: palette 1, bytes per row from byte 16 on, rows from byte 48 on."""
        data = [1] + [0] * 15 + [ROW_BYTES, 0] * COUNT + [0] * 16 + [ROWS] * COUNT + [0] * 8
        values = ", ".join(f"i8 {b}" for b in data)
        return f"@{self.text.name}_tiles = internal constant [64 x i8] [{values}], align 64\n"

    def forget(self) -> None:
        """Forget the loaded operands: the block may be reached by several paths."""
        self.loaded.clear()

    def write(self, u: UOp) -> bool:
        if u.op is Ops.MMA:
            self.multiply(u)
        elif u.op is Ops.STORE_TILE:
            self.text.call("void", "llvm.x86.tilestored64", ("i8", str(self.sum(u.src[3]))), *self.address(u))
        elif u.op is Ops.DEFINE_ACC and self.holds(u):
            self.sum(u)
        elif u.op is not Ops.LOAD_TILE and not self.holds(u) and not self.is_start(u):
            return False
        for s in u.src:
            root = self.root.get(s)
            if root is not None and self.last[root] is u:
                self.sums.pop(root, None)
        return True

    def is_start(self, u: UOp) -> bool:
        """Return True for the constant an accumulator starts from; vectors of that size have no other use."""
        return u.op is Ops.CONST and u.dtype.count * u.dtype.itemsize == ROWS * ROW_BYTES

    def multiply(self, u: UOp) -> None:
        total = self.sum(u)
        a, b = self.operand(u.src[1], None), self.operand(u.src[2], u.src[1])
        self.text.call("void", f"llvm.x86.{u.arg.emit}", *(("i8", str(t)) for t in (total, a, b)))

    def sum(self, u: UOp) -> int:
        """Return the tile of an accumulator; a new one is initialized (zeroed or loaded)."""
        root = self.root[u]
        if root not in self.sums:
            tile = next(t for t in range(COUNT) if t not in self.sums.values())
            self.loaded = {held: t for held, t in self.loaded.items() if t != tile}
            self.sums[root] = tile
            start = root.src[0]
            if start.op is Ops.LOAD_TILE:
                self.text.call("void", "llvm.x86.tileloadd64", ("i8", str(tile)), *self.address(start))
            else:
                self.text.call("void", "llvm.x86.tilezero", ("i8", str(tile)))
        return self.sums[root]

    def operand(self, u: UOp, keep: UOp | None) -> int:
        """Return the tile that holds an operand; load it into a free tile or the least recently used one except
        ``keep``."""
        if u not in self.loaded:
            free = [t for t in range(COUNT) if t not in self.sums.values() and t not in self.loaded.values()]
            if not free:
                oldest = next(held for held in self.loaded if held is not keep)
                free = [self.loaded.pop(oldest)]
            self.loaded[u] = free[0]
            self.text.call("void", "llvm.x86.tileloadd64", ("i8", str(free[0])), *self.address(u))
        else:
            self.loaded[u] = self.loaded.pop(u)
        return self.loaded[u]

    def address(self, u: UOp) -> tuple[tuple[str, str], tuple[str, str]]:
        """Return the address of a tile and the distance of its rows in bytes."""
        size, pitch, at = u.src[0].dtype.itemsize, u.src[2], self.at(u)
        apart = str(pitch.arg * size) if pitch.is_const else self.text.value(
            f"mul i64 {self.text.names[pitch]}, {size}")
        return ("ptr", at), ("i64", apart)


class UnitForm(NamedTuple):
    """The LLVM intrinsic of a dot-product unit.

    Attributes:
        function: the intrinsic of (accumulator, first, second); for bytes, first is unsigned and second signed.
        element: element type of first and second; "": 32-bit words.
        b_first: True if b is the first operand.
    """

    function: str
    element: str = ""
    b_first: bool = False

FORMS = {
    "dot_bf16": UnitForm("llvm.x86.avx512bf16.dpbf16ps.512", "bfloat"),
    "dot_s16": UnitForm("llvm.x86.avx512.vpdpwssd.512"),
    "dot_u8s8": UnitForm("llvm.x86.avx512.vpdpbusd.512"),
    "dot_s8u8": UnitForm("llvm.x86.avx512.vpdpbusd.512", b_first=True),
}


def is_dot(program: Sequence[UOp]) -> bool:
    """Return True if the program's matrix units are dot products of vectors."""
    return any(u.op is Ops.MMA and u.arg.emit in FORMS for u in program)


class Dots(Fragments):
    """The fragments of a kernel with dot products. An accumulator is an ordinary vector."""

    def write(self, u: UOp) -> bool:
        if u.op is Ops.LOAD_TILE:
            self.text.names[u] = self.text.value(f"load {_memory_type(u)}, {self.address(u)}")
        elif u.op is Ops.STORE_TILE:
            self.text.line(f"store {_memory_type(u.src[3])} {self.text.names[u.src[3]]}, {self.address(u)}")
        elif u.op is Ops.MMA:
            self.text.names[u] = self.multiply(u, FORMS[u.arg.emit])
        else:
            return False
        return True

    def address(self, u: UOp) -> str:
        """Return the address operand of a fragment, which has one row."""
        return f"ptr {self.at(u)}, align {u.src[0].dtype.itemsize}"

    def multiply(self, u: UOp, form: UnitForm) -> str:
        total, a, b = (self.text.names[s] for s in u.src)
        lanes, kind = u.dtype.count, _memory_type(u)
        words = f"<{lanes} x i32>"
        one = self.text.value(f"insertelement {words} poison, i32 {a}, i64 0")
        a = self.text.value(f"shufflevector {words} {one}, {words} poison, {words} zeroinitializer")
        wide = f"<{lanes * u.arg.k} x {form.element}>" if form.element else words
        operands = [self.text.value(f"bitcast {words} {x} to {wide}") if form.element else x
                    for x in ((b, a) if form.b_first else (a, b))]
        return self.text.call(kind, form.function, (kind, total), *((wide, x) for x in operands))


def _memory_type(u: UOp) -> str:
    """Return the LLVM type of a fragment in memory: 32-bit lanes, integers for operands."""
    scalar = u.dtype.scalar
    words = u.dtype.count * scalar.itemsize // 4
    return "i32" if words == 1 else f"<{words} x {'float' if scalar is dtypes.float32 else 'i32'}>"

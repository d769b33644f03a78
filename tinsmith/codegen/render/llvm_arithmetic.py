"""Arithmetic in LLVM IR: instruction sequences for ops whose semantics no single instruction or intrinsic has."""
from __future__ import annotations

import struct
from collections.abc import Sequence

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

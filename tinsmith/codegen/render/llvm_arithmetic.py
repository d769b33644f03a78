"""Arithmetic as LLVM IR: where an instruction or an intrinsic does not do what the op table says, several do."""
from __future__ import annotations

import struct
from collections.abc import Sequence

from tinsmith.codegen.render.base import nonnegative
from tinsmith.core.dtypes import DType, dtypes
from tinsmith.ir import Ops, UOp


class Arithmetic:
    """Ops on values that have names."""

    fma: bool
    names: dict[UOp, str]

    def value(self, text: str) -> str:
        raise NotImplementedError

    def call(self, result: str, function: str, *arguments: tuple[str, str]) -> str:
        raise NotImplementedError

    def typed(self, u: UOp) -> str:
        raise NotImplementedError

    def joined(self, parts: list[str], dtype: DType) -> str:
        raise NotImplementedError

    def alu(self, u: UOp) -> str:
        op, kind = u.op, type_name(u.dtype)
        src = [self.names[s] for s in u.src]
        source = u.src[0].dtype
        if op is Ops.WHERE:
            return self.value(f"select {self.typed(u.src[0])}, {kind} {src[1]}, {kind} {src[2]}")
        if op in (Ops.CMPLT, Ops.CMPNE, Ops.CMPEQ):
            return self.compare(u, src)
        if source.is_float:
            return self.float_alu(u, kind, src)
        if op in _BINARY_INT:
            word = _BINARY_INT[op]
            if source.is_bool and op in (Ops.ADD, Ops.MUL):
                word = "or" if op is Ops.ADD else "and"
            flags = " nsw" if source.scalar is dtypes.index and word in ("add", "sub", "mul") else ""
            return self.value(f"{word}{flags} {kind} {src[0]}, {src[1]}")
        if op is Ops.NEG:
            return self.value(f"sub {kind} {self.zero(u)}, {src[0]}")
        if op in (Ops.MAX, Ops.MIN):
            sign = "u" if source.is_unsigned else "s"
            return self.call(kind, f"llvm.{sign}{op.name.lower()}.{suffix_of(kind)}", (kind, src[0]), (kind, src[1]))
        if op in (Ops.IDIV, Ops.MOD):
            return self.divide(u, kind, src)
        if op in (Ops.SHL, Ops.SHR):
            return self.shift(u, kind, src)
        if op is Ops.MULADD:
            return self.value(f"add {kind} {self.value(f'mul {kind} {src[0]}, {src[1]}')}, {src[2]}")
        if op is Ops.TRUNC:
            return src[0]
        raise NotImplementedError(f"{op.name} of {u.dtype} has no LLVM form: decompositions should have removed it")

    def zero(self, u: UOp) -> str:
        return "0" if u.dtype.count == 1 else "zeroinitializer"

    def compare(self, u: UOp, src: list[str]) -> str:
        dtype, kind = u.src[0].dtype, type_name(u.src[0].dtype)
        if dtype.is_float:
            word = {Ops.CMPLT: "fcmp olt", Ops.CMPNE: "fcmp une", Ops.CMPEQ: "fcmp oeq"}[u.op]
        elif u.op is Ops.CMPLT:
            word = "icmp ult" if dtype.is_unsigned else "icmp slt"
        else:
            word = "icmp ne" if u.op is Ops.CMPNE else "icmp eq"
        return self.value(f"{word} {kind} {src[0]}, {src[1]}")

    def float_alu(self, u: UOp, kind: str, src: list[str]) -> str:
        op = u.op
        if op in _BINARY_FLOAT:
            return self.value(f"{_BINARY_FLOAT[op]} {kind} {src[0]}, {src[1]}")
        if op is Ops.NEG:
            return self.value(f"fneg {kind} {src[0]}")
        if op is Ops.RECIP:
            return self.value(f"fdiv {kind} {constant(u.dtype, 1.0)}, {src[0]}")
        if op is Ops.SCALE:
            return self.scale(u)
        if op in (Ops.SQRT, Ops.TRUNC):
            return self.call(kind, f"llvm.{op.name.lower()}.{suffix_of(kind)}", (kind, src[0]))
        if op is Ops.MULADD:
            if self.fma:
                return self.call(kind, f"llvm.fma.{suffix_of(kind)}", *((kind, s) for s in src))
            return self.value(f"fadd {kind} {self.value(f'fmul {kind} {src[0]}, {src[1]}')}, {src[2]}")
        if op in (Ops.MAX, Ops.MIN):  # NaN on either side wins
            bits = f"<{u.dtype.count} x i1>" if u.dtype.count > 1 else "i1"
            test = "ogt" if op is Ops.MAX else "olt"
            wins = self.value(f"fcmp {test} {kind} {src[1]}, {src[0]}")
            best = self.value(f"select {bits} {wins}, {kind} {src[1]}, {kind} {src[0]}")
            nan = self.value(f"fcmp uno {kind} {src[1]}, {src[1]}")
            return self.value(f"select {bits} {nan}, {kind} {src[1]}, {kind} {best}")
        raise NotImplementedError(f"{op.name} of {u.dtype} has no LLVM form: decompositions should have removed it")

    def scale(self, u: UOp) -> str:
        """Whole registers: what is narrower than 128 bits fills a part of one, what is wider than 512 is cut."""
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
        """Lanes of a value from ``start`` on, followed by zeros."""
        count = u.dtype.count
        if count == lanes:
            return self.names[u]
        wide = type_name(u.dtype.scalar.vec(lanes))
        if count == 1:
            return self.value(f"insertelement {wide} zeroinitializer, {self.typed(u)}, i64 0")
        order = [start + i if start + i < count else count for i in range(lanes)]
        return self.value(f"shufflevector {self.typed(u)}, {type_name(u.dtype)} zeroinitializer, {mask_of(order)}")

    def divide(self, u: UOp, kind: str, src: list[str]) -> str:
        """Rounds down; the divisor is made 1 where it is 0 or -1, so that nothing can trap."""
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
        bits = f"<{u.dtype.count} x i1>" if u.dtype.count > 1 else "i1"
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
        bits = f"<{u.dtype.count} x i1>" if u.dtype.count > 1 else "i1"
        kind = type_name(u.dtype)
        return self.value(f"select {bits} {condition}, {kind} {yes}, {kind} {no}")

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
        a, b = u.src[0].dtype, u.dtype
        source, kind = self.typed(u.src[0]), type_name(b)
        if type_name(a) == kind:
            return self.names[u.src[0]]
        if b.is_bool:
            if a.is_float:
                return self.value(f"fcmp une {source}, {literal_zero(type_name(a))}")
            return self.value(f"icmp ne {source}, {'0' if a.count == 1 else 'zeroinitializer'}")
        if a.is_float and b.is_float and a.itemsize == b.itemsize:  # half and bfloat meet in float
            wide = type_name(dtypes.float32.vec(a.count))
            value = self.value(f"fpext {source} to {wide}")
            return self.to_bfloat(value, a.count) if b.scalar is dtypes.bfloat16 else self.value(
                f"fptrunc {wide} {value} to {kind}")
        if a.scalar is dtypes.float32 and b.scalar is dtypes.bfloat16:
            return self.to_bfloat(self.names[u.src[0]], a.count)
        if a.is_float and b.is_float:
            return self.value(f"{'fpext' if b.itemsize > a.itemsize else 'fptrunc'} {source} to {kind}")
        if a.is_float:
            sign, value, wide = "u" if b.is_unsigned else "s", self.names[u.src[0]], type_name(a)
            if a.itemsize == 2:  # LLVM's saturating conversion of half mistakes NaN
                wide = type_name(dtypes.float32.vec(a.count))
                value = self.value(f"fpext {source} to {wide}")
            return self.call(kind, f"llvm.fpto{sign}i.sat.{suffix_of(kind)}.{suffix_of(wide)}", (wide, value))
        if b.is_float:
            return self.value(f"{'uitofp' if a.is_unsigned else 'sitofp'} {source} to {kind}")
        if b.bits < a.bits and not a.is_bool:
            return self.value(f"trunc {source} to {kind}")
        return self.value(f"{'zext' if a.is_unsigned else 'sext'} {source} to {kind}")

    def to_bfloat(self, x: str, count: int) -> str:
        """Rounded to nearest, ties to even: adding 0x7fff and the lowest bit that stays carries when it should. The
        processor's own conversion (vcvtneps2bf16) takes subnormal numbers for 0."""
        floats, words, shorts, halves = (type_name(d.vec(count) if count > 1 else d) for d in (
            dtypes.float32, dtypes.int32, dtypes.int16, dtypes.bfloat16))
        bits = f"<{count} x i1>" if count > 1 else "i1"

        def all_lanes(value: int) -> str:
            return f"splat (i32 {value})" if count > 1 else str(value)

        word = self.value(f"bitcast {floats} {x} to {words}")
        odd = self.value(f"and {words} {self.value(f'lshr {words} {word}, {all_lanes(16)}')}, {all_lanes(1)}")
        bias = self.value(f"add {words} {odd}, {all_lanes(0x7FFF)}")
        rounded = self.value(f"add {words} {word}, {bias}")
        quiet = self.value(f"or {words} {word}, {all_lanes(1 << 22)}")
        nan = self.value(f"fcmp uno {floats} {x}, {x}")
        chosen = self.value(f"select {bits} {nan}, {words} {quiet}, {words} {rounded}")
        high = self.value(f"lshr {words} {chosen}, {all_lanes(16)}")
        return self.value(f"bitcast {shorts} {self.value(f'trunc {words} {high} to {shorts}')} to {halves}")


_BINARY_FLOAT = {Ops.ADD: "fadd", Ops.SUB: "fsub", Ops.MUL: "fmul", Ops.FDIV: "fdiv"}
_BINARY_INT = {Ops.ADD: "add", Ops.SUB: "sub", Ops.MUL: "mul", Ops.AND: "and", Ops.OR: "or", Ops.XOR: "xor"}


def type_name(dtype: DType, memory: bool = False) -> str:
    """The LLVM type of a value; bools are bytes in memory."""
    if dtype.is_bool:
        base = "i8" if memory else "i1"
    elif dtype.is_float:
        base = {"float16": "half", "bfloat16": "bfloat", "float32": "float", "float64": "double"}[dtype.name]
    else:
        base = f"i{dtype.bits}"
    return base if dtype.count == 1 else f"<{dtype.count} x {base}>"


def literal(dtype: DType, value: float | int | bool) -> str:
    """One lane's constant."""
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
    """One value in all lanes."""
    text = literal(dtype.scalar, value)
    return text if dtype.count == 1 else f"splat ({type_name(dtype.scalar)} {text})"


def literal_zero(kind: str) -> str:
    return "zeroinitializer" if kind.startswith("<") else {"half": "0xH0000", "bfloat": "0xR0000"}.get(kind, "0.0")


def mask_of(lanes: Sequence[int]) -> str:
    """The mask of a shufflevector."""
    return f"<{len(lanes)} x i32> <{', '.join(f'i32 {i}' for i in lanes)}>"


def suffix_of(kind: str) -> str:
    """The name of a type inside an intrinsic's name: <16 x float> → v16f32."""
    names = {"half": "f16", "bfloat": "bf16", "float": "f32", "double": "f64"}
    if not kind.startswith("<"):
        return names.get(kind, kind)
    count, base = kind[1:-1].split(" x ")
    return f"v{count}{names.get(base, base)}"

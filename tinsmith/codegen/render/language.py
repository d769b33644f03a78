"""The C language family: a kernel is a function with loops over scalar expressions.

``CLanguage`` defines a language's spelling, ``Body`` walks a program and names its values.
"""
from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from tinsmith.codegen.render.base import Renderer, beside_zero, nonnegative
from tinsmith.core.dtypes import DType, dtypes
from tinsmith.ir import Op, Ops, UOp

INFIX = {Ops.ADD: "+", Ops.SUB: "-", Ops.MUL: "*", Ops.FDIV: "/", Ops.AND: "&", Ops.OR: "|", Ops.XOR: "^",
         Ops.CMPLT: "<", Ops.CMPNE: "!=", Ops.CMPEQ: "=="}
MATH = {Ops.SQRT: "sqrt", Ops.EXP: "exp", Ops.EXP2: "exp2", Ops.EXPM1: "expm1", Ops.LOG: "log", Ops.LOG2: "log2",
        Ops.LOG1P: "log1p", Ops.SIN: "sin", Ops.COS: "cos", Ops.TANH: "tanh", Ops.ERF: "erf", Ops.POW: "pow",
        Ops.TRUNC: "trunc", Ops.SCALE: "scalb"}
# results may exceed a type of less than 32 bits
GROWS = (Ops.ADD, Ops.SUB, Ops.MUL, Ops.NEG, Ops.MULADD, Ops.SHL, Ops.IDIV)
_WRAPPED = (Ops.ADD, Ops.SUB, Ops.MUL, Ops.NEG, Ops.MULADD)
_TWICE = (Ops.MAX, Ops.MIN, Ops.IDIV, Ops.MOD, Ops.SHL, Ops.SHR)


class CLanguage(Renderer):
    """Common base of C-like languages: a kernel is a function with loops over scalar expressions.

    The fields give the language's spelling.
    """

    scalar_types = {d.name: d.c_name for d in (*dtypes.all, dtypes.index, dtypes.void)} | {"float16": "_Float16"}
    buffer = "{const}{kind}* data{number}"  # declaration of a buffer parameter
    variable = "const int {name}"
    barrier = "barrier();"
    bits16: tuple[DType, ...] = (dtypes.bfloat16,)  # float types stored as their bits
    nan, infinity = "NAN", "INFINITY"
    functions: Mapping[Op, str] = MATH
    function_name = "{name}{f}"  # {f} is "f" for float32
    fmod = "fmod{f}"  # an exact remainder function
    fused = ""  # a function that rounds a·b + c once; "": two operations
    signed_wraps = True  # signed integers wrap around, by the language or by a compiler option

    @property
    def wraps(self) -> bool:
        """True if signed integers wrap around."""
        return self.signed_wraps

    # *** types and literals ***

    def type_name(self, dtype: DType) -> str:
        return self.scalar_types[dtype.scalar.name]

    def memory_type(self, dtype: DType) -> str:
        """Return the type of an element in memory."""
        return self.type_name(dtype)

    def literal(self, dtype: DType, value: float | int | bool) -> str:
        """Return a constant of a scalar type."""
        if dtype in self.bits16:
            return str(int(np.asarray(value, dtype.numpy).view(np.uint16)))
        if dtype.is_float and not math.isfinite(value):
            return self.nan if math.isnan(value) else self.infinity if value > 0 else f"(-{self.infinity})"
        if dtype.is_float:
            text = str(dtype.numpy.type(value)) + "f" if dtype.itemsize <= 4 else repr(value)  # shortest representation
            return f"({text})" if text.startswith("-") else text
        if dtype.is_bool:
            return "1" if value else "0"
        if dtype.itemsize == 8 and dtype is not dtypes.index:
            return f"{value}ul" if dtype.kind == "uint" else f"{value}l" if value >= 0 else (
                f"({value}l)" if value > -(1 << 63) else "(-9223372036854775807l-1)")
        if dtype is dtypes.uint32:
            return f"{value}u"
        return str(value) if value >= 0 else f"({value})" if value != -(1 << 31) else "(-2147483647-1)"

    # *** expressions: of a UOp's scalar type, also where ``src`` are the operands of one lane ***

    def operation(self, u: UOp, src: list[str]) -> str:
        """Return an elementwise operation."""
        if u.op is Ops.CAST:
            return self.cast(u.dtype.scalar, u.src[0].dtype.scalar, src[0])
        if u.op is Ops.BITCAST:
            return self.bitcast(u.dtype.scalar, u.src[0].dtype.scalar, src[0])
        return self.cut(u, self.plain(u, src))

    def cut(self, u: UOp, text: str) -> str:
        """Truncate a result to its type where C computes it as an int."""
        small = u.dtype.is_int and u.dtype.itemsize < 4 and u.op in GROWS
        return f"(({self.type_name(u.dtype.scalar)}){text})" if small else text

    def plain(self, u: UOp, src: list[str]) -> str:
        """Return the C expression of the operation ``u`` on the operands ``src``.

        C promotes integers below 32 bits to int: the result is not yet truncated to their dtype.
        """
        op, dtype = u.op, u.dtype.scalar
        a, b = src[0], src[1] if len(src) > 1 else ""
        if op in (Ops.ADD, Ops.MUL) and dtype.is_bool:
            return f"({a}{'|' if op is Ops.ADD else '&'}{b})"
        if not self.wraps and op in _WRAPPED and overflows(u):
            return self.wrapped(u, src)
        if op in INFIX:
            return f"({addend(a) if op is Ops.ADD else a}{INFIX[op]}{b})"
        if op is Ops.NEG:
            return f"(-{a})"
        if op is Ops.RECIP:
            return f"(1/{a})"
        if op is Ops.MULADD:
            return self.call(self.fused, dtype, src) if self.fused and dtype.is_float else f"(({a}*{b})+{src[2]})"
        if op is Ops.WHERE:
            return f"({a}?{b}:{src[2]})"
        if beside_zero(u):
            return f"({a}{'<' if op is Ops.MAX else '>'}{b}?{b}:{a})"
        if op in (Ops.MAX, Ops.MIN):
            test = ">" if op is Ops.MAX else "<"
            keep = f"({a}{test}{b}||{a}!={a})" if dtype.is_float else f"({a}{test}{b})"
            return f"({keep}?{a}:{b})"
        if op is Ops.FMOD:
            return self.call(self.fmod, dtype, src)
        if op in (Ops.IDIV, Ops.MOD):
            return self.divide(u, a, b)
        if op in (Ops.SHL, Ops.SHR):
            return self.shift(u, a, b)
        return self.call(self.function_name, dtype, src, self.functions[op])

    def wrapped(self, u: UOp, src: list[str]) -> str:
        """Compute an operation that may overflow its signed type in the unsigned type, where it wraps around. The first
        operand's type converts the others."""
        held = u.dtype.scalar if u.dtype.itemsize >= 4 else dtypes.int32  # narrower types are computed as int32
        a, *others = src
        first = f"({self.type_name(dtypes.uint64 if held.itemsize == 8 else dtypes.uint32)}){a}"
        if u.op is Ops.NEG:
            text = f"-({first})"
        elif u.op is Ops.MULADD:
            text = f"{first}*{others[0]}+{others[1]}"
        else:
            text = f"{first}{'<<' if u.op is Ops.SHL else INFIX[u.op]}{others[0]}"
        return f"(({self.type_name(held)})({text}))"

    def call(self, function: str, dtype: DType, src: list[str], name: str = "") -> str:
        return f"{function.format(name=name, f='f' if dtype.itemsize == 4 else '')}({', '.join(map(strip, src))})"

    def divide(self, u: UOp, a: str, b: str) -> str:
        """Return floor division: 0 for a zero divisor, -x for the divisor -1, which cannot trap."""
        sign = "/" if u.op is Ops.IDIV else "%"
        if u.src[1].is_const and u.src[1].arg > 0 and all(nonnegative(s) for s in u.src):
            return f"({a}{sign}{b})"
        if u.dtype.is_unsigned or all(nonnegative(s) for s in u.src):
            return f"({b}==0?0:{a}{sign}{b})"
        if u.op is Ops.IDIV:
            minus = f"-{a}" if self.wraps else self.plain(UOp(Ops.NEG, None, u.src[:1]), [a])
            return f"({b}==0?0:{b}==-1?{minus}:{a}/{b}-({a}%{b}!=0&&(({a}<0)!=({b}<0))))"
        return f"({b}==0||{b}==-1?0:({a}%{b}!=0&&(({a}<0)!=({b}<0)))?{a}%{b}+{b}:{a}%{b})"

    def shift(self, u: UOp, a: str, b: str) -> str:
        sign = "<<" if u.op is Ops.SHL else ">>"
        shifted = f"({a}{sign}{b})"
        if not self.wraps and u.op is Ops.SHL and overflows(u):
            shifted = self.wrapped(u, [a, b])
        if shifts_inside(u):
            return shifted
        beyond = f"({a}<0?-1:0)" if u.op is Ops.SHR and u.dtype.kind == "int" else "0"
        inside = f"{b}<{u.dtype.bits}" if u.dtype.is_unsigned else f"({b}>=0&&{b}<{u.dtype.bits})"
        return f"({inside}?{shifted}:{beyond})"

    def to_float(self, dtype: DType, a: str) -> str:
        """Convert a 16-bit float, stored as its bits, to float32."""
        return f"{'half' if dtype is dtypes.float16 else 'bf16'}_float({strip(a)})"

    def from_float(self, dtype: DType, a: str) -> str:
        return f"float_{'half' if dtype is dtypes.float16 else 'bf16'}({strip(a)})"

    def cast(self, dtype: DType, source: DType, a: str) -> str:
        if dtype in self.bits16 and source is dtype:
            return a
        if source in self.bits16:
            a, source = self.to_float(source, a), dtypes.float32
            if dtype is source:
                return a
        if dtype in self.bits16:
            return self.from_float(dtype, a if source is dtypes.float32 else f"(float)({strip(a)})")
        if dtype.is_bool:
            return f"({a}!=0)"
        t = self.type_name(dtype)
        if source.is_float and dtype.is_int:
            low, high = int(dtype.min), int(dtype.max)
            top = f"{high}{'ul' if dtype.kind == 'uint' else 'l'}"
            bottom = "(-9223372036854775807l-1)" if low == -(1 << 63) else f"({low}l)"
            return f"({a}!={a}?0:{a}>={self.bound(high)}?({t}){top}:{a}<={self.bound(low)}?({t}){bottom}:({t})({a}))"
        return f"(({t})({strip(a)}))"

    def bound(self, value: int) -> str:
        """Return a bound of an integer type as a floating-point literal."""
        return repr(float(value))

    def bitcast(self, dtype: DType, source: DType, a: str) -> str:
        return f"(((union {{ {self.type_name(source)} a; {self.type_name(dtype)} b; }}){{.a = {a}}}).b)"

    # *** the kernel ***

    def loop(self, kind: str, name: str, start: str, end: str) -> str:
        return f"for ({kind} {name} = {start}; {name} < {end}; {name}++) {{"

    def local(self, u: UOp) -> str:
        """Declare an array in local memory; "" if it is declared elsewhere."""
        raise NotImplementedError

    def parameters(self, program: Sequence[UOp]) -> list[str]:
        """Return the parameter list: buffers, const if they are not stored to, and variables."""
        written = {u.src[0] for u in program if u.op is Ops.STORE}
        out = []
        for u in program:
            if u.op is Ops.DEFINE_GLOBAL and u.dtype.pointer:
                const, kind = "" if u in written else "const ", self.memory_type(u.dtype.scalar)
                out.append(self.buffer.format(const=const, kind=kind, number=u.arg))
            elif u.op is Ops.DEFINE_GLOBAL:
                out.append(self.variable.format(name=u.arg[0]))
        return out

    def head(self, name: str, program: Sequence[UOp]) -> str:
        """Return the text between the kernel's parameters and its body."""
        raise NotImplementedError

    def prologue(self, program: Sequence[UOp]) -> str:
        """Return the text before the kernel."""
        return ""

    def body(self, program: Sequence[UOp]) -> list[str]:
        raise NotImplementedError

    def function(self, name: str, program: Sequence[UOp]) -> str:
        return "\n".join([self.head(name, program), *self.body(program), "}"])


class Body:
    """The body of one kernel. ``text`` maps a value to its expressions: one per lane, or a single vector expression."""

    def __init__(self, renderer: CLanguage, program: Sequence[UOp]) -> None:
        self.renderer, self.program, self.current = renderer, program, program[0]
        self.uses: Counter[UOp] = Counter()  # number of uses of each value in the text
        for u in program:
            times = 2 if self.repeats(u) else 1
            for s in u.src:
                self.uses[s] += times
        self.text: dict[UOp, list[str]] = {}
        self.counts: Counter[str] = Counter()
        self.lines: list[str] = []
        self.depth = 1

    def repeats(self, u: UOp) -> bool:
        """Return True if an operation's text repeats a source, so that the source needs a variable."""
        if u.op in _TWICE or (u.op is Ops.CAST and u.src[0].dtype.is_float and u.dtype.is_int):
            return True
        return any(s.dtype.count > 1 for s in u.src) and (u.op in (Ops.GEP, Ops.LOAD, Ops.STORE) or u.op.elementwise)

    def written(self) -> list[str]:
        for u in self.program:
            self.current = u
            self.write(u)
        return self.lines

    def line(self, text: str) -> None:
        self.lines.append("  " * self.depth + text + self.renderer.mark(self.current))

    def fresh(self, prefix: str) -> str:
        self.counts[prefix] += 1
        return f"{prefix}{self.counts[prefix] - 1}"

    def type_of(self, u: UOp) -> str:
        return self.renderer.type_name(u.dtype)

    def write(self, u: UOp) -> None:
        r, text = self.renderer, self.text
        if u.op.elementwise or u.op in (Ops.VECTORIZE, Ops.GEP):
            self.value(u)
        elif u.op is Ops.CONST:
            text[u] = self.constant(u)
        elif u.op is Ops.LOAD:
            self.load(u)
        elif u.op is Ops.STORE:
            self.store(u)
        elif u.op is Ops.DEFINE_GLOBAL:
            text[u] = [f"data{u.arg}" if u.dtype.pointer else u.arg[0]]
        elif u.op is Ops.SPECIAL:
            text[u] = [special_name(u)]
        elif u.op is Ops.DEFINE_LOCAL:
            text[u] = [u.arg[0]]
            if array := r.local(u):
                self.line(array)
        elif u.op is Ops.DEFINE_ACC:
            self.declare("acc", u, text[u.src[0]])
        elif u.op is Ops.PHI:
            for target, value in zip(text[u.src[0]], text[u.src[1]]):
                if target != value:
                    self.line(f"{target} = {value};")
            text[u] = text[u.src[0]]
        elif u.op is Ops.RANGE:
            text[u] = [f"ridx{u.arg[0]}"]
            self.line(r.loop(self.type_of(u), text[u][0], *self.limits(u)))
            self.depth += 1
        elif u.op is Ops.IF:
            self.line(f"if ({strip(text[u.src[0]][0])}) {{")
            self.depth += 1
        elif u.op in (Ops.ENDRANGE, Ops.ENDIF):
            self.depth -= 1
            self.line("}")
        elif u.op is Ops.BARRIER:
            self.line(r.barrier)
        else:
            self.machine(u)

    def limits(self, u: UOp) -> list[str]:
        """Return start and end of a range."""
        return [self.text[s][0] for s in u.src]

    def constant(self, u: UOp) -> list[str]:
        raise NotImplementedError

    def declare(self, prefix: str, u: UOp, values: list[str]) -> None:
        """Declare a variable for a value."""
        raise NotImplementedError

    def value(self, u: UOp) -> None:
        """Write an elementwise operation, or a vector of lanes."""
        raise NotImplementedError

    def load(self, u: UOp) -> None:
        raise NotImplementedError

    def store(self, u: UOp) -> None:
        raise NotImplementedError

    def machine(self, u: UOp) -> None:
        """Write an operation of the machine (matrix unit, tile, prefetch)."""
        raise NotImplementedError


def special_name(u: UOp) -> str:
    """Return the name of a SPECIAL: ``tid``, or ``gidx0`` for ``("gidx0", size)``."""
    return str(u.arg[0] if isinstance(u.arg, tuple) else u.arg)


def shifts_inside(u: UOp) -> bool:
    """Return True if a shift is by a constant within the type's width, as C requires."""
    return bool(u.src[1].is_const and 0 <= u.src[1].arg < u.dtype.scalar.bits)


def overflows(u: UOp) -> bool:
    """Return True if an integer operation may leave the signed type that C computes it in, which C leaves undefined.

    Addresses do not: their bounds say where 64 bits are needed. Types of less than 32 bits are computed in 32, which
    only products of 16 unsigned bits leave, and shifts of negative numbers."""
    dtype = u.dtype.scalar
    if dtype is dtypes.index or not dtype.is_int:
        return False
    if dtype.itemsize >= 4:
        return dtype.kind == "int"
    return u.op is Ops.SHL or (dtype is dtypes.uint16 and u.op in (Ops.MUL, Ops.MULADD))


def strip(text: str) -> str:
    """Strip parentheses that enclose the full text."""
    if not (text.startswith("(") and text.endswith(")")):
        return text
    inner, depth = text[1:-1], 0
    if ")" in inner:
        for c in inner:
            depth += (c == "(") - (c == ")")
            if depth < 0:
                return text
    return inner if inner[:1] != "{" else text


def addend(text: str) -> str:
    """Return an operand of +, without redundant parentheses: operators inside bind at least as tightly."""
    inner = strip(text)
    return text if any(c in inner for c in "?=<>&|^") else inner

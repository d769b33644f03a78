"""The C family: text that people read, and that gcc, clang and their kin compile."""
from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

from tinsmith.codegen.render.base import Renderer, Target, mentions, nonnegative
from tinsmith.core.dtypes import DType, dtypes
from tinsmith.ir import Ops, UOp

_INFIX = {Ops.ADD: "+", Ops.SUB: "-", Ops.MUL: "*", Ops.FDIV: "/", Ops.AND: "&", Ops.OR: "|", Ops.XOR: "^",
          Ops.CMPLT: "<", Ops.CMPNE: "!=", Ops.CMPEQ: "=="}
_MATH = {Ops.SQRT: "sqrt", Ops.EXP: "exp", Ops.EXP2: "exp2", Ops.EXPM1: "expm1", Ops.LOG: "log", Ops.LOG2: "log2",
         Ops.LOG1P: "log1p", Ops.SIN: "sin", Ops.COS: "cos", Ops.TANH: "tanh", Ops.ERF: "erf", Ops.POW: "pow",
         Ops.TRUNC: "trunc", Ops.SCALE: "scalb"}
_WHOLE = (Ops.VECTORIZE, Ops.GEP, Ops.BITCAST, Ops.CONST, Ops.DEFINE_ACC, Ops.PHI)  # vectors of any dtype, as they are
_GROWS = (Ops.ADD, Ops.SUB, Ops.MUL, Ops.NEG, Ops.MULADD, Ops.SHL, Ops.IDIV)
_BFLOAT16 = (
    "static inline float bf16_float(bf16 x) {",
    "  union { unsigned int u; float f; } v = {.u = (unsigned int)x << 16}; return v.f; }",
    "static inline bf16 float_bf16(float x) { union { float f; unsigned int u; } v = {.f = x};",
    "  return x != x ? (v.u >> 16) | 64 : (v.u + 0x7fff + ((v.u >> 16) & 1)) >> 16; }",
)


class CRenderer(Renderer):
    """C99 with GCC's vector extension. Kernels take their buffers in order, then the thread number and count."""

    bool_header = "#include <stdbool.h>\n"
    signature = "void"
    buffer = "{const}{kind}* data{number}"  # how a buffer is declared as a parameter
    variable = "const int {name}"
    overloaded = False  # functions are named alike for floats of all sizes

    def type_name(self, dtype: DType) -> str:
        base = {"half": "_Float16", "__bf16": "bf16"}.get(dtype.scalar.c_name, dtype.scalar.c_name)
        return base if dtype.count == 1 else f"{_vector_name(dtype)}"

    def memory_type(self, dtype: DType) -> str:
        """The type of an element in memory."""
        return self.type_name(dtype)

    def literal(self, node: UOp) -> str:
        value, dtype = node.arg, node.dtype.scalar
        if dtype is dtypes.bfloat16:
            text = str(int(np.asarray(value, dtype.numpy).view(np.uint16)))
        elif dtype.is_float:
            if math.isnan(value):
                text = "NAN"
            elif math.isinf(value):
                text = "INFINITY" if value > 0 else "(-INFINITY)"
            else:
                text = str(dtype.numpy.type(value)) + "f" if dtype.itemsize <= 4 else repr(value)  # the fewest digits
                text = f"({text})" if text.startswith("-") else text
        elif dtype.is_bool:
            text = "1" if value else "0"
        elif dtype.itemsize == 8 and dtype is not dtypes.index:
            text = f"{value}ul" if dtype.kind == "uint" else f"{value}l" if value >= 0 else (
                f"({value}l)" if value > -(1 << 63) else "(-9223372036854775807l-1)")
        elif dtype is dtypes.uint32:
            text = f"{value}u"
        else:
            text = str(value) if value >= 0 else f"({value})" if value != -(1 << 31) else "(-2147483647-1)"
        return text if node.dtype.count == 1 else self.splat(node.dtype, text)

    def splat(self, dtype: DType, text: str) -> str:
        return f"({self.type_name(dtype)})splat{dtype.count}({_strip(text)})"

    def render(self, name: str, program: Sequence[UOp]) -> str:
        text = self.function(name, program) + "\n"
        splats = [f"#define splat{n}(x) {{{', '.join('x' * n)}}}\n"
                  for n in sorted({int(n) for n in re.findall(r"\bsplat(\d+)\(", text)})]
        header = self.bool_header if mentions(text, "bool") else ""
        return header + self.prologue(program) + "".join(splats) + text

    def prologue(self, program: Sequence[UOp]) -> str:
        lines = []
        endless = any(u.op is Ops.CONST and u.dtype.is_float and not math.isfinite(u.arg) for u in program)
        if endless or any(u.op in _MATH for u in program):
            lines.append("#include <math.h>")
        if any(u.dtype.name == "bfloat16" for u in program):
            lines.append("typedef unsigned short bf16;")
            lines += _BFLOAT16
        for dtype in dict.fromkeys(u.dtype for u in program if u.dtype.count > 1 and not u.dtype.pointer):
            lines.append(self.vector_typedef(dtype))
        return "".join(line + "\n" for line in lines)

    def vector_typedef(self, dtype: DType) -> str:
        base = "unsigned char" if dtype.is_bool else self.type_name(dtype.scalar)
        size = dtype.count * (4 if dtype.scalar is dtypes.index else dtype.itemsize)
        return f"typedef {base} {_vector_name(dtype)} __attribute__((vector_size({size}),aligned(1)));"

    def parameters(self, program: Sequence[UOp]) -> list[str]:
        """Buffers, const where nothing is stored to them, and variables."""
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
        """What stands before the kernel's body."""
        specials = [f"const int {special_name(u)}" for u in program if u.op is Ops.SPECIAL]
        return f"{self.signature} {name}({', '.join(self.parameters(program) + specials)}) {{"

    def function(self, name: str, program: Sequence[UOp]) -> str:
        return "\n".join([self.head(name, program), *self.body(program), "}"])

    def body(self, program: Sequence[UOp]) -> list[str]:
        uses, masks = self.uses(program), self.masks(program)
        counts: Counter[str] = Counter()
        text: dict[UOp, str] = {}
        lines: list[str] = []
        depth = 1

        def write(line: str) -> None:
            lines.append("  " * depth + line + self.mark(u))

        def declare(prefix: str, u: UOp, value: str | None, lane: str = "") -> None:
            """A name for a value; one without an expression is filled lane by lane."""
            text[u] = f"{prefix}{counts[prefix]}"
            counts[prefix] += 1
            start = "" if value is None else f" = {value}"
            write(f"{self.type_name(u.dtype)} {text[u]}{start};")
            if value is None:
                write(f"{_each_lane(u.dtype.count)}{text[u]}[lane] = {_strip(lane)};")

        for u in program:
            if u.op is Ops.DEFINE_GLOBAL:
                text[u] = f"data{u.arg}" if u.dtype.pointer else str(u.arg[0])
            elif u.op is Ops.SPECIAL:
                text[u] = special_name(u)
            elif u.op is Ops.CONST:
                text[u] = self.literal(u)
            elif u.op is Ops.DEFINE_LOCAL:
                text[u] = u.arg[0]
                write(self.local(u))
            elif u.op is Ops.DEFINE_ACC:
                declare("acc", u, text[u.src[0]])
            elif u.op is Ops.RANGE:
                text[u] = f"ridx{u.arg[0]}"
                start, end = (text[s] for s in u.src)
                write(f"for (int {text[u]} = {start}; {text[u]} < {end}; {text[u]}++) {{")
                depth += 1
            elif u.op is Ops.IF:
                write(f"if ({text[u.src[0]]}) {{")
                depth += 1
            elif u.op in (Ops.ENDRANGE, Ops.ENDIF):
                depth -= 1
                write("}")
            elif u.op is Ops.BARRIER:
                write("barrier();")
            elif u.op is Ops.PHI:
                write(f"{text[u.src[0]]} = {text[u.src[1]]};")
                text[u] = text[u.src[0]]
            elif u.op is Ops.STORE:
                for line in self.store(u, text):
                    write(line)
            elif u.op in (Ops.STORE_TILE, Ops.PREFETCH):
                write(self.call(u, text) + ";")
            elif u.op is Ops.LOAD and self.lane_by_lane(u):
                declare("val", u, None, self.load_lane(u, text))
            elif u.op is Ops.LOAD:
                declare("val", u, self.load(u, text))
            elif u.op in (Ops.LOAD_TILE, Ops.MMA):
                declare("val" if u.op is Ops.LOAD_TILE else "alu", u, self.call(u, text))
            elif u in masks:
                text[u] = self.lane_expression(u, text)
            elif self.lane_by_lane(u):
                declare("alu", u, None, self.lane_expression(u, text))
            else:
                value = self.expression(u, text)
                if self.declares(u, uses[u]):
                    declare("alu", u, value)
                else:
                    text[u] = value
        return lines

    def uses(self, program: Sequence[UOp]) -> Counter[UOp]:
        """How often each value is written down."""
        uses: Counter[UOp] = Counter()
        for u in program:
            for s in u.src:
                uses[s] += 2 if self.repeats(u) else 1
        for u in program:
            if u.op is Ops.VECTORIZE and len(u.src) == 1:
                uses[u.src[0]] += uses[u] - 1  # a spread has no name: its users write the scalar
        return uses

    def masks(self, program: Sequence[UOp]) -> set[UOp]:
        """Conditions on lanes that one loop over the lanes alone reads: they are written inside it, without a name."""
        users: dict[UOp, list[UOp]] = {
            u: [] for u in program if u.dtype.is_bool and u.op is not Ops.LOAD and self.lane_by_lane(u)}
        for u in program:
            for s in u.src:
                if s in users:
                    users[s].append(u)
        return {mask for mask, used in users.items() if len(used) == 1 and self.lane_by_lane(used[0])}

    def declares(self, u: UOp, uses: int) -> bool:
        """Whether a value gets a name: what is used twice, and vectors, whose text would grow with every lane."""
        if u.op is Ops.VECTORIZE:
            return len(u.src) > 1
        if u.dtype.count > 1:
            return u.dtype.scalar is not dtypes.index or u.op not in (Ops.ADD, Ops.MUL)
        return uses > 1

    def local(self, u: UOp) -> str:
        name, elements = u.arg
        return f"{self.type_name(u.dtype.scalar)} {name}[{elements}] __attribute__((aligned(64)));"

    def pointer(self, memory: UOp, index: UOp, text: dict[UOp, str]) -> str:
        return f"({text[memory]}+{_addend(text[index])})"

    def call(self, u: UOp, text: dict[UOp, str]) -> str:
        """A machine operation that C has no expression for."""
        if u.op is Ops.MMA:
            return f"{u.arg.name}({', '.join(text[s] for s in u.src)})"
        name, rest = "__builtin_prefetch", [text[s] for s in u.src[2:]]
        if u.op is not Ops.PREFETCH:
            rows, columns = u.arg
            name = f"{'load' if u.op is Ops.LOAD_TILE else 'store'}_tile_{rows}x{columns}"
        return f"{name}({', '.join([_strip(self.pointer(u.src[0], u.src[1], text)), *rest])})"

    def load(self, u: UOp, text: dict[UOp, str]) -> str:
        memory, index = u.src[0], u.src[1]
        valid = text[u.src[2]] if len(u.src) > 2 else None
        if u.dtype.count == 1:
            place = f"*{self.pointer(memory, index, text)}"
            return place if valid is None else f"({valid}?{place}:0)"
        return f"*(({self.type_name(u.dtype)}*){self.pointer(memory, index, text)})"

    def load_lane(self, u: UOp, text: dict[UOp, str]) -> str:
        place = f"{text[u.src[0]]}[{self.lane_index(u.src[1], text)}]"
        return place if len(u.src) == 2 else f"({self.lane(u.src[2], text)}?{place}:0)"

    def lane_index(self, index: UOp, text: dict[UOp, str]) -> str:
        """One lane of an index; a scalar is the index of the first."""
        return _strip(self.lane(index, text) if index.dtype.count > 1 else f"{_addend(text[index])}+lane")

    def lane(self, node: UOp, text: dict[UOp, str]) -> str:
        """The element number ``lane`` of a value, seen through spreads and sums without a name."""
        if node.dtype.count == 1:
            return text[node]
        if _is_spread(node):
            return self.spread_source(node, text)
        if node.dtype.scalar is dtypes.index and node.op in (Ops.ADD, Ops.MUL):
            return self.plain(node, [self.lane(s, text) for s in node.src])
        return f"{text[node]}[lane]" if text[node].isidentifier() else text[node]  # else: a mask

    def spread_source(self, node: UOp, text: dict[UOp, str]) -> str:
        """The scalar that a spread repeats."""
        if node.op is Ops.VECTORIZE:
            return text[node.src[0]]
        return self.literal(UOp(Ops.CONST, node.dtype.scalar, (), node.arg))

    def store(self, u: UOp, text: dict[UOp, str]) -> list[str]:
        memory, index, value = u.src[:3]
        valid = u.src[3] if len(u.src) > 3 else None
        if value.dtype.count == 1:
            line = f"*{self.pointer(memory, index, text)} = {_strip(text[value])};"
            return [line if valid is None else f"if ({_strip(text[valid])}) {line}"]
        if not self.lane_by_lane(u):
            return [f"*(({self.type_name(value.dtype)}*){self.pointer(memory, index, text)}) = {_strip(text[value])};"]
        guard = "" if valid is None else f"if ({_strip(self.lane(valid, text))}) "
        place = f"{text[memory]}[{self.lane_index(index, text)}]"
        return [f"{_each_lane(value.dtype.count)}{guard}{place} = {_strip(self.lane(value, text))};"]

    def expression(self, u: UOp, text: dict[UOp, str]) -> str:
        op, dtype = u.op, u.dtype
        src = self.operands(u, text)
        if op is Ops.VECTORIZE:
            return self.splat(dtype, src[0]) if len(src) == 1 else self.joined(u, text)
        if op is Ops.GEP:
            lanes = [f"{src[0]}[{i}]" for i in u.arg]
            return lanes[0] if len(lanes) == 1 else f"({self.type_name(dtype)}){{{', '.join(lanes)}}}"
        if op is Ops.CAST and dtype.count == 1:
            return self.cast(u, src[0])
        if op is Ops.BITCAST:
            return self.bitcast(u, src[0])
        return self.scalar(u, src)

    def joined(self, u: UOp, text: dict[UOp, str]) -> str:
        """A vector of scalars, or of the lanes of vectors beside each other."""
        lanes = [text[s] if s.dtype.count == 1 else self.spread_source(s, text) if _is_spread(s) else f"{text[s]}[{i}]"
                 for s in u.src for i in range(s.dtype.count)]
        return f"({self.type_name(u.dtype)}){{{', '.join(lanes)}}}"

    def lane_by_lane(self, u: UOp) -> bool:
        """Whether C has no vector operator with our meaning, so that a loop over the lanes is written."""
        if u.op is Ops.STORE:
            return u.src[2].dtype.count > 1 and (u.src[1].dtype.count > 1 or len(u.src) > 3)
        if u.dtype.count == 1 or u.op in _WHOLE:
            return False
        if u.op is Ops.LOAD:
            return u.src[1].dtype.count > 1 or len(u.src) > 2
        if u.op in (Ops.SHL, Ops.SHR):
            return not _shifts_inside(u)
        return (u.op in _MATH or u.op in (Ops.IDIV, Ops.MOD, Ops.MAX, Ops.MIN, Ops.WHERE, Ops.CAST) or u.dtype.is_bool
                or u.src[0].dtype.is_bool)

    def repeats(self, u: UOp) -> bool:
        """Whether the text of a source can occur more than once: such a source gets a name first."""
        if u.op in (Ops.MAX, Ops.MIN, Ops.IDIV, Ops.MOD, Ops.SHL, Ops.SHR):
            return True
        if u.op is Ops.CAST and u.src[0].dtype.is_float and u.dtype.is_int:
            return True
        return any(s.dtype.count > 1 for s in u.src) and (u.op in (Ops.GEP, Ops.LOAD, Ops.STORE) or u.op.elementwise)

    def operands(self, u: UOp, text: dict[UOp, str]) -> list[str]:
        """Sources as text; next to a vector, arithmetic takes a spread scalar as it is."""
        plain = u.dtype.count > 1 and u.op in (*_INFIX, Ops.MULADD, Ops.SHL, Ops.SHR)
        plain = plain and not all(_is_spread(s) for s in u.src)
        return [self.spread_source(s, text) if plain and _is_spread(s) else text[s] for s in u.src]

    def lane_expression(self, u: UOp, text: dict[UOp, str]) -> str:
        """The scalar expression of one lane."""
        src = [UOp(Ops.CONST, s.dtype.scalar, (), s.arg) if s.is_const else UOp(Ops.GEP, s.dtype.scalar, (s,), (0,))
               for s in u.src]
        names = {n: self.lane(s, text) for n, s in zip(src, u.src)}
        return self.expression(UOp(u.op, u.dtype.scalar, tuple(src), u.arg), names)

    def multiply_add(self, dtype: DType, src: list[str]) -> str:
        """MULADD of floats: two operations, since C's fma is a slow call where no instruction does it."""
        return f"(({src[0]}*{src[1]})+{src[2]})"

    def scalar(self, u: UOp, src: list[str]) -> str:
        op, dtype = u.op, u.dtype.scalar
        if dtype.is_int and dtype.itemsize < 4 and op in _GROWS and u.dtype.count == 1:  # C computes it as an int
            return f"(({self.type_name(dtype)}){self.plain(u, src)})"
        return self.plain(u, src)

    def plain(self, u: UOp, src: list[str]) -> str:
        op, dtype = u.op, u.dtype.scalar
        a, b = src[0], src[1] if len(src) > 1 else ""
        if op in (Ops.ADD, Ops.MUL) and dtype.is_bool:
            return f"({a}{'|' if op is Ops.ADD else '&'}{b})"
        if op in _INFIX:
            return f"({_strip(a) if op is Ops.ADD and _adds(a) else a}{_INFIX[op]}{b})"
        if op is Ops.NEG:
            return f"(-{a})"
        if op is Ops.RECIP:
            return f"(1/{a})"
        if op is Ops.MULADD:
            return self.multiply_add(dtype, src) if dtype.is_float else f"(({a}*{b})+{src[2]})"
        if op is Ops.WHERE:
            return f"({a}?{b}:{src[2]})"
        if op in (Ops.MAX, Ops.MIN):
            test = ">" if op is Ops.MAX else "<"
            keep = f"({a}{test}{b}||{a}!={a})" if dtype.is_float else f"({a}{test}{b})"
            return f"({keep}?{a}:{b})"
        if op in (Ops.IDIV, Ops.MOD):
            return self.divide(u, a, b)
        if op in (Ops.SHL, Ops.SHR):
            return self.shift(u, a, b)
        return f"{_MATH[op]}{'f' if dtype.itemsize == 4 and not self.overloaded else ''}({', '.join(map(_strip, src))})"

    def divide(self, u: UOp, a: str, b: str) -> str:
        """Rounds down; 0 for a zero divisor; -x where the divisor is -1, which cannot trap."""
        sign = "/" if u.op is Ops.IDIV else "%"
        if u.src[1].is_const and u.src[1].arg > 0 and all(nonnegative(s) for s in u.src):
            return f"({a}{sign}{b})"
        if u.dtype.is_unsigned or all(nonnegative(s) for s in u.src):
            return f"({b}==0?0:{a}{sign}{b})"
        if u.op is Ops.IDIV:
            return f"({b}==0?0:{b}==-1?-{a}:{a}/{b}-({a}%{b}!=0&&(({a}<0)!=({b}<0))))"
        return f"({b}==0||{b}==-1?0:({a}%{b}!=0&&(({a}<0)!=({b}<0)))?{a}%{b}+{b}:{a}%{b})"

    def shift(self, u: UOp, a: str, b: str) -> str:
        sign = "<<" if u.op is Ops.SHL else ">>"
        if _shifts_inside(u):
            return f"({a}{sign}{b})"
        beyond = f"({a}<0?-1:0)" if u.op is Ops.SHR and u.dtype.kind == "int" else "0"
        inside = f"{b}<{u.dtype.bits}" if u.dtype.is_unsigned else f"({b}>=0&&{b}<{u.dtype.bits})"
        return f"({inside}?({a}{sign}{b}):{beyond})"

    def cast(self, u: UOp, a: str) -> str:
        dtype, source = u.dtype, u.src[0].dtype.scalar
        if source is dtypes.bfloat16:
            a, source = f"bf16_float({_strip(a)})", dtypes.float32
        if dtype is dtypes.bfloat16:
            return f"float_bf16({_strip(a)})"
        if dtype.is_bool:
            return f"({a}!=0)"
        if source.is_float and dtype.is_int:
            low, high = int(dtype.min), int(dtype.max)
            t = self.type_name(dtype)
            top = f"{high}{'ul' if dtype.kind == 'uint' else 'l'}"
            bottom = "(-9223372036854775807l-1)" if low == -(1 << 63) else f"({low}l)"
            return f"({a}!={a}?0:{a}>={self.bound(high)}?({t}){top}:{a}<={self.bound(low)}?({t}){bottom}:({t})({a}))"
        return f"(({self.type_name(dtype)})({_strip(a)}))"

    def bound(self, value: int) -> str:
        """A bound of an integer type as a floating-point literal."""
        return repr(float(value))

    def bitcast(self, u: UOp, a: str) -> str:
        if u.dtype.count > 1:
            return f"(({self.type_name(u.dtype)}){a})"
        return f"(((union {{ {self.type_name(u.src[0].dtype)} a; {self.type_name(u.dtype)} b; }}){{.a = {a}}}).b)"


def special_name(u: UOp) -> str:
    """``tid``, or ``gidx0`` of ``("gidx0", size)``."""
    return str(u.arg[0] if isinstance(u.arg, tuple) else u.arg)


def _vector_name(dtype: DType) -> str:
    name = "int" if dtype.scalar is dtypes.index else dtype.scalar.name
    return f"{name}x{dtype.count}" if dtype.scalar is not dtypes.index else f"index{dtype.count}"


def _is_spread(node: UOp) -> bool:
    return node.dtype.count > 1 and (node.op is Ops.CONST or (node.op is Ops.VECTORIZE and len(node.src) == 1))


def _shifts_inside(u: UOp) -> bool:
    """Whether a shift is by a constant that C allows."""
    return bool(u.src[1].is_const and 0 <= u.src[1].arg < u.dtype.scalar.bits)


def _each_lane(count: int) -> str:
    return f"for (int lane = 0; lane < {count}; lane++) "


def _strip(text: str) -> str:
    """Without outer parentheses that enclose the whole text."""
    if not (text.startswith("(") and text.endswith(")")):
        return text
    depth = 0
    for i, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if depth == 0 and i < len(text) - 1:
            return text
    return text[1:-1] if text[1:2] != "{" else text


def _addend(text: str) -> str:
    """A side of a +, without parentheses that it does not need."""
    return _strip(text) if _adds(text) else text


def _adds(text: str) -> bool:
    """Whether text in parentheses may stand without them on the left of a +: its operators bind as tightly."""
    inner = _strip(text)
    return inner is not text and not any(c in inner for c in "?=<>&|^")


class ReadableRenderer(CRenderer):
    """C for people, never compiled: what is one operation of the program is one operation of the text."""

    def __init__(self) -> None:
        super().__init__(Target("text"))

    def multiply_add(self, dtype: DType, src: list[str]) -> str:
        return f"fma({', '.join(map(_strip, src))})"

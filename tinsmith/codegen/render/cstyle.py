"""C with GCC's vector extension: readable text, compiled by gcc, clang and compatible compilers."""
from __future__ import annotations

import math
import re
from collections.abc import Sequence

from tinsmith.codegen.render.base import mentions
from tinsmith.codegen.render.language import INFIX, MATH, Body, CLanguage, addend, shifts_inside, special_name, strip
from tinsmith.core.dtypes import DType, dtypes
from tinsmith.ir import Ops, UOp
from tinsmith.target.target import Target

_WHOLE = (Ops.VECTORIZE, Ops.GEP, Ops.BITCAST)  # these accept vectors of any dtype
_BY_LANE = (*MATH, Ops.FMOD, Ops.IDIV, Ops.MOD, Ops.MAX, Ops.MIN, Ops.WHERE, Ops.CAST)
_BFLOAT16 = (
    "typedef unsigned short bf16;",
    "static inline float bf16_float(bf16 x) {",
    "  union { unsigned int u; float f; } v = {.u = (unsigned int)x << 16}; return v.f; }",
    "static inline bf16 float_bf16(float x) { union { float f; unsigned int u; } v = {.f = x};",
    "  return x != x ? (v.u >> 16) | 64 : (v.u + 0x7fff + ((v.u >> 16) & 1)) >> 16; }",
)


class VectorBody(Body):
    """The body of a C kernel with vector types: one expression per value. Operations without a vector operator of the
    same meaning become a loop over the lanes; conditions read only by one such loop are inlined into it."""

    def __init__(self, renderer: CLanguage, program: Sequence[UOp]) -> None:
        super().__init__(renderer, program)
        users: dict[UOp, list[UOp]] = {
            u: [] for u in program if u.dtype.is_bool and u.op is not Ops.LOAD and self.by_lane(u)}
        for u in program:
            if u.op is Ops.VECTORIZE and len(u.src) == 1:
                self.uses[u.src[0]] += self.uses[u] - 1  # a splat has no variable: its users write the scalar
            for s in u.src:
                if s in users:
                    users[s].append(u)
        self.masks = {mask for mask, used in users.items() if len(used) == 1 and self.by_lane(used[0])}

    def by_lane(self, u: UOp) -> bool:
        """Return True if the operation is written as a loop over the lanes."""
        if u.op is Ops.STORE:
            return u.src[2].dtype.count > 1 and (u.src[1].dtype.count > 1 or len(u.src) > 3)
        if u.dtype.count == 1:
            return False
        if u.op is Ops.LOAD:
            return u.src[1].dtype.count > 1 or len(u.src) > 2
        if u.op in (Ops.SHL, Ops.SHR):
            return not shifts_inside(u)
        return u.op.elementwise and u.op not in _WHOLE and (
            u.op in _BY_LANE or u.dtype.is_bool or u.src[0].dtype.is_bool)

    def has_name(self, u: UOp) -> bool:
        """Return True if a value gets a variable: used more than once, or a vector, whose text would grow with every
        lane."""
        if u.op is Ops.VECTORIZE:
            return len(u.src) > 1
        if u.dtype.count > 1:
            return u.dtype.scalar is not dtypes.index or u.op not in (Ops.ADD, Ops.MUL)
        return self.uses[u] > 1

    def constant(self, u: UOp) -> list[str]:
        return [self.splat(u.dtype, self.renderer.literal(u.dtype.scalar, u.arg))]

    def splat(self, dtype: DType, text: str) -> str:
        return text if dtype.count == 1 else f"({self.renderer.type_name(dtype)})splat{dtype.count}({strip(text)})"

    def declare(self, prefix: str, u: UOp, values: list[str]) -> None:
        name = self.fresh(prefix)
        self.text[u] = [name]
        self.line(f"{self.type_of(u)} {name} = {values[0]};")

    def declare_lanes(self, prefix: str, u: UOp, lane: str) -> None:
        """Declare a vector that is filled lane by lane."""
        name = self.fresh(prefix)
        self.text[u] = [name]
        self.line(f"{self.type_of(u)} {name};")
        self.line(f"{_each_lane(u.dtype.count)}{name}[lane] = {strip(lane)};")

    # *** lanes ***

    def lane(self, node: UOp) -> str:
        """Return the element ``lane`` of a value; splats and sums without a variable are expanded."""
        text = self.text[node][0]
        if node.dtype.count == 1:
            return text
        if _is_spread(node):
            return self.spread_source(node)
        if node.dtype.scalar is dtypes.index and node.op in (Ops.ADD, Ops.MUL):
            return self.renderer.plain(node, [self.lane(s) for s in node.src])
        return f"{text}[lane]" if text.isidentifier() else text  # otherwise a mask

    def lane_index(self, index: UOp) -> str:
        """Return one lane of an index; a scalar index is that of the first lane."""
        return strip(self.lane(index) if index.dtype.count > 1 else f"{addend(self.text[index][0])}+lane")

    def spread_source(self, node: UOp) -> str:
        """Return the scalar that a splat repeats."""
        if node.op is Ops.VECTORIZE:
            return self.text[node.src[0]][0]
        return self.renderer.literal(node.dtype.scalar, node.arg)

    # *** values ***

    def value(self, u: UOp) -> None:
        if self.by_lane(u):
            lane = self.renderer.operation(u, [self.lane(s) for s in u.src])
            if u in self.masks:
                self.text[u] = [lane]
            else:
                self.declare_lanes("alu", u, lane)
        elif self.has_name(u):
            self.declare("alu", u, [self.expression(u)])
        else:
            self.text[u] = [self.expression(u)]

    def expression(self, u: UOp) -> str:
        op, dtype, kind = u.op, u.dtype, self.type_of(u)
        src = [self.text[s][0] for s in u.src]
        if op is Ops.VECTORIZE and len(src) == 1:
            return self.splat(dtype, src[0])
        if op is Ops.VECTORIZE:  # of scalars, or of the lanes of adjacent vectors
            lanes = [text if s.dtype.count == 1 else self.spread_source(s) if _is_spread(s) else f"{text}[{i}]"
                     for s, text in zip(u.src, src) for i in range(s.dtype.count)]
            return f"({kind}){{{', '.join(lanes)}}}"
        if op is Ops.GEP:
            lanes = [f"{src[0]}[{i}]" for i in u.arg]
            return lanes[0] if len(lanes) == 1 else f"({kind}){{{', '.join(lanes)}}}"
        if dtype.count == 1:
            return self.renderer.operation(u, src)
        if op is Ops.BITCAST:
            return f"(({kind}){src[0]})"
        spread = [op in (*INFIX, Ops.MULADD, Ops.SHL, Ops.SHR) and _is_spread(s) for s in u.src]
        if not all(spread):  # arithmetic with a vector accepts a scalar operand unchanged
            src = [self.spread_source(s) if alone else text for s, text, alone in zip(u.src, src, spread)]
        return self.renderer.plain(u, src)

    # *** memory ***

    def pointer(self, u: UOp) -> str:
        return f"{self.text[u.src[0]][0]}+{addend(self.text[u.src[1]][0])}"

    def load(self, u: UOp) -> None:
        valid = u.src[2] if len(u.src) > 2 else None
        if self.by_lane(u):
            place = f"{self.text[u.src[0]][0]}[{self.lane_index(u.src[1])}]"
            return self.declare_lanes("val", u, place if valid is None else f"({self.lane(valid)}?{place}:0)")
        place = f"*({self.pointer(u)})" if u.dtype.count == 1 else f"*(({self.type_of(u)}*)({self.pointer(u)}))"
        return self.declare("val", u, [place if valid is None else f"({self.text[valid][0]}?{place}:0)"])

    def store(self, u: UOp) -> None:
        value = u.src[2]
        valid = u.src[3] if len(u.src) > 3 else None
        guard = "" if valid is None else f"if ({strip(self.lane(valid))}) "
        if self.by_lane(u):
            place = f"{self.text[u.src[0]][0]}[{self.lane_index(u.src[1])}]"
            return self.line(f"{_each_lane(value.dtype.count)}{guard}{place} = {strip(self.lane(value))};")
        kind = "" if value.dtype.count == 1 else f"({self.type_of(value)}*)"
        place = f"*({kind}({self.pointer(u)}))" if kind else f"*({self.pointer(u)})"
        return self.line(f"{guard}{place} = {strip(self.text[value][0])};")

    def machine(self, u: UOp) -> None:
        """Write an operation without a C expression as a call."""
        if u.op is Ops.MMA:
            return self.declare("alu", u, [f"{u.arg.name}({', '.join(self.text[s][0] for s in u.src)})"])
        name = "__builtin_prefetch"
        if u.op is not Ops.PREFETCH:
            name = f"{'load' if u.op is Ops.LOAD_TILE else 'store'}_tile_{u.arg[0]}x{u.arg[1]}"
        call = f"{name}({', '.join([self.pointer(u), *(self.text[s][0] for s in u.src[2:])])})"
        return self.declare("val", u, [call]) if u.op is Ops.LOAD_TILE else self.line(call + ";")


class CRenderer(CLanguage):
    """C99 with GCC's vector extension. Kernels take their buffers in order, then the thread index and thread count."""

    scalar_types = CLanguage.scalar_types | {"bfloat16": "bf16"}
    bool_header = "#include <stdbool.h>\n"
    signature = "void"

    def type_name(self, dtype: DType) -> str:
        return super().type_name(dtype) if dtype.count == 1 else _vector_name(dtype)

    def body(self, program: Sequence[UOp]) -> list[str]:
        return VectorBody(self, program).written()

    def render(self, name: str, program: Sequence[UOp]) -> str:
        text = self.function(name, program) + "\n"
        splats = [f"#define splat{n}(x) {{{', '.join('x' * n)}}}\n"
                  for n in sorted({int(n) for n in re.findall(r"\bsplat(\d+)\(", text)})]
        header = self.bool_header if mentions(text, "bool") else ""
        return header + self.prologue(program) + "".join(splats) + text

    def prologue(self, program: Sequence[UOp]) -> str:
        endless = any(u.op is Ops.CONST and u.dtype.is_float and not math.isfinite(u.arg) for u in program)
        lines = ["#include <math.h>"] if endless or any(u.op in (*MATH, Ops.FMOD) for u in program) else []
        lines += _BFLOAT16 if any(u.dtype.name == "bfloat16" for u in program) else ()
        lines += [self.vector_typedef(dtype) for dtype in dict.fromkeys(
            u.dtype for u in program if u.dtype.count > 1 and not u.dtype.pointer)]
        return "".join(line + "\n" for line in lines)

    def vector_typedef(self, dtype: DType) -> str:
        base = "unsigned char" if dtype.is_bool else self.type_name(dtype.scalar)
        size = dtype.count * (4 if dtype.scalar is dtypes.index else dtype.itemsize)
        return f"typedef {base} {_vector_name(dtype)} __attribute__((vector_size({size}),aligned(1)));"

    def head(self, name: str, program: Sequence[UOp]) -> str:
        specials = [f"const int {special_name(u)}" for u in program if u.op is Ops.SPECIAL]
        return f"{self.signature} {name}({', '.join(self.parameters(program) + specials)}) {{"

    def local(self, u: UOp) -> str:
        name, elements = u.arg
        return f"{self.type_name(u.dtype.scalar)} {name}[{elements}] __attribute__((aligned(64)));"


class ReadableRenderer(CRenderer):
    """C for reading, never compiled: one operation of the program is one operation of the text."""

    fused = "fma"

    def __init__(self) -> None:
        super().__init__(Target("text"))


def _vector_name(dtype: DType) -> str:
    return f"index{dtype.count}" if dtype.scalar is dtypes.index else f"{dtype.scalar.name}x{dtype.count}"


def _is_spread(node: UOp) -> bool:
    return node.dtype.count > 1 and (node.op is Ops.CONST or (node.op is Ops.VECTORIZE and len(node.src) == 1))


def _each_lane(count: int) -> str:
    return f"for (int lane = 0; lane < {count}; lane++) "

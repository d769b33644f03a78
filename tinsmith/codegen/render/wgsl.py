"""WGSL, the language of WebGPU, as naga compiles it. Its types are bool, i32, u32 and f32, and with naga's extensions
i64, u64 and f64; without them 64-bit integers are pairs of words (``vec2<u32>``, the low word first, as in memory).

Integers of 8 and 16 bits are held in 32 bits, truncated after every operation; 16-bit floats as their bits. In memory
they are packed into words: a store is two atomic operations, which preserve the elements of other threads in the word.
``==`` and ``<`` compare NaN as IEEE 754 requires, but ``!=`` is false for it, so ``!(a == b)`` is written.
"""
from __future__ import annotations

import math
import re
from collections.abc import Sequence
from math import prod
from typing import Final

from tinsmith.codegen.render.base import beside_zero, launch_size, specials
from tinsmith.codegen.render.gpu import AXES, HALVES, GPURenderer, called
from tinsmith.codegen.render.language import GROWS, strip
from tinsmith.core.dtypes import DType, dtypes
from tinsmith.core.errors import CompileError
from tinsmith.ir import Ops, UOp
from tinsmith.ir.structure import Role
from tinsmith.target.schedule_costs import GRID_COSTS
from tinsmith.target.target import Target

MOST_BLOCKS = (1 << 16) - 1  # blocks along an axis of the grid
_SUMS = (Ops.ADD, Ops.SUB, Ops.MULADD)

# Shader compilers may reject constant NaN and infinity: they come from the bits of a variable.
_HELPERS = {
    "nan_f32": "var<private> nan_bits: u32 = 0x7fc00000u;\nfn nan_f32() -> f32 { return bitcast<f32>(nan_bits); }",
    "inf_f32": "var<private> inf_bits: u32 = 0x7f800000u;\nfn inf_f32() -> f32 { return bitcast<f32>(inf_bits); }",
    "kept_f32": "fn kept_f32(x: f32) -> f32 { return bitcast<f32>(bitcast<u32>(x) ^ args.zero); }",
    "kept_f64": "fn kept_f64(x: f64) -> f64 { return bitcast<f64>(bitcast<u64>(x) ^ u64(args.zero)); }",
    "half_float": """fn half_float(x: u32) -> f32 {
  let s = (x & 0x8000u) << 16u;
  if ((x & 0x7c00u) == 0u) { return bitcast<f32>(bitcast<u32>(f32(x & 0x3ffu) * 5.9604645e-08f) | s); }
  if ((x & 0x7c00u) == 0x7c00u) { return bitcast<f32>(s | 0x7f800000u | ((x & 0x3ffu) << 13u)); }
  return bitcast<f32>(s | (((x & 0x7fffu) << 13u) + 0x38000000u)); }""",
    "float_half": """fn float_half(x: f32) -> u32 {
  let u = bitcast<u32>(x);
  let s = (u >> 16u) & 0x8000u;
  let a = u & 0x7fffffffu;
  if (a > 0x7f800000u) { return s | 0x7e00u; }
  if (a >= 0x477ff000u) { return s | 0x7c00u; }
  if (a < 0x38800000u) { return s | (bitcast<u32>(bitcast<f32>(a) + 0.5f) - 0x3f000000u); }
  return s | ((a + 0xfffu + ((a >> 13u) & 1u) - 0x38000000u) >> 13u); }""",
    "bf16_float": "fn bf16_float(x: u32) -> f32 { return bitcast<f32>(x << 16u); }",
    "float_bf16": """fn float_bf16(x: f32) -> u32 {
  let u = bitcast<u32>(x);
  return select((u + 0x7fffu + ((u >> 16u) & 1u)) >> 16u, (u >> 16u) | 64u, (u & 0x7fffffffu) > 0x7f800000u); }""",
    "to_odd": """fn to_odd(x: f64) -> f32 {
  let y = f32(x);
  if (f64(y) == x || !(x == x)) { return y; }
  let u = bitcast<u32>(y);
  return bitcast<f32>(select(u, u - 1u, abs(f64(y)) > abs(x)) | 1u); }""",
}

_FMOD = """fn {name}(x: {t}, y: {t}) -> {t} {{
  var a = abs(x);
  let b = abs(y);
  var c = b;
  if (a < b && a - a == {zero}) {{ return x; }}
  if (!(b > {zero} && a - a == {zero})) {{ return {nan}; }}
  while (a - c >= c) {{ c += c; }}
  for (; c >= b; c *= {half}) {{ if (a >= c) {{ a -= c; }} }}
  return select(a, -a, x < {zero}); }}"""

_HELPERS["exact_fmodf"] = _FMOD.format(name="exact_fmodf", t="f32", zero="0f", half="0.5f", nan="nan_f32()")
_HELPERS["exact_fmod"] = _FMOD.format(name="exact_fmod", t="f64", zero="0lf", half="0.5lf", nan="f64(nan_f32())")

_FLOOR = """fn {name}(a: {t}, b: {t}) -> {t} {{
  if (b == {zero}) {{ return {zero}; }}
  if (b == -{one}) {{ return {special}; }}
  let q = a / b;
  let r = a - q * b;
  let down = r != {zero} && ((a < {zero}) != (b < {zero}));
  return {result}; }}"""


def wgsl_target(block_threads: int = 256, local_bytes: int = 16 << 10, int64: bool = True,
                float64: bool = True) -> Target:
    """Return the target of a device; by default the minimum limits of WebGPU, with naga's wide types.

    Without native 64-bit integers the renderer writes them as pairs of words; float64 has no emulation, and needs them.
    """
    held = frozenset(dtypes.all) - (frozenset() if float64 and int64 else {dtypes.float64})
    return Target("wgsl" if int64 else "wgsl of words", 16, 32, local_bytes=local_bytes // 2, storage=held,
                  dtypes=held - set(HALVES), block_threads=block_threads, parallel=Role.GLOBAL, costs=GRID_COSTS)


def is_packed(dtype: DType) -> bool:
    """Return True if several elements share a word of memory."""
    return dtype.itemsize < 4 and dtype is not dtypes.index


class WGSLRenderer(GPURenderer):
    """A kernel is a shader module with the entry point of its name.

    Its bindings in group 0 are the buffers, in order, all ``read_write`` since they may alias parts of one buffer, then
    ``args``: the first element of each buffer, the variables, and a 0 that no compiler can fold.
    """

    function_name, fused, fmod, signed_wraps = "{name}", "", "exact_fmod{f}", True
    nan, infinity = "nan_f32()", "inf_f32()"
    barrier = "workgroupBarrier();"
    vector_widths = ()
    mixes_widths = False
    wide = True  # the device has native i64 and u64
    scalar_types = {
        "void": "void", "index": "i32", "bool": "bool", "int8": "i32", "uint8": "u32", "int16": "i32", "uint16": "u32",
        "int32": "i32", "uint32": "u32", "int64": "i64", "uint64": "u64", "float16": "u32", "bfloat16": "u32",
        "float32": "f32", "float64": "f64"}

    def __init__(self, target: Target | None = None) -> None:
        super().__init__(target or wgsl_target())
        self.wide = self.target.name == wgsl_target().name

    def type_name(self, dtype: DType) -> str:
        scalar = dtype.scalar
        if scalar not in self.target.storage and scalar is dtypes.float64:
            raise CompileError("WEBGPU", "this device's WGSL has no float64", "cast the values to float32")
        return PAIR if is_pair(scalar) and not self.wide else super().type_name(dtype)

    # *** statements ***

    def declaration(self, kind: str, values: dict[str, str], mutable: bool = False) -> str:
        word = "var" if mutable else "let"
        return " ".join(f"{word} {name}: {kind} = {value};" for name, value in values.items())

    def loop(self, kind: str, name: str, start: str, end: str) -> str:
        return f"for (var {name}: {kind} = {start}; {name} < {end}; {name}++) {{"

    def guarded(self, condition: str, statement: str) -> str:
        return f"if ({condition}) {{ {statement} }}"

    def wide_type(self) -> str:
        # no buffer exceeds 32-bit indices: an index that overflows is never accessed
        return "i64" if self.wide else "i32"

    def widened(self, text: str) -> str:
        return f"i64({strip(text)})" if self.wide else text

    def narrowed(self, text: str) -> str:
        return f"i32({strip(text)})" if self.wide else text

    def choose(self, condition: str, a: str, b: str) -> str:
        return f"select({b}, {a}, {condition})"

    def thread(self, name: str, program: Sequence[UOp]) -> str:
        axis = int(name[4:])
        if name.startswith("lidx"):
            return f"i32(lid.{AXES[axis]})"
        sizes = (launch_size(program, "gidx") or [1])
        if max(sizes) <= MOST_BLOCKS:
            return f"i32(gid.{AXES[axis]})"
        place = f"(i32(gid.x + gid.y * {MOST_BLOCKS}u) / {prod(sizes[:axis])})" if axis else (
            f"i32(gid.x + gid.y * {MOST_BLOCKS}u)")
        return place if axis == len(sizes) - 1 else f"({place} % {sizes[axis]})"

    # *** scalars ***

    def literal(self, dtype: DType, value: float | int | bool) -> str:
        if self.in_pairs(dtype):
            return pair_literal(int(value))
        if dtype.is_bool:
            return "true" if value else "false"
        if dtype in HALVES:
            return super().literal(dtype, value) + "u"
        if dtype.is_float and not math.isfinite(value):
            text = super().literal(dtypes.float32, value)
            return text if dtype is dtypes.float32 else f"f64({text})"
        if dtype.is_float:
            text = f"{value!r}lf" if dtype is dtypes.float64 else f"{dtype.numpy.type(value)}f"
            text = text.replace("+", "")
            return f"({text})" if text.startswith("-") else text
        if dtype.kind == "uint":
            return f"{value}{'lu' if dtype.itemsize == 8 else 'u'}"
        if dtype is dtypes.int64:
            return f"{value}li" if value >= 0 else f"({value}li)" if value > -(1 << 63) else (
                "(-9223372036854775807li-1li)")
        return str(value) if value >= 0 else f"({value})" if value > -(1 << 31) else "i32(-2147483648)"

    def in_pairs(self, dtype: DType) -> bool:
        return is_pair(dtype) and not self.wide

    def narrow(self, dtype: DType, a: str) -> str:
        """Truncate an integer held in 32 bits to its own width."""
        if dtype.kind == "uint":
            return f"({a} & {int(dtype.max)}u)"
        return f"extractBits({strip(a)}, 0u, {dtype.bits}u)"

    def cut(self, u: UOp, text: str) -> str:
        dtype = u.dtype.scalar
        return self.narrow(dtype, text) if dtype.is_int and is_packed(dtype) and u.op in GROWS else text

    def result(self, u: UOp, text: str) -> str:
        """Hide a float sum that another sum reads, because some drivers reassociate sums."""
        return f"kept_{self.type_name(u.dtype)}({strip(text)})" if u in self.summands else text

    def plain(self, u: UOp, src: list[str]) -> str:
        op, dtype = u.op, u.dtype.scalar
        a, b = src[0], src[1] if len(src) > 1 else ""
        if self.in_pairs(u.src[-1].dtype):
            return pair_operation(u, src)
        if op is Ops.CMPNE and u.src[0].dtype.is_float:
            return f"(!({a}=={b}))"
        if u.src[0].dtype.is_bool and op in (Ops.CMPLT, Ops.XOR, Ops.MAX, Ops.MIN):
            return {Ops.CMPLT: f"((!{a})&{b})", Ops.XOR: f"({a}!={b})", Ops.MAX: f"({a}|{b})",
                    Ops.MIN: f"({a}&{b})"}[op]
        if op is Ops.WHERE:
            return self.choose(a, b, src[2])
        if beside_zero(u):
            return self.choose(f"({a}{'<' if op is Ops.MAX else '>'}{b})", b, a)
        if op in (Ops.MAX, Ops.MIN):
            test = f"({a}{'>' if op is Ops.MAX else '<'}{b})"
            return self.choose(f"({test}|(!({a}=={a})))" if dtype.is_float else test, a, b)
        if op is Ops.NEG and dtype.kind == "uint":
            return f"({self.literal(dtype, 0)}-{a})"
        if op is Ops.RECIP:
            return f"({self.literal(dtype, 1)}/{a})"
        return super().plain(u, src)

    def divide(self, u: UOp, a: str, b: str) -> str:
        plain = super().divide(u, a, b)
        if "?" not in plain:
            return plain
        name = "div" if u.op is Ops.IDIV else "mod"
        return f"floor_{name}_{self.type_name(u.dtype)}({strip(a)}, {strip(b)})"

    def shift(self, u: UOp, a: str, b: str) -> str:
        sign, amount, bits = "<<" if u.op is Ops.SHL else ">>", u.src[1], u.dtype.scalar.bits
        held = max(bits, 32)
        filled = u.op is Ops.SHR and u.dtype.scalar.kind == "int"
        beyond = f"({a}>>{held - 1}u)" if filled else self.literal(u.dtype.scalar, 0)
        if amount.is_const:
            return f"({a}{sign}{amount.arg}u)" if 0 <= amount.arg < bits else beyond
        inside = f"({b}<{self.literal(amount.dtype.scalar, bits)})"
        if amount.dtype.kind != "uint":
            inside = f"({inside}&({b}>={self.literal(amount.dtype.scalar, 0)}))"
        shifted = f"({a}{sign}(u32({strip(b)})&{held - 1}u))"
        return self.choose(inside, shifted, beyond)

    def cast(self, dtype: DType, source: DType, a: str) -> str:
        if dtype in HALVES and source is dtypes.float64:
            return self.from_float(dtype, f"to_odd({strip(a)})")
        if dtype in HALVES or source in HALVES:
            if dtype is source:
                return a
            a = self.to_float(source, a) if source in HALVES else self.converted(dtypes.float32, source, a)
            return self.from_float(dtype, a) if dtype in HALVES else self.converted(dtype, dtypes.float32, a)
        return self.converted(dtype, source, a)

    def converted(self, dtype: DType, source: DType, a: str) -> str:
        """Return a cast between the types in which values are held."""
        if dtype is source or (self.in_pairs(dtype) and is_pair(source)):
            return a
        if self.in_pairs(dtype):
            return cast_to_pair(dtype, source, strip(a))
        if self.in_pairs(source):
            if dtype.is_bool:
                return f"any({a}!={pair_literal(0)})"
            if dtype.is_float:
                return f"f32_{'u' if source.is_unsigned else 'i'}64({strip(a)})"
            return self.converted(dtype, dtypes.uint32, f"({a}).x")
        if dtype.is_bool:
            return f"(!({a}=={self.literal(source, 0)}))"
        if source.is_bool:
            return f"select({self.literal(dtype, 0)}, {self.literal(dtype, 1)}, {a})"
        kind, held = self.type_name(dtype), self.type_name(source)
        if (kind, held) in (("u64", "i32"), ("i64", "u32")):  # first widen, then change the sign
            return f"{kind}({'i' if kind == 'u64' else 'u'}64({strip(a)}))"
        if dtype.is_float or not source.is_float:
            text = f"{kind}({strip(a)})"
            narrows = is_packed(dtype) and (dtype.bits < source.bits or dtype.kind != source.kind)
            return self.narrow(dtype, text) if narrows else text
        low, high = int(dtype.min), int(dtype.max)
        text = f"{kind}({strip(a)})"
        for sign, bound in ((">=", high), ("<=", low)):
            test = f"({a}{sign}{self.literal(source, float(bound))})"
            text = self.choose(test, self.literal(dtype, bound), text)
        return self.choose(f"(!({a}=={a}))", self.literal(dtype, 0), text)

    def bitcast(self, dtype: DType, source: DType, a: str) -> str:
        if dtype.itemsize == 8 and (self.in_pairs(dtype) or self.in_pairs(source)):
            return a
        if dtype.itemsize == 8:
            return f"bitcast<{self.type_name(dtype)}>({strip(a)})"
        return self.of_word(dtype, self.to_word(source, a))

    def to_word(self, dtype: DType, a: str) -> str:
        """Return the bits of a value as a u32."""
        if dtype.is_bool:
            return f"select(0u, 1u, {a})"
        if self.type_name(dtype) == "u32":
            return a
        word = f"bitcast<u32>({strip(a)})"
        return f"({word} & {(1 << dtype.bits) - 1}u)" if is_packed(dtype) else word

    def of_word(self, dtype: DType, a: str) -> str:
        if dtype.is_bool:
            return f"({a}!=0u)"
        kind = self.type_name(dtype)
        text = a if kind == "u32" else f"bitcast<{kind}>({strip(a)})"
        return self.narrow(dtype, text) if is_packed(dtype) and kind == "i32" else text

    # *** memory ***

    def element(self, memory: UOp, name: str, index: str) -> str:
        dtype = memory.dtype.scalar
        if memory.op is Ops.DEFINE_LOCAL:
            return self.place(name, index)
        at = f"off{memory.arg}+{index}"
        if not is_packed(dtype):
            return f"{name}[{at}]"
        word, low = _split(dtype, at)
        whole = f"atomicLoad(&{name}[{word}])" if memory in self.written else f"{name}[{word}]"
        return self.of_word(dtype, f"(({whole} >> {low}) & {(1 << _bits(dtype)) - 1}u)")

    def assign(self, memory: UOp, name: str, index: str, value: str) -> str:
        dtype = memory.dtype.scalar
        if memory.op is Ops.DEFINE_LOCAL:
            return super().assign(memory, name, index, value)
        at = f"off{memory.arg}+{index}"
        if not is_packed(dtype):
            return f"{name}[{at}] = {strip(value)};"
        word, low = _split(dtype, at)
        return (f"atomicAnd(&{name}[{word}], ~({(1 << _bits(dtype)) - 1}u << {low})); "
                f"atomicOr(&{name}[{word}], {self.to_word(dtype, value)} << {low});")

    def memory_type(self, dtype: DType) -> str:
        return "u32" if is_packed(dtype) else self.type_name(dtype)

    def local(self, u: UOp) -> str:
        return ""  # declared outside of the function

    # *** the kernel ***

    def render(self, name: str, program: Sequence[UOp]) -> str:
        self.written = {u.src[0] for u in program if u.op is Ops.STORE}
        self.summands = _summands(program)
        body = "\n".join(self.function_lines(name, program))
        found = [*called(_HELPERS, body), *pair_helpers(body)]
        for kind, t in re.findall(r"\bfloor_(div|mod)_(\w+)\(", body):
            text = _floor(kind, t)
            found += [] if text in found else [text]
        return "\n".join([*found, body, ""])

    def function_lines(self, name: str, program: Sequence[UOp]) -> list[str]:
        lines, fields, starts = [], [], []
        arguments = [u for u in program if u.op is Ops.DEFINE_GLOBAL]
        buffers = [u for u in arguments if u.dtype.pointer]
        for binding, u in enumerate(buffers):
            kind = self.memory_type(u.dtype.scalar)
            kind = f"atomic<{kind}>" if u in self.written and is_packed(u.dtype.scalar) else kind
            lines.append(f"@group(0) @binding({binding}) var<storage, read_write> data{u.arg}: array<{kind}>;")
            fields.append(f"off{u.arg}: i32")
            starts.append(f"  let off{u.arg} = args.off{u.arg};")
        for u in arguments:
            if not u.dtype.pointer:
                fields.append(f"{u.arg[0]}: i32")
                starts.append(f"  let {u.arg[0]} = args.{u.arg[0]};")
        lines.append(f"struct Args {{ {', '.join([*fields, 'zero: u32'])} }}")
        lines.append(f"@group(0) @binding({len(buffers)}) var<uniform> args: Args;")
        for u in program:
            if u.op is Ops.DEFINE_LOCAL:
                kind = self.type_name(u.dtype.scalar)
                lines.append(f"var<workgroup> {u.arg[0]}: array<{kind}, {u.arg[1]}>;")
        block = [str(specials(program).get(f"lidx{axis}", 1)) for axis in range(3)]
        lines.append(f"@compute @workgroup_size({', '.join(block)})")
        lines.append(f"fn {name}(@builtin(workgroup_id) gid: vec3<u32>, "
                     "@builtin(local_invocation_id) lid: vec3<u32>) {")
        sizes = (launch_size(program, "gidx") or [1])
        if max(sizes) > MOST_BLOCKS:
            starts.append(f"  if (gid.x + gid.y * {MOST_BLOCKS}u >= {prod(sizes)}u) {{ return; }}")
        return [*lines, *starts, *self.body(program), "}"]


def _summands(program: Sequence[UOp]) -> set[UOp]:
    """Return the float sums that are operands of other sums, also through lanes or negation."""
    read: set[UOp] = set()
    for u in reversed(program):
        if u.op in _SUMS and u.dtype.is_float:
            read.update(u.src[2:] if u.op is Ops.MULADD else u.src)
        elif u in read and u.op in (Ops.GEP, Ops.VECTORIZE, Ops.NEG):
            read.update(u.src)
    return {u for u in read if u.op in _SUMS and u.dtype.is_float}


def _bits(dtype: DType) -> int:
    """Return the bits of an element in memory: a bool is a byte."""
    return 8 * dtype.itemsize


def _split(dtype: DType, at: str) -> tuple[str, str]:
    """Return the word that holds element ``at``, and the element's bit offset in it."""
    each = 4 // dtype.itemsize
    return f"({at})/{each}", f"(u32(({at})%{each})*{_bits(dtype)}u)"


def _floor(kind: str, t: str) -> str:
    """Return a floor-division function: 0 for a zero divisor, -a for the divisor -1, which cannot overflow."""
    name, suffix = f"floor_{kind}_{t}", {"i32": "", "i64": "li", "u32": "u", "u64": "lu"}[t]
    sign, zero, one = "/" if kind == "div" else "%", f"0{suffix}", f"1{suffix}"
    if t.startswith("u"):
        return f"fn {name}(a: {t}, b: {t}) -> {t} {{ if (b == {zero}) {{ return {zero}; }} return a {sign} b; }}"
    special, result = ("-a", f"q - select({zero}, {one}, down)") if kind == "div" else (
        zero, f"r + select({zero}, b, down)")
    return _FLOOR.format(name=name, t=t, zero=zero, one=one, special=special, result=result)


def folded_grid(grid: Sequence[int]) -> tuple[int, int, int]:
    """Return the launch grid: an axis that is too long is folded into two.

    >>> folded_grid([3, 2]), folded_grid([200000])
    ((3, 2, 1), (65535, 4, 1))
    """
    x, y, z = (*grid, 1, 1, 1)[:3]
    if max(x, y, z) <= MOST_BLOCKS:
        return x, y, z
    total = prod(grid)
    return MOST_BLOCKS, -(-total // MOST_BLOCKS), 1


PAIR: Final = "vec2<u32>"
_NAMES: Final = {Ops.ADD: "add64", Ops.SUB: "sub64", Ops.MUL: "mul64", Ops.SHL: "shl64"}
_BY_SIGN: Final = {Ops.IDIV: "div64", Ops.MOD: "mod64", Ops.SHR: "shr64", Ops.CMPLT: "lt64"}

PAIR_FUNCTIONS: Final = {
    "add64": """fn add64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let low = a.x + b.x;
  return vec2<u32>(low, a.y + b.y + select(0u, 1u, low < a.x)); }""",
    "sub64": """fn sub64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  return vec2<u32>(a.x - b.x, a.y - b.y - select(0u, 1u, a.x < b.x)); }""",
    "mul64": """fn mul64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let c = vec2<u32>(a.x & 0xffffu, a.x >> 16u);
  let d = vec2<u32>(b.x & 0xffffu, b.x >> 16u);
  let middle = c.y * d.x + ((c.x * d.x) >> 16u);
  let other = c.x * d.y + (middle & 0xffffu);
  return vec2<u32>(a.x * b.x, c.y * d.y + (middle >> 16u) + (other >> 16u) + a.x * b.y + a.y * b.x); }""",
    "shl64": """fn shl64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let n = b.x & 31u;
  if (b.y != 0u || b.x > 63u) { return vec2<u32>(0u, 0u); }
  if (b.x > 31u) { return vec2<u32>(0u, a.x << n); }
  return vec2<u32>(a.x << n, (a.y << n) | ((a.x >> 1u) >> (31u - n))); }""",
    "shr64_u": """fn shr64_u(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let n = b.x & 31u;
  if (b.y != 0u || b.x > 63u) { return vec2<u32>(0u, 0u); }
  if (b.x > 31u) { return vec2<u32>(a.y >> n, 0u); }
  return vec2<u32>((a.x >> n) | ((a.y << 1u) << (31u - n)), a.y >> n); }""",
    "shr64_s": """fn shr64_s(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let sign = vec2<u32>(0u - (a.y >> 31u));
  return shr64_u(a ^ sign, b) ^ sign; }""",
    "lt64_u": "fn lt64_u(a: vec2<u32>, b: vec2<u32>) -> bool { return a.y < b.y || (a.y == b.y && a.x < b.x); }",
    "lt64_s": """fn lt64_s(a: vec2<u32>, b: vec2<u32>) -> bool {
  return lt64_u(a ^ vec2<u32>(0u, 0x80000000u), b ^ vec2<u32>(0u, 0x80000000u)); }""",
    "div64_u": """fn div64_u(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  var q = vec2<u32>(0u, 0u);
  var r = vec2<u32>(0u, 0u);
  if (all(b == q)) { return q; }
  for (var n: u32 = 64u; n > 0u; n--) {
    let bit = select(a.x, a.y, n > 32u) >> ((n - 1u) & 31u);
    let beyond = r.y >> 31u;
    r = vec2<u32>((r.x << 1u) | (bit & 1u), (r.y << 1u) | (r.x >> 31u));
    q = vec2<u32>(q.x << 1u, (q.y << 1u) | (q.x >> 31u));
    if (beyond == 1u || !lt64_u(r, b)) {
      r = sub64(r, b);
      q.x |= 1u; } }
  return q; }""",
    "mod64_u": """fn mod64_u(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  if (all(b == vec2<u32>(0u, 0u))) { return b; }
  return sub64(a, mul64(div64_u(a, b), b)); }""",
    "abs64": """fn abs64(a: vec2<u32>) -> vec2<u32> {
  return select(a, sub64(vec2<u32>(0u, 0u), a), (a.y >> 31u) == 1u); }""",
    "div64_s": """fn div64_s(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let zero = vec2<u32>(0u, 0u);
  let q = div64_u(abs64(a), abs64(b));
  if (((a.y ^ b.y) >> 31u) == 0u) { return q; }
  let whole = all(mul64(q, abs64(b)) == abs64(a)) || all(b == zero);
  return sub64(sub64(zero, q), select(vec2<u32>(1u, 0u), zero, whole)); }""",
    "mod64_s": """fn mod64_s(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  if (all(b == vec2<u32>(0u, 0u))) { return b; }
  return sub64(a, mul64(div64_s(a, b), b)); }""",
    "f32_u64": """fn f32_u64(a: vec2<u32>) -> f32 {
  if (a.y == 0u) { return f32(a.x); }
  let n = countLeadingZeros(a.y);
  let top = shl64(a, vec2<u32>(n, 0u));
  return f32(top.y | select(1u, 0u, top.x == 0u)) * bitcast<f32>((159u - n) << 23u); }""",
    "f32_i64": """fn f32_i64(a: vec2<u32>) -> f32 {
  return select(1.0f, -1.0f, (a.y >> 31u) == 1u) * f32_u64(abs64(a)); }""",
    "u64_f32": """fn u64_f32(a: f32) -> vec2<u32> {
  if (!(a > 0.0f)) { return vec2<u32>(0u, 0u); }
  if (a >= 18446744073709551616.0f) { return vec2<u32>(0xffffffffu, 0xffffffffu); }
  let high = u32(a * 2.3283064365386963e-10f);
  return vec2<u32>(u32(a - f32(high) * 4294967296.0f), high); }""",
    "i64_f32": """fn i64_f32(a: f32) -> vec2<u32> {
  if (a >= 9223372036854775808.0f) { return vec2<u32>(0xffffffffu, 0x7fffffffu); }
  if (a <= -9223372036854775808.0f) { return vec2<u32>(0u, 0x80000000u); }
  let found = u64_f32(abs(a));
  return select(found, sub64(vec2<u32>(0u, 0u), found), a < 0.0f); }""",
}


def is_pair(dtype: DType) -> bool:
    return dtype.scalar in (dtypes.int64, dtypes.uint64)


def pair_literal(value: int) -> str:
    return f"vec2<u32>({value & 0xFFFFFFFF}u, {value >> 32 & 0xFFFFFFFF}u)"


def pair_operation(u: UOp, src: list[str]) -> str:
    """Return an operation on pairs, or a comparison of pairs."""
    op, sign = u.op, "u" if u.src[-1].dtype.is_unsigned else "s"
    if op in (Ops.CMPEQ, Ops.CMPNE):
        return f"all({src[0]}=={src[1]})" if op is Ops.CMPEQ else f"any({src[0]}!={src[1]})"
    if op is Ops.WHERE:
        return f"select({src[2]}, {src[1]}, {src[0]})"
    if op in (Ops.MAX, Ops.MIN):
        a, b = src if op is Ops.MIN else src[::-1]
        return f"select({src[1]}, {src[0]}, lt64_{sign}({a}, {b}))"
    if op is Ops.NEG:
        return f"sub64({pair_literal(0)}, {src[0]})"
    if op is Ops.MULADD:
        return f"add64(mul64({src[0]}, {src[1]}), {src[2]})"
    if op in _NAMES:
        return f"{_NAMES[op]}({src[0]}, {src[1]})"
    if op in _BY_SIGN:
        return f"{_BY_SIGN[op]}_{sign}({src[0]}, {src[1]})"
    return f"({src[0]}{ {Ops.AND: '&', Ops.OR: '|', Ops.XOR: '^'}[op]}{src[1]})"


def cast_to_pair(dtype: DType, source: DType, a: str) -> str:
    """Convert a bool, float32 or integer of up to 32 bits to a pair."""
    if source.is_bool:
        return f"vec2<u32>(select(0u, 1u, {a}), 0u)"
    if source.is_float:
        return f"{'u' if dtype.is_unsigned else 'i'}64_f32({a})"
    if source.is_unsigned:
        return f"vec2<u32>({a}, 0u)"
    return f"vec2<u32>(bitcast<u32>({a}), bitcast<u32>({a} >> 31u))"


def pair_helpers(text: str) -> list[str]:
    """Return the helper functions that a text calls, directly or indirectly."""
    found: dict[str, str] = {}
    while True:
        called = [n for n in PAIR_FUNCTIONS if n not in found and re.search(rf"\b{n}\(", text)]
        if not called:
            return list(found.values())
        found |= {n: PAIR_FUNCTIONS[n] for n in called}
        text = "\n".join(found.values())

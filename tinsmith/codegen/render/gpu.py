"""Common base of the OpenCL, CUDA, Metal and WGSL renderers: C over scalars, with vector types only for memory
accesses.

A vector value is one scalar per lane, as SIMT machines compute it anyway; loads and stores of full vectors use the
language's vector types. 16-bit floats are stored as their bits where the language has no such type.
"""
from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from tinsmith.codegen.render.base import launch_size, mentions
from tinsmith.codegen.render.language import Body, CLanguage, addend, strip
from tinsmith.core.dtypes import DType, dtypes
from tinsmith.core.errors import CompileError
from tinsmith.ir import Op, Ops, UOp
from tinsmith.ir.algebra.sizes import linear_form
from tinsmith.ir.matrix_unit import MatrixUnit

RING_OPS = (Ops.DEFINE_RING, Ops.ARRIVE, Ops.RELEASE, Ops.ASYNC_COPY, Ops.WAIT, Ops.TILE, Ops.FENCE, Ops.COMMIT,
            Ops.DRAIN)
HALVES = (dtypes.float16, dtypes.bfloat16)
AXES = "xyz"


def bfloat16(inline: str, float_of: str, bits_of: str, uint: str = "uint", ushort: str = "ushort") -> dict[str, str]:
    """Return both conversions of bfloat16, computed on bits."""
    return {"bf16_float": f"{inline} float bf16_float({ushort} x) {{ return {float_of}({uint})x << 16); }}",
            "float_bf16": f"{inline} {ushort} float_bf16(float x) {{ {uint} u = {bits_of}x);\n"
                          "  return x != x ? (u >> 16) | 64 : (u + 0x7fff + ((u >> 16) & 1)) >> 16; }"}


def exact_fmod(inline: str, *kinds: str) -> dict[str, str]:
    """Return FMOD for languages whose own is not exact: subtract y*2**n from the greatest n down; every difference is
    exact."""
    return {f"exact_fmod{kind[0] * (kind == 'float')}": (
        f"{inline} {kind} exact_fmod{kind[0] * (kind == 'float')}({kind} x, {kind} y) {{\n"
        f"  {kind} a = x < 0 ? -x : x, b = y < 0 ? -y : y, c = b;\n"
        "  if (a < b && a - a == 0) return x;\n"
        "  if (!(b > 0 && a - a == 0)) return (x*y)/(x*y);\n"
        "  while (a - c >= c) c += c;\n"
        f"  for (; c >= b; c *= ({kind})0.5) if (a >= c) a -= c;\n"
        "  return x < 0 ? -a : a; }") for kind in kinds}


def called(helpers: Mapping[str, str], text: str) -> list[str]:
    """Return the definitions among ``helpers`` that a text uses, directly or through a later helper."""
    found: list[str] = []
    for name, helper in reversed(list(helpers.items())):
        if mentions(text, name) or any(mentions(other, name) for other in found):
            found.insert(0, helper)
    return found


def is_uniform(condition: UOp) -> bool:
    """Return True if a condition is the same for all lanes."""
    return condition.dtype.count == 1 or (condition.op is Ops.VECTORIZE and len(condition.src) == 1)


def block_threads(program: Sequence[UOp]) -> int:
    """Return the number of threads per block."""
    return math.prod(launch_size(program, "lidx"))


def in_blocks(program: Sequence[UOp]) -> bool:
    """Return True if the program depends on its block size: it has thread indices or local memory shared by a block."""
    return bool(launch_size(program, "lidx")) or any(u.op is Ops.DEFINE_LOCAL for u in program)


def is_wide(node: UOp) -> bool:
    """Return True if an index may exceed 32 bits."""
    if node.dtype.scalar is not dtypes.index:
        return False
    return node.vmin < -(1 << 31) or node.vmax >= 1 << 31


class GPURenderer(CLanguage):
    """Base of the GPU languages. A subclass gives their spelling, as templates with fields in braces.

    Attributes:
        shared: prefix of an array in local memory.
        places: block and thread index along an ``{axis}``.
        lanes: suffixes that select the lanes of a vector.
        load_vector, store_vector: vector access at a pointer; ``{space}`` is the address space.
        guarded_vectors: a vector may be declared uninitialized and loaded under a condition.
        unaligned: vector accesses may start at any element.
        reinterpreted: the bits of ``{value}`` as ``{kind}``; of ``{a}`` of type ``{source}``.
        helpers: helper functions by name; the source contains the ones that the kernel calls.
        mixes_widths: operators accept mixed 32- and 64-bit integers, and an index may be either.
        warps: warp operations (shuffle, match, barrier).
        prefetch: the prefetch of the line at a pointer, for devices whose matrix units read staged operands.
    """

    shared = ""
    places = ("gid.{axis}", "lid.{axis}")
    spaces = ("", "")  # address spaces of local memory and of buffers
    vector_types: Mapping[str, str] = {}  # vector type names by dtype, where they differ from the lane type's name
    vector_widths: tuple[int, ...] = (4, 2)
    lanes = tuple(f".{x}" for x in "xyzwstuv")
    load_vector = "*((const {space}{kind}*)({at}))"
    store_vector = "*(({space}{kind}*)({at})) = {kind}({lanes});"
    guarded_vectors = unaligned = False
    bits16: tuple[DType, ...] = HALVES
    reinterpreted = ""
    helpers: Mapping[str, str] = {}
    mixes_widths = True
    warps: Mapping[Op, str] = {}
    prefetch = ""
    fused = "fma"
    signed_wraps = False
    scalar_types = {
        "void": "void", "index": "int", "bool": "bool", "int8": "char", "uint8": "uchar", "int16": "short",
        "uint16": "ushort", "int32": "int", "uint32": "uint", "int64": "long", "uint64": "ulong",
        "float16": "ushort", "bfloat16": "ushort", "float32": "float", "float64": "double"}

    # *** spelling of the languages ***

    def thread(self, name: str, program: Sequence[UOp]) -> str:
        """Return the expression of ``gidx0`` or ``lidx0``."""
        return self.places[name.startswith("lidx")].format(axis=AXES[int(name[4:])])

    def vector_type(self, dtype: DType) -> str:
        return f"{self.vector_types.get(dtype.scalar.name) or self.memory_type(dtype.scalar)}{dtype.count}"

    def memory_type(self, dtype: DType) -> str:
        """Return the type of an element in memory: bools are bytes."""
        return self.type_name(dtypes.uint8) if dtype.is_bool else self.type_name(dtype)

    def matrix_step(self, unit: MatrixUnit, acc: list[str], a: list[str], b: list[str]) -> str:
        """Return the statement that adds a·b to the accumulators ``acc`` in place."""
        raise CompileError(type(self).__name__, f"no support for the matrix unit {unit.name}",
                           "a list of opts without TC")

    def ring_line(self, body: LaneBody, u: UOp) -> None:
        """Write a line of a ring, of an asynchronous matrix unit, or of register redistribution."""
        raise CompileError(type(self).__name__, f"no support for {u.op.name}",
                           "a list of opts without TC and ROLES")

    def warp(self, u: UOp, program: Sequence[UOp], value: str = "") -> str:
        """Return the text of a warp operation."""
        if u.op not in self.warps:
            raise CompileError(type(self).__name__, f"no support for the warp operation {u.op.name}",
                               "a smaller GROUP, a list of opts without TC or RANK")
        threads = min(block_threads(program), 32)
        return self.warps[u.op].format(value=strip(value), arg=u.arg, mask=hex((1 << threads) - 1))

    def regrouped(self, u: UOp, lanes: list[str], before: list[str]) -> list[str]:
        """Regroup pairs of 16-bit lanes into words, or words into such pairs; ``before``: the lanes before an earlier
        cast."""
        raise CompileError(type(self).__name__, "no support for a BITCAST that changes lanes",
                           "a list of opts without TC")

    def result(self, u: UOp, text: str) -> str:
        """Return the result of an operation with the program's semantics."""
        return text

    # *** statements ***

    def declaration(self, kind: str, values: dict[str, str], mutable: bool = False) -> str:
        """Declare variables of one type, without a value if that is empty; ``mutable``: they are assigned to later."""
        return f"{kind} {', '.join(f'{name} = {value}' if value else name for name, value in values.items())};"

    def guarded(self, condition: str, statement: str) -> str:
        return f"if ({condition}) {statement}"

    def wide_type(self) -> str:
        """Return the type of indices beyond 32 bits."""
        return self.type_name(dtypes.int64)

    def widened(self, text: str) -> str:
        """Return a 32-bit index converted to 64 bits."""
        return f"({self.wide_type()}){text}"

    def narrowed(self, text: str) -> str:
        """Return a 64-bit index converted to 32 bits, where the language requires it."""
        return text

    def choose(self, condition: str, a: str, b: str) -> str:
        """Select ``a`` where the condition holds, else ``b``."""
        return f"({condition}?{a}:{b})"

    # *** scalars ***

    def literal(self, dtype: DType, value: float | int | bool) -> str:
        text = super().literal(dtype, value)
        return f"((double){text})" if dtype is dtypes.float64 and not math.isfinite(value) else text

    def rounded(self, body: LaneBody, u: UOp) -> list[str]:
        """Return the lanes of a cast that are rounded several at a time; [] if the language has no such form."""
        return []

    def cast(self, dtype: DType, source: DType, a: str) -> str:
        if dtype is dtypes.float16 and dtype in self.bits16 and source is dtypes.float64:
            return f"double_half({strip(a)})"
        return super().cast(dtype, source, a)

    def bitcast(self, dtype: DType, source: DType, a: str) -> str:
        held = self.memory_type(source)
        value = f"({held}){a}" if source.is_bool else strip(a)
        found = self.reinterpreted.format(kind=self.memory_type(dtype), source=held, a=a, value=value)
        return f"({found}!=0)" if dtype.is_bool else found

    # *** memory ***

    def place(self, memory: str, index: str) -> str:
        return f"{memory}[{strip(index)}]"

    def element(self, memory: UOp, name: str, index: str) -> str:
        """Return one element of memory as a value."""
        place = self.place(name, index)
        return f"({place}!=0)" if memory.dtype.scalar.is_bool else place

    def assign(self, memory: UOp, name: str, index: str, value: str) -> str:
        """Return the statement that stores one element."""
        return f"{self.place(name, index)} = {strip(value)};"

    def vector(self, form: str, memory: UOp, dtype: DType, at: str, lanes: Sequence[str] = ()) -> str:
        """Format ``load_vector`` or ``store_vector`` for ``dtype.count`` adjacent elements."""
        return form.format(space=self.spaces[memory.op is not Ops.DEFINE_LOCAL], kind=self.vector_type(dtype), at=at,
                           lanes=", ".join(map(strip, lanes)), count=dtype.count)

    def pieces(self, u: UOp, index: UOp) -> list[int]:
        """Return the lanes of each access that a vector load or store is split into."""
        count = u.dtype.count if u.op is Ops.LOAD else u.src[2].dtype.count
        dtype = u.src[0].dtype.scalar
        if index.dtype.count > 1 or dtype.is_bool:
            return [1] * count
        step = count if self.unaligned else divisor(index)
        width = next((w for w in self.vector_widths
                      if count % w == 0 and step % w == 0 and w * dtype.itemsize <= 16), 1)
        return [width] * (count // width)

    # *** the kernel ***

    def body(self, program: Sequence[UOp]) -> list[str]:
        return LaneBody(self, program).written()

    def render(self, name: str, program: Sequence[UOp]) -> str:
        text = self.function(name, program)
        return self.prologue(program) + "\n".join([*called(self.helpers, text), text, ""])

    def local(self, u: UOp) -> str:
        name, elements = u.arg
        return f"{self.shared} {self.memory_type(u.dtype.scalar)} {name}[{elements}];"


class LaneBody(Body):
    """A kernel body in which a vector is a list of scalar expressions, one per lane."""

    renderer: GPURenderer

    def repeats(self, u: UOp) -> bool:
        return super().repeats(u) or (u.op is Ops.VECTORIZE and len(u.src) == 1)

    def type_of(self, u: UOp) -> str:
        return self.renderer.wide_type() if is_wide(u) else super().type_of(u)

    def declare(self, prefix: str, u: UOp, values: list[str]) -> None:
        """Declare variables for a value, one per lane."""
        name = self.fresh(prefix)
        names = [name] if len(values) == 1 else [f"{name}_{lane}" for lane in range(len(values))]
        given = {n: strip(v) for n, v in zip(names, values)}
        self.line(self.renderer.declaration(self.type_of(u), given, u.op in (Ops.DEFINE_ACC, Ops.MMA)))
        self.text[u] = names

    def write(self, u: UOp) -> None:
        super().write(u)
        if u.op is Ops.DEFINE_GLOBAL and is_wide(u) and not self.renderer.mixes_widths:
            self.text[u] = [self.renderer.widened(self.text[u][0])]
        elif u.op is Ops.SPECIAL:
            place = {u.arg[0]: self.renderer.thread(u.arg[0], self.program)}
            self.line(f"{self.renderer.declaration(self.type_of(u), place)} /* {u.arg[1]} */")
        elif u.op is Ops.IF and u.arg is not None:
            self.renderer.ring_line(self, u)

    def limits(self, u: UOp) -> list[str]:
        found = super().limits(u)
        if is_wide(u) and not self.renderer.mixes_widths:
            return [x if is_wide(s) else self.renderer.widened(x) for s, x in zip(u.src, found)]
        return found

    def machine(self, u: UOp) -> None:
        r, text = self.renderer, self.text
        if u.op is Ops.SHUFFLE:  # as a statement of its own: an expression may be evaluated by only some of the threads
            self.declare("alu", u, [r.warp(u, self.program, x) for x in text[u.src[0]]])
        elif u.op is Ops.MATCH:  # (lower lanes with the same key, all lanes with that key)
            found = self.fresh("same")
            self.line(f"{r.vector_type(u.dtype)} {found} = {r.warp(u, self.program, text[u.src[0]][0])};")
            text[u] = [found + lane for lane in r.lanes[:2]]
        elif u.op is Ops.WARP_BARRIER:
            self.line(r.warp(u, self.program))
        elif u.op is Ops.PREFETCH:
            guard = f"if ({strip(text[u.src[2]][0])}) " if len(u.src) > 2 else ""
            self.line(guard + r.prefetch.format(f"{text[u.src[0]][0]}+{addend(self.at(u.src[1], 0))}"))
        elif u.op in RING_OPS or (u.op is Ops.MMA and u.arg.staged):
            r.ring_line(self, u)
        elif u.op is Ops.LOAD_MATRIX:  # 32-bit words of two elements each
            name, count = self.fresh("word"), u.dtype.count // 2
            words = [f"{name}_{n}" for n in range(count)]
            self.line(f"{r.type_name(dtypes.uint32)} {', '.join(words)};")
            form = f"load_matrix{count}{'t' * bool(u.arg)}"
            self.line(f"{form}({', '.join(words)}, {text[u.src[0]][0]}+{addend(self.at(u.src[1], 0))});")
            kind = r.type_name(dtypes.uint16)
            text[u] = [f"({kind})({w}{' >> 16' * half})" for w in words for half in (0, 1)]
        elif u.op is Ops.MMA:
            acc, a, b = (text[s] for s in u.src)
            self.declare("mma", u, acc)
            self.line(r.matrix_step(u.arg, text[u], a, b))

    # *** values ***

    def constant(self, u: UOp) -> list[str]:
        return [self.renderer.literal(u.dtype.scalar, u.arg)] * u.dtype.count

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
            text[u] = self.renderer.regrouped(u, text[u.src[0]], text.get(u.src[0].src[0], []) if u.src[0].src else [])
        else:
            text[u] = self.operation(u)
        if self.uses[u] > 1:
            self.declare("alu", u, text[u])

    def operation(self, u: UOp) -> list[str]:
        """Return an elementwise operation, lane by lane. Operations on wide indices are computed in 64 bits rather than
        widened afterwards."""
        r, wide, src = self.renderer, is_wide(u), [self.text[s] for s in u.src]
        if u.op is Ops.CAST and (rounded := r.rounded(self, u)):
            return rounded
        widens = wide if r.mixes_widths else wide or any(map(is_wide, u.src))
        if widens:
            src = [x if (s.is_const and r.mixes_widths) or is_wide(s) or s.dtype.scalar is not dtypes.index
                   else [r.widened(lane) for lane in x] for s, x in zip(u.src, src)]
        if wide and u.op is Ops.CAST:
            return [r.widened(lane) for lane in src[0]]
        found = [r.result(u, r.operation(u, list(lane))) for lane in zip(*src)]
        return [r.narrowed(x) for x in found] if widens and not wide and u.dtype.scalar is dtypes.index else found

    # *** memory ***

    def at(self, index: UOp, lane: int) -> str:
        """Return the address of one lane; a scalar index is the first of adjacent lanes."""
        text = self.text[index][lane if index.dtype.count > 1 else 0]
        text = self.renderer.narrowed(text) if is_wide(index) else text
        return text if lane == 0 or index.dtype.count > 1 else f"{addend(text)}+{lane}"

    def load(self, u: UOp) -> None:
        r, (memory, index), dtype = self.renderer, u.src[:2], u.dtype.scalar
        name = self.text[memory][0]
        pieces = r.pieces(u, index)
        guarded = len(u.src) > 2
        if pieces[0] == 1 or (guarded and not (r.guarded_vectors and is_uniform(u.src[2]))):
            values = [r.element(memory, name, self.at(index, lane)) for lane in range(u.dtype.count)]
            if guarded:
                zero = r.literal(dtype, dtype.as_const(0))
                values = [r.choose(valid, value, zero) for valid, value in zip(self.text[u.src[2]], values)]
            return self.declare("val", u, values)
        lanes: list[str] = []
        for piece in pieces:
            vector, wide = self.fresh("vec"), dtype.vec(piece)
            found = r.vector(r.load_vector, memory, wide, f"{name}+{addend(self.at(index, len(lanes)))}")
            self.line(f"{r.vector_type(wide)} {vector} = {'{}' if guarded else found};")
            if guarded:
                self.line(f"if ({strip(self.text[u.src[2]][0])}) {vector} = {found};")
            lanes += [vector + lane for lane in r.lanes[:piece]]
        self.text[u] = lanes
        return None

    def store(self, u: UOp) -> None:
        r, (memory, index, value) = self.renderer, u.src[:3]
        name, values, dtype = self.text[memory][0], self.text[value], value.dtype.scalar
        whole = r.guarded_vectors and len(u.src) > 3 and is_uniform(u.src[3])
        if len(u.src) > 3 and not whole:
            for lane, v in enumerate(values):
                self.line(r.guarded(strip(self.text[u.src[3]][lane]),
                                    r.assign(memory, name, self.at(index, lane), v)))
            return
        lane = 0
        for piece in r.pieces(u, index):
            place = self.at(index, lane)
            if piece == 1:
                line = r.assign(memory, name, place, values[lane])
            else:
                lanes = values[lane : lane + piece]
                line = r.vector(r.store_vector, memory, dtype.vec(piece), f"{name}+{addend(place)}", lanes)
            self.line(r.guarded(strip(self.text[u.src[3]][0]), line) if whole else line)
            lane += piece


def divisor(index: UOp) -> int:
    """Return a number that divides an index for all threads and iterations; 0 for the index 0."""
    terms, constant = linear_form(index)
    found = abs(constant)
    for factor in terms.values():
        found = math.gcd(found, abs(factor))
    return found

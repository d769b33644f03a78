"""CUDA C++ without headers, as NVRTC compiles it; 16-bit floats are stored as bits and converted by PTX instructions.

Rings run on Hopper: bulk tensor copies (TMA), mbarriers that count bytes, and warpgroup matrix products (wgmma); PTX
ISA 8, "Asynchronous warpgroup-level matrix instructions", "Tensor copy", "mbarrier". Local memory of a kernel with a
ring is one dynamic shared-memory block, sized by the launch. A tile is represented by its *descriptor*: address,
offsets of chunks and of groups of eight rows in units of 16 bytes, and swizzle mode.
"""
from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Sequence

from tinsmith.codegen.render.base import beside_zero, local_bytes, mentions, near_bytes, specials
from tinsmith.codegen.render.gpu import AXES, GPURenderer, LaneBody, bfloat16, block_threads
from tinsmith.codegen.render.language import CLanguage, strip
from tinsmith.codegen.transform.tma_boxes import BoxedOperand, map_of, maps
from tinsmith.core.dtypes import DType, dtypes
from tinsmith.ir import Ops, UOp
from tinsmith.ir.matrix_unit import ROW_BYTES, MatrixUnit, StagedLayout
from tinsmith.ir.ops.elementwise import ROUGH
from tinsmith.ir.structure import Role
from tinsmith.target.schedule_costs import CUTS_FOR_CORES, RANKED_COSTS
from tinsmith.target.target import Target
from tinsmith.target.units import nvidia

ROUGHLY = {Ops.SQRT: "sqrt", Ops.RECIP: "rcp", Ops.EXP2: "ex2", Ops.LOG2: "lg2", Ops.SIN: "sin", Ops.COS: "cos"}

_HELPERS = {
    "INFINITY": "#define INFINITY __int_as_float(0x7f800000)", "NAN": "#define NAN __int_as_float(0x7fc00000)",
    "bitcast": "template<typename T, typename F> __device__ inline T bitcast(F x) { union { F a; T b; } u; u.a = x; "
               "return u.b; }",
    "half_float": '__device__ inline float half_float(unsigned short x) { float y; '
                  'asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x)); return y; }',
    "float_half": '__device__ inline unsigned short float_half(float x) { unsigned short y; '
                  'asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x)); return y; }',
    "double_half": '__device__ inline unsigned short double_half(double x) { unsigned short y; '
                   'asm("cvt.rn.f16.f64 %0, %1;" : "=h"(y) : "d"(x)); return y; }',
    **bfloat16("__device__ inline", "__uint_as_float(", "__float_as_uint(", "unsigned int", "unsigned short"),
    **{f"{name}_nan": f'__device__ inline float {name}_nan(float x, float y) {{ float z; '
                      f'asm("{name}.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y)); return z; }}'
       for name in ("max", "min")},  # NaN propagates
    # ptxas 12.6 to 13.2 read x for -x where two maxima or minima become one VIMNMX3; a PRMT between keeps the sign.
    "minus": '__device__ inline int minus(int x) { int y; asm("{ .reg .u32 t; sub.u32 t, 0, %1; prmt.b32 %0, t, t, '
             '0x3210; }" : "=r"(y) : "r"(x)); return y; }',
    "kept": '__device__ inline int kept(int x) { int y; asm("prmt.b32 %0, %1, %1, 0x3210;" : "=r"(y) : "r"(x)); '
            'return y; }',
    # ptxas 13.0 takes abs.s64 for a number that is never negative; the upper half has the sign.
    "minus64": '__device__ inline long long minus64(long long x) { long long y; asm("{ .reg .u64 t; .reg .b32 low, '
               'high; sub.u64 t, 0, %1; mov.b64 {low, high}, t; prmt.b32 high, high, high, 0x3210; '
               'mov.b64 %0, {low, high}; }" : "=l"(y) : "l"(x)); return y; }',
    "kept64": '__device__ inline long long kept64(long long x) { long long y; asm("{ .reg .b32 low, high; '
              'mov.b64 {low, high}, %1; prmt.b32 high, high, high, 0x3210; mov.b64 %0, {low, high}; }" : "=l"(y) : '
              '"l"(x)); return y; }',
    "add_by_product": "__device__ inline unsigned int add_by_product(unsigned int x, unsigned int y, unsigned int one) "
                      '{ unsigned int z; asm("mad.lo.u32 %0, %1, %2, %3;" : "=r"(z) : "r"(x), "r"(one), "r"(y)); '
                      "return z; }",
    **{f"rough_{name}": f'__device__ inline float rough_{name}(float x) {{ float y; '
                        f'asm("{name}.approx{".ftz" * (op is not Ops.RECIP)}.f32 %0, %1;" : "=f"(y) : "f"(x)); '
                        "return y; }"
       for op, name in ROUGHLY.items()},
    "exp2_of": '__device__ inline float exp2_of(float x) { float y; asm("ex2.approx.f32 %0, %1;" : "=f"(y) : "f"(x)); '
               "return y; }",
    "reciprocal": '__device__ inline float reciprocal(float x) { float y; asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : '
                  '"f"(x)); return y; }',
    "pack16": "__device__ inline unsigned int pack16(unsigned short low, unsigned short high) "
              "{ return (unsigned int)low | ((unsigned int)high << 16); }",
    **{f"pack_{name}": f'__device__ __forceinline__ unsigned int pack_{name}(float low, float high) {{ unsigned int y; '
                       f'asm("cvt.rn.{kind}.f32 %0, %2, %1;" : "=r"(y) : "f"(low), "f"(high)); return y; }}'
       for name, kind in (("float16", "f16x2"), ("bfloat16", "bf16x2"))},
    "match": """template<int BITS> __device__ __forceinline__ int2 match(int key) {
  unsigned int same = 0xffffffff, before;
  asm("mov.u32 %0, %%lanemask_lt;" : "=r"(before));
  #pragma unroll
  for (int n = 0; n < BITS; n++) {
    unsigned int set;
    asm volatile("{ .reg .pred p; .reg .b32 bit; and.b32 bit, %1, %2; setp.ne.u32 p, bit, 0; "
                 "vote.sync.ballot.b32 %0, p, 0xffffffff; @!p not.b32 %0, %0; }" : "=r"(set) : "r"(key), "r"(1 << n));
    same &= set;
  }
  return make_int2(__popc(same & before), __popc(same)); }""",  # one vote per bit: half the instructions of C text
    "tf32": "__device__ inline float tf32(float x) { unsigned int y = __float_as_uint(x); return x == x ? "
            "__uint_as_float((y + 0xfff + (y >> 13 & 1)) & 0xffffe000) : x; }",
}

_SINCE_SM_80 = {"float_bf16": '__device__ inline unsigned short float_bf16(float x) { unsigned short y; '
                              'asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y) : "f"(x)); return y; }'}

_SINCE_SM_90 = {"tf32": '__device__ inline float tf32(float x) { unsigned int y; asm("cvt.rn.tf32.f32 %0, %1;" : '
                        '"=r"(y) : "f"(x)); return __uint_as_float(y); }'}

_VECTORS = GPURenderer.scalar_types | {"int64": "longlong", "uint64": "ulonglong", "tf32": "float"}

_EIGHTS = (("char", "signed char", 1), ("uchar", "unsigned char", 1), ("short", "short", 2),
           ("ushort", "unsigned short", 2))  # vectors of eight, which CUDA lacks: (name, lane type, lane bytes)

# Programmatic dependent launch: a replayed graph may start blocks of the next kernel while those of this one run; they
# wait here for its end. Only then may the kernel after them start, too: several waiting kernels would fill some
# multiprocessors, and the blocks of a kernel share the others (a step of an LSTM took 18.1 instead of 14.0 ms, H200).
_EARLY = '  asm volatile("griddepcontrol.wait; griddepcontrol.launch_dependents;" ::: "memory");'

_OF_SLOTS = {Ops.ARRIVE: "ring_arrive({slot}, {arg});", Ops.WAIT: "ring_wait({slot}, {2});",
             Ops.RELEASE: "if (threadIdx.x % {warp} == 0) ring_release({slot});"}

_BITS = (Ops.SHL, Ops.SHR, Ops.XOR)
_DIFFERENCES = (Ops.SUB, Ops.MUL, Ops.MULADD)  # the compiler rewrites these to negations if it finds a 0 or -1
_CHANGE_SIGNS = (*_DIFFERENCES, Ops.XOR)

_PASS_SIGNS = (*_CHANGE_SIGNS, Ops.ADD, Ops.SHL, Ops.OR, Ops.AND, Ops.WHERE, Ops.CAST, Ops.BITCAST, Ops.PHI,
               Ops.DEFINE_ACC, Ops.VECTORIZE, Ops.GEP)

_READ_SIGNS = (Ops.CMPLT, Ops.CMPEQ, Ops.CMPNE, Ops.MAX, Ops.MIN, Ops.IDIV, Ops.MOD, Ops.SHL, Ops.SHR, Ops.AND)
_ONE = "blockDim.z"  # 1 for a block with less than three axes; opaque to the compiler
RESIDENT = 512  # threads per multiprocessor that hide the latency of products: each has 128 registers
UNROLLED = 16  # iterations up to which the compiler unrolls a loop
# Instructions of an unrolled loop with loops inside, at most: 16,000 take ptxas half a minute, and 4,900 (the product
# of an LSTM's step, H200) were no faster than a loop of a quarter.
WRITTEN_OUT = 1536


def generation(arch: str) -> int:
    """Return the number in an architecture's name, by which architectures are ordered.

    >>> generation("sm_90a") < generation("sm_100")
    True
    """
    return int("".join(c for c in arch if c.isdigit()))


def cuda_target(arch: str = "sm_90", cores: int = 132) -> Target:
    """Return the target of generated CUDA; ``arch`` such as ``sm_80``, ``cores``: multiprocessors."""
    rows = tuple(u for u in nvidia.CUDA if generation(arch) >= generation(u.requires[0]))
    staged = tuple(u for u in nvidia.HOPPER if arch in u.requires)
    return Target(f"cuda_{arch}", 16, 64, local_bytes=48 << 10, fma=True, bulk_copy=16 * bool(staged),
                  ring_bytes=(227 << 10) * bool(staged), exp2s=True, rough=True, block_threads=1024, warp=32,
                  matrix_loads=generation(arch) >= 75, parallel=Role.GLOBAL, cores=cores, units=(*staged, *rows),
                  costs=RANKED_COSTS._replace(cuts=CUTS_FOR_CORES, chain_width=128 * bool(staged)), matches=True,
                  launches_early=generation(arch) >= 90, block_registers=(1 << 16) * bool(staged))


def _above_one(divisor: UOp) -> bool:
    """Return True for a float32 that is 1 + EXP2 (of a sigmoid), or 1 + c·abs(x). The sum itself is good to two ulp
    only, and exact division by it takes ten times as long, which is noticeable in the epilogue of a matrix product."""
    below = divisor.src[0] if divisor.op is Ops.GEP else divisor
    ones = [s.arg for s in below.src if s.op is Ops.CONST] if below.op is Ops.ADD else []
    sigmoid = ones == [1.0] and any(s.op is Ops.EXP2 for s in below.src)
    return divisor.dtype.scalar is dtypes.float32 and (sigmoid or (
        below.op is Ops.MULADD and _is_magnitude(below.src[0]) and all(s.is_const for s in below.src[1:])
        and below.src[1].arg > 0 and below.src[2].arg == 1))


def _is_magnitude(x: UOp) -> bool:
    """Return True for a float without its sign bit."""
    bits = x.src[0] if x.op is Ops.BITCAST else x
    return bits.op is Ops.AND and any(s.is_const and s.arg == 0x7FFFFFFF for s in bits.src)


def _negated(u: UOp, src: list[str]) -> str:
    """Return the operand that an operation negates; "" for other operations."""
    if u.op is Ops.NEG:
        return src[0]
    minus_one = -1 if u.dtype.kind == "int" else (1 << u.dtype.scalar.bits) - 1
    factors = {Ops.SUB: (0, None), Ops.MUL: (minus_one, minus_one)}.get(u.op, ())
    return next((src[1 - n] for n, c in enumerate(factors) if u.src[n].is_const and u.src[n].arg == c), "")


def _is_negation(u: UOp) -> bool:
    return bool(_negated(u, ["x"] * len(u.src)))


def _in_register(dtype: DType) -> bool:
    """Return True for the integers whose extremes VIMNMX3 computes: those of at most 32 bits."""
    return _wraps(dtype) and dtype.itemsize <= 4


def _wraps(dtype: DType) -> bool:
    """Return True for the integers of tensors: unlike indices they wrap around."""
    return dtype.is_int and dtype is not dtypes.index


def _reads_sign(u: UOp) -> bool:
    """Return True for the integer operations that read the sign of an operand, or extend it."""
    if u.op is Ops.CAST:
        source = u.src[0].dtype
        return source.is_int and (not _wraps(u.dtype.scalar) or u.dtype.itemsize > source.itemsize)
    return u.op in _READ_SIGNS and _wraps(u.src[-1].dtype.scalar)


def _changes_sign(u: UOp) -> bool:
    """Return True for an operation that the compiler may rewrite to a magnitude, as x*(x<0?-1:1), (x^s)-s and ~x+1, or
    in 16 bits to a negation, as x*-2."""
    dtype = u.dtype.scalar
    if u.op not in _CHANGE_SIGNS or not (dtype.kind == "int" or dtype is dtypes.uint16):
        return False
    factors = [s.arg for s in u.src if s.is_const] if u.op is Ops.MUL else []
    return not factors or (dtype.itemsize < 4 and not 0 <= factors[0] < 1 << (dtype.bits - 1))


def _sign_changes(program: Sequence[UOp], opaque: frozenset[UOp]) -> frozenset[UOp]:
    """Return the integers of which the compiler may have changed the sign by an instruction of its own choice.

    ptxas 13.0 extends neither ``neg.s16`` nor ``abs.s16`` of -32768, which it takes for 32768, and it takes ``abs.s32``
    and ``abs.s64`` for numbers that are never negative. Negations (``minus``) and ``opaque`` values hide from it."""
    found, known = set[UOp](), -1
    while known < len(found):  # again for values that are carried around a loop
        known = len(found)
        for u in program:
            dtype = u.dtype.scalar
            if not _wraps(dtype) or u.op not in _PASS_SIGNS or u in opaque or _is_negation(u):
                continue
            if _changes_sign(u) or any(s in found for s in u.src):
                found |= {u, *u.src[:1]} if u.op is Ops.PHI else {u}
    return frozenset(found)


def vector_of_eight(base: str, kind: str, size: int) -> str:
    """Return the definition of a vector type of eight, like CUDA's own types of up to four lanes, and its constructor.
    """
    lanes = "xyzwstuv"
    return (f"struct __align__({8 * size}) {base}8 {{ {kind} {', '.join(lanes)}; }};\n"
            f"__device__ inline {base}8 make_{base}8({', '.join(f'{kind} {x}' for x in lanes)}) {{ "
            f"{base}8 made; {' '.join(f'made.{x} = {x};' for x in lanes)} return made; }}\n")


def matrix_function(unit: MatrixUnit) -> str:
    """Return a device function with the unit's instruction: c is updated in place, a and b are 32-bit registers."""
    registers = {"a": unit.fragment_a.size * unit.a.itemsize // 4, "b": unit.fragment_b.size * unit.b.itemsize // 4}
    c = [f"c{i}" for i in range(unit.fragment_c.size)]
    given = [f"{name}{i}" for name, count in registers.items() for i in range(count)]
    numbers = iter(range(len(c) + len(given)))
    groups = ["{" + ", ".join(f"%{next(numbers)}" for _ in range(n)) + "}" for n in (len(c), *registers.values())]
    into, a, b = groups
    outputs = ", ".join(f'"+f"({x})' for x in c)
    inputs = ", ".join(f'"r"({x})' for x in given)
    parameters = ", ".join([*(f"float& {x}" for x in c), *(f"unsigned int {x}" for x in given)])
    return (f"__device__ inline void {unit.name}({parameters}) {{\n"
            f'  asm("{unit.emit} {into}, {a}, {b}, {into};" : {outputs} : {inputs}); }}')


def packed(low: str, high: str) -> str:
    """Pack two 16-bit elements into a word; return the word itself if they are its halves.

    >>> packed("x", "y"), packed("(unsigned short)(w)", "(unsigned short)(w >> 16)")
    ('pack16(x, y)', 'w')
    """
    word = low.removeprefix("(unsigned short)(").removesuffix(")")
    return word if high == f"(unsigned short)({word} >> 16)" else f"pack16({low}, {high})"


def matrix_loader(count: int, turned: bool) -> str:
    """Return a device function by which a warp loads matrices (PTX ISA, ``ldmatrix``)."""
    parameters, into, outputs = (", ".join(form.format(n) for n in range(count)) for form in (
        "unsigned int& w{}", "%{}", '"=r"(w{})'))
    form = f"x{count}{'.trans' * turned}"
    return (f"__device__ __forceinline__ void load_matrix{count}{'t' * turned}({parameters}, const void* p) {{\n"
            f'  asm volatile("ldmatrix.sync.aligned.m8n8.{form}.shared.b16 {{{into}}}, [%{count}];" : '
            f'{outputs} : "r"((unsigned int)__cvta_generic_to_shared(p)) : "memory"); }}')


def _shifts(program: Sequence[UOp]) -> bool:
    """Return True if a program has more shifts and bit operations than float operations (a hash or random numbers): its
    integer additions should not compete with them for the integer pipeline."""
    lanes = {True: 0, False: 0}
    for u in program:
        if (u.dtype.is_float and u.op.alu) or (u.dtype.scalar is dtypes.uint32 and u.op in _BITS):
            lanes[u.op in _BITS] += u.dtype.count
    return lanes[True] > max(lanes[False], 64) and "lidx2" not in specials(program)


def _words(body: LaneBody, operand: UOp) -> list[str]:
    """Return the registers of an operand of 16-bit elements, two per 32-bit word."""
    if operand.op is Ops.BITCAST and operand.src[0].dtype.itemsize == 4:
        return [strip(x) for x in body.text[operand.src[0]]]
    lanes = body.text[operand]
    return [f"pack16({strip(x)}, {strip(y)})" for x, y in zip(lanes[::2], lanes[1::2])]


class CUDARenderer(GPURenderer):
    """Kernels take their buffers, then their variables; the program determines the threads per block."""

    reinterpreted = "bitcast<{kind}>({value})"
    shared = "__shared__ __align__(16)"
    barrier = "__syncthreads();"
    prefetch = 'asm volatile("prefetch.global.L2 [%0];" :: "l"({}));'
    places = ("blockIdx.{axis}", "threadIdx.{axis}")
    warps = {Ops.SHUFFLE: "__shfl_xor_sync({mask}, {value}, {arg})", Ops.MATCH: "match<{arg}>({value})",
             Ops.WARP_BARRIER: "__syncwarp();"}
    guarded_vectors = True
    vector_types, vector_widths = _VECTORS, (8, 4, 2)
    load_vector, store_vector = "*(({kind}*)({at}))", "*(({kind}*)({at})) = make_{kind}({lanes});"
    fused = "fma{f}"
    scalar_types = CLanguage.scalar_types | {"int64": "long long", "uint64": "unsigned long long", "tf32": "float",
                                             **dict.fromkeys(("float16", "bfloat16"), "unsigned short")}

    def __init__(self, target: Target | None = None) -> None:
        super().__init__(target or cuda_target())
        self.arch = self.target.name.removeprefix("cuda_")
        self.helpers = dict(_HELPERS)
        for since, table in ((80, _SINCE_SM_80), (90, _SINCE_SM_90)):
            self.helpers |= table if generation(self.arch) >= since else {}
        self.near: dict[UOp, int] = {}  # with rings: offset of each array in local memory
        self.maps: dict[BoxedOperand, int] = {}
        self.by_products = False  # integer additions as multiply-adds (IMAD), for a program of shifts
        self.pipelined = False  # loops load ahead (software pipeline): short loops are unrolled
        self.long: dict[str, int] = {}  # how often loops are unrolled that are too long for that, with those inside
        self.compared = frozenset[UOp]()  # differences and products that are operands of MAX or MIN
        self.changed = frozenset[UOp]()  # integers of which the compiler may have changed the sign

    def thread(self, name: str, program: Sequence[UOp]) -> str:
        # equal in a warp, which the compiler cannot prove
        if self.near and name.startswith("lidx") and name != "lidx0":
            return f"__shfl_sync(0xffffffff, threadIdx.{AXES[int(name[4:])]}, 0)"
        return super().thread(name, program)

    def operation(self, u: UOp, src: list[str]) -> str:
        if self.changed and _reads_sign(u):
            first = int(u.op is Ops.SHL)  # which drops the sign of its first operand
            src = [self.opaque(s.dtype.scalar, x) if n >= first and s in self.changed else x
                   for n, (s, x) in enumerate(zip(u.src, src))]
        return super().operation(u, src)

    def opaque(self, dtype: DType, text: str) -> str:
        """Copy an integer so that the compiler knows nothing of its value, and extend it from its own width."""
        if dtype.itemsize < 4:
            return f"(({self.type_name(dtype)})kept({strip(text)}))"
        return self.of_bits(dtype, f"kept{'64' * (dtype.itemsize == 8)}({strip(text)})")

    def plain(self, u: UOp, src: list[str]) -> str:
        extreme = u.op in (Ops.MAX, Ops.MIN) and u.dtype.scalar is dtypes.float32 and not beside_zero(u)
        if extreme and generation(self.arch) >= 80:
            return f"{u.op.name.lower()}_nan({strip(src[0])}, {strip(src[1])})"
        if u.arg == ROUGH and u.op is Ops.RECIP and _above_one(u.src[0]):
            return f"reciprocal({strip(src[0])})"
        if u.arg == ROUGH:
            return f"rough_{ROUGHLY[u.op]}({strip(src[0])})"
        if self.by_products and u.op is Ops.ADD and u.dtype.scalar is dtypes.uint32 and not any(
                s.op is Ops.CONST for s in u.src):
            return f"add_by_product({strip(src[0])}, {strip(src[1])}, {_ONE})"
        if _wraps(u.dtype.scalar) and (a := _negated(u, src)):
            return self.of_bits(u.dtype.scalar, f"minus{'64' * (u.dtype.itemsize == 8)}({strip(a)})")
        if u in self.compared:
            return self.of_bits(u.dtype.scalar, f"kept({strip(super().plain(u, src))})")
        if u.op is Ops.EXP2 and u.dtype.scalar is dtypes.float32:
            return f"exp2_of({strip(src[0])})"
        if u.op is Ops.FDIV and _above_one(u.src[1]):
            return f"({src[0]}*reciprocal({strip(src[1])}))"
        return super().plain(u, src)

    def of_bits(self, dtype: DType, text: str) -> str:
        """Return a signed integer as the unsigned type that has its bits; narrow results are cut to their type
        anyway."""
        return f"(({self.type_name(dtype)}){text})" if dtype in (dtypes.uint32, dtypes.uint64) else text

    def rounded(self, body: LaneBody, u: UOp) -> list[str]:
        """Return lanes that are rounded to bfloat16 and widened again: the conversion of a pair takes an eighth of the
        time of two."""
        narrow, count = u.src[0], u.dtype.count
        given = narrow.src[0].dtype.scalar if narrow.op is Ops.CAST else None
        if (given, narrow.dtype.scalar, u.dtype.scalar) != (dtypes.float32, dtypes.bfloat16, dtypes.float32) or (
                count % 2 or generation(self.arch) < 80):
            return []
        found = list[str]()
        for low, high in zip(*[iter(body.text[narrow.src[0]])] * 2):
            pair = body.fresh("pair")
            body.line(f"unsigned int {pair} = pack_bfloat16({strip(low)}, {strip(high)});")
            found += [f"__uint_as_float({pair} << 16)", f"__uint_as_float({pair} & 0xffff0000u)"]
        return found

    def cast(self, dtype: DType, source: DType, a: str) -> str:
        if dtype is dtypes.tf32 and source is dtypes.float32:
            return f"tf32({strip(a)})"
        return super().cast(dtype, source, a)

    def regrouped(self, u: UOp, lanes: list[str], before: list[str]) -> list[str]:
        source = u.src[0]
        if u.dtype.count > source.dtype.count:
            return [f"(unsigned short)({x}{' >> 16' * half})" for x in lanes for half in (0, 1)]
        cast = source.op is Ops.CAST and source.src[0].dtype.scalar is dtypes.float32 and generation(self.arch) >= 80
        name, lanes = (f"pack_{source.dtype.scalar.name}", before) if cast else ("pack16", lanes)
        return [f"{name}({strip(x)}, {strip(y)})" for x, y in zip(lanes[::2], lanes[1::2])]

    def parameters(self, program: Sequence[UOp]) -> list[str]:
        views = [f"const __grid_constant__ TensorMap map{n}" for n in self.maps.values()]
        return super().parameters(program) + views

    def render(self, name: str, program: Sequence[UOp]) -> str:
        own = copy.copy(self)  # a copy that holds the state of this program
        own.by_products, own.pipelined = _shifts(program), any(u.op is Ops.BARRIER and u.src for u in program)
        own.long = _long_loops(program) if own.pipelined else own.long
        own.compared = frozenset(s for u in program if u.op in (Ops.MAX, Ops.MIN) and _in_register(u.dtype.scalar)
                                 for s in u.src if s.op in _DIFFERENCES)
        own.changed = _sign_changes(program, own.compared)
        if any(u.op is Ops.DEFINE_RING for u in program):
            own.near, own.maps = ring_offsets(program), maps(program)
        text = super(CUDARenderer, own).render(name, program)
        structs = [vector_of_eight(*row) for row in _EIGHTS if mentions(text, f"{row[0]}8")]
        return "".join(structs) + text

    def prologue(self, program: Sequence[UOp]) -> str:
        lines = ring_prologue(program) if self.near else []
        lines += [matrix_function(unit) for unit in
                  dict.fromkeys(u.arg for u in program if u.op is Ops.MMA and not u.arg.staged)]
        lines += [matrix_loader(count, turned) for count, turned in sorted(
            {(u.dtype.count // 2, bool(u.arg)) for u in program if u.op is Ops.LOAD_MATRIX})]
        return "".join(line + "\n" for line in lines)

    def matrix_step(self, unit: MatrixUnit, acc: list[str], a: list[str], b: list[str]) -> str:
        """Return the call that adds a·b to the accumulators ``acc`` in place."""
        if unit.a.itemsize == 2:
            given = [packed(low, high) for x in (a, b) for low, high in zip(x[::2], x[1::2])]
        else:
            given = [f"__float_as_uint({strip(x)})" for x in (*a, *b)]
        return f"{unit.name}({', '.join([*acc, *given])});"

    def local(self, u: UOp) -> str:
        if u not in self.near:
            return super().local(u)
        name, at = u.arg[0], f"near + {self.near[u]}"
        if len(u.arg) < 3:
            kind = self.memory_type(u.dtype.scalar)
            return f"{kind}* {name} = ({kind}*)({at});"
        return (f"unsigned int {name} = shared_address({at}); unsigned long long {name}_tiles = "
                f"descriptor({name}, {chunk_bytes(u.arg[2])}, {u.arg[2].row});")

    def ring_line(self, body: LaneBody, u: UOp) -> None:
        """Write a line of a ring or a staged unit. Slots are represented by the addresses of their barriers, tiles by
        descriptors."""
        text = [strip(body.text[s][0]) for s in u.src]
        if u.op is Ops.DEFINE_RING:
            first = " && ".join(f"threadIdx.{AXES[n]} == 0" for n, name in enumerate(
                n for n in specials(body.program) if n.startswith("lidx")))
            body.text[u] = [u.arg[0]]
            body.line(f"unsigned int {u.arg[0]} = shared_address(near + {self.near[u]});")
            body.line(f"if ({first}) ring_begin({u.arg[0]}, {u.arg[1]}, {u.arg[2] if len(u.arg) > 2 else 1});")
            body.line(self.barrier)
        elif u.op in _OF_SLOTS:
            slot = f"{text[0]} + 8 * ({text[1]})"
            body.line(_OF_SLOTS[u.op].format(*text, slot=slot, arg=u.arg, warp=self.target.warp))
        elif u.op is Ops.IF:  # from here on each thread has this many registers (setmaxnreg)
            change = "inc" if u.arg * block_threads(body.program) > self.target.block_registers else "dec"
            body.line(f'asm volatile("setmaxnreg.{change}.sync.aligned.u32 {u.arg};");')
        elif u.op is Ops.ASYNC_COPY:
            size = u.src[2].dtype.itemsize
            body.line(f"copy_box{len(u.arg.sizes)}({text[2]} + {size} * ({text[3]}), &map{self.maps[map_of(u)]}, "
                      f"{text[0]} + 8 * ({text[1]}), {', '.join(text[5:])});")
        elif u.op is Ops.TILE:
            per_unit = 16 // u.src[0].dtype.itemsize
            body.text[u] = [f"{text[0]}_tiles + (unsigned int)({text[1]}) / {per_unit}"]
        elif u.op is Ops.MMA:
            if is_first(u):
                body.declare("mma", u, [""] * u.dtype.count)
            elif u.src[0].op not in (Ops.MMA, Ops.DEFINE_ACC, Ops.PHI):
                body.declare("mma", u, body.text[u.src[0]])
            else:
                body.text[u] = body.text[u.src[0]]  # updated in place; in another loop an equal step writes its own
            name = step_name(u.arg, turned_tiles(u), is_first(u))
            a = text[1:2] if u.src[1].op is Ops.TILE else _words(body, u.src[1])
            body.line(f"{name}({', '.join([*body.text[u], *a, text[2]])});")
        elif u.op is Ops.DRAIN and u.src:
            body.text[u] = body.text[u.src[0]]
            body.line(f"steps_drain<{u.arg}>();")
        else:
            body.line(f"steps_{u.op.name.lower()}{f'<{u.arg}>' if u.op is Ops.DRAIN else ''}();")

    def loop(self, kind: str, name: str, start: str, end: str) -> str:
        several = self.long.get(name, 0)
        if self.near or several:
            times = f"#pragma unroll {several or 1}\n  "
        else:
            times = "#pragma unroll\n  " * (self.pipelined and end.isdigit() and int(end) <= UNROLLED)
        return times + super().loop(kind, name, start, end)

    def head(self, name: str, program: Sequence[UOp]) -> str:
        threads = block_threads(program)
        blocks = RESIDENT // threads if self.pipelined else 0
        # with two blocks or fewer, the compiler's own choice is as good
        told = blocks > 2 or any(u.op is Ops.MMA for u in program)
        fewest = f", {blocks}" if blocks > 1 and told else ""
        if self.near:
            fewest = f", {side_by_side(program, threads, self.target)}"
        head = (f'extern "C" __global__ void __launch_bounds__({threads}{fewest}) {name}('
                f"{', '.join(self.parameters(program))}) {{")
        near = "\n  extern __shared__ __align__(1024) unsigned char near[];" if self.near else ""
        return head + near + ("\n" + _EARLY if self.target.launches_early else "")


def _long_loops(program: Sequence[UOp]) -> dict[str, int]:
    """Return the names of loops around others that make more than ``WRITTEN_OUT`` instructions if they are unrolled,
    and how often each may be: a power of two that divides its iterations."""
    found: dict[str, int] = {}
    opened: list[UOp] = []
    counts, around = [0], [False]  # of the program, and of each open loop: instructions; is there a loop inside
    for u in program:
        counts[-1] += 1
        if u.op is Ops.RANGE:
            around[-1] = True
            opened.append(u)
            counts.append(0)
            around.append(False)
        elif u.op is Ops.ENDRANGE:
            loop, count, outer = opened.pop(), counts.pop(), around.pop()
            end = loop.src[1]
            times = end.arg if end.op is Ops.CONST and end.arg <= UNROLLED else 1
            if outer and times * count > WRITTEN_OUT:
                fewer = [n for n in (2, 4, 8) if times % n == 0 and n * count <= WRITTEN_OUT]
                times = found[f"ridx{loop.arg[0]}"] = max(fewer, default=1)
            counts[-1] += times * count
    return found


_INLINE = "__device__ __forceinline__"

HELPERS = (
    "struct __align__(64) TensorMap { unsigned long long words[16]; };",
    f"{_INLINE} unsigned int shared_address(const void* p) {{ return (unsigned int)__cvta_generic_to_shared(p); }}",
    f"{_INLINE} unsigned long long descriptor(unsigned int at, unsigned int chunk, unsigned int row) {{ return "
    f"(at & 0x3ffff) >> 4 | (unsigned long long)(chunk >> 4) << 16 | (unsigned long long)(8 * row >> 4) << 32 | "
    f"(row == {ROW_BYTES} ? 1ull : row == {ROW_BYTES // 2} ? 2ull : 3ull) << 62; }}",
    f'{_INLINE} void ring_begin(unsigned int at, int slots, int arrivals) {{ for (int i = 0; i < slots; i++) '
    'asm volatile('
    '"mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(at + 8 * i), "r"(arrivals) : "memory"); '
    'asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }',
    f'{_INLINE} void ring_arrive(unsigned int at, unsigned int bytes) {{ asm volatile('
    '"mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(at), "r"(bytes) : "memory"); }',
    f'{_INLINE} void ring_release(unsigned int at) {{ asm volatile('
    '"mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(at) : "memory"); }',
    f'{_INLINE} void ring_wait(unsigned int at, unsigned int parity) {{ asm volatile("{{\\n.reg .pred P;\\nW:\\n'
    'mbarrier.try_wait.parity.shared::cta.b64 P, [%0], %1;\\n@P bra D;\\nbra W;\\nD:\\n}" :: "r"(at), "r"(parity) : '
    '"memory"); }',
    f'{_INLINE} void steps_fence() {{ asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }}',
    f'{_INLINE} void steps_commit() {{ asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }}',
    f'template<int N> {_INLINE} void steps_drain() {{ asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(N) : '
    '"memory"); }',
)


def copy_function(rank: int) -> str:
    """Return the function of a bulk copy of a box with ``rank`` dimensions."""
    coordinates = ", ".join(f"int c{n}" for n in range(rank))
    names = ", ".join(f"%{n + 3}" for n in range(rank))
    given = ", ".join(f'"r"(c{n})' for n in range(rank))
    return (f'{_INLINE} void copy_box{rank}(unsigned int to, const TensorMap* map, unsigned int ring, {coordinates}) '
            f'{{ asm volatile("cp.async.bulk.tensor.{rank}d.shared::cluster.global.mbarrier::complete_tx::bytes '
            f'[%0], [%1, {{{names}}}], [%2];" :: "r"(to), "l"(map), "r"(ring), {given} : "memory"); }}')


def is_first(mma: UOp) -> bool:
    """Return True for the first step of a sum: the unit ignores the accumulators, which need not be set to 0."""
    start = mma.src[0]
    return start.op is Ops.CONST and start.arg == 0


def step_function(unit: MatrixUnit, turned: tuple[bool | None, bool], first: bool) -> str:
    """Return the function of one step. ``turned``: per operand, True if the tile's rows run along the reduction; None:
    in registers. ``first``: the accumulators are written, not read."""
    count, held = unit.fragment_c.size, turned[0] is None
    access = '"=f"(c{})' if first else '"+f"(c{})'
    parameters, operands = (", ".join(form.format(n) for n in range(count)) for form in ("float& c{}", access))
    into = ", ".join(f"%{n}" for n in range(count))
    words = [f"a{n}" for n in range(unit.operand_a.size // 2)] if held else ["a"]
    a = ", ".join(f"%{count + n}" for n in range(len(words)))
    kind, letter = ("unsigned int", "r") if held else ("unsigned long long", "l")
    given = ", ".join(f'"{letter}"({word})' for word in words)
    modes = f"{int(not first)}, 1, 1" + "".join(f", {int(t)}" for t in turned if t is not None and unit.turned)
    return (f"{_INLINE} void {step_name(unit, turned, first)}({parameters}, {', '.join(f'{kind} {w}' for w in words)}, "
            f"unsigned long long b) {{\n"
            f'  asm volatile("{unit.emit} {{{into}}}, {f"{{{a}}}" if held else a}, %{count + len(words)}, '
            f'{modes};" : {operands} : {given}, "l"(b) : "memory"); }}')


def step_name(unit: MatrixUnit, turned: tuple[bool | None, bool], first: bool) -> str:
    return f"{unit.name}_{'r' if turned[0] is None else 'tn'[turned[0]]}{'tn'[not turned[1]]}{'_first' * first}"


def turned_tiles(mma: UOp) -> tuple[bool | None, bool]:
    a, b = mma.src[1:]
    return a.src[0].arg[2].deep if a.op is Ops.TILE else None, b.src[0].arg[2].deep


def ring_prologue(program: Sequence[UOp]) -> list[str]:
    """Return the functions that a program with a ring calls."""
    steps = {(u.arg, turned_tiles(u), is_first(u)): None for u in program if u.op is Ops.MMA and u.arg.staged}
    ranks = sorted({len(u.arg.sizes) for u in program if u.op is Ops.ASYNC_COPY})
    return [*HELPERS, *map(copy_function, ranks), *(step_function(*s) for s in steps)]


def ring_offsets(program: Sequence[UOp]) -> dict[UOp, int]:
    """Return the offset of each array in local memory: tiles first, aligned to 1024 bytes."""
    near = [u for u in program if u.op in (Ops.DEFINE_LOCAL, Ops.DEFINE_RING)]
    found, at = dict[UOp, int](), 0
    for u in sorted(near, key=lambda u: u.op is Ops.DEFINE_RING or len(u.arg) < 3):
        found[u], at = at, at + near_bytes(u)
    return found


def side_by_side(program: Sequence[UOp], threads: int, target: Target) -> int:
    """Return the occupancy in blocks per multiprocessor, limited by local memory and by registers (accumulators,
    loop-carried operands and a few more). While one block computes between two products, the unit works for another."""
    held, opened = Counter[UOp | None](), list[UOp | None]([None])
    if any(u.op is Ops.IF and u.arg for u in program):
        return 1  # setmaxnreg: its threads use all registers
    for u in program:
        if u.op is Ops.RANGE:
            opened.append(u)
        elif u.op is Ops.ENDRANGE:
            opened.pop()
        elif u.op is Ops.DRAIN and u.src:
            held[opened[-1]] += u.dtype.count
        elif u.op is Ops.DEFINE_ACC and u.dtype.scalar is dtypes.uint32:
            held[u.src[1]] += u.dtype.count
    most = target.blocks_by_registers(threads, max(held.values(), default=0))
    return max(1, min(target.ring_bytes // local_bytes(program), most))


def chunk_bytes(layout: StagedLayout) -> int:
    """Return the distance in bytes of chunks that one step reads."""
    return layout.rows * layout.row if layout.deep else 16

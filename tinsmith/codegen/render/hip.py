"""HIP C++ for AMD GPUs, in clang builtins: no header is needed. bfloat16 is stored as its bits."""
from __future__ import annotations

import re
from collections.abc import Sequence

from tinsmith.codegen.render.gpu import GPURenderer, bfloat16, block_threads, exact_fmod
from tinsmith.codegen.render.language import MATH, CLanguage
from tinsmith.core.dtypes import dtypes
from tinsmith.ir import Ops, UOp
from tinsmith.ir.matrix_unit import MatrixUnit
from tinsmith.ir.structure import Role
from tinsmith.target.schedule_costs import CUTS_FOR_CORES, GRID_COSTS
from tinsmith.target.target import Target
from tinsmith.target.units import amd

_VECTORS = GPURenderer.scalar_types | {"float16": "half"}
_HELPERS = bfloat16("__attribute__((device)) inline", "__builtin_bit_cast(float, ",
                    "__builtin_bit_cast(unsigned int, ", "unsigned int", "unsigned short") | exact_fmod(
                    "__attribute__((device)) inline", "float", "double") | {
    "shuffle_xor": """template<typename T> __attribute__((device)) inline T shuffle_xor(T x, int bits) {
  int lane = __builtin_amdgcn_mbcnt_lo(~0u, 0u) ^ bits;
  return __builtin_bit_cast(T, __builtin_amdgcn_ds_bpermute(lane << 2, __builtin_bit_cast(int, x))); }"""}
_MIXED = {dtypes.float16: "half", dtypes.bfloat16: "short"}  # lane types of a matrix unit's operands


def hip_target(arch: str = "gfx1100", cores: int = 96) -> Target:
    """Return the target of generated HIP; ``arch`` such as ``gfx1100``, whose warps have 32 threads."""
    rows = amd.RDNA3 if arch.startswith("gfx11") else ()
    return Target(f"hip_{arch}", 16, 64, local_bytes=64 << 10, dtypes=frozenset(dtypes.all) - {dtypes.float16,
                  dtypes.bfloat16}, fma=True, block_threads=1024, warp=32, parallel=Role.GLOBAL,
                  costs=GRID_COSTS._replace(cuts=CUTS_FOR_CORES),
                  units=rows, cores=cores)


class HIPRenderer(GPURenderer):
    """Kernels take their buffers, then their variables; the program determines the threads per block."""

    shared = "__attribute__((shared, aligned(16)))"
    barrier = ('__builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup"); __builtin_amdgcn_s_barrier(); '
               '__builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");')
    places = ("__builtin_amdgcn_workgroup_id_{axis}()", "__builtin_amdgcn_workitem_id_{axis}()")
    warps = {Ops.SHUFFLE: "shuffle_xor({value}, {arg})"}
    guarded_vectors = True
    vector_types, lanes = _VECTORS, tuple(f"[{n}]" for n in range(8))
    store_vector = "*(({kind}*)({at})) = {kind}{{{lanes}}};"
    reinterpreted = "__builtin_bit_cast({kind}, ({source}){a})"
    nan, infinity = '__builtin_nanf("")', "__builtin_inff()"
    functions, function_name, fused = {**MATH, Ops.SCALE: "ldexp"}, "__builtin_{name}{f}", "__builtin_fma{f}"
    fmod = "exact_fmod{f}"
    vector_widths = (8, 4, 2)
    bits16 = (dtypes.bfloat16,)
    helpers = _HELPERS
    scalar_types = CLanguage.scalar_types | {"bfloat16": "unsigned short"}

    def __init__(self, target: Target | None = None) -> None:
        super().__init__(target or hip_target())

    def prologue(self, program: Sequence[UOp]) -> str:
        lines = ["#pragma clang fp contract(off)"]
        if any(u.op is Ops.MMA for u in program):
            lines.append("typedef float float8 __attribute__((ext_vector_type(8)));")
        for dtype in dict.fromkeys(u.arg.a for u in program if u.op is Ops.MMA):
            kind = self.type_name(dtype) if dtype is dtypes.float16 else "short"
            lines.append(f"typedef {kind} {_MIXED[dtype]}16 __attribute__((ext_vector_type(16)));")
        return "".join(line + "\n" for line in lines)

    def render(self, name: str, program: Sequence[UOp]) -> str:
        text = super().render(name, program)
        types = {vector: self.scalar_types[d] for d, vector in _VECTORS.items() if d not in ("index", "void", "bool")}
        used = re.findall(rf"\b(({'|'.join(types)})([248]))\b", text)
        lines = [f"typedef {types[base]} {vector} __attribute__((ext_vector_type({count})));\n"
                 for vector, base, count in dict.fromkeys(used) if f" {vector} __attribute__((ext" not in text]
        return "".join(lines) + text

    def matrix_step(self, unit: MatrixUnit, acc: list[str], a: list[str], b: list[str]) -> str:
        """Return the statements that pack the accumulators into a vector, call the instruction, and unpack them."""
        kind = f"{_MIXED[unit.a]}16"
        lane = "" if unit.a is dtypes.float16 else "(short)"
        given = [f"{kind}{{{', '.join(lane + x for x in operand)}}}" for operand in (a, b)]
        sums = f"{acc[0]}_sums"
        back = " ".join(f"{x} = {sums}[{n}];" for n, x in enumerate(acc))
        return f"float8 {sums} = {unit.emit}({', '.join(given)}, float8{{{', '.join(acc)}}}); {back}"

    def head(self, name: str, program: Sequence[UOp]) -> str:
        threads = block_threads(program)
        return (f'extern "C" __attribute__((global, amdgpu_flat_work_group_size({threads}, {threads}))) void {name}('
                f"{', '.join(self.parameters(program))}) {{")

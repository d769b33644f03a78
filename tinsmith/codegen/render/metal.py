"""The Metal shading language. It has no double; bfloat16 is stored as its bits, half is a native type."""
from __future__ import annotations

from collections.abc import Sequence

from tinsmith.codegen.render.gpu import GPURenderer, bfloat16, exact_fmod
from tinsmith.codegen.render.language import addend, strip
from tinsmith.core.dtypes import DType, dtypes
from tinsmith.core.errors import CompileError
from tinsmith.core.settings import settings
from tinsmith.ir import Ops, UOp
from tinsmith.ir.matrix_unit import MatrixUnit
from tinsmith.ir.structure import Role
from tinsmith.target.schedule_costs import CUTS_FOR_CORES, GRID_COSTS
from tinsmith.target.target import Target
from tinsmith.target.units import apple


def metal_target() -> Target:
    """Return the target common to all Apple GPUs."""
    held = frozenset(dtypes.all) - {dtypes.float64}
    return Target("metal", 16, 64, local_bytes=32 << 10, storage=held, fma=True, block_threads=1024,
                  parallel=Role.GLOBAL, costs=GRID_COSTS._replace(cuts=CUTS_FOR_CORES),
                  dtypes=held - {dtypes.float16, dtypes.bfloat16}, units=apple.APPLE, cores=32)


def matrix_function(unit: MatrixUnit) -> str:
    """Return a function with a step of a SIMD-group matrix: each thread passes two elements of a and b, and holds two
    of c."""
    kind = "half" if unit.a is dtypes.float16 else "float"
    parts = [("a", kind), ("b", kind), ("c", "float")]
    values = [f"{of} {x}{i}" for x, of in parts[:2] for i in (0, 1)]
    moved = [f"{x}.thread_elements()[{i}] = {x}{i};" for x, _ in parts for i in (0, 1)]
    back = [f"c{i} = c.thread_elements()[{i}];" for i in (0, 1)]
    return "\n".join([
        f"inline void {unit.name}({', '.join(['thread float& c0', 'thread float& c1', *values])}) {{",
        f"  {' '.join(f'simdgroup_{of}8x8 {x};' for x, of in parts)}", f"  {' '.join(moved)}",
        f"  {unit.emit}(c, a, b, c);", f"  {' '.join(back)}", "}"])


class MetalRenderer(GPURenderer):
    """Kernels take their buffers, their variables, and their block and thread indices."""

    buffer = "{const}device {kind}* data{number}"
    variable = "constant int& {name}"
    function_name, fmod = "{name}", "exact_fmod{f}"
    reinterpreted = "as_type<{kind}>({value})"
    shared, spaces = "threadgroup", ("threadgroup ", "device ")
    barrier = "threadgroup_barrier(mem_flags::mem_threadgroup);"
    bits16 = (dtypes.bfloat16,)
    helpers = bfloat16("inline", "as_type<float>(", "as_type<uint>(") | exact_fmod("inline", "float")
    scalar_types = {**GPURenderer.scalar_types, "float16": "half"}

    def __init__(self, target: Target | None = None) -> None:
        super().__init__(target or metal_target())

    @property
    def wraps(self) -> bool:
        """Return True under ``NOOPT=1``: kernels have the text of the tutorials' logs, with plain arithmetic, whose
        signed overflow Metal leaves undefined."""
        return bool(settings.NOOPT)

    def type_name(self, dtype: DType) -> str:
        if dtype.scalar is dtypes.float64:
            raise CompileError("METAL", "Metal has no float64", "cast the values to float32")
        return super().type_name(dtype)

    def place(self, memory: str, index: str) -> str:
        return f"*({memory}+{addend(index)})"

    def matrix_step(self, unit: MatrixUnit, acc: list[str], a: list[str], b: list[str]) -> str:
        return f"{unit.name}({', '.join(map(strip, (*acc, *a, *b)))});"

    def bound(self, value: int) -> str:
        return f"{float(value)!r}f"

    def prologue(self, program: Sequence[UOp]) -> str:
        used = list(dict.fromkeys(u.arg for u in program if u.op is Ops.MMA))
        lines = ["#include <metal_stdlib>", *(["#include <metal_simdgroup_matrix>"] if used else []),
                 "using namespace metal;", *map(matrix_function, used)]
        return "".join(line + "\n" for line in lines)

    def head(self, name: str, program: Sequence[UOp]) -> str:
        places = ["uint3 gid [[threadgroup_position_in_grid]]", "uint3 lid [[thread_position_in_threadgroup]]"]
        return f"kernel void {name}({', '.join([*self.parameters(program), *places])}) {{"

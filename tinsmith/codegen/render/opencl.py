"""OpenCL C 1.2, for any OpenCL device; 16-bit floats use the core conversions."""
from __future__ import annotations

from collections.abc import Sequence

from tinsmith.codegen.render.base import specials
from tinsmith.codegen.render.gpu import AXES, GPURenderer, bfloat16, in_blocks
from tinsmith.core.dtypes import dtypes
from tinsmith.ir import UOp


class OpenCLRenderer(GPURenderer):
    """Kernels take their buffers, then their variables.

    A kernel with thread indices fixes its block size; otherwise the device chooses it.
    """

    buffer = "__global {const}{kind}* data{number}"
    function_name, fmod = "{name}", "fmod"
    reinterpreted = "as_{kind}({value})"
    shared = "__local"
    barrier = "barrier(CLK_LOCAL_MEM_FENCE);"
    vector_widths, lanes = (16, 8, 4, 2), tuple(f".s{n:x}" for n in range(16))
    load_vector, store_vector = "vload{count}(0, {at})", "vstore{count}(({kind})({lanes}), 0, {at});"
    unaligned = True
    helpers = {
        "half_float": "float half_float(ushort x) { return vload_half(0, (const __private half*)&x); }",
        "float_half": "ushort float_half(float x) { ushort y; vstore_half_rte(x, 0, (__private half*)&y); return y; }",
        "double_half": "ushort double_half(double x) { ushort y; vstore_half_rte(x, 0, (__private half*)&y); "
                       "return y; }",
        **bfloat16("static inline", "as_float(", "as_uint(")}

    def thread(self, name: str, program: Sequence[UOp]) -> str:
        axis = name[4:]
        if name.startswith("lidx"):
            return f"get_local_id({axis})"
        return f"get_{'group' if in_blocks(program) else 'global'}_id({axis})"

    def prologue(self, program: Sequence[UOp]) -> str:
        wide = any(u.dtype.scalar is dtypes.float64 for u in program)
        return "#pragma OPENCL FP_CONTRACT OFF\n" + "#pragma OPENCL EXTENSION cl_khr_fp64 : enable\n" * wide

    def head(self, name: str, program: Sequence[UOp]) -> str:
        attribute = ""
        if in_blocks(program):
            sizes = specials(program)
            block = [str(sizes.get(f"lidx{axis}", 1)) for axis in range(len(AXES))]
            attribute = f"__attribute__((reqd_work_group_size({', '.join(block)}))) "
        return f"__kernel {attribute}void {name}({', '.join(self.parameters(program))}) {{"

"""HIP source compiled by clang to machine code for AMD GPUs, without AMD's headers."""
from __future__ import annotations

import functools
import itertools
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.backend.running import param
from tests.codegen.render_cases import ALL, ops_of
from tests.codegen.test_matrix import axes, product, tensor_core
from tests.codegen.test_opts import LARGE
from tinsmith.codegen.compile_kernel import compile_kernel
from tinsmith.codegen.launch import KernelProgram
from tinsmith.codegen.opt import Opt, OptOps
from tinsmith.codegen.render.hip import HIPRenderer
from tinsmith.core.dtypes import DType, dtypes
from tinsmith.ir import Ops, UOp

_FLAGS = ("-x", "hip", "--offload-arch=gfx1100", "-nogpulib", "-nogpuinc", "--cuda-device-only", "-Wno-everything",
          "-O1", "-S", "-o", "-")


@functools.cache
def compiler() -> str:
    """Return a clang with AMD GPU support; empty if there is none."""
    for name in filter(shutil.which, ("clang", *(f"clang-{n}" for n in range(22, 15, -1)))):
        if "gfx1100" in subprocess.run([name, *_FLAGS, "-"], input="", capture_output=True, text=True).stdout:
            return name
    return ""


def assembly(kernels: list[KernelProgram], folder: Path) -> str:
    """Return the AMD GPU assembly that clang generates for ``kernels``, each in its own namespace."""
    if not compiler():
        pytest.skip("no clang for AMD's GPUs (clang 16 or later)")
    path = folder / "kernels.hip"
    path.write_text("".join(f"namespace n{n} {{\n{k.source}}}\n" for n, k in enumerate(kernels)), "utf-8")
    done = subprocess.run([compiler(), *_FLAGS, path], capture_output=True, text=True)
    assert not done.returncode, done.stderr[:3000]
    assert all(f"{k.symbol}:" in done.stdout for k in kernels)
    return done.stdout


def kernel(*values: UOp, opts: list[Opt] | None = None) -> KernelProgram:
    return compile_kernel(UOp(Ops.SINK, None, values), HIPRenderer(), opts)


def one(dtype: DType, outputs: int, number: int = 0) -> UOp:
    return UOp(Ops.PARAM, dtype, (), (outputs + number, (64,)))


def test_every_op_and_cast_of_every_type(tmp_path: Path) -> None:
    found = []
    for dtype in ALL:
        ops = ops_of(dtype)
        x, y = one(dtype, len(ops)), one(dtype, len(ops), 1)
        found.append(kernel(*(UOp(op, None, (x,) if op.arity == 1 else (x, y)) for op in ops)))
        targets = [d for d in ALL if d is not dtype]
        found.append(kernel(*(one(dtype, len(targets)).cast(d) for d in targets)))
        same = [d for d in targets if d.itemsize == dtype.itemsize and not d.is_bool and not dtype.is_bool]
        if same:
            found.append(kernel(*(one(dtype, len(same)).bitcast(d) for d in same)))
        if dtype.is_float:
            x = one(dtype, 3)
            found.append(kernel(x.alu(Ops.EXP), x.alu(Ops.SIN), x.alu(Ops.LOG2)))
    assert len(found) > 30 and assembly(found, tmp_path)


def test_large_kernels_vectors_threads_and_shuffles(tmp_path: Path) -> None:
    found = [kernel(value) for value in LARGE.values()]
    found += [kernel(UOp(Ops.PARAM, d, (), (1, (64,))) + 1, opts=[Opt(OptOps.VECTOR, 0, n)])
              for d, n in itertools.product((dtypes.float32, dtypes.float16, dtypes.int8, dtypes.bfloat16), (2, 4, 8))]
    shared = kernel(param(1, 4, 256).reduce("ADD", (1,)), opts=[Opt(OptOps.GROUP, 1, 64)])
    text = assembly([*found, shared], tmp_path)
    assert "s_barrier" in text and "ds_bpermute" in text and re.search(r"(global|flat)_load_(b128|dwordx4)", text)


@pytest.mark.parametrize("dtype, instruction", [(dtypes.float16, "v_wmma_f32_16x16x16_f16"),
                                                (dtypes.bfloat16, "v_wmma_f32_16x16x16_bf16")], ids=str)
def test_matrix_units(dtype: DType, instruction: str, tmp_path: Path) -> None:
    """Matrix units chosen by default, and by explicit opts at padded edges."""
    (plain, _), (edges, _) = product(32, 32, 32, dtype, dtypes.float32), product(40, 33, 24, dtype, epilogue=True)
    name = "wmma_f16" if dtype is dtypes.float16 else "wmma_bf16"
    opts = [tensor_core(axes(edges), 2, 2, unit=name)]
    found = [compile_kernel(plain, HIPRenderer()), compile_kernel(edges, HIPRenderer(), opts)]
    text = assembly(found, tmp_path)
    assert text.count(instruction) >= 6
    assert [k.block for k in found] == [[32, 2], [32]]  # by default one warp for each tile of the unit side by side

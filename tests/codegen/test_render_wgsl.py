"""WGSL source text, without wgpu: required structure of kernels, with and without 64-bit integers."""
from __future__ import annotations

import re

import pytest

from tinsmith.codegen.compile_kernel import compile_kernel
from tinsmith.codegen.opt import Opt, OptOps
from tinsmith.codegen.render.wgsl import WGSLRenderer, folded_grid, wgsl_target
from tinsmith.core.dtypes import DType, dtypes
from tinsmith.core.errors import CompileError
from tinsmith.ir import Ops, UOp

WORDS = WGSLRenderer(wgsl_target(int64=False))
R_2 = """@group(0) @binding(0) var<storage, read_write> data0: array<i32>;
@group(0) @binding(1) var<storage, read_write> data1: array<i32>;
@group(0) @binding(2) var<storage, read_write> data2: array<i32>;
struct Args { off0: i32, off1: i32, off2: i32, zero: u32 }
@group(0) @binding(3) var<uniform> args: Args;
@compute @workgroup_size(1, 1, 1)
fn r_2(@builtin(workgroup_id) gid: vec3<u32>, @builtin(local_invocation_id) lid: vec3<u32>) {
  let off0 = args.off0;
  let off1 = args.off1;
  let off2 = args.off2;
  var acc0: i32 = 0;
  for (var ridx0: i32 = 0; ridx0 < 2; ridx0++) {
    let val0: i32 = data1[off1+ridx0];
    let val1: i32 = data2[off2+ridx0];
    acc0 = (acc0+(val0*val1));
  }
  data0[off0+0] = acc0;
}
"""


def param(number: int, *shape: int, dtype: DType = dtypes.float32) -> UOp:
    return UOp(Ops.PARAM, dtype, (), (number, shape))


def written(value: UOp, renderer: WGSLRenderer | None = None, opts: list[Opt] | None = None) -> str:
    kernel = compile_kernel(UOp(Ops.SINK, None, (value,)), renderer or WGSLRenderer(), opts)
    return kernel.source.replace(kernel.symbol, kernel.name)


def test_the_dot_product() -> None:
    x, y = (param(n, 2, dtype=dtypes.int32) for n in (1, 2))
    assert written((x * y).reduce("ADD", (0,)), opts=[]) == R_2


def test_small_elements_share_words() -> None:
    text = written(param(1, 64, dtype=dtypes.int8) + 1)
    assert "data0: array<atomic<u32>>" in text and "data1: array<u32>" in text
    assert text.count("atomicAnd(") == text.count("atomicOr(") >= 1 and "extractBits(" in text


def test_threads_and_local_memory() -> None:
    text = written(param(1, 4, 256).reduce("ADD", (1,)), opts=[Opt(OptOps.GROUP, 1, 64)])
    assert "@workgroup_size(64, 1, 1)" in text and "workgroupBarrier();" in text
    assert text.index("var<workgroup> tmp0: array<f32, 64>;") < text.index("@compute")


def test_sums_keep_their_order() -> None:
    """A sum that feeds a sum is hidden from drivers that reassociate; a stored one needs no hiding."""
    x = param(1, 4)
    text = written((x + 12582912.0) - param(2, 4), opts=[])
    assert re.search(r"kept_f32\(val0\+12582912.0f\)-val1;", text) and text.count("kept_f32(") == 2
    assert "kept" not in written(x + 1.0)


def test_wide_integers() -> None:
    value = param(1, 8, dtype=dtypes.int64).alu(Ops.IDIV, param(2, 8, dtype=dtypes.int64))
    wide, words = written(value), written(value, WORDS)
    assert "array<i64>" in wide and "fn floor_div_i64(" in wide and "vec2" not in wide
    assert "array<vec2<u32>>" in words and "i64" not in words
    called = set(re.findall(r"\b(\w+64\w*)\(", words))
    assert called == {"div64_s", "div64_u", "abs64", "sub64", "mul64", "lt64_u"}
    assert all(words.count(f"fn {name}(") == 1 for name in called)


def test_what_no_word_can_hold_is_an_error() -> None:
    with pytest.raises(CompileError, match="no float64"):
        written(param(1, 8, dtype=dtypes.float64) * 3, WORDS)


def test_a_long_axis_is_folded() -> None:
    assert folded_grid([65535, 65535, 2]) == (65535, 65535, 2) and folded_grid([65536]) == (65535, 2, 1)
    text = written(param(1, 70_000) + 1, opts=[Opt(OptOps.NOLOCALS)])
    assert "if (gid.x + gid.y * 65535u >= 70000u) { return; }" in text


def test_indices_of_lanes_have_64_bits_only_where_they_need_them() -> None:
    """Bounds of a vector are those of its elements, so lanes of small indices have 32 bits."""
    text = written(param(1, 7, 33).scan("ADD", 1), opts=[Opt(OptOps.PADTO, 1, 4), Opt(OptOps.VECTOR, 1, 4)])
    assert "<33" in text and "i64" not in text

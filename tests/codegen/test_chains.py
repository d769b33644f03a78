"""Back-to-back matrix products on one unit: both interpreters, odd lengths, masks, removed synchronization, CUDA
text."""
from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.backend.gpus import needs_nvrtc
from tests.codegen.running import (
    Array,
    buffers,
    computes_the_same,
    each_is_needed,
    expected,
    linearize_on,
    ran,
    run_on,
    without,
)
from tests.codegen.test_rings import CUDA, DEVICE
from tinsmith.backend.cuda.driver import NVRTCCompiler
from tinsmith.backend.device import Device
from tinsmith.codegen.compile_kernel import compile_kernel
from tinsmith.codegen.emit.linearize import linearize
from tinsmith.codegen.launch import KernelProgram
from tinsmith.codegen.opt import Opt, OptOps
from tinsmith.codegen.planner.gpu.rings import chain_ways
from tinsmith.core.dtypes import DType, dtypes
from tinsmith.core.errors import ArgumentError, KernelError
from tinsmith.ir import Ops, UOp
from tinsmith.ir.matrix_unit import UnitTile

BF16, F16, F32 = dtypes.bfloat16, dtypes.float16, dtypes.float32


def attention(rows: int, keys: int, depth: int, width: int = 0, heads: int = 1, dtype: DType = BF16, mask: str = "",
              groups: int = 1) -> tuple[UOp, dict[UOp, Any]]:
    """Return softmax(q·kᵀ/√depth)·v of ``heads`` key/value heads, each shared by ``groups`` query heads."""
    width, random = width or depth, np.random.default_rng(rows + keys + depth)
    shapes = (heads, groups, rows, depth), (heads, keys, depth), (heads, keys, width)
    q, k, v = (UOp(Ops.PARAM, dtype, (), (n + 1, shape)) for n, shape in enumerate(shapes))
    inputs = {p: random.standard_normal(p.shape).astype(np.float32).astype(dtype.numpy) for p in (q, k, v)}
    full, out = (heads, groups, rows, keys, depth), (heads, groups, rows, keys, width)

    def over(x: UOp, shape: tuple[int, ...], axes: Sequence[int]) -> UOp:
        return x.cast(F32).reshape(tuple(shape[n] if n in axes else 1 for n in range(5))).expand(shape)

    s = (over(q, full, (0, 1, 2, 4)) * over(k, full, (0, 3, 4))).reduce("ADD", (4,))
    s = s.reshape(full[:4]) * (1 / math.sqrt(depth))
    if mask == "causal":
        s = s.iota_like(2).lt(s.iota_like(3)).where(-math.inf, s)
    elif mask:
        seen = UOp(Ops.PARAM, F32, (), (4, (rows, keys)))
        inputs[seen] = random.standard_normal((rows, keys)).astype(np.float32)
        s = s + seen.reshape((1, 1, rows, keys)).expand(s.shape)
    top = s.reduce("MAX", (3,)).reshape((heads, groups, rows, 1))
    p = (s - top.expand(s.shape)).alu("EXP")
    total = p.reduce("ADD", (3,)).reshape((heads, groups, rows, 1))
    sums = (over(p.cast(dtype), out, (0, 1, 2, 3)) * over(v, out, (0, 3, 4))).reduce("ADD", (3,))
    result = sums.reshape((heads, groups, rows, width)) / total.expand((heads, groups, rows, width))
    return UOp(Ops.SINK, None, (result.cast(dtype),)), inputs


def close(got: Array, want: Array) -> None:
    got, want = got.astype(np.float32), want.astype(np.float32)
    assert np.isfinite(got).all()
    assert np.linalg.norm(got - want) <= 4e-3 * np.linalg.norm(want)


def units(program: KernelProgram) -> set[str]:
    return {u.arg.name for u in program.uops if u.op is Ops.MMA}


@pytest.mark.parametrize("mask", ["", "causal", "added"])
@pytest.mark.parametrize("rows, keys, depth, dtype", [(256, 256, 64, BF16), (130, 200, 64, F16), (64, 77, 128, BF16),
                                                      (40, 300, 72, BF16)], ids=str)
def test_attention_is_a_chain_by_default(rows: int, keys: int, depth: int, dtype: DType, mask: str) -> None:
    sink, inputs = attention(rows, keys, depth, dtype=dtype, mask=mask)
    program = compile_kernel(sink, Device[DEVICE].renderer)
    assert all(name.startswith("wgmma") for name in units(program)) and len(program.uops) < 2000
    computes_the_same(DEVICE, sink, inputs, program.opts, close)


def test_heads_share_keys_and_widths_differ() -> None:
    for sink, inputs in (attention(72, 130, 64, heads=2, groups=3),
                         attention(72, 130, 64, heads=2, width=32, mask="causal")):
        assert units(compile_kernel(sink, Device[DEVICE].renderer))
        close(run_on(DEVICE, sink, inputs, None)[0], expected(sink, inputs)[0])


def test_warps_load_what_no_box_brings() -> None:
    """Rows of 20 elements are not aligned to 16 bytes: the kernel uses a unit whose lanes load their own elements."""
    sink, inputs = attention(50, 130, 20, mask="causal")
    assert units(compile_kernel(sink, Device[DEVICE].renderer)) == {"mma_bf16"}
    close(run_on(DEVICE, sink, inputs, None)[0], expected(sink, inputs)[0])


def opts_of(sink: UOp, slots: int = 2, below: int = 1, form: str = "", between: int = 128) -> list[Opt]:
    """Return the opts of the cheapest back-to-back plan with a given tile; ``form`` names its variants: "ahead" (the
    intermediate is computed one block ahead), "roles" (warp specialization), "turns" (ping-pong of warp groups)."""
    kernel = linearize_on(DEVICE, sink)
    way = min(chain_ways(kernel, kernel.target), key=lambda c: c.cycles).apply
    assert isinstance(way, partial)
    way.func(kernel, **way.keywords | {"tile": UnitTile(below, slots, 1.0, "roles" in form or "turns" in form, between,
                                                    "ahead" in form, below * ("turns" in form))})
    return kernel.opts


@settings(max_examples=12, deadline=None, derandomize=True, database=None)
@given(st.sampled_from(["roles", "turns", "roles ahead", "turns ahead", "ahead", ""]), st.integers(1, 3),
       st.integers(1, 3), st.sampled_from([64, 128]), st.sampled_from([192, 300]),
       st.sampled_from(["", "causal", "added"]), st.sampled_from(["", ":S1", ":S2"]))
def test_any_amounts_compute_the_same(form: str, slots: int, below: int, between: int, keys: int, mask: str,
                                      order: str) -> None:
    """Any number of warps, also for rows whose mask hides some blocks, or all but the first."""
    slots, form = max(slots, 2) if "ahead" in form else slots, form.replace("turns", "roles") if below == 1 else form
    sink, inputs = attention(72 * below, keys, 64, mask=mask)
    computes_the_same(DEVICE + order, sink, inputs, opts_of(sink, slots, below, form, between), close)


def test_wide_results_by_warps_that_take_turns() -> None:
    sink, inputs = attention(130, 300, 128, mask="causal")
    opts = opts_of(sink, 2, 2, "turns ahead")
    products = [u for u in compile_kernel(sink, Device[DEVICE].renderer, opts).uops if u.op is Ops.MMA]
    assert products[-1].src[1].op is Ops.BITCAST, "the last product stands behind the loop"
    close(run_on(DEVICE, sink, inputs, opts)[0], expected(sink, inputs)[0])


def test_whole_rows_need_no_blocks() -> None:
    sink, inputs = attention(64, 128, 64)
    program = compile_kernel(sink, Device[DEVICE].renderer)
    assert all(o.op is not OptOps.ONLINE for o in program.opts) and units(program)
    close(run_on(DEVICE, sink, inputs, None)[0], expected(sink, inputs)[0])


def test_hidden_blocks_are_not_computed() -> None:
    """The loop of a row tile ends at the diagonal, and only blocks that the diagonal crosses evaluate the mask."""
    sink, _ = attention(512, 512, 64, mask="causal")
    program = compile_kernel(sink, Device[DEVICE].renderer)
    first, second = (u for u in program.uops if u.op is Ops.RANGE)
    assert second.src[0] is first.src[1] and second.src[1].op is not Ops.CONST
    masks = [n for n, u in enumerate(program.uops) if u.op is Ops.CMPLT and u.dtype.count > 8
             and u.src[0].dtype.scalar.is_int]
    assert masks and min(masks) > program.uops.index(second)


@pytest.mark.parametrize("form", ["", "ahead", "roles", "turns ahead"])
def test_every_order_is_needed(form: str) -> None:
    """Without any one wait, fence, group, copy, release, drain or barrier the result is wrong, or nothing ever comes.
    """
    rows = 128 if "turns" in form else 64
    sink, inputs = attention(rows, 512, 64)
    program = linearize(linearize_on(DEVICE, sink, opts_of(sink, 2, rows // 64, form)))
    kinds = {Ops.WAIT, Ops.FENCE, Ops.COMMIT, Ops.ARRIVE, Ops.ASYNC_COPY, Ops.DRAIN,
             Ops.BARRIER if form in ("", "ahead") else Ops.RELEASE}
    assert set(each_is_needed(program, buffers(sink, inputs), lambda u: u.op in kinds)) == kinds


def test_a_deadlock_of_turns_is_named() -> None:
    sink, inputs = attention(128, 512, 64)
    program = linearize(linearize_on(DEVICE, sink, opts_of(sink, 2, 2, "turns ahead")))
    turns = {line.op: mutant for line, mutant in without(program, lambda u: u.op in (Ops.RELEASE, Ops.WAIT) and
                                                         u.src[0].arg[0] == "turn")}
    for op, why in ((Ops.RELEASE, "warps 4, 5, 6, 7 wait at WAIT until slot 1 of turn is free: 0 of 4 warps"),
                    (Ops.WAIT, "of turn was released twice without a WAIT")):
        with pytest.raises(KernelError, match=why):
            ran(turns[op], buffers(sink, inputs))


def test_what_cannot_be_ahead_or_take_turns_is_refused() -> None:
    sink, _ = attention(128, 512, 64)
    kernel = linearize_on(DEVICE, sink, opts_of(sink, 1, 1))
    ahead = Opt(OptOps.STAGE, len(kernel.stageable) - 1, (), depth=2)
    for opt, why in ((ahead, "two slots at least"), (Opt(OptOps.STAGE, ahead.axis, (), depth=3), "has two buffers"),
                     (Opt(OptOps.ROLES, None, 1), "ping-pong groups"), (Opt(OptOps.ROLES, None, 2), "its 1 group")):
        with pytest.raises(ArgumentError, match=why):
            kernel.apply(opt)
    kernel = linearize_on(DEVICE, sink, opts_of(sink, 2, 1, "ahead"))
    with pytest.raises(ArgumentError, match="needs an asynchronous unit"):
        kernel.apply(ahead)
    small = attention(64, 128, 64)[0]
    kernel = linearize_on(DEVICE, small, compile_kernel(small, Device[DEVICE].renderer).opts)
    with pytest.raises(ArgumentError, match="needs an asynchronous unit"):
        kernel.apply(Opt(OptOps.STAGE, len(kernel.stageable) - 1, (), depth=2))


def test_what_is_no_chain_is_refused_and_unchanged() -> None:
    sink, _ = attention(64, 250, 64)
    kernel = linearize_on(DEVICE, sink)
    sums = [n for n, r in enumerate(kernel.ranges) if r in kernel.reduces]
    before = kernel.sink
    for axis in sums:
        for unit in ("wgmma_bf16_64", "mma_tf32", "wgmma_f16_64"):
            with pytest.raises(ArgumentError):
                kernel.apply(Opt(OptOps.TC, axis, (0, 1, 1, 1), unit=unit))
    assert kernel.sink is before


def test_as_cuda_equal_steps_of_two_loops_have_sums_of_their_own() -> None:
    """With one slot, steps before the diagonal read the same tiles as those on it."""
    needs_nvrtc()
    from tinsmith.backend.cuda.driver import NVRTCCompiler

    sink, _ = attention(512, 512, 64, mask="causal")
    NVRTCCompiler("sm_90a")._compiled(compile_kernel(sink, CUDA, opts_of(sink, 1)).source)


@pytest.mark.parametrize("depth", [64, 128])
def test_as_cuda_nothing_is_spilled(depth: int) -> None:
    needs_nvrtc()

    sink, _ = attention(2048, 2048, depth, heads=64, mask="causal")
    program = compile_kernel(sink, CUDA)
    text, threads, blocks = program.source, *((256, 2) if depth == 64 else (384, 1))
    assert "wgmma.mma_async" in text and program.block == [128, threads // 128]
    assert f"__launch_bounds__({threads}, {blocks})" in text, "two small blocks, or warps of their own that fill"
    assert ("setmaxnreg.inc.sync.aligned.u32 232;" in text and "ring_begin(turn, 2, 4);" in text) is (depth == 128)
    assert ("steps_drain<1>();" in text) is (depth == 128), "scores are there while a product is under way"
    _, log = NVRTCCompiler("sm_90a")._compiled(program.source)
    assert " 0 bytes spill stores" in log and "C75" not in log

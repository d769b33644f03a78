"""Dot products of vectors as matrix units (AVX512-BF16, VNNI): meaning, text, plans, and machine code where it runs."""
from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from tests.codegen.running import Kernel, expected, linearize_on, params, run_graph, run_on
from tests.codegen.test_matrix import axes, close, product, tensor_core
from tinsmith.backend.cpu import os_calls
from tinsmith.backend.cpu.llvm import host_features
from tinsmith.backend.device import Device
from tinsmith.codegen.compile_kernel import begin, choose, compile_kernel
from tinsmith.codegen.opt import Opt, OptOps
from tinsmith.codegen.planner.candidate import stride_of
from tinsmith.codegen.render.llvm import LLVMRenderer
from tinsmith.core.dtypes import DType, dtypes
from tinsmith.ir import Ops, UOp
from tinsmith.ir.matrix_unit import MatrixUnit, available
from tinsmith.ir.uop import Window
from tinsmith.target.target import Target
from tinsmith.target.units.x86 import AMX, DOT, fma

HAVE = {u.name for u in available(DOT, os_calls.architecture(), host_features())}
TARGET = Target("llvm", 64, 32, 2, 64 << 20, 32 << 10, 1 << 20, fma=True,
                units=(*DOT, fma(dtypes.float32, 64), fma(dtypes.float64, 64)))  # of such a machine, wherever this runs
MNEMONIC = {"dot_bf16": "vdpbf16ps", "dot_s16": "vpdpwssd"}
SUBNORMAL = 2.0**-130


def one(a: tuple[float, float], b: tuple[float, float], total: float) -> np.float32:
    """Return the first sum of one step."""
    unit = DOT[0]
    rows, columns = np.zeros((1, 2), unit.a.numpy), np.zeros((1, 32), unit.b.numpy)
    rows[0], columns[0, :2] = a, b
    with np.errstate(all="ignore"):
        return unit.multiply(np.full((1, 16), total, np.float32), rows, columns)[0, 0]


def test_a_step_adds_its_products_in_turn_and_flushes_subnormal_numbers() -> None:
    """VDPBF16PS as in Intel's manual: the odd products are added first, each sum rounded to nearest even."""
    tie = 1 + 2.0**-24  # of 1 and the float above
    assert one((1.0, 2.0**-24), (1.0, 1.0), 1.0) == np.float32(2) and one((2.0**-24, 2.0**-24), (1, 1), 1.0) == 1
    assert np.float32(tie) == 1
    assert one((SUBNORMAL, 0), (2.0**20, 0), 0.0) == 0 and one((0, 0), (0, 0), SUBNORMAL) == 0
    assert one((2.0**-64, 0), (2.0**-66, 0), 0.0) == 0 and one((2.0**-60, 0), (2.0**-66, 0), 0.0) == 2.0**-126
    assert one((-(2.0**120), 3e38), (2.0**120, 1.0), 0.0) == -math.inf and one((3e38, 3e38), (1, -1), 3e38) > 2e38
    assert np.isnan(one((math.inf, 1), (0, 1), 0.0))


def values(unit: MatrixUnit, count: int, seed: int) -> np.ndarray:
    """Return operands of a unit's types: floats of all exponents, subnormals included, or any integers."""
    rng = np.random.default_rng(seed)
    if not unit.a.is_float:
        kind = unit.a if seed % 2 else unit.b
        return rng.integers(kind.min, kind.max, count, endpoint=True).astype(kind.numpy)
    found = rng.standard_normal(count) * 2.0 ** rng.integers(-70, 40, count)
    found[:: 7] = SUBNORMAL * rng.standard_normal(len(found[::7]))
    return found.astype(unit.a.numpy)


def case(unit: MatrixUnit, m: int, k: int, n: int) -> tuple[UOp, dict[UOp, np.ndarray]]:
    a, b = UOp(Ops.PARAM, unit.a, (), (1, (m, k))), UOp(Ops.PARAM, unit.b, (), (2, (k, n)))
    x = a.cast(unit.acc).reshape((m, 1, k)).expand((m, n, k))
    y = b.cast(unit.acc).permute((1, 0)).reshape((1, n, k)).expand((m, n, k))
    inputs = {a: values(unit, m * k, 1).reshape(m, k), b: values(unit, k * n, 2).reshape(k, n)}
    return UOp(Ops.SINK, None, ((x * y).reduce("ADD", (2,)),)), inputs


@pytest.mark.parametrize("unit", DOT, ids=str)
def test_interpreters_and_machine_agree_to_the_bit(unit: MatrixUnit) -> None:
    """The program fixes the order of sums, so floats agree too; all integers, and sums that wrap around."""
    for (m, k, n), copies in (((4, 8, 32), (2, 2)), ((5, 13, 33), (1, 1)), ((9, 32, 16), (3, 1))):
        sink, inputs = case(unit, m, k, n)
        opts = [tensor_core((0, 1, 2), *copies, unit=unit.name)]
        (want,) = run_on("PYTHON", sink, inputs, opts)
        if not unit.a.is_float:
            np.testing.assert_array_equal(want, expected(sink, inputs)[0])
        np.testing.assert_array_equal(run_graph(sink, inputs, opts)[0] if not unit.a.is_float else want, want)
        if unit.name in HAVE:
            got = run_on("CPU", sink, inputs, opts)[0]
            np.testing.assert_array_equal(got.view(np.int32), want.view(np.int32))


def assembled(sink: UOp, opts: list[Opt], *requires: str) -> str:
    """Return the machine code of a kernel for a machine with the features, on any host."""
    llvm = pytest.importorskip("llvmlite.binding")
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    features = ",".join(f"+{f}" for f in ("avx512f", "avx512bw", "avx512vl", "avx512dq", *requires))
    machine = llvm.Target.from_triple("x86_64-unknown-linux-gnu").create_target_machine(features=features, opt=2)
    module = llvm.parse_assembly(compile_kernel(sink, LLVMRenderer(TARGET), opts).source)
    module.verify()
    text: str = machine.emit_assembly(module)
    return text


@pytest.mark.parametrize("unit", DOT, ids=str)
def test_the_text_is_what_a_machine_with_the_feature_takes(unit: MatrixUnit) -> None:
    sink, _ = case(unit, 24, 64, 64)
    text = assembled(sink, [tensor_core((0, 1, 2), 4, 4, unit=unit.name)], *unit.requires)
    assert text.count(MNEMONIC.get(unit.name, "vpdpbusd")) == 16, "nothing beside the products, whatever the signs"
    assert "zmm31" not in text or text.count("Spill") == 0, "sums stay in registers"


def test_a_frame_is_aligned_to_the_vectors_that_are_spilled_to_it() -> None:
    sink, _ = product(256, 768, 256)
    text = assembled(sink, chosen(sink), "avx512bf16")
    assert "andq\t$-64, %rsp" in text


def test_a_machine_without_the_features_has_no_such_unit() -> None:
    of_integers = tuple(u for u in DOT if "avx512bf16" not in u.requires)
    assert available(DOT, "x86_64", frozenset({"avx512f", "avx512vnni"})) == of_integers
    assert available(DOT, "arm64", frozenset({"avx512f", "avx512vnni", "avx512bf16"})) == ()
    host = Device["CPU"].renderer.target.units
    assert not (any(u in AMX for u in host) and any(u in DOT for u in host)), "beside tiles, vectors are slow"


def chosen(sink: UOp) -> list[Opt]:
    kernel = begin(sink, TARGET)
    choose(kernel, TARGET)
    return kernel.opts


def test_plans_keep_many_sums_and_pack_by_vectors() -> None:
    """16 to 24 accumulators, so that each product loads few operands; no padding that would require packed rows."""
    direct, turned, odd = (chosen(product(m, 256, 256, transposed=t)[0]) for m, t in ((256, ""), (256, "a"), (150, "")))
    for opts in (direct, turned, odd):
        (unit,) = [o for o in opts if o.op is OptOps.TC]
        assert unit.unit == "dot_bf16" and isinstance(unit.amt, tuple) and 16 <= math.prod(unit.amt[2:]) <= 24
        if opts is turned:
            assert unit.amt[2] in (8, 16), "rows of the tile fill a vector"
        else:
            assert len([o for o in opts if o.op is OptOps.STAGE]) == 1, "rows are read as they lie"
    assert all(o.unit == "dot_s8s8" for o in chosen(product(128, 128, 128, dtypes.int8, dtypes.int32)[0])
               if o.op is OptOps.TC)


def windows(n: int, c: int, o: int, size: int, stride: int = 1, dtype: DType = dtypes.bfloat16) -> UOp:
    """Return a 3×3 convolution with zero padding."""
    acc = dtypes.float32 if dtype.is_float else dtypes.int32
    out, wide = (size - 1) // stride + 1, size + 2
    x = UOp(Ops.PARAM, dtype, (), (1, (n, 1, c, size, size))).pad(((0, 0),) * 3 + ((1, 1),) * 2)
    for axis in (3, 4):
        shape = (*x.shape, 1)
        x = x.reshape(shape).expand((*x.shape, 3)).window(Window(axis, len(shape) - 1, stride, 1, wide, out))
    w = UOp(Ops.PARAM, dtype, (), (2, (1, o, c, 1, 1, 3, 3)))
    whole = (n, o, c, out, out, 3, 3)
    return UOp(Ops.SINK, None, ((x.cast(acc).expand(whole) * w.cast(acc).expand(whole)).reduce(
        "ADD", (2, 5, 6)).reshape((n, o, out, out)),))


@pytest.mark.parametrize("units", [DOT, AMX], ids=["dots", "tiles"])
@pytest.mark.parametrize("dtype", [dtypes.bfloat16, dtypes.int8], ids=str)
@pytest.mark.parametrize("sizes", [(1, 3, 4, 4, 1), (1, 2, 3, 5, 2)], ids=str)
def test_places_of_a_window_are_staged_once(units: tuple[MatrixUnit, ...], dtype: DType,
                                            sizes: tuple[int, int, int, int, int]) -> None:
    """Sliding rows or columns: the taps read one stage at adjacent offsets, which may end anywhere in a vector."""
    sink = windows(*sizes, dtype)
    random = np.random.default_rng(1)
    inputs = {p: random.integers(-9, 9, p.arg[1]).astype(dtype.numpy) for p in params(sink)}
    k = linearize_on("PYTHON", sink)
    row, column, depth = (next(n for n, r in enumerate(k.ranges) if r.arg[0] == name) for name in axes_of(k))
    unit = next(u for u in units if u.a is u.b is dtype)
    (want,) = expected(sink, inputs)
    for pair in ((row, column), (column, row)):
        np.testing.assert_array_equal(
            run_on("PYTHON", sink, inputs, [Opt(OptOps.TC, depth, pair, unit=unit.name)])[0], want)


@pytest.mark.skipif("dot_bf16" not in HAVE, reason="this processor has no AVX512-BF16 (or CPU_FEATURES hides it)")
@pytest.mark.parametrize("sizes", [(2, 6, 33, 16, 1), (1, 32, 16, 56, 1), (2, 8, 35, 17, 2)], ids=str)
def test_windows_with_the_opts_of_this_machine(sizes: tuple[int, int, int, int, int]) -> None:
    for dtype in (dtypes.bfloat16, dtypes.int8):
        sink = windows(*sizes, dtype)
        random = np.random.default_rng(1)
        inputs = {p: random.integers(-9, 9, p.arg[1]).astype(dtype.numpy) for p in params(sink)}
        np.testing.assert_array_equal(run_on("CPU", sink, inputs, None)[0], expected(sink, inputs)[0])


def axes_of(k: Kernel) -> tuple[int, int, int]:
    """Return the indices of the ranges of positions along a row, of filters and of channels."""
    load, weights = k.loads
    place = next(r for r in k.parallel if r in load.ranges and stride_of(k.stores[0].src[1], r) == 1)
    filters = next(r for r in k.parallel if r in weights.ranges)
    depth = max(k.reduces, key=lambda r: stride_of(load.src[1], r) or 0)
    return place.arg[0], filters.arg[0], depth.arg[0]


def test_weights_of_a_convolution_are_packed_once() -> None:
    """The packed weights serve all images and rows, and stay in the L2 cache."""
    for stride in (1, 2):
        opts = chosen(windows(2, 64, 64, 56, stride))
        assert any(o.op is OptOps.TC for o in opts)
        assert [o.amt for o in opts if o.op is OptOps.STAGE] == [(), (0, 1)], "and images line by line, for all taps"


def test_a_sum_over_several_loops_keeps_its_tile() -> None:
    """Loops over channels and window positions: each carries the accumulator of the enclosing one."""
    amx = dataclasses.replace(TARGET, units=(*AMX, *TARGET.units))
    kernel = compile_kernel(windows(2, 64, 16, 56), LLVMRenderer(amx))
    sums = [u for u in kernel.uops if u.op is Ops.DEFINE_ACC]
    copies = sum(o.amt[2] * o.amt[3] for o in kernel.opts if o.op is OptOps.TC and isinstance(o.amt, tuple))
    assert len(sums) == 3 * copies > 0
    lines = [line.split() for line in kernel.source.splitlines() if "call void @llvm.x86.t" in line]
    starts, steps = ({line[3] for line in lines if name in line[2]} for name in ("tilezero", "tdpbf16ps"))
    assert len(starts) == copies and {step.strip(",)") for step in steps} == {start.strip(",)") for start in starts}


@pytest.mark.parametrize("transposed", ["", "a", "ab"])
@pytest.mark.parametrize("shape", [(2, 2, 2), (8, 6, 17), (17, 33, 15), (31, 8, 48)], ids=str)
def test_the_defaults_of_such_a_machine_on_edges(shape: tuple[int, int, int], transposed: str) -> None:
    """Default opts of a machine with the feature at odd sizes, run by the interpreter."""
    for dtype, acc in ((dtypes.bfloat16, dtypes.float32), (dtypes.uint8, dtypes.int32), (dtypes.int8, dtypes.int32)):
        sink, inputs = product(*shape, dtype, acc, transposed, True)
        opts = [o for o in chosen(sink) if o.op is not OptOps.THREAD]
        close(run_on("PYTHON", sink, inputs, opts)[0], expected(sink, inputs)[0])


def test_every_number_of_rows_of_a_transposed_operand() -> None:
    """A power-of-two number of rows is packed by vectors, another one element by element."""
    sink, inputs = product(24, 10, 32, transposed="a")
    for rows in (1, 2, 3, 4, 6, 8, 12):
        opts = [tensor_core(axes(sink), rows, 2, unit="dot_bf16"), Opt(OptOps.STAGE, 1, ()), Opt(OptOps.STAGE, 0, (0,))]
        close(run_on("PYTHON", sink, inputs, opts)[0], expected(sink, inputs)[0])

"""Contractions on matrix units: graph, both interpreters, machine code; edges, stages, illegal opts."""
from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from tests.codegen.running import Array, Kernel, expected, linearize_on, run_graph, run_linear, run_on
from tests.codegen.units import MMA_SYNC
from tinsmith import Tensor
from tinsmith.backend.device import Device
from tinsmith.codegen.compile_kernel import compile_kernel
from tinsmith.codegen.opt import Opt, OptOps
from tinsmith.codegen.render.llvm import LLVMRenderer
from tinsmith.core.dtypes import DType, dtypes
from tinsmith.core.errors import ArgumentError, DTypeError
from tinsmith.ir import Ops, UOp
from tinsmith.ir.matrix_unit import MatrixUnit, in_memory
from tinsmith.ir.ops.elementwise import cast_values
from tinsmith.ir.verify import verify_kernel, verify_program
from tinsmith.target.target import Target
from tinsmith.target.units.amd import RDNA3
from tinsmith.target.units.apple import APPLE
from tinsmith.target.units.nvidia import CUDA
from tinsmith.target.units.x86 import AMX

EDGES = [(1, 1, 1), (16, 32, 16), (17, 33, 15), (31, 7, 33), (32, 64, 32), (5, 65, 47), (48, 31, 1), (64, 96, 80)]
TYPES = [(dtypes.bfloat16, dtypes.float32), (dtypes.int8, dtypes.int32), (dtypes.uint8, dtypes.int32)]
CPU_UNITS = [u for u in Device["CPU"].renderer.target.units if u.emit != "muladd"]
without_amx = pytest.mark.skipif(not CPU_UNITS, reason="this processor has no matrix unit (or CPU_FEATURES hides it)")


def product(m: int, k: int, n: int, dtype: DType = dtypes.bfloat16, acc: DType = dtypes.float32,
            transposed: str = "", epilogue: bool = False, batch: int = 1) -> tuple[UOp, dict[UOp, Array]]:
    """Return a matrix product with its inputs; operands in ``transposed`` have their axes exchanged in memory."""
    shapes = {"a": (batch, m, k), "b": (batch, k, n)}
    shapes = {name: (s[0], s[2], s[1]) if name in transposed else s for name, s in shapes.items()}
    a, b = (UOp(Ops.PARAM, dtype, (), (i + 1, s)) for i, s in enumerate(shapes.values()))
    rows, columns = a, b
    if "a" in transposed:
        rows = rows.permute((0, 2, 1))
    if "b" not in transposed:
        columns = columns.permute((0, 2, 1))
    if epilogue:  # a prologue of its own as well
        rows = rows.maximum(rows.const_like(0))
    x = rows.cast(acc).reshape((batch, m, 1, k)).expand((batch, m, n, k))
    y = columns.cast(acc).reshape((batch, 1, n, k)).expand((batch, m, n, k))
    out = (x * y).reduce("ADD", (3,)).reshape((batch, m, n))
    random = np.random.default_rng(m * n + k)
    inputs = {p: (random.normal(size=p.shape) if dtype.is_float else random.integers(-99, 99, p.shape)).astype(
        dtype.numpy) for p in (a, b)}
    if epilogue:
        bias = UOp(Ops.PARAM, acc, (), (3, (n,)))
        inputs[bias] = random.integers(-9, 9, n).astype(acc.numpy)
        out = (out + bias.reshape((1, 1, n)).expand((batch, m, n))).cast(dtype)
    return UOp(Ops.SINK, None, (out,)), inputs


def close(got: Array, want: Array) -> None:
    if got.dtype.kind in "iu":
        np.testing.assert_array_equal(got, want)
    else:
        tolerance = 1e-2 if got.dtype.itemsize == 2 else 1e-5
        np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), rtol=tolerance, atol=1e-4)


def tensor_core(kernel_axes: tuple[int, int, int], *copies: int, unit: str = "") -> Opt:
    m, n, k = kernel_axes
    return Opt(OptOps.TC, k, (m, n, *copies), unit=unit)


def axes(sink: UOp) -> tuple[int, int, int]:
    """Return the positions of m, n and k among the ranges (axes of size 1 have none)."""
    kernel = linearize_on("PYTHON", sink)
    parallel = [kernel.ranges.index(r) for r in kernel.parallel]
    return parallel[-2], parallel[-1], kernel.ranges.index(kernel.reduces[0])


OPTS = {"bare": (), "columns": (Opt(OptOps.STAGE, 1, ()),),
        "both": (Opt(OptOps.STAGE, 1, ()), Opt(OptOps.STAGE, 0, ())), "rows": (Opt(OptOps.STAGE, 0, (0,)),)}


@pytest.mark.parametrize("dtype, acc", TYPES, ids=str)
@pytest.mark.parametrize("shape", [e for e in EDGES if 1 not in e], ids=str)
def test_every_interpreter_and_machine_agree(shape: tuple[int, int, int], dtype: DType, acc: DType) -> None:
    sink, inputs = product(*shape, dtype, acc)
    (want,) = expected(sink, inputs)
    for copies in ((), (2, 2), (1, 3)):
        for name, more in OPTS.items():
            opts = [tensor_core(axes(sink), *copies), *more]
            verify_kernel(linearize_on("PYTHON", sink, opts).sink)
            if copies != (1, 3):
                close(run_graph(sink, inputs, opts)[0], want)
            if name != "rows" and copies:
                close(run_on("PYTHON", sink, inputs, opts)[0], want)
            if CPU_UNITS:
                close(run_on("CPU", sink, inputs, opts)[0], want)


@without_amx
@pytest.mark.parametrize("transposed", ["", "a", "b", "ab"])
@pytest.mark.parametrize("dtype, acc", TYPES, ids=str)
@pytest.mark.parametrize("shape", EDGES, ids=str)
def test_the_defaults_on_edges(shape: tuple[int, int, int], dtype: DType, acc: DType, transposed: str) -> None:
    for epilogue, batch in ((False, 1), (True, 1), (False, 3)):
        sink, inputs = product(*shape, dtype, acc, transposed, epilogue, batch)
        got = run_on("CPU", sink, inputs, None, 2)[0]
        close(got, expected(sink, inputs)[0])


@without_amx
def test_a_large_product_runs_on_the_unit_by_default() -> None:
    sink, _ = product(256, 256, 256)
    program = compile_kernel(sink, Device["CPU"].renderer)
    assert any(o.op is OptOps.TC for o in program.opts)
    assert any(u.op is Ops.MMA for u in program.uops)


def test_a_tile_unit_holds_four_sums_in_a_square() -> None:
    """A 2 × 2 register tile: each loaded operand is used twice; with one column of tiles the accumulators form a
    column."""
    target = Target("llvm", 64, 32, 2, 64 << 20, 32 << 10, 1 << 20, fma=True, units=AMX)
    for n, copies in ((256, (2, 2)), (16, (4, 1))):
        opts = compile_kernel(product(256, 256, n)[0], LLVMRenderer(target)).opts
        assert [o.amt[2:] for o in opts if o.op is OptOps.TC and isinstance(o.amt, tuple)] == [copies]


@pytest.mark.parametrize("unit", [*MMA_SYNC, *RDNA3, *APPLE], ids=str)
@pytest.mark.parametrize("shape", [(16, 16, 8), (35, 21, 17), (64, 48, 40)], ids=str)
def test_fragments_spread_over_the_lanes_of_a_warp(unit: MatrixUnit, shape: tuple[int, int, int]) -> None:
    """A unit of 32 threads needs only its table row: operands by element, and an epilogue on each thread's elements."""
    target = Target("warp", 0, units=(unit,))
    for epilogue in (False, True):
        sink, inputs = product(*shape, unit.a, dtypes.float32, epilogue=epilogue)
        for copies in ((1, 1), (2, 4)):
            kernel = linearize_on("PYTHON", sink, [tensor_core(axes(sink), *copies)], target)
            verify_kernel(kernel.sink)
            (got,), program = run_linear(kernel, sink, inputs)
            verify_program(program)
            close(got, expected(sink, inputs)[0])
            assert any(u.op is Ops.MMA and u.arg is unit for u in program)


def test_what_no_unit_multiplies_is_refused_and_unchanged() -> None:
    sink, _ = product(32, 32, 32, dtypes.float32)
    kernel = linearize_on("PYTHON", sink)
    before = (kernel.sink, list(kernel.order))
    for opt in (tensor_core((0, 1, 2), unit="amx_bf16"), tensor_core((0, 0, 2)), tensor_core((0, 1, 1)),
                Opt(OptOps.TC, 2, 4)):
        with pytest.raises(ArgumentError):
            kernel.apply(opt)
        assert (kernel.sink, kernel.order) == before


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64, dtypes.int32], ids=str)
@pytest.mark.parametrize("shape", [e for e in EDGES if 1 not in e], ids=str)
def test_where_no_unit_fits_it_falls_back_on_multiply_adds(shape: tuple[int, int, int], dtype: DType) -> None:
    sink, inputs = product(*shape, dtype, dtype)
    (want,) = expected(sink, inputs)
    for copies in ((), (4, 2)):
        opts = [tensor_core(axes(sink), *copies)]
        program = linearize_on("PYTHON", sink, opts)
        verify_kernel(program.sink)
        assert not program.products
        assert {o.op for o in program.opts} <= {OptOps.PADTO, OptOps.VECTOR, OptOps.UPCAST}, "the same anywhere"
        for device in ("CPU", *(["PYTHON:V16"] if math.prod(shape) < 100_000 else [])):  # the interpreter is slow
            close(run_on(device, sink, inputs, opts)[0], want)
            close(run_on(device, sink, inputs, program.opts)[0], want)


def test_no_more_sums_than_the_unit_holds() -> None:
    sink, _ = product(128, 64, 128)
    kernel = linearize_on("PYTHON", sink)
    with pytest.raises(ArgumentError, match="has 4 accumulators"):
        kernel.apply(tensor_core((0, 1, 2), 3, 2))
    kernel.apply(tensor_core((0, 1, 2), 2, 2))
    with pytest.raises(ArgumentError, match="accumulators"):
        kernel.apply(Opt(OptOps.UPCAST, 0, 2))


def test_padding_adds_nothing_to_a_sum() -> None:
    """Padding contributes 0 with a prologue that is not 0 at 0 and with infinite operands."""
    a, b = (UOp(Ops.PARAM, dtypes.bfloat16, (), (i, (33, 33))) for i in (1, 2))
    rows = (a + a.const_like(1)).cast(dtypes.float32).reshape((33, 1, 33)).expand((33, 33, 33))
    columns = b.cast(dtypes.float32).permute((1, 0)).reshape((1, 33, 33)).expand((33, 33, 33))
    sink = UOp(Ops.SINK, None, ((rows * columns).reduce("ADD", (2,)),))
    values = np.ones((33, 33), dtypes.bfloat16.numpy)
    values[5, 7] = np.inf
    inputs = {a: values, b: values}
    (want,) = expected(sink, inputs)
    opts = [tensor_core((0, 1, 2), 2, 2)]
    np.testing.assert_array_equal(run_graph(sink, inputs, opts)[0], want)
    for device in ("PYTHON", *(["CPU"] if CPU_UNITS else [])):
        np.testing.assert_array_equal(run_on(device, sink, inputs, opts)[0], want)


@pytest.mark.parametrize("device", ["CPU", "PYTHON"])
def test_one_narrow_lane_writes_one_element(device: str) -> None:
    """A truncated vector with only its first lane in bounds; the buffer ends at a protected page."""
    x = UOp(Ops.PARAM, dtypes.int32, (), (1, (33, 33)))
    sink = UOp(Ops.SINK, None, (x.cast(dtypes.int8) + x.cast(dtypes.int8).const_like(1),))
    inputs = {x: np.arange(33 * 33, dtype=np.int32).reshape(33, 33)}
    opts = [Opt(OptOps.TILE, 0, 33), Opt(OptOps.VECTOR, 1, 16)]
    close(run_on(device, sink, inputs, opts)[0], expected(sink, inputs)[0])


def test_a_program_names_its_unit() -> None:
    sink, _ = product(16, 32, 16)
    kernel: Kernel = linearize_on("PYTHON", sink, [tensor_core((0, 1, 2), 1, 1)])
    (mma,) = kernel.products
    assert mma.arg is AMX[0] or mma.arg == AMX[0]
    assert "MMA amx_bf16" in str(compile_kernel(sink, Device["PYTHON"].renderer, kernel.opts).uops) or mma.arg.name
    assert dataclasses.replace(AMX[0], name="x") != AMX[0]


@pytest.mark.parametrize("unit", CUDA, ids=str)
@pytest.mark.parametrize("shape", [(16, 16, 8), (35, 21, 17), (32, 48, 40)], ids=str)
def test_warps_of_a_grid_multiply(unit: MatrixUnit, shape: tuple[int, int, int]) -> None:
    """The ``mma.sync`` units by both interpreters; tf32 keeps 10 mantissa bits, which is exact for small integers."""
    for copies, epilogue in (((1, 1), False), ((2, 4), unit.a.itemsize == 2)):
        sink, inputs = product(*shape, in_memory(unit.a), dtypes.float32, epilogue=epilogue)
        if unit.rounds:
            inputs = {p: np.rint(v * 8).astype(v.dtype) for p, v in inputs.items()}
        want = expected(sink, inputs)[0]
        opts = [tensor_core(axes(sink), *copies, unit=unit.name)]
        close(run_graph(sink, inputs, opts, "PYTHON:G256")[0], want)
        close(run_on("PYTHON:G256", sink, inputs, opts)[0], want)


def test_tf32_is_the_nearest_of_two_the_even_one() -> None:
    one, step = np.float32(1), np.float32(2.0**-10)
    unit = next(u for u in CUDA if u.rounds)
    sink, inputs = product(16, 8, 8, dtypes.float32)
    a, b = inputs
    inputs[b] = np.eye(8, dtype=np.float32)[None]
    inputs[a] = np.zeros((1, 16, 8), np.float32)
    np.fill_diagonal(inputs[a][0], [one + step / 4, one + step / 2, -one - 3 * step / 2, -one + step / 8, 0, 0, 0, 0])
    opts = [tensor_core(axes(sink), unit=unit.name)]
    for got in (run_graph(sink, inputs, opts, "PYTHON:G256")[0], run_on("PYTHON:G256", sink, inputs, opts)[0]):
        assert got.reshape(16, 8).diagonal()[:4].tolist() == [one, one, -one - 2 * step, -one]
    for value in (np.inf, -np.inf, np.nan):
        kept = cast_values(np.array([value], np.float32), dtypes.tf32)
        np.testing.assert_array_equal(kept, np.array([value], np.float32))
    with pytest.raises(DTypeError, match="no dtype 'tf32'"):
        Tensor([1.0]).cast("tf32")


@pytest.mark.parametrize("unit", CUDA, ids=str)
def test_the_lanes_of_a_warp_load_their_own_elements(unit: MatrixUnit) -> None:
    sink, _ = product(32, 32, 32, in_memory(unit.a), dtypes.float32)
    kernel = linearize_on("PYTHON:G256", sink, [tensor_core(axes(sink), unit=unit.name)])
    for opt, why in ((Opt(OptOps.STAGE, 0, ()), "operands per lane"), (Opt(OptOps.GROUP, 2, 2), "cannot be shared")):
        with pytest.raises(ArgumentError, match=why):
            kernel.apply(opt)


@pytest.mark.parametrize("unit", CUDA, ids=str)
def test_several_warps_of_a_block_multiply(unit: MatrixUnit) -> None:
    sink, inputs = product(64, 32, 48, in_memory(unit.a), dtypes.float32)
    inputs = {p: np.rint(v * 8).astype(v.dtype) for p, v in inputs.items()}
    opts = [tensor_core(axes(sink), unit=unit.name), Opt(OptOps.LOCAL, 0, 4), Opt(OptOps.LOCAL, 1, 2)]
    close(run_graph(sink, inputs, opts, "PYTHON:G256")[0], expected(sink, inputs)[0])
    close(run_on("PYTHON:G256", sink, inputs, opts)[0], expected(sink, inputs)[0])

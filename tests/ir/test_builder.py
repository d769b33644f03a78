"""Hand-built programs: right on every device, and refused with a reason if invalid."""
from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.backend.opencl import needs_opencl
from tests.codegen.kernels import Case, kernels
from tests.codegen.running import NATIVE
from tests.codegen.running import buffers as buffers_of
from tests.codegen.running import run_program as run_on_arrays
from tests.codegen.test_matrix import product
from tests.golden.running import ROOT
from tinsmith.backend.device import Device
from tinsmith.codegen.compile_kernel import assemble, compile_kernel
from tinsmith.compat.schedules import BinaryOps, TernaryOps, UnaryOps, UOps
from tinsmith.core.dtypes import DType, dtypes
from tinsmith.core.errors import ArgumentError, VerifyError
from tinsmith.ir import Ops, ProgramBuilder, UOp
from tinsmith.ir.builder import Value
from tinsmith.ir.verify import verify_program
from tinsmith.runtime.custom_program import run_program, source_of
from tinsmith.tools.ir_page import document

DEVICES = [*NATIVE, "PYTHON", "OPENCL"]
on_every_device = pytest.mark.parametrize("device", DEVICES, indirect=True)
Build = Callable[..., Any]


@pytest.fixture
def device(request: pytest.FixtureRequest) -> str:
    if request.param == "OPENCL":
        needs_opencl()
    return str(request.param)


def const(g: ProgramBuilder, value: Any, dtype: DType = dtypes.int32) -> Value:
    return g.add(UOps.CONST, dtype, arg=value)


def buffers(g: ProgramBuilder, *types: DType) -> list[Value]:
    return [g.add(UOps.DEFINE_GLOBAL, dtype=d, vin=(), arg=(n, f"data{n}", n == 0)) for n, d in enumerate(types)]


def loop(g: ProgramBuilder, begin: int, end: int) -> Value:
    return g.add(UOps.LOOP, dtype=dtypes.int, vin=(const(g, begin), const(g, end)))


def alu(g: ProgramBuilder, op: Any, *src: Value, dtype: DType | None = None) -> Value:
    return g.add(UOps.ALU, dtype=dtype, vin=src, arg=op)


@on_every_device
@pytest.mark.parametrize("begin, end", [(0, 5), (3, 5), (4, 5), (0, 1)])
def test_a_sum_over_a_part(device: str, begin: int, end: int) -> None:
    g = ProgramBuilder()
    out, x = buffers(g, dtypes.float32, dtypes.float32)
    acc = g.add(UOps.DEFINE_ACC, dtypes.float32, arg=10.0)
    i = loop(g, begin, end)
    value = g.add(UOps.LOAD, dtype=dtypes.float32, vin=(x, i))
    new = g.add(UOps.PHI, dtypes.float32, vin=(acc, alu(g, BinaryOps.ADD, acc, value), i))
    g.add(UOps.ENDLOOP, vin=(i,))
    g.add(UOps.STORE, vin=(out, const(g, 0), new))
    found = np.zeros(1, np.float32)
    values = np.arange(1, 6, dtype=np.float32)
    run_program(g, found, values, device=device)
    assert found[0] == 10 + values[begin:end].sum()


@on_every_device
def test_nested_loops_with_computed_places(device: str) -> None:
    """A transposed product of loop counters and loaded values; indices are sums and products of counters."""
    g = ProgramBuilder()
    out, x = buffers(g, dtypes.int32, dtypes.int32)
    i = loop(g, 0, 3)
    j = loop(g, 0, 4)
    three, four = const(g, 3), const(g, 4)
    at = alu(g, BinaryOps.ADD, alu(g, BinaryOps.MUL, i, four), j)
    to = alu(g, BinaryOps.ADD, alu(g, BinaryOps.MUL, j, three), i)
    value = alu(g, BinaryOps.MUL, g.add(UOps.LOAD, dtypes.int32, vin=(x, at)), alu(g, BinaryOps.ADD, i, j))
    g.add(UOps.STORE, vin=(out, to, value))
    g.add(UOps.ENDLOOP, vin=(j,))
    g.add(UOps.ENDLOOP, vin=(i,))
    x_values = np.arange(12, dtype=np.int32).reshape(3, 4)
    found = np.zeros((4, 3), np.int32)
    run_program(g, found, x_values, device=device)
    assert (found == (x_values * np.add.outer(np.arange(3), np.arange(4))).T).all()


@on_every_device
def test_an_integer_argument_bounds_a_loop_and_enters_the_value(device: str) -> None:
    """The tutorial's loop runs from a constant to an argument, zero times if the range is empty."""
    g = ProgramBuilder()
    c0 = g.add(UOps.CONST, dtypes.int, arg=10)
    c1 = g.add(UOps.DEFINE_GLOBAL, dtype=dtypes.int, vin=(), arg=(0, "data0", True))
    out = g.add(UOps.DEFINE_GLOBAL, dtype=dtypes.int, vin=(), arg=(1, "data1", True))
    i = g.add(UOps.LOOP, dtype=dtypes.int, vin=(c0, c1))
    g.add(UOps.STORE, vin=(out, i, alu(g, BinaryOps.MUL, i, c1)))
    g.add(UOps.ENDLOOP, vin=(i,))
    for n in (14, 10, 3):
        found = np.zeros(16, np.int32)
        run_program(g, found, device=device, variables={"data0": n})
        wanted = np.zeros(16, np.int32)
        wanted[10:n] = np.arange(10, max(n, 10)) * n
        assert (found == wanted).all(), n


@on_every_device
def test_what_is_read_after_a_store_is_another_value(device: str) -> None:
    g = ProgramBuilder()
    (x,) = buffers(g, dtypes.int32)
    zero, one = const(g, 0), const(g, 1)
    for _ in range(3):
        g.add(UOps.STORE, vin=(x, zero, alu(g, BinaryOps.ADD, g.add(UOps.LOAD, dtypes.int32, vin=(x, zero)), one)))
    found = np.array([5], np.int32)
    run_program(g, found, device=device)
    assert found[0] == 8


@on_every_device
def test_a_condition_and_a_loaded_place(device: str) -> None:
    """out[index[i]] = |x[i]| where x[i] < 3, by IF, with casts and selects."""
    g = ProgramBuilder()
    out, index, x = buffers(g, dtypes.float32, dtypes.int64, dtypes.int8)
    i = loop(g, 0, 6)
    value = g.add(UOps.CAST, dtypes.float32, vin=(g.add(UOps.LOAD, dtypes.int8, vin=(x, i)),))
    place = g.add(UOps.LOAD, dtypes.int64, vin=(index, i))
    size = alu(g, TernaryOps.WHERE, alu(g, BinaryOps.CMPLT, value, const(g, 0.0, dtypes.float32)),
               alu(g, UnaryOps.NEG, value), value)
    few = g.add(UOps.IF, vin=(alu(g, BinaryOps.CMPLT, value, const(g, 3.0, dtypes.float32)),))
    g.add(UOps.STORE, vin=(out, place, size))
    g.add(UOps.ENDIF, vin=(few,))
    g.add(UOps.ENDLOOP, vin=(i,))
    values, places = np.array([1, -2, 3, 4, -5, 2], np.int8), np.array([5, 4, 3, 2, 1, 0])
    found = np.full(6, 77, np.float32)
    run_program(g, found, places, values, device=device)
    wanted = np.full(6, 77, np.float32)
    wanted[places[values < 3]] = np.abs(values[values < 3])
    assert (found == wanted).all()


@on_every_device
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64, dtypes.uint8, dtypes.int64])
def test_division_and_accumulation_in_two_loops(device: str, dtype: DType) -> None:
    """Column sums divided by three: the accumulator belongs to the inner loop only."""
    g = ProgramBuilder()
    out, x = buffers(g, dtype, dtype)
    j = loop(g, 0, 4)
    acc = g.add(UOps.DEFINE_ACC, dtype, arg=0)
    i = loop(g, 0, 3)
    at = alu(g, BinaryOps.ADD, alu(g, BinaryOps.MUL, i, const(g, 4)), j)
    wide = g.add(UOps.LOAD, dtype, vin=(x, at))
    new = g.add(UOps.PHI, dtype, vin=(acc, alu(g, BinaryOps.ADD, acc, wide)))
    g.add(UOps.ENDLOOP, vin=(i,))
    divided = alu(g, BinaryOps.DIV, new, const(g, 3, dtype))
    g.add(UOps.STORE, vin=(out, j, divided))
    g.add(UOps.ENDLOOP, vin=(j,))
    values = np.arange(12).reshape(3, 4).astype(dtype.numpy)
    found = np.zeros(4, dtype.numpy)
    run_program(g, found, values, device=device)
    total = values.sum(0)
    assert (found == ((total / 3).astype(dtype.numpy) if dtype.is_float else total // 3)).all()


def blocks() -> ProgramBuilder:
    """Each block of four threads reverses its part through local memory."""
    g = ProgramBuilder()
    out, x = buffers(g, dtypes.int32, dtypes.int32)
    near = g.add(UOps.DEFINE_LOCAL, dtypes.int32, arg=("tmp0", 4))
    block, thread = (g.add(UOps.SPECIAL, dtypes.int32, arg=(n, size)) for n, size in (("gidx0", 3), ("lidx0", 4)))
    at = alu(g, BinaryOps.ADD, alu(g, BinaryOps.MUL, block, const(g, 4)), thread)
    g.add(UOps.STORE, vin=(near, thread, g.add(UOps.LOAD, dtypes.int32, vin=(x, at))))
    g.add(UOps.BARRIER)
    back = alu(g, BinaryOps.SUB, const(g, 3), thread)
    g.add(UOps.STORE, vin=(out, at, g.add(UOps.LOAD, dtypes.int32, vin=(near, back))))
    return g


@pytest.mark.parametrize("device", ["PYTHON", "OPENCL"], indirect=True)
def test_threads_of_a_block_meet_at_a_barrier(device: str) -> None:
    found = np.zeros((3, 4), np.int32)
    run_program(blocks(), found, np.arange(12, dtype=np.int32), device=device)
    assert (found == np.arange(12).reshape(3, 4)[:, ::-1]).all()


@on_every_device
@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16])
def test_halves_are_cast_to_be_computed_with(device: str, dtype: DType) -> None:
    for casts in (False, True):
        g = ProgramBuilder()
        out, x = buffers(g, dtype, dtype)
        i = loop(g, 0, 4)
        value = g.add(UOps.LOAD, dtype, vin=(x, i))
        if casts:
            wide = g.add(UOps.CAST, dtypes.float32, vin=(value,))
            value = g.add(UOps.CAST, dtype, vin=(alu(g, BinaryOps.MUL, wide, wide),))
        else:
            value = alu(g, BinaryOps.MUL, value, value)
        g.add(UOps.STORE, vin=(out, i, value))
        g.add(UOps.ENDLOOP, vin=(i,))
        values = np.array([1.5, -2, 0.25, 3]).astype(dtype.numpy)
        found = np.zeros(4, dtype.numpy)
        if casts:
            run_program(g, found, values, device=device)
            assert (found == values * values).all()
        else:
            with pytest.raises(ArgumentError, match="does not compute in"):
                run_program(g, found, values, device=device)


def test_a_device_without_blocks_refuses_them() -> None:
    with pytest.raises(ArgumentError, match=r"needs blocks of [0-9]+ threads; those of CPU have at most 0"):
        run_program(blocks(), np.zeros(12, np.int32), np.zeros(12, np.int32), device="CPU")


def test_the_tutorials_dot_product_is_the_list_of_its_page() -> None:
    g = ProgramBuilder()
    out, a, b = buffers(g, dtypes.int32, dtypes.int32, dtypes.int32)
    acc = g.add(UOps.DEFINE_ACC, dtypes.int, arg=0)
    zero, i = const(g, 0), loop(g, 0, 2)
    x, y = (g.add(UOps.LOAD, dtypes.int, vin=(m, i)) for m in (a, b))
    total = alu(g, BinaryOps.ADD, alu(g, BinaryOps.MUL, x, y), acc)
    new = g.add(UOps.PHI, dtypes.int, vin=(acc, total, i))
    g.add(UOps.ENDLOOP, vin=(i,))
    g.add(UOps.STORE, vin=(out, zero, new))
    assert [u.op.name for u in g.uops if u.op is not Ops.CONST] == [
        "DEFINE_GLOBAL", "DEFINE_GLOBAL", "DEFINE_GLOBAL", "DEFINE_ACC", "RANGE", "LOAD", "LOAD", "MUL", "ADD", "PHI",
        "ENDRANGE", "STORE"]
    assert "for (int ridx0 = 0; ridx0 < 2; ridx0++)" in source_of(g)


def _open_loop(g: ProgramBuilder) -> None:
    loop(g, 0, 2)


def _crossed(g: ProgramBuilder) -> None:
    i, j = loop(g, 0, 2), loop(g, 0, 2)
    g.add("ENDLOOP", vin=(i,))
    g.add("ENDLOOP", vin=(j,))


def _foreign(g: ProgramBuilder) -> None:
    g.add("STORE", vin=(const(ProgramBuilder(), 1),) * 3)


def _mixed(g: ProgramBuilder) -> None:
    alu(g, Ops.ADD, const(g, 1), const(g, 1.0, dtypes.float32))


def _loose_phi(g: ProgramBuilder) -> None:
    acc = g.add("DEFINE_ACC", dtypes.int32, arg=0)
    g.add("PHI", vin=(acc, const(g, 1)))


def _phi_in_if(g: ProgramBuilder) -> None:
    acc = g.add("DEFINE_ACC", dtypes.int32, arg=0)
    i = loop(g, 0, 2)
    few = g.add("IF", vin=(alu(g, Ops.CMPLT, i, const(g, 1)),))
    g.add("PHI", vin=(acc, const(g, 1)))
    g.add("ENDIF", vin=(few,))
    g.add("ENDLOOP", vin=(i,))


@pytest.mark.parametrize("build, message", [
    (_open_loop, "never closed"), (_crossed, "does not close the innermost loop or condition"),
    (_foreign, "not a value of this program"), (_mixed, "different dtypes"), (_loose_phi, "is not inside a loop"),
    (_phi_in_if, "WHERE"), (lambda g: g.add("FIRE"), "there is no op 'FIRE'"),
    (lambda g: g.add("ALU", vin=()), "ALU needs the op"), (lambda g: g.add("ADD"), "takes 2 values"),
    (lambda g: g.add("DEFINE_ACC", dtypes.int32, arg=0), "is never updated"),
    (lambda g: alu(g, Ops.MUL, g.add("CONST", arg=1), const(g, 2)), "needs a dtype")])
def test_what_makes_no_sense_is_refused(build: Build, message: str) -> None:
    g = ProgramBuilder()
    with pytest.raises(ArgumentError, match=message):
        build(g)
        g.program()


def test_a_program_that_breaks_a_rule_is_shown_with_the_line_marked() -> None:
    g = ProgramBuilder()
    (x,) = buffers(g, dtypes.int32)
    i = loop(g, 0, 2)
    value = g.add("LOAD", dtypes.int32, vin=(x, i))
    g.add("ENDLOOP", vin=(i,))
    g.add("STORE", vin=(x, const(g, 0), value))
    with pytest.raises(VerifyError, match=r"STORE.*<-- defined"):
        g.program()


@pytest.mark.parametrize("arrays, variables, message", [
    ((), {}, "takes 1 arrays"), ((np.zeros(2),), {}, r"holds dtypes.int, got float64"),
    ((np.zeros(2, np.int32),), {"m": 1}, r"takes the variables \[\]")])
def test_wrong_arguments_are_refused(arrays: tuple[Any, ...], variables: dict[str, int], message: str) -> None:
    g = ProgramBuilder()
    (x,) = buffers(g, dtypes.int32)
    g.add("STORE", vin=(x, const(g, 0), const(g, 1)))
    with pytest.raises(ArgumentError, match=message):
        run_program(g, *arrays, variables=variables)


def test_the_page_is_that_of_the_table() -> None:
    assert (ROOT / "docs" / "ir.md").read_text("utf-8") == document(), "python -m tinsmith ir > docs/ir.md"


@settings(max_examples=40, deadline=None)
@given(kernels, st.booleans())
def test_a_kernels_own_lines_written_again_compute_the_same(case: Case, chosen: bool) -> None:
    """A linearized kernel, vectors included, rebuilt node by node with ``ProgramBuilder`` computes the same."""
    made = compile_kernel(case.sink, Device["PYTHON"].renderer, None if chosen else ())
    g = ProgramBuilder()
    values: dict[UOp, Value] = {}
    for u in made.uops:
        for constant in (s for s in u.src if s.op is Ops.CONST and s not in values):
            values[constant] = g.add(Ops.CONST, constant.dtype, arg=constant.arg)
        if u.op is Ops.DEFINE_ACC:  # its loops stand below it
            values[u] = g.add(u.op, u.dtype, [values[u.src[0]]])
        elif u.op is Ops.DEFINE_GLOBAL and not u.dtype.pointer:
            values[u] = g.add(u.op, u.dtype, arg=(-1, u.arg[0], False))
        else:
            values[u] = g.add(u.op, u.dtype, [values[s] for s in u.src], u.arg)
    again = g.program()
    launch, source = assemble(made.name, again, Device["PYTHON"].renderer)
    whole = dataclasses.replace(made, **vars(launch), source=source, uops=again)
    named = {v.arg[0]: int(x) for v, x in case.inputs.items() if v.op is Ops.VARIABLE}
    results = []
    for program in (made, whole):
        arrays = buffers_of(case.sink, case.inputs)
        run_on_arrays("PYTHON", program, arrays, [named[name] for name in program.variables])
        results.append(arrays[: len(case.sink.src)])
    for a, b in zip(*results):
        assert a.tobytes() == b.tobytes()


def test_memory_that_only_tiles_read_is_memory() -> None:
    """The builder took a buffer that only LOAD_TILE reads for an integer."""
    g = ProgramBuilder()
    sink, _ = product(3, 16, 15, dtypes.bfloat16, dtypes.float32, "", False, 1)
    made = compile_kernel(sink, Device["PYTHON"].renderer)
    memory = {u for u in made.uops if u.op is Ops.DEFINE_GLOBAL}
    assert memory - {u.src[0] for u in made.uops if u.op in (Ops.LOAD, Ops.STORE)}
    values: dict[UOp, Value] = {}
    for u in made.uops:
        values |= {s: g.add(Ops.CONST, s.dtype, arg=s.arg) for s in u.src if s.op is Ops.CONST and s not in values}
        sources = u.src[:1] if u.op is Ops.DEFINE_ACC else u.src
        values[u] = g.add(u.op, u.dtype, [values[s] for s in sources], None if u.op is Ops.DEFINE_ACC else u.arg)
    verify_program(g.program())

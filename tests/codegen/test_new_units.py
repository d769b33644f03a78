"""A matrix unit is defined by a data row, its text and tests: units that no machine has, and where real ones are
named."""
from __future__ import annotations

import dataclasses
import re
import sys
from pathlib import Path

import pytest

from tests.codegen.running import buffers, expected, run_program
from tests.codegen.test_dots import TARGET, case
from tests.codegen.test_matrix import close, product, tensor_core
from tests.golden.running import ROOT
from tinsmith.backend.cpu.llvm import host_features
from tinsmith.backend.device import Device
from tinsmith.backend.python.render import PythonRenderer
from tinsmith.codegen.compile_kernel import begin, compile_kernel
from tinsmith.codegen.opt import OptOps
from tinsmith.codegen.render import llvm_arithmetic
from tinsmith.codegen.render.base import Renderer
from tinsmith.codegen.render.llvm import LLVMRenderer
from tinsmith.core.dtypes import DType, dtypes
from tinsmith.core.errors import ArgumentError
from tinsmith.ir import Ops
from tinsmith.ir.interpret.kernel import evaluate_kernel
from tinsmith.ir.matrix_unit import Fragment, MatrixUnit, UnitTile
from tinsmith.ir.structure import Role
from tinsmith.ir.verify import verify_kernel
from tinsmith.target.schedule_costs import CUTS_FOR_CORES, GRID_COSTS
from tinsmith.target.target import Target
from tinsmith.target.units import amd, apple, nvidia, x86

sys.path.insert(0, str(ROOT / "examples" / "accelerator"))

from anvil.device import TARGET as ANVIL_TARGET
from anvil.device import UNIT as ANVIL
from anvil.renderer import AnvilRenderer

F16, F32, I8, I16, I32 = dtypes.float16, dtypes.float32, dtypes.int8, dtypes.int16, dtypes.int32


def tiled(*registers: tuple[int, int, int]) -> Fragment:
    """A fragment of a unit that loads and stores its tiles itself."""
    return Fragment(registers, whole=True)


def unit(name: str, sizes: tuple[int, int, int], a: DType, acc: DType, *fragments: Fragment,
         threads: int = 1) -> MatrixUnit:
    m, n, k = sizes
    return MatrixUnit(name, "any", m, n, k, a, a, acc, threads, *fragments, "made_up", accumulators=8, registers=16,
                      rate=64.0 * m * n * k, load=1.0)


MADE_UP = (
    unit("square", (4, 4, 4), F16, F32, *3 * (tiled((4, 0, 1), (4, 1, 0)),)),
    unit("outer", (8, 8, 1), F32, F32, tiled((8, 1, 0), (1, 0, 1)), tiled((8, 0, 1), (1, 1, 0)),
         tiled((8, 0, 1), (8, 1, 0))),
    unit("eights", (2, 2, 8), I8, I32, tiled((8, 0, 1), (2, 1, 0)), tiled((8, 1, 0), (2, 0, 1)),
         tiled((2, 0, 1), (2, 1, 0))),
    unit("odd", (3, 5, 2), F32, F32, tiled((2, 0, 1), (3, 1, 0)), tiled((5, 0, 1), (2, 1, 0)),
         tiled((5, 0, 1), (3, 1, 0))),
    unit("columns", (4, 8, 2), F32, F32, tiled((4, 1, 0), (2, 0, 1)), tiled((8, 0, 1), (2, 1, 0)),
         tiled((4, 1, 0), (8, 0, 1))),
    unit("halves_of_a_warp", (16, 16, 16), F16, F32, Fragment(((8, 0, 1),), ((2, 0, 8), (16, 1, 0))),
         Fragment(((8, 1, 0),), ((2, 8, 0), (16, 0, 1))), Fragment(((8, 1, 0),), ((16, 0, 1), (2, 8, 0))), threads=32),
    unit("an_element_each", (8, 4, 1), F32, F32, Fragment(((1, 0, 0),), ((8, 1, 0), (4, 0, 0))),
         Fragment(((1, 0, 0),), ((8, 0, 0), (4, 0, 1))), Fragment(((1, 0, 0),), ((8, 1, 0), (4, 0, 1))), threads=32),
)


def machine(row: MatrixUnit) -> Target:
    """A target with this unit only."""
    if row.threads == 1:
        return Target("python", 64, fma=True, units=(row,))
    return Target("python", 16, local_bytes=48 << 10, block_threads=256, warp=32, parallel=Role.GLOBAL,
                  costs=GRID_COSTS._replace(cuts=CUTS_FOR_CORES), cores=4, units=(row,))


@pytest.mark.parametrize("transposed", ["", "ab"])
@pytest.mark.parametrize("row", [*MADE_UP, dataclasses.replace(ANVIL, name="anvil")], ids=str)
def test_a_row_is_all_that_opts_plans_and_interpreters_need(row: MatrixUnit, transposed: str) -> None:
    """Sizes not divisible by the tile, with a prologue and an epilogue, by an explicit opt and by default."""
    target = machine(row)
    for copies, shape in (((1, 1), (5, 7, 9)), ((2, 2), (17, 19, 18))):
        sink, inputs = product(*shape, row.a, row.acc, transposed, epilogue=True)
        (want,), kernel = expected(sink, inputs), begin(sink, target)
        m, n = (kernel.ranges.index(r) for r in kernel.parallel[-2:])
        opts = [tensor_core((m, n, kernel.ranges.index(kernel.reduces[0])), *copies, unit=row.name)]
        kernel.apply(opts[0])
        verify_kernel(kernel.sink)
        assert [p.arg for p in kernel.products] == [row]
        arrays = buffers(sink, inputs)
        evaluate_kernel(kernel.sink, arrays, {})
        close(arrays[0], want)
        for chosen in (opts, None):
            arrays = buffers(sink, inputs)
            run_program("PYTHON", compile_kernel(sink, PythonRenderer(target), chosen), arrays)
            close(arrays[0], want)


def staged(name: str, sizes: tuple[int, int, int], threads: int, tile: UnitTile,
           *of_sums: Fragment) -> MatrixUnit:
    """A unit that reads both operands from slots of a ring."""
    m, n, k = sizes
    found = unit(name, sizes, F16, F32, Fragment(((k, 0, 1), (m, 1, 0))), Fragment(((k, 1, 0), (n, 0, 1))), *of_sums,
                 threads=threads)
    return dataclasses.replace(found, staged=True, tiles=(tile,))


@pytest.mark.parametrize("row", [
    staged("two_warps", (32, 64, 32), 64, UnitTile(1, 4, 1.0), Fragment(((2, 0, 1), (2, 8, 0), (8, 0, 8)),
                                                                 ((4, 0, 2), (8, 1, 0), (2, 16, 0)))),
    staged("a_slot_a_step", (16, 64, 64), 32, UnitTile(4, 2, 1.0), Fragment(((32, 0, 2),), ((2, 0, 1), (16, 1, 0)))),
], ids=str)
def test_a_unit_that_reads_a_ring_is_a_row_too(row: MatrixUnit) -> None:
    """With only its row, a target with bulk copies uses rings for the unit by default."""
    target = dataclasses.replace(Device["PYTHON:G256:B232448"].renderer.target, units=(row,))
    for shape in ((128, 128, 128), (100, 136, 72)):
        sink, inputs = product(*shape, F16)
        kernel = compile_kernel(sink, PythonRenderer(target))
        assert [o.unit for o in kernel.opts if o.op is OptOps.TC] == [row.name]
        assert any(u.op is Ops.DEFINE_RING for u in kernel.uops)
        arrays = buffers(sink, inputs)
        run_program("PYTHON", kernel, arrays)
        close(arrays[0], expected(sink, inputs)[0])


def uses_unit(dtype: DType, renderer: Renderer) -> bool:
    kernel = compile_kernel(product(64, 64, 64, dtype)[0], renderer)
    return any(o.op is OptOps.TC for o in kernel.opts) and any(u.op is Ops.MMA for u in kernel.uops)


def test_without_its_row_a_unit_is_not_there() -> None:
    """The list of units of a target is the only source of a unit."""
    dot = x86.DOT[0]
    anvil = dataclasses.replace(ANVIL_TARGET, units=())
    others = dataclasses.replace(TARGET, units=tuple(u for u in TARGET.units if u is not dot))
    assert uses_unit(F32, AnvilRenderer(ANVIL_TARGET)) and not uses_unit(F32, AnvilRenderer(anvil))
    assert uses_unit(dot.a, LLVMRenderer(TARGET)) and not uses_unit(dot.a, LLVMRenderer(others))


def test_units_are_named_by_their_table_and_by_what_writes_their_text() -> None:
    """No pass, planner, scheduler or device tests for a unit by its name or instruction."""
    rows = (*x86.AMX, *x86.DOT, *nvidia.CUDA, *nvidia.HOPPER, *amd.RDNA3, *apple.APPLE, ANVIL)
    names = {x for u in rows for x in (u.name, u.emit)}
    pattern = re.compile("|".join(rf"\b{re.escape(name)}\b" for name in sorted(names)))
    found = {path.relative_to(ROOT / "tinsmith").as_posix(): sorted(set(pattern.findall(path.read_text("utf-8"))))
             for path in sorted(Path(ROOT / "tinsmith").rglob("*.py"))}
    seen = {path for path, names_there in found.items() if names_there}
    assert seen <= {"target/units/x86.py", "target/units/nvidia.py", "target/units/amd.py", "target/units/apple.py",
                    "codegen/render/llvm_arithmetic.py", "backend/cpu/llvm.py"}, (
        "the last: what LLVM must not see")


def test_the_tables_are_listed_by_targets_alone() -> None:
    tables = re.compile(r"\b(?:x86|nvidia|amd|apple)\.(AMX|DOT|CUDA|HOPPER|RDNA3|APPLE)\b|"
                        r"from tinsmith\.target\.units\.\w+ import .*\b[A-Z]{3,}\b")
    using = {path.relative_to(ROOT / "tinsmith").as_posix() for path in (ROOT / "tinsmith").rglob("*.py")
             if tables.search(path.read_text("utf-8"))}
    assert using == {"backend/cpu/device.py", "backend/python/device.py", "codegen/render/cuda.py",
                     "codegen/render/hip.py", "codegen/render/metal.py"}, "each of them makes a Target"


def test_a_dot_product_of_half_vectors_is_a_row_and_a_form(monkeypatch: pytest.MonkeyPatch) -> None:
    """AVX512-VNNI on 32 bytes, which no table has: a row, and a line that names the intrinsic."""
    llvm = pytest.importorskip("llvmlite.binding")
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    narrow = MatrixUnit("narrow_s16", "x86_64", 1, 8, 2, I16, I16, I32, 1, tiled((2, 0, 1), (1, 1, 0)),
                        tiled((2, 1, 0), (8, 0, 1), (1, 2, 0)), tiled((8, 0, 1), (1, 1, 0)), "narrow_s16",
                        ("avx512vl", "avx512vnni"), 24, 32, 64.0, 0.65, 0.9)
    monkeypatch.setitem(llvm_arithmetic.FORMS, "narrow_s16", llvm_arithmetic.UnitForm("llvm.x86.avx512.vpdpwssd.256"))
    target = dataclasses.replace(TARGET, units=(narrow,))
    sink, inputs = case(narrow, 24, 64, 64)
    kernel = compile_kernel(sink, LLVMRenderer(target), [tensor_core((0, 1, 2), 4, 4, unit="narrow_s16")])
    to = llvm.Target.from_triple("x86_64-unknown-linux-gnu").create_target_machine(
        features="+avx512f,+avx512bw,+avx512vl,+avx512dq,+avx512vnni", opt=2)
    module = llvm.parse_assembly(kernel.source)
    module.verify()
    text = to.emit_assembly(module)
    assert len(re.findall(r"vpdpwssd.*%ymm", text)) == 16 and not re.search(r"vpdpwssd.*%zmm", text)
    if host_features().issuperset(narrow.requires):
        arrays = buffers(sink, inputs)
        run_program("CPU", kernel, arrays)
        close(arrays[0], expected(sink, inputs)[0])


@pytest.mark.parametrize("change, said", [
    ({"fragment_b": tiled((4, 0, 1), (3, 1, 0))}, "fragment_b covers 12 elements of 3 rows and 4 columns"),
    ({"fragment_a": tiled((4, 0, 1), (4, 0, 1))}, "fragment_a covers 16 elements of 1 rows and 7 columns"),
    ({"k": 8}, "fragment_a covers 16 elements of 4 rows and 4 columns, but a is 4 × 8"),
    ({"fragment_c": tiled((2, 0, 1), (2, 1, 0), (2, 0, 2), (2, 2, 0))}, "fragment_c has neither adjacent rows"),
], ids=["too few", "one row", "depth", "blocks"])
def test_a_row_that_cannot_be_so_is_refused_where_it_is_written(change: dict[str, object], said: str) -> None:
    with pytest.raises(ArgumentError, match=re.escape(said)):
        dataclasses.replace(MADE_UP[0], **change)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=re.escape(Path(__file__).name)):
        MatrixUnit(**vars(MADE_UP[0]) | change)  # type: ignore[arg-type]

"""Pictures of layouts show the positions of elements: checked against manuals and against running kernels."""
from __future__ import annotations

import numpy as np
import pytest

from tests.codegen.test_dots import TARGET
from tests.codegen.test_matrix import product
from tinsmith.backend.device import Device
from tinsmith.codegen.compile_kernel import begin, choose
from tinsmith.codegen.opt import Opt, OptOps
from tinsmith.core.dtypes import dtypes
from tinsmith.ir.matrix_unit import MatrixUnit, StagedLayout
from tinsmith.target.units import nvidia, x86
from tinsmith.viz import drawing


def cells(picture: str) -> list[list[str]]:
    return [line.split() for line in picture.splitlines()]


def test_a_fragment_is_that_of_the_manual() -> None:
    """PTX ISA, "Matrix fragments for mma.m16n8k16": row = lane / 4 (+ 8 for registers 2 and 3)."""
    rows = cells(drawing.fragment(nvidia.CUDA[0], "c"))[1:]
    for lane in range(32):
        for register in range(4):
            row, column = lane // 4 + register // 2 * 8, lane % 4 * 2 + register % 2
            assert rows[row][1 + column] == f"l{lane}.{register}"


@pytest.mark.parametrize("unit", [*x86.AMX, *x86.DOT, nvidia.CUDA[2], nvidia.HOPPER[3]], ids=str)
@pytest.mark.parametrize("operand", "abc")
def test_a_fragment_shows_every_place_once(unit: MatrixUnit, operand: str) -> None:
    """The full picture of a fragment has one distinct cell per register element."""
    rows = [row[1:] for row in cells(drawing.fragment(unit, operand, 999, 999))[1:]]
    found = [cell for row in rows for cell in row]
    fragment = getattr(unit, f"fragment_{operand}")
    assert len(set(found)) == len(found) == fragment.places().shape[0] * fragment.size
    part = cells(drawing.fragment(unit, operand, 1, 1))
    assert part[1][1] == rows[0][0]
    assert [part[-1] == ["…"], "…" in part[0]] == [len(rows) > 1, len(rows[0]) > 1]


def test_pairs_of_a_tile_of_amx_lie_side_by_side() -> None:
    """Intel's manual: row r of the tile of b holds b[2r, n] and b[2r + 1, n] in 32-bit lane n."""
    rows = cells(drawing.fragment(x86.AMX[0], "b", 4, 4))[1:]
    assert rows[0][1:3] == ["0", "2"] and rows[1][1:3] == ["1", "3"] and rows[2][1] == "32"


@pytest.mark.parametrize("columns", [32, 64, 128])
def test_eight_rows_of_a_piece_lie_in_different_banks(columns: int) -> None:
    """The swizzle avoids bank conflicts for any element size, and is injective."""
    tile = StagedLayout(16, columns, 2, deep=True)
    size = 128 // columns
    for piece in range(0, columns, 16 // size):
        assert len({tile.byte(row, piece) % 128 // 16 for row in range(8)}) == 8
    assert len({tile.byte(r, c) for r in range(16) for c in range(2 * columns)}) == tile.elements
    drawn = [row[2:] for row in cells(drawing.swizzle(tile))[1:]]
    assert all(len({row[n] for row in drawn}) == 8 for n in range(8))


def test_lanes_and_copies_of_a_result() -> None:
    kernel = begin(product(8, 16, 32, dtypes.float32)[0], Device["PYTHON:V16"].renderer.target)
    for opt in (Opt(OptOps.UPCAST, 0, 2), Opt(OptOps.VECTOR, 1, 4), Opt(OptOps.UPCAST, 1, 2)):
        kernel.apply(opt)
    assert cells(drawing.result(kernel)) == [["+0", "r0[0…3]", "r1[0…3]"], ["+32", "r2[0…3]", "r3[0…3]"]]


def test_threads_of_a_block() -> None:
    kernel = begin(product(8, 16, 32, dtypes.float32)[0], Device["PYTHON:G64"].renderer.target)
    for opt in (Opt(OptOps.LOCAL, 1, 4), Opt(OptOps.UPCAST, 0, 2)):
        kernel.apply(opt)
    assert cells(drawing.result(kernel)) == [[f"+{at}", *(x for t in range(4) for x in (f"t{t}", f"r{n}"))]
                                             for n, at in enumerate((0, 32))]


def test_a_panel_lists_what_is_packed() -> None:
    """A packed panel has pairs of rows of b interleaved, as the unit reads them."""
    kernel = begin(product(64, 64, 64)[0], TARGET)
    choose(kernel, TARGET)
    title, *rows = drawing.panels(kernel, rows=2, cells=6).splitlines()
    assert title.startswith("data2 in ") and rows[0].split() == ["0:", "0", "64", "1", "65", "2", "66", "…"]
    sizes = np.array([int(x) for x in title.removeprefix("data2 in ").split(" × ")])
    assert rows[1].split()[0] == f"{sizes[1:].prod()}:"

"""The table of matrix units: every row's layout maps each element once, and its step is a matrix product."""
from __future__ import annotations

import numpy as np
import pytest

from tests.codegen.units import MMA_SYNC
from tinsmith.core.dtypes import dtypes
from tinsmith.ir.matrix_unit import Fragment, MatrixUnit, available
from tinsmith.target.units.x86 import AMX, fma

ROWS = (*AMX, *MMA_SYNC, *(fma(d, n) for d in (dtypes.float32, dtypes.float64) for n in (16, 32, 64)))


@pytest.mark.parametrize("unit", ROWS, ids=str)
def test_every_element_has_one_place(unit: MatrixUnit) -> None:
    for fragment, shape in ((unit.fragment_a, (unit.m, unit.k)), (unit.fragment_b, (unit.k, unit.n)),
                            (unit.fragment_c, (unit.m, unit.n))):
        places = fragment.places()
        assert places.shape[:2] in ((unit.threads, fragment.size), (1, fragment.size))
        flat = np.sort((places[..., 0] * shape[1] + places[..., 1]).reshape(-1))
        np.testing.assert_array_equal(flat, np.arange(shape[0] * shape[1]))


@pytest.mark.parametrize("unit", ROWS, ids=str)
def test_a_step_is_a_product(unit: MatrixUnit) -> None:
    random = np.random.default_rng(0)
    a, b, c = (random.integers(0, 9, shape).astype(d.numpy) for shape, d in (
        ((unit.m, unit.k), unit.a), ((unit.k, unit.n), unit.b), ((unit.m, unit.n), unit.acc)))
    fragments = [f.places() for f in (unit.fragment_c, unit.fragment_a, unit.fragment_b)]
    held = [x[p[..., 0], p[..., 1]] for x, p in zip((c, a, b), fragments)]
    want = c + a.astype(unit.acc.numpy) @ b.astype(unit.acc.numpy)
    got = unit.multiply(*held)
    np.testing.assert_array_equal(got, want[fragments[0][..., 0], fragments[0][..., 1]])
    assert got.dtype == unit.acc.numpy


def test_rows_are_chosen_by_features() -> None:
    assert available(AMX, "x86_64", frozenset({"amx-tile", "amx-bf16"})) == AMX[:1]
    assert available(AMX, "x86_64", frozenset({"amx-bf16"})) == ()
    assert available(AMX, "arm64", frozenset({"amx-tile", "amx-bf16"})) == ()
    unit = fma(dtypes.float32, 64)
    assert available((unit,), "riscv64", frozenset()) == (unit,)


def test_a_fragment_reads_as_its_digits_say() -> None:
    pairs = Fragment(((2, 1, 0), (3, 0, 1)), ((2, 2, 0),))
    assert pairs.size == 6
    assert pairs.places()[1].tolist() == [[2, 0], [3, 0], [2, 1], [3, 1], [2, 2], [3, 2]]

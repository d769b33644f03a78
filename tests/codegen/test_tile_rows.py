"""The height of a register tile of computed operands fits the registers and the rows."""
from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tinsmith.ir import UOp
from tinsmith.target.target import Target


@given(st.integers(0, 5000), st.sampled_from([4, 8, 16, 32]), st.booleans())
def test_height(size: int, registers: int, even: bool) -> None:
    target = Target("text", vector_bytes=32, vector_registers=registers)
    rows, columns = target.tile_rows(size, even), target.core.tile_vectors
    assert 1 <= rows <= max(size, 1) and (not even or size % rows == 0)
    assert rows == 1 or rows * columns + columns + 1 <= registers


def test_a_symbolic_number_of_rows_has_no_tile() -> None:
    assert Target("text").tile_rows(UOp.variable("n", 1, 64)) == 1

"""Matrix units of Apple GPUs: SIMD-group products of 8 × 8 × 8."""
from __future__ import annotations

from tinsmith.core.dtypes import DType, dtypes
from tinsmith.ir.matrix_unit import Fragment, MatrixUnit


def _simdgroup(name: str, dtype: DType) -> MatrixUnit:
    """Return the row of an Apple SIMD-group product of 8 × 8 × 8. Each of 32 lanes holds two adjacent elements of a
    row: bits 0 and 3 of the lane number select the column pair, bits 1, 2 and 4 the row."""
    part = Fragment(((2, 0, 1),), ((2, 0, 2), (2, 1, 0), (2, 2, 0), (2, 0, 4), (2, 4, 0)))
    return MatrixUnit(name, "metal", 8, 8, 8, dtype, dtype, dtypes.float32, 32, part, part, part,
                      "simdgroup_multiply_accumulate", (), 16, 32, 2.0 * 8 * 8 * 8 / 8)


APPLE = (_simdgroup("simdgroup_f16", dtypes.float16), _simdgroup("simdgroup_f32", dtypes.float32))

"""Matrix units of AMD GPUs: the wave-level WMMA of RDNA 3."""
from __future__ import annotations

from tinsmith.core.dtypes import DType, dtypes
from tinsmith.ir.matrix_unit import Fragment, MatrixUnit


def _wmma(name: str, emit: str, dtype: DType) -> MatrixUnit:
    """Return the row of an RDNA 3 wave-level WMMA of 16 × 16 × 16. Both half-waves hold the same elements of a and b: a
    lane holds a row of a and a column of b; of c, the even rows (lower half) or odd rows (upper half) of a column."""
    a = Fragment(((16, 0, 1),), ((16, 1, 0), (2, 0, 0)))
    b = Fragment(((16, 1, 0),), ((16, 0, 1), (2, 0, 0)))
    c = Fragment(((8, 2, 0),), ((16, 0, 1), (2, 1, 0)))
    return MatrixUnit(name, "hip", 16, 16, 16, dtype, dtype, dtypes.float32, 32, a, b, c, emit, ("gfx11",), 8, 32,
                      2.0 * 16 * 16 * 16 / 16)


RDNA3 = (
    _wmma("wmma_f16", "__builtin_amdgcn_wmma_f32_16x16x16_f16_w32", dtypes.float16),
    _wmma("wmma_bf16", "__builtin_amdgcn_wmma_f32_16x16x16_bf16_w32", dtypes.bfloat16),
)

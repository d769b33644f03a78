"""Matrix units for tests: warp-wide rows as on a GPU, and targets with given rows."""
from __future__ import annotations

from tinsmith.core.dtypes import dtypes
from tinsmith.ir.matrix_unit import Fragment, MatrixUnit

_C = Fragment(((2, 0, 1), (2, 8, 0)), ((4, 0, 2), (8, 1, 0)))


def _sync(name: str, k: int, half: int) -> MatrixUnit:
    """Return an ``mma.sync.m16n8`` unit with ``half`` consecutive elements of k per register pair."""
    dtype = dtypes.float16 if half == 2 else dtypes.float32
    steps = k // (4 * half)
    a = Fragment(((half, 0, 1), (2, 8, 0), (steps, 0, 4 * half)), ((4, 0, half), (8, 1, 0)))
    b = Fragment(((half, 1, 0), (steps, 4 * half, 0)), ((4, half, 0), (8, 0, 1)))
    return MatrixUnit(name, "cuda", 16, 8, k, dtype, dtype, dtypes.float32, 32, a, b, _C, "mma.sync", accumulators=16)


MMA_SYNC = (_sync("m16n8k16_f16", 16, 2), _sync("m16n8k8_f16", 8, 2), _sync("m16n8k8_f32", 8, 1))

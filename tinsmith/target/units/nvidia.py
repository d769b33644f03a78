"""Matrix units of NVIDIA GPUs: ``mma.sync`` of a warp and ``wgmma`` of a warpgroup (PTX manual)."""
from __future__ import annotations

from tinsmith.core.dtypes import DType, dtypes
from tinsmith.ir.matrix_unit import Fragment, MatrixUnit, UnitTile


def _mma_sync(name: str, emit: str, k: int, dtype: DType) -> MatrixUnit:
    """Return the row of a warp-level ``mma.sync`` of 16 × 8 × k. Layouts from the PTX manual: four adjacent lanes share
    a row of a and of c and a column of b, and a 32-bit register holds elements adjacent along k."""
    packed = 4 // dtype.itemsize
    a = Fragment(((packed, 0, 1), (2, 8, 0), (2, 0, 4 * packed)), ((4, 0, packed), (8, 1, 0)))
    b = Fragment(((packed, 1, 0), (2, 4 * packed, 0)), ((4, packed, 0), (8, 0, 1)))
    c = Fragment(((2, 0, 1), (2, 8, 0)), ((4, 0, 2), (8, 1, 0)))
    return MatrixUnit(name, "cuda", 16, 8, k, dtype, dtype, dtypes.float32, 32, a, b, c, emit, ("sm_80",), 16, 32,
                      2.0 * 16 * 8 * k / 16,
                      chains=(UnitTile(4, 1, 0.2, between=64), UnitTile(1, 1, 0.1, between=64)) if packed > 1 else ())


CUDA = (
    _mma_sync("mma_f16", "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", 16, dtypes.float16),
    _mma_sync("mma_bf16", "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", 16, dtypes.bfloat16),
    _mma_sync("mma_tf32", "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32", 8, dtypes.tf32),
)


def _wgmma(name: str, dtype: DType, n: int, tiles: tuple[UnitTile, ...],
           chains: tuple[UnitTile, ...]) -> MatrixUnit:
    """Return the row of a warpgroup ``wgmma`` of 64 × n × 32 bytes, n / 2 cycles per step: each of the four warps holds
    16 rows of the accumulator in the layout of ``mma.sync``. Speeds measured for bf16 4096³ on an H200."""
    k, short = 32 // dtype.itemsize, dtype.itemsize == 2
    emit = f"wgmma.mma_async.sync.aligned.m64n{n}k{k}.f32.{name}.{name}"
    c = Fragment(((2, 0, 1), (2, 8, 0), (n // 8, 0, 8)), ((4, 0, 2), (8, 1, 0), (4, 16, 0)))
    held = Fragment(((2, 0, 1), (2, 8, 0), (2, 0, 8)), ((4, 0, 2), (8, 1, 0), (4, 16, 0)))
    return MatrixUnit(f"wgmma_{name}_{n}", "cuda", 64, n, k, dtype, dtype, dtypes.float32, 128,
                      Fragment(((k, 0, 1), (64, 1, 0))), Fragment(((k, 1, 0), (n, 0, 1))), c, emit, ("sm_90a",),
                      max(1, 384 // n), 4, 2.0 * 64 * n * k / (n / 2), staged=True, turned=short,
                      held=held if short else None, tiles=tiles, chains=chains if short else (),
                      joined=_JOINED if short and n in (64, 128) else ())


_JOINED = (UnitTile(2, 2, 0.7, between=64), UnitTile(2, 2, 0.77, True, between=64))


_ATTENTION = (UnitTile(2, 2, 0.9, between=64), UnitTile(1, 2, 0.6, between=64))  # n ≥ 192: few registers are left
_OPERANDS = (("bf16", dtypes.bfloat16), ("f16", dtypes.float16), ("tf32", dtypes.tf32))

HOPPER = tuple(_wgmma(name, dtype, n, tiles, chains)
               for name, dtype in _OPERANDS for n, tiles, chains in (
                   (256, (UnitTile(2, 4, 1.0), UnitTile(2, 4, 1.03, True), UnitTile(1, 5, 0.87)), _ATTENTION),
                   (192, (UnitTile(2, 5, 0.98), UnitTile(2, 5, 1.0, True), UnitTile(3, 4, 1.0),
                          UnitTile(3, 4, 1.03, True), UnitTile(1, 6, 0.72), UnitTile(2, 5, 1.0, True, turns=2)),
                    _ATTENTION),
                   (128, (UnitTile(2, 6, 0.94), UnitTile(2, 6, 0.95, True), UnitTile(1, 8, 0.73),
                          UnitTile(2, 6, 0.93, True, turns=2)),
                    (UnitTile(2, 2, 1.0, True, 128, True, 2), UnitTile(2, 2, 0.89, between=64),
                     UnitTile(1, 2, 0.6, between=128))),
                   (64, (UnitTile(2, 6, 0.58), UnitTile(2, 6, 0.64, True), UnitTile(1, 8, 0.5)),
                    (UnitTile(2, 2, 1.0, between=128), UnitTile(1, 3, 0.6, between=128))),
                   (96, (UnitTile(3, 6, 0.78),), ())))

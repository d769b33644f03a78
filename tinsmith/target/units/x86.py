"""Matrix units of x86: AMX tiles, dot products of AVX-512 (BF16, VNNI), and multiply-adds of any vector machine."""
from __future__ import annotations

from tinsmith.core.dtypes import DType, dtypes
from tinsmith.ir.matrix_unit import Fragment, MatrixUnit


# *** rows ***
def fma(dtype: DType, vector_bytes: int, rate: float = 0.0) -> MatrixUnit:
    """Return the unit of every vector machine: the outer product of one element of a and a vector of b.

    It needs no MMA nodes: the optimizer vectorizes along n (VECTOR) and unrolls along m (UPCAST) instead.

    >>> fma(dtypes.float32, 64).n
    16
    """
    n = max(vector_bytes // dtype.itemsize, 1)
    row = ((n, 0, 1),)
    return MatrixUnit(f"fma_{dtype.name}", "any", 1, n, 1, dtype, dtype, dtype, 1, Fragment(((1, 0, 0),)),
                      Fragment(row), Fragment(row), "muladd", (), 24, 32, rate or 4.0 * n)


def _amx(name: str, emit: str, a: DType, b: DType, acc: DType, feature: str) -> MatrixUnit:
    """Return an AMX row: tiles of 16 rows of 64 bytes; in b, elements that meet in one 32-bit lane of c are adjacent
    (VNNI packing)."""
    packed = 4 // a.itemsize
    k = 16 * packed
    row_major = Fragment(((k, 0, 1), (16, 1, 0)), whole=True)
    interleaved = Fragment(((packed, 1, 0), (16, 0, 1), (16, packed, 0)), whole=True)
    square = Fragment(((16, 0, 1), (16, 1, 0)), whole=True)
    return MatrixUnit(name, "x86_64", 16, 16, k, a, b, acc, 1, row_major, interleaved, square, emit,
                      ("amx-tile", feature), 4, 8, 2.0 * 16 * k, 16.0, flushes=acc.is_float)


AMX = (
    _amx("amx_bf16", "tdpbf16ps", dtypes.bfloat16, dtypes.bfloat16, dtypes.float32, "amx-bf16"),
    _amx("amx_s8s8", "tdpbssd", dtypes.int8, dtypes.int8, dtypes.int32, "amx-int8"),
    _amx("amx_s8u8", "tdpbsud", dtypes.int8, dtypes.uint8, dtypes.int32, "amx-int8"),
    _amx("amx_u8s8", "tdpbusd", dtypes.uint8, dtypes.int8, dtypes.int32, "amx-int8"),
    _amx("amx_u8u8", "tdpbuud", dtypes.uint8, dtypes.uint8, dtypes.int32, "amx-int8"),
)


def _dot(name: str, a: DType, b: DType, acc: DType, feature: str, flipped: MatrixUnit | None = None) -> MatrixUnit:
    """Return the row of a dot-product instruction on 64-byte vectors: each 32-bit lane of c accumulates the products
    of the two or four elements that a (broadcast to all lanes) and b hold there. Throughput equals that of
    multiply-adds."""
    packed = 4 // a.itemsize
    row, column = Fragment(((packed, 0, 1), (1, 1, 0)), whole=True), Fragment(((16, 0, 1), (1, 1, 0)), whole=True)
    interleaved = Fragment(((packed, 1, 0), (16, 0, 1), (1, packed, 0)), whole=True)
    return MatrixUnit(name, "x86_64", 1, 16, packed, a, b, acc, 1, row, interleaved, column, name, ("avx512f", feature),
                      24, 32, 4.0 * 16 * packed, 0.65, 0.9, in_turn=acc.is_float, flushes=acc.is_float,
                      flipped=flipped)


_S8U8 = _dot("dot_s8u8", dtypes.int8, dtypes.uint8, dtypes.int32, "avx512vnni")
_U8S8 = _dot("dot_u8s8", dtypes.uint8, dtypes.int8, dtypes.int32, "avx512vnni")

DOT = (
    _dot("dot_bf16", dtypes.bfloat16, dtypes.bfloat16, dtypes.float32, "avx512bf16"),
    _dot("dot_s8s8", dtypes.int8, dtypes.int8, dtypes.int32, "avx512vnni", _S8U8), _S8U8, _U8S8,
    _dot("dot_u8u8", dtypes.uint8, dtypes.uint8, dtypes.int32, "avx512vnni", _U8S8),
    _dot("dot_s16", dtypes.int16, dtypes.int16, dtypes.int32, "avx512vnni"),
)

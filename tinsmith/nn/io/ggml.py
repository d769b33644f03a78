"""GGUF files (metadata and weights of language models), and the GGML block formats in them.

A block is a row of bytes with packed low-bit integers and their scale factors. Dequantization to float32 returns a lazy
graph over the bytes, so it fuses into the kernel that reads the values. ``gguf_header.py`` parses the header. The
package ``gguf`` provides the codebooks of the IQ formats, and a NumPy implementation that the tests compare with.
"""
from __future__ import annotations

import importlib
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from tinsmith.core.dtypes import DType, dtypes
from tinsmith.core.errors import ArgumentError, FileFormatError
from tinsmith.core.object_lifetime import WeakTable
from tinsmith.nn.io.gguf_header import TensorEntry, read_header
from tinsmith.tensor.helpers import muladd
from tinsmith.tensor.realize import realize_tensors
from tinsmith.tensor.tensor import Tensor

_FOUR_BIT_FLOATS: Final = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)  # twice the E2M1 values, by code
_UNEVEN: Final = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


class QuantizedType(NamedTuple):
    """A block format: values and bytes per block, and the function from blocks ``[n, nbytes]`` to ``[n, size]``."""

    size: int
    nbytes: int
    unpack: Callable[[Tensor], Tensor]


def _fields(packed: Tensor, bits: int, group: int) -> Tensor:
    """Unpack ``bits``-bit fields of bytes ``[n, k]``: per ``group`` of bytes the lowest fields first, then the next.

    Bytes are widened before they are split, so that the fields of a byte share the conversion.
    """
    per = 8 // bits
    shifts = Tensor.arange(per, dtype=dtypes.int32).reshape(1, 1, per, 1) * bits
    out: Tensor = (packed.reshape(packed.shape[0], -1, 1, group).cast(dtypes.int32) >> shifts) & (2**bits - 1)
    return out.reshape(packed.shape[0], -1)


def _words(packed: Tensor, dtype: DType) -> Tensor:
    """Combine little-endian bytes ``[n, k]`` to ``dtype`` by shifts, which is cheaper than a bitcast through memory."""
    word = {2: dtypes.uint16, 4: dtypes.uint32}[dtype.itemsize]
    parts = packed.reshape(packed.shape[0], -1, dtype.itemsize).cast(word)
    out = parts[..., 0]
    for n in range(1, dtype.itemsize):
        out = out | (parts[..., n] << (8 * n))
    return out.bitcast(dtype)


def _half(blocks: Tensor, at: int) -> Tensor:
    """Return the float16 value at byte ``at`` of each block as float32 ``[n, 1]``."""
    return _words(blocks[:, at : at + 2], dtypes.float16).float()


def _scaled(factors: Tensor, values: Tensor, offsets: Tensor | None = None) -> Tensor:
    """Return values ``[n, size]`` times factors ``[n, parts]`` (``size / parts`` values each), minus the offsets."""
    n, parts = factors.shape
    values, factors = values.float().reshape(n, parts, -1), factors.reshape(n, parts, 1)
    if offsets is None:
        return (factors * values).reshape(n, -1)
    factors, offsets = (t.expand(*values.shape) for t in (factors, -offsets.reshape(n, parts, 1)))
    return values._new(muladd(values.uop, factors.uop, offsets.uop)).reshape(n, -1)


def _looked_up(table: Any, index: Tensor) -> Tensor:
    """Gather codebook rows: indices ``[n, k]`` into a table with rows of m values → ``[n, k·m]``.

    The table has few distinct values, so each row is packed into one 32-bit word of short codes: one gather per row.
    """
    values, codes = np.unique(np.asarray(table, np.float32), return_inverse=True)
    bits, width = (len(values) - 1).bit_length(), np.shape(table)[1]
    shifts = np.arange(width, dtype=np.uint32) * bits
    words = (codes.reshape(-1, width).astype(np.uint32) << shifts).sum(-1).astype(np.uint32)
    word = Tensor(words, requires_grad=False)[index.cast(dtypes.int32)].unsqueeze(-1)
    code = (word >> Tensor.arange(width, dtype=dtypes.uint32) * bits) & (2**bits - 1)
    return _chosen([*values, *[values[-1]] * (2**bits - len(values))], code.reshape(index.shape[0], -1))


def _chosen(table: Sequence[float], index: Tensor) -> Tensor:
    """Look up a table of 2, 4, 8 or 16 values by a tree of selects, which vectorizes; a gather does not."""
    found: list[Any] = [float(v) for v in table]
    bit = 1
    while len(found) > 1:
        upper = (index & bit).ne(0)
        found = [upper.where(b, a) for a, b in zip(found[::2], found[1::2])]
        bit *= 2
    out: Tensor = found[0]
    return out


def _q4_0(b: Tensor) -> Tensor:
    return _half(b, 0) * (_fields(b[:, 2:], 4, 16).float() - 8)


def _q4_1(b: Tensor) -> Tensor:
    return _half(b, 0) * _fields(b[:, 4:], 4, 16).float() + _half(b, 2)


def _five_bits(b: Tensor, at: int) -> Tensor:
    return _fields(b[:, at + 4 :], 4, 16) | (_fields(b[:, at : at + 4], 1, 1) << 4)


def _q5_0(b: Tensor) -> Tensor:
    return _half(b, 0) * (_five_bits(b, 2).float() - 16)


def _q5_1(b: Tensor) -> Tensor:
    return _half(b, 0) * _five_bits(b, 4).float() + _half(b, 2)


def _q8_0(b: Tensor) -> Tensor:
    return _half(b, 0) * b[:, 2:].bitcast(dtypes.int8).float()


def _q8_k(b: Tensor) -> Tensor:
    return _words(b[:, :4], dtypes.float32) * b[:, 4:260].bitcast(dtypes.int8).float()


def _q2_k(b: Tensor) -> Tensor:
    scales = b[:, :16]
    return _scaled(_half(b, 80) * (scales & 15).float(), _fields(b[:, 16:80], 2, 32),
                   _half(b, 82) * (scales >> 4).float())


def _q3_k(b: Tensor) -> Tensor:
    scales = _fields(b[:, 96:104], 4, 8) | (_fields(b[:, 104:108], 2, 4) << 4)
    values = _fields(b[:, 32:96], 2, 32).float() - 4 * (1 - _fields(b[:, :32], 1, 32).float())
    return _scaled(_half(b, 108) * (scales.float() - 32), values)


def _scales_of_k(b: Tensor) -> tuple[Tensor, Tensor]:
    """Return the eight 6-bit scales and offsets ``[n, 8]`` of Q4_K and Q5_K blocks, times their float16 factors."""
    n = b.shape[0]
    first = Tensor.arange(2).reshape(1, 2, 1).eq(0)  # 4 complete; the others' high 2 bits lie above them
    low, high, rest = (b[:, at : at + 4].reshape(n, 1, 4) for at in (4, 8, 12))
    scales = first.where(low & 63, (rest & 15) | ((low >> 2) & 48))
    offsets = first.where(high & 63, (rest >> 4) | ((high >> 2) & 48))
    return _half(b, 0) * scales.reshape(n, 8).float(), _half(b, 2) * offsets.reshape(n, 8).float()


def _q4_k(b: Tensor) -> Tensor:
    scales, offsets = _scales_of_k(b)
    return _scaled(scales, _fields(b[:, 16:], 4, 32), offsets)


def _q5_k(b: Tensor) -> Tensor:
    scales, offsets = _scales_of_k(b)
    return _scaled(scales, _fields(b[:, 48:], 4, 32) | (_fields(b[:, 16:48], 1, 32) << 4), offsets)


def _q6_k(b: Tensor) -> Tensor:
    values = _fields(b[:, :128], 4, 64) | (_fields(b[:, 128:192], 2, 32) << 4)
    return _scaled(_half(b, 208) * b[:, 192:208].bitcast(dtypes.int8).float(), values.float() - 32)


def _trits(packed: Tensor, count: int, group: int) -> Tensor:
    """Unpack ``count`` base-3 digits per byte; per ``group`` of bytes the first digits come first."""
    n = packed.shape[0]
    powers = Tensor([3**k for k in range(count)], dtype=dtypes.uint8).reshape(1, 1, count, 1)
    left = packed.reshape(n, -1, 1, group) * powers  # multiplication mod 256 drops the leading digits
    return ((left.cast(dtypes.uint16) * 3) >> 8).reshape(n, -1)


def _tq1_0(b: Tensor) -> Tensor:
    digits = _trits(b[:, :32], 5, 32).cat(_trits(b[:, 32:48], 5, 16), _trits(b[:, 48:52], 4, 4), dim=1)
    return _half(b, 52) * (digits.float() - 1)


def _tq2_0(b: Tensor) -> Tensor:
    return _half(b, 64) * (_fields(b[:, :64], 2, 32).float() - 1)


def _mxfp4(b: Tensor) -> Tensor:
    exponent = b[:, :1].cast(dtypes.uint32)
    bits = (exponent < 2).where(exponent * 0x200000 + 0x200000, (exponent.maximum(1) - 1) << 23)  # half of 2**(e - 127)
    return bits.bitcast(dtypes.float32) * _chosen(_FOUR_BIT_FLOATS, _fields(b[:, 1:], 4, 16))


def _nvfp4(b: Tensor) -> Tensor:
    byte = b[:, :4]
    factor = byte.eq(127).where(0.0, (byte & 127).bitcast(dtypes.fp8e4m3).float() * 0.5)
    return _scaled(factor, _chosen(_FOUR_BIT_FLOATS, _fields(b[:, 4:], 4, 8)))


def _iq4_nl(b: Tensor) -> Tensor:
    return _half(b, 0) * _chosen(_UNEVEN, _fields(b[:, 2:], 4, 16))


def _iq4_xs(b: Tensor) -> Tensor:
    scales = _fields(b[:, 4:8], 4, 1) | (_fields(b[:, 2:4], 2, 1) << 4)
    return _scaled(_half(b, 0) * (scales.float() - 32), _chosen(_UNEVEN, _fields(b[:, 8:], 4, 16)))


def _grid(kind: str) -> Any:
    """Return the codebook of an IQ format from the package ``gguf``: one row of values per index."""
    try:
        package = importlib.import_module("gguf.quants")  # imported on first use: it is optional
    except ImportError:
        raise ArgumentError(kind, "its codebook is in the package gguf, which is not installed",
                            "pip install 'tinsmith[gguf]'") from None
    holder = getattr(package, {"IQ1_M": "IQ1_S"}.get(kind, kind))
    holder.init_grid()
    return holder.grid[0, 0]


def _signs(bits: Tensor) -> Tensor:
    """Map the bits of bytes to signs, 0 → 1 and 1 → -1: ``[n, k]`` → ``[n, 8·k]``."""
    return 1 - 2 * _fields(bits, 1, 1).float()


def _even_signs(words: Tensor) -> Tensor:
    """Unpack four 7-bit sign groups per word ``[n, k]``; an eighth bit gives each group even parity."""
    n = words.shape[0]
    seven = ((words.reshape(n, -1, 1) >> (Tensor.arange(4, dtype=dtypes.uint32) * 7)) & 127).reshape(n, -1)
    return _signs(_with_parity(seven).cast(dtypes.uint8))


def _with_parity(seven: Tensor) -> Tensor:
    folded = seven ^ (seven >> 4)
    folded = folded ^ (folded >> 2)
    return seven | (((folded ^ (folded >> 1)) & 1) << 7)


def _iq2_xxs(b: Tensor) -> Tensor:
    pairs = b[:, 2:].reshape(b.shape[0], 8, 8)
    words = _words(pairs[:, :, 4:].reshape(b.shape[0], 32), dtypes.uint32)
    numbers = _looked_up(_grid("IQ2_XXS"), pairs[:, :, :4].reshape(b.shape[0], 32))
    return _scaled(_half(b, 0) * (0.5 + (words >> 28).float()) * 0.25, numbers * _even_signs(words))


def _iq2_xs(b: Tensor) -> Tensor:
    words = _words(b[:, 2:66], dtypes.uint16)
    signs = _signs(_with_parity(words >> 9).cast(dtypes.uint8))
    factors = _half(b, 0) * (0.5 + _fields(b[:, 66:], 4, 1).float()) * 0.25
    return _scaled(factors, _looked_up(_grid("IQ2_XS"), words & 511) * signs)


def _joined(low: Tensor, high: Tensor) -> Tensor:
    """Return 16-bit indices from their low bytes and their high bits."""
    return low.cast(dtypes.uint16) | (high.cast(dtypes.uint16) << 8)


def _iq2_s(b: Tensor) -> Tensor:
    index = _joined(b[:, 2:34], _fields(b[:, 66:74], 2, 1))
    factors = _half(b, 0) * (0.5 + _fields(b[:, 74:], 4, 1).float()) * 0.25
    return _scaled(factors, _looked_up(_grid("IQ2_S"), index) * _signs(b[:, 34:66]))


def _iq3_xxs(b: Tensor) -> Tensor:
    words = _words(b[:, 66:], dtypes.uint32)
    factors = _half(b, 0) * (0.5 + (words >> 28).float()) * 0.5
    return _scaled(factors, _looked_up(_grid("IQ3_XXS"), b[:, 2:66]) * _even_signs(words))


def _iq3_s(b: Tensor) -> Tensor:
    index = _joined(b[:, 2:66], _fields(b[:, 66:74], 1, 1))
    factors = _half(b, 0) * (1 + 2 * _fields(b[:, 106:], 4, 1).float())
    return _scaled(factors, _looked_up(_grid("IQ3_S"), index) * _signs(b[:, 74:106]))


def _iq1_s(b: Tensor) -> Tensor:
    n, words = b.shape[0], _words(b[:, 34:], dtypes.uint16)
    high = (words.reshape(n, 8, 1) >> (Tensor.arange(4, dtype=dtypes.uint16) * 3)) & 7
    numbers = _looked_up(_grid("IQ1_S"), _joined(b[:, 2:34], high.reshape(n, 32))).reshape(n, 8, 32)
    numbers = numbers + (words >> 15).eq(0).where(0.125, -0.125).reshape(n, 8, 1)
    return _scaled(_half(b, 0) * (2 * ((words >> 12) & 7).float() + 1), numbers.reshape(n, 256))


def _iq1_m(b: Tensor) -> Tensor:
    n, words = b.shape[0], _words(b[:, 48:], dtypes.uint16)
    top = [words[:, k : k + 1] >> 12 for k in range(4)]  # each word holds 4 bits of the float16 scale
    factor = (top[0] | (top[1] << 4) | (top[2] << 8) | (top[3] << 12)).bitcast(dtypes.float16).float()
    scales = ((words.reshape(n, 4, 1) >> (Tensor.arange(4, dtype=dtypes.uint16) * 3)) & 7).reshape(n, 16)
    high = _fields(b[:, 32:48], 4, 1)
    numbers = _looked_up(_grid("IQ1_M"), _joined(b[:, :32], high & 7)).reshape(n, 32, 8)
    numbers = numbers + (high & 8).eq(0).where(0.125, -0.125).reshape(n, 32, 1)
    return _scaled(factor * (2 * scales.float() + 1), numbers.reshape(n, 256))

KINDS: Final = {
    "Q4_0": QuantizedType(32, 18, _q4_0), "Q4_1": QuantizedType(32, 20, _q4_1), "Q5_0": QuantizedType(32, 22, _q5_0),
    "Q5_1": QuantizedType(32, 24, _q5_1),
    "Q8_0": QuantizedType(32, 34, _q8_0), "Q2_K": QuantizedType(256, 84, _q2_k),
    "Q3_K": QuantizedType(256, 110, _q3_k), "Q4_K": QuantizedType(256, 144, _q4_k), "Q5_K": QuantizedType(256, 176,
                                                                                                          _q5_k),
    "Q6_K": QuantizedType(256, 210, _q6_k), "Q8_K": QuantizedType(256, 292, _q8_k), "TQ1_0": QuantizedType(256, 54,
                                                                                                           _tq1_0),
    "TQ2_0": QuantizedType(256, 66, _tq2_0), "MXFP4": QuantizedType(32, 17, _mxfp4), "NVFP4": QuantizedType(64, 36,
                                                                                                            _nvfp4),
    "IQ1_S": QuantizedType(256, 50, _iq1_s), "IQ1_M": QuantizedType(256, 56, _iq1_m), "IQ2_XXS": QuantizedType(256, 66,
                                                                                                               _iq2_xxs),
    "IQ2_XS": QuantizedType(256, 74, _iq2_xs), "IQ2_S": QuantizedType(256, 82, _iq2_s), "IQ3_XXS": QuantizedType(256,
                                                                                                                 98,
                                                                                                                 _iq3_xxs),
    "IQ3_S": QuantizedType(256, 110, _iq3_s), "IQ4_NL": QuantizedType(32, 18, _iq4_nl), "IQ4_XS": QuantizedType(256,
                                                                                                                136,
                                                                                                                _iq4_xs)}

_packed: WeakTable[Tensor, tuple[Tensor, str]] = WeakTable()  # dequantized matrix → (bytes, format)


def matrix(packed: Tensor, kind: str, shape: tuple[int, ...]) -> Tensor:
    """Dequantize blocks to a lazy tensor of ``shape``, and record its source for ``rows``."""
    out = unpacked(packed, kind).reshape(*shape)
    _packed[out] = packed, kind
    return out


def is_packed(weight: Tensor) -> bool:
    """Return True if ``weight`` is dequantized by the kernels that read it; realizing it would take memory."""
    return weight in _packed


def rows(weight: Tensor, index: Tensor) -> Tensor:
    """Return ``weight[index]``; of a quantized matrix only the blocks of the selected rows are dequantized.

    >>> rows(Tensor([[1., 2.], [3., 4.]]), Tensor([1])).tolist()
    [[3.0, 4.0]]
    """
    if weight not in _packed:
        return weight[index]
    packed, kind = _packed[weight]
    picked = packed.reshape(weight.shape[0], -1)[index]
    return unpacked(picked.reshape(-1), kind).reshape(*index.shape, *weight.shape[1:])


def unpacked(packed: Tensor, kind: str) -> Tensor:
    """Dequantize consecutive blocks in the bytes ``packed`` to float32, as a lazy graph.

    >>> block = Tensor(np.array([0, 60, 0x10, *[0] * 15], np.uint8))  # a factor of 1, and 32 times four bits
    >>> unpacked(block, "Q4_0")[:2].tolist(), unpacked(block, "Q4_0")[16].item()
    ([-8.0, -8.0], -7.0)
    """
    size, nbytes, unpack = KINDS[kind]
    return unpack(packed.reshape(-1, nbytes)).reshape(packed.numel() // nbytes * size)

_PLAIN = {"F64": dtypes.float64, "F32": dtypes.float32, "F16": dtypes.float16, "BF16": dtypes.bfloat16,
          "I8": dtypes.int8, "I16": dtypes.int16, "I32": dtypes.int32, "I64": dtypes.int64}


def gguf_load(fn: str | os.PathLike[str] | Tensor,
              device: str | None = None) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return (metadata, tensors by name) of a GGUF file.

    Unquantized tensors are mapped and copied when first used. Quantized blocks are copied to the device unchanged, and
    each kernel that reads such a tensor dequantizes them; ``realize`` would expand the tensor to float32.

    Raises:
        ArgumentError: if a tensor's format has a codebook (``IQ1_S`` to ``IQ3_S``) and the package ``gguf``, which
            contains it, is not installed.
        FileFormatError: if the file is not GGUF, is truncated, or has a type that Tinsmith does not support.
    """
    path = str(fn.device).partition(":")[2] if isinstance(fn, Tensor) else os.fspath(fn)
    if isinstance(fn, Tensor) and not path:
        raise ArgumentError("gguf_load", f"reads files, got a tensor on {fn.device!r}", "the file's path")
    try:
        metadata, entries = read_header(path)
    except (ValueError, OverflowError, RecursionError) as error:
        raise FileFormatError("gguf_load", f"{path!r} is no GGUF file: {error!r:.200}", "a complete file") from None
    packed: list[Tensor] = []
    file, length = Tensor(Path(path)), os.path.getsize(path)
    tensors = {t.name: _tensor(file, length, t, device, packed) for t in entries}
    realize_tensors(packed)
    return metadata, tensors


def _tensor(file: Tensor, length: int, t: TensorEntry, device: str | None, packed: list[Tensor]) -> Tensor:
    """Return one tensor of the file of ``length`` bytes; append the bytes of a quantized one to ``packed``."""
    plain = _PLAIN.get(t.kind)
    if plain is None and t.kind not in KINDS:
        raise FileFormatError("gguf_load", f"{t.name!r} is of type {t.kind}", f"one of {', '.join(KINDS)}")
    size, nbytes = (1, plain.itemsize) if plain else KINDS[t.kind][:2]
    count = math.prod(t.shape)
    end = t.start + count // size * nbytes
    if count % size or end > length or (t.shape and t.shape[-1] % size):
        raise FileFormatError("gguf_load", f"{t.name!r} of shape {t.shape} in blocks of {size} numbers ends at byte "
                              f"{end} of {length}", "a complete file")
    if not count:
        return Tensor.empty(*t.shape, dtype=plain or dtypes.float32, device=device, requires_grad=False)
    part = file[t.start : end]
    if plain:
        return part.bitcast(plain).reshape(*t.shape).to(device)
    packed.append(part.to(device))
    return matrix(packed[-1], t.kind, t.shape)

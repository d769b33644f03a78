"""Tensor graphs that tensor programs and the scheduler share: concatenation, radix sort, random words.

The sort ranks integers by a least-significant-digit radix sort: a histogram, the exclusive prefix sum of it (where
each digit's elements begin), and a HISTOGRAM op that assigns positions in order (Knuth, The Art of Computer
Programming, vol. 3, 5.2.5). For parallel cores, each piece of a row has its own histogram, a scan over all (digit,
piece) counters gives each piece's offset, and within a piece each element is ranked by comparing it with those
before it (Satish, Harris and Garland, 2009). Both sorts are stable.

Random words are those of Threefry2x32 with 20 rounds, of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as
easy as 1, 2, 3" (SC 2011).
"""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tinsmith.core.dtypes import dtypes
from tinsmith.ir.ops import Ops
from tinsmith.ir.uop import UOp

_PARTS_PER_KERNEL = 16  # more parts than this are joined in several steps: each element chooses among all parts


def joined(parts: Sequence[UOp], axis: int) -> UOp:
    """Return the concatenation of ``parts`` along ``axis``: each part is padded to the full size and selected by
    position, so every value, NaN and -0 included, is kept exactly."""
    parts = list(parts)
    while len(parts) > _PARTS_PER_KERNEL:
        groups = [parts[i : i + _PARTS_PER_KERNEL] for i in range(0, len(parts), _PARTS_PER_KERNEL)]
        parts = [joined(g, axis).contiguous() if len(g) > 1 else g[0] for g in groups]
    ends: list[Any] = []
    for p in parts:
        ends.append(p.shape[axis] if not ends else ends[-1] + p.shape[axis])
    total = ends[-1]
    padded = []
    for p, end in zip(parts, ends):
        amounts = ((end - p.shape[axis], total - end) if i == axis else (0, 0) for i in range(p.ndim))
        padded.append(p.pad(tuple(amounts)))
    out = padded[-1]
    if len(parts) > 1:
        place = out.iota_like(axis)
        for p, end in zip(padded[-2::-1], ends[-2::-1]):
            out = place.lt(end).where(p, out)
    return out


def digit_bits_for(bits: int, size: int, options: Sequence[int], piece: int) -> int:
    """Return the cheapest digit width of ``options``. The cost counts passes over the keys and over the counters, of
    which each piece has its own set; ``piece`` = 0 means the serial sort, without per-pass launch cost."""
    def cost(b: int) -> int:
        apart = 8 * (size << b) // piece + (1 << 24) if piece else 0
        return -(-bits // b) * (10 * size + (3 << b) + apart)

    return min(options, key=cost)


def by_digits(keys: UOp, bits: int, digit_bits: int) -> UOp:
    """Return the stable sorting permutation of each row, one digit per pass; elements are placed one by one
    (serial)."""
    rows, size = keys.shape
    count = 1 << digit_bits
    keys = keys.contiguous()
    order = keys.iota_like(1)
    ones = order.const_like(1)
    for low in range(0, bits, digit_bits):
        digit = ((keys >> low) & (count - 1)).cast(dtypes.int32)
        histogram = UOp.const(dtypes.int32, 0).expand_to((rows, count)).scatter(digit, ones, 1, "ADD")
        begin = histogram.scan("ADD", 1) - histogram
        place = begin.histogram(digit, ones, 1).shrink(((0, rows), (count, count + size)))
        order = order.const_like(0).scatter(place, order, 1, Ops.ASSIGN)
        if low + digit_bits < bits:
            keys = keys.const_like(0).scatter(place, keys, 1, Ops.ASSIGN)
    return order


def by_pieces(keys: UOp, bits: int, digit_bits: int, piece: int) -> tuple[UOp, UOp]:
    """Return the sorted unsigned keys of each row and their original positions; the pieces of a row are processed in
    parallel.

    Args:
        piece: elements per piece. If a piece has more elements than there are digit values, keys of up to 32 bits are
            packed with their positions into one 64-bit word, so that each pass scatters once.
    """
    rows, size = keys.shape
    digits = 1 << digit_bits
    ranked = piece > digits
    together = ranked and keys.dtype.itemsize <= 4
    piece = min(piece, -(-size // digits) * digits) if ranked else min(piece, size)
    whole = -(-size // piece) * piece
    if whole > size:  # pad with the greatest key, which sorts behind the row's own keys
        ones = (1 << keys.dtype.bits) - 1
        keys = (keys ^ ones).pad(((0, 0), (0, whole - size))) ^ ones
    order, keys = keys.iota_like(1), keys.contiguous()
    items = (keys.cast(dtypes.uint64) << 32) | order.cast(dtypes.uint64) if together else keys
    for low in range(0, bits, digit_bits):
        digit = ((items >> (32 * together + low)) & (digits - 1)).cast(dtypes.int32)
        place = _places(digit.reshape((rows, whole // piece, piece)), digits)
        place = place if together else place.contiguous()
        if not together:
            order = order.const_like(0).scatter(place, order, 1, Ops.ASSIGN)
        items = items.const_like(0).scatter(place, items, 1, Ops.ASSIGN)
    if together:
        order = (items & ((1 << 32) - 1)).cast(dtypes.int32)
    box = ((0, rows), (0, size))
    return (items >> 32 * together).cast(keys.dtype).shrink(box), order.shrink(box)


def _places(digit: UOp, count: int) -> UOp:
    """Return each element's destination for one digit: after all elements of lower digits and all earlier ones of the
    same digit."""
    rows, pieces, piece = digit.shape
    space, cube = (rows, count, pieces, piece), (*digit.shape, piece)
    at = digit.reshape((rows, 1, pieces, piece)).expand(space)
    sums = at.eq(at.iota_like(1)).cast(dtypes.int32).reduce("ADD", (3,)).reshape((rows, count * pieces)).contiguous()
    other = digit.reshape((rows, pieces, 1, piece)).expand(cube)
    earlier = other.iota_like(3).lt(other.iota_like(2)) & other.eq(digit.reshape((*digit.shape, 1)).expand(cube))
    inside = earlier.cast(dtypes.int32).reduce("ADD", (3,)).reshape((rows, pieces * piece))
    before = (digit * pieces + digit.iota_like(1) - 1).reshape(inside.shape)
    return sums.scan("ADD", 1).gather(before, 1) + inside


def count_below(ordered: UOp, limits: UOp) -> UOp:
    """Return, for each limit, the number of elements of a sorted vector that are less than it (binary search)."""
    size = ordered.size
    found = limits.const_like(0).cast(dtypes.int32)
    step = 1 << (size.bit_length() - 1)
    while step:
        further = found + step
        less = ordered.gather(further - 1, 0).lt(limits) & further.lt(size + 1)
        found = less.where(further, found)
        step //= 2
    return found

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA
_STEPS = (Ops.ADD, Ops.XOR, Ops.OR, Ops.SHL, Ops.SHR, Ops.VECTORIZE)


def threefry2x32(key: tuple[UOp, UOp], counter: tuple[UOp, UOp]) -> tuple[UOp, UOp]:
    """Return two 32-bit random words, as graphs, for a two-word key and a two-word counter."""
    keys = (*key, key[0] ^ key[1] ^ _PARITY)
    x, y = counter[0] + keys[0], counter[1] + keys[1]
    for block in range(5):
        for r in _ROTATIONS[block % 2]:
            x = x + y
            y = ((y << r) | (y >> (32 - r))) ^ x
        x, y = x + keys[(block + 1) % 3], y + (keys[(block + 2) % 3] + (block + 1))  # bracketed: shared by all counters
    return x, y


def draws(nodes: Iterable[UOp]) -> bool:
    """Return True if ``nodes``, of any compiler level, contain the Threefry key-schedule constant: they draw random
    words.

    >>> zero = UOp.const(dtypes.uint32, 0)
    >>> x, y = threefry2x32((zero, zero), (zero, zero))
    >>> draws(x.toposort()), draws(zero.toposort())
    (True, False)
    """
    return any(map(_is_parity, nodes))


def cipher_nodes(order: Sequence[UOp]) -> set[UOp]:
    """Return the nodes of all Threefry rounds in a graph listed sources first: from counter and key up to the words.

    >>> words = UOp.iota(4, dtypes.uint32)
    >>> x, y = threefry2x32((words, words), (words, words))
    >>> inside = cipher_nodes((x.cast(dtypes.float32) + y.cast(dtypes.float32)).toposort())
    >>> x in inside, y in inside, words + words in inside, x.cast(dtypes.float32) in inside
    (True, True, True, False)
    """
    if not draws(order):
        return set()
    made: set[UOp] = set()
    for n in order:
        if _is_parity(n) or (_is_step(n) and any(s in made for s in n.src)):
            made.add(n)
    for n in reversed(order):
        if n in made:
            made.update(s for s in n.src if _is_step(s))
    return made


def _is_step(n: UOp) -> bool:
    return n.dtype.scalar is dtypes.uint32 and (n.op in _STEPS or n.op.kind == "movement")


def _is_parity(n: UOp) -> bool:
    return n.op is Ops.CONST and n.dtype.scalar is dtypes.uint32 and n.arg == _PARITY

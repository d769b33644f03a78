"""Graphs that put integers in order, for programs and for the scheduler.

A radix sort from the least significant digit: a histogram, where each digit's elements begin, and a HISTOGRAM that
hands out places in order (Knuth, The Art of Computer Programming, vol. 3, 5.2.5). Where cores work side by side, each
piece of a row has a histogram of its own, a scan over all digits' pieces says where its elements begin, and in a piece
each is compared with those before it (Satish, Harris and Garland, 2009). Both are stable.
"""
from __future__ import annotations

from collections.abc import Sequence

from tinsmith.core.dtypes import dtypes
from tinsmith.ir.ops import Ops
from tinsmith.ir.uop import UOp

PIECE = 16  # elements that are compared with each other


def digit_bits_for(bits: int, size: int, options: Sequence[int], in_order: bool) -> int:
    """How wide digits are chosen: by passes over the keys, and over counters of which each piece has its own unless
    steps are taken in order; then each pass has launches of its own, too."""
    def cost(b: int) -> int:
        apart = 0 if in_order else (size << b) // 2 + (1 << 24)
        return -(-bits // b) * (10 * size + (3 << b) + apart)

    return min(options, key=cost)


def by_digits(keys: UOp, bits: int, digit_bits: int) -> UOp:
    """Positions of the elements of each row in order, by one digit after another; elements are taken one by one."""
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
        order = order.const_like(0).scatter(place, order, 1, None)
        if low + digit_bits < bits:
            keys = keys.const_like(0).scatter(place, keys, 1, None)
    return order


def by_pieces(keys: UOp, bits: int, digit_bits: int) -> UOp:
    """The same, where pieces of a row go on side by side."""
    keys = keys.contiguous()
    order = keys.iota_like(1)
    for low in range(0, bits, digit_bits):
        digit = ((keys >> low) & ((1 << digit_bits) - 1)).cast(dtypes.int32)
        place = _places(digit, 1 << digit_bits).contiguous()
        order = order.const_like(0).scatter(place, order, 1, Ops.ASSIGN)
        if low + digit_bits < bits:
            keys = keys.const_like(0).scatter(place, keys, 1, Ops.ASSIGN)
    return order


def _places(digit: UOp, count: int) -> UOp:
    """Where the elements of each row go by one digit."""
    rows, size = digit.shape
    pieces = -(-size // PIECE)
    tail = ((0, 0), (0, pieces * PIECE - size))
    line, space = (rows, pieces, PIECE), (rows, count, pieces, PIECE)
    digit = ((digit + 1).pad(tail) - 1).reshape(line)  # -1: no digit
    at = digit.reshape((rows, 1, pieces, PIECE)).expand(space)
    sums = at.eq(at.iota_like(1)).cast(dtypes.int32).reduce("ADD", (3,)).reshape((rows, count * pieces)).contiguous()
    cube = (*line, PIECE)
    other = digit.reshape((rows, pieces, 1, PIECE)).expand(cube)
    earlier = other.iota_like(3).lt(other.iota_like(2)) & other.eq(digit.reshape((*line, 1)).expand(cube))
    inside = earlier.cast(dtypes.int32).reduce("ADD", (3,)).reshape((rows, pieces * PIECE))
    before = (digit * pieces + digit.iota_like(1) - 1).reshape(inside.shape)
    return (sums.scan("ADD", 1).gather(before, 1) + inside).shrink(((0, rows), (0, size)))


def count_below(ordered: UOp, limits: UOp) -> UOp:
    """How many elements of a vector in order are less than each limit: a binary search."""
    size = ordered.size
    found = limits.const_like(0).cast(dtypes.int32)
    step = 1 << (size.bit_length() - 1)
    while step:
        further = found + step
        less = ordered.gather(further - 1, 0).lt(limits) & further.lt(size + 1)
        found = less.where(further, found)
        step //= 2
    return found

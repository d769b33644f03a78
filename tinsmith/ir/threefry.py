"""Threefry2x32 random words as graphs, and recognition of graphs that contain them.

Threefry2x32 with 20 rounds, of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
"""
from __future__ import annotations

from collections.abc import Iterable, Sequence

from tinsmith.core.dtypes import dtypes
from tinsmith.ir.ops import Ops
from tinsmith.ir.uop import UOp

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

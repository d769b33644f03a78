"""Redundant barrier elimination, from linear program to linear program.

The linearizer puts a barrier before and after every fill of local memory. A barrier is removed if no load can follow a
store, and no store a load, of the same memory without another barrier in between, on any path through the program. An
array counts as one unit. Ring slots and warp counters are ordered by barriers that name them, which stay. Two stores to
one array need no order: one fill stores different elements, and between two fills there is a load.

    barrier; fill a; barrier; fill b; barrier; use a, b   →   barrier; fill a; fill b; barrier; use a, b
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tinsmith.ir import Ops, UOp

_LOADS, _STORES = (Ops.LOAD, Ops.LOAD_TILE, Ops.LOAD_MATRIX), (Ops.STORE, Ops.STORE_TILE)
_OPENS, _CLOSES = (Ops.RANGE, Ops.IF), (Ops.ENDRANGE, Ops.ENDIF)


@dataclass(frozen=True)
class _Since:
    """Local memory stored to and loaded from since the last barrier; ``fault`` if a path lacks a barrier."""

    stored: frozenset[UOp] = frozenset()
    loaded: frozenset[UOp] = frozenset()
    fault: bool = False

    def __or__(self, other: _Since) -> _Since:
        return _Since(self.stored | other.stored, self.loaded | other.loaded, self.fault or other.fault)


def needed_barriers(lines: Sequence[UOp]) -> list[UOp]:
    """Remove redundant barriers; return the program unchanged if it accesses local memory by other ops."""
    slots = {m for u in lines if u.op in (Ops.BARRIER, Ops.WARP_BARRIER) for m in u.src}
    used = [n for n, u in enumerate(lines) if u.op in (Ops.BARRIER, *_OPENS, *_CLOSES) or _near(u, slots)]
    if not all(lines[n].op in (*_LOADS, *_STORES) for n in used if _near(lines[n], slots)):
        return list(lines)
    left = list(used)
    for n in used:
        if lines[n].op is Ops.BARRIER and not lines[n].src:
            fewer = [m for m in left if m != n]
            if not _after(fewer, lines, _Since()).fault:
                left = fewer
    dropped = set(used) - set(left)
    return [u for n, u in enumerate(lines) if n not in dropped]


def _near(u: UOp, slots: set[UOp]) -> bool:
    return any(s.op is Ops.DEFINE_LOCAL and s not in slots for s in u.src)


def _enters(u: UOp) -> bool:
    """Return True if a loop has at least one iteration."""
    return u.op is Ops.RANGE and all(s.op is Ops.CONST for s in u.src) and u.src[0].arg < u.src[1].arg


def _after(positions: Sequence[int], lines: Sequence[UOp], since: _Since) -> _Since:
    """Return the unordered accesses after executing the lines at ``positions``."""
    at = 0
    while at < len(positions):
        u = lines[positions[at]]
        if u.op in _OPENS:
            end = next(i for i in range(at, len(positions)) if lines[positions[i]].op in _CLOSES
                       and lines[positions[i]].src[0] is u)
            body = positions[at + 1 : end]
            once = _after(body, lines, since)
            again = once if u.op is Ops.IF else _after(body, lines, once)
            since = once | again if _enters(u) else since | once | again
            at = end
        elif u.op is Ops.BARRIER:
            since = _Since(fault=since.fault)
        elif u.op in _LOADS:
            since |= _Since(loaded=frozenset(u.src[:1]), fault=u.src[0] in since.stored)
        else:
            since |= _Since(frozenset(u.src[:1]), fault=u.src[0] in since.loaded)
        at += 1
    return since

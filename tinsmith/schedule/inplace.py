"""Writing a new version of a value over the old one: which outputs of a program may take the memory of an input.

The caller says which buffers nobody outside the program can read any more. Inside it every other reader must run before
the write, and the kernel that writes may read an element only right before it writes that element, in the same loop.
"""
from __future__ import annotations

from collections.abc import Collection, Sequence

from tinsmith.ir import Ops, UOp
from tinsmith.schedule.items import Schedule

_OPEN, _CLOSE = (Ops.RANGE, Ops.IF), (Ops.ENDRANGE, Ops.ENDIF)


def choose_in_place(schedule: Schedule, programs: Sequence[list[UOp] | None], free: Collection[int]) -> dict[int, int]:
    """Output slot → number of the input whose memory it takes over.

    Args:
        schedule: in its final order.
        programs: the linear program of each item; None for copies.
        free: numbers of the inputs that nobody reads after the program.
    """
    chosen: dict[int, int] = {}
    for slot, number in schedule.versions.items():
        if number not in free or number in chosen.values():
            continue
        old = schedule.inputs.get(number)
        if old is None or _allowed(schedule, programs, slot, old):
            chosen[slot] = number
    return chosen


def _allowed(schedule: Schedule, programs: Sequence[list[UOp] | None], slot: int, old: int) -> bool:
    """Whether writing ``slot`` over ``old`` changes nothing that is still read."""
    writer = next(t for t, item in enumerate(schedule.items) if slot in item.slots[: item.outputs])
    for time, item in enumerate(schedule.items):
        if old not in item.slots[item.outputs :]:
            continue
        program = programs[time]
        if time > writer or (time == writer and (
                program is None or not reads_before_writes(program, item.slots.index(old), item.slots.index(slot)))):
            return False
    return True


def reads_before_writes(program: list[UOp], read: int, written: int) -> bool:
    """Whether every load from buffer ``read`` is followed, in the same loop body, by the store of that very element.

    A program stores each element of an output once, so no other store can come before the load.
    """
    bodies, opened = [0], 0
    loaded: set[tuple[int, UOp, int]] = set()
    stored: set[tuple[int, UOp, int]] = set()
    for u in program:
        if u.op in _OPEN:
            opened += 1
            bodies.append(opened)
        elif u.op in _CLOSE:
            bodies.pop()
        elif u.op is Ops.STORE and u.src[0].op is Ops.DEFINE_GLOBAL and u.src[0].arg == written:
            stored.add((bodies[-1], u.src[1], u.src[2].dtype.count))
        elif u.op is Ops.LOAD and u.src[0].op is Ops.DEFINE_GLOBAL and u.src[0].arg in (read, written):
            place = bodies[-1], u.src[1], u.dtype.count
            if place in stored or u.src[0].arg == written:
                return False
            loaded.add(place)
    return loaded <= stored

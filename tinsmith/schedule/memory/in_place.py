"""In-place updates: outputs of a program that may overwrite the memory of an input.

The caller says which input buffers nobody outside the program reads afterwards. Inside the program, every other reader
must run before the write, and the writing kernel may read an element only directly before it writes that element, in
the same loop body.
"""
from __future__ import annotations

from collections.abc import Sequence

from tinsmith.ir import Ops, UOp
from tinsmith.schedule.schedule_item import Schedule

_OPEN, _CLOSE = (Ops.RANGE, Ops.IF), (Ops.ENDRANGE, Ops.ENDIF)


def choose_in_place(schedule: Schedule, programs: Sequence[list[UOp] | None]) -> dict[int, int]:
    """Return output slot → number of the input whose memory it may overwrite if nobody reads that input afterwards.

    Args:
        schedule: in its final order.
        programs: the linear program of each item; None for copies.
    """
    items = schedule.items
    done = [(time, item) for time, item in enumerate(items) if not item.carries]  # by the outputs that are in place
    # index of the first item that writes each slot (a slot may be written in parts)
    writer = {slot: time for time, item in reversed(done) for slot in item.written}
    last = {slot: time for time, item in done for slot in item.read}
    chosen: dict[int, int] = {}
    for slot, number in schedule.versions.items():
        old, time = schedule.inputs.get(number), writer[slot]
        free = old is None or last.get(old, -1) < time
        if old is not None and last.get(old) == time and (program := programs[time]) is not None:
            free = reads_before_writes(program, items[time].slots.index(old), items[time].slots.index(slot))
        if free and number not in chosen.values():
            chosen[slot] = number
    return chosen


def reads_before_writes(program: list[UOp], read: int, written: int) -> bool:
    """Return True if every load from buffer ``read`` precedes the store of the same element in the same loop body.

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

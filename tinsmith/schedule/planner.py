"""The memory plan: temporaries of one program share one block per device, laid out by when they live."""
from __future__ import annotations

from dataclasses import dataclass

from tinsmith.schedule.items import Schedule

ALIGN = 128


@dataclass
class Plan:
    """Where each temporary lies: slot → byte offset in its device's block; and the size of each block."""

    offsets: dict[int, int]
    sizes: dict[str, int]


def plan_memory(schedule: Schedule) -> Plan:
    """Greedy placement, largest first: a temporary takes the lowest place that no value alive at that time holds."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for time, item in enumerate(schedule.items):
        for s in item.slots:
            first.setdefault(s, time)
            last[s] = time
    fixed = {s.number for s in schedule.slots if s.input or s.output}
    plan = Plan({}, {})
    placed: dict[str, list[tuple[int, int, int, int]]] = {}
    temporaries = [s for s in schedule.slots if s.number not in fixed and s.number in first]
    for slot in sorted(temporaries, key=lambda s: -s.size * s.dtype.itemsize):
        size = -(-max(slot.size * slot.dtype.itemsize, 1) // ALIGN) * ALIGN
        begin, end = first[slot.number], last[slot.number]
        others = sorted(p for p in placed.setdefault(slot.device, []) if p[2] <= end and begin <= p[3])
        at = 0
        for low, high, _, _ in others:
            if at + size <= low:
                break
            at = max(at, high)
        placed[slot.device].append((at, at + size, begin, end))
        plan.offsets[slot.number] = at
        plan.sizes[slot.device] = max(plan.sizes.get(slot.device, 0), at + size)
    return plan

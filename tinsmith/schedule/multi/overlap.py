"""Order of steps over several devices: copies overlap with kernels, since each device has queues of its own."""
from __future__ import annotations

from collections.abc import Iterable, Sequence

from tinsmith.backend.device import Device
from tinsmith.schedule.memory.dependencies import toposorted
from tinsmith.schedule.schedule_item import Schedule, ScheduleItem

COPIES = " copies"  # suffix of a device's name: its queue of copies from other devices


def queue_of(copy: bool, target: str, source: str = "") -> str:
    """Return the queue of a kernel that writes on ``target``, or of a copy from ``source`` to it."""
    apart = copy and target != source and Device[target].has_programs and Device[source].has_programs
    return target + COPIES if apart else target


def workers(names: Iterable[str]) -> set[str]:
    """Return the names of the workers (``Compiled.worker``) of devices that run kernels; of a single device, its name.

    Only devices with different workers run at the same time.
    """
    devices = set(names)
    return {Device[d].worker for d in devices if Device[d].has_programs} if len(devices) > 1 else devices


def overlapped(schedule: Schedule) -> list[ScheduleItem]:
    """Return the items in an order that minimizes waits between queues, by list scheduling.

    It simulates a run in which each item takes as long as the bytes it touches; each queue
    starts its earliest ready item.
    """
    items, slots = schedule.items, schedule.slots
    if len(workers(item.device for item in items)) <= 1:
        return items
    devices = [slots[item.slots[0]].device for item in items]
    homes = [queue_of(item.sink is None, d, slots[item.slots[-1]].device) for item, d in zip(items, devices)]
    clocks, ready = dict.fromkeys(homes, 0), [0] * len(items)

    def run(n: int, readers: Sequence[int]) -> None:
        traffic = sum(slots[s].nbytes for s in items[n].slots)
        clocks[homes[n]] = max(clocks[homes[n]], ready[n]) + 1 + traffic * (
            Device[devices[n]].target.costs.copied if items[n].sink is None else 1)
        for r in readers:
            ready[r] = max(ready[r], clocks[homes[n]])

    return toposorted(items, lambda n: max(clocks[homes[n]], ready[n]), run)

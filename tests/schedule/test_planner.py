"""The memory plan: live buffers never overlap, and memory is reused."""
from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.schedule import helpers
from tinsmith.core.dtypes import dtypes
from tinsmith.schedule.memory.memory_plan import plan_memory
from tinsmith.schedule.schedule_item import Schedule, ScheduleItem, Slot


@st.composite
def schedules(draw: Any) -> Schedule:
    """Draw items that read some earlier slots and write new ones."""
    slots, items = [Slot(0, 100, dtypes.float32, "CPU", input=True)], []
    for _ in range(draw(st.integers(1, 25))):
        read = draw(st.lists(st.integers(max(0, len(slots) - 6), len(slots) - 1), max_size=3, unique=True))
        device = draw(st.sampled_from(["CPU", "CPU", "CPU:1"]))
        new = [Slot(len(slots) + n, draw(st.integers(0, 400)), dtypes.float32, device,
                    output=draw(st.integers(0, 5)) == 0)
               for n in range(draw(st.integers(1, 2)))]
        slots += new
        items.append(ScheduleItem(device, None, [*(s.number for s in new), *read], "", outputs=len(new)))
    return Schedule(items, slots, {0: 0}, [], {})


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(schedules())
def test_nothing_alive_overlaps(schedule: Schedule) -> None:
    plan = plan_memory(schedule)
    uses = {s.number: [t for t, i in enumerate(schedule.items) if s.number in i.slots] for s in schedule.slots}
    planned = [s for s in schedule.slots if s.number in plan.offsets]
    assert {s.number for s in planned} == {s.number for s in schedule.slots if not s.input and not s.output}
    for a in planned:
        end = plan.offsets[a.number] + a.size * a.dtype.itemsize
        assert end <= plan.sizes[a.device] and plan.offsets[a.number] % 64 == 0
        for b in planned:
            together = uses[a.number][0] <= uses[b.number][-1] and uses[b.number][0] <= uses[a.number][-1]
            if a is not b and a.device == b.device and together and a.size and b.size:
                low = plan.offsets[b.number]
                assert end <= low or low + b.size * b.dtype.itemsize <= plan.offsets[a.number]
    for device, size in plan.sizes.items():
        assert size <= sum(max(s.size * 4 + 127, 128) // 128 * 128 for s in planned if s.device == device)


def test_a_chain_reuses_memory() -> None:
    x = helpers.given(32, 32)
    for _ in range(10):
        x = (x @ x).relu()
    found = helpers.schedule(x)
    assert len(found.items) == 10
    assert plan_memory(found).sizes == {"CPU": 2 * 32 * 32 * 4}


def test_one_block_per_device() -> None:
    x = helpers.given(32, 32)
    y = ((x @ x).relu() @ x).relu() @ x
    compiled = y.schedule()
    bound = compiled.bound
    assert [device for device, _ in bound.blocks] == ["CPU"]
    assert len({bound.places[n].base for n in compiled.plan.offsets}) == 1 and len(compiled.plan.offsets) == 2

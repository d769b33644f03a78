"""No merge creates a cycle, and ordering, planning and queueing never drop a kernel silently."""
from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable

import numpy as np
import pytest

from tests.codegen.running import NATIVE
from tests.schedule import helpers
from tinsmith.backend.memory import Buffer
from tinsmith.core.dtypes import DType, dtypes
from tinsmith.core.errors import VerifyError
from tinsmith.core.settings import Context
from tinsmith.ir import Ops
from tinsmith.ir.interpret.tensor import evaluate
from tinsmith.ir.uop import toposort
from tinsmith.jit import merged_schedule
from tinsmith.jit.function import TinyJit
from tinsmith.runtime import command_queue, compiled_schedule, launch, lowering
from tinsmith.runtime.command_queue import CommandQueue, KernelItem
from tinsmith.runtime.step import Step
from tinsmith.schedule.memory import memory_plan
from tinsmith.schedule.memory.memory_plan import MemoryPlan, joinable, plan_slots, toposorted, verify_order
from tinsmith.schedule.schedule_item import Schedule, ScheduleItem, Slot
from tinsmith.tensor.realize import _concrete
from tinsmith.tensor.tensor import Tensor


def gradient_of_a_gradient(device: str) -> Tensor:
    """A program in which merging siblings created a cycle."""
    numbers = np.random.default_rng(0)
    x, c1, c2, c3 = (Tensor(numbers.standard_normal((3, 4)), device=device) for _ in range(4))
    n = x.layernorm()
    loss = (n.mish() * c1).sum() + ((n / (x * x + 1)).softmax(1) * c2).sum()
    (g,) = loss.gradient(x)
    return (g * c3).sum().gradient(x)[0]


@pytest.mark.parametrize("device", [*NATIVE, "PYTHON"])
@pytest.mark.parametrize("noopt", [0, 1])
def test_no_kernel_is_lost(device: str, noopt: int) -> None:
    with Context(NOOPT=noopt):
        result = gradient_of_a_gradient(device)
        root = _concrete(result.uop)
        inputs = {n: n.arg.numpy() for n in toposort(root) if n.op is Ops.BUFFER}
        (want,) = evaluate([root], inputs)
        np.testing.assert_allclose(result.numpy(), want.reshape(3, 4), rtol=1e-9)


# *** the rule ***

SLOTS = [Slot(n, 4, dtypes.float32, "CPU", input=n == 0, output=n == 3) for n in range(4)]


def item(written: list[int], read: list[int]) -> ScheduleItem:
    return ScheduleItem("CPU", None, [*written, *read], "", outputs=len(written))


GOOD = [item([1], [0]), item([2], [0, 1]), item([3], [1, 2])]


@pytest.mark.parametrize("items, message", [
    (GOOD, None),
    (GOOD[:2], "the result slots .3. are never written"),
    ([GOOD[0], GOOD[2], GOOD[1]], "item 1 reads slot 2 before it is written"),
    ([GOOD[0], GOOD[2]], "reads slot 2"),
    ([*GOOD, GOOD[1]], "item 3 writes slot 2, which already holds a value"),
    ([item([0], []), *GOOD], "item 0 writes slot 0"),
], ids=["good", "result lost", "too early", "lost", "twice", "input"])
def test_an_order_is_verified(items: list[ScheduleItem], message: str | None) -> None:
    if message is None:
        verify_order(items, SLOTS, "this test")
        return
    with pytest.raises(VerifyError, match=f"this test: .*{message}"):
        verify_order(items, SLOTS, "this test")


def test_sorting() -> None:
    assert toposorted(GOOD[::-1]) == GOOD
    assert toposorted([GOOD[1], item([7], [0]), GOOD[0]]) == [item([7], [0]), GOOD[0], GOOD[1]]
    with pytest.raises(VerifyError, match="2 of 3 items form a dependency cycle"):
        toposorted([GOOD[0], item([2], [3]), item([3], [2])])


def test_what_can_be_one_item() -> None:
    a, b, c = GOOD
    assert joinable(GOOD, [a, b]) and joinable(GOOD, [b, c]) and joinable(GOOD, GOOD)
    assert not joinable(GOOD, [a, c]), "b runs between them"
    assert not joinable(GOOD, [a, b], late={1}), "b would read what a writes at the end"


def chain() -> Tensor:
    x = helpers.given(8, 8)
    return ((x @ x).relu() @ x).softmax(1) @ x


@pytest.mark.parametrize("step", ["fuse_horizontally", "store_in_place", "overlapped"])
@pytest.mark.parametrize("change", [lambda items: items[:-1], lambda items: items[1:], lambda items: items[::-1]],
                         ids=["last", "first", "order"])
def test_every_step_is_verified(step: str, change: Callable[[list[ScheduleItem]], list[ScheduleItem]],
                                monkeypatch: pytest.MonkeyPatch) -> None:
    real = getattr(lowering, step)

    def broken(schedule: Schedule) -> list[ScheduleItem]:
        return change(real(schedule))

    broken.__name__ = step
    monkeypatch.setattr(lowering, step, broken)
    with Context(CACHELEVEL=0), pytest.raises(VerifyError, match=step):
        chain().schedule()


def test_a_step_lost_in_lowering_is_found() -> None:
    compiled = chain().schedule()
    del compiled.steps[1]
    with pytest.raises(VerifyError, match="compiling: item 1 reads"):
        compiled.bound  # noqa: B018  made now


def test_a_step_lost_in_a_capture_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = merged_schedule._Joiner.add

    def add(self: merged_schedule._Joiner, number: int, made: merged_schedule.JitItem) -> None:
        real(self, number, made)
        if number == 0:
            del self.steps[0]

    monkeypatch.setattr(merged_schedule._Joiner, "add", add)
    function = TinyJit(lambda x: (x + 1).realize() * 2)
    with pytest.raises(VerifyError, match="reads slot"):
        for n in range(3):
            function(helpers.given(4, seed=n))


class Forgetful(KernelItem):
    """A device that drops the first kernel."""

    def __init__(self, steps: list[Step]) -> None:
        super().__init__(steps[1:])


def test_a_step_lost_in_queues_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    x = Tensor([1.0, 2.0], device="PYTHON").realize()
    compiled = (x.to("CPU") + 1).to("PYTHON").mul(3).schedule()
    CommandQueue(compiled)
    monkeypatch.setattr(command_queue, "KernelItem", Forgetful)
    with pytest.raises(VerifyError, match="steps were given"):
        CommandQueue(compiled)


def test_a_memory_plan_is_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    slots = [dataclasses.replace(s, input=False, output=False) for s in SLOTS]
    uses = [[0, 1], [1, 2], [2, 3]]
    assert plan_slots(slots, uses).offsets == {0: 0, 1: 128, 2: 0, 3: 128}

    def all_at_once(lives: list[memory_plan._Life], plan: MemoryPlan) -> None:
        for life in lives:
            plan.place(life, 0)

    monkeypatch.setattr(memory_plan, "_pack", all_at_once)
    with pytest.raises(VerifyError, match="overlaps slots 1 and 0"):
        plan_slots(slots, uses)


def test_random_plans_pass() -> None:
    numbers = random.Random(0)
    for _ in range(3):
        slots = [Slot(n, numbers.randint(0, 300), dtypes.float32, "CPU") for n in range(60)]
        uses = [[numbers.randint(max(0, n - 9), n) for _ in range(3)] for n in range(60)]
        plan_slots(slots, uses)


# *** memory that is never written ***


@pytest.mark.parametrize("lost", [0, 1], ids=["temporary", "result"])
def test_a_lost_kernel_shows_in_the_result(lost: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The NaN of an unwritten temporary keeps its bits up to the result."""
    monkeypatch.setattr(compiled_schedule, "verify_order", lambda *_: None)
    x = helpers.given(8, 8)
    compiled = Tensor.schedule(x.relu().contiguous() @ x)
    assert len(compiled.steps) == 2
    del compiled.steps[lost]
    with pytest.raises(VerifyError, match="output 0 of the program contains uninitialized memory"):
        launch.run(compiled, [x.uop.base.arg], [])


@pytest.mark.parametrize("dtype", [dtypes.uint8, dtypes.float32], ids=str)
def test_fresh_memory_is_known_whatever_it_was_allocated_as(dtype: DType) -> None:
    """Temporaries of several types share memory, so a float may be read from memory filled as bytes."""
    fresh = Buffer("CPU", 64 // dtype.itemsize, dtype).allocate()
    assert Buffer("CPU", 16, dtypes.float32, base=fresh).is_poisoned()

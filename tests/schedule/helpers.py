"""Helpers that schedule tensors without running them."""
from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from tinsmith.backend.device import Device
from tinsmith.ir import Ops, UOp
from tinsmith.ir.uop import toposort
from tinsmith.runtime.compiled_schedule import CompiledSchedule
from tinsmith.runtime.lowering import arrange
from tinsmith.schedule.canonical import canonical
from tinsmith.schedule.schedule_item import Schedule, ScheduleItem
from tinsmith.schedule.scheduler import Scheduler
from tinsmith.tensor.realize import _concrete
from tinsmith.tensor.tensor import Tensor


def make_copies_free(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    """Make copies and launches free for the scheduler of a device, for the time of a test."""
    renderer = copy.copy(Device[device].renderer)
    renderer.target = replace(renderer.target, costs=renderer.target.costs._replace(balance=0.0, launch=0.0))
    monkeypatch.setattr(Device[device], "_renderer", renderer)


def schedule(*tensors: Tensor) -> Schedule:
    roots = list(dict.fromkeys(_concrete(t.uop) for t in tensors))
    out = Scheduler(canonical(roots)[0], "CPU").run()
    arrange(out)
    assert all(i.reason for i in out.items)
    return out


def kernels(*tensors: Tensor) -> list[ScheduleItem]:
    return [i for i in schedule(*tensors).items if i.sink is not None]


def count(*tensors: Tensor) -> int:
    return len(kernels(*tensors))


def given(*shape: int, seed: int = 0) -> Tensor:
    return Tensor(np.random.default_rng(seed).standard_normal(shape).astype(np.float32)).realize()


def reductions(item: ScheduleItem) -> int:
    assert item.sink is not None
    return sum(n.op is Ops.REDUCE for n in toposort(item.sink))


def computed(program: Sequence[UOp]) -> int:
    """Return the number of arithmetic operations of a kernel over all loop iterations, as one thread with one lane."""
    alone = {u: UOp.index(int(u.arg == "nthreads")) for u in program if u.op is Ops.SPECIAL}
    times, total = [1], 0
    for u in program:
        if u.op is Ops.RANGE:
            first, last = (UOp.index(0), *u.src)[-2:]
            steps = last.substitute(alone).simplify().vmax - first.substitute(alone).simplify().vmin
            times.append(times[-1] * max(steps, 1))
        elif u.op is Ops.ENDRANGE:
            times.pop()
        elif u.op.alu and u.dtype.is_float:
            total += times[-1] * u.dtype.count
    return total


def work(compiled: CompiledSchedule) -> int:
    return sum(computed(s.launch.uops) for s in compiled.steps if s.launch is not None)

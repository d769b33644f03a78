"""The schedule of tensors, without running it."""
from __future__ import annotations

import numpy as np

from tinsmith.ir import Ops
from tinsmith.ir.uop import toposort
from tinsmith.schedule.execute import arrange, canonical
from tinsmith.schedule.items import Schedule, ScheduleItem, Scheduler
from tinsmith.tensor.realize import _concrete
from tinsmith.tensor.tensor import Tensor


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

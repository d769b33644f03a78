"""Schedules as the tutorials make and run them, over ``Tensor.schedule`` and ``CommandQueue``."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tinsmith.backend.memory import Buffer
from tinsmith.ir import UOp
from tinsmith.runtime.command_queue import CommandQueue
from tinsmith.runtime.compiled_schedule import CompiledSchedule
from tinsmith.tensor.tensor import Tensor


def create_schedule(outs: Sequence[UOp | Tensor], seen: Any = None) -> CompiledSchedule:
    """Return the program that computes ``outs``: tensors, or their ``lazydata``.

    >>> len(create_schedule([Tensor([1, 2]).dot(Tensor([3, 4])).lazydata]).steps)
    3
    """
    first, *others = (Tensor(out) if isinstance(out, UOp) else out for out in outs)
    return first.schedule(*others)


def create_schedule_with_vars(outs: Sequence[UOp | Tensor],
                              seen: Any = None) -> tuple[CompiledSchedule, dict[UOp, int]]:
    """The program, and the values of the variables that it was made for."""
    return Tensor.schedule_with_vars(*(Tensor(out) if isinstance(out, UOp) else out for out in outs))


def run_schedule(schedule: CompiledSchedule, var_vals: Any = None, do_update_stats: bool = True) -> list[Buffer]:
    """Run a tensor's schedule on the buffers that it was made for; the results are the buffers that it returns.

    >>> [b.numpy().tolist() for b in run_schedule(create_schedule([Tensor([1, 2]) + 1]))]
    [[2, 3]]
    """
    return CommandQueue(schedule)()

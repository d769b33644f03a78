"""A step of a compiled schedule: a kernel ready to launch, or a copy."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tinsmith.backend.program import Program
from tinsmith.codegen.launch import Launch
from tinsmith.core.origin import Origin, layers_of
from tinsmith.schedule.schedule_item import ScheduleItem


def copy_name(nbytes: int, target: str, source: str) -> str:
    return f"copy {nbytes}, {target} <- {source}"


@dataclass
class Step:
    """One item of a compiled schedule: a kernel, or a copy if there is no program.

    Attributes:
        slots: the buffers it is launched on, in order; (target, source) for a copy.
        variables: numbers of the program's values that it takes.
        origin: methods and lines of the user's program that it computes.
        name: the name shown to users.
        launch: launch data; a full ``KernelProgram`` if it was lowered in this process.
        item: the schedule item it was lowered from, if in this process.
        carries: it copies an old version to the new one's memory; skipped if that is the same.
        written_for: the kernel generated for the original device, if a stand-in device runs another kernel.
    """

    device: str
    program: Program | None
    slots: list[int]
    variables: list[int]
    origin: Sequence[Origin] = ()
    name: str = ""
    launch: Launch | None = None
    item: ScheduleItem | None = None
    written_for: Launch | None = None
    carries: bool = False

    @property
    def kernel(self) -> Launch | None:
        """The launch data; None for a copy."""
        return self.launch or (None if self.program is None else self.program.kernel)

    @property
    def shown(self) -> Launch | None:
        """The kernel shown to users."""
        return self.written_for or self.launch

    @property
    def written(self) -> list[int]:
        kernel = self.kernel
        if kernel is None:
            return self.slots[:1]
        return [s for s, n in zip(self.slots, kernel.buffers) if n in kernel.written]

    @property
    def read(self) -> list[int]:
        written = set(self.written)
        return [s for s in self.slots if s not in written]

    @property
    def methods(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(method for method, _, _ in self.origin))

    @property
    def layers(self) -> tuple[str, ...]:
        """The labels of the model layers that it computes: ``layers.0 Conv2d``."""
        return layers_of(self.origin)

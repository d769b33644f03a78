"""One item of a compiled schedule: a kernel ready to be launched, or a copy."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tinsmith.backend.program import Program
from tinsmith.codegen.launch import Launch
from tinsmith.ir.uop import Origin
from tinsmith.schedule.items import ScheduleItem


def copy_name(nbytes: int, target: str, source: str) -> str:
    return f"copy {nbytes}, {target} <- {source}"


@dataclass
class Step:
    """One item of a compiled schedule: a kernel, or a copy where there is no program.

    Attributes:
        slots: the buffers it is launched on, in order; (target, source) for a copy.
        variables: numbers of the program's values that it takes.
        origin: methods and lines of the user's program that it computes.
        name: what is shown of it.
        launch: a whole ``KernelProgram`` if it was lowered in this process.
        item: what it was lowered from, likewise.
        written_for: the kernel for the device itself, where another one runs it.
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

    @property
    def kernel(self) -> Launch | None:
        """What launching it needs to know; None for a copy."""
        return self.launch or (None if self.program is None else self.program.kernel)

    @property
    def shown(self) -> Launch | None:
        """The kernel that people look at."""
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

"""Source listing of all kernels that a script runs: ``python -m tinsmith source script.py``."""
from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import TextIO

from tinsmith.backend.device import Device
from tinsmith.codegen.launch import KernelProgram
from tinsmith.core.settings import settings
from tinsmith.core.terminal import show_whole
from tinsmith.inspect.debug import lines_of
from tinsmith.runtime.compiled_schedule import CompiledSchedule
from tinsmith.runtime.recorder import lowered
from tinsmith.runtime.step import Step


class SourceList:
    """An observer that writes the kernels of every lowered program, each kernel once.

    Args:
        out: the file to write to.
    """

    def __init__(self, out: TextIO) -> None:
        self.out = out
        self.seen: set[tuple[str, str]] = set()
        self.names: Counter[str] = Counter()

    def __call__(self, compiled: CompiledSchedule) -> None:
        for step in compiled.steps:
            kernel = step.shown
            if isinstance(kernel, KernelProgram) and (step.device, kernel.symbol) not in self.seen:
                self.seen.add((step.device, kernel.symbol))
                self.write(step, kernel)

    def write(self, step: Step, kernel: KernelProgram) -> None:
        """Write one kernel, with a comment that says which methods it computes and how it is launched."""
        name = kernel.name + (f"n{self.names[kernel.name]}" if self.names[kernel.name] else "")
        self.names[kernel.name] += 1
        of = ", ".join(lines_of(step.item)) if step.item is not None else ""
        sizes = [f"{what} {'x'.join(map(str, size))}" for what, size in (("grid", kernel.grid), ("block", kernel.block))
                 if size]
        mark = Device[step.device].renderer.comment
        text = f"{mark} {name} for {step.device}{': ' if of else ''}{of}{''.join(f'; {s}' for s in sizes)}\n"
        show_whole(f"{text}{kernel.source.replace(kernel.symbol, name).rstrip()}\n", self.out)


@contextlib.contextmanager
def listing(out: TextIO, device: str) -> Iterator[SourceList]:
    """In this block, write sources to ``out``; a device that this machine lacks is replaced by a stand-in."""
    found, before = SourceList(out), (Device.shows_source, settings.DEV)
    lowered.append(found)
    # class attribute and global setting, so that they also apply to the script's threads
    Device.shows_source, settings.DEV = True, device
    try:
        Device[device]
        yield found
    finally:
        Device.shows_source, settings.DEV = before
        lowered.remove(found)

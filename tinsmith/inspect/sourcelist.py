"""The source of everything that a script runs, kernel by kernel: ``python -m tinsmith source script.py``."""
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
from tinsmith.runtime.compiled import CompiledSchedule
from tinsmith.runtime.record import lowered
from tinsmith.runtime.step import Step


class SourceList:
    """Writes the kernels of every program that is lowered, each kernel once.

    Args:
        out: where to.
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
        """One kernel, under a comment that says what it computes and how it is launched."""
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
    """While it lasts, sources go to ``out``, and a device that is not here is stood in for."""
    found, before = SourceList(out), (Device.shows_source, settings.DEV)
    lowered.append(found)
    Device.shows_source, settings.DEV = True, device  # for the threads of a script too
    try:
        Device[device]
        yield found
    finally:
        Device.shows_source, settings.DEV = before
        lowered.remove(found)

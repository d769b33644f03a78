"""Manual opts: one kernel of a program under a list of opts given by the user, to inspect and to run."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tinsmith.backend.device import Device
from tinsmith.codegen.compile_kernel import begin, compile_kernel
from tinsmith.codegen.kernel import Kernel
from tinsmith.codegen.launch import KernelProgram
from tinsmith.codegen.opt import Opt
from tinsmith.codegen.render.gpu import GPURenderer
from tinsmith.core.errors import ArgumentError
from tinsmith.core.suggestions import missing_attribute
from tinsmith.inspect.debug import READABLE, opts_text
from tinsmith.ir import Ops, UOp
from tinsmith.ir.interpret.tensor import evaluate
from tinsmith.ir.ops.op import Array
from tinsmith.ir.ranges import Axis, range_size
from tinsmith.ir.text.printer import uop_table
from tinsmith.runtime.compiled_schedule import CompiledSchedule
from tinsmith.runtime.launch import run
from tinsmith.runtime.lowering import lower, planned
from tinsmith.schedule.canonical import canonical


class Wanted(NamedTuple):
    """A tensor's value: the value itself, the node below its views, and the concrete node that a program computes."""

    value: UOp
    inner: UOp
    root: UOp


@dataclass(frozen=True, eq=False)
class Tuned:
    """A kernel under given opts. Printing it shows its axes before and after, its UOps and its source.

    Attributes:
        before, axes: the ranges that opts refer to, before the first opt and after the last.
        runs_on: the tensor's device.
        opts: the opts that were applied.
        source: text for the device's compiler.
        source_c: the same program as C, as ``DEBUG=4`` prints it; the source itself where that is C already.
        schedule: the whole program with this kernel in it, not run: a list of items that print one line each.
        uops: the linear program.
        kernel: the full kernel program.
    """

    device: str
    before: tuple[Axis, ...]
    axes: tuple[Axis, ...]
    kernel: KernelProgram
    runs_on: str
    wanted: Wanted
    number: int

    @property
    def opts(self) -> tuple[Opt, ...]:
        return tuple(self.kernel.opts)

    @property
    def source(self) -> str:
        return self.kernel.source.replace(self.kernel.symbol, self.kernel.name)

    @property
    def source_c(self) -> str:
        if isinstance(Device.renderer_of(self.device), GPURenderer):
            return self.source
        return READABLE.render(self.kernel.name, self.kernel.uops)

    @property
    def schedule(self) -> CompiledSchedule:
        return self._lowered()[0]

    @property
    def uops(self) -> list[UOp]:
        return self.kernel.uops

    def run(self) -> Array:
        """Return the tensor's values, computed with this kernel; the rest of the program is unchanged.

        Raises:
            ArgumentError: if the kernel was written for another device than the tensor's.
        """
        compiled, buffers, values = self._lowered()
        (found,) = run(compiled, [b.arg for b in buffers], values)
        shape = tuple(int(s) for s in self.wanted.inner.shape)
        inner = found.numpy()[: prod(shape)].reshape(shape)
        given = UOp(Ops.PARAM, self.wanted.inner.dtype, (), (0, shape))
        (out,) = evaluate([self.wanted.value.substitute({self.wanted.inner: given})], {given: inner})
        return np.array(out, order="C")

    def _lowered(self) -> tuple[CompiledSchedule, list[UOp], list[int]]:
        """Return the program with this kernel in it, its BUFFERs, and its bound values.

        Raises:
            ArgumentError: if the kernel was written for another device than the tensor's.
        """
        if self.device != self.runs_on:
            raise ArgumentError("with_opts", f"the source is for {self.device}, but the tensor is on {self.runs_on}",
                                f"with_opts(tensor, opts) without a device, or tensor.to({self.device!r})")
        graph, buffers, values = canonical([self.wanted.root])
        return lower(graph, self.device, {self.number: self.opts}), buffers, values

    if not TYPE_CHECKING:  # a type checker finds missing attributes itself
        def __getattr__(self, name):
            return missing_attribute(self, name)

    def __str__(self) -> str:
        lines = [f"{self.kernel.name} on {self.device}: {opts_text(list(self.opts))}"]
        for text, axes in (("axes before", self.before), ("axes after", self.axes)):
            lines.append(f"  {text}: {', '.join(f'{n}: {a!r}' for n, a in enumerate(axes)) or 'none'}")
        return "\n".join([*lines, uop_table(self.uops), self.source.rstrip()])


def with_opts(wanted: Wanted, device: str, opts: Sequence[Opt] | None, number: int, source_for: str | None) -> Tuned:
    """Return kernel ``number`` of the program that computes ``wanted``, under ``opts``; None: the model's choice."""
    graph, _, _ = canonical([wanted.root])
    schedule, layouts = planned(graph, device)
    if layouts:
        raise ArgumentError("with_opts", f"the tensor is spread over {device}", "a tensor on one device")
    kernels = [n for n, item in enumerate(schedule.items) if item.sink is not None]
    if not -len(kernels) <= number < len(kernels):
        raise ArgumentError("with_opts", f"there is no kernel {number}, the program has {len(kernels)}",
                            "a number below that; -1 is the last kernel")
    item = schedule.items[kernels[number]]
    assert item.sink is not None
    name = item.device if source_for is None else Device.canonicalize(source_for)
    renderer = Device.renderer_of(name)
    program = compile_kernel(item.sink, renderer, opts)
    return Tuned(name, _axes(begin(item.sink, renderer.target)), _axes(program.kernel), program, item.device, wanted,
                 kernels[number])


def _axes(kernel: Kernel) -> tuple[Axis, ...]:
    return tuple(Axis(range_size(r), r.arg[1]) for r in kernel.ranges)

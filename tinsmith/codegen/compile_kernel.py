"""Compilation of one kernel: lower, decompose, optimize, linearize, render; results are cached by content."""
from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from tinsmith.codegen.decompose.decompose import decompose
from tinsmith.codegen.emit.linearize import linearize
from tinsmith.codegen.kernel import Kernel
from tinsmith.codegen.launch import KernelProgram, Launch, programs
from tinsmith.codegen.lower.lower import lower
from tinsmith.codegen.lower.normalize import normalize
from tinsmith.codegen.opt import Opt
from tinsmith.codegen.planner.candidate import growth_of
from tinsmith.codegen.planner.planner import KernelPlan, plan
from tinsmith.codegen.planner.work import NO_WORK, Work, transcendentals, work_of
from tinsmith.codegen.render.base import Renderer, launch_size, local_bytes
from tinsmith.codegen.transform.thread_blocks import to_grid
from tinsmith.codegen.transform.tma_boxes import maps
from tinsmith.core.errors import ArgumentError
from tinsmith.core.origin import passed
from tinsmith.core.settings import settings
from tinsmith.ir import Ops, UOp
from tinsmith.ir.verify import verify_kernel, verify_program, verify_tensor
from tinsmith.target.target import Target


def compile_kernel(sink: UOp, renderer: Renderer, opts: Sequence[Opt] | None = None) -> KernelProgram:
    """Compile ``sink`` (a SINK of tensor values over PARAMs) to source and launch data.

    Args:
        sink: the kernel's tensor graph.
        renderer: the renderer that writes the source; its target selects the opts.
        opts: opts to apply instead of the planner's choice.
    """
    key = (sink, renderer.key(), settings.code_key, None if opts is None else tuple(opts))
    found = programs.get(key)
    if found is None:
        found = programs[key] = passed("program", _compile(sink, renderer, opts))
    return found


def begin(sink: UOp, target: Target) -> Kernel:
    """Return the kernel graph of a kernel's tensor graph before any opt."""
    return _begin(normalize(lower(sink)), target)


def choose(kernel: Kernel, target: Target) -> KernelPlan:
    """Apply the opts with the least estimated cost on the target."""
    return _plan(kernel, target, lambda trial: _linear(trial.copied()))


def _plan(kernel: Kernel, target: Target, build: Callable[[Kernel], object]) -> KernelPlan:
    return plan(kernel, target if settings.TC else replace(target, units=()), build)


def _linear(kernel: Kernel) -> list[UOp]:
    """Return the linear program of a kernel with all its opts.

    Raises:
        ArgumentError: if a block of the device has fewer threads or less local memory than the program needs.
    """
    check, target = bool(settings.CHECK_IR or settings.DEBUG >= 3), kernel.target
    program = linearize(kernel)
    if check:
        verify_kernel(kernel.sink)
        verify_program(program)
    most = max(target.local_bytes, target.ring_bytes * any(u.op is Ops.DEFINE_RING for u in program))
    if (near := local_bytes(program)) > most:
        raise ArgumentError("Opt", f"the stages need {near} bytes of local memory, a block has {most}",
                            "smaller amounts, or fewer GROUP and STAGE opts")
    if (threads := math.prod(launch_size(program, "lidx"))) > max(target.block_threads, 1):
        raise ArgumentError("Opt", f"a block has at most {target.block_threads} threads, the opts ask for {threads}",
                            "smaller amounts of LOCAL and GROUP")
    return program


def _begin(lowered: UOp, target: Target) -> Kernel:
    kernel = Kernel(decompose(lowered), target=target)
    to_grid(kernel, target.parallel)
    return kernel


def _compile(sink: UOp, renderer: Renderer, opts: Sequence[Opt] | None) -> KernelProgram:
    check = bool(settings.CHECK_IR or settings.DEBUG >= 3)
    if check:
        verify_tensor(sink)
    target = renderer.target
    passed("kernel", sink)
    lowered = passed("normalize", normalize(passed("lower", lower(sink))))
    kernel = passed("ranges", _begin(lowered, target))
    if check:
        verify_kernel(kernel.sink)
    work, chosen = work_of(kernel), None
    growth = growth_of(kernel, target.core.serial_work)
    if opts is not None or settings.NOOPT:
        for opt in opts or ():
            kernel.apply(opt)
        program = _linear(passed("opts", kernel))
    else:
        built: list[list[UOp]] = []
        chosen = _plan(kernel, target, lambda trial: built.append(_linear(passed("opts", trial))))
        program = built[-1]
    launch, text = assemble(kernel.name(), program, renderer, work)
    if not launch.serial:
        launch.growth = [(factor, [launch.variables.index(v) for v in names if v in launch.variables])
                         for factor, names in growth]
    return KernelProgram(**vars(launch), source=text, uops=program, opts=list(kernel.opts), kernel=kernel, work=work,
                         transcendentals=transcendentals(lowered), plan=chosen)


def assemble(name: str, program: Sequence[UOp], renderer: Renderer, work: Work = NO_WORK) -> tuple[Launch, str]:
    """Return launch data and source of a linear program, compiled or hand-written."""
    pointers = [u for u in program if u.op is Ops.DEFINE_GLOBAL and u.dtype.pointer]
    text = renderer.render("KERNEL", program)
    views = [[pointers.index(memory), v.offset, to.name, *map(list, (v.sizes, v.strides, v.reach(), v.steps)), row]
             for memory, v, to, row in maps(program)]
    # a loaded kernel has its views: equal text on other views is another kernel
    content = f"{text}{views or ''}"
    symbol = f"{name}_{hashlib.sha256(content.encode()).hexdigest()[:10]}"
    launch = Launch(
        name, symbol,
        [u.arg for u in pointers],
        [u.arg[0] for u in program if u.op is Ops.DEFINE_GLOBAL and not u.dtype.pointer],
        frozenset(u.src[0].arg for u in program
                  if u.op in (Ops.STORE, Ops.STORE_TILE) and u.src[0].op is Ops.DEFINE_GLOBAL),
        work.operations, work.bytes, local_bytes(program),
        not any(u.op is Ops.SPECIAL and u.arg == "tid" for u in program), launch_size(program, "gidx"),
        launch_size(program, "lidx"),
        maps=views, unit=next((u.arg.name for u in program if u.op is Ops.MMA), ""))
    return launch, text.replace("KERNEL", symbol)

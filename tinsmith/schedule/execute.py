"""Realizing: the schedule of a graph is made once per structure, then bound to buffers and run."""
from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tinsmith.backend.device import Call, Device, Program
from tinsmith.backend.memory import Buffer
from tinsmith.codegen.program import KernelProgram, compile_kernel
from tinsmith.core.counters import GlobalCounters, Ran, report
from tinsmith.core.dtypes import dtypes
from tinsmith.core.errors import KernelError, TinsmithError
from tinsmith.core.settings import settings
from tinsmith.ir import Ops, UOp
from tinsmith.ir.evaluate import evaluate
from tinsmith.ir.uop import toposort
from tinsmith.schedule import explain
from tinsmith.schedule.inplace import choose_in_place
from tinsmith.schedule.items import Schedule, ScheduleItem, Scheduler
from tinsmith.schedule.planner import Plan, plan_memory
from tinsmith.schedule.record import recorders
from tinsmith.schedule.siblings import merge_siblings


@dataclass
class Step:
    """One item of a compiled schedule: a kernel's program, or a copy where there is none."""

    device: str
    program: Program | None
    slots: list[int]
    variables: list[int]
    origin: tuple[str, ...] = ()
    name: str = ""
    item: ScheduleItem | None = None


@dataclass
class CompiledSchedule:
    """A schedule with its programs and its memory plan, independent of buffers and bound values."""

    schedule: Schedule
    plan: Plan
    steps: list[Step] = field(default_factory=list)
    in_place: dict[int, int] = field(default_factory=dict)  # slot of an output → number of the input it overwrites


_compiled: dict[Any, CompiledSchedule] = {}
_programs: dict[tuple[str, str], Program] = {}


def canonical(roots: Sequence[UOp]) -> tuple[list[UOp], list[UOp], list[int]]:
    """The graph with its BUFFERs and bound values numbered by first visit: (graph, buffers, values)."""
    new: dict[UOp, UOp] = {}
    buffers: list[UOp] = []
    values: list[int] = []
    names: dict[UOp, UOp] = {}
    for n in toposort(roots):
        if n.op is Ops.BUFFER:
            new[n] = UOp(Ops.BUFFER, n.dtype, (), BufferName(len(buffers), n.arg.size, n.arg.device))
            buffers.append(n)
        elif n.op is Ops.BIND:
            variable = n.src[0]
            if n not in names:
                fresh = UOp.variable(f"v{len(values)}", *variable.arg[1:])
                names[n] = UOp(Ops.BIND, None, (fresh, UOp.index(len(values))))
                values.append(n.src[1].arg)
            new[n] = names[n]
        elif n.op is Ops.DETACH:  # says something about gradients only
            new[n] = new.get(n.src[0], n.src[0])
        elif n.src:
            src = tuple(new.get(s, s) for s in n.src)
            if any(a is not b for a, b in zip(src, n.src)):
                new[n] = n.replace(src=src)
    return [new.get(r, r) for r in roots], buffers, values


@dataclass(frozen=True)
class BufferName:
    """Stands for a buffer in a canonical graph."""

    number: int
    size: int
    device: str


def realize(roots: Sequence[UOp], device: str, free: Collection[UOp] = ()) -> list[Buffer]:
    """Compute ``roots`` (concrete nodes) and return a buffer for each.

    Args:
        roots: tensor-graph nodes with memory semantics: anything but movement ops.
        device: where kernels without any buffer run.
        free: BUFFERs that nobody reads after this program: a new version may take their memory.
    """
    graph, buffers, values = canonical(roots)
    numbers = tuple(n for n, b in enumerate(buffers) if b in free) if free else ()
    key = (tuple(graph), device, numbers, settings.code_key())
    compiled = _compiled.get(key)
    if compiled is None or settings.DEBUG >= 3:
        compiled = _compile(graph, device, key, numbers)
    inputs = [b.arg for b in buffers]
    outputs = run(compiled, inputs, values)
    for recorder in recorders:
        recorder.ran(roots, compiled, inputs, values, outputs)
    return outputs


def _compile(graph: list[UOp], device: str, key: Any, free: Sequence[int]) -> CompiledSchedule:
    GlobalCounters.schedule_count += 1
    schedule = Scheduler(graph, device).run()
    if not settings.NOOPT:
        schedule.items = merge_siblings(schedule.items)
    compiled = CompiledSchedule(schedule, plan_memory(schedule))
    names: dict[str, list[str]] = {}
    for item in schedule.items:
        origin = tuple(dict.fromkeys(m for m, _, _ in item.origin))
        if item.sink is None:
            compiled.steps.append(Step(item.device, None, item.slots, [], origin))
            continue
        opened = Device[item.device]
        kernel = compile_kernel(item.sink, opened.renderer)
        same = names.setdefault(kernel.name, [])
        if kernel.symbol not in same:
            same.append(kernel.symbol)
        number = same.index(kernel.symbol)
        name = kernel.name if number == 0 else f"{kernel.name}n{number}"
        program = load(item.device, kernel)
        slots = [item.slots[n] for n in kernel.buffers]
        values = [item.variables[int(v[1:])].src[1].arg for v in kernel.variables]
        compiled.steps.append(Step(item.device, program, slots, values, origin, name, item))
    if free:
        programs = [s.program.kernel.uops if s.program is not None else None for s in compiled.steps]
        compiled.in_place = choose_in_place(schedule, programs, free)
    _compiled[key] = compiled
    return compiled


def load(device: str, kernel: KernelProgram) -> Program:
    """The loaded program of a kernel; one per device and content."""
    key = (device, kernel.symbol)
    if key not in _programs:
        opened = Device[device]
        _programs[key] = opened.runtime(kernel, opened.compiler.compile(kernel.source))
    return _programs[key]


def bind(compiled: CompiledSchedule, inputs: list[Buffer]) -> list[Buffer]:
    """A buffer for every slot: the inputs, fresh outputs, and places in one block of temporaries per device."""
    schedule, plan = compiled.schedule, compiled.plan
    blocks = {device: Buffer(device, size, dtypes.uint8) for device, size in plan.sizes.items()}
    given = {slot: inputs[number] for number, slot in schedule.inputs.items()}
    given |= {slot: inputs[number] for slot, number in compiled.in_place.items()}
    out: list[Buffer] = []
    for slot in schedule.slots:
        if slot.number in given:
            out.append(given[slot.number])
        elif slot.number in plan.offsets:
            out.append(blocks[slot.device].view(slot.size, slot.dtype, plan.offsets[slot.number]))
        else:
            out.append(Buffer(slot.device, slot.size, slot.dtype))
    return out


def run(compiled: CompiledSchedule, inputs: list[Buffer], values: Sequence[int]) -> list[Buffer]:
    """Run a compiled schedule; neighbouring kernels of one device go to it in one batch."""
    for b in inputs:
        b.check()
    buffers = bind(compiled, inputs)
    outputs = [buffers[n] for n in compiled.schedule.outputs]
    if compiled.in_place:
        for b in buffers:
            b.opaque  # noqa: B018  running out of memory must leave the old versions as they are
    timed = settings.DEBUG >= 2
    batch: list[Call] = []
    launched: list[Step] = []  # the steps of the batch, or of what ran last
    batch_device = ""
    try:
        for step in compiled.steps:
            if step.program is None:
                _flush(batch_device, batch)
                launched = [step]
                _copy(buffers[step.slots[0]], buffers[step.slots[1]])
                continue
            call = Call(step.program, [buffers[s] for s in step.slots], [values[v] for v in step.variables])
            if timed:
                explain.show(step.item, step.program.kernel, step.name, Device[step.device])
                launched = [step]
                _timed(step, call)
                continue
            if step.device != batch_device:
                _flush(batch_device, batch)
                batch_device = step.device
            if not batch:
                launched = []
            launched.append(step)
            batch.append(call)
            _count(step.program)
        _flush(batch_device, batch)
    except BaseException as error:
        _mark_failed(compiled, buffers, launched, error)
        if isinstance(error, Exception) and not isinstance(error, TinsmithError):
            raise _kernel_error(launched, error, bool(compiled.in_place)) from error
        raise
    return outputs


def _mark_failed(compiled: CompiledSchedule, buffers: list[Buffer], launched: list[Step], error: BaseException) -> None:
    """No output can be read; old versions that outputs write over only if a kernel may have run."""
    refused = not launched or (launched == compiled.steps[:1] and isinstance(error, Exception))
    for n in compiled.schedule.outputs:
        if not (refused and n in compiled.in_place):
            buffers[n].failed = error


def _kernel_error(steps: Sequence[Step], error: Exception, in_place: bool) -> KernelError:
    """What to tell when ``steps``, launched together, failed: which kernels, and the user's line of the first."""
    device = steps[0].device if steps else "the device"
    names = [f"{s.name or 'copy'}{' (' + ', '.join(s.origin) + ')' if s.origin else ''}" for s in steps]
    some = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
    which = f"kernel {some}" if len(names) == 1 else f"one of the kernels {some}"
    at = next((o[1:] for s in steps if s.item for o in reversed(s.item.origin)), None)
    mend = ("load assigned tensors again: their memory may be half written" if in_place else
            "mend that failure; nothing was changed, and reading the value again computes it again")
    return KernelError("realize", f"{which} failed on {device}: {type(error).__name__}: {error}", mend, at)


def _flush(device: str, batch: list[Call]) -> None:
    if batch:
        Device[device].run(batch)
        batch.clear()


def _count(program: Program) -> None:
    GlobalCounters.kernel_count += 1
    GlobalCounters.global_ops += program.kernel.ops
    GlobalCounters.global_mem += program.kernel.bytes


def _timed(step: Step, call: Call) -> None:
    device = Device[step.device]
    start = time.perf_counter()
    device.run([call])
    device.synchronize()
    seconds = time.perf_counter() - start
    kernel = call.program.kernel
    report(Ran(step.device, step.name, len(call.buffers), seconds, kernel.ops, kernel.bytes, step.origin))


def _copy(target: Buffer, source: Buffer) -> None:
    source.check()
    if target.device != source.device and Device[target.device].has_programs and Device[source.device].has_programs:
        _synchronize(source.device)
    target.opaque  # noqa: B018  taking memory is no part of the copy's time
    start = time.perf_counter()
    copy_buffer(target, source)
    seconds = time.perf_counter() - start
    report(Ran(target.device, f"copy {source.nbytes}, {target.device} <- {source.device}", 2, seconds, 0,
               source.nbytes, kind="copy"))


def _synchronize(device: str) -> None:
    """Two queues meet: what the other one was given must have run."""
    start = time.perf_counter()
    Device[device].synchronize()
    report(Ran(device, "synchronize", 1, time.perf_counter() - start, kind="sync"))


def copy_buffer(target: Buffer, source: Buffer) -> None:
    """Copy all bytes, straight where the host can address one of the two."""
    if not source.nbytes:
        return
    view = source.host_view()
    if view is not None:
        target.copyin(view)
        return
    mapped = target.host_view()
    if mapped is not None:
        source.copyout(mapped)
    else:
        target.copyin(source.as_buffer())


def copy_to_host(uop: UOp) -> np.ndarray[Any, Any]:
    """The values of a view of a BUFFER as a NumPy array: one copy, shown as such."""
    for recorder in recorders:
        recorder.read()
    buffer = uop.base.arg
    buffer.check()
    host = Buffer("NPY", buffer.size, buffer.dtype)
    _copy(host, buffer)
    flat = host.opaque.view(buffer.dtype.numpy)
    if uop is uop.base:
        return flat  # type: ignore[no-any-return]
    (out,) = evaluate([uop], {uop.base: flat})
    return np.array(out, order="C")

"""Realizing: the schedule of a graph is made once per structure, then bound to buffers and run."""
from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tinsmith import codegen, schedule
from tinsmith.backend.device import Call, Compiled, Device, LaunchError, members
from tinsmith.backend.memory import Buffer, Layout, copy_buffer
from tinsmith.backend.shards import Shards, flattened
from tinsmith.codegen.launch import KernelProgram
from tinsmith.codegen.launch import programs as kernel_programs
from tinsmith.codegen.opt import Opt
from tinsmith.core.collector import no_collection
from tinsmith.core.counters import GlobalCounters, Ran, report
from tinsmith.core.dtypes import dtypes
from tinsmith.core.errors import KernelError, OutOfMemoryError, TinsmithError, VerifyError
from tinsmith.core.observe import passed
from tinsmith.core.recent import Recent
from tinsmith.core.settings import settings
from tinsmith.core.timeline import PYTHON, span, timeline
from tinsmith.ir import Ops, UOp
from tinsmith.ir.evaluate import evaluate
from tinsmith.ir.ops import FOR_GRADIENTS
from tinsmith.ir.uop import bindings, substitute, symbols, toposort, with_symbols
from tinsmith.schedule import diskcache, scalars
from tinsmith.schedule.budget import Kernels, within
from tinsmith.schedule.compiled import Bound, CompiledSchedule, Step, buffer_name, loaded, part_names
from tinsmith.schedule.compiled import programs as compiled_programs
from tinsmith.schedule.compiling import Compilation
from tinsmith.schedule.empty import without_empty
from tinsmith.schedule.inplace import choose_in_place
from tinsmith.schedule.items import Schedule, Scheduler
from tinsmith.schedule.order import verify_order
from tinsmith.schedule.planner import plan_memory
from tinsmith.schedule.queue import overlap, overlapped
from tinsmith.schedule.record import lowered, recorders
from tinsmith.schedule.sharding import is_group, spread_out
from tinsmith.schedule.siblings import merge_siblings
from tinsmith.schedule.sums import join_sums
from tinsmith.schedule.texts import bytes_text
from tinsmith.schedule.twins import merge_twins

_NAMED = (Ops.ASSIGN, Ops.CONTIGUOUS)  # their argument matters to gradients only
_compiled: Recent[Any, CompiledSchedule] = Recent()  # by structure, and by canonical graph


def canonical(roots: Sequence[UOp]) -> tuple[list[UOp], list[UOp], list[int]]:
    """The graph with its BUFFERs and bound values numbered by first visit: (graph, buffers, values).

    A buffer over several devices takes a number for each of its parts.
    """
    new: dict[UOp, UOp] = {}
    buffers: list[UOp] = []
    count = 0
    order = toposort(roots)
    bound = bindings(order)
    for number, n in enumerate(bound):
        fresh = UOp.variable(f"v{number}", *n.src[0].arg[1:])
        new[n] = UOp(Ops.BIND, None, (fresh, UOp.const(dtypes.int32, number)))  # no index: it is no value of a size
    names = dict(new)
    for n in order:
        if n.op is Ops.BUFFER:
            name = buffer_name(count, n.arg)
            new[n] = UOp(Ops.BUFFER, n.dtype, (), name)
            buffers.append(n)
            count += len(part_names(name))
        elif n.op in FOR_GRADIENTS:
            new[n] = new.get(n.src[0], n.src[0])
        elif n.src and n not in names:
            src = tuple(new.get(s, s) for s in n.src)
            arg = with_symbols(n.arg, names) if names and n.op.kind == "movement" else None if n.op in _NAMED else n.arg
            if arg is not n.arg or any(a is not b for a, b in zip(src, n.src)):
                new[n] = made = n.replace(src=src, arg=arg)
                made.origin = n.origin or made.origin  # an equal graph of other lines may be there already
    values = [n.src[1].arg for n in bound]
    return [new.get(r, r) for r in roots], buffers, values


def structure(roots: Sequence[UOp]) -> tuple[tuple[Any, ...], list[UOp], list[int]] | None:
    """What tells canonical graphs apart, and their buffers and bound values, without building them.

    Two graphs of equal structure have equal canonical graphs. None: symbolic sizes need the whole graph.
    """
    numbers: dict[UOp, Any] = {}  # node → its row; leaves but BUFFERs stand for themselves where they are read
    rows: list[Any] = []
    buffers: list[UOp] = []
    values: list[int] = []
    number = numbers.__getitem__
    stack: list[tuple[Any, Iterator[UOp]]] = [(None, iter(roots))]
    while True:
        n, sources = stack[-1]
        for s in sources:
            if s in numbers:
                continue
            if s.src:
                stack.append((s, iter(s.src)))
                break
            if s.op is Ops.BUFFER:
                numbers[s] = len(rows)
                rows.append((s.dtype, s.arg.size, s.arg.layout or s.device))
                buffers.append(s)
            else:
                numbers[s] = s
        else:
            stack.pop()
            if n is None:
                return (*rows, *map(number, roots)), buffers, values
            op, src = n.op, n.src
            if op in FOR_GRADIENTS:
                numbers[n] = numbers[src[0]]
                continue
            numbers[n] = len(rows)
            if op is Ops.BIND:
                rows.append((op, *src[0].arg[1:], len(values)))
                values.append(src[1].arg)
            elif op.kind == "movement" and n.arg not in _plain and not _is_plain(n.arg):
                return None
            else:
                rows.append((op, n.dtype, None if op in _NAMED else n.arg, *map(number, src)))


_plain: set[Any] = set()  # arguments of movement ops without symbolic sizes


def _is_plain(arg: Any) -> bool:
    if any(True for _ in symbols(arg)):
        return False
    if len(_plain) > 10_000:
        _plain.clear()
    _plain.add(arg)
    return True


def realize(roots: Sequence[UOp], device: str, free: Collection[UOp] = ()) -> list[Buffer]:
    """Compute ``roots`` (concrete nodes) and return a buffer for each.

    Args:
        roots: tensor-graph nodes with memory semantics: anything but movement ops.
        device: where kernels without any buffer run.
        free: BUFFERs that nobody reads after this program: a new version may take their memory.
    """
    settled = device, settings.program_key
    found, compiled = structure(roots), None
    if found is not None:
        spared = _spared(found[1], free) if settings.memory_limit else ()
        compiled = _compiled.get((found[0], settled, spared))
        if compiled is None and not recorders:  # a replay has the constants that it was captured with
            table = scalars.arguments(found[0], roots, device, settled)
            if table:
                roots = substitute(roots, dict(table))
                found = structure(roots)
                assert found is not None
                spared = _spared(found[1], free)
                compiled = _compiled.get((found[0], settled, spared))
        key, buffers, values = found
    if found is None or compiled is None or settings.DEBUG >= 3:
        with no_collection():  # nodes are in no cycles, and a pass over those of a large graph takes seconds
            graph, buffers, values = canonical(roots)
            spared = _spared(buffers, free)
            compiled = _compiled.get((tuple(graph), settled, spared))
            if compiled is None or settings.DEBUG >= 3:
                compiled = _compiled[tuple(graph), settled, spared] = _compile(graph, device, spared)
        if found is not None:
            _compiled[key, settled, spared] = compiled
        forget_old()
    inputs = [b.arg for b in buffers]
    numbers = _numbers(buffers, free) if free else ()
    outputs = run(compiled, inputs, values, numbers)
    for recorder in recorders:
        recorder.ran(roots, compiled, inputs, values, outputs)
    return outputs


def forget_old() -> None:
    """Keep what was used last of everything compiled: PROGRAMS programs, and as many kernels."""
    for table in (_compiled, compiled_programs, kernel_programs, scalars.forms):
        table.trim(max(settings.PROGRAMS, 1))


def _spared(buffers: Sequence[UOp], free: Collection[UOp]) -> tuple[int, ...]:
    """Under a memory budget, another program where other new versions may take the memory of old ones."""
    return _numbers(buffers, free) if settings.memory_limit else ()


def _numbers(buffers: Sequence[UOp], free: Collection[UOp]) -> tuple[int, ...]:
    """The numbers of the parts of ``free`` buffers."""
    wanted = [b in free for b in buffers for _ in range(1 if b.arg.layout is None else len(b.arg.parts))]
    return tuple(n for n, yes in enumerate(wanted) if yes)


def _lowered_again() -> bool:
    """Whether someone watches, so that what is shown must not depend on what the disk cache holds, or searches."""
    return bool(settings.DEBUG >= 3 or settings.recorded or lowered or settings.CHECK_IR or settings.BEAM
                or settings.CHECKED >= 2)


def _compile(graph: list[UOp], device: str, spared: tuple[int, ...]) -> CompiledSchedule:
    """The program of a canonical graph: from disk, or scheduled and lowered now."""
    with span("program", PYTHON, "program"):
        key = None if _lowered_again() else diskcache.entry_key(graph, device, spared)
        compiled = diskcache.fetch(key, graph) if key is not None else None
        if compiled is None:
            places = diskcache.places_of(graph) if key is not None else {}
            compiled = lower(graph, device, free=spared)
            if key is not None and not compiled.missing:
                diskcache.store(key, places, compiled)
        overlap(compiled)
    return compiled


def planned(graph: list[UOp], device: str) -> tuple[Schedule, list[Layout | None]]:
    """The kernels of a canonical graph before they are lowered, and how sharded results lie."""
    layouts: list[Layout | None] = []
    graph = passed("without empty values", without_empty(graph, device))
    if any(is_group(d) for d in (device, *(n.device for n in toposort(graph)))):
        graph, layouts = spread_out(graph, device)
        passed("spread over devices", graph)
        device = members(device)[0]
    schedule = Scheduler(graph, device).run()
    arrange(schedule)
    return schedule, layouts


def arrange(schedule: Schedule) -> None:
    """Merge items and put them in their final order.

    Raises:
        VerifyError: if a step loses an item or runs one before what it reads.
    """
    verify_order(schedule.items, schedule.slots, "Scheduler")
    for step in (*(() if settings.NOOPT else (merge_twins, merge_siblings, join_sums)), overlapped):
        schedule.items = passed(step.__name__.replace("_", " "), step(schedule))
        verify_order(schedule.items, schedule.slots, step.__name__)


def lower(graph: list[UOp], device: str, opts: Mapping[int, Sequence[Opt]] | None = None,
          free: Collection[int] | None = None) -> CompiledSchedule:
    """Schedule, lower and load the program of a canonical graph, whatever is cached of it but binaries.

    Args:
        opts: what to apply to kernels, by their number, instead of the optimizer's choice.
        free: numbers of inputs whose memory new versions may take; None for any of them. A memory budget asks.
    """
    if settings.recorded:
        return schedule.trace.current().lowered(graph, lambda: _lower(graph, device, opts, free))
    return _lower(graph, device, opts, free)


def _lower(graph: list[UOp], device: str, opts: Mapping[int, Sequence[Opt]] | None,
           free: Collection[int] | None) -> CompiledSchedule:
    with Compilation() as compilation:
        schedule, layouts, kernels, missing = sources(graph, device, opts or {}, free, compilation)
        compilation.load()
    compiled = CompiledSchedule(schedule, plan_memory(schedule), layouts=layouts, missing=missing)
    names: dict[str, list[str]] = {}
    for item, (kernel, written) in zip(schedule.items, kernels):
        if kernel is None or written is None:
            compiled.steps.append(Step(item.device, None, item.slots, [], item.origin, item=item))
            continue
        same = names.setdefault(written.name, [])
        if written.symbol not in same:
            same.append(written.symbol)
        number = same.index(written.symbol)
        name = written.name if number == 0 else f"{written.name}n{number}"
        slots = [item.slots[n] for n in kernel.buffers]
        values = [item.variables[int(v[1:])].src[1].arg for v in kernel.variables]
        program = loaded(item.device, kernel)
        compiled.steps.append(Step(item.device, program, slots, values, item.origin, name, kernel, item,
                                   None if written is kernel else written))
    compiled.in_place = choose_in_place(schedule, [k.uops if k is not None else None for k, _ in kernels])
    for tell in lowered:
        tell(compiled)
    return compiled


def sources(graph: list[UOp], device: str, opts: Mapping[int, Sequence[Opt]], free: Collection[int] | None,
            compilation: Compilation | None = None) -> tuple[Schedule, list[Layout | None], Kernels, int]:
    """The schedule of a canonical graph with the kernels of its items, their sources written: what ``planned`` gives,
    and the bytes that MEMORY_BUDGET lacks."""
    GlobalCounters.schedule_count += 1
    schedule, layouts = planned(graph, device)
    kernels: Kernels = []
    for n, item in enumerate(schedule.items):
        kernel = written = None
        if item.sink is not None:
            target = Device[item.device]
            chosen = opts.get(n, _searched(item.sink, target))
            kernel = written = codegen.program.compile_kernel(item.sink, target.renderer, chosen)
            if target.runs_on is not target:
                kernel = codegen.program.compile_kernel(item.sink, target.runs_on.renderer)
            if compilation is not None:
                compilation.add(item.device, kernel)
        kernels.append((kernel, written))
    missing = 0
    if settings.memory_limit:
        kernels, missing = within(schedule, kernels, settings.memory_limit, free)
        verify_order(passed("memory budget", schedule.items), schedule.slots, "memory budget")
    return schedule, layouts, kernels, missing


def _searched(sink: UOp, device: Compiled) -> Sequence[Opt] | None:
    """Opts that a search found, where one is wanted and the device is here."""
    wanted = settings.BEAM > 0 and not settings.NOOPT and device.runs_on is device
    return schedule.beam.opts_for(sink, device.device) if wanted else None


def output_buffers(bound: Bound, inputs: Sequence[Buffer], free: Collection[int]) -> list[Buffer]:
    """Memory for the outputs: fresh, or that of an input in ``free`` where the program may write over it."""
    outputs = [Buffer(s.device, s.size, s.dtype) for s in bound.outputs]
    if free:
        for n, number in bound.in_place:
            if number in free:
                outputs[n] = inputs[number]
    return outputs


def run(compiled: CompiledSchedule, inputs: list[Buffer], values: Sequence[int],
        free: Collection[int] = ()) -> list[Buffer]:
    """Run a compiled schedule and return its results.

    Args:
        inputs: in order; one over several devices takes a number for each of its parts.
        values: of its variables, by number.
        free: numbers of inputs that nobody reads afterwards: a new version may take their memory.
    """
    if compiled.missing:
        raise OutOfMemoryError("realize", f"the program misses memory_budget={bytes_text(settings.memory_limit)} by "
                               f"{bytes_text(compiled.missing)}, whatever is computed again",
                               "a greater budget, a smaller batch, or fewer results at a time")
    bound = compiled.bound
    if compiled.layouts:
        inputs = flattened(inputs)
    outputs = output_buffers(bound, inputs, free)
    launch(bound, inputs, outputs, values, [Buffer(device, size, dtypes.uint8) for device, size in bound.blocks])
    results = [outputs[n] for n in bound.results]
    return _grouped(results, compiled.layouts) if compiled.layouts else results


def _grouped(outputs: list[Buffer], layouts: Sequence[Layout | None]) -> list[Buffer]:
    """A buffer for each root: those of one that lies on several devices together."""
    rest = iter(outputs)
    return [next(rest) if layout is None else Shards([next(rest) for _ in layout.devices], layout)
            for layout in layouts]


def launch(bound: Bound, inputs: Sequence[Buffer], outputs: Sequence[Buffer], values: Sequence[int],
           blocks: Sequence[Buffer]) -> None:
    """Run what a schedule consists of, part by part, on buffers for its inputs, its outputs and its temporaries."""
    bases = [inputs[n] for n in bound.inputs]
    for b in bases:
        if b.failed is not None:
            b.check()
    bases += outputs
    bases += blocks
    for n, b in enumerate(bases, -len(bound.inputs)):
        if b._opaque is None:
            b.opaque  # noqa: B018  running out of memory must leave the old versions as they are
            b.origin = bound.origins[n] if 0 <= n < len(outputs) else None
    launched: list[Step] = []
    try:
        if settings.one_by_one:
            _one_by_one(bound, bases, values, launched)
        elif bound.queue is not None:
            bound.queue(bases, values, launched)
        else:
            _by_parts(bound, bases, values, launched)
        if settings.POISON or settings.CHECKED:
            _verify_written(bound, inputs, outputs)
    except BaseException as error:
        failed(bound, inputs, outputs, launched, error)
        raise


def _by_parts(bound: Bound, bases: Sequence[Buffer], values: Sequence[int], launched: list[Step]) -> None:
    counters = GlobalCounters
    for part in bound.parts:
        launched[:] = part.steps
        if part.graph is None:
            _copy(*(bound.places[s].of(bases) for s in part.steps[0].slots))
            continue
        part.graph(bases, values)
        counters.kernel_count += len(part.steps)
        counters.global_ops += part.ops
        counters.global_mem += part.bytes


def _one_by_one(bound: Bound, bases: Sequence[Buffer], values: Sequence[int], launched: list[Step]) -> None:
    """Run step by step, and look at each: how long it took, or what it did to memory."""
    checked = settings.CHECKED >= 2
    of: Callable[[int], Buffer] = lambda s: bound.places[s].of(bases)  # noqa: E731
    if checked:
        of = schedule.checked.apart(bound, bases)
    steps = [step for part in bound.parts for step in part.steps]
    for step in steps:
        launched[:] = [step]
        with schedule.checked.watched(step, of, values) if checked else contextlib.nullcontext():
            if step.program is None:
                _copy(*map(of, step.slots))
            else:
                _timed(step, [of(s) for s in step.slots], values)
    if checked:
        schedule.checked.verify_guards(steps)


def _verify_written(bound: Bound, inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> None:
    """Check that no output holds what fresh memory holds, or a NaN that came from there, unless an input does, too.

    One that has no element for some values of its size may rightly be left as it was.

    Raises:
        VerifyError: naming the output.
    """
    for n, (slot, b) in enumerate(zip(bound.outputs, outputs)):
        if not slot.may_be_empty and b.is_poisoned() and not any(i.is_poisoned() for i in inputs):
            raise VerifyError(f"output {n} of the program holds what fresh memory held: {b!r}")


def failed(bound: Bound, inputs: Sequence[Buffer], outputs: Sequence[Buffer], launched: Sequence[Step],
           error: BaseException) -> None:
    """Mark what must not be read after ``error`` came while steps were launched together.

    Raises:
        KernelError: naming the steps, unless the error says what is wrong already.
    """
    _mark_failed(bound, inputs, outputs, launched, error)
    if isinstance(error, LaunchError) and error.number is not None:
        launched = launched[error.number : error.number + 1]
    if isinstance(error, Exception) and not isinstance(error, (TinsmithError, VerifyError)):
        raise _kernel_error(launched, error, any(a is b for a in inputs for b in outputs)) from error


def _mark_failed(bound: Bound, inputs: Sequence[Buffer], outputs: Sequence[Buffer], launched: Sequence[Step],
                 error: BaseException) -> None:
    """No output can be read; old versions that outputs write over only if a kernel may have run."""
    first = bound.parts[0] if bound.parts else None
    refused = not launched
    if first is not None and launched and launched[0] is first.steps[0] and isinstance(error, Exception):
        refused = len(launched) == 1 or (first.graph is not None and first.graph.whole)
    refused = refused and bound.queue is None  # other devices may have begun
    for b in outputs:
        if not (refused and any(b is old for old in inputs)):
            b.failed = error


def _kernel_error(steps: Sequence[Step], error: Exception, in_place: bool) -> KernelError:
    """What to tell when ``steps``, launched together, failed: which kernels, and the user's line of the first."""
    device = steps[0].device if steps else "the device"
    names = [f"{s.name or 'copy'}{' (' + ', '.join(s.methods) + ')' if s.origin else ''}" for s in steps]
    some = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
    which = f"kernel {some}" if len(names) == 1 else f"one of the kernels {some}"
    at = next((o[1:] for s in steps for o in reversed(s.origin)), None)
    mend = ("load assigned tensors again: their memory may be half written" if in_place else
            "mend that failure; nothing was changed, and reading the value again computes it again")
    return KernelError("realize", f"{which} failed on {device}: {type(error).__name__}: {error}", mend, at)


def _report(ran: Ran) -> None:
    report(ran)
    if settings.timed:
        timeline.ran(ran)
        if settings.PROFILE:
            schedule.profile.note(ran)


def _timed(step: Step, buffers: list[Buffer], values: Sequence[int]) -> None:
    assert step.program is not None
    device = Device[step.device]
    if isinstance(step.shown, KernelProgram):
        schedule.debug.show_kernel(step.item, step.shown, step.name, device)
    call = Call(step.program, buffers, [values[v] for v in step.variables])
    start = time.perf_counter()
    seconds = device.timed(call)
    kernel = step.launch or call.program.kernel
    _report(Ran(step.device, step.name, len(call.buffers), seconds, kernel.ops, kernel.bytes, step.methods,
                lines=tuple(step.origin), start=start, key=(step.shown or kernel).symbol,
                occupancy=step.program.occupancy if settings.PROFILE else None))


def _copy(target: Buffer, source: Buffer) -> None:
    source.check()
    if target.device != source.device and Device[target.device].has_programs and Device[source.device].has_programs:
        _synchronize(source.device)
    target.opaque  # noqa: B018  taking memory is no part of the copy's time
    start = time.perf_counter()
    copy_buffer(target, source)
    seconds = time.perf_counter() - start
    _report(Ran(target.device, f"copy {source.nbytes}, {target.device} <- {source.device}", 2, seconds, 0,
                source.nbytes, kind="copy", start=start))


def _synchronize(device: str) -> None:
    """Two queues meet: what the other one was given must have run."""
    start = time.perf_counter()
    Device[device].synchronize()
    _report(Ran(device, "synchronize", 1, time.perf_counter() - start, kind="sync", start=start))


def is_host_copy(node: UOp) -> bool:
    """A copy of host memory, as ``Tensor(array)`` makes it, to devices that compute."""
    if node.op is not Ops.COPY or node.src[0].op is not Ops.BUFFER or node.src[0].arg.layout is not None:
        return False
    return all(Device[d].has_programs for d in members(node.arg)) and not Device[node.src[0].arg.device].has_programs


def uncopied(node: UOp) -> Buffer:
    """The place for what a COPY of host memory gives: a buffer on its device, or one on each device of its group."""
    source, devices = node.src[0].arg, members(node.arg)
    parts = [Buffer(d, source.size, source.dtype) for d in devices]
    return parts[0] if len(parts) == 1 else Shards(parts, Layout(devices, (source.size,)))


def copy_from_host(node: UOp) -> Buffer:
    """What a COPY of host memory gives."""
    found = uncopied(node)
    for part in flattened([found]):
        _copy(part, node.src[0].arg)
    return found


def copy_to_host(uop: UOp) -> np.ndarray[Any, Any]:
    """The values of a view of a BUFFER as a NumPy array: one copy, shown as such."""
    for recorder in recorders:
        recorder.read()
    buffer = uop.base.arg
    buffer.check()
    if isinstance(buffer, Shards):
        flat = buffer.joined([_host_copy(b) for b in buffer.needed()])
    else:
        flat = _host_copy(buffer)
    if uop is uop.base:
        return flat.reshape(uop.shape)
    (out,) = evaluate([uop], {uop.base: flat})
    return np.array(out, order="C")


def seen_on_host(uop: UOp) -> np.ndarray[Any, Any]:
    """The values of a view of a BUFFER over its memory itself, where the host can address it; else a copy.

    They are to be read at once, while something refers to the buffer.
    """
    buffer = uop.base.arg
    mapped = None if recorders or isinstance(buffer, Shards) else buffer.host_view()
    if mapped is None:
        return copy_to_host(uop)
    buffer.check()
    flat = np.frombuffer(mapped, buffer.dtype.numpy)
    found: np.ndarray[Any, Any] = flat if uop is uop.base else evaluate([uop], {uop.base: flat})[0]
    return found.reshape(uop.shape)


def _host_copy(buffer: Buffer) -> np.ndarray[Any, Any]:
    host = Buffer("NPY", buffer.size, buffer.dtype)
    _copy(host, buffer)
    return np.frombuffer(host.host_view() or b"", buffer.dtype.numpy)

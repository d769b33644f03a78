"""Running a compiled schedule on buffers; transfers between host and devices; the hook for captures.

All parts of a schedule run at once, or step by step for timing and checks. A capture registers a recorder here, which
realize calls."""
from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from tinsmith.backend.device import Device, members
from tinsmith.backend.memory import Buffer, ShardLayout, copy_buffer
from tinsmith.backend.program import Call, LaunchError
from tinsmith.backend.shards import Shards, flattened
from tinsmith.codegen.launch import KernelProgram
from tinsmith.core.counters import Ran, count_work, report
from tinsmith.core.errors import KernelError, OutOfMemoryError, TinsmithError, VerifyError, is_from_handler
from tinsmith.core.object_lifetime import OfThread
from tinsmith.core.settings import current, settings
from tinsmith.core.terminal import bytes_text
from tinsmith.core.timeline import LAUNCHING, phase, timeline
from tinsmith.ir import Ops, UOp
from tinsmith.ir.interpret.tensor import evaluate
from tinsmith.ir.ops import Op
from tinsmith.runtime import inspectors
from tinsmith.runtime.compiled_schedule import Bound, CompiledSchedule
from tinsmith.runtime.step import Step, copy_name
from tinsmith.runtime.thread_turns import (
    let_go,
    looked_at,
    overwritten,
    reading,
    take,
    turn_of,
    under_way,
    wait_to_read,
)

if TYPE_CHECKING:
    from tinsmith.runtime.compiled_schedule import CompiledSchedule


def output_buffers(bound: Bound, inputs: Sequence[Buffer], free: Collection[int],
                   values: Sequence[int] | None = None) -> list[Buffer]:
    """Return the output buffers: new memory, or that of an input in ``free`` that the program may overwrite.

    Args:
        values: the values of the program's variables; None: outputs get their maximum sizes.
    """
    outputs = bound.new_outputs(values)
    if free:
        for n, number in bound.in_place:
            if number in free and inputs[number].size == outputs[n].size:
                outputs[n] = inputs[number]
    return outputs


def run(compiled: CompiledSchedule, inputs: list[Buffer], values: Sequence[int],
        free: Collection[int] = (), exact: bool = False) -> list[Buffer]:
    """Run a compiled schedule and return its results.

    Args:
        inputs: the input buffers, in order; a buffer over several devices takes one number for each of its parts.
        values: the values of its variables, by number.
        free: numbers of inputs that nothing reads afterwards: a new version may overwrite their memory.
        exact: allocate results and temporaries for ``values`` instead of the maximum sizes.
    """
    if compiled.missing:
        raise OutOfMemoryError("realize", f"the program exceeds memory_budget={bytes_text(settings.memory_limit)} by "
                               f"{bytes_text(compiled.missing)}, even with rematerialization",
                               "a greater budget, a smaller batch, or fewer results at a time")
    bound = compiled.bound_for(values) if exact else compiled.bound
    if compiled.layouts:
        inputs = flattened(inputs)
    outputs = output_buffers(bound, inputs, free, values if exact else None) if free or exact else bound.new_outputs()
    launch(bound, inputs, outputs, values, bound.new_blocks() if bound.blocks else ())
    results = outputs if bound.in_order else [outputs[n] for n in bound.results]
    return _grouped(results, compiled.layouts) if compiled.layouts else results


def run_exact(compiled: CompiledSchedule, inputs: list[Buffer], values: Sequence[int]) -> list[Buffer]:
    """Run a compiled schedule with memory for ``values``; its results appear to have the greatest sizes."""
    found = run(compiled, inputs, values, exact=True)
    bound = compiled.bound
    sizes = [bound.outputs[n].size for n in bound.results]
    return [b if b.size == size else b.view(size, b.dtype, 0) for b, size in zip(found, sizes)]


def _grouped(outputs: list[Buffer], layouts: Sequence[ShardLayout | None]) -> list[Buffer]:
    """Return one buffer per root: the parts of a root over several devices are combined into one ``Shards``."""
    rest = iter(outputs)
    return [next(rest) if layout is None else Shards([next(rest) for _ in layout.devices], layout)
            for layout in layouts]


def launch(bound: Bound, inputs: Sequence[Buffer], outputs: Sequence[Buffer], values: Sequence[int],
           blocks: Sequence[Buffer]) -> None:
    """Run the parts of a schedule in order on buffers for its inputs, outputs and temporaries."""
    bases = list(map(inputs.__getitem__, bound.inputs))
    for b in bases:
        if b.failed is not None:
            b.check()
    bases += outputs
    bases += blocks
    for n, b in enumerate(bases, -len(bound.inputs)):
        if b._opaque is None:  # allocate now: an out-of-memory error must leave old versions unchanged
            b.allocate() if b.base is None else b.opaque
            b.origin = bound.origins[n] if 0 <= n < len(outputs) else None
    launched: list[Step] = []
    try:
        now = current()
        if now.one_by_one:
            with phase(LAUNCHING):
                _one_by_one(bound, bases, values, launched)
        else:
            under_way[id(bases)] = bases
            _unlocked(bound, bases, values, launched)
            if bound.alone is not None:
                bound.alone.count()
            elif bound.queue is None:
                for part in bound.parts_on(bases):
                    if part.graph is not None:
                        part.count()
        if now.POISON or now.CHECKED:
            _verify_written(bound, inputs, outputs)
    except BaseException as error:
        failed(bound, inputs, outputs, launched, error)
        raise
    finally:
        under_way.pop(id(bases), None)


def _unlocked(bound: Bound, bases: Sequence[Buffer], values: Sequence[int], launched: list[Step]) -> None:
    """Run all parts with the tensor lock released, so that other threads can proceed."""
    saved: list[object] = []
    try:
        let_go(saved)
        if bound.alone is not None:
            launched[:] = bound.alone.steps
            assert bound.alone.graph is not None
            bound.alone.graph(bases, values)
        elif bound.queue is not None:
            bound.queue(bases, values, launched)
        else:
            _by_parts(bound, bases, values, launched)
    finally:
        if saved:
            take(saved[0])


def finish(devices: Iterable[str]) -> None:
    """Wait until devices have run their queues, with the tensor lock released."""
    saved: list[object] = []
    try:
        let_go(saved)
        for device in set(devices):
            Device[device].synchronize()
    finally:
        if saved:
            take(saved[0])


def _by_parts(bound: Bound, bases: Sequence[Buffer], values: Sequence[int], launched: list[Step]) -> None:
    for part in bound.parts_on(bases):
        launched[:] = part.steps
        if part.graph is None:
            copy(*(bound.places[s].of(bases) for s in part.steps[0].slots))
        elif part.turn is None:
            part.graph(bases, values)
        else:
            with part.turn:
                part.graph(bases, values)


def _one_by_one(bound: Bound, bases: Sequence[Buffer], values: Sequence[int], launched: list[Step]) -> None:
    """Run step by step, and observe the time or the memory accesses of each step."""
    looked_at = settings.CHECKED >= 2
    of: Callable[[int], Buffer] = lambda s: bound.places[s].of(bases)  # noqa: E731
    if looked_at:
        of = inspectors.checked.apart(bound, bases)
    steps = [step for part in bound.parts_on(bases) for step in part.steps]
    for step in steps:
        launched[:] = [step]
        with inspectors.checked.watched(step, of, values) if looked_at else contextlib.nullcontext():
            if step.program is None:
                copy(*map(of, step.slots))
            else:
                _timed(step, [of(s) for s in step.slots], values)
    if looked_at:
        inspectors.checked.verify_guards(steps)


def _verify_written(bound: Bound, inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> None:
    """Check that no output holds the poison of fresh memory, or a NaN made from it, unless an input holds poison, too.

    An output whose symbolic size may be 0 may remain unwritten.

    Raises:
        VerifyError: naming the output.
    """
    for n, (slot, b) in enumerate(zip(bound.outputs, outputs)):
        if not slot.may_be_empty and b.is_poisoned() and not any(i.is_poisoned() for i in inputs):
            raise VerifyError(f"output {n} of the program contains uninitialized memory: {b!r}")


def failed(bound: Bound, inputs: Sequence[Buffer], outputs: Sequence[Buffer], launched: Sequence[Step],
           error: BaseException) -> None:
    """Mark the buffers that must not be read after ``error`` occurred in steps launched together.

    All outputs are marked; old versions that outputs overwrite only if a kernel may have run.

    Raises:
        KernelError: naming the steps, unless the error already explains itself.
    """
    refused = not launched
    parts = bound.parts_on([*(inputs[n] for n in bound.inputs), *outputs])
    if launched and parts and launched[0] is parts[0].steps[0] and isinstance(error, Exception):
        graph = parts[0].graph
        refused = len(launched) == 1 or (graph is not None and graph.whole)
    for b in outputs:
        if not (refused and bound.queue is None and any(b is old for old in inputs)):  # other devices may have started
            b.failed = error
    if isinstance(error, LaunchError) and error.number is not None:
        launched = launched[error.number : error.number + 1]
    explained = isinstance(error, (TinsmithError, VerifyError)) or is_from_handler(error)
    if isinstance(error, Exception) and not explained:
        raise _kernel_error(launched, error, any(a is b for a in inputs for b in outputs)) from error


def _kernel_error(steps: Sequence[Step], error: Exception, in_place: bool) -> KernelError:
    """Return the error for ``steps``, launched together: it names the kernels, and the user's line of the first."""
    device = steps[0].device if steps else "the device"
    names = [f"{s.name}{' (' + ', '.join(s.methods) + ')' if s.origin else ''}" for s in steps]
    some = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
    which = f"kernel {some}" if len(names) == 1 else f"one of the kernels {some}"
    at = next((o[1:] for s in steps for o in reversed(s.origin)), None)
    mend = ("a new process: the device is lost; tensors on other devices can still be read"
            if steps and Device[device].lost else
            "assigned tensors must be loaded again: their memory may be partly overwritten" if in_place else
            "fix the cause and read the value again: no tensor was changed")
    return KernelError("realize", f"{which} failed on {device}: {type(error).__name__}: {error}", mend, at)


def _report(ran: Ran) -> None:
    report(ran)
    if settings.timed:
        timeline.ran(ran)
        if settings.PROFILE:
            inspectors.profile.note(ran)


def _timed(step: Step, buffers: list[Buffer], values: Sequence[int]) -> None:
    assert step.program is not None
    device = Device[step.device]
    if isinstance(step.shown, KernelProgram):
        inspectors.debug.show_kernel(step.item, step.shown, step.name, device)
    call = Call(step.program, buffers, [values[v] for v in step.variables])
    start = time.perf_counter()
    with turn_of(device) or contextlib.nullcontext():
        seconds = device.timed(call)
    kernel = step.launch or call.program.kernel
    _report(Ran(step.device, step.name, len(call.buffers), seconds, kernel.ops, kernel.bytes, step.methods,
                lines=tuple(step.origin), start=start, key=(step.shown or kernel).symbol,
                occupancy=step.program.occupancy if settings.PROFILE else None, unit=kernel.unit,
                layers=step.layers))


def copy(target: Buffer, source: Buffer) -> None:
    source.check()
    if target.device != source.device and Device[target.device].has_programs and Device[source.device].has_programs:
        _synchronize(source.device)
    target.opaque  # noqa: B018  allocate now: the allocation is not part of the copy's time
    start = time.perf_counter()
    copy_buffer(target, source)
    _report_copy(target.device, source.device, source.nbytes, start)


def _report_copy(target: str, source: str, nbytes: int, start: float) -> None:
    """Report a copy between devices that began at ``start`` and ends now."""
    seconds, now = time.perf_counter() - start, current()
    if now.DEBUG < 2 and not now.timed:
        count_work(0, nbytes, seconds)
    else:
        _report(Ran(target, copy_name(nbytes, target, source), 2, seconds, 0, nbytes, kind="copy", start=start))


def _synchronize(device: str) -> None:
    """Wait until the source device has run its queue, before a copy between two devices."""
    start = time.perf_counter()
    Device[device].synchronize()
    _report(Ran(device, "synchronize", 1, time.perf_counter() - start, kind="sync", start=start))


class Recorder(Protocol):
    """An observer of realized graphs, of the programs that run for them, and of reads on the host."""

    def ran(self, roots: Sequence[UOp], compiled: CompiledSchedule, inputs: list[Buffer], values: list[int],
            outputs: list[Buffer]) -> None: ...

    def wanted(self, graphs: Sequence[UOp]) -> None: ...

    def read(self) -> None: ...

    def precedes(self, node: UOp) -> bool:
        """Return True if a known value was computed before the recording; else the recorded
        programs must compute it again."""
        ...

recorders: OfThread[Recorder] = OfThread()  # per thread: a capture records only its own thread
exact_sizes: OfThread[object] = OfThread()  # not empty: results get the memory of the current sizes
lowered: list[Callable[[CompiledSchedule], None]] = []  # called with every program that is lowered
endings: list[Callable[[Any], None]] = []  # called with the ``trace.Trace`` of a run at its end


def is_host_copy(node: UOp) -> bool:
    """Return True for a COPY of host memory (as ``Tensor(array)`` makes) to devices that compute."""
    if node.op is not Ops.COPY or node.src[0].op is not Ops.BUFFER or node.src[0].arg.layout is not None:
        return False
    return all(Device[d].has_programs for d in members(node.arg)) and not Device[node.src[0].arg.device].has_programs


def uncopied(node: UOp) -> Buffer:
    """Return an empty destination for a COPY of host memory: a buffer on its device, or one per device of its group."""
    source, devices = node.src[0].arg, members(node.arg)
    parts = [Buffer(d, source.size, source.dtype) for d in devices]
    return parts[0] if len(parts) == 1 else Shards(parts, ShardLayout(devices, (source.size,)))


def copy_from_host(node: UOp) -> Buffer:
    """Return the result of a COPY of host memory."""
    found = uncopied(node)
    for part in flattened([found]):
        copy(part, node.src[0].arg)
    return found


def copy_to_host(uop: UOp, span: tuple[int, int] | None = None) -> np.ndarray[Any, Any]:
    """Return the values of a view of a BUFFER as a NumPy array: one copy, which is reported.

    Only the elements of the view are copied if they are consecutive in memory, else the whole buffer.

    Args:
        span: the result of ``span_of``, if available.
    """
    if recorders.threads:
        for recorder in recorders:
            recorder.read()
    node = uop
    while node.op is not Ops.BUFFER:
        node = node.src[0]
    buffer = node.arg
    if span is None:
        span = span_of(uop)
    using = [buffer]
    under_way[id(using)] = using
    try:
        if overwritten:
            wait_to_read(using)
        if buffer.failed is not None or buffer.layout is not None:
            buffer.check()
        if span is not None:
            found = _host_copy(buffer, *span)
            return found if uop._shape is None else found.reshape(uop._shape)
        if isinstance(buffer, Shards):
            flat = buffer.joined([_host_copy(b, 0, b.size) for b in buffer.needed()])
        else:
            flat = _host_copy(buffer, 0, buffer.size)
    finally:
        del under_way[id(using)]
    if uop is node:
        return flat.reshape(uop.shape)
    (out,) = evaluate([uop], {node: flat})
    return np.array(out, order="C")


def span_of(uop: UOp) -> tuple[int, int] | None:
    """Return (first, count) if a view of a BUFFER shows ``count`` consecutive elements of it, from number ``first`` on;
    else None. A view of one element is such a span."""
    node, first, count = uop, 0, math.prod(uop.shape)
    if type(count) is not int:
        return None
    while node.op is not Ops.BUFFER:
        above, node = node, node.src[0]
        op, arg = above.op, above.arg
        if op is Ops.RESHAPE:
            continue
        shape = node.shape
        if op is Ops.SHRINK and (begin := _box_start(arg, shape)) is not None:
            first += begin
            continue
        if count != 1 or (at := _moved(op, arg, _coordinates(first, above.shape), shape)) is None:
            return None
        first = 0
        for c, size in zip(at, shape):
            first = first * size + c
    return None if node.arg.layout is not None else (first, count)


def _box_start(box: Sequence[tuple[Any, Any]], shape: Sequence[Any]) -> int | None:
    """Return the number of the first element of a box, if its elements are consecutive in row-major order."""
    first, width, partly = 0, 1, False
    for (begin, end), size in zip(reversed(box), reversed(shape)):
        if type(begin) is not int or type(end) is not int or type(size) is not int or (partly and end - begin != 1):
            return None
        first, width = first + begin * width, width * size
        partly = partly or end - begin != size
    return first


def _coordinates(number: int, shape: Sequence[int]) -> list[int]:
    """Return the coordinates of an element, from its number in row-major order."""
    found = []
    for size in reversed(shape):
        number, at = divmod(number, size)
        found.append(at)
    return found[::-1]


def _moved(op: Op, arg: Any, at: Sequence[int], shape: Sequence[Any]) -> list[int] | None:
    """Return the coordinates, in a source of ``shape``, of the element that a movement op shows at ``at``; None for
    padding, windows and symbolic sizes."""
    if any(type(s) is not int for s in shape):
        return None
    if op is Ops.SHRINK:
        return [c + begin for c, (begin, _) in zip(at, arg)]
    if op is Ops.PERMUTE:
        return [at[arg.index(axis)] for axis in range(len(arg))]
    if op is Ops.FLIP:
        return [size - 1 - c if axis in arg else c for axis, (c, size) in enumerate(zip(at, shape))]
    if op is Ops.EXPAND:
        return [0 if size == 1 else c for c, size in zip(at, shape)]
    if op is Ops.PAD:
        found = [c - before for c, (before, _) in zip(at, arg)]
        return found if all(0 <= c < size for c, size in zip(found, shape)) else None
    return None


def seen_on_host(uop: UOp) -> np.ndarray[Any, Any]:
    """Return the values of a view of a BUFFER without a copy where the host can address its memory; else a copy.

    Read them at once, while the buffer is referenced.
    """
    buffer = uop.base.arg
    mapped = None if recorders or isinstance(buffer, Shards) else buffer.host_view()
    if mapped is None:
        return copy_to_host(uop)
    with reading(buffer):
        buffer.check()
        looked_at(mapped.obj, buffer)
    flat = np.frombuffer(mapped, buffer.dtype.numpy)
    found: np.ndarray[Any, Any] = flat if uop is uop.base else evaluate([uop], {uop.base: flat})[0]
    return found.reshape(uop.shape)


def _host_copy(buffer: Buffer, first: int, count: int) -> np.ndarray[Any, Any]:
    """Return ``count`` elements of a buffer, from number ``first`` on, as a one-dimensional array."""
    itemsize, opaque = buffer.dtype.itemsize, buffer._opaque
    if opaque is None:
        opaque = buffer.opaque  # may be computed now, which decides where it begins
    nbytes = count * itemsize
    host = Device["NPY"].allocator.alloc(nbytes)
    start = time.perf_counter()
    if nbytes:
        Device[buffer.device].allocator.copyout(host.data, opaque, buffer.offset + first * itemsize)
    _report_copy("NPY", buffer.device, nbytes, start)
    found: np.ndarray[Any, Any] = host.view(buffer.dtype.numpy)
    return found

"""Realize: compile the program of a graph once per structure, bind it to buffers, and run it.

A line of the user's that compiles a program for every size of its data, such as a growing length, is warned of once.
"""
from __future__ import annotations

import contextlib
import operator
import sys
import time
import warnings
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from tinsmith.backend.memory import Buffer
from tinsmith.codegen.launch import programs as kernel_programs
from tinsmith.core import disk_cache
from tinsmith.core.errors import user_line
from tinsmith.core.lazy_import import Late
from tinsmith.core.object_lifetime import Recent, no_collection
from tinsmith.core.settings import Values, current, settings
from tinsmith.core.timeline import PYTHON, SCHEDULING, phase, span
from tinsmith.ir import UOp
from tinsmith.ir.uop import substitute, toposort
from tinsmith.runtime import disk_programs, symbolic_programs
from tinsmith.runtime.command_queue import overlap
from tinsmith.runtime.compiled_schedule import CompiledSchedule
from tinsmith.runtime.compiled_schedule import programs as compiled_programs
from tinsmith.runtime.launch import exact_sizes, finish, lowered, recorders, run, run_exact
from tinsmith.runtime.symbolic_programs import Served
from tinsmith.schedule.canonical import Seen, canonical, forms, seen
from tinsmith.schedule.passes import promote_constants
from tinsmith.schedule.passes.dynamic_sizes import SizeHistory, check_size
from tinsmith.schedule.passes.promote_constants import ConstantHistory

if TYPE_CHECKING:
    from tinsmith.runtime import lowering
else:
    lowering = Late("tinsmith.runtime.lowering")

_compiled: Recent[Any, CompiledSchedule] = Recent()  # by structure, and by canonical graph


_argument = operator.attrgetter("arg")


def realize(roots: Sequence[UOp], device: str, free: Collection[UOp] = (), known: Seen | None = None) -> list[Buffer]:
    """Compute ``roots`` (concrete nodes) and return a buffer for each.

    Args:
        roots: tensor-graph nodes other than movement ops.
        device: the device of kernels without buffers.
        free: BUFFERs that nothing reads after this program: new versions may overwrite their memory.
        known: the result of ``seen`` for the same roots, if available.
    """
    now = current()
    if now.timed:
        with phase(SCHEDULING):
            return _realize(now, roots, device, free, known)
    return _realize(now, roots, device, free, known)


def _realize(now: Values, roots: Sequence[UOp], device: str, free: Collection[UOp], known: Seen | None) -> list[Buffer]:
    settled = device, now.program_key
    found, compiled = known or seen(roots), None
    if found is not None:
        spared = _spared(found.buffers, free) if now.memory_limit else ()
        compiled = _compiled.get((found.key, settled, spared))
        # not while recording: a replay keeps the constants of its capture
        if compiled is None and not recorders and not found.symbolic:
            ready = symbolic_programs.ready(found.key, settled, device, compile_graph)
            if ready is not None:
                return _run_symbolic(ready, roots, found.buffers, found.values, free)
            history = promote_constants.history_of(found, roots, device, settled)
            if history is not None and history.arguments:
                outputs = None if now.memory_limit or now.one_by_one else _run_promoted(history, found, settled, free)
                if outputs is not None:
                    return outputs
                roots, found = _promoted(history, roots, found, device)
                spared = _spared(found.buffers, free)
                compiled = _compiled.get((found.key, settled, spared))
    if found is None or compiled is None or now.DEBUG >= 3:
        with no_collection():  # nodes form no cycles, and a garbage collection of a large graph takes seconds
            graph, buffers, values = canonical(roots)
            spared = _spared(buffers, free)
            compiled = _compiled.get((tuple(graph), settled, spared))
            sizes = None
            may_change = found is not None and not found.symbolic and not recorders and not now.memory_limit
            if compiled is None and found is not None and may_change:
                served, sizes = symbolic_programs.find(graph, found.key, settled, device, compile_graph)
                if served is not None:
                    forget_old()
                    return _run_symbolic(served, roots, buffers, values, free)
            if compiled is None or settings.DEBUG >= 3:
                first, begin = compiled is None, time.perf_counter()
                for n in toposort(graph) if exact_sizes else ():
                    check_size(n)
                compiled = _compiled[tuple(graph), settled, spared] = _compile(graph, device, spared)
                if first:
                    note(graph, time.perf_counter() - begin, sizes)
        if found is not None:
            _compiled[found.key, settled, spared] = compiled
        forget_old()
    else:
        buffers, values = found.buffers, found.values
    if now.one_by_one and compiled.places:
        _name_origins(compiled, roots)
    inputs = list(map(_argument, buffers))
    if exact_sizes:
        outputs = run_exact(compiled, inputs, values)
    else:
        outputs = run(compiled, inputs, values, _numbers(buffers, free) if free else ())
    if recorders.threads:
        for recorder in recorders:
            recorder.ran(roots, compiled, inputs, values, outputs)
    return outputs


def _run_promoted(history: ConstantHistory, found: Seen, settled: tuple[Any, ...],
                  free: Collection[UOp]) -> list[Buffer] | None:
    """Run the program that has served a graph with other values of its promoted constants; None if there is none."""
    constants = found.key[2]
    promoted = history.programs.get(history.fixed(constants))
    compiled = None if promoted is None else _compiled.get((promoted.key, settled, ()))
    if promoted is None or compiled is None:
        return None
    buffers = found.buffers
    inputs = [buffers[n].arg if n >= 0 else promote_constants.argument_buffer(constants[-1 - n], settled[0])
              for n in promoted.inputs]
    numbers = [k for k, n in enumerate(promoted.inputs) if n >= 0 and buffers[n] in free] if free else ()
    return run(compiled, inputs, found.values, numbers)


def _promoted(history: ConstantHistory, roots: Sequence[UOp], found: Seen, device: str) -> tuple[list[UOp], Seen]:
    """Return the graph with buffers in place of its promoted constants, and its analysis."""
    table = promote_constants.arguments(history, found.key[2], device)
    roots = substitute(roots, table)
    after = seen(roots)
    assert after is not None
    promote_constants.note_program(history, found, after, table)
    return roots, after


def _run_symbolic(served: Served, roots: Sequence[UOp], buffers: Sequence[UOp], values: Sequence[int],
                  free: Collection[UOp]) -> list[Buffer]:
    """Run a program with variables on the buffers and values of the graph that it serves."""
    if settings.DEBUG >= 3:  # shows the lowering again
        served.compiled = _compile(served.program.graph, served.device, ())
    inputs = [*(b.arg for b in buffers), *served.arguments]
    every = [*values, *served.values]
    begin = time.perf_counter()
    outputs = run(served.compiled, inputs, every, _numbers(buffers, free) if free else (), exact=True)
    if not served.runs:
        finish(b.device for b in outputs)  # to know how long it takes
    served.ran(time.perf_counter() - begin)
    for buffer, root in zip(outputs, roots):  # the program has those of another graph
        buffer.origin = next((o for o in reversed(root.origin) if o[2]), buffer.origin)
    return outputs


def compile_graph(graph: list[UOp], device: str) -> CompiledSchedule:
    """Return the program of a canonical graph, compiled once per structure and settings; nothing is run."""
    key = tuple(graph), (device, current().program_key), ()
    compiled = _compiled.get(key)
    if compiled is None:
        with no_collection():
            compiled = _compiled[key] = _compile(graph, device, ())
        forget_old()
    return compiled


def forget_old() -> None:
    """Trim all caches of compiled programs and kernels to the PROGRAMS most recently used entries."""
    for table in (_compiled, forms, compiled_programs, kernel_programs, promote_constants.histories,
                  *symbolic_programs.tables):
        table.trim(max(settings.PROGRAMS, 1))


def _spared(buffers: Sequence[UOp], free: Collection[UOp]) -> tuple[int, ...]:
    """Return the positions in ``buffers`` of the ``free`` ones if there is a memory budget, else ().

    Only under a budget does the program depend on inputs that may be freed while it runs.
    """
    return _numbers(buffers, free) if settings.memory_limit else ()


def _numbers(buffers: Sequence[UOp], free: Collection[UOp]) -> tuple[int, ...]:
    """Return the numbers of ``free`` buffers, one per part."""
    wanted = [b in free for b in buffers for _ in range(1 if b.arg.layout is None else len(b.arg.parts))]
    return tuple(n for n, yes in enumerate(wanted) if yes)


def _lowered_again() -> bool:
    """Return True if the disk cache is bypassed, because output (DEBUG, traces), checks or a
    search need the lowering itself."""
    return bool(settings.DEBUG >= 3 or settings.recorded or lowered or settings.CHECK_IR or settings.BEAM
                or settings.CHECKED >= 2)


def _compile(graph: list[UOp], device: str, spared: tuple[int, ...]) -> CompiledSchedule:
    """Return the program of a canonical graph: from disk, or scheduled and lowered now."""
    with span("program", PYTHON, "program"), unprofiled():
        key = None if _lowered_again() else disk_programs.entry_key(graph, device, spared)
        compiled = disk_programs.fetch(key, graph) if key is not None else None
        if compiled is None:
            with disk_cache.turn(key) if key is not None else contextlib.nullcontext(False) as taken:
                compiled = disk_programs.fetch(key, graph) if key is not None and taken else None
                if compiled is None:
                    compiled = _lowered(graph, device, spared, key)
        overlap(compiled)
    return compiled


def _lowered(graph: list[UOp], device: str, spared: tuple[int, ...], key: str | None) -> CompiledSchedule:
    """Return the program of a canonical graph, lowered now, and store it on disk under ``key``, if there is one."""
    places = disk_programs.places_of(graph) if key is not None or settings.one_by_one else {}
    compiled = lowering.lower(graph, device, free=spared)
    if key is not None and not compiled.missing:
        disk_programs.store(key, places, compiled)
    compiled.places = [[places[o] for o in step.origin if o in places] for step in compiled.steps]
    return compiled


@contextlib.contextmanager
def unprofiled() -> Iterator[None]:
    """Suspend a capture's profile function: no code of the user's runs meanwhile, and it doubles the time."""
    profile = sys.getprofile() if recorders else None
    if not callable(profile):  # none, or one written in C
        yield
        return
    sys.setprofile(None)
    try:
        yield
    finally:
        sys.setprofile(profile)


def _name_origins(compiled: CompiledSchedule, roots: Sequence[UOp]) -> None:
    """Set the origins (methods and lines) of the steps to those of ``roots``.

    Equal layers share one program, so it may run for nodes with other origins than those it was compiled for.
    """
    made = tuple(n.origin for n in toposort(roots))
    if made == compiled.named_for:
        return
    nodes = toposort(canonical(roots)[0])
    for step, places in zip(compiled.steps, compiled.places):
        step.origin = list(dict.fromkeys(o[k] for n, k in places if k < len(o := nodes[n].origin)))
    compiled.named_for = made


MANY: Final = 5  # programs of one structure after which a line is warned about
_KEPT: Final = 4096  # (line, structure) pairs that are remembered


@dataclass
class _Programs:
    """The programs compiled for one line and one graph structure: their shapes, and the seconds spent in total.

    Many shapes of one structure cause the warning about recompilation.
    """

    shapes: list[tuple[Any, ...]] = field(default_factory=list)
    seconds: float = 0.0


_made: Recent[Any, _Programs] = Recent()
_warned: set[tuple[str, int]] = set()


def note(graph: Sequence[UOp], seconds: float, history: SizeHistory | None = None) -> None:
    """Record that a new canonical graph was compiled; warn if its line has compiled MANY
    programs that differ in sizes only, with the reason why their sizes cannot be variables (``history.why_not``)."""
    if history is not None:
        history.seconds = max(history.seconds, seconds)  # less where it came from the disk
    line = user_line()
    if line in _warned or line[1] == 0:
        return
    nodes = toposort(graph)
    number = {n: k for k, n in enumerate(nodes)}
    shapes = tuple(n.shape for n in nodes)
    if any(isinstance(s, UOp) for shape in shapes for s in shape):
        return
    key = (*line, tuple((n.op, n.dtype, tuple(number[s] for s in n.src)) for n in nodes))
    found = _made.get(key)
    if found is None:
        found = _made[key] = _Programs()
        _made.trim(_KEPT)
    found.seconds += seconds
    if shapes not in found.shapes:
        found.shapes.append(shapes)
    if len(found.shapes) >= MANY:
        _warned.add(line)
        warnings.warn_explicit(_text(found, history.why_not if history else ""), UserWarning, *line)


def _text(found: _Programs, reason: str) -> str:
    """Return the text of the warning, with the sizes of the first axis that differs."""
    columns = [axis for shapes in zip(*found.shapes) if len({len(s) for s in shapes}) == 1 for axis in zip(*shapes)]
    sizes = next((axis for axis in columns if len(set(axis)) > 1), ())
    named = f" (sizes {', '.join(map(str, sizes))})" if sizes else ""
    why = f" (its sizes cannot become variables: {reason})" if reason else ""
    return (f"this line has made {len(found.shapes)} programs that differ only in sizes{named}, in "
            f"{found.seconds:.1f} s; each new size compiles another one{why}. Bind the size to a Variable "
            "(x[:Variable('n', 1, most).bind(n)]), or pad to a few sizes; see docs/symbolic.md")

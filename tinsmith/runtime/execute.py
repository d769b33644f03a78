"""Realize: compile the program of a graph once per structure, bind it to buffers, and run it."""
from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from tinsmith.backend.memory import Buffer
from tinsmith.codegen.launch import programs as kernel_programs
from tinsmith.core.collector import no_collection
from tinsmith.core.late import Late
from tinsmith.core.recent import Recent
from tinsmith.core.settings import current, settings
from tinsmith.core.timeline import PYTHON, span
from tinsmith.ir import UOp
from tinsmith.ir.uop import substitute
from tinsmith.runtime import diskcache, growth
from tinsmith.runtime.compiled import CompiledSchedule
from tinsmith.runtime.compiled import programs as compiled_programs
from tinsmith.runtime.queue import overlap
from tinsmith.runtime.record import lowered, recorders
from tinsmith.runtime.running import run
from tinsmith.schedule import scalars
from tinsmith.schedule.canonical import Seen, canonical, forms, seen

if TYPE_CHECKING:
    from tinsmith.runtime import lowering
else:  # lazy import: programs from the disk cache run without the scheduler
    lowering = Late("tinsmith.runtime.lowering")

_compiled: Recent[Any, CompiledSchedule] = Recent()  # by structure, and by canonical graph


def realize(roots: Sequence[UOp], device: str, free: Collection[UOp] = (), known: Seen | None = None) -> list[Buffer]:
    """Compute ``roots`` (concrete nodes) and return a buffer for each.

    Args:
        roots: tensor-graph nodes with memory semantics: anything but movement ops.
        device: where kernels without any buffer run.
        free: BUFFERs that nobody reads after this program: new versions may overwrite their memory.
        known: the result of ``seen`` for the same roots, if available.
    """
    now = current()
    settled = device, now.program_key
    found, compiled = known or seen(roots), None
    if found is not None:
        spared = _spared(found.buffers, free) if now.memory_limit else ()
        compiled = _compiled.get((found.form, settled, spared))
        if compiled is None and not recorders:  # not while recording: a replay keeps the constants of its capture
            table = scalars.arguments(found.form.rows, roots, device, settled)
            if table:
                roots = substitute(roots, dict(table))
                found = seen(roots)
                assert found is not None
                spared = _spared(found.buffers, free)
                compiled = _compiled.get((found.form, settled, spared))
        _, key, buffers, values, _ = found
    if found is None or compiled is None or now.DEBUG >= 3:
        with no_collection():  # nodes form no cycles, and a garbage collection of a large graph takes seconds
            graph, buffers, values = canonical(roots)
            spared = _spared(buffers, free)
            compiled = _compiled.get((tuple(graph), settled, spared))
            if compiled is None or settings.DEBUG >= 3:
                first, begin = compiled is None, time.perf_counter()
                compiled = _compiled[tuple(graph), settled, spared] = _compile(graph, device, spared)
                if first:
                    growth.note(graph, time.perf_counter() - begin)
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
    """Trim all caches of compiled programs and kernels to the PROGRAMS most recently used entries."""
    for table in (_compiled, forms, compiled_programs, kernel_programs, scalars.forms):
        table.trim(max(settings.PROGRAMS, 1))


def _spared(buffers: Sequence[UOp], free: Collection[UOp]) -> tuple[int, ...]:
    """Return the numbers of ``free`` inputs under a memory budget, else (): only a budget
    makes the program depend on them."""
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
    with span("program", PYTHON, "program"):
        key = None if _lowered_again() else diskcache.entry_key(graph, device, spared)
        compiled = diskcache.fetch(key, graph) if key is not None else None
        if compiled is None:
            places = diskcache.places_of(graph) if key is not None else {}
            compiled = lowering.lower(graph, device, free=spared)
            if key is not None and not compiled.missing:
                diskcache.store(key, places, compiled)
        overlap(compiled)
    return compiled

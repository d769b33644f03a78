"""Realizing: the schedule of a graph is made once per structure, then bound to buffers and run."""
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
else:  # what the disk cache holds runs without the scheduler
    lowering = Late("tinsmith.runtime.lowering")

_compiled: Recent[Any, CompiledSchedule] = Recent()  # by structure, and by canonical graph


def realize(roots: Sequence[UOp], device: str, free: Collection[UOp] = (), known: Seen | None = None) -> list[Buffer]:
    """Compute ``roots`` (concrete nodes) and return a buffer for each.

    Args:
        roots: tensor-graph nodes with memory semantics: anything but movement ops.
        device: where kernels without any buffer run.
        free: BUFFERs that nobody reads after this program: a new version may take their memory.
        known: of the same roots, if they were looked at before.
    """
    now = current()
    settled = device, now.program_key
    found, compiled = known or seen(roots), None
    if found is not None:
        spared = _spared(found.buffers, free) if now.memory_limit else ()
        compiled = _compiled.get((found.form, settled, spared))
        if compiled is None and not recorders:  # a replay has the constants that it was captured with
            table = scalars.arguments(found.form.rows, roots, device, settled)
            if table:
                roots = substitute(roots, dict(table))
                found = seen(roots)
                assert found is not None
                spared = _spared(found.buffers, free)
                compiled = _compiled.get((found.form, settled, spared))
        _, key, buffers, values, _ = found
    if found is None or compiled is None or now.DEBUG >= 3:
        with no_collection():  # nodes are in no cycles, and a pass over those of a large graph takes seconds
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
    """Keep what was used last of everything compiled: PROGRAMS programs, and as many kernels."""
    for table in (_compiled, forms, compiled_programs, kernel_programs, scalars.forms):
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
            compiled = lowering.lower(graph, device, free=spared)
            if key is not None and not compiled.missing:
                diskcache.store(key, places, compiled)
        overlap(compiled)
    return compiled

"""Programs whose sizes are variables, made when a graph comes back with other sizes, and the graphs that they serve.

A frequent size gets a program of fixed sizes again, because its kernels are faster: once the runs with it have taken as
long as a program takes to compile, or after STAYS runs. Where a single run takes that long, new sizes get programs of
their own at once. So no graph takes more than about twice the time of the better choice.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from tinsmith.backend.memory import Buffer
from tinsmith.core.object_lifetime import Recent
from tinsmith.core.settings import settings
from tinsmith.ir import UOp
from tinsmith.runtime.compiled_schedule import CompiledSchedule
from tinsmith.schedule.canonical import Key
from tinsmith.schedule.passes.dynamic_sizes import (
    Form,
    SizeHistory,
    SymbolicProgram,
    flat_sizes,
    form_of,
    program_for,
)
from tinsmith.schedule.passes.promote_constants import argument_buffer

STAYS: Final = 32


@dataclass
class Served:
    """A graph that a program with variables serves.

    Attributes:
        program, compiled: the program.
        device: the device of kernels without buffers.
        arguments: constants of the graph that are inputs of the program, after the buffers.
        values: the values of the variables.
        history: the history of all graphs of the same form.
        seconds, runs: total time and number of runs of the graph on this program so far.
    """

    program: SymbolicProgram
    compiled: CompiledSchedule
    device: str
    arguments: list[Buffer]
    values: list[int]
    history: SizeHistory
    seconds: float = 0.0
    runs: int = 0

    def ran(self, seconds: float) -> None:
        """Count a run that took ``seconds``."""
        if not self.runs:
            count, total = self.history.first_runs
            self.history.first_runs = count + 1, total + seconds
        self.seconds += seconds
        self.runs += 1

    @property
    def stays(self) -> bool:
        """True if a program with fixed sizes pays."""
        return self.runs >= STAYS or self.seconds > self.history.seconds


_served: Recent[Any, Served] = Recent()  # by key and settings
_histories: Recent[Any, SizeHistory] = Recent()  # by form and settings
_shared: Recent[Any, SizeHistory] = Recent()  # the same by ``ProgramForm``, what stays of the sizes, and settings
tables: Final = (_served, _histories, _shared)


def ready(key: Key, settled: Any, device: str,
          compiled_of: Callable[[list[UOp], str], CompiledSchedule]) -> Served | None:
    """Return a program with variables for a graph whose canonical form need not be built: one that served a graph of
    this key before, or a graph of other sizes; None if there is none.

    The sizes may occur so often that a program of fixed sizes pays; then None is returned, too.

    Args:
        key: the key of the graph, from ``canonical.seen``.
        settled: the rest of the programs' cache key.
        compiled_of: a function that compiles a canonical graph.
    """
    if not settings.DYNAMIC or not len(_served):
        return None
    found = _served.get((key, settled))
    if found is not None:
        return None if found.stays else found
    form, sizes, constants = key
    kept, changing = flat_sizes(sizes)
    history = _shared.get((form, kept, settled))
    if history is None or history.is_slow:
        return None
    sample = Form((), changing, constants)
    for program in reversed(history.programs):
        if len(program.sample.sizes) == len(changing) and (values := program.values_for(sample)) is not None:
            return _serve(key, settled, program, compiled_of(program.graph, device), sample, values, history)
    return None


def _serve(key: Key, settled: Any, program: SymbolicProgram, compiled: CompiledSchedule, form: Form,
           values: list[int], history: SizeHistory) -> Served:
    """Record that a program serves a graph of this key."""
    device = settled[0]
    arguments = [argument_buffer(form.constants[n], device) for n in program.arguments]
    found = _served[key, settled] = Served(program, compiled, device, arguments, values, history)
    _served.trim(max(settings.PROGRAMS, 1))
    return found


def find(graph: list[UOp], key: Key, settled: Any, device: str,
         compiled_of: Callable[[list[UOp], str], CompiledSchedule]) -> tuple[Served | None, SizeHistory | None]:
    """Return a program with variables for a canonical graph that is not compiled yet, and the history of its form.

    There is no program if the sizes have not changed often enough, if the same sizes occur often, or if they cannot be
    variables (``history.why_not``). There is no history if no size can be a variable, or with DYNAMIC=0.

    Args:
        key: the key of the graph, from ``canonical.seen``.
        settled: the rest of the programs' cache key.
        compiled_of: a function that compiles a canonical graph.
    """
    form = form_of(graph) if settings.DYNAMIC else None
    if form is None or not form.sizes:
        return None, None
    history = _histories.get((form.key, settled))
    if history is None:
        history = _histories[form.key, settled] = SizeHistory()
    match = None if (key, settled) in _served else program_for(graph, form, history, device)
    if match is None:
        return None, history
    program, values = match
    try:
        compiled = compiled_of(program.graph, device)
    except Exception as error:  # an op or a planner that does not take symbolic sizes yet; the fixed program does
        if settings.CHECK_IR:
            raise
        history.programs.remove(program)
        history.refused = f"{type(error).__name__}: {error}"
        return None, history
    kept, changing = flat_sizes(key[1])
    if changing == form.sizes and key[2] == form.constants:  # else nodes coincide in the canonical graph
        _shared[key[0], kept, settled] = history
    return _serve(key, settled, program, compiled, form, values, history), history

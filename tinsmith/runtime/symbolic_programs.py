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
from tinsmith.schedule.canonical import ProgramForm
from tinsmith.schedule.passes.dynamic_sizes import SizeHistory, SymbolicProgram, form_of, program_for
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
            self.history.first_runs.append(seconds)
        self.seconds += seconds
        self.runs += 1

    @property
    def stays(self) -> bool:
        """True if a program with fixed sizes pays."""
        return self.runs >= STAYS or self.seconds > self.history.seconds


_served: Recent[Any, Served] = Recent()  # by structure and settings
_histories: Recent[Any, SizeHistory] = Recent()  # by form and settings
tables: Final = (_served, _histories)


def ready(structure: ProgramForm, settled: Any) -> Served | None:
    """Return the program that served a graph of this structure before, unless its sizes occur so often that a program
    of fixed sizes pays."""
    found = _served.get((structure, settled)) if settings.DYNAMIC else None
    return None if found is None or found.stays else found


def find(graph: list[UOp], structure: ProgramForm, settled: Any, device: str,
         compiled_of: Callable[[list[UOp], str], CompiledSchedule]) -> tuple[Served | None, SizeHistory | None]:
    """Return a program with variables for a canonical graph that is not compiled yet, and the history of its form.

    There is no program if the sizes have not changed often enough, if the same sizes occur often, or if they cannot be
    variables (``history.why_not``). There is no history if no size can be a variable, or with DYNAMIC=0.

    Args:
        structure: the structure of the graph, from ``canonical.seen``.
        settled: the rest of the programs' cache key.
        compiled_of: a function that compiles a canonical graph.
    """
    form = form_of(graph) if settings.DYNAMIC else None
    if form is None or not form.sizes:
        return None, None
    history = _histories.get((form.key, settled))
    if history is None:
        history = _histories[form.key, settled] = SizeHistory()
    match = None if (structure, settled) in _served else program_for(graph, form, history, device)
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
    arguments = [argument_buffer(form.constants[n], device) for n in program.arguments]
    found = _served[structure, settled] = Served(program, compiled, device, arguments, values, history)
    return found, history

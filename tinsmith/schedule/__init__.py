"""Which values get memory, in what order kernels run, where buffers lie, and the running itself."""
from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tinsmith.schedule import beam as beam
    from tinsmith.schedule import checked as checked
    from tinsmith.schedule import debug as debug
    from tinsmith.schedule import explanation as explanation
    from tinsmith.schedule import listing as listing
    from tinsmith.schedule import planning as planning
    from tinsmith.schedule import profile as profile
    from tinsmith.schedule import trace as trace
    from tinsmith.schedule import tuned as tuned

# Most programs never ask for these.
_AT_FIRST_USE = ("beam", "checked", "debug", "explanation", "listing", "planning", "profile", "trace", "tuned")


def __getattr__(name: str) -> Any:
    """``schedule.beam`` and the like: the module, imported when it is first asked for."""
    if name in _AT_FIRST_USE:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""Tracebacks of scripts that ``python -m tinsmith.compat`` runs: they begin at the script."""
from __future__ import annotations

import os
import sys
from types import TracebackType

_RUNNERS = (os.path.dirname(os.path.abspath(__file__)) + os.sep, "<frozen ")


def begin_at_the_script() -> None:
    """Omit the frames that run the script from tracebacks that end the program."""
    before = sys.excepthook

    def shown(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        inner = trace
        while inner is not None and inner.tb_frame.f_code.co_filename.startswith(_RUNNERS):
            inner = inner.tb_next
        before(kind, error.with_traceback(inner), inner)

    sys.excepthook = shown

"""Run the text of a script as Python runs a script."""
from __future__ import annotations

import sys
from types import ModuleType


def run(source: str | bytes, name: str, file: str | None = None) -> None:
    """Run a program as the module ``__main__``."""
    module = ModuleType("__main__")
    if file is not None:
        module.__file__ = file
    sys.modules["__main__"] = module
    exec(compile(source, name, "exec", dont_inherit=True), module.__dict__)

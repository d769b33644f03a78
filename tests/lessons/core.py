"""The framework that docs/lessons/core.md builds, as a module: its code blocks, run in order."""
from __future__ import annotations

import contextlib
import io
from types import ModuleType

from tests.docrun import ROOT, Block, blocks

PAGE = ROOT / "docs" / "lessons" / "core.md"


def code() -> list[Block]:
    """Return the Python blocks of the page."""
    return [b for b in blocks(PAGE.read_text("utf-8").splitlines()) if b.language == "python"]


def load() -> ModuleType:
    """Run the page without its last block, which trains a network; errors name lines of the page."""
    module = ModuleType("core")
    with contextlib.redirect_stdout(io.StringIO()):
        for b in code()[:-1]:
            text = "\n" * b.first + "\n".join(b.text)
            exec(compile(text, str(PAGE), "exec"), module.__dict__)
    return module

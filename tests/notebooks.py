"""Generator of the notebooks of lessons from their pages: ``python tests/notebooks.py``.

A Python block becomes a cell with the output and the picture that the page shows; everything between is text.
"""
from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.docrun import blocks  # noqa: E402

FOLDER = ROOT / "docs" / "lessons"
PAGES = tuple(FOLDER / f"{name}.md" for name in ("02_lazy_graph", "05_shapetracker", "16_gradients"))
_PICTURE = re.compile(r"!\[[^\]]*\]\((pictures/[^)]+\.svg)\)")

Cell = dict[str, Any]


def notebook(page: Path) -> dict[str, Any]:
    """Return the notebook of a page, as JSON (nbformat 4.5)."""
    lines = page.read_text("utf-8").splitlines()
    cells: list[Cell] = []
    at = 0
    for b in blocks(lines):
        if b.language == "python":
            _text(cells, lines[at : b.first - 1])
            cells.append(_cell("code", b.text, execution_count=None, outputs=[]))
        elif b.language == "text" and cells and not any(line.strip() for line in lines[at : b.first - 1]):
            cells[-1]["outputs"].append({"output_type": "stream", "name": "stdout", "text": _joined([*b.text, ""])})
        else:
            raise ValueError(f"{page}:{b.first}: a notebook has no place for a {b.language} block")
        at = b.last + 1
        at = _pictured(cells[-1], lines, at, page)
    _text(cells, lines[at:])
    for n, cell in enumerate(cells):
        cell["id"] = f"cell-{n}"
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}


def _pictured(cell: Cell, lines: list[str], at: int, page: Path) -> int:
    """If the next line is the cell's own picture, make it an output; return the index of the line after it."""
    n = next((n for n in range(at, len(lines)) if lines[n].strip()), len(lines) - 1)
    found = _PICTURE.match(lines[n])
    if not found:
        return at
    text = (page.parent / found[1]).read_text("utf-8").rstrip("\n").splitlines()
    cell["outputs"].append({"output_type": "execute_result", "execution_count": None, "metadata": {},
                            "data": {"image/svg+xml": _joined(text)}})
    return n + 1


def _text(cells: list[Cell], lines: list[str]) -> None:
    text = "\n".join(lines).strip("\n").splitlines()
    if text:
        cells.append(_cell("markdown", text))


def _cell(kind: str, text: list[str], **more: Any) -> Cell:
    return {"cell_type": kind, "id": "", "metadata": {}, "source": _joined(text), **more}


def _joined(lines: list[str]) -> list[str]:
    """Return lines in the notebook format: each but the last with its newline."""
    return [line + "\n" for line in lines[:-1]] + lines[-1:] * bool(lines[-1])


def text(page: Path) -> str:
    """Return the contents of a page's notebook file."""
    return json.dumps(notebook(page), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for page in PAGES:
        page.with_suffix(".ipynb").write_text(text(page), "utf-8")

"""The lessons that are notebooks equal their pages, and run as notebooks."""
from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests import notebooks
from tests.docrun import ROOT
from tests.golden.running import environment


@pytest.mark.parametrize("page", notebooks.PAGES, ids=lambda p: p.stem)
def test_a_notebook_is_its_page(page: Path) -> None:
    assert page.with_suffix(".ipynb").read_text("utf-8") == notebooks.text(page), "python tests/notebooks.py"


def test_the_list_names_them() -> None:
    text = (notebooks.FOLDER / "README.md").read_text("utf-8")
    assert all(f"]({p.stem}.ipynb)" in text for p in notebooks.PAGES)
    assert sorted(p.stem for p in notebooks.FOLDER.glob("*.ipynb")) == [p.stem for p in notebooks.PAGES]


@pytest.mark.skipif(not all(importlib.util.find_spec(name) for name in ("nbclient", "ipykernel")),
                    reason="the packages that run notebooks are not installed: pip install -e '.[notebooks]'")
@pytest.mark.parametrize("page", notebooks.PAGES, ids=lambda p: p.stem)
def test_a_notebook_runs(page: Path, tmp_path: Path) -> None:
    """Every cell prints what it shows, and draws where it shows a picture."""
    import nbclient
    import nbformat

    book = nbformat.read(page.with_suffix(".ipynb"), as_version=4)
    nbformat.validate(book)
    shown = [cell.get("outputs", []) for cell in book.cells]
    runner = nbclient.NotebookClient(book, timeout=100, kernel_name="python3", resources={"metadata": {"path": ROOT}})
    runner.execute(env=environment(tmp_path / "cache"))
    for before, cell in zip(shown, book.cells):
        assert printed(before) == printed(cell.get("outputs", [])), cell.source
        assert drawn(before) == drawn(cell.get("outputs", [])), cell.source


def printed(outputs: list[dict[str, object]]) -> str:
    return "".join(str(o["text"]) for o in outputs if o["output_type"] == "stream").rstrip()


def drawn(outputs: list[dict[str, object]]) -> int:
    return sum("image/svg+xml" in o.get("data", {}) for o in outputs)  # type: ignore[operator]

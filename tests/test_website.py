"""The documentation site: links resolve, every page is on it, and it builds where Sphinx is installed."""
from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from tests import website

INSTALLED = all(importlib.util.find_spec(name) for name in ("sphinx", "myst_parser", "furo"))
REASON = "what builds the site is not installed: pip install -e '.[docs]'"


def test_links_lead_to_the_places_of_the_site() -> None:
    text = ("See [a](tour.md#1-a) and [b](../tinsmith/ir/uop.py), [c](../README.md), [d](#here), [e](https://x.y/z.md),\n"
            "`[f](jit.md)`\n\n```python\n[g](ir.md)\n```\n\n![h](pictures/dot.svg) [i](search.md) "
            "[j](../tests/parity)\n")
    found, targets = website.moved(text, "docs/opts.md")
    assert found == ("See [a](tour.md#1-a) and [b](source/tinsmith/ir/uop.py.md), [c](index.md), [d](#here), "
                     "[e](https://x.y/z.md),\n`[f](jit.md)`\n\n```python\n[g](ir.md)\n```\n\n![h](pictures/dot.svg) "
                     "[i](beam.md) [j](source/tests/parity/index.md)\n")
    assert targets == {"docs/tour.md", "tinsmith/ir/uop.py", "README.md", "docs/pictures/dot.svg", "docs/search.md",
                       "tests/parity"}
    found, _ = website.moved('[a](docs/jit.md) <img src="docs/pictures/dot.svg">', "README.md")
    assert found == '[a](jit.md) <img src="pictures/dot.svg">'
    assert website.moved("[a](../../jit.md)", "docs/zh/lessons/x.md")[0] == "[a](../../jit.md)"


def test_every_page_is_in_the_sidebar(tmp_path: Path) -> None:
    """Every page is listed in a part or below the lessons; Chinese pages too."""
    website.assemble(tmp_path)
    listed = set()
    toctree = re.compile(r"```\{toctree\}\n:hidden:\n(?::caption: .*\n)?\n((?:[^`].*\n)+)```")
    for page in tmp_path.rglob("*.md"):
        for listing in toctree.findall(page.read_text("utf-8")):
            listed |= {(page.parent / entry).resolve() for entry in listing.splitlines()}
    pages = {p.resolve() for p in tmp_path.rglob("*.md") if "source" not in p.relative_to(tmp_path).parts}
    assert pages - listed == {(tmp_path / "index.md").resolve()} and listed <= pages


def test_a_page_of_a_source_holds_its_text(tmp_path: Path) -> None:
    website.assemble(tmp_path)
    text = (tmp_path / "source" / "tinsmith" / "ir" / "uop.py.md").read_text("utf-8")
    assert (website.ROOT / "tinsmith" / "ir" / "uop.py").read_text("utf-8").rstrip() in text


@pytest.mark.skipif(not INSTALLED, reason=REASON)
def test_the_site_is_whole(tmp_path: Path) -> None:
    """Warnings of Sphinx, such as broken links, are errors; the site fetches nothing."""
    assert website.build(tmp_path, quiet=True) == 0
    pages = list(tmp_path.rglob("*.html"))
    assert {"index.html", "beam.html", "core.html", "uop.py.html"} <= {p.name for p in pages}
    outside = re.compile(r'(?:<script|<img|<link rel="(?:stylesheet|preload|icon)")[^>]*(?:src|href)="(?:https?:)?//')
    assert [p.name for p in pages if outside.search(p.read_text("utf-8"))] == []


@pytest.mark.skipif(not INSTALLED, reason=REASON)
@pytest.mark.parametrize("text", ["[a](nowhere.md)", "[a](second.md#nowhere)", "![a](nowhere.svg)"])
def test_a_broken_link_is_an_error(tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch,
                                   capfd: pytest.CaptureFixture[str]) -> None:
    def two_pages(folder: Path) -> None:
        (folder / "conf.py").write_text(website.SETTINGS, "utf-8")
        (folder / "_static").mkdir()
        sidebar = website.contents("", ["docs/second.md"], "README.md")
        (folder / "index.md").write_text(f"# First\n\n{text}\n{sidebar}", "utf-8")
        (folder / "second.md").write_text("# Second\n", "utf-8")

    monkeypatch.setattr(website, "assemble", two_pages)
    assert website.build(tmp_path, quiet=True) != 0
    assert "nowhere" in capfd.readouterr().err

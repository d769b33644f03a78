"""Every page's examples print what the page shows, and its pictures are what its code draws.

``python tests/docrun.py PAGE`` rewrites both.

Pages in other languages, docs/zh, have the code of the English ones to the letter, so it is enough to run those.
"""
from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest

from tests.docrun import ROOT, blocks, differences
from tinsmith.codegen.opt import OptOps
from tinsmith.core.settings import DECLARED
from tinsmith.ir.structure import Role
from tinsmith.schedule.fusion.horizontal import fuse_horizontally
from tinsmith.schedule.memory.slice_writes import store_in_place, write_slices
from tinsmith.schedule.multi.collectives import overlapped

DOCS = ROOT / "docs"
TRANSLATED = sorted((DOCS / "zh").rglob("*.md"))
PAGES = [ROOT / "README.md", *sorted(p for p in DOCS.rglob("*.md") if p not in TRANSLATED)]
HEADING, LINK = re.compile(r"^(#+) "), re.compile(r"\]\(([^)#:]*)(#[^)]*)?\)")


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def prose(page: Path) -> list[str]:
    """Return the lines of a page outside of its blocks."""
    lines = page.read_text("utf-8").splitlines()
    inside = {n for b in blocks(lines) for n in range(b.first - 1, b.last + 1)}
    return [line for n, line in enumerate(lines) if n not in inside]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_examples_print_what_the_page_shows(page: Path) -> None:
    found = differences(page)
    assert not found, f"python tests/docrun.py {name(page)} rewrites this:\n" + "\n".join(found)


@pytest.mark.parametrize("page", [*PAGES, *TRANSLATED], ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    targets = [m[1] for m in LINK.finditer("\n".join(prose(page))) if m[1]]
    assert [t for t in targets if not (page.parent / t).exists()] == []


def english(page: Path) -> Path:
    """Return the English page that a page of docs/zh translates."""
    inner = page.relative_to(DOCS / "zh")
    return ROOT / inner if inner == Path("README.md") else DOCS / inner


def outline(page: Path) -> list[tuple[str, str]]:
    """Return the structure that a page and its translation share: headings by level, list items, table rows, comments,
    and targets of links and pictures (a translated page counts as its original)."""
    found = []
    for line in prose(page):
        if heading := HEADING.match(line):
            found.append(("heading", heading[1]))
        if line.startswith(("- ", "| ", "<!--")):
            found.append(("line", line if line.startswith("<!--") else line[:2]))
        for target in LINK.finditer(line):
            path = (page.parent / target[1]).resolve() if target[1] else page
            if path.is_relative_to(DOCS / "zh"):
                path = english(path)
            found.append(("link", name(path)))
    return found


@pytest.mark.parametrize("page", TRANSLATED, ids=name)
def test_a_translation_has_the_code_of_its_page(page: Path) -> None:
    """Blocks are identical, comments and output included."""
    ours, theirs = (blocks(p.read_text("utf-8").splitlines()) for p in (page, english(page)))
    for a, b in zip(ours, theirs):
        assert (a.language, a.text, a.skipped) == (b.language, b.text, b.skipped), f"{name(page)}:{a.first}"
    assert len(ours) == len(theirs)


@pytest.mark.parametrize("page", TRANSLATED, ids=name)
def test_a_translation_has_the_parts_of_its_page(page: Path) -> None:
    ours, theirs = outline(page), outline(english(page))
    kinds = {kind for kind, _ in [*ours, *theirs]}
    for kind in sorted(kinds - {"link"}):
        assert [x for x in ours if x[0] == kind] == [x for x in theirs if x[0] == kind]
    links = [sorted(x for x in both if x[0] == "link") for both in (ours, theirs)]  # a sentence may turn their order
    assert links[0] == links[1]


@pytest.mark.parametrize("page", TRANSLATED, ids=name)
def test_a_chinese_paragraph_is_one_line(page: Path) -> None:
    """A line break is rendered as a space, which Chinese does not use between words."""
    chinese = "[\u3000-\u303f\u4e00-\u9fff\uff00-\uffef]"
    assert re.findall(f".*{chinese}\n(?=[^\n#|<-])", "\n".join(prose(page))) == []


@pytest.mark.parametrize("page", TRANSLATED, ids=name)
def test_a_translation_links_to_translations(page: Path) -> None:
    """A link in a translated page leads to the translation of its target, if that exists."""
    for target in LINK.finditer("\n".join(prose(page))):
        path = (page.parent / target[1]).resolve()
        if target[1] and path.suffix == ".md" and not path.is_relative_to(DOCS / "zh") and path != english(page):
            inner = path.relative_to(DOCS if path.is_relative_to(DOCS) else ROOT)
            assert not (DOCS / "zh" / inner).exists(), target[0]


def test_the_two_commands_are_in_the_readme() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    assert "pip install -e '.[examples]' && python examples/mnist.py" in text
    assert "pip install -e '.[test]' && pytest -n auto" in text


def test_every_setting_has_its_page() -> None:
    text = (DOCS / "settings.md").read_text("utf-8")
    assert [s.name for s in DECLARED if f"`{s.name}" not in text] == []


def test_code_blocks_have_a_language() -> None:
    for page in PAGES:
        assert all(b.language for b in blocks(page.read_text("utf-8").splitlines())), page.name


def test_the_table_of_passes_has_every_pass() -> None:
    """In docs/design.md, by the names that the trace shows."""
    text = (DOCS / "design.md").read_text("utf-8").partition("## Passes")[2].partition("\n## ")[0]
    named = {name for line in text.splitlines() if line.startswith("| `") for name in re.findall(r"`([^`]+)`",
             line.split(" | ")[0])}
    folders = (ROOT / "tinsmith" / name for name in ("schedule", "runtime", "codegen"))
    code = "\n".join(path.read_text("utf-8") for folder in folders for path in sorted(folder.rglob("*.py")))
    shown = set(re.findall(r'passed\("([^"]+)"', code)) | {step.__name__.replace("_", " ") for step in (
        fuse_horizontally, store_in_place, write_slices, overlapped)}
    assert named == shown


def test_every_opt_has_a_row_of_its_page() -> None:
    rows = [line for line in (DOCS / "opts.md").read_text("utf-8").splitlines() if line.startswith("| `")]
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row.split(" | ")[0])} == {o.name for o in OptOps}


WORDS = ("local memory", "emitter", "footprint", "loop-carried scan", "histogram", "horizontal fusion",
         "unlikely branch", "register tile", "kernel graph", "linear program", "warp", "memory plan",
         "structure", "layout", "STAGE", "ring", "unit")


def glossary(title: str) -> list[list[str]]:
    """Return the rows of one table of the glossary."""
    section = (DOCS / "glossary.md").read_text("utf-8").partition(f"## {title}\n")[2].partition("\n## ")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines()
            if line.startswith("| ")][2:]


@functools.cache
def source() -> str:
    return "\n".join(p.read_text("utf-8") for p in (ROOT / "tinsmith").rglob("*.py"))


OWN, OPTS, STANDARD = (glossary(t) for t in ("Words of our own", "Opts and roles by their standard names",
                                              "Standard terms"))


def test_the_glossary_has_the_words_of_the_field_and_every_opt_and_role() -> None:
    text = "\n".join(" | ".join(row) for row in [*OWN, *OPTS, *STANDARD])
    assert [word for word in WORDS if word not in text] == []
    named = {name for row in OPTS for name in re.findall(r"`(\w+)`", row[0])}
    assert {o.name for o in OptOps} | {r.name for r in Role} <= named
    assert len(OWN) <= 10, "new words of our own need an old one to go"


@pytest.mark.parametrize("row", [*OWN, *OPTS, *STANDARD], ids=lambda row: row[0])
def test_a_row_of_the_glossary_names_what_exists_and_its_source(row: list[str]) -> None:
    assert len(row) == 3 and all(row[:2])
    for name in re.findall(r"`(\w+)`", row[0]):
        assert re.search(rf"^ *(class )?{name}\b *[=:(]", source(), re.M), name
    listed = set(re.findall(r"(?m)^(\d+)\. ", (DOCS / "glossary.md").read_text("utf-8")))
    assert set(re.findall(r"\[(\d+)\]", row[2])) <= listed

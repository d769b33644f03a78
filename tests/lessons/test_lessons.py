"""The lessons: each has one idea, something to run, something to look at, and a next step."""
from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docrun import ROOT, _output, blocks
from tests.docrun import _picture as picture_of
from tests.test_docs import LINK, prose

FOLDER = ROOT / "docs" / "lessons"
LESSONS = sorted(FOLDER.glob("[0-9]*.md"))


def title(page: Path) -> str:
    return prose(page)[0].lstrip("# ")


def test_they_are_numbered_without_a_gap() -> None:
    assert [int(p.name[:2]) for p in LESSONS] == list(range(1, len(LESSONS) + 1)) and len(LESSONS) == 19
    assert [int(title(p).partition(".")[0]) for p in LESSONS] == list(range(1, len(LESSONS) + 1))


@pytest.mark.parametrize("page", LESSONS, ids=lambda p: p.stem)
def test_a_lesson_has_its_parts(page: Path) -> None:
    lines = prose(page)
    headings = [line[3:] for line in lines if line.startswith("## ")]
    assert headings[:2] == ["Try it", "What to look at"] and headings[-1] == "Where it happens"
    assert lines[2].startswith("**The idea.** ")
    where = "\n".join(lines[lines.index("## Where it happens") :])
    assert any("/tinsmith/" in m[1] for m in LINK.finditer(where))


@pytest.mark.parametrize("page", LESSONS, ids=lambda p: p.stem)
def test_a_lesson_is_short(page: Path) -> None:
    assert sum(len(line.split()) for line in prose(page)) < 650
    assert all(len(b.text) < 60 for b in blocks(page.read_text("utf-8").splitlines()))


def test_each_leads_to_the_next() -> None:
    following = dict(zip(LESSONS, [*LESSONS[1:], FOLDER / "core.md"]))
    for page, after in following.items():
        assert prose(page)[-1] == f"Next: [{title(after)}]({after.name})"


def test_the_list_has_them_all() -> None:
    text = (FOLDER / "README.md").read_text("utf-8")
    for number, page in enumerate(LESSONS, 1):
        assert f"| {number} | [{title(page).partition('. ')[2]}]({page.name}) |" in text
    assert "(core.md)" in text


def test_every_picture_is_made_by_a_lesson() -> None:
    """A picture right after a block is compared with the block's drawing (tests/test_docs.py)."""
    shown: set[str] = set()
    for page in LESSONS:
        text = page.read_text("utf-8")
        lines = text.splitlines()
        found = blocks(lines)
        made = {picture_of(_output(b, found, lines) or b, lines) for b in found if b.language == "python"} - {""}
        assert {f"pictures/{name}" for name in re.findall(r"\]\(pictures/([^)]+)\)", text)} == made, page.name
        assert made, f"{page.name} has no picture"
        shown |= {name.removeprefix("pictures/") for name in made}
    assert {p.name for p in (FOLDER / "pictures").iterdir()} == shown


@pytest.mark.parametrize("folder", [FOLDER, ROOT / "docs" / "zh" / "lessons"], ids=["en", "zh"])
def test_each_lesson_has_two_exercises_with_solutions(folder: Path) -> None:
    """The solutions are run as every page is (tests/test_docs.py)."""
    lines = prose(folder / "solutions.md")
    starts = [n for n, line in enumerate(lines) if line.startswith("## ")]
    solved = {lines[n][3:]: lines[n:end] for n, end in zip(starts, [*starts[1:], len(lines)])}
    code = (folder / "solutions.md").read_text("utf-8")
    assert code.count("```python") == 2 * len(LESSONS)
    for page in LESSONS:
        own = prose(folder / page.name)
        at = own.index("## Exercises" if folder == FOLDER else "## 习题")
        asked = [line for line in own[at:] if re.match(r"\d\. ", line)]
        name = own[0].removeprefix("# ")
        assert [line[:3] for line in asked] == ["1. ", "2. "], page.name
        assert [line[:3] for line in solved[name] if re.match(r"\d\. ", line)] == ["1. ", "2. "], page.name
        assert any("(solutions.md#" in line for line in own[at:]), page.name
    assert len(solved) == len(LESSONS)

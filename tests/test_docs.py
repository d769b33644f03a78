"""Every page's examples print what the page shows; ``python tests/docrun.py PAGE`` rewrites them."""
from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docrun import ROOT, blocks, differences
from tinsmith.core.settings import DECLARED

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_examples_print_what_the_page_shows(page: Path) -> None:
    found = differences(page)
    assert not found, f"python tests/docrun.py {page.relative_to(ROOT)} rewrites this:\n" + "\n".join(found)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text("utf-8"))
    assert [t for t in targets if not (page.parent / t).exists()] == []


def test_the_two_commands_are_in_the_readme() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    assert "pip install -e '.[examples]' && python examples/mnist.py" in text
    assert "pip install -e '.[test]' && pytest -n auto" in text


def test_every_setting_is_in_the_readme() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    assert [s.name for s in DECLARED if f"`{s.name}" not in text] == []


def test_code_blocks_have_a_language() -> None:
    for page in PAGES:
        assert all(b.language for b in blocks(page.read_text("utf-8").splitlines())), page.name

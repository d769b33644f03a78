"""docs/api.md has a row for every public name, and the status of each of tinygrad's."""
from __future__ import annotations

import pytest

from tests import apidoc


def test_the_page_is_as_generated() -> None:
    assert apidoc.PAGE.read_text("utf-8") == apidoc.page(), "python tests/apidoc.py"


@pytest.mark.parametrize("section", sorted(apidoc.TINYGRAD))
def test_every_name_has_a_row(section: str) -> None:
    part = apidoc.PAGE.read_text("utf-8").split(f"\n## {section}\n")[1].split("\n## ")[0]
    missing = [n for n in (*apidoc.public(section), *apidoc.TINYGRAD[section].split()) if f"| `{n}` |" not in part]
    assert not missing


@pytest.mark.parametrize("section", sorted(apidoc.TINYGRAD))
def test_every_name_of_tinygrads_is_here_or_has_a_reason(section: str) -> None:
    assert not [n for n in apidoc.TINYGRAD[section].split() if not apidoc.place(section, n)[0]]

"""tests/docrun.py finds wrong outputs and pictures in pages, and corrects them."""
from __future__ import annotations

from pathlib import Path

from tests.docrun import copy_blocks, differences, rewrite

PAGE = """# A page

```python
from tinsmith import Tensor
t = Tensor([1.0, 2.0]).realize() + 1
print(t.tolist())
t.graph()
```

```text
[2.0, 4.0]
```

![a sum](pictures/sum.svg)
"""


def test_an_output_and_a_picture_that_are_not_so_are_found_and_mended(tmp_path: Path) -> None:
    page, picture = tmp_path / "page.md", tmp_path / "pictures" / "sum.svg"
    page.write_text(PAGE, "utf-8")
    found = differences(page)
    assert found == ["page.md:11\n[2.0, 3.0]", "page.md: sum.svg is another picture today"]
    rewrite(page)
    assert page.read_text("utf-8") == PAGE.replace("[2.0, 4.0]", "[2.0, 3.0]")
    assert picture.read_text("utf-8").startswith("<svg ") and "ADD" in picture.read_text("utf-8")
    assert differences(page) == []


def test_a_translation_gets_the_blocks_of_its_page(tmp_path: Path) -> None:
    page, other = tmp_path / "page.md", tmp_path / "other.md"
    page.write_text(PAGE, "utf-8")
    other.write_text("# 一页\n\n```python\n1\n```\n\n中文。\n\n```text\nold\n```\n\n完。\n", "utf-8")
    copy_blocks(page, other)
    python, text = PAGE[PAGE.index("```python") : PAGE.index("\n\n```text")], "```text\n[2.0, 4.0]\n```"
    assert other.read_text("utf-8") == f"# 一页\n\n{python}\n\n中文。\n\n{text}\n\n完。\n"

"""Writes the pictures of the pages: ``python tests/pictures.py``."""
from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tinsmith import Tensor  # noqa: E402

PICTURES = ROOT / "docs" / "pictures"


def drawings() -> dict[str, str]:
    """The file of each picture and its text, laid out by ourselves, so that it is the same everywhere."""
    dot = Tensor([1, 2]).dot(Tensor([3, 4]))
    var = Tensor([1, 2, 3, 4]).var()
    return {"dot.svg": dot.graph().own_svg() + "\n", "var.svg": var.graph().own_svg() + "\n"}


if __name__ == "__main__":
    PICTURES.mkdir(exist_ok=True)
    for name, text in drawings().items():
        (PICTURES / name).write_text(text, "utf-8")

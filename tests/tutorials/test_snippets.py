"""Snippets of the tutorials that are no whole programs: as typed, with what they lack in front of them or behind."""
from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.golden.running import run

HERE = Path(__file__).parent / "snippets"


@pytest.mark.parametrize("name, printed", [
    ("tinyjit_class", r"11 2 2\n"),  # two programs: the data from the host, and the dot product
    ("samples", r"\(4, 3\) \('CPU', 'CPU:1'\) \[1 8 3 5\]\n"),
    ("command_queue", r"\['CPU'\] \['CopyItem', 'CopyItem', 'KernelItem'\]\n\[11\]\n"),
    ("my_metal", r"\[1 2\] MYMETAL\n\[E040\].* MYMETAL has no renderer.*Device\.register.*\n"),
    ("opts", r"\(2 global, 8 upcast\)\nTrue\nTrue\n.*axes: 0: 4 global, 1: 4 reduce.*axis 1, the reduction\n"),
    ("function", r"\[1\.     0\.5403\]\n")])
def test_a_snippet_prints(tmp_path: Path, name: str, printed: str) -> None:
    done = run(["-m", "tinsmith.compat", str(HERE / f"{name}.py")], tmp_path, ALIAS="METAL=CPU")
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(printed, done.stdout), done.stdout


def test_each_snippet_is_run() -> None:
    names = re.findall(r'^    \("(\w+)", r"', Path(__file__).read_text("utf-8"), re.MULTILINE)
    assert sorted(names) == sorted(p.stem for p in HERE.iterdir() if p.suffix == ".py")

"""PROFILE=1: the table lists everything that ran, once, longest first."""
from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.golden.running import run
from tinsmith import Context, Tensor, TinyJit
from tinsmith.core.counters import Ran
from tinsmith.inspect import profile


@pytest.fixture(autouse=True)
def nothing_counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    profile.reset()
    monkeypatch.setattr(profile, "_at_exit", lambda pid: None)
    yield
    profile.reset()


def test_kernels_copies_and_replays_are_counted() -> None:
    x = Tensor(np.ones((4, 4), np.float32)).realize()

    @TinyJit
    def step(t: Tensor) -> Tensor:
        return (t.exp() + 1).sum().realize()

    step(x)
    for _ in range(3):
        step(x)
    with Context(PROFILE=1):
        for _ in range(4):
            result = step(x)
        result.numpy()
    rows = {r.ran.kind: r for r in profile._rows.values()}
    assert rows["kernel"].runs == 4 and rows["copy"].runs == 1 and len(profile._rows) == 2
    assert rows["kernel"].best <= rows["kernel"].mean and "sum" in rows["kernel"].ran.origin
    assert "profile: 4 launches of 1 kernel and 1 copy in" in profile.table()


def test_without_it_nothing_is_counted() -> None:
    (Tensor([1.0, 2.0]) + 1).numpy()
    assert profile._rows == {} and profile.table() == ""


def test_the_longest_comes_first_and_the_rest_is_one_row() -> None:
    for n in range(profile.ROWS + 5):
        for _ in range(2):
            profile.note(Ran("CPU", f"E_{n}_{'4' * 30}", 2, 1e-6 * (n + 1), 10, 100, ("add", "x" * 80)))
    lines = profile.table().splitlines()
    assert max(map(len, lines)) <= 120
    assert [int(m[1]) for line in lines if (m := re.search(r" E_(\d+)_", line))] == list(range(profile.ROWS + 4, 4, -1))
    assert re.search(r"30\.0 us +10  3\.00 us +5 others", profile.table())


def test_the_table_is_printed_at_the_end_of_a_program(tmp_path: Path) -> None:
    script = "import os\nfrom tinsmith import Tensor\nprint((Tensor([1, 2]) + 1).tolist())\n"
    found = run(["-c", script], tmp_path, PROFILE="1").stdout.splitlines()
    assert found[0] == "[2, 3]" and found[1].startswith("profile: 1 launch of 1 kernel and 2 copies in")
    if hasattr(os, "fork"):
        found = run(["-c", script + "pid = os.fork()\nif pid: os.waitpid(pid, 0)\n"], tmp_path, PROFILE="1").stdout
        assert found.count("profile:") == 1

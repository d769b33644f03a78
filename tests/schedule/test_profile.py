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
from tinsmith.backend.machine import machine, roofline, why_above
from tinsmith.core.counters import Ran
from tinsmith.core.timeline import COMPILING, GENERATING, GUARDS, LAUNCHING, PHASES, RECORDING, SCHEDULING, timeline
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


def test_time_without_kernels_is_listed_by_phase() -> None:
    @TinyJit
    def step(t: Tensor) -> Tensor:
        return (t * 3 + 1).sum().realize()

    x = Tensor(np.ones((3, 5), np.float32)).realize()
    with Context(PROFILE=1, CACHELEVEL=0):
        for _ in range(4):
            step(x)
        rows = profile.table().splitlines()
    assert all(timeline.phases[name] > 0 for name in (SCHEDULING, GENERATING, COMPILING, GUARDS, LAUNCHING, RECORDING))
    assert set(timeline.phases) <= set(PHASES)
    assert all(len([row for row in rows if row.endswith(name)]) == 1 for name in PHASES), rows


def test_phases_exclude_what_is_inside_of_them() -> None:
    with timeline.phase(SCHEDULING), timeline.phase(COMPILING):
        timeline.ran(Ran("CPU", "E_4", 2, 5.0))
    assert timeline.phases[COMPILING] < -4 and 0 <= timeline.phases[SCHEDULING] < 4, "5 s belong to the kernel alone"


def test_kernels_above_their_roofline_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    known = machine("CPU")
    monkeypatch.setattr("tinsmith.backend.machine.machine", lambda device: known._replace(measured=True))
    monkeypatch.setattr(profile, "machine", lambda device: known._replace(measured=True))
    small, large = 1 << 10, 64 << 20
    assert "L1" in why_above("CPU", 1, small, roofline("CPU", 1, small) / 1.5)
    if len(known.memory) > 1:
        assert "still lies in" in why_above("CPU", 1, large, roofline("CPU", 1, large) / 1.01)
    assert "measured" in why_above("CPU", 1 << 40, small, roofline("CPU", 1 << 40, small) / 2)
    assert why_above("CPU", 1 << 40, small, roofline("CPU", 1 << 40, small) * 2) == ""
    profile.note(Ran("CPU", "E_256", 2, roofline("CPU", 1, small) / 2, 1, small, ("add",)))
    assert "above 100 % of the roofline: its data lie in L1 caches, and the bound is that of L2: E_256" in (
        profile.table())
    monkeypatch.setattr("tinsmith.backend.machine.machine", lambda device: known._replace(measured=False))
    assert "not measured" in why_above("CPU", 1, small, roofline("CPU", 1, small) / 2)

"""DEBUG output fits a terminal of 120 columns and is coloured only there."""
from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.golden.running import HERE, environment
from tinsmith.core.counters import WIDTH, GlobalCounters, Ran, timed_line, visible_length
from tinsmith.schedule.debug import _folded

HUGE = Ran("CUDA:1", "r_1024_32_4_8_3_16n1", 12, 12.3456, 10**13, 10**10, ("scaled_dot_product_attention",) * 3)
TREE = "  3   ┃  ┣━━ LOAD MemBuffer(idx=1, st=ShapeTracker(views=(View(shape=(2,), strides=(1,), offset=0),)))"


@pytest.mark.parametrize("ran", [
    HUGE, Ran("CPU", "r_2", 3, 1e-6, 3, 20, ("dot",)), Ran("CPU", "copy 8, CPU <- NPY", 2, 1e-6, kind="copy"),
    Ran("CPU", "r_6_32_64_4_8_3_16", 3, 5e-4, 1 << 25, 1 << 20, ("rand", "cast", "matmul"))])
def test_timed_lines_fit(ran: Ran) -> None:
    assert visible_length(timed_line(ran)) <= WIDTH
    assert ran.name in timed_line(ran)


def test_the_last_methods_are_kept() -> None:
    ran = Ran("CPU", "E_4", 2, 1e-6, origin=("first_of_the_methods", "second_of_the_methods", "add"))
    assert timed_line(ran).endswith(("['add']", "[…, 'add']"))


def test_data_has_no_method() -> None:
    assert "[" not in timed_line(Ran("CPU", "E_4", 2, 1e-6, origin=("",)))


def test_long_tree_lines_are_folded_under_their_branch() -> None:
    rows = _folded(TREE, 60).splitlines()
    assert all(len(r) <= 60 for r in rows) and rows[1].startswith("      ┃  ┃  ")
    assert " ".join(" ".join(rows).replace("┃", " ").split()) == " ".join(TREE.replace("┃", " ").split())


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo terminal")
@pytest.mark.parametrize("settings, coloured", [({}, True), ({"NO_COLOR": "1"}, False)])
def test_on_a_terminal(tmp_path: Path, settings: dict[str, str], coloured: bool) -> None:
    import pty

    leader, follower = pty.openpty()
    env = environment(tmp_path, DEBUG="5", NOOPT="1", COLUMNS="120", **settings)
    script = str(HERE / "tutorials" / "dot.py")
    with subprocess.Popen([sys.executable, "-m", "tinsmith.compat", script], stdout=follower, env=env) as child:
        os.close(follower)
        shown = b""
        while True:
            try:
                part = os.read(leader, 1 << 16)
            except OSError:  # Linux: the other side is closed
                break
            if not part:
                break
            shown += part
        assert child.wait(60) == 0
    os.close(leader)
    text = shown.decode()
    assert ("\u001b[" in text) == coloured
    assert max(visible_length(line) for line in text.splitlines()) <= 120
    assert "ShapeTracker" in text and "UOps.DEFINE_ACC" in text


def test_reset() -> None:
    used = GlobalCounters.mem_used
    GlobalCounters.reset()
    assert (GlobalCounters.kernel_count, GlobalCounters.mem_used) == (0, used)

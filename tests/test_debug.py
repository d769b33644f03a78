"""DEBUG output fits a terminal of 120 columns and is coloured only on a terminal."""
from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.golden.running import HERE, environment, run
from tinsmith.core.counters import GlobalCounters, Ran, timed_line
from tinsmith.core.terminal import WIDTH, fitted, visible_length

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
    rows = fitted(TREE, 60).splitlines()
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


# *** random numbers ***

RANDOM = """
from tinsmith import Tensor
Tensor.manual_seed(1)
x = (Tensor.rand(64, 64) @ Tensor.randn(64, 64)).realize()
print((Tensor([1.0, 2.0, 3.0, 4.0]) + Tensor.rand(4)).numpy())
"""


def debug_log(tmp_path: Path, script: str, level: int, **settings: str) -> str:
    (tmp_path / "script.py").write_text(script)
    done = run(["script.py"], tmp_path, DEBUG=str(level), **settings)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("level", [3, 4, 5])
def test_kernels_of_random_numbers_are_one_line(tmp_path: Path, level: int) -> None:
    log = debug_log(tmp_path, RANDOM, level)
    names = re.findall(r"^\*\*\* CPU +\d+ (rand_\w+)", log, re.MULTILINE)
    assert len(names) == 2, log
    for name in names:
        about = [line for line in log.splitlines() if name in line]
        assert about[0].startswith(f"kernel {name}: buffer ") and about[0].endswith("DEBUG=6 shows them")
        assert f"void {name}(" not in log
    assert max(map(len, log.splitlines())) <= WIDTH


def test_random_numbers_inside_other_kernels_are_folded_in_tree_and_list(tmp_path: Path) -> None:
    log = debug_log(tmp_path, RANDOM, 5)
    assert re.search(r"┗━━ RANDOM dtypes.float \(\d+ nodes of random number generation: DEBUG=6 shows them\)", log)
    assert re.search(r"^     … \d+ rows of random number generation: DEBUG=6 shows them$", log, re.MULTILINE)
    assert "BinaryOps.XOR" not in log and " XOR" not in log
    whole = debug_log(tmp_path, RANDOM, 6)
    assert "void rand_" in whole and "BinaryOps.XOR" in whole and "random stream" not in whole
    assert max(map(len, whole.splitlines())) <= WIDTH


def test_deep_trees_and_long_sources_stay_narrow(tmp_path: Path) -> None:
    script = """
from tinsmith import Tensor
x = Tensor([0.5, 2.0])
for _ in range(80): x = (x * 1.5 + 1).maximum(x)
x.realize()
"""
    log = debug_log(tmp_path, script, 5)
    assert max(map(len, log.splitlines())) <= WIDTH and " MAX" in log and "void E_2(" in log


# *** pipes ***

def piped(tmp_path: Path, script: str, reader: str, *before: str, **settings: str) -> tuple[str, str, int]:
    """Run ``python script | reader``; return its stdout, its stderr and Python's exit status."""
    (tmp_path / "script.py").write_text(script)
    command = " ".join([sys.executable, *before, "script.py"])
    env = environment(tmp_path / "cache", **settings)
    done = subprocess.run(["bash", "-c", f"{command} | {reader}; exit ${{PIPESTATUS[0]}}"], cwd=tmp_path, text=True,
                          env=env, capture_output=True, timeout=100, check=False)
    return done.stdout, done.stderr, done.returncode


@pytest.mark.skipif(sys.platform == "win32", reason="needs a shell with pipes")
@pytest.mark.parametrize("before", [(), ("-m", "tinsmith.compat")])
def test_a_closed_pipe_ends_quietly(tmp_path: Path, before: tuple[str, ...]) -> None:
    first, complaint, status = piped(tmp_path, RANDOM, "head -1", *before, DEBUG="6")
    assert first.startswith("opened device CPU") and (complaint, status) == ("", 128 + 13)


@pytest.mark.skipif(sys.platform == "win32", reason="needs a shell with pipes")
def test_a_listing_that_nobody_reads_to_its_end_ends_quietly(tmp_path: Path) -> None:
    script = "import time\nfrom tinsmith import Tensor\n" \
             "for n in range(2, 40):\n  Tensor.ones(n).contiguous().realize()\n  time.sleep(0.01)\n"
    first, complaint, status = piped(tmp_path, script, "head -1", "-m", "tinsmith", "source")
    assert "for CPU: contiguous" in first and (complaint, status) == ("", 128 + 13)


PRINTS = """
import time
from tinsmith import Tensor
Tensor([1]).sum().item()
time.sleep(0.3)
for n in range(10000): print('line', n)
"""
LEAVES_NOTHING = """
import os, sys, time
from tinsmith import Tensor
Tensor([1]).sum().item()
sys.stdout.flush()
open('flushed', 'w').close()
time.sleep(0.5)
os.write(1, b'line')
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs a shell with pipes")
@pytest.mark.parametrize(("script", "reader"), [
    (PRINTS, "true"), (LEAVES_NOTHING, "(while [ ! -e flushed ]; do sleep 0.05; done)")],
    ids=["prints", "empty buffers"])
def test_a_pipe_that_the_program_itself_finds_closed_ends_quietly(tmp_path: Path, script: str, reader: str) -> None:
    """A failed write can leave all buffers empty: then a flush finds no fault."""
    _, complaint, status = piped(tmp_path, script, reader, DEBUG="2")
    assert complaint == "" and status != 0



@pytest.mark.parametrize("start", [["script.py"], ["-m", "tinsmith.compat", "script.py"]])
def test_a_setting_that_is_no_number_ends_with_one_line(tmp_path: Path, start: list[str]) -> None:
    (tmp_path / "script.py").write_text("import tinsmith\n")
    done = run(start, tmp_path, DEBUG="x")
    assert (done.returncode, done.stderr) == (1, "tinsmith: DEBUG='x' is not a whole number. Try: DEBUG=1\n")


def test_a_setting_that_is_no_number_can_be_caught(tmp_path: Path) -> None:
    text = "try: import tinsmith\nexcept ValueError as error: print(error)\n1 / 0"
    done = run(["-c", text], tmp_path, DEBUG="x")
    assert "DEBUG='x' is not a whole number" in done.stdout and "ZeroDivisionError" in done.stderr


@pytest.mark.parametrize("text, wanted", [
    ("from tinygrad import Tensor\n\nTensor([1, 2]) + Tensor([1, 2, 3])\n", "ShapeError"),
    ("from tinygrad import Quux\n", "NotBuiltError"), ("x = 1 / 0\n", "ZeroDivisionError"),
    ("print(\n", "SyntaxError")])
def test_tracebacks_begin_at_the_script(tmp_path: Path, text: str, wanted: str) -> None:
    (tmp_path / "script.py").write_text(text)
    done = run(["-m", "tinsmith.compat", "script.py"], tmp_path)
    files = re.findall(r'^  File "([^"]+)"', done.stderr, re.MULTILINE)
    assert done.returncode == 1 and os.path.basename(files[0]) == "script.py" and wanted in done.stderr.splitlines()[-1]
    assert "runpy" not in done.stderr and "__main__.py" not in done.stderr


# *** folding ***

@pytest.mark.parametrize("line", ["    float alu3 = " + "(((alu0*1.5e-05f)+alu1)*0x1.8p+3f)<<" * 9 + "1;", "x" * 300,
                                  "  7 " + "  ┃" * 90 + " ┣━┳ ADD dtypes.float", "word " * 70])
def test_folding_loses_nothing_but_bars(line: str) -> None:
    rows = fitted(line, 60).splitlines()
    assert max(map(len, rows)) <= 60
    bare = lambda text: re.sub(r"[\s┃…]", "", text)  # noqa: E731
    assert bare("".join(rows)) == bare(line)
    assert not any(re.search(r"[\d.]e$|0x1\.8p$|<$", row) for row in rows)


def test_a_narrow_terminal_gets_tables_without_columns() -> None:
    row = f"   7 {'UOps.LOAD':20s}: {'dtypes.int':25s} {'[1, 6]':32s} None"
    assert fitted(row, 60) == "   7 UOps.LOAD  : dtypes.int  [1, 6]  None" and fitted(row, 120) == row

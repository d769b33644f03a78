"""The tutorials as golden tests: their scripts run as typed, and the dot product's log equals theirs, device names
aside."""
from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.golden.running import HERE, normalised, run, run_tutorial
from tinsmith.backend.device import Device


def as_ours(line: str) -> str:
    """Translate a line of the tutorial's log: other devices, no Metal signature, `arg` of the later tutorial."""
    line = line.replace("CLANG <- METAL", "NPY <- CPU").replace("*** CLANG", "*** NPY").replace("METAL", "CPU")
    line = re.sub(r"^kernel void r_2\(.*\{$", "void r_2(int* data0, const int* data1, const int* data2) {", line)
    count = "2" if " copy " in line else "3"
    return re.sub(r"^(\*\*\* .*?) mem", rf"\1 arg {count} mem", line)


@pytest.fixture(scope="module")
def dot_logs(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Return the dot product's log with an empty cache, and with a filled one."""
    home = tmp_path_factory.mktemp("dot")
    first, second = (run_tutorial("dot", home, DEBUG="5", NOOPT="1") for _ in range(2))
    return first, second


def test_the_log_of_the_dot_product_is_the_tutorials(dot_logs: tuple[str, str]) -> None:
    wanted = [as_ours(line) for line in normalised((HERE / "tutorials" / "dot_log.txt").read_text("utf-8"))]
    ours = normalised(unfolded(dot_logs[0]))
    ours = [line for line in ours if not line.startswith(("kernel r_2:", "computes", "opts"))]
    assert ours == wanted


def test_metals_log_is_the_tutorials(tmp_path: Path) -> None:
    """Without Metal, the kernel source equals the log's to the character, and every other line of the log appears."""
    if "METAL" in Device.get_available_devices():
        pytest.skip("Metal itself runs this here, and says nothing of what stands in for it")
    log = run_tutorial("dot", tmp_path, DEV="METAL", DEBUG="5", NOOPT="1")
    source = (HERE / "tutorials" / "r_2.metal").read_text("utf-8")
    assert log.count(source) == 1
    wanted = [re.sub(r"^(\*\*\* .*?) mem", lambda found: f"{found[1]} arg {2 if ' copy ' in found[1] else 3} mem",
                     line.replace("CLANG <- METAL", "NPY <- METAL").replace("*** CLANG", "*** NPY"))
              for line in normalised((HERE / "tutorials" / "dot_log.txt").read_text("utf-8"))]
    ours = normalised(unfolded(log.replace(source, source.partition("metal;\n")[2])))
    assert "METAL is not on this machine: its source is shown, values and times are CPU's" in ours
    assert [line for line in ours if not line.startswith(
        ("kernel r_2:", "computes", "opts", "METAL is not on", "opened device CPU"))] == wanted


def test_a_warm_cache_hides_nothing(dot_logs: tuple[str, str]) -> None:
    assert normalised(dot_logs[0]) == normalised(dot_logs[1])


def unfolded(log: str) -> str:
    """Join the wrapped tree lines of a log: a continuation line has no number."""
    return re.sub(r"\n[ ┃]{8,}(?=\S)", " ", log)


def test_no_line_is_wider_than_120(dot_logs: tuple[str, str]) -> None:
    assert max(map(len, dot_logs[0].splitlines())) <= 120


def test_the_dot_product_of_floats_is_the_tutorials_but_for_the_dtype(tmp_path: Path) -> None:
    """Tree, list and C show MUL and ADD; without NOOPT=1 they show one fused operation."""
    script = tmp_path / "dot.py"
    script.write_text(re.sub(r"(\d) ?([,\]])", r"\1.0\2", (HERE / "tutorials" / "dot.py").read_text()))
    logs = [run(["-m", "tinsmith.compat", str(script)], tmp_path, DEBUG="5", NOOPT=noopt).stdout for noopt in "10"]
    words = ("┳ MUL\n", "MULADD", "BinaryOps.MUL", "fma(")
    shown = [tuple(map(log.count, words)) for log in logs]
    assert shown == [(1, 0, 1, 0), (1, 3, 0, 2)], logs
    assert "SUM (0,) by MULADD" in logs[1] and "acc0 = (acc0+(val0*val1));" in logs[0]


@pytest.mark.parametrize("noopt, names", [("1", ["r_4", "r_4n1"]), ("0", ["r_4"])])
def test_variance(tmp_path: Path, noopt: str, names: list[str]) -> None:
    """1.6666666 or 1.6666667: the mean of four squares is exact, and the product with 1/3 (0.33333334) rounds once;
    whether the sum of squares is 5.0000000 or its neighbour depends on the order of additions."""
    log = run_tutorial("var", tmp_path, DEBUG="4", NOOPT=noopt)
    assert re.findall(r"^\*\*\* CPU +\d+ ([rE]_\w+)", log, re.MULTILINE) == names
    assert re.search(r"^1\.666666[67]$", log, re.MULTILINE)
    if noopt == "1":
        assert source_of(log) == source_of((HERE / "var_noopt.txt").read_text())


def source_of(log: str) -> list[str]:
    """Return the kernels' sources in a log."""
    return normalised("\n".join(re.findall(r"^void .*?^\}$", log, re.MULTILINE | re.DOTALL)))


@pytest.mark.parametrize("name, printed", [
    ("dot", "11\n"), ("matmul_half", "(256, 256) dtypes.half float16\n"), ("buffer", "b'\\x00'\n"),
    ("progress_bar", ""), ("kernel_in_python", "11\n"), ("jit", "11\n" * 3)])
def test_a_snippet_prints(tmp_path: Path, name: str, printed: str) -> None:
    assert run_tutorial(name, tmp_path) == printed


def test_the_dot_product_of_two_devices(tmp_path: Path) -> None:
    assert run_tutorial("shard", tmp_path, ALIAS="METAL=CPU") == "70.0\n"


def test_the_profile_names_what_took_longest(tmp_path: Path) -> None:
    assert "{built-in method time.sleep}" in run_tutorial("profiling", tmp_path)


@pytest.mark.parametrize("level", range(8))
def test_each_debug_level_adds_to_the_one_below(tmp_path: Path, level: int) -> None:
    log = run_tutorial("dot", tmp_path, DEBUG=str(level), NOOPT="1")
    shown = {1: "opened device CPU", 2: "*** CPU", 3: "computes dot (dot.py:4)", 4: "void r_2(", 5: "UOps.DEFINE_ACC",
             6: "define void @r_2_", 7: ".globl"}
    for at, text in shown.items():
        assert (text in log) == (at <= level), (level, text)

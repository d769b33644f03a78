"""Environment variables: each that tinygrad reads works here, or a one-line message names the alternative."""
from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.golden.running import ROOT, environment
from tinsmith import Context, OptOps, Tensor, with_opts
from tinsmith.core.settings import DECLARED, ELSEWHERE

SCRIPT = "from tinsmith import Tensor\nprint((Tensor([1, 2]) + 1).tolist())\n"


def run(cwd: Path, script: str = SCRIPT, compat: bool = False, **variables: str) -> subprocess.CompletedProcess[str]:
    start = ["-m", "tinsmith.compat", "-c"] if compat else ["-c"]
    return subprocess.run([sys.executable, *start, script], cwd=cwd, env=environment(cwd / "cache", **variables),
                          text=True, capture_output=True, timeout=100, check=True)


@pytest.mark.parametrize("compat", [False, True])
def test_one_line_for_each_that_does_nothing(tmp_path: Path, compat: bool) -> None:
    names = ("AMX", "IMAGE", "WINO", "TC_OPT")
    done = run(tmp_path, compat=compat, **dict.fromkeys(names, "1"))
    assert done.stdout == "[2, 3]\n"
    told = re.findall(r"^tinsmith: (\w+)=1 does nothing: .{20}", done.stderr, re.MULTILINE)
    assert sorted(told) == sorted(names) and len(done.stderr.splitlines()) == len(names)


def test_what_is_said_goes_through_the_logger(tmp_path: Path) -> None:
    script = "import logging; logging.getLogger('tinsmith').setLevel('ERROR')\n" + SCRIPT
    assert run(tmp_path, script, WINO="1").stderr == ""


def test_nothing_is_said_of_other_programs_variables_and_of_defaults(tmp_path: Path) -> None:
    assert run(tmp_path, IMAGE="debian:12", WINO="0", RING="1", TC_SELECT="-1").stderr == ""
    assert run(tmp_path, "import tinsmith", IMAGE="1").stderr == ""


def test_variables_of_text_and_empty_ones(tmp_path: Path) -> None:
    script = "from tinygrad.helpers import DEBUG, EMULATED_DTYPES, IMAGE, getenv\n" \
             "print(DEBUG == 0, EMULATED_DTYPES, IMAGE, getenv('NOTHING', 3))"
    done = run(tmp_path, script, True, DEBUG="", EMULATED_DTYPES="half", IMAGE="dot", NOTHING="", PROFILEPATH="/tmp/p")
    assert done.stdout == "True half 0 0\n"
    assert sorted(line.split()[1] for line in done.stderr.splitlines()) == ["EMULATED_DTYPES=half",
                                                                          "PROFILEPATH=/tmp/p"]


def test_no_variable_is_both_read_and_not() -> None:
    assert not {s.name for s in DECLARED} & set(ELSEWHERE)
    assert all(len(f"tinsmith: {name}=1 does nothing: {words}") <= 140 for name, (_, words) in ELSEWHERE.items())


def test_what_the_lines_name_is_there() -> None:
    names = {s.name for s in DECLARED}
    for _, words in ELSEWHERE.values():
        assert set(re.findall(r"\b([A-Z_]{3,})=", words)) <= names, words
        assert all((ROOT / page).exists() for page in re.findall(r"docs/\w+\.md", words)), words


@pytest.mark.parametrize("change, dtype, op", [
    ({"NOLOCALS": 1}, np.float32, OptOps.LOCAL), ({"TC": 0}, np.float16, OptOps.TC)])
def test_tc_and_nolocals(change: dict[str, int], dtype: type, op: OptOps) -> None:
    rng = np.random.default_rng(0)
    a, b = (Tensor(rng.integers(-2, 3, (32, 32)).astype(dtype), device="PYTHON:G256").realize() for _ in range(2))
    usual = [o.op for o in with_opts(a @ b, None).opts]
    with Context(**change):
        assert op in usual and op not in [o.op for o in with_opts(a @ b, None).opts]
        np.testing.assert_array_equal((a @ b).numpy(), a.numpy() @ b.numpy())

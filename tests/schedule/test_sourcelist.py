"""``python -m tinsmith source``: every kernel of a script, once, for a device that need not be here."""
from __future__ import annotations

from pathlib import Path

from tests.golden.running import HERE, run

SCRIPT = """
import sys
from tinsmith import Tensor
print("arguments", sys.argv[1:])
for rows in (3, 3, 5):
    x = Tensor.ones(rows, 4).contiguous()
    print((x * 2 + 1).sum().item())
Tensor([1.0, 2.0], device="METAL").exp().realize()
if "fail" in sys.argv:
    raise ValueError("no more")
if "exit" in sys.argv:
    sys.exit("enough")
print((x - 1).max().item())
"""


def listed(cwd: Path, *arguments: str) -> tuple[int, str, str]:
    (cwd / "script.py").write_text(SCRIPT)
    done = run(["-m", "tinsmith", "source", "script.py", *arguments], cwd)
    return done.returncode, done.stdout, done.stderr


def test_every_kernel_once_under_its_name_and_line(tmp_path: Path) -> None:
    code, out, shown = listed(tmp_path, "--device", "CUDA", "3", "--", "--device")
    assert (code, shown.splitlines()) == (0, ["arguments ['3', '--device']", "36.0", "36.0", "60.0", "0.0"])
    heads = [line for line in out.splitlines() if line.startswith("//")]
    assert len(heads) == len({line.split()[1] for line in heads}), "each has a name of its own"
    assert sum("sum (script.py:7)" in line and "for CUDA:" in line for line in heads) == 2
    assert [line for line in heads if "for METAL: exp (script.py:8)" in line]
    assert out.count("__global__") == len(heads) - 1 and out.count("kernel void") == 1


def test_an_error_ends_the_listing_and_says_so(tmp_path: Path) -> None:
    code, out, shown = listed(tmp_path, "--device", "METAL", "fail")
    assert code == 1 and "kernel void" in out and "max" not in out
    assert "ValueError: no more" in shown and "kernels: script.py raised ValueError" in shown
    assert 'File "script.py", line 10' in shown and "tinsmith" not in shown


def test_threads_of_a_script_compute_there_too(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("from threading import Thread\nfrom tinsmith import Tensor\n"
                                        "worker = Thread(target=lambda: (Tensor([1.0]) + 1).realize())\n"
                                        "worker.start()\nworker.join()\n")
    done = run(["-m", "tinsmith", "source", "script.py", "--device", "METAL"], tmp_path)
    assert done.returncode == 0 and "for METAL: add (script.py:3)" in done.stdout and "kernel void" in done.stdout


def test_what_a_script_exits_with_is_shown(tmp_path: Path) -> None:
    code, out, shown = listed(tmp_path, "--device", "METAL", "exit")
    assert code == 1 and "kernel void" in out and shown.splitlines()[-1] == "enough"


def test_a_script_of_tinygrads_and_a_device_that_is_here(tmp_path: Path) -> None:
    script = str(HERE / "tutorials" / "dot.py")
    done = run(["-m", "tinsmith", "source", script, "--device", "PYTHON", "--compat"], tmp_path)
    assert (done.returncode, done.stderr) == (0, "11\n")
    assert done.stdout.startswith("# r_2 for PYTHON: dot (dot.py:4)\n")
    assert "def r_2(data0, data1, data2):" in done.stdout


def test_a_script_of_tinygrads_is_told_how(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("from tinygrad import Tensor\n")
    done = run(["-m", "tinsmith", "source", "script.py", "--device", "METAL"], tmp_path)
    assert done.returncode == 1 and done.stderr.rstrip().endswith("raised ModuleNotFoundError. Try: --compat")


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    done = run(["-m", "tinsmith", "source", "nothing.py"], tmp_path)
    assert done.returncode == 1 and "nothing.py" in done.stderr and not done.stdout
    code, _, shown = listed(tmp_path, "--device", "NOWHERE")
    assert code == 1 and "there is no device 'NOWHERE'" in shown

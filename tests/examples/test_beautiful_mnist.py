"""examples/beautiful_mnist.py by the tutorials' command: a progress line, with DEBUG=2 a line per kernel and copy."""
from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.golden.running import ROOT, environment


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of IDX files with a few images that are easy to classify."""
    folder = tmp_path_factory.mktemp("digits")
    rng = np.random.default_rng(0)
    for name, count in (("train", 40), ("t10k", 10)):
        labels = np.arange(count, dtype=np.uint8) % 10
        images = rng.integers(0, 40, (count, 28, 28)) + 20 * labels[:, None, None]
        for kind, values in (("images-idx3", images), ("labels-idx1", labels)):
            head = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">u4").tobytes()
            (folder / f"{name}-{kind}-ubyte").write_bytes(head + values.astype(np.uint8).tobytes())
    return folder


def run(data: Path, *args: str, **settings: str) -> subprocess.CompletedProcess[str]:
    env = environment(data / "cache", **settings) | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, os.path.join(ROOT, "examples", "beautiful_mnist.py"), *args]
    return subprocess.run(command, cwd=data, env=env, text=True, encoding="utf-8", capture_output=True, timeout=300,
                          check=False)


@pytest.mark.parametrize("settings, printed", [
    ({"DEBUG": "2"}, r"\*\*\* CPU +1 copy 31360, CPU <- NPY +arg +2 mem .*GFLOPS"), ({"PROFILE": "1"}, r"[rE]_\d+")])
def test_the_command_of_the_tutorials(data: Path, settings: dict[str, str], printed: str) -> None:
    done = run(data, str(data), STEPS="3", BATCH="8", **settings)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^  0%\| +\| 0/3 \[00:00<\?, \?it/s\]", done.stderr.replace("\r", "\n"), re.MULTILINE)
    assert re.search(r"loss: +\d.*test accuracy: +\d+.*%: 100%\|█+\| 3/3 \[\d\d:\d\d<00:00, +[\d.]+(it/s|s/it)\]",
                     done.stderr)
    assert re.search(printed, done.stdout) and re.search(r"^test accuracy [\d.]+ %$", done.stdout, re.MULTILINE)


def test_help_and_a_wrong_folder(data: Path, tmp_path: Path) -> None:
    done = run(data, "--help")
    assert done.returncode == 0 and "usage: beautiful_mnist.py [-h] [folder]" in done.stdout and "STEPS" in done.stdout
    done = run(data, str(tmp_path))
    assert done.returncode == 1 and done.stderr.strip().endswith("Try: the folder of the MNIST files")
    assert "neither train-images" in done.stderr

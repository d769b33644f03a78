"""The progress line of kernel compilation: on a terminal only, after one second, and cleared at the end."""
from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from tests.golden.running import environment

SCRIPT = """
from tinsmith import Tensor
from tinsmith.core import terminal
terminal.PATIENCE = {patience}
x = Tensor([1.0, 2.0])
Tensor.realize(x + 1, x.exp().sum() * 3, x.sin().cumsum())
"""


def on_terminal(tmp_path: Path, patience: float, **settings: str) -> str:
    """Return what a program that compiles a few kernels writes to standard error, which is a terminal."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
    env = environment(tmp_path, **{"DEBUG": "0", **settings})
    subprocess.run([sys.executable, "-c", SCRIPT.format(patience=patience)], env=env, stderr=theirs, check=True)
    os.write(theirs, b"\nend")
    found = b""
    while not found.endswith(b"end"):
        found += os.read(ours, 4096)
    os.close(ours)
    os.close(theirs)
    return found.decode().removesuffix("end").rstrip("\r\n")


def test_compiling_counts_kernels_and_erases_the_line(tmp_path: Path) -> None:
    text = on_terminal(tmp_path, 0.0)
    assert "compiling 0/" in text and " kernels" in text
    assert text.rstrip(" ").endswith("\r")  # erased


@pytest.mark.parametrize("patience, settings", [(60.0, {}), (0.0, {"PROGRESS": "0"}), (0.0, {"DEBUG": "2"})],
                         ids=["quick", "PROGRESS=0", "DEBUG=2"])
def test_nothing_is_written_where_nothing_is_wanted(tmp_path: Path, patience: float, settings: dict[str, str]) -> None:
    assert "compiling" not in on_terminal(tmp_path, patience, **settings)

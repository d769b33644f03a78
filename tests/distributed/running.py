"""Helpers that run a script in several processes, and the reason to skip where no MPI is installed."""
from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.golden.running import environment
from tinsmith.distributed import launcher

MISSING = importlib.util.find_spec("mpi4py") is None or launcher.mpirun() is None
needs_mpi = pytest.mark.skipif(MISSING, reason="mpi4py or mpirun is not installed: pip install 'tinsmith[mpi]'")
LAUNCHERS = ("OMPI_", "PMI_", "PMIX_", "PRTE_", "SLURM_", "MPI_LOCAL")

HEAD = """
import os, sys
import numpy as np
from tinsmith import Context, Tensor, TinyJit, dtypes, nn
from tinsmith import distributed as dist
r, n = dist.rank(), dist.world_size()
"""

# Part of scripts that define the blocks.
GPT_OF_BLOCKS = """
class GPT:
    def __init__(self, blocks, vocab=8, size=16, length=16):
        self.wte, self.wpe = nn.Embedding(vocab, size), nn.Embedding(length, size)
        self.blocks = blocks
        self.ln, self.head = nn.LayerNorm(size), nn.Linear(size, vocab, bias=False)
    def __call__(self, ids):
        x = self.wte(ids) + self.wpe(Tensor.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.ln(x))
"""


def clean(variables: dict[str, str]) -> dict[str, str]:
    """Return variables without those of a launcher."""
    return {k: v for k, v in variables.items() if not k.startswith(LAUNCHERS)}


def program(folder: Path, text: str, head: str = HEAD) -> Path:
    """Write a script and return its path."""
    path = folder / "program.py"
    path.write_text(head + textwrap.dedent(text))
    return path


def run(count: int, folder: Path, text: str, cache: Path | None = None, head: str = HEAD, timeout: float = 150,
        **settings: str) -> subprocess.CompletedProcess[str]:
    """Run a script in ``count`` processes, without ``mpirun`` for 0; all end with the test."""
    path = str(program(folder, text, head))
    line = launcher.command(count, [path]) if count else [sys.executable, path]
    variables = clean(environment(cache or folder / "cache", CHECK_IR="0", POISON="0", **settings))
    variables |= {k: v for k, v in launcher.environment().items() if k.startswith("OMPI_ALLOW")}
    with subprocess.Popen(line, cwd=folder, env=variables, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          start_new_session=True) as process:
        try:
            out, errors = process.communicate(timeout=timeout)
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            out, errors = process.communicate()
            print(out, errors)
            raise
    return subprocess.CompletedProcess(line, process.returncode, out, errors)


def passes(count: int, folder: Path, text: str, cache: Path | None = None, **settings: str) -> str:
    """Run a script that must succeed; return what it printed."""
    done = run(count, folder, text, cache, **settings)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@contextlib.contextmanager
def started(count: int, folder: Path, text: str, **settings: str) -> Iterator[subprocess.Popen[str]]:
    """Start a script in ``count`` processes; whatever is left is ended with the block."""
    path = str(program(folder, text))
    variables = clean(environment(folder / "cache", CHECK_IR="0", POISON="0", **settings))
    with subprocess.Popen([sys.executable, "-m", "tinsmith", "launch", "-n", str(count), path], cwd=folder,
                          env=variables, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          start_new_session=True) as process:
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

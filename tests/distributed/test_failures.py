"""A rank that dies, raises, ends or hangs is named, and all end with an exit code."""
from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.distributed.running import needs_mpi, passes, run, started
from tests.golden.running import run as run_python
from tinsmith.distributed import launcher
from tinsmith.distributed.monitor import LATE, Monitor, Rank

HEAD = """
import os, sys, time
from tinsmith import Tensor, distributed as dist
r = dist.rank()
dist.barrier()
"""


@needs_mpi
@pytest.mark.parametrize(("fault", "message"), [
    ("os.kill(os.getpid(), 9)", r"died"),
    ("raise ValueError('bad data')", "raised ValueError: bad data at program.py:6"),
    ("sys.exit(0)", "in all_reduce at program.py:7 for rank 1"),
    ("time.sleep(100)", "which is at program.py:6"),
])
def test_a_fault_of_a_rank_is_named(fault: str, message: str, tmp_path: Path) -> None:
    text = f"if r == 1: {fault}\ndist.all_reduce(Tensor([1.0]))\n"
    done = run(2, tmp_path, text, head=HEAD, DIST_TIMEOUT="4")
    assert done.returncode != 0
    line = next(line for line in done.stderr.splitlines() if line.startswith("tinsmith: "))
    assert message in line and "rank 1 on" in line, done.stderr


@needs_mpi
def test_ctrl_c_ends_all(tmp_path: Path) -> None:
    text = """
        print(os.getpid(), flush=True)
        dist.barrier()
        while True:
            dist.all_reduce(Tensor([1.0]))
    """
    with started(2, tmp_path, text, RANKS="all") as process:
        assert process.stdout is not None
        lines = [process.stdout.readline().strip() for _ in range(2)]
        assert sorted(line[:4] for line in lines) == ["[0] ", "[1] "]
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 130
        for pid in (int(line[4:]) for line in lines):
            with pytest.raises(ProcessLookupError):
                for _ in range(100):
                    os.kill(pid, 0)
                    time.sleep(0.1)


@needs_mpi
def test_rank_0_prints(tmp_path: Path) -> None:
    assert passes(2, tmp_path, "print('rank', r)\n") == "rank 0\n"


@needs_mpi
def test_restart(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "program.py"
    script.write_text("import os, sys\nsys.exit(os.environ['TINSMITH_RESTART'] == '0')\n")
    said: list[str] = []
    assert launcher.launch(2, [str(script)], restarts=2, say=said.append) == 0
    assert said == ["tinsmith launch: exit code 1; restart 1 of 2"]
    assert launcher.launch(2, [str(script)], say=said.append) == 1


def test_command_without_a_program(tmp_path: Path) -> None:
    done = run_python(["-m", "tinsmith", "launch"], tmp_path)
    assert done.returncode == 2 and "a script" in done.stderr


class Silent:
    """A connection on which nothing comes."""

    def sendall(self, data: bytes) -> None:
        self.sent = data


def test_who_is_waited_for(capsys: pytest.CaptureFixture[str]) -> None:
    monitor = Monitor(2, 60.0, "word")
    ranks = []
    for number in range(2):
        connection = Silent()
        rank = monitor.ranks[connection] = Rank(connection)  # type: ignore[index, arg-type]
        monitor.told(rank, {"token": "word", "rank": number, "host": "here", "pid": 7})
        ranks.append(rank)
    waiting = {"kind": "all_reduce", "ranks": [0, 1], "call": 3, "line": "a.py:1", "seconds": LATE + 1}
    monitor.told(ranks[0], {"line": "a.py:1", "waiting": waiting})
    monitor.told(ranks[1], {"line": "a.py:1", "waiting": waiting})
    monitor.judge()
    assert not capsys.readouterr().err  # both are there: MPI is slow
    monitor.told(ranks[1], {"line": "a.py:9", "waiting": None})
    for _ in range(2):
        monitor.judge()
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "which is at a.py:9. All are ended after 60 s" in said and not monitor.reason
    monitor.told(ranks[0], {"line": "a.py:1", "waiting": {**waiting, "seconds": 61}})
    monitor.judge()
    assert monitor.reason.startswith("rank 0 has waited 61 s in all_reduce at a.py:1 for rank 1 on here")

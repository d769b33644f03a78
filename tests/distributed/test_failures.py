"""A rank that dies, raises, ends or hangs is named, and all end with an exit code."""
from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.running import needs_mpi, passes, run, started
from tests.golden.running import run as run_python
from tinsmith.core.errors import CommunicationError
from tinsmith.distributed import launcher
from tinsmith.distributed.monitor import ENDED, LATE, SILENT, Monitor, Peer, process

HEAD = """
import os, sys, time
from tinsmith import Tensor, distributed as dist
from tinsmith.distributed import watch
r = dist.rank()
watch.ending.append(lambda: (open(f"ended-{r}", "w").close(), print(f"work of rank {r} is ended", file=sys.stderr)))
dist.barrier()
"""


@needs_mpi
@pytest.mark.parametrize(("fault", "message"), [
    ("os.kill(os.getpid(), 9)", r"died"),
    ("raise ValueError('bad data')", "raised ValueError: bad data at program.py:8"),
    ("sys.exit(0)", "rank 0 waits in all_reduce(sum, float32, (1,)) at program.py:9 for rank 1"),
    ("time.sleep(100)", "has been at program.py:8 for "),
    ("import ctypes; ctypes.PyDLL(None).sleep(100)", "waits in all_reduce(sum, float32, (1,)) at program.py:9"),
    ("dist.recv(Tensor([1.0]), 0)", "ranks wait for each other: rank 0 waits in all_reduce(sum, float32, (1,)) at "
     "program.py:9; rank 1 waits in receive(float32, (1,)) from rank 0 at program.py:8"),
])
def test_a_fault_of_a_rank_is_named(fault: str, message: str, tmp_path: Path) -> None:
    text = f"if r == 1: {fault}\ndist.all_reduce(Tensor([1.0]))\n"
    done = run(2, tmp_path, text, head=HEAD, DIST_TIMEOUT="4" if "sleep" in fault else "600")
    assert done.returncode != 0
    line = next(line for line in done.stderr.splitlines() if line.startswith("tinsmith: "))
    assert message in line and "rank 1 " in line, done.stderr
    assert (tmp_path / "ended-0").exists()  # the work of the one that waits, as collectives of NCCL
    assert "raised" not in message or done.stderr.index(line) < done.stderr.index("work of rank 1 is ended")


@needs_mpi
def test_the_report_does_not_need_the_output_of_ranks(tmp_path: Path) -> None:
    """A launcher may drop what ranks print once it sees one die."""
    done = run(2, tmp_path, "if r == 1: os._exit(9)\ndist.all_reduce(Tensor([1.0]))\n", head=f"""
import os
os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
{HEAD}""")
    assert done.returncode != 0 and "tinsmith: rank 1 on " in done.stderr and "ended" not in done.stderr


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
    done = run(4, tmp_path, """
        for k in range(50): print('a', r, k, flush=True)
        print('b', end='')
        print('a', r, file=sys.stderr)
    """, RANKS="all")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split("\n")) == ["", *sorted(
        line for r in range(4) for line in (*(f"[{r}] a {r} {k}" for k in range(50)), f"[{r}] b"))]
    assert {f"[{r}] a {r}" for r in range(4)} <= set(done.stderr.splitlines())


@needs_mpi
def test_one_timeline_of_all_processes(tmp_path: Path) -> None:
    """Each rank is a process of the trace; collectives have a row; the trace of an earlier run is replaced."""
    for _ in range(2):
        passes(2, tmp_path, "dist.all_reduce(Tensor([1.0, 2.0]) + 1).numpy()", PROFILE="1")
    found = json.loads((tmp_path / "program.perfetto.json").read_text())
    titles = sorted(e["args"]["name"].split(" on ")[0] for e in found if e["name"] == "process_name")
    assert titles == ["rank 0", "rank 1"]
    rows = {(e["pid"], e["tid"]): e["args"]["name"] for e in found if e["name"] == "thread_name"}
    spans = [e for e in found if e["ph"] == "X" and rows[e["pid"], e["tid"]] == "collectives"]
    assert {e["pid"] for e in spans} == {1, 2} and all("all_reduce" in e["name"] for e in spans)
    assert abs(spans[0]["ts"] - spans[-1]["ts"]) < 60e6  # one clock


@needs_mpi
def test_restart(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "program.py"
    script.write_text("import os, sys\nsys.exit(os.environ['TINSMITH_RESTART'] == '0')\n")
    said: list[str] = []
    assert launcher.launch(2, [str(script)], restarts=2, say=said.append) == 0
    assert said == ["tinsmith launch: exit code 1; restart 1 of 2"]
    assert launcher.launch(2, [str(script)], say=said.append) == 1


@needs_mpi
def test_launch_of_a_module_and_of_code(tmp_path: Path) -> None:
    for program, output in ((["-m", "calendar", "2026", "2"], "February 2026"), (["-c", "print('an', 'id')"], "an id")):
        done = run_python(["-m", "tinsmith", "launch", "-n", "2", *program], tmp_path)
        assert done.returncode == 0 and done.stdout.count(output) == 2, done.stderr


@needs_mpi
def test_launch_says_nothing_of_its_own_trace(tmp_path: Path) -> None:
    """VIZ=1 is a setting of the script's processes; the launcher runs no program."""
    done = run_python(["-m", "tinsmith", "launch", "-n", "1", "-c", "print('done')"], tmp_path, VIZ="1")
    assert done.returncode == 0 and done.stdout == "done\n" and "VIZ" not in done.stderr, done.stderr


@needs_mpi
def test_restart_without_a_lost_host(tmp_path: Path) -> None:
    """The second host does not answer: the first run cannot start, the second one has the other host."""
    script, hosts = tmp_path / "program.py", tmp_path / "hosts"
    script.write_text(f"from tinsmith import distributed as dist\nopen({str(tmp_path / 'size')!r}, 'w').write("
                      "str(dist.world_size()))\n")
    hosts.write_text("localhost slots=1  # this one\n\nlost.invalid slots=2\n")
    said: list[str] = []
    assert launcher.launch(3, [str(script)], restarts=1, hostfile=str(hosts), say=said.append) == 0
    assert said[1:] == ["tinsmith launch: no answer from lost.invalid; 1 processes on localhost"]
    assert (tmp_path / "size").read_text() == "1"


def test_hosts(tmp_path: Path) -> None:
    with pytest.raises(CommunicationError, match="'four' is no number"):
        launcher.hosts_of(["a:four"])
    with pytest.raises(CommunicationError, match="a file of host names"):
        launcher.hosts_of([], str(tmp_path / "none"))
    with pytest.raises(CommunicationError, match=r"none of lost\.invalid answers"):
        launcher._left(2, launcher.hosts_of(["lost.invalid:2"]), print)


def test_command_without_a_program(tmp_path: Path) -> None:
    done = run_python(["-m", "tinsmith", "launch"], tmp_path)
    assert done.returncode == 2 and "a script" in done.stderr


@needs_mpi
def test_a_rank_that_computes_for_long_is_reported_and_lives(tmp_path: Path) -> None:
    """The interpreter's lock is held for longer than the monitor waits for signs."""
    text = f"""
if r == 1:
    import ctypes
    ctypes.PyDLL(None).sleep({int(LATE) + 3})
assert dist.all_reduce(Tensor([1.0])).item() == 2
"""
    done = run(2, tmp_path, text, head=HEAD)
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stderr.splitlines() if line.startswith("tinsmith: ")]
    assert len(said) == 1 and said[0].startswith("tinsmith: rank 1 on ") and "holds the interpreter's lock" in said[0]
    assert "rank 0 waits in all_reduce(sum, float32, (1,)) at program.py:12" in said[0]


@needs_mpi
@pytest.mark.parametrize("count", [2, 4])
def test_ranks_in_different_calls(count: int, tmp_path: Path) -> None:
    """Without CHECKED: by the monitor, or by the hash of the sequence where MPI takes one for the other."""
    done = run(count, tmp_path, """
        for _ in range(4):
            dist.barrier()
        x = Tensor.ones(64, 64).contiguous().realize()
        if r == 0:
            dist.all_reduce(x)
        else:
            dist.all_to_all(x)
        for _ in range(3):
            dist.barrier()
    """)
    assert done.returncode != 0
    said = " ".join(done.stderr.split())
    assert "call 5 of" in said and "all_reduce(sum, float32, (64, 64)) at program.py:12" in said
    assert f"all_to_all(float32, ({count}, {64 // count}, 64)) at program.py:14" in said, done.stderr


@needs_mpi
def test_the_same_sequence_is_compared_without_checked(tmp_path: Path) -> None:
    """Calls of one size, which MPI cannot tell apart."""
    done = run(2, tmp_path, """
        x = Tensor([1.0, 2.0]).realize()
        for k in range(70):
            dist.all_reduce(x)
        dist.all_reduce(x, "max") if r else dist.all_reduce(x)
        for k in range(70):
            dist.all_reduce(x)
        print("not found")
    """)
    assert done.returncode != 0 and "not found" not in done.stdout
    said = " ".join(done.stderr.split())
    assert "call 71 of" in said and "rank 0: all_reduce(sum, float32, (2,)) at program.py:11; rank 1: " \
        "all_reduce(max, float32, (2,)) at program.py:11" in said, done.stderr


class Silent:
    """A connection on which nothing comes."""

    def sendall(self, data: bytes) -> None:
        self.sent = data

    def close(self) -> None:
        pass


def monitored(count: int, timeout: float = 60.0) -> tuple[Monitor, list[Peer], Peer]:
    """Return a monitor, its ranks, and the agent of their host."""
    monitor = Monitor(count, timeout, "word")
    peers = []
    for number in (*range(count), -1):
        connection = Silent()
        peer = monitor.peers[connection] = Peer(connection)  # type: ignore[arg-type]
        monitor.told(peer, {"token": "word", "rank": number, "host": "here", "pid": 7 + number})
        peers.append(peer)
    return monitor, peers[:-1], peers[-1]


def call(line: str, ranks: list[int], number: int = 3, seconds: float = 0.0, kind: str = "all_reduce",
         world: list[int] | None = None, tag: int = 0) -> dict[str, Any]:
    world = ranks if world is None else world
    return {"line": line, "waiting": {"kind": kind, "group": "g", "world": world, "ranks": ranks, "call": number,
                                      "what": f"{kind}(x)", "tag": tag, "line": line, "seconds": seconds}}


def test_who_is_waited_for(capsys: pytest.CaptureFixture[str]) -> None:
    monitor, ranks, agent = monitored(3)
    for rank in ranks:
        monitor.told(rank, call("a.py:1", [0, 1, 2], seconds=LATE + 1))
    monitor.judge()
    assert not capsys.readouterr().err  # all are there: MPI is slow
    monitor.told(agent, {"processes": {"8": ["R", 12.0]}})
    monitor.told(ranks[1], {"line": "a.py:9", "waiting": None})
    monitor.told(agent, {"processes": {"8": ["R", 30.0]}})
    for _ in range(2):
        monitor.judge()
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and not monitor.reason
    assert "rank 1 on here (process 8) has been at a.py:9 for 0 s (18 s of CPU); ranks 0, 2 wait in all_reduce(x) at " \
        "a.py:1, for 21 s. All are ended after 60 s (DIST_TIMEOUT), unless it comes" in said
    monitor.told(ranks[0], call("a.py:1", [0, 1, 2], seconds=61))
    monitor.judge()
    assert monitor.reason.startswith("rank 1 on here (process 8) has been at a.py:9")
    assert "for 61 s: more than DIST_TIMEOUT=60" in monitor.reason


def test_a_rank_that_computes_is_never_ended_without_a_limit() -> None:
    monitor, ranks, _ = monitored(2, timeout=0)
    monitor.told(ranks[0], call("a.py:1", [0, 1], seconds=1e6))
    ranks[1].seen -= 1e6  # its host's agent gives signs
    monitor.judge()
    assert not monitor.reason


def test_hosts_and_stopped_ranks() -> None:
    monitor, ranks, agent = monitored(2)
    monitor.told(agent, {"processes": {"8": ["T", 12.0]}})
    ranks[1].seen -= SILENT + 1
    monitor.judge()
    assert not monitor.reason  # nobody waits for it
    monitor.told(ranks[0], call("a.py:1", [0, 1]))
    monitor.judge()
    assert "rank 1 on here (process 8) was stopped by a signal 16 s ago" in monitor.reason
    monitor, ranks, agent = monitored(2)
    agent.seen -= SILENT + 1
    ranks[1].seen -= SILENT + 1
    monitor.judge()
    assert "has given no sign for 16 s, nor has its host" in monitor.reason


def test_deadlocks_are_told_from_waiting() -> None:
    def judged(*waits: dict[str, Any] | None, ended: tuple[int, ...] = (), ago: float = ENDED + 1) -> str:
        monitor, ranks, _ = monitored(len(waits))
        for rank, wait in zip(ranks, waits):
            monitor.told(rank, wait or {"line": "a.py:99", "waiting": None})
        for n in ended:
            ranks[n].state = "ended"
            ranks[n].seen -= ago
        monitor.judge()
        return monitor.reason

    long = ENDED + 1
    pair = call("a.py:1", [1], seconds=long, kind="send", world=[0, 1])
    assert not judged(pair, call("a.py:2", [0], seconds=long, kind="receive", world=[0, 1]))
    assert "wait for each other" in judged(pair, call("a.py:2", [0], seconds=long, kind="receive", world=[0, 1], tag=1))
    assert not judged(pair, call("a.py:2", [0], seconds=1, kind="receive", world=[0, 1], tag=1))  # it may be on its way
    every, both = call("a.py:1", [0, 1, 2], seconds=long), call("a.py:2", [1, 2], seconds=long)
    assert not judged(every, both, None)  # rank 2 may come
    assert "rank 0 waits in all_reduce(x) at a.py:1; rank 1 waits in all_reduce(x) at a.py:2; rank 2" in judged(
        every, both, call("a.py:3", [0], seconds=long, kind="receive", world=[0, 1, 2]))
    assert "rank 2 on here (process 9), which has ended" in judged(every, every, None, ended=(2,))
    assert "rank 2 on here (process 9), which has ended" in judged(every, None, None, ended=(2,))
    assert not judged(every, every, None, ended=(2,), ago=1)  # after the call that the others will leave
    assert "call 3 of processes 0, 1 differs: rank 0: all_reduce(x) at a.py:1; rank 1: barrier(x) at a.py:2" in judged(
        call("a.py:1", [0, 1]), call("a.py:2", [0, 1], kind="barrier"))


def test_processes_that_never_start(capsys: pytest.CaptureFixture[str]) -> None:
    monitor, _, _ = monitored(2)
    monitor.count = 3
    monitor.begin -= LATE + 1
    for _ in range(2):
        monitor.judge()
    assert capsys.readouterr().err == "tinsmith: rank 0 has waited 21 s in dist.init() for the other 2 processes\n"


def test_the_state_of_a_process() -> None:
    found = process(os.getpid())
    assert found is not None and found[0] in "RS" and found[1] > 0
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    child.wait()
    assert process(child.pid) is None

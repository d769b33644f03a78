"""BEAM: candidates run in a child process that may crash or hang; results are text that can be merged."""
from __future__ import annotations

import json
import os
import random
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.golden.running import run
from tests.schedule import faulty_device
from tinsmith import Context, Tensor
from tinsmith.codegen.kernel import Kernel
from tinsmith.codegen.opt import Opt, OptOps
from tinsmith.core.dtypes import dtypes
from tinsmith.core.settings import settings
from tinsmith.inspect.checked import box, largest, tolerance_of
from tinsmith.inspect.search import database, search
from tinsmith.inspect.search.trial import Session, TrialRequest, same
from tinsmith.ir import Ops, UOp
from tinsmith.runtime import realize

FAULTS = {faulty_device.CRASH: "crash", faulty_device.HANG: "hang", faulty_device.LIE: "wrong",
          faulty_device.REFUSE: "error", 4: "ok"}


@pytest.fixture(autouse=True)
def file(tmp_path: Path) -> Iterator[Path]:
    """Use a result file of the test's own, and forget results in memory."""
    search.forget()
    realize._compiled.clear()
    with Context(BEAM_FILE=str(tmp_path / "found" / "beam.txt"), BEAM_SECONDS=5, NOOPT=0):
        yield tmp_path / "found" / "beam.txt"
    search.forget()
    realize._compiled.clear()


def elementwise(size: int = 420) -> UOp:
    x = UOp(Ops.PARAM, dtypes.float32, (), (1, (size,)))
    return UOp(Ops.SINK, None, (x * x + 3.0,))


def kernel_of(sink: UOp, device: str, *opts: Opt) -> Kernel:
    k = search._kernel(sink, device)
    for opt in opts:
        k.apply(opt)
    return k


@pytest.mark.parametrize("amount", FAULTS)
def test_what_a_candidate_does_in_its_process_stays_there(amount: int) -> None:
    """After a crash, a hang or a wrong result the next candidate is measured normally."""
    sink = elementwise()
    trial = search.Trial(TrialRequest("FAULTY", sink, ("tests.schedule.faulty_device",), limit=5))
    assert trial.prepare()["state"] == "ready"
    bad = trial(kernel_of(sink, "FAULTY", Opt(OptOps.UPCAST, 0, amount)))
    assert trial.states == {FAULTS[amount]: 1} and (bad is None) == (FAULTS[amount] != "ok")
    good = trial(kernel_of(sink, "FAULTY", Opt(OptOps.VECTOR, 0, 4)))
    assert good is not None and good > 0 and trial.states.get("ok", 0) >= 1


def test_a_program_on_a_faulty_device_is_searched_and_right(file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """At these sizes the cost model prefers opts that crash and hang."""
    x = Tensor(np.arange(15, dtype=np.float32), device="FAULTY").realize()
    with Context(BEAM=1, DEBUG=1):
        found = (x * x + 3).numpy()
    assert (found == np.arange(15, dtype=np.float32) ** 2 + 3).all()
    (entry,) = database.read().values()
    assert not {o.amt for o in entry.opts if o.op is OptOps.UPCAST} & {k for k, v in FAULTS.items() if v != "ok"}
    assert re.search(r"of \d+ candidates \(.*(crash|hang|wrong|error)", capfd.readouterr().out)


@pytest.mark.parametrize("device", ["CPU", "PYTHON"])
def test_a_search_gives_the_same_values_and_is_not_made_twice(device: str, file: Path,
                                                              monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(0).normal(size=(12, 20)).astype(np.float32)
    x = Tensor(values, device=device).realize()
    with Context(BEAM=1):
        assert np.allclose((x.exp() + x.sum(axis=1, keepdim=True)).numpy(),
                           np.exp(values) + values.sum(1, keepdims=True), rtol=1e-5, atol=1e-5)
        entries = database.read()
        assert entries and all(e.us <= e.before_us and e.width == 1 for e in entries.values())
        search.forget()
        realize._compiled.clear()
        monkeypatch.setattr(search, "_search", None)  # calling it would fail
        again = (x.exp() + x.sum(axis=1, keepdim=True)).numpy()
    assert np.allclose(again, np.exp(values) + values.sum(1, keepdims=True), rtol=1e-5, atol=1e-5)


def test_a_wider_beam_searches_again(file: Path) -> None:
    x = Tensor(np.ones(64, np.float32)).realize()
    widths = []
    for width in (1, 2, 1):
        with Context(BEAM=width):
            (x + 1).numpy()
        search.forget()
        realize._compiled.clear()
        widths.append([json.loads(line)["width"] for line in file.read_text().splitlines()])
    assert widths[:2] == [[1], [1, 2]]
    assert widths[2] == [1, 2]


@pytest.mark.parametrize("what, reason", [("scatter", "sequential scatter"), ("script", "registered in __main__")])
def test_what_is_not_searched_keeps_the_defaults_and_says_why(what: str, reason: str, file: Path,
                                                              capsys: pytest.CaptureFixture[str],
                                                              monkeypatch: pytest.MonkeyPatch) -> None:
    if what == "script":
        monkeypatch.setattr(faulty_device.make, "__module__", "__main__")
    x = Tensor(np.ones(8, np.float32), device="CPU" if what == "scatter" else "FAULTY").realize()
    with Context(BEAM=1, DEBUG=1):
        if what == "scatter":
            index = Tensor([0, 0, 1, 1, 2, 2, 3, 3])
            found = Tensor.zeros(4).contiguous().scatter(0, index, x, reduce="add").numpy()
            assert found.tolist() == [2, 2, 2, 2]
        else:
            assert (x + 1).numpy().tolist() == [2] * 8
    assert reason in capsys.readouterr().out


def test_a_child_that_cannot_start_costs_nothing_but_the_search(monkeypatch: pytest.MonkeyPatch, file: Path,
                                                                capsys: pytest.CaptureFixture[str]) -> None:
    search._child.stop()
    monkeypatch.setattr("sys.executable", "/bin/false" if os.path.exists("/bin/false") else "no-such-python")
    with Context(BEAM=1, DEBUG=1, DYNAMIC=0):
        assert (Tensor([1.0, 2.0]) + 5).numpy().tolist() == [6, 7]
    search._child.stop()
    assert "ended with a crash" in capsys.readouterr().out and not file.exists()


def test_a_stopped_search_leaves_no_answer_behind() -> None:
    """Ctrl-C during a measurement ends the child process, so that its late answer is not taken for the next
    candidate's."""
    sink = elementwise(30)
    trial = search.Trial(TrialRequest("FAULTY", sink, ("tests.schedule.faulty_device",), limit=30))
    assert trial.prepare()["state"] == "ready"
    process = search._child.process
    assert process is not None
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    try:
        with pytest.raises(KeyboardInterrupt):
            trial(kernel_of(sink, "FAULTY", Opt(OptOps.UPCAST, 0, faulty_device.HANG)))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert search._child.process is None and process.wait(10) != 0


# *** verification of candidates ***


def test_a_wrong_default_is_not_measured_against(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default program, to which candidates are compared, is itself first compared with the interpreter."""
    monkeypatch.setattr(Session, "run", lambda self, made: [np.zeros(420, np.float32)])
    with pytest.raises(ValueError, match="differs from the interpreter's"):
        Session(TrialRequest("CPU", elementwise()))


@pytest.mark.parametrize("size", [64, 1 << 21])
def test_a_large_kernel_is_interpreted_in_boxes(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session(TrialRequest("CPU", elementwise(size)))
    assert session.trial([])["state"] == "ok"
    real = Session.run
    monkeypatch.setattr(Session, "run", lambda self, made: [a + 1 for a in real(self, made)])
    assert session.trial([])["state"] == "wrong"
    with pytest.raises(ValueError, match="interpreter"):
        Session(TrialRequest("CPU", elementwise(size)))


def test_a_box_is_a_part_of_each_range() -> None:
    k = search._kernel(elementwise(100), "CPU")
    small = box(k.sink, np.random.default_rng(0), {})
    (r,) = small.src[0].ranges
    assert len(r.src) == 2 and r.src[1].arg - r.src[0].arg == 3 and 0 <= r.src[0].arg <= 97


@pytest.mark.parametrize("a, b, equal", [
    ([1.0, 2.0], [1.0, 2.0 + 1e-7], True), ([1.0, 2.0], [1.0, 2.1], False), ([np.nan, np.inf], [np.nan, np.inf], True),
    ([np.nan], [1.0], False), ([np.inf], [-np.inf], False)])
def test_comparing_floats(a: list[float], b: list[float], equal: bool) -> None:
    x, y = np.array(a, np.float32), np.array(b, np.float32)
    assert same(x, y, tolerance_of(dtypes.float32, max(largest(x), 1.0), 4)) == equal


AMOUNTS = st.none() | st.integers() | st.tuples(st.integers(), st.integers())


@given(opts=st.lists(st.builds(Opt, st.sampled_from(list(OptOps)), st.none() | st.integers(0, 9), AMOUNTS,
                               lanes=st.integers(0, 64), unit=st.text())))
def test_every_opt_survives_being_text(opts: list[Opt]) -> None:
    e = database.SearchResult("k", "t", "m", "E_4", tuple(opts), 1.5, 9.0, 1)
    assert database.parse(e.line()) == e


def test_rounding_on_the_way_is_allowed_for() -> None:
    """A sum rounded to bfloat16 and widened again: another summation order changes it by one bfloat16 ulp."""
    x = UOp(Ops.PARAM, dtypes.bfloat16, (), (1, (64, 256)))
    total = x.cast(dtypes.float32).reduce("ADD", (1,)).cast(dtypes.bfloat16).cast(dtypes.float32)
    session = Session(TrialRequest("CPU", UOp(Ops.SINK, None, (total,))))
    exact = Session(TrialRequest("CPU", UOp(Ops.SINK, None, (x.cast(dtypes.float32).reduce("ADD", (1,)),))))
    assert session.tolerance[0] > 100 * exact.tolerance[0]
    assert session.trial([])["state"] == "ok" == exact.trial([Opt(OptOps.UNROLL, 1, 8)])["state"]


# *** the file ***


def entry(kernel: str, us: float, machine: str = "m", width: int = 1) -> database.SearchResult:
    opts = (Opt(OptOps.STAGE, 0, (0, 1), lanes=16), Opt(OptOps.TC, 2, (0, 1, 2, 2), unit="u"), Opt(OptOps.THREAD, 0))
    return database.SearchResult(kernel, "t", machine, "E_4", opts, us, 9.0, width)


def test_files_merge_in_any_order(file: Path, tmp_path: Path) -> None:
    entries = [entry("a", 3), entry("a", 2), entry("b", 5), entry("a", 1, "other"), entry("a", 2, width=2)]
    results = []
    for seed in range(4):
        random.Random(seed).shuffle(entries)
        for n, part in enumerate((entries[:2], entries[2:])):
            (tmp_path / f"{n}.txt").write_text("".join(e.line() + "\n" for e in part) + '{"torn": ')
        file.unlink(missing_ok=True)
        assert database.merge([tmp_path / "0.txt", tmp_path / "1.txt"]) == 3
        results.append(file.read_text())
        assert database.merge([tmp_path / "1.txt"]) == 3 and file.read_text() == results[-1]
    assert len(set(results)) == 1
    assert {k: e.us for k, e in database.read().items()} == {
        ("a", "t", "m"): 2, ("b", "t", "m"): 5, ("a", "t", "other"): 1}


def test_lines_are_added_to_the_end(file: Path) -> None:
    for us in (5.0, 4.0):
        database.append(entry("a", us))
    assert len(file.read_text().splitlines()) == 2
    assert [e.us for e in database.read().values()] == [4.0]


def test_a_file_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with Context(BEAM_FILE=str(tmp_path / "file" / "below" / "beam.txt")):
        database.append(entry("a", 1))
        assert database.read() == {}


@pytest.mark.parametrize("line", ["", "[]", "1", "{}", '{"opts": [{"op": "NOTHING"}]}', '{"opts": [1]}', "null",
                                  entry("a", 1).line().replace('"us": 1', '"us": "x"')])
def test_lines_that_are_no_entry_are_skipped(line: str) -> None:
    assert database.parse(line) is None


def test_opts_that_are_not_legal_any_more_are_not_used(file: Path) -> None:
    assert search._fitting(elementwise(), "CPU", (Opt(OptOps.UPCAST, 9, 4),)) is None
    assert search._fitting(elementwise(), "CPU", (Opt(OptOps.UPCAST, 0, 4),)) is not None


def test_the_command_lists_locates_and_merges(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours.txt", tmp_path / "theirs.txt"
    theirs.write_text(entry("a", 1.25).line() + "\n")
    environment = {"BEAM_FILE": str(ours)}
    assert run(["-m", "tinsmith", "beam", "path"], tmp_path, **environment).stdout.strip() == str(ours)
    assert "1 kernels" in run(["-m", "tinsmith", "beam", "merge", str(theirs)], tmp_path, **environment).stdout
    listed = run(["-m", "tinsmith", "beam", "ls"], tmp_path, **environment).stdout
    assert "1.25 us" in listed and "STAGE(0, (0, 1), 16)" in listed and "THREAD(0)" in listed
    missing = run(["-m", "tinsmith", "beam", "merge", str(tmp_path / "none.txt")], tmp_path, **environment)
    assert missing.returncode == 1 and "cannot merge" in missing.stdout


def test_without_beam_nothing_is_searched(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert settings.BEAM == 0
    monkeypatch.setattr(search, "opts_for", None)
    assert (Tensor([1.0]) + 41).item() == 42
    with Context(BEAM=2, NOOPT=1):
        assert (Tensor([1.0]) + 40).item() == 41

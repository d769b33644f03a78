"""The columns of the benchmarks: the timed work in each, and the comparison of the table."""
from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import check
from benchmarks.__main__ import Cell, _cells
from benchmarks.cases import BY_NAME
from benchmarks.peers import VARIANTS, Lazy, make
from benchmarks.profile import WATCHED, owner_of
from tinsmith.core.counters import GlobalCounters


def test_both_our_columns_compute_the_same() -> None:
    assert VARIANTS["tinsmith"] == ("", "jit")
    plain, jit = (make("tinsmith", variant) for variant in VARIANTS["tinsmith"])
    assert isinstance(plain, Lazy) and isinstance(jit, Lazy)
    run, replay = plain.conv_step(1, 2, 5, 3, 3, 1, 1), jit.conv_step(1, 2, 5, 3, 3, 1, 1)
    assert not hasattr(run, "replays")
    for _ in range(3):
        results = run(), replay()
    assert replay.replays == 1  # type: ignore[attr-defined]
    assert [t.shape for t in results[0]] == [t.shape for t in results[1]]
    outputs = [replay() for _ in range(2)]
    assert outputs[0][1] is not outputs[1][1] and outputs[0][1].tolist() == outputs[1][1].tolist()


def test_training_steps_are_captured_in_the_jit_column_only() -> None:
    assert [make("tinsmith", variant).jit_steps for variant in ("", "jit")] == [False, True]  # type: ignore[union-attr]
    run = make("tinsmith", "jit").add(1, 4)
    for _ in range(3):
        run()
    before = GlobalCounters.schedule_count
    assert run().shape == (1, 4) and GlobalCounters.schedule_count == before


def test_the_ratio_is_that_of_the_better_columns() -> None:
    columns = [("tinsmith", ""), ("tinsmith", "jit"), ("torch", "eager"), ("torch", "compile")]
    cells = {column: Cell([seconds]) for column, seconds in zip(columns, (4e-6, 2e-6, 1e-6, 8e-6))}
    row = _cells(("tiny add", BY_NAME["tiny add"], cells), columns)
    assert row == ["tiny add", "4 µs", "2 µs", "1 µs", "8 µs", "2.00"]
    cells[columns[1]] = Cell()  # a first call is captured by nothing
    assert _cells(("tiny add", BY_NAME["tiny add"], cells), columns)[2:] == ["–", "1 µs", "8 µs", "4.00"]


def test_the_profile_watches_what_there_is() -> None:
    for place in WATCHED:
        assert callable(getattr(*owner_of(place))), place


def _loops(count: int) -> check.Call:
    return lambda: sum(range(count))


def test_a_row_behind_the_cliff_fails_and_one_before_it_passes(capsys: pytest.CaptureFixture[str]) -> None:
    rows = tuple(check.Row(name, "loop", lambda n=n: _loops(n)) for name, n in (("kept", 20_000), ("lost", 200_000)))
    ratios, lost = check.check(rows, {"kept": 1.0, "lost": 1.0}, {"loop": _loops(20_000)})
    assert lost == ["lost"] and set(ratios) == {"kept", "lost"}
    assert "times the recorded ratio" in capsys.readouterr().out.splitlines()[-1]


def test_an_unknown_class_of_processors_is_recorded_and_then_compared(tmp_path: Path) -> None:
    path, row = tmp_path / "recorded.json", "tiny add, captured"
    assert check.main(["--only", row, "--records", str(path)]) == 0
    (kind, recorded), = check.read(path).items()
    assert kind == check.processor_class() and set(recorded) == {row}
    check.write(path, {kind: {row: recorded[row] / 100}})
    assert check.main(["--only", row, "--records", str(path)]) == 1
    assert check.read(path) == {kind: {row: recorded[row] / 100}}, "a failure must not replace the record"


def test_every_row_of_the_records_exists() -> None:
    names = [row.name for row in check.rows()]
    assert len(names) == len(set(names))
    assert all(set(recorded) <= set(names) for recorded in check.read(check.RECORDS).values())

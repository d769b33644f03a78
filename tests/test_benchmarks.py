"""The columns of the benchmarks: the timed work in each, and the comparison of the table."""
from __future__ import annotations

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

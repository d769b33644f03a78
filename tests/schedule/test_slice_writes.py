"""Writes to a part of a tensor: in place they cost the part; the old version survives where it can still be read."""
from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.properties.runner import FEW
from tinsmith import Tensor, TinyJit, Variable
from tinsmith.core.counters import GlobalCounters
from tinsmith.schedule.memory import slice_writes

ROWS, COLUMNS = 4096, 16


def _bytes_moved(write: Callable[[], Any]) -> int:
    for _ in range(3):
        write()
    before = GlobalCounters.global_mem
    write()
    return GlobalCounters.global_mem - before


def _table() -> Tensor:
    return Tensor.zeros(ROWS, COLUMNS).contiguous().realize()


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("write", ["slice", "step", "backwards", "column", "transposed", "index", "scatter", "add"])
def test_a_write_in_place_moves_the_bytes_of_the_part(write: str, captured: bool) -> None:
    table, rows = _table(), Tensor.ones(8, COLUMNS).contiguous().realize()
    index, column = Tensor([5, 9, 1, 7, 0, 3, 2, 4]).realize(), Tensor.ones(ROWS).contiguous().realize()
    wide = index.reshape(8, 1).expand(8, COLUMNS).contiguous().realize()

    def run() -> Tensor:
        if write == "slice":
            table[8:16] = rows
        elif write == "step":
            table[8:40:4] = rows
        elif write == "backwards":
            table[15:7:-1] = rows
        elif write == "column":
            table[:, 3] = column
        elif write == "transposed":
            table.T[:, 8:16] = rows.T
        elif write == "index":
            table[index] = rows
        elif write == "scatter":
            table.scatter_(0, wide, rows)
        else:
            table[8:16] += rows
        return table.realize()

    with Tensor.no_grad():
        moved = _bytes_moved(TinyJit(run) if captured else run)
    part = ROWS if write == "column" else 8 * COLUMNS
    assert moved <= 6 * part * 4 < ROWS * COLUMNS * 4, "reads and writes of the part, and its positions"


def test_a_position_that_is_a_variable_writes_one_row() -> None:
    table, row = _table(), Tensor.ones(1, COLUMNS).contiguous().realize()

    @TinyJit
    def write(table: Tensor, at: Variable) -> Tensor:
        table[at : at + 1] = row
        return table.realize()

    at = Variable("at", 0, ROWS - 2)
    with Tensor.no_grad():
        moved = [_bytes_moved(lambda k=k: write(table, at.bind(k))) for k in (5, 4000)]
    assert max(moved) <= 4 * COLUMNS * 4
    expected = np.zeros((ROWS, COLUMNS), np.float32)
    expected[[5, 4000]] = 1
    assert np.array_equal(table.numpy(), expected)


def test_an_old_version_that_is_still_read_is_copied() -> None:
    table = _table()
    with Tensor.no_grad():
        old = table + 1
        table[3:5] = 2.0
        table.realize()
        assert old.sum().item() == ROWS * COLUMNS
    assert table.sum().item() == 2 * COLUMNS * 2


def test_overlapping_writes_behave_as_if_everything_was_read_first() -> None:
    table = Tensor.arange(ROWS * COLUMNS).reshape(ROWS, COLUMNS).contiguous().realize()
    expected = np.arange(ROWS * COLUMNS).reshape(ROWS, COLUMNS)
    with Tensor.no_grad():
        for into, out in ((slice(1, 9), slice(0, 8)), (slice(0, 8), slice(1, 9)), (slice(8, 0, -1), slice(1, 9))):
            table[into] = table[out]
            table.realize()
            expected[into] = expected[out].copy()
            assert np.array_equal(table.numpy(), expected)


def _index(draw: random.Random, shape: tuple[int, ...]) -> tuple[Any, ...]:
    found: list[Any] = []
    for size in shape[: draw.randint(1, len(shape))]:
        kind, first = draw.randint(0, 4), draw.randint(0, size - 1)
        if kind == 0:
            found.append(draw.randrange(-size, size))
        elif kind == 1:
            found.append(slice(None, None, draw.choice((1, 2, 3, -1, -2))))
        elif kind == 2 and not any(isinstance(i, list) for i in found):
            found.append([draw.randrange(-size, size) for _ in range(draw.randint(1, 3))])
        else:
            found.append(slice(first, draw.randint(first, size), draw.choice((1, 1, 2))))
    lists = any(isinstance(i, list) for i in found)  # an integer beside a list counts as one in NumPy
    return tuple(slice(i, i + 1 or None) if lists and isinstance(i, int) else i for i in found)


@pytest.mark.parametrize("seed", range(FEW))
def test_random_writes_agree_with_numpy(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slice_writes, "LEAST", 1)
    draw = random.Random(seed)
    shape = tuple(draw.randint(1, 6) for _ in range(draw.randint(1, 4)))
    kind = draw.choice((np.float32, np.int32, np.float16, np.uint8))
    expected = (np.arange(np.prod(shape)) % 7).reshape(shape).astype(kind)
    table, order = Tensor(expected.copy()).realize(), draw.sample(range(len(shape)), len(shape))
    writes = [(_index(draw, tuple(shape[a] for a in order)), draw.choice(("value", "flipped", "added", "first")))
              for _ in range(draw.randint(1, 4))]

    def write(whole: Any, flip: Callable[[Any], Any]) -> list[Any]:
        kept = []
        for at, what in writes:
            view = whole.transpose(order) if isinstance(whole, np.ndarray) else whole.permute(*order)
            part = view[at]
            view[at] = 3 if what == "value" else flip(part) if what == "flipped" else part + 1 if what == "added" else (
                whole.reshape(-1)[0] + 0)
            kept.append(whole + 0)
        return kept

    captured = draw.random() < 0.5
    with Tensor.no_grad():
        def step() -> list[Tensor]:
            kept = write(table, lambda x: x.flip(0) if x.ndim else x)
            Tensor.realize(table, *kept)
            return kept

        call = TinyJit(step) if captured else step
        for _ in range(4 if captured else 2):
            found, wanted = call(), write(expected, lambda x: np.flip(x, 0).copy() if np.ndim(x) else x)
            for mine, other in zip(found, wanted):
                assert np.array_equal(mine.numpy(), other), (shape, writes)
        assert np.array_equal(table.numpy(), expected), (shape, writes)


@pytest.mark.parametrize("how", ["realize", "item", "numpy"])
@Tensor.no_grad()
def test_a_pending_write_is_carried_out_with_a_value_computed_from_it(how: str) -> None:
    """Layers with caches: each is written, and read by the next layer. Later reads of a cache run no kernel."""
    caches = [_table() for _ in range(4)]
    addresses = [c.uop.base for c in caches]
    want = [np.zeros((ROWS, COLUMNS), np.float32) for _ in caches]
    for position in range(3):
        y = np.full((1, COLUMNS), position + 1, np.float32)
        x = Tensor(y).realize()
        for cache, expected in zip(caches, want):
            cache[position : position + 1] = x * 2
            expected[position : position + 1] = y * 2
            x, y = cache[: position + 1].sum(0, keepdim=True) + x, expected[: position + 1].sum(0, keepdims=True) + y
        found = x.realize().numpy() if how == "realize" else x.numpy() if how == "numpy" else x[0, 0].item()
        np.testing.assert_allclose(found, y if how != "item" else y[0, 0])
        before = GlobalCounters.kernel_count
        Tensor.realize(*caches)
        assert GlobalCounters.kernel_count == before
        for cache, expected in zip(caches, want):
            np.testing.assert_allclose(cache.numpy(), expected)
    assert [c.uop.base for c in caches] == addresses, "a cache was copied"

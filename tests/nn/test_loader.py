"""The data loader: arrays, mapped files and sequences, ordered or shuffled, in this process, in threads or in
processes."""
from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from tests.golden.running import environment, interruptible
from tinsmith import GlobalCounters, Tensor, TinyJit, dtypes, nn
from tinsmith.core.errors import ArgumentError, ShapeError
from tinsmith.nn.data.loader import DataLoader, Windows, collate
from tinsmith.nn.optim import SGD
from tinsmith.tensor.create import random

X = np.arange(20, dtype=np.float32).reshape(10, 2)
Y = np.arange(10, dtype=np.int32)


class Squares:
    """A sequence whose samples are computed in Python."""

    def __init__(self, count: int, bad: int = -1) -> None:
        self.count, self.bad = count, bad

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[np.ndarray[Any, Any], int]:
        if index == self.bad:
            raise OSError("this picture is broken")
        return np.full(3, index, np.float32), index * index


class Pair(NamedTuple):
    x: Any
    name: str


def labels(loader: DataLoader) -> list[list[int]]:
    return [y.tolist() for _, y in loader]


# *** contents of batches ***


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_columns_in_order(workers: int) -> None:
    loader = DataLoader((X, Y), batch_size=4, num_workers=workers)
    batches = list(loader)
    assert len(loader) == len(batches) == 3 and [x.shape for x, _ in batches] == [(4, 2), (4, 2), (2, 2)]
    assert all(isinstance(t, Tensor) and t.requires_grad is False and t.device == "CPU" for b in batches for t in b)
    assert np.array_equal(np.concatenate([x.numpy() for x, _ in batches]), X)
    assert labels(DataLoader((X, Y), 4, drop_last=True)) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert len(DataLoader((X, Y), 4, drop_last=True)) == 2 and list(DataLoader(X[:0], 4)) == []


def test_a_dict_one_array_and_tensors() -> None:
    batch = next(iter(DataLoader({"x": X, "y": Tensor(Y)}, batch_size=3)))
    assert batch["x"].shape == (3, 2) and batch["y"].tolist() == [0, 1, 2]
    assert [b.tolist() for b in DataLoader(Y, batch_size=5)] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    on_device = Tensor(X).realize()
    picked = next(iter(DataLoader(on_device, batch_size=2, shuffle=True, seed=0)))
    assert picked.tolist() == X[np.random.default_rng((0, 0)).permutation(10)[:2]].tolist()


@pytest.mark.parametrize("dtype", [*dtypes.all, dtypes.fp8e4m3], ids=str)
def test_dtypes_are_kept(dtype: Any) -> None:
    data = np.array([0, 1, 1, 0]).astype(dtype.numpy)
    for workers in (0, 2):
        batches = list(DataLoader(data, batch_size=3, num_workers=workers))
        assert [b.dtype for b in batches] == [dtype] * 2 and [b.float().tolist() for b in batches] == [[0, 1, 1], [0]]


@pytest.mark.parametrize("device", ["PYTHON", "CPU:1", ("CPU", "CPU:1")])
def test_devices(device: Any) -> None:
    for workers in (0, 2):
        batches = list(DataLoader((X, Y), batch_size=5, device=device, num_workers=workers))
        assert [x.device for x, _ in batches] == [device] * 2 and (batches[1][1] + 1).tolist() == [6, 7, 8, 9, 10]


def test_mapped_files(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    (tmp_path / "y.bin").write_bytes(Y.tobytes())
    columns = np.load(tmp_path / "x.npy", mmap_mode="r"), Tensor(tmp_path / "y.bin", dtype="int32")
    for workers in (0, 2):
        x, y = next(iter(DataLoader(columns, batch_size=4, num_workers=workers)))
        assert x.tolist() == X[:4].tolist() and y.tolist() == [0, 1, 2, 3]


def test_a_batch_is_no_view_of_the_data() -> None:
    data = X.copy()
    batch = next(iter(DataLoader(data, batch_size=2)))
    data[:] = -1
    batch += 1
    assert batch.tolist() == (X[:2] + 1).tolist() and (data == -1).all()


def test_samples_are_collated() -> None:
    x, y = next(iter(DataLoader(Squares(5), batch_size=3)))
    assert x.tolist() == [[0] * 3, [1] * 3, [2] * 3] and y.tolist() == [0, 1, 4] and y.dtype is dtypes.int32
    (texts,) = DataLoader(["a", "b"], batch_size=2)
    assert texts == ["a", "b"]
    (pair,) = DataLoader([Pair(Tensor([1.0]), "p"), Pair(Tensor([2.0]), "q")], batch_size=2)
    assert isinstance(pair, Pair) and pair.x.tolist() == [[1], [2]] and pair.name == ["p", "q"]
    (mixed,) = DataLoader([{"a": 1.5, "b": [True, 2]}, {"a": 2.0, "b": [False, 3]}], batch_size=2)
    assert mixed["a"].dtype is dtypes.float32 and mixed["b"][0].tolist() == [True, False]
    assert collate([np.int64(3), np.int64(4)]).dtype == np.int64


def test_collate_fn_may_use_its_memory_again() -> None:
    memory = np.zeros((2, 3), np.float32)

    def pad(samples: list[list[int]]) -> Any:
        memory[:] = 0
        for row, sample in zip(memory, samples):
            row[: len(sample)] = sample
        return memory, [len(s) for s in samples]

    found = list(DataLoader([[1], [2, 3], [4, 5, 6], [7]], batch_size=2, collate_fn=pad))
    assert [x.tolist() for x, _ in found] == [[[1, 0, 0], [2, 3, 0]], [[4, 5, 6], [7, 0, 0]]]
    assert [n for _, n in found] == [[1, 2], [3, 1]]


def test_windows_of_a_text(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"abcdefgh")
    for data in (Tensor(tmp_path / "text"), np.memmap(tmp_path / "text", np.uint8, "r")):
        windows = Windows(data, 3, stride=2)
        assert len(windows) == 3 and bytes(windows[-1][0]) == b"efg"
        x, y = next(iter(DataLoader(windows, batch_size=2)))
        assert bytes(x) == b"abccde" and bytes(y) == b"bcddef"
    with pytest.raises(ShapeError, match="windows of 9"):
        Windows(np.zeros(9), 9)
    with pytest.raises(IndexError):
        Windows(np.zeros(9), 4)[5]


# *** order ***


def test_a_seed_gives_the_same_order() -> None:
    def epochs(**options: Any) -> list[list[list[int]]]:
        Tensor.manual_seed(7)
        loader = DataLoader((X, Y), 4, shuffle=True, **options)
        return [labels(loader) for _ in range(2)]

    first = epochs()
    assert first == epochs() == epochs(num_workers=2) and first[0] != first[1]
    assert sorted(label for batch in first[0] for label in batch) == list(range(10))
    Tensor.manual_seed(8)
    assert labels(DataLoader((X, Y), 4, shuffle=True)) != first[0]
    Tensor.manual_seed(7)
    drawn = Tensor.rand(2).tolist()
    Tensor.manual_seed(7)
    iter(DataLoader(X, shuffle=True))
    assert Tensor.rand(2).tolist() != drawn  # the order took a draw's number


def test_a_seed_of_its_own_goes_by_the_epoch() -> None:
    loader = DataLoader((X, Y), 4, shuffle=True, seed=3)
    epochs = [labels(loader) for _ in range(3)]
    again = DataLoader((X, Y), 4, shuffle=True, seed=3)
    again.epoch = 2
    assert labels(again) == epochs[2] and epochs[0] != epochs[1]


# *** workers ***


class Slow(Squares):
    """Samples that wait: prefetching is visible in the time and in the order of requests."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.asked: list[int] = []

    def __getitem__(self, index: int) -> Any:
        self.asked.append(index)
        time.sleep(0.02)
        return super().__getitem__(index)


def _soon(happened: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 60
    while not happened() and time.monotonic() < deadline:
        time.sleep(0.01)
    return happened()


def test_workers_load_ahead_and_not_too_far() -> None:
    data = Slow(40)
    batches = iter(DataLoader(data, batch_size=2, num_workers=2, prefetch_factor=2))
    next(batches)
    assert _soon(lambda: len(data.asked) >= 8)
    time.sleep(0.3)
    assert len(data.asked) <= 10  # four batches ahead of the one that was handed out
    del batches


def test_workers_overlap_with_the_loop() -> None:
    alone, ahead = Slow(12), Slow(12)
    next(iter(DataLoader(alone, batch_size=2)))
    assert len(alone.asked) == 2
    for _ in DataLoader(ahead, batch_size=2, num_workers=2, prefetch_factor=1):
        asked = len(ahead.asked)
        assert _soon(lambda asked=asked: asked == 12 or len(ahead.asked) > asked)  # while the loop does something else


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_carries_the_users_traceback(workers: int) -> None:
    with pytest.raises(OSError, match="this picture is broken") as caught:
        list(DataLoader(Squares(10, bad=5), batch_size=2, num_workers=workers))
    text = "".join(traceback.format_exception(caught.value))
    assert "test_loader.py" in text and 'raise OSError("this picture is broken")' in text
    assert "while loading sample 5" in text


def test_leaving_the_loop_ends_the_workers() -> None:
    before = set(threading.enumerate())  # some of them, of other tests, may end meanwhile
    for _ in DataLoader(Squares(1000), batch_size=2, num_workers=3):
        break
    assert _soon(lambda: not set(threading.enumerate()) - before)


SCRIPT = """
import sys, time
import numpy as np
from tinsmith import nn

class Numbers:
    def __len__(self):
        return 8
    def __getitem__(self, index):
        if index == 6:
            if sys.argv[1] == "hang":
                print("hanging", flush=True)
                time.sleep(60)
            raise ValueError("sample six")
        return np.full(2, index)

if __name__ == "__main__":
    options = {"processes": True} if sys.argv[2] == "processes" else {}
    for batch in nn.DataLoader(Numbers(), batch_size=2, num_workers=2, **options):
        print(batch.tolist(), flush=True)
"""


def run(tmp_path: Path, what: str, how: str) -> subprocess.Popen[str]:
    (tmp_path / "script.py").write_text(SCRIPT)
    with interruptible():
        return subprocess.Popen([sys.executable, "script.py", what, how], cwd=tmp_path, env=environment(tmp_path),
                                text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)


def test_processes(tmp_path: Path) -> None:
    out, err = run(tmp_path, "raise", "processes").communicate(timeout=60)
    assert out.splitlines() == ["[[0, 0], [1, 1]]", "[[2, 2], [3, 3]]", "[[4, 4], [5, 5]]"]
    assert "in __getitem__" in err and "ValueError: sample six" in err and "while loading sample 6" in err


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no signal for one group of processes")
@pytest.mark.parametrize("how", ["threads", "processes"])
def test_control_c_ends_it(tmp_path: Path, how: str) -> None:
    running = run(tmp_path, "hang", how)
    assert running.stdout is not None
    while "hanging" not in running.stdout.readline():
        pass
    time.sleep(0.3)
    os.killpg(running.pid, signal.SIGINT)  # as a terminal does
    _, err = running.communicate(timeout=30)  # it would sleep for a minute
    assert "KeyboardInterrupt" in err and running.returncode != 0


# *** in a training loop ***


def test_a_jitted_training_loop() -> None:
    Tensor.manual_seed(0)
    weights = np.array([[2.0], [-1.0]], np.float32)
    data = np.random.default_rng(0).standard_normal((64, 2)).astype(np.float32)
    layer = nn.Linear(2, 1)
    optimizer = SGD([layer.weight, layer.bias], lr=0.2)

    @TinyJit
    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = (layer(x) - y).square().mean().backward()
        optimizer.step()
        return loss

    losses = []
    with Tensor.train():
        for _ in range(4):
            for x, y in DataLoader((data, data @ weights), batch_size=16, shuffle=True, num_workers=2):
                losses.append(step(x, y))
    assert step.replays == 14 and losses[-1].item() < 0.01 < losses[0].item()


def test_batches_give_their_memory_back() -> None:
    data = np.zeros((64, 256), np.float32)
    before = GlobalCounters.mem_used
    for batch in DataLoader(data, batch_size=8, num_workers=2, device="PYTHON"):
        assert batch.shape == (8, 256)
    del batch
    assert GlobalCounters.mem_used == before


# *** invalid arguments ***


def test_progress(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(list(DataLoader((X, Y), 4, progress="epoch 1"))) == 3
    shown = capsys.readouterr().err
    assert "epoch 1: 100%" in shown and "3/3" in shown


@pytest.mark.parametrize(("dataset", "options", "error", "message"), [
    (iter([1]), {}, ArgumentError, "no length or no items by number"),
    ((X, Y[:3]), {}, ShapeError, "columns of 3 to 10 rows"),
    (X, {"batch_size": 0}, ArgumentError, "batch_size"),
    (X, {"num_workers": -1}, ArgumentError, "num_workers"),
    ([1, 2], {"processes": True}, ArgumentError, "without workers"),
    (X, {"processes": True, "num_workers": 1}, ArgumentError, "would pickle the arrays")])
def test_what_is_refused(dataset: Any, options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        DataLoader(dataset, **options)


def test_samples_that_do_not_stack() -> None:
    with pytest.raises(ShapeError, match="shapes"):
        list(DataLoader([np.zeros(2), np.zeros(3)], batch_size=2))
    with pytest.raises(ShapeError, match="1 to 2 parts"):
        list(DataLoader([(1,), (1, 2)], batch_size=2))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("seed", [None, 3])
def test_a_position_resumes_within_an_epoch(seed: int | None, workers: int) -> None:
    def loader(shard: tuple[int, int] = (0, 1)) -> nn.DataLoader:
        return nn.DataLoader(np.arange(20), 4, shuffle=True, seed=seed, num_workers=workers, shard=shard)

    Tensor.manual_seed(1)
    whole, first = loader(), []
    want = [b.tolist() for _ in range(3) for b in whole]
    for stop in (0, 3, 5, 7):
        Tensor.manual_seed(1)
        cut, first = loader(), []
        while len(first) < stop:
            for b in cut:
                first.append(b.tolist())
                if len(first) == stop:
                    break
        stream, position = random.state(), json.loads(json.dumps(cut.state_dict()))
        Tensor.manual_seed(9)
        parts = []
        for shard in ((0, 2), (1, 2)):
            random.restore(stream)
            other = loader(shard)
            other.load_state_dict(position)
            assert other.state_dict() == position or stop == 5
            parts.append([b.tolist() for _ in range(3) for b in other][: 15 - stop])
        assert first + [a + b for a, b in zip(*parts)] == want, stop
    with pytest.raises(ArgumentError, match="is no position"):
        whole.load_state_dict({"epoch": 1})

"""Checkpoints of several processes: training goes on exactly, in another number of processes and on another mesh."""
from __future__ import annotations

import json
import math
import os
from pathlib import Path

import numpy as np
import pytest

from tests.distributed.running import needs_mpi, passes, run
from tinsmith import Tensor, dtypes, nn
from tinsmith import distributed as dist
from tinsmith.core.errors import ArgumentError, CommunicationError, DTypeError, FileFormatError, ShapeError
from tinsmith.distributed import checkpoint

TRAIN = """
import json
x = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)
y = (x.sum(1) > 0).astype(np.int32)

def train(kind, shape, first, last):
    Tensor.manual_seed(3)
    mesh = dist.mesh(data=shape[0], model=shape[1])
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))
    if kind == "zero3":
        dist.shard(model, mesh, {"0.weight": ("model", "data"), "0.bias": ("model",), "2.weight": (None, "model")})
    make = lambda p: nn.optim.AdamW(p, lr=0.02)
    parameters = nn.state.get_parameters(model)
    zero2 = kind == "zero2"
    optimizer = dist.ZeroOptimizer(parameters, make) if zero2 else make(parameters)
    loader = nn.DataLoader((x, y), 8, shuffle=True, shard=(mesh.place["data"], mesh.size("data")))
    parts = dict(model=model, optimizer=optimizer, loader=loader, rng=Tensor)
    if first:
        assert dist.load_checkpoint(kind, **parts, step=None)["step"] == first
    losses = []

    def step(x, y):
        h = model[1](model[0](x))
        h = h * (Tensor.rand(1, 1) + 0.5)  # a draw that is the same in all processes
        loss = model[2](h).sparse_categorical_crossentropy(y)
        optimizer.zero_grad()
        loss.backward()
        if not zero2:
            dist.all_reduce_gradients(optimizer, axis="data")
        optimizer.step()
        return dist.all_reduce(loss, "mean", "data").item()

    saving = None
    while first + len(losses) < last:
        for a, b in loader:
            losses.append(step(a, b))
            if first + len(losses) == 7 and not first:
                saving = dist.save_checkpoint(kind, asynchronous=True, **parts, step=7)
            if first + len(losses) == last:
                break
    if saving is not None:
        saving.wait()
    return losses

first, last = json.loads(os.environ["STEPS"])
found = {kind: train(kind, shape, first, last) for kind, shape in json.loads(os.environ["RUNS"]).items()}
if r == 0:
    print(json.dumps(found))
"""
# The processes of the mesh (data, model) that saves each kind of checkpoint, and of those that go on from it.
SAVED = {"plain": (2, 1), "zero3": (2, 2), "zero2": (4, 1)}
RESUMED = {"plain": ((2, 1), (4, 1), (1, 1)), "zero3": ((2, 2), (1, 2), (1, 1)), "zero2": ((4, 1), (2, 1), (1, 1))}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@needs_mpi
def test_training_goes_on_exactly(tmp_path: Path, cache: Path) -> None:
    """Steps 8 to 13, from within the second epoch on, in the same number of processes to the bit. The trainings with
    the same number of processes share a launch."""
    def losses(count: int, runs: dict[str, tuple[int, int]], steps: list[int]) -> dict[str, list[float]]:
        out = passes(count if count > 1 else 0, tmp_path, TRAIN, cache, RUNS=json.dumps(runs), STEPS=json.dumps(steps))
        found: dict[str, list[float]] = json.loads(out.splitlines()[-1])
        assert found.keys() == runs.keys()
        return found

    want: dict[str, list[float]] = {}
    for count in (2, 4):
        want |= losses(count, {kind: s for kind, s in SAVED.items() if math.prod(s) == count}, [0, 13])
    for count in (4, 2, 1):
        runs = {kind: s for kind, shapes in RESUMED.items() for s in shapes if math.prod(s) == count}
        for kind, found in losses(count, runs, [7, 13]).items():
            right = want[kind][7:]
            same = found == right if runs[kind] == SAVED[kind] else np.allclose(found, right, rtol=1e-4)
            assert same, (kind, runs[kind], found, right)


@needs_mpi
def test_a_killed_save_leaves_the_checkpoint_before(tmp_path: Path, cache: Path) -> None:
    """A rank dies when it has written its file, and before."""
    script = """
        from tinsmith.distributed import checkpoint
        x = {"x": Tensor.full((300, 300), float(os.environ["VALUE"])).contiguous()}
        put, when = checkpoint._put, os.environ["WHEN"]
        def dies(*arguments):
            if when == "after":
                put(*arguments)
            os._exit(9)
        if when != "never" and r == n - 1:
            checkpoint._put = dies
        dist.save_checkpoint("run", x=x, step=int(os.environ["VALUE"]))
    """
    passes(2, tmp_path, script, cache, VALUE="1", WHEN="never")
    for when in ("before", "after"):
        done = run(2, tmp_path, script, cache, VALUE="2", WHEN=when)
        assert done.returncode != 0 and "rank 1 on" in done.stderr
        if when == "before":
            found = dist.load_checkpoint(tmp_path / "run")
            assert found["step"] == 1 and (found["x"]["x"].numpy() == 1).all()
    passes(2, tmp_path, script, cache, VALUE="3", WHEN="never")
    assert dist.load_checkpoint(tmp_path / "run")["step"] == 3
    assert len(list((tmp_path / "run").glob("values-*"))) == 1


@needs_mpi
def test_a_rank_that_cannot_write_is_named_by_all(tmp_path: Path, cache: Path) -> None:
    passes(4, tmp_path, """
        from tinsmith.distributed import checkpoint
        def full(*_):
            raise OSError(28, "No space left on device")
        if r == 2:
            checkpoint._put = full
        try:
            dist.save_checkpoint("run", x={"x": Tensor.ones(4)})
        except RuntimeError as error:
            assert "rank 2 cannot write" in str(error) and "No space left" in str(error)
        else:
            raise AssertionError
        dist.barrier()
    """, cache)


# *** one process ***


def test_a_failure_is_told_once_and_completely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another rank read the file before its text was there, or that of a rank which had only read of the failure."""
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    told, replace = list[str](), os.replace

    def seen(source: Path, to: Path) -> None:
        told.append(source.read_text())
        replace(source, to)

    folder = tmp_path / "values-1"
    folder.mkdir()
    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", seen)
        patched.setattr(checkpoint, "_put", full)
        checkpoint._write(checkpoint.Saving(), tmp_path, 1, 2, 4, {}, {}, {})
    assert len(told) == 1 and "No space left" in told[0], "complete when it gets its name"
    for rank in (0, 1, 3):
        saving = checkpoint.Saving()
        checkpoint._write(saving, tmp_path, 1, rank, 4, {}, {}, {})
        assert "rank 2 cannot write" in str(saving.error) and "No space left" in str(saving.error)
    assert [f.name for f in folder.glob("*.failed")] == ["2.failed"]


def test_dtypes_shapes_and_aliases(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    state = {d.name: Tensor(rng.integers(0, 2, (3, 5)).astype(np.float32)).cast(d)
             for d in (*dtypes.all, *dtypes.fp8s)}
    state |= {"scalar": Tensor(2.5), "same": state["float32"], "empty": Tensor(np.zeros((0, 3), np.float32))}
    dist.save_checkpoint(tmp_path / "a" / "b", state=state, note={"epochs": [1, 2]})
    found = dist.load_checkpoint(tmp_path / "a" / "b")
    assert found["note"] == {"epochs": [1, 2]} and found["state"].keys() == state.keys()
    for name, t in state.items():
        got = found["state"][name]
        assert got.dtype is t.dtype and got.shape == t.shape and got.float().tolist() == t.float().tolist(), name


def test_values_are_those_of_the_call(tmp_path: Path) -> None:
    x = Tensor([1.0, 2.0]).realize()
    saving = dist.save_checkpoint(tmp_path, asynchronous=True, x={"x": x})
    x.assign(x + 1).realize()
    saving.wait()
    assert saving.done and dist.load_checkpoint(tmp_path)["x"]["x"].tolist() == [1.0, 2.0]


def test_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FileFormatError, match=r"no index\.json"):
        dist.load_checkpoint(tmp_path)
    with pytest.raises(DTypeError, match="holds no tensors"):
        dist.save_checkpoint(tmp_path, f=print)
    layer = nn.Linear(2, 3)
    before = layer.weight.tolist()
    dist.save_checkpoint(tmp_path, model=nn.Linear(2, 4), step=1)
    with pytest.raises(ShapeError, match=r"\(4, 2\) into \(3, 2\)"):
        dist.load_checkpoint(tmp_path, model=layer)
    assert layer.weight.tolist() == before
    with pytest.raises(ArgumentError, match="has no optimizer, but model, step"):
        dist.load_checkpoint(tmp_path, optimizer=layer)

    def fails(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "_put", fails)
        saving = dist.save_checkpoint(tmp_path, asynchronous=True, model=layer)
        with pytest.raises(CommunicationError, match="No space left"):
            saving.wait()
    assert dist.load_checkpoint(tmp_path)["step"] == 1
    os.truncate(tmp_path / "values-1" / "0.safetensors", 40)
    with pytest.raises(FileFormatError, match=r"0\.safetensors"):
        dist.load_checkpoint(tmp_path)
    (tmp_path / "index.json").write_text("{")
    with pytest.raises(FileFormatError, match="index"):
        dist.load_checkpoint(tmp_path)

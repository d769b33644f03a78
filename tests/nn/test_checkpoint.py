"""Saving and resuming a training run, bit for bit, in another process; parts, names, and errors."""
from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tinsmith import Tensor, TinyJit, nn
from tinsmith.core.errors import ArgumentError, DTypeError, FileFormatError, ShapeError
from tinsmith.core.settings import child_environment
from tinsmith.nn.optim import EMA, SGD, AdamW, GradScaler, clip_grad_norm_
from tinsmith.nn.optim.lr_scheduler import CosineAnnealingLR
from tinsmith.nn.state import get_parameters, get_state_dict, load, load_state_dict, safe_load, save


class Run:
    """A small network with every kind of state: running statistics, dropout, 16-bit weights, a schedule, averages."""

    def __init__(self) -> None:
        Tensor.manual_seed(3)
        self.model: list[Any] = [nn.Linear(6, 16), nn.BatchNorm(16), Tensor.relu, nn.Dropout(0.25), nn.Linear(16, 3)]
        weight = self.model[4].weight
        weight.replace(weight.cast("bfloat16"))
        params = get_parameters(self.model)
        self.opt = AdamW([{"params": params[:2]}, {"params": params[2:], "lr": 0.02}], lr=0.05, weight_decay=0.1)
        self.scheduler = CosineAnnealingLR(self.opt, 10)
        self.ema, self.scaler = EMA(self.model, 0.5), GradScaler(8.0, growth_interval=3)
        self.rng, self.done = np.random.default_rng(5), 0
        self.step = TinyJit(self.forward_and_back)

    def forward_and_back(self, x: Tensor, y: Tensor) -> Tensor:
        with Tensor.train():
            self.opt.zero_grad()
            loss = x.sequential(self.model).float().sparse_categorical_crossentropy(y)
            self.scaler.scale(loss).backward()
            self.scaler.unscale_(self.opt)
            clip_grad_norm_(self.opt.params, 1.0)
            self.scaler.step(self.opt)
            self.scaler.update()
            self.scheduler.step()
            self.ema.update()
        return loss

    def train(self, steps: int) -> list[float]:
        self.done += steps
        draws = [(self.rng.standard_normal((8, 6)), self.rng.integers(0, 3, 8)) for _ in range(steps)]
        return [float(self.step(Tensor(x).float().realize(), Tensor(y).realize()).item()) for x, y in draws]

    @property
    def parts(self) -> dict[str, Any]:
        return {"model": self.model, "optimizer": self.opt, "scheduler": self.scheduler, "ema": self.ema,
                "scaler": self.scaler, "rng": [Tensor, self.rng]}

    def values(self) -> dict[str, bytes]:
        return {name: t.numpy().tobytes() for name, t in get_state_dict(self.parts).items()}


def resumed(path: str) -> None:
    """Load a checkpoint in another process, train five more steps, and save it."""
    run = Run()
    run.done = load(path, **run.parts)["step"]
    print(run.done, run.train(5))
    save(path, **run.parts, step=run.done)


def test_ten_steps_are_five_and_five_in_another_process(tmp_path: Path) -> None:
    whole, path = Run(), str(tmp_path / "run.safetensors")
    losses, half = whole.train(10), Run()
    assert half.train(5) == losses[:5]
    save(path, **half.parts, step=half.done)
    code = f"from tests.nn.test_checkpoint import resumed; resumed({path!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False,
                          env=child_environment(), cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == f"5 {losses[5:]}"
    last = Run()
    assert load(path, **last.parts)["step"] == 10 and last.values() == whole.values()
    assert last.rng.bit_generator.state == whole.rng.bit_generator.state
    assert whole.step.replays == 8 and len(whole.step.captures) == 1


def test_each_weight_is_in_the_file_once(tmp_path: Path) -> None:
    path, run = tmp_path / "x.safetensors", Run()
    tied = nn.Linear(4, 4, bias=False)
    save(path, model={"a": tied.weight, "b": tied.weight}, opt=SGD([tied.weight], 0.1), step=np.int64(3))
    assert sorted(safe_load(path)) == ["model.a", "opt.lr"], "readable as any safetensors file"
    other = nn.Linear(4, 4, bias=False)
    opt = SGD([other.weight], 0.5)
    assert load(path, opt=opt)["step"] == 3
    assert other.weight.tolist() == tied.weight.tolist() and opt.lr.item() == np.float32(0.1)
    apart = {"a": Tensor.zeros(4, 4).contiguous(), "b": Tensor.zeros(4, 4).contiguous()}
    load(path, model=apart)
    assert apart["b"].tolist() == apart["a"].tolist() == tied.weight.tolist()
    save(path, **run.parts)
    each = {id(t): t.numel() * t.dtype.itemsize for t in get_state_dict(run.parts).values()}
    assert path.stat().st_size < sum(each.values()) + 8000, "weights, and the header"


def test_a_file_without_objects(tmp_path: Path) -> None:
    save(tmp_path / "x", model=nn.Linear(2, 1), config={"width": 2, "names": ["a", None]}, rng=random.Random(1))
    found = load(tmp_path / "x")
    assert found["config"] == {"width": 2, "names": ["a", None]} and sorted(found["model"]) == ["bias", "weight"]
    one, two = random.Random(1), random.Random(2)
    load(tmp_path / "x", rng=two)
    assert one.random() == two.random()


def test_streams(tmp_path: Path) -> None:
    made = {"pcg": np.random.default_rng(1), "twister": np.random.Generator(np.random.MT19937(2)),
            "older": np.random.RandomState(3), "python": random.Random(4)}
    Tensor.manual_seed(9)
    Tensor.rand(2).realize()
    save(tmp_path / "x", rng=Tensor, **made)
    expected = [Tensor.rand(3).tolist(), *(g.random() for g in made.values())]
    fresh = {"pcg": np.random.default_rng(), "twister": np.random.Generator(np.random.MT19937()),
             "older": np.random.RandomState(), "python": random.Random()}
    Tensor.manual_seed(1)
    load(tmp_path / "x", rng=Tensor, **fresh)
    assert [Tensor.rand(3).tolist(), *(g.random() for g in fresh.values())] == expected
    with pytest.raises(ArgumentError, match=r"the file's python is not a state of Generator"):
        load(tmp_path / "x", python=np.random.default_rng())


def test_parts_of_files_and_other_names(tmp_path: Path) -> None:
    path = tmp_path / "x"
    save(path, model={"encoder": nn.Linear(2, 3), "head": nn.Linear(3, 5)}, step=1)
    body, head = nn.Linear(2, 3), nn.Linear(3, 7)
    load(path, model=body, rename={"model.encoder.": "model.", "model.head.": None})
    assert body.weight.tolist() == load(path)["model"]["encoder.weight"].tolist()
    before = head.weight.tolist()
    load(path, strict=False, model={"encoder": nn.Linear(2, 3), "tail": head})
    assert head.weight.tolist() == before
    other = nn.Linear(2, 3)
    state = {f"module.{name}": t for name, t in get_state_dict(body).items()}
    assert load_state_dict(other, state, rename=lambda name: name.removeprefix("module."), consume=True) == []
    assert other.bias is not None and body.bias is not None and other.bias.tolist() == body.bias.tolist()
    assert state == {}, "what was loaded is taken out by its old name"


def test_mistakes(tmp_path: Path) -> None:
    path, model = tmp_path / "x", {"head": nn.Linear(2, 3)}
    save(path, model=model, step=1)
    whole = path.read_bytes()
    with pytest.raises(ShapeError, match=r"model.head.weight: \(3, 2\) into \(4, 2\), model.head.bias: \(3,\)"):
        load(path, model={"head": nn.Linear(2, 4)})
    with pytest.raises(ArgumentError, match=r"missing model.tail.weight.*unexpected model.head.bias"):
        load(path, model={"tail": nn.Linear(2, 3)})
    with pytest.raises(ArgumentError, match=r"has no optimizer, but model, step"):
        load(path, model=model, optimizer=SGD(get_parameters(model), 0.1))
    with pytest.raises(ArgumentError, match=r"rename makes 'a' of 'model.head.bias' and of 'model.head.weight'"):
        load(path, model=model, rename=lambda name: "a")
    with pytest.raises(DTypeError, match=r"save.*model=<.*Linear.*> .* holds no tensors"):
        save(path, model=nn.Linear, step=1)
    with pytest.raises(KeyboardInterrupt), pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "replace", interrupted)
        save(path, model=nn.Linear(9, 9))
    assert path.read_bytes() == whole and os.listdir(tmp_path) == ["x"], "a save that is cut short leaves nothing"
    path.write_bytes(whole[:-1])
    with pytest.raises(FileFormatError, match="no safetensors file"):
        load(path, model=model)


def interrupted(*_: Any) -> None:
    raise KeyboardInterrupt


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    """A process killed while saving leaves a temporary file, which the next save to that path removes."""
    path = tmp_path / "run.safetensors"
    save(path, model=[Tensor([1.0, 2.0])])
    program = ("import os, signal, sys, tinsmith.nn.state as state\nfrom tinsmith import Tensor\n"
               "os.replace = lambda *a: os.kill(os.getpid(), signal.SIGKILL)\n"
               "state.save(sys.argv[1], model=[Tensor([3.0, 4.0])])")
    killed = subprocess.run([sys.executable, "-c", program, path], env=child_environment())
    assert killed.returncode == -signal.SIGKILL
    assert len(list(tmp_path.iterdir())) == 2 and load(path)["model"]["0"].tolist() == [1.0, 2.0]
    other = tmp_path / f".run.safetensors.{socket.gethostname()}.{os.getpid()}.beside.part"  # this process runs
    other.mkdir()
    save(path, model=[Tensor([5.0, 6.0])])
    assert {p.name for p in tmp_path.iterdir()} == {path.name, other.name}
    assert load(path)["model"]["0"].tolist() == [5.0, 6.0]


def test_where_nothing_can_be_saved_or_loaded(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no folder for the file"):
        save(tmp_path / "nowhere" / "run.safetensors", step=1)
    with pytest.raises(IsADirectoryError):
        save(tmp_path, step=1)
    with pytest.raises(FileFormatError, match="is a folder"):
        load(tmp_path)
    assert not list(tmp_path.iterdir())

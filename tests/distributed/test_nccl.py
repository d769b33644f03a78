"""Collectives of NCCL: the scripts of the MPI tests on GPUs, one process per GPU, started as torchrun starts them."""
from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.distributed import test_collectives, test_pipeline
from tests.distributed.running import HEAD, clean, program
from tests.golden.running import environment
from tinsmith import Tensor, TinyJit
from tinsmith.backend.cuda.driver import gpu_count
from tinsmith.core.errors import DeviceError
from tinsmith.distributed import watch
from tinsmith.distributed.transport import commands, nccl
from tinsmith.distributed.world import ProcessGroup

ENDED = "print('rank', r, 'is done', flush=True)"


def _count() -> int:
    with contextlib.suppress(DeviceError):
        return gpu_count() if nccl.library() is not None else 0
    return 0


GPUS = _count()
needs_nccl = pytest.mark.skipif(not GPUS, reason="no NVIDIA GPU, or no NCCL: pip install 'tinsmith[nccl]'")
needs_two = pytest.mark.skipif(GPUS < 2, reason="needs two NVIDIA GPUs and NCCL: pip install 'tinsmith[nccl]'")


def torchrun(count: int, folder: Path, text: str, timeout: float = 200, **settings: str) -> list[tuple[int, str]]:
    """Run a script in processes with the variables of torchrun; return exit code and output of each."""
    path = str(program(folder, text + "\n" + ENDED, HEAD))
    with socket.create_server(("", 0)) as found:
        port = found.getsockname()[1]
    shared = clean(environment(folder / "cache", DEV="CUDA", CHECK_IR="0", POISON="0", RANKS="all", **settings)) | {
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(min(port, 65000)), "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count)}
    processes = [subprocess.Popen([sys.executable, path], env=shared | {"RANK": str(r), "LOCAL_RANK": str(r)},
                                  cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  start_new_session=True) for r in range(count)]
    try:
        return [(p.returncode, out) for p, (out, _) in ((p, p.communicate(timeout=timeout)) for p in processes)]
    finally:
        for p in processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(p.pid, signal.SIGKILL)


def fails(folder: Path, text: str, count: int = 2, **settings: str) -> list[str]:
    """Run a script that must fail in all processes; return the output of each."""
    found = torchrun(count, folder, text, **settings)
    assert all(code for code, _ in found), found
    return [out for _, out in found]


def passes(folder: Path, text: str, count: int = 2, **settings: str) -> None:
    """Run a script that must succeed in all processes, to its end."""
    for code, out in (found := torchrun(count, folder, text, **settings)):
        assert code == 0 and "is done" in out, found


class FakeError(Exception):
    """An error of NCCL."""


class FakeGPU:
    """A GPU that a thread can use."""

    number = 0

    def use(self) -> None:
        pass


def test_communicators_are_aborted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a fault ends this process: once each, in the order in which they were made, also after an error."""
    aborted: list[Any] = []

    def comm_abort(comm: Any) -> None:
        aborted.append(comm)
        if comm == "first":
            raise FakeError

    names = iter(("first", None, "second"))
    monkeypatch.setattr(nccl, "library", lambda: SimpleNamespace(NCCLError=FakeError, comm_abort=comm_abort))
    monkeypatch.setattr(nccl, "_connected", lambda group, gpu: next(names))
    monkeypatch.setattr(watch, "ending", [])
    monkeypatch.setattr(watch, "queued", [])
    gpu: Any = FakeGPU()
    for name in ("a", "b", "c"):
        group = ProcessGroup(name, (0, 1))
        assert nccl._communicator(group, gpu) == nccl._communicator(group, gpu)
    watch.end_work()
    watch.end_work()
    assert aborted == ["first", "second"]


def test_bindings() -> None:
    """The functions of NCCL that are called have these arguments."""
    found = pytest.importorskip("nccl.bindings.nccl", reason="nccl4py is not installed")
    for line in ("comm_abort(comm)", "comm_init_rank_scalable(int nranks, int myrank, int n_id, comm_ids, config)",
                 "group_start()", "group_end()"):
        assert getattr(found, line.partition("(")[0]).__doc__.startswith(line)


@pytest.mark.cuda
@needs_nccl
def test_one_rank() -> None:
    """A group of one process on one GPU, eager and captured: the result is the argument."""
    group = ProcessGroup("alone", (0,))
    x = Tensor([1.0, 2.0, 3.0], device="CUDA").realize()
    for kind, options in (("all_reduce", ("sum",)), ("broadcast", (0,)), ("all_gather", ())):
        @TinyJit
        def step(x: Tensor, kind: str = kind, options: tuple[int | str, ...] = options) -> Tensor:
            return (commands.value(kind, group, (3,), (x * 2).contiguous(), *options) + 1).realize()

        for k in range(4):
            assert step((x + k).realize()).tolist() == [3.0 + 2 * k, 5.0 + 2 * k, 7.0 + 2 * k]
    assert nccl.is_used(x, group)


@pytest.mark.cuda
@needs_two
def test_values(tmp_path: Path) -> None:
    passes(tmp_path, test_collectives.VALUES)


@pytest.mark.cuda
@needs_two
def test_messages(tmp_path: Path) -> None:
    """Messages come in the order in which they were sent; a tag is refused where there is no MPI."""
    passes(tmp_path, """
from tinsmith.core.errors import ArgumentError
x = Tensor([1.0, 2.0]) + r
for k in range(3):
    if r == 0:
        dist.send(x + k, 1)
        assert dist.recv(x, 1).tolist() == [2.0 + k, 3.0 + k]
    else:
        assert dist.recv(x, 0).tolist() == [1.0 + k, 2.0 + k]
        dist.send(x + k, 0)
try:
    dist.send(x, 1 - r, tag=3)
except ArgumentError as error:
    assert "tag=3" in str(error)
else:
    raise AssertionError("a tag was accepted")
""")


@pytest.mark.cuda
@needs_two
def test_captured(tmp_path: Path) -> None:
    """Collectives of a captured function are part of its CUDA graph, on changing memory, forward and backward."""
    passes(tmp_path, """
w = Tensor([1.0, 2.0, 3.0], requires_grad=True).realize()

@TinyJit
def step(x):
    y = dist.all_reduce(x * w)
    z = dist.all_gather(y * (r + 1))
    loss = (z * z).sum()
    w.grad = None
    loss.backward()
    return loss.realize(), w.grad.realize()

kept = []
for k in range(8):
    x = Tensor([1.0, k, r + 1.0]).realize()
    kept.append(x)  # other memory each time
    loss, grad = step(x)
    y = np.array([1.0, k, 1.5]) * 2 * [1, 2, 3]
    assert np.isclose(loss.item(), 5 * (y * y).sum())
    assert np.allclose(grad.numpy(), np.array([1.0, k, r + 1.0]) * 2 * 2 * 5 * y), (k, grad.numpy())
assert step.replays >= 3
""")


@pytest.mark.cuda
@needs_two
@pytest.mark.parametrize("overlap", [True, False])
def test_data_parallel(overlap: bool, tmp_path: Path) -> None:
    """Training in two processes gives the losses of one, with gradients reduced beside kernels or after them."""
    passes(tmp_path, f"""
rng = np.random.default_rng(0)
data, targets = rng.normal(size=(6, 16, 32)).astype(np.float32), rng.integers(0, 4, (6, 16))

def train(shard, reduce):
    Tensor.manual_seed(1)
    model = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 4))
    optimizer = nn.optim.AdamW(nn.state.get_parameters(model), lr=0.01)

    @TinyJit
    @Tensor.train()
    def step(x, y):
        loss = model(x).sparse_categorical_crossentropy(y)
        optimizer.zero_grad()
        loss.backward()
        if reduce:
            dist.all_reduce_gradients(optimizer, bucket_bytes=100_000, overlap={overlap})
            loss = dist.all_reduce(loss, "mean")
        optimizer.step()
        return loss.realize()

    return [step(Tensor(x[shard]).realize(), Tensor(y[shard]).realize()).item() for x, y in zip(data, targets)]

assert np.allclose(train(slice(r * 8, r * 8 + 8), True), train(slice(0, 16), False), rtol=1e-4)
""")


@pytest.mark.cuda
@needs_two
def test_sharded(tmp_path: Path) -> None:
    """Tensor parallel and ZeRO 3 weights give the result and gradients of whole ones."""
    passes(tmp_path, """
x = Tensor(np.random.default_rng(0).normal(size=(8, 16)).astype(np.float32))
for axis, rules in (("model", {"0.*": ("model",), "2.weight": (None, "model"), "*": ()}), ("data", {"*": ("data",)})):
    found = []
    for sharded in (False, True):
        Tensor.manual_seed(3)
        net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8))
        if sharded:
            dist.shard(net, dist.mesh(**{axis: n}), rules)
        y = net(x)
        (y * y).mean().backward()
        g = net[0].weight.grad
        found.append((y.numpy(), (dist.all_gather(g) if sharded else g).numpy()))
    assert np.allclose(found[0][0], found[1][0], atol=1e-4)
    assert np.allclose(found[0][1], found[1][1], atol=1e-4), axis
""")


@pytest.mark.cuda
@needs_two
@pytest.mark.parametrize("text", [test_pipeline.EQUAL, test_pipeline.TRAINING], ids=["values", "training"])
def test_pipeline_of_gpus(text: str, tmp_path: Path) -> None:
    """Activations and gradients go from GPU to GPU, eagerly and in a capture, in both schedules."""
    check = "assert pipe._gpu == 'CUDA' or pipe._gpu.startswith('CUDA:'), pipe._gpu"
    passes(tmp_path, text.replace("atol=2e-6", "atol=1e-4").replace("rtol=1e-5", "rtol=1e-3") + check)


@pytest.mark.cuda
@needs_two
def test_pipeline_of_layers_that_communicate(tmp_path: Path) -> None:
    """Each pass is a program of its own, and runs as it is made."""
    passes(tmp_path, test_pipeline.MODEL + """
layers = made()
loss = loss_of(run(layers, Tensor(x)), Tensor(y)).backward()
for schedule in ("1f1b", "gpipe"):
    pipe = dist.pipeline(made(), dist.mesh(stage=n), loss=loss_of, microbatches=4, schedule=schedule,
                         communicates=True)
    found = pipe.step(Tensor(x), Tensor(y))
    assert np.isclose(found.item(), loss.item(), rtol=1e-3)
    for name, t in get_state_dict(pipe.layers).items():
        assert np.allclose(t.grad.numpy(), get_state_dict(dict(enumerate(layers)))[name].grad.numpy(), atol=1e-4)
""")


@pytest.mark.cuda
@needs_two
def test_different_orders_name_both_lines(tmp_path: Path) -> None:
    text = "".join(fails(tmp_path, """
x = Tensor([1.0, 2.0])
dist.all_reduce(x)
if r == 0:
    dist.all_reduce(x)
else:
    dist.all_gather(x)
""", CHECKED="1"))
    assert "rank 0: all_reduce(sum, float32, (2,)) at program.py" in text and "rank 1: all_gather" in text


@pytest.mark.cuda
@needs_two
def test_a_rank_that_dies_is_named(tmp_path: Path) -> None:
    first, _ = fails(tmp_path, """
x = Tensor([1.0, 2.0])
dist.all_reduce(x)
if r == 1:
    os.kill(os.getpid(), 9)
dist.all_reduce(x).numpy()
""")
    assert "rank 1" in first and "died" in first, first

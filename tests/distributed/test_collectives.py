"""Collectives between processes, against NumPy on what all processes gave."""
from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.distributed.running import needs_mpi, passes, run
from tests.golden.running import environment
from tinsmith import Tensor
from tinsmith import distributed as dist
from tinsmith.core.errors import ArgumentError, CommunicationError, DTypeError, ShapeError
from tinsmith.distributed.world import check_launcher, launched, threads_of


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A disk cache for all scripts of this file."""
    return tmp_path_factory.mktemp("cache")


VALUES = """
full = [np.arange(24).reshape(4, 6) % 7 + k for k in range(n)]
NUMPY = {"sum": np.sum, "mean": np.mean, "max": np.max, "min": np.min, "prod": np.prod}
for name in ("float32", "float64", "float16", "bfloat16", "int32", "int64", "uint8", "int16"):
    x = Tensor(full[r].astype(np.float32)).cast(getattr(dtypes, name))
    for op, f in NUMPY.items():
        if op == "mean" and not x.dtype.is_float or op == "prod" and name == "uint8":
            continue
        want = f(np.stack(full), 0)
        tolerance = 0.01 if x.dtype.itemsize == 2 and x.dtype.is_float else 1e-6
        y = dist.all_reduce(x, op)
        assert y.dtype is x.dtype and y.shape == x.shape
        assert np.allclose(y.float().numpy(), want, rtol=tolerance), (name, op, y.float().numpy(), want)
        if n in (2, 4):
            z = dist.reduce_scatter(x, op)
            part = 4 // n
            assert np.allclose(z.float().numpy(), want[r * part : (r + 1) * part], rtol=tolerance), (name, op)
    for dim in (0, 1, -1):
        assert (dist.all_gather(x, dim).int().numpy() == np.concatenate(full, dim)).all(), (name, dim)
    assert (dist.broadcast(x, n - 1).int().numpy() == full[-1]).all()
    y = dist.all_to_all(x.reshape(2, 2, 6)[:, :, : 3 * n // (n // 2)].reshape(4, 6) if n == 2 else x, 0, 1)
    want = np.concatenate([f.reshape(n, 4 // n, 6)[r] for f in full], 1)
    assert (y.int().numpy() == want).all(), (name, y.int().numpy(), want)
z = dist.reduce_scatter(Tensor(np.arange(2.0 * n * 3).reshape(2, n * 3).astype(np.float32)), dim=1)
assert (z.numpy() == n * np.arange(2 * n * 3).reshape(2, n * 3)[:, 3 * r : 3 * r + 3]).all()
bits = Tensor([r == 0, True, r >= 0, False])
assert dist.all_reduce(bits, "max").tolist() == [True, True, True, False]
assert dist.all_reduce(bits, "min").tolist() == [False, True, True, False]
assert dist.all_reduce(Tensor(3.0) + r).item() == 3 * n + sum(range(n))
"""


IN_PARTS = """
from tinsmith.distributed.transport import commands
commands.LIMIT = 5
"""


@needs_mpi
@pytest.mark.parametrize("count", [2, 4])
def test_values(count: int, tmp_path: Path, cache: Path) -> None:
    """In two processes also with a limit of elements of one call, by which large counts are sent in parts."""
    passes(count, tmp_path, VALUES + (IN_PARTS + VALUES) * (count == 2), cache)


@needs_mpi
def test_messages_and_repeated_calls(tmp_path: Path, cache: Path) -> None:
    passes(2, tmp_path, """
        x = Tensor([1.0, 2.0]) + r
        for k in range(3):  # the same tensor each time: nothing is taken from an earlier call
            if r == 0:
                dist.send(x, 1, tag=k)
                assert dist.recv(x, 1).tolist() == [2.0 + k, 3.0 + k]
            else:
                assert dist.recv(x, 0, tag=k).tolist() == [1.0, 2.0]
                dist.send(x + k, 0)
            dist.barrier()
        half = Tensor([1.5, 2.5], dtype="bfloat16")
        if r == 0:
            dist.send(half, 1)
        else:
            assert dist.recv(half * 0, 0).tolist() == [1.5, 2.5]
    """, cache)


@needs_mpi
def test_gradients(tmp_path: Path, cache: Path) -> None:
    """The gradient of the sum of all processes' losses, against the same formula on all values in one process."""
    passes(2, tmp_path, """
        rng = np.random.default_rng(0)
        full = [rng.normal(size=(2, 4)).astype(np.float32) for _ in range(n)]
        weight = [Tensor(rng.normal(size=(8, 8)).astype(np.float32)) for _ in range(n)]

        def check(ours, theirs, size):
            xs = [Tensor(f, requires_grad=True) for f in full]
            x = Tensor(full[r], requires_grad=True)
            y = ours(x)
            (y * y * weight[r].flatten()[:size].reshape(y.shape)).sum().backward()
            ys = theirs(xs)
            sum((y * y * w.flatten()[:size].reshape(y.shape)).sum() for y, w in zip(ys, weight)).backward()
            assert np.allclose(y.numpy(), ys[r].numpy(), atol=1e-5)
            assert np.allclose(x.grad.numpy(), xs[r].grad.numpy(), atol=1e-4), (x.grad.numpy(), xs[r].grad.numpy())

        a = lambda xs: xs[0] + xs[1]
        check(dist.all_reduce, lambda xs: [a(xs)] * 2, 8)
        check(lambda x: dist.all_reduce(x, "mean"), lambda xs: [a(xs) / 2] * 2, 8)
        check(lambda x: dist.all_reduce(x, "max"), lambda xs: [xs[0].maximum(xs[1])] * 2, 8)
        check(lambda x: dist.all_reduce(x, "min"), lambda xs: [xs[0].minimum(xs[1])] * 2, 8)
        check(lambda x: dist.all_gather(x, 1), lambda xs: [xs[0].cat(xs[1], dim=1)] * 2, 16)
        check(lambda x: dist.reduce_scatter(x, "sum", 1), lambda xs: [a(xs)[:, :2], a(xs)[:, 2:]], 4)
        check(lambda x: dist.reduce_scatter(x, "mean"), lambda xs: [a(xs)[:1] / 2, a(xs)[1:] / 2], 4)
        check(lambda x: dist.all_to_all(x, 1, 0), lambda xs: [xs[0][:, :2].cat(xs[1][:, :2]),
                                                              xs[0][:, 2:].cat(xs[1][:, 2:])], 8)
        check(lambda x: dist.broadcast(x, 1), lambda xs: [xs[1] + 0 * xs[0]] * 2, 8)
    """, cache)


@needs_mpi
@pytest.mark.parametrize("checked", ["0", "1"])
def test_captured(checked: str, tmp_path: Path, cache: Path) -> None:
    """Collectives of a captured function are commands of its replays, forward and backward, in order."""
    passes(2, tmp_path, """
        w = Tensor([1.0, 2.0, 3.0], requires_grad=True).realize()

        @TinyJit
        def step(x):
            y = dist.all_reduce(x * w)
            dist.barrier()
            z = dist.all_gather(y * (r + 1))
            loss = (z * z).sum()
            w.grad = None
            loss.backward()
            return loss.realize(), w.grad.realize()

        for k in range(5):
            x = Tensor([1.0, k, r + 1.0]).realize()
            loss, grad = step(x)
            y = np.array([1.0, k, 1.5]) * 2 * [1, 2, 3]
            assert np.isclose(loss.item(), 5 * (y * y).sum())
            assert np.allclose(grad.numpy(), np.array([1.0, k, r + 1.0]) * 2 * 2 * 5 * y), (k, grad.numpy())
        assert step.replays >= 3 or os.environ["CHECKED"] == "1"  # which runs uncaptured
    """, cache, CHECKED=checked)


@needs_mpi
def test_different_orders_name_both_lines(tmp_path: Path, cache: Path) -> None:
    done = run(2, tmp_path, """
        x = Tensor([1.0, 2.0])
        dist.barrier()
        if r == 0:
            dist.all_reduce(x)
        else:
            dist.all_gather(x)
    """, cache, CHECKED="1")
    assert done.returncode != 0
    assert "E090" in done.stderr and "rank 0: all_reduce(sum, float32, (2,)) at program.py:11" in done.stderr
    assert "rank 1: all_gather(float32, (2,)) at program.py:13" in done.stderr


@needs_mpi
def test_random_streams_agree_and_kernels_are_compiled_once(tmp_path: Path) -> None:
    """All processes together compile each kernel once, equal ones and those of one process, from an empty cache."""
    cache = tmp_path / "cache"
    found = passes(4, tmp_path, """
        from mpi4py import MPI
        from tinsmith.core.counters import GlobalCounters
        every = dist.all_gather(Tensor.rand(4).reshape(1, 4)).numpy()
        assert (every == every[0]).all()
        for k in range(3):
            (Tensor.ones(3 + k, 5).contiguous().softmax(-1) + 1.5).realize()
            (Tensor.ones(3 + k, 6 + r).contiguous() * 2 + 1).realize()
        print(*np.sum(MPI.COMM_WORLD.allgather((GlobalCounters.compile_count, GlobalCounters.schedule_count)), 0))
    """, cache).split()
    assert [int(n) for n in found] == [sum(p.is_file() for p in (cache / kind).rglob("*")) for kind in (
        "llvm", "program")]


# *** one process ***


def test_one_process_imports_no_mpi(tmp_path: Path) -> None:
    script = """
import sys
from tinsmith import Tensor, distributed as dist
dist.init()
dist.mesh(data=1)
assert dist.all_reduce(Tensor([1.0]), axis="data").item() == 1 and dist.world_size() == 1 and dist.rank() == 0
assert not [m for m in sys.modules if m.startswith(("mpi4py", "nccl"))]
"""
    subprocess.run([sys.executable, "-c", script], env=environment(tmp_path), check=True, timeout=100)


def test_launchers() -> None:
    assert launched({}) == ("", 0, 1, 0, 1)
    assert launched({"PMI_RANK": "3", "PMI_SIZE": "8", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}) == (
        "mpirun", 3, 8, 1, 2)
    assert launched({"SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "4", "SLURM_LOCALID": "0"}) == ("srun", 2, 4, 0, 1)
    assert launched({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}).size == 1
    with pytest.raises(CommunicationError, match="WORLD_SIZE='x'"):
        launched({"RANK": "0", "WORLD_SIZE": "x"})


def test_torchrun_names_mpirun() -> None:
    with pytest.raises(CommunicationError, match=r"mpirun -n 4 python train\.py"):
        check_launcher(launched({"RANK": "0", "WORLD_SIZE": "4", "LOCAL_RANK": "0"}))
    check_launcher(launched({"RANK": "0", "WORLD_SIZE": "1"}))


def test_cores_are_divided() -> None:
    four = launched({"PMI_RANK": "0", "PMI_SIZE": "4", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "4"})
    assert [threads_of(four, cpus, 8) for cpus in (8, 4, 2, 1)] == [2, 1, 0, 0]
    assert threads_of(four, 2, 2) == 1 and threads_of(launched({}), 8, 8) == 0


def test_errors() -> None:
    x = Tensor([1.0, 2.0])
    with pytest.raises(ArgumentError, match="op='avg'"):
        dist.all_reduce(x, "avg")
    with pytest.raises(DTypeError, match="mean of"):
        dist.all_reduce(x.int(), "mean")
    with pytest.raises(DTypeError, match=r"of dtypes\.bool"):
        dist.all_reduce(x > 1)
    with pytest.raises(DTypeError, match="takes a tensor"):
        dist.all_reduce([1.0])  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="devices"):
        dist.all_reduce(x.shard(("CPU", "CPU:1"), axis=0))
    with pytest.raises(ShapeError, match="without axes"):
        dist.all_gather(Tensor(1.0))
    with pytest.raises(ArgumentError, match="is this process"):
        dist.send(x, 0)
    with pytest.raises(ArgumentError, match="source is 3"):
        dist.recv(x, 3)
    with pytest.raises(ArgumentError, match="product is 1"):
        dist.mesh(data=3)
    dist.mesh(data=-1)
    with pytest.raises(ArgumentError, match="no axis 'model'"):
        dist.all_reduce(x, axis="model")

"""Pipelines: losses, gradients and training are those of all layers in one process."""
from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.distributed.running import needs_mpi, passes, run
from tinsmith import Tensor, nn
from tinsmith import distributed as dist
from tinsmith.core.errors import ArgumentError, DTypeError, ShapeError
from tinsmith.distributed.pipelining import _check_ties
from tinsmith.distributed.pipelining import passes as order

MODEL = """
from tinsmith.nn.state import get_parameters, get_state_dict
rng = np.random.default_rng(0)
x, y = rng.normal(size=(10, 8)).astype(np.float32), rng.integers(0, 4, 10)
loss_of = Tensor.sparse_categorical_crossentropy

def made(middle=lambda x: x):
    Tensor.manual_seed(3)
    return [nn.Linear(8, 12), Tensor.relu, nn.Linear(12, 12), nn.LayerNorm(12), middle, Tensor.tanh, nn.Linear(12, 4)]

def run(layers, x):
    for layer in layers:
        x = layer(x)
    return x

def same(pipe, layers, found, loss):
    '''Check loss and gradients against those of all layers here.'''
    assert np.isclose(found.item(), loss.item(), rtol=1e-5), (found.item(), loss.item())
    own = get_state_dict(pipe.layers)
    for name, t in get_state_dict(dict(enumerate(layers))).items():
        if name in own:
            assert np.allclose(own[name].grad.numpy(), t.grad.numpy(), atol=2e-6), (name, pipe)
"""

EQUAL = MODEL + """
mesh = dist.mesh(stage=n)
splits = {2: (None, (1, 6), (5, 2)), 4: (None, (1, 1, 1, 4), (2, 3, 1, 1))}[n]
layers = made()
loss = loss_of(run(layers, Tensor(x)), Tensor(y)).backward()
for schedule, split, count in zip(("1f1b", "gpipe", "1f1b"), splits, (4, 4, 0)):
    if count:
        x1, y1 = Tensor(x), Tensor(y)
    else:  # microbatches of different shapes
        x1, y1 = ([Tensor(v[a:b]) for a, b in ((0, 3), (3, 9), (9, 10))] for v in (x, y))
    pipe = dist.pipeline(made(), mesh, loss=loss_of, microbatches=count or 1, schedule=schedule, split=split)
    same(pipe, layers, pipe.step(x1, y1), loss)
    if schedule == "gpipe":  # gradients of several steps add up
        pipe.step(x1, y1)
        for p in get_parameters(pipe):
            p.grad = p.grad / 2
        same(pipe, layers, loss, loss)
        assert np.allclose(pipe(x1).numpy(), run(layers, Tensor(x)).numpy(), atol=1e-5)
"""

TARGETS = MODEL + """
pipe = dist.pipeline(made(), dist.mesh(stage=n), microbatches=2, split=(3, 4),
                     loss=lambda a, b: (a - b).square().mean())
step = TinyJit(lambda x, y: pipe.step(x, y))
target = Tensor(rng.normal(size=(10, 4)).astype(np.float32)).realize()
want = (run(made(), Tensor(x)) - target).square().mean().item()
for _ in range(4):
    assert np.isclose(step(Tensor(x).realize(), target).item(), want, rtol=1e-5)
assert target.grad is None and step.replays >= 1
"""

TRAINING = MODEL + """
def trained(mesh, captured, steps=5):
    layers = made(lambda x: x.dropout(0.5))
    pipe = dist.pipeline(layers, mesh, loss=loss_of, microbatches=4, split=(3, 4) if mesh.size("stage") > 1 else None)
    optimizer = nn.optim.AdamW(get_parameters(pipe), lr=0.01)
    @Tensor.train()
    def step(x, y):
        optimizer.zero_grad()
        loss = pipe.step(x, y)
        dist.all_reduce_gradients(optimizer, axis="data")
        dist.clip_grad_norm_(optimizer.params, 0.5)
        optimizer.step()
        return loss
    step = TinyJit(step) if captured else step
    begin = np.random.default_rng(4)
    losses = []
    for k in range(steps):
        ids = begin.integers(0, 10, 8)
        losses.append(step(Tensor(x[ids]).realize(), Tensor(y[ids]).realize()).item())
    assert not captured or step.replays >= 3
    return pipe, optimizer, losses, Tensor.rand(3).tolist()

pipe, optimizer, one, drawn = trained(dist.mesh(data=n, stage=1), False)
pipe, optimizer, several, last = trained(dist.mesh(data=1, stage=n), True)
assert np.allclose(one, several, rtol=1e-4), (one, several)
assert last == drawn  # the random stream goes on alike

# a checkpoint of all stages, loaded in one and in other ones
dist.save_checkpoint("run", model=pipe, optimizer=optimizer, rng=Tensor)
for mesh, split in ((dist.mesh(data=n, stage=1), None), (dist.mesh(data=1, stage=n), (2, 5))):
    other = dist.pipeline(made(), mesh, loss=loss_of, split=split)
    again = nn.optim.AdamW(get_parameters(other), lr=0.5)
    dist.load_checkpoint("run", model=other, optimizer=again, rng=Tensor)
    for p, q in ((other, pipe), (again.m, optimizer.m)):
        total = lambda part: sum(t.abs().sum() for t in get_parameters(part))
        mine, all_of = total(p), dist.all_reduce(total(q))
        assert np.isclose((dist.all_reduce(mine) if split else mine).item(), all_of.item(), rtol=1e-5)
    assert again.lr.item() == np.float32(0.01)
"""

PRODUCTS = MODEL + """
layers = made(lambda x: x.cast("bfloat16").float())
loss = loss_of(run(layers, Tensor(x[:8])), Tensor(y[:8])).backward()
for axes in ({"data": 2, "stage": 2}, {"stage": 2, "model": 2}):
    mesh = dist.mesh(**axes)
    parts = made(lambda x: x.cast("bfloat16"))
    parts[5] = lambda x: x.float().tanh()
    if "model" in axes:
        parts = [*parts[:5], parts[5], nn.Linear(12, 12), *parts[6:]]
        parts[6].weight, parts[6].bias = Tensor.eye(12), Tensor.zeros(12)  # divided, in the last stage
        dist.shard(nn.Sequential(*parts), mesh, {"0.*": ("model",), "2.weight": (None, "model"), "6.*": ("model",),
                                                 "7.weight": (None, "model"), "*": ()})
    pipe = dist.pipeline(parts, mesh, loss=loss_of, microbatches=2, split=(5, len(parts) - 5))
    optimizer = nn.optim.SGD(get_parameters(pipe), lr=0.1)
    own = [dist.shard_batch(Tensor(v[:8]), mesh, "data") if "data" in axes else Tensor(v[:8]) for v in (x, y)]
    @TinyJit
    def step(*batch):
        for p in optimizer.params:
            p.grad = None
        return pipe.step(*batch)
    for _ in range(3 if "model" in axes else 1):
        found = step(*(t.realize() for t in own))
    if "data" in axes:
        dist.all_reduce_gradients(optimizer, axis="data")
        found = dist.all_reduce(found, "mean", "data")
    assert np.isclose(found.item(), loss.item(), rtol=1e-4)
    for name, t in get_state_dict(pipe.layers).items():
        if "model" in axes and name[0] in "67":
            if name[0] == "6":
                continue
            name = name.replace("7.", "6.")
        whole = get_state_dict(dict(enumerate(layers)))[name].grad.numpy()
        if t.shape != whole.shape:
            dim = next(d for d, (a, b) in enumerate(zip(t.shape, whole.shape)) if a != b)
            whole = np.split(whole, 2, dim)[mesh.place["model"]]
        assert np.allclose(t.grad.numpy(), whole, atol=2e-3), (name, axes)
    try:
        dist.all_reduce_gradients(optimizer)
    except ValueError as error:
        assert 'axis="data"' in str(error)
    else:
        raise AssertionError
"""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@needs_mpi
@pytest.mark.parametrize("count", [2, 4])
def test_losses_and_gradients_are_those_of_one_process(count: int, tmp_path: Path, cache: Path) -> None:
    passes(count, tmp_path, EQUAL, cache)


@needs_mpi
def test_training_captures_random_draws_and_checkpoints(tmp_path: Path, cache: Path) -> None:
    passes(2, tmp_path, TRAINING, cache)


@needs_mpi
def test_targets_of_floats_get_no_gradient(tmp_path: Path, cache: Path) -> None:
    """Their gradient would be computed at the end of the captured function, and with it the messages once more."""
    passes(2, tmp_path, TARGETS, cache)


@needs_mpi
def test_with_data_and_tensor_parallelism(tmp_path: Path, cache: Path) -> None:
    passes(4, tmp_path, PRODUCTS, cache)


@needs_mpi
def test_a_stage_that_raises_ends_all(tmp_path: Path, cache: Path) -> None:
    done = run(2, tmp_path, MODEL + """
def bad(x):
    try:
        dist.all_reduce(x)
    except ValueError as error:
        assert "communicates=True" in str(error)
        raise ValueError("bad layer")
pipe = dist.pipeline(made(bad), dist.mesh(stage=2), loss=loss_of, split=(2, 5))
pipe.step(Tensor(x), Tensor(y))
""", cache)
    assert done.returncode != 0 and "rank 1 on" in done.stderr and "bad layer" in done.stderr


# *** one process ***


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize("stages", range(1, 7))
@pytest.mark.parametrize("microbatches", [1, 2, 5, 12])
def test_no_order_can_wait_for_ever(schedule: str, stages: int, microbatches: int) -> None:
    """Simulated with a unit of time per pass: all passes run, in the least possible time, and activations of at most
    as many microbatches as there are later stages are kept."""
    left = [order(schedule, s, stages, microbatches) for s in range(stages)]
    ends: dict[tuple[int, bool, int], int] = {}
    free, kept = [0] * stages, [0] * stages
    while any(left):
        moved = False
        for s, rest in enumerate(left):
            if not rest:
                continue
            backward, k = rest[0]
            before = (s + 1 if backward else s - 1, backward, k)
            if before not in ends and 0 <= before[0] < stages:
                continue
            moved = True
            rest.pop(0)
            free[s] = ends[s, backward, k] = max(free[s], ends.get(before, 0), ends.get((s, False, k), 0)) + 1
            kept[s] += -1 if backward else 1
            assert kept[s] <= (stages - s if schedule == "1f1b" else microbatches)
        assert moved, "a deadlock"
    assert max(free) == 2 * (microbatches + stages - 1) and not any(kept)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize("stages", range(2, 7))
@pytest.mark.parametrize("microbatches", [1, 2, 5, 12])
def test_no_order_of_waiting_messages_can_wait_for_ever(schedule: str, stages: int, microbatches: int) -> None:
    """By NCCL a send waits for its receiver: messages to and from one process between two passes are one call."""
    left: list[list[set[tuple[int, int, bool, int]]]] = []  # calls: messages (source, target, backward, microbatch)
    for s in range(stages):
        calls: list[set[tuple[int, int, bool, int]]] = []
        unsent: set[tuple[int, int, bool, int]] = set()
        for backward, k in order(schedule, s, stages, microbatches):
            source = s + 1 if backward else s - 1
            come = {(source, s, backward, k)} if 0 <= source < stages else set()
            together = unsent and come and next(iter(unsent))[1] == source
            calls += [unsent | come] if together else [c for c in (unsent, come) if c]
            target = s - 1 if backward else s + 1
            unsent = {(s, target, backward, k)} if 0 <= target < stages else set()
        left.append([*calls, *([unsent] if unsent else [])])
    open_ = [set(calls[0]) if calls else set() for calls in left]
    while any(open_):
        sent = {m for m in set().union(*open_) if m in open_[m[0]] and m in open_[m[1]]}
        assert sent, "a deadlock"
        for s, calls in enumerate(left):
            open_[s] -= sent
            if calls and not open_[s]:
                calls.pop(0)
                open_[s] = set(calls[0]) if calls else set()


def test_microbatches_of_one_process() -> None:
    layers = [nn.Linear(3, 4), Tensor.relu, nn.Linear(4, 1)]
    x, y = Tensor.arange(21).reshape(7, 3).float() / 20, Tensor.arange(7).reshape(7, 1).float()
    for reduction in ("mean", "sum"):
        def loss(a: Tensor, b: Tensor, kind: str = reduction) -> Tensor:
            found: Tensor = getattr((a - b).square(), kind)()
            return found
        pipe = dist.pipeline(layers, dist.mesh(stage=1), loss=loss, microbatches=3, reduction=reduction)
        for p in nn.state.get_parameters(layers):
            p.grad = None
        want = loss(layers[2](layers[1](layers[0](x))), y)  # type: ignore[operator]
        grads = want.gradient(*nn.state.get_parameters(layers))
        found = pipe.step(x, y)
        assert np.isclose(found.item(), want.item(), rtol=1e-5)
        for p, g in zip(nn.state.get_parameters(pipe), grads):
            assert p.grad is not None and np.allclose(p.grad.numpy(), g.numpy(), rtol=1e-4, atol=1e-5)


def test_errors() -> None:
    mesh, layers = dist.mesh(stage=1), [nn.Linear(2, 2), Tensor.relu]
    loss = Tensor.sparse_categorical_crossentropy
    with pytest.raises(ArgumentError, match="schedule='zb'"):
        dist.pipeline(layers, mesh, loss=loss, schedule="zb")
    with pytest.raises(ArgumentError, match="no axis 'model'"):
        dist.pipeline(layers, mesh, "model", loss=loss)
    with pytest.raises(ArgumentError, match="1 positive numbers whose sum is 2"):
        dist.pipeline(layers, mesh, loss=loss, split=[1, 1])
    pipe = dist.pipeline(layers, mesh, loss=loss, microbatches=3)
    with pytest.raises(ShapeError, match="for 3 microbatches"):
        pipe.step(Tensor.ones(2, 2), Tensor([0, 1]))
    with pytest.raises(ArgumentError, match="1 microbatches of x, 3 of y"):
        pipe.step([Tensor.ones(3, 2)], Tensor([0, 1, 0]))
    with pytest.raises(ShapeError, match="loss has shape"):
        dist.pipeline(layers, mesh, loss=lambda a, b: a).step(Tensor.ones(3, 2), Tensor([0, 1, 0]))
    with pytest.raises(DTypeError, match="layer 0 returns"):
        dist.pipeline([lambda x: 3], mesh, loss=loss).step(Tensor.ones(3, 2), Tensor([0, 1, 0]))  # type: ignore[list-item, return-value]


def test_tied_parameters_are_refused() -> None:
    tied, other = nn.Linear(2, 2), nn.Linear(2, 2)
    _check_ties([tied, tied, other], [0, 2, 3])
    other.bias = tied.bias
    with pytest.raises(ArgumentError, match=r"0\.bias and 2\.bias are one tensor, in stages 0 and 1"):
        _check_ties([tied, tied, other], [0, 2, 3])

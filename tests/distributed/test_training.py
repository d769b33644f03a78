"""Training in 1, 2 and 4 processes gives the same losses, and the same bits each time."""
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.distributed.running import GPT_OF_BLOCKS, needs_mpi, passes
from tinsmith import nn
from tinsmith.core.errors import ArgumentError

MNIST = """
Tensor.manual_seed(3)
rng = np.random.default_rng(0)
x = rng.normal(size=(256, 1, 12, 12)).astype(np.float32)
y = (x.mean((1, 2, 3)) > 0).astype(np.int32) + 2 * (x[:, 0, :6].mean((1, 2)) > 0)

class Net:
    def __init__(self):
        self.conv, self.norm, self.out = nn.Conv2d(1, 8, 3), nn.LayerNorm((8, 10, 10)), nn.Linear(800, 4)
    def __call__(self, x):
        return self.out(self.norm(self.conv(x)).relu().flatten(1))

model = Net()
optimizer = nn.optim.Adam(nn.state.get_parameters(model), lr=0.003)

@TinyJit
@Tensor.train()
def step(x, y):
    loss = model(x).sparse_categorical_crossentropy(y)
    optimizer.zero_grad()
    loss.backward()
    dist.all_reduce_gradients(optimizer, bucket_bytes=4096)
    nn.optim.clip_grad_norm_(optimizer.params, 1.0)
    optimizer.step()
    return dist.all_reduce(loss, "mean")

losses = []
loader = nn.DataLoader((x, y), batch_size=32, shuffle=True, shard=(r, n))
while len(losses) < 30:
    losses += [step(a, b).item() for a, b in loader]
losses = losses[:30]
"""

GPT = """
Tensor.manual_seed(5)
tokens = np.random.default_rng(1).integers(0, 17, 600) // 4

class Block:
    def __init__(self, size):
        self.ln1, self.ln2 = nn.LayerNorm(size), nn.LayerNorm(size)
        self.qkv, self.proj = nn.Linear(size, 3 * size), nn.Linear(size, size)
        self.up, self.down = nn.Linear(size, 4 * size), nn.Linear(4 * size, size)
    def __call__(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(self.ln1(x)).reshape(b, t, 3, 2, -1).permute(2, 0, 3, 1, 4)
        x = x + self.proj(q.scaled_dot_product_attention(k, v, is_causal=True).transpose(1, 2).reshape(b, t, c))
        return x + self.down(self.up(self.ln2(x)).gelu())

""" + GPT_OF_BLOCKS + """
model = GPT([Block(16) for _ in range(2)])
optimizer = nn.optim.AdamW(nn.state.get_parameters(model), lr=0.01)
windows = nn.DataLoader(nn.loader.Windows(tokens, 16), batch_size=8, shuffle=True, seed=2, shard=(r, n))

@TinyJit
@Tensor.train()
def step(x, y):
    loss = model(x).sparse_categorical_crossentropy(y)
    optimizer.zero_grad()
    loss.backward()
    dist.all_reduce_gradients(optimizer)
    optimizer.step()
    return dist.all_reduce(loss, "mean")

losses = [step(a, b).item() for _, (a, b) in zip(range(30), windows)]
"""

BATCH_NORM = """
rng = np.random.default_rng(0)
x = rng.normal(3, 2, size=(3, 8, 5, 4)).astype(np.float32)

def made(sync):
    Tensor.manual_seed(1)
    model = [nn.BatchNorm(5), nn.Linear(4, 3), nn.BatchNorm(5)]
    model[0].weight.assign(Tensor.arange(5) + 1.0).realize()
    return dist.sync_batch_norm(model) if sync else model

def trained(model, rows, reduce):
    optimizer = nn.optim.SGD(nn.state.get_parameters(model), lr=0.1)
    @TinyJit
    @Tensor.train()
    def step(x):
        optimizer.zero_grad()
        y = model[2](model[1](model[0](x)))
        loss = (y * y * y.sigmoid()).mean()
        loss.backward()
        if reduce:
            dist.all_reduce_gradients(optimizer)
            loss = dist.all_reduce(loss, "mean")
        optimizer.step()
        return loss
    return [step(Tensor(v[rows]).realize()).item() for _ in range(2) for v in x]

one, several = made(False), made(True)
assert np.allclose(trained(one, slice(0, 8), False), trained(several, slice(r * 8 // n, (r + 1) * 8 // n), True),
                   rtol=1e-4)
for name, t in nn.state.get_state_dict(one).items():
    assert np.allclose(t.numpy(), nn.state.get_state_dict(several)[name].numpy(), atol=1e-4), name
"""

# Dropout, gradient accumulation in two parts, autocast, and averages of the parameters.
TECHNIQUES = """
import contextlib
rng = np.random.default_rng(0)
data = rng.normal(size=(4, 16, 8)).astype(np.float32)
targets = (data.sum(-1) > 0).astype(np.int32)

def trained(rows, reduce):
    Tensor.manual_seed(2)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 2))
    optimizer = nn.optim.AdamW(nn.state.get_parameters(model), lr=0.01)
    average = nn.optim.EMA(optimizer.params, 0.9)
    losses = []
    with Tensor.train():
        for x, y in zip(data, targets):
            optimizer.zero_grad()
            for part in (slice(0, 8), slice(8, 16)):
                a, b = x[part][rows], y[part][rows]
                with Tensor.autocast("bfloat16"), dist.rows() if reduce else contextlib.nullcontext():
                    loss = model(Tensor(a)).float().sparse_categorical_crossentropy(Tensor(b)) / 2
                loss.backward()
                losses.append(dist.all_reduce(loss, "mean").item() if reduce else loss.item())
            if reduce:
                dist.all_reduce_gradients(optimizer)
            optimizer.step()
            average.update()
    return losses, [t.numpy() for t in average.averages]

if n == 1:
    raise SystemExit
every = slice(0, 8)
one, averages = trained(every, False)
several, others = trained(slice(r * 8 // n, (r + 1) * 8 // n), True)
assert np.allclose(one, several, rtol=0.05), (one, several)
assert all(np.allclose(a, b, atol=0.01) for a, b in zip(averages, others))
"""

END = """
import json, hashlib
from tinsmith.nn.state import get_state_dict
bits = hashlib.sha256(b"".join(t.numpy().tobytes() for t in get_state_dict(model).values())).hexdigest()
every = dist.all_gather(Tensor(np.frombuffer(bytes.fromhex(bits), np.uint8).reshape(1, -1).copy())).numpy()
assert (every == every[0]).all(), "parameters differ between processes"
if r == 0:
    print(json.dumps({"losses": losses, "bits": bits}))
"""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def trained(count: int, folder: Path, text: str, cache: Path, **settings: str) -> dict[str, Any]:
    out = passes(count, folder, text + END, cache, **settings)
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    return found


@needs_mpi
@pytest.mark.parametrize("text", [MNIST, GPT], ids=["mnist", "gpt"])
def test_losses_do_not_depend_on_the_number_of_processes(text: str, tmp_path: Path, cache: Path) -> None:
    one = trained(0, tmp_path, text, cache)
    assert one["losses"][-1] < 0.9 * one["losses"][0]
    for count in (2, 4):
        several = trained(count, tmp_path, text, cache)
        assert np.allclose(one["losses"], several["losses"], rtol=2e-3), (count, one["losses"], several["losses"])


@needs_mpi
@pytest.mark.parametrize("count", [2, 4])
def test_synchronized_batch_norm_is_that_of_the_whole_batch(count: int, tmp_path: Path, cache: Path) -> None:
    passes(count, tmp_path, BATCH_NORM, cache)


@needs_mpi
def test_dropout_accumulated_gradients_mixed_precision_and_averages(tmp_path: Path, cache: Path) -> None:
    passes(2, tmp_path, TECHNIQUES, cache)


@needs_mpi
def test_same_bits_each_time(tmp_path: Path, cache: Path) -> None:
    first, second = (trained(2, tmp_path, MNIST, cache, PYTHONHASHSEED=seed) for seed in ("1", "2"))
    assert first == second


def test_parts_of_a_loader() -> None:
    data = np.arange(23)
    whole = [b.tolist() for b in nn.DataLoader(data, 8, shuffle=True, seed=1)]
    parts = [[b.tolist() for b in nn.DataLoader(data, 8, shuffle=True, seed=1, shard=(k, 4))] for k in range(4)]
    assert [len(b) for b in parts[0]] == [2, 2, 1]
    for n, batch in enumerate(whole):
        together = [i for p in parts for i in p[n]]
        assert together == batch[: len(batch) // 4 * 4]
    assert len(nn.DataLoader(np.arange(17), 8, shard=(0, 2))) == 2  # one row is less than the processes
    with pytest.raises(ArgumentError, match="batch_size=8"):
        nn.DataLoader(data, 6, shard=(0, 4))
    with pytest.raises(ArgumentError, match=r"shard\[0\] is 4"):
        nn.DataLoader(data, 8, shard=(4, 4))
    with pytest.raises(ArgumentError, match="is no pair"):
        nn.DataLoader(data, 8, shard=4)  # type: ignore[arg-type]


OVERLAP = """
def bits(overlap, captured, dtype):
    Tensor.manual_seed(1)
    layers = [nn.Linear(24, 24, bias=n % 2 == 0) for n in range(4)]
    for p in nn.state.get_parameters(layers):
        p.replace(p.cast(dtype).realize())
    optimizer = nn.optim.SGD(nn.state.get_parameters(layers), lr=0.1)
    @Tensor.train()
    def step(x):
        h = x.cast(dtype)
        for layer in layers:
            h = layer(h).tanh()
        optimizer.zero_grad()
        loss = h.float().square().mean().backward()
        dist.all_reduce_gradients(optimizer, bucket_bytes=2000, overlap=overlap)
        optimizer.step()
        return dist.all_reduce(loss, "mean")
    step = TinyJit(step) if captured else step
    rng = np.random.default_rng(r)
    losses = [step(Tensor(rng.normal(size=(8, 24)).astype(np.float32)).realize()).item() for _ in range(5)]
    return losses, [p.float().tolist() for p in optimizer.params]

for dtype in ("float32", "bfloat16"):
    want = bits(False, False, dtype)
    assert want[0][-1] < want[0][0]
    for captured in (False, True):
        assert bits(True, captured, dtype) == want, (dtype, captured)
"""


@needs_mpi
def test_reduction_during_the_backward_pass_gives_the_same_bits(tmp_path: Path, cache: Path) -> None:
    passes(2, tmp_path, OVERLAP, cache)

"""Parameters and optimizer state in parts, against the same training in one process."""
from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.distributed.running import GPT_OF_BLOCKS, needs_mpi, passes
from tests.distributed.test_training import trained
from tinsmith import Tensor, nn
from tinsmith import distributed as dist
from tinsmith.core.errors import ArgumentError, ShapeError
from tinsmith.distributed.sharding import _replace
from tinsmith.distributed.world import Mesh, note_placement

GPT = """
Tensor.manual_seed(5)
tokens = np.random.default_rng(1).integers(0, 17, 600) // 4
mesh = dist.mesh(**json.loads(os.environ.get("MESH", '{"data": 1, "model": 1}')))

class Block:
    def __init__(self, size):
        self.ln1, self.ln2 = nn.LayerNorm(size), nn.LayerNorm(size)
        self.q, self.k, self.v = (nn.Linear(size, size) for _ in range(3))
        self.proj, self.up, self.down = nn.Linear(size, size), nn.Linear(size, 4 * size), nn.Linear(4 * size, size)
    def __call__(self, x):
        h = self.ln1(x)
        q, k, v = (f(h).reshape(*x.shape[:2], -1, 4).transpose(1, 2) for f in (self.q, self.k, self.v))
        h = q.scaled_dot_product_attention(k, v, is_causal=True).transpose(1, 2)
        x = x + self.proj(h.reshape(*x.shape[:2], -1))
        return x + self.down(self.up(self.ln2(x)).gelu())

""" + GPT_OF_BLOCKS + """
model = GPT([Block(16)])
tensor_parallel = {"wte.weight": ("model",), "head.weight": ("model",), "*.[qkv].*": ("model",), "*.up.*": ("model",),
                   "*.proj.weight": (None, "model"), "*.down.weight": (None, "model")}
zero3 = {"wte.weight": ("model", "data"), "head.weight": ("model", "data"), "*.[qkv].weight": ("model", "data"),
         "*.[qkv].bias": ("model",), "*.up.weight": ("model", "data"), "*.up.bias": ("model",),
         "*.proj.weight": ("data", "model"), "*.down.weight": ("data", "model"), "*ln*.weight": ("data",)}
rules = {"": {}, "tensor": tensor_parallel, "zero3": zero3}[os.environ.get("RULES", "")]
dist.shard(model, mesh, rules)
if rules and n > 1:
    assert model.blocks[0].up.weight.numel() == 16 * 64 // (n if rules is zero3 else mesh.size("model"))
parameters = nn.state.get_parameters(model)
zero = bool(os.environ.get("ZERO"))
if zero:
    optimizer = dist.ZeroOptimizer(parameters, lambda p: nn.optim.AdamW(p, lr=0.01), axis="data")
    assert sum(t.numel() for t in optimizer.own) == -(-sum(p.numel() for p in parameters) // n)
else:
    optimizer = nn.optim.AdamW(parameters, lr=0.01)
windows = nn.DataLoader(nn.loader.Windows(tokens, 16), batch_size=8, shuffle=True, seed=2,
                        shard=(mesh.place["data"], mesh.size("data")))

@TinyJit
@Tensor.train()
def step(x, y):
    loss = dist.vocabulary_cross_entropy(model(x), y, "model")
    optimizer.zero_grad()
    loss.backward()
    if not zero:
        dist.all_reduce_gradients(optimizer, axis="data")
        dist.clip_grad_norm_(optimizer.params, 0.5)
    optimizer.step()
    return dist.all_reduce(loss, "mean", "data")

losses = [step(a, b).item() for _, (a, b) in zip(range(30), windows)]
assert step.replays >= 27
model = {} if rules else model  # whose parts differ
"""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


HEAD = "import json\n"


@needs_mpi
def test_losses_in_parts_are_those_of_one_process(tmp_path: Path, cache: Path) -> None:
    one = trained(0, tmp_path, HEAD + GPT, cache)["losses"]
    assert one[-1] < 0.9 * one[0]
    for count, mesh, rules in ((2, '{"data": 1, "model": 2}', "tensor"), (4, '{"data": 2, "model": 2}', "zero3")):
        found = trained(count, tmp_path, HEAD + GPT, cache, MESH=mesh, RULES=rules)["losses"]
        assert np.allclose(one, found, rtol=2e-3), (mesh, rules, one, found)


@needs_mpi
def test_optimizer_state_in_parts(tmp_path: Path, cache: Path) -> None:
    one = trained(0, tmp_path, HEAD + GPT, cache, ZERO="1")["losses"]
    found = trained(2, tmp_path, HEAD + GPT, cache, ZERO="1", MESH='{"data": 2, "model": 1}')["losses"]
    assert np.allclose(one, found, rtol=2e-3), (one, found)


@needs_mpi
def test_axes_of_a_mesh(tmp_path: Path, cache: Path) -> None:
    passes(4, tmp_path, """
        mesh = dist.mesh(data=2, model=-1)
        assert mesh.shape == {"data": 2, "model": 2} and mesh.place == {"data": r // 2, "model": r % 2}
        assert dist.all_reduce(Tensor([float(r)]), axis="data").item() == 2 * (r % 2) + 2
        assert dist.all_gather(Tensor([r]), axis="model").tolist() == [r - r % 2, r - r % 2 + 1]
        x = Tensor(np.arange(8.0).reshape(4, 2))
        assert dist.shard_batch(x, mesh, "data").tolist() == x.tolist()[2 * (r // 2) : 2 * (r // 2) + 2]
        layer = dist.shard(nn.Linear(4, 4), mesh, {"weight": ("model",), "bias": ("model",)})
        layer(Tensor.ones(2, 4)).sum().backward()
        optimizer = nn.optim.SGD(nn.state.get_parameters(layer))
        try:
            dist.all_reduce_gradients(optimizer)
        except ValueError as error:
            assert 'axis="data"' in str(error)
        else:
            raise AssertionError
    """, cache)


# *** one process ***


def test_devices_of_one_process() -> None:
    devices = ("CPU", "CPU:1")
    mesh = dist.mesh(model=2, devices=devices)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    x = Tensor.arange(12).reshape(3, 4).float()
    want = model(x).numpy()
    dist.shard(model, mesh, {"0.*": ("model",), "2.weight": (None, "model"), "*": ()})
    assert model[0].weight.shard_axis == 0 and model[2].weight.shard_axis == 1  # type: ignore[attr-defined]
    assert np.allclose(model(dist.shard_batch(x, mesh, "data")).numpy(), want, atol=1e-5)
    with pytest.raises(ArgumentError, match="one axis over the devices"):
        dist.mesh(data=2, model=2, devices=("CPU", "CPU:1", "CPU:2", "CPU:3"))


def test_errors() -> None:
    mesh = dist.mesh(model=2, devices=("CPU", "CPU:1"))
    with pytest.raises(ArgumentError, match="its rule is"):
        dist.shard(nn.Linear(2, 2), mesh, {"bias": (None, "model")})
    with pytest.raises(ArgumentError, match="no axis 'modle'"):
        dist.shard(nn.Linear(2, 2), mesh, {"weight": ("modle",)})
    with pytest.raises(ShapeError, match=r"axis 0 of shape \(3, 2\) in 2 parts"):
        dist.data_parallel.part(Tensor.ones(3, 2), 0, 2, 0, "dist.shard_batch")


def test_layers_that_cannot_compute_with_parts() -> None:
    mesh = Mesh.__new__(Mesh)
    mesh.shape, mesh.devices, mesh.place = {"model": 2}, (), {"model": 0}
    for layer, rule, message in ((nn.LayerNorm(4), ("model",), "LayerNorm cannot compute"),
                                 (nn.Linear(4, 4), ("model",), "weight .* and bias"),
                                 (nn.Embedding(4, 4), (None, "model"), "Embedding cannot compute")):
        own = Tensor.ones(2, 2)
        note_placement(own, mesh, rule)
        with pytest.raises(ArgumentError, match=message):
            _replace(layer, {"weight": "weight"}, {id(layer.weight): own}, ("data",))

"""A small GPT that many processes train together, on a mesh of data, pipeline and tensor parallelism.

    tinsmith launch -n 4 -m tinsmith.examples.gpt_distributed                 data parallel
    tinsmith launch -n 4 -m tinsmith.examples.gpt_distributed --model 2       two processes share each layer
    tinsmith launch -n 4 -m tinsmith.examples.gpt_distributed --stages 2      two processes have half of the layers each
    tinsmith launch -n 4 -m tinsmith.examples.gpt_distributed --zero3         each keeps a part of the parameters
    python -m tinsmith.examples.gpt_distributed                               the same in one process
"""
from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tinsmith import Tensor, TinyJit, nn
from tinsmith import distributed as dist

Layer = Callable[[Tensor], Tensor]


class Block:
    """Causal attention and a perceptron: ``[N, T, width] → [N, T, width]``."""

    def __init__(self, width: int, head: int) -> None:
        self.head = head
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, width)
        self.out, self.up, self.down = nn.Linear(width, width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def __call__(self, x: Tensor) -> Tensor:
        h = self.ln1(x)
        q, k, v = (f(h) for f in (self.q, self.k, self.v))
        batch, length, _ = q.shape  # of the whole sequence, of which x may be a part; -1 below: this process's heads
        q, k, v = (t.reshape(batch, length, -1, self.head).transpose(1, 2) for t in (q, k, v))
        h = q.scaled_dot_product_attention(k, v, is_causal=True).transpose(1, 2)
        x = x + self.out(h.reshape(batch, length, -1))
        return x + self.down(self.up(self.ln2(x)).gelu())


class Embed:
    """Embeddings of tokens and places: ``[N, T] → [N, T, width]``."""

    def __init__(self, vocabulary: int, width: int, length: int, sequence: bool) -> None:
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.sequence = sequence

    def __call__(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.places(Tensor.arange(ids.shape[1]))
        return dist.split_sequence(x) if self.sequence else x


class Head:
    """Logits of the next tokens, of which a process may have a part: ``[N, T, width] → [N, T, vocabulary]``."""

    def __init__(self, vocabulary: int, width: int, sequence: bool) -> None:
        self.ln, self.logits = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.sequence = sequence

    def __call__(self, x: Tensor) -> Tensor:
        return self.logits(self.ln(dist.gather_sequence(x) if self.sequence else x))


def gpt(vocabulary: int, width: int, layers: int, length: int, head: int = 16, sequence: bool = False) -> list[Layer]:
    """Return the layers of a GPT."""
    return [Embed(vocabulary, width, length, sequence), *(Block(width, head) for _ in range(layers)),
            Head(vocabulary, width, sequence)]


def rules(zero3: bool) -> dict[str, tuple[str | None, ...]]:
    """Return how the parameters are divided: matrices by outputs or inputs along "model", the rest along "data"."""
    data = "data" if zero3 else None
    return {"*.[qkv].weight": ("model", data), "*.up.weight": ("model", data), "*.[qkv].bias": ("model",),
            "*.up.bias": ("model",), "*.out.weight": (data, "model"), "*.down.weight": (data, "model"),
            "*.tokens.weight": ("model", data), "*.logits.weight": ("model", data)}


def train(data: np.ndarray, mesh: dist.Mesh, steps: int, batch: int, width: int = 64, zero3: bool = False,
          microbatches: int = 1, sequence: bool = False) -> list[float]:
    """Return the loss of every step, the mean over all processes."""
    Tensor.manual_seed(0)
    layers = dist.shard(gpt(256, width, 2, 64, sequence=sequence), mesh, rules(zero3))
    if sequence:  # all layers of blocks
        dist.sequence_parallel(layers[1:-1], mesh)
    model = dist.pipeline(layers, mesh, microbatches=microbatches,
                          loss=lambda logits, y: dist.vocabulary_cross_entropy(logits, y, "model"))
    optimizer = nn.optim.AdamW(nn.state.get_parameters(model), lr=3e-3)
    shard = (mesh.place["data"], mesh.size("data"))
    loader = nn.DataLoader(nn.loader.Windows(data, 64), batch, shuffle=True, drop_last=True, seed=0, shard=shard)

    @TinyJit
    @Tensor.train()
    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = model.step(x, y)  # forward and backward
        dist.all_reduce_gradients(optimizer, axis="data")
        dist.clip_grad_norm_(optimizer.params, 1.0)
        optimizer.step()
        return dist.all_reduce(loss, "mean", "data")

    losses: list[float] = []
    start = time.perf_counter()
    while len(losses) < steps:
        for x, y in loader:
            losses.append(float(step(x, y).item()))
            if len(losses) % 20 == 0 or len(losses) == steps:
                print(f"step {len(losses):4d}  loss {losses[-1]:.4f}  {time.perf_counter() - start:.1f} s", flush=True)
            if len(losses) == steps:
                break
    return losses


def main() -> None:
    """Train on the bytes of a text; default: a program of this folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="a text file")
    parser.add_argument("--model", type=int, default=1, help="processes that share each layer")
    parser.add_argument("--sequence", action="store_true", help="divide norms along the sequence among those, too")
    parser.add_argument("--stages", type=int, default=1, help="processes that have a part of the layers each")
    parser.add_argument("--microbatches", type=int, help="parts of a batch; twice the stages unless given")
    parser.add_argument("--zero3", action="store_true", help="divide parameters along the data axis, too")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=16, help="rows of all processes together")
    args = parser.parse_args()
    path = Path(args.data) if args.data else Path(__file__).with_name("decoder.py")
    if not path.is_file():
        parser.error(f"no file {path}")
    dist.init()
    text = np.frombuffer(path.read_bytes(), np.uint8).astype(np.int32)
    if len(text) < 64 + args.batch:
        parser.error(f"{path} has {len(text)} bytes, at least {64 + args.batch} are needed")
    microbatches = args.microbatches or (2 * args.stages if args.stages > 1 else 1)
    train(text, dist.mesh(data=-1, stage=args.stages, model=args.model), args.steps, args.batch, zero3=args.zero3,
          microbatches=microbatches, sequence=args.sequence)


if __name__ == "__main__":
    main()

"""A small llama-style language model over bytes, which writes text with one compiled step for all positions.

    python -m tinsmith.examples.decoder --prompt "To be"  random weights: the machinery, not the text, is the point
    python -m tinsmith.examples.decoder --data FILE                  trains on the bytes of FILE first, 600 steps
    python -m tinsmith.examples.decoder --data FILE --run RUN  saves the run, and goes on with one that was cut short

Each layer keeps the keys and values of earlier positions in a cache. A step works on one byte at position ``start``,
a bound Variable: it writes the cache at ``start`` and reads it up to there. Sizes grow; the program stays the same.
"""
from __future__ import annotations

import argparse
import math
import string
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tinsmith import GlobalCounters, Tensor, TinyJit, Variable, nn
from tinsmith.nn.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR


@dataclass(frozen=True)
class Config:
    """Sizes of a model. ``kv_heads`` key and value heads are each shared by ``heads / kv_heads`` query heads."""

    vocabulary: int = 256
    width: int = 128
    layers: int = 4
    heads: int = 8
    kv_heads: int = 2
    hidden: int = 320
    context: int = 256
    base: float = 10000.0

    @property
    def head_width(self) -> int:
        return self.width // self.heads


def rotation(config: Config) -> tuple[Tensor, Tensor]:
    """Cosines and sines ``[context, 1, head_width / 2]`` of the rotary embedding (Su et al., 2021)."""
    half = config.head_width // 2
    speeds = config.base ** (-np.arange(half) / half)
    angles = np.arange(config.context)[:, None, None] * speeds
    cosines, sines = (Tensor(f(angles).astype(np.float32), requires_grad=False).realize() for f in (np.cos, np.sin))
    return cosines, sines


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn each pair (x[i], x[i + half]) of ``[batch, length, heads, width]`` by its position's angle."""
    a, b = x.chunk(2, dim=-1)
    return (a * cos - b * sin).cat(b * cos + a * sin, dim=-1)


class Attention:
    """Grouped-query attention over the cached keys and values, or over the input alone."""

    def __init__(self, config: Config) -> None:
        self.config = config
        own, shared = config.heads * config.head_width, config.kv_heads * config.head_width
        self.q = nn.Linear(config.width, own, bias=False)
        self.kv = nn.Linear(config.width, 2 * shared, bias=False)
        self.out = nn.Linear(own, config.width, bias=False)

    def __call__(self, x: Tensor, start: Any, angles: tuple[Tensor, Tensor], cache: Tensor | None) -> Tensor:
        config, (batch, length, _) = self.config, x.shape
        cos, sin = (t[start : start + length] for t in angles)
        q = rotate(self.q(x).reshape(batch, length, config.heads, config.head_width), cos, sin)
        k, v = self.kv(x).reshape(batch, length, 2 * config.kv_heads, config.head_width).chunk(2, dim=2)
        k = rotate(k, cos, sin)
        if cache is not None:
            cache[:, :, start : start + length] = k.stack(v)
            k, v = cache[0, :, : start + length], cache[1, :, : start + length]
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        mask = None
        if length > 1:  # a query sees the keys up to its own position
            mask = Tensor.arange(k.shape[2]).reshape(1, -1) <= Tensor.arange(length).reshape(-1, 1) + start
        seen = q.scaled_dot_product_attention(k, v, attn_mask=mask, enable_gqa=True)
        return self.out(seen.transpose(1, 2).reshape(batch, length, -1))


class Layer:
    """Attention and a gated feed-forward network, each on the normalized input and added to it."""

    def __init__(self, config: Config) -> None:
        self.attention, self.norm1 = Attention(config), nn.RMSNorm(config.width)
        self.gate = nn.Linear(config.width, config.hidden, bias=False)
        self.up = nn.Linear(config.width, config.hidden, bias=False)
        self.down = nn.Linear(config.hidden, config.width, bias=False)
        self.norm2 = nn.RMSNorm(config.width)

    def __call__(self, x: Tensor, start: Any, angles: tuple[Tensor, Tensor], cache: Tensor | None) -> Tensor:
        x = x + self.attention(self.norm1(x), start, angles, cache)
        y = self.norm2(x)
        return x + self.down(self.gate(y).silu() * self.up(y))


class Decoder:
    """Bytes ``[batch, length]`` → scores of the next byte ``[batch, length, vocabulary]``."""

    def __init__(self, config: Config) -> None:
        self.config, self.angles = config, rotation(config)
        self.embedding = nn.Embedding(config.vocabulary, config.width)
        self.layers = [Layer(config) for _ in range(config.layers)]
        self.norm, self.head = nn.RMSNorm(config.width), nn.Linear(config.width, config.vocabulary, bias=False)

    def __call__(self, tokens: Tensor, start: Any = 0, caches: list[Tensor] | None = None) -> Tensor:
        """``start`` is the position of the first token, a number or a bound Variable; ``caches`` hold those before."""
        x = self.embedding(tokens)
        for n, layer in enumerate(self.layers):
            x = layer(x, start, self.angles, None if caches is None else caches[n])
        return self.head(self.norm(x))

    def parameters(self) -> list[Tensor]:
        return nn.state.get_parameters([self.embedding, self.layers, self.norm, self.head])


class Writer:
    """Writes bytes one after the other with a model: greedy at temperature 0, else drawn.

    Args:
        only: the bytes to choose from; empty for all.
    """

    def __init__(self, model: Decoder, temperature: float = 0.0, only: bytes = b"") -> None:
        c = model.config
        self.model, self.temperature = model, temperature
        self.start = Variable("start", 0, c.context - 1)
        self.caches = [Tensor.zeros(2, 1, c.context, c.kv_heads, c.head_width).contiguous().realize()
                       for _ in range(c.layers)]
        allowed = np.isin(np.arange(c.vocabulary), list(only)) if only else np.ones(c.vocabulary, bool)
        self.barred = Tensor(np.where(allowed, 0, -np.inf).astype(np.float32)).realize()  # added to all scores
        self.step = TinyJit(self.next)

    def next(self, token: Tensor, start: Any) -> Tensor:
        """Return the byte after ``token`` ``[1, 1]``, which is at position ``start``."""
        scores = self.model(token, start, self.caches)[:, -1] + self.barred
        if self.temperature:  # the greatest of scores with Gumbel noise is a draw from their softmax
            scores = scores / self.temperature - (-Tensor.rand(*scores.shape).log()).log()
        return scores.argmax(-1).reshape(1, 1).cast("int32")

    def write(self, prompt: bytes, count: int) -> Iterator[int]:
        """``count`` bytes that follow the prompt, as far as the context reaches."""
        given = list(prompt) or [0]
        token = Tensor([[given[0]]], dtype="int32")
        for position in range(min(len(given) + count, self.model.config.context) - 1):
            token = self.step(token.realize(), self.start.bind(position))
            if position + 1 < len(given):
                token = Tensor([[given[position + 1]]], dtype="int32")
            else:
                yield int(token.item())


def readable(written: bytes) -> str:
    """Return bytes as text that is safe to print: control characters and broken UTF-8 become "·".

    >>> readable(b"To be\\n\\x1b[2J\\xff!")
    'To be\\n·[2J·!'
    """
    text = written.decode("utf-8", "replace").replace("\ufffd", "·")
    return "".join(c if c.isprintable() or c in "\n\t" else "·" for c in text)


class Training:
    """A training run: it can be saved and gone on with, in another process too, and ends in the same bits.

    Matrices of layers are trained by Muon, all else by AdamW; rates warm up, then fall as a cosine. The step, with its
    rates, is one captured program.
    """

    def __init__(self, model: Decoder, data: bytes, steps: int, batch: int = 16, length: int = 128, seed: int = 0,
                 bf16: bool = False) -> None:
        text = np.frombuffer(data, np.uint8).astype(np.int32)
        cut = len(text) * 19 // 20
        if len(text) - cut <= length:
            raise SystemExit(f"the data has {len(text)} bytes, more than {20 * length + 20} are needed")
        self.model, self.steps, self.batch, self.length, self.bf16 = model, steps, batch, length, bf16
        self.text, self.held_out = text[:cut], text[cut:]
        self.rng, self.done = np.random.default_rng(seed), 0
        matrices = [p for p in nn.state.get_parameters(model.layers) if p.ndim == 2]
        rest = [p for p in model.parameters() if all(p is not m for m in matrices)]
        self.optimizer = nn.optim.OptimizerGroup(nn.optim.Muon(matrices, lr=0.02, weight_decay=0.01),
                                                 nn.optim.AdamW(rest, lr=4e-3, b2=0.99, weight_decay=0.01))
        warm = max(1, steps // 20)
        self.schedule = SequentialLR(self.optimizer, [
            LinearLR(self.optimizer, 0.1, total_iters=warm),
            CosineAnnealingLR(self.optimizer, max(1, steps - warm))], milestones=[warm])
        self.step = TinyJit(self.forward_and_back)
        self.judge = TinyJit(self.loss)

    def loss(self, tokens: Tensor) -> Tensor:
        """Return the cross entropy of the next byte in nats; e**loss is the perplexity."""
        with Tensor.autocast("bfloat16", enabled=self.bf16):
            return self.model(tokens[:, :-1]).sparse_categorical_crossentropy(tokens[:, 1:])

    def forward_and_back(self, tokens: Tensor) -> Tensor:
        with Tensor.train():
            self.optimizer.zero_grad()
            loss = self.loss(tokens).backward()
            nn.utils.clip_grad_norm_(self.optimizer.params, 1.0)
            self.optimizer.step()
            self.schedule.step()
        return loss

    def pieces(self, text: np.ndarray[Any, Any], rng: np.random.Generator) -> Tensor:
        begins = rng.integers(0, len(text) - self.length, self.batch)
        return Tensor(np.stack([text[b : b + self.length + 1] for b in begins])).realize()

    def run(self, until: int) -> list[float]:
        """Train up to step number ``until``; returns the losses."""
        losses: list[float] = []
        while self.done < until:
            self.done += 1
            losses.append(float(self.step(self.pieces(self.text, self.rng)).item()))
            if self.done % 25 == 0 or self.done == self.steps:
                print(f"step {self.done:4d}   loss {np.mean(losses[-25:]):.3f}", flush=True)
        return losses

    def held_out_loss(self, batches: int = 10) -> float:
        """Return the mean loss on held-out text, on the same pieces at every call."""
        rng = np.random.default_rng(0)
        with Tensor.test():
            return float(np.mean([self.judge(self.pieces(self.held_out, rng)).item() for _ in range(batches)]))

    def save(self, path: Path) -> None:
        nn.state.save(path, **self.parts(), step=self.done)

    def load(self, path: Path) -> None:
        self.done = nn.state.load(path, **self.parts())["step"]

    def parts(self) -> dict[str, Any]:
        return {"model": self.model, "optimizer": self.optimizer, "schedule": self.schedule, "rng": [Tensor, self.rng]}


def train(model: Decoder, args: argparse.Namespace) -> None:
    """Train on ``--data``, from where the file ``--run`` left off if there is one; save there every 100 steps."""
    training = Training(model, args.data.read_bytes(), args.steps, seed=args.seed, bf16=args.bf16)
    if args.run and args.run.exists():
        training.load(args.run)
        print(f"{args.run}: going on after step {training.done}")
    begin, first = time.perf_counter(), training.done
    while training.done < args.steps:
        training.run(min(args.steps, training.done - training.done % 100 + 100))
        if args.run:
            training.save(args.run)
    seconds = (time.perf_counter() - begin) / max(1, training.done - first)
    loss = training.held_out_loss()
    print(f"loss {loss:.3f} ({loss / math.log(2):.3f} bits per byte) on held-out text; {seconds:.2f} s per step")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="a file to train on, byte by byte")
    parser.add_argument("--run", type=Path, help="a file to save the run to, and to go on from if it is there")
    parser.add_argument("--steps", type=int, default=600, help="training steps in all")
    parser.add_argument("--bf16", action="store_true", help="contractions in bfloat16")
    parser.add_argument("--prompt", default="The ")
    parser.add_argument("--tokens", type=int, default=128, help="bytes to write")
    parser.add_argument("--temperature", type=float, default=0.8, help="0 takes the likeliest byte")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if args.data and not args.data.is_file():
        parser.error(f"no file {args.data}")
    if min(args.tokens, args.temperature) < 0:
        parser.error("--tokens and --temperature are at least 0")
    Tensor.manual_seed(args.seed)
    model = Decoder(Config())
    count = sum(p.numel() for p in model.parameters())
    print(f"{count / 1e6:.2f} million parameters")
    if args.data:
        train(model, args)
    # random weights draw any byte: of those, only the ones that every terminal shows
    writer = Writer(model, args.temperature, b"" if args.data else string.printable[:-5].encode())
    out, times, programs = bytearray(), [], []
    begin = time.perf_counter()
    for byte in writer.write(args.prompt.encode(), args.tokens):
        out.append(byte)
        times.append(time.perf_counter() - begin)
        programs.append(GlobalCounters.schedule_count)
        begin = time.perf_counter()
    print(readable(args.prompt.encode() + out))
    if out:
        print(f"{len(out)} bytes, {1e3 * float(np.median(times)):.2f} ms each; captured {len(writer.step.captures)} "
              f"times, replayed {writer.step.replays} times, {programs[-1] - programs[0]} programs made after the "
              "first byte")


if __name__ == "__main__":
    main()

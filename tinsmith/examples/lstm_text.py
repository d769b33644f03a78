"""An LSTM that learns to write a text, character by character.

    python -m tinsmith.examples.lstm_text                       learns this repository's documentation
    python -m tinsmith.examples.lstm_text --data FILE           learns FILE
    python -m tinsmith.examples.lstm_text --prompt "The " --temperature 0.5
"""
from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

from tinsmith import Tensor, TinyJit, nn


class Writer:
    """Characters ``[N, T]`` → logits of the next ones ``[N, T, characters]``."""

    def __init__(self, characters: int, width: int = 128, layers: int = 2) -> None:
        self.embedding = nn.Embedding(characters, width)
        self.lstm = nn.LSTM(width, width, layers, batch_first=True)
        self.head = nn.Linear(width, characters)

    def __call__(self, x: Tensor, state: tuple[Tensor, Tensor] | None = None
                 ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        out, state = self.lstm(self.embedding(x), state)
        return self.head(out), state


def read(path: str | None) -> str:
    """Return the text to learn."""
    if path:
        return Path(path).read_text("utf-8")
    root = Path(__file__).parents[1]
    return "\n".join(p.read_text("utf-8") for p in sorted((root / "docs").glob("*.md")) if p.name != "api.md")


def train(model: Writer, codes: np.ndarray, steps: int, batch: int, length: int, lr: float) -> list[float]:
    """Return the loss of every step, on random pieces of the text."""
    opt = nn.optim.Adam(nn.state.get_parameters(model), lr)
    text = Tensor(codes.astype(np.int32), requires_grad=False).realize()
    places = Tensor.arange(length).reshape(1, length)

    @TinyJit
    @Tensor.train()
    def step() -> Tensor:
        first = Tensor.randint(batch, 1, high=len(codes) - length)
        x, y = text[first + places], text[first + places + 1]
        opt.zero_grad()
        loss = model(x)[0].sparse_categorical_crossentropy(y).backward()
        opt.step()
        return loss.realize()

    losses: list[float] = []
    for n in range(steps):
        start = time.perf_counter()
        losses.append(float(step().item()))
        if n < 3 or (n + 1) % 20 == 0 or n + 1 == steps:
            print(f"step {n + 1}: loss {losses[-1]:.4f}, {(time.perf_counter() - start) * 1e3:.0f} ms", flush=True)
    return losses


def write(model: Writer, prompt: list[int], count: int, temperature: float, rng: np.random.Generator) -> list[int]:
    """Return ``count`` sampled characters after the prompt (temperature 0: the most likely), by one captured step."""
    @TinyJit
    def step(code: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits, (h, c) = model(code, (h, c))
        chances = (logits[0, -1] / temperature).softmax() if temperature else logits[0, -1].argmax().one_hot(
            logits.shape[-1])
        return chances.realize(), h.realize(), c.realize()

    lstm, written = model.lstm, list(prompt)
    h = c = Tensor.zeros(lstm.num_layers, 1, lstm.hidden_size).contiguous().realize()
    for n in range(len(prompt) + count - 1):
        chances, h, c = step(Tensor([[written[n]]]).realize(), h, c)
        if n + 1 >= len(prompt):
            p = chances.numpy().astype(np.float64)
            written.append(int(rng.choice(len(p), p=p / p.sum())))
    return written[len(prompt) :]


def main() -> None:
    """Read the arguments, train and write."""
    parser = argparse.ArgumentParser(description="An LSTM that learns to write a text.")
    parser.add_argument("--data", metavar="FILE", help="the text; the documentation unless given")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--length", type=int, default=64, help="characters that a step reads in a row")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--prompt", default="The ")
    parser.add_argument("--count", type=int, default=200, help="characters to write")
    parser.add_argument("--temperature", type=float, default=0.7)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if args.data and not Path(args.data).is_file():
        parser.error(f"no file {args.data}")
    if args.temperature < 0 or not args.prompt:
        parser.error("--temperature is at least 0, and --prompt a character or more")
    Tensor.manual_seed(args.seed)
    text = read(args.data)
    if len(text) <= args.length:
        parser.error(f"the text has {len(text)} characters, more than --length {args.length} are needed")
    letters = sorted(set(text + args.prompt))
    number = {c: n for n, c in enumerate(letters)}
    print(f"{len(text)} characters, {len(letters)} different ones")
    model = Writer(len(letters), args.width, args.layers)
    train(model, np.array([number[c] for c in text]), args.steps, args.batch, args.length, args.lr)
    codes = [number[c] for c in args.prompt]
    more = write(model, codes, args.count, args.temperature, np.random.default_rng(args.seed))
    print(args.prompt + "".join(letters[n] for n in more))


if __name__ == "__main__":
    main()

"""``python -m benchmarks.lengths``: programs whose lengths change from call to call, in fresh processes.

nanoGPT's ``generate`` grows its sequence by one token per call. BERT and an LSTM take batches of 20 lengths, a CNN
images of 20 sizes, in inference and in training, directly and captured (``TinyJit``). Every row starts with an empty
disk cache. "first" is the processor time of two calls with one length, "all" that of two calls with each of the
lengths, "running" that of one more pass over the lengths. The goal: all ≤ 2 × first + running (docs/symbolic.md).
"""
from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from benchmarks.process import environment, machine

LENGTHS: Final = (37, 12, 64, 25, 49, 18, 58, 33, 41, 22, 61, 15, 53, 29, 45, 10, 35, 56, 20, 47)
TOKENS: Final = 200
VOCAB, WIDTH, HEADS, LAYERS, BATCH = 65, 128, 4, 2, 4


def gpt() -> Any:
    """Return nanoGPT's model (karpathy/nanoGPT, model.py), with its ``generate`` as written there."""
    from tinsmith import Tensor, nn

    class Attention:
        def __init__(self) -> None:
            self.c_attn, self.c_proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

        def __call__(self, x: Any) -> Any:
            B, T, C = x.size()
            q, k, v = self.c_attn(x).split(WIDTH, dim=2)
            k = k.view(B, T, HEADS, C // HEADS).transpose(1, 2)
            q = q.view(B, T, HEADS, C // HEADS).transpose(1, 2)
            v = v.view(B, T, HEADS, C // HEADS).transpose(1, 2)
            y = q.scaled_dot_product_attention(k, v, is_causal=True)
            return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))

    class Block:
        def __init__(self) -> None:
            self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.attn = Attention()
            self.c_fc, self.c_proj = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

        def __call__(self, x: Any) -> Any:
            x = x + self.attn(self.ln_1(x))
            return x + self.c_proj(self.c_fc(self.ln_2(x)).gelu())

    class GPT:
        block_size = 256

        def __init__(self) -> None:
            self.wte, self.wpe = nn.Embedding(VOCAB, WIDTH), nn.Embedding(self.block_size, WIDTH)
            self.h = [Block() for _ in range(LAYERS)]
            self.ln_f, self.lm_head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCAB, bias=False)

        def __call__(self, idx: Any) -> Any:
            t = idx.size(1)
            assert t <= self.block_size
            pos = Tensor.arange(0, t)
            x = self.wte(idx) + self.wpe(pos)
            for block in self.h:
                x = block(x)
            return self.lm_head(self.ln_f(x)[:, [-1], :])

        @Tensor.no_grad()
        def generate(self, idx: Any, max_new_tokens: int, temperature: float = 1.0, top_k: int | None = None) -> Any:
            for _ in range(max_new_tokens):
                idx_cond = idx if idx.size(1) <= self.block_size else idx[:, -self.block_size:]
                logits = self(idx_cond)
                logits = logits[:, -1, :] / temperature
                if top_k is not None:
                    v, _ = logits.topk(min(top_k, logits.size(-1)))
                    logits = (logits < v[:, [-1]]).where(-float("inf"), logits)
                probs = logits.softmax(-1)
                idx_next = probs.multinomial(num_samples=1)
                idx = idx.cat(idx_next, dim=1)
            return idx

    return GPT()


def bert() -> tuple[Callable[[Any], Any], list[Any], Callable[[int], Any]]:
    """Return an encoder with a head for one class per text, its parameters, and its input of a length."""
    from tinsmith import Tensor, nn

    class Encoder:
        def __init__(self) -> None:
            self.words, self.places = nn.Embedding(1000, WIDTH), nn.Embedding(128, WIDTH)
            self.layers = [nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.1, activation="gelu",
                                                      batch_first=True) for _ in range(LAYERS)]
            self.head = nn.Linear(WIDTH, 2)

        def __call__(self, words: Any) -> Any:
            x = self.words(words) + self.places(Tensor.arange(words.shape[1]))
            for layer in self.layers:
                x = layer(x)
            return self.head(x[:, 0])

    model, rng = Encoder(), np.random.default_rng(0)
    return model, nn.state.get_parameters(model), lambda n: rng.integers(0, 1000, (BATCH, n)).astype(np.int32)


def lstm() -> tuple[Callable[[Any], Any], list[Any], Callable[[int], Any]]:
    """Return an LSTM with a head for one class per sequence, its parameters, and its input of a length."""
    from tinsmith import nn

    class Classifier:
        def __init__(self) -> None:
            self.cells, self.head = nn.LSTM(32, 64, batch_first=True), nn.Linear(64, 2)

        def __call__(self, x: Any) -> Any:
            return self.head(self.cells(x)[0][:, -1])

    model, rng = Classifier(), np.random.default_rng(0)
    return model, nn.state.get_parameters(model), lambda n: rng.standard_normal((BATCH, n, 32)).astype(np.float32)


def cnn() -> tuple[Callable[[Any], Any], list[Any], Callable[[int], Any]]:
    """Return a convolutional network with strides and batch norm, and its square images of a size."""
    from tinsmith import nn

    class Classifier:
        def __init__(self) -> None:
            self.first, self.second = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 32, 3, stride=2, padding=1)
            self.norm, self.head = nn.BatchNorm2d(16), nn.Linear(32, 2)

        def __call__(self, x: Any) -> Any:
            x = self.norm(self.first(x)).relu().max_pool2d(2)
            return self.head(self.second(x).relu().mean((2, 3)))

    model, rng = Classifier(), np.random.default_rng(0)
    return model, nn.state.get_parameters(model), lambda n: rng.standard_normal((BATCH, 3, n, n)).astype(np.float32)


def generated(captured: bool) -> dict[str, float]:
    """Measure ``generate`` from one token, cold and warm; captured: the model is, not the loop."""
    from tinsmith import Tensor, TinyJit

    Tensor.manual_seed(0)
    model = gpt()
    if captured:
        forward = TinyJit(type(model).__call__.__get__(model))
        type(model).__call__ = lambda self, idx: forward(idx)
    start = Tensor([[0]])
    begin = time.process_time()
    out = model.generate(start, TOKENS, top_k=20)
    assert out.numpy().shape == (1, 1 + TOKENS)
    cold = time.process_time() - begin
    begin = time.process_time()
    model.generate(start, TOKENS, top_k=20).numpy()
    return {"all": cold, "running": time.process_time() - begin, "wall": 0.0}


def batches(make: Any, training: bool, captured: bool) -> dict[str, float]:
    """Measure batches of all lengths."""
    from tinsmith import Tensor, TinyJit, nn

    Tensor.manual_seed(0)
    model, parameters, data = make()
    classes = Tensor(np.arange(BATCH) % 2)
    optimizer = nn.optim.Adam(parameters, lr=1e-3)

    def step(x: Any) -> Any:
        if not training:
            with Tensor.no_grad():
                return model(x)
        with Tensor.train():
            optimizer.zero_grad()
            loss = model(x).cross_entropy(classes).backward()
            optimizer.step()
            return loss.realize()

    run = TinyJit(step) if captured else step
    times = []
    begin = time.process_time()
    for length in LENGTHS:
        for _ in range(2):
            run(Tensor(data(length))).numpy()
        times.append(time.process_time() - begin)
    begin = time.process_time()
    for length in LENGTHS:
        run(Tensor(data(length))).numpy()
    return {"first": times[0], "all": times[-1], "running": time.process_time() - begin}


ROWS: Final[dict[str, Callable[[], dict[str, float]]]] = {
    "nanoGPT generate, 200 tokens": lambda: generated(False),
    "nanoGPT generate, 200 tokens, captured model": lambda: generated(True),
    **{f"{name}, {'training' if training else 'inference'}{', captured' if captured else ''}":
       lambda make=make, training=training, captured=captured: batches(make, training, captured)
       for name, make in (("BERT", bert), ("LSTM", lstm), ("CNN", cnn))
       for training in (False, True) for captured in (False, True)}}


def measured(name: str) -> dict[str, float]:
    """Return the figures of one row, from a fresh process with an empty disk cache."""
    with tempfile.TemporaryDirectory() as cache:
        done = subprocess.run([sys.executable, "-m", "benchmarks.lengths", "--row", name], capture_output=True,
                              text=True, check=False, env=environment(sys.executable, cache))
    if done.returncode:
        raise RuntimeError(done.stderr)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lengths", description=__doc__.split("\n")[0])
    parser.add_argument("--only", default="", help="measure the rows whose name contains this text")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.row:
        print(json.dumps(ROWS[options.row]()))
        return
    print(f"{machine()}; seconds of processor time\n\n| | first | all | running | all ÷ (2 × first + running) |")
    print("| --- | --- | --- | --- | --- |")
    for name in ROWS:
        if options.only in name:
            m = measured(name)
            bound = 2 * m["first"] + m["running"] if "first" in m else 0
            print(f"| {name} | {m.get('first', 0):.2f} | {m['all']:.2f} | {m['running']:.2f} | "
                  f"{m['all'] / bound if bound else 0:.2f} |", flush=True)


if __name__ == "__main__":
    main()

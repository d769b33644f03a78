"""``python -m benchmarks.decode``: tokens of a Llama through ``torch.compile``, with a static cache of keys and values.

The model has random weights, and the cache is ``transformers.StaticCache``. Systems run one after the other in one
process. A token's time is the median of its steps on the CPU (one thread, processor time), the mean on a GPU.
"""
from __future__ import annotations

import argparse
import os
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Final

from benchmarks.process import machine

PROMPT: Final = 16  # tokens
WARM: Final = 10  # steps before the first that is timed
STEPS: Final = 30


class Decoder:
    """A model, its cache, and the number of tokens in it.

    Args:
        width, layers: of the model; heads have 64 elements on the CPU, and two queries share a key on a GPU.
        positions: tokens that the cache holds.
        sequences: the size of the batch.
    """

    def __init__(self, device: str, width: int, layers: int, positions: int, sequences: int) -> None:
        import torch
        import transformers

        self.torch, self.device, self.sequences, self.place = torch, device, sequences, PROMPT
        gpu = device != "cpu"
        heads = width // (128 if gpu else 64)
        config = transformers.LlamaConfig(
            hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads,
            num_key_value_heads=heads // 2 if gpu else heads, intermediate_size=width * 11 // 4, vocab_size=32000,
            max_position_embeddings=max(positions, 2048))
        torch.manual_seed(0)
        self.model = transformers.LlamaForCausalLM(config).eval().to(device, torch.bfloat16 if gpu else torch.float32)
        self.cache = transformers.StaticCache(config=config, max_cache_len=positions)
        with torch.no_grad():  # the prompt
            self.model(self._tokens(PROMPT), past_key_values=self.cache, use_cache=True,
                       cache_position=torch.arange(PROMPT, device=device))

    def _tokens(self, count: int) -> Any:
        return self.torch.randint(0, 32000, (self.sequences, count), device=self.device)

    def step(self, forward: Callable[..., Any]) -> None:
        """Compute the logits of one more token of each sequence."""
        at = self.torch.tensor([self.place], device=self.device)
        self.place += 1
        with self.torch.no_grad():
            forward(self._tokens(1), past_key_values=self.cache, cache_position=at, use_cache=True,
                    position_ids=at[None].expand(self.sequences, 1))

    def seconds(self, forward: Callable[..., Any]) -> float:
        """Return the seconds of a token."""
        self.place = PROMPT
        for _ in range(WARM):
            self.step(forward)
        if self.device != "cpu":
            self.torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(STEPS):
                self.step(forward)
            self.torch.cuda.synchronize()
            return (time.perf_counter() - begin) / STEPS
        found = []
        for _ in range(STEPS):
            begin = time.process_time()
            self.step(forward)
            found.append(time.process_time() - begin)
        return statistics.median(found)


def main(args: Sequence[str] | None = None) -> None:
    """Print the milliseconds of a token for each system, and their ratios to those of eager PyTorch."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.decode", description=__doc__)
    parser.add_argument("--device", choices=("CPU", "CUDA"), default="CPU")
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--positions", type=int, default=4096, help="tokens that the cache holds")
    parser.add_argument("--sequences", type=int, default=1)
    parser.add_argument("--systems", default="eager,tinsmith", help="of eager, tinsmith, inductor")
    given = parser.parse_args(args)
    if given.positions < PROMPT + WARM + STEPS:
        parser.error(f"--positions must be at least {PROMPT + WARM + STEPS}: a prompt, and the steps")
    warnings.filterwarnings("ignore", category=FutureWarning)
    os.environ["THREADS"] = "1"  # as many as PyTorch has
    import torch

    torch.set_num_threads(1)
    decoder = Decoder(given.device.lower(), given.width, given.layers, given.positions, given.sequences)
    print(f"{machine()}; {given.layers} layers of {given.width}, {given.positions} positions, "
          f"{given.sequences} sequences")
    first = 0.0
    for name in given.systems.split(","):
        model = decoder.model.forward
        found = decoder.seconds(model if name == "eager" else torch.compile(model, backend=name, dynamic=False))
        first = first or found
        print(f"{name:9} {1e3 * found:8.2f} ms per token {first / found:6.2f}", flush=True)


if __name__ == "__main__":
    main()

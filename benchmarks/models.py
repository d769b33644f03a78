"""``python -m benchmarks models``: training steps of complete models on a GPU, under autocast, ours and PyTorch's.

Each system runs in a process of its own, one after the other; the result is the median of several groups of steps.
PyTorch needs ``transformers`` and ``torchvision``.
"""
from __future__ import annotations

import argparse
import importlib
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from tinsmith import Device, Tensor, TinyJit, nn
from tinsmith.examples.gpt_distributed import gpt
from tinsmith.examples.resnet import ResNet

MODELS = ("gpt2", "resnet50")
SYSTEMS = ("ours", "eager", "compiled")
VOCABULARY, LENGTH = 50304, 1024
GROUPS, STEPS = 5, 10


def ours(model: str, batch: int) -> tuple[Callable[[], object], Callable[[], object]]:
    """Return functions that run a step and wait for it."""
    rng = np.random.default_rng(0)
    layers: list[Any]
    if model == "gpt2":
        layers = list(gpt(VOCABULARY, 768, 12, LENGTH, 64))
        x = Tensor(rng.integers(0, VOCABULARY, (batch, LENGTH), np.int32)).realize()
        y = x
    else:
        layers = [ResNet(50)]
        x = Tensor(rng.normal(size=(batch, 3, 224, 224)).astype(np.float32)).realize()
        y = Tensor(rng.integers(0, 1000, batch, np.int32)).realize()
    parameters = nn.state.get_parameters(layers)
    optimizer: Any = nn.optim.AdamW(parameters, lr=1e-4) if model == "gpt2" else (
        nn.optim.SGD(parameters, lr=1e-2, momentum=0.9))

    @TinyJit
    @Tensor.train()
    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        with Tensor.autocast("bfloat16"):
            out = x
            for layer in layers:
                out = layer(out)
        loss = out.float().sparse_categorical_crossentropy(y)
        loss.backward()
        optimizer.step()
        return loss.realize()

    return lambda: step(x, y), Device[Device.DEFAULT].synchronize


def theirs(model: str, batch: int, compiled: bool) -> tuple[Callable[[], object], Callable[[], object]]:
    """Return the same for PyTorch."""
    torch = importlib.import_module("torch")
    torch.manual_seed(0)
    entropy = torch.nn.functional.cross_entropy
    if model == "gpt2":
        library = importlib.import_module("transformers")
        config = library.GPT2Config(vocab_size=VOCABULARY, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)
        net = library.GPT2LMHeadModel(config).cuda().train()
        x = torch.randint(0, VOCABULARY, (batch, LENGTH), device="cuda")
        y = x
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)
    else:
        net = importlib.import_module("torchvision").models.resnet50().cuda().train()
        x = torch.randn(batch, 3, 224, 224, device="cuda")
        y = torch.randint(0, 1000, (batch,), device="cuda")
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-2, momentum=0.9)
    called = torch.compile(net) if compiled else net

    def step() -> object:
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            out = called(x, use_cache=False).logits.flatten(0, 1) if model == "gpt2" else called(x)
        loss = entropy(out.float(), y.flatten())
        loss.backward()
        optimizer.step()
        return loss

    return step, torch.cuda.synchronize


def measure(system: str, model: str, batch: int) -> str:
    """Return the milliseconds of a step, and the seconds of the first one, as text."""
    step, wait = ours(model, batch) if system == "ours" else theirs(model, batch, system == "compiled")
    start = time.perf_counter()
    step()
    wait()
    first = time.perf_counter() - start
    for _ in range(3):
        step()
    wait()
    found = []
    for _ in range(GROUPS):
        start = time.perf_counter()
        for _ in range(STEPS):
            step()
        wait()
        found.append((time.perf_counter() - start) / STEPS)
    return f"{model}, batch {batch}, {system}: {statistics.median(found) * 1e3:.1f} ms; first step {first:.1f} s"


def main(arguments: list[str] | None = None) -> None:
    """Print a line for each model and system."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks models", description=__doc__)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--systems", default=",".join(SYSTEMS))
    parser.add_argument("--batches", default="8,64", help="of the models of the default")
    parser.add_argument("--here", action="store_true", help="in this process")
    given = parser.parse_args(arguments)
    for model, batch in zip(given.models.split(","), given.batches.split(",")):
        for system in given.systems.split(","):
            if given.here:
                print(measure(system, model, int(batch)), flush=True)
                continue
            line = [sys.executable, "-m", "benchmarks", "models", "--here", "--models", model, "--batches", batch,
                    "--systems", system]
            subprocess.run(line, check=False)


if __name__ == "__main__":
    main()

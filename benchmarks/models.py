"""``python -m benchmarks models``: steps of complete models on a GPU, under autocast, ours and PyTorch's.

Each system runs in a process of its own, one after the other; the result is the median of several groups of steps.
PyTorch needs ``transformers`` and ``torchvision``. ``networks.py`` has our models.
"""
from __future__ import annotations

import argparse
import importlib
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.networks import BATCHES, CHARACTERS, LENGTH, LSTM_LENGTH, LSTM_WIDTH, OURS, UNET_WIDTHS, VOCABULARY
from tinsmith import Device, GlobalCounters

SYSTEMS = ("ours", "eager", "compiled")
GROUPS, STEPS = 5, 10


def ours(model: str, batch: int) -> tuple[Callable[[], object], Callable[[], object]]:
    """Return functions that run a step and wait for it."""
    return OURS[model](batch), Device[Device.DEFAULT].synchronize


def _unet(torch: Any, widths: Sequence[int], classes: int) -> Any:
    """Return PyTorch's form of ``networks.UNet``."""
    nn = torch.nn

    def double(channels: int, width: int) -> Any:
        layers = list[Any]()
        for n in (channels, width):
            layers += [nn.Conv2d(n, width, 3, padding=1, bias=False), nn.GroupNorm(8, width), nn.ReLU()]
        return nn.Sequential(*layers)

    class UNet(nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.down = nn.ModuleList(double(a, b) for a, b in zip((3, *widths), widths))
            self.up = nn.ModuleList(nn.ConvTranspose2d(a, b, 2, 2) for a, b in zip(widths[:0:-1], widths[-2::-1]))
            self.joined = nn.ModuleList(double(2 * w, w) for w in widths[-2::-1])
            self.head = nn.Conv2d(widths[0], classes, 1)

        def forward(self, x: Any) -> Any:
            beside = list[Any]()
            for n, layer in enumerate(self.down):
                x = layer(nn.functional.max_pool2d(x, 2) if n else x)
                beside.append(x)
            for up, joined, skip in zip(self.up, self.joined, reversed(beside[:-1])):
                x = joined(torch.cat([skip, up(x)], 1))
            return self.head(x)

    return UNet()


def _lstm(torch: Any) -> Any:
    """Return PyTorch's form of ``networks.Lstm``; its result has the classes in axis 1."""
    nn = torch.nn

    class Lstm(nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.head = nn.Embedding(CHARACTERS, LSTM_WIDTH), nn.Linear(LSTM_WIDTH, CHARACTERS)
            self.lstm = nn.LSTM(LSTM_WIDTH, LSTM_WIDTH, 2, batch_first=True)

        def forward(self, x: Any) -> Any:
            return self.head(self.lstm(self.embedding(x))[0]).transpose(1, 2)

    return Lstm()


def _network(torch: Any, model: str, batch: int) -> tuple[Any, Any, Any]:
    """Return PyTorch's model, its input and its labels."""
    if model in ("gpt2", "bert"):
        library = importlib.import_module("transformers")
        if model == "bert":
            return library.BertModel(library.BertConfig()), torch.randint(0, 30522, (batch, 128)), None
        config = library.GPT2Config(vocab_size=VOCABULARY, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)
        x = torch.randint(0, VOCABULARY, (batch, LENGTH))
        return library.GPT2LMHeadModel(config), x, x.flatten()
    if model == "unet":
        return _unet(torch, UNET_WIDTHS, 4), torch.randn(batch, 3, 128, 128), torch.randint(0, 4, (batch, 128, 128))
    if model == "lstm":
        x = torch.randint(0, CHARACTERS, (batch, LSTM_LENGTH))
        return _lstm(torch), x, x
    found = importlib.import_module("torchvision").models
    net = found.resnet50() if model == "resnet50" else found.vit_b_16()
    return net, torch.randn(batch, 3, 224, 224), torch.randint(0, 1000, (batch,))


def theirs(model: str, batch: int, compiled: bool) -> tuple[Callable[[], object], Callable[[], object]]:
    """Return the same for PyTorch; images and convolutions are channels last."""
    torch = importlib.import_module("torch")
    torch.manual_seed(0)
    net, x, y = (t if t is None else t.cuda() for t in _network(torch, model, batch))
    net.train(model != "bert")
    if model in ("resnet50", "unet"):
        net, x = (t.to(memory_format=torch.channels_last) for t in (net, x))
    called = torch.compile(net) if compiled else net
    optimizer = (torch.optim.SGD(net.parameters(), lr=1e-2, momentum=0.9) if model == "resnet50" else
                 torch.optim.AdamW(net.parameters(), lr=1e-4))
    autocast = torch.autocast("cuda", torch.bfloat16, enabled=model != "lstm")

    def infer() -> object:
        with torch.no_grad(), autocast:
            return called(x).last_hidden_state

    def train() -> object:
        optimizer.zero_grad()
        with autocast:
            out = called(x, use_cache=False).logits.flatten(0, 1) if model == "gpt2" else called(x)
        loss = torch.nn.functional.cross_entropy(out.float(), y)
        loss.backward()
        optimizer.step()
        return loss

    return infer if model == "bert" else train, torch.cuda.synchronize


def peak(system: str) -> float:
    """Return the greatest number of gigabytes in use so far, weights included."""
    if system == "ours":
        return max(GlobalCounters.mem_peak_per_device.values(), default=0) / 1e9
    return float(importlib.import_module("torch").cuda.max_memory_allocated()) / 1e9


def measure(system: str, model: str, batch: int) -> str:
    """Return the milliseconds of a step, the seconds of the first one, and the peak of memory, as text."""
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
    took = f"{statistics.median(found) * 1e3:.2f} ms; first step {first:.1f} s; at most {peak(system):.1f} GB"
    return f"{model}, batch {batch}, {system}: {took}"


def main(arguments: list[str] | None = None) -> None:
    """Print a line for each model and system."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks models", description=__doc__)
    parser.add_argument("--models", default=",".join(OURS))
    parser.add_argument("--systems", default=",".join(SYSTEMS))
    parser.add_argument("--batches", default="", help="of the models; default: those of the tables")
    parser.add_argument("--device", default="CUDA", help="of our models")
    parser.add_argument("--here", action="store_true", help="in this process")
    given = parser.parse_args(arguments)
    Device.DEFAULT = given.device
    names = given.models.split(",")
    batches = given.batches.split(",") if given.batches else [str(BATCHES[name]) for name in names]
    for model, batch in zip(names, batches, strict=True):
        for system in given.systems.split(","):
            if model.startswith(("llama", "mnist")) and system != "ours":
                continue  # PyTorch has no such model here
            if given.here:
                print(measure(system, model, int(batch)), flush=True)
                continue
            line = [sys.executable, "-m", "benchmarks", "models", "--here", "--models", model, "--batches", batch,
                    "--systems", system, "--device", given.device]
            subprocess.run(line, check=False)


if __name__ == "__main__":
    main()

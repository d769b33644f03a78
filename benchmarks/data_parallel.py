"""``torchrun --nproc-per-node 2 -m benchmarks.data_parallel``: GPUs that communicate through NCCL.

Prints the time of an all-reduce, beside PyTorch's in the same processes if it is installed; of a training step of a GPT
on one GPU and on all, with gradients reduced beside the backward pass and after it; and of one with the layers in
stages of a pipeline.
"""
from __future__ import annotations

import argparse
import importlib.util
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from tinsmith import Device, Tensor, TinyJit, nn
from tinsmith import distributed as dist
from tinsmith.examples.gpt_distributed import gpt

SIZES = (1 << 20, 32 << 20, 1 << 30)  # bytes
ROUNDS, VOCABULARY = 10, 50304


def _median(run: Callable[[], object], wait: Callable[[], object], each: int = 1) -> float:
    """Return the median seconds of ``run``, of which ``each`` runs are measured together."""
    found = []
    for _ in range(ROUNDS):
        dist.barrier()
        start = time.perf_counter()
        for _ in range(each):
            run()
        wait()
        found.append((time.perf_counter() - start) / each)
    return statistics.median(found)


def all_reduces() -> None:
    """Print milliseconds and bus bandwidth, 2 (n - 1) / n of the bytes over the time, of ours and of PyTorch's."""
    device = Device[Device.DEFAULT]
    torch = _torch()
    for nbytes in SIZES:
        x = Tensor(np.ones(nbytes // 4, np.float32)).realize()
        reduced = TinyJit(lambda x: dist.all_reduce(x))
        for _ in range(3):
            reduced(x)
        each = max(1, min(50, (1 << 28) // nbytes))
        times = {"ours": _median(lambda x=x, reduced=reduced: reduced(x), device.synchronize, each)}
        if torch is not None:
            y = torch.ones(nbytes // 4, device="cuda")
            run = lambda y=y: torch.distributed.all_reduce(y)  # noqa: E731
            run()
            times["PyTorch"] = _median(run, torch.cuda.synchronize, each)
        bus = nbytes * 2 * (dist.world_size() - 1) / dist.world_size() / 1e9
        print(f"all-reduce of {nbytes >> 20} MB: "
              + "; ".join(f"{who} {t * 1e3:.3f} ms, {bus / t:.0f} GB/s" for who, t in times.items()), flush=True)


def _torch() -> Any:
    if importlib.util.find_spec("torch") is None:
        return None
    import torch
    import torch.distributed

    if not torch.cuda.is_available():
        return None
    torch.cuda.set_device(dist.local_rank())
    torch.distributed.init_process_group("nccl", device_id=torch.device("cuda", dist.local_rank()))
    return torch


class Model:
    """The layers of a GPT, one after the other."""

    def __init__(self, width: int, layers: int, length: int) -> None:
        self.layers = gpt(VOCABULARY, width, layers, length, head=64)

    def __call__(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def training(batch: int, length: int, width: int, layers: int) -> None:
    """Print the time of a step without and with the reduction of gradients."""
    rng = np.random.default_rng(dist.rank())
    ids, targets = (Tensor(rng.integers(0, VOCABULARY, (batch, length), np.int32)).realize() for _ in range(2))
    times: dict[str, float] = {}
    for name, overlap in (("without reduction", None), ("beside the backward pass", True), ("after it", False)):
        Tensor.manual_seed(0)
        model = Model(width, layers, length)
        optimizer = nn.optim.AdamW(nn.state.get_parameters(model), lr=1e-4)

        @TinyJit
        @Tensor.train()
        def step(x: Tensor, y: Tensor, model: Model = model, optimizer: Any = optimizer,
                 overlap: bool | None = overlap) -> Tensor:
            optimizer.zero_grad()
            with Tensor.autocast("bfloat16"):
                loss = model(x).float().sparse_categorical_crossentropy(y)
            loss.backward()
            if overlap is not None:
                dist.all_reduce_gradients(optimizer, overlap=overlap)
            optimizer.step()
            return loss.realize()

        losses = [step(ids, targets).item() for _ in range(4)]
        times[name] = _median(lambda step=step: step(ids, targets), Device[Device.DEFAULT].synchronize, 3)
        print(f"GPT of {layers} layers of {width}, {batch}×{length} per GPU, {name}: {times[name] * 1e3:.2f} ms, "
              f"{times['without reduction'] / times[name]:.1%}; loss {losses[-1]:.3f}", flush=True)
        del step, model, optimizer


def pipelines(batch: int, length: int, width: int, layers: int, microbatches: int) -> None:
    """Print the time of a step on one batch of all GPUs' rows, with the layers in a stage per GPU."""
    rng, count = np.random.default_rng(0), dist.world_size()
    ids, targets = (Tensor(rng.integers(0, VOCABULARY, (batch * count, length), np.int32)).realize() for _ in range(2))
    for schedule in ("1f1b", "gpipe"):
        Tensor.manual_seed(0)
        model = dist.pipeline(
            gpt(VOCABULARY, width, layers, length, head=64), dist.mesh(stage=count), microbatches=microbatches,
            schedule=schedule, loss=lambda logits, y: logits.float().sparse_categorical_crossentropy(y))
        optimizer = nn.optim.AdamW(nn.state.get_parameters(model), lr=1e-4)

        @TinyJit
        @Tensor.train()
        def step(x: Tensor, y: Tensor, model: Any = model, optimizer: Any = optimizer) -> Tensor:
            optimizer.zero_grad()
            with Tensor.autocast("bfloat16"):
                loss = model.step(x, y)
            optimizer.step()
            return loss.realize()

        losses = [step(ids, targets).item() for _ in range(4)]
        seconds = _median(lambda step=step: step(ids, targets), Device[Device.DEFAULT].synchronize, 3)
        print(f"GPT of {layers} layers of {width}, {batch * count}×{length} in {microbatches} microbatches, {schedule} "
              f"in {count} stages: {seconds * 1e3:.2f} ms; loss {losses[-1]:.3f}", flush=True)
        del step, model, optimizer


def main() -> None:
    """Run all parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("batch", 8), ("length", 1024), ("width", 768), ("layers", 12), ("microbatches", 8)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--only", choices=("all-reduce", "training", "pipeline"))
    given = parser.parse_args()
    dist.init()
    if given.only in (None, "all-reduce"):
        all_reduces()
    if given.only in (None, "training"):
        training(given.batch, given.length, given.width, given.layers)
    if given.only in (None, "pipeline"):
        pipelines(given.batch, given.length, given.width, given.layers, given.microbatches)


if __name__ == "__main__":
    main()

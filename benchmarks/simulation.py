"""``python -m benchmarks.simulation``: steps in 2 and 4 processes under MPI, and what ``tinsmith simulate`` predicts.

With arguments it is the program that is measured and simulated: ``mlp WIDTH ROWS``, ``gpt [--zero3]`` or ``pipeline
SCHEDULE``, on a mesh of the axes data, stage and model, whose sizes are in the environment (``DATA``, ``STAGE``,
``MODEL``). With ``--only pipeline`` it measures rows that begin so.
"""
from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.process import machine
from tinsmith import Tensor, TinyJit, nn
from tinsmith import distributed as dist
from tinsmith.examples.gpt_distributed import gpt, rules

STEPS, WARM = 20, 5
AXES = ("data", "stage", "model")
MLP = [(f"mlp {width} {rows}", n, 1, 1) for width, rows in ((512, 256), (1024, 512), (256, 1024)) for n in (2, 4)]
GPT = [("gpt", 2, 1, 1), ("gpt", 4, 1, 1), ("gpt", 1, 1, 2), ("gpt --zero3", 2, 1, 1), ("gpt", 2, 1, 2),
       ("gpt --zero3", 2, 1, 2)]
PIPELINES = [(f"pipeline {schedule}", 1, n, 1) for schedule in ("1f1b", "gpipe") for n in (2, 4)] + [
    ("pipeline 1f1b", 2, 2, 1)]


def program(kind: str, *options: str) -> None:
    """Train for some steps; rank 0 prints the median of their seconds."""
    import numpy as np

    dist.init()
    mesh = dist.mesh(**{axis: int(os.environ[axis.upper()]) for axis in AXES})
    Tensor.manual_seed(0)
    x: Any
    if kind == "mlp":
        width, rows = map(int, options)
        layers = [nn.Linear(width, 4 * width), nn.Linear(4 * width, width), nn.Linear(width, 2)]
        x, y = np.ones((rows // mesh.size("data"), width), np.float32), np.zeros(rows // mesh.size("data"), np.int32)
    elif kind == "pipeline":
        pipe = dist.pipeline(gpt(2048, 256, 6, 128, 64), mesh, loss=Tensor.sparse_categorical_crossentropy,
                             microbatches=8, schedule=options[0])
        layers = list(pipe.layers.values())
        x = y = np.zeros((16 // mesh.size("data"), 128), np.int32)
    else:
        layers = dist.shard(gpt(2048, 256, 2, 128, 64), mesh, rules("--zero3" in options))
        x = y = np.zeros((8 // mesh.size("data"), 128), np.int32)
    optimizer = nn.optim.AdamW(nn.state.get_parameters(layers), lr=1e-4)

    @TinyJit
    @Tensor.train()
    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        if kind == "pipeline":
            loss = pipe.step(x, y)
            dist.all_reduce_gradients(optimizer, axis="data")
            optimizer.step()
            return loss
        for n, layer in enumerate(layers):
            x = layer(x).relu() if kind == "mlp" and n < len(layers) - 1 else layer(x)
        loss = x.sparse_categorical_crossentropy(y) if kind == "mlp" else dist.vocabulary_cross_entropy(x, y, "model")
        loss.backward()
        dist.all_reduce_gradients(optimizer, axis="data")
        optimizer.step()
        return loss

    times, given = [], (Tensor(x), Tensor(y))
    for _ in range(STEPS):
        start = time.perf_counter()
        step(*given).realize()
        times.append(time.perf_counter() - start)
    if dist.rank() == 0:
        print(statistics.median(times[WARM:]))


def run(*command: str, **environment: str) -> str:
    """Run Python with these arguments, and return what it prints."""
    done = subprocess.run([sys.executable, *command], env={**os.environ, **environment}, check=True, text=True,
                          stdout=subprocess.PIPE)
    return done.stdout


def main(only: str = "") -> None:
    """Measure the links, then each row that begins with ``only``, and print the errors of the predictions."""
    print(f"{machine()}\n\n| step | processes | measured | predicted | error |\n| --- | --- | --- | --- | --- |")
    rows = [row for row in (*MLP, *GPT, *PIPELINES) if row[0].startswith(only)]
    with tempfile.TemporaryDirectory(prefix="benchmarks-") as folder:
        for n in (2, 4):
            measure = ["-m", "tinsmith", "simulate", "--measure", f"{folder}/{n}.json"]
            run("-m", "tinsmith", "launch", "-n", str(n), *measure)
        for what, *sizes in rows:
            n, shown = str(math.prod(sizes)), ",".join(f"{axis}={size}" for axis, size in zip(AXES, sizes))
            given = {axis.upper(): str(size) for axis, size in zip(AXES, sizes)}
            script = [str(Path(__file__)), *what.split()]
            took = float(run("-m", "tinsmith", "launch", "-n", n, *script, **given).split()[-1])
            found = json.loads(run("-m", "tinsmith", "simulate", "--json", "--links", f"{folder}/{n}.json", "--mesh",
                                   shown, *script, **given))["seconds"]
            print(f"| {what}, {shown} | {n} | {took * 1e3:.3g} ms | {found * 1e3:.3g} ms | {found / took - 1:+.0%} |",
                  flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] in ([], ["--only"]):
        main(*sys.argv[2:])
    else:
        program(*sys.argv[1:])

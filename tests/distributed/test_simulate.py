"""``tinsmith simulate``: collectives take the time of the formulas, and memory is that of a real process."""
from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.running import clean
from tests.golden.running import environment
from tinsmith.backend.cpu.device import host_target
from tinsmith.codegen.planner.roofline import default_machine
from tinsmith.core.errors import ArgumentError
from tinsmith.distributed.simulation.links import Link, Links
from tinsmith.distributed.simulation.simulate import StepReport, extrapolated, mesh_sizes

SCRIPT = """
import sys
import numpy as np
from tinsmith import GlobalCounters, Tensor, TinyJit, nn
from tinsmith import distributed as dist

dist.init()
mesh = dist.mesh(data=-1, model=1)
model = [nn.Linear(16, 64), nn.Linear(64, 16), nn.Linear(16, 4)]
zero3 = "--zero3" in sys.argv
dist.shard(model, mesh, {"0.*": ("model",), "1.weight": (None, "model"), "2.weight": ("data" if zero3 else None,)})
optimizer = nn.optim.Adam(nn.state.get_parameters(model), lr=0.01)

@TinyJit
@Tensor.train()
def step(x, y):
    loss = model[2](model[1](model[0](x).relu())).sparse_categorical_crossentropy(y)
    optimizer.zero_grad()
    loss.backward()
    dist.all_reduce_gradients(optimizer, axis="data")
    optimizer.step()
    return loss

x, y = Tensor(np.ones((32, 16), np.float32)), Tensor(np.zeros(32, np.int32))
for number in range(100):
    GlobalCounters.reset()
    loss = step(x, y)
    if number == 2 and "--real" in sys.argv:
        print(GlobalCounters.peak_on["CPU"])
        break
else:
    raise AssertionError("the simulation has not ended the script")
"""


def _links(folder: Path) -> Links:
    """Write a file of two levels of links, without latency of kernels."""
    machine = default_machine(replace(host_target("llvm"), threads=1), "CPU")
    found = Links("made up", {"renderer": "cpu", "machine": json.loads(machine.dumps())}, 1 << 30, 4,
                  Link(1e-3, 1e6), Link(4e-3, 1e5), overlaps=False)
    (folder / "links.json").write_text(found.dumps())
    return found


def _simulated(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(SCRIPT)
    return subprocess.run([sys.executable, "-m", "tinsmith", "simulate", "train.py", "--links", "links.json", "--json",
                           *arguments], cwd=folder, env=clean(environment(folder / "cache")), text=True,
                          capture_output=True, timeout=120)


def _report(folder: Path, *arguments: str) -> dict[str, Any]:
    done = _simulated(folder, *arguments)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found

WHOLE = 4 * (16 * 64 + 64 + 64 * 16 + 16 + 16 * 4 + 4)  # bytes of the parameters


def test_memory_is_that_of_a_real_process(tmp_path: Path) -> None:
    _links(tmp_path)
    found = _report(tmp_path, "--mesh", "data=1")
    real = subprocess.run([sys.executable, "train.py", "--real"], cwd=tmp_path, text=True, capture_output=True,
                          env=clean(environment(tmp_path / "cache")), timeout=120)
    assert real.returncode == 0, real.stderr
    assert found["peak"] == int(real.stdout)
    assert found["parameters"] == found["gradients"] == WHOLE and found["exposed"] == {}


def test_gradients_take_the_time_of_an_all_reduce_in_two_levels(tmp_path: Path) -> None:
    """8 processes on 2 hosts: reduce-scatter and all-gather of 4 within hosts, all-reduce of a quarter between 2."""
    _links(tmp_path)
    found = _report(tmp_path, "--mesh", "data=8")
    within = 2 * (2 * 1e-3 + 0.75 * WHOLE / 1e6)
    between = 2 * 4e-3 + WHOLE / 4 / 1e5
    assert found["exposed"] == {"all_reduce data": pytest.approx(within + between)}
    assert found["seconds"] == pytest.approx(sum(found["kernels"].values()) + within + between)


def test_sharded_parameters_take_their_part_of_memory_and_their_collectives(tmp_path: Path) -> None:
    _links(tmp_path)
    found = _report(tmp_path, "--mesh", "data=2,model=2", "--zero3")
    own = 4 * (16 * 32 + 32 + 32 * 16 + 16 + 16 * 2 + 4)
    assert found["parameters"] == found["gradients"] == own and own * 2 <= found["state"] <= own * 2 + 16
    assert set(found["exposed"]) == {"all_reduce model", "all_reduce data", "all_gather data", "reduce_scatter data"}
    assert found["exposed"]["all_gather data"] == pytest.approx(1e-3 + 0.5 * 4 * 16 * 4 / 1e6)


def test_errors_name_what_is_wrong(tmp_path: Path) -> None:
    done = _simulated(tmp_path, "--mesh", "data=2")
    assert done.returncode == 1 and "no file 'links.json'" in done.stderr and "h200.json" in done.stderr
    with pytest.raises(ArgumentError, match="data=64,model=8"):
        mesh_sizes("64x8")
    (tmp_path / "links.json").write_text("{}")
    with pytest.raises(ArgumentError, match="does not describe a machine"):
        Links.load(tmp_path / "links.json")


def test_reports_are_extrapolated_by_each_number() -> None:
    few = StepReport("data=2", "m", 2, 3.0, {"memory": 1.0}, {"all_reduce data": 2.0}, {}, 10.0, 4, 4, 8, 30, 99,
                 [("all_reduce data", 2, 2.0), ("k", 1, 1.0)])
    many = replace(few, seconds=5.0, kernels={"memory": 2.0}, exposed={"all_reduce data": 3.0}, operations=20.0,
                   parameters=8, peak=50, path=[("all_reduce data", 4, 3.0), ("k", 2, 2.0)])
    found = extrapolated(few, many, 3.0)
    assert (found.seconds, found.kernels["memory"], found.operations) == (9.0, 4.0, 40.0)
    assert (found.parameters, found.gradients, found.peak) == (16, 4, 90)
    assert found.path == [("all_reduce data", 8, 5.0), ("k", 4, 4.0)]
    assert found.communication == pytest.approx(5 / 9)


PIPELINE = """
import os
import numpy as np
from tinsmith import Tensor, TinyJit, nn
from tinsmith import distributed as dist

mesh = dist.mesh(data=1, stage=-1)
layers = [nn.Linear(64, 64) for _ in range(4)]
loss = lambda x, y: ((x - y) ** 2).mean()
pipe = dist.pipeline(layers, mesh, loss=loss, microbatches=4, schedule=os.environ["SCHEDULE"])
optimizer = nn.optim.SGD(nn.state.get_parameters(pipe), lr=0.01)

@TinyJit
@Tensor.train()
def step(x, y):
    optimizer.zero_grad()
    loss = pipe.step(x, y)
    optimizer.step()
    return loss

x = Tensor(np.ones((64, 64), np.float32))
for _ in range(100):
    step(x, x)
"""


def _pipeline(folder: Path, schedule: str, *more: str, script: str = PIPELINE) -> subprocess.CompletedProcess[str]:
    (folder / "pipeline.py").write_text(script)
    return subprocess.run([sys.executable, "-m", "tinsmith", "simulate", "pipeline.py", "--links", "links.json",
                           "--mesh", "data=1,stage=2", *more], cwd=folder, text=True, capture_output=True, timeout=120,
                          env=clean(environment(folder / "cache", SCHEDULE=schedule)))


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_stages_of_a_pipeline_wait_for_each_other(schedule: str, tmp_path: Path) -> None:
    """Both stages have the same step; messages take the time of the link, and idle time is that of the schedule."""
    links = replace(_links(tmp_path), within=Link(1e-6, 1e9))
    (tmp_path / "links.json").write_text(links.dumps())
    found = []
    for rank in ("0", "1"):
        done = _pipeline(tmp_path, schedule, "--json", "--rank", rank)
        assert done.returncode == 0, done.stderr
        found.append(json.loads(done.stdout))
    first, last = found
    assert first["stages"] == last["stages"] and first["seconds"] == pytest.approx(last["seconds"], rel=1e-6)
    each = 1e-6 + 4 * 16 * 64 / 1e9
    for report, (kernels, messages, idle, peak) in zip(found, first["stages"]):
        assert report["exposed"]["post stage"] == pytest.approx(4 * each)
        assert report["exposed"]["receive stage"] == pytest.approx(4 * each)
        assert kernels + messages + idle == pytest.approx(report["seconds"]) and report["peak"] == peak
    ideal = 1 / (4 + 1)  # (stages - 1) / (microbatches + stages - 1), if messages took no time
    shares = [idle / first["seconds"] for _, _, idle, _ in first["stages"]]  # the last stage has the loss, too
    assert ideal / 2 < shares[0] < 2 * ideal and 0 < shares[1] < shares[0], shares


def test_a_stage_that_fails_ends_the_simulation(tmp_path: Path) -> None:
    _links(tmp_path)
    bad = PIPELINE.replace("((x - y) ** 2).mean()", "{}['bad loss']")
    done = _pipeline(tmp_path, "1f1b", script=bad)
    assert done.returncode != 0 and "bad loss" in done.stderr and "another stage failed" in done.stderr

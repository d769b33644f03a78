"""Default plans of full networks compile for every target: small networks here, full-size ones by ``python -m
benchmarks.corpus compile``."""
from __future__ import annotations

import pytest

from benchmarks.corpus.compiled import GRIDS, built
from benchmarks.corpus.models import NETWORKS, models
from tests.backend.gpus import missing_nvrtc

PROGRAMS = {p.name: p for p in models(("small",))}
SNIPPETS = [name for name in PROGRAMS if name.startswith("snippet")]
COMPILED = ["snippet: relu, product of 2048², autocast bfloat16", "small ViT, inference, autocast"]


def test_the_networks_are_those_that_are_asked_for() -> None:
    assert set(NETWORKS) == {"GPT-2", "BERT", "ViT", "ResNet-50", "U-Net"}
    names = [p.name for p in models()]
    assert len(set(names)) == len(names)
    for size in ("small", "full"):
        for name in NETWORKS:
            assert sum(n.startswith(f"{size} {name}, ") for n in names) == 4


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_products_of_computed_operands_fit(target: str) -> None:
    for name in SNIPPETS:
        found = built(PROGRAMS[name], target, compiles=False)
        assert found.kernels and not found.faults, name


@pytest.mark.parametrize("network, target", [
    ("GPT-2", "sm_80"), ("BERT", "sm_90a"), ("ViT", "sm_90a"), ("U-Net", "sm_90a"), ("BERT", "opencl"),
    ("ViT", "metal"), ("GPT-2", "hip"), ("BERT", "webgpu")])
def test_a_step_of_training_under_autocast_fits(network: str, target: str) -> None:
    assert target in GRIDS
    found = built(PROGRAMS[f"small {network}, training, autocast"], target, compiles=False)
    assert found.kernels > 50 and not found.faults


@pytest.mark.parametrize("name", COMPILED)
def test_kernels_compile_without_a_gpu(name: str) -> None:
    if missing_nvrtc():
        pytest.skip(missing_nvrtc())
    found = built(PROGRAMS[name], "sm_90a")
    assert found.compiled == found.kernels > 0 and not found.faults

"""Sums over overlapping windows on a GPU grid: each thread computes a tile of places by steps."""
from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from benchmarks.corpus import record
from benchmarks.corpus.programs import CorpusProgram
from benchmarks.corpus.targets import device_name
from tinsmith import Tensor
from tinsmith.codegen.launch import KernelProgram
from tinsmith.core.dtypes import dtypes
from tinsmith.schedule.canonical import canonical
from tinsmith.schedule.scheduler import Scheduler
from tinsmith.tensor.realize import root_of

GRID = "PYTHON:G512:C1"  # interprets kernels for a grid of one core


@st.composite
def convolutions(draw: Any) -> tuple[tuple[int, ...], dict[str, int], bool]:
    """Draw (images, channels, height, width, window height, window width), arguments, and whether channels are last."""
    kernel = draw(st.integers(1, 5)), draw(st.integers(1, 7))
    dilation = draw(st.sampled_from([1, 1, 2]))
    sides = [draw(st.integers(dilation * (k - 1) + 1, 18)) for k in kernel]
    return (draw(st.sampled_from([1, 2, 4])), draw(st.sampled_from([1, 3, 8, 16])), *sides, *kernel), {
        "stride": draw(st.sampled_from([1, 1, 2, 3])), "padding": draw(st.integers(0, min(kernel) // 2)),
        "dilation": dilation}, draw(st.booleans())


def results(shape: tuple[int, ...], args: dict[str, int], last: bool, device: str) -> list[np.ndarray]:
    """Return a convolution of single channels, its gradients, the maxima of its windows and their means."""
    n, c, h, w, kh, kw = shape
    rng = np.random.default_rng(sum(shape))
    image = Tensor(rng.integers(-8, 8, (n, h, w, c) if last else (n, c, h, w)).astype(np.float32), device=device)
    image.requires_grad_()
    x = image.permute(0, 3, 1, 2) if last else image
    weight = Tensor(rng.integers(-4, 4, (c, 1, kh, kw)).astype(np.float32), device=device, requires_grad=True)
    y = x.conv2d(weight, groups=c, **args)
    flow = Tensor(rng.integers(-4, 4, y.shape).astype(np.float32), device=device)
    pooled = x.detach().max_pool2d((kh, kw), **args)
    values = [y, *y.gradient(image, weight, gradient=flow), pooled]
    Tensor.realize(*values)
    return [v.numpy() for v in values]


@settings(max_examples=12, deadline=None)
@given(convolutions())
@example(((4, 16, 12, 18, 5, 7), {"stride": 1, "padding": 2, "dilation": 1}, True))  # tiles of all four values
@example(((2, 16, 13, 17, 5, 7), {"stride": 2, "padding": 1, "dilation": 1}, True))
def test_windows_of_any_shape_are_right(case: tuple[tuple[int, ...], dict[str, int], bool]) -> None:
    """All values are small integers, so any order of sums is exact."""
    for got, want in zip(results(*case, GRID), results(*case, "CPU"), strict=True):
        np.testing.assert_array_equal(got, want)


def kernels(make: Any, target: str = "sm_90a") -> list[KernelProgram]:
    return record.kernels(CorpusProgram("", lambda: lambda: Tensor.realize(*make())), target)


@pytest.mark.parametrize(("channels", "side", "size", "stride"), [
    (96, 56, 7, 1), (384, 14, 7, 1), (16, 112, 3, 1), (72, 56, 5, 2), (240, 14, 5, 1), (33, 30, 3, 1)])
def test_a_thread_loads_an_element_once_for_several_windows(channels: int, side: int, size: int, stride: int) -> None:
    """Also for the gradient of the weights, whose few results are split along images and rows until threads suffice."""
    pad = size // 2
    device = device_name("sm_90a")
    x = Tensor.empty(64, side, side, channels, dtype=dtypes.bfloat16, device=device).permute(0, 3, 1, 2)
    w = Tensor.empty(channels, 1, size, size, dtype=dtypes.bfloat16, device=device, requires_grad=True)
    y = x.conv2d(w, groups=channels, padding=pad, stride=stride)
    flow = Tensor.empty(64, *y.shape[2:], channels, dtype=dtypes.bfloat16, device=device).permute(0, 3, 1, 2)
    for value in (y.permute(0, 2, 3, 1), *y.gradient(w, gradient=flow)):
        found = kernels(lambda value=value: [value.contiguous()])
        kernel = max(found, key=lambda k: k.ops)
        places = [o.amt for o in kernel.opts if record.short(o).startswith("UPCAST")]
        assert max(places, default=1) >= 3, kernel.name
        loads = kernel.source.count("*)(data") + len(re.findall(r"= data[12]\[", kernel.source))
        assert loads <= kernel.source.count("fmaf("), kernel.name
        assert np.prod(kernel.grid) * np.prod(kernel.block) >= 132 * 256


def test_padding_is_not_stored() -> None:
    """A depthwise convolution of a normalized value reads that value, in 16 bits, and masks what is outside."""
    x = Tensor.empty(64, 7, 7, 768, dtype=dtypes.bfloat16, device=device_name("sm_90a"))
    w = Tensor.empty(768, 1, 7, 7, dtype=dtypes.bfloat16, device=device_name("sm_90a"))
    y = x.float().layernorm().cast(dtypes.bfloat16).permute(0, 3, 1, 2).conv2d(w, groups=768, padding=3)
    items = Scheduler(canonical([root_of(y.uop)])[0], device_name("sm_90a")).run().items
    stored = [v.shape for i in items if i.sink is not None for v in i.sink.src]
    assert (64, 7, 7, 768) in stored
    assert not any(13 in shape for shape in stored), stored

"""User-supplied opts, as in the tutorials' page on loop unrolling."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.backend.opencl import needs_opencl
from tinsmith import Context, Device, Opt, OptOps, Tensor, with_opts
from tinsmith.core.errors import ArgumentError, DTypeError

DEVICES = ["CPU", "PYTHON", "PYTHON:G64", "OPENCL"]
EVERYWHERE = [[], [Opt(OptOps.UPCAST, 0, 4)], [Opt(OptOps.UPCAST, 0, 2), Opt(OptOps.UNROLL, 1, 0)],
              [Opt(OptOps.UNROLL, 1, 2)]]
OF_BLOCKS = [[Opt(OptOps.LOCAL, 0, 2)], [Opt(OptOps.GROUP, 1, 2)], [Opt(OptOps.GROUPTOP, 1, 4)],
             [Opt(OptOps.LOCAL, 0, 4), Opt(OptOps.GROUPTOP, 1, 2)],
             [Opt(OptOps.UPCAST, 0, 2), Opt(OptOps.LOCAL, 0, 2), Opt(OptOps.GROUP, 1, 4)], [Opt(OptOps.NOLOCALS)]]


def on(device: str) -> str:
    if device == "OPENCL":
        needs_opencl()
    return device


@pytest.mark.parametrize("device", DEVICES)
def test_a_sum_of_4_by_4(device: str) -> None:
    x = Tensor(np.arange(16, dtype=np.float32).reshape(4, 4), device=on(device)).realize()
    for opts in EVERYWHERE + (OF_BLOCKS if device != "CPU" else []):
        tuned = with_opts(x.sum(1), opts)
        assert tuned.opts == tuple(opts)
        np.testing.assert_array_equal(tuned.run(), [6, 22, 38, 54], str(opts))


@pytest.mark.parametrize("opts", OF_BLOCKS[:-1], ids=str)
def test_the_cpu_refuses_blocks_with_the_reason(opts: list[Opt]) -> None:
    with pytest.raises(ArgumentError, match="blocks of threads with local memory and barriers, which this device does"):
        with_opts(Tensor.ones(4, 4, device="CPU").contiguous().sum(1), opts)


@pytest.mark.parametrize("language, word", [("CUDA", "__shfl_xor_sync("), ("METAL", "threadgroup_barrier(")])
def test_source_only(language: str, word: str) -> None:
    x = Tensor.ones(4, 4, device="CPU").contiguous().realize()
    tuned = with_opts(x.sum(1), [Opt(OptOps.GROUP, 1, 2)], device=language)
    assert word in tuned.source and tuned.kernel.block == [2]
    with pytest.raises(ArgumentError, match=f"source is for {language}"):
        tuned.run()


@pytest.mark.parametrize("device", DEVICES[1:])
def test_a_matrix_product_by_hand(device: str) -> None:
    a, b = (np.random.default_rng(s).integers(-4, 5, (16, 16)).astype(np.float32) for s in (0, 1))
    product = Tensor(a, device=on(device)) @ Tensor(b, device=device)
    tile = [Opt(OptOps.UPCAST, 0, 2), Opt(OptOps.UPCAST, 1, 2), Opt(OptOps.LOCAL, 0, 4), Opt(OptOps.LOCAL, 2, 4)]
    slices = [*tile, Opt(OptOps.TILE, 4, 4)]
    staged = [*slices, Opt(OptOps.STAGE, 0, (0, 4)), Opt(OptOps.STAGE, 1, (2, 4))]
    for opts in (tile, slices, staged):
        tuned = with_opts(product, opts)
        assert (tuned.kernel.grid, tuned.kernel.block) == ([2, 2], [4, 4])
        np.testing.assert_array_equal(tuned.run(), a @ b)
    assert str(tuned).count("BARRIER") >= 2


def test_the_tensor_stays_lazy_and_views_are_kept() -> None:
    x = Tensor(np.arange(6, dtype=np.float32).reshape(2, 3), device="PYTHON")
    y = (x * 2).permute(1, 0)
    np.testing.assert_array_equal(with_opts(y, [Opt(OptOps.UPCAST, 0, 2)]).run(), (x.numpy() * 2).T)
    np.testing.assert_array_equal(y.numpy(), (x.numpy() * 2).T)


def test_one_kernel_of_several() -> None:
    x = Tensor(np.arange(64, dtype=np.float32).reshape(8, 8), device="PYTHON")
    y = ((x + 1).contiguous() * 3).sum()
    first, last = with_opts(y, [Opt(OptOps.UPCAST, 0, 2)], kernel=0), with_opts(y, [Opt(OptOps.UNROLL, 0, 4)])
    assert first.number != last.number and first.run() == last.run() == ((x.numpy() + 1) * 3).sum()
    with pytest.raises(ArgumentError, match="there is no kernel 9"):
        with_opts(y, [], kernel=9)


def test_nothing_is_left_of_a_realized_tensor() -> None:
    with pytest.raises(ArgumentError, match="holds values already"):
        with_opts(Tensor([1.0, 2.0], device="CPU").realize(), [])


def test_printing_shows_axes_uops_and_source() -> None:
    text = str(with_opts(Tensor.ones(4, 4, device="PYTHON").contiguous().sum(1), [Opt(OptOps.GROUP, 1, 2)]))
    assert "axes before: 0: 4 loop, 1: 4 reduce" in text and "2 group" in text
    assert "DEFINE_LOCAL" in text and "BARRIER" in text and "def r_4_2_2" in text


def test_renderers_of_what_cannot_be_opened() -> None:
    assert Device.renderer_of("CUDA").target.block_threads == 1024
    assert Device.renderer_of("CPU") is Device["CPU"].renderer


@pytest.mark.parametrize("opts", [Opt(OptOps.UPCAST, 0, 2), ["UPCAST"], [Opt("UPCAST", 0, 2)], [None]])
def test_what_is_no_list_of_opts(opts: Any) -> None:
    with pytest.raises(ArgumentError, match="takes a list of opts, got"):
        with_opts(Tensor([1.0, 2.0]) + 1, opts)


def test_what_is_no_tensor() -> None:
    with pytest.raises(DTypeError, match="with_opts"):
        with_opts(5, [])  # type: ignore[arg-type]


def test_an_axis_that_is_no_number() -> None:
    with pytest.raises(ArgumentError, match=r"axis=a.* no such axis"):
        with_opts(Tensor.ones(4, 4).contiguous().realize().sum(1),
                  [Opt(OptOps.UPCAST, "a", 2)])  # type: ignore[arg-type]


@pytest.mark.parametrize("opts", [[], [Opt(OptOps.UPCAST, 0, 4)], None])
def test_the_schedule_has_the_opts_of_the_kernel(opts: list[Opt] | None) -> None:
    x = Tensor(np.arange(64, dtype=np.float32).reshape(8, 8)).realize()
    t = with_opts((x.sum(1).contiguous() * 2), opts)
    schedule = t.schedule
    assert [item.sink is not None for item in schedule] == [True, True] and schedule[-1].opts == t.opts
    assert schedule[0].opts == with_opts((x.sum(1).contiguous() * 2), None, 0).opts


def test_c_is_what_debug_prints(capsys: pytest.CaptureFixture[str]) -> None:
    x = Tensor(np.arange(64, dtype=np.float32).reshape(8, 8)).realize()
    text = with_opts(x.sum(1), None).source_c
    capsys.readouterr()
    with Context(DEBUG=4, CACHELEVEL=0):
        x.sum(1).realize()
    assert text.splitlines()[0].startswith("void r_8") or "vector_size" in text
    assert "".join(text.split()) in "".join(capsys.readouterr().out.split())


def test_c_of_a_gpu_is_its_source() -> None:
    t = with_opts(Tensor.ones(64).contiguous().realize() + 1, None, device="CUDA")
    assert t.source_c == t.source and "__global__" in t.source_c
    with pytest.raises(ArgumentError, match="source is for CUDA"):
        print(t.schedule)

"""Channels-last layout: the convolution operands that get such copies, their values; split sums where there are few
tiles."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinsmith import Context, Tensor
from tinsmith.codegen.render.cuda import cuda_target
from tinsmith.core.dtypes import dtypes
from tinsmith.ir import Ops, UOp
from tinsmith.ir.uop import toposort
from tinsmith.schedule.passes.channels_last import pitched, tile_cut
from tinsmith.schedule.passes.rewrites import cast_below_views

CUDA = cuda_target("sm_90a")


def f16(*shape: int) -> Tensor:
    return Tensor.empty(*shape, dtype=dtypes.float16, requires_grad=True)


def made(*values: Tensor) -> list[UOp]:
    return pitched(cast_below_views([v.uop for v in values]), CUDA)


def copies(*values: Tensor) -> list[tuple[int, ...]]:
    """Return the shapes of the stored values."""
    return [n.shape for n in toposort(made(*values)) if n.op is Ops.CONTIGUOUS]


def gradients(x: Tensor, w: Tensor, **how: Any) -> tuple[Tensor, ...]:
    y = x.conv2d(w, **how)
    return tuple(y.gradient(x, w, gradient=f16(*y.shape)))


def test_images_and_weights_are_copied_with_their_channels_innermost() -> None:
    image, weight = (64, 28, 28, 256), (256, 3, 3, 256)
    assert copies(f16(64, 256, 28, 28).conv2d(f16(256, 256, 3, 3), padding=1)) == [image, weight]
    assert copies(*gradients(f16(64, 256, 28, 28), f16(256, 256, 3, 3), padding=1)) == [image, weight, image]
    x, w = f16(*image).permute(0, 3, 1, 2), f16(*weight).permute(0, 3, 1, 2)
    assert copies(x.conv2d(w, padding=1)) == [] == copies(x.conv2d(w, stride=2))


def test_rows_of_a_window_along_columns_are_no_channels() -> None:
    """Stored along the rows that no window slides along, results were written element by element: 56 µs, now 10."""
    x, w = f16(4, 64, 112, 112), f16(64, 64, 1, 3)
    image, weight = (4, 112, 112, 64), (64, 1, 3, 64)
    assert copies(x.conv2d(w, padding=(0, 1))) == [image, weight]
    assert copies(*gradients(x, w, padding=(0, 1))) == [image, weight, image]
    along = f16(64, 64, 3, 1)
    assert copies(x.conv2d(along, padding=(1, 0))) == [(64, 3, 1, 64)], "columns are rows of memory as they are"
    x, w = f16(32, 128, 17, 17), f16(192, 128, 7, 1)
    assert copies(x.conv2d(w, padding=(3, 0))) == [(32, 17, 17, 128), (192, 7, 1, 128)], "but not of 17 elements"


def test_copies_for_tf32_pay_where_products_take_the_time() -> None:
    """A copy of a large image for few products took 181 µs instead of 112; for 3 columns it served no unit."""
    def f32(*shape: int) -> Tensor:
        return Tensor.empty(*shape)

    x = f32(64, 256, 56, 56)
    with Context(ALLOW_TF32=1):
        assert copies(x.conv2d(f32(64, 256, 1, 1))) == [], "bound by memory"
        assert copies(x.conv2d(f32(64, 256, 3, 3), padding=1)) == [(64, 56, 56, 256), (64, 3, 3, 256)]
        image = f32(64, 3, 64, 64)
        y = image.conv2d(f32(64, 3, 7, 7), padding=3)
        assert copies(*y.gradient(image, gradient=f32(*y.shape))) == [], "no matrix of a unit has 3 columns"
    assert copies(f32(64, 256, 56, 56).conv2d(f32(64, 256, 3, 3))) == [], "TF32 is not allowed"


def test_what_is_computed_is_stored_so() -> None:
    x, w = f16(64, 28, 28, 256).permute(0, 3, 1, 2), f16(256, 3, 3, 256).permute(0, 3, 1, 2)
    assert copies(x.relu().conv2d(w, padding=1)) == [(64, 28, 28, 256)]
    assert copies((x.float() * 2).half().conv2d(w, padding=1)) == [(64, 28, 28, 256)]
    assert copies(x.float().half().conv2d(w, padding=1)) == []


def test_no_copy_where_it_does_not_pay_or_makes_no_box() -> None:
    assert copies(f16(1, 64, 8, 8).conv2d(f16(64, 64, 3, 3))) == [], "too small for a launch"
    assert copies(f16(64, 3, 224, 224).conv2d(f16(64, 3, 7, 7), stride=2)) == [], "three channels are no row"
    assert copies(f16(64, 256, 28, 28).conv2d(f16(256, 32, 3, 3), groups=8)) == [], "an axis of groups and channels"
    assert copies(f16(64, 100, 56, 56).conv2d(f16(128, 100, 3, 3))) == [], "rows begin at no multiple of 16 bytes"
    x, w = (Tensor.empty(*s) for s in ((64, 256, 28, 28), (256, 256, 3, 3)))
    assert copies(x.conv2d(w)) == [], "no unit reads float32 so"


@pytest.mark.parametrize("stride", [1, 2])
def test_values_stay(stride: int) -> None:
    """Values are unchanged on a device where copies are cheap relative to the work."""
    device, rng = "PYTHON:G512:C3:B232448", np.random.default_rng(0)
    x, w = (rng.integers(-3, 4, s).astype(np.float16) for s in ((2, 32, 8, 9), (32, 32, 3, 3)))
    of = {place: [Tensor(a, device=place, requires_grad=True) for a in (x, w)] for place in (device, "CPU")}
    ys = {place: a.conv2d(b, stride=stride, padding=1) for place, (a, b) in of.items()}
    for y in ys.values():
        (y.float() * y.float()).sum().backward()
    for got, want in zip(of[device], of["CPU"]):
        assert got.grad is not None and want.grad is not None
        np.testing.assert_allclose(got.grad.numpy(), want.grad.numpy(), rtol=2e-2, atol=1)
    np.testing.assert_array_equal(ys[device].numpy(), ys["CPU"].numpy())


def test_long_sums_of_few_tiles_are_cut() -> None:
    def cut(*shapes: tuple[int, ...], what: int = 1) -> tuple[int, int] | None:
        x, w = (f16(*s).permute(0, 3, 1, 2) for s in shapes)
        (sums,) = (n for n in toposort(made(gradients(x, w, padding=1)[what])) if n.op is Ops.REDUCE)
        found = tile_cut(sums, CUDA)
        return None if found is None else (sums.src[0].shape[found.axis], found.chunks)

    assert cut((64, 56, 56, 256), (256, 3, 3, 256)) == (56, 7), "eighteen tiles, seven times"
    assert cut((256, 14, 14, 256), (256, 3, 3, 256)) == (14, 7)
    assert cut((64, 55, 55, 256), (256, 3, 3, 256)) == (55, 11), "two times 99 tiles of 132; boxes of 64 images"
    assert cut((16, 55, 55, 256), (256, 3, 3, 256)) is None, "no box fills them"
    a, b = f16(8192, 8192), f16(8192, 8192)
    found = tile_cut(next(n for n in toposort((a @ b).uop) if n.op is Ops.REDUCE), CUDA)
    assert found is not None and found.chunks == 1, "there are tiles enough"


def weight_gradient(x: Tensor, y: Tensor) -> UOp:
    """Return the sum over all axes but the last of the products of x and y."""
    axes = "abc"[: x.ndim - 1]
    return next(n for n in toposort(Tensor.einsum(f"{axes}m,{axes}n->mn", x, y).uop) if n.op is Ops.REDUCE)


@given(st.integers(1, 300_000), st.sampled_from([64, 320, 768, 1000, 3072]), st.sampled_from([96, 768, 1024]))
def test_weight_gradients_of_any_number_of_rows_are_cut_into_boxes(rows: int, m: int, n: int) -> None:
    found = tile_cut(weight_gradient(f16(rows, m), f16(rows, n)), CUDA)
    if found is not None and found.chunks > 1:
        assert found.length % 64 == 0 and (found.chunks - 1) * found.length < rows <= found.chunks * found.length
    if rows >= 16384 and m * n <= 768 * 768 and rows % 64 == 0:
        assert found is not None and found.chunks > 1


def test_axes_that_are_one_in_memory_are_cut_as_one() -> None:
    def joined(x: Tensor, y: Tensor) -> tuple[int, int, int]:
        found = tile_cut(weight_gradient(x, y), CUDA)
        assert found is not None
        return found.joined, found.chunks, found.length

    assert joined(f16(8, 1024, 768), f16(8, 1024, 768)) == (2, 5, 1664)
    assert joined(f16(64, 197, 768), f16(64, 197, 3072)) == (2, 2, 6336), "197 is a prime"
    turned = f16(1024, 8, 768).permute(1, 0, 2)
    assert joined(f16(8, 1024, 768), turned)[0] == 1, "the rows of a batch are apart in one of them"


@pytest.mark.parametrize("rows", [(1344,), (7, 193), (5, 256), (1000,)])
def test_values_of_sums_cut_into_boxes_stay(rows: tuple[int, ...]) -> None:
    device, rng = "PYTHON:G512:C3:B232448", np.random.default_rng(0)
    x, y = (rng.integers(-3, 4, (*rows, n)).astype(np.float16) for n in (64, 96))
    on = [Tensor(a, device=device) for a in (x, y)]
    axes = "abc"[: len(rows)]
    got = Tensor.einsum(f"{axes}m,{axes}n->mn", *on).numpy()
    np.testing.assert_array_equal(got, (x.reshape(-1, 64).astype(np.float32).T @ y.reshape(-1, 96)).astype(np.float16))

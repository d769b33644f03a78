"""Concatenations: parts are stored in place, and every reader sees the complete value."""
from __future__ import annotations

import numpy as np
import pytest

from tests.schedule.helpers import kernels
from tinsmith import Context, Tensor, dtypes
from tinsmith.core.dtypes import DType
from tinsmith.core.errors import VerifyError
from tinsmith.ir import Ops
from tinsmith.schedule.memory.memory_plan import verify_order
from tinsmith.schedule.schedule_item import ScheduleItem, Slot

rng = np.random.default_rng(5)


def data(*shape: int, device: str | None = None) -> Tensor:
    return Tensor(rng.standard_normal(shape).astype(np.float32), device=device).realize()


def parts(items: list[ScheduleItem]) -> int:
    return sum(i.sink is not None and i.sink.src[0].op is Ops.ASSIGN for i in items)


def gradient(size: int, taps: int, stride: int, padding: int, dtype: DType = dtypes.float32, device: str = "CPU",
             filters: int = 16) -> Tensor:
    """Return the image gradient of a channels-last convolution, with fixed inputs."""
    global rng
    rng = np.random.default_rng(5)
    outputs = (size + 2 * padding - taps) // stride + 1
    x, w, slope = (data(*s, device=device).cast(dtype).realize() for s in (
        (2, size, size, 32), (filters, taps, taps, 32), (2, outputs, outputs, filters)))
    y = x.permute(0, 3, 1, 2).conv2d(w.permute(0, 3, 1, 2), stride=stride, padding=padding)
    return y.gradient(x, gradient=slope.permute(0, 3, 1, 2))[0].contiguous()


@pytest.mark.parametrize("size, taps, stride, padding", [(8, 3, 2, 1), (9, 3, 2, 0), (7, 5, 2, 2), (10, 7, 3, 3)])
def test_phases_of_a_strided_gradient(size: int, taps: int, stride: int, padding: int) -> None:
    for dtype, tolerance in ((dtypes.float32, 1e-4), (dtypes.float16, 2e-2)):
        found = gradient(size, taps, stride, padding, dtype)
        made = kernels(found)
        assert parts(made) == len(made) == 4, "two numbers of terms along each axis"
        with Context(NOOPT=1):
            expected = gradient(size, taps, stride, padding, dtype).numpy()
        np.testing.assert_allclose(found.numpy(), expected, tolerance, tolerance)


@pytest.mark.parametrize("size", [8, 9])
def test_phases_whose_operands_come_through_rings(size: int) -> None:
    """On a GPU grid each polyphase part is a product staged in a ring; every order of its steps gives the same
    result."""
    device = "PYTHON:G512:C3:B232448"
    found = gradient(size, 3, 2, 1, dtypes.float16, device, 64)
    made = kernels(found)
    assert parts(made) == len(made) == 4
    np.testing.assert_allclose(found.numpy(), gradient(size, 3, 2, 1, dtypes.float16, filters=64).numpy(), 2e-2, 2e-2)


def test_what_no_part_fills_is_put_together() -> None:
    """With a window that covers one position in four, the other three are zero."""
    found = gradient(8, 1, 2, 0)
    assert parts(kernels(found)) == 0
    assert float(found[:, 1::2].abs().sum()) == 0 < float(found[:, ::2].abs().sum())


def test_products_side_by_side() -> None:
    a, b, c = data(16, 24), data(24, 32), data(24, 64)
    joined = (a @ b).contiguous().pad(((0, 0), (0, 64))) + (a @ c).contiguous().pad(((0, 0), (32, 0)))
    made = kernels(joined)
    assert len(made) == parts(made) == 2
    np.testing.assert_allclose(joined.numpy(), a.numpy() @ np.concatenate([b.numpy(), c.numpy()], 1), 1e-4, 1e-4)


def test_a_part_that_is_read_besides_has_memory() -> None:
    a, b = data(16, 24), data(24, 32)
    product = (a @ b).contiguous()
    joined = product.pad(((0, 0), (0, 32))) + (a @ b + 1).contiguous().pad(((0, 0), (32, 0)))
    total = product.sum()
    Tensor.realize(joined, total)
    np.testing.assert_allclose(total.item(), (a.numpy() @ b.numpy()).sum(), 1e-3)
    np.testing.assert_allclose(joined.numpy()[:, :32], a.numpy() @ b.numpy(), 1e-4, 1e-4)


def test_parts_that_overlap_are_added() -> None:
    a, b = data(16, 24), data(24, 32)
    products = [(a @ b).contiguous(), (a @ b * 2).contiguous()]
    y = products[0].pad(((0, 0), (0, 16))) + products[1].pad(((0, 0), (16, 0)))
    assert parts(kernels(y)) == 0
    product = a.numpy() @ b.numpy()
    expected = np.pad(product, ((0, 0), (0, 16))) + np.pad(2 * product, ((0, 0), (16, 0)))
    np.testing.assert_allclose(y.numpy(), expected, 1e-4, 1e-4)


def test_parts_come_before_readers() -> None:
    items = [ScheduleItem("CPU", None, slots, "") for slots in ([2, 0], [3, 2], [2, 1])]
    slots = [Slot(n, 8, dtypes.float32, "CPU", input=n < 2, output=n == 3, in_parts=n == 2) for n in range(4)]
    verify_order([items[0], items[2], items[1]], slots, "in order")
    with pytest.raises(VerifyError, match="reads slot 2"):
        verify_order(items, slots, "out of order")
    slots[2].in_parts = False
    with pytest.raises(VerifyError, match="already holds a value"):
        verify_order([items[0], items[2], items[1]], slots, "defined twice")


def test_a_single_element_is_put_together_of_nothing() -> None:
    total = Tensor([1.0, 2.0]).sum().contiguous()
    total += total
    assert total.item() == 6.0

"""Time and memory of all passes are independent of the number of elements: calls and bytes are counted, not time."""
from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import pytest

from tests.counting import calls_of
from tinsmith import Tensor, dtypes, explain

FEW, MANY = 1 << 12, 3_500_000  # rows of about 64 elements
MOST_BYTES = 32 << 20  # what a pass may take: one that lists the elements of a large tensor takes gigabytes


def floats(*shape: int) -> Tensor:
    return Tensor.empty(*shape)


def places(*shape: int) -> Tensor:
    return Tensor.empty(*shape, dtype=dtypes.int32)


def gradients(value: Tensor, *of: Tensor) -> list[Tensor]:
    return value.sum().gradient(*of)


def assigned(x: Tensor) -> Tensor:
    x[3:-3, ::2] = 1.0
    return x


def side_by_side(n: int) -> Tensor:
    """Concatenated parts, which are stored in place."""
    even, odd = floats(n, 64).sin().contiguous(), floats(n, 64).cos().contiguous()
    return (even.pad(((0, 0), (0, 64))) + odd.pad(((0, 0), (64, 0)))).contiguous()


def strided(n: int) -> list[Tensor]:
    x, w = floats(1, 4, n), floats(4, 4, 3)
    return gradients(x.conv2d(w, stride=2, padding=1), x)


CASES: dict[str, Callable[[int], Tensor | list[Tensor]]] = {
    "elementwise": lambda n: floats(n, 64).exp() + floats(64),
    "sums": lambda n: floats(n, 64).sum(0) + floats(n, 64).softmax(1).sum(0),
    "cat": lambda n: floats(n, 64).cat(floats(n, 32), dim=1),
    "pads": lambda n: floats(2, 3, n).pad((1, 1), mode="reflect") + 1,
    "parts in place": side_by_side,
    "strided slices": lambda n: floats(n * 8, 16)[::2, 1::3].exp().sum(1),
    "backwards": lambda n: floats(n * 64)[::-3] * 2,
    "transposed": lambda n: floats(n, 64).transpose(0, 1).contiguous(),
    "repeated": lambda n: floats(n, 64).repeat_interleave(3, 0) + 1,
    "gather": lambda n: floats(n, 64).gather(0, places(n, 64)),
    "rows by number": lambda n: floats(n, 64)[places(n)],
    "scatter": lambda n: floats(n, 64).scatter_add(0, places(n, 64), floats(n, 64)),
    "gradient of rows": lambda n: gradients((x := floats(n, 64))[places(n)] * floats(n, 64), x),
    "one hot": lambda n: places(n).one_hot(10),
    "masks": lambda n: floats(64, n).triu(1).masked_fill(floats(64, n) > 0, 0.0),
    "index arithmetic": lambda n: floats(n * 64 // 7 + 1)[Tensor.arange(n * 64) // 7 * 5 % (n * 9)],
    "sums of index arithmetic": lambda n: (Tensor.arange(n * 64) // 3 % 5).sum(),
    "remainders beside sums": lambda n: (floats(n * 64) * floats(n * 80 + 9)[Tensor.arange(n * 64) // 48 * 50]).sum(),
    "places compared": lambda n: (Tensor.arange(n * 64).reshape(n, 64) % 3 == Tensor.arange(64)).where(
        1.0, floats(n, 64)),
    "anchors": lambda n: (Tensor.arange(n).reshape(1, n, 1) * 4 + Tensor.arange(64).reshape(64, 1, 1)).expand(
        64, n, 4).reshape(-1, 4) + floats(n * 64, 4),
    "resized": lambda n: floats(1, 3, 8, n).interpolate((12, n * 3 // 2), mode="bilinear"),
    "convolution": lambda n: floats(1, 4, 4, n).conv2d(floats(4, 4, 3, 3), padding=1),
    "gradient of a strided convolution": strided,
    "pooling": lambda n: floats(1, 8, 16, n).max_pool2d(3, 2, padding=1),
    "product": lambda n: floats(n, 64) @ floats(64, 64),
    "running sums": lambda n: floats(n * 64).cumsum(0),
    "random": lambda n: Tensor.rand(n, 64),
    "assigned": lambda n: assigned(floats(n, 64).contiguous()),
}


def compiled(make: Callable[[int], Tensor | list[Tensor]], n: int) -> None:
    """Generate the kernels of the result of ``make``."""
    made = make(n)
    explain(*(made if isinstance(made, list) else [made]), run=False)


@pytest.mark.parametrize("name", CASES)
def test_no_pass_is_linear_in_the_number_of_elements(name: str) -> None:
    few = calls_of(lambda: compiled(CASES[name], FEW))
    tracemalloc.start()
    try:
        many = calls_of(lambda: compiled(CASES[name], MANY))
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert many.total() < 4 * few.total() + 25_000, (
        f"{few.total()} calls for {FEW} rows, {many.total()} for {MANY}, of which {(many - few).most_common(8)}")
    assert most < MOST_BYTES

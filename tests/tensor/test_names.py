"""tinygrad's methods: keyword names, sizes with defaults, formulas, hashes, addresses."""
from __future__ import annotations

import ctypes
import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tinsmith import Tensor, TinyJit, Variable, dtypes


def test_arguments_by_name_or_position() -> None:
    x = Tensor([[1, 2, 3]])
    assert x.reshape(shape=(3, 1)).shape == x.permute(order=(1, 0)).shape == x.view(shape=(3, 1)).shape == (3, 1)
    assert x.expand(shape=(2, 3)).shape == (2, 3)
    assert Tensor.full((2,), 1, dtypes.half).dtype is Tensor.eye(2, 2, dtypes.half).dtype is dtypes.half
    assert Tensor.arange(0, 3, 1, dtypes.float).dtype is Tensor.linspace(0, 1, 3, dtypes.float).dtype is dtypes.float
    with pytest.raises(ValueError, match=r"shape=\(3, 1\)"):
        x.reshape(3, 1, shape=(3, 1))


def test_sizes() -> None:
    x = Tensor.ones(2, 3)
    assert (x.size(), x.size(-1), x.max_shape, x.max_numel()) == ((2, 3), 3, (2, 3), 6)
    part = x[:, : Variable("n", 1, 3).bind(2)]
    assert part.max_shape == (2, 3) and part.max_numel() == 6


def test_pad_to_and_shrink_to() -> None:
    x = Tensor([[1, 2], [3, 4]])
    assert x.pad_to(None, 3, value=9).tolist() == [[1, 2, 9], [3, 4, 9]]
    assert x.shrink_to((1, None)).tolist() == [[1, 2]]
    with pytest.raises(ValueError, match="shrink_to"):
        x.pad_to(1, 2)
    with pytest.raises(ValueError, match="one size per axis"):
        x.shrink_to(1)


@pytest.mark.parametrize(("formula", "sizes", "shape"), [
    ("a b (c d) -> (a c) b d 1", {"c": 2}, (4, 3, 2, 1)), ("a b c -> (b) (a) c", {}, (3, 2, 4)),
    ("... c -> c ...", {}, (4, 2, 3)), ("a ... -> a (...)", {}, (2, 12)), ("a ... -> (a ...)", {}, (24,)),
    ("(x y) b c -> y x b c 1", {"x": 2}, (1, 2, 3, 4, 1)), ("a b c -> a b c", {}, (2, 3, 4))])
def test_rearrange(formula: str, sizes: dict[str, int], shape: tuple[int, ...]) -> None:
    assert Tensor.arange(24).reshape(2, 3, 4).rearrange(formula, **sizes).shape == shape


def test_rearrange_moves_values() -> None:
    x = np.arange(24).reshape(2, 3, 4)
    got = Tensor(x).rearrange("a b (c d) -> (d a) (c b)", c=2).numpy()
    assert np.array_equal(got, x.reshape(2, 3, 2, 2).transpose(3, 0, 2, 1).reshape(4, 6))


@pytest.mark.parametrize("formula", [
    "a b -> a b", "a b c -> a b", "a a c -> a c", "a b c", "a b c -> a b c d", "a (b c -> a", "a b 4 -> a b 4",
    "... ... c -> c ...", "(a b) c d -> a b c d", "a b c -> a b 2"])
def test_rearrange_refuses(formula: str) -> None:
    with pytest.raises(ValueError, match="rearrange"):
        Tensor.arange(24).reshape(2, 3, 4).rearrange(formula)


def test_selection_of_a_size_known_beforehand() -> None:
    x, mask = Tensor([[1, 2], [3, 4]]), Tensor([[True, False], [True, True]])
    assert x.masked_select(mask, size=2).tolist() == [1, 3]
    assert x.masked_select(mask, size=5, fill_value=-1).tolist() == [1, 3, 4, -1, -1]
    assert x.nonzero(size=2).tolist() == [[0, 0], [0, 1]]
    assert Tensor([[0, 0], [0, 7]]).nonzero(size=2, fill_value=-1).tolist() == [[1, 1], [-1, -1]]
    assert Tensor.zeros(0).nonzero(size=1, fill_value=5).tolist() == [[5]]

    @TinyJit
    def select(x: Tensor) -> Tensor:
        return x.masked_select(x > 2, size=3).realize()

    for row in ([1, 5, 3, 2], [4, 4, 4, 4], [0, 0, 0, 9], [3, 0, 0, 0]):
        assert select(Tensor(row)).tolist() == (sorted([v for v in row if v > 2], key=row.index) + [0] * 3)[:3]


@pytest.mark.parametrize(("sizes", "arguments"), [
    ((1, 2, 6, 6), {}), ((2, 1, 7, 5), {"kernel_size": 3, "stride": 2, "padding": 1}),
    ((1, 1, 5, 5), {"ceil_mode": True})])
def test_pool_with_places(sizes: tuple[int, ...], arguments: dict[str, Any]) -> None:
    x = np.random.default_rng(2).permutation(int(np.prod(sizes))).reshape(sizes).astype(np.float32) - 30
    values, places = Tensor(x).max_pool2d(**arguments, return_indices=True)
    assert np.array_equal(values.numpy(), Tensor(x).max_pool2d(**arguments).numpy())
    planes = x.reshape(*sizes[:2], -1)
    found = np.take_along_axis(planes, places.numpy().reshape(*sizes[:2], -1), -1)
    assert np.array_equal(found, values.numpy().reshape(*sizes[:2], -1)) and places.dtype is dtypes.int32
    back = values.max_unpool2d(places, output_size=sizes[2:],
                               **{k: v for k, v in arguments.items() if k != "ceil_mode"}).numpy()
    kept = np.zeros_like(planes)
    np.put_along_axis(kept, places.numpy().reshape(*sizes[:2], -1), found, -1)
    assert np.array_equal(back, kept.reshape(sizes))


def test_pool_of_equal_values_takes_the_first() -> None:
    assert Tensor.zeros(1, 1, 4, 4).max_pool2d(return_indices=True)[1].tolist() == [[[[0, 2], [8, 10]]]]


def test_bits_of_another_width() -> None:
    assert Tensor([1.0, -2.0]).bitcast("uint8").tolist() == np.array([1.0, -2.0], np.float32).view(np.uint8).tolist()
    x = np.random.default_rng(0).integers(0, 256, (3, 8)).astype(np.uint8)
    for dtype in (dtypes.uint16, dtypes.int32, dtypes.uint64, dtypes.int64):
        assert np.array_equal(Tensor(x).bitcast(dtype).numpy(), x.view(dtype.numpy))
        assert np.array_equal(Tensor(x).bitcast(dtype).bitcast(dtypes.uint8).numpy(), x)
    assert Tensor([0, 2], dtype=dtypes.uint8).bitcast(dtypes.bool).tolist() == [False, True]
    assert Tensor([False, True]).bitcast(dtypes.int8).tolist() == [0, 1]
    with pytest.raises(ValueError, match="bitcast"):
        Tensor([1, 2, 3], dtype=dtypes.uint8).bitcast(dtypes.uint16)


def test_hashes() -> None:
    data = b"Hello World!"
    assert bytes(Tensor(data).keccak().data()) == hashlib.sha3_256(data).digest()
    assert bytes(Tensor(data).keccak("shake_128").data()) == hashlib.shake_128(data).digest(16)
    rows = Tensor(np.arange(8, dtype=np.uint8).reshape(2, 4)).keccak("sha3_224")
    assert rows.shape == (2, 28) and bytes(rows[1].data()) == hashlib.sha3_224(bytes([4, 5, 6, 7])).digest()
    x = Tensor.arange(1 << 19)
    assert x.hash().shape == (16,) and x.hash().tolist() == x.clone().hash().tolist() != (x + 1).hash().tolist()
    with pytest.raises(ValueError, match="sha3_256"):
        Tensor(data).keccak("md5")


def test_memory_at_an_address() -> None:
    numbers = (ctypes.c_int32 * 3)(1, 2, 3)
    x = Tensor.from_blob(ctypes.addressof(numbers), (3,), dtype=dtypes.int32)
    assert (x * 2).tolist() == [2, 4, 6]
    f = TinyJit(lambda: x + 1)
    for n in range(4):
        numbers[0] = 5 + n
        assert (x.tolist(), (x * 2).tolist(), f().tolist()) == ([5 + n, 2, 3], [10 + 2 * n, 4, 6], [6 + n, 3, 4])
    x += 1
    assert (x.tolist(), numbers[0]) == ([9, 3, 4], 8)  # a new version has memory of its own
    there = Tensor.from_blob(ctypes.addressof(numbers), (3,), dtype=dtypes.int32, device="PYTHON")
    numbers[0] = 0
    assert there.tolist() == [8, 2, 3]  # a copy of what was there
    with pytest.raises(ValueError, match="from_blob"):
        Tensor.from_blob(0, (1,))


def test_from_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import gzip
    monkeypatch.setenv("CACHE_DIR", str(tmp_path))
    (tmp_path / "plain").write_bytes(b"abc")
    (tmp_path / "packed").write_bytes(gzip.compress(b"abc"))
    assert Tensor.from_url((tmp_path / "plain").as_uri()).tolist() == [97, 98, 99]
    assert Tensor.from_url((tmp_path / "packed").as_uri(), gunzip=True).tolist() == [97, 98, 99]


def test_parameters_and_constants() -> None:
    x, fixed = Tensor([1.0]), Tensor([2.0]).is_param_(False)
    (x * fixed * x.const_like(3)).sum().backward()
    assert x.is_param and not fixed.is_param and fixed.grad is None and x.grad.tolist() == [6.0]
    assert x.const_like(3).requires_grad is False and x.clone("CPU:1").device == "CPU:1"
    y = Tensor([1.0, 2.0])
    assert (y.contiguous_backward() * y).sum().gradient(y)[0].tolist() == [2.0, 4.0]

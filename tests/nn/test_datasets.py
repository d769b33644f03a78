"""Digit data sets: valid and damaged IDX files, splits, and the fallback."""
from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from tinsmith.core.errors import ArgumentError, FileFormatError
from tinsmith.nn import datasets


def write(folder: Path, name: str, values: np.ndarray, packed: bool) -> None:
    head = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">u4").tobytes()
    data = head + values.astype(np.uint8).tobytes()
    (folder / (name + (".gz" if packed else ""))).write_bytes(gzip.compress(data) if packed else data)


def images(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, 28, 28))


@pytest.mark.parametrize("packed", [False, True])
def test_folder_with_both_splits(tmp_path: Path, packed: bool) -> None:
    for n, name in ((7, "train"), (3, "t10k")):
        write(tmp_path, f"{name}-images-idx3-ubyte", images(n, n), packed)
        write(tmp_path, f"{name}-labels-idx1-ubyte", np.arange(n), packed)
    found = datasets.load_digits(tmp_path)
    assert found.train_images.shape == (7, 1, 28, 28) and found.test_labels.tolist() == [0, 1, 2]
    np.testing.assert_array_equal(found.test_images[:, 0], images(3, 3))
    x, y, _, _ = datasets.mnist(data=tmp_path)
    assert x.shape == (7, 1, 28, 28) and y.tolist() == list(range(7))


def test_folder_with_one_split(tmp_path: Path) -> None:
    write(tmp_path, "t10k-images-idx3-ubyte", images(20, 0), True)
    write(tmp_path, "t10k-labels-idx1-ubyte", np.arange(20), False)
    found, again = (datasets.load_digits(tmp_path, 5) for _ in range(2))
    assert sorted([*found.train_labels, *found.test_labels]) == list(range(20))
    assert len(found.test_labels) == 5 and found.test_labels.tolist() == again.test_labels.tolist()
    np.testing.assert_array_equal(found.test_images[:, 0], images(20, 0)[found.test_labels])
    assert len(datasets.load_digits(tmp_path).test_labels) == 2
    with pytest.raises(ArgumentError, match="holdout"):
        datasets.load_digits(tmp_path, 20)


def test_broken_files(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="neither"):
        datasets.load_digits(tmp_path)
    write(tmp_path, "train-images-idx3-ubyte", images(4, 0), False)
    write(tmp_path, "train-labels-idx1-ubyte", np.arange(3), False)
    with pytest.raises(FileFormatError, match="labels"):
        datasets.load_digits(tmp_path)
    file = tmp_path / "train-images-idx3-ubyte"
    whole = file.read_bytes()
    for broken in (whole[:-1], b"", b"hello there", gzip.compress(whole)[:-20]):
        file.write_bytes(broken)
        with pytest.raises(FileFormatError):
            datasets.load_digits(tmp_path)


def test_without_network_digits_are_given_to_who_asks_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sklearn", reason="the examples extra")
    monkeypatch.setattr(datasets, "_downloaded", lambda data_set: None)
    with pytest.raises(ArgumentError, match=r"train-images-idx3-ubyte\.gz.* there, .*data=.* offline=\"digits\""):
        datasets.mnist()
    with pytest.raises(ArgumentError, match='offline="digits"'):
        datasets.mnist(offline="letters")
    assert datasets.mnist(offline="digits")[0].shape == (1437, 1, 28, 28)
    found = datasets.load_digits(offline="digits")
    assert "no network" in found.source and found.train_images.shape == (1437, 1, 28, 28)
    assert found.train_images.dtype == np.uint8 and found.train_images.max() == 255

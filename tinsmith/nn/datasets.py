"""Handwritten digits: MNIST from a folder or the network, or, if asked for, the small real digits of scikit-learn."""
from __future__ import annotations

import contextlib
import gzip
import hashlib
import os
import threading
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tinsmith.core.cache import cache_dir, replace_file
from tinsmith.core.errors import ArgumentError, FileFormatError
from tinsmith.nn.cifar import cifar
from tinsmith.tensor.tensor import Tensor

__all__ = ["Digits", "cifar", "download", "load_digits", "mnist", "read_idx", "upsample"]

Array = np.ndarray[Any, Any]

MIRRORS = ("https://storage.googleapis.com/cvdf-datasets/mnist/", "https://ossci-datasets.s3.amazonaws.com/mnist/")
TIMEOUT = 3.0
FILES = {  # of the gzipped files
    "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
}


@dataclass(frozen=True)
class Digits:
    """Images ``[N, 1, 28, 28]`` and labels ``[N]`` (uint8), and where they come from."""

    train_images: Array
    train_labels: Array
    test_images: Array
    test_labels: Array
    source: str


def mnist(device: str | None = None, data: str | os.PathLike[str] | None = None, holdout: int | None = None,
          offline: str | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Tensors (training images, training labels, test images, test labels); see ``load_digits``."""
    d = load_digits(data, holdout, offline)
    arrays = (d.train_images, d.train_labels, d.test_images, d.test_labels)
    a, b, c, e = (Tensor(x, device=device, requires_grad=False) for x in arrays)
    return a, b, c, e


def load_digits(data: str | os.PathLike[str] | None = None, holdout: int | None = None,
                offline: str | None = None) -> Digits:
    """MNIST from the folder ``data``; without one the cached or downloaded MNIST.

    Args:
        holdout: how many training images to test on where there is no test split (10 % unless given).
        offline: what to give where MNIST is not here and no server answers: ``"digits"``, the 1,797 that scikit-learn
            ships. None: an error.

    Raises:
        FileFormatError: if a file is no IDX file.
        ArgumentError: if there are no digits at all, or ``holdout`` or ``offline`` does not fit.
    """
    if offline not in (None, "digits"):
        raise ArgumentError("mnist", f"offline={offline!r} is no data set", 'offline="digits"')
    if data is not None:
        return _from_folder(Path(data), holdout)
    folder = download()
    if folder is not None:
        return _from_folder(folder, holdout)
    if offline is None:
        raise ArgumentError("mnist", f"MNIST is not in {_folder()} and could not be downloaded",
                            f"put {', '.join(FILES)} there, name their folder with data=, or take other digits with "
                            'offline="digits"')
    return _offline(holdout)


def read_idx(path: Path) -> Array:
    """The array in an IDX file of bytes, gzipped or not.

    Raises:
        FileFormatError: if it is none or is cut short.
    """
    raw = path.read_bytes()
    try:
        data = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    except (OSError, EOFError) as error:
        raise FileFormatError("read_idx", f"{path}: {error}", "a complete file") from None
    if len(data) < 4 or data[:3] != b"\0\0\x08" or len(data) < 4 + 4 * data[3]:
        raise FileFormatError("read_idx", f"{path} does not begin like an IDX file of bytes", "the MNIST files")
    shape = tuple(int(n) for n in np.frombuffer(data, ">u4", data[3], 4))
    values = np.frombuffer(data, np.uint8, offset=4 + 4 * data[3])
    if values.size != np.prod(shape, dtype=np.int64):
        raise FileFormatError("read_idx", f"{path} holds {values.size} bytes for shape {shape}", "a complete file")
    return values.reshape(shape)


def download() -> Path | None:
    """The folder with MNIST, fetched and checked if it is not there yet; None where no server answers within 3 s."""
    folder = _folder()
    wanted = [name for name, digest in FILES.items() if not _is(folder / name, digest)]
    if not wanted:
        return folder
    answered = threading.Event()
    failed: list[OSError] = []

    def work() -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for name in wanted:
                _fetch(name, folder / name, answered)
        except OSError as error:
            failed.append(error)

    worker = threading.Thread(target=work, daemon=True)  # looking a name up knows no time-out
    start = time.monotonic()
    worker.start()
    while worker.is_alive() and (answered.is_set() or time.monotonic() - start < TIMEOUT):
        worker.join(0.02)
    return None if worker.is_alive() or failed else folder


def _folder() -> Path:
    """Where downloads are kept."""
    return cache_dir() / "datasets" / "mnist"


def _is(path: Path, digest: str) -> bool:
    return path.exists() and hashlib.sha256(path.read_bytes()).hexdigest() == digest


def _fetch(name: str, path: Path, answered: threading.Event) -> None:
    """Download one file from the first mirror that has the right one.

    Raises:
        OSError: if none has.
    """
    for mirror in MIRRORS:
        with contextlib.suppress(OSError):
            with urllib.request.urlopen(mirror + name, timeout=TIMEOUT) as reply:
                answered.set()
                data = reply.read()
            if hashlib.sha256(data).hexdigest() == FILES[name]:
                replace_file(path, data)
                return
    raise OSError(f"{name} could not be downloaded")


def _split(folder: Path, name: str) -> tuple[Array, Array] | None:
    """Images and labels of one split, or None if the folder does not have it."""
    found = []
    for part in (f"{name}-images-idx3-ubyte", f"{name}-labels-idx1-ubyte"):
        spellings = (part, f"{part}.gz", part.replace("-idx", ".idx"), part.replace("-idx", ".idx") + ".gz")
        path = next((folder / s for s in spellings if (folder / s).exists()), None)
        if path is None:
            return None
        found.append(read_idx(path))
    images, labels = found
    if images.ndim != 3 or images.shape[1:] != (28, 28) or labels.shape != images.shape[:1]:
        raise FileFormatError("mnist", f"{folder}: images {images.shape}, labels {labels.shape}",
                              "images [N, 28, 28] and as many labels")
    return images[:, None], labels


def _from_folder(folder: Path, holdout: int | None) -> Digits:
    train, test = _split(folder, "train"), _split(folder, "t10k")
    if train is not None and test is not None and holdout is None:
        return Digits(*train, *test, f"MNIST in {folder}")
    only = test if train is None else train
    if only is None:
        raise ArgumentError("mnist", f"{folder} has neither train-images-idx3-ubyte nor t10k-images-idx3-ubyte (.gz)",
                            "--data with the folder of the MNIST files")
    return _held_out(*only, holdout, f"MNIST in {folder}")


def _held_out(images: Array, labels: Array, holdout: int | None, source: str) -> Digits:
    """Take test images out of the only split, the same ones every time."""
    total = len(labels)
    count = total // 10 if holdout is None else holdout
    if not 0 < count < total:
        raise ArgumentError("mnist", f"holdout={holdout} of {total} images", f"a number from 1 to {total - 1}")
    order = np.random.default_rng(0).permutation(total)
    test, train = np.sort(order[:count]), np.sort(order[count:])
    return Digits(images[train], labels[train], images[test], labels[test],
                  f"{source}: {total - count} to train on, {count} held out")


def _offline(holdout: int | None) -> Digits:
    """scikit-learn's 1,797 digits of 8×8 pixels, upsampled to 28×28."""
    try:
        from sklearn.datasets import load_digits as sklearn_digits
    except ImportError:
        raise ArgumentError("mnist", "no network, and scikit-learn with its digits is not installed",
                            "pip install 'tinsmith[examples]', or --data DIR") from None
    found = sklearn_digits()
    images = upsample(Tensor(found.images.astype(np.float32)), 28) * (255 / 16)
    return _held_out(images.round().clip(0, 255).numpy().astype(np.uint8)[:, None], found.target.astype(np.uint8),
                     360 if holdout is None else holdout,
                     "no network: the digits that scikit-learn ships (8×8, upsampled to 28×28)")


def upsample(images: Tensor, size: int) -> Tensor:
    """Bilinear interpolation of ``[N, H, W]`` to ``size`` × ``size``: a product with a matrix of weights per axis.

    >>> upsample(Tensor([[[0., 1.], [2., 3.]]]), 3).numpy().round(2).tolist()
    [[[0.0, 0.5, 1.0], [1.0, 1.5, 2.0], [2.0, 2.5, 3.0]]]
    """
    rows, columns = (Tensor(_weights(n, size)) for n in images.shape[1:])
    return rows @ images @ columns.transpose()


def _weights(old: int, new: int) -> Array:
    """How much each of ``old`` pixels counts in each of ``new``: pixel centres are matched, edges repeated."""
    at = np.clip((np.arange(new) + 0.5) * old / new - 0.5, 0, old - 1)
    weights: Array = np.maximum(1 - np.abs(at[:, None] - np.arange(old)), 0)
    return weights.astype(np.float32)

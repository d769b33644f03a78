"""Data sets: MNIST, Fashion-MNIST, CIFAR-10 and texts, from files or the network; on request scikit-learn's digits."""
from __future__ import annotations

import gzip
import os
import pickle
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tinsmith.core.errors import ArgumentError, FileFormatError
from tinsmith.nn.data.downloads import download, place
from tinsmith.tensor.tensor import Tensor

__all__ = ["Digits", "cifar", "download", "fashion_mnist", "load_digits", "mnist", "read_idx", "text", "upsample"]

Array = np.ndarray[Any, Any]

_NAMES = ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz", "t10k-images-idx3-ubyte.gz",
          "t10k-labels-idx1-ubyte.gz")

IDX = {  # data set → (server URLs, file name → hash of the gzipped file)
    "mnist": (
        ("https://storage.googleapis.com/cvdf-datasets/mnist/", "https://ossci-datasets.s3.amazonaws.com/mnist/"),
        dict(zip(_NAMES, ("sha256:440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
                          "sha256:3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
                          "sha256:8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
                          "sha256:f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6")))),
    "fashion_mnist": (
        ("https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
         "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"),
        dict(zip(_NAMES, ("md5:8d4fb7e6c68d591d4c3dfef9ec88bf0d", "md5:25c81989df183df01b3e8a0aad5dffbe",
                          "md5:bef4ecab320f06d8554ea6380940ec79", "md5:bb300cfdad3c16e7a12a480ee83cd310")))),
}

TEXTS = {  # name → (server URLs, hash of the file, member of the zip file or None)
    "text8": (("http://mattmahoney.net/dc/text8.zip", "https://data.deepai.org/text8.zip"),
              "sha256:a6640522afe85d1963ad56c05b0ede0a0c000dddc9671758a6cc09b7a38e5232", "text8"),
    "enwik8": (("http://mattmahoney.net/dc/enwik8.zip", "https://data.deepai.org/enwik8.zip"),
               "sha256:547994d9980ebed1288380d652999f38a14fe291a6247c157c3d33d4932534bc", "enwik8"),
    "tinyshakespeare": (
        ("https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",),
        "sha256:86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed", None),
}


@dataclass(frozen=True)
class Digits:
    """Training and test images ``[N, 1, 28, 28]`` and labels ``[N]`` (uint8), with a description of their source."""

    train_images: Array
    train_labels: Array
    test_images: Array
    test_labels: Array
    source: str


def mnist(device: str | None = None, data: str | os.PathLike[str] | None = None, holdout: int | None = None,
          offline: str | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return MNIST as tensors (training images, training labels, test images, test labels); see ``load_digits``."""
    return _tensors(load_digits(data, holdout, offline), device)


def fashion_mnist(device: str | None = None, data: str | os.PathLike[str] | None = None,
                  holdout: int | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return Fashion-MNIST as tensors: training images ``[N, 1, 28, 28]``, training labels, test images, test labels.

    Args:
        data: folder of the four IDX files; default: download them once.
        holdout: as in ``load_digits``.

    Raises:
        ArgumentError: if the files do not exist and cannot be downloaded.
        FileFormatError: if a file is not an IDX file.
    """
    folder = _downloaded("fashion_mnist") if data is None else Path(data)
    if folder is None:
        raise ArgumentError("fashion_mnist", f"its files are not in {place('fashion_mnist')}, and the download failed",
                            f"put {', '.join(_NAMES)} there, or name their folder with data=")
    return _tensors(_from_folder(folder, holdout), device)


def text(name: str = "text8", data: str | os.PathLike[str] | None = None) -> Array:
    """Return a text data set as a memory-mapped uint8 array, for ``nn.loader.Windows`` or ``Tensor``.

    Args:
        name: ``"text8"`` (10⁸ lower-case letters and spaces of Wikipedia), ``"enwik8"`` (10⁸ bytes of it) or
            ``"tinyshakespeare"`` (1.1 MB).
        data: path of a local file to use; default: download the text once.

    Raises:
        ArgumentError: for an unknown name, or if the file does not exist or cannot be downloaded.
    """
    if name not in TEXTS:
        raise ArgumentError("text", f"there is no text {name!r}", f"one of {', '.join(TEXTS)}, or data= with a file")
    servers, known_hash, member = TEXTS[name]
    path = None if data is None else Path(data)
    try:
        path = path or download(servers, known_hash, f"{name}.zip" if member else f"{name}.txt", "text", unzip=member)
    except OSError as error:
        raise ArgumentError("text", f"{name} is not in {place('text')} and could not be downloaded: {error}",
                            "data= with its path") from None
    if not path.is_file():
        raise ArgumentError("text", f"there is no {path}", "data= with the path of a text")
    return np.memmap(path, np.uint8, "r")


def _tensors(d: Digits, device: str | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    arrays = (d.train_images, d.train_labels, d.test_images, d.test_labels)
    a, b, c, e = (Tensor(x, device=device, requires_grad=False) for x in arrays)
    return a, b, c, e


def load_digits(data: str | os.PathLike[str] | None = None, holdout: int | None = None,
                offline: str | None = None) -> Digits:
    """Return MNIST from the folder ``data``; default: the cached or downloaded files.

    Args:
        holdout: number of training images to hold out for testing if there is no test split (default 10 %).
        offline: the substitute if MNIST is neither cached nor downloadable: ``"digits"``, the 1,797 digits of
            scikit-learn. None: raise an error.

    Raises:
        FileFormatError: if a file is not an IDX file.
        ArgumentError: if no data was found, or ``holdout`` or ``offline`` is invalid.
    """
    if offline not in (None, "digits"):
        raise ArgumentError("mnist", f"offline={offline!r} is no data set", 'offline="digits"')
    if data is not None:
        return _from_folder(Path(data), holdout)
    folder = _downloaded("mnist")
    if folder is not None:
        return _from_folder(folder, holdout)
    if offline is None:
        raise ArgumentError("mnist", f"MNIST is not in {place('mnist')} and could not be downloaded",
                            f"put {', '.join(_NAMES)} there, name their folder with data=, or take other digits with "
                            'offline="digits"')
    return _offline(holdout)


def read_idx(path: Path) -> Array:
    """Return the array in a uint8 IDX file, gzipped or not.

    Raises:
        FileFormatError: if the file is not a uint8 IDX file or is truncated.
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


def _downloaded(data_set: str) -> Path | None:
    """Return the folder of a data set's four files, downloading missing ones; None if a download fails."""
    servers, files = IDX[data_set]
    try:
        for name, known_hash in files.items():
            download([server + name for server in servers], known_hash, name, data_set)
    except OSError:
        return None
    return place(data_set)


def _split(folder: Path, name: str) -> tuple[Array, Array] | None:
    """Return (images, labels) of one split, or None if the folder does not have it."""
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
                            "the folder of the MNIST files")
    return _held_out(*only, holdout, f"MNIST in {folder}")


def _held_out(images: Array, labels: Array, holdout: int | None, source: str) -> Digits:
    """Split ``images`` into a training and a test set of ``holdout`` images, with a fixed seed."""
    total = len(labels)
    count = total // 10 if holdout is None else holdout
    if not 0 < count < total:
        raise ArgumentError("mnist", f"holdout={holdout} of {total} images", f"a number from 1 to {total - 1}")
    order = np.random.default_rng(0).permutation(total)
    test, train = np.sort(order[:count]), np.sort(order[count:])
    return Digits(images[train], labels[train], images[test], labels[test],
                  f"{source}: {total - count} to train on, {count} held out")


def _offline(holdout: int | None) -> Digits:
    """Return the 1,797 8×8 digits of scikit-learn, upsampled to 28×28."""
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
    """Resize ``[N, H, W]`` to ``[N, size, size]`` by bilinear interpolation, as one matmul per axis.

    >>> upsample(Tensor([[[0., 1.], [2., 3.]]]), 3).numpy().round(2).tolist()
    [[[0.0, 0.5, 1.0], [1.0, 1.5, 2.0], [2.0, 2.5, 3.0]]]
    """
    rows, columns = (Tensor(_weights(n, size)) for n in images.shape[1:])
    return rows @ images @ columns.transpose()


def _weights(old: int, new: int) -> Array:
    """Return interpolation weights ``[new, old]``: pixel centres are aligned, edges replicated."""
    at = np.clip((np.arange(new) + 0.5) * old / new - 0.5, 0, old - 1)
    weights: Array = np.maximum(1 - np.abs(at[:, None] - np.arange(old)), 0)
    return weights.astype(np.float32)

URL = "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"

NAME = "cifar-10-python.tar.gz"

HASH = "md5:c58f30108f718f92721af3b95e74349a"


def cifar(device: str | None = None,
          data: str | os.PathLike[str] | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return CIFAR-10 as uint8 tensors: training images ``[50000, 3, 32, 32]``, training labels, test images, labels.

    Args:
        data: path of ``cifar-10-python.tar.gz`` or of its folder; default: download it once.

    Raises:
        ArgumentError: if the file does not exist, or cannot be downloaded.
        FileFormatError: if the file is not the CIFAR-10 archive.
    """
    path = _archive(data)
    try:
        with tarfile.open(path) as archive:
            names = sorted(n for n in archive.getnames() if "data_batch" in n), [
                n for n in archive.getnames() if n.endswith("test_batch")]
            arrays = [a for batches in names for a in _joined(archive, batches)]
    except (tarfile.TarError, EOFError, KeyError, ValueError, pickle.UnpicklingError) as error:
        raise FileFormatError("cifar", f"{path} is no CIFAR-10 archive: {error}", URL) from None
    a, b, c, d = (Tensor(x, device=device, requires_grad=False) for x in arrays)
    return a, b, c, d


def _archive(data: str | os.PathLike[str] | None) -> Path:
    if data is not None:
        path = Path(data) / NAME if Path(data).is_dir() else Path(data)
        if path.is_file():
            return path
        raise ArgumentError("cifar", f"there is no {path}", f"data= with the file of {URL}")
    try:
        return download(URL, HASH, NAME, "cifar")
    except OSError as error:
        raise ArgumentError("cifar", f"{URL} could not be downloaded: {error}",
                            f"put the file into {place('cifar')}, or data= with its path") from None


def _joined(archive: tarfile.TarFile, names: list[str]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the concatenated images and labels of the batch files ``names``."""
    images, labels = [], []
    for name in names:
        file = archive.extractfile(name)
        assert file is not None
        batch = _ArraysOnly(file, encoding="bytes").load()
        images.append(batch[b"data"])
        labels += batch[b"labels"]
    return np.concatenate(images).reshape(-1, 3, 32, 32), np.array(labels, np.uint8)


class _ArraysOnly(pickle.Unpickler):
    """An unpickler restricted to dicts of NumPy arrays, which is all that the batch files contain."""

    def find_class(self, module: str, name: str) -> Any:
        if (module.split(".")[0], name) not in (("numpy", "_reconstruct"), ("numpy", "ndarray"), ("numpy", "dtype"),
                                                ("_codecs", "encode")):
            raise pickle.UnpicklingError(f"it holds a {module}.{name}")
        return super().find_class(module, name)

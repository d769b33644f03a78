"""The CIFAR-10 data set: 50,000 training and 10,000 test images of 32×32 pixels, from a folder or the network."""
from __future__ import annotations

import os
import pickle
import tarfile
from pathlib import Path
from typing import Any

import numpy as np

from tinsmith.core.errors import ArgumentError, FileFormatError
from tinsmith.nn.downloads import download, place
from tinsmith.tensor.tensor import Tensor

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
        raise ArgumentError("cifar", f"{URL} cannot be had: {error}",
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

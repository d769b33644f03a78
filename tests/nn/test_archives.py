"""Weights and data in the file formats of other libraries."""
from __future__ import annotations

import io
import pickle
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tinsmith import Tensor, dtypes, nn
from tinsmith.core.errors import FileFormatError
from tinsmith.nn.state import (
    TensorIO,
    load_state_dict,
    numpy_load,
    numpy_save,
    safe_load,
    safe_load_metadata,
    safe_save,
    tar_extract,
    torch_load,
    zip_extract,
)


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_tar(tmp_path: Path, mode: Any) -> None:
    path = tmp_path / "a.tar"
    with tarfile.open(path, mode) as archive:
        for name, data in (("x/one", b"abc"), ("two", b"")):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    for source in (path, str(path), Tensor(path), Tensor(path.read_bytes())):
        found = tar_extract(source)
        assert sorted(found) == ["two", "x/one"] and found["x/one"].numpy().tobytes() == b"abc"
        assert found["two"].shape == (0,)
    with pytest.raises(ValueError, match="tar_extract"):
        tar_extract(Tensor(b"no archive at all"))


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_zip(tmp_path: Path, method: int) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("x/one", b"abc" * 100)
        archive.writestr("two", b"")
    for source in (path, Tensor(path.read_bytes())):
        found = zip_extract(source)
        assert found["x/one"].numpy().tobytes() == b"abc" * 100 and found["two"].shape == (0,)
    with pytest.raises(ValueError, match="zip_extract"):
        zip_extract(Tensor(b"no archive"))


def test_a_tensor_reads_like_a_file() -> None:
    file = TensorIO(Tensor(b"abcdefgh"))
    assert file.read(3) == b"abc" and file.seek(-2, io.SEEK_END) == 6 and file.read() == b"gh" and file.read(1) == b""
    with pytest.raises(TypeError, match="vector of bytes"):
        TensorIO(Tensor([1, 2]))


class _Harmful:
    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("run while loading",)


def test_torch_load_runs_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.pth"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x/data.pkl", pickle.dumps({"a": _Harmful()}))
    with pytest.raises(FileFormatError, match=r"builtins\.print, no tensor or container"):
        torch_load(path)
    assert capsys.readouterr().out == ""
    for data in (b"", pickle.dumps([1])[:-1]):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("x/data.pkl", data)
        with pytest.raises(FileFormatError, match="torch_load"):
            torch_load(path)
    path.write_bytes(b"nothing")
    with pytest.raises(FileFormatError, match=r"torch\.save"):
        torch_load(path)


def test_torch_load_changes_nothing(tmp_path: Path) -> None:
    """A pickle may not set attributes of named objects, call what it created, or fill anything but containers."""
    path = tmp_path / "x.pth"
    named = b"ctorch._utils\n_rebuild_tensor_v2\n"
    for code in (named + b"}X\x01\0\0\0aK\x01sb.", b"ctorch\nfloat32\n}X\x04\0\0\0nameK\x01sb.", b"K\x01)R.",
                 named + b".", b"K\x01K\x02a.", b"(.", b")\x81."):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("x/data.pkl", b"\x80\x02" + code)
        with pytest.raises(FileFormatError, match="torch_load"):
            torch_load(path)
    assert dtypes.float32.name == "float32"


@pytest.mark.parametrize("kind", ["fp8e4m3", "fp8e5m2", "fp8e4m3fnuz", "fp8e5m2fnuz", "bfloat16", "float16"])
def test_small_floats_in_safetensors(tmp_path: Path, kind: str) -> None:
    path, dtype = tmp_path / "x.safetensors", getattr(dtypes, kind)
    values = Tensor([[0.5, -1.0, 3.0], [0.0, 8.0, 16.0]]).cast(dtype)
    safe_save({"x": values}, path)
    found = safe_load(path)["x"]
    assert found.dtype is dtype and found.tolist() == values.tolist() and found.shape == (2, 3)


@pytest.mark.parametrize("kind", ["f4", "f8", "f2", "i8", "u2", "?", ">f4", ">i4"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_numpy_files(tmp_path: Path, kind: str, order: Any) -> None:
    array = np.asarray(np.arange(12).reshape(3, 4) % 5, kind, order=order)
    np.save(tmp_path / "x.npy", array)
    np.savez(tmp_path / "x.npz", a=array, b=np.float32(3), c=np.zeros((0, 2)))
    np.savez_compressed(tmp_path / "y.npz", a=array)
    one = numpy_load(tmp_path / "x.npy")
    assert isinstance(one, Tensor) and np.array_equal(one.numpy(), array)
    for source in (tmp_path / "x.npz", tmp_path / "y.npz", Tensor((tmp_path / "x.npz").read_bytes())):
        several = numpy_load(source)
        assert isinstance(several, dict) and np.array_equal(several["a"].numpy(), array)
        assert several["a"].dtype.numpy == array.dtype.newbyteorder("=")
    several = numpy_load(tmp_path / "x.npz")
    assert isinstance(several, dict) and several["b"].shape == () and several["c"].shape == (0, 2)


def test_numpy_files_are_written(tmp_path: Path) -> None:
    numpy_save(Tensor([[1.0, 2.0]]), tmp_path / "x.npy")
    numpy_save({"a": Tensor([1, 2]), "b": Tensor(3.0)}, tmp_path / "x.npz")
    assert np.load(tmp_path / "x.npy").tolist() == [[1, 2]]
    found = np.load(tmp_path / "x.npz")
    assert sorted(found) == ["a", "b"] and found["a"].tolist() == [1, 2] and found["b"].shape == ()


def test_numpy_files_of_objects(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "x.npy", np.array([_Harmful()], object), allow_pickle=True)
    np.save(tmp_path / "text.npy", np.array(["a"]))
    for name in ("x.npy", "text.npy"):
        with pytest.raises(FileFormatError, match="no array of numbers"):
            numpy_load(tmp_path / name)
    assert capsys.readouterr().out == ""


def test_safetensors_header(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    safe_save({"w": Tensor([1.0, 2.0])}, path, {"made": "here"})
    t, start, header = safe_load_metadata(path)
    begin, end = header["w"]["data_offsets"]
    assert t[start + begin : start + end].bitcast(dtypes.float32).tolist() == [1.0, 2.0]
    assert header["__metadata__"] == {"made": "here"}
    with pytest.raises(FileFormatError, match="safetensors"):
        safe_load_metadata(Tensor(b"12345678901234567890"))


def test_loading_state_in_steps(capsys: pytest.CaptureFixture[str]) -> None:
    layer, state = nn.Linear(2, 1), {"weight": Tensor([[1.0, 2.0]]), "bias": Tensor([3.0])}
    assert load_state_dict(layer, state, verbose=True, consume=True, realize=False) == []
    assert state == {} and "weight: (1, 2)" in capsys.readouterr().out
    assert layer(Tensor([[1.0, 1.0]])).item() == 6


def test_cifar(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    with tarfile.open(tmp_path / "cifar-10-python.tar.gz", "w:gz") as archive:
        for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
            batch = {b"data": rng.integers(0, 256, (2, 3072)).astype(np.uint8), b"labels": [1, 9]}
            data = pickle.dumps(batch)
            info = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    a, b, c, d = nn.datasets.cifar(data=tmp_path)
    assert (a.shape, b.shape, c.shape, d.tolist()) == ((10, 3, 32, 32), (10,), (2, 3, 32, 32), [1, 9])
    with pytest.raises(ValueError, match="cifar"):
        nn.datasets.cifar(data=tmp_path / "none")

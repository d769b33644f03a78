"""Weights and data in other people's files."""
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
    gguf_load,
    load_state_dict,
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


def test_torch_load(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    base = torch.arange(24, dtype=torch.float32).reshape(4, 6)
    state = {"a": base, "b": base.T[1:3], "c": torch.ones(2, dtype=torch.bfloat16) * 1.5,
             "d": [torch.tensor(7), {"e": 3}], "f": torch.nn.Parameter(torch.zeros(0, 2)), "h": "text",
             "g": torch.tensor([True, False]), "i": base[2:], "j": torch.ones(3).to(torch.float8_e4m3fn)}
    path = tmp_path / "x.pth"
    torch.save(state, path)
    for source in (path, Tensor(path.read_bytes())):
        got = torch_load(source)
        for name in "abi":
            assert np.array_equal(got[name].numpy(), state[name].numpy())
        assert got["c"].dtype is dtypes.bfloat16 and got["c"].tolist() == [1.5, 1.5]
        assert got["d"][0].item() == 7 and got["d"][1] == {"e": 3} and got["h"] == "text" and got["f"].shape == (0, 2)
        assert got["g"].tolist() == [True, False] and (got["a"] + 1).sum().item() == 300
        assert got["j"].dtype is dtypes.fp8e4m3 and got["j"].tolist() == [1, 1, 1]


def test_a_models_weights_come_over(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    theirs, ours = torch.nn.Linear(3, 2), nn.Linear(3, 2)
    torch.save(theirs.state_dict(), tmp_path / "x.pth")
    load_state_dict(ours, torch_load(tmp_path / "x.pth"))
    x = np.ones((1, 3), np.float32)
    np.testing.assert_allclose(ours(Tensor(x)).numpy(), theirs(torch.tensor(x)).detach().numpy(), rtol=1e-5)


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


def test_safetensors_header(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    safe_save({"w": Tensor([1.0, 2.0])}, path, {"made": "here"})
    t, start, header = safe_load_metadata(path)
    begin, end = header["w"]["data_offsets"]
    assert t[start + begin : start + end].bitcast(dtypes.float32).tolist() == [1.0, 2.0]
    assert header["__metadata__"] == {"made": "here"}
    with pytest.raises(FileFormatError, match="safetensors"):
        safe_load_metadata(Tensor(b"12345678901234567890"))


def test_gguf(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    path = str(tmp_path / "x.gguf")
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint32("llama.block_count", 2)
    writer.add_array("names", ["a", "b"])
    plain = np.arange(12, dtype=np.float32).reshape(3, 4)
    rough = np.random.default_rng(0).standard_normal((2, 64)).astype(np.float32)
    writer.add_tensor("plain", plain)
    writer.add_tensor("half", plain.astype(np.float16))
    kind = gguf.GGMLQuantizationType.Q8_0
    writer.add_tensor("rough", gguf.quants.quantize(rough, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    for source in (path, Path(path), Tensor(Path(path))):
        metadata, tensors = gguf_load(source)
        assert metadata["llama.block_count"] == 2 and metadata["names"] == ["a", "b"]
        assert np.array_equal(tensors["plain"].numpy(), plain) and tensors["half"].dtype is dtypes.float16
        np.testing.assert_allclose(tensors["rough"].numpy(), rough, atol=0.02)
    Path(path).write_bytes(b"GGUX" * 10)
    with pytest.raises(FileFormatError, match="gguf_load"):
        gguf_load(path)


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

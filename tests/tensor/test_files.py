"""Tensors of files: views, writes, bytes read as other dtypes, and what cannot be done there."""
from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tinsmith import Device, Tensor, dtypes


def test_a_file_is_a_tensor_of_bytes(tmp_path: Path) -> None:
    path = tmp_path / "Some.bin"
    path.write_bytes(bytes(range(16)))
    t = Tensor(path)
    assert (t.shape, t.dtype, t.device) == ((16,), dtypes.uint8, f"DISK:{path}")
    assert t[2:5].tolist() == [2, 3, 4] and t.reshape(4, 4)[:, 1].to("CPU").tolist() == [1, 5, 9, 13]
    assert (t.to("CPU").float() + 1).sum().item() == 136
    assert t[4:12].bitcast(dtypes.uint32).tolist() == np.arange(4, 12, dtype=np.uint8).view(np.uint32).tolist()
    assert Tensor(path, dtype=dtypes.int16).shape == (8,) and Tensor(path, device="CPU").device == "CPU"
    with pytest.raises(ValueError, match="whole elements"):
        Tensor(path, dtype=dtypes.float32)[:3].bitcast(dtypes.float64)
    with pytest.raises(FileNotFoundError):
        Tensor(tmp_path / "none")


def test_writes_reach_the_file_at_once(tmp_path: Path) -> None:
    path = tmp_path / "g"
    t = Tensor.empty(4, 2, device=f"disk:{path}", dtype=dtypes.float32)
    t.assign(Tensor.arange(8).float().reshape(4, 2))
    t[1:3] = Tensor([[9.0, 8.0], [7.0, 6.0]])
    t[0].assign(Tensor([5.0, 5.0]) * 2)
    t[3, 1] = 1
    assert np.fromfile(path, np.float32).tolist() == [10, 10, 9, 8, 7, 6, 6, 1] == t.flatten().tolist()
    again = Tensor.empty(2, device=f"DISK:{path}", dtype=dtypes.float32)
    assert again.tolist() == [10, 10] and path.stat().st_size == 32


def test_a_tensor_moves_to_a_file_and_back(tmp_path: Path) -> None:
    t = Tensor([1, 2, 3]).to(f"disk:{tmp_path / 'h'}")
    assert np.fromfile(tmp_path / "h", np.int32).tolist() == [1, 2, 3]
    assert (t.to(None) + 1).tolist() == [2, 3, 4] and t.clone("CPU").tolist() == [1, 2, 3]


def test_nothing_is_computed_there(tmp_path: Path) -> None:
    t = Tensor([1, 2, 3]).to(f"disk:{tmp_path / 'h'}")
    for attempt in (lambda: (t + 1).numpy(), lambda: (t + 1).to("CPU"), lambda: t.sum().item()):
        with pytest.raises(RuntimeError, match=r"\.to\('CPU'\)"):
            attempt()
    with pytest.raises(ValueError, match="is a copy"):
        t.reshape(1, 3).expand(2, 3).flatten().assign(Tensor([1, 2, 3, 1, 2, 3]))


def test_names_of_files() -> None:
    assert Device.canonicalize("disk:/Tmp/x") == "DISK:/Tmp/x"
    with pytest.raises(RuntimeError, match="its path"):
        Tensor.empty(1, device="disk:")

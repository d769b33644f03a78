"""Tensors of files: views, writes, bytes read as other dtypes, and what cannot be done there."""
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tinsmith import Context, Device, Tensor, dtypes
from tinsmith.core.errors import FileFormatError
from tinsmith.nn.state import safe_load, safe_save


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


READS = {
    "disk": (lambda t: t, lambda t: t.tolist()), "slice": (lambda t: t[4:8].bitcast(dtypes.int32), lambda t: t.numpy()),
    "moved": (lambda t: t[4:12].to("CPU"), lambda t: (t + 1).tolist()),
    "index": (lambda t: t.to("CPU"), lambda t: Tensor([1, 2])[t]),
    "written": (lambda t: t[:4], lambda t: t.assign(Tensor([1, 2, 3, 4], dtype=dtypes.uint8)))}


@pytest.mark.parametrize("make, read", READS.values(), ids=READS)
def test_a_file_that_was_cut_short(tmp_path: Path, make: Callable[..., Any], read: Callable[..., Any]) -> None:
    path = tmp_path / "cut.bin"
    path.write_bytes(bytes(1 << 16))
    t = make(Tensor(path))
    with open(path, "r+b") as file:
        file.truncate(80)
    with pytest.raises(FileFormatError, match=r"cut.bin' has 80 bytes, and had 65536 when.*test_files.py"):
        read(t)


def test_what_is_shown_of_a_file_that_was_cut_short(tmp_path: Path) -> None:
    """Debuggers and notebooks show tensors unasked: the error stands where the values would."""
    path = tmp_path / "cut.bin"
    path.write_bytes(bytes(1 << 16))
    t = Tensor(path)[:4]
    with open(path, "r+b") as file:
        file.truncate(80)
    assert repr(t).startswith("<Tensor (4,) dtypes.uchar on ")
    assert "cut.bin' has 80 bytes, and had 65536 when" in repr(t)


def test_weights_in_a_file_that_was_cut_short(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    safe_save({"a": Tensor([1.0, 2.0, 3.0]), "b": Tensor([True, False])}, path)
    found = safe_load(path)
    assert found["a"][1:].tolist() == [2, 3]
    path.open("r+b").truncate(70)
    for t in (found["a"], found["a"][:2], found["b"]):
        with pytest.raises(FileFormatError, match=r"w.safetensors' has 70 bytes, and had \d+ when it was opened"):
            (t + 1).tolist()


BOXES = {
    "row": (lambda t: t[5], 24), "rows": (lambda t: t[2:4], 48), "element": (lambda t: t[1, 2, 1], 4),
    "corner": (lambda t: t[3:5, :2, 1:], 48), "inside": (lambda t: t[7, 1:3], 16),
    "reshaped": (lambda t: t.reshape(24, 2)[1:3], 16),
    "two": (lambda t: t[0] + t[1], 48), "all": (lambda t: t[0] + t.sum(0), 192), "far": (lambda t: t[1:, :1], 168),
    "columns": (lambda t: t[:, 1], 192), "much": (lambda t: t[:5].sum(0) + t[4:].sum(0), 192)}


@pytest.mark.parametrize("look, nbytes", BOXES.values(), ids=BOXES)
def test_only_what_is_read_of_a_file_is_copied(tmp_path: Path, capsys: pytest.CaptureFixture[str],
                                               look: Callable[..., Any], nbytes: int) -> None:
    path = tmp_path / "w.safetensors"
    data = np.arange(48, dtype=np.float32).reshape(8, 3, 2)
    safe_save({"a": Tensor(data)}, path)
    t = safe_load(path)["a"]
    part = look(t)
    with Context(DEBUG=2):
        for _ in range(2):
            assert part.tolist() == look(data).tolist()
    copies = [line.split("copy ")[1].split(",")[0] for line in capsys.readouterr().out.splitlines() if "<- NPY" in line]
    assert sum(map(int, copies)) == nbytes, copies
    assert t.tolist() == data.tolist()
    t[0] = 1
    assert t[:2, 0, 0].tolist() == [1, 6] and safe_load(path)["a"][0, 0, 0].item() == 0

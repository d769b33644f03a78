"""Tensors of files: views, writes, bytes reinterpreted as other dtypes, and unsupported operations."""
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
    """repr() of a tensor of a truncated file shows the error instead of the values: debuggers call it unasked."""
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


@pytest.mark.parametrize(("index", "value"), [
    ((), [[1, 2, 3], [4, 5, 6]]), (0, [7, 8, 9]), ((slice(None), 1), (5, 6)), (1, np.array([1.5, 2.5, 3.5])),
    ((0, slice(1, 3)), [True, 2]), ((1, 2), np.float32(2.5)), (..., 3), (([0, 1], [2, 0]), [7, 8]), ([1], [[1, 2, 3]]),
    (np.array([[True, False, True], [False, True, False]]), 0), (np.array([True, False]), 4.5),
    ((slice(None), [2, 0]), [[1, 2], [3, 4]]), (slice(None, None, -1), [[1, 2, 3], [4, 5, 6]])])
def test_python_values_and_arrays_are_written(tmp_path: Path, index: Any, value: Any) -> None:
    start = np.arange(6, dtype=np.float32).reshape(2, 3)
    want = start.copy()
    want[index] = value
    for make in (lambda v: v, lambda v: Tensor(v).float()):
        t = Tensor(start).to(f"disk:{tmp_path / 'w'}")
        t[index] = make(value)
        assert np.fromfile(tmp_path / "w", np.float32).tolist() == want.reshape(-1).tolist() == t.flatten().tolist()


def test_assign_takes_python_values(tmp_path: Path) -> None:
    t = Tensor.empty(2, 2, dtype=dtypes.int32, device=f"disk:{tmp_path / 'a'}")
    for value, want in (([[1, 2], [3, 4]], [1, 2, 3, 4]), (7, [7] * 4), (np.array([8, 9], np.int32), [8, 9, 8, 9])):
        t.assign(value)
        assert np.fromfile(tmp_path / "a", np.int32).tolist() == want
    t[1].assign([5, 6])
    assert np.fromfile(tmp_path / "a", np.int32).tolist() == [8, 9, 5, 6]


def test_a_tensor_is_made_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "made"
    for make, want in ((lambda d: Tensor([1.5, 2.5], device=d), [1.5, 2.5]),
                       (lambda d: Tensor(np.array([1, 2], np.int64), device=d, dtype="float32"), [1, 2]),
                       (lambda d: Tensor.full((2,), 3.0, device=d), [3, 3]),
                       (lambda d: Tensor.arange(2.0, device=d), [0, 1]), (lambda d: Tensor.zeros(2, device=d), [0, 0])):
        t = make(f"disk:{path}")
        assert t.device == f"DISK:{path}" and np.fromfile(path, np.float32).tolist() == want == t.tolist()


@pytest.mark.parametrize("view", [
    lambda t: t, lambda t: t[8:24], lambda t: t[:32], lambda t: t[8:24].reshape(4, 4), lambda t: t[8:24].flip(0),
    lambda t: t[3:40:2], lambda t: t[8:24].reshape(4, 4).permute(1, 0), lambda t: t[8:24].bitcast(dtypes.int32),
    lambda t: t[8:24].pad(((1, 2),))])
@pytest.mark.parametrize("axis", [None, 0, -1])
def test_a_part_of_a_file_is_sharded(tmp_path: Path, view: Callable[[Tensor], Tensor], axis: int | None) -> None:
    (tmp_path / "s").write_bytes(bytes(range(64)))
    here = Tensor(np.arange(64, dtype=np.uint8))
    parts = view(Tensor(tmp_path / "s")).shard(("CPU:0", "CPU:1"), axis)
    assert parts.device == ("CPU", "CPU:1")
    assert np.array_equal(parts.numpy(), view(here).numpy())
    assert np.array_equal((parts + 1).numpy(), (view(here) + 1).numpy())
    moved = view(Tensor(tmp_path / "s"))
    moved.shard_(("CPU:0", "CPU:1"), axis)
    assert np.array_equal(moved.numpy(), view(here).numpy())


def test_an_empty_file_is_where_it_is(tmp_path: Path) -> None:
    (tmp_path / "e").touch()
    t = Tensor(tmp_path / "e")
    assert (t.device, t.shape, t.dtype, t.tolist()) == (f"DISK:{tmp_path / 'e'}", (0,), dtypes.uint8, [])
    assert t.bitcast(dtypes.int32).device == t.device
    assert [t.to(d).device for d in ("CPU", "CPU:1")] == ["CPU", "CPU:1"]
    full = Tensor([1, 2]).to(f"disk:{tmp_path / 'f'}")
    assert full[:0].device == full.device and full[1:1].to("CPU").device == "CPU" and full[:0].numpy().size == 0
    gone = Tensor([]).to(f"disk:{tmp_path / 'g'}")
    assert gone.device == f"DISK:{tmp_path / 'g'}" and (tmp_path / "g").stat().st_size == 0
    assert Tensor.zeros(0, 3, device=f"disk:{tmp_path / 'h'}").shape == (0, 3)

"""Files written by ``torch.save``, in both of its layouts, load with equal contents."""
from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tinsmith import Tensor, dtypes, nn
from tinsmith.core.errors import FileFormatError
from tinsmith.nn.state import load_state_dict, torch_load

torch = pytest.importorskip("torch", reason="pip install 'tinsmith[parity]'")

LAYOUTS = pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])


@LAYOUTS
def test_tensors_and_containers(tmp_path: Path, zipped: bool) -> None:
    base = torch.arange(24, dtype=torch.float32).reshape(4, 6)
    state = {"a": base, "b": base.T[1:3], "c": torch.ones(2, dtype=torch.bfloat16) * 1.5, "i": base[2:],
             "d": [torch.tensor(7), {"e": 3}], "f": torch.nn.Parameter(torch.zeros(0, 2)), "h": "text",
             "g": torch.tensor([True, False]), "j": torch.ones(3).to(torch.float8_e4m3fn),
             "k": base[:1].expand(3, 6), "l": torch.tensor([1, 2], dtype=torch.uint8),
             "rest": (b"bytes", Counter("aab"), {1, 2}, torch.device("cpu"), torch.Size([1, 2]), 2**80, None, 1.5)}
    path = tmp_path / "x.pth"
    torch.save(state, path, _use_new_zipfile_serialization=zipped)
    for source in (path, Tensor(path.read_bytes())):
        got = torch_load(source)
        for name in "abikl":
            assert np.array_equal(got[name].numpy(), state[name].numpy()), name  # type: ignore[attr-defined]
        assert got["c"].dtype is dtypes.bfloat16 and got["c"].tolist() == [1.5, 1.5]
        assert got["d"][0].item() == 7 and got["d"][0].shape == () and got["d"][1] == {"e": 3} and got["h"] == "text"
        assert got["f"].shape == (0, 2) and got["g"].tolist() == [True, False]
        assert got["j"].dtype is dtypes.fp8e4m3 and got["j"].tolist() == [1, 1, 1]
        assert got["rest"] == (b"bytes", Counter("aab"), {1, 2}, "cpu", (1, 2), 2**80, None, 1.5)
        assert (got["a"] + 1).sum().item() == 300


@LAYOUTS
def test_a_models_weights_come_over(tmp_path: Path, zipped: bool) -> None:
    theirs, ours = torch.nn.Linear(3, 2), nn.Linear(3, 2)
    torch.save(theirs.state_dict(), tmp_path / "x.pth", _use_new_zipfile_serialization=zipped)
    load_state_dict(ours, torch_load(tmp_path / "x.pth"))
    x = np.ones((1, 3), np.float32)
    np.testing.assert_allclose(ours(Tensor(x)).numpy(), theirs(torch.tensor(x)).detach().numpy(), rtol=1e-5)


@LAYOUTS
def test_a_checkpoint_with_an_optimizer(tmp_path: Path, zipped: bool) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 4])
    model(torch.ones(5, 3)).sum().backward()
    optimizer.step()
    parts = {"model": model, "optimizer": optimizer, "schedule": schedule}
    torch.save({**{n: p.state_dict() for n, p in parts.items()}, "step": 1}, tmp_path / "x.pth",
               _use_new_zipfile_serialization=zipped)
    got = torch_load(tmp_path / "x.pth")
    assert got["step"] == 1 and got["model"]["1.num_batches_tracked"].item() == 1
    want = optimizer.state_dict()["state"][0]["exp_avg"].numpy()
    assert np.array_equal(got["optimizer"]["state"][0]["exp_avg"].numpy(), want)


@LAYOUTS
def test_a_whole_module_is_refused(tmp_path: Path, zipped: bool) -> None:
    torch.save(torch.nn.Sequential(torch.nn.Linear(3, 4)), tmp_path / "x.pth", _use_new_zipfile_serialization=zipped)
    with pytest.raises(FileFormatError, match=r"holds a torch\.nn.*state_dict"):
        torch_load(tmp_path / "x.pth")

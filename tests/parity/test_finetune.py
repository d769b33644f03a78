"""examples/finetune.py: a network from a ``.pth`` file gives PyTorch's outputs and training steps."""
from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tinsmith import Tensor
from tinsmith.nn.state import get_state_dict

torch = pytest.importorskip("torch", reason="pip install 'tinsmith[parity]'")
nn = torch.nn

PATH = Path(__file__).parents[2] / "tinsmith" / "examples" / "finetune.py"


@pytest.fixture(scope="module")
def example() -> Any:
    spec = importlib.util.spec_from_file_location("finetune_example", PATH)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Block(nn.Module):
    """torchvision's residual block, with its attribute names."""

    def __init__(self, width: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, out, 3, stride, 1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(out), nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.downsample: Any = None
        if stride > 1 or width != out:
            self.downsample = nn.Sequential(nn.Conv2d(width, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        return (y + (x if self.downsample is None else self.downsample(x))).relu()


class ResNet18(nn.Module):
    def __init__(self, classes: int, width: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width)
        before = width
        for n in range(4):
            size = width << n
            setattr(self, f"layer{n + 1}", nn.Sequential(Block(before, size, 2 if n else 1), Block(size, size, 1)))
            before = size
        self.fc = nn.Linear(before, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.max_pool2d(self.bn1(self.conv1(x)).relu(), 3, 2, 1)
        for n in range(4):
            x = getattr(self, f"layer{n + 1}")(x)
        return self.fc(x.mean((2, 3)))


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_one_step_of_training(example: Any, tmp_path: Path, zipped: bool) -> None:
    torch.manual_seed(0)
    twin = ResNet18(5, 4)
    torch.save({"state_dict": {f"module.{n}": t for n, t in twin.state_dict().items()}}, tmp_path / "x.pth",
               _use_new_zipfile_serialization=zipped)
    ours = example.ResNet18(5, 4)
    assert example.load(ours, tmp_path / "x.pth") == []
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((4, 3, 32, 32)).astype(np.float32), np.array([0, 3, 1, 4])
    twin.eval()
    np.testing.assert_allclose(ours(Tensor(x)).numpy(), twin(torch.tensor(x)).detach().numpy(), rtol=1e-4, atol=1e-4)
    twin.train()
    names = [n for n, _ in twin.named_parameters() if n.startswith("fc") or "bn" in n or "downsample.1" in n]
    assert len(example.learning(ours)) == len(names)
    optimizer = torch.optim.AdamW([p for n, p in twin.named_parameters() if n in names], lr=1e-3)
    loss = nn.functional.cross_entropy(twin(torch.tensor(x)), torch.tensor(y))
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    found = example.train(ours, x, y.astype(np.int32), 1, 4, 1e-3, order_seed(4))
    np.testing.assert_allclose(found[0], loss.item(), rtol=1e-4)
    state = get_state_dict(ours)
    for name, value in twin.state_dict().items():
        if "num_batches" not in name:
            np.testing.assert_allclose(state[name].numpy(), value.numpy(), rtol=1e-4, atol=1e-4, err_msg=name)


def order_seed(count: int) -> int:
    """Return a seed that draws each row once, so that a batch is the full data set."""
    return next(s for s in range(10_000) if len(set(np.random.default_rng(s).integers(0, count, count))) == count)


def test_a_last_layer_of_other_classes_keeps_its_own(example: Any, tmp_path: Path) -> None:
    torch.save(ResNet18(7, 4).state_dict(), tmp_path / "x.pth")
    assert example.load(example.ResNet18(5, 4), tmp_path / "x.pth") == ["fc.weight", "fc.bias"]
    torch.save({"other": torch.zeros(2)}, tmp_path / "x.pth")
    with pytest.raises(SystemExit, match="no weights of a ResNet-18"):
        example.load(example.ResNet18(5, 4), tmp_path / "x.pth")

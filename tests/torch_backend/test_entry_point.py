"""After an installation, PyTorch finds the backend by its name."""
from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the backend of torch.compile needs PyTorch")

ROOT = Path(__file__).parents[2]
SCRIPT = """
import torch
assert "tinsmith" in torch._dynamo.list_backends()
print(torch.compile(lambda x: x * 2 + 1, backend="tinsmith")(torch.ones(2)).tolist())
"""


def test_pytorch_finds_the_entry_point(tmp_path: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    installed = tmp_path / "tinsmith-0.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: tinsmith\nVersion: 0.0\n", "utf-8")
    points = project["entry-points"]["torch_dynamo_backends"]
    (installed / "entry_points.txt").write_text(
        "[torch_dynamo_backends]\n" + "".join(f"{k} = {v}\n" for k, v in points.items()), "utf-8")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    # not in the checkout, where an older installation may have left metadata
    done = subprocess.run([sys.executable, "-c", SCRIPT], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.stdout.strip() == "[3.0, 3.0]", done.stderr[-2000:]

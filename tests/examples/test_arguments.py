"""Invalid arguments end an example with a one-line error."""
from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tinsmith import Tensor

EXAMPLES = Path(__file__).parents[2] / "tinsmith" / "examples"
CASES: dict[str, tuple[str, list[str], str]] = {
    "decoder": ("decoder", ["--data", "nofile"], "no file nofile"),
    "decoder folder": ("decoder", ["--data", "."], "no file"),
    "decoder tokens": ("decoder", ["--tokens", "-3"], "at least 0"),
    "lstm": ("lstm_text", ["--data", "nofile"], "no file nofile"),
    "lstm short": ("lstm_text", ["--data", "short.txt"], "5 characters, more than --length 64"),
    "lstm prompt": ("lstm_text", ["--prompt", ""], "a character or more"),
    "finetune": ("finetune", ["nofile.pth"], "no file nofile.pth"),
    "language model": ("language_model", ["nofile.gguf"], "nofile.gguf is no file"),
    "language model folder": ("language_model", ["."], "no folder with a config.json")}


def program(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"{name}_arguments", EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("case", CASES)
def test_mistakes(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                  capsys: pytest.CaptureFixture[str]) -> None:
    name, arguments, message = CASES[case]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "short.txt").write_text("short")
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    with pytest.raises(SystemExit):
        program(name).main()
    assert message in capsys.readouterr().err


def test_the_lstm_takes_the_likeliest_at_temperature_0() -> None:
    example = program("lstm_text")
    Tensor.manual_seed(1)
    model = example.Writer(5, width=8, layers=1)
    written = example.write(model, [1, 2], 3, 0.0, np.random.default_rng(0))
    codes = [1, 2]
    for _ in range(3):
        codes.append(int(model(Tensor([codes]))[0][0, -1].argmax().item()))
    assert written == codes[2:]

"""Damaged GGUF files: metadata and tensors, or Tinsmith's error."""
from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.properties import damage
from tests.properties.runner import FEW
from tinsmith.nn.io.ggml import KINDS
from tinsmith.nn.state import gguf_load


def whole_file(rng: random.Random) -> bytes:
    """Return a valid file: up to three tensors, quantized or not, and metadata of most types."""
    gguf = pytest.importorskip("gguf", reason="pip install 'tinsmith[gguf]'")
    values = np.random.default_rng(rng.getrandbits(32))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.gguf"
        writer = gguf.GGUFWriter(str(path), rng.choice(("llama", "gpt2")))
        writer.add_uint32("count", rng.getrandbits(32))
        writer.add_float32("eps", 1e-5)
        writer.add_bool("bias", True)
        writer.add_array("tokens", ["a", "bc", "ä"][: rng.randint(1, 3)])
        writer.add_array("scores", [1, 2, 3])
        for n in range(rng.randint(0, 3)):
            kind = rng.choice(("Q8_0", "Q4_K", "Q6_K", "IQ4_NL", ""))
            if kind:
                packed = values.integers(0, 256, (rng.randint(1, 3), KINDS[kind].nbytes)).astype(np.uint8)
                writer.add_tensor(f"w{n}", packed, raw_dtype=gguf.GGMLQuantizationType[kind])
            else:
                writer.add_tensor(f"w{n}", values.standard_normal((2, 3)).astype(rng.choice(("f4", "f2"))))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path.read_bytes()


def change_header(rng: random.Random, text: bytes) -> bytes:
    """Return the file with one changed count in the header."""
    at = rng.choice((4, 8, 16))
    width = 4 if at == 4 else 8
    return text[:at] + (rng.choice(damage.NUMBERS) % 2 ** (8 * width)).to_bytes(width, "little") + text[at + width :]


def nest(rng: random.Random, text: bytes) -> bytes:
    """Return a file whose metadata are deeply nested lists."""
    deep = b"\x09\0\0\0\x01\0\0\0\0\0\0\0" * 3000
    return text[:16] + (1).to_bytes(8, "little") + (1).to_bytes(8, "little") + b"x\x09\0\0\0" + deep


def check(seed: int) -> None:
    rng = random.Random(seed)
    text, done = damage.damaged(rng, whole_file(rng))
    for change in rng.choices((change_header, nest), weights=(9, 1), k=int(rng.random() < 0.3)):
        text, done = change(rng, text), [*done, change.__name__]

    def read(path: Path) -> Any:
        return gguf_load(path)[1]

    damage.check(read, text, done, f"seed {seed}", ".gguf")


@pytest.mark.parametrize("seed", range(2 * FEW))
def test_damaged_files(seed: int) -> None:
    check(seed)

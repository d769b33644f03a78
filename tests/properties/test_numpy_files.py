"""Damaged ``.npy`` and ``.npz`` files: arrays, or Tinsmith's error."""
from __future__ import annotations

import io
import random

import numpy as np
import pytest

from tests.properties import damage
from tests.properties.runner import FEW
from tinsmith.nn.state import numpy_load

KINDS = ("f4", "f8", "f2", "i8", "u1", "?", ">f4", "<i2")
HEADERS = ("{'descr': '<f4', 'fortran_order': False, 'shape': (%s,), }", "__import__('os').system('true')", "(" * 300,
           "{'descr': '|O', 'fortran_order': False, 'shape': (1,)}",
           "{'descr': [('a', '<f4')], 'fortran_order': True, 'shape': (2, %s)}")


def whole_file(rng: random.Random) -> bytes:
    values = np.random.default_rng(rng.getrandbits(32))

    def array() -> np.ndarray:
        shape = tuple(rng.choice((0, 1, 2, 3, 5)) for _ in range(rng.randint(0, 3)))
        made = values.integers(0, 2, shape).astype(rng.choice(KINDS))
        return np.asfortranarray(made) if rng.random() < 0.3 else made

    file = io.BytesIO()
    if rng.random() < 0.5:
        np.save(file, array())
    else:
        save = np.savez_compressed if rng.random() < 0.3 else np.savez
        save(file, **{name: array() for name in ("a", "b")})
    return file.getvalue()


def with_header(rng: random.Random) -> bytes:
    """Return a file with an arbitrary header."""
    header = rng.choice(HEADERS)
    text = (header % rng.choice(damage.NUMBERS) if "%s" in header else header).encode()
    return b"\x93NUMPY" + bytes((rng.choice((1, 2, 3)), 0)) + len(text).to_bytes(2, "little") + text + bytes(16)


def check(seed: int) -> None:
    rng = random.Random(seed)
    made = rng.random() < 0.2
    text, done = damage.damaged(rng, with_header(rng) if made else whole_file(rng))
    damage.check(numpy_load, text, done + ["with_header"] * made, f"seed {seed}", ".npy")


@pytest.mark.parametrize("seed", range(2 * FEW))
def test_damaged_files(seed: int) -> None:
    check(seed)

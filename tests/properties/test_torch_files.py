"""Damaged and hostile ``.pth`` files, of both layouts: tensors and containers, or Tinsmith's error; no code runs."""
from __future__ import annotations

import io
import os
import pickle
import random
import zipfile

import pytest

from tests.properties import damage
from tests.properties.runner import FEW
from tinsmith.nn.state import torch_load

HOSTILE = (b"cos\nsystem\n", b"cposix\nsystem\n", b"csubprocess\nPopen\n", b"cbuiltins\neval\n", b"cbuiltins\nexec\n",
           b"cbuiltins\ngetattr\n", b"cnumpy\nsave\n", b"ctinsmith.core.dtypes\ndtypes\n",
           b"ctorch.serialization\nload\n")
CALLS = (b"(X\x04\0\0\0touchtR", b"(tR", b"}b", b"N}X\x08\0\0\0__code__Ns\x86b", b")\x81", b"(U\x04exittR.")


def number(n: int) -> bytes:
    return b"J" + n.to_bytes(4, "little", signed=True) if -2**31 <= n < 2**31 else pickle.dumps(n, 2)[2:-1]


def text(value: str) -> bytes:
    return b"X" + len(value.encode()).to_bytes(4, "little") + value.encode()


def numbers(values: list[int]) -> bytes:
    return b"(" + b"".join(map(number, values)) + b"t"


def pickled(rng: random.Random) -> tuple[bytes, dict[str, bytes]]:
    """Return a pickle of a dict of tensors as PyTorch writes it, and the bytes of the storages."""
    out, storages = b"\x80\x02}(", {}
    for n in range(rng.randint(0, 3)):
        kind, size = rng.choice((("FloatStorage", 4), ("LongStorage", 8), ("HalfStorage", 2), ("BoolStorage", 1)))
        shape = [rng.choice((1, 2, 3, 0)) for _ in range(rng.randint(0, 3))]
        strides = [1] * len(shape)
        for axis in reversed(range(len(shape) - 1)):
            strides[axis] = strides[axis + 1] * max(shape[axis + 1], 1)
        if rng.random() < 0.3:
            shape, strides = shape[::-1], strides[::-1]
        count = 27
        storages[str(n)] = bytes(rng.choices((0, 1), k=count * size))
        if rng.random() < 0.25:  # numbers that a writer would not write
            values = rng.choice((shape, strides))
            if values:
                values[rng.randrange(len(values))] = rng.choice((*damage.NUMBERS, -1))
            count = rng.choice((27, 27, *damage.NUMBERS))
        storage = b"(" + text("storage") + b"ctorch\n" + kind.encode() + b"\n" + text(str(n)) + text("cpu") + number(
            count) + b"tQ"
        out += text(f"w{n}") + b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + number(rng.choice((0, 0, 0, 1, 26)))
        out += numbers(shape) + numbers(strides) + b"\x89ccollections\nOrderedDict\n)RtR"
    return out + text("step") + b"K\x07" + text("names") + b"](K\x01K\x02eu.", storages


def hostile(rng: random.Random, code: bytes) -> bytes:
    """Return the pickle with an inserted call of a dangerous name, or a number that requests much memory."""
    at = rng.randrange(2, len(code))
    more = rng.choice((rng.choice(HOSTILE) + rng.choice(CALLS), b"r\xff\xff\xff\xff", b"\x8e" + b"\xff" * 8,
                       b"\x96" + b"\xff" * 6 + b"\0\0", b"\x95" + b"\xff" * 8, b"]" * 2000, b"(" * 2000))
    return code[:at] + more + code[at:]


def zipped(code: bytes, storages: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("x/data.pkl", code)
        archive.writestr("x/byteorder", "little")
        for name, data in storages.items():
            archive.writestr(f"x/data/{name}", data)
    return file.getvalue()


def legacy(code: bytes, storages: dict[str, bytes]) -> bytes:
    head = [pickle.dumps(v, 2) for v in (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True})]
    data = b"".join((27).to_bytes(8, "little") + block for block in storages.values())
    return b"".join(head) + code + pickle.dumps(list(storages), 2) + data


def check(seed: int) -> None:
    rng = random.Random(seed)
    code, storages = pickled(rng)
    done = ["numbers"]  # the pickle may be wrong in itself
    if rng.random() < 0.3:
        code = hostile(rng, code)
        done.append("hostile")
    if rng.random() < 0.5:
        code, more = damage.damaged(rng, code, 2)
        done += more
    data = rng.choice((zipped, legacy))(code, storages)
    data, more = damage.damaged(rng, data, 2 if rng.random() < 0.5 else 0)
    here = os.getcwd()
    damage.check(torch_load, data, done + more, f"seed {seed}", ".pth")
    assert os.getcwd() == here


def test_a_good_file_loads() -> None:
    """The reader accepts both undamaged layouts."""
    found = 0
    for seed in range(40):
        code, storages = pickled(random.Random(seed))
        for layout in (zipped, legacy):
            try:
                got = torch_load_bytes(layout(code, storages))
            except ValueError:
                continue
            assert got["step"] == 7 and got["names"] == [1, 2]
            found += len(storages)
    assert found > 40


def torch_load_bytes(data: bytes) -> dict[str, object]:
    from tinsmith import Tensor

    found: dict[str, object] = torch_load(Tensor(data))
    return found


@pytest.mark.parametrize("seed", range(2 * FEW))
def test_damaged_files(seed: int) -> None:
    check(seed)

"""Damaged safetensors files: what loads equals the ``safetensors`` package's result; the rest raises Tinsmith's
error."""
from __future__ import annotations

import json
import random
import tempfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy

from tests.properties.runner import FEW
from tinsmith.core.errors import FileFormatError
from tinsmith.nn.state import safe_load

MOST_BYTES = 1 << 28  # of memory, more than any file here makes needful, and less than sizes in its header say
LARGEST = 1 << 31  # sizes from which an array may be refused though it has no elements
DTYPES = ("bool", "int8", "uint8", "int16", "int32", "int64", "uint16", "uint32", "uint64", "float16", "float32",
          "float64")
CODES = ("F32", "F64", "I64", "U8", "BOOL", "BF16", "F8_E4M3", "F8_E5M2", "C64", "F4", "f32", "FLOAT", "", "F", 7, None)
NUMBERS = (-1, 0, 1, 2, 3, 4, 7, 8, 64, 2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**30, 1.5, 1e400, "4", None,
           True, [], {})
FLOATS_OF_EIGHT_BITS = {"float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "float8_e4m3fnuz": "F8_E4M3FNUZ",
                        "float8_e5m2fnuz": "F8_E5M2FNUZ"}
CODE_OF = {"bool": "BOOL", "bfloat16": "BF16", **FLOATS_OF_EIGHT_BITS, **{
    f"{kind}{bits}": f"{code}{bits}" for kind, code in (("int", "I"), ("uint", "U"), ("float", "F"))
    for bits in (8, 16, 32, 64)}}

Header = dict[str, Any]


def whole_file(rng: random.Random) -> tuple[Header, bytes]:
    """Return the header and the data of a valid file with up to four tensors."""
    values = np.random.default_rng(rng.getrandbits(32))
    tensors = {}
    for n in range(rng.randint(0, 4)):
        shape = tuple(rng.choice((0, 1, 2, 3, 5)) for _ in range(rng.randint(0, 3)))
        tensors[rng.choice(("w", "b", "läyer.0", "", "a" * 40)) + str(n)] = values.integers(
            0, 100, shape).astype(rng.choice(DTYPES))
    text = safetensors.numpy.save(tensors, {"made": "here"} if rng.random() < 0.3 else None)
    end = 8 + int.from_bytes(text[:8], "little")
    return json.loads(text[8:end]), text[end:]


def packed(header: bytes, data: bytes, length: int | None = None) -> bytes:
    return (len(header) if length is None else length).to_bytes(8, "little") + header + data


def _some_entry(rng: random.Random, header: Header) -> Header:
    entries = [v for k, v in header.items() if k != "__metadata__"]
    if not entries:
        header["x"] = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
        entries = [header["x"]]
    entry: Header = rng.choice(entries)
    return entry


# Changes of the header: each is a mistake that a writer could make.


def change_dtype(rng: random.Random, header: Header) -> None:
    _some_entry(rng, header)["dtype"] = rng.choice(CODES)


def change_shape(rng: random.Random, header: Header) -> None:
    entry = _some_entry(rng, header)
    shape = list(entry["shape"])
    what = rng.randrange(4)
    if what == 0:
        shape.insert(rng.randint(0, len(shape)), rng.choice(NUMBERS))
    elif what == 1 and shape:
        shape[rng.randrange(len(shape))] = rng.choice(NUMBERS)
    elif what == 2 and shape:
        shape.pop()
    else:
        shape = [2**32, 2**32, rng.choice((0, 1, 2**33))]
    entry["shape"] = shape if rng.random() < 0.9 else rng.choice(NUMBERS)


def change_offsets(rng: random.Random, header: Header) -> None:
    entry = _some_entry(rng, header)
    offsets = list(entry["data_offsets"])
    offsets[rng.randrange(2)] = rng.choice(NUMBERS)
    entry["data_offsets"] = rng.choice((offsets, offsets, offsets[::-1], [*offsets, 8], offsets[:1]))


def shift_offsets(rng: random.Random, header: Header) -> None:
    entry, by = _some_entry(rng, header), rng.choice((-8, -4, -1, 1, 4, 8))
    entry["data_offsets"] = [v + by for v in entry["data_offsets"]]


def overlap(rng: random.Random, header: Header) -> None:
    header["again"] = dict(_some_entry(rng, header))


def drop_key(rng: random.Random, header: Header) -> None:
    entry = _some_entry(rng, header)
    entry.pop(rng.choice(sorted(entry)))


def add_key(rng: random.Random, header: Header) -> None:
    _some_entry(rng, header)["strides"] = [1]


def change_metadata(rng: random.Random, header: Header) -> None:
    header["__metadata__"] = rng.choice(({"a": 1}, {"a": {"b": "c"}}, [], "text", None, {"a": "b"}))


def replace_entry(rng: random.Random, header: Header) -> None:
    header[rng.choice(("w0", "b1", "new"))] = rng.choice(NUMBERS)


HEADER_CHANGES: tuple[Callable[[random.Random, Header], None], ...] = (
    change_dtype, change_shape, change_offsets, shift_offsets, overlap, drop_key, add_key, change_metadata,
    replace_entry)


# Changes of the file's text.


def truncate(rng: random.Random, text: bytes) -> bytes:
    return text[: rng.randint(0, len(text))]


def extend(rng: random.Random, text: bytes) -> bytes:
    return text + rng.randbytes(rng.randint(1, 20))


def flip_bits(rng: random.Random, text: bytes) -> bytes:
    out = bytearray(text)
    for _ in range(rng.randint(1, 3)):
        if out:
            out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
    return bytes(out)


def change_length(rng: random.Random, text: bytes) -> bytes:
    now = int.from_bytes(text[:8], "little")
    length = rng.choice((0, 1, now - 1, now + 1, now + 8, 2**24, 2**31, 2**40, 2**63, 2**64 - 1, 100_000_001))
    return min(max(length, 0), 2**64 - 1).to_bytes(8, "little") + text[8:]


def overwrite(rng: random.Random, text: bytes) -> bytes:
    at = rng.randint(0, len(text))
    return text[:at] + rng.randbytes(rng.randint(1, 8)) + text[at + rng.randint(0, 8) :]


def nest_deeply(rng: random.Random, text: bytes) -> bytes:
    return packed(b'{"x":' * 3000 + b"1" + b"}" * 3000, b"")


def not_json(rng: random.Random, text: bytes) -> bytes:
    header = rng.choice((b"", b"[]", b"null", b"{", b"{}{}", b"\xff\xfe", b'{"x": NaN}', b"{'x': 1}", b" {}", b"{}   "))
    return packed(header, b"")


def duplicate_key(rng: random.Random, text: bytes) -> bytes:
    one = b'"w":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}'
    other = rng.choice((one, b'"w":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}'))
    return packed(b"{" + one + b"," + other + b"}", b"\1\2\3\4"[: rng.choice((2, 4))])


TEXT_CHANGES: tuple[Callable[[random.Random, bytes], bytes], ...] = (
    truncate, extend, flip_bits, flip_bits, change_length, overwrite, nest_deeply, not_json, duplicate_key)


def damaged(rng: random.Random) -> tuple[bytes, list[str]]:
    """Return a file, and the names of the changes made to it (sometimes none)."""
    header, data = whole_file(rng)
    done = []
    for change in rng.choices(HEADER_CHANGES, k=rng.choice((0, 0, 1, 1, 2))):
        if all(isinstance(v, dict) and {"dtype", "shape", "data_offsets"} <= v.keys()
               and isinstance(v["shape"], list) and isinstance(v["data_offsets"], list) and len(v["data_offsets"]) == 2
               for k, v in header.items() if k != "__metadata__"):
            done.append(change.__name__)
            try:
                change(rng, header)
            except TypeError:  # it met what an earlier change left
                done.pop()
    text = packed(json.dumps(header).encode(), data)
    for alter in rng.choices(TEXT_CHANGES, k=rng.choice((0, 0, 1, 1, 2))):
        done.append(alter.__name__)
        text = alter(rng, text)
    return text, done


def theirs(text: bytes) -> dict[str, tuple[str, list[int], bytes]] | None:
    """Return dtype code, shape and bytes (bools as 0 or 1) by name as the package reads them; None if it refuses."""
    try:
        return {name: (v["dtype"], v["shape"], bytes(map(bool, v["data"]) if v["dtype"] == "BOOL" else v["data"]))
                for name, v in safetensors.deserialize(text)}
    except safetensors.SafetensorError:
        return None


def ours(path: Path) -> dict[str, tuple[str, list[int], bytes]] | None:
    """Return the same from Tinsmith's loader; None if it refuses as it should."""
    try:
        arrays = {name: t.numpy() for name, t in safe_load(path).items()}
    except FileFormatError:
        return None
    return {name: (CODE_OF[a.dtype.name], list(a.shape), a.tobytes()) for name, a in arrays.items()}


def check(seed: int) -> None:
    rng = random.Random(seed)
    text, done = damaged(rng)
    account = f"seed {seed}: {' + '.join(done) or 'unchanged'}; {len(text)} bytes {text[:400]!r}"
    want = theirs(text)
    if want is not None and not {code for code, *_ in want.values()} <= set(CODE_OF.values()):
        want = None  # a dtype that Tinsmith has not
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.safetensors"
        path.write_bytes(text)
        tracemalloc.start()
        try:
            got = ours(path)
            most = tracemalloc.get_traced_memory()[1]
        except Exception as error:
            raise AssertionError(f"{type(error).__name__}: {error}. {account}") from error
        finally:
            tracemalloc.stop()
    assert done or got is not None, f"a good file is refused. {account}"
    huge = want is not None and any(n >= LARGEST for _, shape, _ in want.values() for n in shape)
    assert got == want or (huge and got is None), f"read: {got}, by the package: {want}. {account}"
    assert most < MOST_BYTES, f"{most} bytes of memory taken. {account}"


@pytest.mark.parametrize("seed", range(4 * FEW))
def test_damaged_files(seed: int) -> None:
    check(seed)

"""Random damage to files of any format, and the allowed reactions of a reader: values or Tinsmith's error, quickly and
in little memory."""
from __future__ import annotations

import random
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tinsmith import Tensor
from tinsmith.core.errors import FileFormatError

MOST_BYTES = 1 << 28  # of memory, more than any file here makes needful
MOST_SECONDS = 30.0
FORBIDDEN = ("os.system", "os.exec", "os.posix_spawn", "os.remove", "subprocess.Popen", "socket.connect")
NUMBERS = (0, 1, 2, 3, 7, 8, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**63 - 1, 2**64 - 1)

happened: list[str] = []  # what a reader did that only a program does


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if watching and event in FORBIDDEN:
        happened.append(event)


watching = False
sys.addaudithook(_watch)


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


def overwrite(rng: random.Random, text: bytes) -> bytes:
    at = rng.randint(0, len(text))
    return text[:at] + rng.randbytes(rng.randint(1, 8)) + text[at + rng.randint(0, 8) :]


def put_number(rng: random.Random, text: bytes) -> bytes:
    """Return the file with some bytes overwritten by a number of 1 to 8 bytes, which may be read as a length."""
    at, width = rng.randint(0, len(text)), rng.choice((1, 2, 4, 8))
    return text[:at] + (rng.choice(NUMBERS) % 2 ** (8 * width)).to_bytes(width, "little") + text[at + width :]


def cut_out(rng: random.Random, text: bytes) -> bytes:
    at = rng.randint(0, len(text))
    return text[:at] + text[at + rng.randint(1, 40) :]


def repeat(rng: random.Random, text: bytes) -> bytes:
    at = rng.randint(0, len(text))
    end = at + rng.randint(1, 40)
    return text[:end] + text[at:end] * rng.randint(1, 3) + text[end:]


CHANGES: tuple[Callable[[random.Random, bytes], bytes], ...] = (
    truncate, extend, flip_bits, flip_bits, overwrite, put_number, put_number, cut_out, repeat)


def damaged(rng: random.Random, text: bytes, most: int = 3) -> tuple[bytes, list[str]]:
    """Return the bytes with up to ``most`` changes, and the names of the changes."""
    done = []
    for change in rng.choices(CHANGES, k=rng.randint(0, most)):
        text = change(rng, text)
        done.append(change.__name__)
    return text, done


def tensors(value: Any) -> Iterator[Tensor]:
    """Return all tensors in dicts, lists and tuples."""
    stack, seen = [value], set[int]()
    while stack:
        value = stack.pop()
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (dict, list, tuple)) and id(value) not in seen:  # a file can make a list hold itself
            seen.add(id(value))
            stack += list(value.values()) if isinstance(value, dict) else list(value)


def check(read: Callable[[Path], Any], text: bytes, done: list[str], account: str, suffix: str) -> None:
    """Read a file, and all of its tensors if they have fewer than a million elements."""
    global watching
    account = f"{account}: {' + '.join(done) or 'unchanged'}; {len(text)} bytes {text[:300]!r}"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"x{suffix}"
        path.write_bytes(text)
        begin, refused, watching = time.monotonic(), False, True
        happened.clear()
        tracemalloc.start()
        try:
            for t in tensors(read(path)):
                if t.numel() < 1 << 20:
                    t.numpy()
        except FileFormatError:
            refused = True
        except Exception as error:
            raise AssertionError(f"{type(error).__name__}: {error}. {account}") from error
        finally:
            most, watching = tracemalloc.get_traced_memory()[1], False
            tracemalloc.stop()
        assert not happened, f"it ran {happened}. {account}"
        assert [p.name for p in Path(folder).iterdir()] == [path.name], f"it made files. {account}"
    assert done or not refused, f"a good file is refused. {account}"
    assert most < MOST_BYTES, f"{most} bytes of memory taken. {account}"
    assert time.monotonic() - begin < MOST_SECONDS, f"it took {time.monotonic() - begin:.0f} s. {account}"

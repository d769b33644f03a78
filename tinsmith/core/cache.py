"""A disk cache that survives kills, concurrent processes, a read-only home and its own deletion.

One file per entry, named by its key's hash, written to a temporary name and renamed; a checksum in front of the data
is verified on reading. Entries are data, never pickles. Above ``CACHE_BYTES`` the entries used longest ago are dropped.
"""
from __future__ import annotations

import contextlib
import hashlib
import importlib
import os
from pathlib import Path

from tinsmith.core.settings import settings

_MAGIC = b"tinsmith1"
_PRUNE_EVERY = 256
_DOWNLOADED = ("datasets", "downloads")
_writes = 0


def cache_dir() -> Path:
    """Where entries live: ``CACHE_DIR``, else the platform's user cache directory."""
    if settings.CACHE_DIR:
        return Path(settings.CACHE_DIR)
    package = importlib.import_module("platformdirs")  # at its first use: importing tinsmith stays fast
    return Path(package.user_cache_dir("tinsmith"))


def cache_key(*parts: str | bytes) -> str:
    """A hex key over ``parts``; their boundaries count."""
    h = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        h.update(len(data).to_bytes(8, "little"))
        h.update(data)
    return h.hexdigest()


def _path(kind: str, key: str) -> Path:
    return cache_dir() / kind / key[:2] / key


def cache_get(kind: str, key: str) -> bytes | None:
    """The entry's data, or None if it is absent, damaged or unreadable."""
    if not settings.CACHELEVEL:
        return None
    path = _path(kind, key)
    try:
        raw = path.read_bytes()
    except OSError:
        return None
    body = raw[len(_MAGIC) + 32 :]
    if raw[: len(_MAGIC)] != _MAGIC or hashlib.sha256(body).digest() != raw[len(_MAGIC) : len(_MAGIC) + 32]:
        with contextlib.suppress(OSError):
            path.unlink()
        return None
    with contextlib.suppress(OSError):
        os.utime(path)
    return body


def replace_file(path: Path, data: bytes) -> None:
    """Write a file that appears complete or not at all, whoever else reads or writes it."""
    temporary = path.with_name(f".tmp{os.urandom(8).hex()}")
    try:
        with open(temporary, "xb") as f:
            f.write(data)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def cache_put(kind: str, key: str, data: bytes) -> None:
    """Store ``data``; where nothing can be written, silently keep none."""
    global _writes
    if not settings.CACHELEVEL:
        return
    path = _path(kind, key)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, _MAGIC + hashlib.sha256(data).digest() + data)
    except OSError:
        return
    _writes += 1
    if _writes % _PRUNE_EVERY == 0:
        cache_prune()


def cache_entries() -> list[tuple[Path, int, float]]:
    """Every entry as (path, bytes, time of last use), oldest first."""
    found = []
    with contextlib.suppress(OSError):
        for path in cache_dir().rglob("*"):
            with contextlib.suppress(OSError):
                if path.is_file():
                    stat = path.stat()
                    found.append((path, stat.st_size, stat.st_mtime))
    return sorted(found, key=lambda e: e[2])


def cache_prune(limit: int | None = None) -> int:
    """Drop the entries used longest ago until at most ``limit`` bytes are left; returns how many were dropped.

    Data sets and other downloads stay: nothing here can make them again.
    """
    entries = [e for e in cache_entries() if e[0].relative_to(cache_dir()).parts[0] not in _DOWNLOADED]
    total = sum(size for _, size, _ in entries)
    dropped = 0
    for path, size, _ in entries:
        if total <= (settings.CACHE_BYTES if limit is None else limit):
            break
        with contextlib.suppress(OSError):
            path.unlink()
            total -= size
            dropped += 1
    return dropped

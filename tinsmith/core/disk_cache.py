"""A disk cache that tolerates killed and concurrent processes, a read-only home, and deletion of its own folder.

One file per entry, named by the hash of its key, written under a temporary name and renamed (atomic). Entries hold code
that later processes run, so each starts with a keyed hash over kind, key and data, made with the user's secret
(``core.cache_security``) and verified on reading. Entries are plain data, never pickles. Above ``CACHE_BYTES`` the
least recently used entries are deleted. Downloads of files are cached beside them.

Processes that need the same entries at the same time, as the ranks of a program, can take turns: one makes an entry
while the others wait for it. A turn is a lock of the operating system on a file in the cache, which ends with its
process, so a process that dies leaves none behind.
"""
from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import os
import re
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tinsmith.core.cache_security import DOWNLOADED, cache_dir, make_private, secret
from tinsmith.core.lazy_import import Late
from tinsmith.core.log import log
from tinsmith.core.settings import settings

if TYPE_CHECKING:
    import hmac
else:
    hmac = Late("hmac")

if sys.platform != "win32":
    import fcntl

_MAGIC = b"tinsmith2"

_SIGNED = 32  # bytes of a signature

_OURS = re.compile(r"[0-9a-f]{64}(-[0-9a-f]{8})?|\.tmp[0-9a-f]{16}")  # names of entries and of temporary files

_PRUNE_EVERY = 256  # writes of this process

_writes = 0

LOST: Final = 10.0  # seconds without a sign of the process that makes an entry until others no longer wait for it
_POLL: Final = (0.001, 0.02)  # seconds between two attempts to lock, at first and at most

take_turns: list[bool] = []  # [True] in processes that need the same entries at the same time
_turns: Final[dict[int, Path]] = {}  # locks that this process holds: descriptor → file


def cache_key(*parts: str | bytes) -> str:
    """Return a SHA-256 hex key of ``parts``; the lengths are hashed too, so ("ab", "c") and ("a", "bc") differ."""
    h = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        h.update(len(data).to_bytes(8, "little"))
        h.update(data)
    return h.hexdigest()


def _path(kind: str, key: str, secret: bytes) -> Path:
    """Return the path of an entry; in a shared folder, the name includes the signer, so that each signer has its own
    entry."""
    return cache_dir() / kind / key[:2] / (f"{key}-{_signer(secret)}" if settings.CACHE_SHARED else key)


@functools.cache
def _signer(secret: bytes) -> str:
    return hashlib.blake2b(key=secret, digest_size=4).hexdigest()


def _signature(kind: str, key: str, data: bytes | memoryview, secret: bytes) -> bytes:
    h = hashlib.blake2b(f"{kind}/{key}\n".encode(), key=secret, digest_size=_SIGNED)
    h.update(data)
    return h.digest()


def cache_get(kind: str, key: str) -> bytes | None:
    """Return the data of an entry, or None if it is absent, unreadable, damaged or not signed by this user."""
    signed_with = secret() if settings.CACHELEVEL else None
    if signed_with is None:
        return None
    path = _path(kind, key, signed_with)
    try:
        raw = path.read_bytes()
    except OSError:
        return None
    start = len(_MAGIC) + _SIGNED
    signature = _signature(kind, key, memoryview(raw)[start:], signed_with)
    if not hmac.compare_digest(raw[:start], _MAGIC + signature):
        with contextlib.suppress(OSError):
            path.unlink()
        return None
    with contextlib.suppress(OSError):
        os.utime(path)
    return raw[start:]


def replace_file(path: Path, data: bytes, mode: int = 0o666) -> None:
    """Write a file atomically: readers and other writers see it complete or not at all. ``umask`` restricts
    ``mode``."""
    temporary = path.with_name(f".tmp{os.urandom(8).hex()}")
    try:
        with open(temporary, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as f:
            f.write(data)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def cache_put(kind: str, key: str, data: bytes) -> None:
    """Store ``data``; do nothing if the cache is off or cannot be written."""
    global _writes
    signed_with = secret() if settings.CACHELEVEL else None
    if signed_with is None:
        return
    path = _path(kind, key, signed_with)
    try:
        if not path.parent.is_dir():
            make_private(cache_dir())
            path.parent.mkdir(parents=True, exist_ok=True)
        signed = b"".join((_MAGIC, _signature(kind, key, data, signed_with), data))
        replace_file(path, signed, 0o666 if settings.CACHE_SHARED else 0o600)
    except OSError as error:
        _say_unwritable(error.strerror or str(error))
        return
    _writes += 1
    if _writes % _PRUNE_EVERY == 0:
        cache_prune()


@functools.cache
def _say_unwritable(why: str) -> None:
    """Warn, once for each reason, that entries are lost: every process compiles again."""
    log().warning("the disk cache in %s cannot be written: %s", cache_dir(), why)


def cached(kind: str, key: str, make: Callable[[], bytes]) -> bytes:
    """Return the data of an entry. If it is absent, ``make`` returns them, in one process if several take turns.

    Raises:
        Exception: whatever ``make`` raises; then nothing is stored.
    """
    found = cache_get(kind, key)
    if found is None:
        with turn(key) as taken:
            found = cache_get(kind, key) if taken else None
            if found is None:
                found = make()
                cache_put(kind, key, found)
    return found


@contextlib.contextmanager
def turn(key: str) -> Iterator[bool]:
    """Wait until no other process makes the entries of ``key``; the others wait until this block ends.

    Yields True if another process may have made them since the caller looked. There is no wait where processes take no
    turns or the cache cannot be written, nor for a process that has given no sign (``renew_turns``) for ``LOST``
    seconds.
    """
    signed_with = secret() if take_turns and sys.platform != "win32" and settings.CACHELEVEL else None
    if signed_with is None:
        yield False
        return
    path = _path("turn", key, signed_with)
    handle = _locked(path)
    try:
        yield True
    finally:
        if handle is not None:
            del _turns[handle]
            with contextlib.suppress(OSError):
                path.unlink()  # those that wait have the file open
            with contextlib.suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_UN)  # also if a forked child has it
            os.close(handle)


def _locked(path: Path) -> int | None:
    """Return the descriptor of a file that this process has locked; None if it cannot be locked, or if the process that
    has locked it gives no sign."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666 if settings.CACHE_SHARED else 0o600)
    except OSError:
        return None
    pause, sign, since = _POLL[0], -1, 0.0
    try:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _turns[handle] = path
                return handle
            except BlockingIOError:
                now, last = time.monotonic(), os.fstat(handle).st_mtime_ns
            if last != sign:
                sign, since = last, now
            if now - since > LOST:
                break
            time.sleep(pause)
            pause = min(2 * pause, _POLL[1])
    except OSError:  # a file system without locks
        pass
    except BaseException:
        os.close(handle)
        raise
    os.close(handle)
    return None


def renew_turns() -> None:
    """Give a sign to the processes that wait for this one; ranks do so every second."""
    for handle in list(_turns):
        with contextlib.suppress(OSError):
            os.utime(handle)


def _files(skipped: Collection[str] = ()) -> Iterator[os.DirEntry[str]]:
    """Yield the files of the cache, without those in its folders ``skipped``."""
    folders, top = [os.fspath(cache_dir())], True
    while folders:
        with contextlib.suppress(OSError), os.scandir(folders.pop()) as found:
            for entry in found:
                if not entry.is_dir(follow_symlinks=False):
                    yield entry
                elif not top or entry.name not in skipped:
                    folders.append(entry.path)
        top = False


def _by_last_use(files: Iterable[os.DirEntry[str]]) -> list[tuple[float, int, str]]:
    """Return (time of last use, bytes, path) of the files that still exist, least recently used first."""
    found = []
    for file in files:
        with contextlib.suppress(OSError):
            stat = file.stat()
            found.append((stat.st_mtime, stat.st_size, file.path))
    return sorted(found)


def cache_entries() -> list[tuple[Path, int, float]]:
    """Return every entry as (path, bytes, time of last use), least recently used first."""
    with contextlib.suppress(OSError):  # the user has no home
        return [(Path(path), size, used) for used, size, path in _by_last_use(_files())]
    return []


def cache_prune(limit: int | None = None) -> int:
    """Delete the least recently used entries until at most ``limit`` bytes are left; return the number deleted.

    Data sets and other downloads are kept, since they cannot be regenerated, and so are files of other programs.
    """
    entries: list[tuple[float, int, str]] = []
    with contextlib.suppress(OSError):  # the user has no home
        entries = _by_last_use(file for file in _files(DOWNLOADED) if _OURS.fullmatch(file.name))
    total = sum(size for _, size, _ in entries)
    dropped = 0
    for _, size, path in entries:
        if total <= (settings.CACHE_BYTES if limit is None else limit):
            break
        with contextlib.suppress(OSError):
            os.unlink(path)
            total -= size
            dropped += 1
    return dropped

TIMEOUT = 10.0


def fetched(url: str, name: str | None = None, subdir: str | None = None, again: bool = False,
            headers: dict[str, str] | None = None) -> Path:
    """Return the path of the downloaded file; a ``url`` that is a path is returned unchanged.

    Args:
        name: file name in the cache; default: the hash of the URL.
        again: True to download even if the file is cached.

    Raises:
        OSError: if the download or the write fails.
    """
    if url.startswith(("/", ".")):
        return Path(url)
    path = cache_dir() / "downloads" / (subdir or "") / (name or hashlib.sha256(url.encode()).hexdigest())
    if not path.is_file() or again:
        request = importlib.import_module("urllib.request")  # lazy import: importing tinsmith stays fast
        with request.urlopen(request.Request(url, headers=headers or {}), timeout=TIMEOUT) as reply:
            data = reply.read()
        make_private(cache_dir())
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, data)
    return path

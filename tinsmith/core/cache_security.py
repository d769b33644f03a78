"""Ownership of the disk cache: a folder private to its user, and the secret that signs its entries.

The cache holds native code that later processes run, so nobody else may be able to add entries. Folder and key file are
checked once per process; if either is unsafe, nothing is cached, and one warning names the reason and the remedy.
"""
from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import importlib
import os
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tinsmith.core.lazy_import import Late
from tinsmith.core.log import log
from tinsmith.core.settings import settings

if TYPE_CHECKING:
    import hmac
else:
    hmac = Late("hmac")

DOWNLOADED = ("datasets", "downloads")  # folders of the cache whose files cannot be regenerated

_LEAST = 32  # bytes of a secret, at least

_XDG = {"user_cache_dir": ("XDG_CACHE_HOME", ".cache"), "user_data_dir": ("XDG_DATA_HOME", ".local/share")}


def cache_dir() -> Path:
    """Return the folder of the entries: ``CACHE_DIR``, else the platform's user cache directory.

    Raises:
        FileNotFoundError: if the user has no home directory.
    """
    return Path(settings.CACHE_DIR) if settings.CACHE_DIR else _platform("user_cache_dir")


def data_dir() -> Path:
    """Return the platform's user data directory.

    Raises:
        FileNotFoundError: if the user has no home directory.
    """
    return _platform("user_data_dir")


def key_file() -> Path:
    """Return the file of the secret: ``CACHE_KEY``, else ``cache.key`` among the user's data.

    Raises:
        FileNotFoundError: if the user has no home directory.
    """
    return Path(settings.CACHE_KEY) if settings.CACHE_KEY else data_dir() / "cache.key"


def _platform(place: str) -> Path:
    variable, below_home = _XDG[place]
    if sys.platform == "linux":  # as platformdirs, whose import takes longer than reading the cache
        chosen = os.environ.get(variable, "").strip()
        return Path(chosen if os.path.isabs(chosen) else os.path.join(_home(), below_home)) / "tinsmith"
    package = importlib.import_module("platformdirs")  # lazy import: importing tinsmith stays fast
    return Path(getattr(package, place)("tinsmith"))


def _home() -> str:
    """Return the home directory, an absolute path: never a folder named ``~`` below the current one.

    Raises:
        FileNotFoundError: if neither ``HOME`` nor the user database names one, as for a container's bare user number.
    """
    home = os.environ.get("HOME", "")
    if os.path.isabs(home):
        return home
    try:
        home = importlib.import_module("pwd").getpwuid(os.getuid()).pw_dir
    except KeyError:
        home = ""
    if not os.path.isabs(home):
        raise FileNotFoundError(errno.ENOENT, "this user has no home directory; set HOME, or CACHE_DIR and CACHE_KEY")
    return home


def secret() -> bytes | None:
    """Return the key that signs cache entries; None if nothing may be cached.

    Creates the folder and the key file, private to this user, if they are missing.
    """
    return _secret(settings.CACHE_DIR, settings.CACHE_KEY, settings.CACHE_SHARED)


def fault() -> str:
    """Return why the cache of the current settings is unusable, with the remedy; "" if it is usable."""
    return _checked(not settings.CACHE_DIR, bool(settings.CACHE_SHARED))[1]


@functools.cache
def _secret(*of: str | int) -> bytes | None:
    """Return the secret; the arguments are the current settings that it depends on and serve as the memo key."""
    found, wrong = _checked(not settings.CACHE_DIR, bool(settings.CACHE_SHARED))
    if wrong:
        log().warning("the disk cache is not used: %s", wrong)
    return found


def _checked(default: bool, shared: bool) -> tuple[bytes | None, str]:
    """Return (key that signs cache entries, "") or (None, reason why the cache folder is not trusted).

    (None, "") if nothing can be written to the default folder, as in a container's read-only home.
    """
    try:
        folder = cache_dir()
        wrong = _folder_fault(folder, default, shared)
        if wrong:
            return None, wrong
    except OSError as error:
        return None, "" if default else (f"CACHE_DIR={settings.CACHE_DIR} cannot be used ({error.strerror}); name a "
                                         "folder that you can write, or leave CACHE_DIR out")
    key: Path | str = "the user's data"
    try:
        key = key_file()
        if key.resolve().is_relative_to(folder.resolve()):
            return None, f"its key {key} is inside it; set CACHE_KEY to a file elsewhere"
        data, wrong = _key_content(key, shared)
    except OSError as error:
        if default and not os.path.lexists(key):
            return None, ""
        return None, f"its key cannot be kept in {key} ({error.strerror}); set CACHE_KEY to a file that you can write"
    return (None if wrong else hashlib.blake2b(data).digest()), wrong


def make_private(folder: Path) -> None:
    """Create a folder that only this user can enter; missing parents get default permissions.

    Raises:
        OSError: if it cannot be created.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def _folder_fault(folder: Path, default: bool, shared: bool) -> str:
    """Return the fault of the cache folder, or "". Create the folder if it is missing; make it private if it contains
    only cache entries."""
    make_private(folder)
    found = folder.stat()
    mode = stat.S_IMODE(found.st_mode)
    remedy = "set CACHE_DIR to a folder of your own, or CACHE_SHARED=1 if all who can write there are trusted"
    if shared or not hasattr(os, "geteuid"):  # Windows denies others access to a user's profile
        return ""
    if found.st_uid != os.geteuid():
        return f"{folder} belongs to user {found.st_uid}, and this is user {os.geteuid()}; {remedy}"
    if not mode & 0o077:
        return ""
    if not default and (mode & 0o022 or not _only_entries(folder)):
        return f"{folder} is open to other users (mode {mode:04o}); chmod 700 {folder}, {remedy}"
    folder.chmod(0o700)
    return ""


def _only_entries(folder: Path) -> bool:
    """Return True if the folder contains only cache entries or downloads, so that it can be made private safely."""
    return all(kind.name in DOWNLOADED or (kind.is_dir() and all(len(part.name) == 2 for part in kind.iterdir()))
               for kind in folder.iterdir())


def _key_content(path: Path, shared: bool) -> tuple[bytes, str]:
    """Return (content of the key file, fault).

    Raises:
        OSError: if it can be neither read nor created.
    """
    try:
        with open(path, "rb") as file:
            found, data = os.fstat(file.fileno()), file.read(1 << 12)
    except FileNotFoundError:
        return _new_key(path, shared)
    mode, forbidden = stat.S_IMODE(found.st_mode), 0o022 if shared else 0o077
    if hasattr(os, "geteuid") and found.st_uid not in (os.geteuid(), 0) and not shared:
        return b"", f"its key {path} belongs to user {found.st_uid}; set CACHE_KEY to a file of your own"
    if os.name != "nt" and mode & forbidden:
        return b"", f"other users can {'write' if shared else 'read'} its key {path} (mode {mode:04o}); delete it, " \
                    "and another one is made"
    if len(data) < _LEAST:
        return b"", f"its key {path} holds {len(data)} bytes of at least {_LEAST}; delete it, and another one is made"
    return data, ""


def _new_key(path: Path, shared: bool) -> tuple[bytes, str]:
    """Create the key file atomically with a new secret; return (secret, fault), of another process if that was first.

    Raises:
        OSError: if it cannot be written.
    """
    make_private(path.parent)
    temporary, data = path.with_name(f".tmp{os.urandom(8).hex()}"), os.urandom(_LEAST)
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(temporary, path)
        except FileExistsError:
            return _key_content(path, shared)
        except OSError:  # a file system without hard links: the key of the last writer is kept
            os.replace(temporary, path)
            return _key_content(path, shared)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
    return data, ""

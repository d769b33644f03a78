"""Download of files, cached on disk."""
from __future__ import annotations

import hashlib
import importlib
from pathlib import Path

from tinsmith.core.cache_security import cache_dir, make_private
from tinsmith.core.disk_cache import replace_file

TIMEOUT = 10.0


def fetched(url: str, name: str | None = None, subdir: str | None = None, again: bool = False,
            headers: dict[str, str] | None = None) -> Path:
    """Return the path of the downloaded file; a ``url`` that is a path is returned as it is.

    Args:
        name: file name in the cache; the hash of the URL unless given.
        again: download even if the file is cached.

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

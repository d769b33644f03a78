"""Files from the network, downloaded once."""
from __future__ import annotations

import hashlib
import importlib
from pathlib import Path

from tinsmith.core.cache import replace_file
from tinsmith.core.private import cache_dir, make_private

TIMEOUT = 10.0


def fetched(url: str, name: str | None = None, subdir: str | None = None, again: bool = False,
            headers: dict[str, str] | None = None) -> Path:
    """The file with what is at ``url``; a path is itself.

    Args:
        name: of the file among the cached ones; made of the URL unless given.
        again: download it though it is there.

    Raises:
        OSError: if it cannot be had.
    """
    if url.startswith(("/", ".")):
        return Path(url)
    path = cache_dir() / "downloads" / (subdir or "") / (name or hashlib.sha256(url.encode()).hexdigest())
    if not path.is_file() or again:
        request = importlib.import_module("urllib.request")  # at its first use: importing tinsmith stays fast
        with request.urlopen(request.Request(url, headers=headers or {}), timeout=TIMEOUT) as reply:
            data = reply.read()
        make_private(cache_dir())
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, data)
    return path

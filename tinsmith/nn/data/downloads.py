"""Cached downloads of data set files through ``pooch``, with hash check and resume of interrupted transfers."""
from __future__ import annotations

import contextlib
import importlib
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from tinsmith.core.cache_security import cache_dir, make_private
from tinsmith.core.errors import ArgumentError
from tinsmith.core.log import log

T = TypeVar("T")

ANSWER: Final = 3.0  # seconds until the first answer of any server

SILENCE: Final = 30.0  # seconds without data after which a transfer is aborted

TRIES: Final = 4  # attempts per server; each resumes the previous one

LARGE: Final = 1 << 20  # bytes; larger downloads show a progress bar on a terminal

CHUNK: Final = 1 << 13  # bytes per read; an interrupted chunk is requested again


def place(folder: str) -> Path:
    """Return the folder of a data set's files, in ``datasets`` of the setting ``CACHE_DIR``."""
    return cache_dir() / "datasets" / folder


def download(urls: str | Sequence[str], known_hash: str | None, name: str | None = None, folder: str = "files",
             progress: bool | None = None, unzip: str | None = None) -> Path:
    """Download a file from the first server that has it with the right hash, and return its cached path.

    Args:
        urls: URLs of the file on one or more servers.
        known_hash: ``"sha256:…"`` or ``"md5:…"`` of the file; None: no check.
        name: name of the cached file; default: the last part of the first URL.
        folder: name of the data set's folder.
        progress: show a bar; None: for large files, on a terminal.
        unzip: a member of the zip file to extract and return instead.

    Raises:
        OSError: if no server has the file, or none answers within a few seconds.
        ArgumentError: if ``pooch`` is not installed.
    """
    servers = [urls] if isinstance(urls, str) else list(urls)
    name, there = name or servers[0].rsplit("/", 1)[-1], place(folder)
    pooch = _library()
    with contextlib.suppress(OSError):  # pooch reports the error
        make_private(cache_dir())
    transfer = _Transfer(there / f"{name}.part", progress)

    def work() -> Path:
        failed = []
        for url in servers:
            with _quiet(pooch):
                try:
                    found = pooch.retrieve(url, known_hash, name, there, downloader=transfer,
                                           processor=pooch.Unzip(members=[unzip]) if unzip else None)
                    return Path(found[0] if unzip else found)
                except (OSError, ValueError) as error:  # ValueError: wrong hash
                    log().info("%s: %s", url, error)
                    lost = getattr(error, "request", None) is not None and getattr(error, "response", None) is None
                    failed.append(f"{url}: {type(error).__name__ if lost else error}")
        raise OSError("; ".join(failed))

    return _answered(work, transfer)


def _library() -> Any:
    try:
        return importlib.import_module("pooch")
    except ImportError:
        raise ArgumentError("download", "files are downloaded with pooch, which is not installed",
                            "pip install 'tinsmith[data]'") from None


@contextlib.contextmanager
def _quiet(pooch: Any) -> Any:
    """Suppress pooch's messages below the level of warnings."""
    logger = pooch.get_logger()
    before = logger.level
    logger.setLevel("WARNING")
    try:
        yield
    finally:
        logger.setLevel(before)


class _Transfer:
    """A pooch downloader that keeps partial data next to the file until it is complete, so that a retry resumes.

    Attributes:
        answered: set once a server has answered.
        stopped: set once the caller no longer waits.
    """

    def __init__(self, part: Path, progress: bool | None) -> None:
        self.part, self.progress = part, progress
        self.answered, self.stopped = threading.Event(), threading.Event()

    def __call__(self, url: str, output_file: str, pooch: Any, check_only: bool = False) -> None:
        requests = importlib.import_module("requests")
        for left in reversed(range(TRIES)):
            try:
                self._go_on(requests, url)
                break
            except requests.HTTPError:
                raise
            except requests.RequestException as error:
                if not left or not self.answered.is_set() or self.stopped.is_set():
                    raise
                log().info("%s interrupted: %s; resuming", url, error)
        os.replace(self.part, output_file)

    def _go_on(self, requests: Any, url: str) -> None:
        have = self.part.stat().st_size if self.part.exists() else 0
        headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
        with requests.get(url, stream=True, headers=headers, timeout=(ANSWER, SILENCE)) as reply:
            self.answered.set()
            if reply.status_code == 416:  # range not satisfiable: the partial file is complete or foreign
                if reply.headers.get("content-range", "").endswith(f"/{have}"):
                    return
                self.part.unlink()
                raise requests.ConnectionError("the partial download belongs to a different file")
            reply.raise_for_status()
            have = have if reply.status_code == 206 else 0
            length = reply.headers.get("content-length")
            total = None if length is None else have + int(length)
            with open(self.part, "ab" if have else "wb") as file, self._bar(have, total) as bar:
                for chunk in reply.iter_content(CHUNK):
                    file.write(chunk)
                    bar(len(chunk))
                    if self.stopped.is_set():
                        raise requests.ConnectionError("the download was cancelled")
                if total is not None and file.tell() < total:
                    raise requests.ConnectionError(f"{file.tell()} of {total} bytes came")

    @contextlib.contextmanager
    def _bar(self, have: int, total: int | None) -> Any:
        wanted = self.progress
        if wanted is None:
            wanted = sys.stderr.isatty() and (total is None or total >= LARGE)
        if not wanted:
            yield lambda count: None
            return
        tqdm = importlib.import_module("tqdm.auto").tqdm
        with tqdm(desc=self.part.stem, initial=have, total=total, unit="B", unit_scale=True) as bar:
            yield bar.update


def _answered(work: Callable[[], T], transfer: _Transfer) -> T:
    """Run ``work`` in a thread and return its result: a DNS lookup has no time-out.

    Raises:
        OSError: if no server has answered in time.
    """
    found: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            found.append(work())
        except BaseException as error:
            failed.append(error)

    worker, start = threading.Thread(target=run, daemon=True), time.monotonic()
    worker.start()
    try:
        while worker.is_alive() and (transfer.answered.is_set() or time.monotonic() - start < ANSWER):
            worker.join(0.02)
    finally:
        transfer.stopped.set()
    if failed:
        raise failed[0]
    if not found:
        raise OSError(f"no server answered within {ANSWER:.0f} s")
    return found[0]

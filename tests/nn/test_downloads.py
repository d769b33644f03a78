"""Downloads from a local test server: hashes, mirrors, interrupted transfers, and messages without a network."""
from __future__ import annotations

import gzip
import hashlib
import http.server
import io
import pickle
import socket
import tarfile
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("pooch", reason="the test extra (pooch) is not installed")

from tinsmith import Tensor
from tinsmith.core.disk_cache import cache_prune
from tinsmith.core.errors import ArgumentError, FileFormatError
from tinsmith.core.settings import Context
from tinsmith.nn import datasets
from tinsmith.nn.data import downloads
from tinsmith.nn.data.downloads import CHUNK, download

BYTES = np.random.default_rng(0).integers(0, 256, 300_000, np.uint8).tobytes()


def sha256(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


class Server(http.server.ThreadingHTTPServer):
    """A server of ``files``; ``breaks`` are the byte counts after which successive transfers are cut."""

    daemon_threads = True

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.breaks: list[int] = []
        self.ranges, self.asked = True, list[tuple[str, str | None]]()
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        self.server.asked.append((self.path[1:], wanted))
        data = self.server.files.get(self.path[1:])
        if data is None:
            return self.send_error(404)
        begin = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and self.server.ranges else 0
        if begin and begin >= len(data):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(data)}")
            self.send_header("Content-Length", "0")
            return self.end_headers()
        self.send_response(206 if begin else 200)
        self.send_header("Content-Length", str(len(data) - begin))
        self.end_headers()
        rest = data[begin:]
        self.wfile.write(rest[: self.server.breaks.pop(0)] if self.server.breaks else rest)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with Context(CACHE_DIR=str(tmp_path / "cache")), Server() as found:
        threading.Thread(target=found.serve_forever, args=(0.01,), daemon=True).start()
        found.files["file.bin"] = BYTES
        yield found
        found.shutdown()


def left() -> list[str]:
    return sorted(p.name for p in downloads.place("files").iterdir())


def test_a_file_is_downloaded_once(server: Server) -> None:
    path = download(server.url + "file.bin", sha256(BYTES))
    assert path.read_bytes() == BYTES and path == downloads.place("files") / "file.bin"
    assert download(server.url + "file.bin", sha256(BYTES)) == path and len(server.asked) == 1
    path.write_bytes(b"damaged")
    assert download(server.url + "file.bin", sha256(BYTES)).read_bytes() == BYTES and len(server.asked) == 2


def test_a_broken_transfer_goes_on(server: Server) -> None:
    server.breaks = [12 * CHUNK, 6 * CHUNK]
    assert download(server.url + "file.bin", sha256(BYTES)).read_bytes() == BYTES
    assert [r for _, r in server.asked] == [None, f"bytes={12 * CHUNK}-", f"bytes={18 * CHUNK}-"]
    assert left() == ["file.bin"]


def test_the_next_call_goes_on_with_what_came(server: Server) -> None:
    server.breaks = [CHUNK] * downloads.TRIES
    with pytest.raises(OSError, match=r"file\.bin"):
        download(server.url + "file.bin", sha256(BYTES))
    assert left() == ["file.bin.part"]
    assert download(server.url + "file.bin", sha256(BYTES)).read_bytes() == BYTES
    assert server.asked[-1][1] == f"bytes={CHUNK * downloads.TRIES}-" and left() == ["file.bin"]


def test_a_server_without_ranges_begins_anew(server: Server) -> None:
    server.ranges, server.breaks = False, [100_000]
    assert download(server.url + "file.bin", sha256(BYTES)).read_bytes() == BYTES and len(server.asked) == 2


@pytest.mark.parametrize("part", [BYTES, BYTES + b"more", b"another beginning"])
def test_whatever_part_lies_there(server: Server, part: bytes) -> None:
    folder = downloads.place("files")
    folder.mkdir(parents=True)
    (folder / "file.bin.part").write_bytes(part)
    try:
        path = download(server.url + "file.bin", sha256(BYTES))
    except OSError as error:  # another file's beginning: the hash tells, and the next call begins anew
        assert "hash" in str(error) and part == b"another beginning"
        path = download(server.url + "file.bin", sha256(BYTES))
    assert path.read_bytes() == BYTES and left() == ["file.bin"]


def test_a_wrong_file_is_not_kept(server: Server) -> None:
    server.files["wrong/file.bin"] = b"something else"
    with pytest.raises(OSError, match="hash"):
        download(server.url + "wrong/file.bin", sha256(BYTES))
    assert left() == []
    mirrors = [server.url + p for p in ("wrong/file.bin", "absent/file.bin", "file.bin")]
    assert download(mirrors, sha256(BYTES)).read_bytes() == BYTES
    with pytest.raises(OSError, match="404"):
        download(server.url + "absent", sha256(b""))


def test_progress(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.breaks = [100_000]
    download(server.url + "file.bin", sha256(BYTES), progress=True)
    shown = capsys.readouterr().err
    assert "file.bin: 100%" in shown and "300k/300k" in shown
    download(server.url + "file.bin", None, name="other.bin", progress=False)
    assert capsys.readouterr().err == ""


def test_nobody_answers(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloads, "ANSWER", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections and says nothing
        start = time.monotonic()
        with pytest.raises(OSError, match="no server answered"):
            download(f"http://127.0.0.1:{silent.getsockname()[1]}/x", None)
        assert time.monotonic() - start < downloads.SILENCE


def idx(values: np.ndarray) -> bytes:  # type: ignore[type-arg]
    return gzip.compress(bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">u4").tobytes() + values.tobytes())


@pytest.mark.parametrize("data_set", ["mnist", "fashion_mnist"])
def test_digits_and_clothes(server: Server, monkeypatch: pytest.MonkeyPatch, data_set: str) -> None:
    rng = np.random.default_rng(1)
    sent = {name: idx(rng.integers(0, 256, (6, 28, 28), np.uint8) if "images" in name else np.arange(6, dtype=np.uint8))
            for name in datasets._NAMES}
    server.files |= sent
    monkeypatch.setitem(datasets.IDX, data_set, ((server.url + "nothing/", server.url),
                                                 {name: sha256(data) for name, data in sent.items()}))
    x, y, _, _ = getattr(datasets, data_set)()
    assert x.shape == (6, 1, 28, 28) and y.tolist() == list(range(6)) and x.requires_grad is False
    monkeypatch.setitem(datasets.IDX, data_set, ((server.url + "nothing/",), {n: sha256(b"new") for n in sent}))
    with pytest.raises(ArgumentError, match="train-images-idx3-ubyte"):
        getattr(datasets, data_set)()


def test_texts(server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("text8", b"anarchism originated")
    play = b"First Citizen:"
    server.files |= {"text8.zip": packed.getvalue(), "input.txt": play}
    monkeypatch.setitem(datasets.TEXTS, "text8", ((server.url + "text8.zip",), sha256(packed.getvalue()), "text8"))
    monkeypatch.setitem(datasets.TEXTS, "tinyshakespeare", ((server.url + "input.txt",), sha256(play), None))
    assert [bytes(datasets.text(name)) for name in ("text8", "text8", "tinyshakespeare")] == [
        b"anarchism originated"] * 2 + [play] and len(server.asked) == 2
    own = tmp_path / "own.txt"
    own.write_text("abc")
    found = datasets.text(data=own)
    assert isinstance(found, np.memmap) and Tensor(found).tolist() == [97, 98, 99]
    cache_prune(0)
    assert bytes(datasets.text()) == b"anarchism originated" and len(server.asked) == 2  # downloads are no cache
    for name, data, message in (("text9", None, "there is no text"), ("text8", tmp_path / "none", "there is no ")):
        with pytest.raises(ArgumentError, match=message):
            datasets.text(name, data)


def test_photographs(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, count in (("cifar-10-batches-py/data_batch_1", 3), ("cifar-10-batches-py/test_batch", 2)):
            batch = pickle.dumps({b"data": np.full((count, 3072), count, np.uint8), b"labels": list(range(count))})
            info = tarfile.TarInfo(name)
            info.size = len(batch)
            archive.addfile(info, io.BytesIO(batch))
    server.files[datasets.NAME] = packed.getvalue()
    monkeypatch.setattr(datasets, "URL", server.url + datasets.NAME)
    with pytest.raises(ArgumentError, match="could not be downloaded"):  # the real file's hash
        datasets.cifar()
    monkeypatch.setattr(datasets, "HASH", sha256(packed.getvalue()))
    x, y, test_x, _ = datasets.cifar()
    assert x.shape == (3, 3, 32, 32) and y.tolist() == [0, 1, 2] and test_x.shape == (2, 3, 32, 32)
    path = downloads.place("cifar") / "not.tar.gz"
    path.write_bytes(b"hello")
    with pytest.raises(FileFormatError):
        datasets.cifar(data=path)

"""Security of the disk cache, which holds native code: only its user can write to it, and unsigned entries are not
run."""
from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.golden.running import ROOT, environment
from tinsmith.core import cache_security, disk_cache
from tinsmith.core.disk_cache import cache_entries, cache_get, cache_key, cache_prune, cache_put
from tinsmith.core.settings import Context

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows has no modes; others are kept out of a user's profile")

KEY = cache_key("an entry")


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clear the per-process cache of the signing key and use a new data folder, as a new process would."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    cache_security._secret.cache_clear()


def user(folder: Path, **changes: str | int) -> Context:
    return Context(CACHE_DIR=str(folder), CACHELEVEL=1, **changes)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


@pytest.mark.parametrize("umask", [0o022, 0o002, 0o077, 0])
def test_everything_that_is_made_is_for_its_user_alone(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        with user(tmp_path / "cache"):
            cache_put("c", KEY, b"code")
            assert cache_get("c", KEY) == b"code"
            ((path, _, _),) = cache_entries()
    finally:
        os.umask(before)
    key = tmp_path / "data" / "tinsmith" / "cache.key"
    assert [mode(p) for p in (tmp_path / "cache", path, key.parent, key)] == [0o700, 0o600, 0o700, 0o600]
    assert len(key.read_bytes()) == 32


def refused(folder: Path, caplog: pytest.LogCaptureFixture, **changes: str | int) -> str:
    """Return the one warning that explains why nothing is cached."""
    cache_security._secret.cache_clear()
    caplog.clear()
    with caplog.at_level(logging.WARNING, "tinsmith"), user(folder, **changes):
        for _ in range(2):
            cache_put("c", KEY, b"code")
            assert cache_get("c", KEY) is None
        assert cache_security.fault() in caplog.messages[0]
    assert len(caplog.messages) == 1 and not list(folder.rglob(f"{KEY}*"))
    return caplog.messages[0]


@pytest.mark.parametrize("bits", [0o777, 0o770, 0o1777, 0o707])
def test_a_folder_that_others_can_write_in_is_refused(tmp_path: Path, bits: int,
                                                      caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "cache"
    folder.mkdir()
    folder.chmod(bits)
    text = refused(folder, caplog)
    assert f"{folder} is open to other users (mode {bits:04o}); chmod 700 {folder}" in text and "CACHE_SHARED=1" in text
    assert folder.stat().st_mode & 0o7777 == bits
    cache_security._secret.cache_clear()
    with user(folder, CACHE_SHARED=1):
        cache_put("c", KEY, b"code")
        assert cache_get("c", KEY) == b"code"


def test_a_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                             caplog: pytest.LogCaptureFixture) -> None:
    here = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: here + 1)
    (tmp_path / "cache").mkdir(mode=0o700)
    assert f"belongs to user {here}, and this is user {here + 1}" in refused(tmp_path / "cache", caplog)


def test_a_readable_folder_is_closed_if_only_entries_lie_there(tmp_path: Path,
                                                              caplog: pytest.LogCaptureFixture) -> None:
    older, home = tmp_path / "cache", tmp_path / "home"
    for folder in (older, home):
        (folder / "llvm" / "ab").mkdir(parents=True)
        folder.chmod(0o755)
    (older / "datasets").mkdir()
    (home / "letter.txt").write_text("dear reader")
    with user(older):
        cache_put("c", KEY, b"code")
        assert cache_get("c", KEY) == b"code"
    assert mode(older) == 0o700
    assert "is open to other users (mode 0755)" in refused(home, caplog)
    assert mode(home) == 0o755


def test_what_is_not_signed_with_the_secret_is_not_used(tmp_path: Path) -> None:
    other = cache_key("another entry")
    with user(tmp_path / "cache"):
        cache_put("c", KEY, b"code")
        ((path, _, _),) = cache_entries()
        good = path.read_bytes()
        moved = path.parents[1] / other[:2] / path.name.replace(KEY, other)  # of another source
        moved.parent.mkdir(exist_ok=True)
        kind = tmp_path / "cache" / "llvm" / KEY[:2] / path.name  # of another compiler
        kind.parent.mkdir(parents=True)
        for place, asked in ((moved, ("c", other)), (kind, ("llvm", KEY))):
            place.write_bytes(good)
            assert cache_get(*asked) is None and not place.exists()
        for n in range(len(good)):
            path.write_bytes(good[:n] + bytes([good[n] ^ 1]) + good[n + 1:])
            assert cache_get("c", KEY) is None and not path.exists()
        path.write_bytes(good)
        assert cache_get("c", KEY) == b"code"


def test_users_of_a_shared_folder_run_their_own_code_unless_they_share_the_secret(tmp_path: Path) -> None:
    folder, found = tmp_path / "cache", {}
    for name in ("ann", "bob"):
        with user(folder, CACHE_SHARED=1, CACHE_KEY=str(tmp_path / name / "key")):
            found[name] = cache_get("c", KEY)
            cache_put("c", KEY, name.encode())
    assert found == {"ann": None, "bob": None}
    for name in ("ann", "bob"):
        with user(folder, CACHE_SHARED=1, CACHE_KEY=str(tmp_path / name / "key")):
            assert cache_get("c", KEY) == name.encode()
    (tmp_path / "ann" / "key").chmod(0o640)
    cache_security._secret.cache_clear()
    with user(folder, CACHE_SHARED=1, CACHE_KEY=str(tmp_path / "ann" / "key")):
        assert cache_get("c", KEY) == b"ann"


@pytest.mark.parametrize(("content", "bits", "why"), [
    (b"k" * 32, 0o644, "users can read its key"), (b"k" * 32, 0o660, "users can read its key"),
    (b"short", 0o600, "holds 5 bytes of at least 32"), (b"", 0o600, "holds 0 bytes of at least 32")])
def test_a_key_that_is_no_secret_is_refused(tmp_path: Path, content: bytes, bits: int, why: str,
                                            caplog: pytest.LogCaptureFixture) -> None:
    key = tmp_path / "key"
    key.write_bytes(content)
    key.chmod(bits)
    assert why in refused(tmp_path / "cache", caplog, CACHE_KEY=str(key))
    assert key.read_bytes() == content


def test_a_key_inside_of_the_cache_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "cache"
    assert "is inside it" in refused(folder, caplog, CACHE_KEY=str(folder / "below" / "key"))
    (tmp_path / "link").symlink_to(folder)
    assert "is inside it" in refused(folder, caplog, CACHE_KEY=str(tmp_path / "link" / "key"))


def test_a_key_that_cannot_be_kept_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_bytes(b"")
    text = refused(tmp_path / "cache", caplog, CACHE_KEY=str(tmp_path / "file" / "key"))
    assert f"its key cannot be kept in {tmp_path / 'file' / 'key'}" in text


def test_a_key_that_cannot_be_read_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                          caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "data" / "tinsmith" / "cache.key").mkdir(parents=True)  # also root cannot read it
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with Context(CACHE_DIR=""):
        assert "its key cannot be kept in" in cache_security.fault()
    assert "its key cannot be kept in" in refused(tmp_path / "cache" / "tinsmith", caplog)


HOMELESS = """
import pwd
def nobody(number): raise KeyError(number)
pwd.getpwuid = nobody
from tinsmith import Tensor
from tinsmith.core.cache_security import fault, secret
print((Tensor([1.0, 2.0]) * 3).tolist(), secret(), repr(fault()))
"""


@pytest.mark.parametrize("home", [None, "", "~", "home"])
def test_without_a_home_nothing_is_cached_and_no_folder_made(tmp_path: Path, home: str | None) -> None:
    env = environment(tmp_path / "cache") | {"PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": "relative"}
    for name in ("CACHE_DIR", "XDG_DATA_HOME", "HOME"):
        env.pop(name, None)
    env |= {} if home is None else {"HOME": home}
    done = subprocess.run([sys.executable, "-c", HOMELESS], env=env, cwd=tmp_path, capture_output=True, text=True,
                          check=True)
    assert done.stdout == "[3.0, 6.0] None ''\n" and os.listdir(tmp_path) == []
    env["CACHE_DIR"] = str(tmp_path / "cache")
    done = subprocess.run([sys.executable, "-c", HOMELESS], env=env, cwd=tmp_path, capture_output=True, text=True,
                          check=True)
    assert "this user has no home directory; set HOME, or CACHE_DIR and CACHE_KEY" in done.stderr


def test_a_linked_folder_is_the_one_that_it_leads_to(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "cache").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "cache")
    with user(tmp_path / "link"):
        cache_put("c", KEY, b"code")
    with user(tmp_path / "cache"):
        assert cache_get("c", KEY) == b"code"
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "link").unlink()
    (tmp_path / "link").symlink_to(tmp_path / "open")
    assert "is open to other users (mode 0777)" in refused(tmp_path / "link", caplog)


def test_one_key_whoever_makes_it_first(tmp_path: Path) -> None:
    script = "from tinsmith.core.cache_security import secret; print(secret().hex())"
    env = environment(tmp_path / "cache") | {"CACHE_KEY": str(tmp_path / "data" / "key")}

    def started(_: int) -> str:
        done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True)
        return done.stdout

    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(started, range(8)))) == 1
    keys = {cache_security._new_key(tmp_path / "data" / "key", False) for _ in range(3)}  # each lost the race
    assert keys == {((tmp_path / "data" / "key").read_bytes(), "")}
    assert os.listdir(tmp_path / "data") == ["key"]


def test_pruning_leaves_what_is_no_entry(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / "documents" / "ab").mkdir(parents=True)
    mine = home / "documents" / "ab" / "letter.txt"
    mine.write_text("dear reader")
    with user(home):
        cache_put("c", KEY, b"code")
        cache_put("datasets", KEY, b"data")
        assert cache_prune(0) == 1
        assert cache_get("c", KEY) is None and cache_get("datasets", KEY) == b"data"
    assert mine.read_text() == "dear reader"


PLANTED = """
import json
from tinsmith import Tensor
from tinsmith.core.counters import GlobalCounters
print(json.dumps([(Tensor([1.0, 2.0]) * 3).tolist(), GlobalCounters.compile_count]))
"""


def test_a_process_compiles_anew_what_another_key_has_signed(tmp_path: Path) -> None:
    def run(key: str) -> bool:
        env = environment(tmp_path / "cache") | {"CACHE_KEY": str(tmp_path / key), "CHECK_IR": "0"}
        done = subprocess.run([sys.executable, "-c", PLANTED], env=env, capture_output=True, text=True, check=True)
        values, compiled = json.loads(done.stdout)
        assert values == [3.0, 6.0]
        return bool(compiled)

    assert [run(k) for k in ("ann", "ann", "bob", "bob")] == [True, False, True, False]


@pytest.mark.parametrize("place", ["file", "file/below"])
def test_a_folder_that_cannot_be_made_is_told(place: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    assert f"CACHE_DIR={tmp_path / place} cannot be used" in refused(tmp_path / place, caplog)


def test_entries_that_cannot_be_written_are_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                      caplog: pytest.LogCaptureFixture) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(disk_cache, "replace_file", full)
    disk_cache._say_unwritable.cache_clear()
    with caplog.at_level(logging.WARNING, "tinsmith"), user(tmp_path / "cache"):
        for _ in range(2):
            cache_put("c", KEY, b"code")
    (record,) = caplog.records
    assert "cannot be written: No space left on device" in record.getMessage()

"""The disk cache of full programs: a second process schedules and compiles nothing, computes the same, and uses no
stale entry."""
from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tinsmith
from tests.schedule import helpers
from tinsmith.core import disk_cache
from tinsmith.core.counters import GlobalCounters
from tinsmith.core.disk_cache import cache_get, cache_put
from tinsmith.core.dtypes import dtypes
from tinsmith.core.settings import Context, in_context
from tinsmith.ir import Ops, UOp
from tinsmith.ir.uop import Window
from tinsmith.runtime import disk_programs, realize
from tinsmith.schedule.canonical import BufferName
from tinsmith.tensor.tensor import Tensor

PACKAGE = Path(tinsmith.__file__).parent

PRELUDE = """
import json
import numpy as np
from tinsmith import Tensor, nn
from tinsmith.core.counters import GlobalCounters
rng = np.random.default_rng(0)
def given(*shape):
    return Tensor(rng.standard_normal(shape).astype(np.float32)).realize()
"""
SOFTMAX = """
values = [given(33, 65).softmax().numpy()]
"""
PROGRAMS = 1  # of the above: softmax; data are copied to the device without one
TRAINING = """
Tensor.manual_seed(3)
layers = [nn.Linear(20, 16), Tensor.relu, nn.Linear(16, 4)]
opt = nn.optim.Adam(nn.state.get_parameters(layers), lr=0.01)
x, y = given(8, 20), Tensor(rng.integers(0, 4, 8).astype(np.int32)).realize()
values = []
with Tensor.train():
    for _ in range(3):
        opt.zero_grad()
        loss = x.sequential(layers).dropout(0.2).sparse_categorical_crossentropy(y)
        loss.backward()
        opt.step()
        values.append(loss.numpy())
values += [p.numpy() for p in opt.params]
"""
EVERYTHING = """
Tensor.manual_seed(4)
x = given(6, 8)
index = Tensor(np.array([1, 3, 0], np.int32)).realize()
w = given(6, 8)
w.assign(w * 2 + x).realize()
values = [t.numpy() for t in (x.pad(((1, 2), (0, 1))).flip(0).transpose(0, 1) + 1, x[index], x.sum(0).exp(), w,
                              Tensor.rand(5), x.to("CPU:1") + 1, (x @ x.T).cast("float16"), Tensor.arange(7) * 3,
                              x.reshape(1, 1, 6, 8).conv2d(given(2, 1, 3, 3)).relu().max_pool2d(),
                              x[:, :6].inv() + 1)]
"""
DEVICES = """
x = given(7, 5).shard(("CPU:0", "CPU:1", "CPU:2"), 0).realize()
w = given(5).shard(x.device, 0).realize()
w.assign(w - x.sum(0)).realize()
values = [t.numpy() for t in ((x.sum(0) * x).realize(), w, x.to("CPU:4"), x.flip(0).sum(1))]
"""
POSTLUDE = """
print(json.dumps({"schedules": GlobalCounters.schedule_count, "compiles": GlobalCounters.compile_count,
                  "kernels": GlobalCounters.kernel_count, "ops": GlobalCounters.global_ops,
                  "mem": GlobalCounters.global_mem, "values": [v.tobytes().hex() for v in values]}))
"""


def start(body: str, cache: Path, **settings: str) -> subprocess.Popen[str]:
    kept = {k: v for k, v in os.environ.items() if k in ("PATH", "HOME", "LD_LIBRARY_PATH", "TMPDIR")}
    env = {**kept, "PYTHONPATH": str(PACKAGE.parent), "CACHE_DIR": str(cache), **settings}
    return subprocess.Popen([sys.executable, "-c", PRELUDE + body + POSTLUDE], env=env, cwd="/", text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def finish(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, err = process.communicate(timeout=100)
    assert process.returncode == 0, err
    lines = out.splitlines()
    (text,) = (line for line in lines if line.startswith('{"schedules"'))
    found: dict[str, Any] = json.loads(text)
    return found | {"lines": [line for line in lines if line != text]}


def run(body: str, cache: Path, **settings: str) -> dict[str, Any]:
    return finish(start(body, cache, **settings))


def entries(cache: Path) -> list[Path]:
    return [p for p in (cache / "program").rglob("*") if p.is_file()]


@pytest.mark.parametrize(("body", "device"), [
    pytest.param(SOFTMAX, "CPU", id="softmax"), pytest.param(TRAINING, "CPU", id="training"),
    pytest.param(EVERYTHING, "CPU", id="everything"), pytest.param(DEVICES, "CPU", id="devices"),
    pytest.param(SOFTMAX, "CPU:C", id="softmax in C"),  # the others take a C compiler long
])
def test_a_second_process_schedules_and_compiles_nothing(body: str, device: str, tmp_path: Path) -> None:
    if device == "CPU:C" and shutil.which("gcc") is None and shutil.which("clang") is None:
        pytest.skip("no C compiler")
    first, second = run(body, tmp_path, DEV=device), run(body, tmp_path, DEV=device)
    assert first["schedules"] > 0 and first["compiles"] > 0
    assert (second["schedules"], second["compiles"]) == (0, 0)
    assert second == first | {"schedules": 0, "compiles": 0}


SHOWN = """
import tinsmith.runtime.realize as execute
run = execute.run
def shown(compiled, *rest):
    for step in compiled.steps:
        print(json.dumps([step.device, step.name, step.slots, step.methods, [line for _, _, line in step.origin]]))
    return run(compiled, *rest)
execute.run = shown
"""


def test_names_methods_and_lines_come_back(tmp_path: Path) -> None:
    first, second, moved = (run(SHOWN + gap + TRAINING, tmp_path) for gap in ("", "", "\n\n"))
    assert first["schedules"] and not second["schedules"] and not moved["schedules"]
    want, got, later = ([json.loads(line) for line in found["lines"]] for found in (first, second, moved))
    assert want == got
    for row in want:  # the lines are those of the process that runs it
        row[-1] = [line + 2 * (line > PRELUDE.count("\n")) for line in row[-1]]
    assert want == later


def test_what_is_shown_does_not_depend_on_the_cache(tmp_path: Path) -> None:
    def shown(debug: str) -> list[str]:
        lines = [line for line in run(TRAINING, tmp_path, DEBUG=debug)["lines"] if "pid:" not in line]
        return [line.split(" arg ")[0] if line.startswith("***") else line for line in lines if "avg:" not in line]

    assert shown("2") == shown("2")
    assert shown("4") == shown("4")
    shutil.rmtree(tmp_path)
    assert run(SOFTMAX, tmp_path, DEBUG="3")["schedules"] and not entries(tmp_path)


@pytest.mark.parametrize("changes", [{"NOOPT": "1"}, {"CPU_FEATURES": "generic"}, {"CHECKED": "1"}],
                         ids=["NOOPT", "CPU_FEATURES", "CHECKED"])
def test_other_settings_have_other_programs(changes: dict[str, str], tmp_path: Path) -> None:
    run(SOFTMAX, tmp_path)
    before = len(entries(tmp_path))
    other = run(SOFTMAX, tmp_path, **changes)
    assert other["schedules"] == len(entries(tmp_path)) - before == before == PROGRAMS
    assert run(SOFTMAX, tmp_path, **changes)["schedules"] == run(SOFTMAX, tmp_path)["schedules"] == 0


def test_changed_sources_have_other_programs(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(PACKAGE, copy / "tinsmith", ignore=shutil.ignore_patterns("__pycache__"))
    for path in copy.rglob("*.py"):
        os.utime(path, (1e9, 1e9))
    cache, changed = tmp_path / "cache", copy / "tinsmith" / "codegen" / "roles.py"
    assert [run(SOFTMAX, cache, PYTHONPATH=str(copy))["schedules"] for _ in range(2)] == [PROGRAMS, 0]
    with changed.open("a") as f:
        f.write("# changed\n")
    os.utime(changed, (1e9, 1e9))
    assert [run(SOFTMAX, cache, PYTHONPATH=str(copy))["schedules"] for _ in range(2)] == [PROGRAMS, 0]
    os.utime(changed, (4e9, 4e9))  # changed while the process runs: it is not known what runs
    assert [run(SOFTMAX, cache, PYTHONPATH=str(copy))["schedules"] for _ in range(2)] == [PROGRAMS, PROGRAMS]


def test_concurrent_writers(tmp_path: Path) -> None:
    results = [finish(p) for p in [start(TRAINING, tmp_path) for _ in range(4)]]
    again = run(TRAINING, tmp_path)
    assert again["schedules"] == again["compiles"] == 0
    assert all(r["values"] == again["values"] for r in results)


def test_a_directory_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for _ in range(2):
        assert run(SOFTMAX, tmp_path / "file" / "below")["schedules"] == PROGRAMS


def test_a_read_only_cache_is_read(tmp_path: Path) -> None:
    run(SOFTMAX, tmp_path)
    for path in [tmp_path, *tmp_path.rglob("*")]:
        path.chmod(0o500 if path.is_dir() else 0o400)
    try:
        assert run(SOFTMAX, tmp_path)["schedules"] == 0
        run(TRAINING, tmp_path)
    finally:
        for path in [tmp_path, *tmp_path.rglob("*")]:
            path.chmod(0o700)


def test_without_the_cache(tmp_path: Path) -> None:
    assert [run(SOFTMAX, tmp_path, CACHELEVEL="0")["schedules"] for _ in range(2)] == [PROGRAMS, PROGRAMS]
    assert not entries(tmp_path)


# *** in this process: damaged and stale entries ***


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Use an empty disk cache, and clear the caches in memory."""
    monkeypatch.setattr(disk_programs, "source_hash", lambda: "these sources")

    def forget() -> None:
        realize._compiled.clear()

    with Context(CACHE_DIR=str(tmp_path), CACHELEVEL=1, DEBUG=0, CHECK_IR=0):
        forget()
        yield forget


def schedules(make: Callable[[], Tensor], want: Any) -> int:
    before = GlobalCounters.schedule_count
    assert np.allclose(make().numpy(), want, atol=1e-5)
    return GlobalCounters.schedule_count - before


def test_damage(fresh: Any, tmp_path: Path) -> None:
    x = helpers.given(5, 7)
    want = x.numpy().sum(1)
    shutil.rmtree(tmp_path)
    assert schedules(lambda: x.sum(1), want) == 1
    (path,) = entries(tmp_path)
    whole = path.read_bytes()
    for damaged in (b"", whole[:40], whole[:-1], whole + b"x", whole[:60] + b"\0" + whole[61:]):
        fresh()
        path.write_bytes(damaged)
        assert schedules(lambda: x.sum(1), want) == 1
        fresh()
        assert schedules(lambda: x.sum(1), want) == 0
        assert path.read_bytes() == whole


def _edit(header: dict[str, Any], path: tuple[Any, ...], value: Any) -> None:
    for step in path[:-1]:
        header = header[step]
    header[path[-1]] = value


@pytest.mark.parametrize(("path", "value"), [
    (("key",), "0"), (("slots", 0, 0), 1), (("slots", 0, 0), "8"), (("slots", 0, 1), "float99"),
    (("slots", 0, 2), "PYTHON"), (("slots",), []), (("inputs",), []), (("inputs",), [[0, 99]]), (("inputs",), [[7, 0]]),
    (("outputs",), [99]), (("outputs",), [-1]), (("in_place",), [[99, 0]]), (("in_place",), [[0, 0]]),
    (("offsets",), [[0, 1 << 40]]), (("steps", 0, 2), [0]), (("steps", 0, 2), [0, 99]), (("steps", 0, 1), 9),
    (("steps", 0, 1), None), (("steps", 0, 3), [0]), (("steps", 0, 4), [[999, 0]]), (("steps", 0), []),
    (("steps",), []), (("steps",), None), (("kernels", 0, "size"), 5), (("kernels", 0, "size"), -1),
    (("kernels", 0, "serial"), "no"), (("kernels", 0, "symbol"), "missing"), (("kernels", 0, "device"), "NOWHERE"),
    (("kernels", 0, "buffers"), None), (("kernels", 0, "local_bytes"), 0.5), (("kernels",), [])], ids=str)
def test_contents_that_mean_nothing(fresh: Any, tmp_path: Path, path: tuple[Any, ...], value: Any) -> None:
    x = helpers.given(5, 7)
    want = x.numpy().sum(1)
    shutil.rmtree(tmp_path)
    assert schedules(lambda: x.sum(1), want) == 1
    (entry,) = entries(tmp_path)
    data = cache_get("program", entry.name)
    assert data is not None
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    _edit(header, path, value)
    text = json.dumps(header).encode()
    cache_put("program", entry.name, len(text).to_bytes(8, "little") + text + data[8 + size :])
    fresh()
    assert schedules(lambda: x.sum(1), want) == 1


def test_another_programs_entry(fresh: Any, tmp_path: Path) -> None:
    x = helpers.given(5, 7)
    want = x.numpy()
    shutil.rmtree(tmp_path)
    assert schedules(lambda: x.sum(1), want.sum(1)) == 1
    (mine,) = entries(tmp_path)
    assert schedules(lambda: x.max(1), want.max(1)) == 1
    (other,) = set(entries(tmp_path)) - {mine}
    other.write_bytes(mine.read_bytes())
    fresh()
    assert schedules(lambda: x.max(1), want.max(1)) == 1


def test_values_and_liveness_are_told_apart(fresh: Any) -> None:
    x = helpers.given(4)
    first = x.numpy()

    def grown() -> np.ndarray[Any, Any]:
        w = Tensor(first).realize()
        w.assign(w + 1).realize()
        return w.numpy()

    for _ in range(3):
        old = helpers.given(4)
        kept = old + 0
        old.assign(old + 1).realize()
        assert np.allclose(kept.numpy(), first) and np.allclose(old.numpy(), first + 1)
        assert np.allclose(grown(), first + 1)
        fresh()


def test_programs_of_python_stay_in_memory(fresh: Any, tmp_path: Path) -> None:
    assert (Tensor([1.0, 2.0], device="PYTHON") + 1).tolist() == [2, 3]
    assert not entries(tmp_path)


# *** keys ***


def graphs() -> dict[str, list[UOp]]:
    """Return graphs that differ in one property each."""
    a, b = (UOp(Ops.BUFFER, dtypes.float32, (), BufferName(n, 12, "CPU")).reshape((3, 4)) for n in (0, 1))
    other = UOp(Ops.BUFFER, dtypes.float32, (), BufferName(0, 12, "CPU:1")).reshape((3, 4))
    n = UOp.variable("v0", 1, 4)
    bound = UOp(Ops.BIND, None, (n, UOp.index(0)))
    box = ((0, 2), (0, bound))
    return {"a": [a], "b": [b], "device": [other], "a, b": [a, b], "b, a": [b, a], "a+b": [a + b], "b+a": [b + a],
            "a+a": [a + a], "a-b": [a - b], "sum 0": [a.reduce(Ops.ADD, (0,))], "sum 1": [a.reduce(Ops.ADD, (1,))],
            "max": [a.reduce(Ops.MAX, (0,))], "1": [a + 1], "2": [a + 2], "nan": [a + float("nan")],
            "0": [a + 0.0], "-0": [a + -0.0], "int": [a.cast(dtypes.int32)], "half": [a.cast(dtypes.float16)],
            "bits": [a.bitcast(dtypes.int32)], "flat": [a.reshape((12,))], "permuted": [a.permute((1, 0))],
            "shrunk": [a.shrink(((0, 2), (0, 4)))], "symbolic": [a.shrink(box)],
            "bounds": [a.shrink(((0, 2), (0, UOp(Ops.BIND, None, (UOp.variable("v0", 1, 3), UOp.index(0))))))],
            "copy": [a.copy_to("CPU:1")], "contiguous": [(a + 1).contiguous()],
            "window": [a.window(Window(1, 2, 1, 1, 4, 2))], "dilated": [a.window(Window(1, 2, 1, 2, 4, 2))],
            "padded": [a.pad(((0, 1), (0, 0)))], "padded before": [a.pad(((1, 0), (0, 0)))]}


def test_different_graphs_have_different_texts() -> None:
    texts = {name: disk_programs.encode(graph) for name, graph in graphs().items()}
    assert len(set(texts.values())) == len(texts)
    assert "v0" in texts["symbolic"]
    assert texts == {name: disk_programs.encode(graph) for name, graph in graphs().items()}


class _Odd:
    """A value that cannot be serialized, in place of a buffer's name."""

    device = "CPU"


def test_the_key_is_complete() -> None:
    graph = graphs()["a+b"]
    with Context(CACHELEVEL=1):
        keys = {disk_programs.entry_key(graph, "CPU"), disk_programs.entry_key(graph, "CPU:1"),
                disk_programs.entry_key(graphs()["copy"], "CPU")}
        assert len(keys) == 3 and None not in keys
        assert disk_programs.entry_key(graph, "PYTHON") is None
        assert disk_programs.entry_key(graph, "NOWHERE") is None
        odd = UOp(Ops.BUFFER, dtypes.float32, (), _Odd())
        assert disk_programs.entry_key([odd], "CPU") is None


def test_encoding_is_linear_and_deep_graphs_need_no_recursion() -> None:
    node = UOp(Ops.BUFFER, dtypes.float32, (), BufferName(0, 1, "CPU"))
    for _ in range(20_000):
        node = node + node
    assert len(disk_programs.encode([node])) < 60 * 20_000


# *** processes that take turns ***


@pytest.fixture
def turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Let entries of a new cache be made in turns; returns the file of the lock of the key "a"."""
    monkeypatch.setattr(disk_cache, "take_turns", [True])
    with Context(CACHE_DIR=str(tmp_path / "cache"), CACHELEVEL=1):
        cache_put("k", "other", b"")
        yield tmp_path / "cache" / "turn" / "a" / "a"


def test_one_of_many_makes_an_entry(turns: Path) -> None:
    made: list[bytes] = []

    def make() -> bytes:
        time.sleep(0.05)
        made.append(b"code")
        return b"code"

    threads = [threading.Thread(target=in_context(lambda: disk_cache.cached("k", "a", make))) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert made == [b"code"] and cache_get("k", "a") == b"code" and not turns.exists()


LOCK = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX); print(1, flush=True); input()"


def test_processes_that_die_or_give_no_sign_are_not_waited_for(turns: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    turns.parent.mkdir(parents=True)
    for kill in (True, False):
        with subprocess.Popen([sys.executable, "-S", "-c", LOCK, str(turns)], text=True, stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE) as other:
            assert other.stdout is not None and other.stdin is not None and other.stdout.readline()
            if kill:
                threading.Timer(0.05, other.kill).start()
            else:
                monkeypatch.setattr(disk_cache, "LOST", 0.05)
            with disk_cache.turn("a") as taken:
                assert taken and turns.exists() and bool(disk_cache._turns) is kill
            other.stdin.close()


def test_signs_of_a_process_are_waited_for(turns: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_cache, "LOST", 0.1)
    order: list[int] = []

    def wait() -> None:
        with disk_cache.turn("a"):
            order.append(1)

    with disk_cache.turn("a"):
        other = threading.Thread(target=in_context(wait))
        other.start()
        for _ in range(15):
            time.sleep(0.02)
            disk_cache.renew_turns()
        order.append(0)
    other.join()
    assert order == [0, 1]


def test_no_turns_where_nothing_can_be_written(turns: Path) -> None:
    turns.parents[1].write_text("in the way")
    assert disk_cache.cached("k", "a", lambda: b"code") == b"code"
    with Context(CACHELEVEL=0):
        assert disk_cache.cached("k", "a", lambda: b"new") == b"new"

"""The ops of the zoo's graphs (benchmarks/zoo/ops.py): their keys, the draw, processes, times on a GPU, the summary."""
from __future__ import annotations

import contextlib
import json
import math
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the backend of torch.compile needs PyTorch")

from benchmarks.zoo import op_clock, ops, runner, summary  # noqa: E402
from benchmarks.zoo.op_workers import NotStarted, Worker, answers  # noqa: E402

RELU = json.dumps(["aten.relu.default", [{"tensor": [[3, 4], [4, 1], "float32"]}], {}])


def test_keys_do_not_name_the_device() -> None:
    for device in ("cpu", "cuda:1"):
        assert ops.encoded(torch.device(device)) == {"device": "any"}
    assert ops.decoded({"device": "any"}, [], 1, "cuda") == torch.device("cuda")
    assert ops.decoded({"device": "cpu"}, [], 1, "cuda") == torch.device("cuda"), "a key of an older file"
    tensors: list[Any] = []
    ops.decoded([{"tensor": [[2, 3], [0, 1], "bfloat16"]}], tensors, 1, "meta")
    assert [(t.device.type, t.shape, t.stride()) for t in tensors] == [("meta", (2, 3), (0, 1))]


def test_a_row_has_errors_times_and_bytes() -> None:
    row = ops.run(RELU)
    assert row["passed"] and row["timed"] == "processor", row
    assert row["bytes"] == 2 * 3 * 4 * 4
    assert set(row["seconds"]) == {"eager", "tinsmith"}
    checked = ops.run(RELU, "check")
    assert checked["passed"] and not checked["seconds"]
    timed = ops.run(RELU, "time")
    assert timed["seconds"] and not timed["correct"], "only the first phase compares"
    both = ops._with_times(checked, timed)
    assert both["passed"] and both["seconds"] == timed["seconds"]
    died = ops._with_times(checked, {**runner.EMPTY, "error": "time: the process ended with -9: "})
    assert not died["passed"] and died["correct"]


def test_results_that_are_no_tensors_are_left_out() -> None:
    matrix, none = {"tensor": [[2, 3, 8, 8], [192, 64, 8, 1], "float32"]}, [1, 1]
    kernel = {"tensor": [[3, 3, 1, 1], [3, 1, 1, 1], "float32"]}
    text = json.dumps(["aten.convolution_backward.default", [
        matrix, matrix, kernel, [3], none, [0, 0], none, False, [0, 0], 1, [False, True, False]], {}])
    op = ops.Op(text, "cpu")
    assert op.kept == [1] and [t.shape for t in op.results] == [(3, 3, 1, 1)]
    assert ops.run(text, "check")["passed"]


def test_a_name_that_does_not_exist_is_a_row_with_an_error() -> None:
    assert "AttributeError" in ops.run(json.dumps(["aten.no_such.default", [], {}]))["error"]


def test_the_sample_has_each_name_and_depends_on_the_seed_alone() -> None:
    texts = [json.dumps([f"aten.op{n % 5}.default", [n], {}]) for n in range(50)]
    found = ops.drawn(texts, 20, 3)
    assert found == ops.drawn([*reversed(texts), *texts], 20, 3) and len(set(found)) == 20
    assert {json.loads(t)[0] for t in found[:5]} == {f"aten.op{n}.default" for n in range(5)}
    assert found != ops.drawn(texts, 20, 4)
    assert len(ops.drawn(texts, 3, 0)) == 3 and len(ops.drawn(texts, 100, 0)) == 50


ANSWERS = """
import json, os, sys, time
print("{}", flush=True)
for line in sys.stdin:
    text, phase = json.loads(line)
    if text == "dies":
        sys.exit("a reason")
    if text == "hangs":
        time.sleep(100)
    row = {"key": text, "phase": phase, "process": os.getpid(), "error": ""}
    print(json.dumps([row, text == "breaks"]), flush=True)
"""


def fake(script: str = ANSWERS, limit: float = 5.0) -> Worker:
    worker = Worker("cpu", 1, limit)
    worker.command = [sys.executable, "-c", script]
    return worker


def test_an_op_on_which_a_process_dies_or_hangs_is_a_row_with_an_error() -> None:
    worker = fake(limit=1.0)
    try:
        rows = dict(answers([worker], ["a", "dies", "b", "hangs", "c", "breaks", "d"], "check", math.inf))
    finally:
        worker.close()
    assert list(rows) == ["a", "dies", "b", "hangs", "c", "breaks", "d"]
    assert rows["dies"]["error"] == "check: the process ended with 1: a reason"
    assert rows["hangs"]["error"].startswith("check: no answer in 1 s; the process ended with -9")
    assert len({rows[k]["process"] for k in "abcd"}) == 4, "each after a new process started"
    assert rows["c"]["process"] == rows["breaks"]["process"]


def test_processes_share_the_ops_until_the_deadline() -> None:
    workers = [fake(), fake()]
    try:
        texts = [f"t{n}" for n in range(30)]
        assert sorted(text for text, _ in answers(workers, texts, "time", math.inf)) == sorted(texts)
        assert not list(answers(workers, texts, "time", time.monotonic() - 1))
        assert not list(answers(workers, [], "time", math.inf))
    finally:
        for worker in workers:
            worker.close()


def test_a_process_that_does_not_start_makes_no_rows(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(NotStarted, match="no GPU"):
        fake("import sys; sys.exit('no GPU')").ask("a", "check")
    assert not list(answers([fake("import sys; sys.exit('no GPU')")], ["a", "b"], "check", math.inf))
    assert "did not start" in capsys.readouterr().out


UNLUCKY = """
import json, sys
print("{}", flush=True)
seen = []
for line in sys.stdin:
    text, phase = json.loads(line)
    row = {"key": text, "error": "", "correct": True, "torch_ops": 0, "timed": "", "seconds": {}, "passed": True}
    if text == "large" and phase == "check" and text not in seen:
        row["error"] = "OutOfMemoryError: CUDA out of memory"
    elif text == "unusable" and phase == "time":
        row["error"] = "AcceleratorError: operation failed due to a previous error during capture"
    elif phase != "check":
        row.update(timed="calls" if phase == "calls" else "graph", seconds={"eager": 1.0, "tinsmith": 1.0})
    seen.append(text)
    print(json.dumps([row, bool(row["error"]) and phase == "time"]), flush=True)
"""


def test_ops_get_a_second_chance_alone_and_without_captures(tmp_path: Path) -> None:
    given = runner.options(["--ops", "--device", "CUDA", "--workers", "1", "--out", str(tmp_path / "ops.json")])
    found: dict[str, Any] = {"rows": {}}
    phases = ops.Phases(given, found)
    assert phases.workers[0].command[-2:] == ["cuda", "1"] and phases.workers[0].limit == ops.LONGEST
    phases.workers = [fake(UNLUCKY)]
    try:
        phases(["small", "large", "unusable"], math.inf)
    finally:
        phases.close()
    timed = {text: row["timed"] for text, row in found["rows"].items()}
    assert timed == {"small": "graph", "large": "graph", "unusable": "calls"}
    assert all(row["passed"] for row in found["rows"].values())


class Gpu:
    """Counts time by calls: PyTorch's functions of events, streams and graphs, without a GPU."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.recording, self.stream = 0.0, None, "main"  # ms
        gpu = self
        monkeypatch.setattr(op_clock, "side_stream", lambda: Stream())

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                assert enable_timing

            def record(self) -> None:
                self.at = gpu.now

            def synchronize(self) -> None:
                pass

            def elapsed_time(self, end: Any) -> float:
                return float(end.at - self.at)

        class Graph:
            kernels = 0.0

            def replay(self) -> None:
                gpu.now += self.kernels

        class Stream:
            def wait_stream(self, other: Any) -> None:
                pass

        @contextlib.contextmanager
        def capture(graph: Any, stream: Any) -> Any:
            gpu.recording = graph
            try:
                yield
            finally:
                gpu.recording = None
                if not graph.kernels:
                    warnings.warn("The CUDA Graph is empty.", stacklevel=2)

        for name, value in {"Event": Event, "CUDAGraph": Graph, "Stream": Stream, "graph": capture,
                            "current_stream": Stream, "synchronize": lambda: None,
                            "stream": lambda s: contextlib.nullcontext(),
                            "set_stream": lambda s: setattr(gpu, "stream", "restored")}.items():
            monkeypatch.setattr(torch.cuda, name, value)

    def call(self, kernel: float, overhead: float) -> None:
        """Run a kernel of so many ms, for which Python needs ``overhead`` ms more."""
        if self.recording is not None:
            self.recording.kernels += kernel
        else:
            self.now += kernel + overhead


def test_kernels_are_timed_in_graphs_and_calls_besides(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Gpu(monkeypatch)
    row = op_clock.timed({"eager": lambda: gpu.call(0.002, 0.008), "tinsmith": lambda: gpu.call(0.001, 0.019)})
    assert row["timed"] == "graph" and "not_captured" not in row
    assert row["seconds"] == pytest.approx({"eager": 2e-6, "tinsmith": 1e-6})
    assert row["call_seconds"] == pytest.approx({"eager": 1e-5, "tinsmith": 2e-5})


def test_calls_are_timed_where_there_is_no_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Gpu(monkeypatch)

    def waits() -> None:
        if gpu.recording is not None:
            raise RuntimeError("operation not permitted when stream is capturing")
        gpu.call(0.01, 0.01)

    row = op_clock.timed({"eager": lambda: gpu.call(0.01, 0.01), "tinsmith": waits})
    assert row["timed"] == "calls" and row["seconds"] == pytest.approx({"eager": 2e-5, "tinsmith": 2e-5})
    assert row["not_captured"].startswith("tinsmith: RuntimeError: operation not permitted")
    assert gpu.stream == "restored"
    nothing = op_clock.timed({"eager": lambda: gpu.call(0, 0.01), "tinsmith": lambda: gpu.call(0, 0.02)})
    assert nothing["not_captured"] == "eager: RuntimeError: no kernel"
    assert op_clock.timed({"eager": waits}, capture=False).keys() == {"timed", "call_seconds", "seconds"}


def test_samples_are_long_or_have_many_calls() -> None:
    assert op_clock.repeats(1e-5, op_clock.LONG, op_clock.MOST) == 500
    assert op_clock.repeats(1e-9, op_clock.LONG, op_clock.MOST) == op_clock.MOST
    assert op_clock.repeats(1.0, op_clock.LONG, op_clock.MOST) == 1


def test_the_summary_has_the_device_and_rates_of_the_worst() -> None:
    base = {"machine": "m", "device": "CUDA", "date": "d", "commit": "c", "torch": "2", "threads": 1, "load": 0.0,
            "collected": {"a": [], "b": []}}
    done = {**runner.EMPTY, "correct": True, "passed": True, "bytes": 8_000_000}
    rows = {RELU: {**done, "timed": "graph", "seconds": {"eager": 4e-6, "tinsmith": 8e-6},
                   "call_seconds": {"eager": 1e-5, "tinsmith": 1e-5}},
            json.dumps(["aten.sum.default", [], {}]): {
                **done, "timed": "calls", "seconds": {"eager": 2.0, "tinsmith": 1.0}},
            json.dumps(["aten.mul.Tensor", [], {}]): {**done, "timed": ""}}
    text = summary.of_ops({**base, "rows": rows})
    assert "m; device CUDA; d" in text
    assert "3 ops of 2 models; 0 failed, 1 not timed yet. Times are the GPU's" in text
    assert "in replayed CUDA graphs for 1 ops, of calls from Python for 1 ops" in text
    assert "| 0.50 | 4.0 | 8.0 | 2000.0 | 1000.0 | graph | " in text
    assert "| all, calls from Python | 1 | 1.00 |" in text


def test_two_phases_fill_in_a_file_that_a_second_run_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THREADS", "1")
    out = tmp_path / "ops.json"
    command = ["--ops", "--models", "siren", "--rows", "inference/f32", "--workers", "2", "--out", str(out)]
    assert runner.main([*command, "--sample", "3"]) == 0
    found = json.loads(out.read_text())
    assert len(found["rows"]) == 3 and all(r["seconds"] for r in found["rows"].values())
    done = next(iter(found["rows"]))
    found["rows"][done]["seconds"]["eager"] = 12345.0
    last = list(found["rows"])[-1]
    found["rows"][last].update(timed="", seconds={})
    out.write_text(json.dumps(found))
    assert runner.main(command) == 0, "all, one by one"
    again = json.loads(out.read_text())
    assert set(again["rows"]) == set(again["collected"]["siren/small"]) and len(again["rows"]) > 3
    assert again["rows"][done]["seconds"]["eager"] == 12345.0, "not measured again"
    assert again["rows"][last]["seconds"], "timed, since it was only compiled"
    with pytest.raises(SystemExit, match="results of the device CPU"):
        runner.main([*command, "--device", "CUDA"])

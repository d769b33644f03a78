"""A trace holds every step of every program, linked to the user's lines and to the previous and next step."""
from __future__ import annotations

import itertools
import json
import shlex
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.golden.running import run
from tests.viz.programs import FOUR
from tinsmith import Context, Tensor, viz
from tinsmith.backend.memory import Buffer
from tinsmith.core.dtypes import dtypes
from tinsmith.core.origin import observed
from tinsmith.core.timeline import perfetto, timeline
from tinsmith.inspect import trace
from tinsmith.ir import UOp

Document = dict[str, Any]


@pytest.fixture(scope="module")
def document(four: Path) -> Document:
    return viz.page.read_trace(four)


def lines(document: Document, program: Document) -> set[int]:
    return {document["origins"][o][2] for item in program["items"] for o in item["origins"]}


def line_of(text: str) -> int:
    return next(n for n, line in enumerate(FOUR.splitlines(), 1) if text in line)


def program_of(document: Document, text: str) -> Document:
    return next(p for p in document["programs"] if line_of(text) in lines(document, p))


def test_programs_have_their_lines_and_the_text_of_the_file(document: Document) -> None:
    assert list(document["files"].values()) == [FOUR]
    for text in (".dot(", ".var(", "a @ b", "self.conv(x)"):
        assert program_of(document, text)
    assert program_of(document, "self.conv(x)")["captured"] == "step"
    assert program_of(document, ".dot(")["captured"] == ""


def test_nodes_have_a_state_and_the_kernels_that_compute_them(document: Document) -> None:
    nodes = program_of(document, ".dot(")["nodes"]
    assert [(n[0], n[6], n[7]) for n in nodes] == [
        ("BUFFER", "realized", []), ("BUFFER", "realized", []), ("MUL", "fused", [0]), ("REDUCE", "stored", [0])]
    assert all(s < n for program in document["programs"] for n, row in enumerate(program["nodes"]) for s in row[4])
    views = [n for n in program_of(document, ".var(")["nodes"] if n[0] in ("RESHAPE", "EXPAND")]
    assert views and all(n[6] == "view" for n in views)


def test_nodes_have_the_layer_that_made_them(document: Document) -> None:
    program = program_of(document, "self.conv(x)")
    assert len(document["layers"]) == len(document["origins"])
    methods = {(document["layers"][n[5]], document["origins"][n[5]][0]) for n in program["nodes"] if n[5] >= 0}
    assert {("conv", "Conv2d"), ("linear", "Linear"), ("", "relu")} <= methods


def test_passes_show_what_changed_and_by_which_rule(document: Document) -> None:
    program = program_of(document, ".var(")
    assert [p["name"] for p in program["passes"]][:14] == [
        "tensor graph", "without empty values", "layouts", "cast below views", "gathers first", "sum by phase",
        "spread scatters", "compact scatters", "stored results", "padded rows", "sums of copies", "split reductions",
        "fusion", "schedule"]
    kernel = document["kernels"][program["items"][-1]["kernel"]]
    names = [p["name"] for p in kernel["passes"]]
    assert names == ["kernel", "lower", "normalize", "ranges", "opt UNROLL(0)", "opts", "linearize"]
    rewrites = [r for k in document["kernels"].values() for p in k["passes"] for r in p["rewrites"]]
    assert rewrites and all(len(r) == 5 and r[0] and r[4] >= 1 for r in rewrites)
    assert sum(r[2] == r[3] for r in rewrites) < len(rewrites) / 20  # different below what is printed of them
    assert kernel["passes"][2]["rows"] is None and kernel["passes"][1]["rows"] is not None


def test_a_cut_has_its_reason(document: Document) -> None:
    program = program_of(document, "self.conv(x)")
    assert all(item["reason"] for item in program["items"])
    stored = next(p for p in program["passes"] if p["name"] == "fusion")["rows"]
    assert all(" is stored because: " in text or " is fused because: " in text for text, _ in stored)
    assert sum(" is stored because: " in text for text, _ in stored) > 5
    assert {node[6] for node in program["nodes"] if node[8]} == {"stored", "fused"}


def test_a_kernel_goes_from_tree_to_assembly(document: Document) -> None:
    (item,) = program_of(document, "a @ b")["items"]
    kernel = document["kernels"][item["kernel"]]
    assert "SUM (2,)" in "\n".join(text for text, _ in kernel["tree"])
    assert kernel["before"] == ["64 loop", "48 loop", "96 reduce"] and len(kernel["after"]) > 3
    opts = [p for p in kernel["passes"] if p["name"].startswith("opt ")]
    assert opts and len(kernel["expected"]) == len(opts) + 1
    assert kernel["expected"][-1] == pytest.approx(kernel["estimate"]["seconds"])
    assert kernel["expected"][-1] < kernel["expected"][0]
    assert kernel["estimate"]["operations"] == 2 * 64 * 96 * 48
    assert "void r_" in kernel["source"] and "define void" in kernel["native"] and "ret" in kernel["assembly"]
    product = next(o for text, o in kernel["uops"] if "MULADD" in text)
    assert document["origins"][product][:1] == ["matmul"] and document["origins"][product][2] == line_of("a @ b")


def test_lines_of_source_and_assembly_know_their_uop(document: Document) -> None:
    kernel = document["kernels"][program_of(document, "a @ b")["items"][0]["kernel"]]

    def made(name: str, words: str) -> set[str]:
        texts = kernel[name].split("\n")
        assert len(texts) == len(kernel["lines"][name])
        rows = [row for text, row in zip(texts, kernel["lines"][name]) if words in text]
        return {kernel["uops"][row][0].split(":")[0].split()[1] if row >= 0 else "" for row in rows}

    assert made("source", "for (") == {"UOps.RANGE"} and made("source", "void r_") == {""}
    assert made("source", "fma(") == {"UOps.ALU"} and "UOps.STORE" in made("source", "data0+")
    assert made("native", " load <") == {"UOps.LOAD"} and made("native", " store ") == {"UOps.STORE"}
    assert made("native", "ret void") == {""} and made("native", "call <") <= {"UOps.ALU"}
    known = [row for row in kernel["lines"]["assembly"] if row >= 0]
    assert len(known) > 20 and "UOps.ALU" in made("assembly", "vfmadd") | made("assembly", "mul")
    for found in document["kernels"].values():
        assert max(found["lines"]["assembly"]) >= 0 and max(found["lines"]["native"]) >= 0


def test_the_timeline_has_kernels_copies_compilations_and_memory(document: Document) -> None:
    kinds = {kind for kind, *_ in document["events"]}
    assert {"kernel", "copy", "program"} <= kinds
    step = program_of(document, "self.conv(x)")
    first = step["items"][0]["kernel"]
    runs = [e for e in document["events"] if e[9] == first]
    assert sum(e[0] == "kernel" for e in runs) == 4 and all(e[4] > 0 for e in runs)
    assert max(e[5] for e in document["events"] if e[1] == "CPU") > 8 * 28 * 28 * 4


def test_memory_is_noted_as_it_is_taken_and_given_back() -> None:
    """Allocations and releases are recorded, also between kernels and of memory that no kernel reads."""
    begun = len(timeline.events)
    with Context(PROFILE=1):
        held = Buffer("CPU", 1 << 20, dtypes.float32).allocate()
        del held
        Buffer("CPU", 16, dtypes.float32).allocate()
    found = [e for e in timeline.events[begun:] if e.kind == "memory" and e.row == "CPU"]
    steps = [b.memory - a.memory for a, b in itertools.pairwise(found)]
    assert -(4 << 20) in steps and 64 in steps and all(e.seconds == 0 for e in found)
    written = perfetto(found)["traceEvents"]
    assert [e["args"]["bytes"] for e in written if e["ph"] == "C"] == [e.memory for e in found]
    assert not [e for e in written if e["ph"] == "X"]


def test_a_block_of_its_own_sees_the_passes_again() -> None:
    (Tensor([1.0, 2.0]) * 3).realize()
    with trace.recording() as found:
        (Tensor([1.0, 2.0]) * 3).schedule()
    (program,) = found.programs
    assert program["items"][-1]["kernel"] in found.kernels and observed.observer is None


def test_rewrites_are_seen_again_though_their_results_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cached rewrites are recorded once in every pass that uses them, also below a new expression."""
    i, j = UOp.variable("i", 0, 7), UOp.variable("j", 0, 3)
    known = (i * 4 + j) // 4
    watch, passes = trace.Trace(0.0), []
    watch._thread = threading.get_ident()
    monkeypatch.setattr(observed, "observer", watch)
    for asked in (known, known, (known * 8 + j) % 8, (known * 8 + j) % 8):
        assert asked.simplify() is asked.simplify()
        passes.append([rule for rule, *_ in watch._rewrites()])
        assert {count for *_, count in watch._rewrites()} == {1}
        watch.passed("a pass", asked)
    assert known.simplify() is i and passes[0] and passes[0] == passes[1]
    assert passes[2] == passes[3] and set(passes[0]) < set(passes[2])


def test_programs_beyond_a_failure_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    with trace.recording() as found:
        with Context(NOOPT=1), pytest.raises(ZeroDivisionError):
            monkeypatch.setattr("tinsmith.runtime.lowering.plan_memory", lambda schedule: 1 / 0)
            (Tensor([1.0, 2.0]) + 9).realize()
        monkeypatch.undo()
        (Tensor([1.0, 2.0]) + 9).realize()
    assert observed.observer is None and len(found.programs) == 1


def test_a_trace_is_one_file_and_others_are_refused(four: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    for text, words in (("{", "is not a trace"), ("[]", "is JSON, but not a trace"),
                        (json.dumps({"format": trace.FORMAT, "version": 0}), "of version 0"),
                        (json.dumps({"format": trace.FORMAT, "version": trace.VERSION}), "without programs and")):
        other.write_text(text)
        done = run(["-m", "tinsmith", "viz", str(other)], tmp_path)
        assert done.returncode == 1 and words in done.stdout


def test_the_folder_is_made_and_the_command_can_be_pasted(tmp_path: Path) -> None:
    (tmp_path / "my p.py").write_text("from tinsmith import Tensor\nprint((Tensor([1, 2]) + 1).tolist())\n")
    done = run(["my p.py"], tmp_path, VIZ="2", GRAPH="1", PROFILE="1", TRACE_DIR=str(tmp_path / "new" / "folder"))
    kinds = ("graph.dot", "graph.svg", "perfetto.json", "trace.json")
    assert sorted(p.name for p in (tmp_path / "new" / "folder").iterdir()) == [f"my p.{kind}" for kind in kinds]
    words = " ".join(done.stderr.split() + done.stdout.split())
    command = shlex.split(words[words.index("python -m tinsmith viz") : words.index(" shows it")])
    assert Path(command[-1]).name == "my p.trace.json"


def test_a_block_can_ask_for_it(tmp_path: Path) -> None:
    (tmp_path / "p.py").write_text("from tinsmith import Context, Tensor\n"
                                   "with Context(VIZ=2, GRAPH=1):\n    print((Tensor([1, 2]) + 1).tolist())\n"
                                   "print((Tensor([1, 2]) * 3).tolist())\n")
    assert run(["p.py"], tmp_path).returncode == 0
    assert {p.name for p in tmp_path.iterdir()} == {"p.graph.dot", "p.graph.svg", "p.trace.json", "cache", "p.py"}
    assert len(json.loads((tmp_path / "p.trace.json").read_text("utf-8"))["programs"]) == 1


def test_a_script_that_computes_nothing_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "p.py").write_text("from tinsmith import Tensor\nx = Tensor([1, 2]) + 1\n")
    done = run(["p.py"], tmp_path, VIZ="1")
    words = " ".join(done.stderr.split() + done.stdout.split())
    assert done.returncode == 0 and "VIZ: no program ran" in words and ".numpy()" in words
    assert sorted(p.name for p in tmp_path.iterdir() if p.name != "cache") == ["p.py"]


def test_nothing_is_recorded_without_it(tmp_path: Path) -> None:
    (tmp_path / "p.py").write_text(
        "import sys\nfrom tinsmith import Tensor\nprint((Tensor([1, 2]) + 1).tolist())\n"
        "print([m for m in sys.modules if m in ('tinsmith.inspect.trace', 'tinsmith.viz.page', 'http.server')])\n")
    assert run(["p.py"], tmp_path).stdout == "[2, 3]\n[]\n"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["cache", "p.py"]

"""The frozen corpus: some of its programs are unchanged, and any change is detected."""
from __future__ import annotations

import doctest
import math
import re
from pathlib import Path

import pytest

from benchmarks.corpus import record, regret
from benchmarks.corpus.programs import programs
from benchmarks.corpus.record import Row, changes
from benchmarks.corpus.targets import TARGETS, device_name
from tinsmith.backend.device import Device
from tinsmith.codegen.compile_kernel import begin, compile_kernel
from tinsmith.codegen.launch import KernelProgram
from tinsmith.codegen.opt import OptOps
from tinsmith.codegen.planner.candidate import weight_of
from tinsmith.core.dtypes import dtypes
from tinsmith.ir import Ops, UOp

LARGE = 1 << 15  # iterations of a kernel, as its name tells them
BLESS = "if that is meant: python -m benchmarks.corpus check, look at all of it, python -m benchmarks.corpus bless"


@pytest.mark.parametrize("target", TARGETS)
def test_what_is_chosen_and_written_stays(target: str) -> None:
    kept = record.read(target)
    quick = [p for p in programs() if p.quick]
    assert len(quick) >= 12
    shown = [str(c) for p in quick for c in changes(kept[p.name], record.rows(p, target))]
    assert not shown, "\n".join([f"{target}:", *shown, BLESS])


def test_every_program_is_kept_under_a_name_of_its_own() -> None:
    names = [p.name for p in programs()]
    assert len(set(names)) == len(names) > 300
    for target in TARGETS:
        assert list(record.read(target)) == names, f"{target}: {BLESS}"


def test_examples() -> None:
    for module in (record, regret):
        found = doctest.testmod(module)
        assert found.attempted and not found.failed


def test_what_is_kept_is_read_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "FOLDER", tmp_path)
    kept = {"a b": [Row("1a", "r_4", "VECTOR(0,4) STAGE(1,0+2,lanes=16)"), Row("2b", "E_8", "")], "c": []}
    record.write("one", kept)
    assert record.read("one") == kept and record.read("two") == {}


def test_a_change_shows_both_lists() -> None:
    a, b, c = Row("1a", "r_4", "VECTOR(0,4)"), Row("2b", "r_8", "UNROLL(0,4)"), Row("3c", "r_8", "UNROLL(0,4)")
    assert not list(changes([a, b], [b, a]))
    assert [str(x).split() for x in changes([a], [a, b])] == [["new", "2b", "r_8:", "UNROLL(0,4)"]]
    assert [str(x).split() for x in changes([a, b], [b])] == [["gone", "1a", "r_4:", "VECTOR(0,4)"]]
    (text,), (opts,) = changes([b], [c]), changes([a], [b])
    assert "the same opts, 2b → 3c" in str(text) and str(opts).split()[1::4] == ["1a", "2b"]


def test_what_was_written_before_does_not_matter() -> None:
    """A program alone and after others, with constants that change between them, gives the same kernels."""
    alone, before = (record.matching(name, programs())[0] for name in ("Adam step", "SGD step"))
    first = record.rows(alone, "avx2")
    for program in (before, alone, before, alone, alone):
        found = record.rows(program, "avx2")
    assert found == first


def test_the_choice_is_measured_beside_other_lists_that_compute_the_same(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = UOp(Ops.PARAM, dtypes.float32, (), (1, (6, 64)))
    sink = UOp(Ops.SINK, None, (x.reduce("ADD", (1,)),))
    chosen, *others = regret.candidates(sink, "CPU")
    assert chosen.opts == compile_kernel(sink, Device["CPU"].renderer).opts
    assert len({str(k.opts) for k in others}) == len(others) > 3 and all(k.opts != chosen.opts for k in others)
    assert [] in [k.opts for k in others] and chosen.opts[:-1] in [k.opts for k in others]
    found = regret.of_kernel("sums", sink, "CPU")
    assert found is not None and found.low <= found.high and found.ratio >= 1
    monkeypatch.setattr(regret, "FOLDER", tmp_path)
    regret.keep([found])
    regret.keep([found._replace(program="more sums"), found._replace(best="none")])
    (path,) = tmp_path.iterdir()
    assert [line.split("\t")[:2] for line in path.read_text().splitlines()] == [
        ["more sums", found.kernel], ["sums", found.kernel]] and path.read_text().endswith("\tnone\n")


def test_large_kernels_that_no_workers_share_say_why() -> None:
    """Of all kernels kept for a machine of eight cores those that look large and have no THREAD are planned again, one
    of each kind and magnitude: a reason is known for each, or there is little to do."""
    kept, alone, kinds = record.read("avx512"), list[str](), set[tuple[int, str]]()
    for name, made in sorted(kept.items(), key=lambda item: len(item[1])):
        sizes = {row: math.prod(map(int, re.findall(r"_(\d+)", row.kernel))) for row in made}
        own = {(size.bit_length() // 8, " ".join(sorted({row.kernel[0], *re.findall("[A-Z]{2,}", row.opts)})))
               for row, size in sizes.items() if "THREAD" not in row.opts and size >= LARGE}
        alone += [name] * (not own <= kinds)
        kinds |= own
    assert len(kinds) > 6
    target, reasons = TARGETS["avx512"]().target, set()
    for step in (step for p in programs() if p.name in alone for step in record.steps(p, device_name("avx512"))):
        kernel = step.launch
        assert isinstance(kernel, KernelProgram) and step.item is not None
        if step.item.sink is None or any(o.op is OptOps.THREAD for o in kernel.opts):
            continue
        if weight_of(begin(step.item.sink, target)) >= target.core.serial_work:
            assert kernel.plan is not None and kernel.plan.alone, f"{kernel.name}: {kernel.opts}"
            reasons.add(kernel.plan.alone)
    assert reasons == {"its steps depend on each other", "it has no parallel loop"}

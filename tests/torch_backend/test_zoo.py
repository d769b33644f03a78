"""Twelve small models of the zoo (benchmarks/zoo) beside eager PyTorch: results, gradients, losses of ten steps."""
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the backend of torch.compile needs PyTorch")

from benchmarks.zoo import runner, summary  # noqa: E402
from benchmarks.zoo.measure import Row, Settings, distance, measured  # noqa: E402
from benchmarks.zoo.registry import models  # noqa: E402

CASES = {
    "mobilenet_v3": "training/f32", "densenet": "training/f32", "unet": "training/f32", "swin_tiny": "training/f32",
    "mlp_mixer": "training/bf16", "conformer": "training/f32", "lstm": "training/f32", "dlrm": "training/f32",
    "graph_attention": "training/f32", "vae": "training/bf16", "mask_heads": "inference/f32", "llama": "training/f32"}


@pytest.mark.parametrize("name", CASES)
def test_a_model_is_right_and_runs_in_our_programs(name: str) -> None:
    for package in models()[name].needs:
        pytest.importorskip(package, reason=f"the model is one of {package}")
    mode, _, precision = CASES[name].partition("/")
    row = measured(models()[name], "small", mode, precision, Settings(rounds=0, strict=True))
    assert row.error == ""
    assert row.correct, row.errors
    assert row.torch_ops == 0, row.fallbacks
    if mode == "training":
        assert set(row.errors) == {"results", "gradients", "buffers", "losses", "eager results", "eager gradients",
                                   "eager buffers", "eager losses"}


def test_there_are_sixty_architectures() -> None:
    assert len({name for name, m in models().items() if m.family != "libraries"}) >= 60


def test_distance_is_relative_and_sees_what_is_missing() -> None:
    x, nan, inf = torch.tensor([3.0, 4.0]), torch.tensor([float("nan")]), torch.tensor([-float("inf")])
    assert distance([x * 1.1], [x]) == pytest.approx(0.1)
    assert distance([None], [x]) == distance([x[:1]], [x]) == distance([nan], [x[:1]]) == float("inf")
    assert distance([None, nan, inf], [None, nan, inf]) == 0
    assert distance([torch.tensor([3.0, 4.5])], [x]) == pytest.approx(0.1)
    assert distance([x, x * 0 + 1e-9], [x, x * 0]) < 1e-6, "a gradient that is zero but for rounding"


def row(key: str, **fields: Any) -> dict[str, Any]:
    return {**runner.EMPTY, "key": key, "correct": True, "passed": True, "ops": 10, **fields}


def test_a_run_continues_where_the_last_one_ended(tmp_path: Path) -> None:
    out = tmp_path / "zoo.json"
    command = ["--models", "siren", "--rows", "inference/f32", "--out", str(out)]
    assert runner.main(command) == 0
    found = json.loads(out.read_text())
    assert found["rows"]["siren/small/inference/f32"]["passed"]
    assert found["commit"]
    found["rows"]["siren/small/inference/f32"]["ops"] = 12345
    out.write_text(json.dumps(found))
    assert runner.main(command) == 0
    assert json.loads(out.read_text())["rows"]["siren/small/inference/f32"]["ops"] == 12345, "not measured again"
    assert "12345" in out.with_suffix(".md").read_text()


def test_a_process_that_dies_is_a_row_with_an_error() -> None:
    given = runner.options(["--limit", "0.01"])
    rows = runner.run_model(models()["siren"], ["inference/f32", "training/f32"], given)
    assert [r["passed"] for r in rows.values()] == [False, False]
    assert all("the process ended" in r["error"] for r in rows.values())


def test_shards_have_each_model_once() -> None:
    command = ["--seed", "7", "--models", "r,s,v", "--shard"]
    parts = [runner.chosen(runner.options([*command, f"{k}/3"])) for k in (1, 2, 3)]
    names = [m.name for part in parts for m in part]
    assert sorted(names) == sorted(n for n, m in models().items() if n.startswith(("r", "s", "v")) and m.available)


def test_the_summary_has_quantiles_the_worst_and_the_failed() -> None:
    rows = {f"m{n}/full/training/f32": row(f"m{n}", seconds={"eager": 1.0 + n, "tinsmith": 1.0, "inductor": 2.0})
            for n in range(5)}
    rows["bad/full/training/f32"] = row("bad", correct=False, passed=False, errors={"gradients": 0.5})
    rows["slow/full/training/f32"] = row("slow", passed=False, torch_ops=3, fallbacks={"aten.x": "no rule"})
    base = {"machine": "m", "date": "d", "commit": "c", "torch": "2", "threads": 1, "load": 0.0}
    text = summary.markdown({**base, "rows": rows})
    assert "7 rows of 7 models: 5 passed, 0 with an error, 1 wrong, 1 with more than 5 % by PyTorch" in text
    assert "| training/f32 | eager | 5 | 2.61 | 1.04 | 1.20 | 2.00 | 3.00 | 4.00 | 4.80 |" in text
    assert "wrong: gradients 5.0e-01" in text
    assert "PyTorch ran 30% of ops and 0% of time: aten.x (no rule)" in text
    after = {key: {**r, "passed": True, "seconds": {**r["seconds"], **({"tinsmith": 0.5} if r["seconds"] else {})}}
             for key, r in rows.items()}
    compared = summary.comparison({**base, "rows": rows}, {**base, "rows": after})
    assert "## Pass now: 2" in compared
    assert "## Speed: 2.000 of before" in compared


def test_rows_pass_with_at_most_a_twentieth_by_pytorch() -> None:
    assert Row("k", correct=True, ops=100, torch_ops=5).passed
    assert not Row("k", correct=True, ops=100, torch_ops=6).passed
    assert not Row("k", correct=True, torch_share=0.06).passed
    assert not Row("k", correct=True, error="x").passed

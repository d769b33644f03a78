"""Measured and predicted times of programs and steps."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tinsmith import Tensor, viz
from tinsmith.viz.page import costliest, times


def _document(**changes: Any) -> dict[str, Any]:
    """Return a trace of two programs: the first runs kernel a twice and a copy, the second kernels a and b."""
    item = {"device": "CPU", "seconds": None}
    a, b, copy = ({**item, "kernel": key, "name": name} for key, name in (("a1", "a"), ("b1", "b"), (None, "copy 4")))
    kernels = {"a1": {"estimate": {"seconds": 1.0}}, "b1": {"estimate": {"seconds": 2.0}}}
    runs = [("kernel", "a", 1.0, 3.0, "a1"), ("kernel", "a", 2.0, 5.0, "a1"), ("copy", "copy 4", 2.5, 0.5, ""),
            ("memory", "", 2.6, 9.0, ""), ("kernel", "a", 11.0, 7.0, "a1"), ("kernel", "b", 12.0, 1.0, "b1"),
            ("kernel", "b", 13.0, 2.0, "b1")]
    events = [[kind, "CPU", name, start, seconds, 0, 0, 0, [], key] for kind, name, start, seconds, key in runs]
    programs = [{"start": 0.0, "items": [a, a, copy]}, {"start": 10.0, "items": [a, b]}]
    return {"programs": programs, "kernels": kernels, "events": events, **changes}


def test_runs_count_for_the_program_that_was_compiled_last_before_them() -> None:
    first, second = times(_document())
    assert first == {"measured": 8.5, "runs": 1, "predicted": 2.0,
                     "items": [(4.0, 1, 1.0), (4.0, 1, 1.0), (0.5, 1, None)]}
    assert second == {"measured": 10.0, "runs": 2, "predicted": 3.0, "items": [(7.0, 1, 1.0), (1.5, 2, 2.0)]}
    assert costliest([first, second]) == 1


def test_without_runs_predictions_decide() -> None:
    found = times(_document(events=[]))
    assert [t["measured"] for t in found] == [None, None] and costliest(found) == 1
    assert costliest([]) == 0


def test_times_that_viz_measured_are_those_of_its_steps() -> None:
    document = _document(events=[])
    document["programs"][0]["items"] = [{**i, "seconds": 0.25} for i in document["programs"][0]["items"]]
    first, second = times(document)
    assert first["measured"] == 0.75 and first["runs"] == 0 and first["items"][0] == (0.25, 0, 1.0)
    assert second["measured"] is None


def test_a_trace_of_a_run_is_measured_and_a_tensors_program_predicted(four: Path) -> None:
    document = viz.page.read_trace(four)
    found = times(document)
    kernels = sum(e[4] for e in document["events"] if e[0] in ("kernel", "copy") and e[9])
    assert sum(t["measured"] or 0 for t in found) >= kernels * (1 - 1e-9)
    captured = next(n for n, p in enumerate(document["programs"]) if p["captured"])
    assert found[captured]["runs"] >= 2
    with (Tensor([1.0, 2.0]) + 1).viz(run=False) as view:
        (only,) = times(view.document)
    assert only["measured"] is None and only["predicted"] > 0


@pytest.mark.parametrize("run", [True, False])
def test_the_page_holds_the_times(run: bool) -> None:
    x = Tensor([1.0, 2.0]).realize()
    with (x + 1).viz(run=run) as view:
        document = viz.page.folded(view.document)
    assert document["costliest"] == 0
    (item,) = document["programs"][0]["times"]["items"]
    assert (item[0] is not None) == run and item[2] > 0

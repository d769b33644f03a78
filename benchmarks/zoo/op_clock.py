"""Times of an op on a GPU, by its events: of calls, and of the kernels of these calls, replayed as a CUDA graph.

Calls include what Python takes to enqueue them; a graph of several calls does not. Inputs are the same each time, so
that small ones are in the GPU's cache, for all systems.
"""
from __future__ import annotations

import functools
import math
import statistics
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch

Call = Callable[[], Any]
WARM_UP: Final = 5  # calls
SAMPLES: Final = 5  # of each system, in turn; the result is their median
LONG: Final = 5e-3  # seconds of a sample
MOST: Final = 1000  # calls of a sample
INSIDE: Final = 20  # calls of a CUDA graph
ENOUGH: Final = 2.0  # seconds after which no further sample of each begins
LEAST: Final = 1e-9  # seconds of a call


def sample(call: Call, count: int) -> float:
    """Return the GPU's mean seconds of ``count`` calls."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(count):
        call()
    end.record()
    end.synchronize()
    return max(float(begin.elapsed_time(end)) / 1e3 / count, LEAST)


def repeats(seconds: float, wanted: float, most: int) -> int:
    """Return how many calls of ``seconds`` take the ``wanted`` time; at least 1."""
    return min(max(math.ceil(wanted / seconds), 1), most)


def in_turn(calls: Mapping[str, Call]) -> dict[str, float]:
    """Return the median seconds of a call for each system, from samples in turn after a warm-up."""
    counts = {}
    for name, call in calls.items():
        for _ in range(WARM_UP):
            call()
        torch.cuda.synchronize()
        counts[name] = repeats(sample(call, 3), LONG, MOST)
    samples: dict[str, list[float]] = {name: [] for name in calls}
    begin = time.perf_counter()
    while len(samples[next(iter(calls))]) < SAMPLES:
        for name, call in calls.items():
            samples[name].append(sample(call, counts[name]))
        if time.perf_counter() - begin > ENOUGH:
            break
    return {name: statistics.median(found) for name, found in samples.items()}


@functools.cache
def side_stream() -> Any:
    """Return the stream of all captures: libraries keep a workspace for each stream."""
    return torch.cuda.Stream()


def captured(call: Call, count: int, stream: Any) -> Any:
    """Return the CUDA graph of ``count`` calls, which are captured on ``stream`` after a warm-up there.

    Raises:
        RuntimeError: if the calls cannot be captured (they wait for the GPU), or launch nothing.
    """
    before = torch.cuda.current_stream()
    stream.wait_stream(before)
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    before.wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            with torch.cuda.graph(graph, stream=stream):
                for _ in range(count):
                    call()
        finally:
            torch.cuda.set_stream(before)  # a capture that fails leaves its own
    if any("graph is empty" in str(w.message).lower() for w in warned):
        raise RuntimeError("no kernel")
    return graph


def timed(calls: Mapping[str, Call], capture: bool = True) -> dict[str, Any]:
    """Return fields of a row: ``call_seconds`` by system, and ``seconds``, of the kernels if all can be captured.

    ``timed`` says what ``seconds`` are of, "graph" or "calls"; ``not_captured`` says why there is no graph.
    """
    by_call = in_turn(calls)
    row: dict[str, Any] = {"timed": "calls", "call_seconds": by_call, "seconds": by_call}
    if not capture:
        return row
    stream, graphs, counts = side_stream(), dict[str, Any](), dict[str, int]()
    for name, call in calls.items():
        counts[name] = repeats(by_call[name], LONG, INSIDE)
        try:
            graphs[name] = captured(call, counts[name], stream)
        except Exception as error:
            row["not_captured"] = f"{name}: {type(error).__name__}: {error}".replace("\n", " ")[:200]
            torch.cuda.synchronize()  # raises if the GPU is not usable any more
            return row
    replayed = in_turn({name: graph.replay for name, graph in graphs.items()})
    row.update(timed="graph", seconds={name: max(t / counts[name], LEAST) for name, t in replayed.items()})
    return row

"""ONNX operators that contain graphs, and operators on sequences, optional values and text.

Conditions and counts of control flow are read on the host, so each path is a straight-line program. Sequences are
Python lists, optional values may be None, and texts are host arrays of Python strings.

``RegexFullMatch`` is missing on purpose: Python's regular expressions can take exponential time on untrusted input.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from tinsmith.core.dtypes import dtypes
from tinsmith.core.errors import DTypeError, FileFormatError
from tinsmith.nn.onnx.values import Declared, axis_of, constant, ints, known, number
from tinsmith.tensor.tensor import Tensor

Scope = Mapping[str, Any]


class Subgraph(Protocol):
    """A graph that is an attribute of a control-flow operator: the part of ``OnnxGraph`` that the operators use."""

    outputs: list[str]
    declared: Sequence[Declared]

    def run(self, values: Sequence[Any], scope: Scope) -> list[Any]: ...


def If(condition: Tensor, then_branch: Subgraph, else_branch: Subgraph, scope: Scope) -> Any:
    return tuple((then_branch if number(condition) else else_branch).run([], scope))


def _stacked(values: list[Tensor], axis: int = 0) -> Tensor:
    return values[0].stack(*values[1:], dim=axis)


def Loop(count: Any, condition: Any, *carried: Any, body: Subgraph, scope: Scope) -> Any:
    most = None if count is None else int(number(count))
    going = condition is None or bool(number(condition))
    states, n = list(carried), 0
    collected: list[list[Tensor]] = [[] for _ in body.outputs[1 + len(states) :]]
    while going and (most is None or n < most):
        again, *out = body.run([constant(np.int64(n)), constant(np.bool_(True)), *states], scope)
        states = out[: len(states)]
        for values, value in zip(collected, out[len(states) :]):
            values.append(value)
        going, n = bool(number(again)), n + 1
    return (*states, *(_stacked(values) if values else _without_rows(kind)
                       for values, kind in zip(collected, body.declared[1 + len(states) :])))


def _without_rows(kind: Declared) -> Tensor:
    """Return what a loop without turns collects: no rows of the declared shape; a size that has a name is 0."""
    return Tensor.empty(0, *(s if isinstance(s, int) else 0 for s in kind.shape), dtype=kind.dtype or dtypes.float32)


def Scan(*given: Any, body: Subgraph, scope: Scope, num_scan_inputs: int, scan_input_axes: Any = None,
         scan_input_directions: Any = None, scan_output_axes: Any = None, scan_output_directions: Any = None,
         directions: Any = None, opset: int = 9) -> Any:
    if opset < 9:  # batches come first, and a length before all inputs
        given = given[1:]
        states, runs = list(given[: len(given) - num_scan_inputs]), list(given[len(given) - num_scan_inputs :])
        batches = [Scan(*(v[n] for v in (*states, *runs)), body=body, scope=scope, num_scan_inputs=num_scan_inputs,
                        scan_input_directions=directions) for n in range(runs[0].shape[0])]
        return tuple(_stacked(list(values)) for values in zip(*batches))
    count = len(given) - num_scan_inputs
    states, runs = list(given[:count]), list(given[count:])
    axes = [axis_of(a, t.ndim) for a, t in zip(scan_input_axes or [0] * len(runs), runs)]
    back = scan_input_directions or [0] * len(runs)
    outputs: list[list[Tensor]] = [[] for _ in body.outputs[count:]]
    steps = runs[0].shape[axes[0]]
    for n in range(steps):
        now = [t[(slice(None),) * a + ((steps - 1 - n) if b else n,)] for t, a, b in zip(runs, axes, back)]
        out = body.run([*states, *now], scope)
        states = out[:count]
        for values, value in zip(outputs, out[count:]):
            values.append(value)
    ahead = scan_output_directions or [0] * len(outputs)
    places = scan_output_axes or [0] * len(outputs)
    return (*states, *(_stacked(v[::-1] if a else v, axis_of(p, v[0].ndim + 1))
                       for v, a, p in zip(outputs, ahead, places)))


def SequenceEmpty(dtype: int = 1) -> list[Tensor]:
    return []


def SequenceConstruct(*xs: Tensor) -> list[Tensor]:
    return list(xs)


def SequenceInsert(sequence: list[Tensor], x: Tensor, position: Any = None) -> list[Tensor]:
    out = list(sequence)
    out.insert(len(out) if position is None else axis_of(int(number(position)), len(out)), x)
    return out


def SequenceErase(sequence: list[Tensor], position: Any = None) -> list[Tensor]:
    out = list(sequence)
    del out[-1 if position is None else int(number(position))]
    return out


def SequenceAt(sequence: list[Tensor], position: Any) -> Tensor:
    return sequence[int(number(position))]


def SequenceLength(sequence: list[Tensor]) -> Tensor:
    return constant(np.int64(len(sequence)))


def ConcatFromSequence(sequence: list[Tensor], axis: int, new_axis: int = 0) -> Tensor:
    first, *rest = sequence
    return first.stack(*rest, dim=axis) if new_axis else first.cat(*rest, dim=axis)


def SplitToSequence(x: Tensor, split: Any = None, axis: int = 0, keepdims: int = 1) -> list[Tensor]:
    at = axis_of(axis, x.ndim)
    if split is None:
        parts = list(x.split(1, at))
        return parts if keepdims else [p.squeeze(at) for p in parts]
    sizes = ints(split)
    return list(x.split(sizes[0] if isinstance(split, Tensor) and split.ndim == 0 else sizes, at))


def Optional(x: Any = None, type: Any = None) -> Any:
    return x


def OptionalHasElement(x: Any = None) -> Tensor:
    return constant(np.bool_(x is not None))


def OptionalGetElement(x: Any) -> Any:
    return x

_MOST = 1 << 28  # columns of counts


def _text(op: str, x: Any) -> Any:
    if not isinstance(x, np.ndarray):
        raise DTypeError(op, f"takes text, not {type(x).__name__}", "an array of strings")
    return x


def StringConcat(x: Any, y: Any) -> Any:
    return np.asarray(_text("StringConcat", x) + _text("StringConcat", y), object)


def StringNormalizer(x: Any, case_change_action: str = "NONE", is_case_sensitive: int = 0,
                     stopwords: Sequence[str] = (), locale: str = "") -> Any:
    """Words that are none of ``stopwords``, in another case; one empty word if none is left."""
    lower: Callable[[str], str] = str.lower
    folded = str if is_case_sensitive else lower
    change = {"LOWER": lower, "UPPER": str.upper}.get(case_change_action, str)
    left_out = {folded(w) for w in stopwords}
    words = [change(w) for w in _text("StringNormalizer", x).reshape(-1).tolist() if folded(w) not in left_out] or [""]
    return np.array(words, object).reshape(*[1] * (x.ndim - 1), -1)


def StringSplit(x: Any, delimiter: str | None = None, maxsplit: int | None = None) -> tuple[Any, Tensor]:
    """ONNX ``StringSplit``: the parts of each text along a new last axis, padded with "", and their counts."""
    given = _text("StringSplit", x)
    parts = [t.split(delimiter or None, -1 if maxsplit is None else maxsplit) for t in given.reshape(-1).tolist()]
    longest = max(map(len, parts), default=0)
    rows = [p + [""] * (longest - len(p)) for p in parts]
    counts = np.array([len(p) for p in parts], np.int64).reshape(given.shape)
    return np.array(rows, object).reshape(*given.shape, longest), constant(counts)


def TfIdfVectorizer(x: Any, *, max_gram_length: int, max_skip_count: int, min_gram_length: int, mode: str,
                    ngram_counts: Sequence[int], ngram_indexes: Sequence[int], pool_int64s: Sequence[int] = (),
                    pool_strings: Sequence[str] = (), weights: Sequence[float] = ()) -> Tensor:
    """Count each n-gram of the pool in each row, with gaps up to ``max_skip_count + 1``.

    Every window of a row is compared with every n-gram of its length, on the device; words are numbers before that.
    """
    pool: Any = list(pool_int64s)
    if pool_strings:
        numbers = {word: n for n, word in enumerate(dict.fromkeys(pool_strings))}
        pool = [numbers[word] for word in pool_strings]
        text = _text("TfIdfVectorizer", x)
        x = constant(np.array([numbers.get(t, -1) for t in text.reshape(-1).tolist()], np.int64).reshape(text.shape))
    width = max(ngram_indexes, default=-1) + 1
    if not 0 <= width <= _MOST or min(ngram_indexes, default=0) < 0:
        raise FileFormatError("TfIdfVectorizer", f"counts of {width} columns", "indices from 0 on")
    rows = x if x.ndim > 1 else x.unsqueeze(0)
    total, place = Tensor.zeros(rows.shape[0], len(ngram_indexes), dtype=dtypes.int32), 0
    for n, (begin, end) in enumerate(zip(ngram_counts, [*ngram_counts[1:], len(pool)]), 1):
        grams = [pool[p : p + n] for p in range(begin, end, n)]
        for skip in range(max_skip_count + 1 if n > 1 else 1):
            windows = rows.shape[1] - (n - 1) * (skip + 1)
            if grams and min_gram_length <= n <= max_gram_length and windows > 0:
                seen = Tensor.stack(*(rows[:, k * (skip + 1) : k * (skip + 1) + windows] for k in range(n)), dim=-1)
                same = (seen.unsqueeze(2) == constant(np.array(grams, np.int64))).all(-1).sum(1)
                total = total + same.pad((None, (place, len(ngram_indexes) - place - len(grams)))).cast(dtypes.int32)
        place += len(grams)
    weight = constant(np.array(weights or [1.0] * len(ngram_indexes), np.float32))
    found = {"TF": total.float(), "IDF": (total > 0).where(weight, 0.0)}.get(mode, total.float() * weight)
    columns = constant(np.array(ngram_indexes, np.int64)).expand(found.shape)
    out: Tensor = Tensor.zeros(found.shape[0], width).scatter_reduce(1, columns, found, "sum")
    return out if x.ndim > 1 else out.squeeze(0)


# Of the domain ai.onnx.ml
def LabelEncoder(x: Any, *, default_float: float = -0.0, default_int64: int = -1, default_string: str = "_Unused",
                 default_tensor: Tensor | None = None, **named: Any) -> Any:
    """Return the value of each key, by a list of keys and one of values."""
    keys, values = (next((named[k] for k in named if k.startswith(kind)), ()) for kind in ("keys_", "values_"))
    keys, values = (known(v).reshape(-1).tolist() if isinstance(v, Tensor) else
                    v.reshape(-1).tolist() if isinstance(v, np.ndarray) else list(v) for v in (keys, values))
    table = dict(zip(keys, values))
    kind = next((k.removeprefix("values_") for k in named if k.startswith("values_")), "strings")
    default: Any = {"floats": default_float, "int64s": default_int64, "strings": default_string}.get(kind)
    dtype: Any = {"floats": np.float32, "int64s": np.int64}.get(kind, object)
    if isinstance(named.get("values_tensor"), Tensor):
        dtype = named["values_tensor"].dtype.numpy
        default = known(default_tensor).reshape(-1)[0].item() if default_tensor is not None else dtype(-1)
    given = x if isinstance(x, np.ndarray) else known(x)
    out = np.array([table.get(k, default) for k in given.reshape(-1).tolist()], dtype).reshape(given.shape)
    return out if dtype is object else constant(out)


def ArrayFeatureExtractor(x: Tensor, y: Tensor) -> Tensor:
    out: Tensor = x[..., y.reshape(-1)]
    return out if x.ndim > 1 else out.unsqueeze(0)


def Binarizer(x: Tensor, threshold: float = 0.0) -> Tensor:
    out: Tensor = (x > threshold).cast(x.dtype)
    return out

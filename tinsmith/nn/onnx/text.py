"""Text operators, on host arrays of Python strings, and operators that convert text to numbers.

``RegexFullMatch`` is not here: Python's expressions may take a time exponential in what a stranger's file holds.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tinsmith.core.dtypes import dtypes
from tinsmith.core.errors import DTypeError, FileFormatError
from tinsmith.nn.onnx.values import constant, known
from tinsmith.tensor.tensor import Tensor

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
    """The value of each key, by a list of keys and one of values."""
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

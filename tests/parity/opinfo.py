"""PyTorch's own samples of its operators (OpInfo): ``python -m tests.parity.opinfo``.

Values, dtypes and shapes of every result are compared to eager PyTorch's, and gradients of a weighted sum of the float
results. The test suite runs as many random ones as ``OPINFO`` says.
"""
from __future__ import annotations

import argparse
import random
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from tests.parity.helpers import torch
from tinsmith import Tensor
from tinsmith.core.errors import GradientError

KINDS = (torch.float32, torch.int64, torch.bool, torch.bfloat16)
DRAWS = {"bernoulli", "empty", "empty_like", "multinomial", "new_empty", "rand_like", "randint_like", "randn",
         "randn_like"}  # no values to compare
OTHERS = {  # the method of that name is another function, or takes its arguments in another order, by its documentation
    "linalg.cross": "is torch.cross", "linalg.diagonal": "is torch.diagonal", "linalg.norm": "is torch.norm",
    "linalg.vander": "is torch.vander", "sparse.mm": "is mm of dense matrices", "gradient": "is autograd",
    "masked": "has no masks", "where": "belongs to the condition", "nn.functional.embedding": "belongs to the indices",
    "nn.functional.linear": "takes weights (in, out)", "nn.functional.dropout": "follows Tensor.training",
    "normal": "takes a shape", "uniform": "takes a shape", "randint": "takes a shape", "svd": "is linalg.svd",
    "fft.hfft": "takes pairs", "fft.irfft": "takes pairs", "fft.irfft2": "takes pairs", "fft.irfftn": "takes pairs",
    "max reduction_with_dim": "gives values", "min reduction_with_dim": "gives values",
    "nn.functional.unfold": "is the method unfold", "linalg.lstsq": "gives solution and residuals",
    "lu": "is linalg.lu", "linalg.pinv singular": "takes a matrix",
}
SIGNS = {"linalg.svd", "linalg.eigh", "qr", "linalg.qr"}  # vectors up to their signs
OPEN = {  # known differences that are no decision: the line of issue 23, or what is left to do
    "gather": "empty indices",
    "atleast_1d": "lists", "linalg.solve_triangular": "empty", "randint_like": "floats",
    "masked_fill": "numbers that bool cannot hold are refused",
    "linalg.lu": "rectangular", "stft": "return_complex=False", "matrix_exp": "16-bit floats",
    "addbmm": "alpha=0.5 of integers", "addmv": "alpha=0.5 of integers", "baddbmm": "alpha=0.5 of integers",
    "addr": "bool", "nn.functional.hardtanh": "bounds of integers", "tensordot": "axes of size 1",
    "atleast_2d": "lists", "atleast_3d": "lists",
}
WIDER = {"nn.functional.cross_entropy"}  # float32 of 16-bit logits
TRIANGLES = {"cholesky_inverse", "cholesky_solve"}  # PyTorch's gradient fills the triangle that is not read
TIES = {"sort", "topk", "kthvalue", "mode", "median", "nanmedian"}  # of equal elements, any
LOOSE = {torch.bfloat16: (2e-2, 2e-2), torch.float32: (2e-4, 2e-5)}


class Case(NamedTuple):
    """One sample: its operator, dtype and number."""

    op: Any
    kind: Any
    number: int

    def __str__(self) -> str:
        """The operator, its variant, the dtype and the number."""
        variant = f" ({self.op.variant_test_name})" if self.op.variant_test_name else ""
        return f"{self.op.name}{variant} {str(self.kind).removeprefix('torch.')} {self.number}"


def operators() -> list[Any]:
    """Return the operators that have a method of the same name."""
    from torch.testing._internal.common_methods_invocations import op_db  # seconds: only where it is needed

    return [op for op in op_db if hasattr(Tensor, method(op.name)) and not any(
        name in OTHERS for name in (op.name, op.name.split(".")[0], f"{op.name} {op.variant_test_name}"))]


def method(name: str) -> str:
    """Return the method's name: the function's name without its module."""
    return name.split(".")[-1]


def samples(op: Any, kind: Any) -> Iterator[Any]:
    """Return the samples of an operator, the same ones in every run."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield from op.sample_inputs("cpu", kind, requires_grad=kind is torch.float32 and op.supports_autograd)


def converted(value: Any, seen: dict[int, Tensor]) -> Any:
    """Convert the tensors and dtypes in an argument from PyTorch's to Tinsmith's."""
    if isinstance(value, torch.Tensor):
        plain = value.detach().resolve_conj()
        array = plain.float().numpy() if plain.dtype is torch.bfloat16 else plain.numpy()
        mine = Tensor(array.copy(), dtype=str(value.dtype).removeprefix("torch."))
        return seen.setdefault(id(value), mine)
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        return type(value)(converted(v, seen) for v in value)
    if isinstance(value, dict):
        return {k: converted(v, seen) for k, v in value.items()}
    return tuple(value) if isinstance(value, torch.Size) else value


def flat(value: Any) -> list[Any]:
    """Return all tensors and numbers in a result."""
    if isinstance(value, dict):
        return [p for v in value.values() for p in flat(v)]
    return [p for v in value for p in flat(v)] if isinstance(value, (list, tuple)) else [value]


class Refused(Exception):
    """An error raised where PyTorch gives a value."""


def check(case: Case, sample: Any) -> bool:
    """Compare one sample; return True if there was one (PyTorch may refuse its own samples).

    Raises:
        AssertionError: for another result.
        Refused: for an error where PyTorch has none.
    """
    name = case.op.name
    everything = flat([sample.input, list(sample.args), dict(sample.kwargs)])
    if any(not_ours(v) for v in everything) or sample.kwargs.get("dropout_p"):
        return False
    wanted = theirs(case, sample)
    if wanted is None or any(isinstance(w, torch.Tensor) and w.is_complex() for w in wanted):
        return False
    seen: dict[int, Tensor] = {}
    try:
        found = ours(case, sample, seen)
        values = [f.numpy() if isinstance(f, Tensor) else f for f in found]
    except Exception as error:
        raise Refused(f"{type(error).__name__}: {error}") from error
    assert len(found) == len(wanted), f"{len(found)} results, PyTorch has {len(wanted)}"
    exact: list[Any] = []
    for n, (got, value, want) in enumerate(zip(found, values, wanted)):
        if not isinstance(want, torch.Tensor):
            assert value == want, f"{value} is not {want}"
            continue
        assert isinstance(got, Tensor), f"{got} is no tensor"
        assert got.shape == tuple(want.shape), f"shape {got.shape} is not {tuple(want.shape)}"
        assert same_dtype(got, want.dtype) or name in WIDER, f"dtype {got.dtype} is not {want.dtype}"
        if name in DRAWS or (name in TIES and n) or (name == "argsort" and not sample.kwargs.get("stable")):
            continue
        if not near(value, want.detach(), name in SIGNS):
            exact = exact or wide(case, sample) or []
            assert exact, apart("values", value, want)
            judged(value, want.detach(), exact[n].detach(), "values", name in SIGNS)
    if case.kind is torch.float32 and name not in DRAWS | SIGNS | TIES | TRIANGLES:
        gradients(case, sample, found, wanted, seen)
    return True


def not_ours(value: Any) -> bool:
    """Return True if an argument has a type that Tinsmith lacks: complex, sparse, a generator, a memory format."""
    if isinstance(value, torch.Tensor):
        return value.is_complex() or value.layout is not torch.strided
    return isinstance(value, (complex, torch.Generator, torch.layout, torch.memory_format)) or (
        isinstance(value, torch.dtype) and value.is_complex)


def theirs(case: Case, sample: Any) -> list[Any] | None:
    """Return PyTorch's results; None if it raises."""
    torch.manual_seed(0)
    try:
        given = sample.input.clone() if case.op.name.endswith("_") else sample.input
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return flat(case.op.op(given, *sample.args, **sample.kwargs))
    except Exception:
        return None


def ours(case: Case, sample: Any, seen: dict[int, Tensor]) -> list[Any]:
    """Return the results of the method of the same name."""
    first, args, keywords = (converted(v, seen) for v in (sample.input, list(sample.args), dict(sample.kwargs)))
    for k in ("device", "layout", "memory_format", "pin_memory"):
        keywords.pop(k, None)
    if case.op.name == "einsum":
        first, args = args[0], [first]
    if case.op.name.endswith("_"):
        first = first.clone()
    function = getattr(Tensor, method(case.op.name))
    return flat(function(first, *args, **keywords) if callable(function) else function.__get__(first))


def wide(case: Case, sample: Any) -> list[Any] | None:
    """Return the results in float64, to distinguish rounding from a wrong result."""
    def widened(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            return value.detach().double().requires_grad_(value.requires_grad)
        if isinstance(value, torch.dtype):
            return torch.float64 if value.is_floating_point else value
        if isinstance(value, dict):
            return {k: widened(v) for k, v in value.items()}
        return type(value)(map(widened, value)) if type(value) in (list, tuple) else value

    args = [widened(v) for v in (sample.input, list(sample.args), dict(sample.kwargs))]
    if case.kind not in (torch.float32, torch.bfloat16):
        return None
    return theirs(case, type(sample)(args[0], args=tuple(args[1]), kwargs=args[2]))


def same_dtype(t: Tensor, wanted: Any) -> bool:
    """Return True if the dtypes agree; any two integer dtypes do: sums and indices are int32 here and int64 there."""
    if t.dtype.is_float:
        return str(np.dtype(t.dtype.numpy)) == str(wanted).removeprefix("torch.")
    return t.dtype.is_bool is (wanted is torch.bool) and not wanted.is_floating_point


def doubles(value: Any, signs: bool = False) -> Any:
    array = value.detach().double().numpy() if isinstance(value, torch.Tensor) else np.asarray(value).astype(np.float64)
    return np.abs(array) if signs else array


def near(value: Any, want: Any, signs: bool = False, looser: float = 1) -> bool:
    """Return True if ``value`` equals ``want`` within the tolerance of its dtype."""
    rtol, atol = LOOSE.get(want.dtype, (1e-5, 1e-8)) if want.is_floating_point() else (0, 0)
    return np.allclose(doubles(value, signs), doubles(want, signs), rtol * looser, atol * looser, equal_nan=True)


def judged(value: Any, want: Any, exact: Any, what: str, signs: bool = False) -> None:
    """Accept a value whose distance to the float64 result is within a factor of PyTorch's."""
    a, b, c = (doubles(v, signs) for v in (value, want, exact))
    with np.errstate(invalid="ignore"):
        same = (a == c) | (a == b) | (np.isnan(a) & (np.isnan(b) | np.isnan(c)))
        rest = np.where(same, 0, np.abs(a - c))
        own = np.abs(np.where(np.isfinite(b) & np.isfinite(c), b - c, 0)).max(initial=0)
    scale = np.abs(np.where(np.isfinite(c), c, 0)).max(initial=0)
    least = {torch.bfloat16: 2.0 ** -7, torch.float32: 2.0 ** -19}.get(want.dtype, 1e-12)
    assert (rest <= 8 * own + least * scale).all(), apart(what, value, want)


def apart(what: str, value: Any, want: Any) -> str:
    return f"{what}: {np.asarray(value).reshape(-1)[:6]} is not {want.detach().reshape(-1)[:6].tolist()}"


def gradients(case: Case, sample: Any, found: list[Any], wanted: list[Any], seen: dict[int, Tensor]) -> None:
    """Check equal gradients with respect to every float tensor among the arguments."""
    pairs = [(f, w) for f, w in zip(found, wanted) if isinstance(w, torch.Tensor) and w.requires_grad]
    targets = leaves(sample)
    if not pairs or not targets:
        return
    torch.manual_seed(1)
    seeds = [torch.randn(w.shape) for _, w in pairs]
    want = torch.autograd.grad([w for _, w in pairs], targets, seeds, allow_unused=True)
    asked = [(t, w) for t, w in zip(targets, want) if w is not None]
    try:
        total = sum((f * Tensor(s.numpy().copy())).sum() for (f, _), s in zip(pairs, seeds))
        values = [g.numpy() for g in total.gradient(*(seen[id(t)] for t, _ in asked))]
    except GradientError as error:  # nothing flows: zeros in PyTorch
        if any(w.abs().max() for _, w in asked if w.numel()):
            raise Refused(f"gradient: {error}") from error
        return
    except Exception as error:
        raise Refused(f"gradient: {type(error).__name__}: {error}") from error
    for n, (value, (_, w)) in enumerate(zip(values, asked)):
        assert value.shape == tuple(w.shape), f"gradient of shape {value.shape}, not {tuple(w.shape)}"
        if not near(value, w, looser=5):
            exact = slopes_in_float64(case, sample, seeds)
            assert exact is not None, apart("gradient", value, w)
            judged(value, w, exact[n], f"gradient {n}")


def leaves(sample: Any) -> list[Any]:
    """Return the arguments that have gradients."""
    found = [t for t in flat([sample.input, list(sample.args), dict(sample.kwargs)])
             if isinstance(t, torch.Tensor) and t.requires_grad and t.is_leaf]
    return list({id(t): t for t in found}.values())


def slopes_in_float64(case: Case, sample: Any, seeds: list[Any]) -> list[Any] | None:
    """Return the gradients in float64."""
    def widened(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            return known.setdefault(id(value), value.detach().double().requires_grad_(value.requires_grad))
        if isinstance(value, dict):
            return {k: widened(v) for k, v in value.items()}
        return type(value)(map(widened, value)) if type(value) in (list, tuple) else value

    known: dict[int, Any] = {}
    args = [widened(v) for v in (sample.input, list(sample.args), dict(sample.kwargs))]
    found = theirs(case, type(sample)(args[0], args=tuple(args[1]), kwargs=args[2]))
    outs = [w for w in found or [] if isinstance(w, torch.Tensor) and w.requires_grad]
    if len(outs) != len(seeds):
        return None
    got = torch.autograd.grad(outs, [known[id(t)] for t in leaves(sample)], [s.double() for s in seeds],
                              allow_unused=True)
    return [g for g in got if g is not None]


def shown(sample: Any) -> str:
    """Return a sample's arguments as one line of text."""
    listed = [f"{tuple(v.shape)}" if isinstance(v, torch.Tensor) else repr(v)
              for v in flat([sample.input, *sample.args])]
    return " ".join(f"{', '.join(listed)} {sample.kwargs}".split())[:160]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.parity.opinfo", description=__doc__)
    parser.add_argument("ops", nargs="?", default="", help="names with commas; all if none is given")
    parser.add_argument("--each", type=int, default=10 ** 9, help="samples of each operator and dtype")
    parser.add_argument("--first", type=int, default=0, help="number of the first sample of each")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so long")
    given = parser.parse_args()
    begin, count, bad = time.monotonic(), 0, Counter[str]()
    for op in operators():
        for kind in KINDS:
            if kind not in op.dtypes or time.monotonic() - begin > given.seconds or (
                    given.ops and op.name not in given.ops.split(",")):
                continue
            for case, sample in chosen(op, kind, given.first, given.each):
                try:
                    count += check(case, sample)
                except (AssertionError, Refused) as error:
                    count += 1
                    bad[op.name] += 1
                    text = " ".join(str(error).split())[:300]
                    print(f"{type(error).__name__} | {case} | {shown(sample)} | {text}", flush=True)
                except Exception:
                    print(f"--- {case}", traceback.format_exc(limit=-4), sep="\n", flush=True)
    print(f"opinfo: {count} samples, {sum(bad.values())} failed: {dict(bad)}")
    return 1 if bad else 0


def chosen(op: Any, kind: Any, first: int, each: int) -> Iterator[tuple[Case, Any]]:
    """Return some of an operator's samples; none if it has none of this dtype on this machine."""
    try:
        for number, sample in enumerate(samples(op, kind)):
            if first <= number < first + each:
                yield Case(op, kind, number), sample
    except (RuntimeError, TypeError, ValueError) as error:
        print(f"no more samples of {op.name} {kind}: {error}", flush=True)


if __name__ == "__main__":
    sys.exit(main())

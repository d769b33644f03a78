"""PyTorch's names: each is a method or an error; special values, shapes, dtypes; in-place forms."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tests.parity.helpers import SPECIAL, random, same, torch
from tinsmith import Tensor, dtypes, nn
from tinsmith.core.errors import KeywordError
from tinsmith.core.suggestions import _ELSEWHERE, _NEEDLESS, _PYTORCH
from tinsmith.nn.optim import lr_scheduler
from tinsmith.tensor.names import ABSENT

X, M = random(3, 4, 5), random(4, 5)
I, PLACES = np.array([[3, 0, 2], [1, 1, 5]]), np.array([2, 0, 2])
SHAPES = [(), (0,), (1,), (3, 1, 2), (2, 0, 3)]
UNARY = (
    "erfc",
    "sinc",
    "frac",
    "deg2rad",
    "lgamma",
    "digamma",
    "sgn",
    "signbit",
    "isneginf",
    "isposinf",
    "nan_to_num",
    "fix",
    "absolute",
    "negative",
    "arctan",
    "arcsinh",
    "positive",
)
BINARY = (
    "atan2",
    "hypot",
    "xlogy",
    "fmax",
    "fmin",
    "logaddexp2",
    "logical_and",
    "logical_or",
    "logical_xor",
    "remainder",
    "heaviside",
    "true_divide",
)


@pytest.mark.parametrize("name", [*UNARY, *BINARY])
def test_special_values_shapes_and_dtypes(name: str) -> None:
    def call(*x: Any) -> Any:
        return getattr(x[0], name)(*x[1:])

    special = (
        SPECIAL[abs(SPECIAL) < 1e3] if name in ("sinc", "remainder") else SPECIAL
    )  # beyond, pi x is rounded differently
    if name in ("sgn",):
        special = special[~np.isnan(special)]
    both = (special,) if name in UNARY else (special[:, None], special[None])
    if name != "heaviside" and name != "remainder":
        same(call, call, *both, gradients=False)
    for shape in SHAPES:
        same(
            call,
            call,
            *(random(*shape, seed=i) + 2 for i in range(len(both))),
            gradients=name not in ("sgn", "heaviside"),
        )
    for dtype, rtol in (("float16", 2e-3), ("bfloat16", 1.6e-2), ("float64", 1e-9)):
        x = [(random(3, 4, seed=i) + 2) for i in range(len(both))]
        found = call(*(Tensor(a).cast(dtype) for a in x))
        want = call(*(torch.tensor(a).to(getattr(torch, dtype)) for a in x))
        assert found.dtype is getattr(dtypes, dtype) or not found.dtype.is_float
        np.testing.assert_allclose(found.numpy().astype(np.float64), want.double().numpy(), rtol=rtol, atol=rtol)
    view = random(4, 3)
    same(
        lambda *x: call(*(t.T[1:, ::2] for t in x)),
        lambda *x: call(*(t.T[1:, ::2] for t in x)),
        *(view + 2 + i for i in range(len(both))),
        gradients=name not in ("sgn", "heaviside"),
    )


IN_PLACE = {
    name: name.rstrip("_")
    for name in dir(Tensor)
    if name.endswith("_") and not name.startswith("_") and hasattr(Tensor, name[:-1]) and hasattr(torch.Tensor, name)
}
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    **{n: (M, M.T.copy()) for n in ("addmm",)},
    **dict.fromkeys(
        [
            "add",
            "sub",
            "mul",
            "div",
            "divide",
            "true_divide",
            "multiply",
            "subtract",
            "pow",
            "fmod",
            "remainder",
            "floor_divide",
            "atan2",
            "arctan2",
            "copysign",
            "hypot",
            "heaviside",
            "float_power",
        ],
        (M * 2,),
    ),
    "addcmul": (M, M),
    "xlogy": (abs(M),),
    "addcdiv": (M, M),
    "lerp": (M, 0.3),
    "clamp": (-1, 1),
    "clip": (-1, 1),
    "clamp_min": (0.5,),
    "clamp_max": (0.5,),
    "masked_fill": (M > 0, 2.0),
    "masked_scatter": (M > 0, M),
    "cumsum": (0,),
    "cumprod": (1,),
    "ldexp": (M,),
    "leaky_relu": (0.2,),
    "index_fill": (1, PLACES, 2.0),
    "index_add": (1, PLACES, M[:, :3]),
    "index_copy": (1, PLACES[:2], M[:, :2]),
    "index_reduce": (1, PLACES, M[:, :3], "prod"),
    "scatter": (1, I[:, :2] % 5, M),
    "scatter_add": (1, I[:, :2] % 5, M),
    "scatter_reduce": (1, I[:, :2] % 5, M, "sum"),
    "put": (PLACES[:2], M[0, :2]),
    "index_put": ((PLACES[:2],), M[0]),
    "addmv": (M, M[0]),
    "addr": (M[:, 0], M[0]),
    "addbmm": (X[:, :, :4], X),
    "baddbmm": (X, X),
    "fill": (3.0,),
    "copy": (M,),
    "bernoulli": (1.0,),
    "type": ("float32",),
    "log_normal": (0.0, 0.0),
    "normal": (2.0, 0.0),
}
INTEGERS = ("bitwise", "gcd", "lcm")


@pytest.mark.parametrize("name", sorted(IN_PLACE))
def test_in_place(name: str) -> None:
    plain = IN_PLACE[name]
    if plain in ("addbmm", "addmv", "baddbmm", "requires_grad", "addmm", "uniform"):
        return _test_in_place_products(name)
    base = (np.abs(M) % 0.8 + 0.1).astype(np.float32) if plain not in ("acosh", "arccosh") else np.abs(M) + 1
    given = ARGUMENTS.get(plain, ())
    if plain.startswith(INTEGERS):
        base, given = (abs(M) * 9).astype(np.int64), () if plain == "bitwise_not" else ((abs(M) * 5).astype(np.int64),)
    if plain == "float_power":
        base, given = base.astype(np.float64), (2.0,)

    def ours(x: Any) -> Any:
        return Tensor(x) if isinstance(x, np.ndarray) else tuple(map(ours, x)) if isinstance(x, tuple) else x

    def theirs(x: Any) -> Any:
        return torch.tensor(x) if isinstance(x, np.ndarray) else tuple(map(theirs, x)) if isinstance(x, tuple) else x

    x, t = Tensor(base), torch.tensor(base)
    view = x.reshape(-1)
    assert getattr(x, name)(*map(ours, given)) is x
    if name not in ("is_param_", "to_"):
        getattr(t, name)(*map(theirs, given))
    np.testing.assert_allclose(x.numpy(), t.numpy(), rtol=1e-4, atol=1e-5)
    assert np.array_equal(view.numpy(), x.numpy().reshape(-1))


def _test_in_place_products(name: str) -> None:
    z, a, b = random(4, 4), random(3, 4, 5), random(3, 5, 4)
    if name == "addmm_":
        given: tuple[Any, ...] = (a[0], b[0])
    elif name == "addmv_":
        z, given = random(4), (a[0], b[0, :, 0])
    elif name == "addbmm_":
        given = (a, b)
    elif name == "baddbmm_":
        z, given = random(3, 4, 4), (a, b)
    else:
        x = Tensor(z)
        assert getattr(x, name)() is x and (name != "uniform_" or 0 <= x.min().item() <= x.max().item() < 1)
        return
    x, t = Tensor(z), torch.tensor(z)
    getattr(x, name)(*map(Tensor, given)), getattr(t, name)(*map(torch.tensor, given))
    np.testing.assert_allclose(x.numpy(), t.numpy(), rtol=1e-4, atol=1e-5)


OBSCURE = [
    "igamma_",
    "igammac_",
    "index",
    "new_empty_strided",
    "as_subclass",
    "const_data_ptr",
    "volatile",
    "output_nr",
    "name",
    "names",
    "module_load",
    "reinforce",
    "untyped_storage",
    "slice_inverse",
    "grad_dtype",
    "renorm",
]


def test_every_name_of_a_tensor_is_decided() -> None:
    """Each name of PyTorch's tensors is a method, or raises an error that names the alternative; none is both."""
    theirs = [n for n in dir(torch.Tensor) if not n.startswith("_")]
    open_ones = [
        n
        for n in theirs
        if not hasattr(Tensor, n) and n not in ABSENT and n not in OBSCURE and n not in ("grad", "data")
    ]
    assert not open_ones
    assert not [n for n in ABSENT if n in dir(Tensor)]
    for name, mend in ABSENT.items():
        with pytest.raises(AttributeError) as caught:
            getattr(Tensor([1.0]), name)
        assert mend in str(caught.value)


def _classes(module: Any, base: type) -> dict[str, type]:
    kinds = {n: t for n, t in vars(module).items() if inspect.isclass(t) and not n.startswith("_")}
    return {n: t for n, t in kinds.items() if issubclass(t, base) and t is not base}


KITS = {"nn": (torch.nn, torch.nn.Module, nn), "optim": (torch.optim, torch.optim.Optimizer, nn.optim),
        "lr_scheduler": (torch.optim.lr_scheduler, torch.optim.lr_scheduler.LRScheduler, lr_scheduler)}


@pytest.mark.parametrize("kit", KITS)
def test_every_class_is_decided(kit: str) -> None:
    """Each class of PyTorch is a class here, or raises an error that names the alternative."""
    theirs, base, ours = KITS[kit]
    for name in _classes(theirs, base):
        if name not in getattr(ours, "__all__", vars(ours)):
            with pytest.raises(AttributeError) as caught:
                getattr(ours, name)
            assert ours.ABSENT[name] in str(caught.value)
    assert not [n for n in ours.ABSENT if inspect.isclass(getattr(theirs, n, None)) and n in dir(ours)]


@pytest.mark.parametrize("name", ["special", "linalg", "fft", "nn.functional"])
def test_every_function_is_decided(name: str) -> None:
    module = importlib.import_module(f"torch.{name}")
    names = [n for n in dir(module) if not n.startswith(("_", "has_torch", "handle_torch", "assert_", "boolean_"))]
    open_ones = [n for n in names if n.islower() and callable(getattr(module, n))
                 and not hasattr(Tensor, n) and n not in ABSENT]
    assert not open_ones


def _keywords(function: Callable[..., Any]) -> list[str]:
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [n for n, p in inspect.signature(function).parameters.items() if p.kind in named][1:]


def _pairs() -> Iterator[tuple[str, list[str], Callable[..., Any], Callable[..., Any]]]:
    """Yield (name, PyTorch's keywords, our function, a call of it) for classes and functions that both have."""
    for theirs, base, ours in KITS.values():
        for name, kind in _classes(theirs, base).items():
            if inspect.isclass(own := vars(ours).get(name)) and own.__init__ is not object.__init__:
                yield name, _keywords(kind.__init__), own.__init__, own
    for name, function in vars(torch.nn.functional).items():
        if inspect.isfunction(function) and not name.startswith("_") and hasattr(Tensor, name):
            yield name, _keywords(function), getattr(Tensor, name), getattr(Tensor.ones(1), name)
    for name in ("LSTM", "GRU", "RNN"):
        yield name, _keywords(torch.nn.RNNBase.__init__)[1:], getattr(nn, name).__init__, getattr(nn, name)


def test_every_keyword_is_decided() -> None:
    """Each keyword is accepted, or raises an error that says more than the list of accepted ones."""
    pairs = list(_pairs())
    assert len(pairs) > 130
    open_ones = []
    for name, theirs, ours, call in pairs:
        taken = [n for n in inspect.signature(ours).parameters if n != "self"]
        for keyword in set(theirs) - set(taken) - _NEEDLESS:
            if {*_PYTORCH.get(keyword, ())} & {*taken}:  # another name of ours: tests/parity/test_spellings.py
                continue
            with pytest.raises(KeywordError) as caught:
                call(**{keyword: None})
            mend = caught.value.mend
            if mend == (", ".join(taken) or "no keywords") or (
                    "did you mean" in mend and keyword not in _ELSEWHERE):  # a guess by its letters
                open_ones.append(f"{name}({keyword}=): {mend}")
    assert not open_ones

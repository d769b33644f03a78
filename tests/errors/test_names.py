"""Names that do not exist: AttributeErrors and TypeErrors that say which name was meant, at the user's line."""
from __future__ import annotations

import copy
import inspect
import pickle
import pydoc
import rlcompleter
from collections.abc import Callable
from typing import Any

import pytest

import tinsmith
from tinsmith import Context, Tensor, TinyJit, dtypes, nn
from tinsmith.core.errors import ArgumentError, KeywordError, UnknownNameError
from tinsmith.nn.state import get_state_dict

ATTRIBUTES: dict[str, tuple[Any, str, str]] = {
    "dtype": (dtypes, "flaot32", "dtypes.float32"), "package": (tinsmith, "Tensr", "tinsmith.Tensor"),
    "method": (Tensor.ones(1), "softmx", "Tensor.softmax"), "function": (Tensor, "ranndn", "Tensor.randn"),
    "layer": (nn, "Linaer", "nn.Linear"), "optimizer": (nn.optim, "Adm", "nn.optim.Adam"),
    "state": (nn.state, "safe_laod", "nn.state.safe_load")}


@pytest.mark.parametrize("case", ATTRIBUTES)
def test_attributes(case: str) -> None:
    owner, name, meant = ATTRIBUTES[case]
    assert not hasattr(owner, name) and not hasattr(owner, "x") and not hasattr(owner, "_x")
    with pytest.raises(UnknownNameError, match=rf"\(test_names\.py:\d+\).*did you mean {meant}\?") as caught:
        getattr(owner, name)
    assert isinstance(pickle.loads(pickle.dumps(caught.value)), AttributeError)


KEYWORDS: dict[str, tuple[Callable[[], Any], str]] = {
    "method": (lambda: Tensor.ones(1).sum(axsi=0), "sum: no argument 'axsi'.*axis="),  # type: ignore[call-arg]
    "function": (lambda: Tensor.zeros(3, dtpe="int32"), "zeros: .*dtype="),
    "rounded once": (lambda: Tensor.ones(1).layernorm(epss=1), "layernorm: .*eps="),  # type: ignore[call-arg]
    "layer": (lambda: nn.Linear(3, 4, bais=False), "Linear: .*bias="),  # type: ignore[call-arg]
    "optimizer": (lambda: nn.optim.SGD([], momentom=1), "SGD: .*momentum="),  # type: ignore[call-arg]
    "function of a module": (lambda: nn.optim.Adam([], l=1), "Adam: .*lr="),  # type: ignore[call-arg]
    "nothing near": (lambda: Tensor.ones(1).relu(colour=1), "relu: .*no keywords"),  # type: ignore[call-arg]
    "setting": (lambda: TinyJit(abs, purne=1), "TinyJit: no argument"),  # type: ignore[call-overload]
}


@pytest.mark.parametrize("case", KEYWORDS)
def test_keywords(case: str) -> None:
    call, message = KEYWORDS[case]
    with pytest.raises(KeywordError, match=message):
        call()


def test_other_mistakes_stay_what_they_are() -> None:
    with pytest.raises(TypeError, match="positional argument"):
        Tensor.ones(1).mse_loss()  # type: ignore[call-arg]
    with pytest.raises(ArgumentError, match="did you mean DEBUG="), Context(DEBGU=1):
        pass


def test_help_completion_and_signatures() -> None:
    for thing in (tinsmith, dtypes, Tensor, nn):
        assert len(pydoc.render_doc(thing)) > 1000
    names = rlcompleter.Completer({"dtypes": dtypes, "x": Tensor.ones(1)})
    assert {names.complete("dtypes.floa", n) for n in range(3)} >= {"dtypes.float32"}
    assert str(names.complete("x.softm", 0)).startswith("x.softmax")
    assert list(inspect.signature(Tensor.sum).parameters)[:2] == ["self", "axis"]
    assert inspect.signature(nn.Linear).parameters["bias"].default is True
    assert copy.deepcopy(nn.Linear(2, 3)).weight.shape == (3, 2) and not get_state_dict(dtypes)

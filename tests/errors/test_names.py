"""Names that do not exist: AttributeErrors and TypeErrors that say which name was meant, at the user's line."""
from __future__ import annotations

import copy
import inspect
import pickle
import pydoc
import re
import rlcompleter
from collections.abc import Callable
from typing import Any

import pytest

import tinsmith
from tinsmith import Context, Device, Tensor, TinyJit, Variable, dtypes, nn
from tinsmith.core.errors import ArgumentError, KeywordError, UnknownNameError
from tinsmith.nn.state import get_state_dict

ATTRIBUTES: dict[str, tuple[Any, str, str]] = {
    "dtype": (dtypes, "flaot32", "dtypes.float32"), "package": (tinsmith, "Tensr", "tinsmith.Tensor"),
    "method": (Tensor.ones(1), "softmx", "Tensor.softmax"), "function": (Tensor, "ranndn", "Tensor.randn"),
    "layer": (nn, "Linaer", "nn.Linear"), "optimizer": (nn.optim, "Adm", "nn.optim.Adam"),
    "state": (nn.state, "safe_laod", "nn.state.safe_load"), "case": (nn.optim, "adam", "nn.optim.Adam"),
    "lower layer": (nn.layers, "linear", "nn.layers.Linear")}


@pytest.mark.parametrize("case", ATTRIBUTES)
def test_attributes(case: str) -> None:
    owner, name, meant = ATTRIBUTES[case]
    assert not hasattr(owner, name) and not hasattr(owner, "x") and not hasattr(owner, "_x")
    with pytest.raises(UnknownNameError, match=rf"\(test_names\.py:\d+\).*did you mean {meant}\?") as caught:
        getattr(owner, name)
    assert not re.search(r"\bin _|\._", str(caught.value)), "a name of ours that nobody typed"
    assert isinstance(pickle.loads(pickle.dumps(caught.value)), AttributeError)


KEYWORDS: dict[str, tuple[Callable[[], Any], str]] = {
    "method": (lambda: Tensor.ones(1).sum(axsi=0), "sum: no argument 'axsi'.*axis="),  # type: ignore[call-arg]
    "function": (lambda: Tensor.zeros(3, dtpe="int32"), "zeros: .*dtype="),
    "rounded once": (lambda: Tensor.ones(1).layernorm(epss=1), "layernorm: .*eps="),  # type: ignore[call-arg]
    "layer": (lambda: nn.Linear(3, 4, bais=False), "Linear: .*bias="),  # type: ignore[call-arg]
    "optimizer": (lambda: nn.optim.SGD([], momentom=1), "SGD: .*momentum="),  # type: ignore[call-arg]
    "function of a module": (lambda: nn.optim.Adam([], l=1), "Adam: .*lr="),  # type: ignore[call-arg]
    "another library's": (lambda: nn.optim.Adam([], learning_rate=1), r"Adam: .*did you mean lr=\?"),  # type: ignore[call-arg]
    "Keras's": (lambda: nn.optim.LAMB([], beta_1=1), r"LAMB: .*did you mean b1=\?"),  # type: ignore[call-arg]
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


def test_tab_shows_what_is_meant_for_users() -> None:
    for module in (tinsmith, nn, nn.optim, nn.state, nn.layers):
        shown = [n for n in dir(module) if not n.startswith("__")]
        homes = {getattr(getattr(module, n), "__module__", "tinsmith") for n in shown}
        assert {home.partition(".")[0] for home in homes} == {"tinsmith"}
        assert not {"Any", "ArgumentError", "DType", "annotations", "guide", "np", "unknown", "core"} & {*shown}
    assert {"Tensor", "TinyJit", "dtypes", "nn"} <= {*dir(tinsmith)} and {"Adam", "SGD"} <= {*dir(nn.optim)}
    names = rlcompleter.Completer({"nn": nn, "tinsmith": tinsmith})
    assert names.complete("nn.optim.A", 0) and not names.complete("nn.optim.Arg", 0)
    assert tinsmith.nn is nn and "nn" in vars(tinsmith)


MEMBERS: dict[str, Callable[[], Any]] = {
    "variable": lambda: Variable("v", 1, 10), "bound": lambda: Variable("v", 1, 10).bind(3),
    "tensor": lambda: Tensor([[1.0]]),  # a line of numbers has no mT
    "node": lambda: Tensor([1.0]).sum().uop, "jit": lambda: TinyJit(abs), "layer": lambda: nn.BatchNorm(2),
    "schedule": lambda: (Tensor([1]) + 1).schedule(), "item": lambda: (Tensor([1]) + 1).schedule()[-1],
    "optimizer": lambda: nn.optim.Adam([Tensor([1.0])]), "device": lambda: Device["CPU"]}


@pytest.mark.parametrize("make", MEMBERS.values(), ids=MEMBERS)
def test_all_members_can_be_listed(make: Callable[[], Any]) -> None:
    assert inspect.getmembers(make())


def test_a_variable_without_a_value_has_no_val() -> None:
    v = Variable("v", 1, 10)
    assert not hasattr(v, "val") and v.bind(3).val == 3
    with pytest.raises(AttributeError, match=r"val: v is not bound to a value .*bind"):
        v.val  # noqa: B018


def test_help_completion_and_signatures() -> None:
    for thing in (tinsmith, dtypes, Tensor, nn):
        assert len(pydoc.render_doc(thing)) > 1000
    names = rlcompleter.Completer({"dtypes": dtypes, "x": Tensor.ones(1)})
    assert {names.complete("dtypes.floa", n) for n in range(3)} >= {"dtypes.float32"}
    assert str(names.complete("x.softm", 0)).startswith("x.softmax")
    assert list(inspect.signature(Tensor.sum).parameters)[:2] == ["self", "axis"]
    assert inspect.signature(nn.Linear).parameters["bias"].default is True
    assert copy.deepcopy(nn.Linear(2, 3)).weight.shape == (3, 2) and not get_state_dict(dtypes)

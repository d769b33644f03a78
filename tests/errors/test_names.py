"""Misspelled and missing names: AttributeErrors and TypeErrors that suggest the right name, at the user's line."""
from __future__ import annotations

import copy
import inspect
import pickle
import pydoc
import re
import rlcompleter
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tinsmith
from tests.golden.running import environment
from tinsmith import Context, Device, Tensor, TinyJit, Variable, dtypes, nn, with_opts
from tinsmith.core import errors
from tinsmith.core.errors import ArgumentError, KeywordError, UnknownNameError
from tinsmith.core.suggestions import missing_attribute
from tinsmith.ir import Ops, UOp
from tinsmith.nn.describe import ABSENT
from tinsmith.nn.describe import MEMBERS as ELSEWHERE
from tinsmith.nn.state import get_state_dict
from tinsmith.shape import ShapeTracker

ATTRIBUTES: dict[str, tuple[Any, str, str]] = {
    "dtype": (dtypes, "flaot32", "dtypes.float32"), "package": (tinsmith, "Tensr", "tinsmith.Tensor"),
    "method": (Tensor.ones(1), "softmx", "Tensor.softmax"), "function": (Tensor, "ranndn", "Tensor.randn"),
    "layer": (nn, "Linaer", "nn.Linear"), "optimizer": (nn.optim, "Adm", "nn.optim.Adam"),
    "state": (nn.state, "safe_laod", "nn.state.safe_load"), "case": (nn.optim, "adam", "nn.optim.Adam"),
    "lower layer": (nn.layers, "linear", "nn.layers.Linear"),
    "node": (Tensor.ones(1).uop, "shaep", "UOp.shape"), "tuned": (with_opts(Tensor([1.0, 2.0]) + 1, None), "sorce",
                                                                 "Tuned.source"),
    "tracker": (ShapeTracker.from_shape((2,)), "contigous", "ShapeTracker.contiguous"),
    "maker": (tinsmith, "zeros", "tinsmith.Tensor.zeros"), "layer of nn": (tinsmith, "Linear", "tinsmith.nn.Linear")}


@pytest.mark.parametrize("case", ATTRIBUTES)
def test_attributes(case: str) -> None:
    owner, name, meant = ATTRIBUTES[case]
    assert not hasattr(owner, name) and not hasattr(owner, "x") and not hasattr(owner, "_x")
    with pytest.raises(UnknownNameError, match=rf"\(test_names\.py:\d+\).*did you mean {meant}\?") as caught:
        getattr(owner, name)
    assert not re.search(r"\bin _|\._", str(caught.value)), "a name of ours that nobody typed"
    assert isinstance(pickle.loads(pickle.dumps(caught.value)), AttributeError)


def test_an_attribute_that_fails_says_why() -> None:
    node = UOp(Ops.CONST, dtypes.int32, (), 1)
    with pytest.raises(AttributeError, match="'int' object has no attribute 'is_allocated'"):
        _ = Failing(node).shape


class Failing:
    """An object with a failing property, and hints."""

    def __init__(self, node: Any) -> None:
        self.node = node

    def __getattr__(self, name: str) -> Any:
        return missing_attribute(self, name)

    @property
    def shape(self) -> Any:
        return self.node.arg.is_allocated()


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


def test_what_modules_and_optimizers_have_elsewhere() -> None:
    """Layers are plain objects: methods of PyTorch modules are functions here, which the error names."""
    layer = nn.Sequential(nn.Linear(2, 3), nn.LSTM(3, 4), nn.BatchNorm(4))
    opt = nn.optim.SGD(nn.state.get_parameters(layer), lr=0.1)
    owners = [layer, *layer, nn.ReLU(), nn.MSELoss(), nn.MaxPool2d(2), nn.Conv2d(1, 1, 1), opt,
              nn.optim.lr_scheduler.StepLR(opt, 3), nn.MultiheadAttention(4, 2)]
    for owner in owners:
        for name, mend in ELSEWHERE.items():
            if name not in dir(owner):
                with pytest.raises(UnknownNameError) as caught:
                    getattr(owner, name)
                assert mend in str(caught.value) and f"{type(owner).__name__}: no attribute" in str(caught.value)
        copy.deepcopy(owner)
    with pytest.raises(AttributeError, match=r"did you mean Linear.weight\?"):
        layer[0].wieght  # type: ignore[attr-defined]  # noqa: B018
    assert not hasattr(layer, "nothing") and len(get_state_dict(layer)) == 11


@pytest.mark.parametrize("name", ABSENT)
def test_layers_that_are_elsewhere(name: str) -> None:
    with pytest.raises(UnknownNameError) as caught:
        getattr(nn, name)
    assert ABSENT[name] in str(caught.value)
    for method in re.findall(r"\bx\.(\w+)\(", ABSENT[name]):
        assert hasattr(Tensor, method), method


def test_tensors_of_others_beside_ours() -> None:
    torch = pytest.importorskip("torch", reason="the parity extra (torch==2.13.0) is not installed")
    for call in (lambda: Tensor([1.0]) + torch.ones(1), lambda: torch.ones(1) * Tensor([1.0])):
        with pytest.raises(TypeError, match="from_dlpack"):
            call()


def test_keywords_that_say_nothing_about_the_result() -> None:
    w = Tensor([1.0])
    opt = nn.optim.Adam([w], fused=True, foreach=False, capturable=True)  # type: ignore[call-arg]
    opt.zero_grad(set_to_none=True)  # type: ignore[call-arg]
    assert w.to("CPU", non_blocking=True).tolist() == [1.0]  # type: ignore[call-arg]


def test_a_call_that_takes_any_keyword_has_nothing_around_it() -> None:
    """A replay takes a few microseconds, so its call has no wrapper."""
    assert not hasattr(TinyJit.__call__, "__wrapped__") and hasattr(nn.Linear.__call__, "__wrapped__")


def test_a_gradient_that_is_not_there_is_named(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    lines = ["from tinsmith import Tensor, nn", "layer = nn.Linear(2, 2)", "print(layer.weight.grad.numpy())"]
    program.write_text("\n".join(lines))
    done = subprocess.run([sys.executable, program], env=environment(tmp_path), text=True, capture_output=True)
    assert done.returncode == 1 and done.stderr.splitlines()[-2:] == [
        "AttributeError: 'NoneType' object has no attribute 'numpy'",
        "layer.weight.grad is None: no backward() has filled it. Try: loss.backward() before, with a loss that is "
        "computed from it"]
    program.write_text("x = None\nx.numpy()")
    done = subprocess.run([sys.executable, program], env=environment(tmp_path), text=True, capture_output=True)
    assert "backward" not in done.stderr


def test_every_error_is_a_runtime_error_and_its_own() -> None:
    kinds = [k for k in vars(errors).values() if isinstance(k, type) and issubclass(k, errors.TinsmithError)]
    own = {"ShapeError": ValueError, "AxisError": IndexError, "UnknownNameError": AttributeError,
           "DTypeError": TypeError, "RangeError": OverflowError, "KeywordError": TypeError, "ArgumentError": ValueError,
           "OutOfMemoryError": MemoryError, "FileFormatError": ValueError}
    assert all(issubclass(k, RuntimeError) and issubclass(k, own.get(k.__name__, RuntimeError)) for k in kinds)
    assert {k.__name__ for k in kinds} >= own.keys()

"""The warning for a line that compiles a program for every size of its data."""
from __future__ import annotations

import linecache
import warnings
from collections.abc import Iterator

import numpy as np
import pytest

from tinsmith import Context, Tensor, Variable
from tinsmith.core.errors import GradientError
from tinsmith.runtime import realize, symbolic_programs
from tinsmith.schedule.passes.dynamic_sizes import SizeHistory


@pytest.fixture(autouse=True)
def nothing_warned(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    realize._warned.clear()
    for table in symbolic_programs.tables:  # sizes that other tests of this process drew
        table.clear()
    monkeypatch.setattr(SizeHistory, "is_slow", False)  # whatever the machine does meanwhile
    with Context(DYNAMIC=1):
        yield


def test_a_length_that_grows_is_warned_of_once_with_line_sizes_and_remedy() -> None:
    with Context(DYNAMIC=0), pytest.warns(UserWarning, match="5 programs") as caught:
        for n in range(90, 100):
            (Tensor(np.ones(n, np.float32)) * 2.125).sum().item()
    (one,) = caught
    assert "sizes 90, 91, 92, 93, 94" in str(one.message) and "Variable" in str(one.message)
    assert "pad" in str(one.message) and " s;" in str(one.message)
    assert one.filename == __file__ and "item()" in linecache.getline(__file__, one.lineno)


def test_the_warning_says_why_sizes_cannot_become_variables() -> None:
    with pytest.warns(UserWarning, match="cannot become variables: it writes to a tensor whose size changes"):
        for n in range(70, 77):
            x = Tensor(np.ones(n, np.float32)).realize()
            x += 2.75
            x.realize()


def test_a_length_that_grows_is_not_warned_of_where_its_sizes_become_variables() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for n in range(60, 70):
            (Tensor(np.ones(n, np.float32)) * 2.625).sum().item()


def test_few_sizes_other_structures_and_bound_sizes_are_not() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for n in (80, 81, 82, 83, 80, 81):
            (Tensor(np.ones(n, np.float32)) * 3.375).sum().item()
        x = Tensor(np.ones(30, np.float32)).realize()
        for f in (Tensor.exp, Tensor.log, Tensor.sin, Tensor.sqrt, Tensor.relu, Tensor.tanh):
            (f(x) * 1.875).sum().item()
        for n in range(10, 20):
            (x[:Variable("n", 1, 30).bind(n)] * 1.625).sum().item()


def test_no_grad_makes_no_program_again() -> None:
    from tinsmith.runtime.launch import lowered

    made: list[object] = []
    x, w = Tensor(np.ones((4, 6), np.float32)).realize(), Tensor(np.ones((6, 5), np.float32)).realize()
    cases = [lambda: x.sum(), lambda: x @ w, lambda: x.var(), lambda: x.max(0),
             lambda: Tensor.einsum("ij,jk->ik", x, w), lambda: (x @ w).softmax(),
             lambda: x.reshape(1, 1, 4, 6).max_pool2d(), lambda: (x * 2).reshape(3, 8)]
    want = [f().numpy() for f in cases]
    lowered.append(made.append)
    try:
        with Tensor.no_grad():
            for f, right in zip(cases, want):
                np.testing.assert_array_equal(f().numpy(), right)
    finally:
        lowered.remove(made.append)
    assert not made


def test_a_value_with_and_one_without_a_gradient_computed_together() -> None:
    for turned in (False, True):
        x = Tensor([1.0, 2.0]).realize()
        y = x * 2
        with Tensor.no_grad():
            z = x * 2
        Tensor.realize(*([z, y] if turned else [y, z]))
        assert y.sum().gradient(x)[0].tolist() == [2.0, 2.0]
        with pytest.raises(GradientError, match="does not influence"):
            z.sum().gradient(x)

"""Interactive use: ``repr``, HTML, completion, help and interrupts in prompts and notebooks."""
from __future__ import annotations

import ast
import functools
import inspect
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import tinsmith
from tinsmith import Device, GlobalCounters, Tensor, TinyJit, dtypes, nn
from tinsmith.core.errors import OutOfMemoryError
from tinsmith.core.log import log

LINE = Path(__file__).name


def line_of_caller() -> int:
    frame = inspect.currentframe()
    assert frame is not None and frame.f_back is not None
    return frame.f_back.f_lineno


def test_values_where_they_are_cheap() -> None:
    assert repr(Tensor([1, 2]) * 3) == "Tensor([3, 6], dtype=dtypes.int, device='CPU')"
    assert repr(Tensor(2.5)) == "Tensor(2.5, dtype=dtypes.float, device='CPU')"
    assert repr(Tensor.ones(2, 0)).startswith("Tensor([], ")
    assert "1. , 2.5]" in repr(Tensor([1.0, 2.5], dtype=dtypes.bfloat16))
    assert "1., 2." in repr(Tensor([1.0, 2.0], device=("CPU", "CPU:1")) + 0)
    data = Tensor(np.arange(50_000))
    assert repr(data) == ("Tensor([    0,     1,     2, ..., 49997, 49998, 49999], shape=(50000,), "
                          "dtype=dtypes.long, device='CPU')")
    assert repr(data.realize()[::-1]).startswith("Tensor([49999, 49998, 49997, ...,")
    assert repr(Tensor.arange(100, device="PYTHON").realize()).startswith("Tensor([ 0,  1,")


def test_what_takes_long_is_not_computed() -> None:
    x = Tensor.rand(3000, 3000)
    loss, line = (x @ x).sum(), line_of_caller()
    GlobalCounters.reset()
    assert repr(x) == f"<Tensor (3000, 3000) dtypes.float on CPU, rand ({LINE}:{line - 1})>"
    assert repr(loss) == f"<Tensor () dtypes.float on CPU, sum ({LINE}:{line})>"
    assert "graph" in loss._repr_html_() and GlobalCounters.kernel_count == 0
    small = Tensor([1.0])
    for _ in range(300):
        small = small * 1.5 + 1
    assert repr(small).startswith("<Tensor (1,) dtypes.float on CPU, add (") and GlobalCounters.kernel_count == 0
    small.item()
    assert repr(small).startswith("Tensor([")  # read once, it is known
    assert repr(Tensor.rand(1 << 13, device="PYTHON").sum()).startswith("<Tensor () ")  # an interpreter is slow
    huge = Tensor.ones(1 << 50).contiguous()
    assert repr(huge).startswith("<Tensor (1125899906842624,)")


def test_looking_changes_nothing() -> None:
    looked = []
    for look in (lambda t: None, repr, lambda t: t._repr_html_()):
        Tensor.manual_seed(5)
        w = Tensor([1.0, 2.0, 3.0], requires_grad=True)
        h = w * w
        look(h)
        part = h[1:]
        look(part)
        part += 1
        look(h)
        noise = Tensor.rand(3)
        look(noise)
        (h * noise).sum().backward()
        look(w.grad)
        looked.append((h.tolist(), noise.tolist(), w.grad.tolist() if w.grad is not None else None))
    assert looked[0] == looked[1] == looked[2]


def test_a_value_that_cannot_be_had_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*_: object) -> None:
        raise OutOfMemoryError("CPU", "no bytes left")

    x = Tensor([1.5, 2.5]).realize() * 7.25
    with monkeypatch.context() as patch:
        patch.setattr("tinsmith.backend.memory.FreeLists.alloc", none_left)
        assert repr(x).endswith(": E041 CPU: no bytes left. Held: nothing>") or "no bytes left" in repr(x)
        assert "no bytes left" in x._repr_html_()
    assert repr(x).startswith("Tensor([10.875,")


def test_html_shows_values_and_graph() -> None:
    page = (Tensor([1.0, 2.0]) * 3)._repr_html_()
    assert "[3., 6.]" in page and "<svg" in page and ">MUL<" in page and "&lt;Tensor (2,) dtypes.float" in page
    assert f"{LINE}:" in page
    x = Tensor.rand(2000, 2000)
    for _ in range(30):
        x = (x + 1).sin()
    assert "a graph of more than" in x._repr_html_() and "<svg" not in x._repr_html_()
    assert "<svg" in x.realize()._repr_html_()


def test_a_captured_function_that_prints_runs() -> None:
    seen = []

    @TinyJit
    def f(x: Tensor) -> Tensor:
        y = x + 1
        seen.append(repr(y))
        return y

    with pytest.warns(UserWarning, match="reads values on the host"):
        for n in range(4):
            f(Tensor([float(n)]).realize())
    assert [s.split(",")[0] for s in seen] == [f"Tensor([{n}.]" for n in (1, 2, 3, 4)]
    log()  # the logger is as it was


# *** signatures ***


def public(owner: Any) -> list[tuple[str, Callable[..., Any]]]:
    """Return the public functions and classes of a class or module of Tinsmith."""
    found = []
    for name in dir(owner):
        getattr(owner, name)  # modules of functions are imported at their first use
        member = inspect.getattr_static(owner, name)
        function = getattr(member, "__func__", member)
        ours = str(getattr(function, "__module__", "")).startswith("tinsmith")
        if not name.startswith("_") and ours and callable(function) and not isinstance(function, ModuleType):
            found.append((name, getattr(owner, name)))
    return found


@functools.cache
def tree(path: str) -> ast.Module:
    return ast.parse(Path(path).read_text("utf-8"))


def written(function: Callable[..., Any]) -> list[str]:
    """Return the parameters of a function as in its source."""
    code = inspect.unwrap(function).__code__
    for n in ast.walk(tree(code.co_filename)):
        if isinstance(n, (ast.FunctionDef, ast.Lambda)) and code.co_firstlineno in (
                n.lineno, *(d.lineno for d in getattr(n, "decorator_list", ()))):
            a = n.args
            return [x.arg for x in (*a.posonlyargs, *a.args, *([a.vararg] if a.vararg else []), *a.kwonlyargs,
                                    *([a.kwarg] if a.kwarg else []))]
    raise AssertionError(f"no source of {function!r}")


OWNERS = {"Tensor": Tensor, "TinyJit": TinyJit, "nn": nn, "nn.optim": nn.optim, "nn.state": nn.state,
          "nn.datasets": nn.datasets, "tinsmith": tinsmith, "Device": type(Device)}


@pytest.mark.parametrize("owner", OWNERS)
def test_signatures_are_those_of_the_source(owner: str) -> None:
    checked = 0
    for name, member in public(OWNERS[owner]):
        function = member.__init__ if isinstance(member, type) else member
        shown = list(inspect.signature(member).parameters)
        function = inspect.unwrap(getattr(function, "__func__", function))
        if not hasattr(function, "__code__") or not function.__code__.co_filename.startswith(
                str(Path(tinsmith.__file__).parent)):
            continue  # a class whose __init__ is Python's
        real = written(function)
        bound = isinstance(member, type) or inspect.ismethod(member)
        assert shown == real[1 if bound and real[:1] in (["self"], ["cls"]) else 0 :], f"{owner}.{name}"
        checked += 1
    assert checked >= 2


def test_nothing_takes_whatever_it_is_given() -> None:
    """No signature is just ``**kwargs``, which tells a reader nothing."""
    vague = [name for name, member in public(Tensor) for p in inspect.signature(member).parameters.values()
             if p.kind is p.VAR_KEYWORD]
    assert vague == ["rearrange"]  # the sizes of named axes


def test_help_shows_signatures() -> None:
    import pydoc
    text = pydoc.plain(pydoc.render_doc(Tensor.softmax))
    assert "softmax(self: 'Tensor', axis: " in text or "softmax(self" in text.splitlines()[2]
    assert "Optimizer(params: " in pydoc.plain(pydoc.render_doc(nn.optim.Optimizer))
    assert "lr: 'float'" in pydoc.plain(pydoc.render_doc(nn.optim.Adam))


# *** IPython ***


@pytest.fixture
def shell() -> Any:
    pytest.importorskip("IPython", reason="IPython is not installed: pip install -e '.[test]'")
    from IPython.core.interactiveshell import InteractiveShell

    found = InteractiveShell.instance()
    yield found
    InteractiveShell.clear_instance()


def run(shell: Any, text: str) -> Any:
    done = shell.run_cell(textwrap.dedent(text).lstrip(), store_history=True)
    return done.result if done.success else done.error_in_exec


def test_completion(shell: Any) -> None:
    run(shell, "from tinsmith import Tensor; t = Tensor([1.0])")
    from IPython.core.completer import provisionalcompleter

    def completed(text: str) -> set[str]:
        with provisionalcompleter():
            return {c.text.lstrip(".") for c in shell.Completer.completions(text, len(text))}

    shell.Completer.use_jedi = False  # it reads sources, for seconds on a busy machine
    assert "softmax" in completed("t.softm") and "_write" not in completed("t.")
    assert {"rand", "randn", "randint"} <= completed("Tensor.rand")


def test_cells_are_user_lines(shell: Any) -> None:
    run(shell, """
        from tinsmith import Tensor
        x = Tensor.rand(400, 400)
        y = (x @ x).exp()
        """)
    number = shell.execution_count - 1
    assert repr(run(shell, "y")) == f"<Tensor (400, 400) dtypes.float on CPU, exp (In[{number}]:3)>"
    assert f"In[{number}]:3" in str(run(shell, "y.explain(run=False)"))
    assert f"In[{number}]:3" in str(run(shell, "y.plan()"))
    error = run(shell, "z = y\n\nz + Tensor.ones(3)")
    assert f"(In[{shell.execution_count - 1}]:3)" in str(error)
    trace = run(shell, "y.viz(run=False).document")
    assert any("y = (x @ x).exp()" in text for text in trace["files"].values())


def kernel(cells: list[str], interrupt: int = -1) -> list[Any]:
    """The outputs of cells in a kernel of their own; cell ``interrupt`` is interrupted a while after it began."""
    pytest.importorskip("ipykernel", reason="ipykernel is not installed: pip install -e '.[test]'")
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel(startup_timeout=120)
    outputs: list[Any] = []
    try:
        for n, cell in enumerate(cells):
            found: list[Any] = []
            request = client.execute(cell)
            begun = False
            while True:
                message = client.get_iopub_msg(timeout=120)
                if message["parent_header"].get("msg_id") != request:
                    continue
                kind, content = message["msg_type"], message["content"]
                if kind == "stream" and n == interrupt and not begun:
                    begun = True
                    time.sleep(0.3)
                    manager.interrupt_kernel()
                elif kind == "stream":
                    found.append(content["text"])
                elif kind in ("execute_result", "display_data"):
                    found.append(content["data"])
                elif kind == "error":
                    found.append((content["ename"], "\n".join(content["traceback"])))
                elif kind == "status" and content["execution_state"] == "idle":
                    break
            outputs.append(found)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    return outputs


def test_a_real_kernel_shows_and_is_interrupted() -> None:
    outputs = kernel([
        "from tinsmith import Tensor\nw = Tensor([1.0, 2.0]).realize()\nx = Tensor.rand(3000, 3000).realize()\nw * 2",
        "\ny = x\nfor _ in range(200): y = (y @ x) / 1000\nw += 1\nprint('begun', flush=True)\ny.realize()",
        "print(w.tolist(), round(float(x[:4, :4].sum().item()), 2) > 0, (x + 1).shape)",
        "y = (x[:8, :8] @ x[:8, :8]).realize(); w -= 1; print(w.tolist(), y.shape)",
        "x + Tensor.ones(7)"], interrupt=1)
    html = outputs[0][0]["text/html"]
    assert "[2., 4.]" in html and "<svg" in html and "(In[1]:4)" in html
    assert outputs[0][0]["text/plain"] == "Tensor([2., 4.], dtype=dtypes.float, device='CPU')"
    text = [o for o in outputs[1] if isinstance(o, str)]  # "begun" and the end of its line may come in two pieces
    assert not "".join(text).strip()
    assert [o[0] for o in outputs[1] if o not in text] == ["KeyboardInterrupt"]
    assert outputs[2] == ["[2.0, 3.0] True (3000, 3000)\n"]
    assert outputs[3] == ["[1.0, 2.0] (8, 8)\n"]
    assert outputs[4][0][0] == "ShapeError" and "In[5]:1" in outputs[4][0][1]

"""tinygrad's names give our objects; missing ones say where to read on."""
from __future__ import annotations

import importlib
import os
import pydoc
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.golden.running import ROOT, environment, run
from tinsmith.compat import NotBuiltError, install, uninstall
from tinsmith.compat.names import METHODS, MODULES, REASONS
from tinsmith.compat.places import PLACES


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("ALIAS", "")
    from tinsmith.core.settings import settings
    before = settings.ALIAS, settings.DEV
    install()
    yield
    uninstall()
    settings.ALIAS, settings.DEV = before


@pytest.mark.parametrize("module", sorted({*MODULES, *PLACES}))
def test_every_name_of_the_tables_is_there(names: None, module: str) -> None:
    found = importlib.import_module(module)
    for name in MODULES.get(module, ()):
        if name in REASONS:
            continue
        assert getattr(found, name) is not None, name


def test_names_are_ours(names: None) -> None:
    import tinsmith

    tinygrad = importlib.import_module("tinygrad")
    assert tinygrad.Tensor is tinsmith.Tensor
    assert tinygrad.nn.Linear is tinsmith.nn.Linear
    assert tinygrad.Device.canonicalize("CLANG") == "CPU" and tinygrad.Device.canonicalize("EXT") == "NPY"


@pytest.mark.parametrize("statement", [
    "from tinygrad import no_such_name", "import tinygrad.no_such_module", "from tinygrad.lazy import LazyBuffer",
    "from tinygrad.ops import LazyOp", "from tinygrad.codegen.linearizer import Linearizer"])
def test_a_missing_name_points_to_the_page(names: None, statement: str) -> None:
    with pytest.raises(NotBuiltError, match=r"docs/rosetta\.md"):
        exec(statement)


@pytest.mark.parametrize("statement", [
    "from tinygrad.shape.shapetracker import _merge_dims", "from tinygrad.engine.realize import CommandQueue",
    "from tinygrad.realize import create_schedule", "from tinygrad.codegen.opt import Opt, OptOps",
    "from tinygrad.schedule import create_schedule", "from tinygrad.shape.symbolic import sint",
    "from tinygrad.shape.view import strides_for_shape", "from tinygrad.helpers import SI, HMS, to_function_name"])
def test_names_that_moved_are_found(names: None, statement: str) -> None:
    exec(statement)


@pytest.mark.parametrize("statement, said", [
    ("from tinygrad.engine.search import beam_search", r"BEAM=2 searches: docs/search\.md"),
    ("from tinygrad.renderer.ptx import PTXRenderer", r"tinsmith\.codegen\.render\.cuda"),
    ("from tinygrad.engine.lazy import LazyBuffer", r"Tensor\.uop"),
    ("from tinygrad.dtype import PtrDType", r"a dtype with \.pointer"),
    ("from tinygrad.runtime.ops_metal import MetalDevice", r"tinsmith\.backend\.metal\.device"),
    ("from tinygrad.uop.symbolic import fold_const_where", r"for what tinygrad\.uop\.symbolic has: tinsmith\.ir"),
    ("import tinygrad.runtime.autogen.cuda", r"no vendor's headers are bound"),
    ("from tinygrad.helpers import flaten", r"did you mean flatten\?")])
def test_a_missing_name_says_what_does_its_work(names: None, statement: str, said: str) -> None:
    with pytest.raises(NotBuiltError, match=said):
        exec(statement)


def test_what_is_named_instead_exists() -> None:
    texts = [*PLACES.values(), *REASONS.values(), *METHODS.values()]
    for text in texts:
        for name in re.findall(r"\btinsmith(?:\.\w+)+", text):
            assert pydoc.locate(name) is not None, f"{name} in {text!r}"
        assert all((ROOT / page).exists() for page in re.findall(r"docs/\w+\.md", text)), text


def test_every_reason_is_on_the_page() -> None:
    text = "".join((ROOT / "docs" / page).read_text("utf-8") for page in ("rosetta.md", "api.md"))
    assert [name for name in REASONS if f"`{name}`" not in text] == []


def test_wins_over_an_installed_tinygrad_and_passes_arguments(tmp_path: Path) -> None:
    (tmp_path / "tinygrad").mkdir()
    (tmp_path / "tinygrad" / "__init__.py").write_text("raise RuntimeError('the other one')")
    (tmp_path / "beside.py").write_text("value = 3")
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent("""
        import sys
        import beside
        from tinygrad import Tensor
        print(__name__, sys.argv[1:], Tensor.__module__, beside.value, __file__ == sys.argv[0])
        sys.exit(7)
    """))
    done = run(["-m", "tinsmith.compat", str(script), "a", "-b"], tmp_path)
    assert (done.returncode, done.stdout) == (7, "__main__ ['a', '-b'] tinsmith.tensor.tensor 3 True\n"), done.stderr


def test_install_and_uninstall_leave_no_module_behind(names: None) -> None:
    importlib.import_module("tinygrad.nn.optim")
    uninstall()
    assert not [m for m in sys.modules if m.startswith("tinygrad")]


def test_alias_maps_a_scripts_devices(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("from tinygrad import Tensor\nprint(Tensor([1], device='METAL').device)")
    assert run(["-m", "tinsmith.compat", str(script)], tmp_path, ALIAS="METAL=CPU").stdout == "CPU\n"
    assert "there is no device 'METAL'" in run(["-m", "tinsmith.compat", str(script)], tmp_path).stderr


def test_the_tutorials_two_devices(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent("""
        from tinygrad.tensor import Tensor
        GPUS = ['METAL:0', 'METAL:1']
        a = Tensor([1.0, 2.0, 3.0, 4.0]).shard_(GPUS, axis=0)
        b = Tensor([5.0, 6.0, 7.0, 8.0]).shard_(GPUS, axis=0)
        c = a.dot(b)
        d = c.numpy()
        print(d)
        print(a.device)
    """))
    done = run(["-m", "tinsmith.compat", str(script)], tmp_path, ALIAS="METAL=CPU")
    assert done.stdout == "70.0\n('CPU', 'CPU:1')\n", done.stderr


def test_clang_variable_chooses_the_device(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("from tinygrad import Device\nprint(Device.DEFAULT)")
    assert run(["-m", "tinsmith.compat", str(script)], tmp_path, PYTHON="1").stdout == "PYTHON\n"


def test_helpers(names: None, capsys: pytest.CaptureFixture[str]) -> None:
    h = importlib.import_module("tinygrad.helpers")
    assert (h.prod((2, 3)), h.argsort((3, 1, 2)), h.round_up(5, 4), h.dedup([1, 1]), h.flatten([[1], [2]])) == (
        6, (1, 2, 0), 8, [1], [1, 2])
    assert list(h.tqdm(range(3), disable=True)) == list(h.trange(3, disable=True)) == [0, 1, 2]
    assert list(h.tqdm([1, 2], desc="steps", unit="  steps")) == [1, 2] and list(h.trange(2)) == [0, 1]
    bar = h.tqdm(total=2, unit_scale=True, rate=10**6)
    for _ in range(2):
        bar.update(1, close=True)
    shown = capsys.readouterr().err
    assert "steps: 100%" in shown and "2/2" in shown and "steps/s]" in shown and "1.00/2.00" in shown
    assert (h.tqdm.HMS(75), h.tqdm.SI(1234)) == ("01:15", "1.23k")
    with h.Timing("took "):
        pass
    assert capsys.readouterr().out.startswith("took ")
    with h.Context(NOOPT=1, BEAM=2):
        assert h.NOOPT and h.BEAM == 2
    assert not h.BEAM
    for name, said in (("FOOBAR", "unknown setting 'FOOBAR'.*README"), ("DEBGU", "did you mean DEBUG=")):
        with pytest.raises(ValueError, match=said), h.Context(**{name: 1}):
            pass
    assert h.to_function_name("r\x1b[34m_2\x1b[0m a-b") == "r_220a2Db"
    assert h.SI(2000) == "2.00k" and h.HMS(61) == "01:01"
    assert h.fully_flatten([[1, (2,)], 3]) == [1, 2, 3]
    data = bytearray(b"abcd")
    assert h.from_mv(memoryview(data))[1] == b"b" and bytes(h.to_mv(h.mv_address(memoryview(data)), 4)) == b"abcd"


# *** ways to run a program ***

DOT = "import sys\nfrom tinygrad import Tensor\nprint(__name__, sys.argv, Tensor([1, 2]).dot(Tensor([3, 4])).item())\n"


def piped(arguments: list[str], cwd: Path, text: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "tinsmith.compat", *arguments], cwd=cwd, input=text, text=True,
                          env=environment(cwd / "cache"), capture_output=True, timeout=100, check=False)


@pytest.mark.parametrize("arguments", [["-", "a"], [], ["/dev/stdin", "a"], ["-c", DOT, "a"]])
def test_code_from_a_pipe_or_an_argument(tmp_path: Path, arguments: list[str]) -> None:
    if arguments[:1] == ["/dev/stdin"] and not os.path.exists("/dev/stdin"):
        pytest.skip("no /dev/stdin on this system")
    shown = [a for a in arguments if a != DOT] or ["-"]
    done = piped(arguments, tmp_path, "" if "-c" in arguments else DOT)
    assert done.stdout == f"__main__ {shown} 11\n", done.stderr


def test_a_module_beside(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text(DOT)
    done = piped(["-m", "beside", "a"], tmp_path, "")
    assert done.stdout == f"__main__ ['{tmp_path / 'beside.py'}', 'a'] 11\n", done.stderr


def test_errors_of_piped_code_name_its_lines(tmp_path: Path) -> None:
    done = piped(["-"], tmp_path, "from tinygrad import Tensor\nTensor([1, 2]) + Tensor([1, 2, 3])\n")
    assert done.returncode == 1 and 'File "<stdin>", line 2' in done.stderr and "(<stdin>:2)" in done.stderr


@pytest.mark.parametrize("arguments", [["-x"], ["no_such.py"], ["-m"], ["-c"]])
def test_what_cannot_be_run_shows_the_usage(tmp_path: Path, arguments: list[str]) -> None:
    done = piped(arguments, tmp_path, "")
    assert done.returncode == 2 and "usage: python -m tinsmith.compat" in done.stdout + done.stderr


def test_variables_are_settings_states_or_a_line(names: None, caplog: pytest.LogCaptureFixture) -> None:
    from tinsmith import Tensor, dtypes
    from tinsmith.core import settings as module

    h = importlib.import_module("tinygrad.helpers")
    with h.Context(TRAINING=1, DEFAULT_FLOAT="HALF", DEFAULT_INT="int64", NOOPT=1):
        assert Tensor.training and h.TRAINING and h.NOOPT == 1
        assert Tensor.zeros(1).dtype is dtypes.float16 and Tensor([1]).dtype is dtypes.int64
    assert not Tensor.training and dtypes.default_float is dtypes.float32 and dtypes.default_int is dtypes.int32
    module._told.discard("WINO")
    for _ in range(2):
        with h.Context(WINO=1):
            assert h.WINO == 1
    assert [r.message.split(":")[1] for r in caplog.records] == [" WINO=1 does nothing"] and h.WINO == 0


def test_training_from_the_environment(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("from tinygrad import Tensor, dtypes\nprint(Tensor.training, dtypes.default_float)")
    done = run(["-m", "tinsmith.compat", str(script)], tmp_path, TRAINING="1", DEFAULT_FLOAT="HALF")
    assert done.stdout == "True dtypes.half\n", done.stderr


def test_methods_mean_what_they_mean_there_while_installed() -> None:
    from tinsmith import Tensor

    def answers() -> list[object]:
        return [Tensor.ones(2, 3, 4).T.shape, type(Tensor([1.0]).allclose(Tensor([1.0]))).__name__,
                Tensor([[1.0], [2.0]]).qr()[0].shape, Tensor([1, 1, 0, 3]).cummax()[1].tolist(),
                Tensor([[2, 1, 1]]).cummin(1)[1].tolist(), Tensor([1.0, float("nan"), 2.0]).cummax()[1].tolist(),
                [Tensor([0, 2]).one_hot(3).tolist(), (Tensor([3, -1]) * 1).one_hot(3).sum().item()],
                round(Tensor([[0.0, 0.0]] * 2).sparse_categorical_crossentropy(Tensor([0, -1])).item(), 3)]

    hot = [[1, 0, 0], [0, 0, 1]]
    ours = [(4, 3, 2), "bool", (2, 1), [0, 1, 1, 3], [[0, 1, 2]], [0, 1, 1], [hot, 0], 0.693]
    assert answers() == ours
    install()
    try:
        assert answers() == [(3, 2, 4), "Tensor", (2, 2), [0, 0, 0, 3], [[0, 1, 1]], [0, 1, 1], [hot, 0], 0.347]
        assert Tensor([1, 3, -1]).one_hot(2).tolist() == [[0, 1], [0, 0], [0, 0]]
        assert Tensor.full((1,), 2, buffer=False).tolist() == Tensor.const(2).reshape(1).tolist() == [2]
        assert Tensor.rand(2, contiguous=False).shape == (2,) and len(Tensor([1, 2]).schedule_linear().steps) == 1
    finally:
        uninstall()
    assert answers() == ours


# What tinygrad 0.14 prints for these rows: loss of each, mean.
ROWS = [[1.0, -2.0, 3.0], [4.0, 5.0, -6.0], [0.5, 0.25, 2.0]]


@pytest.mark.parametrize("ignored, labels, smoothing, each, mean", [
    (-1, [0, -1, 1], 0.0, [2.1328, 0.0, 2.0843], 1.4057), (-1, [0, -1, 1], 0.1, [2.1662, 0.4313, 2.0176], 1.5384),
    (-1, [-1, -1, -1], 0.1, [0.2466, 0.4313, 0.1418], 0.2732), (0, [0, 2, 1], 0.0, [0.0, 11.3133, 2.0843], 6.6988),
    (0, [0, 2, 1], 0.1, [0.0, 10.6133, 2.0176], 6.3154), (-100, [0, -100, 1], 0.0, [2.1328, 0.0, 2.0843], 2.1086),
    (255, [255, 1, 2], 0.1, [0.0, 0.7133, 0.4426], 0.5779), (0, [0, 0, 0], 0.0, [0.0, 0.0, 0.0], float("nan"))])
def test_class_losses_with_rows_left_out(names: None, ignored: int, labels: list[int], smoothing: float,
                                         each: list[float], mean: float) -> None:
    from tinsmith import Tensor

    def loss(reduction: str) -> Tensor:
        return Tensor(ROWS).sparse_categorical_crossentropy(Tensor(labels), ignored, smoothing, reduction)

    assert loss("none").tolist() == pytest.approx(each, abs=1e-4)
    assert loss("sum").item() == pytest.approx(sum(each), abs=3e-4)
    assert loss("mean").item() == pytest.approx(mean, abs=1e-4, nan_ok=True)


def test_errors_of_methods_that_mean_something_else_name_them(names: None) -> None:
    from tinsmith import Tensor

    with pytest.raises(IndexError, match=r"\(in sparse_categorical_crossentropy\): class 5"):
        Tensor(ROWS).sparse_categorical_crossentropy(Tensor([0, 1, 5]))
    with pytest.raises(TypeError, match="did you mean approximate="):
        Tensor(ROWS).gelu(aproximate="none")


def test_helpers_of_states_and_numbers(names: None) -> None:
    h = importlib.import_module("tinygrad.helpers")
    assert h.get_child({"a": [1, {"b": 2}]}, "a.1.b") == 2 and h.get_shape([[1, 2, 3]]) == (1, 3)
    assert (h.cdiv(-7, 2), h.cmod(-7, 2), h.floordiv(-7, 2), h.next_power2(5), h.round_down(7, 4)) == (-3, -1, -4, 8, 4)
    assert h.word_wrap("abcdef", 4) == "abcd\nef" and h.ansipad("a", 3) == "a  " and h.polyN(2.0, [1.0, 1.0]) == 3.0
    assert h.pluralize("step", 2) == "2 steps" and h.size_to_str(2048) == "2.00 KB" and h.getbits(0b1100, 2, 3) == 3


def test_devices_and_renderers(names: None) -> None:
    tinygrad = importlib.import_module("tinygrad")
    assert "CPU" in list(tinygrad.Device.get_available_devices())
    supported = tinygrad.Device[tinygrad.Device.DEFAULT].renderer.supported_dtypes()
    assert tinygrad.dtypes.half in supported and tinygrad.dtypes.fp8e4m3 in supported


def test_states_and_optimizers(names: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from tinsmith import Tensor

    nn = importlib.import_module("tinygrad.nn")
    layer = nn.Linear(2, 1)
    loaded = nn.state.load_state_dict(layer, {"weight": Tensor([[1.0, 2.0]]), "bias": Tensor([0.0])}, verbose=False)
    assert [t.shape for t in loaded] == [(1, 2), (1,)]
    with pytest.raises(ValueError, match="device=None"):
        nn.optim.Adam([Tensor([1.0])], device="CPU:1")
    with pytest.raises(ValueError, match="Function"):
        importlib.import_module("tinygrad").function(grad_fxn=lambda g: g)(abs)
    monkeypatch.setattr("tinsmith.nn.datasets._downloaded", lambda data_set: None)  # no network
    with pytest.raises(ValueError, match="fashion_mnist"):
        nn.datasets.mnist(fashion=True)


def test_captured_functions_count_two_calls(names: None) -> None:
    Tensor, TinyJit = (getattr(importlib.import_module("tinygrad"), n) for n in ("Tensor", "TinyJit"))
    seen, number, scale = [], 0, 2

    @TinyJit
    def f(x: Any) -> Any:
        nonlocal number
        number += 1
        seen.append(number)
        return (x * scale).realize()

    for n in range(6):
        scale = 3 if n == 5 else 2
        assert f(Tensor([float(n)]).realize()).item() == n * scale
        assert number == len(seen) == (3 if n == 5 else min(n + 1, 2))  # what the function only reads counts as ever

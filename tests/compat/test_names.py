"""tinygrad's names give Tinsmith's objects; missing names raise errors that refer to documentation."""
from __future__ import annotations

import ast
import importlib
import os
import pydoc
import re
import shutil
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.golden.running import ROOT, environment, run
from tests.nn.test_datasets import images, write
from tinsmith import Tensor
from tinsmith.compat import NotBuiltError, install, nn, uninstall
from tinsmith.compat.module_table import METHODS, MODULES, PLACES, REASONS
from tinsmith.core.errors import ArgumentError


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
    "from tinygrad.ops import MemBuffer", "from tinygrad.codegen.linearizer import Linearizer"])
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


def test_progress_bars_need_no_extra() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert any(name.startswith("tqdm") for name in project["dependencies"])
    assert not [name for extra in project["optional-dependencies"].values() for name in extra if "tqdm" in name]


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


# *** names of the tutorials and of its tests ***

def test_nodes_have_the_names_of_lazy_buffers(names: None) -> None:
    from tinsmith import Tensor

    x = Tensor([1.0, 2.0]).realize()
    y = x.reshape(2, 1) + 1
    assert x.uop.realized is x.uop.buffer is x.reshape(2, 1).lazydata.realized and x.uop.is_realized
    assert x.uop.buffer.numpy().tolist() == [1.0, 2.0]
    assert y.uop.realized is None and not y.uop.is_realized and y.uop.srcs == y.uop.src
    assert x.reshape(2, 1).uop._base is x.uop and y.uop._base is y.uop
    with pytest.raises(ArgumentError, match="ADD has no memory yet"):
        _ = y.uop.buffer
    uninstall()
    assert not hasattr(x.uop, "realized") and not hasattr((x + 1).schedule()[-1], "ast")


TUTORIALS_DOT = """
LazyOp(MetaOps.KERNEL, arg=None, src=(
  LazyOp(BufferOps.STORE, arg=MemBuffer(idx=0, dtype=dtypes.int, st=ShapeTracker(views=(View(shape=(1,), strides=(0,), offset=0, mask=None, contiguous=True),))), src=(
    LazyOp(ReduceOps.SUM, arg=(0,), src=(
      LazyOp(BinaryOps.MUL, arg=None, src=(
        LazyOp(BufferOps.LOAD, arg=MemBuffer(idx=1, dtype=dtypes.int, st=ShapeTracker(views=(View(shape=(2,), strides=(1,), offset=0, mask=None, contiguous=True),))), src=()),
        LazyOp(BufferOps.LOAD, arg=MemBuffer(idx=2, dtype=dtypes.int, st=ShapeTracker(views=(View(shape=(2,), strides=(1,), offset=0, mask=None, contiguous=True),))), src=()),)),)),)),))
"""  # noqa: E501


def test_kernels_print_as_the_tutorials_lazy_ops(names: None) -> None:
    from tinsmith import Tensor

    copied, *_, product = Tensor([1, 2]).dot(Tensor([3, 4])).schedule()
    assert str(product.ast) == TUTORIALS_DOT.strip() and copied.ast is copied
    x = Tensor([[1.0, 2.0]]).realize()
    text = str((x.exp().sum(1, keepdim=True) * x.exp()).cast("half").schedule()[-1].ast)
    assert text.count("LazyOp(UnaryOps.EXP") == text.count("x0:=") == 1 and "x0,)" in text
    deep = x
    for n in range(2000):
        deep = (deep * 0.5 + n).sin() if n % 50 == 0 else deep + n * 0.37
    assert sum(str(item.ast).count("UnaryOps.SIN") for item in deep.schedule()) == 40


def test_renderers_take_programs_written_by_hand(names: None) -> None:
    uops, ops = importlib.import_module("tinygrad.codegen.uops"), importlib.import_module("tinygrad.ops")
    dtypes, g = importlib.import_module("tinygrad").dtypes, uops.UOpGraph()
    out, value = (g.add(uops.UOps.DEFINE_GLOBAL, dtypes.int.ptr(), (), (n, f"data{n}", n == 0)) for n in range(2))
    zero = g.add(uops.UOps.CONST, dtypes.int, arg=0)
    total = g.add(uops.UOps.ALU, dtypes.int, (g.add(uops.UOps.LOAD, dtypes.int, (value, zero)),) * 2, ops.BinaryOps.ADD)
    g.add(uops.UOps.STORE, vin=(out, zero, total))
    renderer = importlib.import_module("tinygrad").Device["CPU:C"].renderer
    assert "void rendered(" in renderer.render("rendered", g) and len(g) == len(list(g)) == len(g.uops)
    assert renderer.render("rendered", g) == renderer.render("rendered", g.uops)


def test_the_default_devices_parts(names: None) -> None:
    h = importlib.import_module("tinygrad.helpers")
    for value, parts in {"": ("", "", "", ""), "CPU:C": ("CPU", "C", "", ""), "cpu:1": ("CPU", "", "", ""),
                         "PCI+AMD:LLVM:gfx1100": ("AMD", "LLVM", "gfx1100", "PCI")}.items():
        with h.Context(DEV=value):
            assert (h.DEV.device, h.DEV.renderer, h.DEV.arch, h.DEV.interface) == parts


def test_layers_and_losses_of_its_shapes(names: None) -> None:
    from tinsmith import Tensor, dtypes

    nn = importlib.import_module("tinygrad.nn")
    x = Tensor.ones(1, 2, 5, 5, 5)
    assert nn.Conv2d(2, 3, (3, 3, 3)).weight.shape == (3, 2, 3, 3, 3)
    assert [nn.Conv2d(2, 3, (3, 3, 3), padding=p)(x).shape[2] for p in (0, 1, "same")] == [3, 5, 5]
    assert nn.ConvTranspose2d(2, 3, (3, 3, 3), 2, 1, 1)(x).shape == (1, 3, 10, 10, 10)
    one = [nn.Conv1d(2, 3, 3), nn.ConvTranspose1d(2, 3, 3), nn.Conv2d(2, 3, (3,)), nn.ConvTranspose2d(2, 3, (3,))]
    assert [layer(x[..., 0, 0]).shape[2] for layer in one] == [3, 7, 3, 7]
    assert all(isinstance(layer, nn.Conv2d) for layer in one)
    assert sorted(nn.state.get_state_dict(one[0])) == ["bias", "weight"]

    logits, labels = Tensor([[0.5, -1.0, 2.0], [1.0, 0.0, 3.0]]), Tensor([1.0, 0.0, 1.0])  # what tinygrad 0.14 prints:
    assert logits.binary_crossentropy_logits(labels).item() == pytest.approx(0.32821, abs=1e-5)
    assert logits.binary_crossentropy_logits(labels, pos_weight=Tensor([2.0, 1.0, 3.0])).item() == pytest.approx(
        0.51794, abs=1e-5)
    assert logits[0].binary_crossentropy_logits(Tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0]])).item() == pytest.approx(
        0.38809, abs=1e-5)
    assert logits.binary_crossentropy_logits(1.0).item() == pytest.approx(0.49488, abs=1e-5)
    assert logits.sigmoid().binary_crossentropy(labels).item() == pytest.approx(0.32821, abs=1e-5)

    windows = Tensor.arange(16).reshape(1, 1, 4, 4)._pool((2, 2), 2)
    assert windows.tolist() == [[[[[[0, 1], [4, 5]], [[2, 3], [6, 7]]], [[[8, 9], [12, 13]], [[10, 11], [14, 15]]]]]]
    assert Tensor.ones(1, 1, 7, 7)._pool((3, 3), (2, 1), (1, 2)).shape == (1, 1, 3, 3, 3, 3)
    assert Tensor([1.0, 2.5]).cast(dtypes.bfloat16).numpy().dtype == Tensor([1.0]).cast(dtypes.fp8e4m3).numpy().dtype
    assert Tensor([1.0, 2.5]).cast(dtypes.bfloat16).numpy().dtype == "float32"


def test_narrow_floats_keep_their_dtype_in_files_and_copies(names: None, tmp_path: Path) -> None:
    from tinsmith import Tensor, dtypes

    nn = importlib.import_module("tinygrad.nn")
    w = Tensor([1.0, 2.5]).cast(dtypes.bfloat16)
    nn.state.safe_save({"w": w}, tmp_path / "w.safetensors")
    assert nn.state.safe_load(tmp_path / "w.safetensors")["w"].dtype is dtypes.bfloat16
    twins = [Tensor.zeros(2, dtype=dtypes.bfloat16), Tensor.zeros(2, dtype=dtypes.bfloat16)]
    nn.optim.SGD(twins)
    assert [t.dtype for t in twins] == [dtypes.bfloat16] * 2 and w.to("NPY").dtype is dtypes.bfloat16


def test_an_optimizers_powers(names: None) -> None:
    from tinsmith import Tensor

    optim, w = importlib.import_module("tinygrad.nn").optim, Tensor([1.0, 2.0])
    for make in (optim.Adam, optim.AdamW, optim.LAMB):
        opt = make([w])
        assert opt.b1_t.tolist() == opt.b2_t.tolist() == [1.0]
        with Tensor.train():
            for _ in range(3):
                opt.zero_grad()
                (w * w).sum().backward()
                opt.step()
        assert opt.b1_t.item() == pytest.approx(0.729) and opt.b2_t.item() == pytest.approx(0.997003)


def test_types_of_its_modules(names: None) -> None:
    import typing

    tensor, dtype = (importlib.import_module(f"tinygrad.{m}") for m in ("tensor", "dtype"))
    assert tensor.cast is typing.cast and dtype.ConstType == float | int | bool
    assert dtype.DTypeLike == str | dtype.DType and dtype._from_np_dtype(float) is dtype.dtypes.double


DEVICE = """
import ctypes, functools, pathlib, subprocess, sys, tempfile
from tinygrad import Device, Tensor
from tinygrad.device import Allocator, Compiled, Compiler
from tinygrad.renderer.cstyle import ClangRenderer
from tinsmith.target.target import Target

class MyAllocator(Allocator):
    def _alloc(self, size, options): return (ctypes.c_uint8 * size)()
    def _copyin(self, dest, src): ctypes.memmove(dest, bytes(src), len(src))
    def _copyout(self, dest, src): dest[:] = memoryview(src).cast("B")

class OldAllocator(Allocator):
    def __init__(self, dev): pass
    def _alloc(self, size, options): return (ctypes.c_uint8 * size)()
    def copyin(self, dest, src): ctypes.memmove(dest, bytes(src), len(src))
    def copyout(self, dest, src): dest[:] = memoryview(src).cast("B")

class MyCompiler(Compiler):
    def compile(self, src):
        with tempfile.NamedTemporaryFile(suffix=".so") as out:
            flags = ["-O1", "-fPIC", "-shared", "-fwrapv", "-ffp-contract=off"]
            subprocess.run(["cc", *flags, "-x", "c", "-", "-o", out.name, "-lm"], input=src.encode(), check=True)
            return pathlib.Path(out.name).read_bytes()

class WritingCompiler(MyCompiler):
    def render(self, name, uops): return ClangRenderer(Target("my")).render(name, uops)

class MyProgram:
    def __init__(self, device, name, lib):
        with tempfile.NamedTemporaryFile(suffix=".so") as file:
            pathlib.Path(file.name).write_bytes(lib)
            self.fxn = ctypes.CDLL(file.name)[name]
    def __call__(self, *bufs, vals=(), wait=False):
        self.fxn(*bufs, *vals)

class FourDevice(Compiled):
    def __init__(self, device):
        super().__init__(device, MyAllocator(self), WritingCompiler(), functools.partial(MyProgram, self))

class FiveDevice(Compiled):
    def __init__(self, device):
        super().__init__(device, OldAllocator(self), ClangRenderer(Target("my")), MyCompiler(),
                         functools.partial(MyProgram, self))

Device.register("MY", FourDevice if sys.argv[1] == "four" else FiveDevice)
w = Tensor([[1.0, 2.0], [3.0, 4.0]], device="MY")
(w @ w).relu().sum().backward()
x = Tensor.arange(6, device="MY").realize()
part = x[2:4] + 1
x[1:3] = Tensor([7, 8], device="MY")
print(w.grad.tolist(), part.tolist(), x.tolist(), x[3:].realize().numpy())
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
@pytest.mark.parametrize("parts", ["four", "five"])
def test_a_device_of_its_parts(tmp_path: Path, parts: str) -> None:
    (tmp_path / "script.py").write_text(DEVICE)
    done = run(["-m", "tinsmith.compat", str(tmp_path / "script.py"), parts], tmp_path)
    assert done.stdout == "[[7.0, 11.0], [9.0, 13.0]] [3, 4] [0, 7, 8, 3, 4, 5] [3 4 5]\n", done.stderr


def test_what_tensors_are_made_of(names: None) -> None:
    from tinsmith import Tensor, dtypes

    assert Tensor(None).shape == (0,) and Tensor(None, dtype=dtypes.int32).numpy().dtype == "int32"
    assert Tensor([-1, 300], dtype=dtypes.uint8).tolist() == [255, 44]
    assert Tensor(1 << 31, dtype="int32").item() == -(1 << 31)
    assert Tensor.full((2,), 300, dtype=dtypes.uint8, buffer=False).tolist() == [44, 44]
    assert (Tensor([1], dtype=dtypes.uint8) + 300).tolist() == [45]
    for t in (Tensor.zeros(2, buffer=False), Tensor.ones(2, buffer=True), Tensor.arange(2, buffer=False),
              Tensor([1, 2]).full_like(3, buffer=False), Tensor([1, 2]).zeros_like(buffer=False)):
        assert t.shape == (2,)
    assert set(Tensor.uniform(500, low=-2, high=2, dtype=dtypes.int8).tolist()) == {-2, -1, 0, 1}
    assert Tensor.randn(3, dtype=dtypes.int32, contiguous=False).dtype is Tensor.normal(3, dtype="int32").dtype
    uninstall()
    for bad in (lambda: Tensor(None), lambda: Tensor(300, dtype="uint8"), lambda: Tensor.randn(3, dtype="int32"),
                lambda: Tensor.zeros(2, buffer=False)):
        with pytest.raises((TypeError, OverflowError)):
            bad()


def test_computed_leaves_have_gradients(names: None) -> None:
    from tinsmith import Tensor

    x = Tensor.arange(3).float()
    y = x * 2
    (y * y).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [0, 8, 16] and y.grad is None
    noise = Tensor.rand(2) - 0.5
    w = Tensor([1.0, 2.0])
    z = w + 1
    (noise * z).sum().backward()
    assert noise.grad is not None and noise.grad.tolist() == [2.0, 3.0] and w.grad is not None and z.grad is None
    uninstall()
    x = Tensor.arange(3).float()
    (x * x).sum().backward()
    assert x.grad is None


def test_states_of_models(names: None) -> None:
    from tinygrad import Tensor, nn

    layer = nn.Linear(2, 3)
    own = nn.state.get_state_dict(layer)
    assert len(nn.state.load_state_dict(layer, {**own, "more": Tensor([1.0])}, strict=False)) == 2
    array = np.zeros(2)
    assert nn.state.get_state_dict({"a": array, "b": Tensor([1])}, tensor_type=np.ndarray) == {"a": array}
    assert list(nn.state.get_state_dict({"a": array, "b": Tensor([1])}, "p.")) == ["p.b"]


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


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_method_that_is_not_here_says_what_is(name: str) -> None:
    install()
    try:
        with pytest.raises(ValueError, match="only in tinygrad") as caught:
            getattr(Tensor([1.0]), name)()
        assert METHODS[name] in str(caught.value)
    finally:
        uninstall()
    assert name not in vars(Tensor)


def test_modules_that_are_here_under_compat() -> None:
    install()
    try:
        assert importlib.import_module("tinygrad").function(abs) is abs
        assert importlib.import_module("tinygrad.function").function(abs) is abs
    finally:
        uninstall()


def test_tinygrads_place() -> None:
    assert MODULES["tinygrad.nn.onnx"]["OnnxRunner"] == "tinsmith.nn.onnx:OnnxRunner"


def test_the_scripts_mnist_takes_the_same_arguments(tmp_path: Path) -> None:
    for n, name in ((7, "train"), (3, "t10k")):
        write(tmp_path, f"{name}-images-idx3-ubyte", images(n, n), False)
        write(tmp_path, f"{name}-labels-idx1-ubyte", np.arange(n), False)
    x, _, _, y = nn.mnist(data=tmp_path)
    assert x.shape == (7, 1, 28, 28) and y.tolist() == [0, 1, 2]
    with pytest.raises(ArgumentError, match="offline='letters' is no data set"):
        nn.mnist(offline="letters")


def test_nothing_imports_compat() -> None:
    """Neither statements nor strings of other packages name it, but for the option of a command that asks for it."""
    wrong = []
    for path in (ROOT / "tinsmith").rglob("*.py"):
        if path.parent.name != "compat":
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                named = [a.name for a in node.names] if isinstance(node, ast.Import) else \
                    [node.module] if isinstance(node, ast.ImportFrom) else \
                    [node.value] if isinstance(node, ast.Constant) and isinstance(node.value, str) else []
                if any(re.match(r"tinsmith\.compat(\.\w+)*$", n or "") for n in named):
                    wrong.append(path.relative_to(ROOT).as_posix())
    assert wrong == ["tinsmith/__main__.py"]

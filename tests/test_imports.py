"""Package structure: imports follow the order of docs/design.md, without cycles or work at import."""
from __future__ import annotations

import ast
import functools
import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.golden.running import environment
from tinsmith import Tensor

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "tinsmith"
FILES = sorted(p for p in PACKAGE.rglob("*.py"))

# Each package may import itself and packages of lower layers.
FLOOR = {"core": 0, "shape": 1, "ir": 2, "target": 2.5, "codegen": 3, "backend": 4, "schedule": 5, "runtime": 5.2,
         "inspect": 5.4,
         "viz": 5.5, "tensor": 6, "jit": 7,
         "linalg": 7.5, "fft": 7.5, "special": 7.5, "random": 7.5,
         "nn": 8, "distributed": 8.5, "io": 8, "parallel": 8, "": 9, "conformance": 9,
         "examples": 9.5, "compat": 10, "torch": 10, "tools": 8, "__main__": 11}
OPTIONAL = {"llvmlite", "PIL", "tokenizers", "sklearn", "rich", "torch", "tqdm", "jax", "mpi4py", "msvcrt", "fcntl",
            "z3", "pyopencl", "graphviz", "psutil"}
MAX_LINES = 1000


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(p): p for p in FILES}


def package(module: str) -> str:
    return [*module.split("."), ""][1]


class Import(NamedTuple):
    """An import statement's module: where it stands, and if it serves types only."""
    name: str
    inside: bool  # a function
    typing: bool
    line: int


class Lazy(NamedTuple):
    """A module that is imported at its first use: ``Late("module")``."""
    name: str
    line: int


@functools.cache
def parsed(module: str) -> tuple[list[Import], list[Lazy]]:
    """Return the imports of a module and its lazy imports. Cached: a worker parses the modules of its tests only."""
    found: list[Import] = []
    lazy: list[Lazy] = []
    stack: list[tuple[ast.AST, bool, bool]] = [(ast.parse(MODULES[module].read_text("utf-8")), False, False)]
    while stack:
        node, inside, typing = stack.pop()
        if isinstance(node, ast.Import):
            found += [Import(a.name, inside, typing, node.lineno) for a in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            for a in node.names:
                full = f"{node.module}.{a.name}"
                found.append(Import(full if full in MODULES else node.module or "", inside, typing, node.lineno))
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Late" and isinstance(
                node.args[0], ast.Constant):
            lazy.append(Lazy(node.args[0].value, node.lineno))
        inside = inside or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            stack += [(n, inside, True) for n in node.body]
            stack += [(n, inside, typing) for n in node.orelse]
        else:
            stack += [(n, inside, typing) for n in ast.iter_child_nodes(node)]
    return found, lazy


@pytest.mark.parametrize("module", sorted(MODULES))
def test_imports_go_down(module: str) -> None:
    here = FLOOR[package(module)]
    found, lazy = parsed(module)
    found = [*found, *(Import(name, True, False, line) for name, line in lazy)]
    wrong = [f"line {line}: {name}" for name, _, typing, line in found
             if name.split(".")[0] == "tinsmith" and not typing and package(name) != package(module)
             and FLOOR[package(name)] >= here]
    assert not wrong, wrong


@pytest.mark.parametrize("module", sorted(MODULES))
def test_imports_stand_at_the_top(module: str) -> None:
    wrong = [f"line {line}: {name}" for name, inside, _, line in parsed(module)[0]
             if inside and name.split(".")[0] not in OPTIONAL]
    assert not wrong, wrong


def test_no_circles() -> None:
    """Module-level imports have no cycles, type-only imports included."""
    below = {m: {n for n, inside, _, _ in parsed(m)[0] if n in MODULES and not inside and n != m} for m in MODULES}
    while below:
        free = {m for m, found in below.items() if not found & below.keys()}
        assert free, f"a circle among {sorted(below)}"
        below = {m: found for m, found in below.items() if m not in free}


@pytest.mark.parametrize("module", sorted(MODULES))
def test_files_stay_readable(module: str) -> None:
    assert len(MODULES[module].read_text("utf-8").splitlines()) <= MAX_LINES


def test_importing_does_no_work() -> None:
    """Importing loads no compiler, optional package, device, cache file, process launcher or search, and starts no
    thread."""
    script = """
import builtins, json, sys, threading
import numpy
before = threading.active_count()
HEAVY = ("llvmlite", "sklearn", "rich", "torch", "scipy", "platformdirs", "psutil", "subprocess", "tempfile", "http",
         "tinsmith.viz.page", "tinsmith.inspect.trace",
         "tinsmith.backend.machine", "tinsmith.inspect.search.search", "tinsmith.inspect.explanation",
         "tinsmith.codegen.compile_kernel", "tinsmith.codegen.emit.linearize", "tinsmith.schedule.fusion.fusion",
         "tinsmith.ir.verify", "tinsmith.ir.text.printer", "tinsmith.ir.algebra.symbolic", "hmac")
opened = []
real = builtins.open
builtins.open = lambda *a, **k: (opened.append(str(a[0])), real(*a, **k))[1]
import tinsmith
print(json.dumps({"heavy": [m for m in HEAVY if m in sys.modules],
                  "threads": threading.active_count() - before, "devices": tinsmith.Device.opened(),
                  "opened": opened, "limit": sys.getrecursionlimit()}))
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert found == {"heavy": [], "threads": 0, "devices": [], "opened": [], "limit": 1000}


def test_what_the_disk_cache_holds_runs_without_the_code_generator(tmp_path: Path) -> None:
    script = """
import sys
from tinsmith import Tensor
print(Tensor([1, 2]).dot(Tensor([3, 4])).item(), "tinsmith.codegen.compile_kernel" in sys.modules)
"""
    printed = [subprocess.run([sys.executable, "-c", script], cwd=ROOT, env=environment(tmp_path, CHECK_IR="0"),
                              capture_output=True, text=True, check=True).stdout for _ in range(2)]
    assert printed == ["11 True\n", "11 False\n"]


def test_environment_is_read_by_the_settings_alone() -> None:
    """Every variable is declared once; compat's getenv serves scripts, the pool and distributed programs look for
    launchers, the cache for the platform's folders of its user."""
    allowed = {"core/settings.py", "core/cache_security.py", "compat/helpers.py", "compat/variables.py",
               "compat/conventions.py",
               "distributed/world.py", "distributed/launcher.py", "backend/cpu/pool.py", "examples/beautiful_mnist.py"}
    wrong = []
    for path in FILES:
        name = path.relative_to(PACKAGE).as_posix()
        text = path.read_text("utf-8")
        if "environ" not in text and "getenv" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            reads = (isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv")
                     and ast.unparse(node) in ("os.environ", "os.getenv"))
            if reads and name not in allowed:
                wrong.append(f"{name}: {ast.unparse(node)}")
    assert not wrong, wrong


def test_integer_algebra_is_there_from_the_start() -> None:
    """The rules that simplify indices are imported at their first use."""
    script = """
from tinsmith import Tensor, dtypes
from tinsmith.ir import UOp
place, valid = Tensor([1, 2, 3, 4]).reshape(2, 2).pad(((1, 0), None)).uop.st.expr_idxs()
print((UOp.const(dtypes.int32, 2) + 1).simplify().arg, valid)
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("3 ")


def test_modules_of_functions_are_imported_when_used() -> None:
    script = """
import sys, tinsmith
names = ("linalg", "fft", "special", "random", "nn")
before = [n for n in names if f"tinsmith.{n}" in sys.modules]
print(before, all(getattr(tinsmith, n).__name__ == f"tinsmith.{n}" for n in names))
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[] True\n"


def test_tensor_is_a_short_chain_of_written_classes() -> None:
    """Each class of ``Tensor`` extends the one before it; no public name is defined twice or at run time."""
    chain = Tensor.__mro__[:-1]
    assert len(Tensor.__mro__) <= 14
    assert all(kind.__bases__ == (base,) for kind, base in pairwise(Tensor.__mro__))
    names = [n for kind in chain for n in vars(kind) if not n.startswith("__")]
    assert len(names) == len(set(names))
    for kind in chain:
        tree = ast.parse(MODULES[kind.__module__].read_text("utf-8"))
        body = next(n for n in ast.walk(tree) if isinstance(n, ast.ClassDef) and n.name == kind.__name__)
        written = {n.name for n in ast.walk(body) if isinstance(n, ast.FunctionDef)} | {
            n.id for n in ast.walk(body) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        assert not [n for n in vars(kind) if not n.startswith("_") and n not in written | set(kind.__slots__)]

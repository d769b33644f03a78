"""Decisions depend on target data: the scheduler and the code generator name no device and do not test for a GPU
grid."""
from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tinsmith.backend.device import Device

PACKAGE = Path(__file__).parents[1] / "tinsmith"
FILES = {p.relative_to(PACKAGE).as_posix(): ast.parse(p.read_text())
         for part in ("codegen", "schedule", "runtime", "inspect") for p in sorted((PACKAGE / part).rglob("*.py"))
         if "render" not in p.relative_to(PACKAGE).parts}

TARGETS = ("llvm", "opencl", "cuda", "metal", "hip", "wgsl")
NAMED = {"runtime/launch.py": {"NPY"}}  # the host's memory, where values are read


def device_names(tree: ast.Module) -> Iterator[str]:
    """Return the names of built-in devices among a module's string constants, docstrings excluded."""
    documented = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}
    for n in ast.walk(tree):
        if isinstance(n, ast.Constant) and isinstance(n.value, str) and id(n) not in documented:
            name = n.value.split(":")[0]
            if name in Device.BUILT_IN or name.split("_")[0] in TARGETS:
                yield name


def says_what_kind(node: ast.AST) -> bool:
    """Return True if an expression is a ``Target`` field that distinguishes a GPU grid from CPU loops."""
    if not isinstance(node, ast.Attribute):
        return False
    of = node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, "id", "")
    return node.attr == "block_threads" or (of, node.attr) in {
        ("target", "grid"), ("target", "parallel"), ("target", "blocks"), ("blocks", "threads")}


def kinds_asked(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the expressions that branch on the kind of a target: a condition, or a comparison with 0 or a role.

    Calls of ``require``, which check that an opt is legal, are exempt.
    """
    decide: list[ast.AST] = []
    if isinstance(tree, ast.Call):
        name = getattr(tree.func, "attr", getattr(tree.func, "id", ""))
        if name == "require":
            return
        decide = tree.args if name == "bool" else []
    elif isinstance(tree, (ast.If, ast.IfExp, ast.While)):
        decide = [tree.test]
    elif isinstance(tree, ast.comprehension):
        decide = list(tree.ifs)
    elif isinstance(tree, ast.BoolOp):
        decide = tree.values[:-1]
    elif isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.Not):
        decide = [tree.operand]
    elif isinstance(tree, ast.Compare):
        sides = [tree.left, *tree.comparators]
        bare = [s for s in sides if ast.unparse(s) == "0" or ast.unparse(s).startswith("Role.")]
        decide = sides if bare else []
    whole = [v for d in decide for v in (d.values if isinstance(d, ast.BoolOp) else [d])]
    yield from filter(says_what_kind, dict.fromkeys(whole))
    for child in ast.iter_child_nodes(tree):
        yield from kinds_asked(child)


def test_nobody_asks_whether_there_is_a_grid() -> None:
    found = {path: asked for path, tree in FILES.items() if (asked := list(map(ast.unparse, kinds_asked(tree))))}
    assert found == {}, "tables by Target.parallel, fields of Target, or amounts that it allows"


def test_no_device_is_named() -> None:
    found = {path: names for path, tree in FILES.items() if (names := set(device_names(tree)))}
    assert found == NAMED


def test_what_counts_as_a_device() -> None:
    tree = ast.parse('H = "8"\ndef f():\n    """CUDA"""\n    return x == "CUDA:1"\n')
    assert list(device_names(tree)) == ["CUDA"]


def test_what_counts_as_asking_for_a_grid() -> None:
    asking = ("if target.blocks.threads: pass", "x = a if k.target.block_threads else b", "not target.block_threads",
              "[a for a in b if target.grid]", "bool(target.block_threads) or c", "target.parallel is Role.GLOBAL",
              "0 < target.block_threads", "if a and target.block_threads: pass")
    assert all(len(list(kinds_asked(ast.parse(text)))) == 1 for text in asking)
    fine = ("[a for a in b if a <= target.block_threads]", "table[target.parallel]", "c or target.blocks.threads",
            "opt.require(target.block_threads > 0, 'no blocks')", "if target.blocks.long > 4: pass")
    assert not any(list(kinds_asked(ast.parse(text))) for text in fine)

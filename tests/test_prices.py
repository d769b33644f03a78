"""What steers a choice is data of a target: the scheduler and the code generator have no tuning constants, name no
device and do not ask whether there is a grid."""
from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tinsmith.backend.device import Device

PACKAGE = Path(__file__).parents[1] / "tinsmith"
FILES = {p.relative_to(PACKAGE).as_posix(): ast.parse(p.read_text())
         for part in ("codegen", "schedule", "runtime", "inspect") for p in sorted((PACKAGE / part).rglob("*.py"))
         if "render" not in p.relative_to(PACKAGE).parts}

# Numbers that choose nothing: they are what they are on every device.
NO_TUNING = {
    "bits and constants of mathematics": {
        "codegen/decompose/fp8.py": {"_INF"}, "codegen/decompose/floats.py": {"LOG2E", "LOG2E_PARTS"},
        "codegen/decompose/elementary.py": {"FIRST_INFINITE", "_LOG2_32", "_LOG32", "_LOG64"},
        "codegen/decompose/trig.py": {"_PI", "_PI_LOW", "_PI_WORD", "_INV_PI", "_INV_PI_WORDS", "_LOW_HALF",
                                      "_LOW_BITS",
                             "_FUSED32"},
        "inspect/sample.py": {"EPSILON"}},
    "names of ranges and formats of files": {
        "codegen/transform/matrix_units.py": {"_NUMBER"}, "inspect/trace.py": {"VERSION"}},
    "limits of languages, compilers and drivers": {
        "codegen/transform/thread_blocks.py": {"ROWS_OF_GRID"}, "codegen/lower/loop_partition.py": {"MOST_PIECES",
                                                                                                    "MOST_LOOPS"},
        "schedule/fusion/kernel_merge.py": {"MOST_BUFFERS", "MOST_NODES"},
        "schedule/fusion/fusion.py": {"MOST_WORK"}, "schedule/fusion/fan_in.py": {"MOST_CONE"},
        "schedule/memory/memory_plan.py": {"ALIGN"}, "codegen/transform/tma_boxes.py": {"MOST_ROWS"}},
    "shapes of algorithms": {"codegen/transform/computed_operand.py": {"SIDE"}},
    "how long is searched, measured, compiled and planned": {
        "codegen/planner/cost.py": {"SEEN_VECTORS"}, "inspect/search/search.py": {"ROUNDS", "GAIN", "COPIES",
                                                                                  "AMOUNTS", "TILES"},
        "inspect/search/beam.py": {"START"},
        "schedule/memory/memory_budget.py": {"ROUNDS", "HALVINGS", "MOST_RUNS", "TURNS"},
        "runtime/parallel_compile.py": {"SWITCH"},
        "inspect/explanation.py": {"BUDGET"}, "inspect/search/trial.py": {"WHOLE", "BOXES"},
        "inspect/checked.py": {"WHOLE", "BOXES", "STEPS", "ROUNDINGS", "SPREAD"}},
    "what is shown and kept": {
        "runtime/listing.py": {"_LEAST"}, "runtime/realize.py": {"MANY", "_KEPT"},
        "inspect/planning.py": {"SHOWN"}, "inspect/profile.py": {"ROWS"},
        "inspect/trace.py": {"MOST_REWRITES", "MOST_ROWS", "MOST_SOURCE"},
        "schedule/passes/promote_constants.py": {"SEVERAL"}},
}

PLAIN = {0, 1, 2, 3, 4, -1}  # numbers that say how many there are of something, or of its bytes
WRITTEN = {  # other numbers in functions, by what they are
    "bits, and powers of two that nothing reaches": {
        "codegen/transform/prefetch.py": {20}, "codegen/transform/thread_blocks.py": {62},
        "codegen/transform/stages.py": {16}, "codegen/transform/block_rank.py": {31},
        "codegen/planner/roofline.py": {40},
        "codegen/planner/cpu/register_tiles.py": {40}, "codegen/transform/skip_masked_blocks.py": {31},
        "schedule/fusion/fusion.py": {20},
        "schedule/multi/sharding.py": {8, 16}, "inspect/search/search.py": {8}},
    "what instructions take": {
        "codegen/emit/emitter.py": {8, 32}, "codegen/emit/linearize.py": {16}, "codegen/transform/rings.py": {8},
        "codegen/transform/tma_boxes.py": {8},
        "codegen/transform/matrix_units.py": {64}},
    "how much is looked at, kept and shown": {
        "codegen/emit/thread_blocks.py": {15}, "codegen/planner/planner.py": {100}, "codegen/planner/cost.py": {9},
        "codegen/compile_kernel.py": {10},
        "schedule/memory/memory_budget.py": {64, 1e-9}, "schedule/canonical.py": {10_000},
        "schedule/fusion/horizontal.py": {64}},
}
MATHEMATICS = {"codegen/decompose/floats.py", "codegen/decompose/elementary.py", "codegen/decompose/trig.py",
               "codegen/decompose/fp8.py",
               "codegen/decompose/pow.py", "codegen/decompose/decompose.py"}

TARGETS = ("llvm", "opencl", "cuda", "metal", "hip", "wgsl")
NAMED = {"runtime/host_copies.py": {"NPY"}}  # the host's memory, where values are read


def is_number(node: ast.AST) -> bool:
    """Whether an expression is made of numbers alone."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, (int, float)) and not isinstance(node.value, bool)
    parts = (ast.BinOp, ast.UnaryOp, ast.Tuple, ast.List, ast.Dict, ast.operator, ast.unaryop, ast.expr_context)
    return isinstance(node, parts) and all(is_number(n) or isinstance(n, parts) for n in ast.iter_child_nodes(node)) \
        and any(isinstance(n, ast.Constant) for n in ast.walk(node))


def numbers(tree: ast.Module) -> Iterator[str]:
    """Names that a module gives numbers."""
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(
            node, ast.AnnAssign) else []
        value = node.value if isinstance(node, (ast.Assign, ast.AnnAssign)) else None
        if value is not None and is_number(value):
            yield from (n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name) and n.id.isupper())


def literals(tree: ast.Module) -> set[float]:
    """Numbers in the functions of a module; those without arguments are examples of rules."""
    return {n.value for function in ast.walk(tree) if isinstance(function, ast.FunctionDef) and function.args.args
            for n in ast.walk(function) if isinstance(n, ast.Constant) and type(n.value) in (int, float)}


def device_names(tree: ast.Module) -> Iterator[str]:
    """Names of built-in devices among a module's texts that are no docstrings."""
    documented = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}
    for n in ast.walk(tree):
        if isinstance(n, ast.Constant) and isinstance(n.value, str) and id(n) not in documented:
            name = n.value.split(":")[0]
            if name in Device.BUILT_IN or name.split("_")[0] in TARGETS:
                yield name


def says_what_kind(node: ast.AST) -> bool:
    """Whether an expression is a field by which a grid of blocks can be told from loops of cores."""
    if not isinstance(node, ast.Attribute):
        return False
    of = node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, "id", "")
    return node.attr == "block_threads" or (of, node.attr) in {
        ("target", "grid"), ("target", "parallel"), ("target", "blocks"), ("blocks", "threads")}


def kinds_asked(tree: ast.AST) -> Iterator[ast.AST]:
    """Where the kind of a target decides: as a condition, or compared with none or a role. What a device allows is
    asked where an opt is legal, in ``require``."""
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


def test_tuning_constants_are_fields_of_a_target() -> None:
    free = {(path, name) for of in NO_TUNING.values() for path, names in of.items() for name in names}
    found = {(path, name) for path, tree in FILES.items() for name in numbers(tree)}
    assert sorted(found - free) == [], "make them fields of Target's rows (codegen/render/base.py)"
    assert sorted(free - found) == [], "they are gone: shorten the list"


def test_numbers_in_functions_choose_nothing() -> None:
    free = {path: PLAIN.union(*(of.get(path, ()) for of in WRITTEN.values())) for path in FILES}
    planned = {path: tree for path, tree in FILES.items() if path.startswith(("codegen", "schedule"))}
    found = {path: left for path, tree in planned.items() if path not in MATHEMATICS
             and (left := literals(tree) - free[path])}
    assert found == {}, "make them fields of Target's rows (codegen/render/base.py)"
    unused = {path for of in WRITTEN.values() for path, values in of.items() if not values <= literals(FILES[path])}
    assert not unused, "they are gone: shorten the list"


def test_nobody_asks_whether_there_is_a_grid() -> None:
    found = {path: asked for path, tree in FILES.items() if (asked := list(map(ast.unparse, kinds_asked(tree))))}
    assert found == {}, "tables by Target.parallel, fields of Target, or amounts that it allows"


def test_no_device_is_named() -> None:
    found = {path: names for path, tree in FILES.items() if (names := set(device_names(tree)))}
    assert found == NAMED


def test_what_counts_as_a_number() -> None:
    tree = ast.parse('A = 1 << 4\nB, C = 2, 0.5\nD: Final = -3\nE = {1: 4}\nF = f(3)\ng = 3\nH = "8"\nI = (1, (2, 3))\n'
                     'def f():\n    """CUDA"""\n    J = 4\n    return x == "CUDA:1"\n')
    assert list(numbers(tree)) == ["A", "B", "C", "D", "E", "I"] and list(device_names(tree)) == ["CUDA"]


def test_what_counts_as_asking_for_a_grid() -> None:
    asking = ("if target.blocks.threads: pass", "x = a if k.target.block_threads else b", "not target.block_threads",
              "[a for a in b if target.grid]", "bool(target.block_threads) or c", "target.parallel is Role.GLOBAL",
              "0 < target.block_threads", "if a and target.block_threads: pass")
    assert all(len(list(kinds_asked(ast.parse(text)))) == 1 for text in asking)
    fine = ("[a for a in b if a <= target.block_threads]", "table[target.parallel]", "c or target.blocks.threads",
            "opt.require(target.block_threads > 0, 'no blocks')", "if target.blocks.long > 4: pass")
    assert not any(list(kinds_asked(ast.parse(text))) for text in fine)

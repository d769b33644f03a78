"""Prove that a move changed nothing else: ``python tools/moves/check.py OLD_COMMIT tools/moves/table.txt``.

Each module's top-level statements, without docstrings and imports, with imported names replaced by the module and name
that they
stand for as the table maps them, are the same multiset before and after.
"""
from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from move import PACKAGE, SCOPES, Table, bound, strings


def sources(commit: str | None) -> dict[str, str]:
    """Return the text of every Python file in a commit, or in the working tree."""
    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], capture_output=True, text=True, check=True).stdout
    if commit is None:
        return {f: Path(f).read_text("utf-8") for f in git("ls-files", "*.py").split("\n") if f and Path(f).exists()}
    names = [f for f in git("ls-tree", "-r", "--name-only", commit).split("\n") if f.endswith(".py")]
    done = subprocess.run(["git", "cat-file", "--batch"], input="".join(f"{commit}:{f}\n" for f in names).encode(),
                          capture_output=True, check=True).stdout
    found = {}
    for name in names:
        head, _, done = done.partition(b"\n")
        size = int(head.split()[-1])
        found[name], done = done[:size].decode(), done[size + 1:]
    return found


def module_of(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


class Normal(ast.NodeTransformer):
    """Rewrites a module's statements so that where names come from is written out."""

    def __init__(self, table: Table | None, tree: ast.Module, known: set[str], here: str) -> None:
        self.table, self.known, self.hidden = table or Table(), known, [set[str]()]
        self.origin: dict[str, str] = {}
        self.here = here
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == PACKAGE:
                for alias in node.names:
                    full = f"{node.module}.{alias.name}"
                    new = self.table.module(full) if full in known else self.place(node.module or "", alias.name)
                    self.origin[alias.asname or alias.name] = new
        for statement in tree.body:  # a module's own names may be another's imports after the move
            for name in bound(ast.Module([statement], [])):
                if not isinstance(statement, (ast.Import,
                                              ast.ImportFrom)) and "TYPE_CHECKING" not in ast.unparse(statement)[:30]:
                    self.origin.setdefault(name, self.place(here, name))

    def place(self, module: str, name: str) -> str:
        return f"{self.table.home(module, name)}:{self.table.name(module, name)}"

    def visit(self, node: ast.AST) -> ast.AST:
        scope = isinstance(node, SCOPES)
        if scope:
            self.hidden.append(self.hidden[-1] | bound(node))
        done = super().visit(node)
        if scope:
            self.hidden.pop()
        return done

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id in self.origin and node.id not in self.hidden[-1] and isinstance(node.ctx, ast.Load):
            return ast.Name(self.origin[node.id], node.ctx)
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        if isinstance(node.value, ast.Name) and isinstance(node.value.ctx,
                                                           ast.Load) and node.value.id not in self.hidden[-1]:
            module = self.origin.get(node.value.id, "")
            if module and ":" not in module:  # an attribute of a module is that module's name
                olds = [o for o in self.known if self.table.module(o) == module
                        and ((o, node.attr) in self.table.names or (o, node.attr) in self.table.renamed)]
                return ast.Name(self.place(olds[0], node.attr) if olds else f"{module}:{node.attr}", node.ctx)
        return self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if isinstance(node.value, str):
            return ast.Constant(" ".join(strings(self.table, node.value).split()))
        return node

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST:
        return ast.Pass()

    visit_Import = visit_ImportFrom

    def body(self, node: ast.AST) -> ast.AST:
        found = node.body  # type: ignore[attr-defined]
        if found and isinstance(found[0], ast.Expr) and isinstance(found[0].value,
                                                                   ast.Constant) and isinstance(found[0].value.value,
                                                                                                str):
            found[0] = ast.Pass()
        return self.generic_visit(node)

    visit_FunctionDef = visit_AsyncFunctionDef = visit_Module = body

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        if len(self.hidden) == 1:
            node.name = self.table.name(self.here, node.name)
        return self.body(node)


def statements(table: Table | None, path: str, text: str, known: set[str]) -> dict[str, Counter[str]]:
    """Return new module → its statements, each as text."""
    tree = ast.parse(text)
    here = module_of(path)
    normal = Normal(table, tree, known, here)
    found: dict[str, Counter[str]] = defaultdict(Counter)
    table = table or Table()
    for statement in tree.body:
        if isinstance(statement, (ast.Import, ast.ImportFrom)) or "TYPE_CHECKING" in ast.unparse(statement)[:30]:
            continue
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            continue
        pieces = [statement]
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0],
                                                            ast.Tuple) and isinstance(statement.value, ast.Tuple):
            pieces = [ast.Assign([t], v, lineno=0) for t, v in zip(statement.targets[0].elts, statement.value.elts)]
        for piece in pieces:
            homes = {table.home(here, n) for n in bound(ast.Module([piece], []))} or {table.module(here)}
            assert len(homes) == 1, (path, homes)
            found[homes.pop()][ast.unparse(ast.fix_missing_locations(normal.visit(piece)))] += 1
    return found


def main() -> None:
    table = Table.read(Path(sys.argv[2]))
    sides = []
    for commit, rules in ((sys.argv[1], table), (None, None)):
        files = sources(commit)
        known = {module_of(f) for f in files}
        side: dict[str, Counter[str]] = defaultdict(Counter)
        for path, text in files.items():
            if path.startswith(("tinsmith/", "benchmarks/", "examples/", "tests/")) and "tutorials" not in path:
                for module, found in statements(rules, path, text, known).items():
                    side[module] += found
        sides.append(side)
    before, after = sides
    wrong = 0
    for module in sorted(before.keys() | after.keys()):
        lost, new = before[module] - after[module], after[module] - before[module]
        if lost or new:
            wrong += 1
            print(f"{module}: {sum(lost.values())} statements lost, {sum(new.values())} new")
            for a, b in list(zip(lost, new))[:2]:
                for x, y in zip(a.split("\n"), b.split("\n")):
                    if x != y:
                        print(f"  - {x}\n  + {y}")
                        break
    print(f"{len(before)} modules, {sum(sum(c.values()) for c in before.values())} statements, {wrong} modules differ")
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()

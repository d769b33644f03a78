"""Move and merge modules by one table: ``python tools/moves/move.py tools/moves/table.txt``.

A line of the table is ``old.module new.module`` (below ``tinsmith``). Several old modules with the same new one are
merged in the order of the table. ``old.module:Name,Other new.module`` moves definitions, ``old.module:Name
new.module:Other`` renames one (below the line that moves its module). Nothing but imports, names of imported
modules, and paths in strings and pages is edited; ``check.py`` proves it.
"""
from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path.cwd()
PACKAGE = "tinsmith"
# Packages whose modules are also named without the leading ``tinsmith.`` in strings and pages.
SHORT = ("codegen", "schedule", "runtime", "inspect", "backend", "ir", "core")
LIBRARY = ("tinsmith", "tests", "benchmarks", "examples", "docs", "tools", ".ci")


@dataclass
class Table:
    modules: dict[str, str] = field(default_factory=dict)  # every old module → the new one
    names: dict[tuple[str, str], str] = field(default_factory=dict)  # (old module, definition) → new module
    renamed: dict[tuple[str, str], str] = field(default_factory=dict)  # (old module, definition) → its new name

    @staticmethod
    def read(path: Path) -> Table:
        table = Table()
        for line in path.read_text("utf-8").splitlines():
            words = line.split("#")[0].split()
            if not words:
                continue
            old, new = words
            module, _, names = old.partition(":")
            new, _, name = new.partition(":")
            if name:
                table.renamed[f"{PACKAGE}.{module}", names] = name
                if table.home(f"{PACKAGE}.{module}", names) == f"{PACKAGE}.{new}":
                    continue
            for name in names.split(",") if names else ():
                table.names[f"{PACKAGE}.{module}", name] = f"{PACKAGE}.{new}"
            if not names:
                table.modules[f"{PACKAGE}.{module}"] = f"{PACKAGE}.{new}"
        return table

    def module(self, name: str) -> str:
        return self.modules.get(name, name)

    def name(self, module: str, name: str) -> str:
        return self.renamed.get((module, name), name)

    def home(self, module: str, name: str) -> str:
        return self.names.get((module, name), self.module(module))


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def path_of(module: str) -> Path:
    return ROOT / (module.replace(".", "/") + ".py")


def strings(table: Table, text: str) -> str:
    """Replace paths of modules in a text: dotted with ``tinsmith.``, dotted without, and as file names."""
    def dotted(match: re.Match[str]) -> str:
        words = match[0].split(".")
        for end in range(len(words), 1, -1):
            module, rest = ".".join(words[:end]), words[end:]
            if rest and (module, rest[0]) in table.names:
                return ".".join([table.names[module, rest[0]], table.name(module, rest[0]), *rest[1:]])
            if module in table.modules:
                return ".".join([table.modules[module], *([table.name(module, rest[0]), *rest[1:]] if rest else ())])
        return match[0]

    def short(match: re.Match[str]) -> str:
        full = f"{PACKAGE}.{match[0]}"
        new = re.sub(r".+", dotted, full)
        return new.removeprefix(f"{PACKAGE}.")

    def file(match: re.Match[str]) -> str:
        new = table.modules.get(f"{PACKAGE}." + match[2].replace("/", "."))
        return match[0] if new is None else (match[1] or "") + new.removeprefix(f"{PACKAGE}.").replace(".", "/") + ".py"

    def target(match: re.Match[str]) -> str:  # Sphinx and Markdown autolinks: module:attribute
        return re.sub(r".+", dotted, match[0])

    def imported(match: re.Match[str]) -> str:
        groups: dict[str, list[str]] = defaultdict(list)
        for name in match[2].split(","):
            base = name.split(" as ")[0].strip()
            full = f"{match[1]}.{base}"
            if full in table.modules:
                parent, _, new = table.modules[full].rpartition(".")
                groups[parent].append(new if new == base else f"{new} as {base}")
            else:
                groups[table.home(match[1], base)].append(name.strip().replace(base, table.name(match[1], base), 1))
        return "\n".join(f"from {m} import {', '.join(n)}" for m, n in groups.items())

    text = re.sub(rf"from ({PACKAGE}[\w.]*) import (\w+(?: as \w+)?(?:, *\w+(?: as \w+)?)*)", imported, text)
    text = re.sub(rf"(?<![\w./]){PACKAGE}(\.\w+)+", target, text)
    text = re.sub(rf"(?<![\w./-])(?:{'|'.join(SHORT)})(\.\w+)+", short, text)
    return re.sub(rf"(?<![\w./-])((?:\.\./)*{PACKAGE}/)?(\w+(?:/\w+)*)\.py\b", file, text)


class Edits:
    """Replacements in a text by character offsets."""

    def __init__(self, text: str) -> None:
        self.text, self.found = text, list[tuple[int, int, str]]()
        raw, self.starts = text.splitlines(keepends=True), [0]
        for line in raw:
            self.starts.append(self.starts[-1] + len(line))
        self.lines = raw

    def offset(self, line: int, column: int) -> int:
        return self.starts[line - 1] + len(self.lines[line - 1].encode()[:column].decode())

    def span(self, node: ast.AST) -> tuple[int, int]:
        return (self.offset(node.lineno, node.col_offset),  # type: ignore[attr-defined]
                self.offset(node.end_lineno, node.end_col_offset))  # type: ignore[attr-defined]

    def replace(self, node: ast.AST, new: str) -> None:
        self.found.append((*self.span(node), new))

    def result(self) -> str:
        text = self.text
        for start, end, new in sorted(self.found, reverse=True):
            text = text[:start] + new + text[end:]
        return text


SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def bound(scope: ast.AST) -> set[str]:
    """Return the names that a function, lambda or comprehension binds."""
    found: set[str] = set()
    if isinstance(scope, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
        a = scope.args
        found |= {x.arg for x in (*a.posonlyargs, *a.args, *a.kwonlyargs, *filter(None, (a.vararg, a.kwarg)))}
    stack: list[ast.AST] = list(ast.iter_child_nodes(scope))
    while stack:
        node = stack.pop()
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(node.name)
        if not isinstance(node, (*SCOPES, ast.ClassDef)):
            stack += ast.iter_child_nodes(node)
    return found


def uses(tree: ast.AST, name: str) -> Iterator[tuple[ast.Name, ast.Attribute | None]]:
    """Yield every load of a module's global name, with the attribute that is taken of it."""
    def walk(node: ast.AST, parent: ast.AST | None) -> Iterator[tuple[ast.Name, ast.Attribute | None]]:
        if isinstance(node, SCOPES) and name in bound(node):
            return
        if isinstance(node, ast.Name) and node.id == name:
            yield node, parent if isinstance(parent, ast.Attribute) else None
        for child in ast.iter_child_nodes(node):
            yield from walk(child, node)
    return walk(tree, None)


def all_names(tree: ast.AST) -> set[str]:
    return ({n.id for n in ast.walk(tree) if isinstance(n, ast.Name)} | {n.arg for n in ast.walk(tree) if isinstance(n,
                                                                                                                     ast.arg)}
            | {n.name for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.ClassDef))})


def rename(edits: Edits, tree: ast.Module, old: str, new: str) -> None:
    """Rename a module's global name where it is used, and where it is defined."""
    for use, _ in uses(tree, old):
        edits.replace(use, new)
    for node in tree.body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and node.name == old:
            start = edits.offset(node.lineno, node.col_offset)
            start = edits.text.index(old, start + len("def "))
            edits.found.append((start, start + len(old), new))


def rewrite(table: Table, text: str, here: str, known: set[str], old_here: str = "") -> str:
    """Return a Python text with its imports led to the new places. ``here`` is its new module."""
    tree, edits = ast.parse(text), Edits(text)
    names = all_names(tree)
    local: dict[str, str] = {}
    for (module, name), new_name in table.renamed.items():
        if module == old_here:
            assert new_name not in names, f"{here}: {new_name} is taken"
            rename(edits, tree, name, new_name)
            local[name] = new_name
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == PACKAGE:
            groups: dict[str, list[str]] = defaultdict(list)
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                if full in known and any(m == full for m, _ in table.renamed):
                    for _, attribute in uses(tree, alias.asname or alias.name):
                        if attribute is not None and (full, attribute.attr) in table.renamed:
                            end = edits.span(attribute)[1]
                            edits.found.append((end - len(attribute.attr), end, table.renamed[full, attribute.attr]))
                if full in known:  # a module
                    new = table.module(full)
                    parent, _, base = new.rpartition(".")
                    here_name = alias.asname or alias.name
                    if any(m == full for m, _ in table.names):
                        whole_module = False
                        for use, attribute in uses(tree, here_name):
                            home = table.names.get((full, attribute.attr)) if attribute else None
                            whole_module = whole_module or home is None
                            if home is not None:
                                above, _, last = home.rpartition(".")
                                edits.replace(use, last)
                                groups[above] += [last] if last not in groups[above] else []
                            elif base_of(new) != here_name:
                                edits.replace(use, base_of(new))
                        if whole_module:
                            groups[parent].append(base)
                    elif new == here:
                        for use, attribute in uses(tree, here_name):
                            assert attribute is not None, f"{here}: {here_name} is used as a value"
                            name = table.name(full, attribute.attr)
                            edits.found = [e for e in edits.found if e[1] != edits.span(attribute)[1]]
                            edits.found.append((edits.span(use)[0], edits.span(attribute)[1], name))
                    elif new == full:
                        groups[parent].append(alias.name + (f" as {alias.asname}" if alias.asname else ""))
                    elif base == here_name or (base in names and alias.asname is None):
                        groups[parent].append(base + ("" if base == here_name else f" as {here_name}"))
                    elif alias.asname is not None:
                        groups[parent].append(f"{base} as {here_name}")
                    else:
                        groups[parent].append(base)
                        for use, _ in uses(tree, here_name):
                            edits.replace(use, base)
                else:
                    new = table.home(node.module or "", alias.name)
                    name = table.name(node.module or "", alias.name)
                    if name != alias.name and alias.asname is None:
                        assert name not in names, f"{here}: {name} is taken"
                        rename(edits, tree, alias.name, name)
                        local[alias.name] = name
                    if new == here:
                        assert alias.asname is None, f"{here}: {alias.name} as {alias.asname}"
                    else:
                        groups[new].append(name + (f" as {alias.asname}" if alias.asname else ""))
            indent = " " * node.col_offset
            lines = [f"from {module} import {', '.join(found)}" for module, found in groups.items()]
            lines = [line if len(line) + len(indent) <= 120 else line.replace("import ", "import (",
                                                                              1) + ")" for line in lines]
            new_text = f"\n{indent}".join(lines) or ("pass" if node.col_offset else "")
            old_text = edits.text[slice(*edits.span(node))]
            if {l.strip() for l in lines} != {old_text} :
                edits.replace(node, new_text)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name in table.modules:
                    edits.replace(alias, table.modules[alias.name] + (f" as {alias.asname}" if alias.asname else ""))
                    if not alias.asname:
                        for attribute in ast.walk(tree):
                            if isinstance(attribute, ast.Attribute) and ast.unparse(attribute) == alias.name:
                                edits.replace(attribute, table.modules[alias.name])
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            start, end = edits.span(node)
            old = edits.text[start:end]
            new = siblings(table, strings(table, old), old_here, here)
            for name, new_name in local.items():  # forward references, code in docstrings
                if node.value == name:
                    new = new.replace(name, new_name)
                new = re.sub(rf"\b{name}(?=[(\[])|(?<=``){name}(?=``)", new_name, new)
            if new != old:
                edits.found.append((start, end, new))
    text = edits.result()
    # Comments are prose with paths in it.
    return re.sub(r"(?m)(^|\s)#.*$", lambda m: siblings(table, strings(table, m[0]), old_here, here), text)


def siblings(table: Table, text: str, old_here: str, here: str) -> str:
    """Replace names of files that stood in the same folder."""
    def file(match: re.Match[str]) -> str:
        new = table.modules.get(f"{old_here.rpartition('.')[0]}.{match[1]}")
        if new is None or not old_here:
            return match[0]
        if new.rpartition(".")[0] == here.rpartition(".")[0]:
            return base_of(new) + ".py"
        return new.removeprefix(f"{PACKAGE}.").replace(".", "/") + ".py"
    return re.sub(r"(?<![\w./-])(\w+)\.py\b", file, text)


def base_of(module: str) -> str:
    return module.rpartition(".")[2]


def is_import(node: ast.stmt) -> bool:
    return isinstance(node, (ast.Import, ast.ImportFrom))


def is_lazy(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


@dataclass
class Parts:
    """A module's text, taken apart."""

    docstring: str
    imports: list[str]
    lazy: list[tuple[list[str], list[str]]]  # the two branches of ``if TYPE_CHECKING``
    body: list[tuple[set[str], str]]  # names that a statement binds, and its text with the comments before it
    pragmas: list[str]  # comments for mypy about the whole file


def take_apart(text: str, parted: set[str]) -> Parts:
    pragmas = re.findall(r"(?m)^# mypy: .*$", text)
    text = re.sub(r"(?m)^# mypy: .*\n", "", text)
    tree, edits = ast.parse(text), Edits(text)
    parts = Parts(ast.get_docstring(tree) or "", [], [], [], pragmas)
    end = 0
    for node in tree.body:
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
        start, stop = edits.offset(first, 0), edits.starts[node.end_lineno or 0]
        lead = edits.text[end:start].strip("\n")
        own = edits.text[start:stop].rstrip("\n")
        end = stop
        if node is tree.body[0] and isinstance(node, ast.Expr) and parts.docstring:
            continue
        if is_import(node):
            if not (isinstance(node, ast.ImportFrom) and node.module == "__future__"):
                parts.imports.append(f"{lead}\n{own}".strip("\n"))
        elif is_lazy(node):
            assert isinstance(node, ast.If)
            branch = [[edits.text[edits.offset(n.lineno, 0):edits.starts[n.end_lineno or 0]].rstrip("\n") for n in b]
                      for b in (node.body, node.orelse)]
            parts.lazy.append((branch[0], branch[1]))
        elif (isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple) and isinstance(node.value,
                                                                                                     ast.Tuple)
              and len(node.targets[0].elts) == len(node.value.elts)
              and parted & {ast.unparse(name) for name in node.targets[0].elts}):
            # one assignment each, so that they can part
            for name, value in zip(node.targets[0].elts, node.value.elts):
                parts.body.append(({ast.unparse(name)},
                                   f"{lead}\n{ast.unparse(name)} = {ast.unparse(value)}".strip("\n")))
                lead = ""
        else:
            binds = set(bound(ast.Module([node], [])))
            parts.body.append((binds, f"{lead}\n{own}".strip("\n")))
    tail = edits.text[end:].strip("\n")
    assert not tail, tail
    return parts


def put_together(docstring: str, parts: list[Parts], module: str) -> str:
    seen: dict[str, int] = {}
    there: set[str] = set()
    for number, part in enumerate(parts):
        part.body = [(binds, own) for binds, own in part.body if own not in there]  # helpers that both files had
        there |= {own for _, own in part.body}
        for binds, _ in part.body:
            for name in binds:
                if name in seen and seen[name] != number:
                    print(f"conflict: {module}: {name} is defined in sources {seen[name]} and {number}")
                seen[name] = number
    imports = list(dict.fromkeys(i for p in parts for i in p.imports))
    first: list[str] = []
    other: list[str] = []
    for p in parts:
        for yes, no in p.lazy:
            first += [x for x in yes if x not in first]
            other += [x for x in no if x not in other]
    if other and not all("Late(" in x for x in other):
        print(f"look at: {module}: if TYPE_CHECKING with another branch")
    future = "from __future__ import annotations\n\n"
    text = f"\"\"\"{docstring}\"\"\"\n{future}" if docstring else future
    text = "".join(f"{x}\n" for x in dict.fromkeys(x for p in parts for x in p.pragmas)) + text
    text += "\n".join(imports) + "\n"
    if first:
        text += "\nif TYPE_CHECKING:\n" + "\n".join(first) + "\n"
        if other:
            text += "else:\n" + "\n".join(other) + "\n"
    for _, body in (b for p in parts for b in p.body):
        gap = "\n\n" if re.match(r"(#.*\n)*(@|def |class |async )", body) else "\n"
        text += f"\n{gap if not text.endswith(gap) else ''}{body}\n"
    return text


def git(*arguments: str) -> None:
    subprocess.run(["git", *arguments], cwd=ROOT, check=True)


def main() -> None:
    table = Table.read(Path(sys.argv[1]))
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True,
                            check=True).stdout.split("\n")
    files = [ROOT / f for f in listed if f and (ROOT / f).is_file()]
    python = {p: p.read_text("utf-8") for p in files if p.suffix == ".py"}
    library = {module_of(p): p for p in python if p.relative_to(ROOT).parts[0] == PACKAGE}
    missing = [m for m in table.modules if m not in library]
    assert not missing, missing
    known = set(library)
    packages = {m for m, p in library.items() if p.name == "__init__.py"}
    # Pieces of each new module, in the order of the table.
    pieces: dict[str, list[tuple[str, Parts]]] = defaultdict(list)
    order = {m: n for n, m in enumerate(table.modules)}
    whole: dict[str, str] = {}
    sources = defaultdict(list)
    for old in sorted(library, key=lambda m: (order.get(m, -1), m)):
        sources[table.module(old)].append(old)
    split = {m for m, _ in table.names}
    for new in table.names.values():
        sources.setdefault(new, [])
    joined = {new for new,
              olds in sources.items() if len(olds) > 1} | set(table.names.values()) | {table.module(m) for m in split}
    for new, olds in sources.items():
        for old in olds:
            text = rewrite(table, python[library[old]], table.module(old), known, old)
            if new in joined or old in split:
                parts = take_apart(text, {n for m, n in table.names if m == old})
                first = {v: k for (m, k), v in table.renamed.items() if m == old}
                parts.body = [({first.get(n, n) for n in b}, t) for b, t in parts.body]
                for name_module in {table.home(old, n) for b, _ in parts.body for n in b} | {new}:
                    mine = [(b, t) for b, t in parts.body if ({table.home(old,
                                                                          n) for n in b} or {new}) == {name_module}]
                    is_home = name_module == new
                    imports = list(parts.imports)
                    if not is_home:  # what stays behind may be needed
                        imports += [f"from {table.home(old, n)} import {table.name(old, n)}" for b,
                                    _ in parts.body for n in b
                                    if table.home(old, n) != name_module]
                    else:
                        imports += [f"from {table.home(old, n)} import {table.name(old, n)}" for b,
                                    _ in parts.body for n in b
                                    if table.home(old, n) != new]
                    pieces[name_module].append((parts.docstring if is_home else "", Parts("", imports, parts.lazy,
                                                                                          mine, parts.pragmas)))
            else:
                whole[new] = text
    texts = dict(whole)
    for new, found in pieces.items():
        docs = [d for d, _ in found if d]
        texts[new] = put_together("\n\n".join(docs), [p for _, p in found], new)
    for old, path in library.items():
        if old in table.modules and path.name != "__init__.py":
            path.unlink()
    for new, text in texts.items():
        there = library[new] if new in packages else path_of(new)
        there.parent.mkdir(parents=True, exist_ok=True)
        there.write_text(text, "utf-8")
        for parent in there.relative_to(ROOT / PACKAGE).parents:
            init = ROOT / PACKAGE / parent / "__init__.py"
            if not init.exists():
                print("new package:", init.relative_to(ROOT))
                init.write_text("", "utf-8")
    for path, text in python.items():
        if path.relative_to(ROOT).parts[0] != PACKAGE and "tools/moves" not in path.as_posix():
            new_text = rewrite(table, text, "", known)
            if new_text != text:
                path.write_text(new_text, "utf-8")
    for path in files:
        if path.suffix in (".md", ".toml", ".ipynb") or path.name == "run":
            text = path.read_text("utf-8")
            new_text = strings(table, text)
            # A link's text that is a bare file name follows its target.
            new_text = re.sub(r"\[(`?)\w+\.py(`?)\]\(([^)]*?)(\w+\.py)\)", r"[\1\4\2](\3\4)", new_text)
            if new_text != text:
                path.write_text(new_text, "utf-8")
    git("add", "-A")


if __name__ == "__main__":
    main()

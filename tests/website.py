"""What ``mkdocs build`` needs beyond its settings: README.md as the first page, pages of the sources that others link to,
and the Chinese pages beside the English ones.

A link of a page leads to a file of the repository, as on a code host. On the site, links out of docs/ lead to pages with
that file's text, so the site is complete by itself.
"""
from __future__ import annotations

import posixpath
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.docrun import blocks  # noqa: E402

_LINK = re.compile(r'(?P<before>\]\(|src=")(?P<path>[^)"#:\s]+)(?P<anchor>#[^)"\s]*)?(?P<after>[)"])')
_LANGUAGES = {".py": "python", ".toml": "toml", ".yml": "yaml", ".md": "markdown"}


def repository_path(src_uri: str) -> str:
    """Where the text of a page of the site lies in the repository."""
    return "README.md" if src_uri == "index.md" else f"docs/{src_uri}"


def site_path(path: str) -> str:
    """Where the site has a file or folder of the repository."""
    if path == "README.md":
        return "index.md"
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"source/{path}{'/index' if (ROOT / path).is_dir() else ''}.md"


def targets(text: str, path: str) -> set[str]:
    """The files and folders of the repository that a page links to."""
    found = {posixpath.normpath(posixpath.join(posixpath.dirname(path), m["path"])) for m in links(text)}
    return {t for t in found if (ROOT / t).exists()}


def links(text: str) -> list[re.Match[str]]:
    """The links of a page, but for what looks like one within code."""
    lines = text.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    code = [(starts[b.first - 1], starts[b.last + 1]) for b in blocks([line.rstrip("\n") for line in lines])]
    code += [m.span() for m in re.finditer(r"`[^`\n]+`", text)]
    return [m for m in _LINK.finditer(text) if not any(a <= m.start() and m.end() <= b for a, b in code)]


def moved(text: str, path: str) -> str:
    """A page's text with links to where the site has their targets; ``path`` is the page's in the repository."""
    found, end = [], 0
    for m in links(text):
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), m["path"]))
        if (ROOT / target).exists():
            place = posixpath.relpath(site_path(target), posixpath.dirname(site_path(path)) or ".")
            found += [text[end : m.start()], m["before"], place, m["anchor"] or "", m["after"]]
            end = m.end()
    return "".join(found) + text[end:]


def source_page(path: str) -> str:
    """A page with a file's text, or with the names in a folder."""
    full = ROOT / path
    if full.is_dir():
        names = sorted(p.name + "/" * p.is_dir() for p in full.iterdir() if not p.name.startswith(("__pycache__", ".")))
        return "\n".join([f"# {path}/", "", *(f"- `{name}`" for name in names), ""])
    language = _LANGUAGES.get(full.suffix, "text")
    return f'# {path}\n\n````{language} linenums="1"\n{full.read_text("utf-8")}````\n'


def mirrored(nav: list[Any], chinese: dict[str, str]) -> list[Any]:
    """The part of the navigation that has a translation, under its Chinese names."""
    found: list[Any] = []
    for entry in nav:
        if isinstance(entry, str):
            page = "README.md" if entry == "index.md" else entry
            found += [f"zh/{page}"] * (ROOT / "docs" / "zh" / page).exists()
        else:
            found += [{chinese[name]: inner} for name, part in entry.items() if (inner := mirrored(part, chinese))]
    return found


def on_config(config: Any) -> Any:
    """Chinese pages have a tab of their own."""
    chinese = config.extra["chinese"]
    if pages := mirrored(config.nav, chinese):
        config.nav = [*config.nav, {chinese["index.md"]: pages}]
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add README.md, and what the pages link to outside of docs/."""
    readme = (ROOT / "README.md").read_text("utf-8")
    files.append(File.generated(config, "index.md", content=readme))
    pages = {repository_path(f.src_uri): f.content_string for f in files.documentation_pages()}
    wanted = set().union(*(targets(text, path) for path, text in pages.items()))
    for path in sorted(wanted):
        if not path.startswith("docs/") and path != "README.md":
            files.append(File.generated(config, site_path(path), content=source_page(path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Lead links to where the site has their targets."""
    if page.file.src_uri.startswith("source/"):
        page.meta["search"] = {"exclude": True}
        return markdown
    return moved(markdown, repository_path(page.file.src_uri))


def on_page_context(context: Any, page: Any, config: Any, nav: Any) -> Any:
    """Chinese pages have Chinese words around them; the switch of languages leads to the same page in the other."""
    uri = page.file.src_uri
    chinese = uri.startswith("zh/")
    config.theme["language"] = "zh" if chinese else "en"
    inner = uri.removeprefix("zh/")
    english = "index.md" if uri in ("index.md", "zh/README.md") else inner
    translated = "zh/README.md" if english == "index.md" else f"zh/{inner}"
    if not (ROOT / "docs" / translated).exists():
        translated = "zh/README.md"
    places = {"en": ("English", english), "zh": ("中文", translated)}
    config.extra["alternate"] = [{"name": name, "lang": lang, "link": _html(place)}
                                 for lang, (name, place) in places.items()
                                 if place == "index.md" or (ROOT / repository_path(place)).exists()]
    return context


def _html(uri: str) -> str:
    folder, name = posixpath.split(uri)
    return posixpath.join(folder, "index.html" if name in ("README.md", "index.md") else name.replace(".md", ".html"))

"""Builder of the documentation site with Sphinx: ``python tests/website.py [FOLDER]``; the default is site/.

A link of a page leads to a file of the repository, as on a code host. On the site, links to sources lead to pages with
their text, so it is complete by itself, needs no server, and fetches nothing. A broken link is an error.
"""
from __future__ import annotations

import posixpath
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.docrun import blocks  # noqa: E402

# The order of the pages, by part; a Chinese page takes its English page's place.
PARTS = {
    ("Learn", "学习"): ["lessons/README.md"],
    ("Use", "使用"): ["from_pytorch.md", "torch.md", "from_tinygrad.md", "rosetta.md", "semantics.md", "data.md",
                    "layers.md", "formats.md", "training.md", "distributed.md", "clusters.md", "gradients.md", "jit.md",
                    "plan.md", "devices.md", "symbolic.md", "cuda.md", "settings.md", "errors.md", "api.md"],
    ("Look inside", "看内部"): ["tour.md", "viz.md", "explain.md", "profiling.md", "sources.md", "opts.md", "search.md",
                             "performance.md", "performance-history.md", "numerics.md"],
    ("Build", "构建"): ["design.md", "glossary.md", "ir.md", "layouts.md", "walk.md", "new_accelerator.md"],
}
LESSONS = "lessons/README.md"  # the page under which the lessons stand
RENAMED = {"docs/search.md": "beam.md"}  # Sphinx has a page of its own for searches
SETTINGS = """
project = html_title = "Tinsmith"
root_doc = "index"
extensions = ["myst_parser"]
myst_enable_extensions = ["html_image"]
myst_heading_anchors = 6
suppress_warnings = ["misc.highlighting_failure"]  # pages show parts of programs
html_theme = "furo"
pygments_dark_style = "github-dark"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = html_show_copyright = html_copy_source = html_show_search_summary = False


def setup(app):
    def chinese(app, page, template, context, doctree):
        if page.startswith("zh/"):
            context["language"] = "zh"
    app.connect("html-page-context", chinese)
"""
STYLE = """
.content { width: 52em; }
div[class*="highlight-"] pre { font-size: 0.7rem; }
article img[src$=".svg"] { background: #fff; border-radius: 4px; }
"""
_LINK = re.compile(r'(?P<before>\]\(|src=")(?P<path>[^)"#:\s]+)(?P<anchor>#[^)"\s]*)?(?P<after>[)"])')
_LANGUAGES = {".py": "python", ".toml": "toml"}


def site_path(path: str) -> str:
    """Return the path on the site of a file or folder of the repository."""
    if path == "README.md":
        return "index.md"
    if path in RENAMED:
        return RENAMED[path]
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"source/{path}{'/index' if (ROOT / path).is_dir() else ''}.md"


def links(text: str) -> Iterator[re.Match[str]]:
    """Return the links and pictures of a page, except those in code."""
    lines = text.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    code = [(starts[b.first - 1], starts[b.last + 1]) for b in blocks([line.rstrip("\n") for line in lines])]
    code += [m.span() for m in re.finditer(r"`[^`\n]+`", text)]
    return (m for m in _LINK.finditer(text) if not any(a <= m.start() and m.end() <= b for a, b in code))


def moved(text: str, path: str) -> tuple[str, set[str]]:
    """Return the text of a page at ``path`` of the repository, with links rewritten to the site, and their targets."""
    found, end, targets = [], 0, set[str]()
    for m in links(text):
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), m["path"]))
        if (ROOT / target).exists():
            targets.add(target)
            place = posixpath.relpath(site_path(target), posixpath.dirname(site_path(path)) or ".")
            listed = target != "README.md" and not target.startswith("docs/")  # a file's text has no headings there
            found += [text[end : m.start()], m["before"], place, "" if listed else m["anchor"] or "", m["after"]]
            end = m.end()
    return "".join(found) + text[end:], targets


def source_page(path: str) -> str:
    """Return a page with a file's text, or with the names in a folder."""
    full = ROOT / path
    if full.is_dir():
        names = sorted(p.name + "/" * p.is_dir() for p in full.iterdir() if not p.name.startswith(("__pycache__", ".")))
        return "\n".join(["---", "orphan: true", "---", f"# {path}/", "", *(f"- `{name}`" for name in names), ""])
    language, fence = _LANGUAGES.get(full.suffix, "text"), "`" * 8
    return (f"---\norphan: true\n---\n# {path}\n\n{fence}{{code-block}} {language}\n:linenos:\n\n"
            f"{full.read_text('utf-8').rstrip()}\n{fence}\n")


def contents(caption: str, pages: list[str], at: str) -> str:
    """Return the pages that the sidebar lists below the page ``at``; all are paths of the repository."""
    entries = [posixpath.relpath(site_path(p), posixpath.dirname(site_path(at)) or ".") for p in pages]
    return "\n".join(["", "```{toctree}", ":hidden:", *([f":caption: {caption}"] if caption else []), "", *entries,
                      "```", ""])


def navigation(language: int, folder: str) -> Iterator[tuple[str, str]]:
    """(page, what to add to it) for the pages of a language in a folder: 0 is English, 1 Chinese."""
    first = "docs/zh/README.md" if language else "README.md"
    for names, pages in PARTS.items():
        if found := [folder + p for p in pages if (ROOT / folder / p).exists()]:
            yield first, contents(names[language], found, first)
    lessons = sorted(p.name for p in (ROOT / folder / "lessons").glob("[0-9cs]*.md"))
    if (ROOT / folder / LESSONS).exists():
        yield folder + LESSONS, contents("", [f"{folder}lessons/{name}" for name in lessons], folder + LESSONS)


def switch(path: str) -> str:
    """Return the line of a page that links to the same page in the other language."""
    inner = path.removeprefix("docs/").removeprefix("zh/")
    english = "README.md" if path in ("README.md", "docs/zh/README.md") else f"docs/{inner}"
    chinese = f"docs/zh/{inner}"
    other, name = (english, "English") if path == chinese else (chinese, "中文")
    if not (ROOT / other).exists() or path in ("README.md", "docs/zh/README.md"):  # these have it for all to see
        return ""
    return f"[{name}]({posixpath.relpath(other, posixpath.dirname(path) or '.')})\n\n"


def assemble(folder: Path) -> None:
    """Return the pages of the site as files for Sphinx."""
    added: dict[str, list[str]] = {}
    for page, text in [*navigation(0, "docs/"), ("README.md", contents("中文", ["docs/zh/README.md"], "README.md")),
                       *navigation(1, "docs/zh/")]:
        added.setdefault(page, []).append(text)
    wanted = set[str]()
    for full in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        path = full.relative_to(ROOT).as_posix()
        title, _, rest = full.read_text("utf-8").partition("\n\n")
        text, targets = moved(f"{title}\n\n{switch(path)}{rest}", path)
        wanted |= targets
        _write(folder / site_path(path), text + "".join(added.get(path, [])))
    for path in wanted:
        if path.startswith("docs/") and not path.endswith(".md"):
            _write(folder / site_path(path), (ROOT / path).read_bytes())
        elif not path.startswith("docs/") and path != "README.md":
            _write(folder / site_path(path), source_page(path))
    _write(folder / "_static" / "site.css", STYLE)
    _write(folder / "conf.py", SETTINGS)


def _write(path: Path, content: str | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


def build(target: Path, quiet: bool = False) -> int:
    """Build the site in ``target``; return 0 if there is no error."""
    from sphinx.cmd.build import build_main

    with tempfile.TemporaryDirectory() as work:
        assemble(Path(work))
        return build_main(["-b", "html", "-W", "--keep-going", "-n", *["-q"] * quiet,
                           "-d", str(Path(work) / "_doctrees"), work, str(target)])


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "site"
    shutil.rmtree(folder, ignore_errors=True)
    failed = build(folder)
    print("broken" if failed else f"open {folder / 'index.html'}")
    sys.exit(failed)

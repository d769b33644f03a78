"""``python -m tinsmith``: inspect the installation, test a device, manage the disk cache.

    python -m tinsmith doctor              every device × renderer, with the exact reason if it cannot run
    python -m tinsmith conformance DEVICE  run the conformance suite on a device
    python -m tinsmith machine [DEVICE]    measure the machine's bandwidths and peak rates, and keep them for explain()
    python -m tinsmith cache ls|clear      list the contents of the disk cache; empty it
    python -m tinsmith cache why KEY       the entries whose key begins with KEY
    python -m tinsmith beam ls|path        list BEAM search results of all machines; print the file's path
    python -m tinsmith beam merge FILE...  merge search results of other machines
    python -m tinsmith viz TRACE           show a trace that VIZ=1 or VIZ=2 wrote; --html OUT writes it as one page
    python -m tinsmith source SCRIPT       the source of every kernel that a script runs; --device D for a device that
                                           may be absent (METAL, CUDA, HIP, WEBGPU); other arguments go to the script
    python -m tinsmith ir                  the page docs/ir.md, from the op table
    python -m tinsmith explain-error E040  the causes and remedies of an error code
    python -m tinsmith examples            list the programs to start from; with a name and arguments, run one
    python -m tinsmith launch -n N SCRIPT  run a script in N processes, which MPI connects; --restart K after failures
    python -m tinsmith --version           the version
"""
from __future__ import annotations

import argparse
import ast
import contextlib
import importlib
import os
import pkgutil
import platform
import runpy
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path

from tinsmith import Tensor, conformance, viz
from tinsmith.backend.cpu import llvm, os_calls
from tinsmith.backend.device import Device
from tinsmith.backend.machine import machine, measure
from tinsmith.core.cache_security import cache_dir, fault, make_private
from tinsmith.core.disk_cache import cache_entries, cache_prune
from tinsmith.core.errors import ArgumentError, TinsmithError
from tinsmith.core.settings import settings
from tinsmith.core.terminal import plural
from tinsmith.core.version import version as own_version
from tinsmith.distributed import launcher
from tinsmith.distributed.simulation.simulate import simulate
from tinsmith.inspect import debug, trace
from tinsmith.inspect.debug import opts_text
from tinsmith.inspect.search import database
from tinsmith.tools.error_pages import explain_error
from tinsmith.tools.ir_page import document

Row = tuple[str, ...]

RENDERERS = {"CPU": ("CPU:LLVM", "CPU:C")}  # device → its renderers, for devices with more than one


def show(title: str, head: Row, rows: Sequence[Row]) -> None:
    """Print a table: with rich if standard output is a terminal and rich is installed, else as plain columns."""
    if sys.stdout.isatty():
        try:
            table = importlib.import_module("rich.table").Table(*head, title=title, title_justify="left")
            console = importlib.import_module("rich.console").Console()
        except ImportError:
            pass
        else:
            for row in rows:
                table.add_row(*row)
            console.print(table)
            return
    widths = [max(len(r[i]) for r in (head, *rows)) for i in range(len(head))]
    print(title)
    for row in (head, tuple("-" * w for w in widths), *rows):
        print("  " + "  ".join(text.ljust(w) for text, w in zip(row, widths)).rstrip())
    print()


# *** doctor ***


def try_device(name: str) -> tuple[bool, str]:
    """Run a dot product on a device; return (whether it works, a description or the reason)."""
    try:
        device = Device.here(name)
        if not device.has_programs:
            return True, "memory only: no programs run on it"
        start = time.perf_counter()
        found = Tensor([1, 2], device=name).dot(Tensor([3, 4], device=name)).item()
    except TinsmithError as error:
        return False, f"{error.message}. Try: {error.mend}" if error.mend else error.message
    except Exception as error:  # a broken installation can raise anything
        return False, f"{type(error).__name__}: {error}"
    if found != 11:
        return False, f"[1, 2] · [3, 4] gave {found} instead of 11"
    through = getattr(device.compiler, "path", "") or type(device.renderer).__name__
    return True, f"runs a dot product in {(time.perf_counter() - start) * 1e3:.0f} ms, through {through}"


def cache_state() -> str:
    """Return the location of the disk cache and whether it is usable."""
    folder: Path | str = "nowhere"
    try:
        folder = cache_dir()
        make_private(folder)
        with tempfile.NamedTemporaryFile(dir=folder):
            pass
    except OSError as error:
        return f"{folder}: cannot be written ({error.strerror}); every process recompiles"
    wrong = fault()
    if wrong:
        return f"{folder}: not used, for {wrong}"
    entries = cache_entries()
    return f"{folder}: writable, {len(entries)} entries, {sum(size for _, size, _ in entries) / 1e6:.1f} MB"


def version(package: str) -> str:
    """Return the installed version of a package, or "not installed"."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def doctor() -> int:
    """Print the state of this installation; return 0 if the default device runs a dot product."""
    names = [n for device in Device.known() for n in RENDERERS.get(device, (device,))]
    default = Device.DEFAULT
    results = {name: try_device(name) for name in names}
    works, how = results.get(default) or try_device(default)
    show("Devices", ("device", "state", "how, or why not"),
         [(n, "ok" if ok else "no", text) for n, (ok, text) in results.items()])
    caches = os_calls.cache_sizes()
    features = sorted(llvm.host_features())
    machine = [
        ("default device", f"{default}: {how}"), ("cores for this process", str(os_calls.usable_cores())),
        ("vectors", f"{llvm.vector_bytes() * 8} bits on {os_calls.architecture()}"),
        ("caches", f"L1 {caches.l1 >> 10} KiB, L2 {caches.l2 >> 10} KiB"),
        ("memory", f"{os_calls.total_memory() / 2**30:.1f} GiB"), ("disk cache", cache_state()),
        ("system", f"{platform.platform()}, Python {platform.python_version()}"),
        ("tinsmith", own_version()),
        *((p, version(p)) for p in ("numpy", "llvmlite", "ml_dtypes", "cuda-bindings", "nvidia-cuda-nvrtc", "rich",
                                        "scikit-learn", "torch"))]
    show("Machine", ("what", "value"), machine)
    print("Processor features that generated code may use:")
    line = " "
    for feature in features:
        if len(line) + len(feature) > 116:
            print(line)
            line = " "
        line += f" {feature}"
    print(line)
    return 0 if works else 1


# *** machine ***


def show_machine(name: str | None, again: bool) -> int:
    """Print the device's measured machine data; measure first if there is none, or if ``again``."""
    try:
        found = machine(name)
        if again or not found.measured:
            found = measure(name)
    except TinsmithError as error:
        print(error)
        return 1
    sizes = ", ".join(f"{n} {size >> 10:,} KiB" for n, size in (("L1", found.l1), ("L2", found.l2), ("L3", found.l3)))
    at_a_time = ("workers", str(found.workers)) if found.cores == 1 else ("multiprocessors", str(found.cores))
    rows = [at_a_time, ("vectors", f"{found.vector_bytes * 8} bits"), *([("caches", sizes)] if found.l3 else []),
            ("launch of a kernel within a run", f"{found.launch * 1e6:.2f} us"),
            ("extra cost of waking the workers", f"{found.wake * 1e6:.2f} us"),
            ("run of a single kernel", f"{found.call * 1e6:.2f} us")]
    show(f"{found.device} on {found.name}", ("what", "value"), rows)
    tables = (("Copies, bytes read and written", "memory", "B/s", found.memory),
              ("Fused multiply-adds", "dtype", "FLOP/s", found.peaks), ("Matrix units", "unit", "FLOP/s", found.units))
    for title, what, unit, rates in tables:
        if rates:
            columns = 3 if found.workers > 1 else 2
            lines = [(r.name, _rate(r.one, unit), _rate(r.all, unit))[:columns] for r in rates]
            show(title, (what, "1 worker" if columns == 3 else found.size, found.size)[:columns], lines)
    return 0


def _rate(value: float, unit: str) -> str:
    """Format with three significant digits and an SI prefix."""
    size, prefix = next((p for p in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")) if value >= p[0]), (1.0, ""))
    return f"{f'{value / size:#.3g}'.rstrip('.')} {prefix}{unit}"


# *** conformance and cache ***


def accept(name: str) -> int:
    """Run the conformance suite; return 0 if all cases pass."""
    try:
        results = list(conformance.run(name))
    except TinsmithError as error:
        print(error)
        return 1
    failed = [r for r in results if not r.ok]
    for r in failed:
        print(f"FAILED {r.name}: {r.message}")
    print(f"{name}: {len(results) - len(failed)} of {len(results)} cases ok")
    return 1 if failed or not results else 0


def cache_list() -> int:
    """Print the contents of the disk cache, by kind."""
    kinds: dict[str, list[tuple[int, float]]] = {}
    for path, size, used in cache_entries():
        kinds.setdefault(path.relative_to(cache_dir()).parts[0], []).append((size, used))
    rows = [(kind, str(len(found)), f"{sum(s for s, _ in found) / 1e6:.2f} MB", _ago(max(t for _, t in found)))
            for kind, found in sorted(kinds.items())]
    try:
        where = str(cache_dir())
    except FileNotFoundError as error:
        where = f"nowhere: {error.strerror}"
    show(f"Disk cache in {where} (at most {settings.CACHE_BYTES / 1e6:.0f} MB)",
         ("kind", "entries", "size", "last used"), rows)
    return 0


def cache_why(key: str) -> int:
    """Print the entries whose key begins with ``key``: kind, size, last use."""
    found = [e for e in cache_entries() if e[0].name.startswith(key)]
    for path, size, used in found:
        print(f"{path.parent.parent.name} {path.name}: {size} bytes, last used {_ago(used)}")
    if not found:
        print(f"no entry's key begins with {key!r}: it was never stored, was dropped, or CACHELEVEL=0")
    return 0 if found else 1


# *** beam ***


def beam(action: str, files: Sequence[str]) -> int:
    """List, locate or merge BEAM search results."""
    if action == "path":
        print(database.place())
        return 0
    if action == "merge":
        try:
            print(f"{database.place()}: {database.merge([Path(f) for f in files])} kernels")
        except OSError as error:
            print(f"cannot merge: {error}")
            return 1
        return 0
    found = sorted(database.read().values(), key=lambda e: (e.machine, e.us - e.before_us))
    show(f"{len(found)} kernels in {database.place()}", ("machine", "kernel", "default", "found", "width", "opts"),
         [(e.machine, e.name, f"{e.before_us:.2f} us", f"{e.us:.2f} us", str(e.width), opts_text(list(e.opts)))
          for e in found])
    return 0


# *** viz ***


def show_trace(path: str, html: str | None, port: int) -> int:
    """Serve the page of a trace until Ctrl-C, or write it to a file."""
    try:
        text = viz.page.page(viz.page.read_trace(path))
        if html is not None:
            Path(html).write_text(text, "utf-8")
            print(f"{html}: {len(text.encode()) / 1e6:.1f} MB")
            return 0
        with viz.page.Server(text, port) as server:
            print(f"{server.url} (Ctrl-C ends)", flush=True)
            server.wait()
    except (OSError, TinsmithError) as error:
        print(error)
        return 1
    return 0


# *** source ***


def source(path: str, arguments: Sequence[str], device: str | None, tinygrads: bool) -> int:
    """Run a script as ``python`` does and print its kernels; the script's own output goes to standard error.

    Returns:
        the script's exit code; 1 if it raised (the kernels up to then are printed).
    """
    scripts = importlib.import_module("tinsmith.tools.scripts")
    out = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):
        try:
            text = Path(path).read_bytes()
            if tinygrads:
                importlib.import_module("tinsmith.compat").install()
            sys.argv, sys.path[0] = [path, *arguments], os.path.dirname(os.path.abspath(path))
            with debug.listing(out, Device.canonicalize(device)) as found:
                return _exit_code(scripts.run, text, path, found)
        except (OSError, TinsmithError) as error:
            print(error)
            return 1


def _exit_code(run: Callable[[bytes, str, str], None], text: bytes, path: str, found: debug.SourceList) -> int:
    try:
        run(text, path, path)
    except SystemExit as end:
        if end.code is not None and not isinstance(end.code, int):
            print(end.code)  # as ``python`` does: sys.exit("no such file")
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except Exception as error:
        frames = error.__traceback__
        while frames is not None and frames.tb_frame.f_code.co_filename != path:
            frames = frames.tb_next
        traceback.print_exception(error.with_traceback(frames or error.__traceback__))
        mend = ". Try: --compat" if isinstance(error, ImportError) and str(error.name).startswith("tinygrad") else ""
        print(f"the listing ends after {plural(len(found.seen), 'kernel')}: {path} raised {type(error).__name__}{mend}")
        return 1
    return 0


def _ago(moment: float) -> str:
    seconds = max(time.time() - moment, 0)
    unit, length = next((u for u in (("d", 86400), ("h", 3600), ("min", 60)) if seconds >= u[1]), ("s", 1))
    return f"{seconds / length:.0f} {unit} ago"


def show_error(code: str) -> int:
    """Print the explanation of an error code."""
    try:
        print(explain_error(code), end="")
    except ArgumentError as error:
        print(error.message, f"Try: {error.mend}", sep="\n", file=sys.stderr)
        return 2
    return 0


def example_names() -> list[str]:
    """Return the names of the programs in ``tinsmith.examples``."""
    return sorted(m.name for m in pkgutil.iter_modules([str(Path(__file__).with_name("examples"))]))


def list_examples() -> int:
    """Print the name and the first line of each program in ``tinsmith.examples``."""
    for name in example_names():
        text = Path(__file__).with_name("examples").joinpath(f"{name}.py").read_text("utf-8")
        print(f"{name:<16} {(ast.get_docstring(ast.parse(text)) or '').splitlines()[0]}")
    print("\ntinsmith examples NAME [--help | arguments]; what they need: pip install 'tinsmith[examples]'")
    return 0


def run_example(name: str, arguments: Sequence[str]) -> int:
    """Run a program of ``tinsmith.examples`` as ``python -m`` does."""
    sys.argv[1:] = arguments
    runpy.run_module(f"tinsmith.examples.{name}", run_name="__main__", alter_sys=True)
    return 0


def launch(arguments: Sequence[str]) -> int:
    """Run a script in several processes; return the exit code of their launcher."""
    parser = argparse.ArgumentParser(prog="tinsmith launch", description="Run a Python script in several processes.")
    parser.add_argument("-n", type=int, default=os_calls.usable_cores(), metavar="N", help="processes; one per core")
    parser.add_argument("--restart", type=int, default=0, metavar="K",
                        help="restarts after a failure, at most, without hosts that do not answer any more")
    parser.add_argument("--host", "--hosts", action="append", default=[], metavar="NAME:SLOTS,...",
                        help="hosts; may be repeated")
    parser.add_argument("--hostfile", default="", help="a file of hosts, as mpirun takes")
    parser.add_argument("program", nargs="*", help="script and its arguments, -m and a module, or -c and code")
    begin = 0  # of the program, whose options are its own; all options above have a value
    while begin < len(arguments) and arguments[begin].startswith("-") and arguments[begin] not in ("-m", "-c"):
        begin += 1 if "=" in arguments[begin] or arguments[begin] in ("-h", "--help") else 2
    chosen, program = parser.parse_args(arguments[:begin]), arguments[begin:]
    if not program or chosen.n < 1:
        parser.error("a script, and at least one process")
    trace.expect_nothing()
    try:
        return launcher.launch(chosen.n, program, chosen.restart, chosen.host, chosen.hostfile)
    except TinsmithError as error:
        print(error, file=sys.stderr)
        return 1


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line and run one command; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tinsmith", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", action="version", version=f"tinsmith {own_version()}")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("doctor", help="list the devices and why some cannot run")
    commands.add_parser("conformance", help="run the conformance suite on a device").add_argument("device")
    cache = commands.add_parser("cache", help="the disk cache")
    cache.add_argument("action", choices=("ls", "clear", "why"))
    cache.add_argument("key", nargs="?", default="")
    measured = commands.add_parser("machine", help="machine data: bandwidths and peak rates")
    measured.add_argument("device", nargs="?")
    measured.add_argument("--again", action="store_true", help="measure again")
    search = commands.add_parser("beam", help="BEAM search results")
    search.add_argument("action", choices=("ls", "path", "merge"))
    search.add_argument("files", nargs="*")
    viewer = commands.add_parser("viz", help="show a trace in the browser")
    viewer.add_argument("trace")
    viewer.add_argument("--html", metavar="OUT", help="write one page with everything in it instead of serving it")
    viewer.add_argument("--port", type=int, choices=range(1 << 16), metavar="PORT", default=0,
                        help="local port; a free one unless given")
    sources = commands.add_parser("source", help="print the source of a script's kernels")
    sources.add_argument("script")
    sources.add_argument("--device", help="target device; the default device unless given")
    sources.add_argument("--compat", action="store_true", help="the script imports tinygrad")
    commands.add_parser("ir", help="print docs/ir.md")
    commands.add_parser("explain-error", help="explain an error code").add_argument("code")
    commands.add_parser("launch", help="run a script in several processes")
    commands.add_parser("simulate", help="predict the time and memory of a script in any number of processes")
    programs = commands.add_parser("examples", help="list the programs to start from, or run one")
    programs.add_argument("name", nargs="?", choices=example_names())
    given = sys.argv[1:] if arguments is None else arguments
    if given[:1] == ["examples"] and given[1:] and given[1] in example_names():
        return run_example(given[1], given[2:])
    if given[:1] == ["launch"]:
        return launch(given[1:])
    if given[:1] == ["simulate"]:
        return simulate(given[1:])
    own = given.index("--") if "--" in given else len(given)
    chosen, rest = parser.parse_known_args(given[:own])
    rest += given[own + 1 :]
    if chosen.command == "source":
        return source(chosen.script, rest, chosen.device, chosen.compat)
    if rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if chosen.command == "doctor":
        return doctor()
    if chosen.command == "conformance":
        return accept(chosen.device)
    if chosen.command == "machine":
        return show_machine(chosen.device, chosen.again)
    if chosen.command == "beam":
        return beam(chosen.action, chosen.files)
    if chosen.command == "viz":
        return show_trace(chosen.trace, chosen.html, chosen.port)
    if chosen.command == "explain-error":
        return show_error(chosen.code)
    if chosen.command == "examples":
        return list_examples()
    if chosen.command == "ir":
        print(document(), end="")
        return 0
    if chosen.action == "ls":
        return cache_list()
    if chosen.action == "why":
        return cache_why(chosen.key)
    print(f"dropped {cache_prune(0)} entries")
    return 0


def run() -> int:
    """Run one command as the console script ``tinsmith``; return its exit code."""
    try:
        return main()
    except BrokenPipeError:  # the reader closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


if __name__ == "__main__":
    sys.exit(run())

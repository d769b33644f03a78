"""``python -m tinsmith.compat script.py [args]``: run a program that imports tinygrad, as ``python`` would run it."""
from __future__ import annotations

import os
import runpy
import sys
from types import TracebackType

from tinsmith.compat.conventions import install
from tinsmith.tools import scripts
from tinsmith.tools.scripts import run

USAGE = "usage: python -m tinsmith.compat [-c code | -m module | script.py | -] [args]"
_RUNNERS = (*(os.path.dirname(os.path.abspath(path)) + os.sep for path in (__file__, scripts.__file__)), "<frozen ")


def begin_at_the_script() -> None:
    """Omit the frames that run the script from tracebacks that end the program."""
    before = sys.excepthook

    def shown(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        inner = trace
        while inner is not None and inner.tb_frame.f_code.co_filename.startswith(_RUNNERS):
            inner = inner.tb_next
        before(kind, error.with_traceback(inner), inner)

    sys.excepthook = shown


def main(arguments: list[str]) -> int:
    """Run a script, a module, or code from an argument or standard input, as if Python had been started with it."""
    if not arguments and not sys.stdin.isatty():
        arguments = ["-"]
    if not arguments or arguments[0] in ("-h", "--help") or arguments in (["-m"], ["-c"]):
        print(USAGE, file=sys.stderr if not arguments else sys.stdout)
        return 0 if arguments[:1] in (["-h"], ["--help"]) else 2
    what = arguments[0]
    if what[0] == "-" and what not in ("-", "-c", "-m"):
        print(f"tinsmith.compat: unknown option {what}\n{USAGE}", file=sys.stderr)
        return 2
    if what[0] != "-" and not os.path.exists(what):
        print(f"tinsmith.compat: there is no file {what!r}\n{USAGE}", file=sys.stderr)
        return 2
    install()
    begin_at_the_script()
    if what == "-m":
        sys.argv = arguments[1:]
        sys.path[0] = os.getcwd()
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    elif what == "-c":
        sys.argv = ["-c", *arguments[2:]]
        sys.path[0] = ""
        run(arguments[1], "<string>")
    elif what == "-":
        sys.argv = arguments
        sys.path[0] = ""
        run(sys.stdin.read(), "<stdin>")
    elif os.path.isdir(what):
        sys.argv = arguments
        runpy.run_path(what, run_name="__main__")
    else:
        sys.argv = arguments
        sys.path[0] = os.path.dirname(os.path.abspath(what))
        with open(what, "rb") as file:  # once: a pipe or /dev/stdin gives its contents only once
            run(file.read(), what, what)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

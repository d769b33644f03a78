"""``python -m tinsmith.compat script.py [args]``: run a script that imports tinygrad."""
from __future__ import annotations

import os
import runpy
import sys

from tinsmith.compat.finder import install

USAGE = "usage: python -m tinsmith.compat [-m module | script.py | -] [args]"


def main(arguments: list[str]) -> int:
    """Run the script as if Python had been started with it; ``-`` reads it from standard input."""
    if not arguments or arguments[0] in ("-h", "--help") or arguments == ["-m"]:
        print(USAGE, file=sys.stderr if not arguments else sys.stdout)
        return 0 if arguments[:1] in (["-h"], ["--help"]) else 2
    install()
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        sys.path[0] = os.getcwd()
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        return 0
    script = arguments[0]
    sys.argv = arguments
    if script == "-":
        exec(compile(sys.stdin.read(), "<stdin>", "exec"), {"__name__": "__main__"})
        return 0
    if not os.path.exists(script):
        print(f"tinsmith.compat: there is no file {script!r}\n{USAGE}", file=sys.stderr)
        return 2
    sys.path[0] = os.path.dirname(os.path.abspath(script))
    runpy.run_path(script, run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

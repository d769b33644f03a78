"""``python -m tests.properties [KIND] [--count N] [--first SEED] [--seconds S]``: any number of random programs."""
from __future__ import annotations

import argparse
import sys

from tests.properties import runner


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.properties", description=__doc__)
    parser.add_argument("kind", nargs="*", help="; ".join(runner.kinds()) + "; all if none is given")
    parser.add_argument("--count", type=int, default=1000, help="programs of each kind")
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop a kind after so long")
    given = parser.parse_args()
    bad = 0
    for kind in given.kind or runner.kinds():
        count, failed = runner.run(kind, range(given.first, given.first + given.count), given.seconds)
        bad += len(failed)
        print(f"{kind}: {count} programs, {len(failed)} failed{f': seeds {failed[:20]}' if failed else ''}", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())

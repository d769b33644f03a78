"""``python -m benchmarks.corpus``: compare the opts and source text of every kernel with the stored corpus.

``check`` shows every kernel whose opts or text changed and fails if there is one, ``bless`` keeps what there is now,
``show PROGRAM`` prints a program's sources. ``--targets`` and ``--only`` narrow it to some machines and programs.
``regret`` times on this machine what is chosen against the best of its candidates, and keeps it by kind of machine.
``compile`` builds every kernel of whole networks for every target with blocks of threads, without such a device.
"""
from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

from benchmarks.corpus import compiled, record, regret
from benchmarks.corpus.compiled import Built, built
from benchmarks.corpus.models import models
from benchmarks.corpus.programs import programs
from benchmarks.corpus.record import Kept
from benchmarks.corpus.targets import TARGETS

PARTS = 4  # of a target's programs, so that the last process does not work alone for long


def made(work: tuple[str, list[str]]) -> tuple[str, Kept]:
    """Rows of some programs of a target."""
    target, names = work
    return target, {p.name: record.rows(p, target) for p in programs() if p.name in names}


def made_by_target(targets: list[str], names: list[str], jobs: int) -> Iterator[tuple[str, Kept]]:
    """The same of several targets, in their order, by several processes."""
    work = [(t, names[part::PARTS]) for t in targets for part in range(PARTS) if names[part::PARTS]]
    with ProcessPoolExecutor(jobs) as pool:
        found: dict[str, Kept] = {}
        for target, kept in pool.map(made, work):
            found.setdefault(target, {}).update(kept)
            if len(found[target]) == len(names):
                yield target, {name: found[target][name] for name in names}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.corpus", description=__doc__.split("\n")[0])
    parser.add_argument("do", choices=("check", "bless", "show", "regret", "compile"))
    parser.add_argument("program", nargs="?", default="", help="whose sources are shown")
    parser.add_argument("--targets", default="", help=f"some of them (default all): {', '.join(TARGETS)}")
    parser.add_argument("--only", metavar="REGEX", default="", help="programs whose names begin so")
    parser.add_argument("--sizes", default="small,full", help="of the networks that are compiled: %(default)s")
    parser.add_argument("--device", default="CPU", help="where regret is measured (default %(default)s)")
    parser.add_argument("--processor-time", action="store_true", help="regret by processor time, with one worker")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    options = parser.parse_args()
    every = compiled.GRIDS if options.do == "compile" else list(TARGETS)
    options.targets = options.targets.split(",") if options.targets else every
    if unknown := sorted(set(options.targets) - set(every)):
        parser.error(f"there is no target {', '.join(unknown)}; there are: {', '.join(every)}")
    wanted = options.program if options.do == "show" else options.only
    found = models(options.sizes.split(",")) if options.do == "compile" else programs()
    options.names = [p.name for p in record.matching(wanted, found)]
    if not options.names:
        parser.error(f"no program's name begins with {wanted!r}")
    return options


def show(targets: list[str], names: list[str]) -> None:
    for target in targets:
        for program in programs():
            for kernel in record.kernels(program, target) if program.name in names else ():
                print(f"// {target}, {program.name}: {' '.join(map(record.short, kernel.opts))}\n{kernel.source}")


def _built(work: tuple[str, str, tuple[str, ...]]) -> tuple[str, str, Built]:
    target, name, sizes = work
    return target, name, built(next(p for p in models(sizes) if p.name == name), target)


def compile_all(targets: list[str], names: list[str], sizes: tuple[str, ...], jobs: int) -> bool:
    """Build the kernels of networks, one network after the other; True if nothing went wrong."""
    good = True
    with ProcessPoolExecutor(jobs) as pool:
        for target, name, found in pool.map(_built, [(t, name, sizes) for name in names for t in targets]):
            print(f"{target}, {name}: {found.kernels} kernels, {found.compiled} compiled", *found.faults, sep="\n    ",
                  flush=True)
            good = good and not found.faults
    return good


def main() -> int:
    options = _options()
    if options.do == "compile":
        sizes = tuple(options.sizes.split(","))
        return int(not compile_all(options.targets, options.names, sizes, options.jobs))
    if options.do == "show":
        show(options.targets, options.names)
        return 0
    if options.do == "regret":
        return int(not regret.report([p for p in programs() if p.name in options.names], options.device,
                                     options.processor_time))
    whole, changed, count = not options.only, 0, 0
    for target, now in made_by_target(options.targets, options.names, options.jobs):
        before = record.read(target)
        if options.do == "bless":
            kept = now if whole else {**before, **now}
            order = [p.name for p in programs()]
            record.write(target, dict(sorted(kept.items(), key=lambda k: order.index(k[0]))))
        gone = [name for name in before if name not in now] if whole else []
        for name in (*now, *gone):
            found = list(record.changes(before.get(name, ()), now.get(name, ())))
            count, changed = count + len(now.get(name, ())), changed + len(found)
            if found:
                print(f"{target}, {name}", *found, sep="\n", flush=True)
    print(f"{count} kernels, {changed} changed" + " and kept" * (options.do == "bless"))
    return int(bool(changed) and options.do == "check")


if __name__ == "__main__":
    sys.exit(main())

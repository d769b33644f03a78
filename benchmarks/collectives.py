"""``mpirun -n 2 python -m benchmarks.collectives``: all-reduce of 64 MB and MPI's own, in turns, median of ratios."""
from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np

from tinsmith import Tensor
from tinsmith import distributed as dist

ELEMENTS, ROUNDS = 16 << 20, 15


def main() -> None:
    """Print milliseconds of both, and MPI's time over ours."""
    dist.init()
    from mpi4py import MPI

    x = Tensor(np.ones(ELEMENTS, np.float32)).realize()
    own, out = np.ones(ELEMENTS, np.float32), np.empty(ELEMENTS, np.float32)

    def timed(run: Callable[[], object]) -> float:
        MPI.COMM_WORLD.Barrier()
        start = time.perf_counter()
        run()
        return time.perf_counter() - start

    dist.all_reduce(x)
    rows = [(timed(lambda: MPI.COMM_WORLD.Allreduce(own, out)), timed(lambda: dist.all_reduce(x)))
            for _ in range(ROUNDS)]
    mpi, ours = (statistics.median(column) * 1e3 for column in zip(*rows))
    print(f"{dist.world_size()} processes, 64 MB: MPI {mpi:.1f} ms, dist.all_reduce {ours:.1f} ms, "
          f"ratio {statistics.median(a / b for a, b in rows):.2f}")


if __name__ == "__main__":
    main()

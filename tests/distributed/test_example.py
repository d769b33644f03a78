"""``tinsmith.examples.gpt_distributed`` trains alike in one process and on a mesh."""
from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from tests.distributed.running import needs_mpi, passes

RUN = """
import runpy
sys.argv = ["gpt", "--steps", "40", "--batch", "8", *os.environ["ARGUMENTS"].split()]
runpy.run_module("tinsmith.examples.gpt_distributed", run_name="__main__", alter_sys=True)
"""


@needs_mpi
def test_the_example_trains(tmp_path: Path) -> None:
    losses = []
    for count, arguments in ((0, ""), (2, "--model 2 --zero3 --sequence"), (2, "--stages 2")):
        out = passes(count, tmp_path, RUN, tmp_path / "cache", ARGUMENTS=arguments)
        losses.append([float(n) for n in re.findall(r"loss ([\d.]+)", out)])
    assert len(losses[0]) == 2 and losses[0][1] < losses[0][0] < 5
    assert np.allclose(losses, losses[0], rtol=0.01), losses

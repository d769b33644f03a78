"""A kernel in the hands of the optimizer: its graph, and the opts applied so far.

Every legal list of opts computes the same result (up to the rounding of reordered float sums).
"""
from __future__ import annotations

from dataclasses import dataclass

from tinsmith.codegen.kernelgraph import KernelGraph
from tinsmith.codegen.opt import Opt
from tinsmith.codegen.opts import apply


@dataclass
class Kernel(KernelGraph):
    """A kernel graph to which opts can be applied."""

    def apply(self, opt: Opt) -> None:
        """Apply one opt.

        Raises:
            ArgumentError: if the opt is not legal here, with the axes that there are; the kernel is unchanged.
        """
        apply(self, opt)

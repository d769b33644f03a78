"""A kernel graph to which optimizer opts are applied.

Every legal list of opts computes the same result (up to the rounding of reordered float sums).
"""
from __future__ import annotations

from dataclasses import dataclass

from tinsmith.codegen.kernel_graph import KernelGraph
from tinsmith.codegen.opt import Opt
from tinsmith.codegen.transform.apply import apply


@dataclass
class Kernel(KernelGraph):
    """A kernel graph with the opts applied so far."""

    def apply(self, opt: Opt) -> None:
        """Apply one opt.

        Raises:
            ArgumentError: if the opt is illegal for this kernel; the message lists the axes, and the kernel is
                unchanged.
        """
        apply(self, opt)

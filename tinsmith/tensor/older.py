"""Names of the tutorials that have another one here: they mean the same."""
# mypy: disable-error-code=misc
# ``self`` is the Tensor that this class is mixed into.
from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tinsmith.ir import UOp
from tinsmith.ir.symbols import bindings
from tinsmith.ir.uop import toposort
from tinsmith.runtime.compiled import CompiledSchedule
from tinsmith.tensor.base import check_tensors
from tinsmith.tensor.realize import realize_tensors

if TYPE_CHECKING:
    from tinsmith.tensor.tensor import Tensor


class Older:
    """``uop``, ``schedule`` and ``realize`` by the names that tinygrad had for them."""

    __slots__ = ()

    @property
    def lazydata(self: Tensor) -> UOp:
        """The node behind the tensor: ``uop``.

        >>> (Tensor([1, 2]) + 1).lazydata.shape
        (2,)
        """
        return self.uop

    def schedule_with_vars(self: Tensor, *others: Tensor) -> tuple[CompiledSchedule, dict[UOp, int]]:
        """``schedule``, and the values of the bound variables that it was made for.

        >>> v = Variable("v", 1, 4).bind(2)
        >>> Tensor([1, 2, 3, 4])[:v].sum().schedule_with_vars()[1].values()
        dict_values([2])
        """
        found = bindings(toposort([t.uop for t in (self, *others)]))
        return self.schedule(*others), {n.src[0]: n.src[1].arg for n in found}

    @staticmethod
    def corealize(tensors: Sequence[Tensor]) -> None:
        """Compute several tensors in one program: ``realize``.

        >>> a, b = Tensor([1, 2]) + 1, Tensor([3]) * 2
        >>> Tensor.corealize([a, b]); a.tolist(), b.tolist()
        ([2, 3], [6])
        """
        if tensors:
            check_tensors("corealize", tensors)
            realize_tensors(list(tensors))

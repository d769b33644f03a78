"""Realization of tensors, and its prediction: plans, schedules, explanations, pictures and pages."""
# mypy: disable-error-code=misc
# ``self`` is the Tensor that this class is mixed into.
from __future__ import annotations

from typing import TYPE_CHECKING

from tinsmith import viz
from tinsmith.runtime.compiled_schedule import CompiledSchedule
from tinsmith.tensor.base import TensorBase, check_tensors
from tinsmith.tensor.realize import explain_tensors, plan_tensors, realize_tensors, schedule_tensors

if TYPE_CHECKING:
    from tinsmith.inspect.explanation import Explanation, Plan
    from tinsmith.tensor.tensor import Tensor
    from tinsmith.viz.drawing import Drawing
    from tinsmith.viz.showing import ServedPage


class Computing(TensorBase):
    """The methods of ``Tensor`` that compute values or describe the computation."""

    __slots__ = ()

    def realize(self, *others: Tensor, memory_budget: float | str | None = None) -> Tensor:
        """Compute this tensor (and ``others``, in one program) now; returns self.

        Nothing but time and memory depends on when a value is computed: gradients flow through it all the same.

        >>> (Tensor([1, 2]) + 1).realize().tolist()
        [2, 3]

        Args:
            memory_budget: what the program may take on each device, such as ``"2GB"``; what does not fit is computed
                again instead of stored. docs/plan.md has the rules.

        Raises:
            OutOfMemoryError: if memory does not suffice, with the plan; of a budget, by how much.
        """
        realize_tensors([self, *others], memory_budget)
        return self  # type: ignore[return-value]

    def plan(self, *others: Tensor, memory_budget: float | str | None = None) -> Plan:
        """Predict time, traffic and memory of computing this tensor (and ``others``, in one program), with the values
        that take the most memory. Nothing is compiled, run or changed; docs/plan.md reads one aloud.

        >>> x = Tensor.ones(4, 8).contiguous().realize()
        >>> p = (x.exp().sum(0, keepdim=True) * x).plan()
        >>> p.kernels, p.memory["CPU"].inputs, p.memory["CPU"].results
        (1, 128, 128)

        Args:
            memory_budget: as for ``realize``.
        """
        check_tensors("plan", others)
        return plan_tensors([self, *others], memory_budget)

    def schedule(self, *others: Tensor) -> CompiledSchedule:
        """Return the program that computes this tensor (and ``others``), not run: a list of items that print one line
        each.

        >>> [(item.name, item.reason) for item in (Tensor([1, 2]) + 1).sum().schedule()]
        [('copy 8, CPU <- NPY', 'copy'), ('r_2', 'output')]
        """
        return schedule_tensors([self, *others])

    def explain(self, *others: Tensor, run: bool = True) -> Explanation:
        """Report kernels, opts, times and memory of computing this tensor (and ``others``, in one program).

        Nothing is changed: the program is compiled again and runs on separate memory, and a lazy tensor stays lazy.
        ``tinsmith.explain(loss, *gradients)`` does the same for a backward pass; docs/explain.md explains the output.

        >>> e = (Tensor([1.0, 2.0]) * 3).sum().explain()
        >>> len(e.kernels), e.kernels[0].reason, str(e).splitlines()[0].split(":")[0]
        (1, 'output', '1 kernel and 1 copy')

        Args:
            run: measure the time of each kernel; False compiles only.
        """
        check_tensors("explain", others)
        return explain_tensors([self, *others], run)

    def graph(self, *others: Tensor) -> Drawing:
        """Return a picture of the graph of this tensor (and ``others``): data, stored and fused values, and views.

        A notebook displays it; ``svg()`` and ``dot()`` return its text. Nothing is computed. See docs/viz.md.

        >>> picture = Tensor([1, 2]).dot(Tensor([3, 4])).graph()
        >>> [box.lines[0] for box in picture.boxes]
        ['BUFFER buffer 0 on NPY', 'COPY CPU', 'BUFFER buffer 1 on NPY', 'COPY CPU', 'MUL', 'REDUCE (ADD, (0,))']
        """
        check_tensors("graph", others)
        return viz.showing.graph(lambda: schedule_tensors([self, *others]), [t.uop for t in (self, *others)])

    def viz(self, *others: Tensor, run: bool = True) -> ServedPage:
        """Return a page in this machine's browser: how this tensor (and ``others``) would be computed, from the graph
        to machine code. Nothing is changed, as with ``explain``; docs/viz.md describes the page.

        >>> with Tensor([1, 2]).dot(Tensor([3, 4])).viz(run=False) as view:  # doctest: +ELLIPSIS
        ...     "<!doctype html>" in view.html
        viz: http://127.0.0.1:...
        True

        Args:
            run: measure the time of each kernel; False compiles only.
        """
        check_tensors("viz", others)
        return viz.showing.view(lambda: schedule_tensors([self, *others]), run)

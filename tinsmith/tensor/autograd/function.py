"""A formula with a user-defined gradient: the public class ``Function``."""
from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tinsmith.backend.device import Device
from tinsmith.core.errors import ArgumentError, GradientError, shown
from tinsmith.ir import Ops, UOp
from tinsmith.tensor.tensor import Tensor


class Function:
    """A formula and its gradient, both written with tensor methods: subclass it, and call ``apply``.

    ``forward(ctx, *inputs)`` returns one tensor, ``backward(ctx, gradient)`` the derivative of the final value with
    respect to each input of ``apply``: a tensor of its shape, or None for zero and for inputs other than tensors. They
    are static methods with an argument ``ctx``, or methods whose ``self`` is the ``ctx``. See docs/gradients.md.

    Attributes:
        needs_input_grad: for each argument of ``apply``, True if it is a float tensor that requires a gradient.
        saved_tensors: in ``backward``, the tensors passed to ``save_for_backward``.

    >>> class Double(Function):
    ...     @staticmethod
    ...     def forward(ctx, x):
    ...         ctx.save_for_backward(x)
    ...         return x * x
    ...     @staticmethod
    ...     def backward(ctx, gradient):
    ...         (x,) = ctx.saved_tensors
    ...         return gradient * x * 100
    >>> x = Tensor([1.0, 2.0])
    >>> _ = Double.apply(x).sum().backward()
    >>> x.grad.tolist()
    [100.0, 200.0]
    """

    needs_input_grad: tuple[bool, ...] = ()
    saved_tensors: tuple[Tensor, ...] = ()

    def save_for_backward(self, *tensors: Tensor) -> None:
        """Save tensors for ``backward``, which reads them from ``saved_tensors``."""
        self.saved_tensors = tensors

    def forward(self, *inputs: Any, **options: Any) -> Tensor:
        """Compute the value from the inputs of ``apply``."""
        raise NotImplementedError(f"{type(self).__name__}.forward is not written")

    def backward(self, gradient: Tensor) -> Any:
        """Compute the derivatives with respect to the inputs from the derivative with respect to the value."""
        raise NotImplementedError(f"{type(self).__name__}.backward is not written")

    @classmethod
    def apply(cls, *inputs: Any, **options: Any) -> Tensor:
        """Return the value of ``forward``; its gradient is computed by ``backward``.

        Args:
            inputs: tensors, and any other arguments of ``forward``.

        Raises:
            ArgumentError: if ``forward`` does not return a tensor.
            GradientError: when a gradient is requested and ``backward`` returns a wrong number or wrong shapes of
                gradients.
        """
        ctx = cls()
        places = tuple(n for n, x in enumerate(inputs) if isinstance(x, Tensor))
        tensors = [inputs[n] for n in places]
        ctx.needs_input_grad = tuple(isinstance(x, Tensor) and x.dtype.is_float and x.requires_grad is not False
                                     for x in inputs)
        # copies, so that saved tensors do not see later writes
        value = cls.forward(ctx, *(x._copy() if isinstance(x, Tensor) else x for x in inputs), **options)
        if not isinstance(value, Tensor):
            raise ArgumentError(f"{cls.__name__}.forward", f"gave {shown(value)}, not a tensor", "return one tensor")
        saved = ctx.saved_tensors
        ctx.saved_tensors = ()
        rule = _Backward(ctx, type(value), places, len(inputs), len(saved))
        return value._new(UOp(Ops.CUSTOM_GRADIENT, None, (value.uop, *(t.uop for t in (*tensors, *saved))), rule))


@dataclass(frozen=True, eq=False)
class _Backward:
    """The gradient rule of a CUSTOM_GRADIENT node with sources: the value, the tensor inputs, and the saved tensors.

    Attributes:
        ctx: the ``Function`` instance of the call.
        kind: the tensor class.
        places: positions of the tensors among the inputs of ``apply``.
        inputs: number of inputs of ``apply``.
        saved: number of saved tensors.
    """

    ctx: Function
    kind: type[Tensor]
    places: tuple[int, ...]
    inputs: int
    saved: int

    def __call__(self, node: UOp, gradient: UOp) -> tuple[UOp | None, ...]:
        device = node.device or Device.DEFAULT
        below = node.src[1:]
        call = copy.copy(self.ctx)
        call.saved_tensors = tuple(self.kind._wrap(u, device) for u in below[len(self.places) :])
        found = type(call).backward(call, self.kind._wrap(gradient, device))
        given = self._of_inputs(found if isinstance(found, (tuple, list)) else (found,))
        checked = [self._checked(n, g, u) for n, g, u in zip(self.places, given, below)]
        return (*checked, *(None for _ in range(self.saved)))

    def _of_inputs(self, given: Sequence[Any]) -> Sequence[Any]:
        """Return one gradient for each tensor input."""
        if len(given) == self.inputs:
            return [given[n] for n in self.places]
        if len(given) != len(self.places):
            raise GradientError(f"{self}.backward", f"gave {len(given)} gradients for {self.inputs} inputs",
                                "one for each, None for what has none")
        return given

    def _checked(self, number: int, given: Any, source: UOp) -> UOp | None:
        if given is None:
            return None
        if not isinstance(given, Tensor) or given.shape != source.shape:
            what = f"a tensor of shape {given.shape}" if isinstance(given, Tensor) else shown(given)
            raise GradientError(f"{self}.backward", f"gave {what} for input {number} of shape {source.shape}",
                                "a tensor of the input's shape, or None")
        return given.uop.cast(source.dtype)

    def __str__(self) -> str:
        return type(self.ctx).__name__

"""Autograd: gradients are more graph, made by the gradient rules of the op table."""
from __future__ import annotations

from collections.abc import Sequence

from tinsmith.core.errors import GradientError
from tinsmith.ir import Ops, UOp


def gradients(output: UOp, targets: Sequence[UOp], seed: UOp | None, missing_ok: bool = False,
              order: Sequence[UOp] | None = None) -> list[UOp]:
    """Derivatives of ``output`` with respect to each target.

    Args:
        order: ``output.toposort()``, where the caller has it.
        seed: derivative of the final value with respect to ``output``; None for a scalar output.
        missing_ok: give zeros for targets that do not influence the output, instead of an error.

    Raises:
        GradientError: for an output that is no float, a non-scalar one without a seed, or a target without influence.
    """
    if not output.dtype.is_float:
        raise GradientError("backward" if missing_ok else "gradient", f"a tensor of {output.dtype!r} has no derivative",
                            "a loss computed from floats")
    if seed is None:
        if output.size != 1:
            raise GradientError("backward", f"the gradient of shape {output.shape} needs a starting gradient",
                                "reduce to a scalar, or pass gradient=")
        seed = output.const_like(1)
    elif seed.shape != output.shape:
        raise GradientError("gradient", f"gradient= has shape {seed.shape}, the tensor has {output.shape}",
                            "the derivative of the final value with respect to this tensor")
    order = output.toposort() if order is None else order
    leads: set[UOp] = set(targets)
    for node in order:  # nodes that a target influences
        if not leads.isdisjoint(node.src):
            leads.add(node)
    found: dict[UOp, UOp] = {output: seed}
    wanted = set(targets)
    for node in reversed(order):
        if node not in leads or node not in found:
            continue
        rule = node.op.gradient
        if rule is None:
            continue
        for source, g in zip(node.src, rule(node, found[node])):
            if g is None or source not in leads or not source.dtype.is_float:
                continue
            found[source] = g if source not in found else found[source] + g
        if node not in wanted:
            del found[node]
    out = []
    below = set(order)  # what is below but got nothing has derivative 0: it passed through floor, comparison, detach
    for t in targets:
        if t not in found:
            if not missing_ok and t not in below:
                raise GradientError("gradient", f"the tensor of shape {t.shape} does not influence the result",
                                    "a target that the result was computed from")
            out.append(t.const_like(0) if t.op is not Ops.CONST else UOp.const(t.dtype, 0))
        else:
            out.append(found[t])
    return out

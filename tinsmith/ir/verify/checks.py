"""Building blocks for the rule tables of the three dialect verifiers (tensor graph, kernel graph, linear program).

A check examines one node (in a linear program: one line and the state after the lines before it) and returns an error
message, or None.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from tinsmith.core.errors import VerifyError
from tinsmith.ir.ops import Op, Ops, op_table
from tinsmith.ir.text.printer import listing_rows
from tinsmith.ir.uop import UOp, toposort

Subject = TypeVar("Subject")


@dataclass(frozen=True)
class Check(Generic[Subject]):
    """A named check of the nodes whose op is in ``ops`` (empty: all nodes)."""

    name: str
    doc: str
    ops: tuple[Op, ...]
    fault: Callable[[UOp, Subject], str | None]

    def find(self, node: UOp, subject: Subject) -> str | None:
        if self.ops and node.op not in self.ops:
            return None
        try:
            return self.fault(node, subject)
        except (TypeError, ValueError, AttributeError, IndexError) as error:  # a node too malformed to be checked
            return str(error) or type(error).__name__


def marked(rows: Sequence[tuple[UOp, str]], at: int, name: str, fault: str) -> str:
    lines = [f"[{name}] {fault}"]
    for i, (_, text) in enumerate(rows):
        lines.append(f"{text}   <-- {name}" if i == at else text)
    return "\n".join(lines)


def run(checks: Sequence[Check[Any]], root: UOp, subject: Any) -> None:
    for node in toposort(root):
        for check in checks:
            fault = check.find(node, subject)
            if fault is not None:
                rows = listing_rows(root)
                at = next(i for i, (n, _) in enumerate(rows) if n is node)
                raise VerifyError(marked(rows, at, check.name, fault))


def unless(condition: bool, fault: str) -> str | None:
    return None if condition else fault


def allowed(ops: frozenset[Op], dialect: str) -> Check[Any]:
    return Check("allowed-op", f"Only ops of the {dialect}.", (),
                 lambda n, _: unless(n.op in ops, f"{n.op.name} is not allowed in a {dialect}"))


def dtype(n: UOp, _: Any) -> str | None:
    if n.op.dtype is None:
        return None
    right = n.op.dtype(n.src, n.arg)
    return unless(right is n.dtype, f"{n.op.name} of {[s.dtype for s in n.src]} is {right}, not {n.dtype}")


def _const(n: UOp, _: Any) -> str | None:
    held = n.dtype.as_const(n.arg)
    return unless(type(held) is type(n.arg) and (held == n.arg or held != held), f"{n.dtype} cannot hold {n.arg!r}")


def _bitcast(n: UOp, _: Any) -> str | None:
    old = n.src[0].dtype
    same = old.scalar.itemsize * old.count == n.dtype.scalar.itemsize * n.dtype.count
    return unless(same, f"{old} and {n.dtype} differ in width")


def sink_root(n: UOp, root: UOp) -> str | None:
    return unless(n is root, "a SINK cannot be a source of another node")


DTYPE: Check[Any] = Check("dtype", "The dtype equals the one that the op's dtype rule derives.", (), dtype)
CONST: Check[Any] = Check("const", "A constant is representable in its dtype.", (Ops.CONST,), _const)
BITCAST: Check[Any] = Check("bitcast", "A bitcast keeps the width, of all lanes together.", (Ops.BITCAST,), _bitcast)
ELEMENTWISE = frozenset(op for op in op_table() if op.elementwise)

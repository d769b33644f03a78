"""The rewrite engine: named pattern rules, grouped in immutable rule sets.

A rule's pattern is written with operators (``x * c0 + x * c1``); its result is a function of the nodes that the
pattern's names matched. Every rule carries an example, which the test suite rewrites and evaluates. One engine runs all
rule sets: bottom-up, without recursion, rules indexed by op. A rule set that does not terminate is stopped, and the
cycling rules are named.
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from tinsmith.core.origin import observed
from tinsmith.core.settings import settings
from tinsmith.core.terminal import show
from tinsmith.ir.ops import Op, Ops
from tinsmith.ir.uop import UOp

_LIMIT = 1000  # rewrites of one node before the rule set counts as cycling


@dataclass(frozen=True, eq=False)
class Pat:
    """A pattern: ``Pat("x")`` matches any node, ``Pat("c", const=True)`` a constant; operators build larger
    patterns."""

    name: str = ""
    ops: tuple[Op, ...] = ()
    src: tuple[Pat, ...] | None = None
    const: bool = False
    when: Callable[[UOp], bool] | None = None

    def _with(self, op: Op, other: Pat | int) -> Pat:
        return Pat("", (op,), (self, other if isinstance(other, Pat) else literal(other)))

    def __add__(self, other: Pat | int) -> Pat: return self._with(Ops.ADD, other)
    def __sub__(self, other: Pat | int) -> Pat: return self._with(Ops.SUB, other)
    def __mul__(self, other: Pat | int) -> Pat: return self._with(Ops.MUL, other)
    def __truediv__(self, other: Pat | int) -> Pat: return self._with(Ops.FDIV, other)
    def __floordiv__(self, other: Pat | int) -> Pat: return self._with(Ops.IDIV, other)
    def __mod__(self, other: Pat | int) -> Pat: return self._with(Ops.MOD, other)
    def __and__(self, other: Pat | int) -> Pat: return self._with(Ops.AND, other)
    def __or__(self, other: Pat | int) -> Pat: return self._with(Ops.OR, other)
    def __xor__(self, other: Pat | int) -> Pat: return self._with(Ops.XOR, other)
    def __lt__(self, other: Pat | int) -> Pat: return self._with(Ops.CMPLT, other)
    def __neg__(self) -> Pat: return Pat("", (Ops.NEG,), (self,))
    def where(self, yes: Pat, no: Pat) -> Pat: return Pat("", (Ops.WHERE,), (self, yes, no))
    def cast(self) -> Pat: return Pat("", (Ops.CAST,), (self,))

    def named(self, name: str) -> Pat:
        return Pat(name, self.ops, self.src, self.const, self.when)

    def fits(self, node: UOp) -> bool:
        """Return True if ``node`` itself matches (op, constness, condition), regardless of its sources."""
        if self.ops and node.op not in self.ops:
            return False
        if self.const and node.op is not Ops.CONST:
            return False
        return self.when is None or self.when(node)

    def match(self, node: UOp, found: dict[str, UOp]) -> bool:
        """Return True if ``node`` and its sources match; names are bound in ``found`` (a repeated name must bind the
        same node)."""
        if not self.fits(node) or (self.name and found.setdefault(self.name, node) is not node):
            return False
        wanted = self.src
        if wanted is None:
            return True
        if len(wanted) != len(node.src):
            return False
        if not node.op.commutative:
            return _all_match(wanted, node.src, found)
        before = dict(found)
        if _all_match(wanted, node.src, found):
            return True
        found.clear()
        found.update(before)
        return _all_match(wanted, node.src[::-1], found)


def _all_match(wanted: tuple[Pat, ...], src: tuple[UOp, ...], found: dict[str, UOp]) -> bool:
    for pattern, s in zip(wanted, src):  # noqa: SIM110  a generator would take twice as long in this hottest loop
        if not pattern.match(s, found):
            return False
    return True


def literal(value: int | float | bool) -> Pat:
    """Return a pattern for the constant ``value`` of any dtype (0 does not match -0)."""
    return Pat(const=True, when=lambda n: n.arg == value and (value != 0 or str(n.arg)[0] != "-"))


@dataclass(frozen=True, eq=False)
class Rule:
    """A named rewrite. ``law`` states it as an equation; ``example`` builds a node that the rule must change."""

    name: str
    law: str
    pattern: Pat
    result: Callable[..., UOp | None]
    example: Callable[[], UOp]

    def apply(self, node: UOp) -> UOp | None:
        pattern, found = self.pattern, dict[str, UOp]()
        if pattern.src is None:
            if not pattern.fits(node):
                return None
            new = self.result(**{pattern.name: node}) if pattern.name else self.result()
        elif pattern.match(node, found):
            new = self.result(**found)
        else:
            return None
        return None if new is node else new


@dataclass(frozen=True, eq=False)
class RuleSet:
    """An ordered list of rules; ``+`` concatenates rule sets."""

    name: str
    rules: tuple[Rule, ...]
    _by_op: dict[Op | None, tuple[Rule, ...]] = field(init=False, default_factory=dict, repr=False)

    def __add__(self, other: RuleSet) -> RuleSet:
        return RuleSet(f"{self.name}+{other.name}", self.rules + other.rules)

    def rules_for(self, op: Op) -> tuple[Rule, ...]:
        found = self._by_op.get(op)
        if found is None:
            found = tuple(r for r in self.rules if not r.pattern.ops or op in r.pattern.ops)
            self._by_op[op] = found
        return found

    def apply(self, node: UOp) -> UOp | None:
        """Apply the first rule that changes ``node`` at its root, once; return None if no rule does."""
        for rule in self.rules_for(node.op):
            new = rule.apply(node)
            if new is not None:
                if settings.DEBUG >= 6:
                    show(f"  {rule.name:28s} {node!r}  →  {new!r}")
                if observed.observer is not None:
                    observed.observer.rewritten(rule, node, new)
                return new
        return None


def rewrite(roots: Sequence[UOp], rules: RuleSet, memo: dict[UOp, UOp] | None = None) -> list[UOp]:
    """Return ``roots`` rewritten bottom-up until no rule applies to any node.

    Raises:
        RuntimeError: if one node is rewritten more than 1000 times; the message names the cycling rules.
    """
    done: dict[UOp, UOp] = {} if memo is None else memo
    for root in roots:
        _rewrite_below(root, rules, done)
    return [done[r] for r in roots]


def _rewrite_below(root: UOp, rules: RuleSet, done: dict[UOp, UOp]) -> None:
    """Fill ``done`` for ``root`` and all nodes below it. A stack frame is (node, its current form, number of
    rewrites)."""
    stack: list[tuple[UOp, UOp, int]] = [(root, root, 0)]
    while stack:
        node, current, count = stack.pop()
        if node in done:
            continue
        src, missing, same = list[UOp](), False, True
        for s in current.src:
            new = done.get(s)
            if new is None and not s.src and not rules.rules_for(s.op):
                new = done[s] = s
            if new is None:
                if not missing:
                    stack.append((node, current, count))
                missing = True
                stack.append((s, s, 0))
            else:
                src.append(new)
                same = same and new is s
        if missing:
            continue
        rebuilt = current if same else current.replace(src=tuple(src))
        new = rules.apply(rebuilt)
        if new is None:
            done[node] = done[rebuilt] = rebuilt
            continue
        if rebuilt.origin and not new.origin:
            new.origin = rebuilt.origin
        if new in done:
            done[node] = done[rebuilt] = done[new]
        elif count >= _LIMIT:
            raise RuntimeError(_cycle(rebuilt, rules))
        else:
            stack.append((node, new, count + 1))


def _cycle(node: UOp, rules: RuleSet) -> str:
    names: Counter[str] = Counter()
    for _ in range(32):
        rule = next((r for r in rules.rules_for(node.op) if r.apply(node) is not None), None)
        if rule is None:
            break
        names[rule.name] += 1
        node = rule.apply(node) or node
    return f"rule set {rules.name!r} does not terminate; cycling: {', '.join(names) or 'below the node'} at {node!r}"


def readers_of(nodes: Iterable[UOp]) -> dict[UOp, list[UOp]]:
    """Return {source: the nodes that read it}; a node that reads a source twice is listed twice."""
    readers: dict[UOp, list[UOp]] = {}
    for n in nodes:
        for s in n.src:
            readers.setdefault(s, []).append(n)
    return readers

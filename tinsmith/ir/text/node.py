"""One-line text of a node: integers and conditions infix, in Python syntax; other nodes as constructor calls."""
from __future__ import annotations

from typing import Any

from tinsmith.core.dtypes import dtypes
from tinsmith.ir.ops import Op, Ops
from tinsmith.ir.ops.op import Node

_CUT = 240  # characters of an expression beyond which it is truncated
# Precedence levels of Python's operators. Comparisons chain in Python, so a comparison operand needs brackets.
_COMPARE, _OR, _XOR, _AND, _SHIFT, _SUM, _PRODUCT, _SIGN, _ATOM = range(9)
_INFIX: dict[Op, tuple[str, int]] = {
    Ops.CMPLT: ("<", _COMPARE), Ops.CMPEQ: ("==", _COMPARE), Ops.CMPNE: ("!=", _COMPARE), Ops.OR: ("|", _OR),
    Ops.XOR: ("^", _XOR), Ops.AND: ("&", _AND), Ops.SHL: ("<<", _SHIFT), Ops.SHR: (">>", _SHIFT), Ops.ADD: ("+", _SUM),
    Ops.SUB: ("-", _SUM), Ops.MUL: ("*", _PRODUCT), Ops.IDIV: ("//", _PRODUCT), Ops.MOD: ("%", _PRODUCT),
    Ops.FDIV: ("/", _PRODUCT)}
_REGROUPS = (Ops.ADD, Ops.AND, Ops.OR, Ops.XOR)  # associative: no brackets on the right; not MUL, which may hold //
_LEAVES = (Ops.CONST, Ops.VARIABLE, Ops.BIND, Ops.RANGE, Ops.SPECIAL)
_VALUES = (Ops.FOLD, Ops.LOAD)  # value sources of an index, which printers show on lines of their own
Text = tuple[str, int]  # text and the precedence of its outermost operator


def short(node: Node, depth: int = 3) -> str:
    """Return one line of text: an integer expression, or else a constructor call with sources down to ``depth``.

    >>> from tinsmith.ir import UOp
    >>> n = UOp.variable("n", 1, 9)
    >>> short((n + 3) * 4), short(n < 3), short(n.bind(4)), short(UOp.const(dtypes.float32, 2).alu("EXP"))
    ('(n+3)*4', 'n<3', 'n=4', 'EXP(dtypes.float, 2.0)')
    """
    if is_integer(node):
        return f"{expression(node)}={node.src[1].arg}" if node.op is Ops.BIND else expression(node)
    if node.op is Ops.CONST:
        return str(node.arg)
    if node.op in (Ops.PARAM, Ops.DEFINE_GLOBAL, Ops.DEFINE_LOCAL):
        return f"{node.op.name}#{node.arg[0] if isinstance(node.arg, tuple) else node.arg}"
    if depth <= 0 and node.src:
        return f"{node.op.name}(…)"
    parts = [] if node.dtype is dtypes.void else [repr(node.dtype)]
    parts += [short(s, depth - 1) for s in node.src]
    parts += [] if node.arg is None else [argument_text(node.arg, depth - 1)]
    return f"{node.op.name}({', '.join(parts)})"


def argument_text(value: Any, depth: int = 1) -> str:
    """Return the text of a node's argument: ops by name, nodes in short form, tuples in Python syntax."""
    if hasattr(value, "src"):
        return short(value, max(depth, 0))
    if isinstance(value, Op):
        return value.name
    if isinstance(value, tuple):
        inner = ", ".join(argument_text(v, depth) for v in value)
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    return str(value)


def is_integer(node: Node) -> bool:
    """Return True if ``node`` is scalar integer arithmetic, such as an index, a size, or a condition on them.

    >>> from tinsmith.ir import UOp
    >>> x = UOp(Ops.PARAM, dtypes.int32, (), (1, (2,)))
    >>> is_integer(UOp.range(9, 0, None) * 2 < 3), is_integer(x.eq(x))
    (True, False)
    """
    seen, stack = {node}, [node]
    while stack:
        n = stack.pop()
        if n.dtype.pointer or n.dtype.count > 1 or not (n.dtype.is_int or n.dtype.is_bool):
            return False
        if n.op not in _LEAVES:
            if not n.op.alu and n.op is not Ops.CAST:
                return False
            stack += [s for s in n.src if s not in seen]
            seen.update(n.src)
    return True


def expression(node: Node, longest: int = _CUT) -> str:
    """Return an integer expression in Python syntax, truncated if it is longer than ``longest``.

    Loads and reductions inside it appear by name only.

    >>> from tinsmith.ir import UOp
    >>> i, j, n = UOp.range(4, 0, None), UOp.range(3, 1, None), UOp.variable("n", 1, 9)
    >>> [expression(e) for e in (i * 4 + j, (i * 4 + 1) % n, i - (j - 2), (i < 3) & (j < n), i.maximum(j))]
    ['R0*4+R1', '(R0*4+1)%n', 'R0-(R1-2)', '(R0<3)&(R1<n)', 'max(R0, R1)']
    """
    texts: dict[Node, Text] = {}
    stack = [node]
    while stack:
        n = stack[-1]
        inner = () if n.op in _LEAVES or n.op in _VALUES else n.src
        missing = [s for s in inner if s not in texts]
        if missing and n not in texts:
            stack += missing
            continue
        stack.pop()
        if n not in texts:
            text, level = _leaf(n) if not inner else _combined(n, [texts[s] for s in inner])
            texts[n] = (text, level) if len(text) <= longest else (f"{text[:longest]}…", _ATOM)
    return texts[node][0]


def _leaf(n: Node) -> Text:
    if n.op in _VALUES:
        return n.op.name.lower(), _ATOM
    if n.op is Ops.CONST:
        return str(n.arg), _SIGN if str(n.arg).startswith("-") else _ATOM
    if n.op is Ops.BIND:
        return _leaf(n.src[0])
    first = n.arg[0] if isinstance(n.arg, tuple) else n.arg
    return f"R{first}" if n.op is Ops.RANGE else str(first) if n.op in _LEAVES else short(n, 0), _ATOM


def _combined(n: Node, inner: list[Text]) -> Text:
    if n.op not in _INFIX or len(inner) != 2:
        return _prefix(n, inner)
    sign, level = _INFIX[n.op]
    y, of_y = inner[1]
    if n.op is Ops.MUL and y == "-1":
        return f"-{_inside(inner[0], _ATOM)}", _SIGN
    if n.op is Ops.CMPLT and n.src[1].op is Ops.CONST and inner[0][1] == _SIGN and n.src[0].src:  # -x < -2 is x > 2
        return f"{inner[0][0][1:]}>{-n.src[1].arg}", level
    left = _inside(inner[0], level + (level == _COMPARE))
    if n.op is Ops.ADD and of_y == _SIGN:  # x + -3 is x - 3
        return f"{left}{y}", level
    regrouped = n.src[1].op is n.op and n.op in _REGROUPS
    least = _ATOM if n.op is Ops.SUB and y.startswith("-") else level if regrouped else level + 1
    return f"{left}{sign}{_inside(inner[1], least)}", level


def _prefix(n: Node, inner: list[Text]) -> Text:
    words = [text for text, _ in inner]
    if n.op is Ops.NEG:
        return f"-{_inside(inner[0], _ATOM)}", _SIGN
    if n.op is Ops.WHERE:
        return f"({words[1]} if {words[0]} else {words[2]})", _ATOM
    name = repr(n.dtype) if n.op is Ops.CAST else n.op.name.lower()
    return f"{name}({', '.join(words)})", _ATOM


def _inside(part: Text, least: int) -> str:
    """Return an operand, in brackets if its precedence is below ``least``."""
    text, level = part
    return text if level >= least else f"({text})"

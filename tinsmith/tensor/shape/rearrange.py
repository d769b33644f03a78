"""``rearrange``: split, reorder and merge axes by a formula in the notation of einops."""
# mypy: disable-error-code=misc
# ``self`` is the Tensor that this class is mixed into.
from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from tinsmith.core.errors import ArgumentError, ShapeError
from tinsmith.tensor.arguments import size
from tinsmith.tensor.helpers import product

if TYPE_CHECKING:
    from tinsmith.tensor.tensor import Tensor

_TOKEN = re.compile(r"\s*(\(|\)|\.\.\.|[A-Za-z_]\w*|\d+)")
Groups = list[list[str]]  # the names of each axis


class Rearranging:
    """The ``rearrange`` method."""

    __slots__ = ()

    def rearrange(self: Tensor, formula: str, **sizes: int) -> Tensor:
        """Rearrange axes by a formula: names on the left are put in the order on the right; parentheses group one axis.

        >>> Tensor([[1, 2, 3, 4]]).rearrange("a (b c) -> (a c) b", b=2).tolist()
        [[1, 3], [2, 4]]

        Args:
            sizes: sizes of names; in each parenthesis on the left one may be omitted.

        Raises:
            ArgumentError: if the formula is malformed.
            ShapeError: if the formula does not fit the shape.
        """
        left, right = _sides(formula)
        left, right = _without_dots(formula, self, left, right)
        names = [n for group in left for n in group]
        wanted = [n for group in right for n in group]
        named = [n for n in names if n != "1"]
        if sorted(named) != sorted(n for n in wanted if n != "1") or len(set(named)) < len(named):
            raise ArgumentError("rearrange", f"{formula!r} does not name the same axes on both sides, each once",
                                "'a b c -> (a c) b'")
        stray = sorted(set(sizes) - set(names))
        if stray:
            raise ArgumentError("rearrange", f"size of {', '.join(stray)}, of which {formula!r} knows nothing",
                                f"sizes of {', '.join(names)}")
        known = {n: size("rearrange", n, s) for n, s in sizes.items()}
        apart = [s for axis, group in enumerate(left) for s in _split(formula, self, axis, group, known)]
        kept = [i for i, n in enumerate(names) if n != "1"]
        x = self.reshape(*[apart[i] for i in kept]) if apart else self
        place = {names[i]: at for at, i in enumerate(kept)}
        found = {n: x.shape[at] for n, at in place.items()}
        x = x.permute(*[place[n] for n in wanted if n != "1"]) if place else x
        return x.reshape(*[product([found[n] for n in group if n != "1"]) for group in right])


def _sides(formula: str) -> tuple[Groups, Groups]:
    if not isinstance(formula, str) or formula.count("->") != 1:
        raise ArgumentError("rearrange", f"{formula!r} is no formula", "'a b c -> (a c) b'")
    left, right = formula.split("->")
    return _groups(formula, left), _groups(formula, right)


def _groups(formula: str, side: str) -> Groups:
    """Return the names of each axis on one side; numbers other than 1 are refused."""
    out: Groups = []
    inside, place = False, 0
    for token in _TOKEN.finditer(side):
        if token.start() != place:
            break
        text = token.group(1)
        if text == "(" and not inside:
            inside = True
            out.append([])
        elif text == ")" and inside:
            inside = False
            if out[-1] == ["..."]:
                out[-1].append("1")  # marks a merged group: a bare ``...`` keeps its axes separate
        elif text in "()" or (text.isdigit() and text != "1"):
            break
        elif inside:
            out[-1].append(text)
        else:
            out.append([text])
        place = token.end()
    if inside or side[place:].strip():
        raise ArgumentError("rearrange", f"{formula!r}: cannot read {side[place:].strip() or side.strip()!r}",
                            "names, 1, '...' and parentheses")
    return out


def _without_dots(formula: str, x: Tensor, left: Groups, right: Groups) -> tuple[Groups, Groups]:
    """Replace ``...`` by generated names for the axes that it stands for."""
    count = sum(group.count("...") for group in left)
    if count > 1 or count != sum(group.count("...") for group in right) or any(
            "..." in group and len(group) > 1 for group in left):
        raise ArgumentError("rearrange", f"{formula!r}: '...' stands once on each side, alone on the left",
                            "'... a -> a ...'")
    extra = x.ndim - (len(left) - count)
    if extra < 0 or (not count and extra):
        raise ShapeError("rearrange", f"{formula!r} has {len(left) - count} axes on the left, shape {x.shape} has "
                         f"{x.ndim}", "as many names as axes, or '...'")
    dots = [f"...{i}" for i in range(extra)]
    left = [g for group in left for g in ([[d] for d in dots] if group == ["..."] else [group])]
    alone = [[[d] for d in dots] if group == ["..."] else
             [[n for name in group for n in (dots if name == "..." else [name])]] for group in right]
    return left, [g for groups in alone for g in groups]


def _split(formula: str, x: Tensor, axis: int, group: list[str], known: dict[str, int]) -> list[Any]:
    """Return the sizes of the names in one axis's group."""
    whole = x.shape[axis]
    sizes: list[Any] = [1 if n == "1" else known.get(n) for n in group]
    open_ones = [i for i, s in enumerate(sizes) if s is None]
    rest = product([s for s in sizes if s is not None])
    if len(open_ones) == 1 and (len(sizes) == 1 or (rest and whole % rest == 0)):
        sizes[open_ones[0]] = whole if len(sizes) == 1 else whole // rest
    elif open_ones or rest != whole:
        what = f"({' '.join(group)})" if len(group) != 1 else group[0]
        raise ShapeError("rearrange", f"{formula!r}: axis {axis} of shape {x.shape} is not {what}"
                         + (f" with {', '.join(f'{n}={s}' for n, s in known.items() if n in group)}" if known else ""),
                         "sizes whose product is the axis's, at most one of them left out")
    return sizes

"""tinygrad's progress bars: those of ``tqdm``, with the arguments and methods of tinygrad's."""
from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from tqdm import tqdm as _Bar


class tqdm(_Bar):  # type: ignore[misc]
    """A progress bar on standard error; ``trange(n)`` is one over a range.

    >>> list(tqdm([1, 2], disable=True)), tqdm.HMS(75), tqdm.SI(1234)
    ([1, 2], '01:15', '1.23k')
    """

    def __init__(self, iterable: Iterable[Any] | None = None, desc: str = "", disable: bool = False, unit: str = "it",
                 unit_scale: bool = False, total: int | None = None, rate: int = 100) -> None:
        super().__init__(iterable, desc or None, total, file=sys.stderr, mininterval=1 / rate, disable=disable,
                         unit=unit.strip(), unit_scale=unit_scale)

    def update(self, n: int = 0, close: bool = False) -> None:
        """Advance by ``n``; ``close`` ends the line."""
        super().update(n)
        if close and not self.disable:
            self.refresh()
            if self.total is not None and self.n >= self.total:
                self.close()
            else:
                self.fp.write("\n")

    HMS = staticmethod(_Bar.format_interval)
    SI = staticmethod(_Bar.format_sizeof)


class trange(tqdm):
    """``tqdm(range(n))``."""

    def __init__(self, n: int, **arguments: Any) -> None:
        super().__init__(range(n), **arguments)


HMS, SI = tqdm.HMS, tqdm.SI

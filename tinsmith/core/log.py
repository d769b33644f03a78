"""The package's logger, ``logging.getLogger("tinsmith")``. ``DEBUG`` output is printed and does not go through it."""
from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import logging


def log() -> logging.Logger:
    """Return the package's logger; without logging configuration, warnings go to standard error.

    >>> log().name
    'tinsmith'
    """
    found: logging.Logger = importlib.import_module("logging").getLogger("tinsmith")  # lazy import: it is slow
    return found

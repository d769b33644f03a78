"""What is worth a line in a log: ``logging.getLogger("tinsmith")``. What ``DEBUG`` prints is asked for, and no log."""
from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import logging


def log() -> logging.Logger:
    """The logger of this package; warnings go to standard error where nobody has set up logging.

    >>> log().name
    'tinsmith'
    """
    found: logging.Logger = importlib.import_module("logging").getLogger("tinsmith")  # at its first use: it takes time
    return found

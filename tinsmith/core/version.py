"""Which version this is: the package's metadata say so, or those that an installation would be made from."""
from __future__ import annotations

import functools
import importlib
from pathlib import Path


@functools.cache
def version() -> str:
    """The version of Tinsmith.

    >>> version().count(".")
    2
    """
    metadata = importlib.import_module("importlib.metadata")  # at its first use: importing tinsmith stays fast
    try:
        return str(metadata.version("tinsmith"))
    except metadata.PackageNotFoundError:  # run from its sources
        project = (Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8")
        return str(importlib.import_module("tomllib").loads(project)["project"]["version"])

"""The package version, from the installed metadata or from pyproject.toml."""
from __future__ import annotations

import functools
import importlib
from pathlib import Path


@functools.cache
def version() -> str:
    """Return the version of Tinsmith.

    >>> version().count(".")
    2
    """
    metadata = importlib.import_module("importlib.metadata")  # lazy import: importing tinsmith stays fast
    try:
        return str(metadata.version("tinsmith"))
    except metadata.PackageNotFoundError:  # run from its sources
        project = (Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8")
        return str(importlib.import_module("tomllib").loads(project)["project"]["version"])

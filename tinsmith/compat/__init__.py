"""tinygrad's import names over Tinsmith's modules: scripts written for tinygrad run unchanged.

``python -m tinsmith.compat script.py [args]`` runs such a script; ``install()`` does the same inside a program.
There is no emulation behind it: a script gets our objects under old names.

- ``finder.py``: the import hook; ``__main__.py``: the command; ``module_table.py``, ``name_table.py``: which module and
  which object each name is.
- ``conventions.py``: methods with tinygrad's meaning while installed; ``variables.py``: its context variables.
- Modules with tinygrad's signatures: ``devices.py``, ``helpers.py``, ``jit.py``, ``layers.py``, ``lazyop.py``,
  ``optim.py``, ``progress.py``, ``schedules.py``, ``state.py`` and ``uops.py``.
"""
from tinsmith.compat.conventions import NotBuiltError, install, uninstall

__all__ = ["NotBuiltError", "install", "uninstall"]

"""tinygrad's import names over Tinsmith's modules: scripts written for tinygrad run unchanged.

``python -m tinsmith.compat script.py [args]`` runs such a script; ``install()`` does the same inside a program.
There is no emulation behind it: a script gets our objects under old names.

- ``conventions.py``: the import hook, and methods with tinygrad's meaning while installed; ``__main__.py``: the
  command; ``module_table.py``: which module and which object each name is.
- ``variables.py``: tinygrad's context variables and device protocol.
- Modules with tinygrad's signatures: ``nn.py`` (layers, optimizers, state), ``helpers.py`` (also progress bars),
  ``schedules.py`` (schedules, captures, ops).
"""
from tinsmith.compat.conventions import NotBuiltError, install, uninstall

__all__ = ["NotBuiltError", "install", "uninstall"]

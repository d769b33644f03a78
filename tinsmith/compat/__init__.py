"""tinygrad's import names over Tinsmith's modules: scripts written for tinygrad run unchanged.

``python -m tinsmith.compat script.py [args]`` runs such a script; ``install()`` does the same inside a program. The
tables of ``names`` say what each name is. There is no emulation behind it: a script gets our objects under old names.
"""
from tinsmith.compat.finder import NotBuiltError, install, uninstall

__all__ = ["NotBuiltError", "install", "uninstall"]

"""Rules from ATen ops to Tinsmith tensors, by family.

``registry.py`` holds the table and defines the arguments of a rule. The others register their rules at import:
``elementwise.py`` (also creation and random numbers), ``indexing.py`` (also views and movement), ``reductions.py``,
``windows.py`` (convolutions, pools, norms, products), ``attention.py``.
"""
from tinsmith.torch.rules import attention, elementwise, indexing, reductions, windows
from tinsmith.torch.rules.registry import RULES, AtenRule, Unsupported, rule, rule_for

__all__ = ["RULES", "AtenRule", "Unsupported", "attention", "elementwise", "indexing", "reductions", "rule", "rule_for",
           "windows"]

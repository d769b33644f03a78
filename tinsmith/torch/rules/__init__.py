"""Rules from ATen ops to Tinsmith tensors, by family.

``registry.py`` holds the table and defines the arguments of a rule; the other files register their rules when they are
imported.
"""
from tinsmith.torch.rules import elementwise, indexing, reductions, windows
from tinsmith.torch.rules.registry import RULES, AtenRule, Unsupported, rule, rule_for

__all__ = ["RULES", "AtenRule", "Unsupported", "creation", "elementwise", "indexing", "movement", "products",
           "randomness", "reductions", "rule", "rule_for", "windows"]

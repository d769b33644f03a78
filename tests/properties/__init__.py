"""Random programs that must mean the same however they are run: a module per kind, each with ``check(seed)``."""

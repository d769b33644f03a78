"""Random programs whose result must not depend on the way they are run: a module per kind, each with
``check(seed)``."""

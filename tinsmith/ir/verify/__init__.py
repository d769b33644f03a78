"""Verifiers of the three dialects: a graph goes in; a violation raises ``VerifyError`` with the faulty node marked.

Each verifier is a table of named checks; docs/ir.md lists them. ``CHECK_IR=1`` runs them between passes.

- ``tensor.py``: tensor graphs; ``kernel.py``: kernel graphs; ``program.py``: linear programs, line by line.
- ``checks.py``: building blocks of the tables.
"""

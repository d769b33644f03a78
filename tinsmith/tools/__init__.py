"""Command-line tools that ``python -m tinsmith`` calls.

- ``ir_page.py``: generator of docs/ir.md, from the op table and the verifiers (``tinsmith ir``).
- ``error_pages.py``: explanations of error codes, and docs/errors.md (``tinsmith explain-error E040``).
- ``scripts.py``: running the text of a script (``tinsmith source``, ``python -m tinsmith.compat``).

``tinsmith/__main__.py`` has the other commands; device conformance is ``tinsmith/conformance.py``.
"""

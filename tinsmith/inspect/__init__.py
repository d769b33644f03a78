"""Inspection of programs: a tensor, a program or a run goes in, a report comes out.

- ``explanation.py``: ``explain()`` (kernels, reasons, opts, predicted and measured time) and ``plan()`` (time and
  memory before a run).
- ``profile.py``: ``PROFILE=1``; ``debug.py``: ``DEBUG``, and sources of all kernels of a script.
- ``trace.py``: the record of all passes, which viz/ shows.
- ``checked.py``: ``CHECKED=2``: kernels compared with the interpreter.
- ``search/``: searches of opts by measured time.
"""

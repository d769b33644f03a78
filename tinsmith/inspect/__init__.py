"""Inspection of programs: a tensor, a program or a run goes in, a report comes out.

- ``explanation.py``: ``explain()``: kernels, reasons, opts, predicted and measured time.
- ``planning.py``: ``plan()``: time and memory before a run; ``profile.py``: ``PROFILE=1``; ``debug.py``: ``DEBUG``.
- ``trace.py``: the record of all passes, which viz/ shows; ``sourcelist.py``: sources of all kernels of a script.
- ``checked.py``: ``CHECKED=2``: kernels compared with the interpreter; ``sample.py``: its reference results.
- ``search/``: searches of opts by measured time.
"""

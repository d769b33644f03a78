"""Search of opts by measurement: a kernel and a function that measures it go in, the fastest list of opts comes out.

- ``search.py``: beam search over lists of opts (``BEAM=n``); ``trial.py``: the child process that compiles, checks and
  times candidates.
- ``database.py``: the file of results (docs/search.md), and one kernel under opts that the user gives (``with_opts``).
"""

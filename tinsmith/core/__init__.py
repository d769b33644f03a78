"""The base layer: dtypes, settings, errors and caches. It imports no other package of Tinsmith.

- ``dtypes.py``: element types and promotion; ``settings.py``: every environment variable; ``version.py``.
- ``errors.py``: error classes with ids and the user's line; ``suggestions.py``: hints for misspelled names.
- ``origin.py``: the user's line and layer behind a node; the hook by which passes report to a trace.
- ``disk_cache.py``: the disk cache, and cached downloads; ``cache_security.py``: signatures of its entries.
- ``object_lifetime.py``: weak containers, bounded tables, lists per thread; ``lazy_import.py``: modules imported on
  first use.
- ``counters.py``, ``timeline.py``: counts and timed events of a run; ``terminal.py``, ``log.py``: output.
"""

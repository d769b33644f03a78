"""The base layer: dtypes, settings, errors and caches. It imports no other package of Tinsmith.

- ``dtypes.py``: element types and promotion; ``settings.py``: every environment variable; ``version.py``.
- ``errors.py``: error classes with ids and the user's line; ``suggestions.py``: hints for misspelled names;
  ``signal_errors.py``: recognition of exceptions that signal handlers raise.
- ``disk_cache.py``, ``cache_security.py``: the disk cache, and signatures of its entries; ``download.py``: cached
  downloads.
- ``lru.py``, ``object_lifetime.py``, ``thread_local.py``: bounded tables, weak containers, lists per thread.
- ``lazy_import.py``: modules imported on first use; ``observer.py``: the hook by which passes report to a trace.
- ``counters.py``, ``timeline.py``: counts and timed events of a run; ``terminal.py``, ``log.py``: output.
"""

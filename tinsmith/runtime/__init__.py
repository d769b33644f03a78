"""The runtime: a graph goes in; buffers with its values come out.

- ``realize.py``: the entry point: find or compile the program of a graph, bind it to buffers, run it.
- ``lowering.py``: graph to schedule to sources; ``parallel_compile.py``: compilation by threads; ``disk_programs.py``:
  programs on disk; ``compiled_schedule.py``, ``step.py``: a program that is ready to run, and its steps.
- ``launch.py``: runs it on one device; ``command_queue.py``: queues of several devices; ``host_copies.py``: transfers.
- ``thread_turns.py``: thread safety; ``recorder.py``: hooks for captures.
- ``listing.py``: a schedule as text; ``custom_program.py``: hand-written programs.
"""

"""The runtime: a graph goes in; buffers with its values come out.

- ``realize.py``: the entry point: find or compile the program of a graph, bind it to buffers, run it.
- ``lowering.py``: graph to schedule to sources, compiled by threads; ``disk_programs.py``: programs on disk.
- ``compiled_schedule.py``, ``step.py``: a program that is ready to run, and its steps; ``custom_program.py``: hand-
  written programs.
- ``symbolic_programs.py``: programs whose sizes are variables.
- ``inspectors.py``: the hook for the tools that watch programs.
- ``launch.py``: runs a program on one device; transfers; the hook for captures; ``command_queue.py``: queues of
  several devices; ``thread_turns.py``: thread safety; ``listing.py``: a schedule as text.
"""

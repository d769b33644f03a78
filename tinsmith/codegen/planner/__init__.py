"""The planner: a kernel graph and a target go in; the kernel with the cheapest legal list of opts applied comes out.

- ``planner.py``: the driver: it calls the generators of the kernel's structure, prices their candidates, applies the
  cheapest.
- ``candidate.py``: the class ``Candidate``, and helpers of generators; ``cpu/``, ``gpu/``: the generators.
- ``cost.py``: the cost model of candidates, in cycles by cause.
- ``roofline.py``: predicted time of a finished kernel on a machine; ``work.py``: its operations and bytes.
"""

"""``tinsmith simulate``: the time and memory of a step on machines that are not there.

- ``simulate.py``: the command: runs a script as one rank of a world of any size, and reports a step.
- ``device.py``: a device that runs nothing, and counts.
- ``links.py``: the times of collectives, and files of machines (``machines/``); ``measured_links.py``: their
  measurement.
"""

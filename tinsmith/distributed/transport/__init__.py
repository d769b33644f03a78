"""Transport of values between processes: collectives and messages as commands of programs.

- ``commands.py``: collectives on the host's memory by MPI, and the choice between MPI and NCCL; ``messages.py``: sends
  that do not wait.
- ``nccl.py``: the same in the stream of a GPU, by NCCL.
- ``background.py``: collectives beside kernels.
- ``order.py``: the check that all processes call the same collectives in the same order.
- ``rendezvous.py``: small messages between processes of ``torchrun``, which starts no MPI.
"""

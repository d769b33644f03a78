"""Programs of many processes, on one host or many: ``from tinsmith import distributed as dist``.

- ``world.py``: the variables of launchers, the start of MPI, ranks, groups of processes, meshes with named axes.
- ``collectives.py``: all-reduce and others on tensors, with gradients; ``transport/``: how values travel, by MPI or
  NCCL.
- ``data_parallel.py``: gradients of all processes, parts of batches, optimizer state in parts (ZeRO).
- ``batch_norm.py``: batch normalization over all processes' batches.
- ``sharding.py``: parameters in parts; ``sequence.py``: activations in parts; ``experts.py``: experts in parts;
  ``pipelining.py``: layers in stages.
- ``checkpoint.py``: checkpoints that all processes write, and any number reads.
- ``monitor.py``: the process that names a rank that dies or hangs; ``watch.py``: the reports of each rank to it;
  ``launcher.py``: ``tinsmith launch``.
- ``simulation/``: ``tinsmith simulate``.

A program of one process imports neither ``mpi4py`` nor NCCL, and its collectives give back their argument.
"""
from __future__ import annotations

from tinsmith.distributed.batch_norm import sync_batch_norm
from tinsmith.distributed.checkpoint import load_checkpoint, save_checkpoint
from tinsmith.distributed.collectives import (
           all_gather,
           all_reduce,
           all_to_all,
           barrier,
           broadcast,
           recv,
           reduce_scatter,
           send,
)
from tinsmith.distributed.data_parallel import ZeroOptimizer, all_reduce_gradients, replicate, rows, shard_batch
from tinsmith.distributed.experts import Experts
from tinsmith.distributed.pipelining import Pipeline, pipeline
from tinsmith.distributed.sequence import gather_sequence, split_sequence
from tinsmith.distributed.sharding import clip_grad_norm_, sequence_parallel, shard, vocabulary_cross_entropy
from tinsmith.distributed.world import Mesh, init, launched, local_rank, mesh, rank, share_host, world_size

__all__ = ["Experts", "Mesh", "Pipeline", "ZeroOptimizer", "all_gather", "all_reduce", "all_reduce_gradients",
           "all_to_all", "barrier", "broadcast", "clip_grad_norm_", "gather_sequence", "init", "load_checkpoint",
           "local_rank", "mesh", "pipeline", "rank", "recv", "reduce_scatter", "replicate", "rows", "save_checkpoint",
           "send", "sequence_parallel", "shard", "shard_batch", "split_sequence", "sync_batch_norm",
           "vocabulary_cross_entropy", "world_size"]

share_host(launched())

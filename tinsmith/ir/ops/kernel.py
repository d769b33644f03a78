"""Ops below the tensor graph: ranges, loads, stages (kernel graph) and the lines of a linear program.

Every loop level is a ``RANGE``. In the kernel graph the node stands for all its values; the linearizer assigns it a
position in the program. ``LOAD`` and ``STORE`` take (memory, index[, ...], valid); memory is a ``PARAM`` or ``STAGE``
or, in a linear program, a ``DEFINE_GLOBAL`` or ``DEFINE_LOCAL``.
"""
from __future__ import annotations

from typing import Any

import numpy as np

from tinsmith.core.dtypes import DType, dtypes
from tinsmith.ir.ops.op import Array, Node, Op, nothing, of_first


def product_type(src: tuple[Node, ...], arg: Any) -> DType:
    """Dtype rule of MMA: the unit's accumulator dtype; in a linear program, that of the accumulator fragment."""
    acc: DType = src[0].dtype if len(src) == 3 else arg.acc
    return acc


def drained(src: tuple[Node, ...], arg: Any) -> DType:
    """Dtype rule of DRAIN: the dtype of the accumulator it passes on; void without one."""
    return src[0].dtype if src else dtypes.void


def shuffled(u: Node, x: Array) -> Array:
    """Return the warp's values (a row per thread) permuted by XOR of the thread number; one row means all threads
    agree."""
    found: Array = x if len(x) == 1 else x[np.arange(len(x)) ^ u.arg]
    return found


def matched(u: Node, key: Array) -> Array:
    """Return, for each thread of a warp (a row each), the number of equal keys in lower threads, and in all threads."""
    same = key == key.T
    return np.stack([np.tril(same, -1).sum(1), same.sum(1)], 1).astype(np.int32)


class KernelOps:
    """Op-table rows of kernel graphs and linear programs."""

    RANGE = Op("loop", "A loop index from 0 up to the last source, exclusive: (number, role[, partial]). With "
               "partial, only the last iteration has guards. With two sources (n, size) and (number, role, steps), it "
               "runs over tiles of the n steps of a symbolic range, the last one perhaps partial. With three sources "
               "(start, end, size), start and end may depend on other ranges: a FOLD runs over the steps from start up "
               "to end, since the other steps add nothing.", (1, 3), of_first)
    LOAD = Op("memory", "The element at an index of memory; 0 where valid is false.", (2, 3), None)
    STORE = Op("memory", "Write (memory, index, value[, valid]).", (3, 4), nothing)
    FOLD = Op("reduce", "Combine a value over ranges: (value, range, ...[, start]); the argument is the op. The "
              "optional start is the initial value, of the value's dtype.", (2, 1 << 30), of_first)
    PREFIX = Op("scan", "The inclusive scan of a value over a range, in order:"
                " (value, range, start[, weight]); several ranges are the digits of one step number. The "
                "argument is the op, MULADD with a weight.", (3, 4), of_first)
    STAGE = Op("memory", "A value computed over ranges into local memory, in row-major order: (value, range, ...). The "
               "argument has the sizes, and may have a layout and a number of slots (ring).", (1, 1 << 30),
               of_first)
    MMA = Op("reduce", "One step of a matrix unit, which the argument names. Kernel graph: (a, b, m, n, k), the sum of "
             "a·b over range k at place (m, n). Linear program: (accumulator, a, b), fragments of the unit.", (3, 5),
             product_type)
    SCATTER_STORE = Op("memory", "Write (memory, index, value, valid, range), one value of the range after another.",
                       (5, 5), nothing)
    AFTER = Op("memory", "The first source, once all others have run.", (2, 1 << 30), of_first)

    DEFINE_GLOBAL = Op("program", "Buffer argument number `arg`.", 0)
    DEFINE_LOCAL = Op("program", "Local memory of a kernel: (name, elements[, layout]).", 0)
    DEFINE_RING = Op("program", "A ring buffer of local-memory slots (software pipeline): (memory, ...); `arg` = "
                     "(name, slots). A slot's fills have alternating parities, from 0 on. With readers, `arg` = (name, "
                     "slots, warps): a slot that all of them have left counts as filled.", (0, 1 << 30), nothing)
    DEFINE_ACC = Op("program", "An accumulator: (start value, loop, ...).", (1, 1 << 30), of_first)
    SPECIAL = Op("program", "A number that the device supplies, such as a thread's: the argument names it.", 0)
    ENDRANGE = Op("program", "The end of a RANGE.", 1, nothing)
    IF = Op("program", "The following nodes up to ENDIF run only where the condition holds. `arg`, if any: "
            "the number of registers that each thread of these warps gets (setmaxnreg).", 1, nothing)
    ENDIF = Op("program", "The end of an IF.", 1, nothing)
    PHI = Op("program", "The accumulator's next value: (accumulator, value).", 2, of_first)
    VECTORIZE = Op("program", "A vector of its sources.", (1, 1 << 30), None)
    GEP = Op("program", "Lanes of a vector: the argument lists them.", 1, None)
    BARRIER = Op("program", "Wait until all threads of the block have arrived.", (0, 1 << 30), nothing)
    SHUFFLE = Op("program", "The value of another thread of the warp, whose number differs from this one's in the bits "
                 "`arg`.", 1, of_first, meaning=shuffled)
    MATCH = Op("program", "The number of lower threads of the warp with the same key, and of all threads with it: "
               "(key); `arg` is the number of bits of a key.", 1, lambda src, arg: dtypes.int32.vec(2),
               meaning=matched)
    WARP_BARRIER = Op("program", "Wait until all threads of the warp have arrived; their writes to the memory are "
                      "visible.", 1, nothing)
    LOAD_TILE = Op("program", "A fragment of `arg` = (rows, columns), its rows `pitch` elements apart: (memory, index, "
                   "pitch).", 3)
    LOAD_MATRIX = Op("program", "A warp loads matrices of 8 × 8 elements of 16 bits from local memory: lane 8·i + j "
                     "names where row j of matrix i begins; lane l gets elements 2·(l mod 4) and the next of row "
                     "l / 4 of each, or of column l / 4 if `arg`: (memory, index).", 2)
    STORE_TILE = Op("program", "Write a fragment of `arg` = (rows, columns): (memory, index, pitch, value).", 4,
                    nothing)
    ARRIVE = Op("program", "Begin the next fill of a slot, which is complete once `arg` bytes have arrived: "
                "(ring, slot).", 2, nothing)
    RELEASE = Op("program", "This warp has finished reading a slot of a ring with readers: (ring, slot).", 2, nothing)
    ASYNC_COPY = Op("program", "Copy a box of memory to a place of a slot, at some time before the slot's fill is "
                    "complete, as elements of the slot's type; 0 where the box leaves the view `arg`: (ring, slot, "
                    "local memory, index, memory, coordinate, ...), the fastest coordinate first.", (6, 1 << 30),
                    nothing)
    WAIT = Op("program", "Wait until the fill of a slot with this parity is complete: (ring, slot, parity).", 3,
              nothing)
    TILE = Op("program", "An operand in local memory, which its unit reads asynchronously, at the latest by DRAIN: "
              "(memory, index).", 2)
    FENCE = Op("program", "Order register accesses of accumulators before the unit's asynchronous work, up to DRAIN.",
               0, nothing)
    COMMIT = Op("program", "Make the unit's steps since the last COMMIT one group.", 0, nothing)
    DRAIN = Op("program", "Wait until at most `arg` groups of steps are in flight; pass on the "
               "accumulator, then complete.", (0, 1), drained)
    PREFETCH = Op("program", "Fetch the line at an index ahead of its use, if valid: (memory, index[, valid]).", (2, 3),
                  nothing)

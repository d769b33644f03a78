"""Generator of docs/ir.md from the op table and the verifier rules: ``python -m tinsmith ir > docs/ir.md``."""
from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tinsmith.ir.builder import SPELLINGS
from tinsmith.ir.ops import Op, op_table
from tinsmith.ir.verify import KERNEL_CHECKS, KERNEL_OPS, PROGRAM_CHECKS, PROGRAM_OPS, TENSOR_CHECKS, TENSOR_OPS, Check

_INTRODUCTION = """\
# The intermediate representation

<!-- Made by `python -m tinsmith ir > docs/ir.md`; change the op table (tinsmith/ir/ops) instead. -->

One node class, `UOp(op, dtype, src, arg)`, serves every level. A node is immutable, and equal nodes are one object.
Each op is one row of the op table, from which the verifiers, the evaluator that defines meaning, the gradients and this
page are derived. Three dialects use the ops:

1. the **tensor graph** that a `Tensor` records (`Tensor.uop`),
2. the **kernel graph**: a `SINK` of `STORE`s over `RANGE`s, what the optimizer works on,
3. the **linear program**: the list that `DEBUG=5` prints and that renderers read.

## A program by hand

`ProgramBuilder.add(op, dtype, vin, arg)` writes one line of a linear program; `run_program` runs it on any device. The
older spellings of the tutorials are accepted: @SPELLINGS@, and `ALU` with the op as its argument. Loop
counters and places may be given any integer dtype. This is a dot product:

```python
import numpy as np
from tinsmith import dtypes
from tinsmith.ir import Ops, ProgramBuilder
from tinsmith.runtime.custom_program import run_program, source_of

g = ProgramBuilder()
out = g.add(Ops.DEFINE_GLOBAL, dtype=dtypes.int, vin=(), arg=(0, "data0", True))
a = g.add(Ops.DEFINE_GLOBAL, dtype=dtypes.int, vin=(), arg=(1, "data1", False))
b = g.add(Ops.DEFINE_GLOBAL, dtype=dtypes.int, vin=(), arg=(2, "data2", False))
acc = g.add(Ops.DEFINE_ACC, dtype=dtypes.int, arg=0)
zero, two = g.add(Ops.CONST, dtypes.int, arg=0), g.add(Ops.CONST, dtypes.int, arg=2)
loop = g.add("LOOP", dtype=dtypes.int, vin=(zero, two))
x = g.add(Ops.LOAD, dtype=dtypes.int, vin=(a, loop))
y = g.add(Ops.LOAD, dtype=dtypes.int, vin=(b, loop))
product = g.add("ALU", dtype=dtypes.int, vin=(x, y), arg=Ops.MUL)
total = g.add("ALU", dtype=dtypes.int, vin=(acc, product), arg=Ops.ADD)
new = g.add(Ops.PHI, dtype=dtypes.int, vin=(acc, total, loop))
g.add("ENDLOOP", vin=(loop,))
g.add(Ops.STORE, vin=(out, zero, new))

g.print()
print(source_of(g, name="dot"))
for device in ("CPU", "PYTHON"):
    result = np.zeros(1, np.int32)
    run_program(g, result, np.array([1, 2], np.int32), np.array([3, 4], np.int32), device=device)
    print(device, result)
```

```text
   0 UOps.DEFINE_GLOBAL  : PtrDType(dtypes.int)      []                               0
   1 UOps.DEFINE_GLOBAL  : PtrDType(dtypes.int)      []                               1
   2 UOps.DEFINE_GLOBAL  : PtrDType(dtypes.int)      []                               2
   3 UOps.CONST          : dtypes.int                []                               0
   4 UOps.CONST          : dtypes.int                []                               2
   5 UOps.DEFINE_ACC     : dtypes.int                ['0', 6]                         (0,)
   6 UOps.RANGE          : dtypes.int                ['0', '2']                       (0, True)
   7 UOps.LOAD           : dtypes.int                [1, 6]                           None
   8 UOps.LOAD           : dtypes.int                [2, 6]                           None
   9 UOps.ALU            : dtypes.int                [7, 8]                           BinaryOps.MUL
  10 UOps.ALU            : dtypes.int                [5, 9]                           BinaryOps.ADD
  11 UOps.PHI            : dtypes.int                [5, 10]                          None
  12 UOps.ENDRANGE       :                           [6]                              None
  13 UOps.STORE          :                           [0, '0', 11]                     None
void dot(int* data0, const int* data1, const int* data2) {
  int acc0 = 0;
  for (int ridx0 = 0; ridx0 < 2; ridx0++) {
    int val0 = *(data1+ridx0);
    int val1 = *(data2+ridx0);
    acc0 = (acc0+(val0*val1));
  }
  *(data0+0) = acc0;
}

CPU [11]
PYTHON [11]
```

A buffer argument that is never loaded from or stored to is an integer argument: `run_program(..., variables={"n": 5})`
gives its value. What breaks a rule is refused with the line marked. The tables below say what each word of a linear
program (dialect 3) means; `BARRIER`, `WARP_BARRIER`, `SHUFFLE`, `MATCH` and `SPECIAL` need a device whose kernels run
in blocks of threads.

## MULADD

A sum of products of floats takes one step per product: `MULADD(x, y, z)` is `x * y + z`, one line of the program and,
where the processor can (LLVM on x86 with FMA, ARM, CUDA, Metal), one instruction that rounds once. It is what `MUL` and
`ADD` of the tutorials' lists are here: the tree says `SUM (0,) by MULADD` above its `MUL`, the list has a row
`TernaryOps.MULADD`, the C text an `fma(x, y, z)`. Integers, which do not round, keep `MUL` and `ADD`, and so do floats
with `NOOPT=1`, in the tree, in the list and in C. Other targets compute `(x * y) + z` for it, which rounds twice, as
NumPy does: the last digit of a sum may differ.

```python
from tinsmith import Context, Tensor

for noopt in (0, 1):
    with Context(NOOPT=noopt):
        item = Tensor([1.0, 2.0]).dot(Tensor([3.0, 4.0])).schedule()[-1]
    nodes = [line for line in item.tree().splitlines() if "━" in line]  # the others are folded off
    print([line.split("━")[-1].strip("┳ ").split(" Mem")[0] for line in nodes])
    print([u.op.name for u in item.step.launch.uops if u.op.alu])
```

```text
['STORE', 'SUM (0,) by MULADD', 'MUL', 'LOAD', 'LOAD']
['MULADD', 'MULADD', 'ADD']
['STORE', 'SUM (0,)', 'MUL', 'LOAD', 'LOAD']
['MUL', 'ADD']
```
"""

_TITLES = {
    "source": "Sources", "movement": "Movement", "unary": "Arithmetic on one value", "binary": "On two values",
    "ternary": "On three values", "cast": "Conversions", "reduce": "Reductions", "scan": "Running values",
    "index": "Indexing", "memory": "Memory", "loop": "Loops", "program": "Lines of a program"}


def document() -> str:
    """Return the full page as Markdown; the text is the same in every process.

    >>> document().splitlines()[0], "| `MULADD` |" in document()
    ('# The intermediate representation', True)
    """
    spelled = ", ".join(f"`{old}` for `{new}`" for old, new in SPELLINGS.items())
    parts = [_INTRODUCTION.replace("@SPELLINGS@", spelled), _tables(), _rules()]
    return "\n".join(parts)


def _tables() -> str:
    rows = list(op_table())
    lines = [
        "## The ops", "",
        "*In*: dialects (1 tensor graph, 2 kernel graph, 3 linear program). *From*: number of sources. *Cost*:",
        "operations per element, for the models. *Grad*: whether a gradient flows through. *Laws*: c commutative,",
        "a associative (up to rounding), r can reduce.", ""]
    for kind, title in _TITLES.items():
        found = [op for op in rows if op.kind == kind]
        lines += [f"### {title}", "", "| op | in | from | cost | grad | laws | meaning |",
                  "| --- | --- | --- | --- | --- | --- | --- |", *map(_row, found), ""]
    return "\n".join(lines)


def _row(op: Op) -> str:
    dialects = "".join(str(n) for n, ops in enumerate((TENSOR_OPS, KERNEL_OPS, PROGRAM_OPS), 1) if op in ops)
    laws = "".join(letter for letter, holds in (("c", op.commutative), ("a", op.associative),
                                                ("r", op.identity is not None)) if holds)
    cells = (f"`{op.name}`", dialects, _arity(op.arity), str(op.cost or ""), "yes" if op.gradient else "", laws, op.doc)
    return f"| {' | '.join(c.replace('|', chr(92) + '|') for c in cells)} |"


def _arity(arity: int | tuple[int, int]) -> str:
    if isinstance(arity, int):
        return str(arity)
    least, most = arity
    return f"{least}…" if most > 100 else str(least) if least == most else f"{least}–{most}"


def _rules() -> str:
    """Return the Markdown list of verifier rules, one section per dialect."""
    named: Iterable[tuple[str, tuple[Check[Any], ...]]] = (
        ("tensor graphs", TENSOR_CHECKS), ("kernel graphs", KERNEL_CHECKS),
        ("linear programs", PROGRAM_CHECKS))
    lines = ["## The rules", "", "The verifiers check these between passes in tests and under `DEBUG=3`.", ""]
    for title, checks in named:
        lines += [f"### Of {title}", ""]
        for check in checks:
            of = f" ({', '.join(f'`{op.name}`' for op in check.ops)})" if 0 < len(check.ops) <= 6 else ""
            lines.append(f"- `{check.name}`: {check.doc}{of}")
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"

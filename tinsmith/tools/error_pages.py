"""Explanations of error codes: ``tinsmith explain-error E040``, and docs/errors.md, which is generated from them."""
from __future__ import annotations

import inspect
from typing import NamedTuple

from tinsmith.core import errors
from tinsmith.core.errors import ArgumentError, TinsmithError


class ErrorExplanation(NamedTuple):
    """The causes of an error, a program that raises it, and the remedies."""

    causes: str
    example: str  # the lines inside of ``try:``
    remedies: str


EXPLANATIONS: dict[str, ErrorExplanation] = {
    "E010": ErrorExplanation(
        "Operands whose shapes cannot be broadcast, a reshape to another number of elements, a weight that does not "
        "fit its layer.",
        "Tensor.ones(2, 3) + Tensor.ones(4)",
        "Compare the shapes in the message from the right: sizes must be equal or 1. `x.unsqueeze(axis)` inserts an "
        "axis of size 1, "
        "`x.flatten(1)` joins all axes but the first."),
    "E011": ErrorExplanation(
        "An axis that the tensor does not have, or an index beyond its size.",
        "Tensor.ones(2, 3).sum(axis=2)",
        "Axes count from 0, and from -1 backwards. `x.shape` and `x.ndim` say what there is."),
    "E012": ErrorExplanation(
        "A misspelled method or function, or one of PyTorch's that has another name or form here.",
        "Tensor.ones(2).logsofmax()",
        "The message names what was probably meant. docs/api.md lists every public name, docs/rosetta.md those of "
        "tinygrad and of the tutorials."),
    "E020": ErrorExplanation(
        "An operation that does not exist for a dtype: bit operations of floats, a gradient of integers.",
        "Tensor([1.0]) << 1",
        "Convert with `x.cast(dtype)`; `dtypes` lists all element types."),
    "E021": ErrorExplanation(
        "A Python number outside of the range of the dtype that it is to have.",
        "Tensor([300], dtype=dtypes.uint8)",
        "Take a wider dtype, or wrap the number around yourself with `% 256`."),
    "E022": ErrorExplanation(
        "A keyword that the function does not take, often another library's name of it.",
        "Tensor.ones(2).sum(axes=0)",
        "The message names the keywords that there are."),
    "E030": ErrorExplanation(
        "An argument of the right type whose value makes no sense: a negative size, an unknown mode, an opt that is "
        "not legal for its kernel.",
        'Tensor.ones(1, 1, 4, 4).interpolate((8, 8), mode="cubist")',
        "The message says which values are allowed. For opts, docs/opts.md says where each is legal."),
    "E040": ErrorExplanation(
        "A device that is unknown, cannot be opened on this machine, or is not where the other operand lies.",
        'Tensor([1.0]) + Tensor([1.0], device="PYTHON")',
        "`python -m tinsmith doctor` lists the devices of this machine with the reason why one cannot be opened. "
        "`x.to(device)` moves a tensor."),
    "E041": ErrorExplanation(
        "A buffer that does not fit into the device's memory, or a program that misses its memory budget.",
        "",
        "`x.plan()` shows before anything runs which values take the most memory, and `MEMORY_BUDGET` computes "
        "values again instead of keeping "
        "them: docs/plan.md. Smaller batches, 16-bit floats and `no_grad` for inference take less."),
    "E050": ErrorExplanation(
        "The device's compiler rejected the generated code. This is a bug in Tinsmith, or a tool is missing.",
        "",
        "`python -m tinsmith doctor` says whether a tool is missing. Otherwise please report it with the output of "
        "`DEBUG=4`; `NOOPT=1` often "
        "avoids it meanwhile."),
    "E051": ErrorExplanation(
        "A kernel failed while it ran, or a value is read that an earlier failed kernel was to compute.",
        "",
        "`CHECKED=1` finds indices out of bounds and divisions by zero and names your line; on a GPU, `CUDA_SYNC=1` "
        "names the kernel that failed."),
    "E052": ErrorExplanation(
        "A check that `CHECKED=1` adds failed: an index out of bounds, an integer division by zero, a NaN that an "
        "operation made. At level 2 also a "
        "kernel that writes outside of its buffers or differs from the interpreter.",
        "with Context(CHECKED=1):\n    print((Tensor([6, 6]) // Tensor([2, 0])).tolist())",
        "The message names the operation, your line and the value. A difference from the interpreter is a bug of "
        "Tinsmith's: please report it."),
    "E060": ErrorExplanation(
        "A gradient of something that has none, with respect to something that the value does not depend on, or of "
        "the wrong shape.",
        "Tensor.ones(3).backward()",
        "`backward()` wants a value of one element, or a gradient to start from. Tensors that are to have gradients "
        "are floats with "
        "`requires_grad` not False, outside of `no_grad()`."),
    "E070": ErrorExplanation(
        "A function that `TinyJit` cannot capture, since a replay could not repeat what it does, or a replay that "
        "`VERIFY` found different.",
        "",
        "The message names the line and the remedy. docs/jit.md says what a replay depends on and what it leaves "
        "behind."),
    "E080": ErrorExplanation(
        "A file that is damaged, cut short, or not of the format that its name or header says.",
        'Path("broken.safetensors").write_bytes(b"not a file of weights")\nnn.state.safe_load("broken.safetensors")',
        "Download or write the file again; docs/formats.md says which formats and parts of them are read."),
    "E090": ErrorExplanation(
        "Processes that do not fit together: the launcher and MPI are not each other's, MPI is missing, a process "
        "ended while others wait for it, or processes called different collectives.",
        "",
        "The message names ranks, hosts and lines. `CHECKED=1` compares the processes' collectives before each one; "
        "docs/distributed.md has a table of causes."),
}


def classes() -> dict[str, type[TinsmithError]]:
    """Return code → class of every error that has its own code, in the order of the codes."""
    found = {c.id: c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, TinsmithError)}
    return {code: found[code] for code in sorted(found) if code != TinsmithError.id}


def explain_error(code: str) -> str:
    """Return the section of docs/errors.md for an error code, given in any case and with or without brackets.

    Raises:
        ArgumentError: if there is no such code.

    >>> print(explain_error("e022").splitlines()[0])
    ## E022: KeywordError
    """
    wanted = code.strip("[] ").upper()
    if wanted not in EXPLANATIONS:
        raise ArgumentError("explain-error", f"there is no error code {code!r}", f"one of {', '.join(EXPLANATIONS)}")
    kind, text = classes()[wanted], EXPLANATIONS[wanted]
    general = (Exception, BaseException, object)
    caught = [f"`except {b.__name__}`" for b in kind.__mro__ if b.__module__ == "builtins" and b not in general]
    meaning = (inspect.getdoc(kind) or "").partition("\n\n")[0].replace("``", "`")
    lines = [f"## {wanted}: {kind.__name__}", "", f"{meaning} Also caught by {' and '.join(caught)}.", "",
             f"**Causes.** {text.causes}", "", f"**Remedies.** {text.remedies}"]
    if text.example:
        body = "\n".join(f"    {line}" for line in text.example.split("\n"))
        lines += ["", "```python", "try:", body, "except Exception as error:", "    print(error)", "```"]
    return "\n".join(lines) + "\n"

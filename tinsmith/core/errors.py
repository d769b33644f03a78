"""User-facing errors: each has a stable id, names the op, and gives a remedy.

Every class also inherits from the built-in exception that a Python programmer would catch for the same mistake.
``is_from_handler`` recognizes exceptions raised by signal handlers.
"""
from __future__ import annotations

import contextlib
import os
import reprlib
import sys
from types import FrameType
from typing import Any, Final

import numpy as np


class _Short(reprlib.Repr):
    """Repr on one short line; arrays and tensors, which may be large or not yet computed, show only their shapes."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxlist, self.maxtuple, self.maxdict = 2, 4, 4, 3
        self.maxstring = self.maxother = self.maxlong = 50

    def repr1(self, x: Any, level: int) -> str:
        if _is_array(x):
            return f"<{type(x).__name__} {x.shape}>"
        return " ".join(super().repr1(x, level).split())


def _is_array(value: Any) -> bool:
    return hasattr(value, "__array__") and not isinstance(value, (type, np.generic)) and hasattr(value, "shape")

_short = _Short()


def shown(value: Any) -> str:
    """Return a value and its type on one short line, for an error message.

    >>> shown("a"), shown(np.zeros((2, 2))), shown([np.zeros(9), 1])
    ("'a' (str)", 'ndarray of shape (2, 2)', '[<ndarray (9,)>, 1] (list)')
    """
    kind = type(value).__name__
    return f"{kind} of shape {value.shape}" if _is_array(value) else f"{_short.repr(value):.80} ({kind})"

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
EXAMPLES: Final = os.path.join(_PACKAGE, "examples", "")  # programs of users, which lie in the package
_LIBRARY = os.path.dirname(os.__file__) + os.sep
_NOT_THE_USER = (_PACKAGE, contextlib.__file__, "<frozen ")  # frames of Python itself


def place(file: str, line: int) -> str:
    """Return ``file:line`` for messages and tables; a notebook cell is named as in its prompt.

    >>> place("/home/me/train.py", 3)
    'train.py:3'
    """
    asked = getattr(sys.modules.get("IPython"), "get_ipython", None)
    shell = None if asked is None else asked()
    named = getattr(getattr(shell, "compile", None), "format_code_name", lambda _: None)(file)
    return f"{named[1] if named else os.path.basename(file)}:{line}"


def user_frame() -> FrameType | None:
    """Return the innermost frame outside this package: the user's line."""
    return _user_call()[0]


def _user_call() -> tuple[FrameType | None, FrameType]:
    """Return the user's frame, and the frame of the function of this package that it called."""
    frame: FrameType | None = sys._getframe(1)
    called = sys._getframe(1)
    while frame is not None and (_is_ours(frame.f_code.co_filename) or _generated(frame)):
        called, frame = frame, frame.f_back
    return frame, called


def _is_ours(file: str) -> bool:
    """Return True if a source file belongs to this package, except its examples, or to Python's own calls."""
    return file.startswith(_NOT_THE_USER) and not file.startswith(EXAMPLES)


def _generated(frame: FrameType) -> bool:
    """Return True if the frame is a method that ``dataclass`` generated for a class of this package."""
    return frame.f_code.co_filename == "<string>" and str(frame.f_globals.get("__name__")).startswith("tinsmith.")


def _name_of_call(called: FrameType) -> str:
    """Return the name of the method or layer that the user called; "" for operators and methods that Python calls
    implicitly, which messages name differently."""
    name = called.f_code.co_name
    if name in ("__init__", "__call__"):
        return type(called.f_locals.get("self")).__name__
    return "" if name.startswith(("_", "<")) else name


def user_line() -> tuple[str, int]:
    """Return file and line of the innermost user frame; ``("<unknown>", 0)`` if there is none."""
    frame = user_frame()
    return ("<unknown>", 0) if frame is None else (frame.f_code.co_filename, frame.f_lineno)


def line_of(frame: FrameType | None) -> tuple[str, int]:
    """Return file and line of the user in a thread that is at ``frame``, below Python's own library;
    ``("<unknown>", 0)`` if there is none."""
    while frame is not None and (frame.f_code.co_filename.startswith((*_NOT_THE_USER, _LIBRARY)) or _generated(frame)):
        frame = frame.f_back
    return ("<unknown>", 0) if frame is None else (frame.f_code.co_filename, frame.f_lineno)


class TinsmithError(RuntimeError):
    """Base of all errors that a user's program can cause.

    Args:
        op: the operation that failed, by the name that the user called.
        message: the fault, with the shapes, dtypes and devices involved.
        mend: the remedy.
        at: the file and line in the message; default: the user's current line.
    """

    id = "E000"

    def __init__(self, op: str, message: str, mend: str = "", at: tuple[str, int] | None = None) -> None:
        self.op, self.message, self.mend = op, message, mend
        frame, called = _user_call()
        self.file, self.line = at or (("<unknown>", 0) if frame is None else (frame.f_code.co_filename, frame.f_lineno))
        self.called = "" if at or frame is None else _name_of_call(called)
        inside = self.called and self.called.lower() != op.lower()
        text = f"[{self.id}] {op} (in {self.called}): {message}" if inside else f"[{self.id}] {op}: {message}"
        if self.line:
            text += f" ({place(self.file, self.line)})"
        if mend:
            text += f". Try: {mend}"
        super().__init__(text)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.op, self.message, self.mend, (self.file, self.line))


class ShapeError(TinsmithError, ValueError):
    """Shapes that do not match each other or the operation."""

    id = "E010"


class AxisError(TinsmithError, IndexError):
    """An axis or index out of range."""

    id = "E011"


class UnknownNameError(TinsmithError, AttributeError):
    """A name that a module, a class or a tensor does not have."""

    id = "E012"


class DTypeError(TinsmithError, TypeError):
    """A dtype the operation cannot work with, or an unknown dtype."""

    id = "E020"


class RangeError(TinsmithError, OverflowError):
    """A number that the dtype cannot hold."""

    id = "E021"


class KeywordError(TinsmithError, TypeError):
    """A keyword that a function does not take."""

    id = "E022"


class ArgumentError(TinsmithError, ValueError):
    """An argument whose value makes no sense for the operation."""

    id = "E030"


class DeviceError(TinsmithError, RuntimeError):
    """An unknown device, one that cannot be opened, or tensors on different devices."""

    id = "E040"


class OutOfMemoryError(TinsmithError, MemoryError):
    """A buffer that does not fit into the device's memory, or a program that misses its memory budget.

    Attributes:
        plan: the memory plan of the running program, if any; shown below the message.
    """

    id = "E041"
    plan: object = None

    def __str__(self) -> str:
        text = super().__str__()
        return text if self.plan is None else f"{text}\n{self.plan}"

    def __reduce__(self) -> tuple[object, ...]:
        return (*super().__reduce__(), {"plan": None if self.plan is None else str(self.plan)})


class CompileError(TinsmithError, RuntimeError):
    """The device's compiler rejected the generated code: a bug in Tinsmith, or a missing tool."""

    id = "E050"


class KernelError(TinsmithError, RuntimeError):
    """A kernel failed, or a value is read whose kernel failed earlier."""

    id = "E051"


class CheckError(TinsmithError, RuntimeError):
    """``CHECKED`` found an index out of bounds, an integer division by zero, a NaN that an operation made, or, at level
    2, a kernel that computes something else than the interpreter or writes outside of its buffers."""

    id = "E052"


class GradientError(TinsmithError, RuntimeError):
    """A gradient that does not exist, or a request for the gradient of an unsupported value."""

    id = "E060"


class JitError(TinsmithError, RuntimeError):
    """A function that cannot be captured."""

    id = "E070"


class FileFormatError(TinsmithError, ValueError):
    """A file whose content contradicts its name or header."""

    id = "E080"


class CommunicationError(TinsmithError, RuntimeError):
    """A communication fault between processes: a missing launcher, collectives in different orders, a lost rank."""

    id = "E090"


class VerifyError(AssertionError):
    """A pass broke the rules of its dialect: a bug of ours. The message holds the program with the fault marked."""


def is_from_handler(error: BaseException) -> bool:
    """Return True if a signal handler raised ``error``; code that explains or drops errors must re-raise such an error
    unchanged.

    Python passes a handler the frame that it interrupts; no other function receives its caller's frame.

    >>> import signal
    >>> def stop(number, frame): raise TimeoutError
    >>> before = signal.signal(signal.SIGINT, stop)
    >>> try:
    ...     signal.raise_signal(signal.SIGINT)
    ... except TimeoutError as error:
    ...     is_from_handler(error), is_from_handler(ValueError())
    ... finally:
    ...     _ = signal.signal(signal.SIGINT, before)
    (True, False)
    """
    trace = error.__traceback__
    while trace is not None:
        caller = trace.tb_frame.f_back
        for value in list(trace.tb_frame.f_locals.values()) if caller is not None else ():
            if value is caller or (type(value) is tuple and any(v is caller for v in value)):
                return True
        trace = trace.tb_next
    return False


def raised_by_handler(error: BaseException | None) -> BaseException | None:
    """Return the first error in the chain from ``error`` through its contexts that a signal handler raised; else None.

    The chain matters because a handler that raises while a thread starts causes a RuntimeError in Python's locks.
    """
    while error is not None and not is_from_handler(error):
        error = error.__context__
    return error

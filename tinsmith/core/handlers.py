"""Exceptions that a handler of a signal raised, wherever the program was."""
from __future__ import annotations


def is_from_handler(error: BaseException) -> bool:
    """Return True if a signal's handler raised ``error``: who explains or drops errors must let it go on as it is.

    Python calls a handler with the frame that it interrupts, which no other call gets.

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
    """Return ``error``, or what it came on top of, if a signal's handler raised that; else None.

    Python's locks are not proof against handlers: one that comes while a thread starts ends in a RuntimeError.
    """
    while error is not None and not is_from_handler(error):
        error = error.__context__
    return error

"""Recognition of exceptions raised by signal handlers."""
from __future__ import annotations


def is_from_handler(error: BaseException) -> bool:
    """Return True if a signal handler raised ``error``; code that explains or drops errors must re-raise such an error
    as it is.

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

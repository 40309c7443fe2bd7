"""How ``dledger-pipeline`` ends at a signal: an exception that no job handles leaves its work."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NoReturn

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class Stopped(KeyboardInterrupt):
    """A signal asked for the end; as Ctrl-C is, it is nothing that a job handles."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(f"stopped by {number.name} before the work was done")
        self.number = number


@contextmanager
def stoppable() -> Iterator[None]:
    """Raise `Stopped` in the block at SIGINT and SIGTERM; behind it neither disturbs any more.

    Ctrl-C reaches workers and the JVM, too, so their end may be noticed first, or a library may
    make an error of its own of `Stopped`: what fails once a signal has come was stopped by it.
    Only a main thread can; elsewhere signals are somebody else's.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    asked: list[signal.Signals] = []

    def stop(number: int, _: object) -> NoReturn:
        asked.append(signal.Signals(number))
        logging.disable()  # what is cut off says so, Spark's connections with tracebacks
        raise Stopped(signal.Signals(number))

    after = {each: signal.signal(each, stop) for each in _SIGNALS}
    try:
        yield
    except KeyboardInterrupt as error:
        after = dict.fromkeys(_SIGNALS, signal.SIG_IGN)
        if isinstance(error, Stopped):
            raise
        raise Stopped(signal.SIGINT) from error  # by the handler that Spark has while it starts
    except Exception as error:
        if asked:
            raise Stopped(asked[0]) from error
        raise
    finally:
        for each, handler in after.items():
            signal.signal(each, handler)

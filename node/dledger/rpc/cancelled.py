"""Whose CancelledError it is: the task's, or that of a gRPC call which cancelled itself."""

from __future__ import annotations

import asyncio


def is_cancelled() -> bool:
    """Whether a CancelledError that was just caught is meant for this task.

    If not, it is gRPC's: a call with a stream of requests cancels itself when it cannot send one or
    close the stream, as when the server ended the call before, or the connection broke. It raises
    CancelledError then instead of the status (`grpc.aio._call._consume_request_iterator`).
    """
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0

"""Tells a task's own cancellation from a gRPC call that cancelled itself.

Used where answers of a streaming call are read.
"""

from __future__ import annotations

import asyncio


def is_cancelled() -> bool:
    """Whether a CancelledError that was just caught cancels this task.

    If not, it comes from gRPC: a call with a stream of requests cancels itself when it cannot send
    a request or close the stream, because the server ended the call or the connection broke. Then
    it raises CancelledError instead of the status (`grpc.aio._call._consume_request_iterator`).
    """
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0

"""The methods of one service at one port, in the form in which our own server calls handlers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeAlias

from dledger.calls.method import AnyMethod, failed_by
from dledger.calls.pipeline import Pipeline
from dledger.door.contract import (
    Answer,
    BidiStream,
    Cancel,
    Fail,
    Failed,
    Handler,
    Handlers,
    Headers,
    TooLarge,
    Unary,
)
from dledger.errors import DledgerError, Overloaded
from dledger.rpc import status
from dledger.rpc.requests import limit_of
from dledger.rpc.status import Rejected


class Service:
    """What a port has of one service.

    Args:
        pipeline: Serves its methods.
        methods: These.
    """

    def __init__(self, pipeline: Pipeline, methods: Sequence[AnyMethod]) -> None:
        self.pipeline = pipeline
        self.methods = {method.path: method for method in methods}

    def handler(self, method: AnyMethod) -> Handler:
        """Return what serves one of them."""
        limit, refusal = limit_of(method.name), partial(self._unread, method)
        if method.stream is not None:
            serve = partial(self.pipeline.open, method)
            return BidiStream(serve, max_request_bytes=limit, refusal=refusal)
        begin = partial(self.pipeline.begin, method)
        return Unary(begin, max_request_bytes=limit, refusal=refusal)

    def _unread(self, method: AnyMethod, refused: Failed) -> bytes:
        """Return the answer to a message that the server refuses itself. Raises Failed."""
        error = refusal_of(method.name, refused)
        if method.refuse is None:
            raise failed_by(error)
        return self.pipeline.encode(method, method.refuse(error))


def handlers_of(services: Iterable[Service]) -> Handlers:
    """Return the handlers of all *services*, by path."""
    return {
        path: service.handler(method)
        for service in services
        for path, method in service.methods.items()
    }


Resumed: TypeAlias = Callable[[Headers, bytes, Answer, Fail, bool, bool], Cancel]
"""Serves a call whose batch went back to its door; see `Pipeline.resume`."""


def resumed_of(services: Iterable[Service]) -> Mapping[str, Resumed]:
    """Return by path what serves the calls of batches that went back to their door."""
    return {
        path: partial(service.pipeline.resume, method)
        for service in services
        for path, method in service.methods.items()
        if method.submit is not None
    }


def refusal_of(name: str, refused: Failed) -> DledgerError:
    """Return why a server refuses a message of the method of that name, unread."""
    if isinstance(refused, TooLarge):
        return Rejected(status.Code.PAYLOAD_TOO_LARGE, f"{name}: {refused.message}")
    return Overloaded(refused.message)

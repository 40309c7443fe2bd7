"""Who may call what on the peer port, by the role in the caller's certificate.

A role is the certificate's one URI of the scheme ``dledger:``, such as ``dledger:operator`` or
``dledger:member/orders-0``. What is not in the table is refused.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import grpc
import grpc.aio

logger = logging.getLogger(__name__)

_Answers = Callable[[object, grpc.aio.ServicerContext], Awaitable[object]]
_Yields = Callable[[object, grpc.aio.ServicerContext], AsyncGenerator[object]]
_SCHEME: Final = "dledger:"
_MEMBER: Final = "member"
_RULES: Final = (
    ("dledger.v1.Peer", "member", "Control"),
    ("dledger.v1.Records", "member", "Read"),
    ("dledger.Peers", "member", "PassedOn Relay"),
    (
        "apache.rocketmq.v2.MessagingService",
        "member",  # what clients asked of it, passed on to the leader
        (
            "AckMessage ChangeInvisibleDuration EndTransaction ForwardMessageToDeadLetterQueue "
            "GetOffset Heartbeat NotifyClientTermination PullMessage QueryAssignment QueryOffset "
            "QueryRoute RecallMessage ReceiveMessage SendMessage SyncLiteSubscription Telemetry "
            "UpdateOffset"
        ),
    ),
    ("dledger.v1.Ledger", "member", "Append Produce Read ReadBatches ReadIndex"),
    ("dledger.v1.Topics", "member operator admin", "CreateTopic ListTopics"),
    ("dledger.v1.Admin", "member operator admin backup", "Status"),
    (
        "dledger.v1.Admin",
        "operator admin backup",
        "Export ExportPlaces ExportPlan ExportSnapshot Snapshot",
    ),
    (
        "dledger.v1.Admin",
        "operator admin",
        (
            "AddLearner Bootstrap ChangeMembers CreateGroup DeleteGroup DeleteTopic DescribeTopic "
            "ForceNewGroup GrowTopic ListGroups RemoveMember TransferLeader WatchStatus"
        ),
    ),
)
"""Services, who may call them, and which of their methods."""
MAY_CALL: Final[Mapping[str, frozenset[str]]] = {
    f"/{service}/{method}": frozenset(kinds.split())
    for service, kinds, methods in _RULES
    for method in methods.split()
}
"""The kinds of roles that may call each method of the peer port, by its path."""


def member(name: str) -> str:
    """Return the role of the member *name*."""
    return f"{_MEMBER}/{name}"


def may_call(role: str, path: str) -> bool:
    """Whether a caller with *role* may call the method ``/SERVICE/METHOD``.

    Of Peer.Control the handshake decides, too: its sender has to be that member.
    """
    kind, slash, name = role.partition("/")
    if bool(slash) != (kind == _MEMBER) or (slash and not name):
        return False
    return kind in MAY_CALL.get(path, ())


def role_of_uris(uris: Iterable[str]) -> str:
    """Return the role among a certificate's URIs; empty if there is none, or more than one."""
    roles = [uri.removeprefix(_SCHEME) for uri in uris if uri.startswith(_SCHEME)]
    return roles[0] if len(roles) == 1 else ""


def role_of_certificate(certificate: Mapping[str, Any] | None) -> str:
    """Return the role in a certificate as Python's `ssl` describes it; empty if it has none."""
    names: Sequence[tuple[str, str]] = (certificate or {}).get("subjectAltName", ())
    return role_of_uris(value for kind, value in names if kind == "URI")


def role_of_call(context: grpc.aio.ServicerContext) -> str | None:
    """Return the role of the caller of a gRPC call; empty if its certificate has none.

    None: the call is in plain text.
    """
    proved = context.auth_context()
    if proved.get("transport_security_type") != [b"ssl"]:
        return None
    uris = proved.get("peer_uri", ())
    return role_of_uris(uri.decode("utf-8", "replace") for uri in uris)


def guarded(handler: grpc.GenericRpcHandler) -> grpc.GenericRpcHandler:
    """Return a service whose methods refuse callers with PERMISSION_DENIED, by `may_call`."""
    return _Guarded(handler)


class _Guarded(grpc.GenericRpcHandler):  # type: ignore[misc]
    def __init__(self, inner: grpc.GenericRpcHandler) -> None:
        self._inner = inner
        self._wrapped: dict[str, tuple[grpc.RpcMethodHandler, grpc.RpcMethodHandler]] = {}

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        """Return the method's handler behind the check; None if it is not of this service."""
        handler = self._inner.service(details)
        if handler is None:
            return None
        known, wrapped = self._wrapped.get(details.method, (None, None))
        if known is not handler:
            wrapped = _wrapped(handler, details.method)
            self._wrapped[details.method] = handler, wrapped
        return wrapped


def _wrapped(handler: grpc.RpcMethodHandler, path: str) -> grpc.RpcMethodHandler:
    if not handler.response_streaming:
        inner = handler.stream_unary if handler.request_streaming else handler.unary_unary
        make: Callable[..., grpc.RpcMethodHandler] = (
            grpc.stream_unary_rpc_method_handler
            if handler.request_streaming
            else grpc.unary_unary_rpc_method_handler
        )
        return make(
            _answers(inner, path), handler.request_deserializer, handler.response_serializer
        )
    inner = handler.stream_stream if handler.request_streaming else handler.unary_stream
    make = (
        grpc.stream_stream_rpc_method_handler
        if handler.request_streaming
        else grpc.unary_stream_rpc_method_handler
    )
    serve = _yields(inner, path) if inspect.isasyncgenfunction(inner) else _answers(inner, path)
    return make(serve, handler.request_deserializer, handler.response_serializer)


def _answers(inner: _Answers, path: str) -> _Answers:
    async def serve(request: object, context: grpc.aio.ServicerContext) -> object:
        await _check(context, path)
        return await inner(request, context)

    return serve


def _yields(inner: _Yields, path: str) -> _Yields:
    async def serve(request: object, context: grpc.aio.ServicerContext) -> AsyncGenerator[object]:
        await _check(context, path)
        async with contextlib.aclosing(inner(request, context)) as answers:
            async for answer in answers:
                yield answer

    return serve


async def _check(context: grpc.aio.ServicerContext, path: str) -> None:
    role = role_of_call(context)
    if role is None or not may_call(role, path):
        logger.warning("refused %s to %s with the role %r", path, context.peer(), role)
        reason = f"a certificate with the role {role!r} may not call {path}"
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, reason)

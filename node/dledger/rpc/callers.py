"""Who may call what on the peer port, by the role in the caller's certificate.

A role is one group's: the URI ``dledger-group:UID/DOMAIN/ROLE`` has the group's uid, the domain of
its members and the role, such as ``operator`` or ``member/orders-0``; an authority may be several
groups'. Certificates from before that have the role alone (``dledger:ROLE``), and are believed as
long as `Group` says so. URIs are compared whole. What is not in the table is refused.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Final

import grpc
import grpc.aio
from cryptography import x509

logger = logging.getLogger(__name__)

_Answers = Callable[[object, grpc.aio.ServicerContext], Awaitable[object]]
_Yields = Callable[[object, grpc.aio.ServicerContext], AsyncGenerator[object]]
_Checks = Callable[[grpc.aio.ServicerContext], Awaitable[None]]
_SCHEME: Final = "dledger:"
_GROUP_SCHEME: Final = "dledger-group:"
_MEMBER: Final = "member"
_RULES: Final = (
    ("dledger.v1.Peer", "member", "Control"),
    ("dledger.v1.Records", "member", "Read"),
    ("dledger.Peers", "member", "AskProducers PassedOn Relay"),
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
    (
        "dledger.v1.Ledger",
        "member",
        "Append EndTransaction Produce Read ReadBatches ReadIndex Recall",
    ),
    ("dledger.v1.Topics", "member operator admin", "CreateTopic"),
    ("dledger.v1.Topics", "member operator admin compactor", "ListTopics"),
    ("dledger.v1.Admin", "member operator admin backup compactor", "Status"),
    (
        "dledger.v1.Admin",
        "operator admin backup compactor",
        "Export ExportPlaces ExportPlan ExportSnapshot Snapshot",
    ),
    ("dledger.v1.Admin", "operator admin compactor", "DescribeTopic"),
    ("dledger.v1.Admin", "admin compactor", "Compact"),
    (
        "dledger.v1.Admin",
        "operator admin",
        (
            "AddLearner Bootstrap ChangeMembers CreateGroup DeleteGroup DeleteTopic DescribeGroup "
            "DropDeadLetters EndTransactions Erase FindMessages ForceNewGroup GrowTopic "
            "ListDeadLetters ListErasures ListGroups ListHeld ListTransactions RemoveMember "
            "ResendDeadLetters ResumeHeld SeekGroup SetGroup SetTopicRetention TransferLeader "
            "WatchStatus"
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


@dataclass(frozen=True, slots=True)
class Group:
    """Whose callers are believed.

    Attributes:
        name: ``UID/DOMAIN`` of the own group; empty while the own certificate does not have it.
        is_required: Whether a certificate without a group is believed no more.
    """

    name: str = ""
    is_required: bool = False


def role_of_uris(uris: Iterable[str], group: Group) -> str:
    """Return the role in *group* among a certificate's URIs.

    Empty if it has none there, or more than one.
    """
    found = tuple(uris)
    plain = [uri.removeprefix(_SCHEME) for uri in found if uri.startswith(_SCHEME)]
    bound = [uri.removeprefix(_GROUP_SCHEME) for uri in found if uri.startswith(_GROUP_SCHEME)]
    if max(len(plain), len(bound)) > 1:
        return ""
    if group.name and bound:
        ours = f"{group.name}/"
        return bound[0].removeprefix(ours) if bound[0].startswith(ours) else ""
    return plain[0] if plain and not group.is_required else ""


def group_of(chain: bytes) -> str:
    """Return ``UID/DOMAIN`` of the group whose certificate comes first in *chain*, PEM.

    Empty if it has none.
    """
    bound = [uri for uri in _uris_of(chain) if uri.startswith(_GROUP_SCHEME)]
    parts = bound[0].removeprefix(_GROUP_SCHEME).split("/") if len(bound) == 1 else []
    return "/".join(parts[:2]) if len(parts) > 2 else ""


def role_of_certificate(certificate: Mapping[str, Any] | None, group: Group) -> str:
    """Return the role in a certificate as Python's `ssl` describes it; empty if it has none."""
    names: Sequence[tuple[str, str]] = (certificate or {}).get("subjectAltName", ())
    return role_of_uris((value for kind, value in names if kind == "URI"), group)


def role_of_call(context: grpc.aio.ServicerContext, group: Group) -> str | None:
    """Return the role of the caller of a gRPC call; empty if its certificate has none.

    None: the call is in plain text.
    """
    proved = context.auth_context()
    if proved.get("transport_security_type") != [b"ssl"]:
        return None
    # What gRPC says of URIs ends at the first NUL in them.
    chain = next(iter(proved.get("x509_pem_cert", ())), b"")
    return role_of_uris(_uris_of(chain), group)


def leaf_of(chain: bytes) -> x509.Certificate:
    """Return the first certificate of a chain, PEM. Raises ValueError: it cannot be read."""
    try:
        return x509.load_pem_x509_certificates(chain)[0]
    except x509.InvalidVersion as error:  # which OpenSSL shows all the same
        raise ValueError(str(error)) from error


@lru_cache(maxsize=256)
def _uris_of(chain: bytes) -> tuple[str, ...]:
    try:
        leaf = leaf_of(chain)
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, x509.ExtensionNotFound):
        return ()
    return tuple(names.get_values_for_type(x509.UniformResourceIdentifier))


def guarded(handler: grpc.GenericRpcHandler, group: Callable[[], Group]) -> grpc.GenericRpcHandler:
    """Return a service whose methods refuse callers with PERMISSION_DENIED, by `may_call`."""
    return _Guarded(handler, group)


class _Guarded(grpc.GenericRpcHandler):  # type: ignore[misc]
    def __init__(self, inner: grpc.GenericRpcHandler, group: Callable[[], Group]) -> None:
        self._inner, self._group = inner, group
        self._wrapped: dict[str, tuple[grpc.RpcMethodHandler, grpc.RpcMethodHandler]] = {}

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        """Return the method's handler behind the check; None if it is not of this service."""
        handler = self._inner.service(details)
        if handler is None:
            return None
        known, wrapped = self._wrapped.get(details.method, (None, None))
        if known is not handler:
            wrapped = _wrapped(handler, partial(_check, path=details.method, group=self._group))
            self._wrapped[details.method] = handler, wrapped
        return wrapped


def _wrapped(handler: grpc.RpcMethodHandler, check: _Checks) -> grpc.RpcMethodHandler:
    if not handler.response_streaming:
        inner = handler.stream_unary if handler.request_streaming else handler.unary_unary
        make: Callable[..., grpc.RpcMethodHandler] = (
            grpc.stream_unary_rpc_method_handler
            if handler.request_streaming
            else grpc.unary_unary_rpc_method_handler
        )
        return make(
            _answers(inner, check), handler.request_deserializer, handler.response_serializer
        )
    inner = handler.stream_stream if handler.request_streaming else handler.unary_stream
    make = (
        grpc.stream_stream_rpc_method_handler
        if handler.request_streaming
        else grpc.unary_stream_rpc_method_handler
    )
    serve = _yields(inner, check) if inspect.isasyncgenfunction(inner) else _answers(inner, check)
    return make(serve, handler.request_deserializer, handler.response_serializer)


def _answers(inner: _Answers, check: _Checks) -> _Answers:
    async def serve(request: object, context: grpc.aio.ServicerContext) -> object:
        await check(context)
        return await inner(request, context)

    return serve


def _yields(inner: _Yields, check: _Checks) -> _Yields:
    async def serve(request: object, context: grpc.aio.ServicerContext) -> AsyncGenerator[object]:
        await check(context)
        async with contextlib.aclosing(inner(request, context)) as answers:
            async for answer in answers:
                yield answer

    return serve


async def _check(
    context: grpc.aio.ServicerContext, *, path: str, group: Callable[[], Group]
) -> None:
    role = role_of_call(context, group())
    if role is None or not may_call(role, path):
        logger.warning("refused %s to %s with the role %r", path, context.peer(), role)
        reason = f"a certificate with the role {role!r} may not call {path}"
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, reason)

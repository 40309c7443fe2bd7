"""Names in requests: RocketMQ resources (with their optional namespace) and client ids."""

from __future__ import annotations

from typing import Protocol

from dledger.broker.topics import MAX_NAME_LENGTH, is_name
from dledger.common.limits import MAX_ID_LENGTH
from dledger.rpc.checks import NO_SCOPE, is_scope
from dledger.rpc.rocketmq_stubs import definition
from dledger.rpc.status import Code, Rejected


def topic_name(resource: definition.Resource) -> str:
    """Return the topic that a ``Resource`` names, or raise Rejected (ILLEGAL_TOPIC)."""
    return _full_name("topic", resource, Code.ILLEGAL_TOPIC)


def group_name(resource: definition.Resource) -> str:
    """Return the group that a ``Resource`` names, or raise Rejected (ILLEGAL_CONSUMER_GROUP)."""
    return _full_name("consumer group", resource, Code.ILLEGAL_CONSUMER_GROUP)


def is_client_id(text: str) -> bool:
    """Whether *text* may be a client's id."""
    return 1 <= len(text) <= MAX_ID_LENGTH


class _Caller(Protocol):
    @property
    def client_id(self) -> str: ...


def client_id(caller: _Caller) -> str:
    """Return the caller's client id, or raise Rejected (CLIENT_ID_REQUIRED)."""
    return checked_client_id(caller.client_id)


def checked_client_id(text: str) -> str:
    """Return a client's id, or raise Rejected (CLIENT_ID_REQUIRED)."""
    if not is_client_id(text):
        raise Rejected(
            Code.CLIENT_ID_REQUIRED,
            f"the metadata x-mq-client-id must have 1 to {MAX_ID_LENGTH} characters, "
            f"not {len(text)}",
        )
    if is_scope(text):
        raise Rejected(Code.CLIENT_ID_REQUIRED, NO_SCOPE)
    return text


def _full_name(what: str, resource: definition.Resource, code: Code.ValueType) -> str:
    namespace, name = resource.resource_namespace, resource.name
    if namespace and name:
        name = f"{namespace}%{name}"
    if not is_name(name):
        raise Rejected(
            code,
            f"{what} {name[:MAX_NAME_LENGTH]!r} must be 1 to {MAX_NAME_LENGTH} characters of "
            "letters, digits, '%', '_' and '-', its namespace included",
        )
    return name

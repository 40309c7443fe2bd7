"""Names in requests: RocketMQ resources (with their optional namespace) and client ids."""

from __future__ import annotations

from typing import Protocol

from dledger.checks.names import MAX_NAME_LENGTH, NAME, NO_SCOPE, is_client_id, is_scope
from dledger.common.limits import MAX_ID_LENGTH
from dledger.rpc.rocketmq_stubs import definition
from dledger.rpc.status import Code, Rejected


def topic_name(resource: definition.Resource) -> str:
    """Return the topic that a ``Resource`` names, or raise Rejected (ILLEGAL_TOPIC)."""
    return _full_name("topic", resource, Code.ILLEGAL_TOPIC)


def group_name(resource: definition.Resource) -> str:
    """Return the group that a ``Resource`` names, or raise Rejected (ILLEGAL_CONSUMER_GROUP)."""
    return _full_name("consumer group", resource, Code.ILLEGAL_CONSUMER_GROUP)


class _Caller(Protocol):
    @property
    def client_id(self) -> str: ...


def client_id(caller: _Caller) -> str:
    """Return the caller's client id, or raise Rejected (CLIENT_ID_REQUIRED)."""
    return checked_client_id(caller.client_id)


def checked_client_id(text: str) -> str:
    """Return a client's id, or raise Rejected (CLIENT_ID_REQUIRED)."""
    if is_client_id(text):
        return text
    if is_scope(text):
        raise Rejected(Code.CLIENT_ID_REQUIRED, NO_SCOPE)
    raise Rejected(
        Code.CLIENT_ID_REQUIRED,
        f"the metadata x-mq-client-id must have 1 to {MAX_ID_LENGTH} characters, not {len(text)}",
    )


def _full_name(what: str, resource: definition.Resource, code: Code.ValueType) -> str:
    namespace, name = resource.resource_namespace, resource.name
    if namespace and name:
        name = f"{namespace}%{name}"
    if NAME.fullmatch(name) is None:
        raise Rejected(
            code,
            f"{what} {name[:MAX_NAME_LENGTH]!r} must be 1 to {MAX_NAME_LENGTH} characters of "
            "letters, digits, '%', '_' and '-', its namespace included",
        )
    return name

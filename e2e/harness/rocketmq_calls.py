"""Raw calls of the RocketMQ protocol: a consumer that costs the load program little."""

from __future__ import annotations

import itertools
from typing import Any, Final

import grpc.aio

from dledger.rpc.rocketmq_stubs import SERVICE_NAME, definition, service

_OPTIONS: Final = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", 64 << 20),
)
_OK: Final = (20_000, 40_401)
"""OK, and no new message."""
POLLS_A_CHANNEL: Final = 200
"""Streams of one HTTP/2 connection, with room to spare."""


def channel_to(endpoint: str, trusted: bytes | None = None) -> grpc.aio.Channel:
    """Open a connection of its own, by TLS if there are certificates to trust (PEM)."""
    if trusted is None:
        return grpc.aio.insecure_channel(endpoint, options=_OPTIONS)
    credentials = grpc.ssl_channel_credentials(trusted)
    return grpc.aio.secure_channel(endpoint, credentials, options=_OPTIONS)


def send_request(topic: str, message_id: str, body: bytes) -> Any:
    """Return the request that sends one message."""
    message = definition.Message(
        topic=definition.Resource(name=topic),
        body=body,
        system_properties=definition.SystemProperties(message_id=message_id),
    )
    return service.SendMessageRequest(messages=[message])


def receive_request(
    topic: str,
    group: str,
    *,
    queue_id: int = -1,
    limit: int = 32,
    wait_s: float = 0.0,
    invisible_s: float = 0.0,
    sql: str = "",
    **more: Any,
) -> Any:
    """Return the request that polls once, with a SQL92 filter or none; *more* are fields of it."""
    kinds = definition.FilterType
    request = service.ReceiveMessageRequest(
        group=definition.Resource(name=group),
        message_queue=definition.MessageQueue(topic=definition.Resource(name=topic), id=queue_id),
        filter_expression=definition.FilterExpression(
            type=kinds.SQL if sql else kinds.TAG, expression=sql or "*"
        ),
        batch_size=limit,
        **more,
    )
    request.long_polling_timeout.FromMilliseconds(int(wait_s * 1000))
    if invisible_s:
        request.invisible_duration.FromMilliseconds(int(invisible_s * 1000))
    return request


def code_name(answer: Any) -> str:
    """Return "OK", or the name of the code that an answer has instead."""
    return str(definition.Code.Name(answer.status.code))


class Consumer:
    """One client id on a channel, which others may share."""

    def __init__(
        self, channel: grpc.aio.Channel, client_id: str, topic: str, group: str, sql: str = ""
    ) -> None:
        self._client_id, self._sql = client_id, sql
        self._numbers = itertools.count(1)
        self._topic = definition.Resource(name=topic)
        self._group = definition.Resource(name=group)
        prefix = f"/{SERVICE_NAME}/"
        self._receive = channel.unary_stream(
            f"{prefix}ReceiveMessage",
            request_serializer=service.ReceiveMessageRequest.SerializeToString,
            response_deserializer=service.ReceiveMessageResponse.FromString,
        )
        self._ack = channel.unary_unary(
            f"{prefix}AckMessage",
            request_serializer=service.AckMessageRequest.SerializeToString,
            response_deserializer=service.AckMessageResponse.FromString,
        )

    def _metadata(self) -> tuple[tuple[str, str], ...]:
        return (
            ("x-mq-client-id", self._client_id),
            ("x-mq-language", "PYTHON"),
            ("x-mq-protocol", "v2"),
            ("x-mq-request-id", f"{self._client_id}-{next(self._numbers)}"),
        )

    async def receive(
        self, *, queue_id: int = -1, limit: int = 32, wait_s: float = 0.0, invisible_s: float = 60.0
    ) -> list[Any]:
        """Poll once; return the messages.

        Raises:
            RuntimeError: The broker refused; the message says what.
            grpc.aio.AioRpcError: No answer in time.
        """
        request = receive_request(
            self._topic.name,
            self._group.name,
            queue_id=queue_id,
            limit=limit,
            wait_s=wait_s,
            invisible_s=invisible_s,
            sql=self._sql,
            attempt_id=f"{self._client_id}-{next(self._numbers)}",
        )
        found: list[Any] = []
        metadata = self._metadata()
        async for answer in self._receive(request, metadata=metadata, timeout=wait_s + 30):
            if answer.HasField("message"):
                found.append(answer.message)
            elif answer.HasField("status") and answer.status.code not in _OK:
                raise RuntimeError(answer.status.message)
        return found

    async def ack(self, messages: list[Any]) -> Any:
        """Acknowledge what was received; return the answer, with a status for each message."""
        entries = [
            service.AckMessageEntry(
                message_id=each.system_properties.message_id,
                receipt_handle=each.system_properties.receipt_handle,
            )
            for each in messages
        ]
        request = service.AckMessageRequest(group=self._group, topic=self._topic, entries=entries)
        return await self._ack(request, metadata=self._metadata(), timeout=30)

"""A client of the RocketMQ protocol made of the SDK's own stubs, without the SDK's behaviour."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Self

import grpc.aio

from dledger.rpc.rocketmq_stubs import SERVICE_NAME, definition, service

MESSAGE_ID = "01{:032X}".format
_OWN_CONNECTION = (("grpc.use_local_subchannel_pool", 1),)
ONE_WAY_STREAM = {"ReceiveMessage", "PullMessage"}


class RocketClient:
    """Calls one address; every method takes protocol fields by name."""

    def __init__(self, port: int, client_id: str = "client-1", timeout_s: float = 60.0) -> None:
        self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=_OWN_CONNECTION)
        self.metadata: tuple[tuple[str, str], ...] = (
            ("x-mq-client-id", client_id),
            ("x-mq-language", "PYTHON"),
        )
        self.timeout_s = timeout_s

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.channel.close()

    async def call(self, name: str, request: Any = None, timeout_s: float | None = None) -> Any:
        """Call a unary method and return its response."""
        request = request or getattr(service, f"{name}Request")()
        method = self.channel.unary_unary(
            f"/{SERVICE_NAME}/{name}",
            request_serializer=lambda message: (
                message if isinstance(message, bytes) else message.SerializeToString()
            ),
            response_deserializer=getattr(service, f"{name}Response").FromString,
        )
        return await method(request, metadata=self.metadata, timeout=timeout_s or self.timeout_s)

    @asynccontextmanager
    async def telemetry(self) -> AsyncIterator[None]:
        """Keep Telemetry open, whose first Settings are answered."""
        stream = self.channel.stream_stream(
            f"/{SERVICE_NAME}/Telemetry",
            request_serializer=service.TelemetryCommand.SerializeToString,
            response_deserializer=service.TelemetryCommand.FromString,
        )(metadata=self.metadata)
        settings = definition.Settings(subscription=definition.Subscription())
        await stream.write(service.TelemetryCommand(settings=settings))
        await stream.read()
        try:
            yield
        finally:
            stream.cancel()

    async def terminate(self, group: str = "g") -> service.NotifyClientTerminationResponse:
        """NotifyClientTermination."""
        request = service.NotifyClientTerminationRequest(group=definition.Resource(name=group))
        response: service.NotifyClientTerminationResponse = await self.call(
            "NotifyClientTermination", request
        )
        return response

    async def route(self, topic: str = "t", **fields: Any) -> service.QueryRouteResponse:
        """QueryRoute."""
        resource = definition.Resource(name=topic, **fields)
        response: service.QueryRouteResponse = await self.call(
            "QueryRoute", service.QueryRouteRequest(topic=resource)
        )
        return response

    async def send(
        self, *messages: definition.Message, timeout_s: float | None = None
    ) -> service.SendMessageResponse:
        """SendMessage."""
        response: service.SendMessageResponse = await self.call(
            "SendMessage", service.SendMessageRequest(messages=messages), timeout_s
        )
        return response

    async def receive(
        self,
        topic: str = "t",
        *,
        group: str = "g",
        queue_id: int = 0,
        batch: int = 10,
        wait_s: float = 0.0,
        invisible_s: float = 10.0,
        expression: str = "*",
        auto_renew: bool = False,
        attempt_id: str = "",
        kind: definition.FilterType.ValueType = definition.FilterType.TAG,
        timeout_s: float | None = None,
    ) -> tuple[definition.Status, list[definition.Message], list[str]]:
        """ReceiveMessage: (status, messages, the order in which kinds of answers came)."""
        request = service.ReceiveMessageRequest(
            group=definition.Resource(name=group),
            message_queue=definition.MessageQueue(
                topic=definition.Resource(name=topic), id=queue_id
            ),
            filter_expression=definition.FilterExpression(type=kind, expression=expression),
            batch_size=batch,
            auto_renew=auto_renew,
        )
        if attempt_id:
            request.attempt_id = attempt_id
        request.invisible_duration.FromMilliseconds(int(invisible_s * 1000))
        request.long_polling_timeout.FromMilliseconds(int(wait_s * 1000))
        method = self.channel.unary_stream(
            f"/{SERVICE_NAME}/ReceiveMessage",
            request_serializer=service.ReceiveMessageRequest.SerializeToString,
            response_deserializer=service.ReceiveMessageResponse.FromString,
        )
        status, messages, order = definition.Status(), list[definition.Message](), list[str]()
        timeout_s = timeout_s or wait_s + self.timeout_s
        async for response in method(request, metadata=self.metadata, timeout=timeout_s):
            order.append(response.WhichOneof("content"))
            if response.HasField("status"):
                status = response.status
            elif response.HasField("message"):
                messages.append(response.message)
        return status, messages, order

    async def ack(
        self, *messages: definition.Message, topic: str = "t", group: str = "g"
    ) -> service.AckMessageResponse:
        """AckMessage for received messages."""
        entries = [
            service.AckMessageEntry(
                message_id=message.system_properties.message_id,
                receipt_handle=message.system_properties.receipt_handle,
            )
            for message in messages
        ]
        request = service.AckMessageRequest(
            group=definition.Resource(name=group),
            topic=definition.Resource(name=topic),
            entries=entries,
        )
        response: service.AckMessageResponse = await self.call("AckMessage", request)
        return response

    async def change(
        self, handle: str, invisible_s: float, *, topic: str = "t", group: str = "g"
    ) -> service.ChangeInvisibleDurationResponse:
        """ChangeInvisibleDuration."""
        request = service.ChangeInvisibleDurationRequest(
            group=definition.Resource(name=group),
            topic=definition.Resource(name=topic),
            receipt_handle=handle,
        )
        request.invisible_duration.FromMilliseconds(int(invisible_s * 1000))
        response: service.ChangeInvisibleDurationResponse = await self.call(
            "ChangeInvisibleDuration", request
        )
        return response


def message(
    number: int = 1, body: bytes = b"body", topic: str = "t", **system: Any
) -> definition.Message:
    """Return a message as an SDK would send it; *system* overrides system properties."""
    properties: dict[str, Any] = {
        "message_id": MESSAGE_ID(number),
        "message_type": definition.MessageType.NORMAL,
        "body_encoding": definition.Encoding.IDENTITY,
        "born_host": "10.0.0.9",
    } | system
    return definition.Message(
        topic=definition.Resource(name=topic),
        system_properties=definition.SystemProperties(**properties),
        body=body,
    )


def code(status: definition.Status) -> str:
    """Return the name of a status's code; every refusal must come with a sentence."""
    name = definition.Code.Name(status.code)
    assert status.message, name
    return name

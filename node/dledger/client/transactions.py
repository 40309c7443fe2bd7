"""Transactions of a producer, and the questions about those that nobody has ended.

A message of a transaction is a *half*: the group holds it, and nobody gets it until it is committed
(adr 82). Its questions come as RocketMQ's clients get theirs, on a Telemetry stream. `Client` in
`ledger_client` opens what is here; exported from `dledger.client`.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol, Self

import grpc.aio

from dledger.errors import DledgerError, InvalidArgument
from dledger.rpc.channel import error_of
from dledger.rpc.rocketmq_stubs import SERVICE_NAME, definition, service
from dledger.types import Record

logger = logging.getLogger(__name__)

_TELEMETRY: Final = f"/{SERVICE_NAME}/Telemetry"


class Ends(Protocol):
    """What a transaction needs of a `Client`."""

    def new_message_id(self) -> str:
        """Return an id that no other message has."""

    async def append_half(self, topic: str, record: Record, *, check_after_ms: int = 0) -> str:
        """Have the group hold a half; return its transaction's id."""

    async def end_transaction(self, topic: str, transaction_id: str, *, commits: bool) -> None:
        """Commit or roll back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionCheck:
    """A transaction that has no end yet, and whose topic's producers are asked about it.

    Attributes:
        topic: Its topic.
        transaction_id: What `Client.end_transaction` takes.
        record: Its message.
    """

    topic: str
    transaction_id: str
    record: Record


class Transaction:
    """One message, and what becomes of it; an async context manager.

    Leaving its block commits, leaving it by an exception rolls back. Where an end was said in the
    block already, leaving it says nothing more, whatever became of that word.

    Attributes:
        id: Empty until the group holds the message.
        message_id: The message's; it is known before the message is sent, for the program's own
            records, by which it answers a check.
    """

    def __init__(self, client: Ends, topic: str, *, check_after_ms: int = 0) -> None:
        self._client, self._topic, self._check_after_ms = client, topic, check_after_ms
        self.id, self.message_id = "", client.new_message_id()
        self._is_sent = self._is_ended = False

    async def append(self, record: Record | bytes) -> str:
        """Send the message, once; return the transaction's id when a majority holds it.

        A record's own id counts, and is `message_id` then.

        Raises:
            InvalidArgument: It has a message already: begin another transaction for another one.
            Refused: The message is at fault, or the topic is not of type TRANSACTION.
            DiskFull: The group holds no more.
            OutcomeUnknown: No leader answered within the timeout. If the message is held, nobody
                gets it until a check, or `dledger transaction`, commits it.
        """
        if self._is_sent:
            raise InvalidArgument("a transaction has one message, and this one has its own already")
        self._is_sent = True
        if isinstance(record, bytes):
            record = Record(body=record)
        self.message_id = record.message_id or self.message_id
        record = replace(record, message_id=self.message_id)
        after_ms = self._check_after_ms
        self.id = await self._client.append_half(self._topic, record, check_after_ms=after_ms)
        return self.id

    async def commit(self) -> None:
        """Let the message be delivered. Raises as `Client.end_transaction`."""
        await self._end(commits=True)

    async def roll_back(self) -> None:
        """Let nobody ever get the message. Raises as `Client.end_transaction`."""
        await self._end(commits=False)

    async def _end(self, *, commits: bool) -> None:
        if not self.id:
            raise InvalidArgument("the transaction has no message yet")
        self._is_ended = True  # also if it fails: it may have arrived, and is to stay the only one
        await self._client.end_transaction(self._topic, self.id, commits=commits)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if not self.id or self._is_ended:
            return
        if kind is None:
            await self.commit()
            return
        try:
            await self.roll_back()
        except DledgerError as error:  # what went wrong in the block is what its caller has to see
            logger.warning(
                "message %s of topic %s is not rolled back; a check has to say so: %s",
                self.message_id, self._topic, error,
            )  # fmt: skip


async def checks(
    channel: grpc.aio.Channel, address: str, *, client_id: str, topics: Sequence[str]
) -> AsyncGenerator[TransactionCheck]:
    """Yield the questions that a client is asked about transactions of topics, through one node.

    Raises:
        DledgerError: The node ended the stream.
    """
    settings = definition.Settings(publishing=definition.Publishing())
    settings.publishing.topics.extend(map(_resource, topics))
    call: Any = channel.stream_stream(
        _TELEMETRY,
        request_serializer=service.TelemetryCommand.SerializeToString,
        response_deserializer=service.TelemetryCommand.FromString,
    )(metadata=(("x-mq-client-id", client_id), ("x-mq-language", "PYTHON")))
    try:
        await call.write(service.TelemetryCommand(settings=settings))
        asked = _read_questions(call)
        async with aclosing(asked):
            async for each in asked:
                yield each
    except grpc.aio.AioRpcError as error:
        raise error_of(error, address) from error
    finally:
        call.cancel()


async def _read_questions(commands: AsyncIterable[Any]) -> AsyncGenerator[TransactionCheck]:
    """Yield the questions among what a node says."""
    async for command in commands:
        if not command.HasField("recover_orphaned_transaction_command"):
            continue
        question = command.recover_orphaned_transaction_command
        message = question.message
        namespace = message.topic.resource_namespace
        yield TransactionCheck(
            topic=f"{namespace}%{message.topic.name}" if namespace else message.topic.name,
            transaction_id=question.transaction_id,
            record=_record_of(message),
        )


def _record_of(message: definition.Message) -> Record:
    system = message.system_properties
    return Record(
        body=message.body,
        message_id=system.message_id,
        tag=system.tag,
        keys=tuple(system.keys),
        properties=dict(message.user_properties),
        born_at_ms=system.born_timestamp.ToMilliseconds(),
    )


def _resource(topic: str) -> definition.Resource:
    namespace, mark, name = topic.partition("%")
    if namespace and mark:
        return definition.Resource(resource_namespace=namespace, name=name)
    return definition.Resource(name=topic)

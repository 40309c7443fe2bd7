"""A group behind the sidecar, in memory: what it answers is told to it, what it got is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from dledger.door.contract import Code as GrpcCode
from dledger.door.contract import Headers, Pairs
from dledger.rpc.rocketmq_stubs import definition, service
from dledger.rpc.status import Code, ok
from dledger.sidecar.replay import REPLAY_HEADER
from dledger.sidecar.sends import SEND_PATH
from dledger.sidecar.upstream import Metadata, UpstreamError

REFUSED: Final = UpstreamError(GrpcCode.UNAVAILABLE, "no connection", sent=False)
LOST: Final = UpstreamError(GrpcCode.DEADLINE_EXCEEDED, "no answer in time", sent=True)
Wanted = Callable[[definition.Message], int]


def message(topic: str, body: bytes, message_id: str) -> definition.Message:
    """Return a message as an SDK sends it."""
    return definition.Message(
        topic=definition.Resource(name=topic),
        body=body,
        system_properties=definition.SystemProperties(
            message_id=message_id, message_type=definition.MessageType.NORMAL
        ),
    )


def request(topic: str, *numbers: int) -> bytes:
    """Return a SendMessage with messages of these numbers."""
    messages = [message(topic, b"body %d" % n, f"{n:06}") for n in numbers]
    return bytes(service.SendMessageRequest(messages=messages).SerializeToString())


def headers(client_id: str = "bob", left_s: float | None = 3.0) -> Headers:
    """Return what comes with a client's call."""
    fields = {b":path": SEND_PATH.encode(), b"x-mq-client-id": client_id.encode()}
    deadline_s = None if left_s is None else asyncio.get_running_loop().time() + left_s
    return Headers(None, fields, peer="ipv4:127.0.0.1:1", connection=1, deadline_s=deadline_s)


class FakeGroup:
    """Stores by client and message id, and by lane what is replayed.

    Attributes:
        error: What calls end with instead of an answer; after they were stored, if it was sent.
        code: Returns the code for a message; that of the first one which is not OK is the call's.
        stored: Client id, topic and message id, in order.
        calls: How many messages each replay had, and its header.
        gate: Calls wait while it is not set.
    """

    def __init__(self) -> None:
        self.error: UpstreamError | None = None
        self.code: Wanted = lambda _: Code.OK
        self.stored: list[tuple[str, str, str]] = []
        self.calls: list[tuple[int, str]] = []
        self.moved = self.asked = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self._lanes: dict[tuple[str, str], int] = {}

    async def unary(self, path: str, body: bytes, metadata: Metadata, timeout_s: float) -> bytes:
        """Take one SendMessage."""
        assert path == SEND_PATH
        assert 0 < timeout_s <= 5
        self.asked += 1
        await self.gate.wait()
        await asyncio.sleep(0)
        sent = service.SendMessageRequest.FromString(body)
        told = dict(metadata)
        if self.error is None or self.error.sent:
            code = next((c for c in map(self.code, sent.messages) if c != Code.OK), Code.OK)
            if code == Code.OK or self.error is not None:
                self._store(told, sent)
        if self.error is not None:
            raise self.error
        status = definition.Status(code=Code.ValueType(code), message=f"code {code}")
        entries = [service.SendResultEntry(status=ok()) for _ in sent.messages]
        if code != Code.OK:
            entries = []
        response = service.SendMessageResponse(status=status, entries=entries)
        return bytes(response.SerializeToString())

    def _store(self, told: dict[str, str], sent: service.SendMessageRequest) -> None:
        client_id, replay = told["x-mq-client-id"], told.get(REPLAY_HEADER, "")
        if replay:
            self.calls.append((len(sent.messages), replay))
        for number, one in enumerate(sent.messages):
            row = (client_id, one.topic.name, one.system_properties.message_id)
            if replay:
                token, lane, first = replay.split(";")
                key = (f"{token};{lane}", f"{client_id};{one.topic.name}")
                if int(first) + number <= self._lanes.get(key, 0):
                    continue
                self._lanes[key] = int(first) + number
            if row not in self.stored:
                self.stored.append(row)

    def move(self) -> None:
        """Note that the sidecar goes to the next address."""
        self.moved += 1

    # -- as `upstream.Clients` ---------------------------------------------------------------------

    tries = 2

    def of(self, _: Headers) -> FakeGroup:
        """Return the one way there is."""
        return self

    def numbers(self, client_id: str = "bob", topic: str = "orders") -> list[int]:
        """Return what is stored of a lane, in order."""
        return [int(row[2]) for row in self.stored if row[:2] == (client_id, topic)]


class Answers:
    """Gets the answers to sends: their codes and sentences, in the order in which they came."""

    def __init__(self) -> None:
        self.codes: list[int] = []
        self.said: list[str] = []

    def __call__(self, answer: bytes) -> None:
        response = service.SendMessageResponse.FromString(answer)
        self.codes.append(response.status.code)
        self.said.append(response.status.message)

    def fail(self, code: GrpcCode, message: str, trailers: Pairs = ()) -> None:
        """No send ends so."""
        raise AssertionError((code, message, trailers))

"""A message in and out on the server that clients have by default, and which functions it enters.

The group is that of `dledger_sim paths`; before it stands one connection of the shipped door, whose
other end is HTTP/2 without a socket. Only the kernel's part of the way is made up.
"""

from __future__ import annotations

import asyncio
import struct
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import ngh2
from google.protobuf.message import Message

import dledger
from dledger.calls.service import handlers_of
from dledger.door.bounds import Bounds, Held
from dledger.door.connection import Connection
from dledger.door.port import Port
from dledger.rpc.rocketmq_stubs import SERVICE_NAME
from dledger.server.wiring import services_of
from dledger_sim.loop import MS, S
from dledger_sim.paths import Paths, ack_request, message_in, receive_request

SOURCE = f"{Path(dledger.__file__).parent}/"
PREFIX = struct.Struct(">BI")
HEADERS = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":authority", b"door"),
    (b"content-type", b"application/grpc"),
    (b"te", b"trailers"),
    (b"grpc-timeout", b"30S"),
    (b"x-mq-client-id", b"walker"),
)
PROVED_S = 4
"""Until the PING behind an answer, and the renewal that follows from it."""


class Entered:
    """The functions of ours that were entered, in order, whichever node or thread it was in."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def _seen(self, frame: FrameType, event: str, _: object) -> None:
        path = frame.f_code.co_filename
        if event == "call" and path.startswith(SOURCE):
            self.names.append(f"{path[len(SOURCE) :]}: {frame.f_code.co_qualname}")

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Note what is entered within."""
        sys.setprofile(self._seen)
        try:
            yield
        finally:
            sys.setprofile(None)


class Client(asyncio.Transport):
    """The client's end of a connection to the leader, and the wire: the door's transport."""

    def __init__(self, paths: Paths) -> None:
        super().__init__()
        self._clock, self._loop = paths.cluster.clock, paths.leader.loop
        handlers = handlers_of(services_of(paths.parts))
        bounds = Bounds()
        port = Port(
            handlers={path.encode(): handler for path, handler in handlers.items()},
            bounds=bounds,
            held=Held(bounds.held_bytes),
            needs_alpn=False,
        )
        self._door = Connection(port, "ipv4:127.0.0.1:50000", on_made=_ignore, on_lost=_ignore)
        self._h2 = ngh2.Connection(ngh2.Role.CLIENT, ngh2.Configuration())
        self._answers: dict[int, bytes] = {}
        self._closed: set[int] = set()
        self._h2.initiate_connection({})
        self._loop.run(self._door.connection_made, self)
        self._say()

    def ask(self, method: str, request: Message) -> list[bytes]:
        """Return the answers to a request."""
        path = (b":path", f"/{SERVICE_NAME}/{method}".encode())
        stream, raw = self._h2.send_request((path, *HEADERS)), request.SerializeToString()
        self._answers[stream] = b""
        self._h2.send_data(stream, PREFIX.pack(0, len(raw)) + raw, end_stream=True)
        self._say()
        until_us = self._clock.now_us + 20 * S
        assert self._clock.run_until(until_us, lambda: stream in self._closed)
        answers = list(_messages(self._answers.pop(stream)))
        assert answers, f"{method} has no answer"
        return answers

    def _say(self) -> None:
        if data := self._h2.data_to_send():
            self._clock.after(MS // 10, lambda: self._loop.run(self._door.data_received, data))

    def _hear(self, data: bytes) -> None:
        self._h2.receive_data(data)
        for event in self._h2.events():
            if isinstance(event, ngh2.DataReceived):
                self._answers[event.stream_id] += event.data
            elif isinstance(event, ngh2.StreamClosed):
                self._closed.add(event.stream_id)
        self._say()

    # -- what the door asks of its transport -----------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Carry bytes of the door to the client."""
        copy = bytes(data)
        self._clock.after(MS // 10, lambda: self._hear(copy))

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return *default*: there is no socket."""
        del name
        return default


class Walks:
    """Both ways of a message, each with nothing else going on but what a group does by itself."""

    def __init__(self) -> None:
        self._paths = Paths()
        self._client = Client(self._paths)

    def of_one_in(self) -> list[str]:
        """Return what sending a message enters, until its client has the answer."""
        self._client.ask("SendMessage", self._paths.send_request())  # no first use is in the walk
        entered = Entered()
        with entered.followed():
            self._client.ask("SendMessage", self._paths.send_request())
        return entered.names

    def of_one_out(self) -> list[str]:
        """Return what a push consumer's poll and its ack enter."""
        request = receive_request()
        request.auto_renew = True
        for _ in range(2):
            self._client.ask("SendMessage", self._paths.send_request())
        self._received(request)
        entered = Entered()
        with entered.followed():
            message = self._received(request)
            self._paths.pass_s(PROVED_S)
            self._client.ask("AckMessage", ack_request(message))
        return entered.names

    def _received(self, request: Message) -> Any:
        return message_in(self._client.ask("ReceiveMessage", request))


def not_entered(walk: Sequence[tuple[str, str]], entered: Iterable[str]) -> str:
    """Return the first step that is not entered after the one before it; "" if all are."""
    left = deque(f"{path}: {name}" for path, name in walk)
    for name in entered:
        if left and name == left[0]:
            left.popleft()
    return left[0] if left else ""


def _messages(data: bytes) -> Iterator[bytes]:
    while data:
        _, size = PREFIX.unpack_from(data)
        yield data[PREFIX.size : PREFIX.size + size]
        data = data[PREFIX.size + size :]


def _ignore(connection: Connection) -> None:
    """Do nothing: no port counts this one."""

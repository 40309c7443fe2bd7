"""A leader that offers links, and the links of a follower, without the rest of a node."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc.aio

from dledger.calls.caller import LINE_KEY
from dledger.calls.method import failed_by
from dledger.door.contract import BidiStream, Code, Failed, Handler, Headers, Stream
from dledger.errors import DledgerError, Overloaded
from dledger.link.follower import RelayLinks
from dledger.link.leader import RelayPort
from dledger.link.offer import FORMATS, Wish
from dledger.peers.replication_port import ReplicationPort
from dledger.rpc.peer_tls import PeerChannel
from dledger.types import Member, NodeId
from tests.door.ports import by_coroutine
from tests.requests.memory_group import HOST, WAIT_S
from tests.waiting import eventually

SERVICE = "dledger.v1.Ledger"
ASK, READ = f"/{SERVICE}/Append", f"/{SERVICE}/Read"
WISH = Wish(FORMATS).encode()
METADATA = (("x-mq-client-id", "c"), (LINE_KEY, "ipv4:192.0.2.1:7"))
Outcome = bytes | DledgerError


class Leader:
    """A leader's two ports, and handlers by the first word of a request."""

    def __init__(self) -> None:
        self.port = ReplicationPort(lambda *_: None, lambda _: None)
        self.server = grpc.aio.server()
        self.asked: list[Any] = []
        self.gone: list[bytes] = []
        self.is_older = False

    async def start(self) -> None:
        self.port.bind(HOST, 0)
        await self.port.start()
        handlers: dict[str, Handler] = {
            f"/{SERVICE}/Append": by_coroutine(self._append),
            f"/{SERVICE}/Read": BidiStream(self._read),
            f"/{SERVICE}/Remember": by_coroutine(self._append),
        }
        if not self.is_older:
            relay = RelayPort(handlers, self.port)
            self.server.add_generic_rpc_handlers([relay.handler()])
        number = self.server.add_insecure_port(f"{HOST}:0")
        self.member = Member(id=NodeId("a"), name="orders-0", address=f"{HOST}:{number}")
        await self.server.start()

    async def stop(self) -> None:
        await self.server.stop(0)
        self.port.close()

    async def _append(self, headers: Headers, request: bytes) -> bytes:
        self.asked.append(headers)
        match request.split()[0]:
            case b"never":
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    self.gone.append(request)
                    raise
            case b"full":
                raise failed_by(Overloaded("no room here"))
            case b"forbidden":
                raise Failed(Code.PERMISSION_DENIED, "not you", ((b"why", b"so"),))
        return request.upper()

    async def _read(self, headers: Headers, stream: Stream) -> None:
        request = await stream.read() or b""
        self.asked.append(headers)
        try:
            for number in range(3):
                await stream.send(request + b"%d" % number)
            if request.startswith(b"endless"):
                while True:
                    await stream.send(bytes(10_000))
        except (Failed, asyncio.CancelledError):
            self.gone.append(request)
            raise


class Follower:
    """A node's links, and its channel to the leader."""

    def __init__(self) -> None:
        self.links = RelayLinks(lambda _, port: (HOST, port), None)
        self.channels: list[PeerChannel] = []

    def follow(self, member: Member) -> None:
        channel = PeerChannel(member.address, member.name, None)
        self.channels.append(channel)
        self.links.follow((member, channel))

    async def linked(self, member: Member) -> Any:
        await eventually(lambda: self.links.to(member) is not None)
        return self.links.to(member)


async def asked(link: Any, request: bytes, timeout_s: float = WAIT_S) -> Outcome:
    """Return the outcome of a unary call."""
    outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

    def settle(answer: Outcome) -> None:
        if not outcome.cancelled():
            outcome.set_result(answer)

    assert link.begin(ASK, request, METADATA, timeout_s, settle)
    async with asyncio.timeout(WAIT_S):
        return await outcome


async def all_answers(link: Any, request: bytes, timeout_s: float = WAIT_S) -> list[bytes]:
    return [each async for each in link.answers(READ, request, (), timeout_s)]

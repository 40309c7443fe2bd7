"""The replication port and the way to it: who may connect, what arrives, what a break does."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from unittest.mock import Mock

import pytest

from dledger.common.limits import MAX_PEER_FRAME_BYTES
from dledger.errors import InvalidArgument, MemberRemoved
from dledger.files.files import Buffer
from dledger.peers import replication_port
from dledger.peers.frame_stream import FrameStream
from dledger.peers.framing import prefix
from dledger.peers.handshake import Handshake, PeerAddress
from dledger.peers.peer_codec import BadFrame
from dledger.peers.replication_port import ConnectToken, ReplicationPort
from dledger.types import NodeId
from tests.waiting import eventually

HOST = "127.0.0.1"
HELLO = Handshake(
    group_id="g",
    sender_id=NodeId("a"),
    sender_name="orders-0",
    recipient_id=NodeId("b"),
    endpoint=PeerAddress(host=HOST, port=2),
)


@dataclass
class Listening:
    """A replication port, what it took, and whom it lost. Frames that are bad end as in `Peers`."""

    frames: list[bytes] = field(default_factory=list)
    lost: list[Handshake] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.port = ReplicationPort(self._take, self.lost.append)
        self.port.bind(HOST, 0)

    def _take(self, handshake: Handshake, frame: memoryview) -> None:
        assert handshake == HELLO
        said = bytes(frame)
        if said == b"bad":
            raise BadFrame("not a Raft message")
        if said == b"removed":
            raise MemberRemoved(handshake.sender_id, group_id="g", index=7)
        self.frames.append(said)


@pytest.fixture
async def listening() -> AsyncIterator[Listening]:
    end = Listening()
    await end.port.start()
    yield end
    end.port.close()
    await eventually(lambda: not end.port._connections)


@pytest.fixture
async def stream() -> AsyncIterator[FrameStream]:
    link = FrameStream("replication to orders-1")
    yield link
    link.close()


async def _ended(reader: asyncio.StreamReader) -> None:
    """Return when the other end has closed, in order or not."""
    async with asyncio.timeout(20):
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""


async def _sends(stream: FrameStream, listening: Listening, frame: bytes) -> None:
    """Send until it arrives: what is sent without a connection is dropped."""
    before = len(listening.frames)
    async with asyncio.timeout(20):
        while len(listening.frames) == before:
            stream.send(frame)
            await asyncio.sleep(0.01)


async def test_frames_arrive_in_order_with_a_ticket(
    listening: Listening, stream: FrameStream
) -> None:
    """Small ones and ones that no buffer holds at once."""
    with listening.port.admitted(HELLO) as connect_token:
        stream.open(HOST, ConnectToken.decode(connect_token.encode()))
        await _sends(stream, listening, b"first")
        frames = [b"", b"x" * 3_000_000, *(bytes([n]) * 1000 for n in range(100))]
        await asyncio.sleep(0.1)
        listening.frames.clear()
        for frame in frames:
            stream.send(frame)

        await eventually(lambda: len(listening.frames) == len(frames))
    assert listening.frames == frames


async def test_without_a_connection_frames_are_dropped(
    listening: Listening, stream: FrameStream
) -> None:
    """Before it is open, and after it was closed: Raft sends again what matters."""
    stream.send(b"early")
    with listening.port.admitted(HELLO) as connect_token:
        stream.open(HOST, connect_token)
        await _sends(stream, listening, b"now")
        stream.close()
        stream.send(b"late")
        await eventually(lambda: listening.lost == [HELLO])

    assert set(listening.frames) == {b"now"}


@pytest.mark.parametrize("handshake", [b"x" * 16, b"GET / HTTP/1.1\r\n\r\n"])
async def test_who_shows_no_token_is_sent_away(listening: Listening, handshake: bytes) -> None:
    """Nothing of it is read as a frame."""
    reader, writer = await asyncio.open_connection(HOST, listening.port.number)
    writer.write(handshake)

    await _ended(reader)
    writer.close()

    assert listening.frames == []


async def test_an_unknown_caller_that_says_nothing_is_not_waited_for(
    listening: Listening, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a token is nothing, too."""
    monkeypatch.setattr(replication_port, "_TOKEN_WITHIN_S", 0.05)
    reader, writer = await asyncio.open_connection(HOST, listening.port.number)
    writer.write(b"half")

    await _ended(reader)
    writer.close()


async def test_unknown_callers_are_bounded(
    listening: Listening, stream: FrameStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest goes before a newer one, so that they keep no member out (found: S10)."""
    monkeypatch.setattr(replication_port, "_MAX_UNAUTHENTICATED", 2)
    monkeypatch.setattr(replication_port, "_TOKEN_WITHIN_S", 3600.0)
    (oldest, first), *others = [
        await asyncio.open_connection(HOST, listening.port.number) for _ in range(3)
    ]

    await _ended(oldest)
    with listening.port.admitted(HELLO) as connect_token:
        stream.open(HOST, connect_token)
        await _sends(stream, listening, b"x")
    await _ended(others[0][0])
    assert not others[1][0].at_eof()
    for writer in (first, *(each for _, each in others)):
        writer.close()


async def test_a_crowd_from_one_address_costs_no_other_address_its_place(
    listening: Listening, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest of the crowd goes, though another one waits longer."""
    monkeypatch.setattr(replication_port, "_MAX_UNAUTHENTICATED", 2)
    monkeypatch.setattr(replication_port, "_TOKEN_WITHIN_S", 3600.0)
    port, other = listening.port.number, ("127.0.0.2", 0)
    alone, writer = await asyncio.open_connection(HOST, port, local_addr=other)
    crowd = [await asyncio.open_connection(HOST, port) for _ in range(3)]

    for reader, _ in crowd[:2]:
        await _ended(reader)

    assert not alone.at_eof()
    for each in (writer, *(each for _, each in crowd)):
        each.close()


async def test_one_ticket_is_for_a_few_connections(listening: Listening) -> None:
    """The newest ones, as a member that comes again needs; no loss is told (found: S14)."""
    with listening.port.admitted(HELLO) as connect_token:
        opened = []
        for _ in range(replication_port._MAX_OF_TOKEN + 2):
            reader, writer = await asyncio.open_connection(HOST, connect_token.port)
            writer.write(connect_token.token + prefix(b"x") + b"x")
            opened.append((reader, writer))
            await eventually(lambda: len(listening.frames) == len(opened))
        for reader, _ in opened[:2]:
            await _ended(reader)

        assert len(listening.port._connections) == replication_port._MAX_OF_TOKEN
        assert listening.lost == []
        for _, writer in opened:
            writer.close()


@pytest.mark.found
async def test_a_connection_takes_little_and_gives_it_back_when_it_ends(
    listening: Listening,
) -> None:
    """Half a MiB each came back only with the garbage collector (found: S14)."""
    with listening.port.admitted(HELLO) as connect_token:
        _, writer = await asyncio.open_connection(HOST, connect_token.port)
        writer.write(connect_token.token + prefix(b"x") + b"x" + (64 << 20).to_bytes(4, "little"))
        await eventually(lambda: listening.frames == [b"x"])
        (connection,) = listening.port._connections
        frames = connection._frames
        assert frames is not None
        assert len(frames._buffer) <= 16 << 10

        writer.close()
        await eventually(lambda: not listening.port._connections)
        assert len(frames._buffer) == 0


async def test_a_token_is_good_as_long_as_its_control_stream(
    listening: Listening, stream: FrameStream
) -> None:
    """With it goes the connection; that is not reported as another loss."""
    with listening.port.admitted(HELLO) as connect_token:
        stream.open(HOST, connect_token)
        await _sends(stream, listening, b"x")
    count = len(listening.frames)
    reader, writer = await asyncio.open_connection(HOST, connect_token.port)
    writer.write(connect_token.token + prefix(b"again") + b"again")

    await _ended(reader)
    writer.close()

    assert (listening.frames[count:], listening.lost) == ([], [])


@pytest.mark.parametrize(
    "frame",
    [b"bad", b"removed", pytest.param(None, id="too long")],
)
async def test_a_bad_frame_ends_the_connection_and_the_next_one_serves(
    listening: Listening, stream: FrameStream, frame: bytes | None
) -> None:
    """No bytes from a peer hang or end a node; that the connection broke is told."""
    with listening.port.admitted(HELLO) as connect_token:
        reader, writer = await asyncio.open_connection(HOST, connect_token.port)
        too_long = (MAX_PEER_FRAME_BYTES + 1).to_bytes(4, "little")
        writer.write(connect_token.token + (too_long if frame is None else prefix(frame) + frame))
        await _ended(reader)
        writer.close()
        assert listening.lost == [HELLO]

        stream.open(HOST, connect_token)
        await _sends(stream, listening, b"good")


@pytest.mark.parametrize(("size_bytes", "writes"), [(1 << 16, 1), ((1 << 16) + 1, 2)])
async def test_a_small_frame_and_its_length_are_one_write(
    listening: Listening,
    stream: FrameStream,
    monkeypatch: pytest.MonkeyPatch,
    *,
    size_bytes: int,
    writes: int,
) -> None:
    """Each is a system call, and wakes the peer; a large frame is not copied for that."""
    with listening.port.admitted(HELLO) as connect_token:
        stream.open(HOST, connect_token)
        await _sends(stream, listening, b"before")
        sender = stream._sender
        assert sender is not None
        transport = sender._transport
        assert transport is not None
        written: list[int] = []
        spy = Mock(wraps=transport)

        def write(data: Buffer) -> None:
            written.append(len(data))
            transport.write(data)

        spy.write = write
        monkeypatch.setattr(sender, "_transport", spy)

        stream.send(bytes(size_bytes))
        await eventually(lambda: len(listening.frames[-1]) == size_bytes)

    assert len(written) == writes
    assert sum(written) == size_bytes + 4


async def test_a_broken_connection_is_opened_again(
    listening: Listening, stream: FrameStream
) -> None:
    """And a peer whose port is shut is tried until it is open."""
    with listening.port.admitted(HELLO) as connect_token:
        stream.open(HOST, connect_token)
        await _sends(stream, listening, b"before")
        for connection in tuple(listening.port._connections):
            connection.end()
        await eventually(lambda: listening.lost == [HELLO])

        await _sends(stream, listening, b"after")
    assert listening.frames[-1] == b"after"


async def test_a_peer_that_does_not_read_holds_a_bounded_backlog(
    stream: FrameStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is beyond is dropped; what was kept arrives when it reads again."""
    held, done = asyncio.Event(), asyncio.Event()
    got = bytearray()

    async def reads_late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await held.wait()
        with contextlib.suppress(ConnectionResetError):
            while piece := await reader.read(1 << 20):
                got.extend(piece)
        writer.close()
        done.set()

    server = await asyncio.start_server(reads_late, HOST, 0, limit=1 << 16)
    stream.open(HOST, ConnectToken(server.sockets[0].getsockname()[1], bytes(16)))
    await eventually(lambda: stream.connected)
    sender = stream._sender
    assert sender is not None
    monkeypatch.setattr("dledger.peers.outbox.MAX_QUEUED_BYTES", 1 << 20)

    for _ in range(400):
        stream.send(bytes(100_000))

    assert sender._outbox.size_bytes <= 1 << 20
    kept_bytes = 16 + 100_004 * (400 - 10)
    held.set()
    await eventually(lambda: not sender._paused and not len(sender._outbox))
    stream.send(b"end")
    await eventually(lambda: got.endswith(b"end"))
    assert len(got) < kept_bytes
    assert (len(got) - 16 - 7) % 100_004 == 0
    stream.close()
    await asyncio.wait_for(done.wait(), 20)
    server.close()


async def test_a_peer_that_takes_nothing_any_more_is_connected_to_anew(
    stream: FrameStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host that vanished ends no connection, and the control stream may go another way."""
    monkeypatch.setattr("dledger.peers.frame_stream._SILENT_MS", 300)
    accepted: list[asyncio.StreamWriter] = []
    forever = asyncio.Event()

    async def reads_nothing(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.append(writer)
        await forever.wait()

    server = await asyncio.start_server(reads_nothing, HOST, 0, limit=1 << 16)
    stream.open(HOST, ConnectToken(server.sockets[0].getsockname()[1], bytes(16)))
    await eventually(lambda: stream.connected)

    for _ in range(100):
        stream.send(bytes(100_000))
    await eventually(lambda: len(accepted) == 2)

    stream.close()
    forever.set()
    server.close()
    for writer in accepted:
        writer.close()


async def test_a_port_that_is_shut_is_told_once(
    listening: Listening, stream: FrameStream, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever looks why nothing is replicated finds the address: a NetworkPolicy, say."""
    connect_token = ConnectToken(listening.port.number, bytes(16))
    listening.port.close()
    await asyncio.sleep(0)

    stream.open(HOST, connect_token)
    await asyncio.sleep(0.8)

    assert not stream.connected
    told = [r.message for r in caplog.records if r.levelname == "WARNING"]
    assert len(told) == 1
    assert f"cannot connect for replication to orders-1: {HOST}:{connect_token.port}" in told[0]


@pytest.mark.parametrize("text", ["", "x", "0:" + "00" * 16, "70000:" + "00" * 16, "1:00", "1:zz"])
def test_a_ticket_that_is_none_is_refused(text: str) -> None:
    """The peer may be anything."""
    with pytest.raises(InvalidArgument, match="not a connect token"):
        ConnectToken.decode(text)

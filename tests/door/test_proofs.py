"""An answer counts as received when a PING behind it came back; not when written, nor if reset."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import grpc.aio
import ngh2
import pytest
import uvloop

from dledger.door import connection, proofs
from dledger.door.bounds import Bounds
from dledger.door.contract import BidiStream, Handlers, Headers, Stream, Unary
from dledger.door.proofs import Proofs
from dledger.door.server import DoorServer
from dledger.door.tls import TlsCertificate
from dledger.server.client_certificate import self_signed
from tests.door.raw import PING, RST_STREAM, RawClient, frame, prefixed, raw_client
from tests.waiting import eventually

pytestmark = pytest.mark.found


@dataclass
class Noted:
    """An answer, and what was told of it."""

    told: list[str] = field(default_factory=list)
    moved: int = 0

    def proved(self) -> None:
        self.told.append("proved")

    def moves(self) -> None:
        self.moved += 1

    def lost(self) -> None:
        self.told.append("lost")


@dataclass
class Port:
    """A door whose answers are followed."""

    server: DoorServer
    noted: list[Noted]

    async def proves(self, answers: int) -> None:
        """Return when that many answers have arrived, and nothing else was told."""
        await eventually(lambda: self.told == [["proved"]] * answers)

    @property
    def number(self) -> int:
        return int(self.server.address.rpartition(":")[2])

    @property
    def told(self) -> list[list[str]]:
        return [each.told for each in self.noted]


@contextlib.asynccontextmanager
async def followed(
    bounds: Bounds | None = None, tls: TlsCertificate | None = None
) -> AsyncIterator[Port]:
    """`/t/Sized` answers with a message of the size that it is asked for."""
    noted: list[Noted] = []

    async def sized(_: Headers, stream: Stream) -> None:
        size = int(await stream.read() or b"0")
        noted.append(Noted())
        stream.prove(noted[-1])
        for _n in range(0, size, 16 << 10):
            await stream.send(bytes(min(size, 16 << 10)))

    handlers: Handlers = {
        "/t/Sized": BidiStream(sized),
        "/t/Echo": Unary(lambda _, body, answer, __: answer(body)),
    }
    server = DoorServer("127.0.0.1:0", handlers, bounds=bounds, tls=tls)
    await server.start()
    try:
        yield Port(server, noted)
    finally:
        await server.stop(0.1)
    assert all(len(each.told) == 1 for each in noted), noted


def asked(client: RawClient, size: int, *, end: bool = True) -> int:
    """Queue a call."""
    stream_id = client.request("/t/Sized")
    body = b"%d" % size
    client.h2.send_data(stream_id, prefixed(len(body)) + body, end_stream=end)
    return stream_id


@contextlib.asynccontextmanager
async def reading(client: RawClient) -> AsyncIterator[None]:
    """Take in what comes, and acknowledge it."""

    async def read() -> None:
        while await client.more():
            pass

    task = asyncio.create_task(read())
    try:
        yield
    finally:
        task.cancel()


async def unanswered(client: RawClient) -> list[ngh2.Event]:
    """Take in what is there, and send nothing back: no acknowledgement of a PING, no window."""
    data = await client._reader.read(1 << 16)
    client.h2.receive_data(data)
    return client.h2.events()


async def test_an_answer_is_proved_by_the_ping_behind_it() -> None:
    """And by nothing before: neither what the client's kernel took, nor what the client sends."""
    async with followed() as port, raw_client(port.number) as client:
        await client.hello()
        asked(client, 100)
        await client.flush()
        seen: list[ngh2.Event] = []
        while not any(isinstance(each, ngh2.PingReceived) for each in seen):
            seen += await unanswered(client)
        names = [type(each).__name__ for each in seen]
        assert names.index("StreamClosed") < names.index("PingReceived")
        acknowledgement = client.h2.data_to_send()
        echo = client.request("/t/Echo")
        client.h2.send_data(echo, prefixed(1) + b"x", end_stream=True)
        await client.flush()
        await client.status(echo)
        assert port.told == [[]]

        await client.raw(acknowledgement)

        await eventually(lambda: port.told == [["proved"]])


async def test_one_ping_serves_all_answers_that_left_together() -> None:
    """A flood of answers is no flood of PINGs."""
    async with followed() as port, raw_client(port.number) as client:
        await client.hello()
        for _ in range(50):
            asked(client, 10)
        await client.flush()

        async with reading(client):
            await eventually(lambda: port.told == [["proved"]] * 50)

        assert sum(isinstance(each, ngh2.PingReceived) for each in client.events) < 25


async def test_a_client_that_gave_up_has_nothing() -> None:
    """It acknowledges a PING behind an answer that it threw away all the same."""
    async with followed() as port, raw_client(port.number) as client:
        await client.hello()
        # Its half of the stream is open, so its reset is news, although the answer has left.
        stream_id = asked(client, 200_000)
        await client.flush()
        await eventually(lambda: port.noted)
        client.h2.reset_stream(stream_id)
        await client.flush()

        await eventually(lambda: port.told == [["lost"]])


async def test_a_reset_drops_the_proof_of_what_has_left() -> None:
    """It is told after the stream has closed here, and before the PING is acknowledged."""
    async with followed() as port, raw_client(port.number) as client:
        await client.hello()
        stream_id = asked(client, 100)
        await client.flush()
        data = b""
        while frame(PING, 0, bytes(7) + b"\1") not in data:
            data += await client._reader.read(1 << 16)
        await client.raw(frame(RST_STREAM, stream_id, (8).to_bytes(4, "big")))
        await client.raw(frame(PING, 0, bytes(7) + b"\1", flags=1))

        await eventually(lambda: port.told == [["lost"]])


async def test_a_connection_that_breaks_loses_what_is_not_proved() -> None:
    """The answer was written, and read by whoever stands between."""
    async with followed() as port:
        async with raw_client(port.number) as client:
            await client.hello()
            asked(client, 100)
            await client.flush()
            await unanswered(client)

        await eventually(lambda: port.told == [["lost"]])


async def test_acknowledgements_are_no_flood() -> None:
    """A client may send as many as it is asked for, beyond what it may ask for itself."""
    bounds = Bounds(pings=(4, 1))
    async with followed(bounds) as port, raw_client(port.number) as client:
        await client.hello()
        async with reading(client):
            for number in range(1, 60):
                asked(client, 10)
                await client.flush()
                await port.proves(number)


async def test_a_failed_call_proves_nothing() -> None:
    """Its client throws away what came before the error."""

    async def fails(_: Headers, stream: Stream) -> None:
        stream.prove(noted)
        await stream.send(b"one")
        raise RuntimeError("a bug, says the test")

    noted = Noted()
    server = DoorServer("127.0.0.1:0", {"/t/Fails": BidiStream(fails)})
    await server.start()
    async with raw_client(int(server.address.rpartition(":")[2])) as client:
        await client.hello()
        stream_id = client.request("/t/Fails")
        client.h2.send_data(stream_id, prefixed(0), end_stream=True)
        await client.flush()
        async with reading(client):
            await eventually(lambda: noted.told)
    await server.stop(0.1)

    assert noted.told == ["lost"]


@pytest.mark.parametrize("tls", [False, True])
def test_answers_are_proved_on_uvloop(tls: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """On which nodes run, in plain text and with TLS: its sockets can be asked what waits."""
    monkeypatch.setattr(connection, "PROGRESS_S", 0.01)

    async def run() -> None:
        pair = self_signed("door", "127.0.0.1")
        async with followed(tls=TlsCertificate(pair.chain, pair.key) if tls else None) as port:
            credentials = grpc.ssl_channel_credentials(pair.chain)
            address, options = port.server.address, (("grpc.ssl_target_name_override", "door"),)
            async with (
                grpc.aio.secure_channel(address, credentials, options=options)
                if tls
                else grpc.aio.insecure_channel(address)
            ) as channel:
                async for _ in channel.stream_stream("/t/Sized")(iter([b"1000000"])):
                    await asyncio.sleep(0.001)
                await eventually(lambda: port.told == [["proved"]])

    uvloop.run(run())


async def test_what_moves_on_a_slow_line_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as the client takes it, and no longer."""
    monkeypatch.setattr(connection, "PROGRESS_S", 0.01)
    async with followed() as port, raw_client(port.number) as client:
        await client.hello()
        asked(client, 16 << 20)
        await client.flush()
        async with asyncio.timeout(20):
            while not port.noted or port.noted[0].moved < 4:
                await client.more()
                await asyncio.sleep(0.01)
        assert port.told == [[]]

        await asyncio.sleep(0.1)  # it reads nothing
        moved = port.noted[0].moved
        await asyncio.sleep(0.1)
        assert port.noted[0].moved == moved

        async with reading(client):
            await eventually(lambda: port.told == [["proved"]])


def test_what_the_other_kernel_has_moves_no_longer() -> None:
    """It is not proved by that; only nothing more is known of it."""
    noted, of = Noted(), Proofs()
    of.begin(1, noted)
    for taken in (0, 10, 10, 20):
        of.look(taken)
    assert noted.moved == 2  # it was new at the first look, and stood still at the third
    of.closed(1, 30)
    for taken in (25, 30, 30, 40, 50):
        of.look(taken)

    assert noted.moved == 4
    assert not noted.told


@pytest.mark.parametrize("seed", range(200))
def test_only_a_later_ping_proves(seed: int) -> None:
    """Against an obvious model: an answer is proved by an acknowledged PING that was sent later."""
    rng = random.Random(seed)
    of = Proofs()
    noted: dict[int, Noted] = {}
    closed: dict[int, int] = {}
    pings: list[tuple[bytes, int]] = []
    want: dict[int, list[str]] = {}
    for now in range(1, 60):
        undecided = [each for each, told in want.items() if not told]
        match rng.choice(("begin", "close", "close", "lose", "ask", "ask", "ack", "made up")):
            case "begin":
                noted[now], want[now] = Noted(), []
                of.begin(now, noted[now])
            case "close" if left := [each for each in undecided if each not in closed]:
                stream_id = rng.choice(left)
                closed[stream_id] = now
                of.closed(stream_id, now)
            case "lose" if undecided:
                stream_id = rng.choice(undecided)
                of.lose(stream_id)
                want[stream_id].append("lost")
            case "ask" if of.due:
                pings.append((of.ask(), now))
            case "ack" if pings:
                data, at = pings.pop(0)
                of.acknowledged(data)
                for stream_id in undecided:
                    if closed.get(stream_id, now) < at:
                        want[stream_id].append("proved")
            case "made up":
                of.acknowledged((1 << 40).to_bytes(8, "big"))
        assert {each: found.told for each, found in noted.items()} == want
    of.lose_all()
    assert len(of) == 0
    assert all(len(found.told) == 1 for found in noted.values())


def test_a_client_that_acknowledges_nothing_holds_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest are lost."""
    monkeypatch.setattr(proofs, "MAX_AWAITED", 3)
    of, noted = Proofs(), [Noted() for _ in range(5)]
    for stream_id, each in enumerate(noted):
        of.begin(stream_id, each)
        of.closed(stream_id, stream_id)

    assert [each.told for each in noted] == [["lost"], ["lost"], [], [], []]
    assert len(of) == 3

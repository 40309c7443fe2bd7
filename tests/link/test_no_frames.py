"""Whatever bytes come in a frame of a link, they end no more than the call that they are about."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable

import pytest

from dledger.door.bounds import Bounds
from dledger.door.contract import Answer, BidiStream, Cancel, Fail, Handlers, Headers, Stream, Unary
from dledger.errors import NotTaken, Unavailable
from dledger.link import frames
from dledger.link.calls_in import CallsIn, ServedPort
from dledger.link.calls_out import CallsOut
from dledger.link.frames import HEADER, OF_NO_CALL, Inbox, Kind, Opening, Resumes, packed
from dledger.requests.forward import NOTHING_HAPPENED
from tests.door.conversations import Wire
from tests.link.two_ends import ASK, READ, Follower, Leader, all_answers, asked
from tests.requests.memory_group import WAIT_S
from tests.waiting import eventually

WAITS, STREAMS, ASKS = 1, 2, 3
"""The numbers of a call of one message, and of a stream, that are under way; and of a third."""
STRANGE = 1 << 40
"""From here on numbers are nobody's."""


def drawn(rng: random.Random, numbers: Callable[[], int]) -> bytes:
    """Return a frame whose size is right, and nothing else need be."""
    kind = rng.choice((*Kind, rng.randrange(256)))
    return packed(kind, numbers(), rng.randbytes(rng.choice((0, 1, 4, 8, rng.randrange(100)))))


def cut_anywhere(rng: random.Random, data: bytes) -> list[bytes]:
    ends = sorted({rng.randrange(1, len(data)) for _ in range(5)} | {len(data)})
    return [data[low:high] for low, high in zip((0, *ends), ends, strict=False)]


class Serving:
    """An end that serves: one method waits for ever, one is a stream, one answers."""

    def __init__(self) -> None:
        self.given_up: list[str] = []
        handlers: Handlers = {
            "/t/Wait": Unary(self._wait),
            "/t/Stream": BidiStream(self._stream),
            "/t/Echo": Unary(lambda _, body, answer, __: answer(body)),
        }
        port = ServedPort(handlers=handlers, resumed={})
        self.end = CallsIn([port], tuple(handlers), Bounds(), same_clock=False)
        self.wire = Wire()
        self.end.link.connection_made(self.wire)
        for number, body in ((WAITS, b""), (STREAMS, None), (ASKS, b"hello")):
            self.take(frames.opening(number, opening(number - 1, body)))

    def _wait(self, _: Headers, body: bytes, answer: Answer, fail: Fail) -> Cancel:
        del body, answer, fail
        return lambda: self.given_up.append("Wait")

    async def _stream(self, _: Headers, stream: Stream) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.given_up.append("Stream")
            raise

    def take(self, data: bytes) -> None:
        self.end.link.data_received(data)

    async def said(self) -> list[tuple[int, int, bytes]]:
        """Return what it sent since it was asked last."""
        await asyncio.sleep(0)
        data, self.wire.sent = bytes(self.wire.sent), bytearray()
        return Inbox(1 << 20).feed(data)


def _message(body: bytes) -> bytes:
    return frames.message(Kind.ANSWER, 0, body)[HEADER.size :]


def opening(method: int, body: bytes | None) -> Opening:
    return Opening(0, method, Resumes.NO, 0, None, "ipv4:192.0.2.1:7", (), body)


async def test_strange_frames_end_nothing_at_the_end_that_serves() -> None:
    """Each is answered by its number and kind; those under way go on, and so does the link."""
    rng = random.Random(52)
    for _ in range(200):
        serving = Serving()
        assert await serving.said() == [(Kind.ANSWER, ASKS, _message(b"hello"))]

        data = b"".join(drawn(rng, lambda: STRANGE + rng.randrange(9)) for _ in range(20))
        for part in cut_anywhere(rng, data):
            serving.take(part)
        serving.take(frames.opening(ASKS + 1, opening(ASKS - 1, b"again")))

        *rejected, last = await serving.said()
        assert {kind for kind, *_ in rejected} <= {Kind.REJECTED}
        assert last[:2] == (Kind.ANSWER, ASKS + 1)
        assert len(serving.end) == 2
        assert serving.given_up == []
        assert not serving.wire.closed
        serving.end.link.connection_lost(None)


@pytest.mark.parametrize("kind", [Kind.MESSAGE, Kind.HALF_CLOSE, Kind.CREDIT, Kind.OPEN, 100])
async def test_a_bad_frame_of_a_call_ends_that_call(kind: int) -> None:
    """At both ends: the other is told."""
    serving = Serving()
    await serving.said()

    serving.take(packed(kind, STREAMS, b"bad"))

    assert await serving.said() == [(Kind.REJECTED, STREAMS, bytes((kind,)))]
    await eventually(lambda: serving.given_up == ["Stream"])
    assert len(serving.end) == 1
    assert not serving.wire.closed


async def test_a_kind_that_is_of_no_call_ends_none_of_its_number() -> None:
    """A newer version counts there what it likes."""
    serving = Serving()
    await serving.said()

    serving.take(packed(OF_NO_CALL + 7, WAITS, b"news"))
    serving.take(frames.rejecting(STREAMS, Kind.PUSH))

    assert await serving.said() == [(Kind.REJECTED, WAITS, bytes((OF_NO_CALL + 7,)))]
    assert len(serving.end) == 2


async def test_what_the_other_end_has_not_read_is_given_up() -> None:
    """It awaits nothing of that call any more."""
    serving = Serving()
    await serving.said()

    serving.take(frames.rejecting(STREAMS, Kind.MESSAGE))

    await eventually(lambda: serving.given_up == ["Stream"])
    assert len(serving.end) == 1


async def test_nobody_answers_a_bad_rejection() -> None:
    """Else two ends that do not understand each other would never stop."""
    serving = Serving()
    await serving.said()

    serving.take(packed(Kind.REJECTED, WAITS, b"?!"))

    assert await serving.said() == []
    assert len(serving.end) == 2


async def test_who_takes_no_rejections_is_sent_none() -> None:
    """Bounded by what a link may have unsent."""
    serving = Serving()
    await serving.said()

    serving.end.link.pause_writing()
    for _ in range(1000):
        serving.take(packed(100, STRANGE, b""))

    assert await serving.said() == []


async def test_a_size_beyond_the_limit_ends_the_link_by_name(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """At either end: no end of such a frame can be found, so nothing behind it can be read."""
    why: list[str] = []
    calling = CallsOut(on_lost=why.append)
    calling.link.connection_made(Wire())
    serving = Serving()

    with caplog.at_level(logging.ERROR):
        for link in (calling.link, serving.end.link):
            link.data_received(HEADER.pack((1 << 32) - 1, Kind.ANSWER, 1))
    calling.link.connection_lost(None)

    assert why == ["a frame of 4294967295 bytes; the limit is 67108864"]
    assert serving.wire.closed
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"]


async def test_strange_frames_end_nothing_at_the_end_that_asks() -> None:
    """Nor do answers to calls that are over."""
    rng = random.Random(53)
    told: list[object] = []
    headers = Headers((), {}, peer="", connection=0, deadline_s=None)
    for _ in range(200):
        calling = CallsOut(on_lost=told.append)
        wire = Wire()
        calling.link.connection_made(wire)
        calling.begin((0, 0), headers, b"", told.append, lambda *_: told.append("failed"))

        data = b"".join(drawn(rng, lambda: STRANGE + rng.randrange(9)) for _ in range(20))
        for part in cut_anywhere(rng, data):
            calling.link.data_received(part)
        assert told == []
        assert not wire.closed
        calling.link.data_received(frames.message(Kind.ANSWER, 1, b"hello"))

        assert told.pop() == b"hello"
        await asyncio.sleep(0)


@pytest.mark.parametrize("kind", [Kind.ANSWER, Kind.FAIL, 100])
async def test_an_answer_that_is_not_read_leaves_its_outcome_unknown(
    kind: int, leader: Leader, follower: Follower
) -> None:
    """And nothing else; the leader is told, and that method goes by calls from then on."""
    follower.follow(leader.member)
    link = await follower.linked(leader.member)
    waits = [asyncio.create_task(asked(link, b"never %d" % n)) for n in range(2)]
    await eventually(lambda: len(leader.asked) == 2)

    link.end.link.data_received(packed(kind, min(link.end._calls), b"bad"))

    outcome = await waits[0]
    assert isinstance(outcome, Unavailable)
    assert not isinstance(outcome, NOTHING_HAPPENED)
    await eventually(lambda: leader.gone == [b"never 0"])
    assert link.begin(ASK, b"x", (), WAIT_S, lambda _: None) is None
    assert await all_answers(link, b"n") == [b"n0", b"n1", b"n2"]
    assert not waits[1].done()
    waits[1].cancel()


async def test_a_stream_of_which_a_message_is_not_read_fails(
    leader: Leader, follower: Follower
) -> None:
    """Alone: a call of one message goes on, and others come over the link."""
    follower.follow(leader.member)
    link = await follower.linked(leader.member)
    waits = asyncio.create_task(asked(link, b"never"))
    reads = asyncio.create_task(all_answers(link, b"endless"))
    await eventually(lambda: len(leader.asked) == 2)

    link.end.link.data_received(packed(Kind.MESSAGE, max(link.end._streams), b"bad"))

    with pytest.raises(Unavailable):
        await reads
    await eventually(lambda: leader.gone == [b"endless"])
    assert link.answers(READ, b"x", (), WAIT_S) is None
    assert await asked(link, b"hello") == b"HELLO"
    assert not waits.done()
    waits.cancel()


async def test_a_request_that_is_not_read_is_known_to_have_done_nothing(
    leader: Leader, follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that a client may be told so. The stream's, too."""
    follower.follow(leader.member)
    link = await follower.linked(leader.member)
    made = frames.opening
    monkeypatch.setattr(
        frames,
        "opening",
        lambda number, call: packed(Kind.OPEN, number, made(0, call)[HEADER.size :], b"x"),
    )

    outcome = await asked(link, b"hello")
    with pytest.raises(NotTaken):
        await all_answers(link, b"n")

    assert isinstance(outcome, NotTaken)
    assert NotTaken in NOTHING_HAPPENED
    assert leader.asked == []
    assert follower.links.to(leader.member) is link


async def test_a_push_to_a_version_that_knows_none_is_refused(
    leader: Leader, follower: Follower
) -> None:
    """The kind is reserved; the leader is told that it did not arrive."""
    follower.follow(leader.member)
    link = await follower.linked(leader.member)
    sent: list[bytes] = []
    link.end.link.send = sent.append

    link.end.link.data_received(packed(Kind.PUSH, 1, b"a command"))

    assert sent == [frames.rejecting(1, Kind.PUSH)]
    del link.end.link.send
    assert await asked(link, b"hello") == b"HELLO"

"""``Ledger.Produce`` and its client: many batches under way, in order, each stored once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import grpc.aio
import pytest
from grpc.aio import _call

from dledger.broker.command_frame import CommandType, frame
from dledger.broker.message import Columns
from dledger.broker.produce import encode_produce
from dledger.broker.results import Produced
from dledger.calls.admission import AdmissionControl
from dledger.calls.rules import Ask, Leave
from dledger.client import Appended, AppendStream, Client, OutcomeUnknown, Record, append_stream
from dledger.client.produce_call import Connect
from dledger.common.limits import MAX_IDS_OF_CLIENT, MAX_MESSAGES, MAX_MESSAGES_UNDER_WAY
from dledger.errors import (
    DiskFull,
    DledgerError,
    FeatureNotReady,
    InvalidArgument,
    LeadershipLost,
    NotLeader,
    Overloaded,
    RateLimited,
    Refused,
    Unavailable,
)
from dledger.replica.proposals import Command
from dledger.requests.config import RequestConfig, StreamBounds
from dledger.rpc.channel import error_of
from dledger.rpc.metadata import by_key
from dledger.rpc.pb import dledger_pb2 as pb
from dledger.services import producing
from dledger.services.batches import checked_batch
from dledger.services.producing import Producing
from dledger.spool.circuit_breaker import BATCH_RECORDS
from tests.requests.memory_group import SOON_S, MemoryGroup, memory_group
from tests.waiting import eventually

TOPIC = "orders"


def batch(
    bodies: Sequence[bytes] = (b"x",),
    *,
    message_ids: Sequence[str] | None = None,
    tags: Sequence[str] = (),
    keys: Sequence[Collection[str]] = (),
    properties: Sequence[Mapping[str, str]] = (),
    client_id: str = "c",
    topic: str = TOPIC,
    queue_id: int = 0,
) -> bytes:
    """Return the PRODUCE command of a batch."""
    columns = Columns(
        message_ids=message_ids or [f"id-{row}" for row in range(len(bodies))],
        bodies=bodies,
        born_at_ms=[0] * len(bodies),
        tags=tags,
        keys=keys,
        properties=properties,
    )
    return encode_produce(columns, client_id=client_id, topic=topic, queue_id=queue_id)


def message(*batches: tuple[int, bytes]) -> bytes:
    """Return one message of the stream, by protobuf alone."""
    return pb.ProduceBatches(
        batches=[pb.ProduceBatch(id=number, command=command) for number, command in batches]
    ).SerializeToString()


@pytest.fixture
async def group() -> AsyncIterator[MemoryGroup]:
    """Three nodes and a topic."""
    async with serving() as group:
        yield group


@asynccontextmanager
async def serving(**bounds: int) -> AsyncIterator[MemoryGroup]:
    """Serve three nodes with a topic, which let so little of a stream be under way."""
    config = RequestConfig(streams=StreamBounds(**bounds))
    async with memory_group(3, config) as group:
        async with Client(f"127.0.0.1:{group.nodes[0].port}") as client:
            await client.create_topic(TOPIC, queues=2)
        yield group


async def test_a_batch_lies_in_the_log_as_it_was_encoded(group: MemoryGroup) -> None:
    """One encoding from client to disk: the entry's data is the command."""
    command = batch([b"a", b"b"])

    async with grpc.aio.insecure_channel(group.addresses[0]) as channel:
        call = channel.stream_stream("/dledger.v1.Ledger/Produce")()
        await call.write(message((7, command)))
        answers = pb.ProduceAnswers.FromString(await call.read()).answers
        await call.done_writing()

    assert group.log[-1].data == command
    assert [(a.id, a.queue_id, a.first_offset, a.index) for a in answers] == [
        (7, 0, 0, group.log[-1].index)
    ]


async def test_batches_under_way_at_once_keep_their_order(group: MemoryGroup) -> None:
    """Nobody awaits one batch before the next, and the queue has them as they were appended."""
    async with AppendStream(group.addresses) as stream:
        appended = await asyncio.gather(
            *(stream.append(TOPIC, [b"%03d" % n], queue_id=0) for n in range(100))
        )

    assert [one.offsets for one in appended] == [(n,) for n in range(100)]
    assert await group.bodies(TOPIC) == [b"%03d" % n for n in range(100)]


async def test_what_waits_leaves_in_one_message(
    group: MemoryGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In order, up to a number and to bytes; as protobuf would write it."""
    monkeypatch.setattr(append_stream, "_MAX_BATCHES", 3)
    monkeypatch.setattr(append_stream, "_ENOUGH_BYTES", 10_000)
    stream = AppendStream(group.addresses, client_id="c")
    bodies = [b"a", b"b", b"c", b"d", b"e" * 20_000, b"f"]
    appends = [asyncio.ensure_future(stream.append(TOPIC, [body, b"+"])) for body in bodies]
    await asyncio.sleep(0)
    appends[1].cancel()
    await asyncio.sleep(0)

    messages = []
    while raw := stream._next_request():
        messages.append(raw)

    parsed = [pb.ProduceBatches.FromString(raw) for raw in messages]
    assert [[batch.id for batch in each.batches] for each in parsed] == [[1, 3, 4], [5], [6]]
    assert [each.SerializeToString() for each in parsed] == messages
    sent = [checked_batch(batch.command).bodies() for each in parsed for batch in each.batches]
    assert sent == [[body, b"+"] for body in bodies if body != b"b"]
    await stream.close()
    await asyncio.gather(*appends, return_exceptions=True)


async def test_a_follower_sends_the_stream_to_the_leader(group: MemoryGroup) -> None:
    """One known address is enough, whichever node leads."""
    group.elect(2)

    async with AppendStream(group.addresses[0]) as stream:
        await stream.append(TOPIC, [b"a"], queue_id=0)

    assert await group.bodies(TOPIC) == [b"a"]


async def test_what_was_under_way_at_a_failover_is_stored_once_and_in_order(
    group: MemoryGroup,
) -> None:
    """Outcomes are lost and leadership moves: each batch is there once, where it belongs."""
    async with AppendStream(group.addresses) as stream:
        await stream.append(TOPIC, [b"000"], queue_id=0)
        group.lose_outcomes = 3
        appends = [
            asyncio.ensure_future(stream.append(TOPIC, [b"%03d" % n], queue_id=0))
            for n in range(1, 60)
        ]
        await asyncio.sleep(0)
        group.elect(1)
        await asyncio.gather(*appends)

    assert await group.bodies(TOPIC) == [b"%03d" % n for n in range(60)]


async def test_a_refused_batch_is_told_and_the_stream_goes_on(group: MemoryGroup) -> None:
    """What breaks a rule does not hold up what does not."""
    async with AppendStream(group.addresses) as stream:
        first, refused, last = await asyncio.gather(
            stream.append(TOPIC, [b"a"], queue_id=0),
            stream.append(TOPIC, [b""], queue_id=0),
            stream.append(TOPIC, [b"b"], queue_id=0),
            return_exceptions=True,
        )

    assert isinstance(refused, Refused)
    assert "the message body is empty" in str(refused)
    assert not isinstance(first, BaseException)
    assert not isinstance(last, BaseException)
    assert await group.bodies(TOPIC) == [b"a", b"b"]


async def test_a_queue_that_the_topic_does_not_have_is_refused_in_turn(group: MemoryGroup) -> None:
    """Also what only applying the batch finds out is a refusal of that batch alone."""
    async with AppendStream(group.addresses) as stream:
        with pytest.raises(Refused, match="queues 0 to 1: 9"):
            await stream.append(TOPIC, [b"a"], queue_id=9)
        await stream.append(TOPIC, [b"b"], queue_id=0)

    assert await group.bodies(TOPIC) == [b"b"]


async def test_a_full_disk_is_its_own_error(group: MemoryGroup) -> None:
    """Whoever appends is told at once; trying again does not help."""
    group.refuse = DiskFull("no room")

    async with AppendStream(group.addresses) as stream:
        with pytest.raises(DiskFull, match="no room"):
            await stream.append(TOPIC, [b"a"], queue_id=0)


async def test_a_full_disk_is_told_of_what_was_not_stored_and_of_nothing_else(
    group: MemoryGroup,
) -> None:
    """What was taken before is answered; those behind are told at once, and are not stored."""
    engine = group.nodes[0].engine
    submit = engine.submit

    def fill(command: Command, **_: str) -> asyncio.Future[object]:
        result = submit(command)
        group.refuse = DiskFull("no room")
        return result

    engine.submit = fill

    async with AppendStream(group.addresses) as stream:
        outcomes = await asyncio.gather(
            *(stream.append(TOPIC, [b"%d" % n] * 2, queue_id=0) for n in range(3)),
            return_exceptions=True,
        )

    assert [type(outcome) for outcome in outcomes] == [Appended, DiskFull, DiskFull]
    assert await group.bodies(TOPIC) == [b"0", b"0"]


async def test_a_batch_that_waited_for_room_in_vain_is_told_and_ends_its_stream(
    group: MemoryGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was taken, and is nowhere; what is behind it may not be stored before it comes again."""

    async def wait_in_vain(_: Command) -> object:
        raise DiskFull("no room was made")

    monkeypatch.setattr(group, "commit", wait_in_vain)

    async with AppendStream(group.addresses) as stream:
        outcomes = await asyncio.gather(
            *(stream.append(TOPIC, [b"a"], queue_id=0) for _ in range(3)), return_exceptions=True
        )

    assert isinstance(outcomes[0], DiskFull)
    assert all(isinstance(each, DiskFull | OutcomeUnknown) for each in outcomes)
    assert await group.bodies(TOPIC) == []


async def test_a_full_disk_is_not_told_of_a_batch_that_was_sent_before(
    group: MemoryGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Taken for not stored it would be appended anew, with other ids, and stored twice."""
    commit = group.commit

    async def lose(command: Command) -> object:
        await commit(command)
        group.refuse = DiskFull("no room")
        raise LeadershipLost("by the test")

    monkeypatch.setattr(group, "commit", lose)

    async with AppendStream(group.addresses) as stream:
        with pytest.raises(OutcomeUnknown, match=r"no room.*may be stored"):
            await stream.append(TOPIC, [b"a"], queue_id=0)
        with pytest.raises(DiskFull):
            await stream.append(TOPIC, [b"b"], queue_id=0)

    assert await group.bodies(TOPIC) == [b"a"]


class _Rule:
    """Refuses each batch from some number on, while it is told to."""

    def __init__(self, group: MemoryGroup, error: DledgerError, *, lets: int) -> None:
        self.refuses: DledgerError | None = error
        self._lets = lets
        group.nodes[0].parts.context.rules.append(self)

    def admit(self, ask: Ask) -> Leave | None:
        if ask.messages and self.refuses is not None:
            if not self._lets:
                raise self.refuses
            self._lets -= 1
        return None

    def refused(self, ask: Ask, error: DledgerError) -> None:
        """Take note of nothing."""


@pytest.mark.found
@pytest.mark.parametrize("error", [RateLimited("by the test"), Refused("by the test")])
async def test_a_rule_that_refuses_what_was_sent_before_does_not_say_that_it_is_not_stored(
    group: MemoryGroup, error: DledgerError
) -> None:
    """found: 48. Only its producer knows that it was, on a stream that was lost."""
    group.lose_outcomes = 1
    rule = _Rule(group, error, lets=1)

    async with AppendStream(group.addresses) as stream:
        with pytest.raises(OutcomeUnknown, match=r"by the test.*may be stored"):
            await stream.append(TOPIC, [b"a"], queue_id=0)
        rule.refuses = None
        await stream.append(TOPIC, [b"b"], queue_id=0)

    assert await group.bodies(TOPIC) == [b"a", b"b"]


@pytest.mark.found
@pytest.mark.parametrize("error", [RateLimited("by the test"), Refused("by the test")])
async def test_what_a_rule_refuses_is_not_stored_nor_what_is_behind_it(
    group: MemoryGroup, error: DledgerError
) -> None:
    """found: 48. What was taken before is answered, all others are told why, by name."""
    rule = _Rule(group, error, lets=1)

    async with AppendStream(group.addresses) as stream:
        outcomes = await asyncio.gather(
            *(stream.append(TOPIC, [b"%d" % n] * 2, queue_id=0) for n in range(3)),
            return_exceptions=True,
        )
        rule.refuses = None
        await stream.append(TOPIC, [b"3"], queue_id=0)

    assert [type(each) for each in outcomes] == [Appended, type(error), type(error)]
    assert await group.bodies(TOPIC) == [b"0", b"0", b"3"]


async def test_what_a_rule_puts_off_keeps_its_order(group: MemoryGroup) -> None:
    """Unavailable is for the producer's stream, which comes again with all that is unanswered."""
    rule = _Rule(group, Overloaded("by the test"), lets=1)

    async with AppendStream(group.addresses) as stream:
        appends = [
            asyncio.ensure_future(stream.append(TOPIC, [b"%d" % n] * 2, queue_id=0))
            for n in range(3)
        ]
        await appends[0]
        await eventually(lambda: stream._streams > 3)  # it came again, in vain
        rule.refuses = None
        await asyncio.gather(*appends)

    assert await group.bodies(TOPIC) == [b"%d" % n for n in range(3) for _ in range(2)]


async def test_what_was_not_sent_is_not_of_unknown_outcome(group: MemoryGroup) -> None:
    """A batch that found no room in time is not stored, and its caller may know."""
    group.elect(None)

    async with AppendStream(group.addresses, timeout_s=SOON_S, max_messages=2) as stream:
        sent, waited = await asyncio.gather(
            stream.append(TOPIC, [b"a"] * 2),
            stream.append(TOPIC, [b"b"]),
            return_exceptions=True,
        )

    assert (type(sent), type(waited)) == (OutcomeUnknown, Unavailable)


async def test_a_stream_to_a_new_leader_waits_until_that_serves(group: MemoryGroup) -> None:
    """Every node names it already: a refusal would send the producer round in circles."""
    group.elect(1, serves=False)

    async with AppendStream(group.addresses[1]) as stream:
        append = asyncio.ensure_future(stream.append(TOPIC, [b"a"], queue_id=0))
        await eventually(lambda: stream._streams == 1)
        assert not append.done()
        group.elect(1)
        await append
        assert stream._streams == 1

    assert await group.bodies(TOPIC) == [b"a"]


async def test_a_failover_costs_a_stream_no_wait(
    group: MemoryGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many there were before: the next node knows the leader, or waits for it."""
    monkeypatch.setattr(append_stream, "_RETRY_S", 3600.0)

    async with AppendStream(group.addresses) as stream:
        for leader in (0, 1, 2, 0, 2, 1, 0):
            group.elect(leader)
            await stream.append(TOPIC, [b"%d" % leader], queue_id=0)

    assert await group.bodies(TOPIC) == [b"0", b"1", b"2", b"0", b"2", b"1", b"0"]


async def test_a_stream_that_ends_goes_on_at_another_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same one may be cut off, and would wait for a leader that the others have."""
    monkeypatch.setattr(append_stream, "_RETRY_S", 0.001)
    tried: list[str] = []
    says = {"a": "c", "x": ""}

    async def one_stream(_: AppendStream, address: str) -> str:
        tried.append(address)
        if len(tried) == 7:
            await asyncio.get_running_loop().create_future()
        return "x" if len(tried) == 4 else says.get(address, "")

    monkeypatch.setattr(AppendStream, "_one_stream", one_stream)

    async with AppendStream(["a", "b", "c"]):
        await eventually(lambda: len(tried) >= 7)

    assert tried == ["a", "c", "b", "c", "x", "a", "c"]


async def test_a_stream_does_not_go_back_to_a_leader_that_knows_of_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was cut off and gave up; the others name it until they miss it, and elect another."""
    monkeypatch.setattr(append_stream, "_RETRY_S", 0.001)
    tried: list[str] = []
    over = asyncio.Event()

    async def one_stream(stream: AppendStream, address: str) -> str:
        tried.append(address)
        if address == "a":
            stream._leaderless = "a"
        if len(tried) == 6:
            over.set()
            await asyncio.get_running_loop().create_future()
        return "" if address == "a" else "a"

    monkeypatch.setattr(AppendStream, "_one_stream", one_stream)

    async with AppendStream(["a", "b", "c"]):
        await over.wait()

    assert tried == ["a", "b", "c", "b", "c", "b"]


async def test_a_stream_to_a_frozen_leader_moves_when_others_name_another(
    group: MemoryGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A frozen node breaks no connection, and says nothing of its successor."""
    monkeypatch.setattr(append_stream, "_SILENCE_S", 0.05)
    asked = _freeze(group, 0)

    async with AppendStream(group.addresses) as stream:
        append = asyncio.ensure_future(stream.append(TOPIC, [b"a"], queue_id=0))
        await asked.wait()
        assert not append.done()
        group.elect(2)
        await append

    assert await group.bodies(TOPIC) == [b"a"]


async def test_a_stream_to_a_slow_leader_stays(
    group: MemoryGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sending everything again would make it slower still."""
    monkeypatch.setattr(append_stream, "_SILENCE_S", 0.02)
    asked: list[str] = []
    often = asyncio.Event()
    leader_at = append_stream._leader_at

    async def noted(address: str, connect: Connect) -> str:
        asked.append(address)
        if len(asked) == 6:
            often.set()
        return await leader_at(address, connect)

    monkeypatch.setattr(append_stream, "_leader_at", noted)
    _freeze(group, 0)

    async with AppendStream(group.addresses) as stream:
        append = asyncio.ensure_future(stream.append(TOPIC, [b"a"], queue_id=0))
        await asyncio.wait_for(often.wait(), 10)

        assert stream._streams == 1
        assert set(asked) == set(group.addresses[1:])
        append.cancel()


async def test_a_question_that_cancels_itself_ends_no_stream(
    group: MemoryGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that gRPC cannot close is cancelled by it, as when the node has ended it before.

    Seen when disks hung under load: all later batches waited for their timeouts, for ever.
    """
    monkeypatch.setattr(append_stream, "_SILENCE_S", 0.02)
    close, failed = _call.StreamStreamCall._done_writing, list[object]()

    async def fails_at_first(call: Any) -> None:
        if len(failed) < 3:
            failed.append(call)
            raise grpc.aio.InternalError("cannot close")
        await close(call)

    monkeypatch.setattr(_call.StreamStreamCall, "_done_writing", fails_at_first)
    _freeze(group, 0)

    async with AppendStream(group.addresses, timeout_s=20) as stream:
        append = asyncio.ensure_future(stream.append(TOPIC, [b"a"], queue_id=0))
        await asyncio.sleep(0.05)
        group.elect(2)
        await append

    assert len(failed) == 3
    assert await group.bodies(TOPIC) == [b"a"]


async def test_a_call_that_cancels_itself_is_followed_by_another(
    group: MemoryGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What gRPC could not send on one stream goes on the next."""
    make, failed = AppendStream._next_request, list[object]()

    def fails_at_first(stream: AppendStream) -> bytes:
        request = make(stream)
        if request and not failed:
            failed.append(request)
            raise grpc.aio.InternalError("cannot send")
        return request

    monkeypatch.setattr(AppendStream, "_next_request", fails_at_first)

    async with AppendStream(group.addresses, timeout_s=20) as stream:
        await stream.append(TOPIC, [b"a"], queue_id=0)

    assert failed
    assert await group.bodies(TOPIC) == [b"a"]


async def test_a_stream_that_ends_by_a_fault_tells_who_waits_and_who_comes(
    group: MemoryGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for a timeout when nothing will be sent any more."""

    async def one_stream(stream: AppendStream, _: str) -> str:
        await stream._arrived.wait()
        raise RuntimeError("a bug")

    monkeypatch.setattr(AppendStream, "_one_stream", one_stream)

    async with AppendStream(group.addresses) as stream:
        with pytest.raises(Unavailable, match="by an internal error"):
            await stream.append(TOPIC, [b"a"], queue_id=0)
        with pytest.raises(Unavailable, match="is closed"):
            await stream.append(TOPIC, [b"b"], queue_id=0)


async def test_a_stream_that_is_over_takes_nothing(group: MemoryGroup) -> None:
    """Not from those who waited for room when it was closed, either."""
    group.elect(None)
    async with AppendStream(group.addresses, max_bytes=2000) as stream:
        appends = [
            asyncio.ensure_future(stream.append(TOPIC, [b"x" * 1500], queue_id=0)) for _ in range(3)
        ]
        await asyncio.sleep(0.05)

    outcomes = await asyncio.gather(*appends, return_exceptions=True)

    assert [type(outcome) for outcome in outcomes] == [OutcomeUnknown, Unavailable, Unavailable]
    assert stream.unanswered_bytes == 0
    with pytest.raises(Unavailable, match="is closed"):
        await stream.append(TOPIC, [b"b"])


async def test_a_follower_refuses_a_stream_before_anything_is_sent(group: MemoryGroup) -> None:
    """It names the leader, so that one who only asks need not send a batch."""
    assert await append_stream._leader_at(group.addresses[1]) == group.addresses[0]
    assert await append_stream._leader_at(group.addresses[0]) == group.addresses[0]


def _freeze(group: MemoryGroup, number: int) -> asyncio.Event:
    """Let a node take commands and never answer; return what is set when it has taken one."""
    loop, asked = asyncio.get_running_loop(), asyncio.Event()

    def submit(command: Command, **_: str) -> asyncio.Future[object]:
        asked.set()
        return loop.create_future()

    group.nodes[number].engine.submit = submit
    return asked


async def test_closing_tells_those_who_wait(group: MemoryGroup) -> None:
    """A future is never left alone."""
    group.elect(None)
    async with AppendStream(group.addresses) as stream:
        waiting = asyncio.ensure_future(stream.append(TOPIC, [b"a"], queue_id=0))
        await asyncio.sleep(0.05)

    with pytest.raises(Unavailable, match="closed before"):
        await waiting


async def test_what_is_unanswered_is_bounded_at_the_client(group: MemoryGroup) -> None:
    """Beyond its bytes an append waits, and memory does not grow."""
    group.elect(None)
    async with AppendStream(group.addresses, max_bytes=10_000) as stream:
        appends = [
            asyncio.ensure_future(stream.append(TOPIC, [b"x" * 4_000], queue_id=0))
            for _ in range(10)
        ]
        await asyncio.sleep(0.05)

        assert stream.unanswered_bytes < 10_000

        group.elect(0)
        await asyncio.gather(*appends)


async def test_what_is_unanswered_is_bounded_at_the_client_by_number(group: MemoryGroup) -> None:
    """Of a topic: what is sent again must be remembered, however small it is (promise P4)."""
    group.elect(None)
    async with AppendStream(group.addresses, max_messages=10) as stream:
        held = [asyncio.ensure_future(stream.append(TOPIC, [b"x"] * 4)) for _ in range(4)]
        other = asyncio.ensure_future(stream.append("another", [b"x"] * 10))
        await asyncio.sleep(0.05)
        under_way = (*stream._sent, *stream._unsent)
        assert sorted((each.topic, each.count) for each in under_way) == [
            ("another", 10),
            (TOPIC, 4),
            (TOPIC, 4),
        ]

        group.elect(0)
        await asyncio.gather(*held, other)
        await stream.append(TOPIC, [b"x"] * 11)  # alone

    with pytest.raises(InvalidArgument, match="1 to 32768 messages"):
        AppendStream(group.addresses, max_messages=MAX_MESSAGES_UNDER_WAY + 1)


def test_what_may_be_under_way_is_half_of_what_is_remembered() -> None:
    """Whatever is sent again finds itself in the window, also if two streams share a client id."""
    assert 2 * MAX_MESSAGES_UNDER_WAY <= MAX_IDS_OF_CLIENT
    assert StreamBounds().max_messages == MAX_MESSAGES_UNDER_WAY
    assert max(MAX_MESSAGES, BATCH_RECORDS) <= MAX_MESSAGES_UNDER_WAY


async def test_batches_that_wait_for_room_keep_their_order(group: MemoryGroup) -> None:
    """A backlog, as after a failover, must not let later batches overtake earlier ones."""
    sent: list[asyncio.Task[object]] = []
    async with AppendStream(group.addresses, max_bytes=2000, max_messages=5) as stream:
        for number in range(300):
            body = b"%03d" % number + bytes(number % 7 * 100)
            sent.append(asyncio.create_task(stream.append(TOPIC, [body], queue_id=0)))
            await asyncio.sleep(0)
        await asyncio.gather(*sent)

    stored = [body[:3] for body in await group.bodies(TOPIC)]
    assert stored == [b"%03d" % number for number in range(300)]


async def test_what_is_under_way_is_bounded_at_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that is not answered is not read on."""
    submitted: list[asyncio.Future[object]] = []
    full = asyncio.Event()

    def submit(command: bytes, **_: str) -> asyncio.Future[object]:
        submitted.append(asyncio.get_running_loop().create_future())
        if len(submitted) == 4:
            full.set()
        return submitted[-1]

    async with serving(max_batches=4) as group, AppendStream(group.addresses) as stream:
        monkeypatch.setattr(group.nodes[0].engine, "submit", submit)
        appends = [
            asyncio.ensure_future(stream.append(TOPIC, [b"a"] * 2, queue_id=0)) for _ in range(20)
        ]
        await full.wait()
        await asyncio.sleep(0.1)

        assert len(submitted) == 4

    await asyncio.gather(*appends, return_exceptions=True)


async def test_what_is_under_way_is_bounded_at_the_node_by_number(group: MemoryGroup) -> None:
    """Small messages fill the dedupe window long before they are many bytes (promise P4)."""
    submitted = _hold(group)
    requests = _Requests((1, batch([b"a"] * 2)), (2, batch([b"b"] * 3)), (3, batch([b"c"])))
    requests.put((4, batch([b"d"] * 9)))

    async with aclosing(_answers_of(group, requests, max_messages=5)) as answers:
        for number, under_way in enumerate((2, 3, 3, 4)):  # one beyond the bound goes alone
            answer = asyncio.ensure_future(anext(answers))
            await _turns()
            assert len(submitted) == under_way
            submitted[number].set_result(_stored(number))
            await answer


async def test_a_stream_that_nobody_reads_submits_nothing_behind_a_lost_batch(
    group: MemoryGroup,
) -> None:
    """Stored now, it would lie in front of what is sent again."""
    submitted = _hold(group)
    requests = _Requests((1, batch()), (2, batch()))

    async with aclosing(_answers_of(group, requests)) as answers:
        answer = asyncio.ensure_future(anext(answers))
        await _turns()
        submitted[0].set_result(_stored(0))
        await answer  # and the next one is not asked for
        submitted[1].set_exception(LeadershipLost("by the test"))
        requests.put((3, batch()))
        await _turns()

        assert len(submitted) == 2
        with pytest.raises(NotLeader):
            await anext(answers)


async def test_a_batch_that_waits_for_room_is_not_submitted_behind_a_lost_one(
    group: MemoryGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither one that the queue did not take, nor one that has no room on the stream."""
    monkeypatch.setattr(producing, "_OVERLOAD_PAUSE_S", 0.0)
    for bounds in ({}, {"max_batches": 1}):
        submitted = _hold(group, room_for=1)
        requests = _Requests((1, batch()), (2, batch()))

        async with aclosing(_answers_of(group, requests, **bounds)) as answers:
            answer = asyncio.ensure_future(anext(answers))
            await _turns()
            submitted[0].set_exception(LeadershipLost("by the test"))
            await asyncio.sleep(
                0
            )  # the turn in which it is told, as by a driver that loses its lead
            behind = _hold(group)
            with pytest.raises(NotLeader):
                await answer
            await _turns()

        assert (len(submitted), behind) == (1, [])


async def test_a_refusal_at_the_door_does_not_hide_that_an_outcome_is_unknown(
    group: MemoryGroup,
) -> None:
    """The batch before may be stored: its producer must not hear that the disk is full."""
    submitted = _hold(group, room_for=1, then=DiskFull("no room"))
    requests = _Requests((1, batch()), (2, batch()))

    async with aclosing(_answers_of(group, requests)) as answers:
        answer = asyncio.ensure_future(anext(answers))
        await _turns()
        submitted[0].set_exception(LeadershipLost("by the test"))
        with pytest.raises(NotLeader):
            await answer


@pytest.mark.found
@pytest.mark.parametrize("turns", range(8))
async def test_a_stream_does_not_end_well_with_an_unknown_outcome(
    group: MemoryGroup, turns: int
) -> None:
    """found: 48. Its client half-closes while the leader is lost, in whichever order that comes."""
    submitted = _hold(group)
    requests = _Requests((1, batch()))

    async with aclosing(_answers_of(group, requests)) as answers:
        answer = asyncio.ensure_future(anext(answers))
        await _turns()
        requests.end()
        for _ in range(turns):
            await asyncio.sleep(0)
        submitted[0].set_exception(LeadershipLost("by the test"))
        with pytest.raises(NotLeader):
            await answer


class _Requests:
    """A stream of requests that a test adds to."""

    def __init__(self, *batches: tuple[int, bytes]) -> None:
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.put(*batches)

    def put(self, *batches: tuple[int, bytes]) -> None:
        self._queue.put_nowait(message(*batches))

    def end(self) -> None:
        self._queue.put_nowait(None)

    async def read(self) -> bytes | None:
        return await self._queue.get()


def _answers_of(group: MemoryGroup, requests: _Requests, **bounds: int) -> AsyncGenerator[bytes]:
    """Return the answers of a stream at the leader, with such bounds, without gRPC between."""
    config = RequestConfig(streams=StreamBounds(**bounds))
    context = replace(group.nodes[0].parts.context, config=config)
    stream = Producing(context, lambda _: None, "stream")
    messages = partial(AdmissionControl().message, "stream", requests.read, "Produce")
    return stream.answers(messages)


def _hold(
    group: MemoryGroup, room_for: int = 1 << 30, then: Exception | None = None
) -> list[asyncio.Future[object]]:
    """Let the leader take so many commands, and leave their outcome to the test."""
    submitted: list[asyncio.Future[object]] = []

    def submit(command: Command, **_: str) -> asyncio.Future[object]:
        if len(submitted) >= room_for:
            raise then or Overloaded("by the test")
        submitted.append(asyncio.get_running_loop().create_future())
        return submitted[-1]

    group.nodes[0].engine.submit = submit
    return submitted


def _stored(first: int) -> Produced:
    return Produced(
        topic=TOPIC,
        queue_ids=(0,),
        offsets=range(first, first + 1),
        index=1,
        generation=1,
        stored=1,
    )


async def _turns() -> None:
    """Let everything happen that waits for nobody."""
    for _ in range(50):
        await asyncio.sleep(0)


async def test_a_refused_batch_of_a_message_is_answered_in_its_turn(group: MemoryGroup) -> None:
    """The others of the message are stored; a message without any is none."""
    async with grpc.aio.insecure_channel(group.addresses[0]) as channel:
        call = channel.stream_stream("/dledger.v1.Ledger/Produce")()
        await call.write(message())
        await call.write(message((1, batch([b"a"])), (2, b"?"), (3, batch([b"b"], client_id="d"))))
        await call.done_writing()
        answers = [a for raw in [r async for r in call] for a in _answers(raw)]

    assert [(a.id, bool(a.refused)) for a in answers] == [(1, False), (2, True), (3, False)]
    assert await group.bodies(TOPIC) == [b"a", b"b"]


def _answers(raw: bytes) -> Sequence[pb.ProduceAnswer]:
    return pb.ProduceAnswers.FromString(raw).answers


async def test_a_stream_that_lost_its_leader_stores_nothing_later(group: MemoryGroup) -> None:
    """After an unknown outcome the node takes nothing more from the stream: order is kept."""
    group.lose_outcomes = 1

    async with grpc.aio.insecure_channel(group.addresses[0]) as channel:
        call = channel.stream_stream("/dledger.v1.Ledger/Produce")()
        await call.write(message((1, batch())))
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            async for _ in call:
                pass

    assert by_key(ended.value.trailing_metadata())["dledger-error"] == "NotLeader"
    assert by_key(ended.value.trailing_metadata())["dledger-leader"] == group.addresses[0]


def _cut(command: bytes) -> bytes:
    return command[:-1]


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (b"", "0 commands"),
        (b"nonsense", "cut short|wants"),
        (batch() + batch(), "2 commands"),
        (frame(CommandType.ACK, b"{}"), "not exactly one PRODUCE"),
        (_cut(batch()), "wants"),
        (frame(CommandType.PRODUCE, _cut(batch()[5:])), "end after the payload"),
        (batch(topic="no spaces"), "topic"),
        (batch(client_id=""), "client_id"),
        (batch(queue_id=-2), "queue id -2"),
        (batch([b"x", b""]), "body is empty"),
        (batch([b"x" * ((4 << 20) + 1)]), "the limit is 4194304"),
        (batch([b"x" * (4 << 20)] * 5), "the limit is 16777216"),
        (batch([b"x"] * 4_097), "1 to 4096 records"),
        (batch(message_ids=["i" * 256]), "message_id"),
        (batch(tags=["a|b"]), "tag"),
        (batch(keys=[[" "]]), "key is blank"),
        (batch(properties=[{" ": "v"}]), "name of a property"),
    ],
)
def test_a_batch_that_breaks_a_rule_is_refused(command: bytes, why: str) -> None:
    """The rules are those of every other way in."""
    with pytest.raises(Refused, match=why):
        checked_batch(command)


@pytest.mark.parametrize(("at", "value"), [(5, 2), (6, 64)], ids=["version", "flag"])
async def test_a_batch_of_a_newer_producer_does_not_get_into_the_log(
    group: MemoryGroup, at: int, value: int
) -> None:
    """There it would stop every node. Its producer is told, and what it sent before is stored."""
    newer = bytearray(batch([b"b"], message_ids=["2"]))
    newer[at] = value
    answers: list[pb.ProduceAnswer] = []

    async with grpc.aio.insecure_channel(group.addresses[0]) as channel:
        call = channel.stream_stream("/dledger.v1.Ledger/Produce")()
        await call.write(message((1, batch([b"a"]))))
        answers += _answers(await call.read())
        await call.write(message((2, bytes(newer)), (3, batch([b"c"], message_ids=["3"]))))
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            await call.read()

    assert isinstance(error_of(ended.value, "node"), FeatureNotReady)
    assert "upgrade the group before its producers" in str(ended.value.details())
    assert [answer.id for answer in answers] == [1]
    assert await group.bodies(TOPIC) == [b"a"]


def test_any_damage_of_a_batch_is_refused_or_read_whole() -> None:
    """A batch that passes has every message: nothing is left for readers to stumble on."""
    good = batch([b"a", b"bb"], tags=["t", ""], keys=[["k"], []], properties=[{}, {"n": "v"}])

    for at in range(len(good)):
        for flip in (1, 0x80):
            damaged = bytearray(good)
            damaged[at] ^= flip
            try:
                checked = checked_batch(bytes(damaged))
            except (Refused, FeatureNotReady):
                continue
            assert all(checked.message(row).body for row in range(checked.count))


async def test_a_batch_without_records_is_refused_before_it_is_sent(group: MemoryGroup) -> None:
    """The caller's own mistake costs no round."""
    async with AppendStream(group.addresses) as stream:
        with pytest.raises(InvalidArgument, match="at least one record"):
            await stream.append(TOPIC, [])


async def test_ids_of_the_caller_make_a_batch_idempotent(group: MemoryGroup) -> None:
    """The same ids from the same client are stored once, and answered with the first place."""
    records = [Record(body=b"a", message_id="1"), Record(body=b"b", message_id="2")]

    async with AppendStream(group.addresses, client_id="me") as stream:
        first = await stream.append(TOPIC, records, queue_id=1)
        again = await stream.append(TOPIC, records, queue_id=1)

    assert again.offsets == first.offsets
    assert await group.bodies(TOPIC, 1) == [b"a", b"b"]


async def test_an_answer_out_of_turn_is_no_nodes() -> None:
    """Whoever answers something else is not believed: the batch is not taken for stored."""

    async def answer(requests: Any, context: Any) -> AsyncIterator[bytes]:
        async for _ in requests:
            yield pb.ProduceAnswers(answers=[pb.ProduceAnswer(id=99)]).SerializeToString()

    server = grpc.aio.server()
    handler = grpc.stream_stream_rpc_method_handler(answer)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("dledger.v1.Ledger", {"Produce": handler}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()

    async with AppendStream(f"127.0.0.1:{port}", timeout_s=SOON_S) as stream:
        with pytest.raises(Unavailable, match="may be stored"):
            await stream.append(TOPIC, [b"a"])
    await server.stop(None)


@pytest.mark.found
async def test_a_batch_is_read_back_as_it_was_produced_but_for_who_did(group: MemoryGroup) -> None:
    """No work a message: the payload is the one in the log, also in pieces; found: S1."""
    records = [Record(body=b"%d" % n, message_id=str(n), tag="t" * (n % 2)) for n in range(10)]
    async with AppendStream(group.addresses, client_id="me") as stream:
        await stream.append(TOPIC, records, queue_id=0)
        await stream.append(TOPIC, [records[0], Record(body=b"new")], queue_id=0)

    async with Client(group.addresses[1]) as client:
        whole = [batch async for batch in client.read_batches(TOPIC, 0)]
        piece = [batch async for batch in client.read_batches(TOPIC, 0, start_offset=1)]
        few = [
            batch async for batch in client.read_batches(TOPIC, 0, start_offset=3, max_records=4)
        ]

    kept = group.log[-2].data[5:]
    assert whole[0].payload == kept[:2] + b"\0\0" + kept[4:16] + kept[18:]
    assert kept[16:18] == b"me"
    assert [(one.first_offset, one.end_offset) for one in whole] == [(0, 10), (10, 11)]
    assert whole[0].bodies() == [b"%d" % n for n in range(10)]
    assert whole[1].bodies() == [b"new"]
    assert [(one.first_offset, one.first_row, one.count) for one in piece] == [
        (1, 1, 9),
        (10, 1, 1),
    ]
    assert few[0].bodies() == [b"3", b"4", b"5", b"6"]
    assert [stored.record for stored in few[0].records()] == records[3:7]


async def test_a_stream_that_ended_while_idle_takes_no_later_batch(group: MemoryGroup) -> None:
    """The old one is still asked for requests; what comes then belongs to the new one."""
    async with AppendStream(group.addresses, timeout_s=10) as stream:
        await stream.append(TOPIC, [b"a"], queue_id=0)
        await group.nodes[0].servers[0].stop(0)
        await asyncio.sleep(0.05)
        group.elect(1)
        await stream.append(TOPIC, [b"b"], queue_id=0)

    assert group.log[-1].data.endswith(b"b")

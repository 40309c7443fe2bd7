"""A made-up rule, added in one place: it sees each request at each door, and each message.

On gRPC's own server, on ours, and behind a door process, which sends calls in batches.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

import grpc.aio
import pytest

from dledger.broker.message import Columns
from dledger.broker.produce import encode_produce
from dledger.calls.caller import Caller
from dledger.calls.rules import Ask, Leave
from dledger.client import Client, Record
from dledger.door.contract import Code
from dledger.errors import DledgerError, NotLeader, Overloaded, RateLimited
from dledger.requests.config import RequestConfig
from dledger.rpc.channel import error_of, nothing_taken
from dledger.rpc.pb import dledger_pb2 as pb
from dledger.rpc.status import Rejected
from dledger.server.wiring import services_of
from tests.requests import memory_group as made
from tests.requests.memory_group import MemoryGroup, Node, memory_group
from tests.requests.rocketmq_client import RocketClient, code, message
from tests.waiting import eventually

pytestmark = pytest.mark.contract
NODES = [pytest.param(0, id="leader"), pytest.param(1, id="follower")]


class Counting:
    """Counts what clients of this node ask, and holds a share for each until it is over."""

    def __init__(self, node: Node, *, refuses: bool = False) -> None:
        self.calls, self.messages, self.forwarded = Counter[str](), Counter[str](), Counter[str]()
        self.again = 0
        self.held, self.most, self.joined = 0, 0, 0
        self.seen: list[tuple[str, type[DledgerError]]] = []
        self.callers: list[Caller] = []
        self._refuses = refuses
        node.parts.context.rules.append(self)

    def admit(self, ask: Ask) -> Leave | None:
        self.callers.append(ask.caller)
        if ask.caller.forwarded:
            self.forwarded[ask.method] += ask.messages
            return None
        if ask.again:
            self.again += ask.calls
        else:
            self.calls[ask.method] += ask.calls
            self.messages[ask.method] += ask.messages
        self.joined = max(self.joined, ask.calls)
        if self._refuses:
            raise RateLimited("by the test")
        self.held += 1
        self.most = max(self.most, self.held)
        return self._leave

    def _leave(self) -> None:
        self.held -= 1

    def refused(self, ask: Ask, error: DledgerError) -> None:
        if not ask.caller.forwarded:
            self.seen.append((ask.method, type(error)))


@pytest.mark.parametrize("at", NODES)
async def test_each_method_asks_it_and_tells_it_of_the_refusal(at: int) -> None:
    """The caller gets the rule's error, as an answer or as the end of the call."""
    async with memory_group(nodes=2) as group:
        node = group.nodes[at]
        rule, ends = Counting(node, refuses=True), set[str]()
        services = services_of(node.parts)
        labels = {each.path: each.label for one in services for each in one.methods.values()}
        async with grpc.aio.insecure_channel(f"127.0.0.1:{node.port}") as channel:
            for path in labels:
                call = channel.unary_stream(path)(b"", timeout=60)
                try:
                    ends.add("answer" if await call.read() else "nothing")
                except grpc.aio.AioRpcError as error:
                    ends.add(error.code().name)

    assert len(labels) == 26
    assert rule.calls == Counter(labels.values())
    assert sorted(rule.seen) == sorted((label, RateLimited) for label in labels.values())
    assert ends == {"answer", Code.RESOURCE_EXHAUSTED.name}


@pytest.mark.parametrize("at", NODES)
async def test_messages_that_come_together_are_counted_one_by_one(
    at: int, client_server: str
) -> None:
    """Valid ones, so that a door has them in batches; what it held for each is given back."""
    async with memory_group(nodes=2, config=RequestConfig(default_queues=1)) as group:
        node, leader = group.nodes[at], Counting(group.nodes[0])
        rule = leader if at == 0 else Counting(node)
        async with RocketClient(node.port) as client:
            await client.send(message(0))  # makes the topic, which a batch cannot
            sends = [client.send(message(2 * n), message(2 * n + 1)) for n in range(1, 11)]
            sent = await asyncio.gather(*sends)
            status, messages, _ = await client.receive(batch=21)
            acks = [client.ack(each) for each in messages]
            acked = await asyncio.gather(*acks)
        async with Client(f"127.0.0.1:{node.port}") as native:
            await native.append("t", [Record(message_id=f"n{n}", body=b"x") for n in range(3)])
        await eventually(lambda: not rule.held and not leader.held)

        told = {code(each.status) for each in sent} | {code(each.status) for each in acked}
        assert told | {code(status)} == {"OK"}
        assert len(messages) == 21
        seen = {name: rule.calls[name] for name in ("SendMessage", "AckMessage", "Ledger/Append")}
        assert seen == {"SendMessage": 11, "AckMessage": 21, "Ledger/Append": 1}
        assert +rule.messages == Counter({"SendMessage": 21, "Ledger/Append": 3})
        assert rule.most > 1 or rule.joined > 1  # a batch holds one share
        assert (rule.joined > 1) is (client_server == made.DOOR and at == 0)  # else no batch came
        if at:
            assert +leader.forwarded == +rule.messages


@pytest.mark.found
@pytest.mark.parametrize("at", NODES)
async def test_it_sees_whose_a_call_is_at_each_door(at: int) -> None:
    """The client's address, its deadline and its headers; of a door's batch there were none.

    At the leader the same, if a follower passed the call on: but for the address, its own words.
    """
    async with memory_group(nodes=2, config=RequestConfig(default_queues=1)) as group:
        seen = [Counting(each) for each in group.nodes]
        async with RocketClient(group.nodes[at].port) as client:
            await client.send(message(0))
            await asyncio.gather(*(client.send(message(n)) for n in range(1, 9)))
            _, messages, _ = await client.receive(batch=9)
            await asyncio.gather(*(client.ack(each) for each in messages))
        callers = [caller for rule in seen for caller in rule.callers]
        now_s = asyncio.get_running_loop().time()

    assert len(callers) >= 4
    assert {caller.host for caller in callers} == {"ipv4:127.0.0.1"}
    assert {caller.fields[b"x-mq-client-id"] for caller in callers} == {b"client-1"}
    assert {caller.language for caller in callers} == {"PYTHON"}
    assert all(now_s + 1 < caller.deadline_s < now_s + 60 for caller in callers)


async def test_each_batch_of_a_producers_stream_is_asked_about(group: MemoryGroup) -> None:
    """The stream as a call, its batches as messages; what is refused ends the stream.

    The batch may have been stored by one before, so no answer can say that it is not.
    """
    rule = Counting(group.nodes[0])
    commands = [_batch(n, 3) for n in range(4)]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{group.nodes[0].port}") as channel:
        call = channel.stream_stream("/dledger.v1.Ledger/Produce")(timeout=60)
        batches = [pb.ProduceBatch(id=n, command=each) for n, each in enumerate(commands)]
        await call.write(pb.ProduceBatches(batches=batches).SerializeToString())
        answers: list[pb.ProduceAnswer] = []
        while len(answers) < 4:
            answers += pb.ProduceAnswers.FromString(await call.read()).answers
        assert rule.held == 1  # the stream's own
        rule._refuses = True
        again = [pb.ProduceBatch(id=4, command=_batch(4, 2))]
        await call.write(pb.ProduceBatches(batches=again).SerializeToString())
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            await call.read()
    await eventually(lambda: not rule.held)

    assert [each.refused for each in answers] == [""] * 4
    assert isinstance(error_of(ended.value, ""), RateLimited)
    assert nothing_taken(ended.value)  # of what is not answered
    assert (rule.calls["Ledger/Produce"], rule.messages["Ledger/Produce"]) == (1, 14)
    assert rule.seen == [("Ledger/Produce", RateLimited)] * 2  # of the batch, and of the stream


async def test_a_call_whose_batch_went_back_is_not_counted_twice(group: MemoryGroup) -> None:
    """Some messages are in a batch that cannot be submitted, and come once more, singly."""
    rule = Counting(group.nodes[0])
    async with RocketClient(group.nodes[0].port) as client:
        await client.send(message(0))
        group.refuse = NotLeader(None)
        sends = [asyncio.ensure_future(client.send(message(n))) for n in range(1, 9)]
        await eventually(lambda: rule.calls["SendMessage"] == 9)
        group.refuse = None
        await asyncio.gather(*sends)
        await client.send(message(8))  # its batch is carried out, and goes back to be looked at
    await eventually(lambda: not rule.held)

    assert (rule.calls["SendMessage"], rule.messages["SendMessage"]) == (10, 10)
    assert rule.again <= 9
    assert not rule.seen


async def test_it_hears_of_what_is_refused_behind_it(
    group: MemoryGroup, hold_for_a_second: Callable[[], None]
) -> None:
    """By the handler, and after the last attempt; the share of a refused call is given back."""
    rule = Counting(group.nodes[0])
    async with RocketClient(group.nodes[0].port) as client:
        await client.send(message(0))
        bad = await client.send(message(1, topic="not a topic"))
        group.refuse = Overloaded("full")
        hold_for_a_second()
        full = await client.send(message(2))
    await eventually(lambda: not rule.held)

    assert [code(each.status) for each in (bad, full)] == ["ILLEGAL_TOPIC", "TOO_MANY_REQUESTS"]
    assert rule.seen == [("SendMessage", Rejected), ("SendMessage", Overloaded)]


async def test_what_a_client_gives_up_is_given_back(
    group: MemoryGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A poll, a call whose command is on its way, and one that waits for a leader."""
    rule = Counting(group.nodes[0])
    async with RocketClient(group.nodes[0].port) as client:
        await client.send(message(0))
        await client.receive()
        poll = asyncio.ensure_future(client.receive(wait_s=30))
        await group.polls()
        monkeypatch.setattr(group, "commit", lambda _: asyncio.get_running_loop().create_future())
        sent = asyncio.ensure_future(client.send(message(1)))
        await eventually(lambda: rule.held == 2)
        sent.cancel()
        await eventually(lambda: rule.held == 1)
        group.elect(None)
        waits = asyncio.ensure_future(client.send(message(2)))
        await eventually(lambda: rule.held == 2)
        waits.cancel()
        poll.cancel()
        await eventually(lambda: not rule.held)


def _batch(number: int, messages: int) -> bytes:
    columns = Columns(
        message_ids=[f"{number}-{n}" for n in range(messages)],
        bodies=[b"x"] * messages,
        born_at_ms=[0] * messages,
    )
    return encode_produce(columns, client_id="c", topic="t", queue_id=0)

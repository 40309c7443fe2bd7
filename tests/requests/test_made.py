"""What clients make: how fast, by whom it is unmade, and what becomes of those who still use it."""

from __future__ import annotations

import asyncio
import re
import struct
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any
from zlib import crc32

import pytest

from dledger.broker.command_frame import CommandType, split
from dledger.broker.commands import CreateTopic, DeleteTopic, SetSecret
from dledger.broker.results import TopicCreated, TopicDeleted
from dledger.cli.main import main as command_line
from dledger.client import AdminClient, BatchingProducer, Client
from dledger.errors import InvalidArgument, RateLimited, Refused, UnknownGroup, UnknownTopic
from dledger.requests import topic_resolver
from dledger.requests.config import RequestConfig
from dledger.rpc.rocketmq_stubs import definition, service
from tests.requests.memory_group import WAIT_S, MemoryGroup, memory_group
from tests.requests.rocketmq_client import RocketClient, code, message

pytestmark = pytest.mark.found
_STRICT = RequestConfig(auto_create_topics=False)
_FEW = RequestConfig(made_at_once=3, made_per_s=0.0)


@pytest.fixture
async def strict() -> AsyncIterator[MemoryGroup]:
    """Two nodes that make no topics on demand, and the topic t."""
    async with memory_group(2, _STRICT) as group, Client(group.addresses[0]) as client:
        await client.create_topic("t", queues=2)
        yield group


def _admin(group: MemoryGroup, number: int = 0) -> AdminClient:
    return AdminClient(f"127.0.0.1:{group.nodes[number].peer_port}", timeout_s=WAIT_S)


async def _delete(group: MemoryGroup, name: str = "t") -> int:
    async with _admin(group) as admin:
        return await admin.delete_topic(await admin.describe_topic(name))


# -- deleting, and those who are there -----------------------------------------------------------


@pytest.mark.parametrize("number", [0, 1])
async def test_a_poll_that_waits_on_a_deleted_topic_ends_by_name(
    strict: MemoryGroup, number: int
) -> None:
    """At the leader and through a follower, at once and not when its time is up."""
    async with RocketClient(strict.nodes[number].port) as client:
        poll = asyncio.ensure_future(client.receive(wait_s=30))
        await strict.polls(1, at=0)

        await _delete(strict)
        status, _, _ = await asyncio.wait_for(poll, WAIT_S / 2)

    assert code(status) == "TOPIC_NOT_FOUND"
    assert "dledger topic create t" in status.message


async def test_a_poll_of_a_deleted_group_ends_by_name(strict: MemoryGroup) -> None:
    """Others' polls of the same queues wait on."""
    async with RocketClient(strict.nodes[0].port) as client, _admin(strict) as admin:
        gone = asyncio.ensure_future(client.receive(wait_s=30, group="gone"))
        stays = asyncio.ensure_future(client.receive(wait_s=30, group="stays"))
        await strict.polls(2)

        await admin.delete_group("gone")
        status, _, _ = await asyncio.wait_for(gone, WAIT_S / 2)
        await client.send(message(1))
        _, messages, _ = await stays

    assert code(status) == "CONSUMER_GROUP_NOT_FOUND"
    assert len(messages) == 1


async def test_a_reader_that_follows_a_deleted_topic_ends_by_name(strict: MemoryGroup) -> None:
    """It would wait for ever, or read another topic from the middle on."""
    async with Client(strict.addresses[0]) as client:
        await client.append("t", [b"old"], queue_id=0)
        reader = client.read("t", 0, follow=True)
        assert (await anext(reader)).record.body == b"old"
        waiting = asyncio.ensure_future(anext(reader))
        await strict.polls(1, at=0)

        await _delete(strict)
        with pytest.raises(UnknownTopic):
            await asyncio.wait_for(waiting, WAIT_S / 2)


async def _make_anew(group: MemoryGroup, queues: int) -> None:
    """Delete the topic t and make it again by one entry."""
    delete = DeleteTopic(name="t", generation=1).encode()
    create = CreateTopic(name="t", type="NORMAL", queues=queues).encode()
    deleted, created = await asyncio.gather(group.commit(delete), group.commit(create))
    assert isinstance(deleted, TopicDeleted)
    assert isinstance(created, TopicCreated)


async def test_who_waits_on_a_topic_does_not_wait_on_the_next_of_its_name(
    strict: MemoryGroup,
) -> None:
    """One entry deletes it and makes it anew: nobody sees it gone, and it has fewer queues."""
    async with Client(strict.addresses[0]) as native, RocketClient(strict.nodes[0].port) as client:
        await native.append("t", [b"old"], queue_id=0)
        reader = native.read("t", 0, start_offset=1, follow=True)
        reading = asyncio.ensure_future(anext(reader))
        poll = asyncio.ensure_future(client.receive(wait_s=30, queue_id=1, auto_renew=True))
        await strict.polls(2, at=0)

        await _make_anew(strict, queues=1)
        status, _, _ = await asyncio.wait_for(poll, WAIT_S / 2)
        with pytest.raises(UnknownTopic):
            await asyncio.wait_for(reading, WAIT_S / 2)

    assert code(status) == "TOPIC_NOT_FOUND"


async def test_a_stream_of_a_producer_is_refused_by_name_and_goes_on(strict: MemoryGroup) -> None:
    """Its batches for other topics are stored, and those for the topic once it is there again."""
    async with (
        Client(strict.addresses[0]) as client,
        BatchingProducer(strict.addresses[0]) as producer,
    ):
        await client.create_topic("u", queues=1)
        await producer.send("t", b"old", queue_id=0)

        await _delete(strict)
        with pytest.raises(Refused, match="topic 't' does not exist"):
            await producer.send("t", b"lost", queue_id=0)
        await producer.send("u", b"kept", queue_id=0)
        await client.create_topic("t", queues=1)
        sent = await producer.send("t", b"new", queue_id=0)

        assert sent.offset == 0
        assert await strict.bodies("t") == [b"new"]


async def test_an_old_handle_is_no_use_for_a_topic_made_anew(strict: MemoryGroup) -> None:
    """Nor for one that is gone."""
    async with RocketClient(strict.nodes[0].port) as client, Client(strict.addresses[0]) as native:
        await client.send(message(1))
        _, held, _ = await client.receive()
        await _delete(strict)
        gone = await client.ack(*held)
        await native.create_topic("t", queues=2)
        await client.send(message(2))
        await client.receive()
        anew = await client.ack(*held)

    assert code(gone.status) == "INVALID_RECEIPT_HANDLE"
    assert code(anew.status) == "INVALID_RECEIPT_HANDLE"


async def test_very_many_polls_of_a_deleted_topic_are_not_woken_in_one_turn(
    strict: MemoryGroup,
) -> None:
    """The event loop has votes and heartbeats to see to in between; of a group, few wait there."""
    turns, engine = strict.nodes[0].parts.turns, strict.nodes[0].engine
    async with RocketClient(strict.nodes[0].port) as client, AsyncExitStack() as stack:
        asked = [client.receive(group=f"g-{number}", wait_s=30) for number in range(90)]
        polls = [asyncio.ensure_future(each) for each in asked]
        stack.push_async_callback(asyncio.wait, polls)
        await strict.polls(90)
        woken: list[int] = []
        wake = turns._over._wake_some

        def counted() -> None:
            before = len(turns._over._waiting)
            wake()
            woken.append(before - len(turns._over._waiting))

        turns._over._wake_some = counted
        await _delete(strict)
        answers = await asyncio.gather(*polls)

    assert {code(status) for status, _, _ in answers} == {"TOPIC_NOT_FOUND"}
    assert sum(woken) == 90
    assert max(woken) <= 64
    assert len(turns) == 0
    assert engine.state.topics.all() == []


# -- what an administrator sees and does ---------------------------------------------------------


async def test_a_topic_is_shown_with_what_is_unread(strict: MemoryGroup) -> None:
    """Before it is deleted: who would miss what."""
    async with RocketClient(strict.nodes[0].port) as client, _admin(strict) as admin:
        await client.send(*(message(number) for number in range(5)))
        await client.receive(batch=2, group="g")

        topic = await admin.describe_topic("t")
        (group,) = await admin.groups()

    (backlog,) = topic.backlogs
    assert (topic.queues, topic.messages, topic.generation) == (2, 5, 1)
    assert (backlog.group, backlog.unread, backlog.held) == ("g", 3, 2)
    assert group.backlogs == (backlog,)


async def test_what_is_unread_is_shown_for_each_filter_of_a_group(
    strict: MemoryGroup, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By Admin, in the table of `dledger group list` and its JSON; the group's is the slowest's."""
    monkeypatch.setattr("dledger.broker.kept_messages.MAX_KEPT_RUNS", 1)
    async with RocketClient(strict.nodes[0].port) as client, _admin(strict) as admin:
        for expression in ("a", "b"):
            await client.receive(expression=expression)
        await client.send(*(message(number, tag="bacba"[number]) for number in range(5)))
        await client.receive(batch=9, expression="a")

        (group,) = await admin.groups()

    expected = [("a", 1, True), ("b", 2, False)]
    (backlog,) = group.backlogs
    assert (backlog.unread, backlog.held) == (2, 1)
    assert [(each.filter, each.unread, each.waits) for each in backlog.filters] == expected

    for options in ([], ["--json"]):
        endpoint = f"127.0.0.1:{strict.nodes[0].peer_port}"
        arguments = ["group", "list", "--endpoint", endpoint, *options]
        assert await asyncio.to_thread(command_line, arguments) == 0
    table, _, shown = capsys.readouterr().out.partition("[")
    assert [line.split() for line in table.splitlines()[2:]] == [
        ["filter", "a", "1", "waits", "for", "a", "slower", "filter"],
        ["filter", "b", "2"],
    ]
    assert '"waits": true' in shown


async def test_whoever_deletes_a_topic_is_told_that_clients_use_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """found: sdks 5. It was back at once, with other queues, and nobody said so."""
    async with memory_group(2) as group, Client(group.addresses[1]) as client, _admin(group) as one:
        await client.create_topic("t", queues=2)
        unused = await one.describe_topic("t")
        await client.append("t", [b"a"])
        used = await one.describe_topic("t")
        await one.delete_topic(used)
        assert list(group.nodes[0].parts.context.resolver._used_s) == []
        await client.append("t", [b"b"])
        again = await one.describe_topic("t")
        monkeypatch.setattr(topic_resolver, "IN_USE_S", 0.0)
        later = await one.describe_topic("t")

    assert [each.in_use for each in (unused, used, again, later)] == [False, True, True, False]
    assert used.made_again_queues == again.queues == RequestConfig().default_queues


async def test_what_a_refused_client_is_told_to_type_makes_its_topic(strict: MemoryGroup) -> None:
    """found: sdks 6. Outside of a node's pod it lacked the option that says which group."""
    async with Client(strict.addresses[1]) as client:
        with pytest.raises(UnknownTopic) as refused:
            await client.append("orders", [b"a"])
        async with RocketClient(strict.nodes[1].port) as rocket:
            answer = await rocket.send(message(0, topic="orders"))
        said = re.search("`dledger (topic create .*?)`", str(refused.value))
        assert said
        assert said[0] in answer.status.message

        assert await asyncio.to_thread(command_line, said[1].split()) == 0
        await client.append("orders", [b"a"])


async def test_a_topic_is_not_made_again_where_none_is_made_on_its_first_use(
    strict: MemoryGroup,
) -> None:
    """Its clients are refused by name, and whoever deletes it is told so."""
    async with Client(strict.addresses[1]) as client, _admin(strict) as admin:
        await client.append("t", [b"a"])
        topic = await admin.describe_topic("t")
        await admin.delete_topic(topic)
        with pytest.raises(UnknownTopic):
            await client.append("t", [b"b"])

    assert (topic.in_use, topic.made_again_queues) == (True, 0)


@pytest.mark.parametrize("name", ["%DLQ%g", "%RETRY%g"])
async def test_names_of_dead_letters_are_kept_for_them(name: str) -> None:
    """found: sdks 6. Whoever made one would be in the way of the group that is to have it."""
    kept = f"topic '{name}' cannot be made: names that begin with %DLQ% or %RETRY% are kept"
    sent = f"topic '{name}' takes no messages of producers"
    async with memory_group(2) as group, Client(group.addresses[1]) as client:
        with pytest.raises(InvalidArgument, match=kept):
            await client.create_topic(name)
        with pytest.raises(InvalidArgument, match=sent):
            await client.append(name, [b"a"])
        async with RocketClient(group.nodes[1].port) as rocket:
            answer = await rocket.send(message(0, topic=name))
            status, _, _ = await rocket.receive(name)

        assert group.nodes[0].engine.state.topics.all() == []
    assert sent in answer.status.message
    assert "are kept for dead letters" in status.message


async def test_a_topic_grows_and_never_shrinks(strict: MemoryGroup) -> None:
    """The answer says how many queues there were; asking twice is harmless."""
    async with _admin(strict) as admin:
        assert await admin.grow_topic("t", 4) == 2
        assert await admin.grow_topic("t", 4) == 4
        with pytest.raises(InvalidArgument, match="has 4 queues"):
            await admin.grow_topic("t", 3)
        with pytest.raises(UnknownTopic, match="nowhere"):
            await admin.grow_topic("nowhere", 3)
        assert (await admin.describe_topic("t")).queues == 4


@pytest.mark.parametrize("number", [0, 1])
async def test_a_poll_that_waited_before_a_topic_grew_gets_what_is_in_its_new_queue(
    strict: MemoryGroup, number: int
) -> None:
    """It waits for the topic, not for the queues that there were."""
    async with RocketClient(strict.nodes[number].port) as client, _admin(strict) as admin:
        poll = asyncio.ensure_future(client.receive(wait_s=30))
        await strict.polls(1, at=0)

        await admin.grow_topic("t", 3)
        async with Client(strict.addresses[0]) as producer:
            await producer.append("t", [b"new"], queue_id=2)
        _, received, _ = await asyncio.wait_for(poll, WAIT_S)

    assert [each.body for each in received] == [b"new"]


async def test_groups_are_made_listed_and_deleted(strict: MemoryGroup) -> None:
    """Only the leader does it, and another names it."""
    async with _admin(strict) as admin:
        assert await admin.create_group("b")
        assert not await admin.create_group("b")
        await admin.create_group("a")
        assert [group.name for group in await admin.groups()] == ["a", "b"]
        await admin.delete_group("b")
        with pytest.raises(UnknownGroup, match="dledger group create b"):
            await admin.delete_group("b")
        assert [group.name for group in await admin.groups()] == ["a"]


# -- how fast ------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [0, 1])
async def test_topics_are_made_on_demand_only_so_fast(number: int) -> None:
    """At the leader and through a follower; the answer comes at once and says what to do."""
    async with (
        memory_group(2, _FEW) as group,
        RocketClient(group.nodes[number].port) as client,
        Client(group.addresses[number], timeout_s=WAIT_S) as native,
    ):
        answers = [await client.route(f"t{n}") for n in range(4)]
        again = await client.route("t0")
        sent = await client.send(message(topic="t5"))
        with pytest.raises(RateLimited, match="dledger topic create t6"):
            await native.append("t6", [b"x"])
        await native.create_topic("t6")
        await native.append("t6", [b"x"])

    said = [code(each.status) for each in (*answers, again)] + [code(sent.status)]
    assert said == ["OK", "OK", "OK", "TOO_MANY_REQUESTS", "OK", "TOO_MANY_REQUESTS"]
    assert "dledger topic create t3" in answers[3].status.message


async def test_groups_are_made_on_demand_only_so_fast() -> None:
    """They have a budget of their own, and an administrator none."""
    async with (
        memory_group(1, _FEW) as group,
        RocketClient(group.nodes[0].port) as client,
        _admin(group) as admin,
    ):
        answers = [(await client.receive(group=f"g{n}"))[0] for n in range(5)]
        await admin.create_group("g3")
        made, _, _ = await client.receive(group="g3")

    said = [code(status) for status in answers]
    assert said == ["MESSAGE_NOT_FOUND"] * 3 + ["TOO_MANY_REQUESTS"] * 2
    assert "dledger group create g4" in answers[4].message
    assert code(made) == "MESSAGE_NOT_FOUND"


async def test_a_limited_topic_ends_no_stream_and_rejects_no_other_batch() -> None:
    """A producer of many topics loses only those that cannot be made yet."""
    async with memory_group(1, _FEW) as group, BatchingProducer(group.addresses[0]) as producer:
        for number in range(3):
            await producer.send(f"t{number}", b"x")
        with pytest.raises(Refused, match="3 topics at once"):
            await producer.send("t3", b"x")
        await producer.send("t0", b"y")


# -- receipts ------------------------------------------------------------------------------------


def _guessed(queue_id: int, offset: int, receive_id: int) -> Any:
    """Return what stands for a message whose handle is made up, as version 1 was."""
    fields = struct.pack("<BHQQ", 1, queue_id, offset, receive_id)
    check = struct.pack("<I", crc32(b"g\0t", crc32(fields)))
    handle = urlsafe_b64encode(fields + check).rstrip(b"=").decode()
    return definition.Message(system_properties=definition.SystemProperties(receipt_handle=handle))


async def test_nobody_can_guess_a_handle(group: MemoryGroup, client: RocketClient) -> None:
    """found: S12: another client acked all that a consumer held."""
    await client.send(*(message(number) for number in range(4)))
    _, held, _ = await client.receive()
    places = [(m.system_properties.queue_id, m.system_properties.queue_offset) for m in held]

    guesses = [_guessed(*place, receive_id) for place in places for receive_id in (1, 2)]
    guessed = await client.ack(*guesses)
    acked = await client.ack(*held)

    assert {code(entry.status) for entry in guessed.entries} == {"INVALID_RECEIPT_HANDLE"}
    assert code(acked.status) == "OK"
    assert len(places) == 4


async def test_a_bad_row_fails_alone(group: MemoryGroup, client: RocketClient) -> None:
    """found: S12: one handle of 2^64-1 failed every ack that shared its command."""
    await client.send(*(message(number) for number in range(8)))
    _, held, _ = await client.receive()

    answers = await asyncio.gather(
        *(client.ack(each) for each in held),
        *(client.ack(_guessed(0, (1 << 64) - 1, 1)) for _ in range(4)),
    )

    said = [code(answer.status) for answer in answers]
    assert said == ["OK"] * 8 + ["INVALID_RECEIPT_HANDLE"] * 4


async def test_the_secret_is_drawn_once_and_told_to_no_client(
    group: MemoryGroup, client: RocketClient
) -> None:
    """However many ask first at the same time; it is in no answer and no handle."""
    await client.send(message(1))
    _, held, _ = await client.receive()
    await asyncio.gather(*(client.receive(group=f"g{number}") for number in range(5)))

    secret = group.nodes[0].engine.state.secret
    kinds = [kind for entry in group.log for kind, _, _ in split(entry.data)]
    assert len(secret) == 32
    assert kinds.count(CommandType.SET_SECRET) == 1
    assert secret not in held[0].SerializeToString()
    assert secret.hex().encode() not in held[0].SerializeToString()


async def test_a_secret_of_another_leader_is_taken_over(
    group: MemoryGroup, client: RocketClient
) -> None:
    """Handles are signed with what the log says, not with what was drawn here."""
    await group.commit(SetSecret(secret=bytes(32)).encode())
    await client.send(message(1))
    _, held, _ = await client.receive()

    assert group.nodes[0].engine.state.secret == bytes(32)
    assert code((await client.ack(*held)).status) == "OK"


# -- in another's name ---------------------------------------------------------------------------


async def _held_by_other(group: MemoryGroup) -> int:
    """Return how many messages another client is given."""
    async with RocketClient(group.nodes[0].port, client_id="client-2") as other:
        return len((await other.receive(auto_renew=True))[1])


@pytest.mark.parametrize("number", [0, 1])
async def test_another_client_does_not_end_a_client(number: int) -> None:
    """found: S12. The owner's Telemetry runs on another connection, perhaps at another node."""
    async with (
        memory_group(2) as group,
        RocketClient(group.nodes[1].port) as owner,
        RocketClient(group.nodes[number].port) as other,
        owner.telemetry(),
    ):
        await owner.send(message(1))
        await owner.receive(auto_renew=True)

        assert code((await other.terminate()).status) == "OK"
        kept = await _held_by_other(group)
        assert code((await owner.terminate()).status) == "OK"
        released = await _held_by_other(group)

    assert (kept, released) == (0, 1)


async def test_another_client_with_telemetry_of_its_own_ends_no_client() -> None:
    """The first stream of a name has it until it ends."""
    async with (
        memory_group() as group,
        RocketClient(group.nodes[0].port) as owner,
        RocketClient(group.nodes[0].port) as other,
        owner.telemetry(),
        other.telemetry(),
    ):
        await owner.send(message(1))
        await owner.receive(auto_renew=True)

        await other.terminate()

        assert await _held_by_other(group) == 0


async def test_another_client_does_not_keep_a_client_alive(group: MemoryGroup) -> None:
    """Calls on another connection count neither while the owner's come, nor for ever after."""
    port, clients = group.nodes[0].port, group.nodes[0].parts.messaging.clients
    async with RocketClient(port) as owner, RocketClient(port) as other:
        async with owner.telemetry():
            await owner.call("Heartbeat", service.HeartbeatRequest())
            seen = clients._seen["client-1"]
            seen.at_s -= 40
            await other.call("Heartbeat", service.HeartbeatRequest())
            beside_the_owner = clients.is_alive("client-1")
        seen.own_at_s -= 30
        await other.call("Heartbeat", service.HeartbeatRequest())
        after_a_break = clients.is_alive("client-1")
        seen.own_at_s -= 600
        seen.since_s -= 600
        await other.call("Heartbeat", service.HeartbeatRequest())

    assert not beside_the_owner
    assert after_a_break, "SDKs open Telemetry again only minutes after a break"
    assert not clients.is_alive("client-1")

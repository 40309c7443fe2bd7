"""What happens to the calls: groups of nodes in memory, each with something that ails it.

A world is a function that makes its group on one kind of server, asks, and returns what was said.
No answer rests on who is quicker: what is held is asked without a deadline, since a node then
answers at its own (`Caller`), and no timer of a server's runs against that.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any, Final, TypeAlias, cast

import grpc.aio

from dledger.broker.commands import CreateGroup, CreateTopic, DeleteTopic, SetSecret
from dledger.broker.topics import Compaction
from dledger.errors import (
    AlreadyBootstrapped,
    CorruptRecord,
    DiskFull,
    DledgerError,
    EntryDropped,
    FaultyEntry,
    FeatureNotReady,
    NotJoined,
    NotLeader,
    OffsetOutOfRange,
    Overloaded,
    RateLimited,
    Refused,
    Unavailable,
)
from dledger.requests.config import RequestConfig
from dledger.rpc.pb import dledger_pb2 as pb
from dledger.rpc.requests import SMALL_BYTES, limit_of
from dledger.rpc.rocketmq_stubs import definition, service
from dledger.server.config import GRPC, NATIVE
from dledger.server.node_report import load_of
from dledger.services.admin import AdminServicer
from dledger.services.compaction import CompactionServicer
from dledger.types import NodeId
from tests.refusals import asked
from tests.refusals.answers import said
from tests.refusals.asked import FORWARDED, GOOD, GROUP, ME, SECRET, TOPIC, Asked, bad, good
from tests.refusals.wire import Heard, Wire, prefixed, wire
from tests.requests import memory_group as made
from tests.requests.memory_group import DOOR, WAIT_S, MemoryGroup, memory_group
from tests.waiting import eventually

SERVERS: Final = (GRPC, NATIVE, DOOR)
"""gRPC's own server, ours, and ours in a door process."""
LEADER, FOLLOWER = "leader", "follower"
PEER_PORT, PEER_PORT_ELSEWHERE = "leader's peer port", "follower's peer port"
"""Where followers pass on what no link takes: at the leader, and at one that leads no longer."""
Answers: TypeAlias = dict[tuple[str, str, str], str]
"""By RPC, refusal and place: what was said."""
World: TypeAlias = Callable[[str], Awaitable[Answers]]


@dataclass
class Asking:
    """Asks the nodes of a group, and takes down what they say."""

    group: MemoryGroup
    answers: Answers = field(default_factory=dict)

    async def each(
        self, calls: Iterable[Asked], places: Sequence[str] = (LEADER, FOLLOWER)
    ) -> None:
        """Make the calls one by one at each place, each on a connection of its own."""
        for call in calls:
            for place in places:
                await self.one(call, place)

    async def at_once(
        self, calls: Iterable[Asked], places: Sequence[str] = (LEADER, FOLLOWER)
    ) -> None:
        """Make all calls together."""
        await asyncio.gather(*(self.one(call, place) for call in calls for place in places))

    async def one(self, call: Asked, place: str) -> None:
        """Make one call."""
        async with wire(self.port(place)) as client:
            await self.heard(call, place, begun(client, call, place))

    async def heard(self, call: Asked, place: str, heard: Heard) -> None:
        """Take down how a call ends."""
        try:
            async with asyncio.timeout(WAIT_S):
                await heard.over.wait()
        except TimeoutError:
            raise AssertionError(f"{call.rpc}, {call.refusal}, {place}: no answer") from None
        self.answers[call.rpc, call.refusal, place] = said(call.path, heard)

    def port(self, place: str) -> int:
        """Return the port that is meant; node 0 leads, or did."""
        return {
            LEADER: self.group.nodes[0].port,
            FOLLOWER: self.group.nodes[1].port,
            PEER_PORT: self.group.nodes[0].peer_port,
            PEER_PORT_ELSEWHERE: self.group.nodes[1].peer_port,
        }[place]


def begun(client: Wire, call: Asked, place: str = LEADER) -> Heard:
    """Begin a call; at a peer port as a follower passes it on."""
    more = FORWARDED if place in (PEER_PORT, PEER_PORT_ELSEWHERE) else ()
    headers = (*call.headers, *more)
    return client.call(call.path, call.body, headers, ends=call.ends, http=call.http)


@contextlib.asynccontextmanager
async def nodes(server: str, **config: Any) -> AsyncIterator[Asking]:
    """Serve two nodes with a topic, a consumer group and a secret; the first leads."""
    settings = RequestConfig(**{"default_queues": 2} | config)
    async with memory_group(2, settings, server=server) as group:
        for command in (
            CreateTopic(name=TOPIC, type="NORMAL", queues=2),
            CreateTopic(name=asked.TIMED, type="DELAY", queues=2),
            CreateTopic(name=asked.HALVES, type="TRANSACTION", queues=2),
            CreateGroup(name=GROUP),
            SetSecret(secret=SECRET),
        ):
            await group.nodes[0].engine.propose(command.encode())
        yield Asking(group)


async def wrong_requests(server: str) -> Answers:
    """Calls that are refused for what they are."""
    async with nodes(server) as asking:
        await asking.each(asked.wrong())
        await asking.each(asked.no_method())
        return asking.answers


async def forwarded_requests() -> Answers:
    """The same at the peer port, but for what no follower passes on."""
    async with nodes(GRPC) as asking:
        passed_on = [
            call
            for call in asked.wrong()
            if len(call.body) <= SMALL_BYTES + 16
            and call.rpc not in ("Telemetry", "Ledger/Produce")
        ]
        await asking.each(passed_on, (PEER_PORT,))
        await asking.each(
            [good(rpc, "sent to a node that does not lead") for rpc in asked.AT_LEADER],
            (PEER_PORT_ELSEWHERE,),
        )
        return asking.answers


async def fifo_topics(server: str) -> Answers:
    """Calls about a topic that is FIFO."""
    async with nodes(server) as asking:
        await _make_ordered(asking)
        await asking.each(asked.in_order())
        return asking.answers


async def priority_topics(server: str) -> Answers:
    """Calls about a topic that orders by priority."""
    async with nodes(server) as asking:
        made = CreateTopic(name=asked.RANKED, type="PRIORITY", queues=2)
        await asking.group.nodes[0].engine.propose(made.encode())
        await asking.each(asked.ranked())
        return asking.answers


async def _make_ordered(asking: Asking) -> None:
    made = CreateTopic(name=asked.ORDERED, type="FIFO", queues=2)
    await asking.group.nodes[0].engine.propose(made.encode())


async def compacted_topics(server: str) -> Answers:
    """Calls about a topic that is compacted."""
    async with nodes(server) as asking:
        await _make_table(asking)
        await asking.each(asked.compacted())
        return asking.answers


async def _make_table(asking: Asking) -> None:
    compaction = Compaction(min_lag_ms=1, tombstone_ms=2)
    made = CreateTopic(name=asked.TABLE, type="NORMAL", queues=2, compaction=compaction)
    await asking.group.nodes[0].engine.propose(made.encode())


async def nothing_on_demand(server: str) -> Answers:
    """Topics that are not there, where none is made on its first use; or too many were."""
    async with nodes(server, auto_create_topics=False) as asking:
        await asking.each(_to_nowhere("topic: unknown, and none is made on demand"))
        answers = asking.answers
    async with nodes(server, made_at_once=0) as asking:
        await asking.each(_to_nowhere("topic: unknown, and too many were made just now"))
        unknown = asked.receive(group=asked.resource("nobody"))
        await asking.each([bad("ReceiveMessage", "group: too many were made just now", unknown)])
        return answers | asking.answers


def _to_nowhere(refusal: str) -> list[Asked]:
    nowhere = asked.resource("nowhere")
    queue = definition.MessageQueue(topic=nowhere)
    route = service.QueryRouteRequest(topic=nowhere)
    assignment = service.QueryAssignmentRequest(topic=nowhere, group=asked.resource(GROUP))
    return [
        bad("QueryRoute", refusal, route),
        bad("QueryAssignment", refusal, assignment),
        bad("SendMessage", refusal, asked.send(asked.sent(topic="nowhere"))),
        bad("ReceiveMessage", refusal, asked.receive(message_queue=queue)),
        bad("Ledger/Append", refusal, asked.append(topic="nowhere")),
        bad("Ledger/Produce", refusal, asked.produce(asked.batch(topic="nowhere"))),
    ]


async def refused_commands(server: str) -> Answers:
    """A leader whose log takes nothing, and says so at once; or does not know whether it did."""
    async with nodes(server) as asking:
        await _store_one(asking)
        for refusal, error in {
            "the disk is full": DiskFull("the disk has 0 bytes free"),
            "a member does not know the command": FeatureNotReady.held_back(
                "a command", needed=9, member="orders-2", told=8
            ),
            "too often": RateLimited("only so often"),
            "a bug": cast("DledgerError", ValueError("a bug of ours")),
        }.items():
            asking.group.refuse = error
            await asking.each(good(rpc, refusal) for rpc in asked.WRITES)
        for refusal, error in {
            "stored or not, and then the disk is full": DiskFull("the disk has 0 bytes free"),
            "stored or not, and then too often": RateLimited("only so often"),
        }.items():
            for rpc in asked.WRITES:
                for place in (LEADER, FOLLOWER):
                    asking.group.refuse = None
                    _refuse_after_one(asking.group, error)
                    await asking.one(good(rpc, refusal), place)
        return asking.answers


def _refuse_after_one(group: MemoryGroup, error: DledgerError) -> None:
    """Lose the outcome of the next command, and refuse all behind it."""
    commit = group.commit
    group.lose_outcomes = 1

    def committed(command: Any) -> Any:
        group.refuse = error
        group.commit = commit
        return commit(command)

    group.commit = committed


async def _store_one(asking: Asking) -> None:
    command = asked.batch((b"stored",), message_ids=["stored"], client_id="somebody")
    await asking.group.nodes[0].engine.propose(command)


async def unreadable_entries(server: str) -> Answers:
    """A leader, and a follower, whose disks cannot give what is asked for."""
    async with nodes(server) as asking:
        await _store_one(asking)
        for refusal, error in {
            "the entry is damaged": FaultyEntry(4),
            "the record is damaged": CorruptRecord("segment-1", 4096, "bad checksum", index=4),
            "retention was quicker": OffsetOutOfRange(0, first=5, last=9),
            "a bug in reading": ValueError("a bug of ours"),
        }.items():

            async def read_entry(_: int, error: Exception = error) -> Any:
                raise error

            for node in asking.group.nodes:
                node.engine.read_entry = read_entry  # type: ignore[assignment]
            await asking.each(good(rpc, refusal) for rpc in ("Ledger/Read", "Ledger/ReadBatches"))
            for place in (LEADER, FOLLOWER):
                await _store_one_more(asking)
                await asking.one(good("ReceiveMessage", refusal), place)
        return asking.answers


async def _store_one_more(asking: Asking) -> None:
    number = len(asking.group.log)
    command = asked.batch((b"more",), message_ids=[f"more-{number}"], client_id="somebody")
    await asking.group.nodes[0].engine.propose(command)


async def used_ids(server: str) -> Answers:
    """Message ids that are those of other messages."""
    async with nodes(server) as asking:
        engine = asking.group.nodes[0].engine
        await engine.propose(asked.batch((b"one body",), message_ids=["id-1"]))
        await asking.each(
            [
                good("Ledger/Append", "message id: of another body"),
                bad(
                    "Ledger/Produce",
                    "message id: of another body",
                    asked.produce(asked.batch(message_ids=["id-1"])),
                ),
            ]
        )
        return asking.answers


# -- held -----------------------------------------------------------------------------------------


async def held_requests(server: str) -> Answers:
    """What is held until its time is up, each on a group of its own, and all at once."""
    worlds = await asyncio.gather(
        _without_a_leader(server),
        _not_serving(server),
        *(
            _held_back(server, refusal, error)
            for refusal, error in {
                "overloaded until its time is up": Overloaded("64 MiB are waiting"),
                "not joined until its time is up": NotJoined(),
            }.items()
        ),
        _outcomes_lost(server),
        _undecided(server),
        _never_arriving(server),
    )
    return {where: what for world in worlds for where, what in world.items()}


def _held_calls(refusal: str, rpcs: Sequence[str] = asked.AT_LEADER) -> list[Asked]:
    linearizable = asked.read(linearizable=True)
    return [
        *(good(rpc, refusal) for rpc in rpcs),
        *(
            bad(rpc, f"{refusal} (linearizable)", linearizable)
            for rpc in ("Ledger/Read", "Ledger/ReadBatches")
        ),
    ]


async def _without_a_leader(server: str) -> Answers:
    async with nodes(server) as asking:
        asking.group.elect(None)
        await asking.at_once(
            [*_held_calls("no leader until its time is up"), *_of_unknown_topics()]
        )
        return asking.answers


def _of_unknown_topics() -> list[Asked]:
    """What a node would answer by itself, were the topic known."""
    nowhere, refusal = asked.resource("nowhere"), "no leader until its time is up"
    route = service.QueryRouteRequest(topic=nowhere)
    assignment = service.QueryAssignmentRequest(topic=nowhere, group=asked.resource(GROUP))
    return [bad("QueryRoute", refusal, route), bad("QueryAssignment", refusal, assignment)]


async def _not_serving(server: str) -> Answers:
    """An elected leader that does not serve yet; a follower's last word would rest on timers."""
    async with nodes(server) as asking:
        asking.group.elect(0, serves=False)
        calls = _held_calls("the leader does not serve until its time is up")
        await asking.at_once(calls, (LEADER,))
        return asking.answers


async def _held_back(server: str, refusal: str, error: DledgerError) -> Answers:
    async with nodes(server) as asking:
        asking.group.refuse = error
        rpcs = [rpc for rpc in asked.WRITES if rpc != "Ledger/Produce"]
        await asking.at_once((good(rpc, refusal) for rpc in rpcs), (LEADER, PEER_PORT))
        return asking.answers


async def _outcomes_lost(server: str) -> Answers:
    async with nodes(server) as asking:
        asking.group.lose_outcomes = 1 << 30
        rpcs = [
            rpc for rpc in asked.WRITES if rpc not in ("ReceiveMessage", "ChangeInvisibleDuration")
        ]
        calls = [good(rpc, "stored or not until its time is up") for rpc in rpcs]
        await asking.at_once(calls, (LEADER, PEER_PORT))
        return asking.answers


async def _undecided(server: str) -> Answers:
    """A leader that lives and decides nothing: a follower gives it up, a client does at itself."""
    async with nodes(server) as asking:
        _decide_nothing(asking.group)
        await asking.at_once(
            (
                good(rpc, "the leader decides nothing")
                for rpc in asked.WRITES
                if rpc != "Ledger/Produce"
            ),
            (FOLLOWER,),
        )
        return asking.answers


async def _never_arriving(server: str) -> Answers:
    """Requests that are announced and do not come; our own server waits half a minute for one."""
    async with nodes(server) as asking:
        silent = [
            Asked(rpc, "the request does not arrive", b"", ends=False)
            for rpc in ("SendMessage", "Heartbeat", "ReceiveMessage", "Ledger/Append")
        ]
        if server == GRPC:
            await asking.at_once(silent)
        return asking.answers


def _decide_nothing(group: MemoryGroup) -> list[asyncio.Future[object]]:
    undecided: list[asyncio.Future[object]] = []

    def commit(_: Any) -> asyncio.Future[object]:
        undecided.append(asyncio.get_running_loop().create_future())
        return undecided[-1]

    group.commit = commit  # type: ignore[assignment]
    return undecided


# -- bounds, deadlines, shutdown ------------------------------------------------------------------


async def full_rooms(server: str) -> Answers:
    """A connection whose share of the room is taken, and one with too many clients."""
    async with nodes(server) as asking:
        _decide_nothing(asking.group)
        for place in (LEADER, FOLLOWER):
            async with wire(asking.port(place)) as client:
                begun(client, bad("SendMessage", "", asked.large()))
                node = asking.group.nodes[(LEADER, FOLLOWER).index(place)]
                admission = node.parts.context.admission
                await eventually(lambda a=admission: a.taken > 4 << 20)  # type: ignore[misc]
                calls = [
                    good(rpc, "its connection's share of the room is taken")
                    for rpc in GOOD
                    if rpc
                    not in ("Telemetry", "ReceiveMessage", "Ledger/Produce", "Topics/ListTopics")
                    and rpc not in asked.LATER
                ]
                await asyncio.gather(
                    *(asking.heard(call, place, begun(client, call)) for call in calls)
                )
        await asyncio.gather(*(_many_clients(asking, place) for place in (LEADER, FOLLOWER)))
        return asking.answers


async def _many_clients(asking: Asking, place: str) -> None:
    """More Telemetry streams than a connection may have; and polls that keep too much."""
    async with wire(asking.port(place)) as client:
        open_one = good("Telemetry", "too many on one connection", ends=False)
        heard = [begun(client, open_one) for _ in range(64)]
        await asyncio.gather(*(each.first() for each in heard))
        await asking.heard(open_one, place, begun(client, open_one))


async def passed_deadlines(server: str) -> Answers:
    """Calls whose client's own deadline passes while the leader decides nothing."""
    soon = (b"grpc-timeout", b"200m")
    async with nodes(server) as asking:
        _decide_nothing(asking.group)
        await asking.at_once(
            (
                good(rpc, "its client's deadline has passed", headers=(*ME, soon))
                for rpc in asked.WRITES
                if rpc != "Ledger/Produce"
            ),
            (LEADER,),
        )
        return asking.answers


async def given_up(server: str) -> Answers:
    """Calls that their clients reset: nothing is said, and nothing is kept for them."""
    answers: Answers = {}
    for rpc in ("SendMessage", "AckMessage", "Ledger/Append", "Topics/CreateTopic"):
        for place in (LEADER, FOLLOWER):
            async with nodes(server) as asking:
                undecided = _decide_nothing(asking.group)
                load = partial(load_of, asking.group.nodes[0].parts)
                async with wire(asking.port(place)) as client:
                    call = good(rpc, "given up by its client")
                    heard = begun(client, call)
                    await eventually(lambda: bool(undecided))  # noqa: B023
                    client.give_up(heard)
                    await eventually(lambda: not load().held_request_bytes)  # noqa: B023
                    asking.answers[rpc, call.refusal, place] = said(call.path, heard)
                answers |= asking.answers
    return answers


async def leaving_nodes(server: str) -> Answers:
    """Nodes that drain, and then stop, with calls under way and new ones."""
    async with nodes(server) as asking:
        for node in asking.group.nodes:
            node.tasks.drain()
        polls = [
            bad(
                "ReceiveMessage",
                "the node drains",
                asked.receive(long_polling_timeout={"seconds": 20}),
            ),
            bad("Ledger/Read", "the node drains", asked.read(follow=True)),
            bad("Ledger/ReadBatches", "the node drains", asked.read(follow=True)),
            Asked("Telemetry", "the node drains", b"", ends=False),
            good("Ledger/Append", "the node drains"),
            good("Heartbeat", "the node drains"),
        ]
        await asking.each(polls)
        answers = asking.answers
    for place in (LEADER, FOLLOWER):
        async with nodes(server) as asking:
            undecided = _decide_nothing(asking.group)
            rpcs = ("SendMessage", "Ledger/Append", "Topics/CreateTopic")
            calls = [good(rpc, "the node stops") for rpc in rpcs]
            async with wire(asking.port(place)) as client:
                heard = [begun(client, call) for call in calls]
                await eventually(lambda: len(undecided) == len(heard))  # noqa: B023
                stopped = asking.group.nodes[(LEADER, FOLLOWER).index(place)]
                await stopped.servers[0].stop(0.05)
                for call, each in zip(calls, heard, strict=True):
                    await asking.heard(call, place, each)
            answers |= asking.answers
    return answers


async def vanished(server: str) -> Answers:
    """What is deleted while a client waits for its messages."""
    async with nodes(server) as asking:
        for place in (LEADER, FOLLOWER):
            topic = f"short-lived-{place}"
            engine = asking.group.nodes[0].engine
            await engine.propose(CreateTopic(name=topic, type="NORMAL", queues=1).encode())
            queue = definition.MessageQueue(topic=asked.resource(topic))
            poll = asked.receive(message_queue=queue, long_polling_timeout={"seconds": 20})
            follow = asked.read(topic=topic, follow=True)
            calls = [
                bad("ReceiveMessage", "topic: deleted while it waits", poll),
                bad("Ledger/Read", "topic: deleted while it waits", follow),
                bad("Ledger/ReadBatches", "topic: deleted while it waits", follow),
            ]
            waits = asyncio.gather(*(asking.one(call, place) for call in calls))
            await asking.group.polls(3)
            generation = engine.state.topics.named(topic).generation
            await engine.propose(DeleteTopic(name=topic, generation=generation).encode())
            await waits
        return asking.answers


# -- the peer port's own service ------------------------------------------------------------------

ADMIN: Final[dict[str, Any]] = {
    "Bootstrap": pb.BootstrapRequest(group_id="g"),
    "WatchStatus": pb.WatchStatusRequest(),
    "TransferLeader": pb.TransferLeaderRequest(target_id="id-1"),
    "AddLearner": pb.AddLearnerRequest(id="id-9", name="n", address="h:1"),
    "RemoveMember": pb.RemoveMemberRequest(id="id-9"),
    "ChangeMembers": pb.ChangeMembersRequest(remove=["id-9"]),
    "ForceNewGroup": pb.ForceNewGroupRequest(group_id="g"),
    "Compact": pb.CompactRequest(group_id="g"),
    "Snapshot": pb.SnapshotRequest(),
    "ExportPlan": pb.ExportPlanRequest(),
    "Export": pb.ExportRequest(),
    "ExportSnapshot": pb.ExportSnapshotRequest(),
    "ExportPlaces": pb.ExportPlacesRequest(),
    "Status": pb.StatusRequest(),
}
TOPIC_ADMIN: Final[dict[str, Any]] = {
    "DescribeTopic": pb.DescribeTopicRequest(name="nowhere"),
    "GrowTopic": pb.GrowTopicRequest(name=TOPIC, queues=1),
    "SetTopicRetention": pb.SetTopicRetentionRequest(name="nowhere", hours=100),
    "DeleteTopic": pb.DeleteTopicRequest(name=TOPIC, generation=77),
    "ListGroups": pb.ListGroupsRequest(),
    "CreateGroup": pb.CreateGroupRequest(name="a b"),
    "DeleteGroup": pb.DeleteGroupRequest(name="nobody"),
    "DescribeGroup": pb.DescribeGroupRequest(name="nobody"),
    "SeekGroup": pb.SeekGroupRequest(group="nobody", topic=TOPIC),
    "Erase": pb.EraseRequest(topic="nowhere", key="whose"),
    "FindMessages": pb.FindMessagesRequest(topic="nowhere"),
    "ListErasures": pb.ListErasuresRequest(),
    "SetGroup": pb.SetGroupRequest(name="nobody", max_attempts=3),
    "ListDeadLetters": pb.DeadLettersRequest(group="nobody"),
    "ResendDeadLetters": pb.DeadLettersRequest(group="nobody"),
    "DropDeadLetters": pb.DeadLettersRequest(group="nobody"),
    "ListHeld": pb.ListHeldRequest(),
    "ResumeHeld": pb.ResumeHeldRequest(),
    "ListTransactions": pb.ListTransactionsRequest(topic="nowhere"),
    "EndTransactions": pb.EndTransactionsRequest(names=["nonsense"]),
}


async def admin_of_topics() -> Answers:
    """Admin's calls about topics and consumer groups, at a leader and elsewhere."""
    async with nodes(GRPC) as asking:
        bad_ones = [
            bad(f"Admin/{name}", "names what is not there, or may not be", request)
            for name, request in TOPIC_ADMIN.items()
            if name not in {"ListGroups", "ListErasures", "ListHeld", "ResumeHeld"}
        ]
        await asking.each(bad_ones, (PEER_PORT,))
        both = (PEER_PORT, PEER_PORT_ELSEWHERE)
        for name in TOPIC_ADMIN:
            broken = Asked(f"Admin/{name}", "bytes that are no request", prefixed(b"\xff\xff"))
            await asking.each([broken], both)
        elsewhere = [
            bad(f"Admin/{name}", "the node does not lead", request)
            for name, request in TOPIC_ADMIN.items()
        ]
        await asking.each(elsewhere, (PEER_PORT_ELSEWHERE,))
        grown = [
            bad("Admin/GrowTopic", "queues: 1025", pb.GrowTopicRequest(name=TOPIC, queues=1025)),
            bad("Admin/GrowTopic", "topic: unknown", pb.GrowTopicRequest(name="no", queues=4)),
            bad(
                "Admin/SetTopicRetention",
                "hours: above the most",
                pb.SetTopicRetentionRequest(name=TOPIC, hours=1_000_001),
            ),
            bad(
                "Admin/SetTopicRetention",
                "hours: fewer than the group's",
                pb.SetTopicRetentionRequest(name=TOPIC, hours=71),
            ),
            bad("Admin/DeleteTopic", "topic: unknown", pb.DeleteTopicRequest(name="no")),
            *_seeks(),
            bad(
                "Admin/FindMessages",
                "queue: none of the topic's",
                pb.FindMessagesRequest(topic=TOPIC, queue_id=99),
            ),
            bad(
                "Admin/FindMessages",
                "start_offset: negative",
                pb.FindMessagesRequest(topic=TOPIC, start_offset=-1),
            ),
            bad(
                "Admin/FindMessages",
                "topic: made anew",
                pb.FindMessagesRequest(topic=TOPIC, generation=77),
            ),
            bad(
                "Admin/SetGroup",
                "attempts: above the most",
                pb.SetGroupRequest(name=GROUP, max_attempts=1_001),
            ),
            bad(
                "Admin/SetGroup",
                "back-off: 33 delays",
                pb.SetGroupRequest(name=GROUP, backoff_ms=[1] * 33),
            ),
            bad(
                "Admin/ListDeadLetters",
                "group: without dead letters",
                pb.DeadLettersRequest(group=GROUP),
            ),
            bad("Admin/Erase", "key: empty", pb.EraseRequest(topic=TOPIC)),
            bad(
                "Admin/Erase",
                "start_offset: negative",
                pb.EraseRequest(topic=TOPIC, key="whose", start_offset=-1),
            ),
            bad("Admin/Erase", "topic: not compacted", pb.EraseRequest(topic=TOPIC, key="whose")),
            bad(
                "Admin/Erase",
                "topic: made anew",
                pb.EraseRequest(topic=TOPIC, key="whose", generation=77),
            ),
        ]
        await asking.each(grown, (PEER_PORT,))
        await _make_table(asking)
        await _make_ordered(asking)
        fixed = [
            bad("Admin/GrowTopic", "compacted", pb.GrowTopicRequest(name=asked.TABLE, queues=4)),
            bad("Admin/GrowTopic", "FIFO", pb.GrowTopicRequest(name=asked.ORDERED, queues=4)),
            bad(
                "Admin/SetTopicRetention",
                "compacted",
                pb.SetTopicRetentionRequest(name=asked.TABLE, hours=100),
            ),
        ]
        await asking.each(fixed, (PEER_PORT,))
        for refusal, error in _of_the_log().items():
            asking.group.refuse = error
            good_ones = {
                "GrowTopic": pb.GrowTopicRequest(name=TOPIC, queues=9),
                "SetTopicRetention": pb.SetTopicRetentionRequest(name=TOPIC, hours=100),
                "DeleteTopic": pb.DeleteTopicRequest(name=TOPIC, generation=1),
                "CreateGroup": pb.CreateGroupRequest(name="fresh"),
                "DeleteGroup": pb.DeleteGroupRequest(name=GROUP),
                "SeekGroup": pb.SeekGroupRequest(group=GROUP, topic=TOPIC),
            }
            calls = [bad(f"Admin/{name}", refusal, each) for name, each in good_ones.items()]
            await asking.each(calls, (PEER_PORT,))
        return asking.answers


def _seeks() -> Iterator[Asked]:
    places = {
        "offset: beyond the end": pb.Place(offset=99),
        "offset: below 0": pb.Place(offset=-1),
        "time: before 1970": pb.Place(stored_ms=-1),
        "time: of 63 bits": pb.Place(stored_ms=(1 << 63) - 1),
    }
    for what, to in places.items():
        yield bad("Admin/SeekGroup", what, pb.SeekGroupRequest(group=GROUP, topic=TOPIC, to=to))
    queues: dict[str, dict[str, Any]] = {
        "topic: unknown": {"topic": "nowhere"},
        "queue: none of the topic's": {"topic": TOPIC, "queue_id": 99},
        "queue: below 0": {"topic": TOPIC, "queue_id": -1},
    }
    for what, named in queues.items():
        yield bad("Admin/SeekGroup", what, pb.SeekGroupRequest(group=GROUP, **named))
    for what, begin in {
        "begins at an offset": pb.Place(offset=1),
        "begins before 1970": pb.Place(stored_ms=-1),
    }.items():
        request = pb.CreateGroupRequest(name="fresh", begin=begin)
        yield bad("Admin/CreateGroup", what, request)


def _of_the_log() -> dict[str, DledgerError]:
    return {
        "the disk is full": DiskFull("the disk has 0 bytes free"),
        "overloaded": Overloaded("64 MiB are waiting"),
        "a bug": cast("DledgerError", ValueError("a bug of ours")),
    }


async def admin_of_nodes() -> Answers:
    """Admin's calls about one node, of which each raises what a node may."""
    failing = _Failing()
    answers: Answers = {}
    server = grpc.aio.server(options=made.OPTIONS)
    servicers = AdminServicer(cast("Any", failing)), CompactionServicer(cast("Any", failing))
    server.add_generic_rpc_handlers([each.handler() for each in servicers])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    group = cast(
        "MemoryGroup", SimpleNamespace(nodes=[SimpleNamespace(peer_port=port, port=port)] * 2)
    )
    asking = Asking(group, answers)
    try:
        for refusal, error in {
            "the node has not joined": NotJoined(),
            "the node does not lead": NotLeader(NodeId("id-2")),
            "no leader": NotLeader(None),
            "the disk is full": DiskFull("the disk has 0 bytes free"),
            "a rule is broken": Refused("that may not be"),
            "retention was quicker": EntryDropped("entry 7 is not in the log any more"),
            "a group was founded": AlreadyBootstrapped("g"),
            "it cannot be now": Unavailable("not now"),
            "a bug": ValueError("a bug of ours"),
        }.items():
            failing.error = error
            calls = [bad(f"Admin/{name}", refusal, request) for name, request in ADMIN.items()]
            await asking.each(calls, (PEER_PORT,))
        for name in ADMIN:
            broken = Asked(f"Admin/{name}", "bytes that are no request", prefixed(b"\xff\xff"))
            large = Asked(
                f"Admin/{name}",
                "a request over its method's limit",
                prefixed(bytes(limit_of(name) + 1)),
            )
            await asking.each([broken, large], (PEER_PORT,))
    finally:
        await server.stop(0)
    return answers


class _Failing:
    """An `AdminBackend` of which every call fails."""

    error: Exception = NotJoined()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def fails(*_: Any, **__: Any) -> Any:
            raise self.error

        async def fails_later(*_: Any, **__: Any) -> Any:
            raise self.error

        later = name in ("bootstrap", "change_members", "force_new_group", "snapshot", "compact")
        return fails_later if later else fails


WORLDS: Final[Sequence[World]] = (
    wrong_requests,
    compacted_topics,
    fifo_topics,
    priority_topics,
    nothing_on_demand,
    refused_commands,
    unreadable_entries,
    used_ids,
    full_rooms,
    passed_deadlines,
    given_up,
    leaving_nodes,
    vanished,
)
"""All that take no longer than they are at work; `held_requests` waits beside them."""
OF_PEER_PORTS: Final = (forwarded_requests, admin_of_topics, admin_of_nodes)
"""Of ports that gRPC's own server serves, whatever serves the clients."""

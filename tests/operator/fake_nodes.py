"""Nodes that only answer Admin and Topics calls, over real gRPC, on loopback addresses.

They tell what changes, too, as real nodes do, unless they are *old*.

Bootstrap on one makes all its members join at once and the lowest ordinal lead, as a real group
would a moment later. What a disk holds outlives `restart`, as a volume does; after `lose_disk` it
takes a change of the members to let the new one in, as a learner until `catch_up`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import grpc
import grpc.aio

from dledger.rpc.pb import dledger_pb2 as pb
from dledger.rpc.pb import dledger_pb2_grpc as pb_grpc
from dledger.server.peer_front import PeerFront
from dledger.services.status_stream import HEARTBEAT_S


@dataclass
class Disk:
    """What one node remembers."""

    name: str
    node_id: str
    group_id: str = ""


@dataclass
class FakeGroup:
    """Nodes of one group, with their disks; three unless more are asked for.

    A node that was removed does not answer any more until it has another disk. *faults* are changes
    of the members that no operator may ask for.
    """

    group: str
    first_octet: int
    disks: list[Disk] = field(default_factory=list)
    members: list[Any] = field(default_factory=list)
    topics: dict[str, int] = field(default_factory=dict)
    compacted: dict[str, Any] = field(default_factory=dict)
    retentions: dict[str, int | None] = field(default_factory=dict)
    records: int = 4711
    record_bytes: int = 1000
    restored_to: int = 0
    leader: int | None = None
    term: int = 0
    bootstraps: int = 0
    learners: set[str] = field(default_factory=set)
    told_group_id: str = ""
    acted: Callable[[], None] = lambda: None
    silent: set[int] = field(default_factory=set)
    epoch: int = 0
    changes: list[tuple[str, str]] = field(default_factory=list)
    net: str = "127.0"
    old: bool = False
    asked: int = 0
    watchers: int = 0
    size: int = 3
    removed: set[str] = field(default_factory=set)
    faults: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.changed = asyncio.Event()
        self.disks = [Disk(f"{self.group}-{n}", f"node-{n}") for n in range(self.size)]
        self._servers: dict[int, grpc.aio.Server] = {}
        self._fronts: list[PeerFront] = []

    def ip(self, ordinal: int) -> str:
        """Return the address of a node; the whole of 127/8 is ours."""
        return f"{self.net}.{self.first_octet}.{ordinal + 1}"

    async def start(self) -> None:
        """Listen on the ports that pods have."""
        for ordinal in range(self.size):
            await self.serve(ordinal)

    async def serve(self, ordinal: int) -> None:
        """Have one node listen, in plain text."""
        await self._serve(ordinal, None)

    async def encrypt(
        self, ordinal: int, *, trusted: bytes, chain: bytes, key: bytes, plain_too: bool = False
    ) -> None:
        """Have one node ask for certificates on its peer port from now on, and show its own.

        With *plain_too*, it takes plain text there beside TLS.
        """
        if running := self._servers.pop(ordinal, None):
            await running.stop(None)
        pair = [(key, chain)]
        credentials = grpc.ssl_server_credentials(pair, trusted, require_client_auth=True)
        await self._serve(ordinal, credentials, plain_too=plain_too)

    async def _serve(
        self,
        ordinal: int,
        credentials: grpc.ServerCredentials | None,
        *,
        plain_too: bool = False,
    ) -> None:
        server = grpc.aio.server()
        pb_grpc.add_AdminServicer_to_server(_Admin(self, ordinal), server)
        pb_grpc.add_TopicsServicer_to_server(_Topics(self), server)
        peers, clients = (f"{self.ip(ordinal)}:{port}" for port in (20911, 8081))
        server.add_insecure_port(clients)
        if plain_too:
            front = PeerFront(self.ip(ordinal), 20911)
            self._fronts.append(front)
            server.add_insecure_port(front.plain)
            server.add_secure_port(front.encrypted, credentials)
            front.start()
        elif credentials is None:
            server.add_insecure_port(peers)
        else:
            server.add_secure_port(peers, credentials)
        await server.start()
        self._servers[ordinal] = server

    async def stop(self) -> None:
        """Stop listening."""
        for server in self._servers.values():
            await server.stop(None)
        self._servers.clear()
        for front in self._fronts:
            front.close()
        self._fronts.clear()

    def elect(self, ordinal: int) -> None:
        """Make a node lead in the next term."""
        self.leader, self.term = ordinal, self.term + 1
        self.note_change()

    def note_change(self) -> None:
        """Have the streams say what is so now, before they look again by themselves."""
        happened, self.changed = self.changed, asyncio.Event()
        happened.set()

    def lose_disk(self, ordinal: int) -> str:
        """Give a node an empty disk; return the id of the lost one."""
        lost = self.disks[ordinal]
        self.told_group_id = self.told_group_id or lost.group_id
        self.disks[ordinal] = Disk(lost.name, f"{lost.node_id}-again")
        self.note_change()
        return lost.node_id

    def catch_up(self) -> None:
        """Make voters of the learners."""
        self.learners.clear()
        self.note_change()

    def row(self, member: Any) -> Any:
        """Return what the leader says of a member."""
        there = any(
            disk.node_id == member.id and disk.group_id
            for ordinal, disk in enumerate(self.disks)
            if ordinal not in self.silent
        )
        voter = member.id not in self.learners
        return pb.MemberStatus(member=member, role="follower", connected=there, voter=voter)


class _Admin(pb_grpc.AdminServicer):
    def __init__(self, group: FakeGroup, ordinal: int) -> None:
        self._group = group
        self._ordinal = ordinal

    async def Status(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._group.asked += 1
        await self._answers(context)
        return self._said()

    async def _answers(self, context: Any) -> None:
        group, disk = self._group, self._group.disks[self._ordinal]
        if self._ordinal in group.silent or disk.node_id in group.removed:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "silent")

    def _said(self) -> Any:
        group, disk = self._group, self._group.disks[self._ordinal]
        said = pb.StatusResponse(
            node_id=disk.node_id, name=disk.name, group=group.group, role="unjoined"
        )
        if not disk.group_id:
            said.recovered_to = group.restored_to if self._ordinal == 0 else 0
            said.told_group_id = group.told_group_id
            return said
        leads = group.leader == self._ordinal
        said.group_id, said.term, said.ready = disk.group_id, group.term, True
        said.last_term, said.last_index, said.epoch = 1, 4711 + self._ordinal, group.epoch
        said.commit_index = 4711
        said.role = "leader" if leads else "follower"
        said.leader_id = "" if group.leader is None else group.disks[group.leader].node_id
        for member in group.members:
            said.members.append(group.row(member))
        return said

    async def WatchStatus(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        if self._group.old:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "")
        told = None
        self._group.watchers += 1
        try:
            while True:
                await self._answers(context)
                changed = self._group.changed
                said = self._said()
                if said != told:
                    told = said
                    yield pb.StatusNews(status=said)
                elif said.role == "leader":
                    yield pb.StatusNews()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(HEARTBEAT_S):
                        await changed.wait()
        finally:
            self._group.watchers -= 1

    async def Bootstrap(self, request: Any, context: Any) -> Any:  # noqa: N802
        group = self._group
        if group.disks[self._ordinal].group_id:
            await context.abort(grpc.StatusCode.ALREADY_EXISTS, "founded already")
        group.bootstraps += 1
        group.members = list(request.members)
        ids = {member.id for member in request.members}
        for disk in group.disks:
            disk.group_id = request.group_id if disk.node_id in ids else ""
        group.elect(0)
        return pb.BootstrapResponse()

    async def ChangeMembers(self, request: Any, context: Any) -> Any:  # noqa: N802
        group = self._group
        if group.leader != self._ordinal:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "this node does not lead")
        if group.learners - set(request.remove):
            group.faults.append(f"two changes at once: {request}")
            await context.abort(grpc.StatusCode.UNAVAILABLE, "another change is under way")
        if group.removed & {new.id for new in request.add}:
            group.faults.append(f"removed before: {request}")
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "removed before")
        if group.disks[self._ordinal].node_id in request.remove:
            group.faults.append(f"the leader is removed: {request}")
        group.members = [one for one in group.members if one.id not in request.remove]
        group.learners -= set(request.remove)
        group.removed |= set(request.remove)
        for new in request.add:
            group.members.append(new)
            group.learners.add(new.id)
            for disk in group.disks:
                if disk.node_id == new.id:
                    disk.group_id = group.told_group_id
        added = [new.id for new in request.add]
        group.note_change()
        group.changes += [*zip_longest(added, request.remove, fillvalue="")]
        group.acted()
        voters = [one for one in group.members if one.id not in group.learners]
        learners = [one for one in group.members if one.id in group.learners]
        return pb.MembershipResponse(voters=voters, learners=learners)

    async def TransferLeader(self, request: Any, context: Any) -> Any:  # noqa: N802
        group = self._group
        ids = [disk.node_id for disk in group.disks]
        group.elect(ids.index(request.target_id) if request.target_id else 1)
        group.acted()
        return pb.TransferLeaderResponse(leader_id=ids[group.leader or 0])

    async def ForceNewGroup(self, request: Any, context: Any) -> Any:  # noqa: N802
        group, disk = self._group, self._group.disks[self._ordinal]
        seen = request.expected_last_term, request.expected_last_index
        if group.leader is not None or seen != (1, 4711 + self._ordinal):
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "not as it was seen")
        group.members = [one for one in group.members if one.id == disk.node_id]
        group.learners.clear()
        group.epoch += 1
        group.elect(self._ordinal)
        group.acted()
        return pb.ForceNewGroupResponse(term=group.term, index=4712, epoch=group.epoch)

    async def ExportPlan(self, request: Any, context: Any) -> Any:  # noqa: N802
        group = self._group
        if not group.disks[self._ordinal].group_id:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "not in a group yet")
        size_bytes = max(0, group.records + 1 - request.first_index) * group.record_bytes
        only = pb.ExportRange(
            first_index=request.first_index, last_index=group.records, bytes=size_bytes
        )
        return pb.ExportPlanResponse(commit_index=group.records, ranges=[only])

    async def GrowTopic(self, request: Any, context: Any) -> Any:  # noqa: N802
        topics = self._group.topics
        before, topics[request.name] = topics[request.name], request.queues
        return pb.GrowTopicResponse(before=before)

    async def SetTopicRetention(self, request: Any, context: Any) -> Any:  # noqa: N802
        hours = request.hours if request.HasField("hours") else None
        before = self._group.retentions.get(request.name)
        self._group.retentions[request.name] = hours
        return pb.SetTopicRetentionResponse(before=before)

    async def DescribeTopic(self, request: Any, context: Any) -> Any:  # noqa: N802
        if request.name not in self._group.topics:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"topic {request.name} does not exist")
        return pb.DescribeTopicResponse(topic=pb.Topic(name=request.name), generation=7)

    async def DeleteTopic(self, request: Any, context: Any) -> Any:  # noqa: N802
        if request.generation != 7 or self._group.topics.pop(request.name, None) is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"topic {request.name} does not exist")
        return pb.DeleteTopicResponse(messages=5)


class _Topics(pb_grpc.TopicsServicer):
    def __init__(self, group: FakeGroup) -> None:
        self._group = group

    async def CreateTopic(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._group.topics[request.name] = request.queues
        if request.HasField("compaction"):
            self._group.compacted[request.name] = request.compaction
        return pb.CreateTopicResponse(created=True)

    async def ListTopics(self, request: Any, context: Any) -> Any:  # noqa: N802
        kept, compacted = self._group.retentions, self._group.compacted
        rows = [
            pb.Topic(
                name=n,
                type="NORMAL",
                queues=q,
                retention_hours=kept.get(n),
                compaction=compacted.get(n),
            )
            for n, q in self._group.topics.items()
        ]
        return pb.ListTopicsResponse(topics=rows)

"""The public client of the Admin service: status, membership, topics, consumer groups.

Takes and returns frozen values; exported as `dledger.client.AdminClient`. Used by the operator, the
command line and the pipeline.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import grpc.aio

from dledger.broker.topics import Compaction
from dledger.common.backoff import retry
from dledger.common.status import (
    MOST_MEMBERS,
    Backlog,
    FailoverRecord,
    FilterBacklog,
    MemberStatus,
    NodeStatus,
)
from dledger.errors import DledgerError, NotLeader, NotServed, Unavailable
from dledger.rpc.channel import Channel, error_of
from dledger.rpc.messages import optional_fields, own_retention, same_fields
from dledger.rpc.mutual_tls import MutualTls
from dledger.rpc.pb import dledger_pb2 as pb
from dledger.rpc.pb import dledger_pb2_grpc as pb_grpc
from dledger.rpc.typed_messages import typed_of
from dledger.types import (
    Member,
    Membership,
    MovedFrom,
    NodeId,
    Record,
    StoredRecord,
)

ADMIN_ANSWER_BYTES: Final = 256 << 10
"""The limit of a response about a node. A larger one is refused unread: no real node sends it."""
_LISTED_AT_ONCE: Final = 1_000
_RETRY_S: Final = 0.2
_NO_PEER_PORT: Final = (
    "is not a node's peer port; use that, 20911 (`dledger dev` prints it as adminEndpoints)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasedView:
    """What came of erasing a key.

    Attributes:
        messages: How many were erased, or counted.
        first_entry: The lowest entry that stored one of them; 0: there was none.
        erase_entry: The entry of the last command: all the key's bytes lie below; 0: there is none.
    """

    messages: int
    first_entry: int
    erase_entry: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureView:
    """Messages that were erased by one command and may still lie in the log.

    Attributes:
        entry: The entry of the command: their bytes lie below.
        at_ms: Its time, Unix milliseconds.
        topic: The topic's name; empty: there were several.
        messages: How many they were.
        first_entry: The lowest entry that stored one of them.
    """

    entry: int
    at_ms: int
    topic: str
    messages: int
    first_entry: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasuresView:
    """What was erased and may still lie in the log: what is not here any more is not there.

    Attributes:
        erasures: Oldest first.
        first_index: The log is kept from this entry on.
        retention_hours: How long, in lived hours; 0: for ever.
    """

    erasures: tuple[ErasureView, ...]
    first_index: int
    retention_hours: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicView:
    """A topic as the leader sees it.

    Attributes:
        messages: How many it stores now.
        generation: Tells this topic from others that had, or will have, its name.
        backlogs: Of each consumer group that has read from it, by name.
        in_use: Whether a client sent to it or asked for its messages in the last two minutes, as
            far as this leader knows.
        made_again_queues: Once it is deleted, its next use makes a topic of its name with so many
            queues (autoCreateTopics); 0: it does not.
        retention_hours: How long it keeps its messages; 0: for ever; None: as its group's retention
            says.
        compaction: How it is compacted; None: it is not.
    """

    name: str
    type: str
    queues: int
    messages: int
    generation: int
    backlogs: tuple[Backlog, ...]
    in_use: bool = False
    made_again_queues: int = 0
    retention_hours: int | None = None
    compaction: Compaction | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    """A consumer group as the leader sees it, with its backlog in each topic that it reads."""

    name: str
    backlogs: tuple[Backlog, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupQueueView:
    """One queue that a consumer group reads.

    Attributes:
        first, end: The queue keeps offsets ``[first, end)``.
        committed: The lowest offset that is not consumed.
        next: The lowest that was never delivered.
        lag: Messages from *committed* on; some of them may be consumed.
        held: Messages that were delivered and not acknowledged.
    """

    topic: str
    queue_id: int
    first: int
    end: int
    committed: int
    next: int
    lag: int
    held: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMemberView:
    """A client that holds messages.

    Attributes:
        client_id: Empty: simple consumers, whose leases name nobody.
        held: How many.
        alive: Whether it called the leader lately, or the leader is too new to know.
    """

    client_id: str
    held: int
    alive: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFilterView:
    """A filter that members of a group ask with for a topic, as its users write it."""

    topic: str
    filter: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDetails:
    """All that the leader knows of a consumer group.

    Attributes:
        queues: Of each topic that it has read of, by topic and id.
        members: Who holds messages, by id.
        backlogs: Of each of these topics.
        filters: Those in use.
        begins_at_ms: Nothing that was stored before is for it, Unix milliseconds; 0: it began with
            the oldest message.
    """

    queues: tuple[GroupQueueView, ...]
    members: tuple[GroupMemberView, ...]
    backlogs: tuple[Backlog, ...]
    filters: tuple[GroupFilterView, ...]
    begins_at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A place in queues; without any of these the oldest message.

    Attributes:
        newest: Behind what there is.
        stored_ms: The first message that was stored then or later, Unix milliseconds.
        offset: A queue offset.
    """

    newest: bool = False
    stored_ms: int | None = None
    offset: int | None = None

    def to_pb(self) -> pb.Place:
        """Return it as requests have it."""
        if self.newest:
            return pb.Place(newest=True)
        return pb.Place(stored_ms=self.stored_ms, offset=self.offset)


@dataclass(frozen=True, slots=True, kw_only=True)
class SoughtView:
    """What a seek did, or would do, with one queue of a consumer group.

    Attributes:
        before: The lowest offset that was not consumed.
        offset: What is delivered next.
        held: Messages whose receipt handles are stale now.
        asked: What was asked for; below *offset* if retention has dropped that.
        unread: Messages from *offset* on.
    """

    queue_id: int
    before: int
    offset: int
    held: int
    asked: int
    unread: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRetries:
    """How often a group's messages are delivered, and when again; and what it was before."""

    max_attempts: int
    backoff_ms: tuple[int, ...]
    before_max_attempts: int
    before_backoff_ms: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterView:
    """A dead letter.

    Attributes:
        offset: In queue 0 of the group's topic of dead letters.
        message_id: Its id.
        size_bytes: Of its body.
        moved_from: Where it was; None: a producer sent it here.
        held: A consumer of the group has it, or had it.
        kept_because: Why it was not sent back; empty: it was, or was dropped or only listed.
        sent_to_queue: Where it was sent back to, in its topic.
        sent_to_offset: Likewise.
        was_sent_before: An earlier call had sent it back, and its answer was lost.
    """

    offset: int
    message_id: str
    size_bytes: int
    moved_from: MovedFrom | None
    held: bool
    kept_because: str
    sent_to_queue: int
    sent_to_offset: int
    was_sent_before: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLettersView:
    """Dead letters by offset; *more*: there may be others."""

    letters: tuple[DeadLetterView, ...]
    more: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTransaction:
    """A transaction that its producer did not end.

    Attributes:
        name: HOUR-SLOT, by which it is ended.
        topic: Where its message goes; empty: the topic was deleted.
        message_id: Its message's.
        client_id: Its producer's.
        size_bytes: Of the body.
        since_ms: When it began, Unix milliseconds.
        checks: How often producers were asked.
        next_ms: When they are next.
        waits: Nobody is asked: it waits for a word since the group was restored.
    """

    name: str
    topic: str
    message_id: str
    client_id: str
    size_bytes: int
    since_ms: int
    checks: int
    next_ms: int
    waits: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedTransaction:
    """What was done with a transaction.

    Attributes:
        name: As it was named.
        was: ``open``: it was ended now; ``committed``, ``rolled-back`` or ``unknown`` before.
        stays_because: Why it was not ended, if it was not.
    """

    name: str
    was: str
    stays_because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldMessageView:
    """A message that is held until it is due.

    Attributes:
        topic: Its topic; empty: that was deleted.
        message_id: Its id; empty: it cannot be read now.
        due_ms: When it is due, Unix milliseconds.
        size_bytes: Of its body.
        waits: For a word, since the group was restored.
    """

    topic: str
    message_id: str
    due_ms: int
    size_bytes: int
    waits: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldView:
    """How many messages are held, their bytes, how many wait for a word, and the first ones."""

    messages: int
    size_bytes: int
    waiting: int
    first: tuple[HeldMessageView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForcedGroup:
    """A group that goes on from one survivor.

    Attributes:
        term: The term in which the survivor leads.
        index: The entry that made it the only member; everything before it is kept.
        epoch: How often the group was forced.
        committed_index: What the survivor knew to be committed before; -1 if it had been forced
            by an earlier call.
        removed: The members that were removed for good.
    """

    term: int
    index: int
    epoch: int
    committed_index: int
    removed: tuple[Member, ...]


class AdminClient(Channel):
    """Queries and controls one node through its peer port (20911); in plain text without *tls*."""

    def __init__(
        self,
        address: str,
        *,
        timeout_s: float = 5.0,
        max_answer_bytes: int = ADMIN_ANSWER_BYTES,
        tls: MutualTls | None = None,
    ) -> None:
        super().__init__(address, timeout_s, max_answer_bytes=max_answer_bytes, tls=tls)
        self._stub = pb_grpc.AdminStub(self.channel)
        self._tls = tls

    async def call(self, method: Any, request: Any) -> Any:
        """Return the response to one request.

        Raises:
            NotServed: This is not a peer port, or its node is too old for the call; says which.
            DledgerError: The error that the node reported.
        """
        try:
            return await Channel.call(self, method, request)
        except NotServed as error:
            raise NotServed(f"{self.address} {await self._what_it_is()}") from error

    async def _what_it_is(self) -> str:
        """Describe what serves this address, after a call was unknown: every node knows Status."""
        try:
            await Channel.call(self, self._stub.Status, pb.StatusRequest())
        except NotServed:
            return _NO_PEER_PORT
        return "runs a version of dledger that is too old for this"

    async def status(self) -> NodeStatus:
        """Return the status of the node, and of its group as it sees that.

        Raises:
            Unavailable: It does not answer.
            DledgerError: Its response names more members than a group can have.
        """
        return self._checked(await self.call(self._stub.Status, pb.StatusRequest()))

    async def watch_status(self) -> AsyncGenerator[NodeStatus | None, None]:
        """Yield the status of the node at once, and then whenever more than counters changed.

        None says that the last one holds, but for counters: a leader says so each second. Ends when
        the node stops, and has no timeout of its own.

        Raises:
            NotServed: The node is too old for this.
            Overloaded: It has as many such streams as it takes.
            Unavailable: It does not answer, or the connection broke.
            DledgerError: As of `status`.
        """
        news = self._stub.WatchStatus(pb.WatchStatusRequest())
        try:
            async for said in news:
                if said is None:
                    raise DledgerError(f"{self.address}: its response cannot be parsed")
                yield self._checked(said.status) if said.HasField("status") else None
        except grpc.aio.AioRpcError as error:
            raise error_of(error, self.address) from error
        finally:
            news.cancel()

    def _checked(self, response: pb.StatusResponse) -> NodeStatus:
        if (named := len(response.members)) > MOST_MEMBERS:
            raise DledgerError(
                f"{self.address}: names {named} members; a group has at most {MOST_MEMBERS}"
            )
        return _status(response)

    async def bootstrap(self, group_id: str, members: Sequence[Member]) -> None:
        """Bootstrap a group on this node; the other members join it by themselves.

        Raises:
            AlreadyBootstrapped: The node belongs to a group.
            InvalidArgument: The node is not among *members*, or they are malformed.
        """
        request = pb.BootstrapRequest(group_id=group_id, members=map(_to_pb, members))
        await self.call(self._stub.Bootstrap, request)

    async def add_learner(self, member: Member) -> Membership:
        """Add a learner, which becomes a voter once it has caught up; see `change_members`."""
        return await self.change_members(add=(member,))

    async def remove_member(self, node_id: str) -> Membership:
        """Remove a member for good; see `change_members`."""
        return await self.change_members(remove=(node_id,))

    async def change_members(
        self, *, add: Sequence[Member] = (), remove: Sequence[str] = ()
    ) -> Membership:
        """Add learners and remove members in one change; return the members once it is committed.

        Any member may be asked: the request goes to the leader. It is retried until the timeout
        while another change is in progress or there is no leader. Repeating it is harmless.

        Raises:
            InvalidArgument: A member is malformed, or one to be removed never was a member.
            Refused: Another member has the name or address, or a removed node would return.
            Unavailable: It was not done within the timeout; it may still be done.
        """
        request = pb.ChangeMembersRequest(add=map(_to_pb, add), remove=remove)
        return _membership(await self._at_leader("ChangeMembers", request))

    async def describe_topic(self, name: str) -> TopicView:
        """Return a topic as the leader sees it. Raises UnknownTopic, Unavailable."""
        response = await self._at_leader("DescribeTopic", pb.DescribeTopicRequest(name=name))
        backlogs = tuple(map(_backlog, response.backlogs))
        return same_fields(
            TopicView,
            response.topic,
            generation=response.generation,
            backlogs=backlogs,
            in_use=response.in_use,
            made_again_queues=response.made_again_queues,
            retention_hours=own_retention(response.topic),
            compaction=optional_fields(Compaction, response.topic, "compaction"),
        )

    async def grow_topic(self, name: str, queues: int) -> int:
        """Give a topic *queues* queues in all; return how many it had. Repeating it is harmless.

        Raises:
            UnknownTopic: It does not exist.
            InvalidArgument: It has more queues, may not have so many, or is compacted.
            FeatureNotReady: A member runs a version that cannot read of it.
            Unavailable: It was not done within the timeout; it may still be done.
        """
        request = pb.GrowTopicRequest(name=name, queues=queues)
        return int((await self._at_leader("GrowTopic", request)).before)

    async def set_topic_retention(self, name: str, hours: int | None) -> int | None:
        """Keep a topic's messages for so many hours, 0: for ever, None: as the group's.

        None drops what the topic had kept for longer. Repeating it is harmless.

        Returns:
            What it was before.

        Raises:
            UnknownTopic: It does not exist.
            InvalidArgument: The group keeps all messages for longer, or the topic is compacted.
            FeatureNotReady: A member runs a version that cannot read of it.
            Unavailable: It was not done within the timeout; it may still be done.
        """
        request = pb.SetTopicRetentionRequest(name=name, hours=hours)
        response = await self._at_leader("SetTopicRetention", request)
        return int(response.before) if response.HasField("before") else None

    async def delete_topic(self, topic: TopicView) -> int:
        """Delete a topic that `describe_topic` returned; return how many messages were deleted.

        A topic that was created under the same name since then is not deleted.

        Raises:
            UnknownTopic: It does not exist any more. This call may have deleted it itself, if the
                response to an earlier attempt was lost.
            Unavailable: It was not done within the timeout; it may still be done.
        """
        request = pb.DeleteTopicRequest(name=topic.name, generation=topic.generation)
        return int((await self._at_leader("DeleteTopic", request)).messages)

    async def erase(self, topic: str, key: str, *, only_count: bool = False) -> ErasedView:
        """Erase the messages of one key of a compacted topic, or only count them.

        What is stored after this began stays. It takes as many calls as the key's queue is long,
        each within the timeout, and may be repeated: then there is nothing left to erase.

        Raises:
            UnknownTopic: It does not exist, or was deleted meanwhile.
            Refused: It is not compacted.
            FeatureNotReady: A member runs a version that cannot read of it.
            Unavailable: A call was not done within the timeout; some may be erased.
        """
        request = pb.EraseRequest(topic=topic, key=key, only_count=only_count)
        messages = first_entry = erase_entry = 0
        while True:
            response = await self._at_leader("Erase", request)
            messages += response.messages
            erase_entry = response.erase_entry or erase_entry
            if response.first_entry:
                first_entry = min(first_entry or response.first_entry, response.first_entry)
            if response.next_offset >= response.end_offset:
                return ErasedView(
                    messages=messages, first_entry=first_entry, erase_entry=erase_entry
                )
            request.generation = response.generation
            request.start_offset, request.end_offset = response.next_offset, response.end_offset

    async def erasures(self) -> ErasuresView:
        """Return what was erased and may still lie in the log. Raises Unavailable."""
        response = await self._at_leader("ListErasures", pb.ListErasuresRequest())
        return same_fields(
            ErasuresView,
            response,
            erasures=tuple(same_fields(ErasureView, each) for each in response.erasures),
        )

    async def find_messages(
        self,
        topic: str,
        queue_id: int,
        *,
        message_id: str = "",
        key: str = "",
        start_offset: int = 0,
        end_offset: int = 0,
    ) -> AsyncGenerator[StoredRecord, None]:
        """Yield the messages of a queue with an id or a key; without either, all.

        Looked through in calls that each take the leader a second at most. Messages that were
        stored without an id come with the one that consumers are told.

        Args:
            topic: The topic.
            queue_id: The queue.
            message_id: Only with this id; "": any.
            key: Only with this key; "": any.
            start_offset: Where to begin; at the oldest message if this is not kept any more.
            end_offset: Where to end; 0: behind what there is now.

        Raises:
            UnknownTopic: It does not exist, or was deleted meanwhile.
            Refused: It has no such queue.
            Unavailable: A call was not done within the timeout.
        """
        request = pb.FindMessagesRequest(
            topic=topic,
            queue_id=queue_id,
            start_offset=start_offset,
            end_offset=end_offset,
            message_id=message_id,
            key=key,
        )
        while True:
            response = await self._at_leader("FindMessages", request)
            for stored in response.records:
                record = same_fields(
                    Record,
                    stored.record,
                    keys=tuple(stored.record.keys),
                    properties=dict(stored.record.properties),
                    typed=None,
                )
                yield same_fields(
                    StoredRecord,
                    stored,
                    record=record,
                    generation=response.generation,
                    typed=typed_of(stored.typed) if stored.HasField("typed") else None,
                )
            if response.next_offset >= response.end_offset:
                return
            request.generation = response.generation
            request.start_offset, request.end_offset = response.next_offset, response.end_offset

    async def groups(self) -> tuple[GroupView, ...]:
        """Return all consumer groups, sorted by name. Raises Unavailable."""
        response = await self._at_leader("ListGroups", pb.ListGroupsRequest())
        return tuple(
            GroupView(name=group.name, backlogs=tuple(map(_backlog, group.backlogs)))
            for group in response.groups
        )

    async def group(self, name: str) -> GroupDetails:
        """Return what the leader knows of a consumer group. Raises UnknownGroup, Unavailable."""
        response = await self._at_leader("DescribeGroup", pb.DescribeGroupRequest(name=name))
        return same_fields(
            GroupDetails,
            response,
            queues=tuple(same_fields(GroupQueueView, each) for each in response.queues),
            members=tuple(same_fields(GroupMemberView, each) for each in response.members),
            backlogs=tuple(map(_backlog, response.backlogs)),
            filters=tuple(same_fields(GroupFilterView, each) for each in response.filters),
        )

    async def create_group(self, name: str, begin: Place | None = None) -> bool:
        """Create a consumer group; False if it existed, wherever that began.

        Args:
            name: Its name.
            begin: Where it begins in the queues that it reads, at no offset; None: at the oldest
                message.

        Raises:
            Refused: The name or the place cannot be.
            Unavailable: It was not done within the timeout; it may still be done.
        """
        request = pb.CreateGroupRequest(name=name, begin=begin.to_pb() if begin else None)
        response = await self._at_leader("CreateGroup", request)
        return bool(response.created)

    async def seek_group(
        self,
        name: str,
        topic: str,
        to: Place,
        *,
        queue_id: int | None = None,
        only_look: bool = False,
    ) -> tuple[SoughtView, ...]:
        """Let a consumer group go on from another place of a topic; all its leases there end.

        Args:
            name: The group.
            topic: The topic.
            to: The place.
            queue_id: Only in this queue; None: in all.
            only_look: Only say what would be done.

        Returns:
            What became of each queue, by id.

        Raises:
            UnknownGroup, UnknownTopic: There is none.
            Refused: There is no such queue, or it ends before the place.
            Unavailable: It was not done within the timeout; it may still be done.
        """
        request = pb.SeekGroupRequest(
            group=name, topic=topic, queue_id=queue_id, to=to.to_pb(), only_look=only_look
        )
        response = await self._at_leader("SeekGroup", request)
        return tuple(same_fields(SoughtView, each) for each in response.queues)

    async def delete_group(self, name: str) -> None:
        """Delete a consumer group; a new one of its name starts at the oldest messages.

        Raises:
            UnknownGroup: It does not exist; see `delete_topic`.
            Unavailable: It was not done within the timeout; it may still be done.
        """
        await self._at_leader("DeleteGroup", pb.DeleteGroupRequest(name=name))

    async def set_group(
        self, name: str, *, max_attempts: int | None = None, backoff_ms: Sequence[int] = ()
    ) -> GroupRetries:
        """Set how often a group's messages are delivered, and when again; the rest stays.

        Args:
            name: The consumer group.
            max_attempts: After so many deliveries a message is a dead letter; 0: never.
            backoff_ms: How long it waits after its first failure, its second, and so on.

        Raises:
            UnknownGroup: It does not exist.
            InvalidArgument: No group may have that.
            Unavailable: It was not done within the timeout; it may still be done.
        """
        request = pb.SetGroupRequest(name=name, max_attempts=max_attempts, backoff_ms=backoff_ms)
        response = await self._at_leader("SetGroup", request)
        return GroupRetries(
            max_attempts=response.max_attempts,
            backoff_ms=tuple(response.backoff_ms),
            before_max_attempts=response.before_max_attempts,
            before_backoff_ms=tuple(response.before_backoff_ms),
        )

    async def dead_letters(self, group: str, *, limit: int = 32) -> DeadLettersView:
        """Return up to *limit* dead letters, 32 at most, that a group has not consumed.

        Raises:
            UnknownGroup: It does not exist.
            InvalidArgument: It has no dead letters, and had none.
            Unavailable: The leader did not answer within the timeout.
        """
        return await self._dead_letters("ListDeadLetters", group, limit)

    async def resend_dead_letters(self, group: str, *, limit: int = 32) -> DeadLettersView:
        """Send dead letters back to the topics that they came from; raises as `dead_letters`.

        What cannot go there stays, and says why. One that was sent back before is not stored again.
        """
        return await self._dead_letters("ResendDeadLetters", group, limit)

    async def drop_dead_letters(self, group: str, *, limit: int = 32) -> DeadLettersView:
        """Mark dead letters as consumed; raises as `dead_letters`."""
        return await self._dead_letters("DropDeadLetters", group, limit)

    async def list_held(self, *, limit: int = 32) -> HeldView:
        """Return what is held until it is due, with up to *limit* messages, 256 at most.

        Raises:
            InvalidArgument: The limit is out of bounds.
            Unavailable: The leader did not answer within the timeout.
        """
        response = await self._at_leader("ListHeld", pb.ListHeldRequest(limit=limit))
        first = tuple(same_fields(HeldMessageView, each) for each in response.first)
        return same_fields(HeldView, response, first=first)

    async def resume_held(self, *, drops: bool) -> int:
        """Have what waits since a restore delivered when it is due, or dropped; return how many.

        Raises:
            Unavailable: The leader did not answer within the timeout.
        """
        response = await self._at_leader("ResumeHeld", pb.ResumeHeldRequest(drops=drops))
        return int(response.messages)

    async def _dead_letters(self, method: str, group: str, limit: int) -> DeadLettersView:
        request = pb.DeadLettersRequest(group=group, limit=limit)
        response = await self._at_leader(method, request)
        return DeadLettersView(letters=tuple(map(_letter, response.letters)), more=response.more)

    async def transactions(
        self, topic: str = "", *, limit: int | None = 100
    ) -> tuple[tuple[OpenTransaction, ...], bool]:
        """Return transactions that nobody ended, and whether there are more than *limit*.

        Args:
            topic: Only those of this one; empty: all.
            limit: How many at most; None: all of them.

        Raises:
            UnknownTopic: There is no such topic.
            Unavailable: The leader did not answer within the timeout.
        """
        found: list[OpenTransaction] = []
        while True:
            left = _LISTED_AT_ONCE if limit is None else min(limit - len(found), _LISTED_AT_ONCE)
            request = pb.ListTransactionsRequest(
                topic=topic, limit=left, after=found[-1].name if found else ""
            )
            response = await self._at_leader("ListTransactions", request)
            found += [same_fields(OpenTransaction, each) for each in response.transactions]
            if not response.more or (limit is not None and len(found) >= limit):
                return tuple(found), bool(response.more)

    async def end_transactions(
        self, names: Sequence[str], commits: bool
    ) -> tuple[EndedTransaction, ...]:
        """End up to 1,000 transactions in the place of their producers; may be repeated.

        Args:
            names: What they are called.
            commits: Whether their messages are delivered; else nobody ever gets them.

        Raises:
            InvalidArgument: One of these is no name.
            Unavailable: The leader did not answer within the timeout: some may be ended.
        """
        request = pb.EndTransactionsRequest(names=names, commits=commits)
        response = await self._at_leader("EndTransactions", request)
        return tuple(same_fields(EndedTransaction, each) for each in response.transactions)

    async def _at_leader(self, method: str, request: Any) -> Any:
        """Send a request to the leader, found through any member; retry until the timeout."""
        own = (self.address, self._tls)
        known: dict[str, tuple[str, MutualTls | None]] = {}
        failed: Unavailable | None = None
        attempts = 0

        async def attempt(left_s: float) -> Any:
            nonlocal failed, attempts, known
            began_s, (address, tls) = loop.time(), own
            if failed is not None:
                leader = failed.leader if isinstance(failed, NotLeader) else None
                if leader not in known:  # members may have changed, or the node has just joined
                    known |= await self._addresses(left_s)
                others = (*known.values(), own)
                address, tls = known.get(leader or "") or others[attempts % len(others)]
                attempts += 1
            left_s = max(left_s - (loop.time() - began_s), _RETRY_S)
            try:
                async with AdminClient(address, timeout_s=left_s, tls=tls) as node:
                    return await node.call(getattr(node._stub, method), request)
            except Unavailable as error:
                failed = error
                raise

        loop = asyncio.get_running_loop()
        return await retry(attempt, timeout_s=self.timeout_s, pause_s=_RETRY_S)

    async def _addresses(self, timeout_s: float) -> dict[str, tuple[str, MutualTls | None]]:
        """Return how the members are called, by id, as this node knows them; none if it fails."""
        with contextlib.suppress(DledgerError):
            async with AdminClient(self.address, timeout_s=timeout_s, tls=self._tls) as node:
                members = [row.member for row in (await node.status()).members]
            tls = self._tls
            return {m.id: (m.address, tls and replace(tls, name=m.name)) for m in members}
        return {}

    async def force_new_group(
        self, group_id: str, node_id: str, *, expected_last_term: int, expected_last_index: int
    ) -> ForcedGroup:
        """Make this node the only member of its group, because a majority's disks are lost.

        Dangerous: what only the lost disks had is lost, and every other member is removed for good.
        Repeating it with the same arguments is harmless.

        Args:
            group_id: The node's group.
            node_id: The node's id.
            expected_last_term: The term of its last entry, as its status says.
            expected_last_index: The index of that entry.

        Raises:
            Refused: An argument is not what the node has; or it leads, or has heard of a leader
                lately; or with the members that it can reach there is a quorum, or one of them has
                more of the log; or its log is damaged. The message says which.
            Unavailable: It was not done within the timeout; it may still be done.
        """
        request = pb.ForceNewGroupRequest(
            group_id=group_id,
            node_id=node_id,
            expected_last_term=expected_last_term,
            expected_last_index=expected_last_index,
        )
        response = await self.call(self._stub.ForceNewGroup, request)
        return same_fields(ForcedGroup, response, removed=tuple(map(_member, response.removed)))

    async def snapshot(self) -> int:
        """Make this node write a snapshot of its state; return the index of its newest entry.

        Raises:
            NotJoined: The node has not joined a group.
            DiskFull: There is no room for it.
        """
        response = await self.call(self._stub.Snapshot, pb.SnapshotRequest())
        return int(response.last_index)

    async def export_size(self, first_index: int = 1) -> tuple[int, int]:
        """Return this node's commit index, and the size in bytes of the records up to it.

        The records are counted from *first_index* on, as an export would copy them.

        Raises:
            NotJoined: The node has not joined a group.
            Refused: The node does not have the entries from *first_index* on, or no longer.
        """
        request = pb.ExportPlanRequest(first_index=first_index, target_bytes=1 << 40)
        response = await self.call(self._stub.ExportPlan, request)
        return int(response.commit_index), sum(one.bytes for one in response.ranges)

    async def transfer_leader(self, target_id: str = "") -> str:
        """Transfer leadership to *target_id*, or to the best follower; return the new leader.

        Raises:
            NotLeader: This node does not lead.
            InvalidArgument: The target is not a voter.
        """
        request = pb.TransferLeaderRequest(target_id=target_id)
        response = await self.call(self._stub.TransferLeader, request)
        return str(response.leader_id)


def _letter(letter: pb.DeadLetter) -> DeadLetterView:
    has_origin = letter.HasField("moved_from")
    origin = same_fields(MovedFrom, letter.moved_from) if has_origin else None
    return same_fields(DeadLetterView, letter, moved_from=origin)


def _backlog(backlog: pb.Backlog) -> Backlog:
    filters = tuple(same_fields(FilterBacklog, each) for each in backlog.filters)
    return same_fields(Backlog, backlog, filters=filters)


def _to_pb(member: Member) -> pb.Member:
    return pb.Member(id=member.id, name=member.name, address=member.address)


def _member(member: pb.Member) -> Member:
    return Member(id=NodeId(member.id), name=member.name, address=member.address)


def _membership(response: pb.MembershipResponse) -> Membership:
    return Membership.of(map(_member, response.voters), learners=map(_member, response.learners))


def _status(response: pb.StatusResponse) -> NodeStatus:
    failover = response.last_failover if response.HasField("last_failover") else None
    return same_fields(
        NodeStatus,
        response,
        members=tuple(map(_member_status, response.members)),
        last_failover=same_fields(FailoverRecord, failover) if failover else None,
    )


def _member_status(status: pb.MemberStatus) -> MemberStatus:
    return same_fields(MemberStatus, status, member=_member(status.member))

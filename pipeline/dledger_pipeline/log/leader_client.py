"""Client of a group's leader, whichever node that is: of its compacted topics.

Each call may be repeated: what a leader did before it was lost is found done by the next. So a call
is made again, at whoever leads then, until it is answered or the time is up. Synchronous, and of
one thread. Used by the jobs `compact` and `erase`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Self

import grpc

from dledger.common.backoff import Backoff
from dledger.errors import DiskFull, NotServed, RateLimited, Unavailable, UnknownTopic
from dledger.rpc.channel import error_of
from dledger.rpc.messages import same_fields
from dledger.rpc.pb import dledger_pb2 as pb
from dledger.rpc.pb import dledger_pb2_grpc as pb_grpc
from dledger_pipeline.errors import ExportError, ForeignGroup, NodeUnavailable
from dledger_pipeline.log.export_client import choose_nodes, peer_channel

PATIENCE_S: Final = 300.0
"""How long a call is repeated: some restarts of a group, one node after the other."""
_FIRST_PAUSE_S: Final = 0.2
_MOST_PAUSE_S: Final = 5.0
_CALL_S: Final = 60.0
_NO_PROOFS: Final[Mapping[int, int]] = {}
_PASSES: Final = (Unavailable, RateLimited, DiskFull)
"""What a call is made again for; of these `NotLeader` is an `Unavailable`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactedTopic:
    """A topic that keeps the newest message of each key.

    Attributes:
        generation: Tells it from others that had, or will have, its name.
    """

    name: str
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactCall:
    """What a leader is told of a queue.

    Attributes:
        as_of_index, as_of_chain: The entry up to which all was read that the group keeps, and the
            chain CRC of its record.
        first, to: Queue offsets ``[first, to)`` are decided.
        stays: Bitmap of those that stay, lowest bit first, compressed by zlib.
        alone: Likewise, of those of the others that are tombstones and their keys' only messages.
        again_in_ms: The next such call comes in so much time; 0: it is not known.
    """

    as_of_index: int
    as_of_chain: int
    topic: str
    generation: int
    queue_id: int
    first: int
    to: int
    stays: bytes
    alone: bytes
    again_in_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted:
    """What a leader answers.

    Attributes:
        ask: Nothing was done: the same call is wanted with proofs of these messages.
        kept: Messages that were copied forward.
        let_go: Messages that are gone now.
        written_bytes: Of the log.
        later: Messages that may go, and go when they are next copied.
    """

    ask: tuple[int, ...]
    kept: int
    let_go: int
    written_bytes: int
    later: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasedNow:
    """What a leader has erased of what the group had of a key.

    Attributes:
        messages: How many they were.
        erase_entry: The entry of the last command; 0: there was none.
    """

    messages: int
    erase_entry: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OlderCall:
    """Messages of a key that the group may have had: one queue's, at most 4,096.

    Attributes:
        generation: Which topic of the name *topic*.
        offsets: Their queue offsets, ascending.
        first_entry: None of them was stored before this entry.
    """

    topic: str
    key: str = field(repr=False)
    generation: int
    queue_id: int
    offsets: tuple[int, ...]
    first_entry: int


class LeaderClient:
    """Calls the leader of a group, found through any of its nodes. A context manager."""

    def __init__(
        self, endpoints: Sequence[str], group_id: str, *, patience_s: float = PATIENCE_S
    ) -> None:
        """Connect when first asked.

        Args:
            endpoints: Peer addresses (20911) of the group's nodes.
            group_id: The group that they must be of.
            patience_s: How long to repeat a call that nobody answers.
        """
        self._endpoints, self._group_id, self._patience_s = endpoints, group_id, patience_s
        self._address = ""
        self._channel: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        if self._channel is not None:
            self._channel.close()
        self._channel = None

    def compacted_topics(self) -> dict[str, CompactedTopic | None]:
        """Return the topics that the leader has, by name; None for one that is not compacted.

        Raises:
            NodeUnavailable, ForeignGroup: See `compact`.
        """
        listed = self._call(lambda at: pb_grpc.TopicsStub(at).ListTopics, pb.ListTopicsRequest())
        found: dict[str, CompactedTopic | None] = {}
        for topic in listed.topics:
            found[topic.name] = None
            if topic.HasField("compaction"):
                with suppress(UnknownTopic):  # deleted meanwhile
                    found[topic.name] = self._describe(topic.name)
        return found

    def _describe(self, name: str) -> CompactedTopic | None:
        request = pb.DescribeTopicRequest(name=name)
        said = self._call(lambda at: pb_grpc.AdminStub(at).DescribeTopic, request)
        if not said.topic.HasField("compaction"):
            return None
        return CompactedTopic(name=name, generation=said.generation)

    def compact(self, call: CompactCall, proofs: Mapping[int, int] = _NO_PROOFS) -> Compacted:
        """Let the leader do what *call* says; return its answer.

        Args:
            call: What to do. The same call is asked for the same proofs, but by another leader.
            proofs: By what each of these messages was beaten: queue offsets. A lone tombstone's is
                itself.

        Raises:
            InvalidArgument: What was said is not true: the leader's words.
            UnknownTopic: The topic is not there any more.
            Refused: The leader's log is another.
            EntryDropped: It does not reach back to the call's entry: retention was quicker.
            ForeignGroup: The nodes belong to another group.
            NodeUnavailable: No leader has answered for as long as the patience lasts.
        """
        request = pb.CompactRequest(group_id=self._group_id, **asdict(call))
        for offset, by in proofs.items():
            request.proofs.add(offset=offset, by=by)
        answer = self._call(lambda at: pb_grpc.AdminStub(at).Compact, request)
        return same_fields(Compacted, answer, ask=tuple(answer.ask))

    def erase(self, topic: str, key: str, *, only_count: bool = False) -> ErasedNow:
        """Have the messages of a key erased that the group has, or only counted.

        Raises:
            UnknownTopic: It does not exist, or was deleted meanwhile.
            Refused: It is not compacted.
            ForeignGroup, NodeUnavailable: See `compact`.
        """
        request = pb.EraseRequest(topic=topic, key=key, only_count=only_count)
        messages = erase_entry = 0
        while True:
            answer = self._call(lambda at: pb_grpc.AdminStub(at).Erase, request)
            messages += answer.messages
            erase_entry = answer.erase_entry or erase_entry
            if answer.next_offset >= answer.end_offset:
                return ErasedNow(messages=messages, erase_entry=erase_entry)
            request.generation = answer.generation
            request.start_offset, request.end_offset = answer.next_offset, answer.end_offset

    def erase_older(self, call: OlderCall, *, only_check: bool = False) -> ErasedNow:
        """Have messages erased of which only backups may have something; or only checked.

        Raises:
            InvalidArgument: What was said of one of them is not true, as the leader can see.
            Refused: The topic is not compacted.
            ExportError: The leader is of a version that does not do that.
            ForeignGroup, NodeUnavailable: See `compact`.
        """
        request = pb.EraseRequest(**asdict(call), only_count=only_check)
        answer = self._call(lambda at: pb_grpc.AdminStub(at).Erase, request)
        if answer.named != len(call.offsets):
            raise ExportError(f"{self._address} is too old to erase what only backups have")
        return ErasedNow(messages=answer.messages, erase_entry=answer.erase_entry)

    def _call(self, method: Callable[[Any], Any], request: Any) -> Any:
        until_s, backoff = (
            time.monotonic() + self._patience_s,
            Backoff(_FIRST_PAUSE_S, _MOST_PAUSE_S),
        )
        while True:
            try:
                return method(self._leader())(request, timeout=_CALL_S)
            except grpc.RpcError as error:
                meant = error_of(error, self._address)
                if isinstance(meant, NotServed):
                    raise ExportError(f"{meant}: it is too old for that") from error
                if not isinstance(meant, _PASSES):
                    raise meant from error
                failed = NodeUnavailable(str(meant))
            except NodeUnavailable as error:
                failed = error
            self.close()
            if time.monotonic() >= until_s:
                raise failed
            time.sleep(min(backoff.next_s(), max(until_s - time.monotonic(), 0.0)))

    def _leader(self) -> Any:
        """Return a channel to the leader, as its nodes tell of it; raises NodeUnavailable."""
        if self._channel is None:
            nodes = choose_nodes(self._endpoints)
            if nodes.group_id != self._group_id:
                raise ForeignGroup(
                    f"{nodes.addresses[0]} belongs to group {nodes.group_id}, not to "
                    f"{self._group_id}"
                )
            if not nodes.leader:
                raise NodeUnavailable(f"none of {', '.join(self._endpoints)} leads its group")
            self._address, self._channel = nodes.leader, peer_channel(nodes.leader)
        return self._channel

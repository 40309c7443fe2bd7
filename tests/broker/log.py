"""A hand-made log for broker tests: entries with consecutive indexes and a clock one can turn."""

from __future__ import annotations

from dataclasses import dataclass, field

from dledger.broker.commands import Ack, CreateGroup, CreateTopic, LeaseRef, Receive, Retain
from dledger.broker.message import Columns, Message
from dledger.broker.produce import encode_produce
from dledger.broker.results import Acked, Produced, Received
from dledger.broker.state import BrokerState
from dledger.types import Entry, EntryKind


@dataclass
class Log:
    """Appends entries and applies them to one state; `replay` applies them to a fresh one."""

    state: BrokerState = field(default_factory=BrokerState)
    entries: list[Entry] = field(default_factory=list)
    now_ms: int = 1_000_000

    def append(self, *commands: bytes, kind: EntryKind = EntryKind.DATA) -> list[object]:
        """Commit *commands* as one entry; return their results."""
        entry = Entry(
            term=1,
            index=len(self.entries) + 1,
            kind=kind,
            timestamp_ms=self.now_ms,
            crc32c=0,
            data=b"".join(commands),
        )
        self.entries.append(entry)
        return self.state.apply(entry)

    def create(self, topic: str = "t", queues: int = 1, group: str = "g") -> None:
        """Make a topic and a consumer group."""
        self.append(
            CreateTopic(name=topic, type="NORMAL", queues=queues).encode(),
            CreateGroup(name=group).encode(),
        )

    def produce(
        self,
        *bodies: str,
        topic: str = "t",
        queue_id: int = 0,
        client: str = "c",
        tag: str = "",
        ids: tuple[str, ...] = (),
    ) -> Produced:
        """Store one batch; without *ids* there is no deduplication."""
        named = ids or ("",) * len(bodies)
        messages = [
            Message(message_id=i, body=body.encode(), tag=tag)
            for i, body in zip(named, bodies, strict=True)
        ]
        command = encode_produce(
            Columns.of(messages), client_id=client, topic=topic, queue_id=queue_id
        )
        (result,) = self.append(command)
        assert isinstance(result, Produced), result
        return result

    def receive(
        self,
        limit: int = 10,
        *,
        group: str = "g",
        topic: str = "t",
        queue_id: int = 0,
        any_queue: bool = False,
        invisible_ms: int = 1000,
        tags: tuple[str, ...] | None = None,
        attempt_id: str = "",
        client_id: str = "",
    ) -> Received:
        """Take messages."""
        command = Receive(
            group=group,
            topic=topic,
            queue_id=queue_id,
            any_queue=any_queue,
            limit=limit,
            invisible_ms=invisible_ms,
            tags=tags,
            attempt_id=attempt_id,
            client_id=client_id,
        )
        (result,) = self.append(command.encode())
        assert isinstance(result, Received), result
        return result

    def ack(self, received: Received, *rows: int, group: str = "g") -> tuple[bool, ...]:
        """Ack some (default: all) of what was received."""
        chosen = [received.deliveries[row] for row in rows] if rows else received.deliveries
        leases = tuple(LeaseRef(d.queue_id, d.offset, received.receive_id) for d in chosen)
        (result,) = self.append(Ack(group=group, topic=received.topic, leases=leases).encode())
        assert isinstance(result, Acked), result
        return result.outcomes

    def retain(self, before_index: int) -> None:
        """Let messages below an entry go."""
        self.append(Retain(before_index=before_index).encode())

    def replay(self) -> BrokerState:
        """Apply the whole log to a fresh state."""
        state = BrokerState()
        for entry in self.entries:
            state.apply(entry)
        return state


def offsets(received: Received) -> list[int]:
    """Return the queue offsets that were handed out."""
    return [delivery.offset for delivery in received.deliveries]


def attempts(received: Received) -> list[int]:
    """Return the attempt numbers of what was handed out."""
    return [delivery.attempt for delivery in received.deliveries]

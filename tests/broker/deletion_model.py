"""Topics and groups that come and go, as a few dictionaries: the slow, obvious version."""

from __future__ import annotations

from dataclasses import dataclass, field

QueuePosition = tuple[int, int]
"""(queue id, queue offset)."""


@dataclass
class Topic:
    """One topic: for each queue the ids of its messages, and where each client's ids are."""

    generation: int
    queues: list[list[str]]
    places: dict[tuple[str, str], QueuePosition] = field(default_factory=dict)


@dataclass
class Read:
    """What a group did with a queue: how far it was given, and what it holds by which receive."""

    given: int = 0
    held: dict[int, int] = field(default_factory=dict)


@dataclass
class Model:
    """No time goes on, so what is held stays so until it is acked."""

    topics: dict[str, Topic] = field(default_factory=dict)
    groups: dict[str, dict[tuple[str, int], Read]] = field(default_factory=dict)
    made: int = 0
    receives: int = 0

    def create_topic(self, name: str, queues: int) -> bool | None:
        """Return whether it is new; None: there is another."""
        found = self.topics.get(name)
        if found is not None:
            return False if len(found.queues) == queues else None
        self.made += 1
        self.topics[name] = Topic(self.made, [[] for _ in range(queues)])
        return True

    def delete_topic(self, name: str, generation: int) -> int | None:
        """Return how many messages went; None: there is no such topic."""
        found = self.topics.get(name)
        if found is None or found.generation != generation:
            return None
        del self.topics[name]
        for reads in self.groups.values():
            for key in [key for key in reads if key[0] == name]:
                del reads[key]
        return sum(map(len, found.queues))

    def create_group(self, name: str) -> bool:
        """Return whether it is new."""
        is_new = name not in self.groups
        self.groups.setdefault(name, {})
        return is_new

    def delete_group(self, name: str) -> bool:
        """Return whether there was one."""
        return self.groups.pop(name, None) is not None

    def produce(
        self, name: str, queue_id: int, client: str, ids: tuple[str, ...]
    ) -> list[QueuePosition] | None:
        """Return the place of each; None: there is no such queue."""
        topic = self.topics.get(name)
        if topic is None or queue_id >= len(topic.queues):
            return None
        for each in ids:
            if (client, each) not in topic.places:
                topic.places[client, each] = queue_id, len(topic.queues[queue_id])
                topic.queues[queue_id].append(each)
        return [topic.places[client, each] for each in ids]

    def receive(
        self, group: str, name: str, queue_id: int, limit: int
    ) -> tuple[int, int, list[int]] | None:
        """Return generation, receive id and offsets; None: there is no such queue or group."""
        topic, reads = self.topics.get(name), self.groups.get(group)
        if topic is None or reads is None or queue_id >= len(topic.queues):
            return None
        self.receives += 1
        read = reads.setdefault((name, queue_id), Read())
        end = min(read.given + limit, len(topic.queues[queue_id]))
        offsets = list(range(read.given, end))
        read.given = end
        read.held.update(dict.fromkeys(offsets, self.receives))
        return topic.generation, self.receives, offsets

    def ack(
        self, group: str, name: str, queue_id: int, offset: int, receive_id: int
    ) -> bool | None:
        """Return whether it is consumed now; None: there is no such group."""
        reads = self.groups.get(group)
        if reads is None:
            return None
        read = reads.get((name, queue_id))
        if read is None:
            return False
        if offset not in read.held:
            return offset < read.given
        if read.held[offset] != receive_id:
            return False
        del read.held[offset]
        return True

    def backlog(self, group: str, name: str) -> tuple[int, int]:
        """Return how many messages a group was never given, and how many it holds."""
        queues, reads = self.topics[name].queues, self.groups[group]
        found = [reads.get((name, queue_id), Read()) for queue_id in range(len(queues))]
        unread = sum(len(queue) - read.given for queue, read in zip(queues, found, strict=True))
        return unread, sum(len(read.held) for read in found)

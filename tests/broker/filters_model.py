"""A group's filters, message by message: the slow, obvious version of one (group, queue)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from dledger.broker.group_filters import FILTER_GONE_MS
from dledger.broker.kept_messages import OTHERS

Tags = frozenset[str] | None
"""A filter; None: all messages."""


def names(tags: Tags, tag: str) -> bool:
    """Whether a filter names a message of *tag*."""
    return tags is None or tag in tags


@dataclass
class Held:
    """A lease; *aside* is its message's tag if it was put aside, None if it was not."""

    receive_id: int
    until_ms: int
    attempt: int
    client_id: str
    arrived: bool = False
    aside: str | None = None


@dataclass
class Filters:
    """The filters in use of one (group, topic), and when each was last used."""

    used: dict[Tags, int] = field(default_factory=dict)

    def use(self, tags: Tags, now_ms: int) -> tuple[bool, set[Tags]]:
        """Return whether the filter is new, and which are gone."""
        is_new = tags not in self.used
        if list(self.used) == [tags]:
            return False, set()  # the only one: it does not age
        if is_new and len(self.used) == 1:
            self.used = dict.fromkeys(self.used, now_ms)
        self.used[tags] = now_ms
        gone = {each for each, at_ms in self.used.items() if now_ms - at_ms >= FILTER_GONE_MS}
        self.used = {each: at_ms for each, at_ms in self.used.items() if each not in gone}
        return is_new, gone

    def key_of(self, tag: str) -> str | None:
        """Return what a message of a tag lies under that another filter passes over."""
        if any(tags is not None and tag in tags for tags in self.used):
            return tag
        return _OTHERS if None in self.used else None

    def names_key(self, key: str) -> bool:
        """Whether any filter takes what lies under a key."""
        return None in self.used or any(tags is not None and key in tags for tags in self.used)


_OTHERS = str(OTHERS)


@dataclass
class Queue:
    """One queue's messages, and what one group did with them.

    Attributes:
        tags: Of each message.
        batches: The number of the batch of each message: a stretch of one tag.
        first: The oldest that retention left.
        passed: What lies there for others, never delivered: the key of each.
        most_runs: The bound on what is kept.
    """

    most_runs: int
    tags: list[str] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)
    first: int = 0
    next_offset: int = 0
    held: dict[int, Held] = field(default_factory=dict)
    passed: dict[int, str] = field(default_factory=dict)

    def take(
        self,
        filters: Filters,
        tags: Tags,
        limit: int,
        now_ms: int,
        lease: tuple[int, int, str],
    ) -> list[int]:
        """Return what one RECEIVE gets: redeliveries, what was kept for it, new ones."""
        taken = self._ended(filters, tags, limit, now_ms, lease)
        for kept in (self._aside(tags), self._kept(tags)):
            for offset in kept[: limit - len(taken)]:
                self.passed.pop(offset, None)
                taken.append(self._grant(offset, lease))
        begun = -1
        while len(taken) < limit and self.next_offset < len(self.tags):
            offset = self.next_offset
            if names(tags, self.tags[offset]):
                taken.append(self._grant(offset, lease))
            elif (key := self._others(filters, tags, offset)) is not None:
                if self.batches[offset] != begun and self.runs() >= self.most_runs:
                    break  # it waits for the slower ones
                begun = self.batches[offset]
                self.passed[offset] = key
            self.next_offset += 1
        return taken

    def _others(self, filters: Filters, tags: Tags, offset: int) -> str | None:
        alone = set(filters.used) == {tags}
        return None if alone else filters.key_of(self.tags[offset])

    def _ended(
        self, filters: Filters, tags: Tags, limit: int, now_ms: int, lease: tuple[int, int, str]
    ) -> list[int]:
        due = sorted(
            (held.until_ms, offset)
            for offset, held in self.held.items()
            if held.aside is None and held.until_ms <= now_ms
        )
        taken: list[int] = []
        for _, offset in due:
            if len(taken) == limit:
                break
            if names(tags, self.tags[offset]):
                taken.append(self._grant(offset, lease))
            elif self._others(filters, tags, offset) is not None:
                self.held[offset].aside = self.tags[offset]
            else:
                del self.held[offset]
        return taken

    def _is_for(self, tags: Tags, key: str) -> bool:
        return tags is None or key in tags

    def _aside(self, tags: Tags) -> list[int]:
        return sorted(o for o, x in self.held.items() if x.aside and self._is_for(tags, x.aside))

    def _kept(self, tags: Tags) -> list[int]:
        return sorted(o for o, key in self.passed.items() if self._is_for(tags, key))

    def _grant(self, offset: int, lease: tuple[int, int, str]) -> int:
        receive_id, until_ms, client_id = lease
        attempt = self.held[offset].attempt + 1 if offset in self.held else 1
        self.held[offset] = Held(receive_id, until_ms, attempt, client_id)
        return offset

    def runs(self) -> int:
        """Return how many stretches are kept."""
        return sum(self.passed.get(offset - 1) != key for offset, key in self.passed.items())

    def unreached(self, tags: Tags) -> set[int]:
        """Return what a filter that comes now will never get: it was passed over before."""
        own = {*self.held, *self._kept(tags)}
        return {offset for offset in range(self.next_offset) if offset not in own}

    def can_get(self, filters: Filters, tags: Tags, now_ms: int) -> bool:
        """Whether a RECEIVE with this filter would get anything."""
        due = (
            x.aside is None and x.until_ms <= now_ms and names(tags, self.tags[o])
            for o, x in self.held.items()
        )
        if any(due) or self._aside(tags) or self._kept(tags):
            return True
        begun, runs = -1, self.runs()
        last: tuple[int, str] | None = None
        for offset in range(self.next_offset, len(self.tags)):
            if names(tags, self.tags[offset]):
                return True
            if (key := self._others(filters, tags, offset)) is not None:
                if self.batches[offset] != begun and runs >= self.most_runs:
                    return False
                runs += last != (offset - 1, key) and self.passed.get(offset - 1) != key
                begun, last = self.batches[offset], (offset, key)
        return False

    def ack(self, offset: int, receive_id: int) -> bool:
        """Return whether it is consumed now."""
        held = self.held.get(offset)
        if held is None:
            return 0 <= offset < self.next_offset and offset not in self.passed
        if held.receive_id != receive_id:
            return False
        del self.held[offset]
        return True

    def set_end(self, offset: int, receive_id: int, until_ms: int) -> Held | None:
        """Change a lease's end, also of one that was put aside; None: the handle is stale."""
        held = self.held.get(offset)
        if held is None or held.receive_id != receive_id:
            return None
        held.until_ms, held.aside = until_ms, None
        return held

    def drop_before(self, first: int) -> None:
        """Let the oldest messages go."""
        self.first = max(self.first, first)
        self.next_offset = max(self.next_offset, self.first)
        self.held = {o: x for o, x in self.held.items() if o >= self.first}
        self.passed = {o: key for o, key in self.passed.items() if o >= self.first}

    def seek(self, offset: int) -> None:
        """Go on from *offset*, or from the oldest message, as if nothing had been delivered."""
        self.next_offset = max(offset, self.first)
        self.held, self.passed = {}, {}

    def end_unnamed(self, filters: Filters) -> None:
        """Let what is for filters that are gone go."""
        self.passed = {o: key for o, key in self.passed.items() if filters.names_key(key)}
        self.held = {
            o: x for o, x in self.held.items() if x.aside is None or filters.names_key(x.aside)
        }

    def unread(self, tags: Tags) -> int:
        """Return how many messages a filter names that were never delivered."""
        new = self.tags[self.next_offset :]
        return len(self._kept(tags)) + sum(names(tags, tag) for tag in new)

    @property
    def committed(self) -> int:
        """The lowest offset that is not done."""
        return min([self.next_offset, *self.held, *self.passed])


def sorted_tags(tags: Tags) -> tuple[str, ...] | None:
    """Return a filter as commands have it."""
    return None if tags is None else tuple(sorted(tags))


def texts(filters: Iterable[Tags]) -> list[str]:
    """Return filters as people write them, sorted."""
    return sorted("*" if tags is None else " || ".join(sorted(tags)) for tags in filters)

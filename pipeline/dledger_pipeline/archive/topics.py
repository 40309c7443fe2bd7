"""Which topics there were, as backups saw them: whose messages a query shows. Pure.

A node tells of topics that exist and of their messages, and forgets those that are deleted. A
backup therefore notes by which entry each topic was gone. Before that entry nobody knows whether it
still existed, and a query that ends there asks the log itself (`queue_offsets`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dledger.broker.topics import MAX_TOPICS

MAX_GONE: Final = 1000
"""How many topics that are gone are known by name; older ones only delay what is decided."""
MAX_ROWS: Final = MAX_TOPICS + MAX_GONE


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRow:
    """One topic.

    Attributes:
        generation: Which of the group's topics it is; tells it from others of that name.
        gone_by: An entry by which it was deleted; 0: it exists.
    """

    name: str
    generation: int
    gone_by: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenTopics:
    """The topics of a node's state that includes entry *applied_index*.

    Attributes:
        made: How many there ever were.
        names: Name by generation of those that exist.
    """

    applied_index: int
    made: int
    names: dict[int, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Topics:
    """What backups saw; nothing at first.

    Attributes:
        applied_index: The newest entry that was taken into account.
        made: How many topics there ever were.
        others_gone_by: By then all were gone that are not in *rows*; 0: there are none.
        rows: Those that exist, and the newest that are gone, by generation.
    """

    applied_index: int = 0
    made: int = 0
    others_gone_by: int = 0
    rows: tuple[TopicRow, ...] = ()

    def seen(self, topics: SeenTopics) -> Topics:
        """Return what is known once *topics* were seen, too; an older state adds nothing."""
        now = topics.applied_index
        if now < self.applied_index:
            return self
        before = {row.generation: row for row in self.rows}
        there = [TopicRow(name=name, generation=each) for each, name in topics.names.items()]
        gone = [
            row if row.gone_by else TopicRow(name=row.name, generation=each, gone_by=now)
            for each, row in before.items()
            if row.gone_by or each not in topics.names
        ]
        never_seen = topics.made - self.made - sum(each > self.made for each in topics.names)
        others = now if never_seen else self.others_gone_by
        gone.sort(key=lambda row: row.gone_by)
        forgotten = gone[:-MAX_GONE]
        rows = [*there, *gone[len(forgotten) :]]
        return Topics(
            applied_index=now,
            made=topics.made,
            others_gone_by=max([others, *(row.gone_by for row in forgotten[-1:])]),
            rows=tuple(sorted(rows, key=lambda row: row.generation)),
        )

    def existing(self, last_index: int, name: str | None = None) -> frozenset[int] | None:
        """Return the generations of the topics whose messages are shown up to *last_index*.

        None if it is not known: nothing newer was seen, or one may have been deleted later.

        Args:
            last_index: The last entry that is asked for.
            name: Only of this name.
        """
        asked = [row for row in self.rows if name in (None, row.name)]
        if self.applied_index < last_index:
            return None
        if max([self.others_gone_by, *(row.gone_by for row in asked)]) > last_index:
            return None
        return frozenset(row.generation for row in asked if not row.gone_by)

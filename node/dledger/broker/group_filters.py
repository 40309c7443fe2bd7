"""The filters with which a consumer group's members ask for one topic, while they are in use.

The members of a group should all ask for the same tags, but during a rolling change of a service
they do not: then what one filter passes over is another's. A filter is in use from its first
RECEIVE or USE_FILTER until `FILTER_GONE_MS` after its last. The only filter of a topic does not
age: a group with one filter has nothing to say about it, and nothing is kept for it.

Owned by `consumer_group`; part of the replicated state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from dledger.broker.filter_room import MAX_CODES, FilterRoom
from dledger.broker.filters import MAX_TAGS
from dledger.broker.kept_messages import OTHERS, Codes
from dledger.broker.snapshot_codec import Reader, ascends, column, number, text
from dledger.errors import InvalidArgument, LimitReached

FILTER_GONE_MS: Final = 600_000
"""A filter that nobody asked with for so long counts as gone: what was kept for it alone goes."""
USE_IS_SAID_MS: Final = FILTER_GONE_MS // 3
"""How often a poll that finds nothing has its filter's use committed, if there are others."""
MAX_FILTERS: Final = 1_024
"""Filters in use of one group for one topic."""
_TEXT_LENGTH: Final = 127
_ALL: Final = -1


@dataclass(frozen=True, slots=True)
class FilterUse:
    """One filter in use.

    Attributes:
        text: How people write it, cut if it is long.
        used_ms: Its last use, by `ConsumerGroups.filters_ms`.
    """

    text: str
    used_ms: int


def filter_text(tags: tuple[str, ...] | None) -> str:
    """Return a filter as its users write it, cut to a length that a table can show."""
    if tags is None:
        return "*"
    found = " || ".join(tags)
    return found if len(found) <= _TEXT_LENGTH else f"{found[: _TEXT_LENGTH - 3]}..."


class TopicFilters:
    """The filters of one (group, topic) that are in use; the one used longest ago comes first."""

    __slots__ = ("_named", "_uses", "room")

    def __init__(self, room: FilterRoom) -> None:
        self.room = room
        self._uses: dict[Codes, FilterUse] = {}
        self._named: Counter[int] = Counter()

    def __len__(self) -> int:
        return len(self._uses)

    def __iter__(self) -> Iterator[tuple[Codes, FilterUse]]:
        return iter(self._uses.items())

    def __contains__(self, codes: Codes) -> bool:
        return codes in self._uses

    def copy(self) -> TopicFilters:
        """Return a copy that may be changed; this object may then only be `encoded`."""
        other = TopicFilters(self.room)
        other._uses, other._named = self._uses.copy(), self._named
        return other

    def leave(self) -> None:
        """Take these out of the sums: their topic or group is deleted."""
        self.room.codes -= sum(map(_weight, self._uses))

    @property
    def differ(self) -> bool:
        """Whether there is more than one."""
        return len(self._uses) > 1

    def is_only(self, codes: Codes) -> bool:
        """Whether there is this filter and no other."""
        return len(self._uses) == 1 and codes in self._uses

    def is_said(self, codes: Codes, now_ms: int) -> bool:
        """Whether a poll with this filter at *now_ms* has nothing to commit before it waits."""
        found = self._uses.get(codes)
        return found is not None and (
            len(self._uses) == 1 or now_ms - found.used_ms < USE_IS_SAID_MS
        )

    def key_of(self, code: int) -> int | None:
        """Return the key under which messages of a tag are kept; None: no filter names them."""
        if code in self._named:
            return code
        return OTHERS if None in self._uses else None

    def names(self, key: int) -> bool:
        """Whether a filter names what is kept under *key*."""
        return None in self._uses or key in self._named

    def use(self, codes: Codes, tags: tuple[str, ...] | None, now_ms: int) -> None:
        """Note that a filter, whose tags have these *codes*, is used at *now_ms*.

        Raises:
            InvalidArgument: It names too many tags.
            LimitReached: It is new, and there are too many.
        """
        if codes in self._uses:
            self._uses[codes] = FilterUse(self._uses.pop(codes).text, now_ms)
            return
        if codes is not None and len(codes) > MAX_TAGS:
            raise InvalidArgument(f"a filter names at most {MAX_TAGS} tags, not {len(codes)}")
        if len(self._uses) >= MAX_FILTERS:
            raise LimitReached(
                f"there are {MAX_FILTERS} filters in use for this topic already, which is the limit"
            )
        if self.room.codes + _weight(codes) > MAX_CODES:
            raise LimitReached(f"filters in use name {MAX_CODES} tags already, which is the limit")
        if len(self._uses) == 1:  # it did not age while it was the only one
            ((only, use),) = self._uses.items()
            self._uses[only] = FilterUse(use.text, now_ms)
        self._add(codes, FilterUse(filter_text(tags), now_ms))

    def _add(self, codes: Codes, use: FilterUse) -> None:
        self._uses[codes] = use
        self._named.update(codes or ())
        self.room.codes += _weight(codes)

    def end_unused(self, now_ms: int) -> list[str]:
        """Forget the filters that are gone by *now_ms*, never the last one; return their texts."""
        gone: list[str] = []
        while len(self._uses) > 1:
            codes, use = next(iter(self._uses.items()))
            if now_ms - use.used_ms < FILTER_GONE_MS:
                break
            del self._uses[codes]
            for code in codes or ():
                self._named[code] -= 1
                if not self._named[code]:
                    del self._named[code]
            self.room.codes -= _weight(codes)
            gone.append(use.text)
        return gone

    def encoded(self) -> Iterator[bytes]:
        """Yield the filters for a snapshot, in the order of their last use."""
        yield number(len(self._uses))
        for codes, use in self._uses.items():
            yield text(use.text)
            yield number(use.used_ms)
            yield number(_ALL if codes is None else len(codes))
            if codes is not None:
                yield from column("Q", len(codes), sorted(codes))

    @classmethod
    def read(cls, source: Reader, room: FilterRoom, now_ms: int) -> TopicFilters:
        """Read filters, last used by *now_ms*, from a snapshot. Raises MalformedStateError."""
        filters, used_ms = cls(room), 0
        for _ in range(source.number(1, MAX_FILTERS)):
            said, used_ms = source.text(), source.number(used_ms, now_ms)
            count = source.number(_ALL, MAX_TAGS)
            found = source.column("Q", count) if count != _ALL else None
            if found is not None and not ascends(found, 1 << 64):
                raise source.malformed("codes of a filter that do not ascend")
            codes = None if found is None else frozenset(found)
            if codes in filters or len(said) > _TEXT_LENGTH:
                raise source.malformed(f"filter {said[:_TEXT_LENGTH]!r} twice, or too long")
            filters._add(codes, FilterUse(said, used_ms))
        if room.codes > MAX_CODES:
            raise source.malformed(f"filters name {room.codes} tags, more than {MAX_CODES}")
        return filters

    def canonical(self) -> list[object]:
        """Return them as plain values, in the order of their last use."""
        return [
            [use.text, use.used_ms, None if codes is None else sorted(codes)]
            for codes, use in self._uses.items()
        ]


def _weight(codes: Codes) -> int:
    return 1 + len(codes or ())

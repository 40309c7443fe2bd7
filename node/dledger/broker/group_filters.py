"""The filters with which a consumer group's members ask for one topic, while they are in use.

The members of a group should all ask for the same tags, but during a rolling change of a service
they do not: then what one filter passes over is another's. A filter is in use from its first
RECEIVE or USE_FILTER until `FILTER_GONE_MS` after its last. The only filter of a topic does not
age: a group with one filter has nothing to say about it, and nothing is kept for it.

An *expression* of SQL92 is a filter that only leaders can evaluate, so nobody knows what another
one passes over of what it names, and nothing could be kept for it. So it is served alone: a group
has, for one topic, either filters by tags, or one expression. Who asks with the other is refused
while the first is in use. An expression that comes to a group with tags waits: the tags age from
then on, though there may be but one filter, and are gone when nobody asks with them.

Owned by `consumer_group`; part of the replicated state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from dledger.broker.commands import MAX_EXPRESSION_BYTES
from dledger.broker.filter_room import MAX_CODES, FilterRoom
from dledger.broker.filters import MAX_TAGS
from dledger.broker.kept_messages import OTHERS, Codes
from dledger.broker.snapshot_codec import Reader, ascends, column, number, text
from dledger.errors import FilterInUse, InvalidArgument, LimitReached

FILTER_GONE_MS: Final = 600_000
"""A filter that nobody asked with for so long counts as gone: what was kept for it alone goes."""
USE_IS_SAID_MS: Final = FILTER_GONE_MS // 3
"""How often a poll that finds nothing has its filter's use committed, if there are others."""
MAX_FILTERS: Final = 1_024
"""Filters in use of one group for one topic."""
_TEXT_LENGTH: Final = 127
_ALL: Final = -1
_SQL: Final = -2
_BYTES_OF_CODE: Final = 64
"""What a code takes, about: an expression counts as so many."""


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
    """The filters of one (group, topic) that are in use; the one used longest ago comes first.

    Attributes:
        room: What they count in.
        expression: The one that is served, or waits for filters by tags to go; None: there is none.
    """

    __slots__ = ("_named", "_uses", "ages", "expression", "room")

    def __init__(self, room: FilterRoom, *, ages: bool = False) -> None:
        """*ages*: Whether it is of a FIFO topic, where the only filter ages, too."""
        self.room, self.ages = room, ages
        self.expression: FilterUse | None = None
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
        other = TopicFilters(self.room, ages=self.ages)
        other._uses, other._named = self._uses.copy(), self._named
        other.expression = self.expression
        return other

    def leave(self) -> None:
        """Take these out of the sums: their topic or group is deleted."""
        self.room.codes -= sum(map(_weight, self._uses)) + _weight_of(self.expression)

    @property
    def differ(self) -> bool:
        """Whether there is more than one."""
        return len(self._uses) > 1

    def is_only(self, codes: Codes) -> bool:
        """Whether there is this filter and no other."""
        return len(self._uses) == 1 and codes in self._uses and self.expression is None

    def is_said(self, codes: Codes, now_ms: int) -> bool:
        """Whether a poll with this filter at *now_ms* has nothing to commit before it waits."""
        found = self._uses.get(codes)
        return found is not None and (
            (len(self._uses) == 1 and self.expression is None and not self.ages)
            or now_ms - found.used_ms < USE_IS_SAID_MS
        )

    def is_expression_said(self, sql: str, now_ms: int) -> bool:
        """Whether a poll with this expression has nothing to commit before it waits, or is refused.

        An expression ages though it is the only one: who comes after it is to be served some day.
        """
        found = self.expression
        if found is None or _is_gone(found, now_ms):
            return False
        return found.text != sql or now_ms - found.used_ms < USE_IS_SAID_MS

    def beside(self, sql: str) -> str | None:
        """Return the filter because of which this expression is not served; None: it is."""
        if self._uses:
            return next(reversed(self._uses.values())).text
        if self.expression is None or self.expression.text == sql:
            return None
        return self.expression.text

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
            FilterInUse: An expression is.
            LimitReached: It is new, and there are too many.
        """
        self._end_expression(now_ms)
        if self.expression is not None and not self._uses:
            raise FilterInUse.of(self.expression.text)
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
        self._begin_to_age(now_ms)
        self._add(codes, FilterUse(filter_text(tags), now_ms))

    def use_alone(self, codes: Codes, tags: tuple[str, ...] | None, now_ms: int) -> None:
        """Note that a filter is used at *now_ms*, of a FIFO topic: there is one at a time.

        What it does not name is done. Of two, either would pass what the other is to get, or a
        message group would wait at a message until a consumer with its filter comes.

        Raises:
            InvalidArgument, LimitReached: As of `use`.
            FilterInUse: Another one is.
        """
        self.ages = True
        found = self._uses.get(codes)
        if found is not None:
            self._uses[codes] = FilterUse(found.text, now_ms)
            return
        for other, use in list(self._uses.items()):
            if not _is_gone(use, now_ms):
                raise FilterInUse.of_order(use.text)
            self._remove(other)
        self.use(codes, tags, now_ms)

    def use_expression(self, sql: str, now_ms: int) -> None:
        """Note that an expression is used at *now_ms*, unless another one is in use.

        Raises:
            LimitReached: It is new, and there are too many filters.
        """
        self._end_expression(now_ms)
        if self.expression is None:
            use = FilterUse(sql, now_ms)
            if self.room.codes + _weight_of(use) > MAX_CODES:
                raise LimitReached(
                    f"filters in use name {MAX_CODES} tags already, which is the limit"
                )
            self._begin_to_age(now_ms)
            self._set_expression(use)
        elif self.expression.text == sql:
            self.expression = FilterUse(sql, now_ms)

    def _begin_to_age(self, now_ms: int) -> None:
        """Let the only filter by tags age from now on, since there is another filter."""
        if len(self._uses) == 1 and self.expression is None:
            ((only, use),) = self._uses.items()
            self._uses[only] = FilterUse(use.text, now_ms)

    def _set_expression(self, use: FilterUse | None) -> None:
        self.room.codes += _weight_of(use) - _weight_of(self.expression)
        self.expression = use

    def _end_expression(self, now_ms: int) -> None:
        if self.expression is not None and _is_gone(self.expression, now_ms):
            self._set_expression(None)

    def _add(self, codes: Codes, use: FilterUse) -> None:
        self._uses[codes] = use
        self._named.update(codes or ())
        self.room.codes += _weight(codes)

    def end_unused(self, now_ms: int) -> list[str]:
        """Forget the filters by tags that are gone by *now_ms*; return their texts.

        Never the last one, unless an expression waits for it to go.
        """
        gone: list[str] = []
        while len(self._uses) > (self.expression is None):
            codes, use = next(iter(self._uses.items()))
            if not _is_gone(use, now_ms):
                break
            self._remove(codes)
            gone.append(use.text)
        return gone

    def _remove(self, codes: Codes) -> None:
        del self._uses[codes]
        for code in codes or ():
            self._named[code] -= 1
            if not self._named[code]:
                del self._named[code]
        self.room.codes -= _weight(codes)

    def encoded(self) -> Iterator[bytes]:
        """Yield the filters for a snapshot, in the order of their last use."""
        yield number(len(self._uses) + (self.expression is not None))
        if self.expression is not None:
            yield text(self.expression.text)
            yield number(self.expression.used_ms)
            yield number(_SQL)
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
        for row in range(source.number(1, MAX_FILTERS + 1)):
            said, at_ms = source.text(), source.number(0, now_ms)
            count = source.number(_SQL, MAX_TAGS)
            if count == _SQL:
                if row or not 0 < len(said) <= MAX_EXPRESSION_BYTES:
                    raise source.malformed(
                        "an expression that is not the first filter, or too long"
                    )
                filters._set_expression(FilterUse(said, at_ms))
                continue
            if at_ms < used_ms:
                raise source.malformed("filters that are not in the order of their last use")
            used_ms = at_ms
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
        """Return them as plain values, in the order of their last use; the expression first."""
        expression = self.expression
        return [
            [] if expression is None else [expression.text, expression.used_ms],
            *(
                [use.text, use.used_ms, None if codes is None else sorted(codes)]
                for codes, use in self._uses.items()
            ),
        ]


def _weight(codes: Codes) -> int:
    return 1 + len(codes or ())


def _weight_of(expression: FilterUse | None) -> int:
    return 0 if expression is None else 1 + len(expression.text) // _BYTES_OF_CODE


def _is_gone(use: FilterUse, now_ms: int) -> bool:
    return now_ms - use.used_ms >= FILTER_GONE_MS

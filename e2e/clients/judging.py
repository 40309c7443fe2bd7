"""What clients did and got, compared. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from e2e.harness.checks import Check, none_of
from e2e.harness.sequence import lost, stored_twice

LATE_S: Final = 10.0
RELEASED_LATE_S: Final = 2.0
"""What was held is in its queue so long after it was due, by the time in which somebody led."""
IN_TIME_SHARE: Final = 0.99
_SHOWN: Final = 5
Span = tuple[float, float]
"""(begin, end) by one monotonic clock, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """One send as its caller saw it.

    Attributes:
        key: Which message; a call never repeats one.
        ended_s: When the call came back.
        error: What it raised; "" if the message was acknowledged.
        due_s: When it was to be delivered; 0: at once.
        group: Its message group, in which sends follow each other; "" if it has none.
        wanted: Whether it is to be delivered; a transaction may be rolled back.
        most_s: How long it may take from then on, by the time in which somebody led.
    """

    key: str
    ended_s: float
    error: str = ""
    due_s: float = 0.0
    group: str = ""
    wanted: bool = True
    most_s: float = LATE_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Got:
    """One delivery to a consumer's user."""

    key: str
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What came of a load.

    Attributes:
        lost: Acknowledged, and not in the log or never delivered.
        stored_twice: In the log more than once, acknowledged or not.
        redelivered: Deliveries beyond a message's first; at-least-once allows them.
        errors: Calls that raised, by what they raised most.
        late: Lost, or delivered after more than `Sent.most_s`.
        latest_s: From acknowledgement, or when it was due, to delivery, by the clock on the wall.
        leaderless_s: How long the group had no leader, in all.
        unwanted: Rolled back, and in the log or delivered; like those below None if there was
            nothing of that kind.
        early: Delivered before they were due.
        out_of_order: Acknowledged, and in the log or first delivered behind a later one of their
            message group.
        released_late: In their queue more than `RELEASED_LATE_S` with a leader after they were due,
            or never.
        unended: Transactions that are still open at the end, acknowledged or not.
    """

    acked: int
    lost: Sequence[str]
    stored_twice: Sequence[str]
    redelivered: int
    errors: int
    error: str
    longest_gap_s: float
    late: int
    latest_s: float
    leaderless_s: float
    unwanted: Sequence[str] | None = None
    early: Sequence[str] | None = None
    out_of_order: Sequence[str] | None = None
    released_late: Sequence[str] | None = None
    unended: Sequence[str] | None = None


def judge(
    sent: Collection[Sent],
    got: Collection[Got],
    stored: Mapping[str, int],
    leaderless: Sequence[Span],
    released: Collection[Got] | None = None,
) -> Figures:
    """Compare what was acknowledged with what was stored and delivered.

    Args:
        sent: Every call; those of a message group in their order.
        got: Every delivery, in order.
        stored: How often the log has each key, in the order of the log.
        leaderless: When the group had no leader; spans do not overlap.
        released: When each was seen in its queue, if somebody looked.
    """
    acked = {each.key: each for each in sent if each.wanted and not each.error}
    first_s = _first_s(got)
    in_log = {key for key, count in stored.items() if count}
    missing = lost(acked, first_s, in_log)
    waits_s = _waits_s(acked.values(), first_s)
    unwanted = {each.key for each in sent if not each.wanted}
    due_s = {each.key: each.due_s for each in sent if each.due_s}
    in_groups = [each for each in acked.values() if each.group]
    errors = Counter(each.error for each in sent if each.error)
    times_s = sorted(each.ended_s for each in sent if not each.error)
    return Figures(
        acked=len(times_s),
        lost=missing,
        stored_twice=stored_twice(stored),
        redelivered=len(got) - len(first_s),
        errors=errors.total(),
        error=errors.most_common(1)[0][0] if errors else "",
        longest_gap_s=max((late - early for early, late in pairwise(times_s)), default=0.0),
        late=len(missing)
        + sum(
            with_leader_s(span, leaderless) > acked[key].most_s
            for key, span in waits_s.items()
            if key not in missing
        ),
        latest_s=max((end - begin for begin, end in waits_s.values()), default=0.0),
        leaderless_s=sum(end - begin for begin, end in leaderless),
        unwanted=sorted(unwanted & (in_log | first_s.keys())) if unwanted else None,
        early=sorted(key for key in due_s.keys() & first_s.keys() if first_s[key] < due_s[key])
        if due_s
        else None,
        out_of_order=sorted({*_out_of_order(stored, in_groups), *_out_of_order(first_s, in_groups)})
        if in_groups
        else None,
        released_late=None if released is None else _released_late(acked, released, leaderless),
    )


def _first_s(got: Iterable[Got]) -> dict[str, float]:
    """Return when each message came first, in that order."""
    first_s: dict[str, float] = {}
    for each in got:
        first_s.setdefault(each.key, each.at_s)
    return first_s


def _waits_s(sent: Iterable[Sent], first_s: Mapping[str, float]) -> dict[str, Span]:
    """Return from when to when each one that came was waited for."""
    return {
        each.key: (max(each.ended_s, each.due_s), first_s[each.key])
        for each in sent
        if each.key in first_s
    }


def _released_late(
    acked: Mapping[str, Sent], released: Iterable[Got], leaderless: Sequence[Span]
) -> list[str]:
    waits_s = _waits_s(acked.values(), _first_s(released))
    return sorted(
        key
        for key in acked
        if key not in waits_s or with_leader_s(waits_s[key], leaderless) > RELEASED_LATE_S
    )


def _out_of_order(keys: Iterable[str], sent: Iterable[Sent]) -> Iterable[str]:
    """Yield those of *keys* that stand behind a later one of their message group."""
    places = {each.key: (each.group, place) for place, each in enumerate(sent)}
    furthest: dict[str, int] = {}
    for key in keys:
        if key not in places:
            continue
        group, place = places[key]
        if place < furthest.get(group, place):
            yield key
        furthest[group] = max(place, furthest.get(group, place))


def with_leader_s(span: Span, leaderless: Sequence[Span]) -> float:
    """Return how much of *span* the group had a leader; 0 for one that ends before it begins."""
    begin_s, end_s = span
    without_s = sum(max(0.0, min(end, end_s) - max(begin, begin_s)) for begin, end in leaderless)
    return max(0.0, end_s - begin_s - without_s)


def leaderless_spans(samples: Sequence[tuple[float, bool]]) -> list[Span]:
    """Return when nobody led.

    Args:
        samples: (when, whether somebody led), in order; each holds until the next.
    """
    spans: list[Span] = []
    for (at_s, led), (until_s, _) in pairwise(samples):
        if led:
            continue
        if spans and spans[-1][1] == at_s:
            spans[-1] = (spans[-1][0], until_s)
        else:
            spans.append((at_s, until_s))
    return spans


def lines(name: str, figures: Figures) -> list[Check]:
    """Return what a load under leaders' deaths has to show."""
    acked = figures.acked
    in_time = 1 - figures.late / acked if acked else 0.0
    never = {
        "lost": figures.lost,
        "stored twice": figures.stored_twice,
        "rolled back, and there": figures.unwanted,
        "early": figures.early,
        f"in their queue later than {RELEASED_LATE_S:.0f} s with a leader": figures.released_late,
        "out of the order of their message group": figures.out_of_order,
        "transactions left open": figures.unended,
    }
    return [
        Check(what=f"{name}: acknowledged", value=str(acked), asked="some", kept=acked > 0),
        *(
            none_of(f"{name}: {what}", len(keys))
            for what, keys in never.items()
            if keys is not None
        ),
        Check(
            what=f"{name}: delivered in time",
            value=f"{100 * in_time:.2f} % (latest {figures.latest_s:.1f} s)",
            asked=f"{100 * IN_TIME_SHARE:.0f} %",
            kept=in_time >= IN_TIME_SHARE,
        ),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """One send of a producer that sends one message after the other.

    Attributes:
        producer: Its number.
        row: The message's place among the producer's sends.
        lasted_s: How long the call took.
        error: What it raised; "" if it was answered OK.
    """

    producer: int
    row: int
    lasted_s: float
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spooled:
    """What came of producers whose group was away.

    Attributes:
        answered: Sends that were answered OK.
        stored: Messages in the log, each counted once.
        lost: Of these, the messages that are not in the log.
        stored_twice: In the log more than once.
        out_of_order: Behind a later message of the same producer.
        longest_s: The longest send.
        spooled: Most messages that waited on the disk at a time.
        kills: How often the sidecar's child was killed.
    """

    sent: int
    answered: int
    stored: int
    errors: int
    error: str
    lost: int
    stored_twice: int
    out_of_order: int
    longest_s: float
    spooled: int = 0
    kills: int = 0

    def amiss(self) -> str:
        """Return what is wrong; "" if nothing."""
        counts = {
            f"errors, as {self.error}": self.errors,
            "lost": self.lost,
            "stored twice": self.stored_twice,
            "out of order": self.out_of_order,
        }
        wrong = [f"{count} {what}" for what, count in counts.items() if count]
        return "; ".join(wrong) or ("" if self.answered else "nothing was sent")


def judge_spooled(sent: Sequence[Send], stored: Sequence[tuple[int, int]]) -> Spooled:
    """Compare what producers sent with the queue that has it.

    Args:
        sent: Every call.
        stored: The producer and the row of each message, in the order of the queue.
    """
    answered = {(each.producer, each.row) for each in sent if not each.error}
    errors = Counter(each.error for each in sent if each.error)
    copies = Counter(stored)
    behind, newest = 0, dict[int, int]()
    for producer, row in dict.fromkeys(stored):
        behind += row < newest.get(producer, 0)
        newest[producer] = max(row, newest.get(producer, 0))
    return Spooled(
        sent=len(sent),
        answered=len(answered),
        stored=len(copies),
        errors=errors.total(),
        error=errors.most_common(1)[0][0] if errors else "",
        lost=len(answered - copies.keys()),
        stored_twice=sum(count > 1 for count in copies.values()),
        out_of_order=behind,
        longest_s=max((each.lasted_s for each in sent), default=0.0),
    )


def not_once(wanted: Collection[str], got: Sequence[str]) -> str:
    """Return what is wrong where each of *wanted* has to come once, and nothing else; or ""."""
    copies = Counter(got)
    kinds = {
        "missing": [key for key in wanted if key not in copies],
        "more than once": [key for key, count in copies.items() if count > 1],
        "not sent": [key for key in copies if key not in set(wanted)],
    }
    return "; ".join(
        f"{len(keys)} {kind}: {', '.join(sorted(keys)[:_SHOWN])}"
        for kind, keys in kinds.items()
        if keys
    )

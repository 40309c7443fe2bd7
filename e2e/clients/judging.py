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
    """

    key: str
    ended_s: float
    error: str = ""


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
        late: Lost, or delivered after more than `LATE_S` in which the group had a leader.
        latest_s: From acknowledgement to delivery, by the clock on the wall.
        leaderless_s: How long the group had no leader, in all.
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


def judge(
    sent: Collection[Sent],
    got: Iterable[Got],
    stored: Mapping[str, int],
    leaderless: Sequence[Span],
) -> Figures:
    """Compare what was acknowledged with what was stored and delivered.

    Args:
        sent: Every call.
        got: Every delivery.
        stored: How often the log has each key.
        leaderless: When the group had no leader; spans do not overlap.
    """
    acked = {each.key: each.ended_s for each in sent if not each.error}
    copies = Counter[str]()
    first_s: dict[str, float] = {}
    for each in got:
        copies[each.key] += 1
        first_s[each.key] = min(each.at_s, first_s.get(each.key, each.at_s))
    missing = lost(acked, first_s, {key for key, count in stored.items() if count})
    waits_s = {key: (at_s, first_s[key]) for key, at_s in acked.items() if key in first_s}
    late = set(missing) | {
        key for key, span in waits_s.items() if with_leader_s(span, leaderless) > LATE_S
    }
    errors = Counter(each.error for each in sent if each.error)
    times_s = sorted(acked.values())
    return Figures(
        acked=len(acked),
        lost=missing,
        stored_twice=stored_twice(stored),
        redelivered=sum(copies.values()) - len(copies),
        errors=errors.total(),
        error=errors.most_common(1)[0][0] if errors else "",
        longest_gap_s=max((late - early for early, late in pairwise(times_s)), default=0.0),
        late=len(late),
        latest_s=max((end - begin for begin, end in waits_s.values()), default=0.0),
        leaderless_s=sum(end - begin for begin, end in leaderless),
    )


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
    return [
        Check(what=f"{name}: acknowledged", value=str(acked), asked="some", kept=acked > 0),
        none_of(f"{name}: lost", len(figures.lost)),
        none_of(f"{name}: stored twice", len(figures.stored_twice)),
        Check(
            what=f"{name}: delivered within {LATE_S:.0f} s with a leader",
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

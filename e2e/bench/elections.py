"""Which elections of a run are explained by its faults, and which are not. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A fault that was made.

    Attributes:
        name: As it stands in the report.
        begin_s: When it was made (monotonic).
        end_s: When the group was whole again.
        hits_leader: Whether it was the leader's; only then may another one be elected.
        amiss: How a node ended that the fault does not explain; "" if none did.
    """

    name: str
    begin_s: float
    end_s: float
    hits_leader: bool
    amiss: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Election:
    """A rise of the newest term, between two looks at the group.

    Attributes:
        after_s: The last look at which it was not there.
        seen_s: The first look at which it was.
        terms: By how much the term rose.
        fault: What explains it; empty if nothing does.
    """

    after_s: float
    seen_s: float
    terms: int
    fault: str


def elections(terms: Sequence[tuple[float, int]], faults: Sequence[Made]) -> list[Election]:
    """Return the elections of a run.

    Args:
        terms: (when, newest term) at each look, in order.
        faults: What was done to the group meanwhile.
    """
    return [
        Election(
            after_s=before_s,
            seen_s=seen_s,
            terms=after - before,
            fault=_explains(before_s, seen_s, faults),
        )
        for (before_s, before), (seen_s, after) in pairwise(terms)
        if after > before
    ]


def _explains(before_s: float, seen_s: float, faults: Sequence[Made]) -> str:
    during = (f for f in faults if f.hits_leader and f.begin_s < seen_s and f.end_s > before_s)
    return next((fault.name for fault in during), "")


def lines_between(lines: Iterable[str], begin: datetime, end: datetime) -> list[str]:
    """Return a log's lines of a time, with those that follow one and carry no time themselves."""
    found: list[str] = []
    within = False
    for line in lines:
        at = _time_of(line)
        within = begin <= at <= end if at is not None else within
        if within:
            found.append(line.rstrip())
    return found


def _time_of(line: str) -> datetime | None:
    try:
        return datetime.strptime(line[:23], "%Y-%m-%d %H:%M:%S,%f")
    except ValueError:
        return None

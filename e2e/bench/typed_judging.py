"""What became of each message of a steady load of one type. Pure.

``java_sdk/Watch.java`` lists every send and every delivery; a message's key is its message group
and its number there, which rises.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from e2e.bench.figures import quantile
from e2e.harness.sequence import lost

Key = tuple[int, int]
"""Message group and number."""
_FIRST: Final = 1
_CALM_MS: Final = range(-25_000, -5_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """One send.

    Attributes:
        key: Which message.
        due_ms: When it was to be delivered, as a date; 0 if at once.
        ended_ms: When the call came back, as a date.
        error: What it raised; "" if the message was acknowledged.
    """

    key: Key
    due_ms: int
    ended_ms: int
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Got:
    """One delivery: which message, when, and which attempt it was said to be, from 1."""

    key: Key
    at_ms: int
    attempt: int = _FIRST


def sent_of(answer: Mapping[str, Any], kind: str) -> list[Sent]:
    """Return the sends of a kind that the load program tells."""
    return [
        Sent(key=_key(key), due_ms=int(due), ended_ms=int(ended), error=error)
        for told, key, due, ended, error in answer["sent"]
        if told == kind
    ]


def got_of(answer: Mapping[str, Any], kind: str) -> list[Got]:
    """Return the deliveries of a kind that the load program tells, in their order."""
    return [
        Got(key=_key(key), at_ms=int(at), attempt=int(attempt))
        for told, key, at, attempt in answer["got"]
        if told == kind
    ]


def _key(text: str) -> Key:
    group, _, number = text.partition(" ")
    return int(group), int(number)


def judge(sent: Collection[Sent], got: Sequence[Got], fault_ms: int) -> dict[str, float]:
    """Return what became of a load in which a fault was made.

    ``lost`` was acknowledged and never came; ``doubled`` came again as if for the first time,
    ``redelivered`` came again and was said to; ``disordered`` came for the first time behind a
    later one of its message group. Late is beyond what was due, or beyond the acknowledgement
    where nothing was; it is told of those that were due from 25 to 5 s before the fault, and of
    all.

    Args:
        sent: Every call.
        got: Every delivery, in the order in which they came.
        fault_ms: When the fault was made, as a date.
    """
    acked = {each.key: each for each in sent if not each.error}
    first: dict[Key, Got] = {}
    again: Counter[bool] = Counter()
    for each in got:
        if first.setdefault(each.key, each) is not each:
            again[each.attempt == _FIRST] += 1
    waits = [
        (each.due_ms or each.ended_ms, first[key].at_ms)
        for key, each in acked.items()
        if key in first
    ]
    dues = {each.key: each.due_ms for each in sent if each.due_ms}
    times_ms = sorted(each.ended_ms for each in acked.values())
    figures: dict[str, float] = {
        "acknowledged": len(acked),
        "failures": len(sent) - len(acked),
        "lost": len(lost(map(str, acked), set(map(str, first)))),
        "doubled": again[True],
        "redelivered": again[False],
        "early": sum(at.at_ms < dues[key] for key, at in first.items() if key in dues),
        "disordered": 0 if dues else count_disordered([key for key in first if key in acked]),
        "gap_ms": max((late - early for early, late in pairwise(times_ms)), default=0),
    }
    calm = sorted(at - due for due, at in waits if due - fault_ms in _CALM_MS)
    if calm:
        figures["calm_p50_ms"], figures["calm_p99_ms"] = quantile(calm, 0.5), quantile(calm, 0.99)
    if waits:
        figures["late_max_ms"] = max(at - due for due, at in waits)
    return figures


def count_disordered(keys: Sequence[Key]) -> int:
    """Return how many messages came behind a later one of their message group."""
    newest: dict[int, int] = {}
    behind = 0
    for group, number in keys:
        behind += number < newest.get(group, number)
        newest[group] = max(number, newest.get(group, number))
    return behind

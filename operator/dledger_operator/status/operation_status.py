"""The status of a BrokerOperation, and the Events that a change of it is worth. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, assert_never

from dledger_operator.api.brokeroperation import (
    FAILED,
    PENDING,
    RUNNING,
    SUCCEEDED,
    BrokerOperation,
)
from dledger_operator.api.reasons import EventReason, Reason
from dledger_operator.api.spec import Json, Manifest
from dledger_operator.decisions.operations import record_of
from dledger_operator.decisions.outcomes import Begun, Done, Going, Outcome, Rejected, Waits
from dledger_operator.status.status import Event, dated

CONDITION: Final = "Complete"
RECORDED: Final = ("pods", "member", "survivors", "chosen", "fenced")
"""What an operation rests on; kept as it was when it began."""
_LONGEST: Final = 1024


def operation_status(operation: BrokerOperation, found: Outcome, *, now: str) -> Manifest:
    """Return the whole status to be applied; a final one is never changed.

    Args:
        operation: What is wanted, with the status recorded before.
        found: Where it stands.
        now: RFC 3339; when it began or ended if it does now.
    """
    before = operation.status
    if operation.finished:
        return dict(before)
    phase, condition, reason, message = _row(found)
    row = {"type": CONDITION, "status": condition, "reason": str(reason), "message": message}
    is_end_of_look = phase == FAILED and operation.asks_only
    keeps = operation.phase == RUNNING or is_end_of_look
    kept = {key: before[key] for key in RECORDED if key in before and keeps}
    if is_end_of_look and "survivors" in before:
        message = f"{message}; before: {before.get('message', '')}"[:_LONGEST]
        row["message"] = message
    after: Manifest = {
        "observedGeneration": operation.generation,
        "phase": phase,
        "message": message,
        "conditions": dated(before, [row], now=now, generation=operation.generation),
        **kept,
        **record_of(found),
    }
    if "startedAt" in before:
        after["startedAt"] = before["startedAt"]
    elif phase == RUNNING:
        after["startedAt"] = now
    if phase in (SUCCEEDED, FAILED):
        after["finishedAt"] = now
    return after


def operation_events(operation: BrokerOperation, before: Json, after: Json) -> Iterator[Event]:
    """Yield an Event for each change of the phase that people should see."""
    was, now = before.get("phase"), after["phase"]
    if now in (was, PENDING):
        return
    said = f"{operation.spec.kind} {operation.name}: {after['message']}"
    if now == RUNNING:
        yield Event(EventReason.OPERATION_STARTED, said)
    elif now == SUCCEEDED:
        yield Event(EventReason.OPERATION_SUCCEEDED, said)
    else:
        yield Event(EventReason.OPERATION_FAILED, said, warning=True)


def _row(found: Outcome) -> tuple[str, str, Reason, str]:
    match found:
        case Waits(reason, message):
            return PENDING, "Unknown", reason, message[:_LONGEST]
        case Begun():
            return RUNNING, "Unknown", Reason.OPERATION_RUNNING, "it begins"
        case Going(message):
            return RUNNING, "Unknown", Reason.OPERATION_RUNNING, message[:_LONGEST]
        case Done(message):
            return SUCCEEDED, "True", Reason.OPERATION_SUCCEEDED, message[:_LONGEST]
        case Rejected(reason, message):
            return FAILED, "False", reason, message[:_LONGEST]
        case unknown:
            assert_never(unknown)

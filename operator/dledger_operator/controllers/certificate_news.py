"""What is told of a group's certificates: repairs, rotations, and what ends soon. Pure.

Used by `certificate_keeper`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

from dledger_operator.api import names
from dledger_operator.api.reasons import EventReason
from dledger_operator.api.spec import BrokerGroup
from dledger_operator.cluster.secret_store import Contents, Read
from dledger_operator.decisions.certificates import EXPIRING_S, Course
from dledger_operator.status.status import Event


def news(
    group: BrokerGroup, held: Contents, step: Course, before: Read, changes: Iterable[str]
) -> Iterator[Event]:
    """Yield what others broke, and what went over to another authority or was renewed.

    Args:
        group: Whose certificates they are.
        held: What the Secrets held before.
        step: What was done.
        before: The Secrets as they were read before.
        changes: The names of those that were written.
    """
    is_new = not before.files.get(names.peer_tls(group.name)) and not group.bootstrapped
    for name in changes:
        if name not in before.files and not is_new and before.files:
            yield _repaired(name, "was missing and was made again")
        elif name in held.damaged:
            yield _repaired(name, "was damaged and was made again")
    leaves = held.held.leaves
    moved = [holder for holder in step.issue if holder in leaves and leaves[holder].signer]
    if moved:
        how = "by another authority" if step.is_rotating else "by the same authority"
        message = f"new certificates {how} for {', '.join(moved)}"
        yield Event(EventReason.CERTIFICATES_ROTATED, message)
    if any(each not in step.bundle for each in held.held.trusted):
        message = "the old authority is trusted no more: no certificate of it was left"
        yield Event(EventReason.CERTIFICATES_ROTATED, message)


def expiring(holders: Iterable[str], held: Contents, step: Course, *, now_s: float) -> str:
    """Return which certificates end soon though they should have been renewed; empty if none."""
    leaves = held.held.leaves
    soon = [holder for holder in holders if holder in leaves and holder not in step.issue]
    soon = [holder for holder in soon if leaves[holder].not_after_s - now_s < EXPIRING_S]
    if not soon:
        return ""
    at = _day(min(leaves[holder].not_after_s for holder in soon))
    cause = f": {held.fault}" if held.fault else ""
    return f"the certificates of {', '.join(soon)} end on {at} and cannot be renewed{cause}"


def _repaired(name: str, what: str) -> Event:
    return Event(EventReason.CHILD_REPAIRED, f"Secret {name} {what}")


def _day(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d")

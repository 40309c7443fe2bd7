"""A small history of two producers without a fault, and ways to plant one."""

from __future__ import annotations

from dataclasses import replace

from e2e.chaos.history import NEVER, NOWHERE, Outcome, Seen, Write
from e2e.chaos.log_checker import Finding, LogFault, Queues, Stored

NODES = ("a", "b", "c")


def write(number: int, *, queue: int = 0, offset: int) -> Write:
    """Return an acknowledged message; number *n* was under way from second n to n + 0.5."""
    return Write(
        producer=f"p{queue}",
        message_id=f"m{number}",
        digest=f"d{number}",
        queue=queue,
        offset=offset,
        outcome=Outcome.OK,
        invoked_s=float(number),
        ended_s=number + 0.5,
    )


WRITES = [
    write(1, offset=0),
    write(2, offset=1),
    write(3, offset=2),
    write(4, queue=1, offset=0),
    write(5, queue=1, offset=1),
]


def unknown(number: int) -> Write:
    """Return a message of queue 0 whose producer got no answer."""
    return replace(
        write(number, offset=NOWHERE), outcome=Outcome.UNKNOWN, ended_s=NEVER, offset=NOWHERE
    )


def refused(number: int) -> Write:
    """Return a message of queue 0 that was refused."""
    return replace(write(number, offset=NOWHERE), outcome=Outcome.REFUSED)


def stored(number: int, offset: int) -> Stored:
    """Return message *number* as a node holds it."""
    return Stored(offset, f"m{number}", f"d{number}")


def queues(*first: Stored, second: tuple[Stored, ...] | None = None) -> Queues:
    """Return queue 0 with these messages, and queue 1 as it should be."""
    return {0: list(first), 1: list(second or (stored(4, 0), stored(5, 1)))}


GOOD = queues(stored(1, 0), stored(2, 1), stored(3, 2))


def everywhere(what: Queues) -> dict[str, Queues]:
    """Return the same on all nodes."""
    return dict.fromkeys(NODES, what)


def seen(number: int, offset: int, *, digest: str = "") -> Seen:
    """Return that a reader got message *number* from node a."""
    return Seen(
        node="a", queue=0, offset=offset, message_id=f"m{number}",
        digest=digest or f"d{number}", at_s=9.0,
    )  # fmt: skip


def faults(findings: list[Finding]) -> set[tuple[LogFault, str]]:
    """Return which faults were found on which nodes."""
    return {(finding.fault, finding.node) for finding in findings}


def on_all(fault: LogFault) -> set[tuple[LogFault, str]]:
    """Return one fault found on all nodes."""
    return {(fault, node) for node in NODES}

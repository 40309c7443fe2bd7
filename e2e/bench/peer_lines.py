"""What is asked beside Kafka and NATS JetStream, and the page's section about them. Pure."""

from __future__ import annotations

from statistics import median
from typing import Final

from e2e.bench.promises import Promise
from e2e.bench.rows import OURS, Row, Run

PEER_APPEND: Final = "peer append"
PEER_READ: Final = "peer read"
PEER_FAILOVER: Final = "peer failover"
PEER_KINDS: Final = (PEER_APPEND, PEER_READ, PEER_FAILOVER)
KAFKA_SYNCED: Final = f"kafka ({Promise.SYNCED.value})"
NATS: Final = tuple(f"nats ({promise.value})" for promise in Promise)
NATS_SYNCED: Final = f"nats ({Promise.SYNCED.value})"
COST: Final = "nodes_100k_s"
"""CPU seconds of all nodes for 100,000 messages."""


def single(run: Run, kind: str, system: str, window: int) -> Row | None:
    """Return the row of messages that come one by one."""
    found = (
        row
        for row in run.rows
        if (row.kind, row.system, row.batch, row.window) == (kind, system, 1, window)
    )
    return next(found, None)


def best_batches(run: Run, system: str) -> Row | None:
    """Return the row of batches with the most messages a second, over the windows."""
    found = [
        row
        for row in run.rows
        if row.kind == PEER_APPEND and row.system == system and row.batch > 1
    ]
    return max(found, key=lambda row: row.figures["per_s"], default=None)


def times(own: Row | None, other: Row | None) -> float | None:
    """Return the median of the rounds' ratios of messages a second; None without both rows."""
    if own is None or other is None or len(own.samples) != len(other.samples):
        return None
    ratios = [
        ours / theirs for ours, theirs in zip(own.samples, other.samples, strict=True) if theirs
    ]
    return median(ratios) if ratios else None


def cost(row: Row | None) -> float | None:
    """Return CPU seconds of all nodes for 100,000 messages."""
    return None if row is None else row.figures.get(COST)


def singles_beside_nats(run: Run, window: int) -> float | None:
    """Return how many times NATS JetStream's rate ours is, both synced, message by message."""
    return times(
        single(run, PEER_APPEND, OURS, window), single(run, PEER_APPEND, NATS_SYNCED, window)
    )


def reads_beside_nats(run: Run, readers: int) -> float | None:
    """Return how many times the faster NATS JetStream's rate ours is, of what came singly.

    A read promises nothing, and both read from their page cache: which is faster is chance.
    """
    ratios = [
        times(single(run, PEER_READ, OURS, readers), single(run, PEER_READ, system, readers))
        for system in NATS
    ]
    return min((ratio for ratio in ratios if ratio is not None), default=None)


def batches_beside_kafka(run: Run) -> float | None:
    """Return how many times Kafka's rate ours is, both synced, at the best window of each."""
    return times(best_batches(run, OURS), best_batches(run, KAFKA_SYNCED))


def batches_cost_beside_kafka(run: Run) -> float | None:
    """Return which part of Kafka's CPU a message ours takes, where each is at its best."""
    own, other = cost(best_batches(run, OURS)), cost(best_batches(run, KAFKA_SYNCED))
    return None if own is None or not other else own / other

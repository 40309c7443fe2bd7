"""The broker's state in one process: what its growth costs the event loop, in CPU of one thread.

``python -m e2e.growth.state DIMENSION SIZE`` prints one JSON line. Each size in a process of its
own: memory is a process's. `freeze_ms` is what a snapshot takes of the event loop.
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import time
from collections.abc import Callable
from typing import Any, Final

from dledger.broker import commands
from dledger.broker.commands import LeaseRef
from dledger.broker.message import Columns
from dledger.broker.produce import encode_produce
from dledger.broker.results import Received
from dledger.broker.state import BrokerState
from dledger.errors import DledgerError
from dledger.types import Entry, EntryKind

_MINUTES: Final = 62
"""An hour, and a little."""
_DAY_MS: Final = 24 * 3_600_000
_ATTEMPTS: Final = 1_024
_BATCH: Final = 32
_LEASES_A_QUEUE: Final = 16_384
Figures = dict[str, float | str]


class Feed:
    """A log of one command an entry, applied to one state, with a clock one can turn."""

    def __init__(self) -> None:
        self.state, self.index, self.now_ms = BrokerState(), 0, 1_700_000_000_000

    def __call__(self, command: bytes) -> Any:
        """Commit a command; return what applying it gave, or raise what it refused."""
        self.index += 1
        entry = Entry(
            term=1,
            index=self.index,
            kind=EntryKind.DATA,
            timestamp_ms=self.now_ms,
            crc32c=0,
            data=command,
        )
        (result,) = self.state.apply(entry)
        self.state.take_changes()
        if isinstance(result, DledgerError):
            raise result
        return result

    def produce(self, topic: str, queue_id: int, client: str, *ids: str) -> None:
        """Store messages; without a name of their own, they are not remembered."""
        batch = Columns(
            message_ids=list(ids), bodies=[b"x" * 16] * len(ids), born_at_ms=[0] * len(ids)
        )
        self(encode_produce(batch, client_id=client, topic=topic, queue_id=queue_id))

    def create(self, topic: str, queues: int) -> None:
        """Make a topic."""
        self(commands.CreateTopic(name=topic, type="NORMAL", queues=queues).encode())

    def receive(self, group: str, *, limit: int = _BATCH, **more: Any) -> Received:
        """Take messages of topic ``t``; from any queue, unless *more* says otherwise."""
        values: dict[str, Any] = {"queue_id": 0, "any_queue": True, "invisible_ms": 60_000} | more
        found = self(commands.Receive(group=group, topic="t", limit=limit, **values).encode())
        assert isinstance(found, Received)
        return found

    def ack(self, group: str, received: Received) -> None:
        """Acknowledge all of what was received."""
        leases = tuple(
            LeaseRef(each.queue_id, each.offset, received.receive_id)
            for each in received.deliveries
        )
        self(commands.Ack(group=group, topic="t", leases=leases).encode())


def cpu_ms(work: Callable[[], object]) -> float:
    """Return what this thread computes for it, in ms."""
    began_s = time.thread_time()
    work()
    return round((time.thread_time() - began_s) * 1000, 2)


def client_ids(feed: Feed, size: int) -> Figures:
    """So many client ids that sent one message each; then an hour in which they are silent."""
    feed.create("t", 8)
    for n in range(size):
        feed.produce("t", -1, f"host-{n:06d}@7@0@1a2b3c4d5e", f"01{n:012X}00010A1B2C3D4E5F")
    figures = _snapshot(feed)
    before = len(feed.state.encode())
    for n in range(_MINUTES + size // 16):  # time goes on in steps; each PRODUCE lets a few go
        feed.now_ms += 60_000 if n < _MINUTES else 0
        feed.produce("t", -1, "alive", "again")  # which adds nothing
    return figures | {"kept_share_after_an_hour": round(len(feed.state.encode()) / before, 3)}


def queues(feed: Feed, size: int) -> Figures:
    """So many empty queues, in topics of 1,024; then one topic more."""
    each = min(size, 1_024)
    for n in range(size // each):
        feed.create(f"topic-{n:06d}", each)
    return _snapshot(feed) | {"one_more": _refusal(lambda: feed.create("one-more", 1_024))}


def groups(feed: Feed, size: int) -> Figures:
    """So many groups that read 8 queues to their ends; then one more; then a month later."""
    feed.create("t", 8)
    for queue_id in range(8):
        feed.produce("t", queue_id, "", "")
    for n in range(size):
        name = f"group-{n:06d}"
        feed(commands.CreateGroup(name=name).encode())
        feed.ack(name, feed.receive(name))
    more = commands.CreateGroup(name="one-more").encode()
    figures = _snapshot(feed) | {"one_more": _refusal(lambda: feed(more))}
    figures["renewal_scan_ms"] = cpu_ms(lambda: list(feed.state.groups.renewable(feed.now_ms)))
    feed.now_ms += 31 * _DAY_MS
    before = len(feed.state.encode())
    # Trees that know no such command let no group go: the figures say so.
    if expire := getattr(commands, "ExpireGroups", None):
        unused = expire(before_ms=feed.now_ms - 30 * _DAY_MS).encode()
        figures["expire_ms"] = cpu_ms(lambda: feed(unused))
    later = _refusal(lambda: feed(commands.CreateGroup(name="a-month-later").encode()))
    share = round(len(feed.state.encode()) / before, 3)
    return figures | {"a_month_later": later, "kept_share_after_a_month": share}


def busy_groups(feed: Feed, size: int) -> Figures:
    """So many groups that each made 1,024 receives of 32 messages, all acknowledged."""
    feed.create("t", 1)
    for _ in range(_ATTEMPTS):
        feed.produce("t", 0, "", *[""] * _BATCH)
    for n in range(size):
        name = f"group-{n:06d}"
        feed(commands.CreateGroup(name=name).encode())
        for k in range(_ATTEMPTS):
            attempt = f"cli{n}@host@1@abc/{n:08x}-{k:04x}-4000-8000-000000000000"
            feed.ack(name, feed.receive(name, attempt_id=attempt))
    return _snapshot(feed)


def leases(feed: Feed, size: int) -> Figures:
    """One group holds so many messages, and all leases end at the same moment."""
    count = -(-size // _LEASES_A_QUEUE)
    feed.create("t", count)
    feed(commands.CreateGroup(name="g").encode())
    for queue_id in range(count):
        for _ in range(-(-size // count // 1_024)):
            feed.produce("t", queue_id, "", *[""] * 1_024)
    held = n = 0
    while held < size:
        taken = feed.receive("g", limit=1_024, client_id=f"client-{n % 50}")
        held, n = held + len(taken.deliveries), n + 1
    figures = _snapshot(feed)
    found = feed.state.groups
    gone = commands.Release(group="g", client_id="nobody").encode()
    figures["release_of_none_ms"] = cpu_ms(lambda: feed(gone))
    figures["committed_ms"] = cpu_ms(lambda: found.committed("g", "t", 0))
    feed.now_ms += 61_000
    ids = range(count)
    looks = [
        cpu_ms(lambda: found.available("g", "t", ids, feed.now_ms, enough=64 * _BATCH))
        for _ in range(20)
    ]
    receives = [cpu_ms(lambda: feed.receive("g", client_id="new")) for _ in range(20)]
    return figures | {"longest_look_ms": max(looks), "longest_receive_ms": max(receives)}


def _snapshot(feed: Feed) -> Figures:
    freeze_ms = max(cpu_ms(feed.state.freeze) for _ in range(2))
    peak_before_mb = _peak_mb()
    body = feed.state.freeze().encode()
    return {
        "freeze_ms": freeze_ms,
        "snapshot_mb": round(len(body) / 1e6, 2),
        "peak_before_mb": peak_before_mb,
        "peak_mb": _peak_mb(),
        "decode_ms": cpu_ms(lambda: BrokerState.decode(body)),
        "full_collection_ms": cpu_ms(gc.collect),
    }


def _peak_mb() -> float:
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)


def _refusal(work: Callable[[], object]) -> str:
    try:
        work()
    except DledgerError as error:
        return f"{type(error).__name__}: {error}"
    return ""


DIMENSIONS: Final[dict[str, Callable[[Feed, int], Figures]]] = {
    "client-ids": client_ids,
    "queues": queues,
    "groups": groups,
    "busy-groups": busy_groups,
    "leases": leases,
}


def measured(dimension: str, size: int) -> Figures:
    """Build the state in this process, as ``dledger node`` sets the collector, and measure it."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    return DIMENSIONS[dimension](Feed(), size)


def main() -> None:
    """Print one JSON line."""
    parser = argparse.ArgumentParser(prog="python -m e2e.growth.state", description=__doc__)
    parser.add_argument("dimension", choices=DIMENSIONS)
    parser.add_argument("size", type=int)
    args = parser.parse_args()
    print(json.dumps(measured(args.dimension, args.size)))


if __name__ == "__main__":
    main()

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
from array import array
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

from dledger.broker import commands
from dledger.broker.commands import LeaseRef
from dledger.broker.due_slots import DueSlots
from dledger.broker.held_bucket import Place
from dledger.broker.held_commands import What, encode_release_held
from dledger.broker.held_messages import HeldMessages
from dledger.broker.held_refs import Kind, Ref
from dledger.broker.message import Columns
from dledger.broker.produce import encode_produce
from dledger.broker.results import Received
from dledger.broker.state import BrokerState
from dledger.errors import DledgerError
from dledger.types import Entry, EntryKind
from e2e.growth.fifo_state import fifo

_MINUTES: Final = 62
"""An hour, and a little."""
_HOUR_MS: Final = 3_600_000
_ATTEMPTS: Final = 1_024
_BATCH: Final = 32
_LEASES_A_QUEUE: Final = 16_384
_HELD_MS: Final = 40 * 24 * _HOUR_MS
_RELEASED: Final = 1_024
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
    before = len(feed.state.encode())
    for _ in range(31 * 24):  # time goes on in steps: a gap in the log is no month
        feed.now_ms += _HOUR_MS
        feed.produce("t", 0, "", "")
    month_ago_ms = max(feed.state.groups.active_ms - 30 * 24 * _HOUR_MS, 0)
    unused = commands.ExpireGroups(before_ms=month_ago_ms).encode()
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


def held_messages(feed: Feed, size: int) -> Figures:
    """So many messages are held, over 40 days, as if sent one by one; a snapshot, and recalls."""
    feed.create("t", 1)
    rng, found, before_mb = Random(1), feed.state.held, _resident_mb()

    def hold() -> None:
        for n in range(size):
            due_ms = feed.now_ms + 1 + rng.randrange(_HELD_MS)
            _hold(found, due_ms, n)

    hold_us = cpu_ms(hold) * 1000 / size
    figures: Figures = {
        "hold_us": round(hold_us, 2),
        "held_mb": round(_resident_mb() - before_mb, 1),
    }
    figures |= _snapshot(feed)
    refs = [Ref(hour, 0) for hour in found.buckets()]
    recalls = [commands.CancelHeld(refs=(ref,)).encode() for ref in refs]
    figures["first_recall_us"] = _mean_us(recalls, feed)
    figures["first_entry_ms"] = cpu_ms(lambda: found.first_entry)
    return figures | {"bytes_each": round(float(figures["snapshot_mb"]) * 1e6 / size, 2)}


def due(feed: Feed, size: int) -> Figures:
    """So many messages are due in one second: brought in order and released, as a leader does."""
    feed.create("t", 1)
    rng, found = Random(2), feed.state.held
    begin_ms = (feed.now_ms // _HOUR_MS + 1) * _HOUR_MS
    for n in range(size):
        _hold(found, begin_ms + rng.randrange(1000), n)
    steps, told, last = list[float](), array("Q"), 0
    parts = DueSlots(found).until(begin_ms + 999)
    while True:
        began_s = time.thread_time()
        part = next(parts, None)
        steps.append((time.thread_time() - began_s) * 1000)
        if part is None:
            break
        for message in part:
            assert message.due_ms >= last
            last = message.due_ms
        told.extend([message.ref.number for message in part])
    assert len(told) == size
    figures: Figures = {
        "longest_step_ms": round(max(steps), 2),
        "order_us": round(sum(steps) * 1000 / size, 2),
    }
    bodies = Columns(
        message_ids=["x" * 16] * _RELEASED, bodies=[b"x" * 1024] * _RELEASED,
        born_at_ms=[0] * _RELEASED,
    )  # fmt: skip
    releases = [
        encode_release_held(
            What.DELIVER,
            [Ref.unpack(each) for each in told[first : first + _RELEASED]],
            bodies,
            topic="t",
            generation=1,
        )
        for first in range(0, min(size, 100 * _RELEASED) - _RELEASED + 1, _RELEASED)
    ]
    applied = [cpu_ms(partial(feed, command)) for command in releases]
    figures["longest_release_ms"] = max(applied, default=0)
    figures["release_us"] = round(sum(applied) * 1000 / (_RELEASED * max(1, len(releases))), 2)
    return figures | _snapshot(feed)


def fifo_messages(feed: Feed, size: int) -> Figures:
    """So many messages of a FIFO topic, beside a NORMAL one."""
    return fifo(feed, size) | _snapshot(feed)


def _hold(held: HeldMessages, due_ms: int, n: int) -> None:
    """Hold the n-th message: a kilobyte, in a command of its own, 64 of them an entry."""
    start = 5 + (n & 63) * 1130
    hour, place = held.hour_of(due_ms, 0), Place(n >> 6, start, start + 1125, 0)
    held.add(hour, due_ms, place, generation=1, kind=Kind.TIMER, size_bytes=1125)


def _mean_us(each: Sequence[bytes], feed: Feed) -> float:
    return round(cpu_ms(lambda: [feed(command) for command in each]) * 1000 / len(each), 1)


def _resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    return pages * resource.getpagesize() / 1e6


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
    "held": held_messages,
    "due": due,
    "fifo": fifo_messages,
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

"""What a message of a FIFO topic costs the state, beside one of a NORMAL topic: CPU of one thread.

Both are stored alike, received and acknowledged, all by commands, with a few receives under way. A
RECEIVE of a FIFO topic is of eight message groups at most (adr 80), so with many groups it has
eight messages: NORMAL is also measured with as many, which is what FIFO itself costs. Taken in
turns, the least of each: what else the machine does only adds. Called by `state`.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Final

from dledger.broker import commands
from dledger.broker.commands import LeaseRef
from dledger.broker.fifo_deliveries import MAX_GROUPS_AT_ONCE
from dledger.broker.message import Columns
from dledger.broker.produce import encode_produce
from dledger.broker.results import Received
from dledger.types import Typed

if TYPE_CHECKING:
    from e2e.growth.state import Feed, Figures

_BATCH: Final = 32
_UNDER_WAY: Final = 8
_TURNS: Final = 5
_STORED_AT_ONCE: Final = 64


def fifo(feed: Feed, size: int) -> Figures:
    """So many messages of 10 and of 1,000 message groups, beside NORMAL ones."""
    count = size // _TURNS // _STORED_AT_ONCE * _STORED_AT_ONCE or _STORED_AT_ONCE
    shapes = {
        "normal_us": (0, _BATCH),
        "normal_by_8_us": (0, MAX_GROUPS_AT_ONCE),
        "fifo_10_groups_us": (10, _BATCH),
        "fifo_1000_groups_us": (1_000, _BATCH),
    }
    found: dict[str, list[float]] = {name: [] for name in shapes}
    for turn in range(_TURNS):
        for name, (groups, limit) in shapes.items():
            topic = f"{name}-{turn}"
            _store(feed, topic, count, groups)
            found[name].append(_worked_off(feed, topic, count, limit) * 1e6 / count)
    figures: Figures = {name: round(min(each), 2) for name, each in found.items()}
    feed.state.take_changes()
    return figures


def _store(feed: Feed, topic: str, count: int, groups: int) -> None:
    kind = "FIFO" if groups else "NORMAL"
    feed(commands.CreateTopic(name=topic, type=kind, queues=1).encode())
    feed(commands.CreateGroup(name=topic).encode())
    for first in range(0, count, _STORED_AT_ONCE):
        numbers = range(first, first + _STORED_AT_ONCE)
        typed = [Typed(message_group=f"order-{n % groups}") for n in numbers] if groups else ()
        none = [""] * _STORED_AT_ONCE
        batch = Columns(
            message_ids=none,
            bodies=[b"x" * 16] * _STORED_AT_ONCE,
            born_at_ms=[0] * _STORED_AT_ONCE,
            typed=typed,
        )
        feed(encode_produce(batch, client_id="", topic=topic, queue_id=0))


def _worked_off(feed: Feed, topic: str, count: int, limit: int) -> float:
    """Receive and acknowledge all of a topic; return what applying that takes, seconds."""
    taken, under_way, spent_s = 0, deque[Received](), 0.0
    receive = commands.Receive(
        group=topic, topic=topic, queue_id=0, any_queue=True, limit=limit, invisible_ms=60_000
    ).encode()

    def apply(command: bytes) -> object:
        nonlocal spent_s
        began_s = time.thread_time()
        found = feed(command)
        spent_s += time.thread_time() - began_s
        return found

    def ack() -> None:
        received = under_way.popleft()
        leases = tuple(
            LeaseRef(each.queue_id, each.offset, received.receive_id)
            for each in received.deliveries
        )
        apply(commands.Ack(group=topic, topic=topic, leases=leases).encode())

    while taken < count:
        some = apply(receive)
        assert isinstance(some, Received)
        taken += len(some.deliveries)
        if some.deliveries:
            under_way.append(some)
        if len(under_way) >= _UNDER_WAY or not some.deliveries:
            ack()
    while under_way:
        ack()
    return spent_s

"""Beside Kafka and NATS JetStream: the same appends, reads and lost leaders of each and of ours.

Each peer is there twice, once for each `Promise`. Their rows have kinds of their own, so that a run
of this part alone leaves the rest of the page as it is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from e2e.bench.cases import Case
from e2e.bench.contest import Contestant, Turns, contest
from e2e.bench.engine import measured
from e2e.bench.failover import Trials, kill_row
from e2e.bench.kafka import Kafka
from e2e.bench.machine import Busy
from e2e.bench.nats import Nats
from e2e.bench.ours import Ours
from e2e.bench.peer_lines import PEER_APPEND, PEER_FAILOVER, PEER_READ
from e2e.bench.process_group import ProcessGroup, System
from e2e.bench.promises import Promise
from e2e.bench.rows import Row

PEERS: Final[Mapping[str, Callable[[], System]]] = {
    "kafka": lambda: Kafka(Promise.SYNCED),
    "kafka-page-cache": lambda: Kafka(Promise.PAGE_CACHE),
    "nats": lambda: Nats(Promise.SYNCED),
    "nats-page-cache": lambda: Nats(Promise.PAGE_CACHE),
}
"""By the names that the command line knows; ours is always beside them."""
LOST_LEADERS: Final[Mapping[str, Callable[[], System]]] = {
    "ours": lambda: Ours({"leader_follows_clients": "false"}),
    "kafka": lambda: Kafka(Promise.PAGE_CACHE),
    "nats": lambda: Nats(Promise.PAGE_CACHE),
}
"""All with their defaults, but for ours: leadership would move to the very node that is asked."""
_SETTLE_S: Final = 1.0
_TURN_CASE: Final = Case(batch=256, window=16)
_TURN_S: Final = 3.0
"""Each turn begins with batches that count for nothing: a JVM that syncs each of a few messages
has compiled little when it is warmed up."""
_MOST_DISK_BYTES: Final = 8 << 30
"""Five groups are there at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What is measured of one batch size.

    Attributes:
        appends: In a closed loop through the leader.
        fill: What is appended, so that there is enough to read.
        readers: How many read all of it at once.
    """

    appends: Sequence[Case]
    fill: Case
    readers: Sequence[int]


SINGLES: Final = Part(
    appends=tuple(Case(batch=1, window=window) for window in (1, 64, 256, 1024)),
    fill=Case(batch=1, window=1024),
    readers=(1, 4),
)
BATCHES: Final = Part(
    appends=tuple(Case(batch=256, window=window) for window in (4, 16, 128)),
    fill=Case(batch=256, window=16),
    readers=(1, 4),
)
"""A window of 128 is 32 MiB: what our client and Kafka's have under way at most by default."""
_KAFKA_SINGLES: Final = replace(SINGLES, readers=(1,))
"""They are in one partition, which only one reader can read."""
_NATS_BATCHES: Final = replace(BATCHES, appends=BATCHES.appends[:2])
"""A server takes at most 50 atomic batches of a stream at once."""


def peer_rows(only: Sequence[str], turns: Turns, scratch: Path, logs: Path) -> Iterator[Row]:
    """Yield the rows of ours and of the chosen `PEERS`, measured in turns."""
    turns = replace(turns, most_disk_bytes=_MOST_DISK_BYTES)
    # No watermark: what the others leave on the disk would have our oldest messages dropped.
    ours = partial(Ours, {"disk_watermark_percent": "0"})
    chosen: dict[str, Callable[[], System]] = {"ours": ours, **{name: PEERS[name] for name in only}}
    contestants = {
        name: Contestant(make=make, measure=partial(_turn, parts=_parts(name), turns=turns))
        for name, make in chosen.items()
    }
    logs.mkdir(parents=True, exist_ok=True)
    yield from contest(contestants, turns, scratch, logs)


def lost_leader_rows(trials: Trials, scratch: Path, logs: Path) -> Iterator[Row]:
    """Yield a row for each system whose leader is killed."""
    for name, make in LOST_LEADERS.items():
        yield kill_row(make(), trials, scratch / name, logs / name, kind=PEER_FAILOVER)


def _parts(name: str) -> tuple[Part, Part]:
    """Return what is measured of a contestant: singles, then batches."""
    return (
        _KAFKA_SINGLES if name.startswith("kafka") else SINGLES,
        _NATS_BATCHES if name.startswith("nats") else BATCHES,
    )


def _turn(group: ProcessGroup, parts: Sequence[Part], turns: Turns) -> Iterator[Row]:
    group.load.run(_TURN_CASE, _TURN_S, node=group.wait_whole())
    for part in parts:
        for case in part.appends:
            yield _append(group, case, turns.seconds)
        group.load.run(part.fill, turns.seconds, node=group.wait_whole())
        for readers in part.readers:
            yield _read(group, part.fill.batch, readers, turns.seconds)


def _append(group: ProcessGroup, case: Case, seconds: float) -> Row:
    leader = group.wait_whole()
    group.load.run(case, _SETTLE_S, node=leader)
    how = {"kind": PEER_APPEND, "name": case.name, "node": leader}
    return _costed(group, case, seconds, late=case.window * case.batch, **how)


def _read(group: ProcessGroup, batch: int, readers: int, seconds: float) -> Row:
    """Read everything once; ours through a follower, others where their clients go."""
    follower = (group.wait_whole() + 1) % len(group.specs)
    name = f"1 KiB, batch {batch}, {readers} reader{'s' if readers > 1 else ''}"
    how = {"kind": PEER_READ, "name": name, "node": follower, "mode": "read"}
    return _costed(group, Case(batch=batch, window=readers), seconds, late=0, **how)


def _costed(group: ProcessGroup, case: Case, seconds: float, *, late: int, **how: Any) -> Row:
    """Return the row with what 100,000 messages cost, and what others took of the cores."""
    busy, began_s = Busy(), time.monotonic()
    row = measured(group, group.load, case, seconds, **how)
    busy_s, took_s = busy.seconds(), time.monotonic() - began_s
    found = costs(row.figures, late=late, busy_s=busy_s, took_s=took_s)
    return replace(row, figures={**row.figures, **found})


def costs(
    figures: Mapping[str, float], *, late: int, busy_s: float, took_s: float
) -> dict[str, float]:
    """Return CPU seconds of 100,000 messages, of all nodes and of the client, and others' cores.

    Args:
        figures: A row's.
        late: Messages under way at the end: no part of a rate, but paid for.
        busy_s: What all cores of the machine worked meanwhile.
        took_s: How long that was.
    """
    nodes_s = sum(v for k, v in figures.items() if k.startswith("node") and k.endswith("_cpu_s"))
    client_s = figures.get("client_cpu_s", 0.0)
    others = {"others_cores": max(0.0, busy_s - nodes_s - client_s) / took_s}
    if not figures["messages"]:
        return others
    each_s = 100_000 / (figures["messages"] + late)
    return {"nodes_100k_s": nodes_s * each_s, "client_100k_s": client_s * each_s} | others

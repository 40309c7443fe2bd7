"""What planning a query costs: CPU seconds and memory for a backup of 1 TB, and what is then read.

    .venv/bin/python -m e2e.bench.planning

The backup is faked: chunks of 16,000 rows, whose objects are not there, so that a plan which opened
one would fail. `make bench-pipeline` runs it in a process of its own, since the figure for memory
is the highest that the process ever had.
"""

from __future__ import annotations

import argparse
import json
import pickle
import random
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from dledger_pipeline.archive import catalog
from dledger_pipeline.archive.archive import ManifestRow, object_name
from dledger_pipeline.archive.catalog import _encode, _stored
from dledger_pipeline.archive.manifest import Manifest, RestorePoint, first_manifest
from dledger_pipeline.archive.places import PlacesRow, QueueSpan, places_name
from dledger_pipeline.archive.planning import archived_messages
from dledger_pipeline.archive.selection import Selection
from dledger_pipeline.archive.topics import SeenTopics, Topics
from dledger_pipeline.object_store.store import Store

OBJECTS: Final = 16_000
_OBJECT_BYTES: Final = 64 << 20
_ENTRIES: Final = 1000
_GROUP_ID: Final = "00000000-0000-4000-8000-000000000000"
_TOPICS: Final = 6
_QUEUES: Final = 4
_RARE: Final = _TOPICS + 1
_SECOND_MS: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """What planning cost.

    Attributes:
        what: Which query.
        cpu_s: From loading the manifest to the last task, pickled.
        max_rss_bytes: Of this process, until then.
        ranges: How many objects of data are to be read.
    """

    what: str
    cpu_s: float
    max_rss_bytes: int
    ranges: int


def planned(directory: Path, objects: int = OBJECTS) -> list[Planned]:
    """Plan some queries over a faked backup, which is written to *directory*."""
    store = Store.open(f"file://{directory}")
    _fake(store, objects)
    middle_ms = objects // 2 * _SECOND_MS
    queries = {
        "everything": Selection(),
        "1 % of the time": Selection(
            first_ms=middle_ms, last_ms=middle_ms + objects * _SECOND_MS // 100 - 1
        ),
        "a rare topic": Selection(topic="rare"),
        "one queue": Selection(topic="topic-1", queue_id=1),
    }
    return [_planned(store, what, selection) for what, selection in queries.items()]


def _planned(store: Store, what: str, selection: Selection) -> Planned:
    began_s = time.process_time()
    tasks = [
        pickle.dumps(each) for each in archived_messages(store, catalog.load(store), selection)
    ]
    return Planned(
        what=what,
        cpu_s=time.process_time() - began_s,
        max_rss_bytes=_max_rss_bytes(),
        ranges=len(tasks),
    )


def _max_rss_bytes() -> int:
    """Return the most memory this process had; getrusage may tell that of its parent."""
    status = Path("/proc/self/status").read_text("ascii")
    line = next(each for each in status.splitlines() if each.startswith("VmHWM:"))
    return int(line.split()[1]) << 10


def _fake(store: Store, objects: int) -> None:
    """Publish a manifest of objects that are not there."""
    rng = random.Random(1)
    rows = [_row(rng, number) for number in range(objects)]
    names = {generation: f"topic-{generation}" for generation in range(1, _RARE)}
    last = rows[-1].last_index
    seen = SeenTopics(applied_index=last, made=_RARE, names=names | {_RARE: "rare"})
    made = first_manifest("bench", _GROUP_ID, rows)
    manifest = Manifest(
        number=1,
        group=made.group,
        group_id=made.group_id,
        as_of_ms=objects * _SECOND_MS,
        chunks=tuple(_stored(store, made, chunk) for chunk in made.chunks),
        points=(RestorePoint(last_index=last, kept_from=1, as_of_ms=objects * _SECOND_MS),),
        topics=Topics().seen(seen),
    )
    store.create(f"{_GROUP_ID}/{manifest.name}", _encode(manifest, None))


def _row(rng: random.Random, number: int) -> ManifestRow:
    first, last = number * _ENTRIES + 1, (number + 1) * _ENTRIES
    sha256 = f"{number:064x}"
    every = [(topic, queue) for topic in range(1, _RARE) for queue in range(_QUEUES)]
    used = sorted(rng.sample(every, rng.randint(8, len(every))))
    spans = [QueueSpan(t, q, q, number * 10_000, number * 10_000 + 9_000) for t, q in used]
    if number % 1000 == 500:
        spans.append(QueueSpan(_RARE, 0, 0, number, number + 1))
    places = PlacesRow(
        name=places_name(first, last, sha256),
        object_bytes=200_000,
        sha256=sha256,
        rows=60_000,
        spans=tuple(spans),
    )
    return ManifestRow(
        name=object_name(first, last, sha256),
        first_index=first,
        last_index=last,
        records=_ENTRIES,
        record_bytes=_OBJECT_BYTES,
        object_bytes=_OBJECT_BYTES // 2,
        sha256=sha256,
        first_chain=number,
        last_chain=number + 1,
        last_term=1,
        first_timestamp_ms=number * _SECOND_MS + 1,
        last_timestamp_ms=(number + 1) * _SECOND_MS,
        places=places,
    )


def main() -> None:
    """Print a line for each query, or one JSON list of all."""
    parser = argparse.ArgumentParser(description="What planning a query of 1 TB costs.")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        found = planned(Path(directory))
    if args.json:
        print(json.dumps([asdict(one) for one in found]))
        return
    for one in found:
        print(
            f"{one.what}: {one.cpu_s:.1f} CPU s, {one.max_rss_bytes / 1e6:.0f} MB at most, "
            f"{one.ranges} of {OBJECTS} objects"
        )


if __name__ == "__main__":
    main()

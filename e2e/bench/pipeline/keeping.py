"""Lines about a store over years, played: our own code, a real directory, a clock that is made up.

Hourly backups of a small log, each with what the job does behind its tasks: small objects merged, a
base each day, the manifest, and what expires. A store's clock is the time of its newest object, so
files get the times that the played clock shows.
"""

from __future__ import annotations

import os
import random
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Final

from crc32c import crc32c

from dledger.broker.state import BrokerState
from dledger.store.format import Base, encode_records
from dledger.store.snapshot_file import Snapshot, encode_snapshot
from dledger.types import Entry, EntryKind
from dledger_pipeline.archive.archive import ManifestRow, object_name, read_range, write_range
from dledger_pipeline.archive.bases import write_base
from dledger_pipeline.archive.catalog import newest, publish
from dledger_pipeline.archive.expiry import Retention, expire
from dledger_pipeline.archive.manifest import (
    BaseRow,
    Manifest,
    RestorePoint,
    first_manifest,
    needs_base,
    small_tail,
)
from dledger_pipeline.jobs.backup import BASE_EVERY_HOURS
from dledger_pipeline.log.export_client import TARGET_BYTES
from dledger_pipeline.log.records import RecordBytes, parse
from dledger_pipeline.object_store.store import Store
from e2e.bench.pipeline.measuring import Cost, Figure, check_whole, cost
from e2e.bench.pipeline.subject import Bench

_BEGAN_MS: Final = 1_767_225_600_000
_HOUR_MS: Final = 3_600_000
_HOURS: Final = 1000
_KEEP_DAYS: Final = 7.0
_STEADY_HOURS: Final = 8 * 24
_WEEK_HOURS: Final = 7 * 24
_NODES_KEEP_HOURS: Final = 1
"""It is kept beside the 7 days, since a restore to then needs it."""
_PER_HOUR: Final = 4
_BODY_BYTES: Final = 1000
_MANY: Final = 160_000


def constant(bench: Bench) -> Figure:
    """Objects and bytes of a store that keeps 7 days: its last week, beside the week after day 8.

    Weeks' means: from hour to hour they go up and down with what is merged, as the parts say.
    """
    played = _Played(Store.open(bench.emptied("played").as_uri()), bench.disk / "played")
    took = cost(played.play)
    check_whole("the played store", len(played.sizes), _HOURS)
    steady = played.sizes[_STEADY_HOURS:]
    objects, sizes = [count for count, _ in steady], [each for _, each in steady]
    ratios = [mean(each[-_WEEK_HOURS:]) / mean(each[:_WEEK_HOURS]) for each in (objects, sizes)]
    parts = {
        "objects": ratios[0],
        "bytes": ratios[1],
        "fewestObjects": min(objects),
        "mostObjects": max(objects),
        "leastBytes": min(sizes),
        "mostBytes": max(sizes),
        "recordBytesOf7Days": played.record_bytes / _HOURS * _WEEK_HOURS,
    }
    return Figure(rounds=(round(max(ratios), 3),), wall_s=(took.wall_s,), parts=parts)


@dataclass
class _Played:
    """A group whose log grows by some entries an hour, and its store below *path*."""

    store: Store
    path: Path
    group_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    sizes: list[tuple[int, int]] = field(default_factory=list)
    hour: int = 0
    record_bytes: int = 0
    firsts: list[int] = field(default_factory=list)
    _times: dict[Path, int] = field(default_factory=dict)
    _rng: random.Random = field(default_factory=lambda: random.Random(6))

    def play(self) -> None:
        """Make all backups; note objects and bytes behind each."""
        retention = Retention(keep_days=_KEEP_DAYS)
        for self.hour in range(_HOURS):
            publish(self.store, self._next(newest(self.store, self.group_id)))
            self._age()
            expire(self.store, self.group_id, retention, dry_run=False, told=lambda _: None)
            self._age()
            listed = list(self.store.listed())
            self.sizes.append((len(listed), sum(each.size_bytes for each in listed)))

    @property
    def _now_ms(self) -> int:
        return _BEGAN_MS + self.hour * _HOUR_MS

    def _next(self, previous: Manifest | None) -> Manifest:
        """Return the next manifest, as `jobs.backup` makes it."""
        first = previous.last_index + 1 if previous else 1
        chain = previous.last_chain if previous else 0
        self.firsts.append(first)
        records = self._records(first, chain)
        self.record_bytes += len(records.data)
        files = previous.files if previous else ()
        replacing = small_tail(files, len(records.data), TARGET_BYTES)
        tail = files[len(files) - replacing :]
        batches = [
            batch
            for row in tail
            for batch in read_range(self.store, self.group_id, row).to_batches()
        ]
        row = write_range(
            self.store,
            self.group_id,
            [*batches, parse(records)],
            previous_chain=tail[0].first_chain if tail else chain,
        )
        kept_from = self.firsts[max(0, self.hour - _NODES_KEEP_HOURS)]
        point = RestorePoint(last_index=row.last_index, kept_from=kept_from, as_of_ms=self._now_ms)
        if previous is None:
            return first_manifest("bench", self.group_id, [row]).seen(point)
        base = self._base(previous, kept_from)
        return previous.followed_by([row], replacing=replacing, base=base).seen(point)

    def _base(self, previous: Manifest, kept_from: int) -> BaseRow | None:
        """Write a base of the newest entry that is backed up, if it is time for one."""
        wanted = needs_base(
            previous,
            first_available=kept_from,
            now_ms=self._now_ms,
            every_hours=BASE_EVERY_HOURS,
        )
        if not wanted:
            return None
        state = BrokerState()
        state.applied_index = previous.last_index
        snapshot = Snapshot(
            group_id=self.group_id,
            applied=Base(index=previous.last_index, term=previous.term, chain=previous.last_chain),
            base=Base(index=kept_from - 1, term=min(1, kept_from - 1), chain=0),
            memberships=(),
            body=b"",
        )
        data = b"".join(encode_snapshot(snapshot, state.freeze().pieces()))
        return write_base(self.store, self.group_id, data, now_ms=self._now_ms)

    def _records(self, first: int, chain: int) -> RecordBytes:
        """Return the entries of this hour."""
        entries = []
        for index in range(first, first + _PER_HOUR):
            data = self._rng.randbytes(_BODY_BYTES)
            entries.append(
                Entry(
                    term=1,
                    index=index,
                    kind=EntryKind.DATA,
                    timestamp_ms=self._now_ms,
                    crc32c=crc32c(data),
                    data=data,
                )
            )
        encoded = encode_records(entries, chain=chain, position=0)
        return RecordBytes(
            segment="played",
            offset=0,
            data=b"".join(encoded.buffers),
            positions=None,
            previous_chain=chain,
            first_index=first,
        )

    def _age(self) -> None:
        """Give what was written since the last time the time of the played clock."""
        seen = {}
        for path in self.path.rglob("*"):
            if not path.is_file():
                continue
            if self._times.get(path) != path.stat().st_mtime_ns:
                os.utime(path, ns=(self._now_ms * 1_000_000,) * 2)
            seen[path] = path.stat().st_mtime_ns
        self._times = seen


def large(bench: Bench) -> Figure:
    """MB that a backup of one more object writes beside it, where the store has 160,000."""
    path, group_id = bench.emptied("large"), str(uuid.uuid4())
    store = Store.open(path.as_uri())
    rows = list(_rows(_MANY))
    data = path / group_id / "data"
    data.mkdir(parents=True)
    for row in rows:
        (path / group_id / row.name).write_bytes(b"x")
    *most, last = rows
    point = RestorePoint(last_index=most[-1].last_index, kept_from=1, as_of_ms=_BEGAN_MS)
    found: list[Manifest] = []
    first = cost(
        lambda: found.append(publish(store, first_manifest("bench", group_id, most).seen(point)))
    )
    known = {each.name for each in store.listed(group_id)}
    point = RestorePoint(last_index=last.last_index, kept_from=1, as_of_ms=_BEGAN_MS + _HOUR_MS)
    second: Cost = cost(lambda: publish(store, found[0].followed_by([last]).seen(point)))
    written = [each for each in store.listed(group_id) if each.name not in known]
    check_whole("the manifest", len(written), 2)
    parts = {
        "firstPublishCpuS": round(first.cpu_s, 2),
        "publishCpuS": round(second.cpu_s, 2),
        "objectsWritten": len(written),
    }
    size_mb = sum(each.size_bytes for each in written) / 1e6
    return Figure(rounds=(round(size_mb, 3),), wall_s=(round(second.wall_s, 2),), parts=parts)


def _rows(count: int) -> Iterator[ManifestRow]:
    """Yield the rows of objects with a million entries in all that follow each other."""
    rng = random.Random(7)
    chain = 0
    for number in range(count):
        first, last = number * 250 + 1, (number + 1) * 250
        sha256, previous, chain = rng.randbytes(32).hex(), chain, rng.getrandbits(32)
        yield ManifestRow(
            name=object_name(first, last, sha256),
            first_index=first,
            last_index=last,
            records=250,
            record_bytes=64_000_000 + rng.randrange(3_000_000),
            object_bytes=1,
            sha256=sha256,
            first_chain=previous,
            last_chain=chain,
            last_term=1 + number // 1000,
            first_timestamp_ms=_BEGAN_MS + 1000 * number + rng.randrange(900),
            last_timestamp_ms=_BEGAN_MS + 1000 * number + 1000,
        )

"""What makes a backup: which objects hold which entries, and which snapshots stand for older ones.

A manifest lists the archived ranges of one group, ascending; where nodes had dropped entries before
they were backed up there is a gap. A `BaseRow` is a snapshot of the group's state: with it, a
restore needs only the entries from its `first_index` on. Values and decisions only; `catalog` reads
and writes them. Used by all jobs and the data source.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import chain, pairwise
from typing import Final

from dledger.errors import InvalidArgument
from dledger_pipeline.archive.archive import ManifestRow
from dledger_pipeline.archive.erasures import ErasuresRow
from dledger_pipeline.archive.places import PlacesRow, QueueSpan
from dledger_pipeline.archive.selection import MAX_INDEX
from dledger_pipeline.archive.topics import Topics
from dledger_pipeline.errors import BrokenBackup, TargetNotAvailable

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MERGED_MS: Final = 86_400_000
OBJECT_KINDS: Final = ("data", "places", "erasures", "bases", "chunks")
"""The folders with what a manifest names."""
CHUNK_FILES: Final = 1000
"""Rows of a full chunk: some 100 KB compressed, which is rewritten until the chunk is full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseRow:
    """One snapshot of the group's state.

    Attributes:
        name: The object, relative to the group's folder: ``bases/<applied>-<sha256>.snap``.
        first_index: The oldest entry that a node with this state needs.
        applied_index: The newest entry that the state includes.
        applied_term: That entry's term.
        applied_chain: The chain CRC of that entry's record.
        object_bytes: Length of the object.
        sha256: Of the object, lower hex.
        as_of_ms: When it was taken, by the clock of `Manifest.as_of_ms`.
        kept: Of which queues the state refers to copies of messages; None: too many to say.
    """

    name: str
    first_index: int
    applied_index: int
    applied_term: int
    applied_chain: int
    object_bytes: int
    sha256: str
    as_of_ms: int
    kept: tuple[QueueSpan, ...] | None = ()

    def begins_in(self, first: int, last: int) -> bool:
        """Whether entries [*first*, *last*], or what follows them, begin the log of this state."""
        return first <= self.first_index <= last + 1


def base_name(applied_index: int, sha256: str) -> str:
    """Return the name, within the group's folder, of the base with this state."""
    return f"bases/{applied_index:020}-{sha256}.snap"


@dataclass(frozen=True, slots=True, kw_only=True)
class RestorePoint:
    """What a backup saw of the group; the next one is a point only if it saw another *kept_from*.

    Attributes:
        last_index: The newest entry backed up then.
        kept_from: The oldest entry whose messages nodes still kept.
        as_of_ms: See `Manifest.as_of_ms`.
    """

    last_index: int
    kept_from: int
    as_of_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkRow:
    """Where the rows of some consecutive files are, and what they amount to.

    Attributes:
        name: The object in the group's folder: ``chunks/<first>-<last>-<sha256>.json.zst``.
        raw_bytes: Length of its JSON before compression.
        files: How many rows.
    """

    name: str
    sha256: str
    object_bytes: int
    raw_bytes: int
    files: int
    first_index: int
    last_index: int


def chunk_name(first_index: int, last_index: int, sha256: str) -> str:
    """Return the name, within the group's folder, of the chunk with these rows."""
    return f"chunks/{first_index:020}-{last_index:020}-{sha256}.json.zst"


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some consecutive files; *row* is None until they are stored as an object of their own."""

    files: tuple[ManifestRow, ...]
    row: ChunkRow | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """From where a log is restored: *base* (None: from nothing) and entries from *first_index*."""

    base: BaseRow | None
    first_index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageFiles:
    """The files that messages are read from, with *base* (None: nothing) before the first one."""

    base: BaseRow | None
    files: tuple[ManifestRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A backup of one group.

    Attributes:
        number: Which of the group's backups this is, counting from 1.
        group: The BrokerGroup's name.
        group_id: The group's UUID.
        as_of_ms: Everything that the group had committed by then is in this backup: the leader's
            log clock, Unix milliseconds, never less than in the manifest before.
        chunks: The ranges of entries, ascending; at least one.
        bases: The snapshots, ascending.
        points: What earlier backups and this one saw, ascending; at least one.
        topics: The topics that backups saw; the newest ones may not have been told any.
    """

    number: int
    group: str
    group_id: str
    as_of_ms: int
    chunks: tuple[Chunk, ...]
    bases: tuple[BaseRow, ...] = ()
    points: tuple[RestorePoint, ...] = ()
    topics: Topics = Topics()  # noqa: RUF009, it is frozen

    def __post_init__(self) -> None:
        """Refuse a manifest without files, which has no first and last index."""
        if not self.chunks or not all(chunk.files for chunk in self.chunks):
            raise ValueError("a manifest has at least one file")

    @property
    def name(self) -> str:
        """The object's name within the group's folder."""
        return manifest_name(self.number)

    @property
    def files(self) -> tuple[ManifestRow, ...]:
        """All ranges, ascending."""
        return tuple(row for chunk in self.chunks for row in chunk.files)

    @property
    def first_index(self) -> int:
        """The first entry of the backup."""
        return self.chunks[0].files[0].first_index

    @property
    def _last(self) -> ManifestRow:
        return self.chunks[-1].files[-1]

    @property
    def last_index(self) -> int:
        """The last entry of the backup."""
        return self._last.last_index

    @property
    def last_chain(self) -> int:
        """The chain CRC of the last entry's record, which the next backup continues."""
        return self._last.last_chain

    @property
    def term(self) -> int:
        """The term of the last entry."""
        return self._last.last_term

    @property
    def records(self) -> int:
        """The number of entries."""
        return sum(row.records for row in self.files)

    @property
    def record_bytes(self) -> int:
        """What the entries take in segments, headers and padding included."""
        return sum(row.record_bytes for row in self.files)

    @property
    def object_bytes(self) -> int:
        """What the objects take in the store, bases, places and erasures included."""
        return sum(row.object_bytes for row in (*self.files, *self.bases, *self._beside))

    @property
    def _beside(self) -> list[PlacesRow | ErasuresRow]:
        pairs = chain.from_iterable((row.places, row.erasures) for row in self.files)
        return [each for each in pairs if each is not None]

    @property
    def objects(self) -> dict[str, int]:
        """Length by name of every object that this backup needs, but for the manifest itself."""
        chunks = [each.row for each in self.chunks if each.row is not None]
        rows = (*self.files, *self.bases, *self._beside, *chunks)
        return {row.name: row.object_bytes for row in rows}

    def runs(self) -> list[tuple[int, int]]:
        """Return the stretches [first, last] of entries without a gap, ascending."""
        return stretches(self.files)

    def gaps(self) -> list[tuple[int, int]]:
        """Return what is missing between the runs: nodes had dropped it before it was backed up."""
        return [(before[1] + 1, run[0] - 1) for before, run in pairwise(self.runs())]

    # -- making the next one -------------------------------------------------------------------

    def followed_by(
        self, rows: Sequence[ManifestRow], *, replacing: int = 0, base: BaseRow | None = None
    ) -> Manifest:
        """Return the next manifest, with *rows* in place of the last *replacing* files, and *base*.

        The caller sets `as_of_ms` and the new restore point.
        """
        files, chunks, done = self.files[: len(self.files) - replacing], [], 0
        for chunk in self.chunks:
            if done + len(chunk.files) > len(files):
                break
            chunks.append(chunk)
            done += len(chunk.files)
        rest = [*files[done:], *rows]
        if rest and chunks and len(chunks[-1].files) < CHUNK_FILES:
            rest = [*chunks.pop().files, *rest]
        bases = self.bases if base is None else (*self.bases, base)
        return replace(
            self,
            number=self.number + 1,
            chunks=(*chunks, *chunked(rest)),
            bases=bases,
        )

    def seen(self, point: RestorePoint) -> Manifest:
        """Return this manifest with what its backup saw of the group."""
        is_known = self.points and self.points[-1].kept_from == point.kept_from
        points = self.points if is_known else (*self.points, point)
        return replace(self, as_of_ms=point.as_of_ms, points=points)

    def without_before(self, time_ms: int) -> Manifest:
        """Drop what no restore to *time_ms* or later needs."""
        old = [base for base in self.bases if base.as_of_ms <= time_ms]
        if not old:
            return self
        start = old[-1]
        chunks = [
            chunk
            if chunk.files[0].last_index >= start.first_index
            else Chunk(tuple(row for row in chunk.files if row.last_index >= start.first_index))
            for chunk in self.chunks
        ]
        later = [point for point in self.points if point.last_index >= start.applied_index]
        before = self.points[: len(self.points) - len(later)]
        return replace(
            self,
            chunks=tuple(chunk for chunk in chunks if chunk.files),
            bases=tuple(base for base in self.bases if base.applied_index >= start.applied_index),
            points=(*before[-1:], *later),  # the one before holds until the first later one
        )

    # -- restoring -----------------------------------------------------------------------------

    def start_for(self, index: int) -> Start:
        """Return from where to restore the log up to *index*.

        That is the newest base at or below it, and the entries that nodes still kept then.

        Raises:
            TargetNotAvailable: Entries are missing between every base and *index*.
        """
        run = next((run for run in self.runs() if run[0] <= index <= run[1]), None)
        if run is not None:
            for base in reversed(self.bases):
                if base.applied_index <= index and base.begins_in(*run):
                    kept_from = max(
                        (one.kept_from for one in self.points if one.last_index <= index),
                        default=0,
                    )
                    kept_from = min(kept_from, base.applied_index + 1)
                    return Start(base=base, first_index=self._file_start(base, kept_from))
            if run[0] == 1:
                return Start(base=None, first_index=1)
        raise TargetNotAvailable(f"entry {index} cannot be restored: {self.range_told()}")

    def _file_start(self, base: BaseRow, index: int) -> int:
        """Return where the file with entry *index* begins, but nothing that *base* has dropped."""
        starts = [row.first_index for row in self.files if row.first_index <= index]
        return max([base.first_index, *starts[-1:]])

    def restorable(self) -> list[tuple[int, int]]:
        """Return the stretches [first, last] of indexes that a restore may end at, ascending."""
        found: list[tuple[int, int]] = []
        for first, last in self.runs():
            starts = [
                base.applied_index
                for base in self.bases
                if base.begins_in(first, last) and base.applied_index <= last
            ]
            if first == 1 or starts:
                found.append((1 if first == 1 else max(min(starts), first), last))
        return found

    def message_files(self, first_index: int = 1, last_index: int = MAX_INDEX) -> MessageFiles:
        """Return what to read for the messages in the entries [*first_index*, *last_index*].

        That is the newest run that begins at or below *last_index*. A message's queue offset
        follows from the state before it; older ones are known if the state still refers to them.
        So the base is the newest that includes nothing of the range, else the run's oldest.
        """
        first, last = self.run_up_to(last_index)
        bases = self.bases_of(first, last)
        before = [one for one in bases if one.applied_index < min(first_index, last_index + 1)]
        base = before[-1] if before else self.stands_before(first, last)
        start = before[-1].applied_index + 1 if before else first
        end = min(last, last_index)
        files = [row for row in self.files if start <= row.last_index and row.first_index <= end]
        return MessageFiles(base=base, files=tuple(files))

    def bases_of(self, first: int, last: int) -> list[BaseRow]:
        """Return the bases that stand for older entries in the run [*first*, *last*], ascending."""
        return [
            base
            for base in self.bases
            if base.begins_in(first, last) and base.applied_index <= last
        ]

    def stands_before(self, first: int, last: int) -> BaseRow | None:
        """Return the base that stands for all before the run [*first*, *last*].

        None before entry 1, and for entries from that on.
        """
        return None if first == 1 else next(iter(self.bases_of(first, last)), None)

    def files_in(self, first_index: int, last_index: int) -> tuple[ManifestRow, ...]:
        """Return the files that have any of the entries [*first_index*, *last_index*]."""
        return tuple(
            r for r in self.files if first_index <= r.last_index and r.first_index <= last_index
        )

    def run_up_to(self, last_index: int) -> tuple[int, int]:
        """Return the newest run that begins at or below *last_index*, else the oldest."""
        runs = self.runs()
        return next((run for run in reversed(runs) if run[0] <= last_index), runs[0])

    def range_told(self) -> str:
        """Return what can be restored, for people."""
        ranges = ", ".join(f"[{first}, {last}]" for first, last in self.restorable())
        oldest = min((base.as_of_ms for base in self.bases), default=0)
        if self.first_index == 1:
            oldest = self.first_timestamp_ms
        return (
            f"this backup restores to an entry in {ranges or 'none'}, "
            f"or to a time in [{told_time(oldest)}, {told_time(self.as_of_ms)}]"
        )

    @property
    def first_timestamp_ms(self) -> int:
        """The lowest timestamp of any entry, Unix milliseconds; 0 if none has one."""
        return min(
            (row.first_timestamp_ms for row in self.files if row.first_timestamp_ms), default=0
        )

    @property
    def last_timestamp_ms(self) -> int:
        """The highest timestamp of any entry, Unix milliseconds; 0 if none has one."""
        return max(row.last_timestamp_ms for row in self.files)


def manifest_name(number: int) -> str:
    """Return the name, within the group's folder, of a group's backup *number*."""
    return f"manifests/{number:010}.json"


def first_manifest(
    group: str, group_id: str, rows: Sequence[ManifestRow], base: BaseRow | None = None
) -> Manifest:
    """Return a group's first manifest. Raises ValueError without rows."""
    return Manifest(
        number=1,
        group=group,
        group_id=group_id,
        as_of_ms=0,
        chunks=tuple(chunked(rows)),
        bases=() if base is None else (base,),
    )


def chunked(rows: Sequence[ManifestRow]) -> Iterator[Chunk]:
    """Yield *rows* in chunks that are full, but for the last."""
    for at in range(0, len(rows), CHUNK_FILES):
        yield Chunk(tuple(rows[at : at + CHUNK_FILES]))


def stretches(files: Iterable[ManifestRow]) -> list[tuple[int, int]]:
    """Return the stretches [first, last] of entries that *files*, ascending, have without a gap."""
    found: list[tuple[int, int]] = []
    for row in files:
        if found and row.first_index == found[-1][1] + 1:
            found[-1] = (found[-1][0], row.last_index)
        else:
            found.append((row.first_index, row.last_index))
    return found


def small_tail(files: Sequence[ManifestRow], new_bytes: int, target_bytes: int) -> int:
    """Return how many of the last *files* to write anew, together with *new_bytes* of records.

    A file is taken along while it is at most twice what is written anyway: so each entry is written
    again some log2(target / backup) times, and as many small files stay. None is taken that begins
    a day before the last one ends: a file expires as a whole.
    """
    count, size_bytes, follows = 0, new_bytes, None
    oldest_ms = files[-1].last_timestamp_ms - _MERGED_MS if files else 0
    for row in reversed(files):
        fits = row.record_bytes <= 2 * size_bytes and row.record_bytes + size_bytes <= target_bytes
        is_old = 0 < row.first_timestamp_ms < oldest_ms
        if not fits or is_old or follows not in (None, row.last_index + 1):
            break
        count, size_bytes, follows = count + 1, size_bytes + row.record_bytes, row.first_index
    return count


def check_joins(manifest: Manifest) -> None:
    """Check that files ascend, and join by index and chain where there is no gap.

    Raises:
        BrokenBackup: Names the file, or the base, that does not fit.
    """
    files = manifest.files
    for row in files:
        if row.records != row.last_index - row.first_index + 1 or row.records < 1:
            raise BrokenBackup(row.name, f"it states {row.records} entries")
    for before, row in pairwise(files):
        if row.first_index <= before.last_index:
            raise BrokenBackup(row.name, f"expected entry {before.last_index + 1} first")
        if row.first_index == before.last_index + 1 and row.first_chain != before.last_chain:
            raise BrokenBackup(
                row.name,
                f"it follows chain CRC {row.first_chain:#010x}, "
                f"the backup has {before.last_chain:#010x}",
            )
    for first, last in manifest.runs():
        has_base = any(base.begins_in(first, last) for base in manifest.bases)
        if first > 1 and not has_base:
            raise BrokenBackup(manifest.name, f"no base stands for what is before entry {first}")
    _check_chains(manifest)


def _check_chains(manifest: Manifest) -> None:
    """Check bases against the chain CRCs that are known at the ends of files."""
    chains = {row.last_index: row.last_chain for row in manifest.files}
    for base in manifest.bases:
        chain = chains.get(base.applied_index, base.applied_chain)
        if chain != base.applied_chain or base.first_index > base.applied_index + 1:
            raise BrokenBackup(
                base.name, f"entry {base.applied_index} has chain CRC {chain:#010x} in the backup"
            )


def gap_before(first_index: int, previous: Manifest) -> range:
    """Return the entries between *previous* and a log that begins with *first_index*."""
    return range(previous.last_index + 1, first_index)


def needs_base(
    previous: Manifest | None, *, first_available: int, now_ms: int, every_hours: float
) -> str:
    """Return why a backup has to begin with a new base; "" if it does not.

    Args:
        previous: The newest backup, if there is one.
        first_available: The oldest entry that the node keeps.
        now_ms: The leader's log clock.
        every_hours: How old the newest base may become.
    """
    if previous is None:
        return f"nodes keep entries from {first_available} on" if first_available > 1 else ""
    if gap := gap_before(first_available, previous):
        return f"nodes have dropped entries [{gap[0]}, {gap[-1]}], which were not backed up"
    newest_ms = previous.bases[-1].as_of_ms if previous.bases else previous.points[0].as_of_ms
    if now_ms - newest_ms >= every_hours * 3_600_000:
        return f"the last one is older than {every_hours:g} h"
    return ""


def told_time(time_ms: int) -> str:
    """Return a time as in RFC 3339, UTC."""
    moment = datetime.fromtimestamp(time_ms / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def time_ms(text: str, *, up: bool = False) -> int:
    """Return the Unix milliseconds of a time in RFC 3339, rounded down, or *up*.

    Raises:
        InvalidArgument: It is none, or has no time zone.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidArgument(f"{text!r} is not an RFC 3339 time") from None
    if moment.tzinfo is None:
        raise InvalidArgument(f"{text!r} has no time zone; add Z for UTC")
    since, ms = moment - _EPOCH, timedelta(milliseconds=1)
    return -(-since // ms) if up else since // ms

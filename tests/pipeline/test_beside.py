"""Backups, gc and restores beside each other: the real jobs, one call to the store at a time.

Each job runs in a thread of its own and waits before each call to the store, in a directory of this
machine, until it is told to go on; which one goes on is drawn by Hypothesis, and so is when entries
are written, dropped by nodes, or a job is killed. Only the nodes are not real: a log in memory.

The model is the list of backups that were said to be complete. What must hold at any time: the
newest manifest is theirs or newer, and it has all its objects; a restore that takes less than a day
finds all that it reads; whatever is kept restores to the very state that the whole log gives.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from crc32c import crc32c
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dledger.broker.commands import CreateTopic, Retain
from dledger.broker.message import Message
from dledger.broker.state import BrokerState
from dledger.files.files import RealFiles
from dledger.store.format import Base
from dledger.store.snapshot_file import Snapshot, encode_snapshot
from dledger.store.snapshot_files import SNAPSHOT_DIRECTORY, SnapshotFiles
from dledger.types import Entry, EntryKind
from dledger_pipeline.archive import catalog
from dledger_pipeline.archive.bases import read_base
from dledger_pipeline.archive.expiry import Retention, expire
from dledger_pipeline.archive.manifest import Manifest
from dledger_pipeline.archive.prefetch import read_checked
from dledger_pipeline.archive.restore import restore
from dledger_pipeline.archive.topics import SeenTopics
from dledger_pipeline.errors import RangeNotAvailable, VersionConflict
from dledger_pipeline.jobs import backup as job
from dledger_pipeline.jobs.backup import BackupRequest
from dledger_pipeline.jobs.progress import Progress
from dledger_pipeline.log.export_client import ExportedPlaces, ExportPlan, ExportRange, Nodes
from dledger_pipeline.log.records import parse
from dledger_pipeline.log.segments import read_log
from dledger_pipeline.object_store.directory_objects import DirectoryObjects
from dledger_pipeline.object_store.store import Store
from tests.pipeline.entry_batches import produced
from tests.pipeline.logs import GROUP_ID, age, batches
from tests.pipeline.placing import seen, told

HOUR_MS = 3_600_000
KEEP_DAYS = 2.0
PER_RANGE = 4
MEMORY = Path("/dev/shm")  # noqa: S108 - a directory of its own there
LONGEST_HOURS = 22
"""A job that takes longer than a day is promised nothing; some of it is left for the last calls."""


class Killed(BaseException):
    """SIGKILL of a job."""


class Actor(threading.Thread):
    """A job that runs one call to the store at a time."""

    def __init__(self, root: Path, work: Callable[[Store], Any]) -> None:
        super().__init__(daemon=True)
        self._work = work
        self._go, self._stands = threading.Semaphore(0), threading.Semaphore(0)
        self._killed = False
        self.store = Store(f"file://{root}", None, Stepped(DirectoryObjects(root), self.wait))
        self.over = False
        self.hours = 0
        self.found: Any = None
        self.error: Exception | None = None
        self.start()

    def run(self) -> None:
        self._go.acquire()
        try:
            if not self._killed:
                self.found = self._work(self.store)
        except Killed:
            pass
        except Exception as error:  # noqa: BLE001 - whatever it is, the test looks at it
            self.error = error
        finally:
            self.over = True
            self._stands.release()

    def wait(self) -> None:
        """Stand still before a call to the store."""
        self._stands.release()
        self._go.acquire()
        if self._killed:
            raise Killed

    def step(self) -> None:
        """Let it go on up to its next call to the store, or to its end."""
        if not self.over:
            self._go.release()
            self._stands.acquire()

    def kill(self) -> None:
        """End it where it stands."""
        self._killed = True
        while not self.over:
            self.step()
        self.join()

    def finish(self) -> None:
        """Let it come to its end."""
        while not self.over:
            self.step()
        self.join()


class Stepped:
    """Objects that wait before each call; a listing is one call."""

    def __init__(self, objects: DirectoryObjects, wait: Callable[[], None]) -> None:
        self._objects = objects
        self._wait = wait

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._objects, name)

        def waiting(*args: Any) -> Any:
            self._wait()
            found = call(*args)
            return iter(list(found)) if name in {"list", "folders"} else found

        return waiting


@dataclass
class Group:
    """A group's log, and the nodes that keep entries from *first_index* on."""

    entries: list[Entry] = field(default_factory=list)
    state: BrokerState = field(default_factory=BrokerState)
    digests: dict[int, str] = field(default_factory=dict)
    rows: list[pa.RecordBatch] = field(default_factory=list)
    now_ms: int = 1_000_000 * HOUR_MS

    @property
    def last_index(self) -> int:
        return len(self.entries)

    @property
    def first_index(self) -> int:
        return self.state.first_index

    def append(self, command: bytes) -> None:
        entry = Entry(
            term=1,
            index=self.last_index + 1,
            kind=EntryKind.DATA,
            timestamp_ms=self.now_ms,
            crc32c=crc32c(command),
            data=command,
        )
        self.rows += batches([entry], chain=self.chain(self.last_index))
        self.entries.append(entry)
        self.state.apply(entry)
        self.digests[entry.index] = self.state.digest()

    def read(self, first: int, last: int) -> pa.RecordBatch:
        """Return entries as a node exports them."""
        return pa.concat_batches(self.rows[first - 1 : last])

    def chain(self, index: int) -> int:
        """Return the chain CRC of an entry."""
        return self.rows[index - 1]["chain_crc32c"][0].as_py() if index else 0

    def snapshot(self) -> bytes:
        """Return the file that a node writes of its state now."""
        last, before = self.last_index, self.first_index - 1
        snapshot = Snapshot(
            group_id=GROUP_ID,
            applied=Base(index=last, term=1, chain=self.chain(last)),
            base=Base(index=before, term=int(before > 0), chain=self.chain(before)),
            memberships=(),
            body=b"",
        )
        return b"".join(encode_snapshot(snapshot, self.state.freeze().pieces()))


@dataclass(frozen=True)
class Held:
    """Entries that a backup reads from a node."""

    group_id: str
    addresses: tuple[str, ...]
    previous_chain: int
    batch: pa.RecordBatch
    bytes_per_s: float = 0.0

    @property
    def first_index(self) -> int:
        return int(self.batch["index"][0].as_py())

    @property
    def last_index(self) -> int:
        return int(self.batch["index"][-1].as_py())

    def read(self) -> Iterator[pa.RecordBatch]:
        yield self.batch


class Exporter:
    """What a backup asks of a node."""

    def __init__(self, group: Group) -> None:
        self._group = group

    def __enter__(self) -> Exporter:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def plan(self, *, first_index: int = 0, target_bytes: int, **_: object) -> ExportPlan:
        group = self._group
        first, size = first_index or group.first_index, PER_RANGE
        if first < group.first_index:
            raise RangeNotAvailable(f"{first} is below {group.first_index}")
        ranges = tuple(
            ExportRange(
                first_index=at,
                last_index=min(at + size - 1, group.last_index),
                size_bytes=100 * size,
                previous_chain=group.chain(at - 1),
            )
            for at in range(first, group.last_index + 1, size)
        )
        return ExportPlan(
            group="orders",
            group_id=GROUP_ID,
            term=1,
            commit_index=group.last_index,
            first_available=group.first_index,
            kept_from=group.first_index,
            applied_index=group.last_index,
            ranges=ranges,
        )

    def snapshot(self, group_id: str, *, bytes_per_s: float) -> bytes:
        return self._group.snapshot()


def _here(*_: object) -> Callable[..., list[Any]]:
    return lambda tasks, work: [work(task) for task in tasks]


def _checked(store: Store) -> Manifest:
    """Read a whole backup, as a restore does."""
    manifest = catalog.load(store, GROUP_ID)
    for base in manifest.bases:
        read_base(store, GROUP_ID, base)
    for row in manifest.files:
        read_checked(store, GROUP_ID, row)
    return manifest


class Beside(RuleBasedStateMachine):
    """Jobs beside each other, on the store of one group."""

    def __init__(self) -> None:
        super().__init__()
        where = str(MEMORY) if MEMORY.is_dir() else None
        self.root = Path(tempfile.mkdtemp(prefix="dledger-beside-", dir=where))
        self.raw = Store.open(f"file://{self.root}/store")
        self.group = Group()
        self.actors: list[Actor] = []
        self.complete: list[tuple[int, int]] = []
        self.stack = ExitStack()
        for name, fake in (
            ("choose_nodes", lambda _: self._nodes()),
            ("ExportClient", lambda _: Exporter(self.group)),
            ("exported", self._exported),
            ("exported_places", self._places),
            ("exported_topics", self._topics),
            ("plain", _here),
        ):
            self.stack.enter_context(mock.patch.object(job, name, fake))
        self.group.append(CreateTopic(name="t", type="NORMAL", queues=2).encode())

    def _places(self, _: object, __: str, first: int, last: int) -> ExportedPlaces | None:
        group = self.group
        if group.first_index > first:
            return None
        return ExportedPlaces(
            places=told(group.state, first, last),
            kept_from=group.first_index,
            applied_index=group.last_index,
            topics_made=group.state.topics.made,
            topics={},
        )

    def _topics(self, *_: object) -> SeenTopics:
        return seen(self.group.state, self.group.last_index)

    def _nodes(self) -> Nodes:
        return Nodes(
            addresses=("node",),
            group_id=GROUP_ID,
            leader="node",
            leader_ms=self.group.now_ms,
            leader_commit_index=self.group.last_index,
        )

    def _exported(self, plan: ExportPlan, addresses: Sequence[str]) -> list[Held]:
        return [
            Held(
                GROUP_ID,
                tuple(addresses),
                each.previous_chain,
                self.group.read(each.first_index, each.last_index),
            )
            for each in plan.ranges
        ]

    # -- the group ---------------------------------------------------------------------------------

    @rule(count=st.integers(1, 6))
    def write(self, count: int) -> None:
        """Messages are committed."""
        for _ in range(count):
            message = Message(message_id=f"{self.group.last_index}", body=b"x", keys=("k",))
            self.group.append(produced(message, queue_id=self.group.last_index % 2))

    @rule(share=st.floats(0, 1))
    def forget(self, share: float) -> None:
        """Nodes drop some of their oldest entries."""
        first = self.group.first_index
        before = first + int(share * (self.group.last_index - first))
        self.group.append(Retain(before_index=before).encode())

    @rule(hours=st.sampled_from([1, 11, 21, 30, 60]))
    def rest(self, hours: int) -> None:
        """Time passes, for the group and for what is in the store."""
        self.group.now_ms += hours * HOUR_MS
        if (self.root / "store" / GROUP_ID / "data").is_dir():
            age(self.root / "store", hours / 24)
        for actor in self.actors:
            actor.hours += hours
            if actor.hours > LONGEST_HOURS:
                actor.kill()

    # -- the jobs ----------------------------------------------------------------------------------

    def _start(self, work: Callable[[Store], Any]) -> None:
        self.actors.append(Actor(self.root / "store", work))

    @precondition(lambda self: len(self.actors) < 3)
    @rule(fresh=st.integers(0, 3), keep_days=st.sampled_from([0.0, 0.0, KEEP_DAYS]))
    def backup(self, fresh: int, keep_days: float) -> None:
        """Begin one, which may delete behind it; of nothing new it writes what a killed one did."""
        self.write(fresh)

        def work(store: Store) -> tuple[str, Any]:
            retention = Retention(keep_days=keep_days)
            request = BackupRequest(endpoints=("node",), store=store, retention=retention)
            return "backup", job.backup(request, Progress("backup"))

        self._start(work)

    @precondition(lambda self: len(self.actors) < 3 and self.complete)
    @rule(keep_last=st.integers(0, 2))
    def gc(self, keep_last: int) -> None:
        """Begin one."""
        retention = Retention(keep_days=KEEP_DAYS, keep_last=keep_last)
        self._start(
            lambda store: (
                "gc",
                expire(store, GROUP_ID, retention, dry_run=False, told=lambda _: None),
            )
        )

    @precondition(lambda self: self.actors and self.complete)
    @rule(hours=st.sampled_from([0, 11, 21]))
    def collect(self, hours: int) -> None:
        """Time passes while a job stands still, and one deletes from its beginning to its end."""
        self.rest(hours)
        retention = Retention(keep_days=KEEP_DAYS)
        with suppress(VersionConflict):
            expire(self.raw, GROUP_ID, retention, dry_run=False, told=lambda _: None)

    @precondition(lambda self: len(self.actors) < 3 and self.complete)
    @rule()
    def read(self) -> None:
        """Begin to restore the newest backup."""
        self._start(lambda store: ("restore", _checked(store)))

    @precondition(lambda self: self.actors)
    @rule(which=st.integers(0, 2), calls=st.integers(1, 9))
    def step(self, which: int, calls: int) -> None:
        """One goes on for some calls."""
        actor = self.actors[which % len(self.actors)]
        for _ in range(calls):
            actor.step()

    @precondition(lambda self: self.actors)
    @rule(which=st.integers(0, 2))
    def finish(self, which: int) -> None:
        """One comes to its end."""
        self.actors[which % len(self.actors)].finish()

    @precondition(lambda self: self.actors)
    @rule(which=st.integers(0, 2))
    def kill(self, which: int) -> None:
        """One is killed where it stands."""
        self.actors[which % len(self.actors)].kill()

    # -- what must hold ----------------------------------------------------------------------------

    @invariant()
    def a_job_does_what_it_says(self) -> None:
        """It fails only because another one was faster, or because nodes dropped what it read."""
        for actor in [each for each in self.actors if each.over]:
            self.actors.remove(actor)
            if actor.error is not None and not isinstance(
                actor.error, VersionConflict | RangeNotAvailable
            ):
                raise actor.error
            if actor.found and actor.found[0] == "backup":
                result = actor.found[1]
                self.complete.append((result["lastIndex"], result["number"]))

    @invariant()
    def the_newest_backup_is_whole(self) -> None:
        """Nothing that was complete is lost, at no moment."""
        newest = catalog.newest(self.raw, GROUP_ID)
        if newest is None:
            assert not self.complete
            return
        assert all(last <= newest.last_index for last, _ in self.complete)
        assert all(number <= newest.number for _, number in self.complete)
        there = {each.name: each.size_bytes for each in self.raw.listed(GROUP_ID)}
        for name, size_bytes in newest.objects.items():
            assert there.get(f"{GROUP_ID}/{name}") == size_bytes, name

    def teardown(self) -> None:
        """Whatever is kept restores to the state of the whole log there."""
        try:
            for actor in self.actors:
                actor.finish()
            self.a_job_does_what_it_says()
            self.the_newest_backup_is_whole()
            newest = catalog.newest(self.raw, GROUP_ID)
            if newest is not None:
                for index in self._wanted(newest):
                    assert self._restored(index) == self.group.digests[index], index
        finally:
            for actor in self.actors:
                actor.kill()
            self.stack.close()
            shutil.rmtree(self.root)

    def _wanted(self, newest: Manifest) -> set[int]:
        """Return where restores must be able to end: where backups of the last days did."""
        oldest_ms = newest.as_of_ms - int(KEEP_DAYS * 24 * HOUR_MS)
        ends = {
            last
            for last, _ in self.complete
            if self.group.entries[last - 1].timestamp_ms >= oldest_ms
        }
        return {*sorted(ends)[:1], *sorted(ends)[-1:], newest.last_index}

    def _restored(self, index: int) -> str:
        """Restore to an entry; return the digest of the state that a node has then."""
        directory = self.root / f"restored-{index}"
        restore(
            self.raw,
            GROUP_ID,
            directory,
            name="dev/node-0",
            target_index=index,
            segment_bytes=1 << 16,
        )
        files = SnapshotFiles(RealFiles(), directory / SNAPSHOT_DIRECTORY, reserve_bytes=0)
        snapshots = files.load(GROUP_ID)
        state = BrokerState.decode(snapshots[-1].body) if snapshots else BrokerState()
        for chunk in read_log(directory):
            for row in parse(chunk).to_pylist():
                if row["index"] > state.applied_index:
                    state.apply(_entry(row))
        assert state.applied_index == index
        return state.digest()


def _entry(row: dict[str, Any]) -> Entry:
    return Entry(
        term=row["term"],
        index=row["index"],
        kind=EntryKind(row["type"]),
        timestamp_ms=row["timestamp_ms"],
        crc32c=row["body_crc32c"],
        data=row["body"],
    )


TestBeside = Beside.TestCase
TestBeside.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)


# -- every moment of two jobs ----------------------------------------------------------------------


Job = Callable[[Store], Any]
MOST_CALLS = 60


def _collect(store: Store) -> None:
    with suppress(VersionConflict):
        expire(store, GROUP_ID, Retention(keep_days=KEEP_DAYS), dry_run=False, told=lambda _: None)


@pytest.fixture
def at_each_moment() -> Iterator[Callable[..., None]]:
    """Return what stops a job before each of its calls, in turn, and does another one meanwhile."""
    worlds: list[Beside] = []

    def play(
        before: Callable[[Beside], None], stopped: Job, meanwhile: Callable[..., None]
    ) -> None:
        for calls in range(1, MOST_CALLS):
            world = Beside()
            worlds.append(world)
            before(world)
            world._start(stopped)
            (actor,) = world.actors
            for _ in range(calls):
                actor.step()
            over = actor.over
            meanwhile(world)
            actor.finish()
            world.a_job_does_what_it_says()
            world.the_newest_backup_is_whole()
            if over:
                return
        raise AssertionError("the job makes more calls than that")

    yield play
    for world in reversed(worlds):  # each patched what the one before it had patched
        world.teardown()


def _back_up(world: Beside, fresh: int = 2) -> None:
    world.backup(fresh, 0.0)
    world.actors[-1].finish()
    world.a_job_does_what_it_says()


def _once(store: Store) -> Any:
    """Back up without a new base, so that the same entries give the same objects."""
    request = BackupRequest(endpoints=("node",), store=store, base_every_hours=1000)
    return "backup", job.backup(request, Progress("backup"))


def _with_an_orphan(world: Beside) -> None:
    """One whole backup, and one that was killed before it was published, days ago."""
    _back_up(world)
    world.write(2)
    whole = len([*world.raw.list(f"{GROUP_ID}/data")])
    killed = Actor(world.root / "store", _once)
    while len([*world.raw.list(f"{GROUP_ID}/data")]) == whole:
        killed.step()
    killed.kill()
    world.rest(60)


def test_gc_at_any_moment_of_a_backup_that_finds_old_objects(
    at_each_moment: Callable[..., None],
) -> None:
    """They count as young from the moment at which they are found."""
    at_each_moment(_with_an_orphan, _once, lambda world: _collect(world.raw))


def test_a_backup_at_any_moment_of_gc_that_would_delete_what_it_finds(
    at_each_moment: Callable[..., None],
) -> None:
    """The age is looked at again before each deletion."""
    at_each_moment(_with_an_orphan, _collect, lambda world: _once(world.raw))


def test_a_backup_and_gc_at_any_moment_of_a_restore(at_each_moment: Callable[..., None]) -> None:
    """It has a day, though the backup that it reads is a week old."""

    def week_old(world: Beside) -> None:
        for _ in range(3):
            _back_up(world)
            world.forget(0.9)
            world.rest(60)

    def meanwhile(world: Beside) -> None:
        others, world.actors = world.actors, []
        _back_up(world)
        world.actors = others
        world.rest(21)
        _collect(world.raw)

    at_each_moment(week_old, lambda store: ("restore", _checked(store)), meanwhile)

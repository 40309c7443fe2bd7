"""The crash enumerator: a small history, cut short at every call, every disk that may be left.

A history is a function that drives a `Node`. Before each of its calls that change the disk, and at
its end, each disk that a power cut may leave (`PowerFiles.images`) is started. What a start finds
must be allowed there; a power cut in the middle of that start must change nothing about it, however
often it happens; and once it is up, the next entry must be the last one.

At each call the process is killed, too, and starts again on what the operating system kept: what
that start finds must be allowed, and must be durable from then on. `fail` does the same with a call
that fails instead.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dledger.errors import DledgerError
from dledger.files.files import Mode
from dledger.store import identity as identities
from dledger.store import watermark
from dledger.store.commit_log import CommitLog, Durability
from dledger.store.format import (
    SLOT_STRIDE_BYTES,
    Mark,
    decode_mark,
    encode_mark,
    encode_records,
)
from dledger.store.hard_state import HardStateFile
from dledger.store.identity import Identity
from dledger.types import Entry, HardState, NodeId
from tests.store.harness import DATA, GROUP, LOG, NODE
from tests.store.power_cuts import EMPTY, SECTOR_BYTES, Image, PowerFiles, differences, newest

NAME = "orders-0"
MAX_IMAGES = 1 << 13
MAX_DISKS = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """Entries behind *base*, of which term and chain CRC are known."""

    base: int = 0
    term: int = 0
    chain: int = 0
    entries: tuple[Entry, ...] = ()

    @property
    def last_index(self) -> int:
        """The newest entry."""
        return self.base + len(self.entries)

    def begins(self, other: Log) -> bool:
        """Whether *other* is this log or goes on behind it."""
        return self == replace(other, entries=other.entries[: len(self.entries)])

    def cut(self, last: int) -> Log:
        """Return the log up to *last*."""
        return replace(self, entries=self.entries[: last - self.base])

    def followed_by(self, entries: Iterable[Entry]) -> Log:
        """Return the log with *entries* behind it."""
        return replace(self, entries=(*self.entries, *entries))

    def behind(self, base: int) -> Log:
        """Return the log without the entries up to *base*."""
        gone = self.entries[: base - self.base]
        if not gone:
            return self
        chain = encode_records(gone, chain=self.chain, position=0).chains[-1]
        rest = self.entries[len(gone) :]
        return Log(base=base, term=gone[-1].term, chain=chain, entries=rest)

    def __str__(self) -> str:
        return f"{[f'{e.term}:{e.index}' for e in self.entries]} behind {self.term}:{self.base}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How the log under test is configured."""

    segment_bytes: int = 4096 + 2048
    durability: Durability = "sync"


@dataclass(frozen=True, slots=True)
class Found:
    """What a node that starts finds on its disk.

    Attributes:
        refused: Why it does not start; "" if it does.
    """

    identity: Identity | None = None
    hard_state: HardState | None = None
    log: Log = Log()
    refused: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowed:
    """What a power cut now may leave.

    Attributes:
        identities: Who the disk may be; None: it may refuse to be anyone.
        logs: The log is one of these or begins it, at least up to the index beside it.
        hard_states: One of these.
    """

    identities: tuple[Identity | None, ...]
    logs: tuple[tuple[Log, int], ...] = ((Log(), 0),)
    hard_states: tuple[HardState, ...] = (HardState(),)

    def fault(self, found: Found) -> str:
        """Say what is wrong with *found*; "" if nothing is."""
        if found.refused:
            return "" if None in self.identities else f"refused: {found.refused}"
        if found.identity not in self.identities:
            return f"it became {found.identity}"
        if found.hard_state not in self.hard_states:
            return f"{found.hard_state} is none of {self.hard_states}"
        for log, synced in self.logs:
            if found.log.begins(log) and found.log.last_index >= synced:
                return ""
        promised = [f"{log}, synced up to {synced}" for log, synced in self.logs]
        return f"the log is {found.log}, not a beginning of {' or '.join(promised)}"


@dataclass(slots=True)
class Process:
    """A node's store, started."""

    identity: Identity
    hard_state: HardStateFile
    log: CommitLog

    def found(self) -> Found:
        """Read everything back."""
        return Found(self.identity, self.hard_state.load(), _whole(self.log))


def _whole(log: CommitLog) -> Log:
    base = log.first_index - 1
    found: list[Entry] = []
    while base + len(found) < log.last_index:
        found += log.read(base + len(found) + 1, log.last_index, 1 << 20)
    return Log(base=base, term=log.term(base), chain=log.chain(base), entries=tuple(found))


def start(files: PowerFiles, shape: Shape) -> Process:
    """Start a node on the disk, formatting an empty one.

    Raises:
        DledgerError: The disk is refused.
    """
    identity = identities.load_or_format(files, DATA, NAME, new_id=lambda: NODE)
    hard_state = HardStateFile(files, DATA)
    hard_state.load()
    return Process(identity, hard_state, open_log(files, shape, identity))


def open_log(files: PowerFiles, shape: Shape, identity: Identity) -> CommitLog:
    """Open the log, recovering it."""
    return CommitLog.open(
        files,
        LOG,
        identity=identity,
        segment_bytes=shape.segment_bytes,
        reserve_bytes=0,
        durability=shape.durability,
    )


class Node:
    """What a history drives: a node's store, and what its disk must and may hold."""

    def __init__(self, files: PowerFiles, shape: Shape, written: dict[int, Entry]) -> None:
        self.files, self.shape, self.written = files, shape, written
        self.log = Log()
        self.synced = 0
        self.allowed = Allowed(identities=(self._fresh(),))
        self._process: Process | None = None

    @staticmethod
    def _fresh() -> Identity:
        return Identity(node_id=NodeId(NODE), group_id="", name=NAME)

    @property
    def process(self) -> Process:
        """The running process."""
        assert self._process, "the history starts the node first"
        return self._process

    def boot(self) -> None:
        """Start: the first time, that formats the disk."""
        self._process = start(self.files, self.shape)

    def join(self) -> None:
        """Format and join a group."""
        self.boot()
        unjoined = self.process.identity
        joined = replace(unjoined, group_id=GROUP)
        self.allow(identities=(unjoined, joined))
        identities.join(self.files, DATA, unjoined, GROUP)
        self.allow(identities=(joined,))
        self.boot()

    def append(self, entries: Sequence[Entry]) -> None:
        """Append, over what is there if *entries* begin within the log."""
        keep = entries[0].index - 1
        target = self.log.cut(keep).followed_by(entries)
        self.synced = min(self.synced, keep)
        self.written |= {entry.index: entry for entry in entries}
        self._may_become(target)
        self.process.log.append(entries)
        self._is(target)

    def cut_behind(self, last: int) -> None:
        """Let go of what is behind *last*."""
        target = self.log.cut(last)
        self.synced = min(self.synced, last)
        self._may_become(target)
        self.process.log.cut_behind(last)
        self._is(target)

    def drop_before(self, index: int) -> None:
        """Drop what is below *index*, as whole segments allow."""
        self._may_become(*(self.log.behind(base) for base in range(self.log.base, index)))
        first = self.process.log.drop_before(index)
        self.synced = max(self.synced, first - 1)
        self._is(self.log.behind(first - 1))

    def restart_behind(self, *, index: int, term: int, chain: int) -> None:
        """Begin an empty log behind a snapshot."""
        target = Log(base=index, term=term, chain=chain)
        self.allow(logs=((self.log, self.synced), (target, index)))
        self.process.log.restart_behind(index=index, term=term, chain=chain)
        self.synced = index
        self._is(target)

    def _may_become(self, *targets: Log) -> None:
        logs = tuple((log, self.synced) for log in (self.log, *targets))
        self.allow(logs=logs)

    def _is(self, log: Log) -> None:
        self.log = log
        self.allow(logs=((log, self.synced),))

    def sync(self) -> None:
        """Sync: what it returns for is acknowledged."""
        self.process.log.sync()
        if self.shape.durability == "sync":
            self._all_is_synced()

    def prepare(self) -> None:
        """Prepare the next segment."""
        self.process.log.prepare()

    def vote(self, state: HardState) -> None:
        """Save a hard state."""
        (before,) = self.allowed.hard_states
        self.allow(hard_states=(before, state))
        self.process.hard_state.save(state)
        self.allow(hard_states=(state,))

    def damage(self, name: str) -> None:
        """Zero one of two copies of a state file, and start: nothing is lost with it."""
        file = self.files.open(DATA / name, Mode.UPDATE)
        file.pwritev([bytes(8)], 0)
        file.fdatasync()
        self.boot()

    def restart(self) -> None:
        """Stop in good order, and start."""
        self.process.log.close()
        if self.shape.durability == "osBuffer":
            self._all_is_synced()
        self.boot()
        self._all_is_synced()

    def _all_is_synced(self) -> None:
        self.synced = self.log.last_index
        self._is(self.log)

    def restore(self, entries: Sequence[Entry], group_id: str) -> None:
        """Restore another group's log to the empty disk, and found GROUP on it."""
        self.allow(identities=(self._fresh(), None))
        writer = identities.begin_restore(
            self.files, DATA, NAME, group_id=group_id, new_id=lambda: NODE
        )
        log = open_log(self.files, self.shape, writer)
        log.append(entries)
        log.sync()
        log.close()
        restored = replace(self._fresh(), recovered_from=group_id, recovered_to=entries[-1].index)
        whole = Log(entries=tuple(entries))
        self.allow(
            identities=(self._fresh(), restored, None),
            logs=((Log(), 0), (whole, whole.last_index)),
        )
        identities.finish_restore(self.files, DATA, writer, whole.last_index)
        self.allow(identities=(restored,), logs=((whole, whole.last_index),))

    def allow(self, **changes: Any) -> None:
        """Say what a power cut may leave from now on."""
        self.allowed = replace(self.allowed, **changes)


History = Callable[[Node], None]


@dataclass(slots=True)
class Enumerator:
    """Runs histories and counts.

    Attributes:
        shape: How the logs under test are configured.
        files_type: `PowerFiles`, or one with a planted mistake.
        cuts: Calls at which a history was cut short.
        cases: Disks that these cuts may leave.
    """

    shape: Shape = field(default_factory=Shape)
    files_type: type[PowerFiles] = PowerFiles
    cuts: int = 0
    cases: int = 0
    _found: dict[Image, Found] = field(default_factory=dict)
    _written: dict[int, Entry] = field(default_factory=dict)

    @property
    def disks(self) -> int:
        """Return how many different disks were started."""
        return len(self._found)

    def run(self, history: History) -> None:
        """Run *history*; before each of its calls cut the power, and kill the process.

        Raises:
            AssertionError: Some disk that is left is not allowed.
        """

        def cut(files: PowerFiles) -> None:
            self._cut_power(files, node.allowed)
            self._restart(files, node.allowed)

        files = self.files_type(EMPTY, cut)
        node = Node(files, self.shape, self._written)
        history(node)
        cut(files)

    def fail(self, history: History) -> None:
        """Run *history* once for each of its calls, which fails: the process stops and restarts.

        Raises:
            AssertionError: Some disk that is left is not allowed.
        """
        failing_call = 0
        failed = True
        while failed:
            failing_call += 1
            files = self.files_type()
            files.failing_call = failing_call
            node = Node(files, self.shape, self._written)
            failed = _fails(history, node)
            self._restart(files, node.allowed, failed=failed)

    def _cut_power(self, files: PowerFiles, allowed: Allowed) -> None:
        self.cuts += 1
        self._check(files.images(MAX_IMAGES), allowed, files)

    def _check(self, images: Iterable[Image], allowed: Allowed, files: PowerFiles) -> None:
        for image in images:
            self.cases += 1
            fault = allowed.fault(self._start(image))
            if fault:
                raise AssertionError(_told(fault, files, image))

    def _restart(self, files: PowerFiles, allowed: Allowed, *, failed: bool = False) -> None:
        """Start again on what the operating system kept; what is found is durable from then on."""
        left: dict[Image, None] = {}
        self.cuts += 1
        files = files.fork(lambda files: left.update(dict.fromkeys(files.images(MAX_IMAGES))))
        process, found = _attempt(files, self.shape)
        self._check(left, allowed, files)
        fault = allowed.fault(found)
        assert not fault, _told(f"after a restart: {fault}", files, newest(files))
        if not process:
            return
        self._check(files.images(MAX_IMAGES), _exactly(found, allowed, failed=failed), files)
        lost = self._lost(found)
        if lost:
            more = replace(found, log=found.log.followed_by([lost]))
            after = _append(process, files, lost)
            self._check(after, _exactly(more, allowed, failed=failed), files)

    def _lost(self, found: Found) -> Entry | None:
        """Return an entry that fits behind the log, which the history had there."""
        joined = found.identity and found.identity.group_id
        return self._written.get(found.log.last_index + 1) if joined else None

    def _start(self, image: Image) -> Found:
        """Start *image*, and all disks that power cuts during its start leave, and theirs.

        The nearest come first: with a planted mistake the disks have no end, but one that shows it
        is near. Whatever has an order here keeps it, so that each run tries the same in a row.
        """
        image = _renumbered(image)
        waiting = deque([_Start(image, proceed=True)])
        while waiting:
            one = waiting.popleft()
            if one.image not in self._found:
                waiting += self._start_once(one)
                assert len(self._found) < MAX_DISKS, "starts cut short never come to rest"
            found = self._found[one.image]
            assert one.expected in {None, found}, f"{one.why}: {found}, not {one.expected}"
        return self._found[image]

    def _start_once(self, one: _Start) -> list[_Start]:
        """Start one disk for the first time; return what must be started to judge it."""
        left: dict[Image, None] = {}
        files = self.files_type(
            one.image, lambda files: left.update(dict.fromkeys(files.images(MAX_IMAGES)))
        )
        process, found = _attempt(files, self.shape)
        left.update(dict.fromkeys(files.images(MAX_IMAGES)))
        self._found[one.image] = found
        why = "a power cut during the start changed what is found"
        others = dict.fromkeys(map(_renumbered, left))
        again = [_Start(each, one.proceed, found, why) for each in others if each != one.image]
        lost = self._lost(found)
        if process and lost and one.proceed:
            expected = replace(found, log=found.log.followed_by([lost]))
            why = "what was lost came back behind the next entry"
            after = dict.fromkeys(map(_renumbered, _append(process, files, lost)))
            again += [_Start(image, False, expected, why) for image in after]
        return again


@dataclass(frozen=True, slots=True)
class _Start:
    """A disk to start.

    Attributes:
        proceed: Whether to go on behind what it finds.
        expected: What it must find; None if that is for the caller to judge.
        why: What is wrong if it does not.
    """

    image: Image
    proceed: bool
    expected: Found | None = None
    why: str = ""


def _renumbered(image: Image) -> Image:
    """Return the image with the watermark's sequence numbers counted from 0 or 1 again.

    Each start raises them. Which is higher and in which slot matters, so that this changes nothing,
    and the same disk after many starts is the same disk.
    """
    path = LOG / watermark.NAME
    content = dict(image).get(path)
    if content is None:
        return image
    size, sectors = content
    marks = {at: mark for at in _SLOTS if (mark := _mark(sectors[at : at + 1]))}
    if not marks:
        return image
    lower = min(mark.sequence for mark in marks.values()) // 2 * 2
    renumbered = list(sectors)
    for at, mark in marks.items():
        slot = encode_mark(replace(mark, sequence=mark.sequence - lower))
        renumbered[at] = slot + sectors[at][len(slot) :]
    return image - {(path, content)} | {(path, (size, tuple(renumbered)))}


_SLOTS = (0, SLOT_STRIDE_BYTES // SECTOR_BYTES)


def _mark(sectors: tuple[bytes, ...]) -> Mark | None:
    try:
        return decode_mark(b"".join(sectors))
    except ValueError:
        return None


def _fails(history: History, node: Node) -> bool:
    try:
        history(node)
    except (OSError, DledgerError):
        return True
    return False


def _attempt(files: PowerFiles, shape: Shape) -> tuple[Process | None, Found]:
    try:
        process = start(files, shape)
        return process, process.found()
    except DledgerError as error:
        return None, Found(refused=f"{type(error).__name__}: {error}")


def _append(process: Process, files: PowerFiles, lost: Entry) -> list[Image]:
    """Append and sync the entry that was lost: what was behind it must not come back."""
    files.before = None
    process.log.append([lost])
    process.log.sync()
    process.log.close()
    return list(files.images(MAX_IMAGES))


def _exactly(found: Found, before: Allowed, *, failed: bool) -> Allowed:
    """Allow what a started node may rely on, and nothing else.

    One exception: where the sync of a truncation failed, what it was to remove may come back behind
    the very entries that were in front of it.
    """
    assert found.hard_state
    last = found.log.last_index
    back = [log for log, _ in before.logs if found.log.begins(log)] if failed else []
    return Allowed(
        identities=(found.identity,),
        logs=tuple((log, last) for log in (found.log, *back)),
        hard_states=(found.hard_state,),
    )


def _told(fault: str, files: PowerFiles, image: Image) -> str:
    """Say what was found wrong where, so that the case can be seen again."""
    lines = [fault, "the process went after:", *(f"  {call}" for call in files.calls)]
    lines += ["the disk differs from what was written:"]
    return "\n".join([*lines, *(f"  {line}" for line in differences(image, newest(files)))])

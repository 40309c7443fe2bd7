"""The process or the machine goes off at any file call: nothing accepted is lost or sent twice."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dledger.errors import StorageError
from dledger.files.memory_files import Fault, MemoryFiles
from dledger.spool.format import encode_record
from dledger.spool.payload import Message, encode_message
from dledger.spool.spool import Spool
from dledger.types import Typed
from tests.files.recording_files import RecordingFiles
from tests.spool.spool_harness import CHUNK, DIR, STAMP, Disk, Group, message, messages, replay

GOLDEN = Path(__file__).parent / "golden" / "calls.txt"
FOREVER = 1 << 60


class PowerCutError(Exception):
    """The machine went off before this call."""


class CutFiles(MemoryFiles):
    """Goes off before the file call number `calls_left`."""

    calls_left = FOREVER
    calls = 0

    def strike(self, operation: str, path: Path) -> None:
        """Count every call."""
        self.calls += 1
        self.calls_left -= 1
        if self.calls_left < 0:
            raise PowerCutError(operation)
        super().strike(operation, path)


_KINDS = (None, Typed(deliver_at_ms=1 << 41), Typed(message_group="été"), Typed(priority=3))


def _make_typed(number: int, size: int) -> Message:
    """Return a message as some types of topics know it, by its number."""
    one = message(number, size=size)
    return replace(one, record=replace(one.record, typed=_KINDS[number % len(_KINDS)]))


class History:
    """A producer's life: what it was told, and a group that refuses every fifth message."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.disk = Disk(max_bytes=60_000, file_bytes=8192)
        self.disk.files = self.files = CutFiles()
        self.group = Group(refuses=lambda one: int(one.record.message_id) % 5 == 0)
        self.sent = 0
        self.accepted: list[int] = []

    def append(self, spool: Spool, count: int, size: int = 300) -> None:
        """Spool the next messages; those that `append` returned for are accepted."""
        batch = [_make_typed(self.sent + n, size) for n in range(1, count + 1)]
        self.sent += count
        kept = spool.append(batch).messages
        self.accepted += [int(one.record.message_id) for one in batch[:kept]]

    def live(self) -> None:
        """One scripted life, in which every kind of file call happens."""
        spool = self.disk.open()
        self.append(spool, 3)
        self.append(spool, 30)
        replay(spool, self.group, chunks=2)
        self.append(spool, 5)
        replay(spool, self.group, chunks=1)
        replay(spool, self.group)
        self.append(spool, 4)
        spool.close()
        spool = self.disk.open()
        self.append(spool, 12)
        replay(spool, self.group, chunks=1)

    def finish(self) -> None:
        """Replay everything, and hold it against what was accepted."""
        spool = self.disk.open()
        replay(spool, self.group)
        self.check(spool)

    def check(self, spool: Spool) -> None:
        """Each accepted message is stored or rejected, once, and the stored ones are in order."""
        stored = self.group.numbers()
        rejected = [int(one.record.message_id) for one in self.disk.rejected()]
        assert stored == sorted(set(stored))
        assert len(rejected) == len(set(rejected))
        assert not set(stored) & set(rejected)
        for one in (*self.group.stored, *self.disk.rejected()):
            assert one.record.typed == _KINDS[int(one.record.message_id) % len(_KINDS)]
        assert set(self.accepted) <= {*stored, *rejected}
        assert {*stored, *rejected} <= set(range(1, self.sent + 1))
        assert (spool.waiting, spool.waiting_bytes, dict(spool.depth)) == (0, 0, {})
        assert self.disk.names() == []

    def go_off(self, power: bool) -> None:
        """Kill the process, or cut the power as well."""
        self.files.calls_left = FOREVER
        if power:
            self.files.crash(self.rng)
        else:
            self.files.kill()


def _calls_of_a_life() -> int:
    history = History(0)
    history.live()
    return history.files.calls


@pytest.mark.parametrize("power", [False, True], ids=["process", "power"])
def test_every_prefix_of_file_calls_leaves_a_spool_that_keeps_its_word(power: bool) -> None:
    """The scripted life, ended before each of its file calls in turn."""
    for cut in range(_calls_of_a_life()):
        history = History(cut)
        history.files.calls_left = cut
        with suppress(PowerCutError):
            history.live()
        history.go_off(power)

        history.finish()


def test_killed_process_reports_no_damage() -> None:
    """What a kill leaves half-written is a torn tail or a leftover, never a false alarm."""
    for cut in range(_calls_of_a_life()):
        history = History(cut)
        history.files.calls_left = cut
        with suppress(PowerCutError):
            history.live()
        history.go_off(power=False)

        assert history.disk.open().damage == []
        assert history.disk.names("quarantine") == []


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_random_lives_with_many_ends_keep_their_word(seed: int) -> None:
    """Kills and power cuts at random calls, also while the spool is opened."""
    history = History(seed)
    rng = history.rng
    for _ in range(4):
        history.files.calls_left = rng.randint(0, 120)
        with suppress(PowerCutError):
            spool = history.disk.open()
            for _ in range(20):
                if rng.random() < 0.5:
                    history.append(spool, rng.randint(1, 12), rng.choice((1, 300, 3000)))
                else:
                    replay(spool, history.group, chunks=rng.randint(1, 3))
        history.go_off(power=rng.random() < 0.7)

    history.finish()


@pytest.mark.parametrize("partial_bytes", range(0, 1100, 72))
def test_torn_write_is_cut_and_what_was_accepted_stays(partial_bytes: int) -> None:
    """The process dies in the middle of a write, after any number of its bytes."""
    disk, group = Disk(), Group()
    spool = disk.open()
    spool.append(messages(1, 3, size=300))
    disk.files.inject(Fault("pwritev", 5, ".spool", partial_bytes=partial_bytes))
    with pytest.raises(StorageError):
        spool.append(messages(4, 6, size=300))

    spool = disk.reopen()
    spool.append(messages(7, 9, size=300))
    replay(disk.reopen(), group)

    numbers = group.numbers()
    whole = partial_bytes // len(
        encode_record(encode_message(message(4, size=300)), sequence=4, stamp=STAMP)
    )
    assert numbers == [1, 2, 3, *range(4, 4 + whole), 7, 8, 9]
    assert spool.damage == []


def test_failed_sync_refuses_until_the_spool_is_opened_again() -> None:
    """Nothing is known of the disk then; nothing is accepted on it, and nothing replayed twice."""
    disk, group = Disk(), Group()
    spool = disk.open()
    spool.append(messages(1, 3))
    disk.files.inject(Fault("fdatasync", 5, ".spool"))

    with pytest.raises(StorageError, match="cannot write spool /spool"):
        spool.append(messages(4, 6))
    with pytest.raises(StorageError, match="open it again"):
        spool.append(messages(7, 9))
    replay(disk.crash(1), group)

    assert group.numbers() == [1, 2, 3]


def test_replay_repeats_at_most_one_chunk_after_a_kill() -> None:
    """So that every repeated id is still in the group's window."""
    disk, repeated = Disk(), 0
    disk.open().append(messages(1, 100))
    for _ in range(10):
        spool = disk.reopen()
        replay(spool, Group(), chunks=1)
        chunk = spool.read(max_records=CHUNK, max_bytes=1 << 20)
        assert chunk is not None
        again = disk.reopen().read(max_records=CHUNK, max_bytes=1 << 20)
        assert again == chunk
        repeated = max(repeated, len(chunk.messages))

    assert repeated <= CHUNK


@pytest.mark.parametrize("seed", range(20))
def test_what_was_replayed_stays_so_in_a_power_cut(seed: int) -> None:
    """Direct messages may follow at once, more than the group remembers."""
    disk = Disk()
    spool = disk.open()
    spool.append(messages(1, 50, size=200))
    done = replay(spool, Group(), chunks=3)

    chunk = disk.crash(seed).read(max_records=CHUNK, max_bytes=1 << 20)

    assert chunk is not None
    assert chunk.messages[0].sequence == done[-1].sequence + 1


def test_cut_tail_does_not_come_back_behind_shorter_messages() -> None:
    """Zeros are written over a torn tail, so that no remains of it follow the next record."""
    disk, group = Disk(), Group()
    spool = disk.open()
    disk.files.inject(Fault("pwritev", 5, ".spool", partial_bytes=500))
    with pytest.raises(StorageError):
        spool.append([message(1, size=10), message(2, size=600), message(3, size=10)])
    spool = disk.reopen()
    (name,) = disk.names()
    cut = bytes(disk.contents(name)).rstrip(b"\0")
    spool.append([message(4, size=8)])
    replay(disk.reopen(), group)

    assert b"orders 2" not in cut
    assert group.numbers() == [1, 4]


@pytest.mark.parametrize("seed", range(20))
def test_what_a_failed_sync_left_in_the_page_cache_is_written_again(seed: int) -> None:
    """Linux keeps the pages and calls them clean: the next process reads what no disk has."""
    disk, group = Disk(), Group()
    spool = disk.open()
    disk.files.inject(Fault("fdatasync", 5, ".spool"))
    with pytest.raises(StorageError):
        spool.append(messages(1, 9, size=300))

    disk.reopen().close()
    disk.crash(seed).append(messages(10, 12))
    spool = disk.crash(seed)
    replay(spool, group)

    assert spool.damage == []
    assert group.numbers() == list(range(1, 13))


@pytest.mark.parametrize("seed", range(20))
def test_what_a_failed_sync_left_of_a_rejected_message_is_written_again(seed: int) -> None:
    """The replay goes past it, so it must be there for certain."""
    disk, group = Disk(), Group(refuses=lambda one: one.record.message_id == "000002")
    spool = disk.open()
    spool.append(messages(1, 3))
    disk.files.inject(Fault("fdatasync", 5, "2.spool"))
    with pytest.raises(StorageError, match="cannot keep rejected messages in"):
        replay(spool, group)

    replay(disk.reopen(), group)
    spool = disk.crash(seed)

    assert [one.record.message_id for one in disk.rejected()] == ["000002"]
    assert (group.numbers(), spool.waiting) == ([1, 3], 0)


def test_file_calls_of_each_operation(request: pytest.FixtureRequest) -> None:
    """The golden file: a lost sync is a diff."""
    disk = Disk()
    recording = RecordingFiles(disk.files)
    lines: list[str] = []

    def note(what: str) -> None:
        lines.extend([f"# {what}", *recording.calls, ""])
        recording.calls.clear()

    spool = disk.open(recording)
    note("make a spool")
    spool.append(messages(1, 2))
    note("the first messages create a file")
    spool.append(messages(3, 4))
    note("more messages: one write, one sync, one mark")
    chunk = spool.read(max_records=3, max_bytes=1 << 20)
    assert chunk is not None
    spool.reject([(chunk.messages[0], "no such topic")])
    note("a message is rejected")
    spool.advance(chunk)
    note("a chunk was replayed")
    replay(spool, Group())
    note("the last chunk was replayed: the file goes")
    spool.append(messages(5, 5))
    spool.close()
    recording.calls.clear()
    disk.open(recording)
    note("open a spool with messages")
    found = "\n".join(lines)
    if request.config.getoption("--rewrite"):
        GOLDEN.parent.mkdir(exist_ok=True)
        GOLDEN.write_text(found, "utf-8")

    assert found == GOLDEN.read_text("utf-8")


def test_messages_have_their_order_over_files() -> None:
    """Many small files, removed one by one as they are replayed."""
    disk, group = Disk(), Group()
    spool = disk.open()
    for first in range(1, 200, 20):
        spool.append(messages(first, first + 19, size=200))
    files = len(disk.names())

    replay(spool, group, chunks=5)
    left = len(disk.names())
    replay(spool, group)

    assert group.numbers() == list(range(1, 201))
    assert files > left > len(disk.names()) == 0
    assert disk.files.list(DIR) == ["lock", "spool.json", "state"]


def test_several_topics_are_counted_one_by_one() -> None:
    """A topic whose messages are all replayed has no depth left."""
    disk, group = Disk(), Group()
    spool = disk.open()
    batch: list[Message] = [message(n, "a" if n <= 4 else "b") for n in range(1, 17)]
    spool.append(batch)

    spool = disk.reopen()
    before = dict(spool.depth)
    replay(spool, group, chunks=1)

    assert before == {"a": 4, "b": 12}
    assert dict(spool.depth) == {"b": 8}

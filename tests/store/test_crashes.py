"""Random histories, cut at a random file call: what the log then holds is what it may hold."""

from __future__ import annotations

from contextlib import suppress
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from dledger.errors import FaultyEntry
from dledger.store.commit_log import CommitLog
from dledger.types import Entry
from tests.store.cut_files import CutFiles, PowerCutError
from tests.store.harness import Disk, entry, everything, format_disk


class History:
    """A log, and what it must and may hold when the power goes.

    Attributes:
        log: The entries as of the last call that returned.
        target: The entries after the call under way.
        synced: How many of them were vouched for.
    """

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.disk = Disk(segment_bytes=rng.choice((5000, 8192, 30_000)))
        self.disk.files = self.files = CutFiles()
        self.disk.identity = format_disk(self.files)
        self.log: list[Entry] = []
        self.target: list[Entry] = []
        self.synced = 0
        self.term = 1
        self.store = self.disk.open()

    def step(self) -> None:
        """Do one random thing."""
        act = self.rng.choice((self.append, self.append, self.truncate, self.sync, self.sync))
        if self.rng.random() < 0.05:
            act = self.rng.choice((self.prepare, self.restart))
        act()

    def append(self) -> None:
        self._write(self.log + self._fresh(len(self.log) + 1), len(self.log))

    def truncate(self) -> None:
        if not self.log:
            return
        keep = self.rng.randrange(len(self.log))
        if self.rng.random() < 0.7:
            self.term += 1
            fresh = self._fresh(keep + 1)
        else:  # the same entries again, fewer of them: only zeroing tells them from the old
            fresh = self.log[keep : keep + self.rng.randint(1, 2)]
        self.synced = min(self.synced, keep)
        self._write(self.log[:keep] + fresh, keep)

    def _write(self, target: list[Entry], keep: int) -> None:
        self.target = target
        self.store.append(target[keep:])
        self.log = target

    def _fresh(self, first: int) -> list[Entry]:
        sizes = [self.rng.choice((0, 3, 100, 700, 2600)) for _ in range(self.rng.randint(1, 6))]
        return [
            entry(first + number, self.term, self.rng.randbytes(size))
            for number, size in enumerate(sizes)
        ]

    def sync(self) -> None:
        self.store.sync()
        self.synced = len(self.log)

    def prepare(self) -> None:
        self.store.prepare()

    def restart(self) -> None:
        self.store.close()
        self.store = self.disk.open()
        self.synced = len(self.log)

    def check(self, found: list[Entry]) -> None:
        """Hold a recovered log against what is allowed."""
        assert len(found) >= self.synced
        assert found in (self.log[: len(found)], self.target[: len(found)])


def _run(history: History, steps: int) -> None:
    try:
        for _ in range(steps):
            history.step()
            history.target = history.log
    except PowerCutError:
        return
    finally:
        history.files.calls_left = 1 << 60


def _reopen_with_cuts(history: History) -> CommitLog:
    """Recover; the power may fail during recovery, too."""
    for _ in range(history.rng.randint(0, 2)):
        history.files.calls_left = history.rng.randint(0, 25)
        with suppress(PowerCutError):
            history.disk.open()
        history.files.calls_left = 1 << 60
        history.files.crash(history.rng)
    return history.disk.open()


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_log_after_a_power_cut_at_any_file_call_is_one_it_may_hold(seed: int) -> None:
    """Synced entries are there, only written ones are, and nothing comes back from a truncation."""
    history = History(Random(seed))
    for _ in range(3):
        history.files.calls_left = history.rng.randint(0, 150)
        _run(history, steps=40)
        history.files.crash(history.rng)

        history.store = _reopen_with_cuts(history)

        found = everything(history.store)
        history.check(found)
        history.log = history.target = found
        history.synced = len(found)
        _rot_and_repair(history)


def _rot_and_repair(history: History) -> None:
    """Flip a byte of a record that was recovered: it is known, and a peer makes it whole."""
    if not history.log:
        return
    index = history.rng.randint(1, len(history.log))
    segment = history.store._index.segment_of(index)
    position = segment.position(index) + history.rng.randrange(40)
    history.files.crash(history.rng)
    history.disk.contents(segment.name)[position] ^= 1

    history.store = history.disk.open()

    with suppress(FaultyEntry):
        assert everything(history.store) == history.log
    assert len(history.store.repair(history.log)) <= 1
    assert everything(history.store) == history.log


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_log_is_its_model_while_it_runs(seed: int) -> None:
    """Terms, reads and bounds agree with a plain list after every step."""
    history = History(Random(seed))
    for _ in range(25):
        history.step()

        assert everything(history.store) == history.log
        assert history.store.synced_index <= history.store.last_index == len(history.log)
        terms = [history.store.term(index) for index in range(1, len(history.log) + 1)]
        assert terms == [one.term for one in history.log]


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), durable=st.booleans())
def test_os_buffer_log_after_a_power_cut_is_a_prefix_and_opens(seed: int, durable: bool) -> None:
    """The weaker mode may lose entries, but never claims rot for it."""
    rng = Random(seed)
    disk = Disk(segment_bytes=8192, durability="osBuffer")
    log = disk.open()
    written = [entry(i, data=rng.randbytes(rng.choice((10, 500, 2000)))) for i in range(1, 40)]
    for one in written:
        log.append([one])
        log.sync()
        assert log.synced_index == one.index
    if durable:
        log.close()

    found = everything(disk.crash(seed))

    assert found == written[: len(found)]
    assert not durable or found == written


def test_process_kill_keeps_everything_that_was_written() -> None:
    """Without a power cut the operating system still has it, synced or not."""
    disk = Disk()
    log = disk.with_entries([entry(1)])
    log.append([entry(2)])
    disk.files.kill()

    assert everything(disk.open()) == [entry(1), entry(2)]


def test_leftovers_of_a_crash_are_removed() -> None:
    """Half-made files have other names and do not count."""
    disk = Disk()
    disk.with_entries([entry(1)]).prepare()
    assert disk.names(".new")
    disk.files.kill()

    log = disk.open()

    assert disk.names() == ["00000000000000000001.seg", "watermark"]
    assert everything(log) == [entry(1)]

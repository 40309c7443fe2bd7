"""Lanes: each message of a client and topic has its place, which is never given to another."""

from __future__ import annotations

from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dledger.errors import SpoolFull
from dledger.files.memory_files import Fault
from dledger.spool.lanes import Ages
from dledger.spool.payload import Message
from dledger.spool.spool import Spool
from tests.spool.old_format import write_spool
from tests.spool.spool_harness import (
    CHUNK,
    DIR,
    Disk,
    Group,
    message,
    messages,
    replay,
)
from tests.spool.test_spool_crashes import FOREVER, CutFiles, PowerCutError

CLIENTS = ("alice", "bob")


def sent(number: int, client_id: str, topic: str = "orders", *, tried: bool = False) -> Message:
    """Return a client's message of that number."""
    return replace(message(number, topic, size=300), client_id=client_id, tried=tried)


class LaneGroup:
    """A group that knows what it has by lanes alone: it remembers no ids at all."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, str, str, int], int] = {}
        self._places: dict[tuple[object, ...], str] = {}
        self.stored: list[Message] = []
        self.rejected = set[str]()

    def take(self, token: str, one: Message) -> None:
        key = (token, one.client_id, one.topic, one.lane)
        assert one.lane > 0
        had = self._places.setdefault((*key, one.lane_sequence), one.record.message_id)
        assert had == one.record.message_id, "one place, two messages: the second is lost"
        if one.lane_sequence > self._last.get(key, 0):
            self._last[key] = one.lane_sequence
            self.stored.append(one)

    def numbers(self, client_id: str) -> list[int]:
        return [int(one.record.message_id) for one in self.stored if one.client_id == client_id]


def bring(spool: Spool, group: LaneGroup, chunks: int = 1 << 30) -> None:
    """Replay up to so many chunks; every seventh message is refused."""
    for _ in range(chunks):
        chunk = spool.read(max_records=CHUNK, max_bytes=1 << 20)
        if chunk is None:
            return
        for one in chunk.messages:
            if int(one.message.record.message_id) % 7 == 0:
                spool.reject([(one, "poison")])
                group.rejected.add(one.message.record.message_id)
            else:
                group.take(spool.token, one.message)
        spool.advance(chunk)


class Life:
    """Two clients' sends over a disk that goes off."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.disk = Disk(max_bytes=60_000, file_bytes=8192)
        self.disk.files = self.files = CutFiles()
        self.group = LaneGroup()
        self.sent = 0
        self.accepted: list[tuple[str, int]] = []

    def append(self, spool: Spool, count: int) -> None:
        batch = []
        for _ in range(count):
            self.sent += 1
            batch.append(sent(self.sent, self.rng.choice(CLIENTS)))
        kept = spool.append(batch).messages
        self.accepted += [(one.client_id, int(one.record.message_id)) for one in batch[:kept]]

    def live(self) -> None:
        spool = self.disk.open()
        self.append(spool, 20)
        bring(spool, self.group, chunks=2)
        self.append(spool, 5)
        bring(spool, self.group)
        self.append(spool, 4)
        spool.close()
        spool = self.disk.open()
        self.append(spool, 9)
        bring(spool, self.group, chunks=1)

    def go_off(self, *, power: bool) -> None:
        self.files.calls_left = FOREVER
        if power:
            self.files.crash(self.rng)
        else:
            self.files.kill()

    def check(self) -> None:
        """Everything accepted is stored once, in order, by lanes alone; or set aside."""
        spool = self.disk.open()
        bring(spool, self.group)
        rejected = {int(one.record.message_id) for one in self.disk.rejected()}
        for client_id in CLIENTS:
            stored = self.group.numbers(client_id)
            assert stored == sorted(set(stored))
            mine = {number for whose, number in self.accepted if whose == client_id}
            assert mine <= {*stored, *rejected}
        assert (spool.waiting, len(spool.lanes), spool.tried) == (0, 0, 0)


def _calls_of_a_life() -> int:
    life = Life(0)
    life.live()
    return life.files.calls


@pytest.mark.parametrize("power", [False, True], ids=["process", "power"])
def test_a_group_that_knows_lanes_alone_has_everything_once(power: bool) -> None:
    """The scripted life, ended before each of its file calls in turn."""
    for cut in range(_calls_of_a_life()):
        life = Life(0)
        life.files.calls_left = cut
        with suppress(PowerCutError):
            life.live()
        life.go_off(power=power)

        life.check()


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_random_lives_of_lanes_keep_their_word(seed: int) -> None:
    """Kills and power cuts at random calls."""
    life = Life(seed)
    for _ in range(4):
        life.files.calls_left = life.rng.randint(0, 120)
        with suppress(PowerCutError):
            spool = life.disk.open()
            for _ in range(20):
                if life.rng.random() < 0.5:
                    life.append(spool, life.rng.randint(1, 12))
                else:
                    bring(spool, life.group, chunks=life.rng.randint(1, 3))
        life.go_off(power=life.rng.random() < 0.7)

    life.check()


def test_a_lane_has_consecutive_sequences_and_another_number_after_a_restart() -> None:
    """Each client and topic for itself."""
    disk = Disk()
    disk.open().append([sent(n, CLIENTS[n % 2]) for n in range(1, 7)])
    spool = disk.reopen()
    spool.append([sent(7, "bob"), sent(8, "bob", "prices")])

    chunk = spool.read(max_records=99, max_bytes=1 << 20)

    assert chunk is not None
    lanes = [one.message.lane for one in chunk.messages]
    assert [one.message.lane_sequence for one in chunk.messages] == [1, 1, 2, 2, 3, 3, 1, 1]
    assert (lanes[:6], len(set(lanes)), min(lanes) > 0) == (lanes[:2] * 3, 4, True)


def test_a_directory_that_is_put_back_has_no_place_twice() -> None:
    """A disk's snapshot, under a producer that goes on: what was sent since is taken for new."""
    disk, group = Disk(), LaneGroup()
    disk.files = files = CutFiles()
    disk.open().append([sent(1, "bob"), sent(2, "bob")])
    files.kill()
    kept = deepcopy(files)
    spool = disk.open()
    spool.append([sent(3, "bob")])
    bring(spool, group)
    disk.files = kept
    spool = disk.open()
    spool.append([sent(4, "bob")])

    bring(spool, group)

    assert group.numbers("bob") == [1, 2, 3, 4]


def test_a_lane_that_is_empty_is_founded_again_under_another_number() -> None:
    """Also after a restart in which nothing of it was left on the disk."""
    disk, group = Disk(), LaneGroup()
    spool = disk.open()
    spool.append([sent(1, "bob")])
    bring(spool, group)
    spool.append([sent(2, "bob")])
    bring(spool, group)
    spool.close()
    disk.reopen().append([sent(3, "bob")])
    bring(disk.reopen(), group)

    assert [one.lane_sequence for one in group.stored] == [1, 1, 1]
    assert len({one.lane for one in group.stored}) == 3


def test_a_lane_that_is_empty_beside_another_is_founded_again() -> None:
    """What is under way is counted on a lane that is forgotten with its last message."""
    disk, group = Disk(), LaneGroup()
    spool = disk.open()
    spool.append([sent(1, "bob"), *(sent(100 + n, "alice") for n in range(CHUNK))])
    bring(spool, group, chunks=1)
    waiting = spool.waiting
    spool.append([sent(2, "bob")])
    bring(spool, group)

    lanes = [one.lane for one in group.stored if one.client_id == "bob"]
    assert (waiting, len(set(lanes))) == (1, 2)


def test_a_message_without_room_leaves_a_hole_and_no_place_twice() -> None:
    """Its place is given to nobody else."""
    disk, group = Disk(max_bytes=4 * 8192), LaneGroup()
    spool = disk.open()
    kept = spool.append([sent(n, "bob") for n in range(1, 200)])
    bring(spool, group, chunks=6)
    spool.append([sent(200, "bob")])

    bring(spool, group)

    places = [one.lane_sequence for one in group.stored]
    assert isinstance(kept.refusal, SpoolFull)
    assert places == sorted(set(places))
    assert 200 in group.numbers("bob")


def test_a_state_that_is_lost_doubles_nothing_and_loses_nothing() -> None:
    """Sequences of the spool may begin again; lanes do not."""
    disk, group = Disk(), LaneGroup()
    spool = disk.open()
    spool.append([sent(1, "bob"), sent(2, "bob")])
    bring(spool, group)
    disk.files.remove(DIR / "state")
    disk.files.kill()
    spool = disk.open()
    spool.append([sent(3, "bob")])

    bring(spool, group)

    assert group.numbers("bob") == [1, 2, 3]


def test_the_token_is_kept_and_comes_back_from_the_files() -> None:
    """With the rest of the identity."""
    disk = Disk()
    spool = disk.open()
    spool.append([sent(1, "bob")])
    disk.files.remove(DIR / "spool.json")

    assert disk.reopen().token == spool.token


def test_unknown_outcomes_and_ages_survive_a_restart() -> None:
    """They are told until the messages are stored."""
    disk = Disk()
    disk.open().append([sent(1, "bob", tried=True), sent(2, "bob"), sent(3, "bob", tried=True)])
    spool = disk.reopen()
    found = (spool.tried, spool.ages.oldest_ms)

    bring(spool, LaneGroup())

    assert found == (2, message(1).record.born_at_ms)
    assert (spool.tried, spool.ages.oldest_ms) == (0, 0)


def test_ages_of_a_burst_take_one_place() -> None:
    """A million messages of a second are as old as the first of them."""
    ages = Ages()
    for number in range(1, 1_000):
        ages.add(number, 1_000_000 + number % 1_000)
    ages.add(1_000, 1_005_000)

    assert (ages.oldest_ms, len(ages._steps)) == (1_000_001, 2)
    ages.forget(999)
    assert ages.oldest_ms == 1_005_000


@pytest.mark.parametrize("power", [False, True], ids=["process", "power"])
def test_a_directory_of_version_1_is_read_whenever_it_ends(power: bool) -> None:
    """Its messages are replayed with what comes after them; it has a token from then on."""
    for cut in range(60):
        disk, group = Disk(), Group()
        disk.files = files = CutFiles()
        write_spool(files, messages(1, 9), replayed=3)
        files.calls_left = cut
        with suppress(PowerCutError):
            spool = disk.open()
            spool.append(messages(10, 12))
            replay(spool, group, chunks=1)
        files.calls_left = FOREVER
        if power:
            files.crash(Random(cut))
        else:
            files.kill()
        spool = disk.open()
        replay(spool, group)

        numbers = group.numbers()
        assert numbers[:6] == [4, 5, 6, 7, 8, 9]
        assert numbers == sorted(set(numbers))
        assert spool.damage == []
        assert spool.token == bytes(range(16)).hex()


def test_a_failed_write_of_a_lane_is_a_failed_write() -> None:
    """The disk's word counts, as for every message."""
    disk, group = Disk(), LaneGroup()
    spool = disk.open()
    spool.append([sent(1, "bob")])
    disk.files.inject(Fault("pwritev", 28, ".spool"))
    kept = spool.append([sent(2, "bob")])
    spool.append([sent(3, "bob")])

    bring(spool, group)

    assert kept.messages == 0
    assert group.numbers("bob") == [1, 3]

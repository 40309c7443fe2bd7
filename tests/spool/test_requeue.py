"""Rejected messages go back: at the end of their lane, under a new place, before they leave."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from random import Random

import pytest

from dledger.errors import StorageError
from dledger.files.files import Mode
from dledger.files.memory_files import Fault
from dledger.spool.opening import open_spool
from dledger.spool.payload import Message
from dledger.spool.reader import Spooled
from dledger.spool.rejected import Rejected, read_rejected
from dledger.spool.requeue import ask, is_asked, take_up
from dledger.spool.spool import Limits, Spool
from tests.files.recording_files import RecordingFiles
from tests.spool.spool_harness import DIR, Disk, identity, message, messages
from tests.spool.test_spool_crashes import FOREVER, CutFiles, PowerCutError
from tests.spool.test_spool_lanes import CLIENTS, LaneGroup, sent


class IdGroup(LaneGroup):
    """A group that also knows what it has by client and id, as the window of ids does."""

    def __init__(self) -> None:
        super().__init__()
        self._ids = set[tuple[str, str, str]]()
        self.poison = set[str]()
        self.known = 0

    def take(self, token: str, one: Message) -> None:
        name = (one.client_id, one.topic, one.record.message_id)
        if name in self._ids:
            self.known += 1
            return
        before = len(self.stored)
        super().take(token, one)
        if len(self.stored) > before:
            self._ids.add(name)


def bring(spool: Spool, group: IdGroup, chunks: int = 1 << 30) -> None:
    """Replay up to so many chunks; what is poison is refused."""
    for _ in range(chunks):
        chunk = spool.read(max_records=8, max_bytes=1 << 20)
        if chunk is None:
            return
        for one in chunk.messages:
            if one.message.record.message_id in group.poison:
                spool.reject([(one, "poison")])
            else:
                group.take(spool.token, one.message)
        spool.advance(chunk)


def places(disk: Disk) -> list[tuple[int, str]]:
    """Return what is set aside."""
    return [one.place for one in read_rejected(disk.files, DIR, identity())]


def with_poison(disk: Disk, count: int = 9) -> tuple[Spool, IdGroup]:
    """Return a spool whose third and fifth message were refused, and what refused them."""
    spool, group = disk.open(), IdGroup()
    group.poison = {"000003", "000005"}
    spool.append([sent(n, "bob") for n in range(1, count + 1)])
    bring(spool, group)
    group.poison = set()
    return spool, group


def again(spool: Spool) -> int:
    """Take up what is asked; return how many went back."""
    return spool.put_back(spool.asked_back(of_lanes=True)).messages


def test_what_went_back_is_stored_behind_the_rest_of_its_lane() -> None:
    """Under a new sequence: the group has passed the old one."""
    disk = Disk()
    spool, group = with_poison(disk)
    spool.append([sent(10, "bob")])
    path = ask(disk.files, DIR, places(disk))
    went = again(spool)
    waiting = (spool.waiting, spool.lanes, is_asked(disk.files, path))
    bring(spool, group)

    assert went == 2
    assert (waiting[0], waiting[2]) == (3, False)
    assert group.numbers("bob") == [1, 2, 4, 6, 7, 8, 9, 10, 3, 5]
    assert disk.names("rejected") == []
    assert spool.disk_bytes == 0


def test_an_empty_lane_is_founded_anew_for_what_goes_back() -> None:
    """Never is a place given twice: the group would take the message for stored."""
    disk = Disk()
    spool, group = with_poison(disk)
    before = {(one.lane, one.lane_sequence) for one in group.stored}
    ask(disk.files, DIR, places(disk))
    again(spool)
    chunk = spool.read(max_records=9, max_bytes=1 << 20)

    assert chunk is not None
    mine = [(one.message.lane, one.message.lane_sequence) for one in chunk.messages]
    assert len({lane for lane, _ in mine}) == 1
    assert not before & set(mine)
    assert [one.message.reason for one in chunk.messages] == ["", ""]


def test_what_is_refused_again_is_set_aside_again() -> None:
    """Under its new sequence, with the new reason."""
    disk = Disk()
    spool, group = with_poison(disk)
    ask(disk.files, DIR, places(disk))
    again(spool)
    group.poison = {"000005"}
    bring(spool, group)

    assert [name for _, name in places(disk)] == ["000005"]
    assert places(disk)[0][0] > 9
    assert group.numbers("bob")[-1] == 3


def test_one_of_several_goes_back_and_the_others_stay() -> None:
    """Whatever is not marked stays with its reason."""
    disk = Disk()
    spool, group = with_poison(disk)
    ask(disk.files, DIR, [(5, "000005")])
    again(spool)
    bring(spool, group)

    assert places(disk) == [(3, "000003")]
    assert disk.rejected()[0].reason == "poison"
    assert group.numbers("bob")[-1] == 5
    assert places(disk) == places(disk)
    reopened = disk.reopen()
    assert (reopened.waiting, places(disk)) == (0, [(3, "000003")])


def test_what_is_asked_while_nobody_is_there_is_done_at_the_next_opening() -> None:
    """The file stays until somebody has the directory."""
    disk = Disk()
    spool, group = with_poison(disk)
    spool.close()
    path = ask(disk.files, DIR, places(disk))
    spool = disk.open()
    is_open = is_asked(disk.files, path)
    take_up(spool, of_lanes=True)
    bring(spool, group)

    assert (is_open, is_asked(disk.files, path)) == (True, False)
    assert group.numbers("bob")[-2:] == [3, 5]


def test_lanes_that_refuse_out_of_order_lose_nothing_of_it() -> None:
    """A lane's ninth message may be refused before another lane's first one."""
    disk = Disk()
    spool = disk.open()
    spool.append([sent(n, CLIENTS[n % 2]) for n in range(1, 9)])
    chunk = spool.read(max_records=8, max_bytes=1 << 20)
    assert chunk is not None
    by_number: list[Spooled] = list(chunk.messages)
    for number in (8, 2, 5):
        spool.reject([(by_number[number - 1], "poison")])

    seen = sorted(place[0] for place in places(disk))
    spool = disk.reopen()
    left = spool.read(max_records=8, max_bytes=1 << 20)

    assert seen == [2, 5, 8]
    assert left is not None
    assert [one.sequence for one in left.messages] == [1, 3, 4, 6, 7]


def test_the_time_of_a_known_outcome_begins_anew_and_that_of_an_unknown_one_stays() -> None:
    """Since when it waits; until when the group knows the id."""
    disk, group = Disk(), IdGroup()
    spool = disk.open()
    group.poison = {"000001", "000002"}
    spool.append([sent(1, "bob", tried=True), sent(2, "bob")])
    bring(spool, group)
    ask(disk.files, DIR, places(disk))
    again(spool)
    chunk = spool.read(max_records=9, max_bytes=1 << 20)

    assert chunk is not None
    first, second = (one.message for one in chunk.messages)
    assert (first.tried, first.record.born_at_ms) == (True, message(1).record.born_at_ms)
    assert not second.tried
    assert second.record.born_at_ms > message(2).record.born_at_ms


def test_a_spool_without_room_keeps_them_aside() -> None:
    """What is kept is first: the others stay in rejected/, and nobody waits for them."""
    disk = Disk(max_bytes=5 * 8192)
    spool, _ = with_poison(disk)
    while spool.append([sent(100, "alice")]).refusal is None:
        pass
    path = ask(disk.files, DIR, places(disk))

    went = again(spool)

    assert (went, len(places(disk)), is_asked(disk.files, path)) == (0, 2, False)


def test_a_sidecars_directory_gets_no_messages_of_a_producer() -> None:
    """Each program replays its own kind; the other's would keep it from the directory."""
    disk = Disk()
    spool = disk.open()
    spool.append(messages(1, 1))
    chunk = spool.read(max_records=9, max_bytes=1 << 20)
    assert chunk is not None
    spool.reject([(chunk.messages[0], "poison")])
    spool.advance(chunk)
    ask(disk.files, DIR, places(disk))
    to_a_sidecar = spool.asked_back(of_lanes=True)
    to_a_producer = spool.asked_back(of_lanes=False)
    spool.append([sent(2, "bob")])

    assert (to_a_sidecar, len(to_a_producer)) == ([], 1)
    assert spool.asked_back(of_lanes=False) == []


def test_a_broken_question_is_put_away_and_said(caplog: pytest.LogCaptureFixture) -> None:
    """It keeps nobody."""
    disk = Disk()
    spool, _ = with_poison(disk)
    path = ask(disk.files, DIR, places(disk))
    disk.files.open(path, Mode.CREATE).pwritev([b"{}"], 0)

    went = again(spool)

    assert (went, len(places(disk)), is_asked(disk.files, path)) == (0, 2, False)
    assert "nothing is done of what" in caplog.text


def test_damaged_files_of_rejected_messages_are_kept() -> None:
    """Also once all that can be read in them went back."""
    disk = Disk()
    spool, _ = with_poison(disk)
    (name,) = disk.names("rejected")
    disk.files.contents(DIR / "rejected" / name)[4096 + 40] ^= 1
    ask(disk.files, DIR, places(disk))

    went = again(spool)

    assert went == 1
    assert disk.names("rejected") == [name]


def test_it_is_durable_in_the_spool_before_it_leaves() -> None:
    """The order of the syncs: spool file, mark, and only then the removals."""
    disk = Disk()
    recording = RecordingFiles(disk.files)
    spool = open_spool(recording, DIR, limits=Limits(1 << 20, 8192), new_identity=identity)
    group = IdGroup()
    group.poison = {"000001"}
    spool.append([sent(1, "bob"), sent(2, "bob")])
    bring(spool, group)
    ask(disk.files, DIR, places(disk))
    asked = spool.asked_back(of_lanes=True)
    recording.calls.clear()

    spool.put_back(asked)

    calls = [call for call in recording.calls if call.startswith(("fdatasync", "remove"))]
    kinds = [f"{call.split()[0]} {call.split()[1].lstrip('0')}" for call in calls]
    assert kinds[1:3] == ["fdatasync 3.spool", "fdatasync 1.spool"]  # the message; then its mark
    assert kinds[3].startswith("remove ")
    assert kinds[3].endswith(".json")
    assert kinds[4:] == ["remove 1.spool"]


@pytest.mark.parametrize("all_of_them", [True, False])
def test_a_mark_that_the_disk_may_not_have_is_written_again(all_of_them: bool) -> None:
    """A failed sync leaves it in the page cache alone; the message must not wait twice for ever.

    Its file goes once all in it went back, and stays else.
    """
    disk = Disk()
    spool, group = with_poison(disk)
    ask(disk.files, DIR, places(disk) if all_of_them else [(3, "000003")])
    asked = spool.asked_back(of_lanes=True)
    disk.files.inject(Fault("fdatasync", 5, "3.spool"))
    with pytest.raises(StorageError, match="cannot note what went back into"):
        spool.put_back(asked)

    spool = disk.reopen()
    take_up(spool, of_lanes=True)
    spool = disk.crash(3)
    bring(spool, group)

    assert group.numbers("bob")[7:] == ([3, 5] if all_of_them else [3])
    assert places(disk) == ([] if all_of_them else [(5, "000005")])


class Life:
    """Two clients' sends, refusals and their return, over a disk that goes off."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.disk = Disk(max_bytes=200_000, file_bytes=8192)
        self.disk.files = self.files = CutFiles()
        self.group = IdGroup()
        self.accepted: list[tuple[str, int]] = []
        self.sent = 0

    def append(self, spool: Spool, count: int) -> None:
        batch = [sent(self.sent + n, self.rng.choice(CLIENTS)) for n in range(1, count + 1)]
        self.sent += count
        self.group.poison |= {f"{n:06}" for n in range(1, self.sent + 1) if n % 4 == 0}
        kept = spool.append(batch).messages
        self.accepted += [(one.client_id, int(one.record.message_id)) for one in batch[:kept]]

    def live(self) -> None:
        spool = self.disk.open()
        take_up(spool, of_lanes=True)
        self.append(spool, 12)
        bring(spool, self.group, chunks=2)
        self.group.poison = {"000008"}
        ask(self.files, DIR, [one.place for one in spool.read_rejected()])
        again(spool)
        self.append(spool, 3)
        bring(spool, self.group)
        ask(self.files, DIR, [one.place for one in spool.read_rejected()])
        spool.close()
        spool = self.disk.open()
        take_up(spool, of_lanes=True)
        bring(spool, self.group, chunks=1)

    def check(self) -> None:
        """Everything accepted is stored once; of each lane what was not refused is in order."""
        self.files.calls_left = FOREVER
        spool = self.disk.open()
        take_up(spool, of_lanes=True)
        self.group.poison = set()
        bring(spool, self.group)
        ask(self.files, DIR, [one.place for one in spool.read_rejected()])
        again(spool)
        bring(spool, self.group)
        stored = [(one.client_id, int(one.record.message_id)) for one in self.group.stored]
        assert len(stored) == len(set(stored))
        assert set(self.accepted) <= set(stored)
        for client_id in CLIENTS:
            mine = [number for whose, number in stored if whose == client_id and number % 4]
            assert mine == sorted(mine)
        assert (spool.waiting, list(spool.read_rejected())) == (0, [])


def _calls_of_a_life() -> int:
    life = Life(0)
    life.live()
    return life.files.calls


@pytest.mark.parametrize("power", [False, True], ids=["process", "power"])
def test_every_prefix_of_file_calls_leaves_what_went_back_once(power: bool) -> None:
    """The scripted life, ended before each of its file calls in turn."""
    known = 0
    for cut in range(_calls_of_a_life()):
        life = Life(cut)
        life.files.calls_left = cut
        with suppress(PowerCutError):
            life.live()
        life.files.calls_left = FOREVER
        if power:
            life.files.crash(life.rng)
        else:
            life.files.kill()

        life.check()
        known += life.group.known

    assert known > 0, "no crash came between the two writes, which is what this is about"


def test_a_mark_hides_its_own_message_alone() -> None:
    """A lost state file has sequences begin again: another message of that sequence is another."""
    disk = Disk()
    spool, _ = with_poison(disk)
    ask(disk.files, DIR, [(3, "000003")])
    again(spool)
    other = Rejected(3, replace(sent(77, "bob"), reason="poison"))
    spool._rejected_file.append([other])

    assert places(disk) == [(5, "000005"), (3, "000077")]

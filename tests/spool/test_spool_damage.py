"""Damaged bytes cost the messages they hold and no others; they are reported, and kept."""

from __future__ import annotations

import errno
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dledger.errors import (
    CorruptFile,
    CorruptSpool,
    DirectoryLocked,
    StorageError,
    Unsupported,
    WrongIdentity,
)
from dledger.files.files import RealFiles
from dledger.files.memory_files import Fault
from dledger.spool.format import FILE_HEADER_BYTES, encode_record
from dledger.spool.opening import limits_of, open_spool
from dledger.spool.spool import MAX_FILE_RECORDS, Spool
from tests.spool.spool_harness import DIR, STAMP, Disk, Group, message, messages, replay

FIRST = "00000000000000000001.spool"


def spooled(count: int = 60, size: int = 300) -> Disk:
    """Return a disk with messages [1, count] in several files, and no process."""
    disk = Disk()
    spool = disk.open()
    for number in range(1, count + 1):
        spool.append([message(number, size=size)])
    disk.files.kill()
    return disk


def lost(spool: Spool) -> list[int]:
    """Return the sequences that the reports name."""
    return [n for damage in spool.damage for n in range(damage.first, damage.last + 1)]


@settings(max_examples=80)
@given(seed=st.integers(0, 2**32))
def test_every_intact_record_is_replayed_and_the_damage_is_reported_and_kept(seed: int) -> None:
    """Random bytes of random files are changed."""
    rng, group = Random(seed), Group()
    disk = spooled()
    kept: dict[str, bytes] = {}
    for name in rng.sample(disk.names(), rng.randint(1, 3)):
        content = disk.contents(name)
        used = len(content.rstrip(b"\0"))
        start = rng.randrange(used)
        for position in range(start, min(used, start + rng.choice((1, 8, 900)))):
            content[position] ^= rng.randint(1, 255)
        kept[name] = bytes(content)

    spool = disk.open()
    replay(spool, group)

    assert group.numbers() == [n for n in range(1, 61) if n not in lost(spool)]
    assert len(lost(spool)) <= 3 * 5
    assert {Path(damage.path).name for damage in spool.damage} <= set(kept)
    for name in {Path(damage.path).name for damage in spool.damage}:
        assert bytes(disk.contents(f"quarantine/{name}")) == kept[name]
    assert (spool.waiting, dict(spool.depth), disk.names()) == (0, {}, [])


def test_report_names_file_offset_and_messages() -> None:
    """Typed, and as a sentence."""
    disk = spooled(5)
    content = disk.contents(FIRST)
    position = content.index(b"orders 3 ")
    content[position] ^= 1

    (damage,) = disk.open().damage

    assert isinstance(damage, CorruptSpool)
    assert damage.path == str(DIR / FIRST)
    assert damage.offset <= position < damage.offset + damage.size_bytes
    assert (damage.first, damage.last) == (3, 3)
    assert f"at byte offset {damage.offset}, 1 messages lost (3 to 3): payload" in str(damage)


@pytest.mark.parametrize("number", range(1, 6))
def test_any_accepted_message_that_rots_after_a_kill_is_reported(number: int) -> None:
    """Also the newest: it is not taken for the torn tail of a crash."""
    disk, group = Disk(), Group()
    disk.open().append(messages(1, 5))
    disk.files.kill()
    content = disk.contents(FIRST)
    content[content.index(b"orders %d " % number)] ^= 1

    spool = disk.open()
    replay(spool, group)

    assert lost(spool) == [number]
    assert group.numbers() == [n for n in range(1, 6) if n != number]
    assert disk.names("quarantine") == [FIRST]


@pytest.mark.parametrize("length", [0, 100, FILE_HEADER_BYTES, FILE_HEADER_BYTES + 900])
def test_truncated_file_loses_what_was_cut_off_and_says_so(length: int) -> None:
    """The last file or one before it, in its header or behind it."""
    for name in (0, 1, -1):
        disk, group = spooled(), Group()
        victim = disk.names()[name]
        del disk.contents(victim)[length:]

        spool = disk.open()
        replay(spool, group)
        spool.append(messages(61, 62))
        replay(spool, group)

        assert lost(spool)
        assert group.numbers() == [n for n in range(1, 63) if n not in lost(spool)]
        assert disk.names("quarantine") == [victim]


def test_missing_file_is_reported() -> None:
    """First, middle, last, and all of them."""
    for victims in ([0], [1], [-1], [0, 1, 2, 3]):
        disk, group = spooled(), Group()
        names = disk.names()
        for number in victims:
            disk.files.remove(DIR / names[number])

        spool = disk.open()
        replay(spool, group)

        assert lost(spool)
        assert group.numbers() == [n for n in range(1, 61) if n not in lost(spool)]


def test_damage_is_reported_at_each_start_until_its_file_is_replayed() -> None:
    """Then the file is in quarantine, and the spool is whole again."""
    disk, group = spooled(5), Group()
    content = disk.contents(FIRST)
    content[content.index(b"orders 3 ")] ^= 1

    counts = [len(disk.reopen().damage) for _ in range(2)]
    spool = disk.reopen()
    replay(spool, group, chunks=1)
    again = disk.reopen()

    assert counts == [1, 1]
    assert (again.damage, again.waiting) == ([], 0)
    assert disk.names("quarantine") == [FIRST]


def test_damaged_header_costs_no_message() -> None:
    """The file's name and the spool's identity say what it said."""
    disk, group = spooled(5), Group()
    disk.contents(FIRST)[20] ^= 1

    spool = disk.open()
    replay(spool, group)

    assert group.numbers() == [1, 2, 3, 4, 5]
    assert [(damage.offset, lost(spool)) for damage in spool.damage] == [(0, [])]


def test_file_that_cannot_be_read_is_reported_as_a_whole() -> None:
    """Its neighbours are replayed, and it is kept."""
    disk, group = spooled(), Group()
    names = disk.names()
    disk.files.inject(Fault("pread", errno.EIO, names[1], times=1 << 20))

    spool = disk.open()
    replay(spool, group)

    assert group.numbers() == [n for n in range(1, 61) if n not in lost(spool)]
    assert "cannot be read" in str(spool.damage[0])
    assert disk.names("quarantine") == [names[1]]


def test_rot_while_the_producer_runs_is_noticed_when_it_is_read() -> None:
    """It was whole when the spool was opened."""
    disk, group = spooled(20), Group()
    spool = disk.open()
    content = disk.contents(FIRST)
    content[content.index(b"orders 3 ")] ^= 1

    before = list(spool.damage)
    replay(spool, group)

    assert before == []
    assert lost(spool) == [3]
    assert group.numbers() == [1, 2, *range(4, 21)]
    assert (spool.waiting, dict(spool.depth)) == (0, {})
    assert disk.names("quarantine") == [FIRST]


def test_record_that_is_whole_but_no_message_is_reported_and_passed_by() -> None:
    """Somebody else's program wrote it."""
    disk, group = Disk(), Group()
    disk.open().append(messages(1, 3))
    content = disk.contents(FIRST)
    end = len(content.rstrip(b"\0"))
    end += -end % 8
    odd = encode_record(b"\xff" * 30, sequence=4, stamp=STAMP)
    content[end : end + len(odd)] = odd

    spool = disk.reopen()
    spool.append(messages(5, 6))
    replay(spool, group)

    assert lost(spool) == [4]
    assert "the payload is not a message" in str(spool.damage[0])
    assert group.numbers() == [1, 2, 3, 5, 6]
    assert (spool.waiting, dict(spool.depth)) == (0, {})


def test_lost_state_replays_the_first_file_again_and_stores_nothing_twice() -> None:
    """A file holds fewer messages than the group remembers of a client."""
    for damage in ("flip", "remove"):
        disk, group = spooled(), Group(window=2 * MAX_FILE_RECORDS)
        replay(disk.open(), group, chunks=3)
        if damage == "remove":
            disk.files.remove(DIR / "state")
        else:
            state = disk.contents("state")
            state[:] = bytes(byte ^ 1 for byte in state)

        spool = disk.reopen()
        replay(spool, group)

        assert group.numbers() == list(range(1, 61))
        assert len(spool.damage) == 1


def test_without_its_state_no_bytes_are_taken_for_a_torn_tail() -> None:
    """Nobody knows whether they were accepted, so they are kept."""
    disk, group = spooled(5), Group()
    disk.files.remove(DIR / "state")
    content = disk.contents(FIRST)
    content[content.index(b"orders 5 ")] ^= 1

    spool = disk.open()
    replay(spool, group)

    assert group.numbers() == [1, 2, 3, 4]
    assert b"rders 5 " in disk.contents(f"quarantine/{FIRST}")


def test_sequences_go_on_behind_what_was_rejected_when_the_state_is_lost() -> None:
    """Else a new message could be taken for one that was rejected."""
    disk, group = Disk(), Group(refuses=lambda _: True)
    spool = disk.open()
    spool.append(messages(1, 5))
    replay(spool, group)
    disk.files.remove(DIR / "state")

    spool = disk.reopen()
    spool.append(messages(6, 8))
    spool = disk.reopen()
    group.refuses = lambda _: False
    replay(spool, group)

    assert group.numbers() == [6, 7, 8]


def test_lost_identity_is_read_from_the_files() -> None:
    """The same client id, so the same idempotency keys."""
    for damage in ("flip", "remove"):
        disk, group = spooled(), Group()
        if damage == "remove":
            disk.files.remove(DIR / "spool.json")
        else:
            disk.contents("spool.json")[30] ^= 1

        spool = open_spool(disk.files, DIR, limits=disk.limits)
        replay(spool, group)

        assert spool.client_id == "client-1"
        assert group.numbers() == list(range(1, 61))


def test_spool_whose_client_id_nobody_knows_is_refused_and_left_alone() -> None:
    """Replaying it as somebody else could store messages twice."""
    disk = spooled(5)
    disk.files.remove(DIR / "spool.json")
    disk.contents(FIRST)[20] ^= 1
    before = bytes(disk.contents(FIRST))

    for _ in range(2):
        with pytest.raises(CorruptFile, match="none of 1 files has an intact header"):
            open_spool(disk.files, DIR, limits=disk.limits)

    assert bytes(disk.contents(FIRST)) == before


@pytest.mark.parametrize("name", ["state", FIRST, "spool.json"])
def test_later_format_is_refused_and_left_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A newer program wrote it; this one must not judge it."""
    for module in ("format", "identity"):
        monkeypatch.setattr(f"dledger.spool.{module}.FORMAT_VERSION", 3)
    monkeypatch.setattr("dledger.spool.format.VERSIONS", (1, 2, 3))
    later = spooled(5)
    monkeypatch.undo()
    disk = spooled(5)
    disk.contents(name)[:] = later.contents(name)
    before = {name: bytes(disk.contents(name)) for name in disk.files.list(DIR)}

    with pytest.raises(Unsupported, match="format version 3, this one reads 2"):
        disk.open()

    assert {name: bytes(disk.contents(name)) for name in disk.files.list(DIR)} == before


def test_file_of_another_spool_is_refused() -> None:
    """Its messages have another client id."""
    disk = spooled(5)
    disk.files.remove(DIR / "spool.json")
    disk.files.remove(DIR / FIRST)
    open_spool(disk.files, DIR, limits=disk.limits, client_id="other").append(messages(6, 9))
    foreign = spooled(5)
    disk.files.kill()
    disk.contents(disk.names()[0])[:] = foreign.contents(FIRST)

    with pytest.raises(WrongIdentity, match="belongs to client id client-1, but this is"):
        open_spool(disk.files, DIR, limits=disk.limits)


def test_client_id_of_a_spool_does_not_change() -> None:
    """Asking for another one is refused, with both."""
    disk = spooled(5)

    with pytest.raises(WrongIdentity, match="client id client-1, but this is client id mine"):
        open_spool(disk.files, DIR, limits=disk.limits, client_id="mine")


def test_second_process_is_refused_and_the_lock_ends_with_the_first(tmp_path: Path) -> None:
    """By a real lock on a real directory."""
    files, limits = RealFiles(), limits_of(1 << 20)
    first = open_spool(files, tmp_path / "spool", limits=limits)
    first.append(messages(1, 3))

    with pytest.raises(DirectoryLocked, match=str(tmp_path / "spool")):
        open_spool(files, tmp_path / "spool", limits=limits)
    first.close()
    second = open_spool(files, tmp_path / "spool", limits=limits)

    assert second.waiting == 3
    second.close()


def test_refused_opening_does_not_keep_the_lock() -> None:
    """The directory can be opened once its fault is mended."""
    disk = spooled(5)
    disk.files.inject(Fault("fdatasync", errno.EIO, "state"))

    with pytest.raises(StorageError, match="cannot open spool /spool"):
        disk.open()

    assert disk.open().waiting == 5

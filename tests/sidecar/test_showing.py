"""What `dledger spool show` says of messages, beside the process that has the directory."""

from __future__ import annotations

import base64
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dledger.errors import CorruptFile, DledgerError
from dledger.files.memory_files import MemoryFiles
from dledger.sidecar.showing import (
    Choice,
    Shown,
    damage_as_dict,
    first_of,
    line_of,
    line_of_damage,
    rejected_of,
    waiting_of,
)
from dledger.sidecar.status import status_of
from dledger.spool.looking import Look
from dledger.spool.payload import Message
from dledger.spool.requeue import ask
from dledger.spool.spool import Spool
from dledger.types import Record
from tests.sidecar import fakes
from tests.spool.old_format import write_spool
from tests.spool.spool_harness import DIR, Disk, messages
from tests.spool.test_requeue import again
from tests.spool.test_spool_lanes import LaneGroup, bring, sent

ALL = Choice()


def of_sdk(number: int, client_id: str = "bob", topic: str = "orders") -> Message:
    """Return a message as the sidecar spools it."""
    made = fakes.message(topic, b"hello %d" % number, f"{number:06}").SerializeToString()
    record = Record(body=made, message_id=f"{number:06}", born_at_ms=1_700_000_000_000)
    return Message(topic=topic, client_id=client_id, record=record, tried=number == 2)


def shown(disk: Disk, choice: Choice = ALL) -> list[Shown]:
    """Return what waits."""
    return list(waiting_of(Look(disk.files, DIR), choice))


def test_what_waits_is_told_message_by_message() -> None:
    """Lane, place, id, topic, client, age, size, whether its outcome is known, and its body."""
    disk = Disk()
    disk.open().append([of_sdk(1), of_sdk(2), of_sdk(3, "alice", "prices")])

    first, second, third = shown(disk)

    assert (first.sequence, first.lane_sequence, second.lane_sequence) == (1, 1, 2)
    assert first.lane == second.lane != third.lane
    assert (third.message_id, third.topic, third.client_id) == ("000003", "prices", "alice")
    assert [one.unknown_outcome for one in (first, second, third)] == [False, True, False]
    assert first.body == b"hello 1"
    assert first.age_seconds > 0
    assert first.size_bytes > len(first.body)
    assert "000002 orders, of bob, " in line_of(second, body=False)
    assert line_of(second, body=True).endswith("outcome unknown\n           'hello 2'")
    assert base64.b64decode(first.as_dict(body=True)["body"]) == b"hello 1"
    assert "body" not in first.as_dict(body=False)


def test_some_are_chosen_by_topic_and_client_and_the_first_ones_shown() -> None:
    """With a word that there are more."""
    disk = Disk()
    disk.open().append([of_sdk(n, "bob" if n % 2 else "alice") for n in range(1, 9)])

    mine = shown(disk, Choice(client_id="alice"))
    some, is_more = first_of(waiting_of(Look(disk.files, DIR), ALL), 3)

    assert [one.message_id for one in mine] == ["000002", "000004", "000006", "000008"]
    assert shown(disk, Choice(topic="prices")) == []
    assert ([one.sequence for one in some], is_more) == ([1, 2, 3], True)
    assert first_of(iter(mine), 4)[1] is False


def test_a_directory_of_a_producer_and_one_of_version_1_are_shown() -> None:
    """Of no lane, and of no client but the spool's own."""
    disk = Disk()
    disk.open().append(messages(1, 2))
    old = MemoryFiles()
    write_spool(old, messages(1, 9), replayed=3)

    mine = shown(disk)
    theirs = list(waiting_of(Look(old, DIR), ALL))

    assert [(one.lane, one.client_id, one.body[:8]) for one in mine] == [
        (0, "", b"orders 1"),
        (0, "", b"orders 2"),
    ]
    assert [one.message_id for one in theirs] == [f"{n:06}" for n in range(4, 10)]
    assert "of this spool" in line_of(mine[0], body=False)


def test_what_was_refused_is_told_with_its_reason_until_it_goes_back() -> None:
    """It does not wait meanwhile."""
    disk = Disk()
    spool = disk.open()
    spool.append([sent(n, "bob") for n in range(6, 9)])
    bring(spool, LaneGroup())
    before = list(rejected_of(Look(disk.files, DIR), ALL))
    ask(disk.files, DIR, [one.place for one in Look(disk.files, DIR).refusals()])
    again(spool)

    assert [(one.message_id, one.reason, one.size_bytes) for one in before] == [
        ("000007", "poison", 0)
    ]
    assert line_of(before[0], body=False).endswith("refused: poison")
    assert list(rejected_of(Look(disk.files, DIR), ALL)) == []
    assert [one.message_id for one in shown(disk)] == ["000007"]


def test_what_was_refused_out_of_turn_does_not_wait() -> None:
    """Lanes are refused beside each other: what came before it may wait still."""
    disk = Disk()
    spool = disk.open()
    spool.append([sent(n, "bob") for n in range(1, 4)])
    chunk = spool.read(max_records=3, max_bytes=1 << 20)
    assert chunk is not None
    spool.reject([(chunk.messages[1], "poison")])

    assert [one.message_id for one in shown(disk)] == ["000001", "000003"]


def test_damage_is_told_where_it_is_now_and_where_it_was_put() -> None:
    """Which messages it cost; once all else is replayed, in quarantine/."""
    disk = Disk()
    disk.open().append([sent(n, "bob") for n in range(1, 5)])
    (name,) = disk.names()
    second = 4096 + len(_record_of(disk))
    disk.contents(name)[second + 40] ^= 1
    disk.files.kill()
    before = damage_as_dict(Look(disk.files, DIR))
    spool = disk.open()
    bring(spool, LaneGroup())
    after = damage_as_dict(Look(disk.files, DIR))

    assert [(one["messages"], one["first"], one["last"]) for one in before] == [(1, 2, 2)]
    assert [(one["messages"], one["first"]) for one in after] == [(1, 2)]
    assert after[0]["file"] == str(DIR / "quarantine" / name)
    assert "1 messages lost (2 to 2)" in line_of_damage(after[0])


def _record_of(disk: Disk) -> bytes:
    """Return the bytes of the first record."""
    (first, *_) = shown(disk)
    return bytes(first.size_bytes)


class Moving(MemoryFiles):
    """Somebody else replays between two looks at the directory."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: list[Spool] = []

    def list(self, directory: Path) -> list[str]:
        names = super().list(directory)
        if directory == DIR and self.meanwhile:
            bring(self.meanwhile.pop(), LaneGroup())
        return names


def test_what_is_replayed_meanwhile_is_no_damage() -> None:
    """A file may go while it is looked for."""
    disk = Disk()
    disk.files = files = Moving()
    spool = disk.open()
    spool.append([sent(n, "bob") for n in range(1, 60)])
    files.meanwhile.append(spool)

    status = status_of(disk.files, DIR)
    files.meanwhile.append(spool)

    assert (status.lost, status.depth) == (0, 0)
    assert damage_as_dict(Look(disk.files, DIR)) == []


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_bytes_are_looked_at_without_a_crash_or_a_change(data: st.DataObject) -> None:
    """The files are anybody's who has the disk."""
    disk = Disk()
    spool = disk.open()
    spool.append([of_sdk(n) for n in range(6, 9)])
    bring(spool, LaneGroup())
    spool.append([of_sdk(n) for n in range(10, 14)])
    disk.files.kill()
    path = data.draw(st.sampled_from(sorted(set(disk.files._names) - {DIR / "lock"})))
    content = disk.files.contents(path)
    for _ in range(3):
        content[data.draw(st.integers(0, min(len(content), 6000) - 1))] ^= data.draw(
            st.integers(1, 255)
        )
    before = {one: bytes(disk.files.contents(one)) for one in disk.files._names}

    for each in (
        lambda look: list(waiting_of(look, ALL)),
        lambda look: list(rejected_of(look, ALL)),
        damage_as_dict,
    ):
        with suppress(DledgerError):
            each(Look(disk.files, DIR))

    assert {one: bytes(disk.files.contents(one)) for one in disk.files._names} == before


def test_a_spool_at_rest_has_nothing_to_show() -> None:
    """No file is left of it but the small ones."""
    disk = Disk()
    disk.open().close()

    assert shown(disk) == list(rejected_of(Look(disk.files, DIR), ALL)) == []
    assert damage_as_dict(Look(disk.files, DIR)) == []


def test_a_directory_that_is_not_there_is_refused() -> None:
    """By name, and nothing is made."""
    files = MemoryFiles()
    with pytest.raises(CorruptFile, match="it is no spool"):
        Look(files, DIR)
    assert files.list(DIR) == []

"""A newer version's files are told from damaged ones: refused by name, and left as they are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import cast

import pytest
from crc32c import crc32c

from dledger.common.features import Features
from dledger.errors import NewerFormat, OlderFormat
from dledger.files import checked_json
from dledger.files.files import Mode
from dledger.store import hard_state, snapshot_file
from dledger.store.format import FORMAT_VERSION, Base
from dledger.store.hard_state import HardStateFile
from dledger.store.identity import load_or_format
from dledger.store.segment import index_name, segment_name
from dledger.store.snapshot_file import Snapshot, decode_snapshot, encode_snapshot
from dledger.store.snapshot_files import SnapshotFiles
from dledger.store.tombstone import NAME as TOMBSTONE_NAME
from dledger.store.tombstone import Tombstone, load_tombstone
from dledger.store.watermark import NAME as WATERMARK_NAME
from dledger.types import EntryKind, HardState, Member, Membership, NodeId
from tests.store.harness import DATA, GROUP, LOG, NODE, Disk, entries, entry

_SNAPSHOTS = DATA / "snapshots"
_VERSION_AT = 8
_MEMBERS = Membership.of([Member(id=NodeId("n1"), name="orders-0", address="a:1")], GROUP)
_BASE = Base(index=0, term=0, chain=0)


def _disk() -> Disk:
    """Return a disk with several segments, closed."""
    disk = Disk(segment_bytes=8192)
    disk.with_entries(entries(1, 40, size=512)).close()
    return disk


def _rewrite(disk: Disk, path: Path, change: Callable[[bytearray], None], at: int = 0) -> bytes:
    """Change a file, or what is behind byte *at*, durably; return what it was changed to."""
    file = disk.files.open(path, Mode.UPDATE)
    data = bytearray(file.pread(file.size() - at, at))
    change(data)
    file.pwritev([bytes(data)], at)
    file.fdatasync()
    file.close()
    return bytes(data)


def _newer(crc_at: int) -> Callable[[bytearray], None]:
    """Return the change to the next format of what has its CRC at byte *crc_at*."""
    return _with_format(FORMAT_VERSION + 1, crc_at)


def _with_format(number: int, crc_at: int) -> Callable[[bytearray], None]:
    def change(data: bytearray) -> None:
        data[_VERSION_AT] = number
        data[crc_at : crc_at + 4] = crc32c(bytes(data[:crc_at])).to_bytes(4, "little")

    return change


def _contents(disk: Disk) -> dict[str, bytes]:
    found = {}
    for name in disk.files.list(LOG):
        file = disk.files.open(LOG / name, Mode.READ)
        found[name] = file.pread(file.size(), 0)
        file.close()
    return found


def _first_segments(disk: Disk) -> list[int]:
    return sorted(int(n.removesuffix(".seg")) for n in disk.files.list(LOG) if n.endswith(".seg"))


@pytest.mark.parametrize(
    ("name", "crc_at", "starts_at", "what"),
    [
        (lambda first: segment_name(first[-1]), 220, 0, "segment"),
        (lambda first: segment_name(first[0]), 220, 0, "segment"),
        (lambda first: index_name(first[0]), 52, 0, "index"),
        (lambda _: WATERMARK_NAME, 508, 0, "watermark"),
        (lambda _: WATERMARK_NAME, 508, 4096, "watermark"),
    ],
    ids=["last segment", "sealed segment", "index file", "first slot", "second slot"],
)
def test_a_log_of_a_newer_format_is_refused_and_not_touched(
    name: Callable[[list[int]], str], crc_at: int, starts_at: int, what: str
) -> None:
    """One slot is enough: taking the older one for the newest would forget what was promised."""
    disk = _disk()
    if what == "segment":
        _remove_index(disk, name(_first_segments(disk)))
    _rewrite(disk, LOG / name(_first_segments(disk)), _newer(crc_at), starts_at)
    before = _contents(disk)

    with pytest.raises(NewerFormat, match=rf"{what} .*format 4, and this one reads up to format 3"):
        disk.open()

    assert _contents(disk) == before


@pytest.mark.parametrize(
    ("name", "crc_at", "what"),
    [
        (lambda first: segment_name(first[-1]), 220, "segment"),
        (lambda first: index_name(first[0]), 52, "index"),
        (lambda _: WATERMARK_NAME, 508, "watermark"),
    ],
    ids=["last segment", "index file", "watermark"],
)
@pytest.mark.parametrize("older", [1, 2])
def test_a_log_of_an_older_build_is_refused_by_name_and_not_touched(
    name: Callable[[list[int]], str], crc_at: int, what: str, older: int
) -> None:
    """It is no damage: neither cut nor repaired, and whoever reads the error knows what to do."""
    disk = _disk()
    _rewrite(disk, LOG / name(_first_segments(disk)), _with_format(older, crc_at))
    before = _contents(disk)

    with pytest.raises(OlderFormat, match=rf"{what} .*format {older}, and this one reads format 3"):
        disk.open()

    assert _contents(disk) == before


def _remove_index(disk: Disk, name: str) -> None:
    index = name.replace(".seg", ".idx")
    if index in disk.files.list(LOG):
        disk.files.remove(LOG / index)


@pytest.mark.parametrize("synced", [True, False])
def test_a_record_of_a_newer_kind_is_neither_rot_nor_a_torn_tail(synced: bool) -> None:
    """Its chain value fits. Taken for a torn tail it would be cut, and what was acked be lost."""
    disk = _disk()
    log = disk.open()
    log.append([entry(41, kind=cast("EntryKind", 7))])
    if synced:
        log.sync()
    before = _contents(disk)

    with pytest.raises(NewerFormat, match="the record of entry 41 is of a newer version: type 7"):
        disk.open()

    assert _contents(disk) == before


def test_a_membership_with_a_field_to_come_is_not_put_in_force_without_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may count voters that this version would not."""
    disk = _disk()
    log = disk.open()
    data = _MEMBERS.encode().replace(b'"voters"', b'"observers":[],"voters"')
    with monkeypatch.context() as newer:
        newer.setattr(Features, "check_stored", lambda *_: None)
        log.append([entry(41, data=data, kind=EntryKind.MEMBERSHIP)])
        log.sync()

    with pytest.raises(NewerFormat, match=r"entry 41 .*a membership with 'observers'"):
        disk.open()


def test_a_hard_state_of_a_newer_format_is_no_lost_vote(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whom this disk voted for is not guessed at."""
    disk = _disk()
    with monkeypatch.context() as newer:
        newer.setattr(hard_state, "FORMAT_VERSION", 3)
        HardStateFile(disk.files, DATA).save(HardState(term=3, vote=NodeId("n1")))

    with pytest.raises(NewerFormat, match=r"hard state .*format 3"):
        HardStateFile(disk.files, DATA).load()


def test_an_identity_of_a_newer_format_is_not_formatted_anew() -> None:
    """And it is not called damaged: an image that is new enough starts from it."""
    disk = _disk()
    fields = asdict(replace(disk.identity)) | {"colour": "blue"}
    _put(disk, DATA / "identity.json", checked_json.encode(3, fields))

    with pytest.raises(NewerFormat, match=r"identity\.json .*format 3"):
        load_or_format(disk.files, DATA, "orders-0")


def test_a_tombstone_of_a_newer_format_still_keeps_the_node_out() -> None:
    """A removed node that cannot read by what it was removed is no member again."""
    disk = _disk()
    tombstone = Tombstone(group_id=GROUP, node_id=NodeId(NODE), index=3, learned_at_ms=1)
    _put(disk, DATA / TOMBSTONE_NAME, checked_json.encode(2, asdict(tombstone)))

    with pytest.raises(NewerFormat, match=r"removed\.json .*format 2"):
        load_tombstone(disk.files, DATA)


def _put(disk: Disk, path: Path, data: bytes) -> None:
    file = disk.files.open(path, Mode.CREATE)
    file.pwritev([data], 0)
    file.fdatasync()
    file.close()


def _snapshot(*, members: Membership = _MEMBERS) -> Snapshot:
    place = Base(index=8, term=1, chain=7)
    return Snapshot(
        group_id=GROUP, applied=place, base=_BASE, memberships=((1, members),), body=b"state"
    )


def _newer_snapshot(monkeypatch: pytest.MonkeyPatch) -> bytes:
    with monkeypatch.context() as newer:
        newer.setattr(snapshot_file, "FORMAT_VERSION", snapshot_file.FORMAT_VERSION + 1)
        return b"".join(encode_snapshot(_snapshot()))


def test_a_snapshot_of_a_newer_format_is_not_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A damaged one is, and the next one written takes its place."""
    disk = _disk()
    disk.files.make_dirs(_SNAPSHOTS)
    data = _newer_snapshot(monkeypatch)
    _put(disk, _SNAPSHOTS / f"{8:020d}.snap", data)
    snapshots = SnapshotFiles(disk.files, _SNAPSHOTS, reserve_bytes=0)

    with pytest.raises(NewerFormat, match="the snapshot is of a newer version"):
        snapshots.load(GROUP)

    assert disk.files.open(_SNAPSHOTS / f"{8:020d}.snap", Mode.READ).pread(len(data), 0) == data


def test_no_flipped_bit_makes_a_snapshot_a_newer_one() -> None:
    """Else rot would keep a node down that has another snapshot."""
    data = b"".join(encode_snapshot(_snapshot()))

    for at in range(16):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[at] ^= 1 << bit
            with pytest.raises(ValueError, match=r"magic|version|CRC|bytes"):
                decode_snapshot(bytes(flipped))


def test_a_snapshot_with_a_membership_to_come_is_refused() -> None:
    """As the entry would be that it takes the place of."""
    data = b"".join(encode_snapshot(_snapshot()))
    who = data.replace(b'{\\"group\\"', b'{\\"grade\\":1,\\"group\\"')
    assert who != data

    with pytest.raises(NewerFormat, match=r"entry 1 .*'grade'"):
        snapshot_file._who(who[who.index(b'{"group"') : who.index(b"state")])

"""Founding a group: what is refused, and the record of the act."""

from __future__ import annotations

from pathlib import Path

import pytest

from dledger.errors import CorruptFile, InvalidArgument
from dledger.files.memory_files import MemoryFiles
from dledger.replica.bootstrap_record import BootstrapFile, BootstrapRecord, check_bootstrap
from dledger.store.format import check_entry
from dledger.types import Member, Membership, NodeId


def member(number: int, **changed: str) -> Member:
    fields = {"id": f"id-{number}", "name": f"orders-{number}", "address": f"host-{number}:20911"}
    fields.update(changed)
    return Member(id=NodeId(fields["id"]), name=fields["name"], address=fields["address"])


THREE = (member(2), member(0), member(1))


def test_the_founding_entry_is_the_same_whoever_writes_it() -> None:
    """No clock, no order of arrival: two interrupted founders cannot disagree."""
    first = check_bootstrap("g", THREE, own_id=NodeId("id-0")).entry()
    second = check_bootstrap("g", THREE[::-1], own_id=NodeId("id-2")).entry()

    assert first == second
    check_entry(first)


@pytest.mark.parametrize(
    ("group_id", "members", "what"),
    [
        ("", THREE, "group_id"),
        ("g", (), "odd"),
        ("g", THREE[:2], "odd"),
        ("g", (*THREE, *(member(n) for n in range(3, 11))), "odd, 1 to 9"),
        ("g", (member(0), member(1), member(2, id="id-1")), "ids"),
        ("g", (member(0), member(1), member(2, name="orders-1")), "names"),
        ("g", (member(0), member(1), member(2, address="")), "addresses"),
        ("g", (member(3), member(4), member(5)), "not among the members"),
    ],
)
def test_a_malformed_founding_is_refused(
    group_id: str, members: tuple[Member, ...], what: str
) -> None:
    """With the field's name."""
    with pytest.raises(InvalidArgument, match=what):
        check_bootstrap(group_id, members, own_id=NodeId("id-0"))


def test_the_record_is_read_back() -> None:
    """A founding that was cut short is finished from it."""
    file = BootstrapFile(MemoryFiles(), Path("/data"))
    founding = BootstrapRecord("g", Membership.of(THREE))

    assert file.load() is None
    file.save(founding)

    assert file.load() == founding


@pytest.mark.parametrize("data", [b"", b"{}", b'{"groupId": "g", "members": 3}', b"\xff"])
def test_a_damaged_record_is_refused(data: bytes) -> None:
    """It is input like everything on disk."""
    with pytest.raises(CorruptFile):
        BootstrapRecord.decode(data)

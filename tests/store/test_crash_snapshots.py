"""Snapshots and the tombstone, the power cut at every call: every disk that may be left."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from dledger.errors import CorruptFile, StorageError
from dledger.store.format import Base
from dledger.store.snapshot_file import Snapshot, encode_snapshot
from dledger.store.snapshot_files import SnapshotFiles, info_of
from dledger.store.tombstone import Tombstone, load_tombstone, save_tombstone
from dledger.types import Member, Membership, NodeId
from tests.store.harness import DATA, GROUP, NODE
from tests.store.power_cuts import EMPTY, PowerFiles

DIRECTORY = DATA / "snapshots"
MAX_IMAGES = 1 << 13
REMOVED = Tombstone(group_id=GROUP, node_id=NodeId(NODE), index=9, learned_at_ms=1)
MEMBERS = Membership.of([Member(id=NodeId(NODE), name="orders-0", address="a:1")], GROUP)

Kept = frozenset[object]
"""Indexes of snapshots, and the tombstone."""


def snapshot(index: int) -> Snapshot:
    """Return one that lies in three sectors."""
    return Snapshot(
        group_id=GROUP,
        applied=Base(index=index, term=3, chain=77),
        base=Base(index=index // 2, term=2, chain=66),
        memberships=((1, MEMBERS),),
        body=bytes([index]) * 900,
    )


class Node:
    """What a history drives, and what its disk holds for certain: one of *certain*, whole."""

    def __init__(self, files: PowerFiles) -> None:
        self.files = files
        self.snapshots = SnapshotFiles(files, DIRECTORY, reserve_bytes=0)
        self.certain: list[Kept] = [frozenset()]

    def save(self, index: int) -> None:
        """Keep a snapshot of our own, and the one before."""
        before = self.certain[-1]
        after = frozenset(sorted([*(one for one in before if isinstance(one, int)), index])[-2:])
        self.certain = [before, after]
        self.snapshots.save(snapshot(index))
        self.certain = [after]

    def install(self, index: int) -> None:
        """Take a leader's snapshot in pieces, then let go of the others."""
        sent = snapshot(index)
        data = b"".join(encode_snapshot(sent))
        info = info_of(sent, data)
        for offset in range(0, len(data), 700):
            self.snapshots.receive(info, offset, data[offset : offset + 700])
        received = self.snapshots.received(info)
        assert received == sent
        before = self.certain[-1]
        self.certain = [before, before | {index}]
        self.snapshots.install(info, received)
        self.certain = [before | {index}]
        self.certain = [frozenset({index})]
        self.snapshots.settle()

    def remove(self) -> None:
        """Learn that this node was removed."""
        before = self.certain[-1]
        self.certain = [before, before | {REMOVED}]
        save_tombstone(self.files, DATA, REMOVED)
        self.certain = [before | {REMOVED}]


def found(files: PowerFiles) -> Kept:
    """Return what a start finds: each file with a snapshot's name is whole."""
    loaded = SnapshotFiles(files, DIRECTORY, reserve_bytes=0).load(GROUP)
    names = [name for name in files.list(DIRECTORY) if name.endswith(".snap")]
    assert len(loaded) == len(names), f"damaged among {names}"
    assert loaded == [snapshot(one.applied.index) for one in loaded]
    tombstone = load_tombstone(files, DATA)
    return frozenset({*(one.applied.index for one in loaded), tombstone} - {None})


def check_images(files: PowerFiles, certain: list[Kept]) -> int:
    """Start each disk that a power cut leaves; return how many there are."""
    cases = 0
    for image in files.images(MAX_IMAGES):
        cases += 1
        here = found(PowerFiles(image))
        assert any(one <= here for one in certain), f"{here} behind {files.calls[-3:]}"
    return cases


def check_restart(files: PowerFiles, certain: list[Kept]) -> int:
    """Start on what a killed process left; what is found then is durable."""
    forked = files.fork(lambda starting: cases.append(check_images(starting, certain)))
    cases: list[int] = []
    here = found(forked)
    return sum(cases) + check_images(forked, [one | here for one in certain if one <= here])


History = Callable[[Node], None]


def run(history: History, files_type: type[PowerFiles] = PowerFiles) -> int:
    """Cut the power, and kill the process, before each call and at the end; count the disks."""
    cases = 0

    def cut(files: PowerFiles) -> None:
        nonlocal cases
        cases += check_images(files, node.certain) + check_restart(files, node.certain)

    files = files_type(EMPTY, cut)
    node = Node(files)
    history(node)
    cut(files)
    return cases


def fail(history: History) -> int:
    """Let each call fail once, and start again; return how many calls there are."""
    calls = 0
    while True:
        files = PowerFiles()
        files.failing_call = calls + 1
        node = Node(files)
        try:
            history(node)
        except StorageError:
            calls += 1
            check_restart(files, node.certain)
        else:
            return calls


def save_three(node: Node) -> None:
    """The newest and the one before stay."""
    for index in (5, 8, 12):
        node.save(index)


def save_and_install(node: Node) -> None:
    """A leader's takes the place of our own, and is followed by our own again."""
    node.save(5)
    node.install(20)
    node.save(30)


def remove(node: Node) -> None:
    """A node that was removed stays so; repeating it is harmless."""
    node.save(5)
    node.remove()
    node.remove()


@pytest.mark.parametrize("history", [save_three, save_and_install, remove])
def test_snapshots_and_the_tombstone_are_old_or_new_after_any_cut(history: History) -> None:
    """Never half a file under its name, never neither."""
    cases, calls = run(history), fail(history)

    print(f"{cases} disks, {calls} calls that failed")
    assert cases > 100
    assert calls > 5


@pytest.mark.parametrize(
    ("forgets", "history"),
    [
        (r"fdatasync \d+\.snap\.new", save_three),
        ("fdatasync incoming", save_and_install),
        ("fsync_dir snapshots", save_three),
        (r"fdatasync removed\.json\.new", remove),
        ("fsync_dir data", remove),
    ],
)
def test_a_sync_of_a_snapshot_that_is_forgotten_is_found(forgets: str, history: History) -> None:
    """Each of them is there for a reason."""

    class Forgetful(PowerFiles):
        def change(self, call: str) -> bool:
            return super().change(call) and re.fullmatch(forgets, call) is None

    refused = r"frozenset|damaged among|removed\.json"
    with pytest.raises((AssertionError, CorruptFile), match=refused):
        run(history, Forgetful)

"""The "append ABA" race on the real driver: real threads, real files, syncs let through one by one.

The same entry (term, index) may be on its way to disk twice, with another one in between. What the
first write completed is then not what the log means any more.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from crc32c import crc32c

from dledger.files.files import File, Mode, RealFiles
from dledger.raft.messages import AppendRequest, AppendResponse
from dledger.types import Entry, EntryKind, NodeId
from tests.files.passed_file import PassedFile
from tests.raft.chains import chain_behind
from tests.replica.group import IDS, DriverGroup, DriverNode, command, founding_entry
from tests.waiting import eventually

SELF, OTHER, THIRD = IDS


class SteppedFiles(RealFiles):
    """Real files; once shut, each sync of a segment waits for a permit. Votes are not held up."""

    def __init__(self) -> None:
        self.shut = False
        self.waiting = 0
        self._permits = threading.Semaphore(0)

    def let_one_through(self) -> None:
        self.waiting -= 1
        self._permits.release()

    def open_up(self) -> None:
        self.shut = False
        self._permits.release(1000)

    def pause(self) -> None:
        if self.shut:
            self.waiting += 1
            assert self._permits.acquire(timeout=20)

    def open(self, path: Path, mode: Mode) -> File:
        inner = super().open(path, mode)
        return SteppedFile(inner, self) if path.suffix == ".seg" else inner


class SteppedFile(PassedFile):
    """A segment whose fdatasync waits for a permit."""

    def __init__(self, inner: File, files: SteppedFiles) -> None:
        super().__init__(inner)
        self._files = files

    def fdatasync(self) -> None:
        self._files.pause()
        super().fdatasync()


@pytest.fixture
def files() -> Iterator[SteppedFiles]:
    """Return files whose writer threads are free again when the test ends."""
    made = SteppedFiles()
    yield made
    made.open_up()


def data_entry(*, term: int, text: str, index: int) -> Entry:
    data = command(text)
    return Entry(
        term=term,
        index=index,
        kind=EntryKind.DATA,
        timestamp_ms=1,
        crc32c=crc32c(data),
        data=data,
    )


def append(sender: NodeId, *behind: Entry, term: int, entry_term: int, text: str) -> AppendRequest:
    """Return what the leader of *term* sends to have *text* said *behind* those entries."""
    before = [founding_entry(), *behind]
    entry = data_entry(term=entry_term, text=text, index=len(before) + 1)
    return AppendRequest(
        sender=sender,
        recipient=SELF,
        term=term,
        previous_index=len(before),
        previous_term=1,
        previous_chain=chain_behind(0, before),
        last_chain=chain_behind(0, [*before, entry]),
        commit_index=1,
        entries=(entry,),
    )


def acknowledged(group: DriverGroup) -> set[int]:
    """Return the terms in which a success for entry 2 has left."""
    return {
        message.term
        for message in group.sent
        if isinstance(message, AppendResponse) and message.success and message.match_index == 2
    }


async def follower(group: DriverGroup, files: SteppedFiles) -> DriverNode:
    """Return a running node whose next syncs wait."""
    group.start(SELF)
    node = group.nodes[SELF]
    files.shut = True
    return node


async def test_a_stale_completion_on_the_real_driver_does_not_count_the_same_entry_again(
    tmp_path: Path, files: SteppedFiles
) -> None:
    """A, B, A: the first write of A completes while the second still waits for its own sync."""
    group = DriverGroup(tmp_path, files={SELF: files})
    node = await follower(group, files)
    node.driver.receive(append(OTHER, term=2, entry_term=2, text="A"))
    await eventually(lambda: files.waiting)
    node.driver.receive(append(THIRD, term=3, entry_term=3, text="B"))
    await asyncio.sleep(0.01)
    node.driver.receive(append(OTHER, term=4, entry_term=2, text="A"))
    await eventually(lambda: node.driver.core.durable_hard_state.term == 4)

    files.let_one_through()
    await eventually(lambda: files.waiting)

    assert node.driver.core.durable_index == 1
    assert acknowledged(group) == set()

    files.open_up()
    await eventually(lambda: acknowledged(group))

    assert acknowledged(group) == {4}
    assert node.driver.core.durable_index == 2
    assert [entry.data for entry in node.log.read(2, 2, 1 << 20)] == [command("A")]
    await group.stop()


async def test_one_sync_of_the_same_entry_twice_counts_the_second(
    tmp_path: Path, files: SteppedFiles
) -> None:
    """A, B, A gathered behind another write go down together: all of it is durable then.

    No later write is needed to find that out, so an idle group's follower applies the entry.
    """
    group = DriverGroup(tmp_path, files={SELF: files})
    node = await follower(group, files)
    first = data_entry(term=1, text="first", index=2)
    node.driver.receive(append(OTHER, term=1, entry_term=1, text="first"))
    await eventually(lambda: files.waiting)
    for term, entry_term, text in ((2, 2, "A"), (3, 3, "B"), (4, 2, "A")):
        sender = THIRD if term == 3 else OTHER
        node.driver.receive(append(sender, first, term=term, entry_term=entry_term, text=text))
        await asyncio.sleep(0.01)
    await eventually(lambda: node.driver.core.durable_hard_state.term == 4)

    files.open_up()

    await eventually(lambda: node.driver.core.durable_index == 3, deadline_s=5)
    await group.stop()


async def test_a_completion_of_a_replaced_entry_acknowledges_nothing(
    tmp_path: Path, files: SteppedFiles
) -> None:
    """A, B: what the disk has just finished is not what the log says any more.

    Its ack is withdrawn as well: behind another write, B could replace A before any sync.
    """
    group = DriverGroup(tmp_path, files={SELF: files})
    node = await follower(group, files)
    node.driver.receive(append(OTHER, term=2, entry_term=2, text="A"))
    await eventually(lambda: files.waiting)
    node.driver.receive(append(THIRD, term=3, entry_term=3, text="B"))
    await eventually(lambda: node.driver.core.durable_hard_state.term == 3)

    files.let_one_through()
    await eventually(lambda: files.waiting)

    assert node.driver.core.durable_index == 1
    assert acknowledged(group) == set()
    files.open_up()
    await eventually(lambda: acknowledged(group))
    assert acknowledged(group) == {3}
    await group.stop()

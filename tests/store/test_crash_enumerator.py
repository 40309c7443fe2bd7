"""Small histories, the power cut at every call, every disk that may be left."""

from __future__ import annotations

import logging
import re

import pytest

from dledger.types import HardState, NodeId
from tests.store.crash_enumerator import Enumerator, History, Node, Shape
from tests.store.harness import entries, entry
from tests.store.power_cuts import PowerFiles

OTHER_GROUP = "6f1c7a52-0000-4000-8000-000000000bad"
OS_BUFFER = Shape(durability="osBuffer")
ROOMY = Shape(segment_bytes=4096 + 8192)


def format_and_join(node: Node) -> None:
    """A disk is formatted once, and joins once."""
    node.join()


def append_and_sync(node: Node) -> None:
    """Small records share sectors, a large one has several; synced in groups."""
    node.join()
    node.append(entries(1, 2))
    node.sync()
    node.append([entry(3)])
    node.append([entry(4, data=b"d" * 1300)])
    node.sync()
    node.append(entries(5, 6, size=300))
    node.sync()


def truncate_what_was_synced(node: Node) -> None:
    """A new leader's entries replace synced ones."""
    node.join()
    node.append(entries(1, 5, size=400))
    node.sync()
    node.append(entries(3, 4, term=2, size=400))
    node.sync()


def truncate_and_write_the_same_again(node: Node) -> None:
    """Only zeros tell the first of the truncated entries, sent again, from all of them."""
    node.join()
    node.append(entries(1, 5, size=400))
    node.sync()
    node.append(entries(3, 3, size=400))
    node.sync()


def truncate_what_was_not_synced(node: Node) -> None:
    """Both versions of a sector may reach the disk, and the one before them."""
    node.join()
    node.append([entry(1)])
    node.sync()
    node.append(entries(2, 4, size=400))
    node.append(entries(3, 4, term=2, size=400))
    node.sync()


def fill_segments(node: Node) -> None:
    """Each segment is sealed when its successor is made, from a spare one or not."""
    node.join()
    node.append(entries(1, 2, size=900))
    node.prepare()
    node.append(entries(3, 4, size=900))
    node.sync()
    node.append(entries(5, 6, size=900))
    node.append([entry(7, data=b"l" * 3000)])
    node.sync()


def truncate_segments(node: Node) -> None:
    """Whole files go, and a sealed segment becomes the last one again."""
    node.join()
    node.append(entries(1, 6, size=900))
    node.sync()
    node.append(entries(2, 2, size=900))
    node.sync()
    node.append(entries(3, 4, term=2, size=900))
    node.sync()


def cut(node: Node) -> None:
    """Nothing takes the place of what goes, synced or not, within a segment or with whole ones."""
    node.join()
    node.append(entries(1, 4, size=900))
    node.sync()
    node.append(entries(5, 6, size=300))
    node.cut_behind(5)
    node.sync()
    node.cut_behind(2)
    node.cut_behind(2)
    node.append(entries(3, 3, size=900))
    node.sync()


def vote_beside_the_log(node: Node) -> None:
    """Hard state and log are saved side by side; neither may spoil the other."""
    node.join()
    node.vote(HardState(1, NodeId("a")))
    node.append(entries(1, 2, size=300))
    node.vote(HardState(2, None))
    node.sync()
    node.vote(HardState(3, NodeId("b")))


def damage_one_copy(node: Node) -> None:
    """What a start mends must not be lost by a power cut in the midst of it."""
    node.join()
    node.vote(HardState(1, NodeId("a")))
    node.damage("hard_state")
    node.damage("identity.json.copy")
    node.vote(HardState(2, NodeId("b")))
    node.damage("hard_state.copy")
    node.damage("identity.json")


def restart(node: Node) -> None:
    """A stop in good order, with entries that nobody synced."""
    node.join()
    node.append(entries(1, 3, size=300))
    node.restart()
    node.append(entries(4, 5, size=300))
    node.restart()
    node.append(entries(5, 5, term=2, size=300))
    node.sync()


def restore(node: Node) -> None:
    """Another group's log on an empty disk: all of it, or no node."""
    node.restore(entries(1, 3, size=900), OTHER_GROUP)


def drop_and_restart_behind(node: Node) -> None:
    """The log begins later: behind whole segments that go, or behind a snapshot."""
    node.join()
    node.append(entries(1, 6, size=900))
    node.sync()
    node.drop_before(4)
    node.append(entries(5, 6, term=2, size=900))
    node.restart_behind(index=9, term=3, chain=77)
    node.append(entries(10, 11, term=3, size=900))
    node.drop_before(11)
    node.sync()


def restart_behind_within_the_log(node: Node) -> None:
    """A snapshot that ends below the log's end, or where it begins, takes the place of it all."""
    node.join()
    node.append(entries(1, 4, size=900))
    node.sync()
    node.restart_behind(index=3, term=2, chain=7)
    node.restart_behind(index=3, term=2, chain=7)
    node.append(entries(4, 5, term=2, size=900))
    node.sync()


HISTORIES = [
    (format_and_join, Shape()),
    (append_and_sync, ROOMY),
    (truncate_what_was_synced, Shape()),
    (truncate_and_write_the_same_again, Shape()),
    (truncate_what_was_not_synced, Shape()),
    (fill_segments, Shape()),
    (truncate_segments, Shape()),
    (cut, Shape()),
    (damage_one_copy, Shape()),
    (vote_beside_the_log, Shape()),
    (restart, Shape()),
    (drop_and_restart_behind, Shape()),
    (restart_behind_within_the_log, Shape()),
    (restore, Shape()),
    (drop_and_restart_behind, OS_BUFFER),
    (append_and_sync, OS_BUFFER),
    (fill_segments, OS_BUFFER),
    (truncate_segments, OS_BUFFER),
    (restart, OS_BUFFER),
]


def _named(one: object) -> str:
    return one.durability if isinstance(one, Shape) else getattr(one, "__name__", str(one))


@pytest.mark.parametrize(("history", "shape"), HISTORIES, ids=_named)
def test_whatever_cuts_a_history_short_the_disk_is_allowed(
    history: History, shape: Shape, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing that was synced is lost, nothing that was truncated comes back."""
    caplog.set_level(logging.CRITICAL, "dledger.store")
    enumerator = Enumerator(shape)

    enumerator.run(history)
    enumerator.fail(history)

    print(f"{enumerator.cuts} cuts, {enumerator.cases} cases, {enumerator.disks} disks")


class _Forgetful(PowerFiles):
    """Returns from one kind of sync without doing it."""

    forgets = ""

    def change(self, call: str) -> bool:
        """Skip what is forgotten."""
        return super().change(call) and re.fullmatch(self.forgets, call) is None


FORGOTTEN = [
    (r"fdatasync \d+\.seg", truncate_what_was_not_synced),
    ("fdatasync watermark", truncate_what_was_synced),
    (r"fdatasync watermark\.new", format_and_join),
    (r"fdatasync hard_state\.new", vote_beside_the_log),
    (r"fdatasync identity\.json\.new", format_and_join),
    (r"fdatasync hard_state\.copy\.new", damage_one_copy),
    (r"fdatasync identity\.json\.copy\.new", damage_one_copy),
    ("fsync_dir log", append_and_sync),
    ("fsync_dir data", vote_beside_the_log),
]


@pytest.mark.parametrize(("call", "history"), FORGOTTEN, ids=_named)
def test_a_forgotten_sync_is_found(
    call: str, history: History, caplog: pytest.LogCaptureFixture
) -> None:
    """The enumerator itself is put to the test: each kind of sync is there for a reason."""
    caplog.set_level(logging.CRITICAL, "dledger.store")
    files_type = type("Forgetful", (_Forgetful,), {"forgets": call})

    with pytest.raises(AssertionError, match=r"the process went after|changed what is found"):
        Enumerator(Shape(), files_type).run(history)

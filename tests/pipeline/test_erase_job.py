"""The job erase: what compaction had let go before is erased, too, wherever backups may show it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from dledger.broker.key_queues import queue_of_key
from dledger.errors import DledgerError, InvalidArgument, NotLeader, Refused
from dledger_pipeline.archive import catalog
from dledger_pipeline.archive.erasable import distinct
from dledger_pipeline.archive.known_log import known_log
from dledger_pipeline.archive.manifest import Manifest
from dledger_pipeline.archive.planning import archived_messages
from dledger_pipeline.archive.restore import restore
from dledger_pipeline.cli.main import main
from dledger_pipeline.errors import NoBackup, NodeUnavailable, NoSuchTopic
from dledger_pipeline.jobs.erase import EraseRequest, erase
from dledger_pipeline.jobs.progress import Progress
from dledger_pipeline.jobs.runner import RunnerName
from dledger_pipeline.object_store.store import Store
from tests.broker.compacted import compact_topics
from tests.pipeline.compacting_group import (
    CompactingGroup,
    backed_up,
    compacted,
    compacting_group,
    dropped,
)
from tests.pipeline.kept_world import Place
from tests.pipeline.logs import GROUP_ID
from tests.pipeline.test_erased import NAME, places_in, state_of

KEY = "user-17, a name that nobody may read in what is said"
QUEUES = 2
HOME = queue_of_key(KEY.encode(), QUEUES)


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CompactingGroup]:
    """Return a group whose topic has had four values of the key, of which one is left."""
    monkeypatch.setattr("dledger_pipeline.log.leader_client._FIRST_PAUSE_S", 0.01)
    compact_topics(monkeypatch)
    with compacting_group(tmp_path / "group") as made:
        made.create("t", QUEUES)
        made.send("t", HOME, KEY, other())
        made.send("t", HOME, KEY)
        made.send("t", HOME, other(), KEY)
        made.send("t", HOME, KEY)
        yield made


def other() -> str:
    """Return another key of the same queue."""
    keys = (f"user-18 {number}" for number in range(99))
    return next(each for each in keys if queue_of_key(each.encode(), QUEUES) == HOME)


def request_of(group: CompactingGroup, store: Store, **more: Any) -> EraseRequest:
    """Return what asks to erase the key."""
    asked = {"endpoints": group.addresses, "topic": "t", "key": KEY, "patience_s": 5.0}
    return EraseRequest(**{"runner": RunnerName.PLAIN, "store": store, **asked, **more})


def erased(group: CompactingGroup, store: Store, **more: Any) -> dict[str, Any]:
    """Erase the key; return the result."""
    return erase(request_of(group, store, **more), Progress("erase"))


def shown(store: Store, manifest: Manifest | None = None) -> list[tuple[int, str]]:
    """Return the offsets and keys that view `messages` of a backup has."""
    return sorted(
        (row["queue_offset"], row["keys"][0])
        for each in archived_messages(store, manifest or catalog.load(store))
        for batch in each.read()
        for row in batch.to_pylist()
    )


def of_key(rows: list[tuple[int, str]]) -> list[int]:
    """Return the offsets of the key's messages."""
    return [offset for offset, key in rows if key == KEY]


def restored(store: Store, directory: Path, number: int, at: int) -> set[Place]:
    """Restore a backup up to an entry; return what consumers of that group can get."""
    to = directory / f"{number}-{at}"
    restore(store, None, to, name=NAME, number=number, target_index=at, segment_bytes=1 << 14)
    return places_in(state_of(to))


def let_go(group: CompactingGroup, tmp_path: Path) -> Store:
    """Back up, let the older values go, in the group and in the nodes' logs, and back up again."""
    backed_up(group, tmp_path)
    compacted(group)
    group.retain(group.log.last_index)
    return backed_up(group, tmp_path)


def test_what_compaction_let_go_before_is_shown_by_no_backup(
    group: CompactingGroup, tmp_path: Path, inline_tasks: None
) -> None:
    """Not by the older one, nor by a group that is restored to before they went."""
    store = let_go(group, tmp_path)
    first, newest = catalog.load(store, GROUP_ID, 1), catalog.load(store)
    assert of_key(shown(store, first)) == [0, 2, 4, 5]
    before = group.log.last_index

    result = erased(group, store)
    backed_up(group, tmp_path)

    facts = ("messages", "found", "older", "generations", "commands", "eraseEntry")
    assert [result[each] for each in facts] == [1, 4, 3, [1], 1, before + 2]
    for manifest in (first, newest, catalog.load(store)):
        assert shown(store, manifest)
        assert of_key(shown(store, manifest)) == []
    for at in range(3, first.last_index + 1):
        there = {offset for _, _, offset in restored(store, tmp_path, first.number, at)}
        assert there <= {1, 3}
    assert there == {1, 3}


def test_it_finds_what_came_since_the_backup_and_went_again(
    group: CompactingGroup, tmp_path: Path, inline_tasks: None
) -> None:
    """The next backup has it, and no node tells where it was."""
    store = backed_up(group, tmp_path)
    group.send("t", HOME, KEY, KEY)
    compacted(group)

    result = erased(group, store)
    backed_up(group, tmp_path)

    assert (result["messages"], result["older"]) == (1, 5)
    assert of_key(shown(store)) == []


def test_what_is_stored_after_it_began_stays(
    group: CompactingGroup, tmp_path: Path, inline_tasks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with the key's messages in the group itself."""
    store = let_go(group, tmp_path)

    def while_read(*asked: Any) -> Any:
        group.send("t", HOME, KEY)
        return known_log(*asked)

    monkeypatch.setattr("dledger_pipeline.jobs.erase.known_log", while_read)

    erased(group, store)
    backed_up(group, tmp_path)

    assert of_key(shown(store)) == [6]
    assert 6 in group.visible("t", HOME)


def test_once_more_says_nothing_anew(
    group: CompactingGroup, tmp_path: Path, inline_tasks: None
) -> None:
    """Whether a backup has what was said, or only the log."""
    store = let_go(group, tmp_path)
    erased(group, store)
    last = group.log.last_index

    before = erased(group, store)
    backed_up(group, tmp_path)
    behind = erased(group, store)

    for again in (before, behind):
        assert [again[each] for each in ("messages", "found", "older", "commands")] == [0, 4, 0, 0]
    assert group.log.last_index == last


@pytest.mark.usefixtures("inline_tasks")
@pytest.mark.parametrize("done", [False, True])
def test_one_that_dies_at_any_command_is_finished_by_the_next(
    group: CompactingGroup, tmp_path: Path, done: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the leader has it, or after."""
    monkeypatch.setattr("dledger_pipeline.archive.erasable.MAX_OFFSETS", 1)
    store, number = let_go(group, tmp_path), 0
    while True:
        number += 1
        group.erases = 0

        def killed(call: int, at: int = number) -> DledgerError | None:
            return Refused("killed") if call == at else None

        setattr(group, "after" if done else "fail", killed)
        try:
            erased(group, store)
        except Refused:
            continue
        break
    backed_up(group, tmp_path)

    assert number > 1
    assert of_key(shown(store)) == []
    assert of_key(shown(store, catalog.load(store, GROUP_ID, 1))) == []


@pytest.mark.usefixtures("inline_tasks")
@pytest.mark.parametrize("lost", [NotLeader(None), dropped(1)])
def test_a_leader_that_is_lost_is_followed(
    group: CompactingGroup, tmp_path: Path, lost: DledgerError
) -> None:
    """Whoever leads then is told the same once more."""
    store = let_go(group, tmp_path)

    def after(call: int) -> DledgerError | None:
        if call != 2:
            return None
        group.leading = 1
        return lost

    group.after = after

    erased(group, store)
    backed_up(group, tmp_path)

    assert group.leading == 1
    assert of_key(shown(store, catalog.load(store, GROUP_ID, 1))) == []


def test_two_at_once_do_no_harm(group: CompactingGroup, tmp_path: Path, inline_tasks: None) -> None:
    """One has read what to erase, then another erases all of it, then the first one says it."""
    store = let_go(group, tmp_path)
    threads: list[threading.Thread] = []

    def meanwhile(number: int) -> None:
        if number == 2:
            group.fail = lambda _: None
            threads.append(threading.Thread(target=erased, args=(group, store)))
            threads[0].start()

    group.fail = meanwhile

    first = erased(group, store)
    threads[0].join(30)
    backed_up(group, tmp_path)

    assert first["older"] == 3
    assert of_key(shown(store, catalog.load(store, GROUP_ID, 1))) == []
    assert [each for each in shown(store) if each[1] == other()]


def test_of_a_topic_that_was_deleted_and_made_anew_both_are_erased(
    group: CompactingGroup, tmp_path: Path, inline_tasks: None
) -> None:
    """One that was gone before a backup saw it, too: a restore to then has it again."""
    group.delete("t")
    store = backed_up(group, tmp_path)
    group.create("t", QUEUES)
    group.send("t", HOME, KEY)
    at = group.log.last_index
    backed_up(group, tmp_path)

    result = erased(group, store)
    backed_up(group, tmp_path)

    assert [result[each] for each in ("messages", "older", "generations")] == [1, 4, [1, 2]]
    for target in (6, at):
        there = restored(store, tmp_path, 2, target)
        assert there == ({(1, HOME, 1), (1, HOME, 3)} if target == 6 else set())
    group.delete("t")
    assert erased(group, store)["older"] == 0
    with pytest.raises(NoSuchTopic, match="no topic tt"):
        erased(group, store, topic="tt")


def test_a_stale_archive_that_lies_is_refused(
    group: CompactingGroup, tmp_path: Path, inline_tasks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody is believed who says that a message that is there has the key, and has not."""
    store = let_go(group, tmp_path)

    def lying(*asked: Any) -> Any:
        found = distinct(*asked)
        found[:, 2] = [0, 1, 2, 3]
        return found

    monkeypatch.setattr("dledger_pipeline.jobs.erase.distinct", lying)
    last = group.log.last_index

    with pytest.raises(InvalidArgument, match="topic 't' is a message of another key"):
        erased(group, store)

    assert group.log.last_index == last + 1, "what the group had of the key went first"
    assert 3 in group.visible("t", HOME)


def test_a_dry_run_erases_nothing(
    group: CompactingGroup, tmp_path: Path, inline_tasks: None
) -> None:
    """And says what there is."""
    store, last = let_go(group, tmp_path), group.log.last_index

    result = erased(group, store, dry_run=True)

    facts = ("messages", "found", "older", "eraseEntry", "dryRun")
    assert [result[each] for each in facts] == [1, 4, 3, 0, True]
    assert group.log.last_index == last


def test_it_is_refused_without_backup_topic_or_leader(
    group: CompactingGroup, tmp_path: Path, inline_tasks: None
) -> None:
    """By name."""
    with pytest.raises(NoBackup):
        erased(group, Store.open(f"file://{tmp_path}/empty"))
    store = backed_up(group, tmp_path)
    group.create("plain", 1)
    with pytest.raises(Refused, match="'plain' is not compacted"):
        erased(group, store, topic="plain")
    group.leading = 7
    with pytest.raises(NodeUnavailable, match="leads its group"):
        erased(group, store, patience_s=0.2)


def test_spark_and_local_processes_find_the_same(
    spark: SparkSession, group: CompactingGroup, tmp_path: Path, inline_tasks: None
) -> None:
    """Of objects and of nodes; each says how far it is."""
    store, said, found = let_go(group, tmp_path), {}, {}
    group.send("t", HOME, KEY)
    for runner in (RunnerName.SPARK, RunnerName.PLAIN):
        lines = said[runner] = list[str]()
        asked = request_of(group, store, runner=runner, dry_run=True)
        found[runner] = erase(asked, Progress("erase", lines.append)) | {"durationS": 0}

    assert found[RunnerName.SPARK] == found[RunnerName.PLAIN]
    for lines in said.values():
        assert any(" ranges: " in line for line in lines)


def test_the_command_says_what_it_did_and_never_the_key(
    group: CompactingGroup, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As JSON for others; lines for people on stderr."""
    store = let_go(group, tmp_path)
    where = ("--endpoint", ",".join(group.addresses), "--store", store.url)

    code = main(["erase", *where, "--topic", "t", "--key", KEY, "--runner", "plain", "--json"])

    captured = capsys.readouterr()
    assert code == 0
    assert json.loads(captured.out)["older"] == 3
    assert "topic t had 1 message of this key" in captured.err
    assert "3 older messages erased" in captured.err
    assert KEY not in captured.out + captured.err
    assert KEY not in repr(request_of(group, store))

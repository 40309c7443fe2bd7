"""The job compact against a group whose leader is a model: what it is told, what comes of it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from dledger.broker.commands import CreateTopic
from dledger.errors import DledgerError, InvalidArgument, NotLeader, Refused
from dledger_pipeline.__main__ import main
from dledger_pipeline.archive import catalog, kept_log
from dledger_pipeline.archive.places_objects import told_places
from dledger_pipeline.errors import (
    BrokenBackup,
    ForeignGroup,
    GapInBackup,
    NoBackup,
    NodeUnavailable,
    NoSuchTopic,
    NotCompacted,
)
from dledger_pipeline.jobs.backup import BackupRequest, backup
from dledger_pipeline.jobs.compact import CompactRequest, compact
from dledger_pipeline.jobs.progress import Progress
from dledger_pipeline.jobs.runner import RunnerName
from dledger_pipeline.log import leader_client
from dledger_pipeline.object_store.store import Store
from tests.pipeline import logs
from tests.pipeline.compacting_group import CompactingGroup, compacting_group, dropped
from tests.pipeline.logs import GROUP_ID

ROOT = Path(__file__).parents[2]
DONE = [3, 4, 0, 2]
"""Messages that are left in each queue once nothing more may go."""


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CompactingGroup]:
    """Return a group with a table of prices, some of which were copied already."""
    monkeypatch.setattr(leader_client, "_FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr("dledger_pipeline.jobs.compact.RANGE_OFFSETS", 8)
    with compacting_group(tmp_path / "group") as made:
        made.create("prices")
        made.create("stock")
        for round_ in range(12):
            for queue_id in range(2):
                made.send("prices", queue_id, *(f"{n}/{queue_id}" for n in range(1 + round_ % 4)))
        made.send("prices", 0, "-0/0", "-once")
        made.send("stock", 1, "s", "s", "t")
        made.live(hours=25)
        yield made


def _request(group: CompactingGroup, **more: Any) -> CompactRequest:
    plain = {"endpoints": group.addresses, "runner": RunnerName.PLAIN, "patience_s": 5.0}
    return CompactRequest(**{**plain, **more})


def _compact(group: CompactingGroup, **more: Any) -> dict[str, Any]:
    return compact(_request(group, **more), Progress("compact"))


def _backed_up(group: CompactingGroup, directory: Path) -> Store:
    store = Store.open(f"file://{directory}/store")
    request = BackupRequest(
        endpoints=group.addresses,
        store=store,
        base_every_hours=1e9,
        target_bytes=1000,
        runner=RunnerName.PLAIN,
    )
    backup(request, Progress("backup"))
    return store


def _left(group: CompactingGroup) -> list[int]:
    """Return how many messages of the topics are left."""
    return [len(group.visible(name, queue)) for name in ("prices", "stock") for queue in range(2)]


def test_of_each_key_the_newest_is_left(group: CompactingGroup, inline_tasks: None) -> None:
    """The table is what it was. A tombstone stays until the value that it deletes is gone."""
    before = group.table("prices"), group.table("stock")

    result = _compact(group)
    left = _left(group)
    again = _compact(group)
    third = _compact(group)

    assert (group.table("prices"), group.table("stock")) == before
    assert left == [4, 4, 0, 2], "`once` is gone, which had no value"
    assert _left(group) == DONE
    assert result["topics"]["prices"]["letGo"] == 62 - 8
    stock = result["topics"]["stock"]
    assert [stock[name] for name in ("keys", "messages", "mayGo", "letGo")] == [2, 3, 1, 1]
    assert (again["letGo"], third["letGo"]) == (1, 0)


def test_a_tombstone_stays_as_long_as_the_topic_says(
    group: CompactingGroup, inline_tasks: None
) -> None:
    """In hours that the group has lived: the leader would call an earlier one a lie."""
    group.send("stock", 0, "-young")
    group.live(hours=20)
    group.sleep(hours=100)

    _compact(group)
    young = _left(group)[2]
    group.live(hours=4)
    _compact(group)

    assert (young, _left(group)) == (1, DONE)


@pytest.mark.parametrize("where", ["nodes", "store", "store and nodes", "behind retention"])
def test_it_reads_from_the_backup_and_the_rest_from_nodes(
    group: CompactingGroup, tmp_path: Path, inline_tasks: None, where: str
) -> None:
    """Whatever is where, the leader is told the same."""
    store = _backed_up(group, tmp_path) if "store" in where else None
    if where == "behind retention":
        group.retain(30)
    group.send("prices", 0, "1/0", "new")
    before = group.table("prices")

    result = _compact(group, store=store)

    assert group.table("prices") == before
    assert _left(group) == [5, 4, 0, 2]
    assert result["letGo"] == 67 - 11


def test_spark_and_local_processes_tell_the_same(
    spark: SparkSession, group: CompactingGroup, tmp_path: Path, inline_tasks: None
) -> None:
    """Byte for byte, and both say after each range how far they are."""
    store = _backed_up(group, tmp_path)
    group.send("prices", 0, "1/0", "new")
    told, said = {}, {}
    group.fail = lambda _: Refused("only looking")
    for runner in (RunnerName.SPARK, RunnerName.PLAIN):
        lines = said[runner] = list[str]()
        with pytest.raises(Refused):
            compact(_request(group, store=store, runner=runner), Progress("compact", lines.append))
        told[runner] = group.calls.pop()

    assert told[RunnerName.SPARK] == told[RunnerName.PLAIN]
    for lines in said.values():
        steps = [line.partition(" ranges: ")[0] for line in lines if " ranges: " in line]
        assert steps
        assert steps == [f"{n} of {len(steps)}" for n in range(1, len(steps) + 1)]


@pytest.mark.usefixtures("inline_tasks")
@pytest.mark.parametrize("fails", ["before", "after"])
def test_a_job_that_dies_at_any_call_is_finished_by_the_next(
    group: CompactingGroup, fails: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before a call is made, or once the leader has done it: the same is left."""
    before, at = group.table("prices"), 0
    name = "fail" if fails == "before" else "after"
    while True:
        at += 1
        group.calls.clear()
        setattr(group, name, lambda call, at=at: Refused("killed") if call == at else None)
        try:
            _compact(group)
        except Refused:
            assert group.table("prices") == before
            continue
        break

    _compact(group)

    assert at > 3
    assert (group.table("prices"), _left(group)) == (before, DONE)


@pytest.mark.usefixtures("inline_tasks")
@pytest.mark.parametrize("call", [1, 2, 5, 8])
@pytest.mark.parametrize("done", [False, True])
def test_a_leader_that_is_lost_at_any_call_is_followed(
    group: CompactingGroup, call: int, done: bool
) -> None:
    """The new one asks for other proofs, and finds done what the old one did."""

    def lost(number: int) -> DledgerError | None:
        if number != call:
            return None
        group.leading, group.secret = 1, 2
        return dropped(number) if done else NotLeader(None)

    setattr(group, "after" if done else "fail", lost)
    before = group.table("prices")

    _compact(group)

    assert group.leading == 1
    assert (group.table("prices"), _left(group)) == (before, [4, 4, 0, 2])


def test_two_jobs_at_once_do_no_harm(
    group: CompactingGroup, inline_tasks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One has read the log, then another does all of it, then the first one tells the leader."""
    before = group.table("prices")
    other: list[dict[str, Any]] = []

    def meanwhile(number: int) -> None:
        if number == 1:
            group.fail = lambda _: None
            thread = threading.Thread(target=lambda: other.append(_compact(group)))
            started.append(thread)
            thread.start()

    started: list[threading.Thread] = []
    group.fail = meanwhile

    first = _compact(group)
    started[0].join(30)

    assert first["letGo"] + other[0]["letGo"] >= 55
    _compact(group)
    assert (group.table("prices"), _left(group)) == (before, DONE)


def test_a_late_job_takes_nothing_that_came_later(
    group: CompactingGroup, inline_tasks: None
) -> None:
    """Newer values, a topic made anew, entries dropped: what it says is of what it has read."""

    def meanwhile(number: int) -> None:
        if number == 1:
            group.fail = lambda _: None
            group.send("prices", 0, "1/0", "-2/0", "new")
            group.retain(group.log.last_index - 3)
            group.delete("stock")
            group.create("stock")
            group.send("stock", 1, "s", "s")

    group.fail = meanwhile

    said: list[str] = []
    compact(_request(group), Progress("compact", said.append))

    assert {key for _, key in group.table("prices")} == {"1/0", "3/0", "new"} | {
        f"{n}/1" for n in range(4)
    }
    assert len(group.visible("stock", 1)) == 2
    assert any(line.startswith("topic stock was deleted meanwhile: ") for line in said)


def test_what_is_copied_while_places_are_told_is_not_missed(
    group: CompactingGroup, inline_tasks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes tell where messages lie now; a REKEEP that came since the log was planned is read."""
    moved: list[bool] = []

    def while_told(*asked: Any) -> Any:
        if not moved:
            moved.append(True)
            group.copy(20)
        return told_places(*asked)

    monkeypatch.setattr(kept_log, "told_places", while_told)
    before = group.table("prices")
    last = group.log.last_index

    result = _compact(group)

    assert result["asOfIndex"] == last
    assert (group.table("prices"), _left(group)) == (before, [4, 4, 0, 2])


def test_all_proofs_that_are_asked_for_are_right(
    group: CompactingGroup, inline_tasks: None
) -> None:
    """The leader checks each; told the generation, as of when, and when the next job comes."""
    _compact(group, again_in_ms=5)

    proved = {each.offset: each.by for call in group.calls for each in call.proofs}
    assert proved
    for call in group.calls:
        assert (call.group_id, call.again_in_ms) == (GROUP_ID, 5)
        assert call.as_of_chain == group.log.chain(call.as_of_index)
        assert call.generation == group.state.topics.named(call.topic).generation
        assert call.to - call.first <= 8


def test_a_lie_ends_the_job_with_the_leaders_words(
    group: CompactingGroup, inline_tasks: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 1, and what was told later is not told."""
    words = "offset 3 is not beaten by 9: keys differ"
    group.fail = lambda number: InvalidArgument(words) if number == 2 else None

    code = main(["compact", "--endpoint", ",".join(group.addresses), "--runner", "plain"])

    assert code == 1
    assert words in capsys.readouterr().err
    assert len(group.calls) == 2


def test_nobody_who_leads_is_waited_for_and_worth_another_try(
    group: CompactingGroup, inline_tasks: None
) -> None:
    """Exit code 4, once the patience is at its end."""
    group.fail = dropped

    with pytest.raises(NodeUnavailable, match="the connection was lost"):
        _compact(group, patience_s=0.2)
    group.leading = 7
    with pytest.raises(NodeUnavailable, match="leads its group"):
        _compact(group, patience_s=0.2)


def test_topics_that_cannot_be_compacted_are_named(
    group: CompactingGroup, inline_tasks: None
) -> None:
    """A misspelt one would be left in silence; without names those that can be are."""
    group.commit(CreateTopic(name="plain", type="NORMAL", queues=1).encode())

    with pytest.raises(NoSuchTopic, match="no topic prizes, x; `dledger topic list`"):
        _compact(group, topics=("prices", "prizes", "x"))
    with pytest.raises(NotCompacted, match="not compacted: plain"):
        _compact(group, topics=("prices", "plain"))
    assert group.calls == []
    assert set(_compact(group, topics=("stock",))["topics"]) == {"stock"}
    assert set(_compact(group)["topics"]) == {"prices", "stock"}


def test_a_dry_run_tells_the_leader_nothing(group: CompactingGroup, inline_tasks: None) -> None:
    """And says what may go."""
    last = group.log.last_index

    result = _compact(group, dry_run=True)

    assert (group.calls, group.log.last_index) == ([], last)
    assert result["topics"]["prices"]["mayGo"] == 54
    assert result["dryRun"] is True


def test_a_backup_that_lacks_kept_entries_is_refused_by_name(
    group: CompactingGroup, tmp_path: Path, inline_tasks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest message of a key may be among them; nothing is told to the leader."""
    store = _backed_up(group, tmp_path)
    whole = catalog.load(store)
    rows = (*whole.files[:2], *whole.files[3:])
    gap = whole.files[2]
    holed = logs.manifest(rows)
    monkeypatch.setattr(catalog, "load", lambda *_: holed)

    expected = rf"lacks the entries \[{gap.first_index}, {gap.last_index}\].*without --store"
    with pytest.raises(GapInBackup, match=expected):
        _compact(group, store=store)
    late = logs.manifest(whole.files[2:])
    monkeypatch.setattr(catalog, "load", lambda *_: late)
    with pytest.raises(GapInBackup, match=rf"\[1, {whole.files[2].first_index - 1}\]"):
        _compact(group, store=store)
    assert group.calls == []


def test_a_store_of_another_group_or_history_is_refused(
    group: CompactingGroup, tmp_path: Path, inline_tasks: None
) -> None:
    """No backup of this group; one of what `force` has cut off; a group that is not the asked."""
    other = Store.open(f"file://{tmp_path}/other")
    logs.backup(other, logs.entries(30), (30,), "another")
    cut_off = Store.open(f"file://{tmp_path}/cut-off")
    logs.backup(cut_off, logs.entries(30), (30,))
    ahead = Store.open(f"file://{tmp_path}/ahead")
    logs.backup(ahead, logs.entries(90), (90,))

    with pytest.raises(NoBackup, match=f"no backup of group {GROUP_ID}"):
        _compact(group, store=other)
    with pytest.raises(BrokenBackup, match="does not have its entry 30"):
        _compact(group, store=cut_off)
    with pytest.raises(BrokenBackup, match="does not have its entry 90"):
        _compact(group, store=ahead)
    with pytest.raises(ForeignGroup, match="not to another"):
        _compact(group, group_id="another")
    assert group.calls == []


def test_a_plain_job_needs_neither_spark_nor_java(group: CompactingGroup, tmp_path: Path) -> None:
    """A small one, with no option that says so, where Spark is not installed."""
    program = (
        "import sys\n"
        "sys.modules['pyspark'] = sys.modules['py4j'] = None\n"
        "from dledger_pipeline.__main__ import main\n"
        "if __name__ == '__main__':\n"
        "    sys.exit(main(sys.argv[1:]))\n"
    )
    (tmp_path / "run.py").write_text(program, "utf-8")
    path = os.pathsep.join(str(ROOT / folder) for folder in ("node", "pipeline"))

    done = _run(
        [str(tmp_path / "run.py"), "compact", "--endpoint", group.addresses[0]],
        {"PYTHONPATH": path, "PATH": str(tmp_path), "JAVA_HOME": ""},
    )

    assert done.returncode == 0, done.stderr
    assert "local worker" in done.stderr
    assert "letGo            55" in done.stdout
    assert _left(group) == [4, 4, 0, 2]


def _run(command: Sequence[str], env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_driver_is_sent_places_not_keys(spark: SparkSession, group: CompactingGroup) -> None:
    """Keys of 2 MB in all need not fit its maxResultSize."""
    group.create("long")
    for n in range(20):
        group.send("long", 0, *(f"{n}-{row} ".ljust(1000, "k") for row in range(100)))
    group.send("long", 0, "short", "short")
    conf = spark.sparkContext._jsc.sc().conf()
    setting = "spark.driver.maxResultSize"
    before = conf.get(setting, "1g")
    try:
        conf.set(setting, "100k")
        result = _compact(group, topics=("long",), runner=RunnerName.SPARK, dry_run=True)
    finally:
        conf.set(setting, before)

    long = result["topics"]["long"]
    assert [long[name] for name in ("keys", "messages", "mayGo")] == [2001, 2002, 1]

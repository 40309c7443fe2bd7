"""The job compact against a group whose leader is a model: what it is told, what comes of it."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from dledger.broker.commands import CreateTopic
from dledger.errors import DledgerError, InvalidArgument, NotLeader, Refused
from dledger_pipeline.archive import catalog, kept_log
from dledger_pipeline.archive.places_objects import told_places
from dledger_pipeline.cli.main import main
from dledger_pipeline.errors import (
    BrokenBackup,
    ForeignGroup,
    GapInBackup,
    NoBackup,
    NodeUnavailable,
    NoSuchTopic,
    NotCompacted,
    Overtaken,
)
from dledger_pipeline.jobs.compact import compact
from dledger_pipeline.jobs.progress import Progress
from dledger_pipeline.object_store.store import Store
from tests.pipeline import logs
from tests.pipeline.compacting_group import (
    CompactingGroup,
    backed_up,
    compacted,
    dropped,
    left_in,
    request_of,
)
from tests.pipeline.logs import GROUP_ID

ROOT = Path(__file__).parents[2]
DONE = [3, 4, 0, 2]
"""Messages that are left in each queue once nothing more may go."""


def test_of_each_key_the_newest_is_left(compacting: CompactingGroup, inline_tasks: None) -> None:
    """The table is what it was. A tombstone stays until the value that it deletes is gone."""
    before = compacting.table("prices"), compacting.table("stock")

    result = compacted(compacting)
    left = left_in(compacting)
    again = compacted(compacting)
    third = compacted(compacting)

    assert (compacting.table("prices"), compacting.table("stock")) == before
    assert left == [4, 4, 0, 2], "`once` is gone, which had no value"
    assert left_in(compacting) == DONE
    assert result["topics"]["prices"]["letGo"] == 62 - 8
    stock = result["topics"]["stock"]
    assert [stock[name] for name in ("keys", "messages", "mayGo", "letGo")] == [2, 3, 1, 1]
    assert (again["letGo"], third["letGo"]) == (1, 0)


def test_a_tombstone_stays_as_long_as_the_topic_says(
    compacting: CompactingGroup, inline_tasks: None
) -> None:
    """In hours that the group has lived since it is alone; the job says of each whether it is."""
    compacting.create("deletes")
    compacting.send("deletes", 0, "a", "-a", "-b")
    compacting.live(hours=25)
    for _ in range(2):  # the value goes, and then the tombstone is alone
        compacted(compacting)
    compacting.live(hours=20)
    compacting.sleep(hours=100)

    compacted(compacting)
    young = list(compacting.visible("deletes", 0))
    compacting.live(hours=4)
    compacted(compacting)

    assert (young, list(compacting.visible("deletes", 0))) == ([1, 2], [])


@pytest.mark.parametrize("where", ["nodes", "store", "store and nodes", "behind retention"])
def test_it_reads_from_the_backup_and_the_rest_from_nodes(
    compacting: CompactingGroup, tmp_path: Path, inline_tasks: None, where: str
) -> None:
    """Whatever is where, the leader is told the same."""
    store = backed_up(compacting, tmp_path) if "store" in where else None
    if where == "behind retention":
        compacting.retain(30)
    compacting.send("prices", 0, "1/0", "new")
    before = compacting.table("prices")

    result = compacted(compacting, store=store)

    assert compacting.table("prices") == before
    assert left_in(compacting) == [5, 4, 0, 2]
    assert result["letGo"] == 67 - 11


@pytest.mark.usefixtures("inline_tasks")
@pytest.mark.parametrize("fails", ["before", "after"])
def test_a_job_that_dies_at_any_call_is_finished_by_the_next(
    compacting: CompactingGroup, fails: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before a call is made, or once the leader has done it: the same is left."""
    before, at = compacting.table("prices"), 0
    name = "fail" if fails == "before" else "after"
    while True:
        at += 1
        compacting.calls.clear()
        setattr(compacting, name, lambda call, at=at: Refused("killed") if call == at else None)
        try:
            compacted(compacting)
        except Refused:
            assert compacting.table("prices") == before
            continue
        break

    compacted(compacting)

    assert at > 3
    assert (compacting.table("prices"), left_in(compacting)) == (before, DONE)


@pytest.mark.usefixtures("inline_tasks")
@pytest.mark.parametrize("call", [1, 2, 5, 8])
@pytest.mark.parametrize("done", [False, True])
def test_a_leader_that_is_lost_at_any_call_is_followed(
    compacting: CompactingGroup, call: int, done: bool
) -> None:
    """The new one asks for other proofs, and finds done what the old one did."""

    def lost(number: int) -> DledgerError | None:
        if number != call:
            return None
        compacting.leading, compacting.secret = 1, 2
        return dropped(number) if done else NotLeader(None)

    setattr(compacting, "after" if done else "fail", lost)
    before = compacting.table("prices")

    compacted(compacting)

    assert compacting.leading == 1
    assert (compacting.table("prices"), left_in(compacting)) == (before, [4, 4, 0, 2])


def test_two_jobs_at_once_do_no_harm(
    compacting: CompactingGroup, inline_tasks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One has read the log, then another does all of it, then the first one tells the leader."""
    before = compacting.table("prices")
    other: list[dict[str, Any]] = []

    def meanwhile(number: int) -> None:
        if number == 1:
            compacting.fail = lambda _: None
            thread = threading.Thread(target=lambda: other.append(compacted(compacting)))
            started.append(thread)
            thread.start()

    started: list[threading.Thread] = []
    compacting.fail = meanwhile

    first = compacted(compacting)
    started[0].join(30)

    assert first["letGo"] + other[0]["letGo"] >= 55
    compacted(compacting)
    assert (compacting.table("prices"), left_in(compacting)) == (before, DONE)


def test_a_late_job_takes_nothing_that_came_later(
    compacting: CompactingGroup, inline_tasks: None
) -> None:
    """Newer values, a topic made anew, entries dropped: what it says is of what it has read."""

    def meanwhile(number: int) -> None:
        if number == 1:
            compacting.fail = lambda _: None
            compacting.send("prices", 0, "1/0", "-2/0", "new")
            compacting.retain(compacting.log.last_index - 3)
            compacting.delete("stock")
            compacting.create("stock")
            compacting.send("stock", 1, "s", "s")

    compacting.fail = meanwhile

    said: list[str] = []
    compact(request_of(compacting), Progress("compact", said.append))

    assert {key for _, key in compacting.table("prices")} == {"1/0", "3/0", "new"} | {
        f"{n}/1" for n in range(4)
    }
    assert len(compacting.visible("stock", 1)) == 2
    assert any(line.startswith("topic stock was deleted meanwhile: ") for line in said)


@pytest.mark.parametrize("call", [1, 4, 7])
def test_a_round_that_retention_overtakes_begins_again(
    compacting: CompactingGroup, inline_tasks: None, call: int
) -> None:
    """Before the leader was told anything, or some of it: that is done, and counts once."""
    asked, said = list[int](), list[str]()

    def overtaken(number: int) -> None:
        if number == call:
            asked.append(compacting.calls[-1].as_of_index)
            compacting.overtake()

    compacting.fail = overtaken
    result = compact(request_of(compacting), Progress("compact", said.append))
    topics: Any = result["topics"]
    prices, left = topics["prices"], left_in(compacting)
    table = compacting.table("prices")
    again = compacted(compacting)["topics"]["prices"]

    assert [line for line in said if line.startswith("beginning again: ")] == [
        f"beginning again: {compacting.addresses[0]}: entry {asked[0]} is not in the log any more"
    ]
    assert result["asOfIndex"] != asked[0]
    assert left == [4, 4, 0, 2]
    ends = [compacting.state.topics.queue("prices", queue_id).end for queue_id in range(2)]
    assert prices["letGo"] == prices["mayGo"] == sum(ends) - 8
    assert prices["keys"] == 9, "`once` too, which is gone by now"
    assert (again["letGo"], compacting.table("prices")) == (0, table)


def test_a_round_that_is_overtaken_each_time_says_what_to_do(
    compacting: CompactingGroup, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three times; what it has let go of until then is gone rightly."""
    before = {key for _, key in compacting.table("prices")}
    compacting.fail = lambda _: compacting.overtake()

    code = main(["compact", "--endpoint", ",".join(compacting.addresses), "--runner", "plain"])

    said = capsys.readouterr().err
    assert code == 4
    assert len(compacting.calls) == 3
    assert "the round was begun 3 times" in said
    assert "is not in the log any more; keep messages longer (spec.retention.hours " in said
    assert "have the round read faster" in said
    assert {key for _, key in compacting.table("prices")} == before


@pytest.mark.usefixtures("inline_tasks")
def test_nodes_that_drop_what_is_still_to_be_read_are_read_again(
    compacting: CompactingGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the same rule, and with the same words if they do so each time."""
    times = [1]

    def while_told(*asked: Any) -> Any:
        if times[0]:
            times[0] -= 1
            compacting.overtake()
        return told_places(*asked)

    monkeypatch.setattr(kept_log, "told_places", while_told)

    compacted(compacting)
    left = left_in(compacting)
    times[0] = 99
    with pytest.raises(Overtaken, match=r"begun 3 times.* no node tells .*; keep messages longer"):
        compacted(compacting)

    assert left == [4, 4, 0, 2]
    assert times[0] == 99 - 3


def test_another_history_is_not_read_again(compacting: CompactingGroup, inline_tasks: None) -> None:
    """No newer entry would make it the leader's."""
    compacting.fail = lambda _: Refused("another history")

    with pytest.raises(Refused, match="another history"):
        compacted(compacting)

    assert len(compacting.calls) == 1


def test_what_is_copied_while_places_are_told_is_not_missed(
    compacting: CompactingGroup, inline_tasks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes tell where messages lie now; a REKEEP that came since the log was planned is read."""
    moved: list[bool] = []

    def while_told(*asked: Any) -> Any:
        if not moved:
            moved.append(True)
            compacting.copy(20)
        return told_places(*asked)

    monkeypatch.setattr(kept_log, "told_places", while_told)
    before = compacting.table("prices")
    last = compacting.log.last_index

    result = compacted(compacting)

    assert result["asOfIndex"] == last
    assert (compacting.table("prices"), left_in(compacting)) == (before, [4, 4, 0, 2])


def test_all_proofs_that_are_asked_for_are_right(
    compacting: CompactingGroup, inline_tasks: None
) -> None:
    """The leader checks each; told the generation, as of when, and when the next job comes."""
    compacted(compacting, again_in_ms=5)

    proved = {each.offset: each.by for call in compacting.calls for each in call.proofs}
    assert proved
    for call in compacting.calls:
        assert (call.group_id, call.again_in_ms) == (GROUP_ID, 5)
        assert call.as_of_chain == compacting.log.chain(call.as_of_index)
        assert call.generation == compacting.state.topics.named(call.topic).generation
        assert call.to - call.first <= 8


def test_a_lie_ends_the_job_with_the_leaders_words(
    compacting: CompactingGroup, inline_tasks: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 1, and what was told later is not told."""
    words = "offset 3 is not beaten by 9: keys differ"
    compacting.fail = lambda number: InvalidArgument(words) if number == 2 else None

    code = main(["compact", "--endpoint", ",".join(compacting.addresses), "--runner", "plain"])

    assert code == 1
    assert words in capsys.readouterr().err
    assert len(compacting.calls) == 2


def test_what_came_of_each_topic_is_printed_and_the_operator_gets_names(
    compacting: CompactingGroup, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A termination message has no room for figures of ten thousand topics."""
    file = tmp_path / "result"
    where = ("--endpoint", ",".join(compacting.addresses), "--runner", "plain")

    code = main(["compact", *where, "--json", "--result-file", str(file)])

    printed, left = json.loads(capsys.readouterr().out), json.loads(file.read_text("utf-8"))
    assert code == 0
    assert printed["topics"]["prices"]["letGo"] == 62 - 8
    assert left == {**printed, "topics": ["prices", "stock"]}
    assert left["topicCount"] == 2


def test_nobody_who_leads_is_waited_for_and_worth_another_try(
    compacting: CompactingGroup, inline_tasks: None
) -> None:
    """Exit code 4, once the patience is at its end."""
    compacting.fail = dropped

    with pytest.raises(NodeUnavailable, match="the connection was lost"):
        compacted(compacting, patience_s=0.2)
    compacting.leading = 7
    with pytest.raises(NodeUnavailable, match="leads its group"):
        compacted(compacting, patience_s=0.2)


def test_topics_that_cannot_be_compacted_are_named(
    compacting: CompactingGroup, inline_tasks: None
) -> None:
    """A misspelt one would be left in silence; without names those that can be are."""
    compacting.commit(CreateTopic(name="plain", type="NORMAL", queues=1).encode())

    with pytest.raises(NoSuchTopic, match="no topic prizes, x; `dledger topic list`"):
        compacted(compacting, topics=("prices", "prizes", "x"))
    with pytest.raises(NotCompacted, match="not compacted: plain"):
        compacted(compacting, topics=("prices", "plain"))
    assert compacting.calls == []
    assert set(compacted(compacting, topics=("stock",))["topics"]) == {"stock"}
    assert set(compacted(compacting)["topics"]) == {"prices", "stock"}


def test_a_dry_run_tells_the_leader_nothing(
    compacting: CompactingGroup, inline_tasks: None
) -> None:
    """And says what may go."""
    last = compacting.log.last_index

    result = compacted(compacting, dry_run=True)

    assert (compacting.calls, compacting.log.last_index) == ([], last)
    assert result["topics"]["prices"]["mayGo"] == 54
    assert result["dryRun"] is True


def test_a_backup_that_lacks_kept_entries_is_refused_by_name(
    compacting: CompactingGroup, tmp_path: Path, inline_tasks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest message of a key may be among them; nothing is told to the leader."""
    store = backed_up(compacting, tmp_path)
    whole = catalog.load(store)
    rows = (*whole.files[:2], *whole.files[3:])
    gap = whole.files[2]
    holed = logs.manifest(rows)
    monkeypatch.setattr(catalog, "load", lambda *_: holed)

    expected = rf"lacks the entries \[{gap.first_index}, {gap.last_index}\].*without --store"
    with pytest.raises(GapInBackup, match=expected):
        compacted(compacting, store=store)
    late = logs.manifest(whole.files[2:])
    monkeypatch.setattr(catalog, "load", lambda *_: late)
    with pytest.raises(GapInBackup, match=rf"\[1, {whole.files[2].first_index - 1}\]"):
        compacted(compacting, store=store)
    assert compacting.calls == []


def test_a_store_of_another_group_or_history_is_refused(
    compacting: CompactingGroup, tmp_path: Path, inline_tasks: None
) -> None:
    """No backup of this group; one of what `force` has cut off; a group that is not the asked."""
    other = Store.open(f"file://{tmp_path}/other")
    logs.backup(other, logs.entries(30), (30,), "another")
    cut_off = Store.open(f"file://{tmp_path}/cut-off")
    logs.backup(cut_off, logs.entries(30), (30,))
    ahead = Store.open(f"file://{tmp_path}/ahead")
    logs.backup(ahead, logs.entries(90), (90,))

    with pytest.raises(NoBackup, match=f"no backup of group {GROUP_ID}"):
        compacted(compacting, store=other)
    with pytest.raises(BrokenBackup, match="does not have its entry 30"):
        compacted(compacting, store=cut_off)
    with pytest.raises(BrokenBackup, match="does not have its entry 90"):
        compacted(compacting, store=ahead)
    with pytest.raises(ForeignGroup, match="not to another"):
        compacted(compacting, group_id="another")
    assert compacting.calls == []

"""Backup from running nodes: the same objects each time, whole or not there."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from dledger_pipeline.archive import catalog, kept_log
from dledger_pipeline.errors import ForeignGroup, NoBackup, NodeUnavailable, RangeNotAvailable
from dledger_pipeline.jobs.backup import BackupRequest, backup
from dledger_pipeline.jobs.progress import Progress
from dledger_pipeline.jobs.runner import RunnerName
from dledger_pipeline.object_store.store import Store
from tests.pipeline.export_server import export_server
from tests.pipeline.live_group import LiveGroup
from tests.pipeline.logs import contents, data_directory, entries
from tests.waiting import eventually_blocking

_TARGET_BYTES = 1 << 20
_ENTRIES = entries(200)


def _store(directory: Path, name: str) -> Store:
    return Store.open(f"file://{directory}/{name}")


def _backup(store: Store, group: LiveGroup, **changed: Any) -> dict[str, object]:
    wanted: dict[str, Any] = {
        "endpoints": group.admins,
        "store": store,
        "last_index": group.last_index,
        "target_bytes": _TARGET_BYTES,
    }
    return backup(BackupRequest(**wanted | changed), Progress("backup"))


@pytest.fixture(scope="module")
def reference(
    spark: SparkSession, group: LiveGroup, tmp_path_factory: pytest.TempPathFactory
) -> Store:
    """Return a store with a backup of the group that Spark made; others here need no Spark."""
    store = _store(tmp_path_factory.mktemp("reference"), "store")
    _backup(store, group, runner=RunnerName.SPARK)
    return store


@pytest.mark.slow
def test_a_backup_has_every_message_at_its_place(
    spark: SparkSession, group: LiveGroup, reference: Store
) -> None:
    """What the data source reads of the backup, and live, is what the broker itself gives out."""
    source = spark.read.format("dledger")
    live = {"endpoint": ",".join(group.admins), "lastIndex": str(group.last_index)}
    order = ("queue_id", "queue_offset")
    columns = (*order, "message_id", "body", "keys", "tag", "index", "stored_at_ms")

    archived = source.options(store=reference.url).load().select(*columns).orderBy(*order)
    now = spark.read.format("dledger").options(**live).load().select(*columns).orderBy(*order)

    expected = [
        (
            queue_id,
            each.offset,
            each.record.message_id,
            each.record.body,
            list(each.record.keys),
            each.record.tag,
            each.index,
            each.stored_at_ms,
        )
        for queue_id, records in group.stored().items()
        for each in records
    ]
    assert archived.toArrow() == now.toArrow()
    assert [tuple(row.values()) for row in archived.toArrow().to_pylist()] == expected


def objects(store: Store) -> dict[str, bytes]:
    """Return all that follows from the log alone: not the manifest, which says as of when it is."""
    return {
        name: data
        for name, data in contents(store).items()
        if "/manifests/" not in name and not name.endswith("HEAD")
    }


@pytest.mark.slow
def test_the_same_backup_twice_is_the_same_objects(
    spark: SparkSession, group: LiveGroup, reference: Store, tmp_path: Path
) -> None:
    """From whichever node it is read, and again into the same store."""
    from_leader, again = _store(tmp_path, "leader"), _store(tmp_path, "again")

    _backup(from_leader, group, endpoints=group.admins[:1])
    results = [_backup(again, group), _backup(again, group)]

    assert objects(from_leader) == objects(reference)
    assert objects(again) == objects(reference)
    assert results[0]["objects"] == results[0]["newObjects"]
    assert int(str(results[0]["objects"])) > 5
    changed = {"newObjects": 0, "number": 2, "manifest": results[1]["manifest"]}
    assert results[1] == results[0] | changed | {"asOf": results[1]["asOf"]}
    assert str(results[1]["asOf"]) > str(results[0]["asOf"])


@pytest.mark.slow
def test_a_later_backup_adds_what_is_new(
    spark: SparkSession, group: LiveGroup, reference: Store, tmp_path: Path
) -> None:
    """The earlier objects stay as they are, and the earlier manifest; HEAD moves on."""
    store = _store(tmp_path, "store")

    first = _backup(store, group, last_index=group.last_index // 2)
    before = contents(store)
    second = _backup(store, group)

    after = contents(store)
    head = f"{group.group_id}/HEAD"
    assert {name: data for name, data in before.items() if name != head}.items() <= after.items()
    assert (first["number"], second["number"], catalog.load(store).number) == (1, 2, 2)
    assert second["objects"] == int(str(first["objects"])) + int(str(second["newObjects"]))
    assert (second["firstIndex"], second["lastIndex"]) == (1, group.last_index)
    assert second["records"] == group.last_index


@pytest.mark.slow
@pytest.mark.parametrize("runner", ["spark", "plain"])
def test_a_backup_killed_in_the_middle_is_not_there_and_runs_again_to_the_same_objects(
    runner: str, group: LiveGroup, reference: Store, tmp_path: Path
) -> None:
    """The driver is killed once an object is written: no manifest, no HEAD; then it is repeated."""
    store, data = _store(tmp_path, "store"), tmp_path / "store" / group.group_id / "data"
    command = [
        *(sys.executable, "-m", "dledger_pipeline", "backup", "--master", "local[1]"),
        *("--endpoint", ",".join(group.admins), "--last-index", str(group.last_index)),
        *("--store", store.url, "--target-mib", "1", "--runner", runner, "--rate", "2"),
    ]
    said = tmp_path / "driver.log"
    with said.open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as driver:

        def written() -> bool:
            assert driver.poll() is None, said.read_text("utf-8")
            return any(data.glob("*.parquet"))

        eventually_blocking(written, "an object is written", 300)
        os.kill(driver.pid, signal.SIGKILL)
        driver.wait()

    left = contents(store)
    assert 0 < len(left) < len(objects(reference))
    folders = {name.split("/")[1] for name in left}
    assert folders <= {"data", "places"}
    with pytest.raises(NoBackup):
        catalog.load(store)

    _backup(store, group)
    assert objects(store) == objects(reference)


@pytest.mark.slow
def test_what_no_node_has_is_refused_before_anything_is_written(
    group: LiveGroup, tmp_path: Path
) -> None:
    """A range past the commit index, another group's nodes, nodes that do not answer."""
    store = _store(tmp_path, "store")

    with pytest.raises(RangeNotAvailable, match=str(group.last_index + 1000)):
        _backup(store, group, last_index=group.last_index + 1000)
    with pytest.raises(ForeignGroup, match=f"belongs to group {group.group_id}, not to other"):
        _backup(store, group, group_id="other")
    with pytest.raises(NodeUnavailable, match=r"127\.0\.0\.1:1"):
        _backup(store, group, endpoints=("127.0.0.1:1",))

    assert contents(store) == {}


@pytest.mark.slow
def test_a_backup_waits_for_a_node_that_is_a_moment_behind(tmp_path: Path) -> None:
    """What was acknowledged before it began is in it, though the leader is not read from."""
    said, result = _backup_of_a_node_behind(tmp_path, behind=5)

    assert result["lastIndex"] == len(_ENTRIES)
    assert "before what is committed" not in said


@pytest.mark.slow
def test_a_backup_of_a_node_that_stays_behind_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is better than none, but nobody takes it for all."""
    monkeypatch.setattr(kept_log, "_CATCH_UP_S", 0.0)

    said, result = _backup_of_a_node_behind(tmp_path, behind=150)

    last = result["lastIndex"]
    assert isinstance(last, int)
    assert 0 < last < len(_ENTRIES)
    assert re.search(
        r"will end before what is committed: .* has entry \d+, the group has 200", said
    )


def _backup_of_a_node_behind(directory: Path, behind: int) -> tuple[str, dict[str, object]]:
    data = [data_directory(directory / str(number), _ENTRIES) for number in range(2)]
    said: list[str] = []
    with (
        export_server(data[0], role="leader") as leader,
        export_server(data[1], behind=behind) as follower,
    ):
        request = BackupRequest(
            endpoints=(leader, follower), store=_store(directory, "store"), runner=RunnerName.PLAIN
        )
        result = backup(request, Progress("backup", said.append))
    return "\n".join(said), result

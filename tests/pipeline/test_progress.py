"""What a job tells while it runs: a line after each range, and metrics that a scraper reads."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from pyspark.sql import SparkSession

from dledger_pipeline.archive.expiry import Retention
from dledger_pipeline.jobs.backup import BackupRequest, backup
from dledger_pipeline.jobs.progress import Done, Phase, Progress, registry, served
from dledger_pipeline.jobs.runner import RunnerName
from dledger_pipeline.jobs.without_spark import gc, restore, verify
from dledger_pipeline.object_store.store import Store
from tests.pipeline import logs
from tests.pipeline.live_group import LiveGroup
from tests.pipeline.message_logs import checked_entries, message_log
from tests.waiting import eventually_blocking

Seen = dict[str, float]


def _free_port() -> int:
    with socket.create_server(("", 0)) as free:
        return int(free.getsockname()[1])


def _scraped(port: int) -> Seen:
    """Return what is served, by metric and phase; every series says which command it is of."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    return _read(
        (sample.name, sample.labels, sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    )


def _shown(progress: Progress) -> Seen:
    return _read(
        (sample.name, sample.labels, sample.value)
        for family in registry(progress).collect()
        for sample in family.samples
    )


def _read(samples: Iterator[tuple[str, dict[str, str], float]]) -> Seen:
    found = {}
    for name, labels, value in samples:
        assert labels["command"]
        found[name.removeprefix("dledger_backup_") + labels.get("phase", "")] = value
    return found


@pytest.mark.parametrize("runner", [RunnerName.PLAIN, RunnerName.SPARK])
def test_a_backup_is_scraped_while_it_runs(
    spark: SparkSession, group: LiveGroup, tmp_path: Path, runner: RunnerName
) -> None:
    """As its first range is done: the others are not; behind its end nobody listens."""
    port, seen = _free_port(), list[Seen]()

    def say(line: str) -> None:
        if line.startswith("1 of "):
            seen.append(_scraped(port))

    progress = Progress("backup", say)
    request = BackupRequest(
        endpoints=group.admins,
        store=Store.open(f"file://{tmp_path}/store"),
        target_bytes=1 << 20,
        runner=runner,
    )
    with served(progress, port):
        result = backup(request, progress)

    (during,) = seen
    after = _shown(progress)
    assert 1 <= during["done_ranges_total"] < during["ranges"] == result["objects"]
    assert 0 < during["record_bytes_total"] < after["record_bytes_total"] == result["bytes"]
    assert 0 < during["object_bytes_total"] < after["object_bytes_total"] == result["objectBytes"]
    assert during["running_seconds"] > 0
    phases = {each: (during[f"phase{each}"], after[f"phase{each}"]) for each in Phase}
    assert {each for each in Phase if phases[each][0]} == {Phase.WORKING}
    assert {each for each in Phase if phases[each][1]} == {Phase.PUBLISHING}
    with pytest.raises(OSError, match="refused"):
        _scraped(port)


@pytest.mark.slow
def test_the_command_serves_metrics_on_the_port_it_was_given(
    group: LiveGroup, tmp_path: Path
) -> None:
    """As the operator's Jobs run it."""
    port = _free_port()
    command = ["backup", "--endpoint", ",".join(group.admins), "--store", f"file://{tmp_path}/s"]
    options = ["--target-mib", "1", "--rate", "1", "--metrics-port", str(port)]
    running = subprocess.Popen(
        [sys.executable, "-m", "dledger_pipeline", *command, *options], stderr=subprocess.DEVNULL
    )

    def works() -> Seen | None:
        assert running.poll() is None
        with contextlib.suppress(OSError):
            seen = _scraped(port)
            return seen if seen["record_bytes_total"] else None
        return None

    try:
        seen = eventually_blocking(works, "a range is done and others are not", 60)
    finally:
        running.terminate()

    assert (seen["phaseworking"], seen["done_ranges_total"] < seen["ranges"]) == (1, True)
    assert running.wait(30) == 128 + 15


def _archived(tmp_path: Path) -> Store:
    store = Store.open(f"file://{tmp_path}/store")
    log = checked_entries(message_log())
    logs.backup(store, log, (20, len(log) - 20))
    return store


def _restored(store: Store, tmp_path: Path, progress: Progress) -> None:
    restore(
        store,
        None,
        progress,
        directory=tmp_path / "restored",
        name="dev/node-0",
        number=None,
        to_index=None,
        to_time_ms=None,
    )


Job = Callable[[Store, Path, Progress], object]


@pytest.mark.parametrize(
    ("command", "job", "ranges"),
    [
        ("verify", lambda s, _, p: verify(s, None, p, number=None, deep=False, scratch=None), 2),
        ("restore", _restored, 2),
    ],
)
def test_every_job_counts_its_ranges(tmp_path: Path, command: str, job: Job, ranges: int) -> None:
    """Records and objects that were read."""
    store, said = _archived(tmp_path), list[str]()
    progress = Progress(command, said.append)

    job(store, tmp_path, progress)

    seen = _shown(progress)
    assert seen["done_ranges_total"] == seen["ranges"] == ranges
    assert seen["record_bytes_total"] > 0
    assert seen["object_bytes_total"] > 0
    steps = [line.split(" ranges: ")[0] for line in said if " ranges: " in line]
    assert steps == [f"{n} of {ranges}" for n in range(1, ranges + 1)]


def test_gc_counts_what_it_frees(tmp_path: Path) -> None:
    """While it deletes; there are no ranges."""
    store = _archived(tmp_path)
    store.put(f"{logs.GROUP_ID}/data/orphan", bytes(1000))
    logs.age(tmp_path / "store", days=2)
    progress = Progress("gc")

    result = gc(store, None, progress, Retention(), dry_run=False)

    seen = _shown(progress)
    assert result["freedBytes"] == seen["object_bytes_total"] == 1000
    assert (seen["ranges"], seen["phaseexpiring"]) == (0, 1)


def test_rates_are_those_of_the_work() -> None:
    """Planning is no part of it, so that a short backup does not look slow."""
    now, said = [0.0], list[str]()
    progress = Progress("backup", said.append, now_s=lambda: now[0])
    now[0] = 100.0
    progress.working(2)
    now[0] = 102.0

    progress.finished(Done(4_000_000, 1))

    assert said == ["1 of 2 ranges: 3.8 MiB of records, 2.0 MB/s"]
    assert _shown(progress)["running_seconds"] == 102


def test_a_port_that_is_taken_costs_the_metrics_not_the_job() -> None:
    """A backup is worth more than its graph."""
    said = list[str]()
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        with served(Progress("backup", said.append), port):
            pass

    assert said[0].startswith(f"no metrics: cannot listen on port {port}: ")


def test_no_port_is_opened_unless_asked_for() -> None:
    """On a shell nobody scrapes."""
    said = list[str]()
    with served(Progress("backup", said.append), 0):
        assert said == []


@pytest.mark.found
def test_a_job_that_begins_again_counts_anew() -> None:
    """It said "37 of 5 ranges" after three attempts; the counters of metrics never go back."""
    lines: list[str] = []
    progress = Progress("backup", lines.append, now_s=lambda: 0.0)
    for ranges in (3, 2):
        progress.working(ranges)
        for _ in range(2):
            progress.finished(Done(1 << 20, 1))

    told = [line.partition(" of records")[0] for line in lines]
    assert told == [
        *("1 of 3 ranges: 1.0 MiB", "2 of 3 ranges: 2.0 MiB"),
        *("1 of 2 ranges: 1.0 MiB", "2 of 2 ranges: 2.0 MiB"),
    ]
    samples = {s.name: s.value for metric in progress.metrics() for s in metric.samples}
    assert samples["dledger_backup_done_ranges_total"] == 4
    assert samples["dledger_backup_ranges"] == 4

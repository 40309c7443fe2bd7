"""What the pipeline's tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from dledger_pipeline.jobs import process_pool
from dledger_pipeline.object_store.store import Store
from dledger_pipeline.spark.session import spark_session
from tests.pipeline.compacting_group import CompactingGroup, compacting_group, tables
from tests.pipeline.live_group import LiveGroup, live_group
from tests.pipeline.s3_server import S3Server, s3_server


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """Return a real S3 server."""
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(params=["file", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """Return an empty store: a directory, and a bucket of a real S3 server."""
    if request.param == "file":
        return Store.open(f"file://{tmp_path}/store")
    server: S3Server = request.getfixturevalue("s3")
    return server.store(server.bucket(f"bucket-{len(list(server.directory.iterdir()))}"))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Return the one Spark session of all tests, which jobs under test join."""
    settings = {"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "2"}
    with spark_session("tests", "local[2]", settings) as session:
        yield session
    _end_java()


def _end_java() -> None:
    """End the JVM and close the pipes and sockets to it, which Spark leaves to the interpreter."""
    gateway = SparkContext._gateway
    assert gateway is not None
    SparkContext._gateway = SparkContext._jvm = None
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(30)


@pytest.fixture
def inline_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do the work of the runner `plain` in this process: to start others takes seconds."""

    def run(tasks: Any, work: Any, *, workers: int, done: Any = lambda *_: None) -> list[Any]:
        found = []
        for each in tasks:
            found.append(work(each))
            done(each, found[-1])
        return found

    monkeypatch.setattr(process_pool, "run", run)


@pytest.fixture(scope="session")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveGroup]:
    """Return a running group of three nodes with messages in its log."""
    with live_group(tmp_path_factory.mktemp("group")) as running:
        yield running


@pytest.fixture
def compacting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CompactingGroup]:
    """Return a group with compacted topics (`tables`), whose leader is a model."""
    monkeypatch.setattr("dledger_pipeline.log.leader_client._FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr("dledger_pipeline.jobs.compact.RANGE_OFFSETS", 8)
    with compacting_group(tmp_path / "group") as made:
        tables(made)
        yield made

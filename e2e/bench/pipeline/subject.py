"""What is measured: a node with messages, the same log in memory, its backup. Made when asked for.

All of it is below two scratch directories, one on the disk and one in memory, and all processes are
the bench's own: both are gone when the bench ends. Used by every line.
"""

from __future__ import annotations

import shutil
import tempfile
import time
import uuid
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final, Self

import pyarrow as pa
from pyspark.sql import SparkSession

from dledger_pipeline.archive.archive import ManifestRow, write_range
from dledger_pipeline.archive.catalog import publish
from dledger_pipeline.archive.manifest import RestorePoint, first_manifest
from dledger_pipeline.log.export_client import TARGET_BYTES
from dledger_pipeline.log.records import RecordBytes, parse
from dledger_pipeline.log.segments import read_log
from dledger_pipeline.object_store.store import Store
from dledger_pipeline.spark.session import spark_session
from dledger_pipeline.spark.source import register
from e2e.bench.pipeline.logs import produce, single_message_log
from e2e.bench.pipeline.measuring import Cost, Unmeasured, command_cost
from e2e.harness.dev_group import DevGroup
from e2e.harness.ports import free_port_range

_TMPFS: Final = Path("/dev/shm")  # noqa: S108, a memory file system is what is asked for


@dataclass(frozen=True, slots=True)
class Node:
    """A running node: a group of one."""

    data: Path
    endpoint: str
    admin: str
    pids: tuple[int, ...]


class Bench:
    """The subject of one run. A context manager.

    Attributes:
        disk, memory: Empty directories, on the disk that is measured and in memory.
        body_bytes: How much the messages' bodies take.
        rounds: How often each figure is taken.
    """

    def __init__(self, directory: Path, *, body_bytes: int, rounds: int) -> None:
        self.body_bytes, self.rounds = body_bytes, rounds
        self._kept = ExitStack()
        self.disk = self._scratch(directory)
        self.memory = self._scratch(_TMPFS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._kept.close()

    def _scratch(self, directory: Path) -> Path:
        if not directory.is_dir():
            raise Unmeasured(f"there is no {directory}, where a scratch directory would be")
        kept = tempfile.TemporaryDirectory(dir=directory, prefix="bench-pipeline-")
        return Path(self._kept.enter_context(kept))

    # -- nodes -----------------------------------------------------------------------------------

    def start(self, name: str, *settings: str) -> Node:
        """Start a node that ends with the bench, or on `stop_after`."""
        return self.node_in(self._kept, name, *settings)

    def node_in(self, kept: ExitStack, name: str, *settings: str) -> Node:
        """Start a node that ends with *kept*."""
        group = DevGroup(self.disk / name, free_port_range(), *settings, nodes=1)
        kept.callback(group.stop)
        state = group.announced()
        return Node(
            data=self.disk / name / "node-0",
            endpoint=state["endpoints"][0],
            admin=state["adminEndpoints"][0],
            pids=tuple(state["pids"]),
        )

    @cached_property
    def node(self) -> Node:
        """The node whose log holds the messages in batches, committed."""
        node = self.start("group")
        produce(node.endpoint, self.body_bytes)
        return node

    # -- the log in memory -----------------------------------------------------------------------

    @cached_property
    def chunks(self) -> list[RecordBytes]:
        """The node's records, as its Export sends them; not yet checked."""
        return list(read_log(self.node.data))

    @cached_property
    def record_bytes(self) -> int:
        """What `chunks` take."""
        return sum(len(chunk.data) for chunk in self.chunks)

    @cached_property
    def table(self) -> pa.Table:
        """The same records as entries."""
        return pa.Table.from_batches([parse(chunk) for chunk in self.chunks])

    # -- backups ---------------------------------------------------------------------------------

    def emptied(self, name: str) -> Path:
        """Return a path on the disk with nothing there."""
        path = self.disk / name
        shutil.rmtree(path, ignore_errors=True)
        return path

    def back_up(self, store: Path, *options: str) -> Cost:
        """Run ``dledger-pipeline backup`` of the node; return what it took, without the node."""
        node = self.node
        where = ("--endpoint", node.admin, "--store", store.as_uri())
        return command_cost("dledger_pipeline", "backup", *where, "--rate", "0", *options)

    @cached_property
    def backed_up(self) -> Store:
        """A store with a backup of the node."""
        path = self.emptied("backup")
        self.back_up(path, "--runner", "plain")
        return Store.open(path.as_uri())

    @cached_property
    def singles_backed_up(self) -> Store:
        """A store with a backup of a log in which each entry holds one message."""
        path, group_id = self.emptied("singles"), str(uuid.uuid4())
        store = Store.open(path.as_uri())
        rows: list[ManifestRow] = []
        pending: list[pa.RecordBatch] = []
        size_bytes = 0
        for batch in single_message_log(self.body_bytes):
            pending.append(batch)
            size_bytes += batch.nbytes
            if size_bytes >= TARGET_BYTES:
                rows.append(_written(store, group_id, rows, pending))
                pending, size_bytes = [], 0
        if pending:
            rows.append(_written(store, group_id, rows, pending))
        now_ms = int(time.time() * 1000)
        point = RestorePoint(last_index=rows[-1].last_index, kept_from=1, as_of_ms=now_ms)
        publish(store, first_manifest("bench", group_id, rows).seen(point))
        return store

    # -- Spark -----------------------------------------------------------------------------------

    @cached_property
    def spark(self) -> SparkSession:
        """A session that has run a task."""
        conf = {"spark.driver.memory": "1g"}
        spark = self._kept.enter_context(spark_session("dledger-bench", conf=conf))
        register(spark)
        spark.range(1).count()
        return spark


def _written(
    store: Store, group_id: str, rows: list[ManifestRow], batches: list[pa.RecordBatch]
) -> ManifestRow:
    chain = rows[-1].last_chain if rows else 0
    return write_range(store, group_id, batches, previous_chain=chain)

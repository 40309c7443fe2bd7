"""A base: a node's snapshot file as an object, named by the entry it reaches and its hash.

Its format is the node's (`dledger.store.snapshot_file`), so that a restored node starts from it.
Used by the backup job, `restore`, `verify` and `repair`; its state also from where a node has it,
by the data source.
"""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path
from typing import Final

from dledger.broker.snapshot_codec import MalformedStateError
from dledger.broker.state import BrokerState
from dledger.errors import NewerFormat
from dledger.store.snapshot_file import Snapshot, decode_snapshot
from dledger.store.snapshot_files import SNAPSHOT_DIRECTORY, SNAPSHOT_SUFFIX
from dledger_pipeline.archive.archive import create_once
from dledger_pipeline.archive.manifest import BaseRow, base_name
from dledger_pipeline.archive.places import QueueSpan, spans_of_blocks
from dledger_pipeline.archive.queue_offsets import QueueOffsets
from dledger_pipeline.errors import CorruptObject, NewerBackup
from dledger_pipeline.log.export_client import ExportClient
from dledger_pipeline.object_store.store import Store

_log: Final = logging.getLogger(__name__)


def write_base(store: Store, group_id: str, data: bytes, *, now_ms: int) -> BaseRow:
    """Write a snapshot file, which is checked, as an object; return its row.

    It counts from *now_ms* on, the log clock when it was asked for, or from its newest entry's time
    if that is later.

    Raises:
        CorruptObject: It is no whole snapshot of this group.
        StoreError: It could not be written.
    """
    row = describe_base(group_id, data, now_ms=now_ms)
    create_once(store, f"{group_id}/{row.name}", data)
    return row


def read_base(store: Store, group_id: str, row: BaseRow) -> Snapshot:
    """Return the snapshot of *row*, whose hash and contents are checked.

    What copies its state refers to is not compared: that is `check_kept`.

    Raises:
        ObjectMissing: The object is not there.
        CorruptObject: It is not the snapshot that *row* states.
        StoreError: The store failed.
    """
    name = f"{group_id}/{row.name}"
    data = store.get(name).to_pybytes()
    snapshot = _decoded(name, group_id, data)
    if _row(snapshot, data, as_of_ms=row.as_of_ms, kept=row.kept) != row:
        raise CorruptObject(name, "it is not the snapshot that the manifest names")
    return snapshot


def state_of(name: str, snapshot: Snapshot) -> BrokerState:
    """Return the broker's state in a snapshot. Raises CorruptObject."""
    try:
        return BrokerState.decode(snapshot.body)
    except MalformedStateError as error:
        raise CorruptObject(name, f"its state cannot be read: {error}") from error


def check_kept(name: str, state: BrokerState, row: BaseRow) -> None:
    """Raise CorruptObject if *state*, of the base *row*, refers to other copies than it states."""
    if _spans(state) != row.kept:
        raise CorruptObject(name, "it keeps messages of other queues than the manifest says")


def _spans(state: BrokerState) -> tuple[QueueSpan, ...] | None:
    return spans_of_blocks(QueueOffsets(state).blocks())


def state_on_disk(directory: Path) -> BrokerState | None:
    """Return the state in the newest whole snapshot of a data directory; None without one."""
    for path in sorted((directory / SNAPSHOT_DIRECTORY).glob("*" + SNAPSHOT_SUFFIX), reverse=True):
        try:
            return BrokerState.decode(decode_snapshot(path.read_bytes()).body)
        except (
            OSError,
            ValueError,
            MalformedStateError,
        ) as error:  # it may be gone: nodes keep the newest two
            _log.warning("left out %s: %s", path, error)
    return None


def state_of_node(address: str, group_id: str) -> BrokerState:
    """Return the state in the newest snapshot that a node has.

    Args:
        address: Its peer port.
        group_id: The group it must be.

    Raises:
        CorruptObject: It sent no whole snapshot of this group.
        ExportError: It has none, or does not answer.
    """
    with ExportClient(address) as exporter:
        data = exporter.snapshot(group_id, take=False)
    name = f"the snapshot of {address}"
    return state_of(name, _decoded(name, group_id, data))


def describe_base(group_id: str, data: bytes, *, now_ms: int = 0) -> BaseRow:
    """Return the row of a snapshot file, whose state is read, too. Raises CorruptObject.

    It counts from *now_ms* on, but not from before its newest entry's time.
    """
    name = "the snapshot"
    snapshot = _decoded(name, group_id, data)
    state = state_of(name, snapshot)
    return _row(snapshot, data, as_of_ms=max(now_ms, state.now_ms), kept=_spans(state))


def _row(
    snapshot: Snapshot, data: bytes, *, as_of_ms: int, kept: tuple[QueueSpan, ...] | None
) -> BaseRow:
    applied, sha256 = snapshot.applied, hashlib.sha256(data).hexdigest()
    return BaseRow(
        name=base_name(applied.index, sha256),
        first_index=snapshot.base.index + 1,
        applied_index=applied.index,
        applied_term=applied.term,
        applied_chain=applied.chain,
        object_bytes=len(data),
        sha256=sha256,
        as_of_ms=as_of_ms,
        kept=kept,
    )


def _decoded(name: str, group_id: str, data: bytes) -> Snapshot:
    try:
        snapshot = decode_snapshot(data)
    except NewerFormat as error:
        raise NewerBackup(name, found=error.found, known=error.known) from error
    except ValueError as error:
        raise CorruptObject(name, f"not a snapshot: {error}") from error
    if snapshot.group_id != group_id:
        raise CorruptObject(name, f"it is of group {snapshot.group_id!r:.80}")
    return snapshot

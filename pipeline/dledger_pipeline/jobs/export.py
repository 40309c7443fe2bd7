"""Export: adds the messages of a backup that a table does not have yet to it.

A table knows the last entry whose messages it has. One task for each range behind it writes files;
then one commit adds them all. What is new is told by entries of the log, not by times or by what
the table holds: a message is of one entry for ever. Called by the command line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from typing import Any

from dledger.errors import InvalidArgument
from dledger_pipeline.archive import catalog
from dledger_pipeline.archive.erased import read_erased
from dledger_pipeline.archive.manifest import Manifest
from dledger_pipeline.archive.message_ranges import MessageRange
from dledger_pipeline.archive.planning import archived_messages, entries_left_out, gaps_told
from dledger_pipeline.archive.selection import Selection
from dledger_pipeline.errors import ObjectMissing
from dledger_pipeline.jobs.progress import Done, Phase, Progress
from dledger_pipeline.jobs.request import StoreRequest
from dledger_pipeline.jobs.result import COMPLETED, Result, count
from dledger_pipeline.jobs.runner import (
    THRESHOLD_BYTES,
    Runner,
    RunnerName,
    by_spark,
    chosen,
    plain,
    workers,
)
from dledger_pipeline.tables.columns import Columns
from dledger_pipeline.tables.files import FileWriter, TableFile, Written
from dledger_pipeline.tables.opening import Target, open_table
from dledger_pipeline.tables.rows import Wanted
from dledger_pipeline.tables.table import Begun, Owner, Table


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRequest(StoreRequest):
    """What to add, of the newest backup, to which table, and who does the work.

    Attributes:
        target: The table.
        topics: Only those; none: all.
        columns: What its rows have.
        first_ms: Only messages that were stored then or later, Unix ms; 0: at any time.
        runner: See `runner`.
        local_threshold_bytes: Below so many bytes of records AUTO does without Spark.
    """

    target: Target
    topics: tuple[str, ...] = ()
    columns: Columns = Columns()  # noqa: RUF009, a frozen value
    first_ms: int = 0
    runner: RunnerName = RunnerName.AUTO
    local_threshold_bytes: int = THRESHOLD_BYTES


@dataclass(frozen=True, slots=True)
class _Task:
    """Write the files of *messages*, whose records take *record_bytes*."""

    messages: MessageRange
    record_bytes: int
    writer: FileWriter


def export(request: ExportRequest, progress: Progress) -> Result:
    """Add the messages of the newest backup that the table does not have; return what that was.

    What a run that was killed had begun is done first, where its files can be seen already.

    Raises:
        InvalidArgument: The table is another's, or its library is not installed.
        VersionConflict: Another run added messages meanwhile.
        TableError: The table's library failed.
        StoreError, BackupError: A store failed, or the backup is damaged.
        MessageError: Messages cannot be read out of the backup.
        SparkFailed, WorkerFailed: Tasks were not run.
    """
    if request.target.store.url.rstrip("/") == request.store.url.rstrip("/"):
        raise InvalidArgument("--to is the store of the backups: give the table a place of its own")
    progress.at(Phase.PLANNING)
    manifest = catalog.load(request.store, request.group_id)
    for line in gaps_told(manifest):
        progress(line)
    owner = Owner(
        group_id=manifest.group_id,
        topics=tuple(sorted(set(request.topics))),
        columns=request.columns.digest(),
    )
    table = open_table(request.target, owner, request.columns)
    after = table.last_index
    wanted = Begun(
        number=manifest.number, last_index=manifest.last_index, first_ms=request.first_ms
    )
    written: list[Written] = []
    erased = len(read_erased(request.store, manifest).since(after).may_concern(after))
    if erased:
        progress(
            f"{count(erased, 'message')} that the table may have were erased since the last "
            "export: nothing of it is deleted here"
        )
    while table.last_index < manifest.last_index:
        begun = table.begin(wanted)
        written += _add(request, table, begun, manifest, progress)
    return _result(request, manifest, after, written) | {"erasedSince": erased}


def _add(
    request: ExportRequest, table: Table, begun: Begun, newest: Manifest, progress: Progress
) -> Sequence[Written]:
    """Add to the table what was begun; return what was written."""
    manifest = newest if begun.number == newest.number else _older(request, newest, begun.number)
    if manifest is None or manifest.last_index != begun.last_index:
        progress(f"an export of backup {begun.number} was begun, which is gone: it is given up")
        table.give_up()
        return ()
    if manifest is not newest:
        progress(f"an export of backup {begun.number} was begun: that is done first")
    written = _write_files(request, table, begun, manifest, progress)
    files = sorted(chain.from_iterable(each.files for each in written), key=attrgetter("name"))
    progress.at(Phase.PUBLISHING)
    table.commit(files, begun.last_index)
    progress(
        f"added {count(_messages(files), 'message')} in {count(len(files), 'file')}, up to entry "
        f"{begun.last_index}"
    )
    return written


def _older(request: ExportRequest, newest: Manifest, number: int) -> Manifest | None:
    try:
        return catalog.load(request.store, newest.group_id, number)
    except ObjectMissing:
        return None


def _write_files(
    request: ExportRequest, table: Table, begun: Begun, manifest: Manifest, progress: Progress
) -> Sequence[Written]:
    topic = request.topics[0] if len(request.topics) == 1 else None
    selection = Selection(first_index=table.last_index + 1, first_ms=begun.first_ms, topic=topic)
    writer = FileWriter(
        store=request.target.store,
        layout=table.layout,
        columns=request.columns,
        wanted=Wanted(after=table.last_index, topics=request.topics),
    )
    sizes = {row.first_index: row.record_bytes for row in manifest.files}
    tasks = [
        _Task(each, sizes[each.first_index], writer)
        for each in archived_messages(request.store, manifest, selection)
        if each.may_have_rows
    ]
    if not tasks:
        return ()
    told = f"entries [{selection.first_index}, {begun.last_index}] in {count(len(tasks), 'range')}"
    return _runner(request, manifest, tasks, told, progress)(tasks, _write)


def _runner(
    request: ExportRequest,
    manifest: Manifest,
    tasks: Sequence[_Task],
    told: str,
    progress: Progress,
) -> Runner:
    runner = chosen(
        request.runner,
        request.master,
        size_bytes=sum(task.record_bytes for task in tasks),
        threshold_bytes=request.local_threshold_bytes,
    )
    progress.working(len(tasks))
    if runner is RunnerName.PLAIN:
        at_once = workers(runner, request.master, tasks=len(tasks))
        progress(f"exporting {told} by {count(at_once, 'local worker')}")
        return plain(at_once, progress, _of_written)
    progress(f"exporting {told} by Spark on {request.master}")
    name = f"dledger-export-{manifest.group}"
    return by_spark(
        name, request.master, request.conf, progress, made=Written.of, measure=_of_written
    )


def _write(task: _Task) -> Written:
    """Write the files of one range; runs in a worker."""
    return task.writer.write(task.messages)


def _of_written(task: _Task, written: Written) -> Done:
    return Done(task.record_bytes, sum(file.object_bytes for file in written.files))


def _messages(files: Sequence[TableFile]) -> int:
    return sum(file.rows for file in files)


def _result(
    request: ExportRequest, manifest: Manifest, after: int, written: Sequence[Written]
) -> dict[str, Any]:
    files = [file for each in written for file in each.files]
    return {
        "phase": COMPLETED,
        "groupId": manifest.group_id,
        "table": request.target.store.url,
        "format": request.target.format,
        "firstIndex": after + 1,
        "lastIndex": manifest.last_index,
        "messages": _messages(files),
        "files": len(files),
        "objectBytes": sum(file.object_bytes for file in files),
        "bodiesNotUnpacked": sum(each.not_unpacked for each in written),
        "bodiesNotFitting": sum(each.not_fitting for each in written),
        "entriesNotShown": entries_left_out(manifest),
    }

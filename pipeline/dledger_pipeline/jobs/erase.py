"""Erase: takes all messages that a key ever had out of sight, also those that only backups have.

First what `dledger message erase` does: the leader erases what the group has. Then the archive is
read, and the log behind it, for what compaction had let go before that; the leader is told where
these were, and its ERASEs of them reach the archive with the next backup. So this job writes
nothing itself and keeps no state: one that was killed is made again, and finds by the ERASEs that
are there what is left to do. Called by the command line.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from dledger.errors import UnknownTopic
from dledger_pipeline.archive.erasable import Erasable, commands, distinct, without_erased
from dledger_pipeline.archive.known_log import KnownLog, known_log
from dledger_pipeline.errors import ForeignGroup, NodeUnavailable, NoSuchTopic, RangeNotAvailable
from dledger_pipeline.jobs.finding import find
from dledger_pipeline.jobs.progress import Phase, Progress
from dledger_pipeline.jobs.request import StoreRequest
from dledger_pipeline.jobs.result import COMPLETED, Result, count, size
from dledger_pipeline.jobs.runner import THRESHOLD_BYTES, RunnerName, chosen, workers
from dledger_pipeline.log.export_client import Nodes, choose_nodes
from dledger_pipeline.log.leader_client import PATIENCE_S, ErasedNow, LeaderClient, OlderCall

_ATTEMPTS: Final = 3
"""To read the log: each further one means that retention dropped what was still to be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EraseRequest(StoreRequest):
    """Whose messages to erase, and who does the work.

    Attributes:
        endpoints: Peer addresses (20911) of the group's nodes.
        topic: The topic's name; of deleted ones of that name messages are erased, too.
        key: Exactly this one; never shown.
        dry_run: Whether to count only.
        runner: See `runner`.
        local_threshold_bytes: Below so many bytes of records AUTO does without Spark.
        bytes_per_s: How fast nodes are read by all workers together; 0: as fast as they can.
        patience_s: How long to repeat a call that no leader answers.
    """

    endpoints: tuple[str, ...]
    topic: str
    key: str = field(repr=False)
    dry_run: bool = False
    runner: RunnerName = RunnerName.AUTO
    local_threshold_bytes: int = THRESHOLD_BYTES
    bytes_per_s: float = 0.0
    patience_s: float = PATIENCE_S


@dataclass(frozen=True, slots=True)
class _Past:
    """What a key had.

    Attributes:
        found: All its messages, as `erasable.distinct` returns them.
        left: Those of them that no ERASE names.
    """

    log: KnownLog
    found: npt.NDArray[np.int64]
    left: npt.NDArray[np.int64]


def erase(request: EraseRequest, progress: Progress) -> Result:
    """Erase all that a key ever had in a topic; return how much that was.

    Messages that are stored after it began stay.

    Raises:
        NoSuchTopic: There is none of this name, and no message of the key in one that was deleted.
        InvalidArgument: The leader has found that what the archive says is not true.
        Refused: The topic is not compacted.
        ExportError, StoreError, BackupError: Nodes, the store or a backup in it are at fault.
        MessageError, CorruptRecord, NewerCommand: The log cannot be read.
        SparkFailed, WorkerFailed: Tasks were not run.
    """
    began_s = time.monotonic()
    progress.at(Phase.PLANNING)
    nodes = _nodes(request)
    with LeaderClient(request.endpoints, nodes.group_id, patience_s=request.patience_s) as leader:
        now = _erase_now(leader, request, progress)
        past = _read_past(request, nodes.leader_commit_index, progress)
        if now is None and not len(past.found):
            raise NoSuchTopic(request.topic)
        progress.at(Phase.ERASING)
        told = _erase_older(leader, request, commands(past.left), progress)
    took_s = time.monotonic() - began_s
    return _result(request, nodes, now or _NOTHING, past, told, took_s=took_s)


_NOTHING: Final = ErasedNow(messages=0, erase_entry=0)


def _nodes(request: EraseRequest) -> Nodes:
    nodes = choose_nodes(request.endpoints)
    if request.group_id not in (None, nodes.group_id):
        raise ForeignGroup(
            f"{nodes.addresses[0]} belongs to group {nodes.group_id}, not to {request.group_id}"
        )
    if not nodes.leader:
        raise NodeUnavailable(f"none of {', '.join(nodes.addresses)} leads its group")
    return nodes


def _erase_now(leader: LeaderClient, request: EraseRequest, progress: Progress) -> ErasedNow | None:
    """Erase what the group has; return None if it has no such topic, which backups may have."""
    try:
        done = leader.erase(request.topic, request.key, only_count=request.dry_run)
    except UnknownTopic:
        progress(f"the group has no topic {request.topic} any more")
        return None
    verb = "has" if request.dry_run else "had"
    progress(f"topic {request.topic} {verb} {count(done.messages, 'message')} of this key")
    return done


def _read_past(request: EraseRequest, last_index: int, progress: Progress) -> _Past:
    """Read all that is known; from the beginning where retention has overtaken the reader."""
    for _ in range(_ATTEMPTS - 1):
        try:
            return _read_once(request, last_index, progress)
        except RangeNotAvailable as error:
            progress(f"beginning again: {error}")
    return _read_once(request, last_index, progress)


def _read_once(request: EraseRequest, last_index: int, progress: Progress) -> _Past:
    progress.at(Phase.PLANNING)
    log = known_log(_nodes(request), request.store)
    tasks = len(log.files) + len(log.tail)
    progress(
        f"entries [{log.files[0].first_index}, {log.last_index}] in {count(tasks, 'range')}, "
        f"{size(log.size_bytes)}"
    )
    runner = chosen(
        request.runner,
        request.master,
        size_bytes=log.size_bytes,
        threshold_bytes=request.local_threshold_bytes,
    )
    at_once = workers(runner, request.master, request.conf, tasks=tasks)
    ranges = log.ranges(request.topic, request.key, bytes_per_s=request.bytes_per_s / at_once)
    processes = at_once if runner is RunnerName.PLAIN else 0
    hits = find(ranges, request, progress, processes=processes)
    found = distinct(log.place(hits), last_index)
    left = without_erased(found, log.read_erased()) if len(found) else found
    return _Past(log, found, left)


def _erase_older(
    leader: LeaderClient, request: EraseRequest, parts: Iterable[Erasable], progress: Progress
) -> Counter[str]:
    """Tell the leader; return how many `messages` that were, in how many `commands`, and so on."""
    sums = Counter[str]()
    for part in parts:
        call = OlderCall(
            topic=request.topic,
            key=request.key,
            generation=part.generation,
            queue_id=part.queue_id,
            offsets=part.offsets,
            first_entry=part.first_entry,
        )
        done = leader.erase_older(call, only_check=request.dry_run)
        sums["there"] += done.messages
        sums["messages"] += len(part.offsets)
        sums["commands"] += 1
        sums["entry"] = max(sums["entry"], done.erase_entry)
        progress(
            f"topic {request.topic}, generation {part.generation}, queue {part.queue_id}: "
            f"{count(len(part.offsets), 'older message')} "
            f"{'to erase' if request.dry_run else 'erased'}"
        )
    return sums


def _result(
    request: EraseRequest,
    nodes: Nodes,
    now: ErasedNow,
    past: _Past,
    told: Counter[str],
    *,
    took_s: float,
) -> Result:
    return {
        "phase": COMPLETED,
        "groupId": nodes.group_id,
        "topic": request.topic,
        "asOfIndex": nodes.leader_commit_index,
        "messages": now.messages,
        "found": len(past.found),
        "older": told["messages"] - (told["there"] if request.dry_run else 0),
        "generations": np.unique(past.found[:, 0]).tolist(),
        "commands": told["commands"],
        "eraseEntry": max(now.erase_entry, told["entry"]),
        "durationS": round(took_s, 3),
        "dryRun": request.dry_run,
    }

"""Compact: tells the leader which messages of compacted topics newer ones of their key have beaten.

The log that the group keeps is read, from its backup and from nodes, and all rows of a key decide
together (`deciding`). Then the leader is told, queue by queue and range by range. It copies and
lets go what it has itself; so this job writes nothing and keeps no state, and one that was killed,
is late, or runs beside another does no harm. It proves what the leader wants proven. Where
retention overtakes it, it begins again, and what was done until then is done. A backup of the same
group reads from the same nodes: whoever starts the two lets one end first. Called by the command
line.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from dledger.errors import EntryDropped, UnknownTopic
from dledger_pipeline.archive.compaction import QueueDecision
from dledger_pipeline.archive.kept_log import KeptLog, kept_log
from dledger_pipeline.errors import (
    ExportError,
    ForeignGroup,
    NoSuchTopic,
    NotCompacted,
    Overtaken,
    RangeNotAvailable,
)
from dledger_pipeline.jobs.deciding import decide
from dledger_pipeline.jobs.progress import Phase, Progress
from dledger_pipeline.jobs.request import SparkRequest
from dledger_pipeline.jobs.result import COMPLETED, Result, count, size
from dledger_pipeline.jobs.runner import THRESHOLD_BYTES, RunnerName, chosen, workers
from dledger_pipeline.log.export_client import Nodes, choose_nodes
from dledger_pipeline.log.leader_client import (
    PATIENCE_S,
    CompactCall,
    Compacted,
    CompactedTopic,
    LeaderClient,
)
from dledger_pipeline.object_store.store import Store

RANGE_OFFSETS: Final = 1 << 18
"""What one call decides: a bitmap of 32 KiB, and some seconds of the leader's at most."""
_ATTEMPTS: Final = 3
"""Of a round: each further one means that retention has overtaken the one before."""
_OVERTAKEN: Final = (RangeNotAvailable, EntryDropped)
"""While the log was read: of what was still to be read; while the leader was told: of all of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactRequest(SparkRequest):
    """Whose topics to compact, and who does the work.

    Attributes:
        endpoints: Peer addresses (20911) of the group's nodes.
        store: Where backups of the group are; None: all is read from nodes.
        topics: Their names; none: all that are compacted.
        again_in_ms: When the next such job comes; 0: nobody knows. What retention drops until then
            is copied now, without what may go.
        dry_run: Whether to decide only, and tell the leader nothing.
        runner: See `runner`.
        local_threshold_bytes: Below so many bytes of records AUTO does without Spark.
        bytes_per_s: How fast nodes are read by all workers together; 0: as fast as they can.
        patience_s: How long to repeat a call that no leader answers.
    """

    endpoints: tuple[str, ...]
    store: Store | None = None
    topics: tuple[str, ...] = ()
    again_in_ms: int = 0
    dry_run: bool = False
    runner: RunnerName = RunnerName.AUTO
    local_threshold_bytes: int = THRESHOLD_BYTES
    bytes_per_s: float = 0.0
    patience_s: float = PATIENCE_S


@dataclass(slots=True)
class _Sum:
    """What came of a topic.

    Attributes:
        keys, messages: What the last attempt of the round has read.
        may_go: What may go by that, and what went before.
        kept, let_go, written_bytes: What was done, by all attempts.
        later: What goes later, by the last one.
    """

    keys: int = 0
    messages: int = 0
    may_go: int = 0
    kept: int = 0
    let_go: int = 0
    later: int = 0
    written_bytes: int = 0

    def begin_again(self) -> None:
        """Forget what was read, and is read again."""
        self.keys = self.messages = self.later = 0
        self.may_go = self.let_go

    def read(self, decision: QueueDecision) -> None:
        self.keys += decision.keys
        self.messages += decision.messages
        self.may_go += len(decision.offsets)

    def done(self, answer: Compacted) -> None:
        self.kept += answer.kept
        self.let_go += answer.let_go
        self.later += answer.later
        self.written_bytes += answer.written_bytes

    def result(self) -> Result:
        return {
            "keys": self.keys,
            "messages": self.messages,
            "mayGo": self.may_go,
            "kept": self.kept,
            "letGo": self.let_go,
            "later": self.later,
            "writtenBytes": self.written_bytes,
        }


def compact(request: CompactRequest, progress: Progress) -> Result:
    """Compact topics of a group; return what came of each.

    Raises:
        NoSuchTopic, NotCompacted: Topics were asked for that cannot be compacted.
        InvalidArgument: The leader has found that something it was told is not true.
        Refused: Its log is another than the one that was read.
        Overtaken: Retention has overtaken each attempt.
        GapInBackup: The backup lacks entries in which the group keeps messages.
        ExportError, StoreError, BackupError: Nodes, the store or its backup are at fault.
        MessageError, CorruptRecord: The log cannot be read.
        SparkFailed, WorkerFailed: Tasks were not run.
    """
    began_s = time.monotonic()
    progress.at(Phase.PLANNING)
    nodes = _nodes(request)
    with LeaderClient(request.endpoints, nodes.group_id, patience_s=request.patience_s) as leader:
        topics = _choose_topics(leader.compacted_topics(), request.topics)
        if not topics:
            progress("the group has no compacted topic")
            return {"phase": COMPLETED, "groupId": nodes.group_id, "topicCount": 0, "topics": {}}
        sums = {topic.name: _Sum() for topic in topics}
        log = _Round(request, leader, topics, sums, progress).run()
    for name, each in sums.items():
        progress(
            f"topic {name}: {count(each.keys, 'key')}, {each.messages} messages read, "
            f"{each.may_go} may go; {_tell_outcome(each)}"
        )
    return _result(request, nodes, log, sums, time.monotonic() - began_s)


def _nodes(request: CompactRequest) -> Nodes:
    nodes = choose_nodes(request.endpoints)
    if request.group_id not in (None, nodes.group_id):
        raise ForeignGroup(
            f"{nodes.addresses[0]} belongs to group {nodes.group_id}, not to {request.group_id}"
        )
    return nodes


def _choose_topics(
    there: Mapping[str, CompactedTopic | None], names: Collection[str]
) -> list[CompactedTopic]:
    """Return the topics that are asked for: *names*, or all that are compacted."""
    if missing := [name for name in names if name not in there]:
        raise NoSuchTopic(*missing)
    if plain := [name for name in names if there[name] is None]:
        raise NotCompacted(*plain)
    return [each for name, each in sorted(there.items()) if each and (not names or name in names)]


@dataclass(frozen=True, slots=True)
class _Round:
    """Reads the log, decides, and tells the leader of topics; what comes of each is in *sums*."""

    request: CompactRequest
    leader: LeaderClient
    topics: Collection[CompactedTopic]
    sums: Mapping[str, _Sum]
    progress: Progress

    def run(self) -> KeptLog:
        """Return the log as of which all was told; begins again where retention overtakes it.

        Raises:
            Overtaken: It does so each time.
        """
        for _ in range(_ATTEMPTS - 1):
            try:
                return self._attempt()
            except _OVERTAKEN as error:
                self.progress(f"beginning again: {error}")
                for each in self.sums.values():
                    each.begin_again()
        try:
            return self._attempt()
        except _OVERTAKEN as error:
            raise Overtaken(_ATTEMPTS, error) from error

    def _attempt(self) -> KeptLog:
        log, decisions = _read_and_decide(self.request, self.topics, self.progress)
        names = {topic.generation: topic.name for topic in self.topics}
        for decision in decisions:
            self.sums[names[decision.generation]].read(decision)
        if self.request.dry_run:
            return log
        self.progress.at(Phase.COMPACTING)
        telling = _Telling(self.leader, log, self.request.again_in_ms, self.progress)
        for decision in decisions:
            name = names[decision.generation]
            for answer in telling.of_queue(name, decision):
                self.sums[name].done(answer)
        return log


def _read_and_decide(
    request: CompactRequest, topics: Collection[CompactedTopic], progress: Progress
) -> tuple[KeptLog, list[QueueDecision]]:
    progress.at(Phase.PLANNING)
    nodes = _nodes(request)
    log = kept_log(nodes, request.store, [topic.generation for topic in topics])
    first = log.ranges[0].entries.first_index
    progress(
        f"entries [{first}, {log.as_of_index}] in {count(len(log.ranges), 'range')}, "
        f"{size(log.size_bytes)}"
    )
    runner = chosen(
        request.runner,
        request.master,
        size_bytes=log.size_bytes,
        threshold_bytes=request.local_threshold_bytes,
    )
    at_once = workers(runner, request.master, request.conf, tasks=len(log.ranges))
    log = log.with_pace(request.bytes_per_s / at_once)
    processes = at_once if runner is RunnerName.PLAIN else 0
    return log, [*decide(log, request, progress, processes=processes).values()]


@dataclass(frozen=True, slots=True)
class _Telling:
    """Tells the leader what was decided of a log."""

    leader: LeaderClient
    log: KeptLog
    again_in_ms: int
    progress: Progress

    def of_queue(self, topic: str, decision: QueueDecision) -> Iterator[Compacted]:
        """Tell it all parts of what was decided about a queue; yield what came of each."""
        for part in decision.parts(RANGE_OFFSETS):
            call = CompactCall(
                as_of_index=self.log.as_of_index,
                as_of_chain=self.log.as_of_chain,
                topic=topic,
                generation=decision.generation,
                queue_id=decision.queue_id,
                first=part.first,
                to=part.to,
                stays=part.stays,
                alone=part.alone,
                again_in_ms=self.again_in_ms,
            )
            try:
                answer = self._call_with_proofs(call, decision)
            except UnknownTopic as error:
                self.progress(f"topic {topic} was deleted meanwhile: {error}")
                return
            self.progress(
                f"topic {topic}, queue {decision.queue_id}, offsets [{part.first}, {part.to}): "
                f"{part.goes} may go; {_tell_outcome(answer)}"
            )
            yield answer

    def _call_with_proofs(self, call: CompactCall, decision: QueueDecision) -> Compacted:
        """Return what came of a call, after the proofs that the leader asked for, or leaders."""
        proofs: dict[int, int] = {}
        while True:
            answer = self.leader.compact(call, proofs)
            if not answer.ask:
                return answer
            if set(answer.ask) <= set(proofs):
                raise ExportError(
                    f"the leader asks again for proofs that it was given, of topic {call.topic}, "
                    f"queue {call.queue_id}: this is another version than the group's"
                )
            proofs = {offset: _proof(decision, offset) for offset in answer.ask}


def _proof(decision: QueueDecision, offset: int) -> int:
    by = decision.beaten_by(offset)
    if by is None:
        raise ExportError(
            f"the leader asks for a proof of offset {offset} of queue {decision.queue_id}, which "
            "was not said to go"
        )
    return by


def _tell_outcome(done: Compacted | _Sum) -> str:
    return f"{done.kept} copied, {done.let_go} gone, {done.later} later"


def _result(
    request: CompactRequest,
    nodes: Nodes,
    log: KeptLog,
    sums: Mapping[str, _Sum],
    took_s: float,
) -> Result:
    return {
        "phase": COMPLETED,
        "groupId": nodes.group_id,
        "asOfIndex": log.as_of_index,
        "kept": sum(each.kept for each in sums.values()),
        "letGo": sum(each.let_go for each in sums.values()),
        "later": sum(each.later for each in sums.values()),
        "writtenBytes": sum(each.written_bytes for each in sums.values()),
        "durationS": round(took_s, 3),
        "dryRun": request.dry_run,
        "topicCount": len(sums),
        "topics": {name: each.result() for name, each in sums.items()},
    }

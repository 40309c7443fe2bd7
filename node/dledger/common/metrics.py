"""The metrics of one node, with the names that dashboards use (`dledger_*`): docs/monitoring.md.

Counters and histograms are updated on the event loop, where things happen. Gauges are published
once a second as one `Sample`; a scrape, which runs on another thread, reads the newest sample
without waiting for the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    ProcessCollector,
)
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from dledger.common.failover import CAUSES
from dledger.common.status import FailoverRecord

_SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
_TURN_SECONDS: Final = (
    *(0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.08, 0.1, 0.125, 0.15, 0.2, 0.3, 0.5, 0.75, 1),
    *(1.5, 2, 3, 5, 10),
)
_LATE_SECONDS: Final = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 3600)
_PHASE_SECONDS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)
_COMMANDS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_BYTES: Final = tuple(1 << power for power in range(10, 24, 2))
_ROLES: Final = ("unjoined", "learner", "follower", "pre-candidate", "candidate", "leader")
_PHASES: Final = ("detected", "elected", "first_ack")

DIVERGED: Final = "DivergedLog"
CONTRADICTED: Final = "ContradictsCommitted"
TERM_JUMP: Final = "TermJump"
"""Why Raft refuses a peer's message."""
BY_LINK: Final = "link"
BY_CALL: Final = "call"
"""How a request goes to the leader."""


def _gauge(text: str) -> Any:
    return field(metadata={"text": text})


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A node's state at one moment; each described field is the gauge ``dledger_<field>``.

    Attributes:
        role: The current role, as in `NodeStatus`.
        follower_lag_entries: By the name of each other voter; empty unless the node leads.
        dead_letters: By consumer group, of those with most; empty unless the node leads.
        fifo_waiting: Likewise, as a share of the room of its fullest queue.
        quorum_margin: None unless the node leads.
        bytes_at_risk: None unless the node leads.
        commit_waits_seconds: None unless the node leads.
        clock_apart_seconds: None while too few clocks are heard.
        log_ahead_seconds: None unless the node leads, and while too few clocks are heard.
        leader_since_timestamp_seconds: None unless the node leads, and has committed an entry.
        storage_watermark_bytes: None if messages never go for room.
        held_overdue_seconds: None unless the node leads.
        door_processes: None without them.
        peer_certificate_expiry_timestamp_seconds: None without a certificate.
        peer_plain_text_accepted: None without a certificate.
        client_certificate_expiry_timestamp_seconds: None without one of a file.
        client_certificate_refused: None if no files are configured.
    """

    role: str
    follower_lag_entries: Mapping[str, int]
    dead_letters: Mapping[str, int]
    fifo_waiting: Mapping[str, float]
    ready: bool = _gauge("1 when clients may be sent to this node")
    term: int = _gauge("Present Raft term; 0 before the node has joined a group")
    has_leader: bool = _gauge("1 when this node knows a leader")
    leader_since_timestamp_seconds: float | None = _gauge(
        "On the leader: when it won its election, in Unix seconds"
    )
    commit_index: int = _gauge("Highest index this node knows to be committed")
    applied_index: int = _gauge("Highest index applied here")
    last_index: int = _gauge("Highest index in the log here")
    synced_index: int = _gauge("Highest index synced here")
    voters: int = _gauge("Voting members of the group")
    quorum_margin: int | None = _gauge(
        "On the leader: voters that answer and have caught up, itself included, minus a majority"
    )
    bytes_at_risk: int | None = _gauge(
        "On the leader: bytes of entries it wrote in its term that no majority has synced yet"
    )
    commit_waits_seconds: float | None = _gauge(
        "On the leader: how long entries have waited for a majority; 0 if none wait"
    )
    clock_apart_seconds: float | None = _gauge(
        "How far this node's wall clock is ahead of its group's date; below 0: behind it"
    )
    log_ahead_seconds: float | None = _gauge(
        "On the leader: how far the log's time is ahead of the group's date; below 0: behind it"
    )
    queued_bytes: int = _gauge("Bytes of commands that wait to become part of an entry")
    sync_running_seconds: float = _gauge("How long the sync under way has taken; 0 if none is")
    writes_refused: bool = _gauge("1 while this node refuses user data because its disk is full")
    faulty_entries: int = _gauge("Entries that are damaged on disk and not yet repaired")
    abstains: bool = _gauge(
        "1 while this node gives no vote, because its disk has less than others know that it had"
    )
    log_bytes: int = _gauge("Size of the segment files, preallocated space included")
    storage_free_bytes: int = _gauge("Free bytes of the volume")
    storage_capacity_bytes: int = _gauge("Size of the volume")
    storage_own_bytes: int | None = _gauge("Bytes of the volume that this node's files take")
    storage_new_foreign_bytes: int | None = _gauge(
        "Bytes of the volume that other programs' files took within the last hour"
    )
    storage_watermark_bytes: int | None = _gauge(
        "Bytes that this node's files may take before the oldest messages go; none if they never do"
    )
    storage_drop_below_bytes: int | None = _gauge(
        "Free bytes of the volume below which the oldest messages go, unless they never do"
    )
    storage_refuse_below_bytes: int | None = _gauge(
        "Free bytes of the volume below which this node refuses user data"
    )
    held_request_bytes: int = _gauge(
        "Room that client requests under way or held at this node take; 8 KiB at least for each"
    )
    waiting_polls: int = _gauge("Consumers' polls that wait at this node for a message")
    telemetry_streams: int = _gauge("Telemetry streams open here: one for each client's connection")
    door_processes: int | None = _gauge(
        "Door processes that serve the client ports; no series without door_processes"
    )
    remembered_message_ids: int = _gauge(
        "Message ids of all clients by which a retry is recognised"
    )
    remembered_message_ids_limit: int = _gauge(
        "The limit of remembered ids; beyond it the largest client's oldest are forgotten"
    )
    replayed_lanes: int = _gauge(
        "Lanes of spools whose last sequence is known, by which a late replay is recognised"
    )
    held_messages: int = _gauge("Messages that are held until they are due")
    held_messages_bytes: int = _gauge("Bytes that held messages take in the log, about")
    held_waiting_messages: int = _gauge(
        "Held messages that wait for a word, since the group was restored: dledger held resume"
    )
    held_overdue_seconds: float | None = _gauge(
        "On the leader: for how long the first held message that did not go yet has been due"
    )
    transactions_open: int = _gauge(
        "Transactions that have no end yet: their messages are held, and nobody gets them"
    )
    transactions_oldest_seconds: float = _gauge(
        "For how long the oldest of them has been open; 0: there is none"
    )
    filter_kept_bytes: int = _gauge(
        "Size of what consumers' filters passed over and is kept for others of their groups"
    )
    peer_certificate_expiry_timestamp_seconds: float | None = _gauge(
        "When the certificate that this node shows its peers ends, in Unix seconds"
    )
    peer_plain_text_accepted: bool | None = _gauge(
        "1 while this node takes plain text on its peer ports beside TLS"
    )
    client_certificate_expiry_timestamp_seconds: float | None = _gauge(
        "When the certificate of tls.secretName that clients are shown ends, in Unix seconds"
    )
    client_certificate_refused: bool | None = _gauge(
        "1 while the mounted certificate for clients cannot be used or has ended; else 0"
    )


class TransactionMetrics:
    """What this node, while it leads, did about transactions."""

    def __init__(self, counter: Callable[[str, str], Counter]) -> None:
        self.committed = counter(
            "dledger_transactions_committed",
            "Times that a producer committed a transaction, the first time or again",
        )
        self.rolled_back = counter(
            "dledger_transactions_rolled_back",
            "Times that a producer rolled a transaction back, the first time or again",
        )
        self.undecided = counter(
            "dledger_transactions_undecided",
            "Times that a producer said that it does not know yet how a transaction ends",
        )
        self.checks = counter(
            "dledger_transaction_checks",
            "Times that this leader asked how a transaction ends, as its producer did not say",
        )
        self.checks_unheard = counter(
            "dledger_transaction_checks_unheard",
            "Those of them that no producer heard: none of the topic is connected",
        )


class NodeMetrics:
    """The counters and histograms that the driver, the persister and the servicers update.

    Args:
        group: The broker group's name, a label of every series.
        node: The node's name, a label of every series.
    """

    def __init__(self, group: str, node: str) -> None:
        self.registry = CollectorRegistry()
        own = {"group": group, "node": node}
        make: dict[str, Any] = {"labelnames": tuple(own), "registry": self.registry}

        def counter(name: str, text: str) -> Counter:
            return Counter(name, text, **make).labels(**own)

        def histogram(name: str, text: str, buckets: Sequence[float]) -> Histogram:
            return Histogram(name, text, buckets=buckets, **make).labels(**own)

        self.append_seconds = histogram(
            "dledger_append_seconds",
            "Time from a command's proposal to its answer: queued, synced by a majority, applied",
            _SECONDS,
        )
        self.sync_seconds = histogram(
            "dledger_sync_seconds", "Time to write and sync one group of entries", _SECONDS
        )
        self.sync_bytes = counter("dledger_sync_bytes", "Entry bytes written and synced to disk")
        self.repaired_entries = counter(
            "dledger_repaired_entries",
            "Damaged entries that were written again from memory or from a peer",
        )
        self.mended_state_files = counter(
            "dledger_mended_state_files",
            "Copies of the hard state or the identity that were written again at a start",
        )
        self.older_disks = counter(
            "dledger_older_disks",
            "Starts of this node whose disk had less than others know that it had",
        )
        self._refusals = Counter(
            "dledger_refused_messages",
            "Peers' messages that Raft refused: a log that is another, or a term too far ahead",
            labelnames=(*own, "reason"),
            registry=self.registry,
        )
        # Each series is exported from the start, so that `increase` sees its first event.
        for reason in (DIVERGED, CONTRADICTED, TERM_JUMP):
            self._refusals.labels(**own, reason=reason)
        self.scrubbed_bytes = counter(
            "dledger_scrubbed_bytes", "Bytes of the log that were read to look for damage"
        )
        self.message_id_conflicts = counter(
            "dledger_message_id_conflicts",
            "Messages with an id that another message used: refused, or stored separately",
        )
        self.broken_messages = counter(
            "dledger_broken_messages",
            "Deliveries and reads that skipped a message that cannot be decoded",
        )
        self.early_dropped_messages = counter(
            "dledger_early_dropped_messages",
            "Messages dropped before their retention time because the disk was above its watermark",
        )
        self.rolled_messages = counter(
            "dledger_rolled_messages",
            "Messages that are kept longer, or held, copied forward by this leader",
        )
        self.rolled_bytes = counter(
            "dledger_rolled_bytes",
            "Bytes of the log that copying them took",
        )
        self.refused_copies = counter(
            "dledger_refused_copies",
            "Commands to copy messages forward (REKEEP) that were refused: nothing was copied",
        )
        self.let_go_messages = counter(
            "dledger_let_go_messages",
            "Messages of compacted topics that this leader let go for newer ones of their keys",
        )
        self.compaction_lies = counter(
            "dledger_compaction_lies",
            "Calls of a compaction's job that said what is not true of a sampled message",
        )
        self.erase_lies = counter(
            "dledger_erase_lies",
            "Calls to erase older messages of a key that named one of another key, or none at all",
        )
        self.leaps = counter(
            "dledger_leaps",
            "Times that the log leapt to the group's date, led by this node, since it was behind",
        )
        self.dead_letters_moved = counter(
            "dledger_dead_letters_moved",
            "Messages that became dead letters of their consumer group, moved by this leader",
        )
        self.dead_letters_refused = counter(
            "dledger_dead_letters_refused",
            "Times that a message could not become a dead letter; it is tried again",
        )
        self.held_delivered = counter(
            "dledger_held_delivered",
            "Messages that were held until their time, and let go by this leader",
        )
        self.held_dropped = counter(
            "dledger_held_dropped",
            "Messages that were held and let go of unread: their topic is gone, or they are broken",
        )
        self.held_late_seconds = histogram(
            "dledger_held_late_seconds",
            "How late the first message of each command went that let go what was due",
            _LATE_SECONDS,
        )
        self.transactions = TransactionMetrics(counter)
        self.filter_evaluated_messages = counter(
            "dledger_filter_evaluated_messages",
            "Messages that this leader looked at for a SQL92 filter, once for each of them",
        )
        self.filter_waits = counter(
            "dledger_filter_waits",
            "Receives of a consumer whose filter waits for a slower one of its group",
        )
        self.filter_ended_messages = counter(
            "dledger_filter_ended_messages",
            "Messages that were kept for consumers' filters, given up with them after ten minutes",
        )
        self.door_restarts = counter(
            "dledger_door_restarts",
            "Door processes that ended, or hung, and were replaced",
        )
        self.batch_commands = histogram(
            "dledger_batch_commands", "Commands that shared one entry", _COMMANDS
        )
        self.batch_bytes = histogram("dledger_batch_bytes", "Bytes of one entry's commands", _BYTES)
        self.loop_turn_seconds = histogram(
            "dledger_loop_turn_cpu_seconds",
            "CPU time of the event loop between two beats, 20 ms apart: a long one is a turn",
            _TURN_SECONDS,
        )
        self.requests = Requests(
            Counter(
                "dledger_requests",
                "Client requests answered by this node itself, by method and code",
                (*own, "method", "code"),
                registry=self.registry,
            ),
            own,
        )
        forwarded = Counter(
            "dledger_forwarded_requests",
            "Client requests passed on to the leader: over the link to it, or by a gRPC call",
            (*own, "way"),
            registry=self.registry,
        )
        self._forwarded = {way: forwarded.labels(**own, way=way) for way in (BY_LINK, BY_CALL)}
        self._elections = Counter(
            "dledger_elections",
            "Elections this node won, by what started them",
            (*own, "cause"),
            registry=self.registry,
        )
        self._failovers = Histogram(
            "dledger_failover_seconds",
            "Duration of each phase of the elections this node won, by what started them",
            (*own, "cause", "phase"),
            buckets=_PHASE_SECONDS,
            registry=self.registry,
        )
        self._own = own
        for cause in CAUSES:
            self._elections.labels(**own, cause=cause)
            for phase in _PHASES:
                self._failovers.labels(**own, cause=cause, phase=phase)
        self._state = _State(own)
        self.registry.register(self._state)
        ProcessCollector(registry=self.registry)

    def batch(self, commands: int, size_bytes: int) -> None:
        """Note the size of one entry."""
        self.batch_commands.observe(commands)
        self.batch_bytes.observe(size_bytes)

    def elected(self, record: FailoverRecord) -> None:
        """Note an election that this node won, once its first entry is committed."""
        self._elections.labels(**self._own, cause=record.cause).inc()
        times_ms = (record.detected_ms, record.elected_ms, record.first_ack_ms)
        for phase, time_ms in zip(_PHASES, times_ms, strict=True):
            labels = {**self._own, "cause": record.cause, "phase": phase}
            self._failovers.labels(**labels).observe(time_ms / 1000)

    def forwarded(self, way: str) -> None:
        """Count a request that was passed on to the leader, `BY_LINK` or `BY_CALL`."""
        self._forwarded[way].inc()

    def refused(self, reason: str) -> None:
        """Count a message that Raft refused; *reason* is one of the three above."""
        self._refusals.labels(**self._own, reason=reason).inc()

    def publish(self, sample: Sample) -> None:
        """Publish *sample*: later scrapes return it."""
        self._state.sample = sample


class Requests:
    """Counts answered requests; the counters are cached by (method, code)."""

    def __init__(self, counter: Counter, own: Mapping[str, str]) -> None:
        self._counter = counter
        self._own = own
        self._children: dict[tuple[str, str], Counter] = {}

    def answered(self, method: str, code: str, count: int = 1) -> None:
        """Count responses; both labels come from our own tables, so their number is bounded."""
        child = self._children.get((method, code))
        if child is None:
            child = self._counter.labels(**self._own, method=method, code=code)
            self._children[method, code] = child
        child.inc(count)


class _State(Collector):
    """Exports the newest sample as gauges, all from the same moment."""

    def __init__(self, own: Mapping[str, str]) -> None:
        self._own = own
        self.sample: Sample | None = None

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield every gauge; they have no series before the first sample."""
        sample = self.sample
        yield self._family(
            "role",
            "1 for the present role, 0 for the others",
            {role: role == sample.role for role in _ROLES} if sample else {},
            label="role",
        )
        yield self._family(
            "follower_lag_entries",
            "On the leader: entries that a voter is not known to have synced",
            sample.follower_lag_entries if sample else {},
            label="follower",
        )
        yield self._family(
            "dead_letters",
            "On the leader: dead letters of a consumer group that it has not consumed",
            sample.dead_letters if sample else {},
            label="consumer_group",
        )
        yield self._family(
            "fifo_waiting_ratio",
            "On the leader: messages that wait for their message groups, as a share of the room "
            "for them, in the fullest FIFO queue of a consumer group",
            sample.fifo_waiting if sample else {},
            label="consumer_group",
        )
        for each in fields(Sample):
            if text := each.metadata.get("text"):
                value = getattr(sample, each.name) if sample else None
                yield self._family(each.name, text, {} if value is None else {"": value})

    def _family(
        self, name: str, text: str, values: Mapping[str, float], label: str = ""
    ) -> GaugeMetricFamily:
        labels = (*self._own, label) if label else tuple(self._own)
        family = GaugeMetricFamily(f"dledger_{name}", text, labels=labels)
        for key, value in values.items():
            family.add_metric((*self._own.values(), *((key,) if label else ())), value)
        return family

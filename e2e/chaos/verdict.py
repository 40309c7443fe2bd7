"""What a run comes to: the three checkers over its history, the figures of its episodes. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from e2e.chaos.episodes import FaultKind
from e2e.chaos.history import Event, Kind, Operation, Outcome, Seen, Write
from e2e.chaos.linearizability import Agreement, Judgement, check_keys
from e2e.chaos.log_checker import LogEntry, Queues, check_entries, check_messages
from e2e.chaos.nemesis import Played
from e2e.chaos.register_checker import check_registers
from e2e.harness.checks import Verdict, columns, exit_code

_CHAIN = "chain-"
_HEALED_S = {FaultKind.OLDER_COPY: 30.0}
"""What is given back what it lacks by itself is, within so long of being up again."""


@dataclass(frozen=True, slots=True)
class Audit:
    """What all nodes held at the end."""

    commit_index: int
    queues: Mapping[str, Queues]
    logs: Mapping[str, Sequence[LogEntry]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Everything that a run found.

    Attributes:
        problems: One sentence for each thing that is wrong.
        unmeasured: One for each thing that the run should have shown and did not try. A run with
            neither of them has passed.
        findings: How many findings of which kind each checker has.
        counts: How much was done.
        classes: One row of figures for each class of faults.
    """

    problems: Sequence[str]
    unmeasured: Sequence[str]
    findings: Mapping[str, Mapping[str, int]]
    counts: Mapping[str, int]
    classes: Sequence[Mapping[str, Any]]

    @property
    def exit_code(self) -> int:
        """0 if it has passed, 1 if something is wrong, 2 if nothing is but not all was tried."""
        broken = [Verdict.BROKEN for _ in self.problems]
        return exit_code([*broken, *(Verdict.UNMEASURED for _ in self.unmeasured), Verdict.KEPT])


def judge(
    events: Sequence[Event],
    audit: Audit,
    played: Sequence[Played],
    *,
    leader_limit_s: float,
    asked: Collection[FaultKind] = (),
    problems: Sequence[str] = (),
) -> Report:
    """Run all checkers.

    Args:
        events: The history.
        audit: What the nodes held.
        played: The episodes.
        leader_limit_s: The longest time without a leader that is no problem.
        asked: The classes of faults that the run was to try.
        problems: What went wrong already.
    """
    writes = [e for e in events if isinstance(e, Write)]
    seen = [e for e in events if isinstance(e, Seen)]
    operations = [e for e in events if isinstance(e, Operation)]
    messages = [*check_messages(writes, seen, audit.queues), *check_entries(audit.logs)]
    registers = check_registers(o for o in operations if o.key.startswith(_CHAIN))
    judgements = check_keys(o for o in operations if not o.key.startswith(_CHAIN))
    violations = [j for j in judgements if j.verdict is Agreement.VIOLATION]
    counts = _counts(writes, seen, operations, audit, len(played))
    return Report(
        problems=[
            *problems,
            *_refusals(writes),
            *(f"log: {f.fault.value} on {f.node}: {f.text}" for f in messages),
            *(f"register {f.key}: {f.fault.value}: {f.text}" for f in registers),
            *(f"register {j.key}: not linearizable: {j.text}" for j in violations),
            *_late(played, leader_limit_s),
        ],
        unmeasured=[
            *_idle(counts),
            *_unseen(audit),
            *_untried(asked, played),
            *_undecided(judgements),
        ],
        findings={
            "log": dict(Counter(f.fault.value for f in messages)),
            "registers": dict(Counter(f.fault.value for f in registers)),
            "linearizability": dict(Counter(j.verdict.value for j in judgements)),
        },
        counts=counts,
        classes=[_row(fault, played) for fault in FaultKind if any(_of(fault, played))],
    )


def _idle(counts: Mapping[str, int]) -> list[str]:
    """Find what was not done once: its checker had nothing to find anything in."""
    needed = {
        "episodes": "no episode was played",
        "messagesAcknowledged": "no message was acknowledged",
        "messagesSeen": "no reader saw a message",
        "registerAnswers": "no register operation was answered",
        "entries": "nothing is known to be committed",
    }
    return [text for name, text in needed.items() if not counts[name]]


def _unseen(audit: Audit) -> Iterator[str]:
    """Find nodes whose queues or log nobody could compare with anything."""
    nodes = sorted({*audit.queues, *audit.logs})
    if not nodes:
        yield "no node was audited"
    for node in nodes:
        if not any(audit.queues.get(node, {}).values()):
            yield f"{node} showed no message at the end"
        if not audit.logs.get(node):
            yield f"{node} showed no log at the end"


def _untried(asked: Collection[FaultKind], played: Sequence[Played]) -> list[str]:
    """Find classes of faults of which none is known to have hit."""
    hit = {one.episode.fault for one in played if one.fired}
    tried = {one.episode.fault for one in played}
    return [
        f"{fault.value}: {'no episode of it has hit' if fault in tried else 'time was up before'}"
        for fault in asked
        if fault not in hit
    ]


def _undecided(judgements: Sequence[Judgement]) -> list[str]:
    """Find a search that gave up everywhere; here and there it may."""
    decided = any(j.verdict is not Agreement.UNKNOWN for j in judgements)
    return [] if decided else ["linearizability: no register was judged"]


def _refusals(writes: Sequence[Write]) -> list[str]:
    """Find messages that were refused: nothing is wrong with those of this load."""
    return [
        f"log: {write.message_id} was refused at {write.ended_s:.3f} s for no fault of its own"
        for write in writes
        if write.outcome is Outcome.REFUSED
    ]


def _late(played: Sequence[Played], leader_limit_s: float) -> list[str]:
    late = []
    for one in played:
        name = f"episode {one.episode.number} ({one.episode.fault.value})"
        if one.problem:
            late.append(f"{name}: {one.problem}")
        elif one.whole_s > _HEALED_S.get(one.episode.fault, one.whole_s):
            late.append(f"{name}: healed after {one.whole_s:.1f} s only")
        elif one.gap_s > leader_limit_s:
            late.append(f"{name}: {one.gap_s:.1f} s without a leader, from {one.able_s:.1f} s on")
    return late


def _counts(
    writes: Sequence[Write],
    seen: Sequence[Seen],
    operations: Sequence[Operation],
    audit: Audit,
    episodes: int,
) -> dict[str, int]:
    outcomes = Counter(write.outcome for write in writes)
    return {
        "episodes": episodes,
        "messagesAcknowledged": outcomes[Outcome.OK],
        "messagesUnknown": outcomes[Outcome.UNKNOWN],
        "messagesRefused": outcomes[Outcome.REFUSED],
        "messagesSeen": len(seen),
        "registerOperations": len(operations),
        "registerAnswers": sum(o.outcome is not Outcome.UNKNOWN for o in operations),
        "registerUnknown": sum(o.outcome is Outcome.UNKNOWN for o in operations),
        "registerSwaps": sum(o.outcome is Outcome.OK and o.kind is Kind.CAS for o in operations),
        "entries": audit.commit_index,
    }


def _of(fault: FaultKind, played: Sequence[Played]) -> list[Played]:
    return [one for one in played if one.episode.fault is fault]


def _row(fault: FaultKind, played: Sequence[Played]) -> dict[str, Any]:
    mine = _of(fault, played)
    gaps_s = sorted(one.gap_s for one in mine)
    wholes_s = sorted(one.whole_s for one in mine)
    return {
        "class": fault.value,
        "episodes": len(mine),
        "fired": sum(one.fired for one in mine),
        "gapP50S": round(gaps_s[len(mine) // 2], 2),
        "gapMaxS": round(gaps_s[-1], 2),
        "over3S": sum(gap_s > 3 for gap_s in gaps_s),
        "wholeP50S": round(wholes_s[len(mine) // 2], 2),
        "wholeMaxS": round(wholes_s[-1], 2),
    }


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as text columns under their names."""
    if not rows:
        return ""
    names = list(rows[0])
    cells = [names, *([str(row[name]) for name in names] for row in rows)]
    return columns(cells, right=range(1, len(names)))

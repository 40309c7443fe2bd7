"""What to do about BrokerOperations: whether one may begin, its next step, and when it is over.

What an operation rests on (uids of pods and claims, node ids) is recorded in its status before its
first step, so that it goes on after any interruption with the same things and no others. Its steps
are disruptions of the group's plan: one a round, behind the same gate as every other. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from dledger_operator.api import names
from dledger_operator.api.brokeroperation import PENDING, RUNNING, BrokerOperation, Kind
from dledger_operator.api.reasons import Reason
from dledger_operator.api.spec import Manifest
from dledger_operator.decisions.disruptions import Disruption, Held
from dledger_operator.decisions.facts import Facts
from dledger_operator.decisions.forcing import ADVICE, Confirmation, begin_force, secure
from dledger_operator.decisions.forcing import progress as force_progress
from dledger_operator.decisions.gate import GiveUp, HandOver, hold, refused
from dledger_operator.decisions.membership import given_up
from dledger_operator.decisions.outcomes import Begun, Done, Going, Outcome, Rejected, Waits
from dledger_operator.decisions.restarts import hand_over, remaining, restart_next
from dledger_operator.decisions.scaling import scaling
from dledger_operator.observed.job_status import seconds_between


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationObserved:
    """What is known of one operation's surroundings in one round.

    Attributes:
        there: Whether a BrokerGroup has the name.
        facts: What was last seen of it; None if nothing was yet.
        predecessor: Another operation of the group that goes first; empty if none does.
    """

    there: bool = False
    facts: Facts | None = None
    predecessor: str = ""


@dataclass(frozen=True, slots=True)
class _Act:
    """One kind of operation.

    *begin* says whether it may begin, and what to record; *progress* how far it is; *step* what is
    to be done next.
    """

    begin: Callable[[BrokerOperation, Facts], Outcome]
    progress: Callable[[BrokerOperation, Facts], Outcome]
    step: Callable[[BrokerOperation, Facts], Disruption | Held | None]
    urgent: Callable[[BrokerOperation, Facts], Disruption | Held | None] = field(
        default=lambda _operation, _facts: None
    )


def outcome(operation: BrokerOperation, observed: OperationObserved, *, now: str) -> Outcome:
    """Return where an unfinished operation stands at the time *now*, RFC 3339."""
    if operation.unreadable:
        return Rejected(Reason.INVALID_SPEC, operation.unreadable)
    found = _outcome(operation, observed)
    if isinstance(found, Waits) and operation.phase == RUNNING:
        # What runs never waits to begin again: an operator that starts has not seen the group yet.
        found = Going(found.message)
    if not isinstance(found, Waits | Begun | Going):
        return found
    since = operation.created_at if operation.phase == PENDING else _started_at(operation)
    limit_s = operation.spec.deadline_seconds
    is_forcing = operation.spec.kind == Kind.FORCE_NEW_GROUP and not operation.asks_only
    if is_forcing or seconds_between(since, now) < limit_s:
        return found
    if isinstance(found, Waits) and found.reason is Reason.AWAITING_CONFIRMATION:
        return Rejected(Reason.CONFIRMATION_NEEDED, found.message, found.record)
    said = f": {found.message}" if isinstance(found, Waits | Going) else ""
    return Rejected(Reason.DEADLINE_EXCEEDED, f"not done within {limit_s} s{said}")


def _started_at(operation: BrokerOperation) -> str:
    return str(operation.status.get("startedAt") or operation.created_at)


def _outcome(operation: BrokerOperation, observed: OperationObserved) -> Outcome:
    facts, kind = observed.facts, _ACTS[Kind(operation.spec.kind)]
    if not observed.there:
        name = operation.spec.group
        message = f"there is no BrokerGroup {name} in this namespace, or it is being deleted"
        return Waits(Reason.GROUP_MISSING, message)
    if facts is None:
        return Waits(Reason.WAITING_FOR_GROUP, "the group is being looked at")
    if operation.phase == RUNNING:
        return _progress(operation, facts)
    return _held_up(observed, facts) or kind.begin(operation, facts)


def _progress(operation: BrokerOperation, facts: Facts) -> Outcome:
    found = _ACTS[Kind(operation.spec.kind)].progress(operation, facts)
    if not isinstance(found, Going):
        return found
    held = step(operation, facts)
    return Going(f"{found.message}; not now: {held.why}") if isinstance(held, Held) else found


def _held_up(observed: OperationObserved, facts: Facts) -> Waits | None:
    """Return why no operation of the group may begin now."""
    if observed.predecessor:
        message = f"{observed.predecessor} of the same group goes first"
        return Waits(Reason.WAITING_FOR_TURN, message)
    if facts.group.spec.paused:
        return Waits(Reason.PAUSED_BY_USER, f"BrokerGroup {facts.group.name} is paused")
    return None


def in_turn(operations: Iterable[BrokerOperation]) -> list[BrokerOperation]:
    """Return the unfinished operations of a group: one that runs first, then by age.

    Rounds of compaction take their turns with backups, not with what disturbs nodes.
    """
    left = (one for one in operations if not one.finished and not one.is_round)
    return sorted(left, key=lambda one: (one.phase != RUNNING, one.created_at, one.name))


def may_go(operation: BrokerOperation, *, now: str) -> bool:
    """Whether a finished operation has been there for as long as it says."""
    return operation.finished and left_s(operation, now=now) <= 0


def left_s(operation: BrokerOperation, *, now: str) -> float:
    """Return for how many seconds a finished operation is still kept."""
    at = str(operation.status.get("finishedAt") or operation.created_at)
    return operation.spec.ttl_seconds_after_finished - seconds_between(at, now)


def urgent(facts: Facts) -> Disruption | Held | None:
    """Return the step of the operation that runs, if it goes before every other disruption."""
    running = _running(facts)
    return _ACTS[Kind(running.spec.kind)].urgent(running, facts) if running else None


def ordinary(facts: Facts) -> Disruption | Held | None:
    """Return the step of the operation that runs, if it is no urgent one."""
    running = _running(facts)
    return _ACTS[Kind(running.spec.kind)].step(running, facts) if running else None


def step(operation: BrokerOperation, facts: Facts) -> Disruption | Held | None:
    """Return what an operation does next, or why it may not; None if it only waits."""
    act = _ACTS[Kind(operation.spec.kind)]
    return act.urgent(operation, facts) or act.step(operation, facts)


def _running(facts: Facts) -> BrokerOperation | None:
    first = next(iter(in_turn(facts.observed.operations)), None)
    is_running = first is not None and first.phase == RUNNING and not first.unreadable
    return first if is_running else None


# --- TransferLeader ------------------------------------------------------------------------------


def _begin_transfer(operation: BrokerOperation, facts: Facts) -> Outcome:
    target = operation.spec.transfer_leader.to
    if not facts.leader:
        return Waits(Reason.OPERATION_HELD, "no leader answers that a majority follows")
    voters = [row.member.name for row in facts.observed.membership if row.voter]
    if target not in voters:
        return Rejected(Reason.NO_SUCH_MEMBER, f"{target} is no voter: {', '.join(voters)} are")
    return Begun({})


def _transferred(operation: BrokerOperation, facts: Facts) -> Outcome:
    target = operation.spec.transfer_leader.to
    if facts.leader == target:
        return Done(f"{target} leads")
    return Going(f"{target} is to lead; {facts.leader or 'nobody'} does")


def _transfer(operation: BrokerOperation, facts: Facts) -> Disruption | Held | None:
    target = operation.spec.transfer_leader.to
    if facts.leader == target:
        return None
    if why := refused(facts, facts.leader) or hold(facts, HandOver(target)):
        return Held(target, why)
    return hand_over(facts, f"BrokerOperation {operation.name}", to=target)


# --- Restart -------------------------------------------------------------------------------------


def _begin_restart(operation: BrokerOperation, facts: Facts) -> Outcome:
    asked = operation.spec.restart
    pods = facts.wanted if asked.all else asked.pods
    if unknown := [name for name in pods if name not in facts.wanted]:
        have = ", ".join(facts.wanted)
        return Rejected(Reason.NO_SUCH_MEMBER, f"{', '.join(unknown)}: the group has {have}")
    seen = facts.observed.pods
    rows = [{"name": name, "uid": seen[name].uid} for name in pods if name in seen]
    return Begun({"pods": rows})


def _restarted(operation: BrokerOperation, facts: Facts) -> Outcome:
    rows = operation.recorded("pods") or ()
    left = remaining(facts, {row["uid"] for row in rows})
    if left:
        return Going(f"to be restarted: {', '.join(left)}")
    if facts.apart or not facts.leader:
        return Going(f"restarted, not in sync yet: {', '.join(facts.apart)}")
    return Done(f"restarted: {', '.join(row['name'] for row in rows) or 'none was left'}")


def _restart(operation: BrokerOperation, facts: Facts) -> Disruption | Held | None:
    uids = {row["uid"] for row in operation.recorded("pods") or ()}
    return restart_next(facts, uids, f"BrokerOperation {operation.name}")


# --- ReplaceMember -------------------------------------------------------------------------------


def _begin_replace(operation: BrokerOperation, facts: Facts) -> Outcome:
    name = operation.spec.replace_member.member
    ids = [str(m.member.id) for m in facts.observed.membership if m.member.name == name and m.voter]
    if not facts.leader:
        return Waits(Reason.OPERATION_HELD, "no leader answers that a majority follows")
    if not ids or name not in facts.wanted:
        return Rejected(Reason.NO_SUCH_MEMBER, f"{name} is no voter of the group")
    if facts.voters == 1:
        message = f"{name} is the only voter: its disk is the group; back it up, and restore it"
        return Rejected(Reason.NOT_ALLOWED, message)
    claim = names.claim_of(name)
    volume = facts.observed.volumes.get(claim)
    if volume is None or not volume.uid:
        return Waits(Reason.OPERATION_HELD, f"there is no claim {claim}")
    if why := hold(facts, GiveUp(frozenset({name}))):
        return Waits(Reason.OPERATION_HELD, why)
    row = {"pod": name, "nodeId": ids[0], "claim": claim, "claimUid": volume.uid}
    return Begun({"member": {**row, "volume": volume.volume}})


def _replaced(operation: BrokerOperation, facts: Facts) -> Outcome:
    record = operation.recorded("member")
    name, claim = str(record.get("pod")), str(record.get("claim"))
    volume = facts.observed.volumes.get(claim)
    if volume is not None and volume.uid == record.get("claimUid"):
        return Going(f"claim {claim} is to be deleted, and made anew")
    rows = [row for row in facts.observed.membership if row.member.name == name]
    ids = {str(row.member.id) for row in rows}
    if ids and record.get("nodeId") not in ids and name in facts.in_sync:
        return Done(f"{name} votes with node {', '.join(sorted(ids))}; {_kept(record)}")
    return Going(f"{name} comes back with an empty disk, and votes once it has caught up")


def _kept(record: Mapping[str, str]) -> str:
    return f"volume {record.get('volume') or '(none)'} had the disk of {record.get('nodeId')}"


def _replace(operation: BrokerOperation, facts: Facts) -> Disruption | Held | None:
    record = operation.recorded("member")
    name, claim = str(record.get("pod")), str(record.get("claim"))
    volume = facts.observed.volumes.get(claim)
    if volume is None or volume.uid != record.get("claimUid"):
        return None
    found = given_up(facts, name, volume)
    if found is None:
        return None
    if why := hold(facts, GiveUp(frozenset({name}))) or refused(facts, name):
        return Held(name, why)
    if name == facts.leader:
        return hand_over(facts, f"BrokerOperation {operation.name}")
    return found


# --- what they share -----------------------------------------------------------------------------


def _begin_force(operation: BrokerOperation, facts: Facts) -> Outcome:
    found = begin_force(facts, operation.spec.force_new_group)
    if isinstance(found, Confirmation):
        message = f"{found.message}; {ADVICE}"
        return Waits(Reason.AWAITING_CONFIRMATION, message, found.record)
    return found


_ACTS: Final[Mapping[Kind, _Act]] = {
    Kind.TRANSFER_LEADER: _Act(_begin_transfer, _transferred, _transfer),
    Kind.RESTART: _Act(_begin_restart, _restarted, _restart),
    Kind.REPLACE_MEMBER: _Act(_begin_replace, _replaced, _replace),
    Kind.FORCE_NEW_GROUP: _Act(
        _begin_force,
        lambda operation, facts: force_progress(facts, operation.status),
        lambda _operation, facts: scaling(facts),
        lambda operation, facts: secure(facts, operation.status),
    ),
}


def record_of(found: Outcome) -> Manifest:
    """Return what an outcome adds to the status."""
    return dict(found.record) if isinstance(found, Begun | Waits | Done | Rejected) else {}

"""Whether a group is degraded, and which of all that is wrong is told first. Pure.

First what stopped writes, then what may stop them next, then what is late or will expire.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from dledger.common.status import CLOCK_APART_MS, NodeStatus
from dledger_operator.api import names
from dledger_operator.api.reasons import Reason
from dledger_operator.decisions.bootstrap_state import (
    Bootstrapped,
    Cloned,
    Lost,
    NotRestored,
    Waiting,
)
from dledger_operator.decisions.certificates import EXPIRING_S
from dledger_operator.decisions.disruptions import Held
from dledger_operator.decisions.facts import Facts
from dledger_operator.decisions.losses import loss_sentence
from dledger_operator.decisions.membership import learning, replacement
from dledger_operator.decisions.recovery import RestoreFailed, blocks_nodes
from dledger_operator.decisions.rollout import halted
from dledger_operator.decisions.starts import PULLED_S, find_stalled, named_missing
from dledger_operator.observed.job_status import seconds_between
from dledger_operator.status.findings import (
    Finding,
    each_said,
    not_ready,
    pods_said,
    recovery_sentence,
)
from dledger_operator.status.scaling_status import is_catching_up

DEADLINE_S: Final = 600
"""After this time without all replicas ready, the group is Degraded: as long as a Deployment is
given, and twice what a node may take to recover its log."""

_NOT_OF_MEMBERS: Final = frozenset(
    {
        Reason.TOPIC_REFUSED,
        Reason.CERTIFICATE_EXPIRING,
        Reason.AUTHORITY_INVALID,
        Reason.CLIENT_CERTIFICATE_REFUSED,
        Reason.CLIENT_CERTIFICATE_EXPIRING,
        Reason.CLOCK_APART,
        Reason.RESTORED_MESSAGES_WAIT,
    }
)
"""What may be wrong for weeks with a group of which all voters are in sync."""


def degraded(facts: Facts, now: str) -> Finding:
    """Return whether the group is degraded at the time *now* (RFC 3339), and by what."""
    if isinstance(facts.recovery, RestoreFailed):
        return "True", Reason.RECOVERY_FAILED, recovery_sentence(facts)
    if found := _broken_founding(facts) or _tell_outage(facts, now) or _replaced(facts):
        return found
    if found := _bad_pods(facts) or _refused(facts) or _rollout_halted(facts, now):
        return found
    found = _disk_lost(facts) or _not_mounted(facts) or _not_signed(facts)
    if found := found or _not_starting(facts, now):
        return found
    short = _short(facts) if facts.is_short else None
    if short is not None and short[1] is not Reason.STARTING:
        return short
    found = _topics_refused(facts) or _certificates(facts) or _client_certificates(facts, now)
    return found or _clocks(facts) or _waiting(facts) or short or _overdue(facts, now)


def _broken_founding(facts: Facts) -> Finding | None:
    match facts.bootstrap:
        case Lost():
            return "True", Reason.ALL_DISKS_EMPTY, "every disk is empty; nothing is founded again"
        case NotRestored(restored):
            return "True", Reason.NOT_RESTORED, _unrestored_sentence(facts, restored)
        case Cloned(pods):
            return "True", Reason.DUPLICATE_NODE_ID, f"one node id on {', '.join(pods)}"
    return None


def _unrestored_sentence(facts: Facts, restored: Sequence[str]) -> str:
    first = names.pod(facts.group.name, 0)
    carrying = f"{', '.join(restored)} carry one" if restored else "no disk does"
    return f"{first} alone should carry a restored log, but {carrying}; nothing is founded"


def _replaced(facts: Facts) -> Finding | None:
    why = _replaced_sentence(facts)
    return ("True", Reason.MEMBER_REPLACED_BY_EMPTY_DISK, why) if why else None


def _replaced_sentence(facts: Facts) -> str:
    """Return who came up with an empty disk and does not vote yet; empty without such."""
    if not isinstance(facts.bootstrap, Bootstrapped):
        return ""
    wanted, learners = replacement(facts), learning(facts)
    if wanted is None:
        came = f"{', '.join(learners)} came up with an empty disk"
        return f"{came}, is a learner and votes once it has caught up" if learners else ""
    sentence = f"{', '.join(facts.bootstrap.replaced)} came up with an empty disk and takes no part"
    if facts.group.spec.paused:
        return f"{sentence}; not replaced while the group is paused"
    if isinstance(wanted, Held):
        return f"{sentence}; {wanted.pod} is not replaced now: {wanted.why}"
    return f"{sentence}; {wanted.pod} is being replaced"


def _tell_outage(facts: Facts, now: str) -> Finding | None:
    """Return that writes stopped, and what of all that is known to be wrong may be why."""
    found = _nodes_down(facts) or _majority_lost(facts)
    if found is None:
        return None
    status, reason, message = found
    missing = named_missing(facts)
    why = [missing, loss_sentence(facts), _unsigned_sentence(facts)]
    refused = _refused(facts)
    if refused is not None and refused[1] is not Reason.POD_REFUSED:  # said beside each pod's name
        why.append(refused[2])
    if halted(facts, now) and not missing:
        why.append("the rollout to its newest template is halted, see Progressing")
    return status, reason, "; ".join(filter(None, (message, *why)))


def _nodes_down(facts: Facts) -> Finding | None:
    """Return that no node of a founded group runs, for longer than a start takes."""
    observed = facts.observed
    if not facts.is_short or observed.nodes or any(pod.ready for pod in observed.pods.values()):
        return None
    if not (facts.overdue or _was_short(facts)):
        return None
    return "True", Reason.NODES_DOWN, f"no node runs: {pods_said(facts, facts.wanted)}"


def _majority_lost(facts: Facts) -> Finding | None:
    """Return that writes stopped, once they have been for longer than an election takes."""
    if facts.overdue and facts.observed.nodes and facts.is_short and facts.margin < 0:
        # Empty disks are part of it: what is told of them says what to do when no majority is left.
        why = _replaced_sentence(facts)
        return "True", Reason.MAJORITY_LOST, _sync_sentence(facts) + (f"; {why}" if why else "")
    carried = facts.bootstrap.carried if isinstance(facts.bootstrap, Waiting) else {}
    if carried and facts.overdue:
        silent = facts.bootstrap.missing if isinstance(facts.bootstrap, Waiting) else ()
        sentence = (
            f"{each_said(carried, 'carries group')}; no answer from {pods_said(facts, silent)}"
        )
        return "True", Reason.MAJORITY_LOST, sentence
    return None


def _bad_pods(facts: Facts) -> Finding | None:
    """Return what is wrong with the programs in the pods."""
    too_old = {name: pod.too_old for name, pod in facts.observed.pods.items() if pod.too_old}
    if too_old:
        return "True", Reason.MEMBER_TOO_OLD, each_said(too_old)
    if facts.observed.disbelieved:
        return "True", Reason.STATUS_NOT_BELIEVED, each_said(facts.observed.disbelieved)
    return None


def _refused(facts: Facts) -> Finding | None:
    """Return what Kubernetes or a node did not let the group have, but for topics."""
    if any(kind != "Topic" for kind, _ in facts.observed.refusals):
        return "True", Reason.APPLY_REFUSED, _refusals_said(facts)
    if uncreated := facts.observed.uncreated:
        return "True", Reason.POD_REFUSED, each_said(uncreated)
    if foreign := facts.observed.foreign:
        return "True", Reason.FOREIGN_VOLUME, each_said(foreign, "is")
    return None


def _topics_refused(facts: Facts) -> Finding | None:
    """Return which topics a node refused: it may do so for ever, whatever becomes of the group."""
    return (
        ("True", Reason.TOPIC_REFUSED, _refusals_said(facts)) if facts.observed.refusals else None
    )


def _refusals_said(facts: Facts) -> str:
    return "; ".join(f"{k} {n}: {why}" for (k, n), why in facts.observed.refusals.items())


def _rollout_halted(facts: Facts, now: str) -> Finding | None:
    """Return which restarted pod does not come up."""
    why = halted(facts, now)
    return ("True", Reason.ROLLOUT_HALTED, why) if why else None


def _disk_lost(facts: Facts) -> Finding | None:
    """Return whose disk is gone, and what is done about it or holds that back."""
    why = loss_sentence(facts)
    return ("True", Reason.DISK_LOST, why) if why else None


def _not_mounted(facts: Facts) -> Finding | None:
    """Return what the spec has pods mount and is not there: the next that starts waits for it."""
    said = named_missing(facts)
    return ("True", Reason.MOUNT_MISSING, said) if said else None


def _not_signed(facts: Facts) -> Finding | None:
    """Return that members have no certificate, and who was to sign them; their pods wait for it."""
    said = _unsigned_sentence(facts)
    return ("True", Reason.AUTHORITY_INVALID, said) if said else None


def _unsigned_sentence(facts: Facts) -> str:
    seen = facts.observed.certificates
    if not (seen.fault and seen.lacking):
        return ""
    waiting = ", ".join(seen.lacking)
    return f"spec.peerTls.caSecretName: {seen.fault}; {waiting} cannot start without a certificate"


def _not_starting(facts: Facts, now: str) -> Finding | None:
    """Return which pods do not start, and what they wait for.

    One of which nobody says why may be pulling its image, and gets the time for that.
    """
    pods, unstarted = facts.observed.pods, facts.observed.unstarted
    late = find_stalled(pods, now, for_s=PULLED_S)
    known = [name for name in facts.stalled if pods[name].stopped or name in unstarted]
    stuck = [
        name
        for name in facts.wanted
        if name in pods and (name in known or name in late or pods[name].looping)
    ]
    return ("True", Reason.POD_CANNOT_START, pods_said(facts, stuck)) if stuck else None


def _short(facts: Facts) -> Finding:
    """Return which voters are not in sync; what was so before stays until they have had time."""
    pods = facts.observed.pods.values()
    if not facts.observed.nodes and any(pod.ready for pod in pods):
        why = "no pod answers the operator's Status calls"
        if _degraded_before(facts) is not None:  # what was wrong is not over because nobody tells
            return "True", Reason.NODES_UNREACHABLE, f"{why}; it was degraded before"
        return "Unknown", Reason.NODES_UNREACHABLE, why
    if not (facts.overdue or _was_short(facts)):
        return "False", Reason.STARTING, _sync_sentence(facts)
    return _out_of_sync(facts)


def _degraded_before(facts: Facts) -> str | None:
    """Return by what reason the group was degraded when its status was written; None if not."""
    rows = facts.group.status.get("conditions") or ()
    told = (r for r in rows if r["type"] == "Degraded" and r["status"] == "True")
    return next((str(row["reason"]) for row in told), None)


def _was_short(facts: Facts) -> bool:
    """Whether what was wrong before had to do with its members: then it is not over yet.

    One that was degraded by a topic or a certificate may restart a pod like any other group.
    """
    before = _degraded_before(facts)
    return before is not None and before not in _NOT_OF_MEMBERS


def _out_of_sync(facts: Facts) -> Finding:
    """Return what the voters lack that are not in sync, or that there are too few."""
    if facts.margin < 0:
        return "True", Reason.MAJORITY_LOST, _sync_sentence(facts)
    members = facts.observed.membership
    cut_off = [row.member.name for row in members if row.voter and not row.connected]
    if any(name in facts.apart for name in cut_off):
        return "True", Reason.MEMBER_NOT_CONNECTED, _sync_sentence(facts)
    if facts.apart:
        return "True", Reason.MEMBER_BEHIND, _sync_sentence(facts)
    return "True", Reason.TOO_FEW_VOTERS, f"{_sync_sentence(facts)}; {_absent_sentence(facts)}"


def _absent_sentence(facts: Facts) -> str:
    """Return who should vote and is no voter, and how many voters are asked for."""
    voters = {row.member.name for row in facts.observed.membership if row.voter}
    absent = [name for name in facts.expected if name not in voters]
    return f"{len(facts.asked)} voters are asked for; not voting: {pods_said(facts, absent)}"


def _sync_sentence(facts: Facts) -> str:
    """Return how many voters are in sync, what that means for writes, and which ones are not."""
    needed = facts.voters // 2 + 1
    if facts.margin < 0:
        meaning = f"{needed} are needed, so writes stopped"
    elif facts.margin == 0:
        meaning = "writes stop if one more is lost"
    else:
        meaning = f"{facts.margin} more may be lost"
    apart = f"; not in sync: {pods_said(facts, facts.apart)}" if facts.apart else ""
    return f"{len(facts.in_sync)} of {facts.voters} voters in sync, {meaning}{apart}"


def _certificates(facts: Facts) -> Finding | None:
    """Return what is wrong with the certificates of the peers; those in use stay meanwhile."""
    seen = facts.observed.certificates
    if seen.expiring:
        return "True", Reason.CERTIFICATE_EXPIRING, seen.expiring
    if seen.fault:
        sentence = f"spec.peerTls.caSecretName: {seen.fault}; the certificates in use stay"
        return "True", Reason.AUTHORITY_INVALID, sentence
    return None


def _client_certificates(facts: Facts, now: str) -> Finding | None:
    """Return what is wrong with the certificate of `spec.tls`, as each node says of its files."""
    nodes = facts.observed.nodes.items()
    faults = {name: node.client_certificate_fault for name, node in nodes}
    if faults := {name: fault for name, fault in faults.items() if fault}:
        sentence = f"spec.tls.secretName: {each_said(faults)}"
        return "True", Reason.CLIENT_CERTIFICATE_REFUSED, sentence
    now_ms = datetime.fromisoformat(now).timestamp() * 1000
    soon = {
        name: _day_of(node.client_certificate_ends_ms)
        for name, node in nodes
        if 0 < node.client_certificate_ends_ms < now_ms + _renewed_before_ms(node)
    }
    if not soon:
        return None
    sentence = f"spec.tls.secretName: {each_said(soon, 'shows a certificate that ends on')}"
    return "True", Reason.CLIENT_CERTIFICATE_EXPIRING, sentence


def _renewed_before_ms(node: NodeStatus) -> float:
    """Return how long before its end a certificate is renewed at the latest; two weeks at most."""
    life_ms = node.client_certificate_ends_ms - node.client_certificate_begins_ms
    return min(EXPIRING_S * 1000, life_ms / 5)


def _day_of(unix_ms: int) -> str:
    return datetime.fromtimestamp(unix_ms / 1000, UTC).strftime("%Y-%m-%d")


def _clocks(facts: Facts) -> Finding | None:
    """Return whose wall clock is apart from the group's date, as each node says of itself."""
    apart = {
        name: f"its clock is {_time_said(node.clock_apart_ms)} "
        f"{'ahead of' if node.clock_ahead_ms else 'behind'} the group's date"
        for name, node in facts.observed.nodes.items()
        if node.clock_apart_ms > CLOCK_APART_MS
    }
    if not apart:
        return None
    return "True", Reason.CLOCK_APART, each_said(apart)


def _waiting(facts: Facts) -> Finding | None:
    """Return that messages of the group that was backed up wait for a word here."""
    count = max((node.held_waiting for node in facts.observed.nodes.values()), default=0)
    if not count:
        return None
    sentence = (
        f"{count} messages that were to be delivered later, or are of open transactions, wait "
        "since the restore, as spec.bootstrap.recovery.held says: `dledger held resume --fire` "
        "goes on with them, --drop never delivers them"
    )
    return "True", Reason.RESTORED_MESSAGES_WAIT, sentence


def _time_said(ms: int) -> str:
    """Return a time in words that do not change each second: in its largest unit, rounded down."""
    for unit, unit_ms in (("days", 86_400_000), ("hours", 3_600_000), ("minutes", 60_000)):
        if ms >= 2 * unit_ms:
            return f"{ms // unit_ms} {unit}"
    return f"{ms // 1000} s"


def _overdue(facts: Facts, now: str) -> Finding:
    if late := late_sentence(facts, now):
        return "True", Reason.DEADLINE_EXCEEDED, late
    return "False", Reason.AS_EXPECTED, "nothing is known to be wrong"


def late_sentence(facts: Facts, now: str) -> str:
    """Return what has not been ready for longer than it should take; empty if nothing."""
    rows = facts.group.status.get("conditions") or ()
    ready = next((row for row in rows if row["type"] == "Ready"), None)
    lagging = [name for name in not_ready(facts) if not is_catching_up(facts, name)]
    if ready is None or ready["status"] == "True" or not lagging:
        return ""
    if blocks_nodes(facts.recovery) or facts.group.spec.paused:
        return ""
    since = str(ready["lastTransitionTime"])
    if seconds_between(since, now) < DEADLINE_S:
        return ""
    return f"not ready since {since}: {pods_said(facts, lagging)}"

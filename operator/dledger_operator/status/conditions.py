"""The conditions of a BrokerGroup, one function each. Pure; used by `status`.

The reasons are those of `api/reasons.py`; docs/operator.md explains them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dledger_operator.api import names
from dledger_operator.api.reasons import Reason
from dledger_operator.api.spec import BrokerGroup, Manifest
from dledger_operator.decisions.bootstrap_state import (
    Bootstrapped,
    BootstrapState,
    Cloned,
    Empty,
    Inconsistent,
    Lost,
    NotRestored,
    Waiting,
    bootstrap_state,
)
from dledger_operator.decisions.checks import Problem, problems, verdict
from dledger_operator.decisions.recovery import (
    Recovery,
    RestoreFailed,
    Restoring,
    blocks_nodes,
    recovery,
)
from dledger_operator.observed.observed import Observed
from dledger_operator.status.backup_history import backup_ready

Finding = tuple[str, Reason, str]
"""Status (True, False, Unknown), reason and message of a condition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Facts:
    """What the conditions are derived from, computed once."""

    group: BrokerGroup
    observed: Observed
    bootstrap: BootstrapState
    recovery: Recovery
    problems: tuple[Problem, ...]


def conditions(group: BrokerGroup, observed: Observed, *, now: str) -> list[Manifest]:
    """Return all conditions at the time *now* (RFC 3339), without their own times."""
    facts = _Facts(
        group=group,
        observed=observed,
        bootstrap=bootstrap_state(group, observed),
        recovery=recovery(group, observed),
        problems=problems(group, observed),
    )
    return [
        {"type": kind, "status": status, "reason": str(reason), "message": message}
        for kind, (status, reason, message) in (
            ("Available", _available(facts)),
            ("Ready", _ready(facts)),
            ("Progressing", _progressing(facts)),
            ("Degraded", _degraded(facts)),
            ("GroupIDConsistent", _group_id_consistent(facts)),
            ("StorageHealthy", _storage_healthy(facts)),
            ("BackupReady", backup_ready(group, observed, now=now)),
            ("Paused", _paused(facts)),
            ("SpecValid", _spec_valid(facts)),
        )
    ]


def _available(facts: _Facts) -> Finding:
    observed = facts.observed
    if isinstance(facts.bootstrap, Lost):
        return "False", Reason.ALL_DISKS_EMPTY, "every disk is empty although the group was founded"
    if not observed.nodes and any(pod.ready for pod in observed.pods.values()):
        return "Unknown", Reason.NODES_UNREACHABLE, "no pod answers the operator's Status calls"
    if leader := _followed_leader(facts):
        refused = observed.leader[1].writes_refused_reason if observed.leader else ""
        if refused:
            return "False", Reason.WRITES_REFUSED, f"{leader} refuses writes: {refused}"
        return "True", Reason.LEADER_ELECTED, f"{leader} leads and a majority follows it"
    if not facts.group.bootstrapped:
        return "False", Reason.WAITING_FOR_NODES, _waiting_sentence(facts)
    return "False", Reason.NO_LEADER, _leaderless_sentence(facts)


def _followed_leader(facts: _Facts) -> str:
    """Return the leader's name if a majority of the members, itself included, names it."""
    observed = facts.observed
    joined = [node for node in observed.nodes.values() if node.group_id and node.leader_id]
    term = max((node.term for node in joined), default=0)
    newest = [node.leader_id for node in joined if node.term == term]
    for leader_id in set(newest):
        members = len(observed.membership) or facts.group.spec.replicas
        if 2 * newest.count(leader_id) > members:
            return observed.member_names.get(leader_id, leader_id)
    return ""


def _waiting_sentence(facts: _Facts) -> str:
    if blocks_nodes(facts.recovery):
        return "not founded yet: " + _recovery_sentence(facts)
    match facts.bootstrap:
        case Waiting(missing):
            return "not founded yet: no answer from " + _pods(facts, missing)
        case Empty():
            return "no disk is in a group yet; the group is being founded"
        case NotRestored():
            return "not founded: only the first disk should carry a restored log"
        case _:
            return "the nodes have not elected their first leader yet"


def _recovery_sentence(facts: _Facts) -> str:
    match facts.recovery:
        case RestoreFailed(error):
            return f"the first volume could not be restored: {error}"
        case Restoring(note) if note:
            return f"the first volume is being restored ({note})"
        case _:
            return "the first volume is being restored"


def _leaderless_sentence(facts: _Facts) -> str:
    wanted = _wanted(facts)
    silent = [name for name in wanted if name not in facts.observed.nodes]
    if not silent:
        return "all nodes answer, and no majority follows one leader"
    return "no majority follows one leader; no answer from " + _pods(facts, silent)


def _ready(facts: _Facts) -> Finding:
    pods = facts.observed.pods
    lagging = [n for n in _wanted(facts) if n not in pods or not pods[n].ready]
    if not lagging:
        return "True", Reason.ALL_REPLICAS_READY, f"{len(pods)} of {len(pods)} replicas are ready"
    return "False", Reason.REPLICAS_NOT_READY, "not ready: " + _pods(facts, lagging)


def _progressing(facts: _Facts) -> Finding:
    held_up = facts.problems or facts.observed.refusals or isinstance(facts.recovery, RestoreFailed)
    if held_up or isinstance(facts.bootstrap, Inconsistent | Lost | Cloned | NotRestored):
        return "False", Reason.BLOCKED, "see SpecValid, Degraded and GroupIDConsistent"
    if blocks_nodes(facts.recovery):
        return "True", Reason.RECOVERING, _recovery_sentence(facts)
    if absent := _absent(facts):
        return "True", Reason.CREATING, "to be created: " + ", ".join(absent)
    if not facts.group.bootstrapped and not _followed_leader(facts):
        return "True", Reason.FOUNDING, _waiting_sentence(facts)
    return _settling(facts) or ("False", Reason.COMPLETE, "all that the spec asks for was made")


def _absent(facts: _Facts) -> list[str]:
    present = facts.observed.children
    wanted = names.children(facts.group.name, facts.group.spec.replicas)
    children = [f"{kind} {name}" for kind, name in wanted if (kind, name) not in present]
    return children + [f"Pod {n}" for n in _wanted(facts) if n not in facts.observed.pods]


def _settling(facts: _Facts) -> Finding | None:
    if isinstance(facts.bootstrap, Bootstrapped) and facts.bootstrap.joining:
        return "True", Reason.JOINING, "joining: " + ", ".join(facts.bootstrap.joining)
    if old := _older_template(facts):
        sentence = "run an older template; delete them one at a time, the leader last"
        return "True", Reason.RESTART_PENDING, f"{', '.join(old)} {sentence}"
    topics = facts.observed.topics
    wanted = {topic.name for topic in facts.group.spec.topics}
    if topics is not None and (pending := wanted - topics):
        return "True", Reason.TOPICS_PENDING, "to be created: " + ", ".join(sorted(pending))
    return None


def _older_template(facts: _Facts) -> list[str]:
    built = facts.observed.children.get(("StatefulSet", facts.group.name), {})
    newest = built.get("status", {}).get("updateRevision")
    pods = facts.observed.pods.values()
    return sorted(p.name for p in pods if newest and p.revision not in ("", newest))


def _degraded(facts: _Facts) -> Finding:
    if isinstance(facts.recovery, RestoreFailed):
        return "True", Reason.RECOVERY_FAILED, _recovery_sentence(facts)
    if found := _broken_founding(facts) or _bad_pods(facts):
        return found
    if refusals := facts.observed.refusals:
        topics_only = all(kind == "Topic" for kind, _ in refusals)
        reason = Reason.TOPIC_REFUSED if topics_only else Reason.APPLY_REFUSED
        return "True", reason, "; ".join(f"{k} {n}: {why}" for (k, n), why in refusals.items())
    if apart := _not_connected(facts):
        return (
            "True",
            Reason.MEMBER_NOT_CONNECTED,
            "the leader does not reach " + _pods(facts, apart),
        )
    return "False", Reason.AS_EXPECTED, "nothing is known to be wrong"


def _broken_founding(facts: _Facts) -> Finding | None:
    match facts.bootstrap:
        case Lost():
            return "True", Reason.ALL_DISKS_EMPTY, "every disk is empty; nothing is founded again"
        case NotRestored(restored):
            return "True", Reason.NOT_RESTORED, _unrestored_sentence(facts, restored)
        case Cloned(pods):
            return "True", Reason.DUPLICATE_NODE_ID, f"one node id on {', '.join(pods)}"
        case Bootstrapped(replaced=replaced) if replaced:
            return (
                "True",
                Reason.MEMBER_REPLACED_BY_EMPTY_DISK,
                (f"{', '.join(replaced)} came up with an empty disk and takes no part"),
            )
    return None


def _bad_pods(facts: _Facts) -> Finding | None:
    """Return what is wrong with the programs in the pods."""
    too_old = {name: pod.too_old for name, pod in facts.observed.pods.items() if pod.too_old}
    if too_old:
        return "True", Reason.MEMBER_TOO_OLD, _each(too_old)
    if facts.observed.disbelieved:
        return "True", Reason.STATUS_NOT_BELIEVED, _each(facts.observed.disbelieved)
    return None


def _each(words: Mapping[str, str]) -> str:
    return "; ".join(f"{name}: {said}" for name, said in sorted(words.items()))


def _unrestored_sentence(facts: _Facts, restored: Sequence[str]) -> str:
    first = names.pod(facts.group.name, 0)
    carrying = f"{', '.join(restored)} carry one" if restored else "no disk does"
    return f"{first} alone should carry a restored log, but {carrying}; nothing is founded"


def _not_connected(facts: _Facts) -> list[str]:
    leader = facts.observed.leader
    joining = facts.bootstrap.joining if isinstance(facts.bootstrap, Bootstrapped) else ()
    if leader is None:
        return []
    apart = [row.member.name for row in leader[1].members if not row.connected]
    return [name for name in apart if name not in (leader[0], *joining)]


def _group_id_consistent(facts: _Facts) -> Finding:
    match facts.bootstrap:
        case Inconsistent(ids):
            rows = ", ".join(f"{pod} carries {group_id}" for pod, group_id in sorted(ids.items()))
            recorded = facts.group.group_id or "no id"
            return "False", Reason.GROUP_ID_MISMATCH, f"the status records {recorded}; {rows}"
        case Bootstrapped():
            return "True", Reason.ONE_GROUP_ID, f"every volume carries {facts.group.group_id}"
        case _ if facts.group.bootstrapped:
            return "Unknown", Reason.NODES_UNREACHABLE, "no node answers"
        case _:
            return "Unknown", Reason.NOT_FOUNDED, "no volume is known to carry the group's id"


def _storage_healthy(facts: _Facts) -> Finding:
    nodes = sorted(facts.observed.nodes.items())
    refusing = [
        f"{name}: {n.writes_refused_reason}" for name, n in nodes if n.writes_refused_reason
    ]
    if refusing:
        return "False", Reason.WRITES_REFUSED, "; ".join(refusing)
    volumes = facts.observed.volumes
    claims = [names.claim(facts.group.name, n) for n in range(len(_wanted(facts)))]
    pending = [c for c in claims if c not in volumes or volumes[c].phase != "Bound"]
    if pending:
        return "Unknown", Reason.VOLUMES_PENDING, "not bound yet: " + ", ".join(pending)
    return "True", Reason.VOLUMES_BOUND, "every volume is bound and no node refuses writes"


def _paused(facts: _Facts) -> Finding:
    if facts.group.spec.paused:
        return "True", Reason.PAUSED_BY_USER, "spec.paused is set: the operator changes nothing"
    return "False", Reason.NOT_PAUSED, "the operator acts"


def _spec_valid(facts: _Facts) -> Finding:
    said = verdict(facts.problems)
    return "False" if facts.problems else "True", said.reason, said.message


def _wanted(facts: _Facts) -> list[str]:
    """Return the pods there should be: as built, since changing their number is refused."""
    built = facts.observed.children.get(("StatefulSet", facts.group.name))
    count = built["spec"].get("replicas", 1) if built else facts.group.spec.replicas
    return [names.pod(facts.group.name, n) for n in range(count)]


def _pods(facts: _Facts, wanted: Iterable[str]) -> str:
    return ", ".join(_pod(facts, name) for name in wanted)


def _pod(facts: _Facts, name: str) -> str:
    pod, node = facts.observed.pods.get(name), facts.observed.nodes.get(name)
    if pod is None:
        return f"{name} (no pod)"
    said = facts.observed.disbelieved.get(name, "") or (node.not_ready_reason if node else "")
    why = pod.trouble or said
    return f"{name} ({why})" if why else name

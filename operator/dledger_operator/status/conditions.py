"""The conditions of a BrokerGroup, one function each. Pure; used by `status`.

The reasons are those of `api/reasons.py`; docs/catalogue.yaml explains them.
"""

from __future__ import annotations

from dledger_operator.api import names
from dledger_operator.api.reasons import Reason
from dledger_operator.api.spec import Manifest
from dledger_operator.decisions.bootstrap_state import (
    Bootstrapped,
    Cloned,
    Empty,
    Inconsistent,
    Lost,
    NotRestored,
    Waiting,
)
from dledger_operator.decisions.checks import too_little_storage, verdict
from dledger_operator.decisions.disruptions import Held, RestartPod, TransferLeader
from dledger_operator.decisions.facts import Facts
from dledger_operator.decisions.growth import growing
from dledger_operator.decisions.membership import learning, replacement
from dledger_operator.decisions.recovery import RestoreFailed, blocks_nodes
from dledger_operator.decisions.rollout import coming_up, halted, healing, is_rolling, rollout
from dledger_operator.decisions.topics import dropped_topics, unlike
from dledger_operator.status.backup_history import backup_ready
from dledger_operator.status.compaction_history import compaction_ready
from dledger_operator.status.degraded import degraded, late_sentence
from dledger_operator.status.findings import (
    Finding,
    each_said,
    not_ready,
    pods_said,
    recovery_sentence,
)
from dledger_operator.status.scaling_status import scaling_progress


def conditions(facts: Facts, *, now: str) -> list[Manifest]:
    """Return all conditions at the time *now* (RFC 3339), without their own times."""
    return [
        {"type": kind, "status": status, "reason": str(reason), "message": message}
        for kind, (status, reason, message) in (
            ("Available", _available(facts)),
            ("Ready", _ready(facts)),
            ("Progressing", _progressing(facts, now)),
            ("Degraded", degraded(facts, now)),
            ("GroupIDConsistent", _group_id_consistent(facts)),
            ("StorageHealthy", _storage_healthy(facts)),
            ("BackupReady", backup_ready(facts.group, facts.observed, now=now)),
            ("CompactionReady", compaction_ready(facts.group, facts.observed, now=now)),
            ("Paused", _paused(facts)),
            ("SpecValid", _spec_valid(facts)),
        )
    ]


def _available(facts: Facts) -> Finding:
    observed = facts.observed
    if isinstance(facts.bootstrap, Lost):
        return "False", Reason.ALL_DISKS_EMPTY, "every disk is empty although the group was founded"
    if not observed.nodes and any(pod.ready for pod in observed.pods.values()):
        return "Unknown", Reason.NODES_UNREACHABLE, "no pod answers the operator's Status calls"
    if leader := facts.leader:
        refused = observed.leader[1].writes_refused_reason if observed.leader else ""
        if refused:
            return "False", Reason.WRITES_REFUSED, f"{leader} refuses writes: {refused}"
        return "True", Reason.LEADER_ELECTED, f"{leader} leads and a majority follows it"
    if not facts.group.bootstrapped:
        return "False", Reason.WAITING_FOR_NODES, _waiting_sentence(facts)
    return "False", Reason.NO_LEADER, _leaderless_sentence(facts)


def _waiting_sentence(facts: Facts) -> str:
    if blocks_nodes(facts.recovery):
        return "not founded yet: " + recovery_sentence(facts)
    match facts.bootstrap:
        case Waiting(missing):
            return "not founded yet: no answer from " + pods_said(facts, missing)
        case Empty():
            return "no disk is in a group yet; the group is being founded"
        case NotRestored():
            return "not founded: only the first disk should carry a restored log"
        case _:
            return "the nodes have not elected their first leader yet"


def _leaderless_sentence(facts: Facts) -> str:
    wanted = facts.wanted
    silent = [name for name in wanted if name not in facts.observed.nodes]
    if not silent:
        return "all nodes answer, and no majority follows one leader"
    return "no majority follows one leader; no answer from " + pods_said(facts, silent)


def _ready(facts: Facts) -> Finding:
    if lagging := not_ready(facts):
        return "False", Reason.REPLICAS_NOT_READY, "not ready: " + pods_said(facts, lagging)
    count = len(facts.asked)
    ready = f"{count} of {count} replicas are ready"
    if crowded := _crowded(facts):
        return "True", Reason.ONE_HOST_CARRIES_MAJORITY, f"{ready}; {crowded}"
    return "True", Reason.ALL_REPLICAS_READY, ready


def _crowded(facts: Facts) -> str:
    """Return which machine's loss would stop writes; empty if none's, or if there is one pod."""
    hosts: dict[str, list[str]] = {}
    for name in facts.asked:
        pod = facts.observed.pods.get(name)
        if pod is not None and pod.host:
            hosts.setdefault(pod.host, []).append(name)
    for host, pods in sorted(hosts.items()):
        if 1 < len(facts.asked) < 2 * len(pods):
            return f"machine {host} carries {', '.join(pods)}: writes stop if it is lost"
    return ""


def _progressing(facts: Facts, now: str) -> Finding:
    held_up = facts.problems or facts.observed.refusals or isinstance(facts.recovery, RestoreFailed)
    if held_up or isinstance(facts.bootstrap, Inconsistent | Lost | Cloned | NotRestored):
        return "False", Reason.BLOCKED, "see SpecValid, Degraded and GroupIDConsistent"
    if found := scaling_progress(facts) or _rolling_out(facts, now) or _late_progress(facts, now):
        return found
    if blocks_nodes(facts.recovery):
        return "True", Reason.RECOVERING, recovery_sentence(facts)
    if absent := _absent(facts):
        return "True", Reason.CREATING, "to be created: " + ", ".join(absent)
    if not facts.group.bootstrapped and not facts.leader:
        return "True", Reason.FOUNDING, _waiting_sentence(facts)
    return _settling(facts) or ("False", Reason.COMPLETE, "all that the spec asks for was made")


def _absent(facts: Facts) -> list[str]:
    present = facts.observed.children
    wanted = names.children(facts.group.name, facts.group.pods)
    children = [f"{kind} {name}" for kind, name in wanted if (kind, name) not in present]
    refused = facts.observed.uncreated
    absent = (name for name in facts.wanted if name not in facts.observed.pods)
    return children + [f"Pod {n}" + (f" ({refused[n]})" if n in refused else "") for n in absent]


def _settling(facts: Facts) -> Finding | None:
    if joining := _joining(facts):
        return "True", Reason.JOINING, "joining: " + ", ".join(joining)
    if lagging := not_ready(facts):
        return "True", Reason.STARTING, "not ready yet: " + pods_said(facts, lagging)
    if volumes := growing(facts.group, facts.observed):
        size = facts.group.spec.storage.size
        return "True", Reason.GROWING, f"volumes are growing to {size}: {', '.join(volumes)}"
    if pending := _topics_pending(facts):
        return "True", Reason.TOPICS_PENDING, pending
    return None


def _topics_pending(facts: Facts) -> str:
    """Return which topics are not as the spec has them; empty if none, or if none is known."""
    seen = facts.observed.topics
    if seen is None:
        return ""
    wanted = sorted(facts.group.spec.topics, key=lambda topic: topic.name)
    absent = [topic.name for topic in wanted if topic.name not in seen]
    few = [
        f"{topic.name} ({seen[topic.name].queues} of {topic.queues})"
        for topic in wanted
        if topic.name in seen and seen[topic.name].queues < topic.queues
    ]
    other = [
        topic.name
        for topic in wanted
        if topic.name in seen and unlike(topic, seen[topic.name]) is not None
    ]
    sentences = (
        ("to be created: ", absent),
        ("to be given more queues: ", few),
        ("to be given another retention: ", other),
        ("to be deleted: ", dropped_topics(facts.group, seen)),
    )
    return "; ".join(verb + ", ".join(which) for verb, which in sentences if which)


def _joining(facts: Facts) -> list[str]:
    """Return the pods that become members: let in by the leader, about to be, or learning."""
    joining = facts.bootstrap.joining if isinstance(facts.bootstrap, Bootstrapped) else ()
    wanted = replacement(facts)
    replaced = () if wanted is None or isinstance(wanted, Held) else (wanted.pod,)
    return sorted({*joining, *replaced, *learning(facts)})


def _late_progress(facts: Facts, now: str) -> Finding | None:
    late = late_sentence(facts, now)
    return ("False", Reason.DEADLINE_EXCEEDED, late) if late else None


def _rolling_out(facts: Facts, now: str) -> Finding | None:
    """Return how far a rollout is, and what it waits for; None without one."""
    if not is_rolling(facts):
        return None
    done = [n for n in facts.wanted if n in facts.observed.pods and n not in facts.older]
    sentence = f"{len(done)} of {len(facts.wanted)} pods run the new template"
    if why := halted(facts, now):
        held = f"{sentence}; no other is restarted: {why}"
        return "False", Reason.ROLLOUT_HALTED, held
    wanted = healing(facts) or rollout(facts)
    if isinstance(wanted, Held) and wanted.why == facts.turn:
        return "True", Reason.WAITING_FOR_TURN, f"{sentence}; {facts.turn}"
    if isinstance(wanted, Held):
        sentence += f"; next {wanted.pod}, which waits: {wanted.why}"
    elif isinstance(wanted, TransferLeader):
        sentence += f"; next {wanted.leader}, after it handed over"
    elif isinstance(wanted, RestartPod):
        sentence += f"; next {wanted.pod}"
    else:
        sentence += f"; not ready yet: {pods_said(facts, coming_up(facts))}"
    return "True", Reason.ROLLING_OUT, sentence


def _group_id_consistent(facts: Facts) -> Finding:
    match facts.bootstrap:
        case Inconsistent(ids):
            rows = ", ".join(f"{pod} carries {group_id}" for pod, group_id in sorted(ids.items()))
            recorded = facts.group.group_id or "no id"
            return "False", Reason.GROUP_ID_MISMATCH, f"the status records {recorded}; {rows}"
        case Waiting(carried=carried) if carried:
            return "Unknown", Reason.NOT_FOUNDED, each_said(carried, "carries group")
        case Bootstrapped():
            return "True", Reason.ONE_GROUP_ID, f"every volume carries {facts.group.group_id}"
        case _ if facts.group.bootstrapped:
            return "Unknown", Reason.NODES_UNREACHABLE, "no node answers"
        case _:
            return "Unknown", Reason.NOT_FOUNDED, "no volume is known to carry the group's id"


def _storage_healthy(facts: Facts) -> Finding:
    nodes = sorted(facts.observed.nodes.items())
    refusing = [
        f"{name}: {n.writes_refused_reason}" for name, n in nodes if n.writes_refused_reason
    ]
    if refusing:
        return "False", Reason.WRITES_REFUSED, "; ".join(refusing)
    if foreign := facts.observed.foreign:
        return "False", Reason.FOREIGN_VOLUME, each_said(foreign, "is")
    older = {name: node.older_copy for name, node in nodes if node.older_copy}
    if older:
        return "False", Reason.OLDER_COPY, each_said(older, "has an older disk:")
    if said := too_little_storage(facts.group):
        return "False", Reason.VOLUMES_TOO_SMALL, said
    volumes = facts.observed.volumes
    claims = [names.claim(facts.group.name, n) for n in range(len(facts.wanted))]
    pending = [c for c in claims if c not in volumes or volumes[c].phase != "Bound"]
    if pending:
        return "Unknown", Reason.VOLUMES_PENDING, "not bound yet: " + ", ".join(pending)
    return "True", Reason.VOLUMES_BOUND, "every volume is bound and no node refuses writes"


def _paused(facts: Facts) -> Finding:
    if facts.group.spec.paused:
        return "True", Reason.PAUSED_BY_USER, "spec.paused is set: the operator changes nothing"
    return "False", Reason.NOT_PAUSED, "the operator acts"


def _spec_valid(facts: Facts) -> Finding:
    said = verdict(facts.problems)
    return "False" if facts.problems else "True", said.reason, said.message

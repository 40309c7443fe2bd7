"""Names, labels and ports of a group's children. Pure; used by every other part of the operator.

They never change: users' own manifests refer to them, and children are found again by them.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

API_GROUP: Final = "dledger.io"
API_VERSION: Final = f"{API_GROUP}/v1"
KIND: Final = "BrokerGroup"
PLURAL: Final = "brokergroups"
BACKUP_KIND: Final = "BrokerBackup"
BACKUP_PLURAL: Final = "brokerbackups"
OPERATION_KIND: Final = "BrokerOperation"
OPERATION_PLURAL: Final = "brokeroperations"
MANAGER: Final = "dledger-operator"
"""Field manager of server-side apply, value of the managed-by label, and name of the Lease."""

GROUP_LABEL: Final = f"{API_GROUP}/group"
ROLE_LABEL: Final = f"{API_GROUP}/role"
ZONE_LABEL: Final = "topology.kubernetes.io/zone"
HOST_LABEL: Final = "kubernetes.io/hostname"
HASH_ANNOTATION: Final = f"{API_GROUP}/desired-hash"
SPEC_ANNOTATION: Final = f"{API_GROUP}/spec-hash"
"""On pods and their template: the hash of what of the spec they are made from."""
PODS_ANNOTATION: Final = f"{API_GROUP}/pods"
"""On the StatefulSet: how many pods the operator asked for, as against what others scale it to."""
USERS_ANNOTATION: Final = f"{API_GROUP}/users"
"""On pods of Spark whose user its image does not know: what they have as /etc/passwd."""
REMOVED_ANNOTATION: Final = f"{API_GROUP}/removed-member"
"""On a volume claim: the node id of its disk, which left the group or is about to."""
OPERATOR_ANNOTATION: Final = f"{API_GROUP}/operator"
"""On a BrokerGroup: namespace and name of the operator that is to act on it, by its Lease."""
RESTARTED_AT: Final = "kubectl.kubernetes.io/restartedAt"
"""What ``kubectl rollout restart`` writes to a template, and Kubernetes to the pods made of it."""
TURN_ANNOTATION: Final = f"{API_GROUP}/rollout-turn"
"""On a BrokerGroup, by its user: with ``none`` its rollouts neither wait for others' nor hold them
up."""
JOB_LABEL: Final = "batch.kubernetes.io/job-name"
COMPONENT_LABEL: Final = "app.kubernetes.io/component"
SCHEDULED_ANNOTATION: Final = f"{API_GROUP}/scheduled-at"
"""On a BrokerBackup or BrokerOperation that a schedule made: the time it was made for."""
BACKUP_JOBS: Final = "backup"
COMPACTION_JOBS: Final = "compaction"
RECOVERY_JOBS: Final = "recovery"
"""Components of Jobs, their pods and executors."""
RECOVERY_ANNOTATION: Final = f"{API_GROUP}/recovery"
"""On the first volume claim of a group that starts from a backup: ``pending``, then ``done``."""

CLIENT_PORT: Final = 8081
CLIENT_TLS_PORT: Final = 8082
PEER_PORT: Final = 20911
REPLICATION_PORT: Final = 20912
HTTP_PORT: Final = 8080
DRIVER_PORT: Final = 7078
BLOCK_MANAGER_PORT: Final = 7079
"""Spark's own choice on Kubernetes; fixed, so that a NetworkPolicy can name them."""

MANAGED_SELECTOR: Final = f"app.kubernetes.io/managed-by={MANAGER},{GROUP_LABEL}"
"""Label selector of everything the operator watches besides its own kinds."""

_LONGEST_LABEL: Final = 63
"""Kubernetes' limit for the value of a label; a Job's name labels its pods."""
MOST_REPLICAS: Final = 9
"""A StatefulSet of ours has no more."""
_ORDINAL: Final = re.compile(r"[0-9]{1,2}")


def pod(group: str, ordinal: int) -> str:
    """Return the name of a replica, which is also its name as a Raft member."""
    return f"{group}-{ordinal}"


def is_replica(group: str, pod_name: str) -> bool:
    """Whether a pod has the name of a replica; anybody can put a group's labels on a pod."""
    ordinal = pod_name.removeprefix(f"{group}-")
    return pod_name == pod(group, int(ordinal)) if _ORDINAL.fullmatch(ordinal) else False


def ordinal(group: str, pod_name: str) -> int:
    """Return the ordinal of a replica; -1 for a name that no replica can have."""
    if not is_replica(group, pod_name):
        return -1
    found = int(pod_name.removeprefix(f"{group}-"))
    return found if found < MOST_REPLICAS else -1


def claim(group: str, ordinal: int) -> str:
    """Return the name of a replica's PersistentVolumeClaim."""
    return claim_of(pod(group, ordinal))


def claim_of(pod_name: str) -> str:
    """Return the name of the PersistentVolumeClaim of the replica with that name."""
    return f"data-{pod_name}"


def is_claim_of(group: str, name: str) -> bool:
    """Whether a PersistentVolumeClaim has the name of a replica's, of whatever ordinal."""
    return re.fullmatch(rf"data-{re.escape(group)}-[0-9]+", name) is not None


def is_claim_of_any(name: str) -> bool:
    """Whether a PersistentVolumeClaim has the name of a replica's, of whatever group.

    The chart's admission policy asks the same of the claims that Jobs mount.
    """
    return re.fullmatch(r"data-.+-[0-9]+", name) is not None


def config_map(group: str) -> str:
    """Return the name of the ConfigMap with node.toml."""
    return f"{group}-config"


def authority(group: str) -> str:
    """Return the name of the Secret with the keys of the peers' authorities: the operator's own."""
    return f"{group}-ca"


def peer_tls(group: str) -> str:
    """Return the name of the Secret with the certificates of all members, which they mount."""
    return f"{group}-peer-tls"


def backup_tls(group: str) -> str:
    """Return the name of the Secret with the certificate of backups."""
    return f"{group}-backup-tls"


def compactor_tls(group: str) -> str:
    """Return the name of the Secret with the certificate of rounds of compaction."""
    return f"{group}-compactor-tls"


def admin_tls(group: str) -> str:
    """Return the name of the Secret with a certificate for people at the command line."""
    return f"{group}-admin-tls"


def own_secrets(group: str) -> tuple[str, ...]:
    """Return the names of a group's Secrets, in the order that they are written."""
    others = backup_tls(group), compactor_tls(group), admin_tls(group)
    return authority(group), peer_tls(group), *others


def peer_host(namespace: str, group: str, pod_name: str) -> str:
    """Return the name of a replica's address among its peers."""
    return f"{pod_name}.{peer_domain(namespace, group)}"


def peer_domain(namespace: str, group: str) -> str:
    """Return the domain of a group's replicas among their peers."""
    return f"{nodes_service(group)}.{namespace}.svc"


def leader_service(group: str) -> str:
    """Return the name of the Service that has only the leader behind it."""
    return f"{group}-leader"


def nodes_service(group: str) -> str:
    """Return the name of the headless Service that names each pod."""
    return f"{group}-nodes"


def pod_service(group: str, ordinal: int) -> str:
    """Return the name of the Service that gives one replica an address of its own."""
    return f"{pod(group, ordinal)}-client"


def accepted(group: str, digest: str) -> str:
    """Return the name of the ControllerRevision that keeps an accepted spec with this hash."""
    return f"{group}-accepted-{digest}"


def children(group: str, pods: int) -> tuple[tuple[str, str], ...]:
    """Return kind and name of every child, in the order they are applied."""
    return (
        ("ConfigMap", config_map(group)),
        ("Service", nodes_service(group)),
        ("Service", group),
        ("Service", leader_service(group)),
        *(("Service", pod_service(group, ordinal)) for ordinal in range(pods)),
        ("PodDisruptionBudget", group),
        ("NetworkPolicy", group),
        ("NetworkPolicy", job_policy(group)),
        ("StatefulSet", group),
    )


def peer_address(namespace: str, group: str, pod_name: str) -> str:
    """Return ``host:port`` of a replica's peer and Admin port, as its membership records it."""
    return f"{peer_host(namespace, group, pod_name)}:{PEER_PORT}"


def selector(group: str) -> dict[str, str]:
    """Return the labels that select a group's pods; they can never change."""
    return {
        "app.kubernetes.io/name": "dledger",
        COMPONENT_LABEL: "node",
        GROUP_LABEL: group,
    }


def labels(group: str) -> dict[str, str]:
    """Return the labels of every child."""
    return {
        **selector(group),
        "app.kubernetes.io/instance": group,
        "app.kubernetes.io/managed-by": MANAGER,
    }


def backup_access(uid: str) -> str:
    """Return the name of what the Spark drivers of a group run as: account, binding, policy.

    Named after the uid of the BrokerGroup, not after its name, which its user chose: someone else's
    account may be called ``orders-backup``, and the driver would run with its rights.
    """
    return f"dledger-{uid[:8]}-backup"


def job_policy(group: str) -> str:
    """Return the name of the NetworkPolicy that closes the pods of Jobs to all but scrapes."""
    return f"{group}-jobs"


def backup_job(backup: str) -> str:
    """Return the name of a BrokerBackup's Job; a long one is shortened, since it labels pods."""
    return _shortened(backup, suffix="-backup")


def compaction_job(operation: str) -> str:
    """Return the name of the Job of a BrokerOperation that compacts; shortened as a backup's."""
    return _shortened(operation, suffix="-compaction")


def recovery_job(group: str) -> str:
    """Return the name of the Job that restores the first volume of a group."""
    return f"{group}-recovery"


def scheduled_backup(group: str, minute: int) -> str:
    """Return the name of the BrokerBackup for a time of the schedule, in Unix minutes."""
    return f"{group}-{minute}"


def scheduled_round(group: str, minute: int) -> str:
    """Return the name of the BrokerOperation for a time of the schedule, in Unix minutes."""
    return f"{group}-compaction-{minute}"


def job_selector(group: str, component: str) -> dict[str, str]:
    """Return the labels of the pods of a group's Jobs of one kind, executors included."""
    return {**selector(group), COMPONENT_LABEL: component}


def job_labels(group: str, component: str) -> dict[str, str]:
    """Return the labels of a group's Jobs of one kind and of their own pods."""
    return {**labels(group), COMPONENT_LABEL: component}


def _shortened(name: str, *, suffix: str) -> str:
    room = _LONGEST_LABEL - len(suffix)
    if len(name) <= room:
        return name + suffix
    return f"{name[: room - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}{suffix}"

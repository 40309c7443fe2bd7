"""What a Spark driver with executor pods needs besides its Job: rights and a pod template. Pure.

The driver may do with pods of its namespace what Spark does, and nothing else: Spark's use of
ConfigMaps, Services and claims is turned off. Executors have no rights. The chart's Role for
drivers has the rights and is bound here (docs/adr/0022).
"""

from __future__ import annotations

import json
from typing import Any, Final

from dledger_operator.api import names
from dledger_operator.api.spec import BrokerGroup, Manifest, Store
from dledger_operator.resources.certificates import (
    DIRECTORY_ENV,
    backup_volumes,
    job_mounts,
)
from dledger_operator.resources.common import Owner, hashed, metadata, owned_by
from dledger_operator.resources.networkpolicy import driver_policy
from dledger_operator.resources.pipeline import KEYS, REGION, heap_mib, memory_mib, verbatim
from dledger_operator.resources.pods import (
    CONTAINER_SECURITY,
    TMP_DIR,
    TMP_MOUNT,
    TMP_VOLUME,
    Place,
    from_secret,
    named_user,
    pod_template,
)

TEMPLATE_DIR: Final = "/etc/dledger-spark"
_TEMPLATE: Final = "executor.json"
_RBAC: Final = "rbac.authorization.k8s.io"


def access(group: BrokerGroup) -> tuple[Manifest, ...]:
    """Return what the Spark drivers of a group run as, in the order to apply it."""
    name, role = names.backup_access(group.uid), group.policy.driver_role
    account = {"kind": "ServiceAccount", "name": name, "namespace": group.namespace}
    manifests: tuple[Manifest, ...] = (
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": metadata(group, name),
            "automountServiceAccountToken": False,
        },
        {
            "apiVersion": f"{_RBAC}/v1",
            "kind": "RoleBinding",
            "metadata": metadata(group, name),
            "roleRef": {"apiGroup": _RBAC, "kind": role.kind, "name": role.name},
            "subjects": [account],
        },
        driver_policy(group, name),
    )
    return tuple(hashed(manifest) for manifest in manifests)


def executor_template(
    owner: Owner, group: BrokerGroup, *, name: str, component: str, store: Store
) -> Manifest:
    """Return the ConfigMap with the pod that Spark makes executors from.

    Executors only read: those of a round of compaction, too, show nodes a backup's certificate.
    """
    pod = {"apiVersion": "v1", "kind": "Pod", **_executor(group, component, store)}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": owned_by(owner, name, names.job_labels(group.name, component)),
        "immutable": True,
        "data": {_TEMPLATE: json.dumps(pod, indent=1, sort_keys=True)},
    }


def settings(group: BrokerGroup, *, store: Store, executors: int) -> dict[str, str]:
    """Return Spark's settings for a driver with *executors* pods; 0 for none."""
    heap = heap_mib(group)
    found = {"spark.driver.memory": f"{heap}m", "spark.ui.enabled": "false"}
    if executors:
        found |= _network() | _executors(group, store, executors, heap)
    return dict(sorted(found.items()))


def _network() -> dict[str, str]:
    return {
        "spark.authenticate": "true",
        "spark.driver.host": "$(POD_IP)",
        "spark.driver.bindAddress": "$(POD_IP)",
        "spark.driver.port": str(names.DRIVER_PORT),
        "spark.driver.blockManager.port": str(names.BLOCK_MANAGER_PORT),
        "spark.blockManager.port": str(names.BLOCK_MANAGER_PORT),
    }


def _executors(group: BrokerGroup, store: Store, count: int, heap: int) -> dict[str, str]:
    spark = group.spec.spark
    found = {
        "spark.executor.instances": str(count),
        "spark.executor.cores": str(spark.executors.cores),
        "spark.executor.memory": f"{heap}m",
        "spark.executor.memoryOverhead": f"{memory_mib(group) - heap}m",
        "spark.kubernetes.namespace": group.namespace,
        "spark.kubernetes.container.image": verbatim(spark.image),
        "spark.kubernetes.container.image.pullPolicy": "IfNotPresent",
        "spark.kubernetes.driver.pod.name": "$(POD_NAME)",
        "spark.kubernetes.executor.podTemplateFile": f"{TEMPLATE_DIR}/{_TEMPLATE}",
        # These would take rights on ConfigMaps, Services and claims.
        "spark.kubernetes.executor.disableConfigMap": "true",
        "spark.kubernetes.driver.service.deleteOnTermination": "false",
        "spark.kubernetes.driver.ownPersistentVolumeClaim": "false",
        "spark.kubernetes.driver.reusePersistentVolumeClaim": "false",
    }
    if store.secret_name:
        reference = "spark.kubernetes.executor.secretKeyRef"
        found |= {f"{reference}.{key}": f"{verbatim(store.secret_name)}:{key}" for key in KEYS}
    return found


def _executor(group: BrokerGroup, component: str, store: Store) -> dict[str, Any]:
    """Return metadata and spec of an executor; Spark adds image, resources, command and more."""
    named = named_user(group)
    region = [from_secret(REGION, store.secret_name, optional=True)] if store.secret_name else []
    container = {
        "name": "executor",
        "env": [*region, *(DIRECTORY_ENV if group.has_peer_tls else ())],
        "securityContext": CONTAINER_SECURITY,
        "workingDir": TMP_DIR,
        "volumeMounts": [TMP_MOUNT, *named["mounts"], *job_mounts(group)],
    }
    spec = {
        "serviceAccountName": names.backup_access(group.uid),
        "containers": [container],
        "volumes": [TMP_VOLUME, *named["volumes"], *backup_volumes(group)],
    }
    # Without the label of what the operator watches: Spark looks after executors.
    labels = names.job_selector(group.name, component)
    said = named["annotations"]
    return pod_template(group, Place.JOBS, labels=labels, annotations=said, spec=spec)

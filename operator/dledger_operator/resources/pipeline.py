"""What all Jobs share: the pipeline's container, and how often it is tried. Pure.

The pipeline serves metrics while it runs, and writes its result, or its error, to the file that
becomes the container's termination message; `job_status` reads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from dledger_operator.api import names, quantity
from dledger_operator.api.spec import BrokerGroup, Manifest, Store
from dledger_operator.resources.certificates import DIRECTORY_ENV, job_mounts
from dledger_operator.resources.pods import (
    CONTAINER_SECURITY,
    TMP_DIR,
    TMP_MOUNT,
    TMP_VOLUME,
    from_pod,
    from_secret,
    named_user,
)

KEYS: Final = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
REGION: Final = "AWS_REGION"
"""Keys of a store's Secret and names of the pipeline's variables; the region may be missing."""
MANIFEST_KEY: Final = "DLEDGER_MANIFEST_KEY"
"""May be missing as well. For drivers only: executors read and write no manifest."""

TRIES: Final = 3
"""Enough for a store that is down for a minute; each try waits longer (10 s, 20 s: Kubernetes)."""
FINAL_EXIT_CODES: Final = (1, 2)
"""Failed for good, and wrong usage of the pipeline: another try would not help."""

_STORE_VOLUME: Final = "store"
_RESULT_FILE: Final = "/dev/termination-log"
_REPORTING: Final = ("--metrics-port", str(names.HTTP_PORT), "--result-file", _RESULT_FILE)
_MIB: Final = 1 << 20
_LEAST_HEAP_MIB: Final = 512
"""Spark refuses to start with less than 450 MiB."""


def job_spec(template: Manifest, *, deadline_s: int) -> Manifest:
    """Return the spec of a Job with at most `TRIES` pods, one at a time, within *deadline_s*.

    A pod that is evicted or whose machine goes does not count as a try; what another try cannot
    cure fails the Job at once.
    """
    disrupted = {"type": "DisruptionTarget", "status": "True"}
    final = {"containerName": "driver", "operator": "In", "values": [*FINAL_EXIT_CODES]}
    return {
        "backoffLimit": TRIES - 1,
        "activeDeadlineSeconds": deadline_s,
        "podReplacementPolicy": "Failed",
        "podFailurePolicy": {
            "rules": [
                {"action": "Ignore", "onPodConditions": [disrupted]},
                {"action": "FailJob", "onExitCodes": final},
            ]
        },
        "template": template,
    }


def container(
    group: BrokerGroup,
    store: Store,
    args: Sequence[str],
    *,
    mounts: Sequence[Manifest] = (),
    reads_only: bool = False,
    reads_nodes: bool = False,
) -> Manifest:
    """Return the container that runs the pipeline with *args* on a store.

    Its pod needs `store_volumes`; one that *reads_only* cannot write there if it is on a claim.
    One that *reads_nodes* needs a volume with its certificate (`resources.certificates`).
    """
    spark = group.spec.spark
    peer_mounts = job_mounts(group) if reads_nodes else []
    return {
        "name": "driver",
        "image": spark.image,
        "imagePullPolicy": "IfNotPresent",
        "args": ["driver", *args, *store_args(store), *_REPORTING],
        "ports": [{"name": "http", "containerPort": names.HTTP_PORT, "protocol": "TCP"}],
        "env": [
            from_pod("POD_NAME", "metadata.name"),
            from_pod("POD_IP", "status.podIP"),
            *credentials(store),
            *(DIRECTORY_ENV if peer_mounts else ()),
        ],
        "resources": {
            "requests": {"cpu": "250m", "memory": spark.executors.memory},
            "limits": {"memory": spark.executors.memory},
        },
        "securityContext": CONTAINER_SECURITY,
        "workingDir": TMP_DIR,
        "terminationMessagePath": _RESULT_FILE,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            TMP_MOUNT,
            *mounts,
            *peer_mounts,
            *named_user(group)["mounts"],
            *_store_mounts(store, reads_only=reads_only),
        ],
    }


def pod_spec(
    group: BrokerGroup, of: Manifest, *, volumes: Sequence[Manifest] = (), **more: Any
) -> Manifest:
    """Return what a pod has of its own that runs the container *of* once."""
    return {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 10,
        "containers": [of],
        "volumes": [TMP_VOLUME, *named_user(group)["volumes"], *volumes],
        **more,
    }


def store_volumes(store: Store) -> list[Manifest]:
    """Return the volume of a store that is on a claim; none for others."""
    if not store.directory:
        return []
    claim = {"claimName": store.claim_name}
    return [{"name": _STORE_VOLUME, "persistentVolumeClaim": claim}]


def _store_mounts(store: Store, *, reads_only: bool) -> list[Manifest]:
    """Return where the container has the claim: at the path of the store's URL.

    The mount is read-only, not the volume: Kubernetes gives a read-only volume's files to no group,
    and then the user of the pod could not read them.
    """
    if not store.directory:
        return []
    mount: Manifest = {"name": _STORE_VOLUME, "mountPath": store.directory}
    return [{**mount, "readOnly": True} if reads_only else mount]


def store_args(store: Store) -> list[str]:
    """Return the options that name a store; none for work without one."""
    if not store.url:
        return []
    endpoint = ("--store-endpoint", verbatim(store.endpoint)) if store.endpoint else ()
    plain = ("--allow-http",) if store.allow_http else ()
    return ["--store", verbatim(store.url), *endpoint, *plain]


def verbatim(text: str) -> str:
    """Return a text escaped so that a container gets it unchanged.

    In a container's arguments Kubernetes replaces ``$(NAME)`` by the value of a variable, a
    Secret's key among them, and two dollar signs by one. Texts of a spec go through here.
    """
    return text.replace("$", "$$")


def credentials(store: Store) -> list[Manifest]:
    """Return the variables with the store's credentials; none without a Secret.

    For a claim it can only be named for the manifest key, which then must be in it.
    """
    if not store.secret_name:
        return []
    if store.directory:
        return [from_secret(MANIFEST_KEY, store.secret_name)]
    required = [from_secret(key, store.secret_name) for key in KEYS]
    return [
        *required,
        *(from_secret(key, store.secret_name, optional=True) for key in (REGION, MANIFEST_KEY)),
    ]


def heap_mib(group: BrokerGroup) -> int:
    """Return the JVM's part of a container's memory, in MiB; Python and Arrow have the rest."""
    return max(_LEAST_HEAP_MIB, memory_mib(group) * 3 // 8)


def memory_mib(group: BrokerGroup) -> int:
    """Return the memory of a driver's or executor's container, in MiB."""
    return int(quantity.parse(group.spec.spark.executors.memory)) // _MIB

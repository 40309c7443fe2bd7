"""The claim and the Job that restore a group's first volume before it has nodes. Pure."""

from __future__ import annotations

from typing import Final

from dledger_operator.api import names
from dledger_operator.api.spec import BrokerGroup, Manifest
from dledger_operator.resources.common import owned_by
from dledger_operator.resources.configmap import DATA_DIR
from dledger_operator.resources.pipeline import (
    container,
    job_spec,
    pod_spec,
    store_volumes,
    verbatim,
)
from dledger_operator.resources.pods import Place, named_user, pod_template
from dledger_operator.resources.statefulset import claim_template

DEADLINE_S: Final = 24 * 3600
"""Longer than a backup's: a group waits for it, and starting again would begin from nothing."""
PENDING: Final = "pending"
DONE: Final = "done"
"""Values of the claim's annotation: a restore is under way, or its contents are the group's."""


def recovery_claim(group: BrokerGroup) -> Manifest:
    """Return the volume claim of the first replica, as the StatefulSet would make it.

    It has no owner, like those. The mark distinguishes a volume that is being restored from one
    that an earlier group left, which is never overwritten.
    """
    template = claim_template(group)
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": names.claim(group.name, 0),
            "namespace": group.namespace,
            "labels": template["metadata"]["labels"],
            "annotations": {names.RECOVERY_ANNOTATION: PENDING},
        },
        "spec": template["spec"],
    }


def recovery_job(group: BrokerGroup) -> Manifest:
    """Return the Job that restores it; its pod is scheduled like the first node, as its user."""
    recovery = group.spec.bootstrap.recovery
    node = f"{group.name}/{names.pod(group.name, 0)}"
    args = ["restore", *_source(group), "--data", DATA_DIR, "--name", node]
    mount = {"name": "data", "mountPath": DATA_DIR}
    claim = {"claimName": names.claim(group.name, 0)}
    labels = names.job_labels(group.name, "recovery")
    pod = pod_spec(
        group,
        container(group, recovery.store, args, mounts=[mount], reads_only=True),
        volumes=[
            {"name": "data", "persistentVolumeClaim": claim},
            *store_volumes(recovery.store),
        ],
    )
    named = named_user(group)["annotations"]
    place = Place.NODES_AND_SPARK
    template = pod_template(group, place, labels=labels, annotations=named, spec=pod)
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": owned_by(group, names.recovery_job(group.name), labels),
        "spec": job_spec(template, deadline_s=DEADLINE_S),
    }


def _source(group: BrokerGroup) -> list[str]:
    """Return the options that say which backup, and up to where."""
    recovery = group.spec.bootstrap.recovery
    options = {
        "--group-id": verbatim(recovery.group_id),
        "--to-index": str(recovery.target.index or ""),
        "--to-time": verbatim(recovery.target.time),
    }
    return [word for option, value in options.items() if value for word in (option, value)]

"""What all children share: metadata with labels and owner, and the hash of a manifest. Pure."""

from __future__ import annotations

import hashlib
import json

from dledger_operator.api import names
from dledger_operator.api.brokerbackup import BrokerBackup
from dledger_operator.api.brokeroperation import BrokerOperation
from dledger_operator.api.spec import BrokerGroup, Manifest

Owner = BrokerGroup | BrokerBackup | BrokerOperation
"""Whose children there are."""


def metadata(group: BrokerGroup, name: str) -> Manifest:
    """Return a child's metadata.

    The group is its controller, so that deleting the group deletes the child. Deletion does not
    block on it: that would take a right on the group's finalizers.
    """
    return owned_by(group, name, names.labels(group.name))


def owned_by(owner: Owner, name: str, labels: dict[str, str]) -> Manifest:
    """Return the metadata of an object that is deleted with its *owner*."""
    return {
        "name": name,
        "namespace": owner.namespace,
        "labels": labels,
        "ownerReferences": [
            {
                "apiVersion": names.API_VERSION,
                "kind": owner.KIND,
                "name": owner.name,
                "uid": owner.uid,
                "controller": True,
                "blockOwnerDeletion": False,
            }
        ],
    }


def hashed(manifest: Manifest) -> Manifest:
    """Return a manifest with its own hash, so that a removed field shows as a difference."""
    metadata = manifest["metadata"]
    annotations = {**metadata.get("annotations", {}), names.HASH_ANNOTATION: digest(manifest)}
    return {**manifest, "metadata": {**metadata, "annotations": annotations}}


def unhashed(manifest: Manifest) -> Manifest:
    """Return a manifest without its hash."""
    metadata = dict(manifest["metadata"])
    annotations = dict(metadata.pop("annotations", {}))
    annotations.pop(names.HASH_ANNOTATION, None)
    return {
        **manifest,
        "metadata": metadata | ({"annotations": annotations} if annotations else {}),
    }


def hash_of(manifest: Manifest) -> str:
    """Return the hash that an object carries; empty without one."""
    annotations = manifest["metadata"].get("annotations") or {}
    return str(annotations.get(names.HASH_ANNOTATION, ""))


def digest(value: object) -> str:
    """Return a short hash of a JSON value; the order of keys does not matter."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]

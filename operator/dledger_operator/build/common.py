"""What all children share: metadata with labels and owner, and the hash of a manifest. Pure."""

from __future__ import annotations

import hashlib
import json

from dledger_operator import names
from dledger_operator.spec import BrokerGroup, Manifest


def metadata(group: BrokerGroup, name: str) -> Manifest:
    """Return a child's metadata.

    The group is its controller, so that deleting the group deletes the child. Deletion does not
    block on it: that would take a right on the group's finalizers.
    """
    return {
        "name": name,
        "namespace": group.namespace,
        "labels": names.labels(group.name),
        "ownerReferences": [
            {
                "apiVersion": names.API_VERSION,
                "kind": names.KIND,
                "name": group.name,
                "uid": group.uid,
                "controller": True,
                "blockOwnerDeletion": False,
            }
        ],
    }


def digest(value: object) -> str:
    """Return a short hash of a JSON value; the order of keys does not matter."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]

"""The Secrets with a group's certificates, and how pods mount them. Pure.

What is in them changes without a restart: nodes and pipeline read the files again.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, Final

from dledger_operator.api import names
from dledger_operator.api.spec import BrokerGroup, Json, Manifest
from dledger_operator.resources.common import metadata

PEER_TLS_DIR: Final = "/etc/dledger-peer-tls"
CLIENT_TLS_DIR: Final = "/etc/dledger-client-tls"
"""Beside the configuration, not below it: that is a read-only mount of its own."""
PEER_VOLUME: Final = "peer-tls"
CLIENT_VOLUME: Final = "client-tls"
DIRECTORY_ENV: Final[tuple[dict[str, Any], ...]] = (
    {"name": "DLEDGER_PEER_TLS_DIR", "value": PEER_TLS_DIR},
)
"""Where commands in a pod, of a node or of a backup, have a certificate for the nodes."""


def secret(group: BrokerGroup, name: str, data: Mapping[str, bytes]) -> Manifest:
    """Return a Secret of the group with these files."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata(group, name),
        "type": "Opaque",
        "data": {key: base64.b64encode(data[key]).decode() for key in sorted(data)},
    }


def files_of(manifest: Json) -> dict[str, bytes]:
    """Return the files of a Secret; what cannot be decoded is left out."""
    found = {}
    for key, text in (manifest.get("data") or {}).items():
        try:
            found[key] = base64.b64decode(text, validate=True)
        except (ValueError, TypeError):
            continue
    return found


def node_volumes(group: BrokerGroup) -> list[Manifest]:
    """Return the volumes with a node's certificates: for its peers, and for clients."""
    volumes = []
    if group.has_peer_tls:
        volumes.append(_volume(PEER_VOLUME, names.peer_tls(group.name)))
    if group.spec.tls.enabled and group.spec.tls.secret_name:
        mounted = _volume(CLIENT_VOLUME, group.spec.tls.secret_name)
        mounted["secret"]["items"] = [{"key": key, "path": key} for key in ("tls.crt", "tls.key")]
        volumes.append(mounted)
    return volumes


def node_mounts(group: BrokerGroup) -> list[Manifest]:
    """Return where a node has them."""
    directories = {PEER_VOLUME: PEER_TLS_DIR, CLIENT_VOLUME: CLIENT_TLS_DIR}
    return [_mount(one["name"], directories[one["name"]]) for one in node_volumes(group)]


def backup_volumes(group: BrokerGroup) -> list[Manifest]:
    """Return the volume with the certificate that backups, and all executors, show nodes."""
    return [_volume(PEER_VOLUME, names.backup_tls(group.name))] if group.has_peer_tls else []


def compactor_volumes(group: BrokerGroup) -> list[Manifest]:
    """Return the volume with the certificate of who may tell nodes what to let go of."""
    return [_volume(PEER_VOLUME, names.compactor_tls(group.name))] if group.has_peer_tls else []


def job_mounts(group: BrokerGroup) -> list[Manifest]:
    """Return where a pod of a Job has its certificate for the nodes."""
    return [_mount(PEER_VOLUME, PEER_TLS_DIR)] if group.has_peer_tls else []


def mounts_certificates(stateful_set: Json) -> bool:
    """Whether the pods of a StatefulSet are made with certificates for their peers."""
    volumes = stateful_set["spec"]["template"]["spec"].get("volumes") or ()
    return any(volume["name"] == PEER_VOLUME for volume in volumes)


def _volume(name: str, of: str) -> Manifest:
    # Its files belong to root and to the pod's group, which reads them.
    return {"name": name, "secret": {"secretName": of, "defaultMode": 0o440}}


def _mount(name: str, path: str) -> Manifest:
    return {"name": name, "mountPath": path, "readOnly": True}

"""The ConfigMap with node.toml: the settings that all nodes of a group share. Pure.

What differs between pods (name, address) comes from the pod's environment. So does the group's id,
which a node with an empty disk has to know before it joins: it has an entry of its own, since it
may be recorded again (`bootstrap_state.Adoptable`), which is no reason to restart a pod.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from dledger_operator.api import names, quantity
from dledger_operator.api.spec import BrokerGroup, Manifest
from dledger_operator.resources.certificates import CLIENT_TLS_DIR, PEER_TLS_DIR
from dledger_operator.resources.common import metadata

CONFIG_DIR: Final = "/etc/dledger"
DATA_DIR: Final = "/var/lib/dledger"
GROUP_ID_KEY: Final = "group-id"
"""The ConfigMap's entry with the recorded id."""


DRAIN_S: Final = 4
"""How long a node that stops goes on serving: longer than its readiness probe takes to fail."""


def config_map(group: BrokerGroup) -> Manifest:
    """Return the ConfigMap."""
    settings: dict[str, str | int | bool] = {
        "group": group.name,
        "data_dir": DATA_DIR,
        "client_port": names.CLIENT_PORT,
        "client_tls_port": names.CLIENT_TLS_PORT,
        "peer_port": names.PEER_PORT,
        "replication_port": names.REPLICATION_PORT,
        "http_port": names.HTTP_PORT,
        "drain_s": DRAIN_S,
        "durability": group.spec.durability,
        "auto_create_topics": group.spec.auto_create_topics,
        "storage_bytes": int(quantity.parse(group.spec.storage.size)),
        "retention_hours": group.spec.retention.hours,
        "disk_watermark_percent": group.spec.retention.disk_watermark_percent,
        "group_retention_hours": group.spec.retention.group_hours,
    }
    if group.client_server:  # else not: nodes of an older image know no such setting
        settings["client_server"] = group.client_server
    if group.door_processes:  # likewise
        settings["door_processes"] = group.door_processes
    if group.spec.bootstrap.recovery.held != "hold":  # likewise
        settings["restored_held"] = group.spec.bootstrap.recovery.held
    if group.has_peer_tls:
        settings["peer_tls_dir"] = PEER_TLS_DIR
    if group.spec.tls.enabled and group.spec.tls.secret_name:
        settings["tls_cert_file"] = f"{CLIENT_TLS_DIR}/tls.crt"
        settings["tls_key_file"] = f"{CLIENT_TLS_DIR}/tls.key"
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(group, names.config_map(group.name)),
        "data": {
            "node.toml": "".join(f"{k} = {json.dumps(v)}\n" for k, v in settings.items()),
            GROUP_ID_KEY: group.group_id,
        },
    }


def configured_group_id(data: Mapping[str, str]) -> str:
    """Return the group that the nodes with this ConfigMap may join; empty if none."""
    return data.get(GROUP_ID_KEY, "")

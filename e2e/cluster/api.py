"""A small client of the API server: a question costs milliseconds, with kubectl half a second."""

from __future__ import annotations

import http.client
import json
import ssl
from typing import Any

from e2e.cluster.layout import API_PORT, BRIDGE_ADDRESS, Layout

TIMEOUT_S = 5.0


def get(layout: Layout, path: str) -> dict[str, Any] | None:
    """Return the object at *path*, or None when the server does not answer with one."""
    body = _request(layout, path)
    return None if body is None else dict(json.loads(body))


def ready(layout: Layout) -> bool:
    """Say whether the API server calls itself ready."""
    return _request(layout, "/readyz") == b"ok"


def ready_nodes(layout: Layout) -> list[str]:
    """Return the names of the nodes that are Ready; none when the server does not answer."""
    return nodes_ready(get(layout, "/api/v1/nodes") or {"items": []})


def nodes_ready(node_list: dict[str, Any]) -> list[str]:
    """Return the names of the nodes in a NodeList whose condition Ready is True."""
    return [
        str(node["metadata"]["name"])
        for node in node_list["items"]
        if any(
            condition["type"] == "Ready" and condition["status"] == "True"
            for condition in node["status"].get("conditions", [])
        )
    ]


def daemon_set_ready(daemon_set: dict[str, Any] | None, nodes: int) -> bool:
    """Say whether a DaemonSet's pods are ready on so many nodes."""
    return daemon_set is not None and daemon_set.get("status", {}).get("numberReady", 0) >= nodes


def released_volumes(volume_list: dict[str, Any]) -> list[str]:
    """Return the names in a PersistentVolumeList whose claim is gone."""
    return [
        str(volume["metadata"]["name"])
        for volume in volume_list["items"]
        if volume["status"].get("phase") in ("Released", "Failed")
    ]


def _request(layout: Layout, path: str) -> bytes | None:
    try:
        context = ssl.create_default_context(cafile=str(layout.pki / "ca.crt"))
        context.load_cert_chain(layout.pki / "admin.crt", layout.pki / "admin.key")
        connection = http.client.HTTPSConnection(
            BRIDGE_ADDRESS, API_PORT, timeout=TIMEOUT_S, context=context
        )
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            body = response.read()
        finally:
            connection.close()
    except (OSError, http.client.HTTPException):  # down, starting, or no certificate yet
        return None
    return body if response.status == http.HTTPStatus.OK else None

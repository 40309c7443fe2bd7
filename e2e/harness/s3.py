"""An S3 server in a story's namespace: versitygw over a directory that goes when its pod does."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any, Final

from e2e.cluster import Cluster, golang
from e2e.cluster.layout import default_layout
from e2e.cluster.runtime import system_image
from e2e.harness.world import Namespace, eventually, restricted_pod

BUCKET: Final = "backups"
SECRET: Final = "s3-credentials"  # noqa: S105 - a Secret's name
NAME: Final = "s3"
_PORT: Final = 7070
_ROOT: Final = "/buckets"


def load_image(cluster: Cluster) -> str:
    """Put the server's image into the cluster's heavy node; return its name."""
    golang.provide(golang.VERSITYGW)
    name, archive = system_image(default_layout(), golang.VERSITYGW)
    cluster.load_image(archive, name, [cluster.heavy_node])
    return name


@dataclass(frozen=True, slots=True)
class S3Server:
    """A running server with one empty bucket, `BUCKET`, and a Secret with its keys, `SECRET`."""

    namespace: Namespace

    @classmethod
    def start(cls, namespace: Namespace, deadline_s: float = 60) -> S3Server:
        """Start a server in the namespace and wait until it listens."""
        image = load_image(namespace.cluster)
        keys = credentials(SECRET, "backups", secrets.token_hex())
        namespace.apply(keys, _service(), _pod(image, namespace.cluster.heavy_node))
        server = cls(namespace)
        eventually("the S3 server listens", server.listens, deadline_s)
        return server

    def listens(self) -> bool:
        """Say whether its pod is ready."""
        pod = self.namespace.get("pod", NAME) or {}
        conditions = pod.get("status", {}).get("conditions", [])
        return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)

    def written(self) -> list[str]:
        """Return the paths of all objects that were written, from its log of requests."""
        rows = [line.split("|") for line in self.namespace.kubectl("logs", NAME).splitlines()]
        requests = [[column.strip() for column in row] for row in rows if len(row) > 6]
        return [row[6] for row in requests if (row[2], row[5]) == ("200", "PUT")]

    def store(self, path: str, secret: str = SECRET) -> dict[str, str | bool]:
        """Return what a spec says of a store at *path* in the bucket; *secret* has the keys."""
        return {
            "url": f"s3://{BUCKET}/{path}",
            "endpoint": f"http://{NAME}.{self.namespace.name}.svc:{_PORT}",
            "allowHttp": True,
            "secretName": secret,
        }


def credentials(name: str, access_key_id: str, secret_access_key: str) -> dict[str, Any]:
    """Return a Secret as a store's spec wants it."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name},
        "stringData": {
            "AWS_ACCESS_KEY_ID": access_key_id,
            "AWS_SECRET_ACCESS_KEY": secret_access_key,
        },
    }


def _service() -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": NAME},
        "spec": {"selector": {"app": NAME}, "ports": [{"name": "s3", "port": _PORT}]},
    }


def _pod(image: str, node: str) -> dict[str, Any]:
    selector = {"kubernetes.io/hostname": node}
    volumes = [{"name": "bucket", "emptyDir": {}}]
    return restricted_pod(NAME, _container(image), volumes, nodeSelector=selector)


def _container(image: str) -> dict[str, Any]:
    def from_secret(variable: str, key: str) -> dict[str, Any]:
        return {"name": variable, "valueFrom": {"secretKeyRef": {"name": SECRET, "key": key}}}

    return {
        "name": "versitygw",
        "image": image,
        # Its lock files are for gateways that share a directory; it is alone, and / is read-only.
        "args": ["--port", f":{_PORT}", "posix", "--disable-object-lock-file", _ROOT],
        "env": [
            from_secret("ROOT_ACCESS_KEY", "AWS_ACCESS_KEY_ID"),
            from_secret("ROOT_SECRET_KEY", "AWS_SECRET_ACCESS_KEY"),
        ],
        "ports": [{"name": "s3", "containerPort": _PORT}],
        "readinessProbe": {"tcpSocket": {"port": _PORT}, "periodSeconds": 1},
        # A directory below the root is a bucket: nobody has to create it.
        "volumeMounts": [{"name": "bucket", "mountPath": f"{_ROOT}/{BUCKET}"}],
    }

"""Many groups on one real API server, with their kubelets and their nodes played.

The pods are made by the real controller manager. Each gets an address of 127/8, a node that serves
Admin there (`tests.operator.fake_nodes`), and is said to be ready.
"""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
from collections.abc import Iterable
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import aiohttp

from tests.operator.api_server import ApiServer
from tests.operator.fake_nodes import FakeGroup
from tests.operator.live import group

NAMESPACE: Final = "scale"
FAILING: Final = "failing"
_AT_ONCE: Final = 16
_LOOK_S: Final = 1.0
_WAIT_S: Final = 0.5

# A status that is refused ends a round in an error, each time.
REFUSAL: Final[list[dict[str, Any]]] = [
    {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": "refuse-status"},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {
                "resourceRules": [
                    {
                        "apiGroups": ["dledger.io"],
                        "apiVersions": ["v1"],
                        "operations": ["UPDATE"],
                        "resources": ["brokergroups/status"],
                    }
                ]
            },
            "validations": [
                {
                    "expression": f"!object.metadata.name.startsWith('{FAILING}')",
                    "message": "refused, to have its rounds fail",
                }
            ],
        },
    },
    {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": "refuse-status"},
        "spec": {"policyName": "refuse-status", "validationActions": ["Deny"]},
    },
]


class World:
    """The groups, and the administrator's connection to their API server."""

    def __init__(self, server: ApiServer, directory: Path, *, peer_tls: bool) -> None:
        self._url = server.url
        trust = ssl.create_default_context(cafile=str(directory / "ca.crt"))
        trust.load_cert_chain(directory / "admin.crt", directory / "admin.key")
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=trust, limit=_AT_ONCE)
        )
        self._peer_tls = peer_tls
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._running: dict[str, asyncio.Task[None]] = {}
        self.groups: dict[str, FakeGroup] = {}

    async def close(self) -> None:
        """Stop all nodes."""
        for task in self._running.values():
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)
        for nodes in self.groups.values():
            await nodes.stop()
        await self._session.close()

    async def request(self, verb: str, path: str, body: Any = None) -> Any:
        """Return the API server's answer. Raises aiohttp.ClientResponseError."""
        kind = "merge-patch+json" if verb == "PATCH" else "json"
        data = None if body is None else json.dumps(body)
        headers = {"Content-Type": f"application/{kind}"}
        async with self._session.request(
            verb, self._url + path, data=data, headers=headers
        ) as answer:
            answer.raise_for_status()
            return await answer.json()

    async def create(self, names: Iterable[str]) -> None:
        """Create groups of these names, and nodes for them that do not run yet."""
        for name in names:
            number = len(self.groups)
            net, octet = f"127.{100 + number // 250}", number % 250 + 1
            self.groups[name] = FakeGroup(name, first_octet=octet, net=net)
            path = f"/apis/dledger.io/v1/namespaces/{NAMESPACE}/brokergroups"
            await self.request("POST", path, group(name))

    async def statuses(self) -> dict[str, dict[str, str]]:
        """Return the conditions of each group, by name and type."""
        path = f"/apis/dledger.io/v1/namespaces/{NAMESPACE}/brokergroups"
        found = (await self.request("GET", path))["items"]
        return {
            one["metadata"]["name"]: {
                row["type"]: row["status"] for row in one.get("status", {}).get("conditions", ())
            }
            for one in found
        }

    async def run_pods(self) -> None:
        """Run each pod that there is from now on, until cancelled.

        Those that run are not listed again: what reads 1,500 pods each second plays no nodes.
        """
        pending = "fieldSelector=status.phase=Pending&resourceVersion=0"
        while True:
            path = f"/api/v1/namespaces/{NAMESPACE}/pods?{pending}"
            for pod in (await self.request("GET", path))["items"]:
                name = pod["metadata"]["name"]
                known = self._running.get(name)
                if known is not None and known.done():
                    known.result()
                if known is None:
                    self._running[name] = asyncio.create_task(self._run(name))
            await asyncio.sleep(_LOOK_S)

    async def _run(self, pod: str) -> None:
        """Run one pod: its node serves before it is ready."""
        name, _, ordinal = pod.rpartition("-")
        nodes, number = self.groups[name], int(ordinal)
        async with self._turns:
            await self._serve(nodes, number)
            status = {
                "phase": "Running",
                "podIP": nodes.ip(number),
                "podIPs": [{"ip": nodes.ip(number)}],
                "conditions": [{"type": "Ready", "status": "True"}],
            }
            path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}/status"
            await self.request("PATCH", path, {"status": status})

    async def _serve(self, nodes: FakeGroup, number: int) -> None:
        if not self._peer_tls:
            await nodes.serve(number)
            return
        files = await self._mounted(f"{nodes.group}-peer-tls")
        chain, key = (files[f"{nodes.group}-{number}.{kind}"] for kind in ("crt", "key"))
        await nodes.encrypt(number, trusted=files["ca.crt"], chain=chain, key=key)

    async def _mounted(self, secret: str) -> dict[str, bytes]:
        """Return the files of a Secret once there is one, as a kubelet would wait for it."""
        path = f"/api/v1/namespaces/{NAMESPACE}/secrets/{secret}"
        while True:
            try:
                found = await self.request("GET", path)
            except aiohttp.ClientResponseError as error:
                if error.status != HTTPStatus.NOT_FOUND:
                    raise
                await asyncio.sleep(_WAIT_S)
            else:
                return {name: base64.b64decode(text) for name, text in found["data"].items()}

    async def delete_service(self, name: str) -> None:
        """Delete the leader's Service of a group."""
        path = f"/api/v1/namespaces/{NAMESPACE}/services/{name}-leader"
        await self.request("DELETE", path)

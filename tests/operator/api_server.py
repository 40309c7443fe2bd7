"""A real API server without nodes: etcd, kube-apiserver and kube-controller-manager on loopback.

Of its own ports and directories, so that it can run beside a whole cluster and many times over.
"""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from e2e.cluster import golang, pki
from e2e.cluster.layout import default_layout
from e2e.cluster.steps import Steps
from e2e.cluster.tools import find_kubectl

READY_S = 60.0


class ApiServer:
    """A running API server and its administrator's kubectl.

    Args:
        directory: For its files.
        more: Further arguments of a program, by its name.
    """

    def __init__(self, directory: Path, more: Mapping[str, Sequence[str]] | None = None) -> None:
        self._more = more or {}
        layout = default_layout()
        for program in (golang.ETCD, golang.KUBERNETES):
            golang.ensure(layout, program, Steps())
        self._kubectl = find_kubectl(layout)
        self._binaries = layout.binaries
        self._directory = directory
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._ports = {name: _free_port() for name in ("etcd", "peer", "api")}
        self.url = f"https://127.0.0.1:{self._ports['api']}"
        self.kubeconfig = directory / "kubeconfig"

    def start(self, first: Sequence[Any]) -> None:
        """Start everything, with *first* applied before there is a controller manager.

        Its garbage collector learns of new kinds only every half minute.
        """
        self._write_files()
        self._spawn("etcd", self._etcd())
        self._spawn("kube-apiserver", self._api_server())
        self._await_ready()
        listed = {"apiVersion": "v1", "kind": "List", "items": list(first)}
        self.kubectl("apply", "-f", "-", manifest=listed)
        self._spawn("kube-controller-manager", self._controller_manager())

    def stop(self) -> None:
        """Stop everything, the API server first."""
        for program in reversed(self._processes):
            self.kill(program)

    def kill(self, program: str) -> None:
        """Kill one of the programs."""
        self._processes[program].kill()
        self._processes[program].wait()

    def restart_api_server(self) -> None:
        """Bring the API server back after `kill`."""
        self._spawn("kube-apiserver", self._api_server())
        self._await_ready()

    def kubectl(
        self, *args: str, manifest: Any = None, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl with a manifest (or a list of them) as its input."""
        done = subprocess.run(
            [self._kubectl, f"--kubeconfig={self.kubeconfig}", *args],
            input=None if manifest is None else json.dumps(manifest),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        if check and done.returncode:
            raise AssertionError(f"kubectl {' '.join(args)}: {done.stderr}")
        return done

    def get(self, *args: str) -> Any:
        """Return what `kubectl get` has, as JSON."""
        return json.loads(self.kubectl("get", *args, "-o", "json").stdout)

    def kubeconfig_for(self, namespace: str, account: str) -> Path:
        """Return a kubeconfig of a service account: its rights and nothing more."""
        token = self.kubectl("create", "token", account, "-n", namespace).stdout.strip()
        path = self._directory / f"{account}.kubeconfig"
        path.write_text(yaml.safe_dump(self._config({"token": token})))
        return path

    def _write_files(self) -> None:
        authority = pki.Authority("test")
        hosts = ("127.0.0.1", "localhost", "kubernetes.default.svc")
        pairs = {
            "ca": authority.pair,
            "api": authority.issue("kube-apiserver", hosts=hosts),
            "admin": authority.issue("admin", organization="system:masters"),
        }
        for name, pair in pairs.items():
            (self._directory / f"{name}.key").write_text(pair.key)
            (self._directory / f"{name}.crt").write_text(pair.certificate)
        key = pki.new_key()
        (self._directory / "account.key").write_text(pki.private_pem(key))
        (self._directory / "account.pub").write_text(pki.public_pem(key))
        admin = {
            "client-certificate": str(self._directory / "admin.crt"),
            "client-key": str(self._directory / "admin.key"),
        }
        self.kubeconfig.write_text(yaml.safe_dump(self._config(admin)))

    def _config(self, user: dict[str, str]) -> dict[str, Any]:
        cluster = {"server": self.url, "certificate-authority": str(self._directory / "ca.crt")}
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "user", "user": user}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "user"}}],
            "current-context": "test",
        }

    def _etcd(self) -> list[str]:
        client, peer = (f"http://127.0.0.1:{self._ports[name]}" for name in ("etcd", "peer"))
        return [
            f"--data-dir={self._directory / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync",
        ]

    def _api_server(self) -> list[str]:
        return [
            f"--etcd-servers=http://127.0.0.1:{self._ports['etcd']}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            "--endpoint-reconciler-type=none",
            f"--secure-port={self._ports['api']}",
            f"--tls-cert-file={self._directory / 'api.crt'}",
            f"--tls-private-key-file={self._directory / 'api.key'}",
            f"--client-ca-file={self._directory / 'ca.crt'}",
            "--authorization-mode=RBAC",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={self._directory / 'account.pub'}",
            f"--service-account-signing-key-file={self._directory / 'account.key'}",
            "--service-cluster-ip-range=10.97.0.0/16",
        ]

    def _controller_manager(self) -> list[str]:
        return [
            f"--kubeconfig={self.kubeconfig}",
            f"--service-account-private-key-file={self._directory / 'account.key'}",
            f"--root-ca-file={self._directory / 'ca.crt'}",
            "--leader-elect=false",
            "--secure-port=0",
        ]

    def _spawn(self, program: str, args: Sequence[str]) -> None:
        more = self._more.get(program, ())
        with (self._directory / f"{program}.log").open("wb") as log:
            process = subprocess.Popen(
                [self._binaries / program, *args, *more],
                stdout=log,
                stderr=log,
                cwd=self._directory,
            )
        self._processes[program] = process

    def _await_ready(self) -> None:
        deadline_s = time.monotonic() + READY_S
        while self.kubectl("get", "--raw", "/readyz", check=False).returncode:
            dead = self._processes["kube-apiserver"].poll() is not None
            if dead or time.monotonic() > deadline_s:
                log = (self._directory / "kube-apiserver.log").read_text()[-2000:]
                raise AssertionError(f"the API server does not get ready:\n{log}")
            time.sleep(0.2)


@contextlib.contextmanager
def running(
    directory: Path,
    *,
    first: Sequence[Any] = (),
    more: Mapping[str, Sequence[str]] | None = None,
) -> Iterator[ApiServer]:
    """Run an API server with some manifests in it while the block runs."""
    server = ApiServer(directory, more)
    try:
        server.start(first)
        yield server
    finally:
        server.stop()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])

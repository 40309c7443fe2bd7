"""What each component is told: its configuration and command line, as values.

Nothing here reads or writes a file; `files` writes what these functions return.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import yaml

from e2e.cluster.layout import (
    API_ADDRESS,
    API_PORT,
    BRIDGE_ADDRESS,
    DNS_ADDRESS,
    DNS_DOMAIN,
    ETCD_PEER_PORT,
    ETCD_PORT,
    NETWORK,
    POD_RANGE,
    SERVICE_RANGE,
    ClusterNode,
    Layout,
)
from e2e.cluster.packages import CNI_PLUGINS

Manifest = dict[str, Any]

API_SERVER = f"https://{BRIDGE_ADDRESS}:{API_PORT}"
API_SERVER_HOSTS = (
    BRIDGE_ADDRESS,
    API_ADDRESS,
    "localhost",
    "127.0.0.1",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    f"kubernetes.default.svc.{DNS_DOMAIN}",
)


def to_yaml(*documents: Manifest) -> str:
    """Return the documents as one YAML stream, keys in the order given."""
    return yaml.safe_dump_all(documents, sort_keys=False)


# --- the control plane ------------------------------------------------------------------------


def etcd(layout: Layout) -> list[str]:
    """Command line of etcd: one member on loopback; it need not survive a power cut."""
    client = f"http://127.0.0.1:{ETCD_PORT}"
    peer = f"http://127.0.0.1:{ETCD_PEER_PORT}"
    return [
        str(layout.binaries / "etcd"),
        "--name=e2e",
        f"--data-dir={layout.state / 'etcd'}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=e2e={peer}",
        "--unsafe-no-fsync",
    ]


def api_server(layout: Layout) -> list[str]:
    """Command line of the API server: Node and RBAC authorization, Pod Security as shipped.

    Pods leave a lost node after 30 s rather than 5 min, so that stories about it are short.
    """
    pki = layout.pki
    return [
        str(layout.binaries / "kube-apiserver"),
        f"--etcd-servers=http://127.0.0.1:{ETCD_PORT}",
        f"--bind-address={BRIDGE_ADDRESS}",
        f"--advertise-address={BRIDGE_ADDRESS}",
        f"--secure-port={API_PORT}",
        f"--service-cluster-ip-range={SERVICE_RANGE}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--default-not-ready-toleration-seconds=30",
        "--default-unreachable-toleration-seconds=30",
        "--allow-privileged=true",
        f"--client-ca-file={pki / 'ca.crt'}",
        f"--tls-cert-file={pki / 'api-server.crt'}",
        f"--tls-private-key-file={pki / 'api-server.key'}",
        f"--kubelet-certificate-authority={pki / 'ca.crt'}",
        f"--kubelet-client-certificate={pki / 'admin.crt'}",
        f"--kubelet-client-key={pki / 'admin.key'}",
        "--kubelet-preferred-address-types=InternalIP",
        f"--service-account-issuer=https://kubernetes.default.svc.{DNS_DOMAIN}",
        f"--service-account-key-file={pki / 'service-accounts.pub'}",
        f"--service-account-signing-key-file={pki / 'service-accounts.key'}",
        "--profiling=false",
    ]


def controller_manager(layout: Layout) -> list[str]:
    """Command line of the controller manager. A silent node counts as lost after 20 s."""
    return [
        *_with_kubeconfig(layout, "controller-manager"),
        f"--cluster-cidr={POD_RANGE}",
        "--allocate-node-cidrs=false",
        "--node-monitor-grace-period=20s",
        "--node-monitor-period=2s",
        "--use-service-account-credentials=true",
        f"--service-account-private-key-file={layout.pki / 'service-accounts.key'}",
        f"--root-ca-file={layout.pki / 'ca.crt'}",
        f"--cluster-signing-cert-file={layout.pki / 'ca.crt'}",
        f"--cluster-signing-key-file={layout.pki / 'ca.key'}",
    ]


def scheduler(layout: Layout) -> list[str]:
    """Command line of the scheduler."""
    return _with_kubeconfig(layout, "scheduler")


def _with_kubeconfig(layout: Layout, component: str) -> list[str]:
    """Return how a component is started that has a kubeconfig of its own, and is alone."""
    kubeconfig = layout.config / f"{component}.kubeconfig"
    return [
        str(layout.binaries / f"kube-{component}"),
        f"--kubeconfig={kubeconfig}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        f"--bind-address={BRIDGE_ADDRESS}",
        "--leader-elect=false",
        "--profiling=false",
    ]


def kubeconfig(layout: Layout, user: str) -> str:
    """A kubeconfig for the user whose key pair is stored under that name, all by file path."""
    return to_yaml(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {
                    "name": "dledger-e2e",
                    "cluster": {
                        "server": API_SERVER,
                        "certificate-authority": str(layout.pki / "ca.crt"),
                    },
                }
            ],
            "users": [
                {
                    "name": user,
                    "user": {
                        "client-certificate": str(layout.pki / f"{user}.crt"),
                        "client-key": str(layout.pki / f"{user}.key"),
                    },
                }
            ],
            "contexts": [
                {"name": "dledger-e2e", "context": {"cluster": "dledger-e2e", "user": user}}
            ],
            "current-context": "dledger-e2e",
        }
    )


# --- a node -----------------------------------------------------------------------------------


def in_namespace(node: ClusterNode, command: Sequence[str]) -> list[str]:
    """The command, run in the node's network namespace.

    Not by ``ip netns exec``: that remounts /sys, and the kubelet then finds no cgroups.
    """
    return ["nsenter", f"--net=/run/netns/{node.namespace}", "--", *command]


def containerd(layout: Layout, node: ClusterNode) -> list[str]:
    """Command line of a node's containerd."""
    return ["containerd", f"--config={layout.config / f'containerd-{node.name}.toml'}"]


def containerd_config(layout: Layout, node: ClusterNode, pause_image: str) -> str:
    """Containerd's TOML, in the form of versions 1.6 and 1.7.

    ``restrict_oom_score_adj``: without CAP_SYS_RESOURCE runc cannot lower a score, and dies.
    ``netns_mounts_under_state_dir``: so that one unmount of our run directory catches them all.
    """
    unused = ["aufs", "btrfs", "devmapper", "zfs"]
    disabled = [f"io.containerd.snapshotter.v1.{each}" for each in unused]
    disabled += ["io.containerd.internal.v1.opt", "io.containerd.tracing.processor.v1.otlp"]
    cri = 'plugins."io.containerd.grpc.v1.cri"'
    return f"""\
version = 2
root = "{layout.node_state(node) / "containerd"}"
state = "{layout.node_run(node) / "containerd"}"
oom_score = 0
disabled_plugins = {json.dumps(disabled)}

[grpc]
  address = "{layout.containerd_socket(node)}"

[{cri}]
  sandbox_image = "{pause_image}"
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"

[{cri}.containerd]
  snapshotter = "overlayfs"
  default_runtime_name = "runc"

[{cri}.containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"

[{cri}.containerd.runtimes.runc.options]
  SystemdCgroup = false

[{cri}.cni]
  bin_dir = "{CNI_PLUGINS}"
  conf_dir = "{layout.config / f"cni-{node.name}"}"
"""


def cni_config(layout: Layout, node: ClusterNode) -> str:
    """The CNI plugins of a node: a bridge inside its namespace, addresses from its pod range."""
    bridge = {
        "type": "bridge",
        "bridge": "cni0",
        "isGateway": True,
        "hairpinMode": True,
        "ipMasq": False,
        "ipam": {
            "type": "host-local",
            "dataDir": str(layout.node_run(node) / "cni"),
            "ranges": [[{"subnet": node.pod_range}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    }
    portmap = {"type": "portmap", "capabilities": {"portMappings": True}}
    document = {"cniVersion": "0.4.0", "name": NETWORK, "plugins": [bridge, portmap]}
    return json.dumps(document, indent=2) + "\n"


def kubelet(layout: Layout, node: ClusterNode) -> list[str]:
    """Command line of a kubelet; the rest is in its configuration."""
    return [
        str(layout.binaries / "kubelet"),
        f"--config={layout.config / f'kubelet-{node.name}.yaml'}",
        f"--kubeconfig={layout.config / f'kubelet-{node.name}.kubeconfig'}",
        f"--hostname-override={node.name}",
        f"--node-ip={node.address}",
        f"--node-labels=topology.kubernetes.io/zone={node.zone}",
        f"--root-dir={layout.node_state(node) / 'kubelet'}",
        f"--cert-dir={layout.node_state(node) / 'kubelet' / 'pki'}",
        # cAdvisor looks at every cgroup of the machine, once for each kubelet.
        "--housekeeping-interval=30s",
    ]


def kubelet_config(layout: Layout, node: ClusterNode) -> str:
    """A kubelet's configuration.

    It never evicts and never collects images: the disk and memory belong to the machine, and
    there is no registry to get an image back from. Three kubelets share the machine, so leases
    are renewed every 3 s (a quarter of the lease) against a grace period of 20 s.
    """
    pki = layout.pki
    return to_yaml(
        {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(pki / "ca.crt")},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": str(pki / f"{node.name}.crt"),
            "tlsPrivateKeyFile": str(pki / f"{node.name}.key"),
            "containerRuntimeEndpoint": f"unix://{layout.containerd_socket(node)}",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{node.cgroup}",
            "failCgroupV1": False,
            "failSwapOn": False,
            "oomScoreAdj": 0,
            "evictionHard": {},
            "imageGCHighThresholdPercent": 100,
            "imageGCLowThresholdPercent": 99,
            "resolvConf": "/dev/null",
            "clusterDNS": [DNS_ADDRESS],
            "clusterDomain": DNS_DOMAIN,
            "podLogsDir": str(layout.node_state(node) / "pod-logs"),
            "volumePluginDir": str(layout.node_state(node) / "volume-plugins"),
            "nodeLeaseDurationSeconds": 12,
            "nodeStatusUpdateFrequency": "5s",
            "registerWithTaints": [],
            "logging": {"format": "text"},
        }
    )


def kube_proxy(layout: Layout, node: ClusterNode) -> list[str]:
    """Command line of a kube-proxy."""
    config = layout.config / f"kube-proxy-{node.name}.yaml"
    return [str(layout.binaries / "kube-proxy"), f"--config={config}"]


def kube_proxy_config(layout: Layout, node: ClusterNode) -> str:
    """A kube-proxy's configuration. What comes from outside the pod range is masqueraded.

    That lets the host reach service addresses through one node and get its answers back.
    """
    return to_yaml(
        {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "clientConnection": {"kubeconfig": str(layout.config / "kube-proxy.kubeconfig")},
            "hostnameOverride": node.name,
            "mode": "iptables",
            "clusterCIDR": POD_RANGE,
            "bindAddress": node.address,
            "healthzBindAddress": "127.0.0.1:10256",
            "metricsBindAddress": "127.0.0.1:10249",
            "oomScoreAdj": 0,
            "conntrack": {
                "maxPerCore": 0,
                "tcpEstablishedTimeout": "0s",
                "tcpCloseWaitTimeout": "0s",
            },
        }
    )

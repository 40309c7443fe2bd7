"""What the components are told."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import yaml

from e2e.cluster import contents, render
from e2e.cluster.files import config_files, key_files
from e2e.cluster.layout import NODES, VOLUMES_PER_NODE, Layout, default_layout

LAYOUT = Layout(state=Path("/state"), run=Path("/run/e2e"), cache=Path("/cache"))
NODE = NODES[0]


def test_no_two_nodes_share_a_name_an_address_or_a_range() -> None:
    """Each node is its own machine to the others."""
    for attribute in ("name", "address", "pod_range", "namespace", "veth", "zone", "cgroup"):
        assert len({getattr(node, attribute) for node in NODES}) == len(NODES)


def test_interface_names_fit_into_the_kernel() -> None:
    """Linux refuses interface names of 16 characters and more."""
    assert all(len(node.veth) < 16 for node in NODES)


def test_containerd_config_is_toml_and_lives_without_cap_sys_resource() -> None:
    """A runc that may not lower OOM scores would otherwise fail to start any container."""
    config = tomllib.loads(render.containerd_config(LAYOUT, NODE, "pause:1"))

    cri = config["plugins"]["io.containerd.grpc.v1.cri"]
    assert cri["restrict_oom_score_adj"] is True
    assert cri["netns_mounts_under_state_dir"] is True
    assert cri["sandbox_image"] == "pause:1"
    assert config["state"].startswith(str(LAYOUT.run))


def test_kubelet_never_collects_images() -> None:
    """There is no registry to get them back from."""
    config = yaml.safe_load(render.kubelet_config(LAYOUT, NODE))

    assert config["imageGCHighThresholdPercent"] == 100
    assert config["evictionHard"] == {}


def test_kubelet_renews_its_lease_well_within_the_grace_period() -> None:
    """A node is renewed each quarter of a lease; at least four must be missed to lose it."""
    lease_s = yaml.safe_load(render.kubelet_config(LAYOUT, NODE))["nodeLeaseDurationSeconds"]
    flags = dict(word.split("=", 1) for word in render.controller_manager(LAYOUT) if "=" in word)
    grace_s = int(flags["--node-monitor-grace-period"].removesuffix("s"))

    assert lease_s / 4 * 4 < grace_s


def test_cni_gives_addresses_of_the_nodes_own_range() -> None:
    """Two nodes must never give out the same address."""
    bridge = json.loads(render.cni_config(LAYOUT, NODE))["plugins"][0]

    assert bridge["ipam"]["ranges"] == [[{"subnet": NODE.pod_range}]]
    assert bridge["ipMasq"] is False


def test_nodes_run_in_their_namespace_without_a_new_sys() -> None:
    """``ip netns exec`` would hide the cgroups from the kubelet."""
    command = render.in_namespace(NODE, ["kubelet"])

    assert command[0] == "nsenter"
    assert command[-1] == "kubelet"


def test_every_volume_is_a_directory_of_its_own_on_the_node_it_names() -> None:
    """A shared directory would show one claim's data to another."""
    manifests = contents.volumes(LAYOUT, NODES)

    assert len({contents.directory(each) for each in manifests}) == len(manifests)
    assert len(manifests) == VOLUMES_PER_NODE * len(NODES)
    for manifest in manifests:
        terms = manifest["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
        (node,) = terms[0]["matchExpressions"][0]["values"]
        assert node in contents.directory(manifest).parts


def test_dns_serves_its_own_node_only() -> None:
    """A node that is cut off must not take a third of everybody's names with it."""
    kinds = {each["kind"]: each for each in contents.dns("coredns:1")}

    assert kinds["Service"]["spec"]["internalTrafficPolicy"] == "Local"
    assert "DaemonSet" in kinds


def test_every_file_a_component_is_told_to_read_is_written() -> None:
    """A path in a command line or a configuration is one of the files, or made by a component."""
    files = dict([*key_files(LAYOUT, NODES), *config_files(LAYOUT, NODES, "pause:1")])
    commands = [render.api_server(LAYOUT), render.controller_manager(LAYOUT)]
    commands += [render.kubelet(LAYOUT, node) for node in NODES]
    words = [word.partition("=")[2] for command in commands for word in command]
    wanted = {Path(word) for word in words if word.startswith(("/state/pki", "/state/config"))}

    assert wanted
    assert wanted <= files.keys()


def test_no_access_key_is_readable_in_a_kubeconfig() -> None:
    """Kubeconfigs name key files, so that they can be shown in diagnostics."""
    assert "PRIVATE" not in render.kubeconfig(LAYOUT, "admin")


def test_what_is_deleted_as_a_whole_has_our_name() -> None:
    """A state directory chosen by the user is a parent, never deleted itself."""
    layout = default_layout({"DLEDGER_E2E_STATE": "/home/me", "XDG_CACHE_HOME": "/home/me"})

    assert layout.state == Path("/home/me/dledger-e2e")
    assert layout.cache == Path("/home/me/dledger-e2e")

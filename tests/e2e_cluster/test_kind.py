"""The commands that a kind cluster would issue; no Docker is needed to read them."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.cluster import docker, golang, kind, lock, oci, tools
from e2e.cluster.errors import ClusterError, CommandFailed, MissingPrerequisite
from e2e.cluster.interface import Pid
from e2e.cluster.layout import OUR_IMAGES, Layout
from e2e.cluster.steps import Steps

NODES = [f"{kind.NAME}-control-plane", *kind.workers()]
STATIC_POD = yaml.safe_dump(
    {"spec": {"containers": [{"command": ["kube-apiserver", "--a=1", "--b=2"]}]}}
)


def node(name: str, number: int) -> dict[str, Any]:
    """A Ready node as the API shows it."""
    return {
        "metadata": {"name": name},
        "spec": {"podCIDR": f"10.244.{number}.0/24"},
        "status": {
            "addresses": [
                {"type": "Hostname", "address": name},
                {"type": "InternalIP", "address": f"172.18.0.{number + 2}"},
            ],
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


POD = {
    "metadata": {"name": "orders-0"},
    "spec": {"nodeName": f"{kind.NAME}-worker2", "containers": [{"name": "node"}]},
    "status": {"containerStatuses": [{"name": "node", "containerID": "containerd://abc"}]},
}
NODE_LIST = {"items": [node(name, number) for number, name in enumerate(NODES)]}


class Recorder:
    """Stands in for `run`: keeps each command line, and answers as a healthy cluster would."""

    def __init__(self) -> None:
        self.commands: list[list[str]] = []
        self.inputs: list[str | None] = []
        self.running = False
        self.image_id = ""
        self.images: list[str] = []
        self.pids = ""
        self.flags: list[str] = []

    def __call__(self, *argv: str | Path, input: str | None = None, **_: object) -> str:  # noqa: A002
        words = [str(each) for each in argv]
        self.commands.append(words)
        self.inputs.append(input)
        if words[:2] in (["kind", "create"], ["kind", "export"]):
            self.running = True
            Path(words[words.index("--kubeconfig") + 1]).touch()
        if "tee" in words:
            self.flags += yaml.safe_load(input or "")["spec"]["containers"][0]["command"]
        return self._answer(" ".join(words))

    def _answer(self, line: str) -> str:
        answers: list[tuple[str, Callable[[], str]]] = [
            ("kind get clusters", lambda: kind.NAME if self.running else ""),
            ("get nodes", lambda: json.dumps(NODE_LIST)),
            ("get deployment", lambda: "2"),
            ("cat /etc/kubernetes/manifests/kube-apiserver.yaml", lambda: STATIC_POD),
            (
                "cat /etc/kubernetes/manifests/kube-controller-manager.yaml",
                lambda: STATIC_POD.replace("kube-apiserver", "kube-controller-manager"),
            ),
            ("cat /proc/[0-9]*/cmdline", lambda: "\n".join(self.flags)),
            ("crictl images", self._images),
            ("docker images", lambda: "\n".join(self.images)),
            ("get pod", lambda: json.dumps(POD)),
            ("/proc/[0-9]*/cgroup", lambda: self.pids),
            ("/readyz", lambda: "ok"),
        ]
        return next((answer() for part, answer in answers if part in line), "")

    def _images(self) -> str:
        named = {"id": self.image_id, "repoTags": ["example.org/x:1"]}
        return json.dumps({"images": [named] if self.image_id else []})

    def lines(self, *parts: str) -> list[str]:
        """The command lines that contain all parts, in order."""
        lines = [" ".join(words) for words in self.commands]
        return [line for line in lines if all(part in line for part in parts)]


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """Every command of the cluster goes here."""
    recorder = Recorder()
    monkeypatch.setattr(kind, "run", recorder)
    monkeypatch.setattr(tools, "run", recorder)
    monkeypatch.setattr(docker, "run", recorder)
    monkeypatch.setattr(tools, "find_kubectl", lambda _: Path("kubectl"))
    monkeypatch.setattr(kind, "require_tools", lambda: None)
    monkeypatch.setattr(kind, "_require_docker", lambda: None)
    monkeypatch.delenv("KIND_NODE_IMAGE", raising=False)
    return recorder


@pytest.fixture
def cluster(tmp_path: Path) -> kind.KindCluster:
    """A cluster whose kubeconfig is where kind would have written it."""
    layout = Layout(state=tmp_path / "state", run=tmp_path / "run", cache=tmp_path / "cache")
    opened = kind.KindCluster(layout, Steps())
    opened.kubeconfig.parent.mkdir(parents=True)
    return opened


def test_config_has_three_workers_in_three_zones() -> None:
    """Groups spread over zones as they do on the local cluster."""
    config = yaml.safe_load(kind.config())

    zones = [each["labels"]["topology.kubernetes.io/zone"] for each in config["nodes"][1:]]
    assert [each["role"] for each in config["nodes"]] == ["control-plane", *["worker"] * 3]
    assert len(set(zones)) == 3


def test_up_creates_the_cluster_once(cluster: kind.KindCluster, recorder: Recorder) -> None:
    """The second `up` finds it healthy and changes nothing."""
    cluster.up()
    cluster.up()

    (create,) = recorder.lines("kind create cluster")
    assert f"--name {kind.NAME}" in create
    assert f"--kubeconfig {cluster.kubeconfig}" in create
    assert "--node-monitor-grace-period=20s" in recorder.flags
    assert "--default-unreachable-toleration-seconds=30" in recorder.flags


def test_up_goes_on_where_another_one_was_killed(
    cluster: kind.KindCluster, recorder: Recorder
) -> None:
    """Half of its time is a restart for flags, without which a lost node stays for minutes."""
    cluster.up()
    recorder.flags = []
    recorder.commands = []

    cluster.up()

    assert recorder.lines("kind create cluster") == []
    assert "--node-monitor-grace-period=20s" in recorder.flags


def test_a_cluster_of_another_cache_is_taken_and_not_deleted(
    cluster: kind.KindCluster, recorder: Recorder
) -> None:
    """As with sudo, whose home is another one, or after the cache was deleted."""
    cluster.up()
    cluster.kubeconfig.unlink()

    cluster.up()

    assert len(recorder.lines("kind create cluster")) == 1
    assert recorder.lines("kind delete") == []


def test_a_cluster_that_another_process_uses_is_not_taken_from_it(
    cluster: kind.KindCluster, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A story of that one has stopped the API server: to us it looks broken."""
    recorder.running = True
    monkeypatch.setattr(cluster, "is_up", lambda: False)
    monkeypatch.setattr(lock, "used_elsewhere", lambda _: True)

    for take in (cluster.up, cluster.down, cluster.purge):
        with pytest.raises(ClusterError, match="another process uses the cluster"):
            take()

    assert recorder.lines("kind delete") == []


@pytest.mark.parametrize("cut", [(), (0,), (0, 1, 2, 3), (0, 0, 1), (2, 3)])
def test_a_node_is_connected_however_far_it_was_cut_off(
    cut: tuple[int, ...], cluster: kind.KindCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A story may be ended between two rules, and a kubelet's own rules stay."""
    rules = ["INPUT -j KUBE-FIREWALL", *(kind._CUT[each] for each in cut)]

    def play(*argv: str, **_: object) -> str:
        if "-S" in argv:
            return "".join(f"-A {rule}\n" for rule in rules)
        for command in argv[-1].split(" && "):
            rules.remove(command.removeprefix("iptables -D "))
        return ""

    monkeypatch.setattr(kind, "run", play)

    cluster.connect("worker")

    assert rules == ["INPUT -j KUBE-FIREWALL"]


def test_an_image_that_cannot_be_pulled_is_told_with_the_other_way(
    cluster: kind.KindCluster, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An air gap, or a registry's limit: nothing that a second try would mend."""

    def fail(*argv: str | Path, **options: Any) -> str:
        if "create" in argv:
            said = 'ERROR: failed to create cluster: failed to pull image "kindest/node:v1"'
            raise CommandFailed(("kind", "create"), 1, said)
        return recorder(*argv, **options)

    monkeypatch.setattr(kind, "run", fail)

    with pytest.raises(MissingPrerequisite, match="kind_image run"):
        cluster.up()


def test_nothing_of_the_host_is_changed(cluster: kind.KindCluster, recorder: Recorder) -> None:
    """No routes, no sudo: whoever may use Docker may have the cluster, wherever its bridge is."""
    cluster.up()

    assert {words[0] for words in recorder.commands} <= {"kind", "docker", "kubectl"}


def test_the_control_plane_is_restarted_once_for_all_flags(
    cluster: kind.KindCluster, recorder: Recorder
) -> None:
    """A restart takes half a minute: all manifests change at once, then they are waited for."""
    cluster.up()

    lines = [" ".join(words) for words in recorder.commands]
    (moved,) = [number for number, line in enumerate(lines) if " mv " in line]
    asked = [number for number, line in enumerate(lines) if "/cmdline" in line]
    assert lines[moved].count("mv ") == len(kind.FLAGS) == 2
    assert asked
    assert moved < min(asked)


def test_a_process_is_found_and_killed_by_its_node(
    cluster: kind.KindCluster, recorder: Recorder
) -> None:
    """This machine's /proc is another one's where Docker is in a virtual machine, or rootless."""
    recorder.pids = "900 12\n812 1\n"

    found = cluster.container_pids("ns", "orders-0")
    cluster.kill_pid(found[0])

    assert found == [Pid(812, f"{kind.NAME}-worker2"), Pid(900, f"{kind.NAME}-worker2")]
    (killed,) = recorder.lines("kill -9 812")
    assert killed.startswith(f"docker exec {kind.NAME}-worker2 ")
    recorder.pids = ""
    with pytest.raises(ClusterError, match="no process"):
        cluster.container_pids("ns", "orders-0")


def test_purge_takes_what_is_ours_and_nothing_else(
    cluster: kind.KindCluster, recorder: Recorder, capsys: pytest.CaptureFixture[str]
) -> None:
    """The cache is the local cluster's, too, with what its purge restores the machine by."""
    others = cluster.layout.packages
    others.write_text("[]")
    capsys.readouterr()
    ours = [f"{name}:0.1.0-{number}" for number, name in enumerate(OUR_IMAGES)]
    recorder.images = [*ours, "postgres:17", f"{OUR_IMAGES[0]}-of-somebody:1"]
    recorder.running = False

    cluster.purge()

    removed = [line.split()[-1] for line in recorder.lines("docker image rm")]
    assert removed == ours
    assert recorder.lines("docker network rm kind")
    assert others.exists()
    assert not cluster.kubeconfig.parent.exists()
    assert "purge --cluster local` removes it" in capsys.readouterr().err
    others.unlink()
    cluster.purge()
    assert not cluster.layout.cache.exists()


def test_purge_leaves_the_network_of_another_cluster(
    cluster: kind.KindCluster, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of kind's clusters have the same one."""
    monkeypatch.setattr(kind, "clusters", lambda: ["somebodys"])

    cluster.purge()

    assert recorder.lines("network rm") == []


def test_down_deletes_only_a_cluster_that_is_there(
    cluster: kind.KindCluster, recorder: Recorder
) -> None:
    """And never one of another name."""
    cluster.down()
    assert recorder.lines("kind delete") == []

    recorder.running = True
    cluster.down()
    assert len(recorder.lines("kind delete cluster", f"--name {kind.NAME}")) == 1


def test_image_is_loaded_into_the_workers_that_lack_it(
    cluster: kind.KindCluster, recorder: Recorder, tmp_path: Path
) -> None:
    """Not at all when every worker has that image."""
    archive = tmp_path / "image.tar"
    archive.write_bytes(oci.archive("example.org/x:1", b"program", machine="x86_64"))

    cluster.load_image(archive, "example.org/x:1")
    recorder.image_id = oci.config_digest(archive)
    cluster.load_image(archive, "example.org/x:1")

    (load,) = recorder.lines("kind load image-archive")
    assert load.endswith(f"--nodes {','.join(kind.workers())}")


def test_an_image_for_one_node_is_loaded_into_that_node_only(
    cluster: kind.KindCluster, recorder: Recorder, tmp_path: Path
) -> None:
    """Spark's is a gigabyte."""
    archive = tmp_path / "image.tar"
    archive.write_bytes(oci.archive("example.org/x:1", b"program", machine="x86_64"))

    cluster.load_image(archive, "example.org/x:1", [cluster.heavy_node])

    (load,) = recorder.lines("kind load image-archive")
    assert load.endswith(f"--nodes {cluster.heavy_node}")
    assert cluster.heavy_node in kind.workers()


def test_an_archive_of_an_older_docker_is_loaded_once_too(
    cluster: kind.KindCluster, recorder: Recorder, tmp_path: Path
) -> None:
    """It has no OCI index; its image's id is in the name of the configuration's file."""
    archive = tmp_path / "image.tar"
    listed = json.dumps([{"Config": "abc.json", "RepoTags": ["example.org/x:1"]}]).encode()
    with tarfile.open(archive, "w") as opened:
        entry = tarfile.TarInfo("manifest.json")
        entry.size = len(listed)
        opened.addfile(entry, io.BytesIO(listed))
    recorder.image_id = "sha256:abc"

    cluster.load_image(archive, "example.org/x:1")

    assert recorder.lines("kind load") == []


def test_api_server_is_stopped_and_started_by_its_manifest(
    cluster: kind.KindCluster, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kubelet of the control plane does the rest; starting twice is no error."""
    monkeypatch.setattr(cluster, "_api_answers", lambda: False)
    cluster.stop_api_server()
    monkeypatch.setattr(cluster, "_api_answers", lambda: True)
    cluster.start_api_server()

    moves = recorder.lines("docker exec", "mv ")
    assert f"mv {kind.API_SERVER} {kind.API_SERVER_ASIDE}" in moves[0]
    assert "! test -e" in moves[1]


def test_flags_replace_those_of_the_same_name() -> None:
    """Twice the same flag would leave it to the component which one counts."""
    changed = yaml.safe_load(kind.with_flags(STATIC_POD, "kube-apiserver", {"b": "3", "c": "4"}))

    command = changed["spec"]["containers"][0]["command"]
    assert command == ["kube-apiserver", "--a=1", "--b=3", "--c=4"]


def test_flags_are_not_given_to_another_component() -> None:
    """Should kubeadm ever wrap the command, we stop rather than break its manifest."""
    with pytest.raises(ClusterError, match="expected the command kubelet"):
        kind.with_flags(STATIC_POD, "kubelet", {})


def test_first_container_is_the_one_the_spec_lists_first() -> None:
    """Statuses are sorted by name, sidecars may come first there."""
    status = [
        {"name": "a-sidecar", "containerID": "containerd://111"},
        {"name": "node", "containerID": "containerd://222"},
    ]
    pod = {
        "metadata": {"name": "orders-0"},
        "spec": {"containers": [{"name": "node"}, {"name": "a-sidecar"}]},
        "status": {
            "containerStatuses": status,
            "initContainerStatuses": [{"name": "spool", "containerID": "containerd://333"}],
        },
    }

    assert tools.id_of_container(pod) == "222"
    assert tools.id_of_container(pod, "spool") == "333"
    with pytest.raises(ClusterError, match="has not started"):
        tools.id_of_container({**pod, "status": {}})


@pytest.mark.parametrize(
    ("printed", "new"),
    [
        ('"gitVersion": "v1.31.0"', True),
        ('"gitVersion": "v1.30.9"', False),
        ('"gitVersion": "v1.32.4-dispatcher"', True),
        ("", False),
    ],
)
def test_an_old_kubectl_is_not_used(printed: str, new: bool) -> None:
    """One minor version of skew is supported; three are what we know to work."""
    assert tools.is_new_kubectl(printed) is new


def test_helm_and_kubectl_are_built_from_pinned_modules() -> None:
    """A checksum for everything that is downloaded."""
    for program in (
        golang.HELM,
        golang.KUBECTL,
        golang.ETCD,
        golang.COREDNS,
        golang.PROMETHEUS,
        golang.VERSITYGW,
    ):
        assert (golang.MODULES / program.module / "go.sum").exists()

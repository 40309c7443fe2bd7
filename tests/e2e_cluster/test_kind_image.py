"""What a node image of kind's is made of where none can be pulled; read without Docker."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import tarfile
from io import BytesIO
from pathlib import Path

import pytest
import yaml

from e2e.cluster import golang, image, lock, mounts, oci
from e2e.cluster.errors import MissingPrerequisite
from e2e.cluster.kind_image import __main__ as command_line
from e2e.cluster.kind_image import contents, daemon, node, person, places
from e2e.cluster.layout import Layout, default_layout
from e2e.cluster.steps import Steps

LISTED = """\
registry.k8s.io/kube-apiserver:v1.34.4
registry.k8s.io/kube-proxy:v1.34.4
registry.k8s.io/coredns/coredns:v1.12.1
registry.k8s.io/pause:3.10.1
registry.k8s.io/etcd:3.6.5-0
"""


def test_each_image_that_kubeadm_asks_for_is_one_of_ours() -> None:
    """And the pause image that the runtime asks for, which is another version."""
    names = contents.names_by_image(LISTED, "registry.k8s.io/pause:3.10")

    assert names == {
        "pause": ["registry.k8s.io/pause:3.10", "registry.k8s.io/pause:3.10.1"],
        "coredns": ["registry.k8s.io/coredns/coredns:v1.12.1"],
        "kubernetes": [
            contents.AGENT,
            "registry.k8s.io/kube-apiserver:v1.34.4",
            "registry.k8s.io/kube-proxy:v1.34.4",
            "registry.k8s.io/etcd:3.6.5-0",
        ],
    }


def test_an_archive_has_every_image_by_each_of_its_names() -> None:
    """Names of one image have one manifest, and a node keeps its layer once."""
    layer = oci.program_layer(b"program")
    made = oci.several([(["a:1", "b:1"], layer, []), (["c:1"], layer, ["/program"])], machine="x")

    with tarfile.open(fileobj=BytesIO(made)) as opened:
        member = opened.extractfile("index.json")
        assert member is not None
        listed = json.load(member)["manifests"]
        blobs = [each for each in opened.getnames() if each.startswith(oci.BLOBS)]

    digests = {each["annotations"]["io.containerd.image.name"]: each["digest"] for each in listed}
    assert digests["a:1"] == digests["b:1"] != digests["c:1"]
    assert len(blobs) == 1 + 2 + 2


def test_what_a_program_needs_of_a_debian_is_found_through_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alternatives are absolute links, directories are merged, and libraries are links, too."""
    for path in ("usr/sbin/xtables-multi", "usr/lib/x86_64-linux-gnu/libx.so.1.2"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch(0o755)
    (tmp_path / "etc/alternatives").mkdir(parents=True)
    for link, target in (
        ("lib", "usr/lib"),
        ("sbin", "usr/sbin"),
        ("usr/sbin/iptables", "/etc/alternatives/iptables"),
        ("etc/alternatives/iptables", "/usr/sbin/xtables-multi"),
        ("usr/lib/x86_64-linux-gnu/libx.so.1", "libx.so.1.2"),
    ):
        (tmp_path / link).symlink_to(target)
    says = "libx.so.1 => /lib/x86_64-linux-gnu/libx.so.1 (0x0000)"
    monkeypatch.setattr(contents, "run", lambda *_, **__: says)

    found = {str(path) for path in contents.find_needed(tmp_path)}

    assert {
        "usr/sbin/iptables",
        "etc/alternatives/iptables",
        "usr/sbin/xtables-multi",
        "usr/lib/x86_64-linux-gnu/libx.so.1",
        "usr/lib/x86_64-linux-gnu/libx.so.1.2",
        "lib",
    } <= found


def test_capabilities_that_a_machine_does_not_give_are_named() -> None:
    """Bit 24 of the bounding set is CAP_SYS_RESOURCE (capability.h)."""
    assert daemon.capabilities_lacking("CapEff:\t0\nCapBnd:\t000001fffeffffff\n", 40) == [
        "CAP_SYS_RESOURCE"
    ]
    assert daemon.capabilities_lacking("CapBnd:\t000001ffffffffff\n", 40) == []


def test_the_wrapper_takes_them_out_of_what_docker_asks_for(tmp_path: Path) -> None:
    """And runs the real one with the same words."""
    fake = tmp_path / "bin" / "runc"
    fake.parent.mkdir()
    fake.write_text('#!/bin/sh\necho "$@"\n')
    fake.chmod(0o755)
    script = tmp_path / "wrapper"
    script.write_text(daemon.wrapper(["CAP_SYS_RESOURCE", "CAP_BPF"]))
    config = tmp_path / "config.json"
    config.write_text('["CAP_CHOWN","CAP_SYS_RESOURCE","CAP_BPF","CAP_KILL"]')

    ran = subprocess.run(
        ["sh", script, "create", "--bundle", tmp_path, "id"],
        env={"PATH": f"{fake.parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )

    assert ran.stdout == f"create --bundle {tmp_path} id\n"
    assert config.read_text() == '["CAP_CHOWN","CAP_KILL"]'


def test_containers_of_a_node_have_kinds_hook_and_no_limits() -> None:
    """As kind's Dockerfile makes of what the runtime prints."""
    spec = json.loads(node.runtime_spec('{"process": {"rlimits": [1], "cwd": "/"}}'))

    assert spec["process"] == {"cwd": "/"}
    assert spec["hooks"]["createContainer"] == [{"path": "/kind/bin/mount-product-files.sh"}]
    assert node.pause_image('x\n  sandbox_image = "registry/pause:3.10"\n') == "registry/pause:3.10"
    with pytest.raises(ValueError, match="sandbox_image"):
        node.pause_image("")


def test_the_nodes_run_the_kubernetes_of_the_local_cluster() -> None:
    """And kubeadm is of the same version, from a module of its own."""
    go_mod = (golang.MODULES / golang.KUBEADM.module / "go.mod").read_text()

    assert golang.required_version(go_mod, "k8s.io/kubernetes") == node.version()
    assert f"gitVersion={node.version()}" in golang.linker_flags(golang.KUBEADM, go_mod)
    for program in places.PROGRAMS:
        assert (golang.MODULES / program.module / "go.mod").exists()


def test_manifests_name_the_image_that_a_node_has() -> None:
    """Nothing is pulled, and the class is the default one."""
    *_, agent = yaml.safe_load_all(contents.network())
    (storage_class,) = yaml.safe_load_all(contents.storage())
    (container,) = agent["spec"]["template"]["spec"]["containers"]

    assert (container["image"], container["imagePullPolicy"]) == (contents.AGENT, "Never")
    assert storage_class["provisioner"] in (golang.MODULES / "kindnode/main.go").read_text()


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> places.Places:
    """A cache with something of ours in it, and the one that the command line takes."""
    layout = Layout(state=tmp_path / "state", run=tmp_path / "run", cache=tmp_path / "cache")
    monkeypatch.setattr(command_line, "default_layout", lambda: layout)
    monkeypatch.setattr(command_line, "require_root", lambda: None)
    monkeypatch.setattr(daemon, "NAMESPACES", tmp_path / "netns")  # a real one may be in use
    found = places.Places(layout)
    found.top.mkdir(parents=True)
    return found


def test_purge_takes_what_docker_makes_elsewhere_and_nobody_elses(
    made: places.Places, tmp_path: Path
) -> None:
    """Whatever it is told, it writes a key and makes directories; some may have been there."""
    (tmp_path / "opt/containerd/bin").mkdir(parents=True)
    for hierarchy in ("memory", "pids"):
        (tmp_path / "sys/fs/cgroup" / hierarchy).mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/pids/docker").mkdir()

    daemon.note_strays(made, tmp_path)
    (tmp_path / "sys/fs/cgroup/memory/docker/buildkit").mkdir(parents=True)
    for each in ("etc/docker", "opt/containerd/lib", "run/docker/plugins"):
        (tmp_path / each).mkdir(parents=True)
    (tmp_path / "etc/docker/key.json").touch()
    (tmp_path / "run/docker/somebodys").touch()
    daemon.note_strays(made, tmp_path)
    daemon.clear_strays(made, tmp_path)

    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")}
    assert {each for each in left if not each.startswith("cache")} == {
        *("etc", "opt", "opt/containerd", "opt/containerd/bin"),
        *("run", "run/docker", "run/docker/somebodys"),
        *("sys", "sys/fs", "sys/fs/cgroup", "sys/fs/cgroup/pids", "sys/fs/cgroup/pids/docker"),
    }


def test_containers_of_a_killed_docker_are_ended_by_the_next_one(
    made: places.Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else their processes outlive all that is said to have been removed."""
    mountinfo = made.top / "mountinfo"
    mountinfo.write_text(f"30 1 0:1 / {made.docker_data}/overlay2/ab/merged rw - overlay x rw\n")
    asked: list[str] = []

    def ask(_: places.Places, *args: str) -> str:
        asked.append(args[0])
        return "abc"

    monkeypatch.setattr(mounts, "MOUNTINFO", mountinfo)
    monkeypatch.setattr(mounts, "delete", lambda _: None)
    monkeypatch.setattr(daemon, "answers", lambda _: "start" in asked)
    monkeypatch.setattr(daemon, "start", lambda *_: asked.append("start"))
    monkeypatch.setattr(daemon, "docker", ask)
    monkeypatch.setattr(daemon, "_end", lambda _: asked.append("end"))

    daemon.stop(made, Steps())

    assert asked == ["start", "ps", "rm", "end"]


def test_a_namespace_that_lost_its_name_gets_it_again(
    made: places.Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen: somebody deleted the name, and the Docker in it could not be reached any more."""
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(daemon, "answers", lambda _: True)
    monkeypatch.setattr(daemon, "_pid", lambda _: 4711)
    monkeypatch.setattr(daemon, "run", lambda *words: asked.append(words))

    daemon.start(made, Steps())
    (tmp_path / "netns" / places.NAMESPACE).mkdir(parents=True)
    daemon.start(made, Steps())

    assert asked == [("ip", "netns", "attach", places.NAMESPACE, "4711")]


def test_it_is_not_ended_under_a_command_that_runs_there(
    made: places.Places, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another checkout's `down` would take its cluster away."""
    monkeypatch.setattr(daemon, "stop", lambda *_: pytest.fail("it was ended"))
    monkeypatch.setattr(lock, "used_elsewhere", lambda path: path == made.uses)

    assert command_line.main(["down"]) == 1
    assert "another process uses the cluster" in capsys.readouterr().err


def test_purge_says_what_it_leaves(
    made: places.Places, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What it built and installed is the local cluster's, too."""
    monkeypatch.setattr(daemon, "stop", lambda *_: None)

    assert command_line.main(["purge"]) == 0

    assert not made.top.exists()
    assert "e2e.cluster purge --cluster local` removes them" in capsys.readouterr().err


@pytest.mark.parametrize("stories", [True, False])
def test_what_is_fetched_is_fetched_before_there_is_no_network(
    stories: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A story that asks for Prometheus would build it where no module can be had."""
    asked: set[str] = set()
    recipes = (image.NODE, image.WORKLOAD, image.SPARK)
    monkeypatch.setattr(golang, "ensure", lambda _, program, __: asked.add(program.name))
    monkeypatch.setattr(image, "build", lambda recipe, *_: asked.add(recipe.stem))
    monkeypatch.setattr(daemon, "images", lambda _: {each.base.name for each in recipes})
    monkeypatch.setattr(command_line, "find_kubectl", lambda _: asked.add("kubectl"))

    command_line._provide_offline(Steps(), stories=stories)

    of_stories = {"dledger-spark", "prometheus", "versitygw"}
    assert {"dledger", "dledger-workload", "helm", "kubectl"} <= asked
    assert asked & of_stories == (of_stories if stories else set())


def test_run_wants_a_command_and_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 2 each, before anything is made."""
    monkeypatch.setattr(command_line, "provide", lambda *_: pytest.fail("something was made"))
    monkeypatch.setattr(command_line, "require_root", lambda: None)
    assert command_line.main(["run"]) == 2

    def refuse() -> None:
        raise MissingPrerequisite("as root")

    monkeypatch.setattr(command_line, "require_root", refuse)
    assert command_line.main(["build"]) == 2


def test_a_user_is_one_who_may_write_what_he_runs_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else his `make` fails at its first file, minutes later; root is what there was."""
    owner = tmp_path.stat().st_uid
    known = {"root": 0, "ann": owner or 1000, "bob": 4711}

    def find(name: str) -> pwd.struct_passwd:
        return pwd.struct_passwd((name, "x", known[name], 100, "", f"/home/{name}", "/bin/sh"))

    monkeypatch.setattr(pwd, "getpwnam", find)
    if not owner:
        os.chown(tmp_path, known["ann"], -1)

    assert person.find("ann", tmp_path) == person.Person(
        "ann", known["ann"], 100, Path("/home/ann")
    )
    for name, word in (("carl", "useradd"), ("root", "--user root"), ("bob", "chown -R bob")):
        with pytest.raises(MissingPrerequisite, match=word):
            person.find(name, tmp_path)


def test_a_user_is_given_what_he_cannot_fetch(
    made: places.Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a cache of his own, with this Docker's socket; nothing names a directory of root's."""
    ann = person.Person("ann", 1000, 100, tmp_path / "ann")
    ours = {
        "PATH": "/bin",
        "XDG_CACHE_HOME": "/root/x",
        "DOCKER_CONFIG": "/root/y",
        "HOME": "/root",
    }
    theirs = default_layout(person.environment(ann, ours))
    owned: dict[Path, tuple[int, int]] = {}
    monkeypatch.setattr(os, "chown", lambda path, *whose: owned.update({path: whose}))
    monkeypatch.setattr(places.Places, "socket", tmp_path / "docker.sock")
    (tmp_path / "docker.sock").touch(0o600)
    helm = golang.built(made.layout, golang.HELM)
    helm.parent.mkdir(parents=True)
    helm.write_text("helm")

    person.let(ann, made)

    given = golang.built(theirs, golang.HELM)
    assert given.read_text() == "helm"
    assert owned[given] == owned[theirs.cache] == (1000, 100)
    assert not golang.built(theirs, golang.KUBECTL).exists()
    assert (tmp_path / "docker.sock").stat().st_mode & 0o777 == 0o660
    assert owned[tmp_path / "docker.sock"] == (-1, 100)
    words = person.inside(ann, "make", "demo")
    assert words[-5:] == ["--setuid", "1000", "--", "make", "demo"]

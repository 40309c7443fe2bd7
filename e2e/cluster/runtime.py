"""One node's containerd: is it there, and which images does it have."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from e2e.cluster import golang, oci
from e2e.cluster.layout import ClusterNode, Layout
from e2e.cluster.shell import run, until

IMPORT_TIMEOUT_S = 300.0
NOTICE_TIMEOUT_S = 10.0
NOTICED = "io.cri-containerd.image=managed"


def system_image(layout: Layout, program: golang.Program) -> tuple[str, Path]:
    """Return name and archive of the image of one Go program, written once for each version."""
    version = golang.key(program)
    name = f"dledger.io/e2e-{program.name}:{version}"
    path = layout.images / f"{program.name}-{version}.tar"
    if not path.exists():
        layout.images.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}.partial")
        content = golang.built(layout, program).read_bytes()
        partial.write_bytes(oci.archive(name, content, machine=platform.machine()))
        partial.rename(path)
    return name, path


class Runtime:
    """containerd's command line, as far as images go."""

    def __init__(self, layout: Layout, node: ClusterNode) -> None:
        self._layout = layout
        self._node = node

    def answers(self) -> bool:
        """Say whether it takes requests."""
        socket = self._layout.containerd_socket(self._node)
        return socket.exists() and bool(self._ctr("version", check=False))

    def load(self, archive: Path, name: str) -> None:
        """Have the archive's image by that name; return when the kubelet can see it.

        Raises:
            TimedOut: when the archive holds no image of that name.
        """
        wanted = oci.manifest_digest(archive)
        if wanted is not None and oci.listed_digest(self._listed(name), name) == wanted:
            return
        self._import_missing(archive)
        until(
            f"{self._node.name} to have {name}; is that the image's name in {archive}?",
            lambda: NOTICED in self._listed(name),
            timeout_s=NOTICE_TIMEOUT_S,
        )

    def alias(self, name: str, alias: str) -> None:
        """Give an image a second name."""
        self._ctr("images", "tag", "--force", name, alias)
        until(
            f"{self._node.name} to have {alias}",
            lambda: NOTICED in self._listed(alias),
            timeout_s=NOTICE_TIMEOUT_S,
        )

    def _import_missing(self, archive: Path) -> None:
        """Import an archive, but not those layers that came with an earlier image."""
        present = set(self._ctr("content", "ls", "--quiet").split())
        if not present & oci.blobs(archive):
            self._ctr("images", "import", str(archive))
            return
        thin = self._layout.node_run(self._node) / f"import-{os.getpid()}.tar"
        oci.write_without(archive, present, thin)
        try:
            self._ctr("images", "import", str(thin))
        finally:
            thin.unlink()

    def _listed(self, name: str) -> str:
        return self._ctr("images", "ls", f"name=={name}")

    def _ctr(self, *args: str, check: bool = True) -> str:
        address = f"--address={self._layout.containerd_socket(self._node)}"
        return run(
            "ctr", address, "--namespace=k8s.io", *args, check=check, timeout_s=IMPORT_TIMEOUT_S
        )

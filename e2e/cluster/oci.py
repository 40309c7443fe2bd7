"""Reads and writes OCI archives; pause and CoreDNS need no other builder than this.

Source: OCI image layout and image manifest specifications, version 1.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BLOBS = "blobs/sha256"
LAYER = "application/vnd.oci.image.layer.v1.tar"
CONFIG = "application/vnd.oci.image.config.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
SEARCH_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True, slots=True)
class Blob:
    """Some bytes and what they are."""

    media_type: str
    data: bytes

    @property
    def digest(self) -> str:
        """The content address, ``sha256:<hex>``."""
        return f"sha256:{hashlib.sha256(self.data).hexdigest()}"

    def descriptor(self) -> dict[str, object]:
        """How other parts of the image refer to these bytes."""
        return {"mediaType": self.media_type, "digest": self.digest, "size": len(self.data)}


def archive(name: str, program: bytes, *, machine: str) -> bytes:
    """Return an OCI archive whose image is *program* at ``/program``. Same input, same bytes.

    Args:
        name: the image's name with its tag.
        program: a statically linked executable.
        machine: the architecture as the kernel names it.
    """
    return several([([name], program_layer(program), ["/program"])], machine=machine)


def program_layer(program: bytes) -> bytes:
    """Return a layer that has only *program*, at ``/program``."""
    return _tar({"program": program}, mode=0o755)


def several(images: Sequence[tuple[Sequence[str], bytes, Sequence[str]]], *, machine: str) -> bytes:
    """Return an OCI archive of images of one layer each.

    Args:
        images: for each its names, its layer (a tar) and what it runs; nothing: it is told what.
        machine: the architecture as the kernel names it.
    """
    files: dict[str, bytes] = {}
    listed: list[dict[str, object]] = []
    for names, tar, entry in images:
        layer = Blob(LAYER, tar)
        config = _json(
            CONFIG,
            {
                "architecture": ARCHITECTURES.get(machine, machine),
                "os": "linux",
                "config": {"Entrypoint": list(entry)} if entry else {"Env": [SEARCH_PATH]},
                "rootfs": {"type": "layers", "diff_ids": [layer.digest]},
            },
        )
        manifest = _json(
            MANIFEST,
            {
                "schemaVersion": 2,
                "mediaType": MANIFEST,
                "config": config.descriptor(),
                "layers": [layer.descriptor()],
            },
        )
        files |= {f"{BLOBS}/{each.digest[7:]}": each.data for each in (layer, config, manifest)}
        listed += [_descriptor(name, manifest) for name in names]
    return _tar({**files, **_index(listed)}, mode=0o644)


def _descriptor(name: str, manifest: Blob) -> dict[str, object]:
    names = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name}
    return {**manifest.descriptor(), "annotations": names}


def _index(manifests: Sequence[Mapping[str, object]]) -> dict[str, bytes]:
    index = {"schemaVersion": 2, "manifests": list(manifests)}
    layout = b'{"imageLayoutVersion":"1.0.0"}'
    return {"index.json": json.dumps(index).encode(), "oci-layout": layout}


def manifest_digest(path: Path) -> str | None:
    """Return the digest of the one image in an archive, None if it has no OCI index."""
    with tarfile.open(path) as opened:
        if "index.json" not in opened.getnames():
            return None
        member = opened.extractfile("index.json")
        assert member is not None, "an index that is a directory"
        return str(json.load(member)["manifests"][0]["digest"])


def config_digest(path: Path) -> str:
    """Return the digest of the configuration of the one image in an archive, whoever wrote it.

    It is what Kubernetes calls the image's id. Older Dockers write no OCI index.
    """
    with tarfile.open(path) as opened:
        if "manifest.json" in opened.getnames():  # Docker's, in each of its formats
            return f"sha256:{Path(_member(opened, 'manifest.json')[0]['Config']).stem}"
        manifest = _member(opened, "index.json")["manifests"][0]["digest"]
        return str(_member(opened, f"{BLOBS}/{manifest[7:]}")["config"]["digest"])


def _member(opened: tarfile.TarFile, name: str) -> Any:
    member = opened.extractfile(name)
    assert member is not None, f"{name} is a directory"
    return json.load(member)


def blobs(path: Path) -> set[str]:
    """Return the digests of all blobs that an archive holds."""
    with tarfile.open(path) as opened:
        return {digest for entry in opened if (digest := _blob_digest(entry.name)) is not None}


def write_without(path: Path, present: Set[str], out: Path) -> None:
    """Copy an archive, leaving out the blobs that its reader has already."""
    with tarfile.open(path) as whole, tarfile.open(out, "w") as thin:
        for entry in whole:
            if _blob_digest(entry.name) not in present:
                thin.addfile(entry, whole.extractfile(entry) if entry.isfile() else None)


def _blob_digest(member: str) -> str | None:
    prefix, _, digest = member.rpartition("/")
    return f"sha256:{digest}" if prefix == BLOBS else None


def listed_digest(listing: str, name: str) -> str | None:
    """Return an image's digest from what ``ctr images ls`` prints, None if it is not there."""
    for line in listing.splitlines():
        columns = line.split()
        if len(columns) > 2 and columns[0] == name:
            return columns[2]
    return None


def _json(media_type: str, value: object) -> Blob:
    return Blob(media_type, json.dumps(value, sort_keys=True).encode())


def _tar(files: Mapping[str, bytes], *, mode: int) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as opened:
        for path, data in files.items():
            entry = tarfile.TarInfo(path)
            entry.size = len(data)
            entry.mode = mode
            opened.addfile(entry, io.BytesIO(data))
    return out.getvalue()

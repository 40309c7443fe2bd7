"""Certificates for whole nodes, issued as the operator does, in directories like Secrets."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import grpc
import grpc.aio

from dledger.rpc.channel import PEER_OPTIONS
from dledger_operator.cluster import issuing
from dledger_operator.cluster.issuing import Dates, Identity, Pair
from dledger_operator.decisions.certificates import LEAF_S


def dates() -> Dates:
    """Return the dates of a certificate of now."""
    return Dates(time.time() - 60, time.time())


class Mounted:
    """A directory whose files are replaced all at once, by a symlink, as kubelets do.

    Attributes:
        authorities: All that are trusted; the last one signs.
        group: What certificates say of the group; empty: nothing, as those of before.
    """

    def __init__(self, path: Path, group: str = "") -> None:
        self.path, self.group = path, group
        self.authorities = [issuing.new_authority("orders", dates())]
        self._writes = 0
        path.mkdir()

    @property
    def trusted(self) -> bytes:
        return b"".join(each.chain for each in self.authorities)

    def issue(self, role: str, *hosts: str) -> Pair:
        """Return a certificate of now."""
        hosts += tuple(f"{host}.{self.domain}" for host in hosts if self.domain)
        return issuing.issue(self.authorities[-1], Identity(role, hosts, self.group), dates())

    @property
    def domain(self) -> str:
        """The domain of the members' hosts; empty without a group."""
        return self.group.partition("/")[2]

    def member(self, name: str) -> Pair:
        """Return the certificate of a member."""
        return self.issue(f"member/{name}", name)

    def write(
        self, pairs: dict[str, Pair], mode: str = "required", *, is_bound: bool = False
    ) -> None:
        """Replace all files: the bundle, the mode, and these pairs by name.

        *is_bound*: no certificate without the group is believed any more.
        """
        files = {"ca.crt": self.trusted, "mode": mode.encode()}
        files |= {"group": self.group.encode()} if is_bound else {}
        for name, pair in pairs.items():
            files |= {f"{name}.crt": pair.chain, f"{name}.key": pair.key}
        self.replace(files)

    def replace(self, files: dict[str, bytes]) -> None:
        """Replace all files."""
        self._writes += 1
        fresh, link = self.path / f"..{self._writes}", self.path / "..data"
        fresh.mkdir()
        for name, text in files.items():
            (fresh / name).write_bytes(text)
        before = link.resolve() if link.exists() else None
        swap = self.path / "..swap"
        swap.symlink_to(fresh.name)
        swap.rename(link)
        for name in files:
            if not (self.path / name).is_symlink():
                (self.path / name).symlink_to(Path("..data") / name)
        if before is not None:
            shutil.rmtree(before)

    def channel(self, address: str, name: str, pair: Pair | None) -> grpc.aio.Channel:
        """Return a channel that shows *pair*, to the member *name*."""
        shown = (pair.key, pair.chain) if pair else (None, None)
        return grpc.aio.secure_channel(
            address,
            grpc.ssl_channel_credentials(self.trusted, *shown),
            options=(*PEER_OPTIONS, ("grpc.ssl_target_name_override", name)),
        )


def ended_certificate(mounted: Mounted, role: str, host: str) -> Pair:
    """Return a certificate of the group's authority that ended a minute ago."""
    now_s = time.time()
    long_ago = Dates(now_s - 60, now_s - LEAF_S - 60)
    return issuing.issue(mounted.authorities[-1], Identity(role, (host,)), long_ago)

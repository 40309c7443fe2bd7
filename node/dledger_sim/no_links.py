"""Nodes without links to their leader: those of a simulated group, or of one behind gRPC."""

from __future__ import annotations

from dledger.link.leader_link import LeaderLink
from dledger.rpc.peer_tls import PeerChannel
from dledger.types import Member


class NoLinks:
    """Implements `LeaderLinks`; all requests are forwarded by gRPC calls, as to an older leader."""

    def follow(self, leader: tuple[Member, PeerChannel] | None) -> None:
        """Keep none."""

    def to(self, leader: Member) -> LeaderLink | None:
        """Return None."""
        del leader
        return None

    def cancel_streams(self) -> None:
        """End none."""

    async def close(self) -> None:
        """End none."""

"""Nodes without links to their leader: those of a simulated group, or of one behind gRPC."""

from __future__ import annotations

import asyncio

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

    def needs_calls(self, leader: Member) -> bool:
        """Return True."""
        del leader
        return True

    async def wait_change(self, timeout_s: float) -> None:
        """Wait: nothing changes."""
        await asyncio.sleep(timeout_s)

    def cancel_streams(self) -> None:
        """End none."""

    async def close(self) -> None:
        """End none."""

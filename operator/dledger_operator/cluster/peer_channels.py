"""Connections to the peer ports of one group's nodes: over TLS with the group's credentials.

A node is verified by the host of its pod, whatever its address is. Where the group still accepts
plain text, it is looked before each question whether a node speaks TLS, and one that does not is
asked in plain text: a node that takes both would answer that for ever. Used by `nodes`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from dledger.client import AdminClient, MutualTls, speaks_tls


@dataclass(frozen=True, slots=True)
class Credentials:
    """What the operator shows nodes, and whom it trusts, as PEM.

    Attributes:
        trusted: The authorities of the group.
        chain: The operator's certificate.
        key: Its key.
        plain_too: Whether a node that does not speak TLS is asked in plain text.
        domain: That of the members' hosts: a name alone may be another group's.
    """

    trusted: bytes
    chain: bytes
    key: bytes = field(repr=False)
    plain_too: bool = False
    domain: str = ""


class PeerChannels:
    """Makes connections to the peer ports of one group, and knows which are encrypted.

    Args:
        plain: Makes one in plain text, given ``host:port``.
    """

    def __init__(self, plain: Callable[[str], AdminClient] | None = None) -> None:
        self._make_plain = plain
        self.credentials: Credentials | None = None
        self._plain: set[str] = set()

    def is_plain(self, name: str) -> bool:
        """Whether a node is asked in plain text."""
        return self.credentials is None or (self.credentials.plain_too and name in self._plain)

    def connect(self, address: str, name: str, *, timeout_s: float) -> AdminClient:
        """Return a connection to the node *name* at ``host:port``."""
        credentials = self.credentials
        if credentials is None or self.is_plain(name):
            if self._make_plain is not None:
                return self._make_plain(address)
            return AdminClient(address, timeout_s=timeout_s)
        tls = MutualTls(
            name=f"{name}.{credentials.domain}" if credentials.domain else name,
            trusted=credentials.trusted,
            chain=credentials.chain,
            key=credentials.key,
        )
        return AdminClient(address, timeout_s=timeout_s, tls=tls)

    async def look(self, address: str, name: str) -> None:
        """Look whether the node *name* at ``host:port`` speaks TLS, where it need not."""
        if self.credentials is None or not self.credentials.plain_too:
            return
        speaks = await asyncio.to_thread(speaks_tls, address)
        if speaks is not None:
            self._plain -= {name}
            self._plain |= set() if speaks else {name}

"""The link from a follower to its leader, as the relay of requests sees it.

A gRPC call between two nodes costs both of them more than all the rest of a request. So a follower
keeps one connection to the leader, over which requests go as they come, without a coroutine. What
builds it is in `link.follower`; where there is none, requests are forwarded by gRPC calls.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Protocol, TypeAlias

from dledger.errors import DledgerError
from dledger.rpc.peer_tls import PeerChannel
from dledger.types import Member

"""The metadata that names the client's connection: the line in which its commands wait."""
Metadata: TypeAlias = Sequence[tuple[str, str]]
Settle: TypeAlias = Callable[[bytes | DledgerError], None]


class LeaderLink(Protocol):
    """The link to one leader, while it is connected.

    The errors are those of `Relay.unary`: Unavailable, of which NotTaken is one, Overloaded and
    Relayed.
    """

    def begin(
        self, path: str, request: bytes, metadata: Metadata, timeout_s: float, settle: Settle
    ) -> Callable[[], None] | None:
        """Pass a unary call on; *settle* gets its answer or error, once, and not in this call.

        Returns:
            What gives it up, or does nothing once it is settled; None: it does not take the call.
        """
        ...

    def answers(
        self,
        path: str,
        request: bytes,
        metadata: Metadata,
        timeout_s: float,
        on_taken: Callable[[], None] = ...,
    ) -> AsyncGenerator[bytes] | None:
        """Return the answers to a call with many; None: it does not take the call.

        Iterating raises the error. The generator must be closed. *on_taken* is called, maybe more
        than once, when the leader has let the call in and read its request.
        """
        ...


class LeaderLinks(Protocol):
    """Keeps a link to whoever leads."""

    def follow(self, leader: tuple[Member, PeerChannel] | None) -> None:
        """Keep a link to *leader*, at whose peer port the channel is; None: to nobody.

        Calls to a former leader fail with Unavailable.
        """
        ...

    def to(self, leader: Member) -> LeaderLink | None:
        """Return the link to *leader* if it is connected."""
        ...

    def needs_calls(self, leader: Member) -> bool:
        """Whether *leader* has no link to give, or has given none for long: it is called instead.

        Until then it pays to wait for the link: what waits costs less than calls do.
        """
        ...

    async def wait_change(self, timeout_s: float) -> None:
        """Return when `to` or `needs_calls` may say otherwise, or after *timeout_s*.

        Of very many that wait, some at a time.
        """
        ...

    def cancel_streams(self) -> None:
        """End the calls with many answers: this node is shutting down."""
        ...

    async def close(self) -> None:
        """End the link."""
        ...

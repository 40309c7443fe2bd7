"""The node as its services see it: propose a command, query the state, read an entry.

`server.engine` implements it over the driver; tests use a small in-memory one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from dledger.broker.state import BrokerState
from dledger.replica.proposals import Command
from dledger.types import Entry, Member, NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientEndpoint:
    """Where clients reach one node.

    Attributes:
        host: An IPv4 address: a route names several nodes, and the SDKs allow that only for
            addresses, not for host names.
        port: The plaintext gRPC port.
        tls_port: The gRPC port with TLS; 0 if it is turned off.
        heard: Whether the reporting node can reach that node now, as far as it knows.
    """

    node_id: NodeId
    name: str
    host: str
    port: int
    tls_port: int
    heard: bool = True


class Engine(Protocol):
    """What a service may ask of its node. Called on the event loop only."""

    @property
    def group(self) -> str:
        """The broker group's name; clients see it as the broker's name."""

    @property
    def node_id(self) -> NodeId:
        """This node."""

    @property
    def state(self) -> BrokerState:
        """What the entries applied so far mean."""

    def is_leader(self) -> bool:
        """Whether this node leads and has applied an entry of its term: its state is current."""

    def leader(self) -> Member | None:
        """The leader as far as this node knows."""

    def endpoints(self) -> Sequence[ClientEndpoint]:
        """All nodes whose address is known, sorted by name."""

    def knows_members(self) -> bool:
        """Whether `endpoints` has all members: one that has just started lacks some."""

    def hears(self, node_id: NodeId) -> bool:
        """Whether this node hears another one now, or is that one.

        A leader tells by the answers to its heartbeats, a follower only by whether its link is up.
        """

    def submit(
        self, command: Command, *, line: str = "", producer: str = ""
    ) -> asyncio.Future[object]:
        """Queue a framed or open command; the future behaves like `propose`.

        It is ordered after earlier commands of the same *producer* and of the same *line*. Lines
        (connections) are served in turn. Commands that name neither are small ones.

        Raises:
            NotLeader: This node does not lead; nothing happened.
            Overloaded: A bounded queue is full; nothing happened.
            DiskFull: No room for user data; nothing happened.
        """

    def check(self, kind: int) -> None:
        """Raise NotLeader or DiskFull if `submit` would for a command with this type byte."""

    async def propose(self, command: bytes) -> object:
        """Commit one framed command and return the result of applying it.

        Raises:
            NotLeader: This node does not lead; nothing happened.
            LeadershipLost: Outcome unknown; safe to repeat with the same idempotency key.
            Overloaded: A bounded queue is full; nothing happened.
            DiskFull: No room for user data; nothing happened.
            DledgerError: Applying the command failed with this error.
        """

    async def read_entry(self, index: int) -> Entry:
        """Return a committed entry."""

    def read_ahead(self, indexes: Sequence[int]) -> None:
        """Begin to read committed entries that are asked for soon, in this order; never waits."""

    async def read_index(self) -> int:
        """Return an index at which a read is linearizable, once a quorum confirms leadership.

        Raises:
            NotLeader: This node does not lead.
            Unavailable: The leader is too new to know what is committed.
            Overloaded: Too many reads wait.
        """

    async def wait_applied(self, index: int, timeout_s: float) -> None:
        """Wait until the state has applied entry *index*.

        Raises:
            Unavailable: It was not applied within *timeout_s*.
            Overloaded: Too many callers are waiting already.
        """

    async def wait_leader_change(self, timeout_s: float) -> None:
        """Return when role, term, leader or readiness to lead changes, or after the timeout."""

    def hand_over(self, target: NodeId) -> bool:
        """Start a leadership transfer; False if the target lags or a transfer is not possible."""

    def now_ms(self) -> int:
        """The leader's log clock, Unix milliseconds; never goes back."""

    def lived_ms(self) -> int:
        """The same in lived time, by which leases end; see `broker.lived_time`."""

    def date_ms(self) -> int | None:
        """The group's date, Unix milliseconds: which of all members' clocks are believed.

        None while too few are heard to tell.
        """

    def holding_refusal(self) -> str:
        """Why no more messages are held until they are due; empty: they are."""

    def on_applied(self, listener: Callable[[], None], awaited: Callable[[], bool]) -> None:
        """Call *listener* after entries were applied, one or many.

        *awaited* says whether somebody waits for that; if not, a follower may apply a little later.
        """

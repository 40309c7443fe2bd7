"""The node as its services see it, over a driver that may not run yet.

Implements `requests.engine.Engine`. Until the node has joined a group, every call raises NotJoined,
so that the services need no special case.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from dledger.broker.command_frame import CommandType, frame_type
from dledger.broker.state import BrokerState
from dledger.common.status import CAUGHT_UP_ENTRIES
from dledger.errors import DledgerError, NotJoined, NotLeader
from dledger.peers.handshake import ClientAddress
from dledger.peers.peers import Peers
from dledger.replica.driver import Driver
from dledger.replica.proposals import Command
from dledger.requests.engine import ClientEndpoint
from dledger.types import Entry, Member, NodeId

_GROWING: Final = frozenset(
    {
        CommandType.PRODUCE,
        CommandType.CREATE_TOPIC,
        CommandType.DEAD_LETTER,
        CommandType.PRODUCE_HELD,
        CommandType.RELEASE_HELD,  # what is due waits for room: that it is late is no loss
    }
)
HELD_PERCENT: Final = 10
"""How much of the volume messages may have that are held until they are due."""


class NodeEngine:
    """Passes the services' calls to the driver, once there is one."""

    def __init__(
        self,
        *,
        group: str,
        name: str,
        node_id: NodeId,
        state: BrokerState,
        peers: Peers,
        clients: ClientAddress,
        told_group: str = "",
    ) -> None:
        self.group = group
        self.node_id = node_id
        self.state = state
        self._name = name
        self._peers = peers
        self._clients = clients
        self._told_group = told_group
        self._driver: Driver | None = None
        self._attached = asyncio.Event()
        self._listeners: list[tuple[Callable[[], None], Callable[[], bool]]] = []

    def attach(self, driver: Driver) -> None:
        """Pass calls to *driver* from now on."""
        self._driver = driver
        for listener in self._listeners:
            driver.on_applied(*listener)
        self._attached.set()

    def is_leader(self) -> bool:
        """Whether this node leads and its state has every write acknowledged before its term."""
        return self._driver is not None and self._driver.is_serving_leader()

    def leader(self) -> Member | None:
        """Return the leader that this node knows, with its peer address."""
        if self._driver is None or self._driver.core.leader is None:
            return None
        member = self._driver.core.membership.get(self._driver.core.leader)
        return replace(member, address=self._peers.address(member)) if member else None

    def endpoints(self) -> Sequence[ClientEndpoint]:
        """Return the known client addresses of the members, this node included, by name."""
        known = [(self._name, self.node_id, self._clients)]
        known += [
            (member.name, member.id, address)
            for member in (self._driver.core.membership.members if self._driver else ())
            if (address := self._peers.endpoints.get(member.id)) and member.id != self.node_id
        ]
        return [
            ClientEndpoint(
                node_id=node_id,
                name=name,
                host=address.host,
                port=address.port,
                tls_port=address.tls_port,
                heard=self.hears(node_id),
            )
            for name, node_id, address in sorted(known, key=lambda one: one[:2])
        ]

    def knows_members(self) -> bool:
        """Whether this node knows every member's client address."""
        members = self._driver.core.membership.members if self._driver is not None else ()
        return all(m.id == self.node_id or m.id in self._peers.endpoints for m in members)

    def hears(self, node_id: NodeId) -> bool:
        """Whether *node_id* is this node, or one whose link is up.

        A frozen node keeps its links. So a leader also requires a response within an election
        timeout.
        """
        if node_id == self.node_id:
            return True
        silent = self._driver.core.inactive_voters() if self._driver is not None else ()
        return self._peers.connected(node_id) and node_id not in silent

    def submit(
        self, command: Command, *, line: str = "", producer: str = ""
    ) -> asyncio.Future[object]:
        """Queue a framed or open command; see `Driver.submit`."""
        kind = frame_type(command) if isinstance(command, bytes) else command.kind
        grows = kind in _GROWING
        return self._joined().submit(command, grows=grows, line=line, producer=producer)

    def check(self, kind: int) -> None:
        """Raise if a new command of this kind would be refused; see `Driver.check`."""
        self._joined().check(grows=kind in _GROWING)

    async def propose(self, command: bytes) -> object:
        """Commit a framed command; see `Driver.submit`."""
        return await self.submit(command)

    async def read_entry(self, index: int) -> Entry:
        """Return a committed entry.

        Raises:
            NotLeader: The state came with a snapshot and the entry has not arrived yet; the leader
                has it.
            OffsetOutOfRange: Retention has dropped the entry.
            CorruptRecord: The entry cannot be read back.
        """
        driver = self._joined()
        if index > driver.view.last_index:
            raise NotLeader(driver.core.leader)
        return await driver.view.entry(index)

    def read_ahead(self, indexes: Sequence[int]) -> None:
        """Begin to read entries that are asked for soon; see `EntryCache.read_ahead`."""
        self._joined().view.read_ahead(indexes)

    async def read_index(self) -> int:
        """Return an index at which a read is linearizable; see `Driver.read_index`."""
        return await self._joined().read_index()

    async def wait_applied(self, index: int, timeout_s: float) -> None:
        """Return when *index* is applied here; see `Driver.wait_applied`."""
        await self._joined().wait_applied(index, timeout_s)

    async def wait_leader_change(self, timeout_s: float) -> None:
        """Return when role, leader or readiness changes, or after *timeout_s*."""
        if self._driver is None:
            try:
                async with asyncio.timeout(timeout_s):
                    await self._attached.wait()
            except TimeoutError:
                return
        else:
            await self._driver.wait_change(timeout_s)

    def hand_over(self, target: NodeId) -> bool:
        """Start a transfer to *target*; False if it lags, has no room, or cannot lead now."""
        core = self._joined().core
        progress = core.progress().get(target)
        behind = core.last_index - progress.match_index if progress else CAUGHT_UP_ENTRIES + 1
        if behind > CAUGHT_UP_ENTRIES or not self._peers.connected(target):
            return False
        if not self._joined().room.is_roomy(target):
            return False  # it would hand leadership on, or let messages go for its own disk
        try:
            self._joined().transfer_leadership(target)
        except DledgerError:
            return False
        return True

    def now_ms(self) -> int:
        """Return the leader's log clock, Unix milliseconds."""
        return self._joined().log_clock.now_ms()

    def lived_ms(self) -> int:
        """Return the same in lived time, by which leases end."""
        return self._joined().log_clock.lived_ms()

    def date_ms(self) -> int | None:
        """Return the group's date, Unix milliseconds; see `Dating.date_ms`."""
        return self._joined().dating.date_ms()

    def holding_refusal(self) -> str:
        """Return why no more messages are held here until they are due; empty: they are.

        Each is copied forward until it is due, and the disk cannot be freed of it. So all of them
        have a share of the volume, beside what makes no room (`replica.held_roller`).
        """
        held, disk = self.state.held, self._joined().room.disk
        most = disk.volume_bytes * HELD_PERCENT // 100 if disk is not None else held.size_bytes
        if held.full or held.size_bytes <= most:
            return held.full
        return (
            f"{held.count} messages wait for their time, with {held.size_bytes >> 10} KiB, which "
            f"is more than {HELD_PERCENT} % of the volume: no more are held until some of them "
            "are delivered; what is to be delivered at once is taken"
        )

    def on_applied(self, listener: Callable[[], None], awaited: Callable[[], bool]) -> None:
        """Call *listener* after each batch of applied entries; see `Driver.on_applied`."""
        self._listeners.append((listener, awaited))
        if self._driver is not None:
            self._driver.on_applied(listener, awaited)

    def not_ready_reason(self) -> str:
        """Return why clients should not be sent here; empty if they may be."""
        driver = self._driver
        if driver is None:
            return _unjoined(self._told_group)
        if driver.core.leader is None:
            return f"no leader known in term {driver.core.term}"
        behind = driver.core.commit_index - driver.applied_index
        if driver.applied_index == 0 or behind > CAUGHT_UP_ENTRIES:
            return f"applied index {driver.applied_index} is {behind} behind the commit index"
        return ""

    def _joined(self) -> Driver:
        if self._driver is None:
            raise NotJoined
        return self._driver


def _unjoined(told_group: str) -> str:
    if not told_group:
        return "Unjoined, and no group to join is configured: set group_id"
    return f"Unjoined: waiting for Bootstrap, or a member's handshake, of group {told_group!r}"

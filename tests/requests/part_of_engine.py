"""A part of an `Engine`, as a test's subject asks it; mypy holds it to the Protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from dledger.broker.state import BrokerState
from dledger.replica.proposals import Command
from dledger.requests.engine import ClientEndpoint, Engine
from dledger.types import Entry, Member, NodeId


class PartOfEngine:
    """Whatever a subclass does not have, its test is not about: to ask for it is an error."""

    group = "orders"
    node_id = NodeId("id-0")
    state: BrokerState

    def is_leader(self) -> bool:
        raise NotImplementedError

    def leader(self) -> Member | None:
        raise NotImplementedError

    def endpoints(self) -> Sequence[ClientEndpoint]:
        raise NotImplementedError

    def knows_members(self) -> bool:
        raise NotImplementedError

    def hears(self, node_id: NodeId) -> bool:
        raise NotImplementedError

    def submit(
        self, command: Command, *, line: str = "", producer: str = ""
    ) -> asyncio.Future[object]:
        raise NotImplementedError

    def check(self, kind: int) -> None:
        raise NotImplementedError

    async def propose(self, command: bytes) -> object:
        raise NotImplementedError

    async def read_entry(self, index: int) -> Entry:
        raise NotImplementedError

    def read_ahead(self, indexes: Sequence[int]) -> None:
        raise NotImplementedError

    async def read_index(self) -> int:
        raise NotImplementedError

    async def wait_applied(self, index: int, timeout_s: float) -> None:
        raise NotImplementedError

    async def wait_leader_change(self, timeout_s: float) -> None:
        raise NotImplementedError

    def hand_over(self, target: NodeId) -> bool:
        raise NotImplementedError

    def now_ms(self) -> int:
        raise NotImplementedError

    def lived_ms(self) -> int:
        raise NotImplementedError

    def date_ms(self) -> int | None:
        raise NotImplementedError

    def holding_refusal(self) -> str:
        raise NotImplementedError

    def on_applied(self, listener: Callable[[], None], awaited: Callable[[], bool]) -> None:
        raise NotImplementedError


_HELD_TO: type[Engine] = PartOfEngine

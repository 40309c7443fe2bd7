"""Our own system: ``dledger node`` processes, founded through the public client."""

from __future__ import annotations

import asyncio
import sys
import threading
import uuid
from collections.abc import Coroutine, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from dledger.client import AdminClient
from dledger.common.status import NodeStatus
from dledger.errors import DledgerError
from dledger.types import Member, NodeId
from e2e.bench.groups import Standing, until
from e2e.bench.processes import Command
from e2e.bench.rows import OURS
from e2e.bench.seats import HOST, Link, Seat

T = TypeVar("T")

_FOUNDED_S = 60.0
_GROUP_ID = str(uuid.uuid4())


class Ours:
    """See `System`; *settings* go to every node, by their names in the node's config."""

    name = OURS
    warm_up_s = 2.0
    link = Link.BY_HOST
    load_module = "e2e.bench.native_load"
    """The clients; they are given the nodes' endpoints."""

    def __init__(
        self,
        settings: Mapping[str, str] | None = None,
        *,
        python: Path = Path(sys.executable),
        environment: Mapping[str, str] | None = None,
        tells_group: bool = True,
    ) -> None:
        """Take nodes and clients from where *environment* makes *python* find them.

        *tells_group*: whether these nodes are told which group they may join.
        """
        self._tells_group = tells_group
        self._settings = dict(settings or {})
        self._python, self._environment = python, dict(environment or {})

    def node(self, seat: Seat, seats: Sequence[Seat]) -> Command:  # noqa: ARG002 - founding tells
        """See `System`."""
        settings = {
            "name": seat.name,
            "group": "bench",
            "data_dir": str(seat.directory / "data"),
            "advertise_host": HOST,
            "peer_host": seat.link_host,
            "listen_host": HOST,
            "client_port": str(seat.client_port),
            "client_tls_port": "0",
            "peer_port": str(seat.peer_port),
            "replication_port": str(seat.replication_port),
            "http_port": str(seat.http_port),
            **({"group_id": _GROUP_ID} if self._tells_group else {}),
            **self._settings,
        }
        argv = (self._python, "-m", "dledger", "node")
        told = {f"DLEDGER_{key.upper()}": value for key, value in settings.items()}
        return Command(argv, self._environment | told)

    def load(self, seats: Sequence[Seat]) -> Command:
        """See `System`."""
        endpoints = ",".join(f"{HOST}:{seat.client_port}" for seat in seats)
        argv = (self._python, "-m", self.load_module, endpoints)
        return Command(argv, self._environment, answers=True)

    def found(self, seats: Sequence[Seat]) -> None:
        """See `System`."""
        statuses = [until("our nodes answer", lambda s=s: status(s), _FOUNDED_S) for s in seats]  # type: ignore[misc]
        if any(status.group_id for status in statuses):
            return
        members = [
            Member(id=NodeId(s.node_id), name=s.name, address=seat.link_address)
            for s, seat in zip(statuses, seats, strict=True)
        ]
        _done(_bootstrap(seats[0], members))

    def standing(self, seat: Seat) -> Standing | None:
        """See `System`."""
        told = status(seat)
        if told is None:
            return None
        return Standing(
            leads=told.role == "leader",
            term=told.term,
            is_ready=told.ready,
            last_index=told.last_index,
            phases=_phases(told),
        )


def _phases(told: NodeStatus) -> dict[str, float]:
    record = told.last_failover
    if record is None:
        return {}
    return {
        "detected_ms": record.detected_ms,
        "elected_ms": record.elected_ms,
        "first_ack_ms": record.first_ack_ms,
    }


def status(seat: Seat) -> NodeStatus | None:
    """Ask the node of *seat* through its own port, cut links or not."""
    try:
        return _done(_status(seat))
    except DledgerError:
        return None


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """Return the loop for all of this process's calls: gRPC does not outlive one unharmed."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="calls", daemon=True).start()
    return loop


def _done(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run_coroutine_threadsafe(work, _loop()).result()


async def _status(seat: Seat) -> NodeStatus:
    async with AdminClient(seat.own_address, timeout_s=1.0) as admin:
        return await admin.status()


async def _bootstrap(seat: Seat, members: list[Member]) -> None:
    async with AdminClient(seat.own_address) as admin:
        await admin.bootstrap(_GROUP_ID, members)

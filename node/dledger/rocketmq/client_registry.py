"""Which consumers are alive, and the renewal of the leases that live ones hold.

Only the leader keeps this, in memory: heartbeats are forwarded to it. A new leader knows no client
yet, so at first it assumes that every lease holder is alive.

A lease is renewed only once the client is known to have received the message: a response may be
lost with a node or a connection, and the client, still alive, would never acknowledge it. What is
taken for that is in `arrivals`. The leader renews what has arrived at the next scan, within
seconds; the renewal in the log tells later leaders. While a response still moves on a slow line,
its first lease, which is short, is prolonged, and that says no more. Messages of which no leader
heard are delivered again when their first lease ends.

A client id is not authenticated. A client's own connection is the one with its Telemetry stream;
the node that serves the stream marks each call on that connection, also when it forwards the call.
While such calls arrive, calls with the same id on other connections neither keep the client alive
nor release its messages. SDKs reopen Telemetry only minutes after a break, so nothing else requires
it; but without Telemetry for long, a client is not kept alive by calls that anyone may make.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import grpc

from dledger.broker.commands import LeaseRef, Receive, Release, Renew
from dledger.broker.lease_columns import Lease
from dledger.broker.results import Received
from dledger.broker.state_changes import QueueKey
from dledger.calls.caller import THROUGH_KEY, Caller
from dledger.checks.names import is_client_id
from dledger.checks.resources import client_id, group_name
from dledger.common.limits import FIRST_INVISIBLE_MS, MAX_CLIENTS, RENEWED_INVISIBLE_MS
from dledger.errors import DledgerError
from dledger.requests.engine import Engine
from dledger.requests.passing_on import PASSED_ON_PATH, Told
from dledger.rocketmq.arrivals import Arrivals, Part, parts_of
from dledger.rpc.metadata import by_key
from dledger.rpc.rocketmq_stubs import service
from dledger.rpc.status import ok
from dledger.types import NodeId

logger = logging.getLogger(__name__)

_SCAN_S: Final = 3.0
"""A response sent just after a scan is renewed at the next one, before its first lease ends."""
_ALIVE_S: Final = 35.0
"""SDKs send a heartbeat every 10 s; three in a row may be lost."""
_OWN_S: Final = 20.0
"""How long a call on a client's own connection takes precedence over other connections. Well below
`_ALIVE_S`: a client on a new connection, without Telemetry on it yet, is accepted again before it
counts as gone."""
_WITHOUT_TELEMETRY_S: Final = 600.0
_SILENT_S: Final = 120.0
"""After this long all leases of a client have ended; its next call makes it a new client."""
_RENEW_BEFORE_MS: Final = RENEWED_INVISIBLE_MS // 2
_LEASES_PER_COMMAND: Final = 1_000


@dataclass(slots=True)
class _Seen:
    """When a client was last seen, by the event loop's clock.

    Attributes:
        since_s: The first call with its id since it was last silent for `_SILENT_S`.
        at_s: The last call that was accepted as its own.
        own_at_s: The last call on its own connection.
        host: The address of that connection.
    """

    since_s: float
    at_s: float
    own_at_s: float = float("-inf")
    host: str = ""

    def is_alive(self, now_s: float) -> bool:
        """Whether it called recently, and had Telemetry not too long ago."""
        with_telemetry_s = max(self.since_s, self.own_at_s)
        return now_s - self.at_s < _ALIVE_S and now_s - with_telemetry_s < _WITHOUT_TELEMETRY_S


class ClientRegistry:
    """Serves Heartbeat and NotifyClientTermination on the leader, and renews leases."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._seen: OrderedDict[str, _Seen] = OrderedDict()
        self._leading_since_s: float | None = None
        self.arrivals = Arrivals()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start renewing."""
        self._task = asyncio.get_running_loop().create_task(self._renew_for_ever())

    async def close(self) -> None:
        """Stop renewing."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def seen(self, caller: Caller) -> None:
        """Note that a client is alive, if the call may be its own.

        The clients silent for longest are removed first. An invalid client id is not remembered:
        its request is refused.
        """
        client, now_s = caller.client_id, asyncio.get_running_loop().time()
        if not is_client_id(client) or not self._believes(caller):
            return
        known = self._seen.get(client)
        if known is None or now_s - known.at_s > _SILENT_S:
            known = self._seen[client] = _Seen(now_s, now_s)
        known.at_s = now_s
        if caller.has_telemetry:
            known.own_at_s, known.host = now_s, caller.host
        self._seen.move_to_end(client)
        if len(self._seen) > MAX_CLIENTS:
            self._seen.popitem(last=False)

    def _believes(self, caller: Caller) -> bool:
        """Whether a call with a client's id may be its own."""
        known = self._seen.get(caller.client_id)
        if known is None or asyncio.get_running_loop().time() - known.own_at_s >= _OWN_S:
            return True
        return caller.has_telemetry and caller.host == known.host

    def answering(self, command: Receive, received: Received, caller: Caller) -> Callable[[], None]:
        """Note that a RECEIVE is about to be answered; return what to call when all is written.

        Its leases are renewed once the answer is known to have arrived.
        """
        if not command.client_id:
            return _nothing
        arrivals, parts = self.arrivals, parts_of(command.group, command.topic, received)
        arrivals.begun(parts)
        if caller.through is not None:
            if caller.passing_on is not None:
                arrivals.relayed(caller.through, caller.passing_on, parts)
        elif caller.prove is not None:
            caller.prove(_Answer(arrivals, parts))
        else:
            return partial(_believe, arrivals, parts)
        return partial(arrivals.written, parts)

    def is_alive(self, client: str) -> bool:
        """Whether a client called recently, or this leader is too new to know."""
        now_s = asyncio.get_running_loop().time()
        if (known := self._seen.get(client)) is not None:
            return known.is_alive(now_s)
        return self._leading_since_s is None or now_s - self._leading_since_s < _ALIVE_S

    async def heartbeat(
        self, request: service.HeartbeatRequest, caller: Caller
    ) -> service.HeartbeatResponse:
        """Answer a client's heartbeat."""
        del request
        client_id(caller)
        return service.HeartbeatResponse(status=ok())

    async def terminate(
        self, request: service.NotifyClientTerminationRequest, caller: Caller
    ) -> service.NotifyClientTerminationResponse:
        """Release the messages of a push consumer that shuts down, for delivery to others.

        A call on another connection than that of a live client does nothing.
        """
        client = client_id(caller)
        if not self._believes(caller):
            return service.NotifyClientTerminationResponse(status=ok())
        self._seen.pop(client, None)
        if request.HasField("group") and request.group.name:
            group = group_name(request.group)
            if self._engine.state.groups.exists(group):
                await self._engine.propose(Release(group=group, client_id=client).encode())
        return service.NotifyClientTerminationResponse(status=ok())

    async def _renew_for_ever(self) -> None:
        while True:
            await asyncio.sleep(_SCAN_S)
            if not self._engine.is_leader():
                self._leading_since_s = None
                self.arrivals.forget()
                continue
            if self._leading_since_s is None:
                self._leading_since_s = asyncio.get_running_loop().time()
            try:
                await self.renew()
            except DledgerError as error:
                logger.info("group %s: leases not renewed: %s", self._engine.group, error)
            except Exception:
                logger.exception("group %s: renewing leases failed", self._engine.group)

    async def renew(self) -> None:
        """Propose to renew live clients' leases that end soon, or arrived since the last scan.

        And to prolong those that are still under way. What became known is forgotten even if this
        fails: such leases then expire once.
        """
        known = self.arrivals.take()
        groups, before_ms = self._engine.state.groups, self._engine.lived_ms() + _RENEW_BEFORE_MS
        held = [*groups.handed_out(known.arrived), *groups.renewable(before_ms)]
        if held:
            await self._extend(held, RENEWED_INVISIBLE_MS, arrived=True)
        if known.moving:
            await self._extend(groups.handed_out(known.moving), FIRST_INVISIBLE_MS, arrived=False)

    async def _extend(
        self, held: Iterable[tuple[QueueKey, int, Lease]], invisible_ms: int, *, arrived: bool
    ) -> None:
        for (group, topic), leases in self._of_live_clients(held).items():
            for start in range(0, len(leases), _LEASES_PER_COMMAND):
                command = Renew(
                    group=group,
                    topic=topic,
                    leases=tuple(leases[start : start + _LEASES_PER_COMMAND]),
                    invisible_ms=invisible_ms,
                    arrived=arrived,
                )
                await self._engine.propose(command.encode())

    def _of_live_clients(
        self, held: Iterable[tuple[QueueKey, int, Lease]]
    ) -> dict[tuple[str, str], list[LeaseRef]]:
        leases: defaultdict[tuple[str, str], list[LeaseRef]] = defaultdict(list)
        for (group, topic, queue_id), offset, lease in held:
            if self.is_alive(lease.client_id):
                leases[group, topic].append(LeaseRef(queue_id, offset, lease.receive_id))
        return leases


class _Answer:
    """One answer on a connection of this node, or of its door processes: a `contract.Arrival`."""

    __slots__ = ("_arrivals", "_parts")

    def __init__(self, arrivals: Arrivals, parts: Sequence[Part]) -> None:
        self._arrivals, self._parts = arrivals, parts

    def proved(self) -> None:
        """Note that it arrived."""
        self._arrivals.arrived(self._parts)

    def moves(self) -> None:
        """Note that it is still under way."""
        self._arrivals.moves(self._parts)

    def lost(self) -> None:
        """Do nothing: nobody is told that it arrived, so its messages come again."""


def _nothing() -> None:
    """Do nothing: a simple consumer's leases are never renewed."""


def _believe(arrivals: Arrivals, parts: Sequence[Part]) -> None:
    """Take what was written for arrived: the client's server cannot tell more."""
    arrivals.written(parts)
    arrivals.arrived(parts)


def passed_on_handler(clients: ClientRegistry) -> grpc.GenericRpcHandler:
    """Return the peer-port handler of followers' reports of the responses that they relayed."""

    async def passed_on(request: bytes, context: Any) -> bytes:
        through = by_key(context.invocation_metadata()).get(THROUGH_KEY)
        if through is not None:
            told = Told.decode(request)
            clients.arrivals.told(NodeId(through), arrived=told.arrived, moving=told.moving)
        return b""

    _, service_name, method = PASSED_ON_PATH.split("/")
    handler = grpc.unary_unary_rpc_method_handler(passed_on)
    return grpc.method_handlers_generic_handler(service_name, {method: handler})

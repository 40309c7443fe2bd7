"""Asks producers what became of transactions that they did not end: the leader's loop over halves.

That a half is checked is in the log before anybody is asked (CHECK_HELD), with the time of the next
check: so a new leader neither forgets a half nor asks about it again and again. Nothing is ever
given up: once a half was checked `OFTEN` times it is asked about each hour, counted and told of
(`dledger transaction list`).

Who is asked has a Telemetry stream somewhere in the group: the half's own producer, or another of
its topic, in turn, since a client without a checker does not answer. A leader that has just begun
spreads what is overdue. Run by `server.client_tasks`.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeAlias

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from dledger.broker.commands import CheckHeld
from dledger.broker.due_slots import DueSlots
from dledger.broker.held_messages import HeldMessages
from dledger.broker.held_refs import Kind, Ref
from dledger.broker.results import HeldChecked
from dledger.common.metrics import NodeMetrics
from dledger.errors import DledgerError, Unavailable
from dledger.requests.engine import Engine
from dledger.requests.half_ends import Half, read_half
from dledger.requests.transaction_ids import TransactionIds
from dledger.rocketmq.delivery_form import half_form
from dledger.rocketmq.producers import Producers
from dledger.rocketmq.telemetry import Telemetry
from dledger.rpc.pb import dledger_pb2 as pb
from dledger.rpc.rocketmq_stubs import service
from dledger.types import NodeId

logger = logging.getLogger(__name__)

ASK_PATH: Final = "/dledger.Peers/AskProducers"
OFTEN: Final = 15
"""After so many checks a half is asked about seldom, and counts as left behind."""
_EVERY_MS: Final = 30_000
_SELDOM_MS: Final = 3_600_000
_AT_ONCE: Final = 32
"""Halves of one command, and questions under way."""
_SPREAD_MS: Final = 30_000
_SPREAD_EACH_MS: Final = 10
"""Of what is overdue when a leader begins: so much time for each half, but no more than that."""
_LOOK_S: Final = 0.25
_REST_S: Final = 1.0
_ASK_S: Final = 6.0

AskPeer: TypeAlias = Callable[[NodeId, str, bytes, float], Awaitable[bytes]]
"""Calls a method of a member's peer port: (member, method, request, timeout in seconds).

It raises Unavailable.
"""


async def nobody(node_id: NodeId, path: str, request: bytes, timeout_s: float) -> bytes:
    """Refuse: a node that is alone."""
    del path, request, timeout_s
    raise Unavailable(f"no link to {node_id}")


def after_check_ms(checks: int) -> int:
    """Return how long after its *checks*-th check a half is checked again."""
    return _EVERY_MS if checks < OFTEN else _SELDOM_MS


class HalfChecks:
    """Those of one node while it leads."""

    def __init__(
        self,
        engine: Engine,
        telemetry: Telemetry,
        producers: Producers,
        metrics: NodeMetrics,
        *,
        ask: AskPeer = nobody,
        after_ms: Callable[[int], int] = after_check_ms,
    ) -> None:
        self._engine, self._telemetry, self._producers = engine, telemetry, producers
        self._metrics, self._ask_peer, self._after_ms = metrics, ask, after_ms
        self._held: HeldMessages | None = None
        self._due: DueSlots | None = None
        self._known: set[Ref] = set()
        self._waiting: list[tuple[int, Ref]] = []
        self._began_ms = 0
        self._awake = asyncio.Event()

    def wake(self) -> None:
        """Look from now on: there are halves."""
        self._awake.set()

    async def run(self) -> None:
        """Work for ever, while this node leads."""
        while True:
            if not self._engine.state.held.halves:
                self._awake.clear()
                await self._awake.wait()  # an idle node is not to look again and again
                continue
            if not self._engine.is_leader():
                self._held = None
                await self._engine.wait_leader_change(_REST_S)
                continue
            try:
                if not await self.look():
                    await asyncio.sleep(_LOOK_S)
            except DledgerError as error:
                self._held = None
                logger.info("group %s: transactions are not checked: %s", self._engine.group, error)
                await asyncio.sleep(_REST_S)

    async def look(self) -> bool:
        """Check some of what is due; return whether there was anything.

        Raises:
            DledgerError: The log does not take it now.
        """
        date_ms = self._engine.date_ms()
        held = self._engine.state.held
        if date_ms is None:
            return False
        if held is not self._held:
            self._begin(held, date_ms)
        if not held.halves:
            return False
        await self._take_in(date_ms)
        refs = self._pop(date_ms)
        if refs:
            await self._check(refs, date_ms)
        return bool(refs)

    def _begin(self, held: HeldMessages, date_ms: int) -> None:
        """Forget all: this node leads anew, or its state came with a snapshot."""
        self._held, self._due = held, DueSlots(held, Kind.HALF)
        self._known, self._waiting = set(), []
        self._began_ms = date_ms

    async def _take_in(self, date_ms: int) -> None:
        """Learn of halves whose first check is due."""
        if self._due is None or self._held is None:
            raise AssertionError("halves before the beginning")
        for part in self._due.until(date_ms):
            for message in part:
                half = self._held.open_halves.get(message.ref)
                if half is not None and message.ref not in self._known:
                    self._known.add(message.ref)
                    self._wait(message.ref, self._spread(message.ref, half.next_ms))
            await asyncio.sleep(0)

    def _spread(self, ref: Ref, next_ms: int) -> int:
        """Return when a half is checked that a new leader has found.

        What was overdue when it began does not come all at once.
        """
        if self._held is None or next_ms > self._began_ms:
            return next_ms
        span_ms = min(_SPREAD_MS, _SPREAD_EACH_MS * len(self._held.open_halves))
        return self._began_ms + ref.number * 2_654_435_761 % (1 << 32) % span_ms

    def _wait(self, ref: Ref, until_ms: int) -> None:
        heapq.heappush(self._waiting, (until_ms, ref))

    def _pop(self, date_ms: int) -> list[Ref]:
        """Return halves that are to be checked now, and wait for no word."""
        found = list[Ref]()
        while self._waiting and self._waiting[0][0] <= date_ms and len(found) < _AT_ONCE:
            _, ref = heapq.heappop(self._waiting)
            self._known.discard(ref)
            held = self._held
            if held is None or held.open_halves.get(ref) is None or held.is_waiting(ref):
                continue
            self._known.add(ref)
            found.append(ref)
        return found

    # -- one check ---------------------------------------------------------------------------------

    async def _check(self, refs: Sequence[Ref], date_ms: int) -> None:
        """Have it in the log that these are checked, and ask."""
        halves = {ref: self._held.open_halves.get(ref) for ref in refs} if self._held else {}
        by_next = dict[int, list[Ref]]()
        for ref, half in halves.items():
            if half is not None:
                next_ms = date_ms + self._after_ms(half.checks + 1)
                by_next.setdefault(next_ms, []).append(ref)
        asked = list[Awaitable[None]]()
        for next_ms, some in by_next.items():
            result = await self._engine.propose(
                CheckHeld(refs=tuple(some), next_ms=next_ms).encode()
            )
            if not isinstance(result, HeldChecked):
                raise TypeError(f"CHECK_HELD answered {result!r}")
            for ref, checks in zip(some, result.checks, strict=True):
                if checks:
                    self._wait(ref, next_ms)
                    asked.append(self._ask_about(ref, checks))
                else:
                    self._known.discard(ref)
        await asyncio.gather(*asked)

    async def _ask_about(self, ref: Ref, checks: int) -> None:
        """Ask somebody about a half; that nobody can be asked is counted."""
        try:
            half = await read_half(self._engine, ref)
            if half is None:
                return
            self._metrics.transactions.checks.inc()
            if not await self._ask(half, checks):
                self._metrics.transactions.checks_unheard.inc()
        except DledgerError as error:
            logger.info(
                "group %s: nobody was asked about transaction %d-%d: %s",
                self._engine.group, *ref, error,
            )  # fmt: skip

    async def _ask(self, half: Half, checks: int) -> bool:
        """Ask one client: at odd checks the half's own producer first, at even ones others."""
        command = self._command(half)
        if command is None:
            return False
        author = half.client_id.partition("#")[0]
        rest = [each for each in self._producers.of(half.topic) if each != author]
        own = pb.AskProducersRequest(topic=half.topic, client_ids=[author], command=command)
        other = pb.AskProducersRequest(
            topic=half.topic, client_ids=rest, command=command, others=True, but_not=author
        )
        for request in (own, other) if checks % 2 else (other, own):
            if await self._ask_everywhere(request, checks):
                return True
        return False

    async def _ask_everywhere(self, request: pb.AskProducersRequest, checks: int) -> bool:
        """Ask one client, here or at another node; return whether one was.

        Each check begins with another node: a stream may take a question of which nobody reads, and
        the same client have a better one elsewhere.
        """
        own = self._engine.node_id
        nodes = [own, *(each.node_id for each in self._engine.endpoints() if each.node_id != own)]
        first = checks // 2 % len(nodes)  # not each time, since own and others take turns
        for node_id in nodes[first:] + nodes[:first]:
            if await self._ask_at(node_id, request):
                return True
        return False

    async def _ask_at(self, node_id: NodeId, request: pb.AskProducersRequest) -> bool:
        if node_id == self._engine.node_id:
            return bool(await _ask_here(self._telemetry, request))
        try:
            raw = await self._ask_peer(node_id, ASK_PATH, request.SerializeToString(), _ASK_S)
            return bool(pb.AskProducersResponse.FromString(raw).asked)
        except (DledgerError, DecodeError) as error:
            logger.debug("%s asks no producer: %s", node_id, error)
            return False

    def _command(self, half: Half) -> bytes | None:
        """Return the question; None: it cannot be put, since the topic is gone, or the message."""
        state = self._engine.state
        topic = state.topics.get(half.topic)
        if topic is None or topic.generation != half.held.generation or half.message is None:
            return None
        ids = TransactionIds(state.secret, topic=topic.name, generation=topic.generation)
        question = service.RecoverOrphanedTransactionCommand(
            message=half_form(topic, half.message, half.born_host),
            transaction_id=ids.encode(half.held.ref),
        )
        command = service.TelemetryCommand(recover_orphaned_transaction_command=question)
        return bytes(command.SerializeToString())


async def _ask_here(telemetry: Telemetry, request: pb.AskProducersRequest) -> int:
    return await telemetry.ask(
        request.topic,
        request.client_ids,
        request.command,
        others=request.others,
        but_not=request.but_not,
    )


def ask_producers_handler(telemetry: Telemetry) -> grpc.GenericRpcHandler:
    """Return the peer-port handler of a leader's questions to the clients of this node."""

    async def ask(raw: bytes, context: Any) -> bytes:
        del context
        asked = await _ask_here(telemetry, pb.AskProducersRequest.FromString(raw))
        return bytes(pb.AskProducersResponse(asked=asked).SerializeToString())

    _, service_name, method = ASK_PATH.split("/")
    handler = grpc.unary_unary_rpc_method_handler(ask)
    return grpc.method_handlers_generic_handler(service_name, {method: handler})

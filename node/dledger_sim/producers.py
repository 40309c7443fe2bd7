"""Simulated producers: they retry with the same ids until a batch is acknowledged.

A request and its answer travel the same bad network as everything else. What was acknowledged is
kept for the audit at the end of the run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final, Protocol

from dledger.broker.commands import CreateTopic
from dledger.broker.message import Columns
from dledger.broker.produce import encode_produce
from dledger.broker.results import Produced
from dledger.broker.topics import NORMAL
from dledger.errors import DledgerError, NotLeader, Refused
from dledger.types import NodeId
from dledger_sim.checkers import ViolationError
from dledger_sim.clock import Clock
from dledger_sim.options import Options

TOPIC: Final = "simulated"
QUEUES: Final = 3
_MS: Final = 1000
_TIMEOUT_US: Final = 600 * _MS
_BACK_OFF_US: Final = 60 * _MS
_CALM_THINK_MS: Final = 400
"""Without faults a group is fast, and nothing is learnt from keeping it busy."""

Answer = object
"""A result, or the DledgerError that was raised."""


class Service(Protocol):
    """How a client reaches the group."""

    clock: Clock
    calm: bool

    def ask(self, node: NodeId, command: bytes, answer: Callable[[Answer], None]) -> None:
        """Send a command to a node; *answer* may be called later, once, twice or never."""

    def nodes(self) -> Sequence[NodeId]:
        """Return who may be asked."""


@dataclass(slots=True)
class Request:
    """A batch on its way."""

    number: int
    ids: Sequence[str]
    command: bytes
    tries: int = 0
    result: Produced | None = None


@dataclass(slots=True)
class Producer:
    """One client; its ids are its own."""

    name: str
    service: Service
    options: Options
    rng: Random
    acknowledged: list[Request] = field(default_factory=list)
    running: bool = True
    highest_index: int = 0
    _leader: NodeId | None = None
    _under_way: int = 0
    _made: int = 0
    _has_topic: bool = False

    def start(self) -> None:
        """Begin to send: there is the topic."""
        self._has_topic = True
        for _ in range(self.options.window):
            self._next()

    @property
    def messages_acknowledged(self) -> int:
        """How many messages were acknowledged so far."""
        return sum(len(request.ids) for request in self.acknowledged)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is on its way."""
        return not self._under_way

    def stop(self) -> None:
        """Send nothing new; what is on its way goes on."""
        self.running = False

    def resume(self) -> None:
        """Send again, if there is the topic; else `start` comes when there is."""
        self.running = True
        if self._has_topic:
            for _ in range(self.options.window - self._under_way):
                self._next()

    def _next(self) -> None:
        self._under_way += 1
        think_ms = _CALM_THINK_MS if self.service.calm else self.options.think_ms
        delay_us = self.rng.randint(1, think_ms * _MS)
        self.service.clock.after(delay_us, self._begin)

    def _begin(self) -> None:
        if not self.running:
            self._under_way -= 1
            return
        self._made += 1
        count = self.rng.randint(1, self.options.batch)
        ids = [f"{self._made}.{row}" for row in range(count)]
        body = b"." * self.rng.randint(1, 40)
        batch = Columns(message_ids=ids, bodies=[body] * count, born_at_ms=[0] * count)
        queue_id = self.rng.randint(-1, QUEUES - 1)
        command = encode_produce(batch, client_id=self.name, topic=TOPIC, queue_id=queue_id)
        self._try(Request(self._made, ids, command))

    def _try(self, request: Request) -> None:
        if request.result is not None:
            return
        request.tries += 1
        tried = request.tries
        node = self._leader or self.rng.choice(self.service.nodes())
        self.service.ask(node, request.command, lambda got: self._answered(request, tried, got))
        self.service.clock.after(_TIMEOUT_US, lambda: self._given_up(request, tried))

    def _given_up(self, request: Request, tried: int) -> None:
        if request.result is None and request.tries == tried:
            self._leader = None
            self._try(request)

    def _answered(self, request: Request, tried: int, answer: Answer) -> None:
        if isinstance(answer, Produced):
            self._stored(request, answer)
        elif isinstance(answer, Refused):
            raise ViolationError(f"{self.name}'s request {request.number} is refused: {answer}")
        elif request.result is None and request.tries == tried:
            self._leader = answer.leader if isinstance(answer, NotLeader) else None
            delay_us = _MS if self._leader else self.rng.randint(_MS, _BACK_OFF_US)
            request.tries += 1
            self.service.clock.after(delay_us, lambda: self._try(request))

    def _stored(self, request: Request, result: Produced) -> None:
        if request.result is None:
            request.result = result
            self.acknowledged.append(request)
            self.highest_index = max(self.highest_index, result.index)
            self._under_way -= 1
            if self.running:
                self._next()
        elif _places(request.result) != _places(result):
            raise ViolationError(
                f"{self.name}'s request {request.number} is told {_places(request.result)} "
                f"first and {_places(result)} later"
            )


def _places(result: Produced) -> list[tuple[int, int]]:
    return list(zip(result.queue_ids, result.offsets, strict=True))


def create_topic() -> bytes:
    """Return the command that makes the topic of all producers."""
    return CreateTopic(name=TOPIC, type=NORMAL, queues=QUEUES).encode()


def is_error(answer: Answer) -> bool:
    """Whether an answer says that something did not happen, or perhaps did not."""
    return isinstance(answer, DledgerError)

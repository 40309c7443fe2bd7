"""A broker group as a producer meets it at worst: a real state, and answers that go astray."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from random import Random

from dledger.broker.commands import CreateTopic
from dledger.broker.produce import ProduceFrame
from dledger.broker.results import Produced
from dledger.broker.state import BrokerState
from dledger.errors import MessageIdConflict, Unavailable
from dledger.rpc.pb import dledger_pb2 as pb
from dledger.services.ledger import command_of
from dledger.types import Appended, Record
from tests.broker.log import Log

TOPIC = "orders"


class BrokerGroup:
    """Commits batches as a leader does, and has one topic of one queue.

    Attributes:
        odds: How often a batch gets no answer. It is then lost, or committed now, or some time
            later: behind others, behind its own repetition, or behind a restart.
    """

    def __init__(self, rng: Random) -> None:
        self.odds = 0.0
        self._rng = rng
        self._log = Log()
        self._late: list[bytes] = []
        self._client_id = ""
        self._log.append(CreateTopic(name=TOPIC, type="NORMAL", queues=1).encode())

    def connect(self, client_id: str) -> BrokerGroup:
        """Take a producer in; a spool's is the same in all its lives."""
        assert self._client_id in {"", client_id}
        self._client_id = client_id
        return self

    async def append(
        self, topic: str, records: Sequence[Record], *, queue_id: int, timeout_s: float
    ) -> Appended:
        await asyncio.sleep(self._rng.choice((0, 0, 0.001)))
        self.commit_late(odds=0.3)
        command = self._command(topic, records, queue_id)
        if self._rng.random() < self.odds:
            fate = self._rng.choice((lambda _: None, self._log.append, self._late.append))
            fate(command)
            raise Unavailable("the connection broke")
        (stored,) = self._log.append(command)
        assert isinstance(stored, Produced)
        if stored.conflicts:
            raise MessageIdConflict.of(stored.conflicts)
        queue_id, *_ = stored.queue_ids
        return Appended(queue_id=queue_id, offsets=tuple(stored.offsets), index=stored.index)

    def steal(self, *message_ids: str) -> None:
        """Store another client's messages under a producer's ids."""
        records = [Record(body=b"stolen", message_id=each) for each in message_ids]
        self._log.append(self._command(TOPIC, records, 0))

    def _command(self, topic: str, records: Sequence[Record], queue_id: int) -> bytes:
        sent = [pb.Record(message_id=each.message_id, body=each.body) for each in records]
        request = pb.AppendRequest(
            client_id=self._client_id, topic=topic, queue_id=queue_id, records=sent
        )
        return command_of(request)

    def commit_late(self, *, odds: float) -> None:
        """Commit, by chance each, the batches that are still under way somewhere."""
        for command in [command for command in self._late if self._rng.random() < odds]:
            self._late.remove(command)
            self._log.append(command)

    def restart(self) -> None:
        """Go on from a snapshot of the state."""
        self._log.state = BrokerState.decode(self._log.state.encode())

    def message_ids(self) -> Iterator[str]:
        """Yield what a reader of the queue gets, in order."""
        queue = self._log.state.topics.queue(TOPIC, 0)
        for offset in range(queue.end):
            place = queue.locate(offset)
            data = self._log.entries[place.payload.index - 1].data
            payload = ProduceFrame(data, place.payload.start, place.payload.end)
            yield payload.message(place.row).message_id

    async def close(self) -> None:
        """Nothing is open."""

"""``Ledger.Produce``: one producer's batches as a stream, in order, many under way at once.

A batch arrives encoded and goes into the log as it came. Both ways, as many travel in one message
as are there: gRPC costs by messages. Answers leave in the order of the batches. What is under way
on a stream is bounded: beyond that the stream is not read, and HTTP/2 holds the producer back.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Final

from dledger.broker.results import Produced
from dledger.errors import DledgerError, LeadershipLost, NotLeader, Overloaded, Refused
from dledger.rpc.batches import checked_batch
from dledger.rpc.native import bug, parsed
from dledger.rpc.pb import dledger_pb2 as pb

if TYPE_CHECKING:
    from dledger.rpc.gateway.gateway import Gateway

logger = logging.getLogger(__name__)

MAX_BYTES_UNDER_WAY: Final = 16 << 20
MAX_BATCHES_UNDER_WAY: Final = 2_048
_OVERLOAD_PAUSE_S: Final = 0.01


class Producing:
    """One stream: a task that reads and proposes, and answers in order.

    Args:
        gateway: The node's.
        answered: Told of each answered batch, for the metrics.
    """

    def __init__(self, gateway: Gateway, answered: Callable[[], None]) -> None:
        self._engine, self._catalog = gateway.engine, gateway.catalog
        self._answered = answered
        self._under_way: deque[tuple[int, int, asyncio.Future[object]]] = deque()
        self._bytes_under_way = 0
        self._changed = asyncio.Event()
        self._end: DledgerError | None = None
        self._read_all = False

    async def answers(self, requests: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Yield the answers to *requests*, until those end.

        Raises:
            NotLeader: This node does not lead, or no longer; what is unanswered may be stored.
            DledgerError: What stopped the stream: nothing later was stored.
        """
        reader = asyncio.ensure_future(self._read(requests))
        try:
            while True:
                answers = self._take_answers()
                if answers:
                    yield pb.ProduceAnswers(answers=answers).SerializeToString()
                elif self._under_way or not self._read_all:
                    await self._changed.wait()
                    self._changed.clear()
                else:
                    break
            if self._end is not None:
                raise self._end
        finally:
            reader.cancel()
            for _, _, result in self._under_way:
                result.cancel()

    async def _read(self, requests: AsyncIterator[bytes]) -> None:
        try:
            async for raw in requests:
                for batch in parsed(pb.ProduceBatches, raw).batches:
                    if self._end is None:
                        await self._take(batch)
                if self._end is not None:
                    break
        except DledgerError as error:
            self._end = error
        except Exception as error:
            logger.exception("group %s: Produce failed", self._engine.group)
            self._end = bug(error)
        finally:
            self._read_all = True
            self._changed.set()

    async def _take(self, batch: pb.ProduceBatch) -> None:
        """Propose one batch; a refused one is answered in its turn."""
        command = batch.command
        try:
            topic = checked_batch(command).topic
            await self._catalog.topic(topic)
            result = await self._submitted(command)
        except Refused as refused:
            result = asyncio.get_running_loop().create_future()
            result.set_exception(refused)
        self._under_way.append((batch.id, len(command), result))
        self._bytes_under_way += len(command)
        result.add_done_callback(lambda _: self._changed.set())
        while self._is_full() and self._end is None:
            await asyncio.wait((self._under_way[0][2],))
            await asyncio.sleep(0)

    async def _submitted(self, command: bytes) -> asyncio.Future[object]:
        """Propose *command*, when there is room for it: until then nothing more is read."""
        while True:
            try:
                return self._engine.submit(command)
            except Overloaded:
                await asyncio.sleep(_OVERLOAD_PAUSE_S)

    def _is_full(self) -> bool:
        count = len(self._under_way)
        return count >= MAX_BATCHES_UNDER_WAY or self._bytes_under_way > MAX_BYTES_UNDER_WAY

    def _take_answers(self) -> list[pb.ProduceAnswer]:
        """Return the answers to the oldest batches whose outcome is known."""
        answers: list[pb.ProduceAnswer] = []
        while self._under_way and self._under_way[0][2].done():
            batch_id, size_bytes, result = self._under_way.popleft()
            self._bytes_under_way -= size_bytes
            error = result.exception()
            if error is not None and not isinstance(error, Refused):
                self._stop(error)
                break
            answers.append(_answer(batch_id, error, result))
            self._answered()
        return answers

    def _stop(self, error: BaseException) -> None:
        """End the stream: what follows may be stored as well, and is not answered."""
        if isinstance(error, LeadershipLost):
            leader = self._engine.leader()
            self._end = NotLeader(leader.id if leader is not None else None)
        else:
            self._end = error if isinstance(error, DledgerError) else bug(error)
        self._read_all = True
        for _, _, result in self._under_way:
            result.cancel()
        self._under_way.clear()


def _answer(
    batch_id: int, error: Refused | None, result: asyncio.Future[object]
) -> pb.ProduceAnswer:
    if error is not None:
        return pb.ProduceAnswer(id=batch_id, refused=str(error))
    stored = result.result()
    if not isinstance(stored, Produced):
        raise TypeError(f"PRODUCE answered {stored!r}")
    in_a_row = isinstance(stored.offsets, range)
    return pb.ProduceAnswer(
        id=batch_id,
        queue_id=stored.queue_ids[0],
        first_offset=stored.offsets[0],
        offsets=() if in_a_row else stored.offsets,
        index=stored.index,
    )

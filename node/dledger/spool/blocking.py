"""A blocking producer, for programs without an event loop; it runs one on its own thread.

Returned by `SpoolingProducer.blocking`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterable
from typing import Any, Self, TypeVar

from dledger.spool.counters import SpoolCounters
from dledger.spool.producer import Producer
from dledger.spool.topic_sender import SendResult
from dledger.types import Record

_T = TypeVar("_T")


class BlockingProducer:
    """Opens *producer* on entry and closes it on exit. Any thread may call it."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="dledger-producer", daemon=True
        )

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self._run(self._producer.open())
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._run(self._producer.close())
        finally:
            self._stop()

    def send(self, topic: str, record: Record | bytes, *, queue_id: int = -1) -> SendResult:
        """See `Producer.send`."""
        return self._run(self._producer.send(topic, record, queue_id=queue_id))

    def send_batch(
        self, topic: str, records: Iterable[Record | bytes], *, queue_id: int = -1
    ) -> tuple[SendResult, ...]:
        """See `Producer.send_batch`."""
        return self._run(self._producer.send_batch(topic, records, queue_id=queue_id))

    def drained(self, timeout_s: float | None = None) -> bool:
        """See `Producer.drained`."""
        return self._run(self._producer.drained(timeout_s))

    def counters(self) -> SpoolCounters:
        """See `Producer.counters`."""
        return self._producer.counters()

    def _run(self, call: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(call, self._loop).result()

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

"""Who uses the group during a run, and writes down what happens: producers, readers, probes."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from dledger.client import Appended, Client, Record
from dledger.errors import DledgerError, Refused
from e2e.chaos.history import NEVER, NOWHERE, Outcome, Probe, Recorder, Seen, Write

TOPIC: Final = "log"
PROBE_TOPIC: Final = "probe"
QUEUES: Final = 4
_ATTEMPT_S: Final = 2.0
_RETRY_S: Final = 0.1
_PATIENCE_S: Final = 90.0
_PROBE_S: Final = 1.0
_PROBE_EVERY_S: Final = 0.1


class Anywhere:
    """Appends through any node, with the same ids until the outcome is known or time is up."""

    def __init__(self, endpoints: Sequence[str], client_id: str) -> None:
        self.clients = [Client(endpoint, client_id=client_id) for endpoint in endpoints]
        self._current = 0

    async def append(
        self, topic: str, records: Sequence[Record], *, queue: int, patience_s: float
    ) -> Appended | None:
        """Return the place, or None if the outcome is unknown. Raises Refused: not stored."""
        end_s = asyncio.get_running_loop().time() + patience_s
        attempts = 0
        while (left_s := end_s - asyncio.get_running_loop().time()) > 0:
            attempts += 1
            try:
                return await self.clients[self._current].append_once(
                    topic, records, queue_id=queue, timeout_s=min(_ATTEMPT_S, left_s)
                )
            except Refused:
                if attempts == 1:
                    raise
                return None
            except DledgerError:
                self._current = (self._current + 1) % len(self.clients)
            await asyncio.sleep(min(_RETRY_S, left_s))
        return None

    async def close(self) -> None:
        """Close the connections."""
        for client in self.clients:
            await client.close()


def digest_of(body: bytes) -> str:
    """Return how a body is named in a history."""
    return hashlib.sha256(body).hexdigest()[:16]


class Producer:
    """Writes batch after batch to one queue; each is acknowledged or given up before the next."""

    def __init__(
        self, name: str, queue: int, group: Anywhere, rng: random.Random, out: Recorder
    ) -> None:
        self._name, self._queue, self._group, self._rng, self._out = name, queue, group, rng, out
        self._written = 0

    async def run(self, now_s: Callable[[], float], stop: asyncio.Event) -> None:
        """Write until *stop*; one batch in ten is given up early, without an answer."""
        while not stop.is_set():
            records = [self._record() for _ in range(self._rng.randint(1, 5))]
            patience_s = self._rng.choice((*(_PATIENCE_S,) * 9, 0.02))
            started_s = now_s()
            try:
                appended = await self._group.append(
                    TOPIC, records, queue=self._queue, patience_s=patience_s
                )
                outcome = Outcome.OK if appended else Outcome.UNKNOWN
            except Refused:
                appended, outcome = None, Outcome.REFUSED
            self._note(records, appended, outcome, started_s, now_s())
            await asyncio.sleep(self._rng.uniform(0.02, 0.3))

    def _record(self) -> Record:
        self._written += 1
        message_id = f"{self._name}-{self._written}"
        filler = bytes(self._rng.randrange(256) for _ in range(self._rng.randint(1, 200)))
        return Record(body=message_id.encode() + b" " + filler, message_id=message_id)

    def _note(
        self,
        records: Sequence[Record],
        appended: Appended | None,
        outcome: Outcome,
        started_s: float,
        ended_s: float,
    ) -> None:
        for number, record in enumerate(records):
            self._out.add(
                Write(
                    producer=self._name,
                    message_id=record.message_id,
                    digest=digest_of(record.body),
                    queue=self._queue,
                    outcome=outcome,
                    invoked_s=started_s,
                    offset=appended.offsets[number] if appended else NOWHERE,
                    ended_s=NEVER if outcome is Outcome.UNKNOWN else ended_s,
                )
            )


async def read_along(
    node: str, client: Client, queue: int, out: Recorder, now_s: Callable[[], float]
) -> None:
    """Read one queue from one node as it grows; go on where it broke off. Ends by cancellation."""
    offset = 0
    while True:
        try:
            async for stored in client.read(TOPIC, queue, start_offset=offset, follow=True):
                digest, message_id = digest_of(stored.record.body), stored.record.message_id
                out.add(
                    Seen(
                        node=node, queue=queue, offset=stored.offset,
                        message_id=message_id, digest=digest, at_s=now_s(),
                    )
                )  # fmt: skip
                offset = stored.offset + 1
        except DledgerError:
            pass
        await asyncio.sleep(_RETRY_S)


async def probe_along(
    node: str, client: Client, out: Recorder, probes: list[Probe], now_s: Callable[[], float]
) -> None:
    """Write something small through one node, again and again. Ends by cancellation."""
    number = 0
    while True:
        number += 1
        started_s = now_s()
        record = Record(body=b"probe", message_id=f"{node}-{number}")
        try:
            await client.append_once(PROBE_TOPIC, [record], queue_id=0, timeout_s=_PROBE_S)
        except DledgerError:
            pass
        else:
            probes.append(Probe(node=node, invoked_s=started_s, ended_s=now_s()))
            out.add(probes[-1])
        await asyncio.sleep(_PROBE_EVERY_S)


def endpoints_from(endpoints: Mapping[str, str], first: str) -> list[str]:
    """Return all endpoints, beginning with that of *first*."""
    return [endpoints[first], *(e for name, e in endpoints.items() if name != first)]

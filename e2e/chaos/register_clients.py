"""Registers over the log: an operation is a message, and its place in the log decides it.

A client appends its operation and then reads the queue up to the operation's own offset, from any
node; folding what it reads gives the answer. Half of the reads append nothing: a linearizable read
of any node must show all that was acknowledged before. All clients fold the same rules, so they
agree exactly if the log is one log: the same on every node, in real-time order, nothing twice.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from dledger.client import Record, StoredRecord
from dledger.errors import DledgerError, Refused
from e2e.chaos.clients import Anywhere
from e2e.chaos.history import NEVER, Kind, Operation, Outcome, Recorder
from e2e.chaos.register_checker import INITIAL

TOPIC: Final = "registers"
CHAIN_KEYS: Final = 2
SEARCH_KEYS: Final = 2
_GENERATION_S: Final = 15.0
_SMALL_VALUES: Final = 4
_PATIENCE_S: Final = 10.0
_READ_S: Final = 2.0


@dataclass(slots=True)
class Fold:
    """The registers of one queue after the messages before *next_offset*.

    *answer* is what the newest of them answers, and its register's value afterwards.
    """

    next_offset: int = 0
    values: dict[str, int] = field(default_factory=dict)
    answer: tuple[Outcome, int] | None = None

    def apply(self, stored: StoredRecord) -> None:
        """Take the next message."""
        asked = json.loads(stored.record.body)
        key, kind = asked["key"], Kind(asked["kind"])
        value = self.values.get(key, INITIAL)
        outcome = Outcome.OK
        if kind is Kind.CAS and value != asked["expected"]:
            outcome = Outcome.REFUSED
        elif kind is not Kind.READ:
            value = self.values[key] = asked["value"]
        self.next_offset = stored.offset + 1
        self.answer = outcome, value


class RegisterClient:
    """Does one operation after the other, on keys that are judged by either checker."""

    def __init__(
        self,
        name: str,
        group: Anywhere,
        rng: random.Random,
        fresh: Iterator[int],
        out: Recorder,
    ) -> None:
        self._name, self._group, self._rng, self._fresh, self._out = name, group, rng, fresh, out
        self._lives = 0
        self._done = 0
        self._folds = {queue: Fold() for queue in range(CHAIN_KEYS + SEARCH_KEYS)}

    async def run(self, now_s: Callable[[], float], stop: asyncio.Event) -> None:
        """Operate until *stop*. After an unknown outcome it goes on as another process."""
        while not stop.is_set():
            queue = self._rng.randrange(len(self._folds))
            asked = self._asked(queue, now_s())
            started_s = now_s()
            answer = await self._operate(queue, asked)
            self._note(asked, answer, started_s, now_s())
            if answer is None:
                self._lives += 1
            await asyncio.sleep(self._rng.uniform(0.02, 0.2))

    @property
    def _process(self) -> str:
        return f"{self._name}.{self._lives}"

    def _asked(self, queue: int, now_s: float) -> dict[str, object]:
        """Draw an operation; the first queues have chains, the others small values."""
        chain = queue < CHAIN_KEYS
        key = f"chain-{queue}" if chain else f"small-{queue}.{int(now_s / _GENERATION_S)}"
        known = self._folds[queue].values.get(key, INITIAL)
        kind = self._rng.choice((Kind.READ, Kind.CAS) if chain else tuple(Kind))
        expected = known if self._rng.random() < 0.8 else self._rng.randrange(_SMALL_VALUES)
        value = next(self._fresh) if chain else self._rng.randrange(_SMALL_VALUES)
        asked: dict[str, object] = {"key": key, "kind": kind.value}
        if kind is Kind.CAS:
            asked["expected"] = expected
        if kind is not Kind.READ:
            asked["value"] = value
        return asked

    async def _operate(self, queue: int, asked: dict[str, object]) -> tuple[Outcome, int] | None:
        """Return the answer and the value afterwards, or None if they are unknown."""
        if asked["kind"] == Kind.READ.value and self._rng.random() < 0.5:
            return await self._look(queue, str(asked["key"]))
        self._done += 1
        message_id = f"{self._name}-{self._done}"
        record = Record(body=json.dumps(asked).encode(), message_id=message_id)
        patience_s = self._rng.choice((*(_PATIENCE_S,) * 19, 0.02))
        try:
            appended = await self._group.append(TOPIC, [record], queue=queue, patience_s=patience_s)
        except Refused:
            return None
        return await self._answer(queue, appended.offsets[0]) if appended else None

    async def _answer(self, queue: int, offset: int) -> tuple[Outcome, int] | None:
        """Fold the queue up to *offset*, from whichever nodes answer in time."""
        fold = self._folds[queue]
        end_s = asyncio.get_running_loop().time() + _PATIENCE_S
        while fold.next_offset <= offset and asyncio.get_running_loop().time() < end_s:
            await self._read(queue, max_records=offset + 1 - fold.next_offset, follow=True)
        return fold.answer if fold.next_offset > offset else None

    async def _look(self, queue: int, key: str) -> tuple[Outcome, int] | None:
        """Fold all that some node has once it has asked the leader; None if it could not."""
        complete = await self._read(queue, linearizable=True)
        return (Outcome.OK, self._folds[queue].values.get(key, INITIAL)) if complete else None

    async def _read(
        self, queue: int, *, max_records: int = 0, follow: bool = False, linearizable: bool = False
    ) -> bool:
        """Fold what some node has; return whether it ended as asked, not with an error."""
        fold = self._folds[queue]
        client = self._rng.choice(self._group.clients)
        try:
            async with asyncio.timeout(_READ_S):
                async for stored in client.read(
                    TOPIC,
                    queue,
                    start_offset=fold.next_offset,
                    max_records=max_records,
                    follow=follow,
                    linearizable=linearizable,
                ):
                    fold.apply(stored)
        except (DledgerError, TimeoutError):
            return False
        return True

    def _note(
        self,
        asked: dict[str, object],
        answer: tuple[Outcome, int] | None,
        started_s: float,
        ended_s: float,
    ) -> None:
        outcome, value = answer or (Outcome.UNKNOWN, None)
        kind = Kind(asked["kind"])
        written, expected = asked.get("value"), asked.get("expected")
        self._out.add(
            Operation(
                process=self._process,
                key=str(asked["key"]),
                kind=kind,
                expected=expected if isinstance(expected, int) else None,
                value=value if kind is Kind.READ else written if isinstance(written, int) else None,
                outcome=outcome,
                invoked_s=started_s,
                ended_s=NEVER if answer is None else ended_s,
            )
        )

"""Producer, spool and the broker's own state together, when both sides die and answers get lost."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from random import Random

import pytest

from dledger.errors import MessageIdConflict, MessageRejected
from dledger.files.memory_files import MemoryFiles
from dledger.spool.producer import Producer
from dledger.types import Record
from tests.spool.broker_group import TOPIC, BrokerGroup
from tests.spool.spool_harness import DIR, end_by_kill

DEADLINE_S = 20
LIVES = 4


@pytest.fixture(autouse=True)
def short_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the replay try again soon."""
    monkeypatch.setattr("dledger.spool.replay.BACKOFF_S", (0.001, 0.01))


class Life:
    """One process of a producer: sends numbers in order until it is killed.

    Attributes:
        returned: The numbers whose sends returned.
        sent: Behind the last number that was sent.
    """

    def __init__(self, files: MemoryFiles, group: BrokerGroup, first: int) -> None:
        self.returned: list[int] = []
        self.sent = first
        self._files, self._group = files, group

    async def live(self, rng: Random) -> None:
        """Send in rounds, some at once, some one by one; the group fails by chance; then die."""
        producer = Producer(DIR, self._group.connect, files=self._files, max_bytes=1 << 20)
        await producer.open()
        tasks: list[asyncio.Task[None]] = []
        for _ in range(rng.randint(2, 8)):
            self._group.odds = rng.choice((0.0, 0.3, 1.0))
            count = rng.choice((1, 1, 5, 30))
            first, self.sent = self.sent, self.sent + count
            tasks += [asyncio.create_task(self._send(producer, n)) for n in range(first, self.sent)]
            await asyncio.wait(tasks, timeout=rng.choice((None, 0, 0.002)))
        await end_by_kill(producer, self._files, tasks)

    async def _send(self, producer: Producer, number: int) -> None:
        sent = await producer.send(TOPIC, Record(body=b"x", message_id=f"{number:06}"))
        assert int(sent.message_id) == number
        self.returned.append(number)


async def lives(files: MemoryFiles, group: BrokerGroup, rng: Random) -> set[int]:
    """Let producers live one after the other; return every number whose send returned.

    Each is killed, or loses power. Each begins anywhere behind what was returned, and so repeats
    what one before it had sent.
    """
    returned: set[int] = set()
    first = 0
    for _ in range(LIVES):
        life = Life(files, group, first)
        await life.live(rng)
        returned.update(life.returned)
        first = rng.randint(max(returned, default=-1) + 1, life.sent)
        if rng.random() < 0.3:
            files.crash(rng)
        group.restart()
    return returned


async def drained(files: MemoryFiles, group: BrokerGroup) -> None:
    """Bring everything that is spooled to a group that is well again."""
    group.odds = 0.0
    async with Producer(DIR, group.connect, files=files, max_bytes=1 << 20) as producer:
        assert await producer.drained(DEADLINE_S)
        assert producer.damage == ()
        assert await producer.rejected() == ()
    group.commit_late(odds=1.0)


@pytest.mark.found
@pytest.mark.parametrize("odds", [0.0, 1.0], ids=["passed through", "spooled"])
async def test_messages_whose_ids_are_taken_are_refused_by_name_and_kept(odds: float) -> None:
    """Their sender is told, or the spool sets them aside; their neighbours go in; found: S1."""
    files, group = MemoryFiles(), BrokerGroup(Random(1))
    reported: list[str] = []

    def report(what: object) -> None:
        assert isinstance(what, MessageRejected)
        reported.append(what.message_id)

    producer = Producer(DIR, group.connect, files=files, max_bytes=1 << 20, report=report)
    async with asyncio.timeout(DEADLINE_S), producer:
        group.steal("000003", "000007")
        group.odds = odds
        sends = [producer.send(TOPIC, Record(body=b"x", message_id=f"{n:06}")) for n in range(10)]
        sent = await asyncio.gather(*sends, return_exceptions=True)
        group.odds = 0.0
        assert await producer.drained(DEADLINE_S)
        rejected = await producer.rejected()

    told = [n for n, one in enumerate(sent) if isinstance(one, MessageIdConflict)]
    group.commit_late(odds=1.0)
    ids = [int(message_id) for message_id in group.message_ids()]
    assert ids == [3, 7, 0, 1, 2, 4, 5, 6, 8, 9]
    if odds:
        assert reported == ["000003", "000007"]
        assert len(rejected) == 2
    else:
        assert told == [3, 7]


def twice(numbers: Iterable[int]) -> list[int]:
    """Return which numbers occur more than once."""
    return [number for number, times in Counter(numbers).items() if times > 1]


@pytest.mark.parametrize("seed", range(30))
async def test_what_returned_is_stored_once_whoever_dies_and_whatever_commits_late(
    seed: int,
) -> None:
    """Batches without an answer may commit behind their repetition; ids are used again."""
    rng = Random(seed)
    files, group = MemoryFiles(), BrokerGroup(rng)

    async with asyncio.timeout(DEADLINE_S):
        returned = await lives(files, group, rng)
        await drained(files, group)

    found = [int(message_id) for message_id in group.message_ids()]
    assert returned <= set(found)
    assert twice(found) == []

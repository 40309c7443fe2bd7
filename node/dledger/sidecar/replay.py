"""Brings what was spooled to the group: lanes beside each other, each in its order.

Messages go as their own client's, by SendMessage, with their own ids; the header
``x-dledger-replay`` names spool, lane and first sequence, by which the group knows for 30 days what
it has. Owned by `child`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from dledger.common.backoff import Backoff
from dledger.common.limits import MAX_MESSAGES, MAX_REQUEST_BYTES
from dledger.door.contract import REPLAY_FIELD
from dledger.errors import CorruptSpool, MessageRejected, StorageError
from dledger.rpc.status import Code
from dledger.rpc.wire import length_prefix
from dledger.sidecar.decisions import Verdict, verdict_of_send
from dledger.sidecar.reach import Reach
from dledger.sidecar.sends import SEND_PATH, LaneKey
from dledger.sidecar.upstream import Metadata, Upstream, UpstreamError
from dledger.spool.counters import Counts
from dledger.spool.reader import Chunk, Spooled
from dledger.spool.replay import BACKOFF_S, MAX_ODD_FAILURES, TIMEOUT_S, keep_rejected
from dledger.spool.worker import Worker

REPLAY_HEADER: Final = REPLAY_FIELD.decode()
_AHEAD_MESSAGES: Final = 65_536
_AHEAD_BYTES: Final = 64 << 20
_CHUNK_BYTES: Final = 16 << 20
_LANES_AT_ONCE: Final = 16

CALL_S: Final = 0.02
"""What a call should take: live sends of others wait behind it at the group."""
LEAST_MESSAGES: Final = 192
LEAST_BYTES: Final = 1 << 20
"""Calls of all lanes that are under way have so many messages or bytes together, however long they
take: most of that is then the machine's doing, and would be there with fewer."""
_OF_ONE_TOPIC: Final = frozenset({Code.TOO_MANY_REQUESTS, Code.INTERNAL_ERROR})
"""What says nothing of other lanes."""

_log = logging.getLogger(__name__)


class _Outcome(Enum):
    STORED = "the group has them"
    REFUSED = "the group never takes them as they are"
    NOT_YET = "the group is in no state to take them, or the call was too much for it"
    UNREACHED = "nobody has got the call"


@dataclass(slots=True)
class Part:
    """A chunk under way; *left* of its messages are neither stored nor kept as rejected."""

    chunk: Chunk
    left: int


@dataclass(slots=True)
class _Lane:
    """What one lane has still to bring to the group, in order."""

    key: LaneKey
    waiting: deque[tuple[Spooled, Part]]
    limit: int = LEAST_MESSAGES
    odd_failures: int = 0


class Replay:
    """Replays until it is cancelled.

    Args:
        worker: The spool.
        upstream: The way to the group, of its own: live sends do not stand behind it.
        reach: What is known of the group.
        counts: What is counted.
        on_stored: Told how many messages of a lane are not on the disk any longer.
        on_drained: Called when none is.
    """

    def __init__(
        self,
        worker: Worker,
        upstream: Upstream,
        reach: Reach,
        counts: Counts,
        *,
        on_stored: Callable[[LaneKey, int], None],
        on_drained: Callable[[], None],
    ) -> None:
        self._worker, self._upstream, self._reach = worker, upstream, reach
        self._counts, self._on_stored, self._on_drained = counts, on_stored, on_drained
        self._lanes: dict[LaneKey, _Lane] = {}
        self._parts: deque[Part] = deque()
        self._room = asyncio.Semaphore(_LANES_AT_ONCE)
        self._changed = asyncio.Event()
        self._reported = self._ahead = self._ahead_bytes = 0

    def wake(self) -> None:
        """Look whether there is something to replay."""
        self._changed.set()

    async def run(self) -> None:
        """Replay until cancelled. Raises StorageError, in a group: the disk failed."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._changed.clear()
                await self._advance()
                if not await self._read(tasks):
                    await self._changed.wait()

    # -- the disk -------------------------------------------------------------------------------

    async def _read(self, tasks: asyncio.TaskGroup) -> bool:
        """Read the next messages and give them to their lanes; return whether there were any."""
        spool = self._worker.spool
        if self._ahead >= _AHEAD_MESSAGES or self._ahead_bytes >= _AHEAD_BYTES:
            return False
        if not spool.waiting:
            return False
        chunk = await self._worker.run(
            lambda: spool.read(max_records=MAX_MESSAGES, max_bytes=_CHUNK_BYTES)
        )
        self.report_damage()
        if chunk is None:
            return False
        part = Part(chunk, len(chunk.messages))
        self._ahead += part.left
        self._ahead_bytes += sum(spooled.size_bytes for spooled in chunk.messages)
        self._parts.append(part)
        for spooled in chunk.messages:
            key = (spooled.message.client_id, spooled.message.topic)
            lane = self._lanes.get(key)
            if lane is None:
                lane = self._lanes[key] = _Lane(key, deque())
                tasks.create_task(self._bring(lane))
            lane.waiting.append((spooled, part))
        return True

    async def _advance(self) -> None:
        """Save how far everything is done."""
        done: list[Chunk] = []
        while self._parts and not self._parts[0].left:
            done.append(self._parts.popleft().chunk)
        if done:
            messages = tuple(spooled for chunk in done for spooled in chunk.messages)
            together = Chunk(messages=messages, last=done[-1].last)
            self._ahead -= len(messages)
            self._ahead_bytes -= sum(spooled.size_bytes for spooled in messages)
            await self._worker.run(lambda: self._worker.spool.advance(together))
            if not self._worker.spool.waiting:
                self._on_drained()

    def report_damage(self) -> None:
        """Count the damage found since the last call; the spool has logged it."""
        damage: Sequence[CorruptSpool] = self._worker.spool.damage
        for one in damage[self._reported :]:
            self._counts.lost += one.messages
        self._reported = len(damage)

    # -- a lane ---------------------------------------------------------------------------------

    async def _bring(self, lane: _Lane) -> None:
        """Bring a lane's messages to the group, in order, until none waits."""
        backoff, loop = Backoff(*BACKOFF_S), asyncio.get_running_loop()
        while lane.waiting:
            async with self._room:
                call = next_call(lane.waiting, lane.limit)
                began_s = loop.time()
                outcome, why, code = await self._attempt([one for one, _ in call])
                lasted_s = loop.time() - began_s
            if outcome is _Outcome.UNREACHED:
                await asyncio.sleep(backoff.next_s())
                continue
            if outcome is _Outcome.NOT_YET:
                lane.limit = max(1, len(call) // 2)
                lane.odd_failures += code == Code.INTERNAL_ERROR
                if len(call) > 1 or lane.odd_failures < MAX_ODD_FAILURES:
                    await asyncio.sleep(backoff.next_s())
                    continue
                why = f"failed {MAX_ODD_FAILURES} times: {why}"
            elif outcome is _Outcome.REFUSED and len(call) > 1 and code != Code.TOPIC_NOT_FOUND:
                lane.limit = len(call) // 2  # to find the one that is at fault
                continue
            backoff.reset()
            lane.odd_failures = 0
            least = least_of([one for one, _ in call], min(len(self._lanes), _LANES_AT_ONCE))
            lane.limit = next_limit(lane.limit, len(call), lasted_s, least)
            if outcome is _Outcome.STORED:
                self._counts.replayed += len(call)
            else:
                await keep_rejected(
                    self._worker, self._counts, _ignore, [(one, why) for one, _ in call]
                )
            self._finish(lane, len(call))
        del self._lanes[lane.key]

    def _finish(self, lane: _Lane, count: int) -> None:
        for _ in range(count):
            _, part = lane.waiting.popleft()
            part.left -= 1
        self._on_stored(lane.key, count)
        self.wake()

    async def _attempt(self, messages: Sequence[Spooled]) -> tuple[_Outcome, str, int]:
        """Send them once; return what came of it, the group's sentence and its code."""
        metadata = replay_metadata(self._worker.spool.token, messages[0])
        try:
            answer = await self._upstream.unary(
                SEND_PATH, request_of(messages), metadata, TIMEOUT_S
            )
        except UpstreamError as error:
            self._reach.note_failure(str(error))
            outcome = _Outcome.NOT_YET if error.sent else _Outcome.UNREACHED
            return outcome, str(error), 0
        verdict, code, why = verdict_of_send(answer)
        if verdict is Verdict.AWAY:
            if code not in _OF_ONE_TOPIC:
                self._reach.note_failure(why)
                self._upstream.move()
            return _Outcome.NOT_YET, why, code
        self._reach.note_answer()
        return (_Outcome.STORED if verdict is Verdict.ANSWER else _Outcome.REFUSED), why, code


def next_call(waiting: Sequence[tuple[Spooled, Part]], limit: int) -> list[tuple[Spooled, Part]]:
    """Return the next messages that go in one call, at least one.

    They follow each other in one lane, at most *limit* of them and 16 MiB.
    """
    call: list[tuple[Spooled, Part]] = []
    number = sequence = size_bytes = 0
    for one in waiting:
        message, size_bytes = one[0].message, size_bytes + one[0].size_bytes
        if not call:
            number, sequence = message.lane, message.lane_sequence
        elif (
            len(call) >= limit
            or message.lane_sequence != sequence
            or message.lane != number
            or size_bytes > MAX_REQUEST_BYTES
        ):
            break
        call.append(one)
        sequence += 1
    return call


def least_of(call: Sequence[Spooled], lanes: int) -> int:
    """Return to how many messages, such as those of this call, the next one may be reduced.

    Args:
        call: Its messages, one at least.
        lanes: How many lanes have a call under way.
    """
    mean_bytes = sum(spooled.size_bytes for spooled in call) // len(call)
    return max(1, min(LEAST_MESSAGES, LEAST_BYTES // max(1, mean_bytes)) // max(1, lanes))


def next_limit(limit: int, count: int, lasted_s: float, least: int) -> int:
    """Return how many messages the next call of a lane may have.

    So many as would have taken `CALL_S`, at most twice and at least half of what it was: one call
    may have met with a slow sync.

    Args:
        limit: What the last one might have.
        count: What it had; one that had fewer, for want of more, shows only that it was too long.
        lasted_s: How long it took, in seconds.
        least: See `least_of`.
    """
    if limit < least:  # after the halving for one that is at fault
        return min(2 * limit, least)
    if lasted_s > CALL_S:
        return min(limit, max(least, limit // 2, int(count * CALL_S / lasted_s)))
    if count < limit:
        return limit
    fitting = count * CALL_S / max(lasted_s, 1e-6)
    return min(2 * limit, int(fitting), MAX_MESSAGES)


def request_of(messages: Sequence[Spooled]) -> bytes:
    """Return a SendMessageRequest with messages as they are on the disk; its field 1 has them."""
    parts: list[bytes] = []
    prefixes: dict[int, bytes] = {}  # most bodies of a lane have one of a few sizes
    for spooled in messages:
        body = spooled.message.record.body
        size_bytes = len(body)
        prefix = prefixes.get(size_bytes)
        if prefix is None:
            prefix = prefixes[size_bytes] = length_prefix(1, size_bytes)
        parts += (prefix, body)
    return b"".join(parts)


def replay_metadata(token: str, first: Spooled) -> Metadata:
    """Return the metadata of a call that begins with this message."""
    message = first.message
    return (
        ("x-mq-client-id", message.client_id),
        (REPLAY_HEADER, f"{token};{message.lane};{message.lane_sequence}"),
    )


def is_disk_failure(error: BaseException) -> bool:
    """Whether a task ended because the disk failed."""
    if isinstance(error, BaseExceptionGroup):
        return any(map(is_disk_failure, error.exceptions))
    return isinstance(error, StorageError)


def _ignore(report: CorruptSpool | MessageRejected) -> None:
    """Do nothing: it is logged and counted."""
    del report

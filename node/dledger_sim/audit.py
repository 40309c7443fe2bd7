"""The end of a run: every acknowledged message is there, once, where its producer was told.

At the edge the order counts as well: each queue holds what a sender sent, as it was sent.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from itertools import chain, pairwise

from dledger.broker.consume_queue import ConsumeQueue
from dledger.broker.produce import ProduceFrame
from dledger.errors import DledgerError, OutcomeUnknown
from dledger.types import Entry
from dledger_sim.checkers import StuckError, ViolationError
from dledger_sim.clients import KEEPER, KEPT, QUEUES, TOPIC, Producer
from dledger_sim.process import Process
from dledger_sim.senders import Told

Place = tuple[int, int]
"""Queue id and queue offset."""

_ALL_BYTES = 1 << 40


def audit(
    processes: Sequence[Process], producers: Sequence[Producer], gone: Collection[Place] = ()
) -> None:
    """Compare nodes that have applied the same entries with each other and with what was told.

    What retention has let go is gone everywhere.

    Args:
        processes: The nodes.
        producers: Who was told.
        gone: From where `KEPT` has rightly let messages go.

    Raises:
        ViolationError: States differ, or a message is lost, doubled or elsewhere.
    """
    digests = {one.id: one.state.broker.digest() for one in processes}
    if len(set(digests.values())) > 1:
        raise ViolationError(f"the states differ: {digests}")
    places = stored(processes)
    of_topic = [queue.first for queue in _queues(processes[0])]
    for producer in producers:
        # Retention has let nothing go of what is kept for ever.
        firsts = [0] * QUEUES if producer.topic == KEPT else of_topic
        for request in producer.acknowledged:
            assert request.result is not None, "only what was answered is kept"  # noqa: S101
            told = zip(request.result.queue_ids, request.result.offsets, strict=True)
            for message_id, place in zip(request.ids, told, strict=True):
                found = places.get((producer.name, message_id))
                if found is None and producer.topic == KEPT and place in gone:
                    continue
                if found != place and (not firsts or place[1] >= firsts[place[0]]):
                    raise ViolationError(
                        f"{producer.name} was told that {message_id} is at {place}; it is "
                        f"{f'at {found}' if found else 'lost'}"
                    )


def _queues(process: Process, topic: str = TOPIC) -> Sequence[ConsumeQueue]:
    """Return the topic's queues; a group that committed next to nothing has not even the topic."""
    topics = process.state.broker.topics
    return topics.queues(topic) if topics.get(topic) is not None else ()


def stored(processes: Sequence[Process]) -> dict[tuple[str, str], Place]:
    """Return where each message is; raises ViolationError if one is there twice."""
    entries = _entries(processes)
    places: dict[tuple[str, str], Place] = {}
    once: dict[tuple[str, str, bytes], Place] = {}
    kept = (
        (place, KEEPER, message_id, body)
        for place, _, message_id, body in _messages(processes[0], entries, KEPT)
    )
    for place, client, message_id, body in chain(_messages(processes[0], entries), kept):
        places.setdefault((client, message_id), place)
        other = once.setdefault((client, message_id, body), place)
        if other != place:
            raise ViolationError(f"{client}'s {message_id} is at {other} and at {place}")
    return places


def _entries(processes: Sequence[Process]) -> dict[int, Entry]:
    """Return the whole log; what has rotted on one disk since is read from another."""
    first = max(one.log.first_index for one in processes)
    last = min(one.log.last_index for one in processes)
    entries: dict[int, Entry] = {}
    while first <= last:
        found = next(filter(None, (_read(one, first, last) for one in processes)), ())
        if not found:
            raise StuckError(f"no node can read entry {first}")
        entries.update((entry.index, entry) for entry in found)
        first = found[-1].index + 1
    return entries


def _read(process: Process, first: int, last: int) -> tuple[Entry, ...]:
    for size_bytes in (_ALL_BYTES, 0):
        try:
            return process.log.read(first, last, size_bytes)
        except DledgerError:
            continue
    return ()


def _messages(
    process: Process, entries: dict[int, Entry], topic: str = TOPIC
) -> Iterator[tuple[Place, str, str, bytes]]:
    """Yield each message with its place, its client, its id and its body."""
    for queue_id, queue in enumerate(_queues(process, topic)):
        for first, count, row, index, start, end in queue.stretches(queue.first):
            frame = ProduceFrame(entries[index].data, start, end)
            rows = slice(row, row + count)
            pairs = zip(frame.message_ids()[rows], frame.bodies()[rows], strict=True)
            for place, (message_id, body) in enumerate(pairs, first):
                yield (queue_id, place), frame.client_id, message_id.decode(), body


def ids_stored(processes: Sequence[Process], topic: str) -> Iterator[str]:
    """Yield the id of each message of a topic."""
    for _, _, message_id, _ in _messages(processes[0], _entries(processes), topic):
        yield message_id


def numbers_stored(process: Process) -> dict[tuple[str, int], list[tuple[int, int]]]:
    """Return (number, offset) of each sender's messages, by sender and queue, in their order."""
    found: dict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
    for (queue_id, offset), client, _, body in _messages(process, _entries([process])):
        found[client, queue_id].append((int(body.partition(b" ")[0]), offset))
    return found


def places_of(process: Process, topic: str) -> set[Place]:
    """Return where a topic has messages."""
    return {
        (queue_id, offset)
        for queue_id, queue in enumerate(_queues(process, topic))
        for offset in range(queue.first, queue.end)
        if queue.has(offset)
    }


def bodies_stored(process: Process, topic: str) -> dict[Place, tuple[str, bytes]]:
    """Return the client and the body of each message of a topic."""
    found = _messages(process, _entries([process]), topic)
    return {place: (client, body) for place, client, _, body in found}


def check_order(name: str, sent: Sequence[Told], stored: Sequence[tuple[int, int]]) -> None:
    """Check what a queue holds of one sender.

    Args:
        name: The sender's.
        sent: Its messages to the queue, in the order of sending.
        stored: Their numbers and offsets, in the order of the queue.

    Raises:
        ViolationError: One is lost, doubled, out of order, elsewhere, or there though it was told
            not to be.
    """
    numbers = [number for number, _ in stored]
    for before, after in pairwise(numbers):
        if before == after:
            raise ViolationError(f"{name}'s {before} is stored twice")
        if before > after:
            raise ViolationError(f"{name}'s {after} is stored behind {before}")
    offsets = dict(stored)
    for one in sent:
        if one.is_acknowledged and one.number not in offsets:
            raise ViolationError(f"{name}'s {one.number} was acknowledged and is lost")
        if one.is_acknowledged and one.offset not in (-1, offsets[one.number]):
            raise ViolationError(f"{name}'s {one.number} is not where it was told to be")
        if is_refusal(one.error) and one.number in offsets:
            raise ViolationError(f"{name}'s {one.number} is stored, in spite of {one.error!r}")


def is_refusal(error: BaseException | None) -> bool:
    """Whether a sender was told that its message is not stored."""
    return isinstance(error, DledgerError) and not isinstance(error, OutcomeUnknown)

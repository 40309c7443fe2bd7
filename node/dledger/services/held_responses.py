"""What a producer is told of messages that are held: by what each is recalled, or ended.

Of what waits for its time some may be in a queue already, when it is sent again.
"""

from __future__ import annotations

from collections.abc import Sequence

from dledger.broker.held_refs import HELD_QUEUE, Ref
from dledger.broker.produce import NO_QUEUE
from dledger.broker.results import NOWHERE, Produced
from dledger.errors import MessageIdConflict
from dledger.requests.recall_handles import RecallHandles
from dledger.requests.transaction_ids import TransactionIds
from dledger.rpc.pb import dledger_pb2 as pb


def held_response(stored: Produced, ids: Sequence[bytes], secret: bytes) -> pb.AppendResponse:
    """Return the answer for messages of which some wait for their time, or did when first sent."""
    queue_id, offsets = places_of(stored)
    return pb.AppendResponse(
        queue_id=queue_id,
        offsets=offsets,
        index=stored.index,
        recall_handles=recall_handles(stored, ids, secret),
    )


def halves_response(stored: Produced, secret: bytes) -> pb.AppendResponse:
    """Return the answer for halves. Raises MessageIdConflict if one's id is another message's."""
    queues = enumerate(stored.queue_ids)
    if others := [row for row, queue_id in queues if queue_id != HELD_QUEUE]:
        raise MessageIdConflict.of(others)
    ids = TransactionIds(secret, topic=stored.topic, generation=stored.generation)
    return pb.AppendResponse(
        queue_id=NO_QUEUE,
        offsets=[NOWHERE] * len(stored.offsets),
        index=stored.index,
        transaction_ids=[ids.encode(Ref.unpack(each)) for each in stored.offsets],
    )


def places_of(stored: Produced) -> tuple[int, list[int]]:
    """Return the queue and the offsets that a producer is told; -1 for what is held."""
    places = list(zip(stored.queue_ids, stored.offsets, strict=True))
    queue_id = next((queue for queue, _ in places if queue != HELD_QUEUE), NO_QUEUE)
    return queue_id, [NOWHERE if queue == HELD_QUEUE else offset for queue, offset in places]


def recall_handles(stored: Produced, ids: Sequence[bytes], secret: bytes) -> list[str]:
    """Return what recalls each message; empty for one that is in a queue, or nowhere."""
    handles = RecallHandles(secret, topic=stored.topic, generation=stored.generation)
    rows = zip(stored.queue_ids, stored.offsets, ids, strict=True)
    return [
        handles.encode(Ref.unpack(offset), message_id.decode()) if queue_id == HELD_QUEUE else ""
        for queue_id, offset, message_id in rows
    ]

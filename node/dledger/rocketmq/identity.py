"""Whether a message is the one that its id names, where ids are not its producer's choice.

An SDK makes ids of its machine's address, its process, the time and a counter: who has seen some
can guess others, and take them before they are used. So of a message that the dedupe window takes
for a repetition the stored one is read and compared. One whose id is another's, there or in the
log, goes into the log in a scope that holds a digest of all that consumers see of it: whoever sends
it again finds it there, and nothing else fits in. Called by `sending`.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b

from dledger.broker.command_frame import MalformedCommandError
from dledger.broker.message import Message
from dledger.broker.produce import ProduceFrame
from dledger.errors import OffsetOutOfRange
from dledger.requests.engine import Engine
from dledger.rpc.checks import SCOPE_DIGEST_BYTES


def scope_of(client_id: str, message: Message) -> str:
    """Return the scope for a message whose id is taken in that of its client.

    No client may call itself so (`checks.is_scope`).
    """
    digest = blake2b(digest_size=SCOPE_DIGEST_BYTES)
    for part in _parts(message):
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return f"{client_id}#{digest.hexdigest()}"


def _parts(message: Message) -> Iterator[bytes]:
    yield message.body
    yield bytes([message.encoding, len(message.keys)])
    yield message.tag.encode()
    yield from (key.encode() for key in message.keys)
    for name, value in sorted(message.properties.items()):
        yield name.encode()
        yield value.encode()


def is_same(message: Message, other: Message) -> bool:
    """Whether consumers see no difference; times and traces are those of an attempt."""
    return (
        message.body == other.body
        and message.encoding == other.encoding
        and message.tag == other.tag
        and message.keys == other.keys
        and message.properties == other.properties
    )


async def is_stored(
    engine: Engine, topic: str, queue_id: int, offset: int, message: Message
) -> bool:
    """Whether *message* is what lies there; one that retention has dropped is believed to be.

    Raises:
        Unavailable: It cannot be read now.
    """
    queue = engine.state.topics.queue(topic, queue_id)
    if offset < queue.first:
        return True
    place = queue.locate(offset)
    payload = place.payload
    try:
        entry = await engine.read_entry(payload.index)
        stored = ProduceFrame(entry.data, payload.start, payload.end).message(place.row)
    except OffsetOutOfRange:
        return True
    except MalformedCommandError:
        return False
    return is_same(message, stored)

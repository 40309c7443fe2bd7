"""The frames between a node and one of its door processes beside calls, as pure functions.

Those of calls, and what a frame is, are `link.frames`. The *number* of one of these is a batch's,
which the door counts as it counts calls; a ping's, which the node counts; or a port's.

**These layouts are private to one build**, and may change with any: a node starts its doors from
its own files, and gives them one end of the link, so there is nobody of another version to speak
to. A frame that one of the two does not know is a bug, or worse, since a door has parsed what
strangers sent: bytes are checked all the same, and what is malformed ends the link.
"""

from __future__ import annotations

import enum
import math
import struct
from collections.abc import Sequence
from itertools import accumulate, chain, pairwise
from typing import Final, NamedTuple

from dledger.door.contract import Pairs
from dledger.link.frames import MalformedFrame, cut, packed

_CLIENT: Final = struct.Struct("<dHHH")
_SEND: Final = struct.Struct("<QIHI")
_ACK: Final = struct.Struct("<IHHHH")


class DoorKind(enum.IntEnum):
    """What a frame says that a door and its node have beside calls (`link.frames.Kind`).

    Up to `ARRIVAL` they go to the node, from there on to the door.
    """

    REFUSED = 6  # the door answered a call itself; so that it is counted
    SEND = 7  # a batch of SendMessage
    ACK = 8  # a batch of AckMessage
    SETTLED = 9  # what a connection resumed is over; its batches may be taken again
    READY = 10  # the ports are served
    PONG = 11
    ARRIVAL = 12  # what became of a call's answers, by an `Arrives`; after a PROVE
    PLACES = 23  # a batch of SendMessage is stored, at these offsets
    ACKED = 24  # a batch of AckMessage is applied
    RESUME = 25  # a batch's calls are to be passed on one by one
    SAME = 26  # a batch's calls have this one answer
    SETUP = 27  # what to serve
    CERTIFICATE = 28  # what a TLS port shows from now on
    LEADS = 29  # whether batches make sense
    DRAIN = 30  # stop, with a grace
    PING = 31
    PROVE = 32  # tell what becomes of a call's answers


class Acked(enum.IntEnum):
    """What became of a receipt handle."""

    STALE = 0
    DONE = 1
    RESUMED = 2  # nothing: its call is to be passed on


class Arrives(enum.IntEnum):
    """What a door tells of a call's answers on their way to its client."""

    LOST = 0  # nobody will know, and nothing more is told
    PROVED = 1  # the client has them; the same
    MOVES = 2  # not yet, and some were taken in the last seconds


class Client(NamedTuple):
    """Who asks for a batch.

    Attributes:
        peer: The client's address as gRPC names it.
        client_id: The client's id, which a SEND's command has, too.
        deadline_s: When the first of its calls ends, in the event loop's time, which is the same in
            all processes; None: none of them ever does.
        pairs: What is kept of the headers of its first call.
    """

    peer: str
    client_id: str
    deadline_s: float | None
    pairs: Pairs


def _client(client: Client) -> bytes:
    peer, name = client.peer.encode(), client.client_id.encode()
    texts = tuple(chain.from_iterable(client.pairs))
    deadline_s = math.nan if client.deadline_s is None else client.deadline_s
    head = _CLIENT.pack(deadline_s, len(peer), len(name), len(client.pairs))
    return b"".join((head, struct.pack(f"<{len(texts)}I", *map(len, texts)), peer, name, *texts))


def _client_of(payload: bytes, start: int) -> tuple[Client, int]:
    """Return who is told of from *start*, and where that ends. Raises struct.error, ValueError."""
    deadline_s, peer_bytes, name_bytes, count = _CLIENT.unpack_from(payload, start)
    start += _CLIENT.size
    sizes = struct.unpack_from(f"<{2 * count}I", payload, start)
    parts = (peer_bytes, name_bytes, *sizes)
    start += 4 * len(sizes)
    (peer, name, *fields), _ = cut(payload, start, parts)
    client = Client(
        peer.decode(),
        name.decode(),
        None if math.isnan(deadline_s) else deadline_s,
        tuple(zip(fields[::2], fields[1::2], strict=True)),
    )
    return client, start + sum(parts)


class SendBatch(NamedTuple):
    """SendMessage calls of one connection, whose messages share a PRODUCE command.

    Attributes:
        connection: As in `Opening`.
        room_bytes: What they count for admission.
        calls: How many there are.
        client: Whose they are.
        command: The framed command.
    """

    connection: int
    room_bytes: int
    calls: int
    client: Client
    command: bytes


def sending(number: int, batch: SendBatch) -> bytes:
    """Return the SEND frame of a batch."""
    head = _SEND.pack(batch.connection, batch.room_bytes, batch.calls, len(batch.command))
    return packed(DoorKind.SEND, number, head, _client(batch.client), batch.command)


def sending_of(payload: bytes) -> SendBatch:
    """Return the batch of a SEND frame; its command is not looked at. Raises MalformedFrame."""
    try:
        connection, room_bytes, calls, size = _SEND.unpack_from(payload)
        client, start = _client_of(payload, _SEND.size)
        (command,), rest = cut(payload, start, (size,))
        batch = SendBatch(connection, room_bytes, calls, client, command)
    except (struct.error, ValueError) as error:
        raise MalformedFrame(f"no batch: {error}") from error
    if rest or not calls:
        raise MalformedFrame(f"a batch of {calls} calls, and {len(rest)} bytes more")
    return batch


class AckBatch(NamedTuple):
    """AckMessage calls of one connection, for one consumer group and topic.

    Attributes:
        room_bytes: What they count for admission.
        client: Whose they are.
        group: The consumer group.
        topic: The topic.
        handles: The receipt handles of each call; at least one.
    """

    room_bytes: int
    client: Client
    group: str
    topic: str
    handles: Sequence[Sequence[str]]


def acking(number: int, batch: AckBatch) -> bytes:
    """Return the ACK frame of a batch."""
    texts = [name.encode() for name in (batch.group, batch.topic)]
    handles = [handle.encode() for handle in chain.from_iterable(batch.handles)]
    return packed(
        DoorKind.ACK,
        number,
        _ACK.pack(batch.room_bytes, *map(len, texts), len(batch.handles), len(handles)),
        _client(batch.client),
        struct.pack(f"<{len(batch.handles)}H", *map(len, batch.handles)),
        struct.pack(f"<{len(handles)}I", *map(len, handles)),
        *texts,
        *handles,
    )


def acking_of(payload: bytes) -> AckBatch:
    """Return the batch of an ACK frame. Raises MalformedFrame."""
    try:
        room_bytes, *names, calls, count = _ACK.unpack_from(payload)
        client, start = _client_of(payload, _ACK.size)
        per_call = struct.unpack_from(f"<{calls}H", payload, start)
        start += 2 * calls
        sizes = struct.unpack_from(f"<{count}I", payload, start)
        texts, rest = cut(payload, start + 4 * count, (*names, *sizes))
        group, topic, *handles = [text.decode() for text in texts]
    except (struct.error, ValueError) as error:
        raise MalformedFrame(f"no batch: {error}") from error
    if rest or not calls or 0 in per_call or sum(per_call) != count:
        raise MalformedFrame(f"a batch of {calls} calls with {count} handles")
    bounds = pairwise(accumulate(per_call, initial=0))
    return AckBatch(room_bytes, client, group, topic, [handles[low:high] for low, high in bounds])


def offsets_of(payload: bytes) -> tuple[int, ...]:
    """Return the queue offsets of a PLACES frame."""
    return struct.unpack(f"<{len(payload) // 8}q", payload)


def offsets(rows: Sequence[int]) -> bytes:
    """Return the payload of a PLACES frame."""
    return struct.pack(f"<{len(rows)}q", *rows)


def arriving(number: int, arrives: Arrives) -> bytes:
    """Return an ARRIVAL frame."""
    return packed(DoorKind.ARRIVAL, number, bytes((arrives,)))


def arriving_of(payload: bytes) -> Arrives:
    """Return what an ARRIVAL frame tells. Raises MalformedFrame."""
    try:
        (value,) = payload
        return Arrives(value)
    except ValueError as error:
        raise MalformedFrame(f"no arrival: {error}") from error

"""Makes one PRODUCE payload of neighbours in a queue that were produced by themselves.

Only for readers: it is never in the log. It says neither who produced its messages nor from which
host, since that differs. Used by `services.reading`; the layout is that of `produce`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

from dledger.broker.message import Columns, Message
from dledger.broker.produce import HEADER, VERSION, ProduceFrame, encode_produce

_PAIR: Final = struct.Struct("<II")
_FRAME_BYTES: Final = 5
"""Of a command's length and type, which are no part of its payload."""


Rows: TypeAlias = tuple[bytes, int, int, int, int]
"""Rows of the payload at bytes ``[start, end)`` of an entry: (its data, start, end, first row, how
many). A tuple, because a reader of single messages makes one for each."""


def joined_payload(topic: str, queue_id: int, parts: Sequence[Rows]) -> bytes:
    """Return one payload with the rows of all *parts*, in order.

    Raises:
        MalformedCommandError: One of them cannot be decoded.
    """
    plain = _plain_columns(parts)
    if plain is not None:
        return _encoded(topic.encode(), queue_id, *plain)
    messages = [message for part in parts for message in _messages(part)]
    command = encode_produce(Columns.of(messages), client_id="", topic=topic, queue_id=queue_id)
    return command[_FRAME_BYTES:]


def _messages(part: Rows) -> Iterable[Message]:
    data, start, end, first, length = part
    frame = ProduceFrame(data, start, end)
    return (frame.message(row) for row in range(first, first + length))


def _plain_columns(parts: Sequence[Rows]) -> tuple[list[bytes], list[bytes], list[bytes]] | None:
    """Return times, ids and bodies, as they lie, if each part is one message without more.

    This is what most single messages are. No object is made for each, and no text is decoded.
    """
    times, ids, bodies = list[bytes](), list[bytes](), list[bytes]()
    header, pair = HEADER.unpack_from, _PAIR.unpack_from
    for data, start, end, _, _ in parts:
        version, flags, client, topic, further, host, _, count = header(data, start)
        if version != VERSION or flags or further or count != 1:
            return None
        born = start + HEADER.size + client + topic + host
        zero, id_bytes = pair(data, born + 8)
        id_at = born + 16
        id_end = id_at + id_bytes
        if id_end + 8 > end:
            return None
        also_zero, body_bytes = pair(data, id_end)
        if zero or also_zero or id_end + 8 + body_bytes != end:
            return None
        times.append(data[born : born + 8])
        ids.append(data[id_at:id_end])
        bodies.append(data[id_end + 8 : end])
    return times, ids, bodies


def _encoded(
    topic: bytes, queue_id: int, times: list[bytes], ids: list[bytes], bodies: list[bytes]
) -> bytes:
    head = HEADER.pack(VERSION, 0, 0, len(topic), 0, 0, queue_id, len(bodies))
    return b"".join((head, topic, *times, _offsets(ids), *ids, _offsets(bodies), *bodies))


def _offsets(items: Sequence[bytes]) -> bytes:
    offsets, end = [0], 0
    for item in items:
        end += len(item)
        offsets.append(end)
    return struct.pack(f"<{len(offsets)}I", *offsets)

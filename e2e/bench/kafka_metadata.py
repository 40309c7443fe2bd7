"""Kafka's Metadata request, version 7, by hand: who leads, and who is in sync. Pure.

A client library would be a dependency for one question, and a JVM that asks it would be a load.
Source: Kafka's ``MetadataRequest.json`` and ``MetadataResponse.json``. All numbers are big-endian::

    request    length:i32 | key:i16 = 3 | version:i16 = 7 | correlation:i32 | client:string
               | topics:[string] | creates_topics:i8
    response   correlation:i32 | throttle_ms:i32 | brokers:[id:i32 host:string port:i32 rack:string]
               | cluster:string | controller:i32
               | topics:[error:i16 name:string is_internal:i8 partitions:[error:i16 number:i32
                 leader:i32 leader_epoch:i32 replicas:[i32] in_sync:[i32] offline:[i32]]]

A string is its length (i16, -1 for none) and its bytes, ``[...]`` a count (i32) and so many.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

_METADATA: Final = 3
_VERSION: Final = 7
_CLIENT: Final = "bench"
_T = TypeVar("_T")


class MalformedAnswer(Exception):
    """The bytes are no Metadata response of version 7; the message says where they stop to be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """One partition of a topic.

    Attributes:
        leader: The id of the node that leads it; -1: none does.
        leader_epoch: Grows with each new leader.
        in_sync: The nodes that have all that is acknowledged.
    """

    leader: int
    leader_epoch: int
    in_sync: frozenset[int]


Metadata = Mapping[str, Sequence[Partition]]
"""Partitions in order of their numbers, by topic; a topic with an error is not there."""


def request(topics: Sequence[str]) -> bytes:
    """Return the question for these topics, which it does not create."""
    head = struct.pack(">hhi", _METADATA, _VERSION, 0) + _string(_CLIENT)
    body = struct.pack(">i", len(topics)) + b"".join(map(_string, topics)) + b"\0"
    return struct.pack(">i", len(head + body)) + head + body


def _string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode("ascii")


def parse(answer: bytes) -> Metadata:
    """Return what a response says, without its length in front. Raises MalformedAnswer."""
    reader = _Reader(answer)
    reader.numbers(">ii")  # correlation and throttle
    reader.several(
        lambda: (reader.numbers(">i"), reader.string(), reader.numbers(">i"), reader.string())
    )
    reader.string()
    reader.numbers(">i")
    topics = reader.several(lambda: _topic(reader))
    if reader.left():
        raise MalformedAnswer(f"{reader.left()} bytes behind the topics")
    return {name: partitions for error, name, partitions in topics if not error}


def _topic(reader: _Reader) -> tuple[int, str, tuple[Partition, ...]]:
    (error,), name, _ = reader.numbers(">h"), reader.string(), reader.numbers(">b")
    numbered = sorted(reader.several(lambda: _partition(reader)), key=lambda each: each[0])
    return error, name, tuple(partition for _, partition in numbered)


def _partition(reader: _Reader) -> tuple[int, Partition]:
    _, number, leader, leader_epoch = reader.numbers(">hiii")
    _, in_sync, _ = (reader.several(lambda: reader.numbers(">i")[0]) for _ in range(3))
    return number, Partition(leader=leader, leader_epoch=leader_epoch, in_sync=frozenset(in_sync))


class _Reader:
    """Takes values from the front of bytes."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def left(self) -> int:
        """Return how many bytes are not yet taken."""
        return len(self._data) - self._at

    def numbers(self, layout: str) -> tuple[int, ...]:
        """Take what *layout* (`struct`) says."""
        return struct.unpack(layout, self._take(struct.calcsize(layout)))

    def string(self) -> str:
        """Take a string; "" for none."""
        (length,) = self.numbers(">h")
        return self._take(max(0, length)).decode("utf-8", "replace")

    def several(self, one: Callable[[], _T]) -> list[_T]:
        """Take a count and so many of what *one* takes."""
        (count,) = self.numbers(">i")
        if count > self.left():
            raise MalformedAnswer(f"{count} of something in {self.left()} bytes")
        return [one() for _ in range(count)]

    def _take(self, count: int) -> bytes:
        if count > self.left():
            raise MalformedAnswer(f"ends at byte {len(self._data)}, {count} asked at {self._at}")
        self._at += count
        return self._data[self._at - count : self._at]

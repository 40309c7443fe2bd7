"""The mark of a replay: which lane of a spool a batch continues, and from which sequence on.

A spool that replays what it kept says of each call `ReplayMark`: the lane, and the sequence of the
first message; the others follow it. The lane is told by its key, a MAC under the spool's token. So
the token is in no log, no snapshot, no backup and no answer, and whoever reads those cannot mark
messages as this spool's. Made at the edge (`rocketmq.send_requests`), kept by `replayed_lanes`.
"""

from __future__ import annotations

import struct
from hashlib import blake2b
from typing import Final, NamedTuple

KEY_BYTES: Final = 16
TOKEN_BYTES: Final = 16
MAX_LANE: Final = (1 << 32) - 1
MAX_SEQUENCE: Final = (1 << 64) - 1
_MARK: Final = struct.Struct("<16sQ")
MARK_BYTES: Final = _MARK.size
_IN_KEY: Final = struct.Struct("<IH")


class ReplayMark(NamedTuple):
    """What a batch of a replay says of itself.

    Attributes:
        key: Of the lane, `KEY_BYTES` long; see `lane_key`.
        first: The sequence of the first message, at least 1; that of the last has 64 bits, too.
    """

    key: bytes
    first: int

    def encode(self) -> bytes:
        """Return its `MARK_BYTES` bytes in a PRODUCE payload."""
        return _MARK.pack(*self)

    def count_known(self, last: int, count: int) -> int:
        """Return how many of *count* messages are not behind sequence *last*; the first ones."""
        return max(0, min(count, last - self.first + 1))


def mark_at(data: bytes, start: int) -> ReplayMark:
    """Return the mark at byte *start*; nothing of it is checked."""
    return ReplayMark(*_MARK.unpack_from(data, start))


def lane_key(token: bytes, *, client_id: str, topic: str, lane: int) -> bytes:
    """Return the key of a lane: a MAC, under the spool's token, of whose lane it is.

    BLAKE2b-128 with *token* (`TOKEN_BYTES` long) as its key, of the lane as u32, the length of the
    client id as u16, both little endian, the client id and the topic.
    """
    client = client_id.encode()
    told = b"".join((_IN_KEY.pack(lane, len(client)), client, topic.encode()))
    return blake2b(told, digest_size=KEY_BYTES, key=token).digest()

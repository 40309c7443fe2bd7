"""Recall handles: opaque to clients, readable by every node, signed by the group.

::

    0   u8   version, 1
    1   u32  hour of the held message
    5   u32  its slot
    9   16 bytes of keyed BLAKE2b over the topic's name, its generation, and all else
    25  the message's id, UTF-8
    -- in URL-safe base64

The key is the group's secret, as for receipt handles (`receipts`). Hour and slot are the message's
for good: whether it is held, was delivered or recalled, the same handle says which one is meant.
"""

from __future__ import annotations

import struct
from base64 import urlsafe_b64decode, urlsafe_b64encode
from hashlib import blake2b
from hmac import compare_digest
from typing import Final, NamedTuple

from dledger.broker.held_refs import Ref
from dledger.rpc.status import Code, Rejected

_VERSION: Final = 1
_FIELDS: Final = struct.Struct("<BII")
_MAC_BYTES: Final = 16


class Recalled(NamedTuple):
    """Which message a handle names: where it is held, or was, and its id."""

    ref: Ref
    message_id: str


class RecallHandles:
    """The handles for one topic.

    Args:
        secret: The group's secret; empty while it has none, and so has issued no handle.
        topic: The topic's name.
        generation: The generation of the topic with that name.
    """

    def __init__(self, secret: bytes, *, topic: str, generation: int) -> None:
        self._topic = topic
        about = f"recall\0{topic}\0{generation}\0".encode()
        self._keyed = blake2b(about, key=secret, digest_size=_MAC_BYTES) if secret else None

    def encode(self, ref: Ref, message_id: str) -> str:
        """Return the handle of a held message."""
        fields, named = _FIELDS.pack(_VERSION, ref.hour, ref.slot), message_id.encode()
        raw = fields + self._mac(fields + named) + named
        return urlsafe_b64encode(raw).rstrip(b"=").decode()

    def decode(self, handle: str) -> Recalled:
        """Return which message *handle* names.

        Raises:
            Rejected: It is malformed, or was not given for this topic.
        """
        try:
            raw = urlsafe_b64decode(handle + "=" * (-len(handle) % 4))
            version, hour, slot = _FIELDS.unpack_from(raw)
            fields, named = raw[: _FIELDS.size], raw[_FIELDS.size + _MAC_BYTES :]
            message_id = named.decode()
        except (ValueError, struct.error):
            raise _refusal(f"malformed recall handle {handle[:80]!r}") from None
        mac = raw[_FIELDS.size : _FIELDS.size + _MAC_BYTES]
        if version != _VERSION or not self._keyed:
            raise self._foreign(handle)
        if not compare_digest(mac, self._mac(fields + named)):
            raise self._foreign(handle)
        return Recalled(Ref(hour, slot), message_id)

    def _foreign(self, handle: str) -> Rejected:
        return _refusal(
            f"recall handle {handle[:80]!r} was not given for a message of topic {self._topic!r}"
        )

    def _mac(self, said: bytes) -> bytes:
        if self._keyed is None:
            raise AssertionError("a handle without a secret")
        mac = self._keyed.copy()
        mac.update(said)
        return mac.digest()


def _refusal(sentence: str) -> Rejected:
    return Rejected(Code.BAD_REQUEST, sentence)

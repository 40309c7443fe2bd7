"""Receipt handles: opaque to clients, readable by every node, signed by the group.

::

    0   u8   version, 2
    1   u16  queue id
    3   u64  queue offset
    11  u64  receive id
    19  16 bytes of keyed BLAKE2b over the consumer group's and the topic's name, the topic's
        generation, and the above
    -- 35 bytes, in URL-safe base64

The key is the group's secret (`BrokerState.secret`). It is stored in the log, and leaves a node
only to peers and backups. So a handle cannot be guessed, and is not valid for another consumer
group, another topic, or a topic that was recreated under the same name.
"""

from __future__ import annotations

import struct
from base64 import urlsafe_b64decode, urlsafe_b64encode
from hashlib import blake2b
from hmac import compare_digest

from dledger.broker.commands import NUMBER_BOUND, LeaseRef
from dledger.errors import InvalidReceiptHandle

_VERSION = 2
_FIELDS = struct.Struct("<BHQQ")
_MAC_BYTES = 16


class Receipts:
    """The handles of one consumer group for one topic.

    Args:
        secret: The group's secret; empty while it has none, and so has issued no handle.
        group: The consumer group.
        topic: The topic's name.
        generation: The generation of the topic with that name; 0 if there is none.
    """

    def __init__(self, secret: bytes, *, group: str, topic: str, generation: int) -> None:
        self._group, self._topic = group, topic
        about = f"{group}\0{topic}\0{generation}\0".encode()
        self._keyed = blake2b(about, key=secret, digest_size=_MAC_BYTES) if secret else None

    def encode(self, lease: LeaseRef) -> str:
        """Return the receipt handle of a delivered message."""
        fields = _FIELDS.pack(_VERSION, lease.queue_id, lease.offset, lease.receive_id)
        return urlsafe_b64encode(fields + self._mac(fields)).rstrip(b"=").decode()

    def decode(self, handle: str) -> LeaseRef:
        """Return the lease that *handle* identifies.

        Raises:
            InvalidReceiptHandle: It is malformed, or was not issued to this group for this topic.
        """
        try:
            raw = urlsafe_b64decode(handle + "=" * (-len(handle) % 4))
            version, queue_id, offset, receive_id = _FIELDS.unpack_from(raw)
        except (ValueError, struct.error):
            raise InvalidReceiptHandle(f"malformed receipt handle {handle[:80]!r}") from None
        if max(offset, receive_id) >= NUMBER_BOUND:
            raise InvalidReceiptHandle(f"no message is where receipt handle {handle[:80]!r} says")
        fields, mac = raw[: _FIELDS.size], raw[_FIELDS.size :]
        if version != _VERSION or not self._keyed or not compare_digest(mac, self._mac(fields)):
            raise InvalidReceiptHandle(
                f"receipt handle {handle[:80]!r} was not given to group {self._group!r} for topic "
                f"{self._topic!r}"
            )
        return LeaseRef(queue_id, offset, receive_id)

    def _mac(self, fields: bytes) -> bytes:
        if self._keyed is None:
            raise AssertionError("a handle without a secret")
        mac = self._keyed.copy()
        mac.update(fields)
        return mac.digest()

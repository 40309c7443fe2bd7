"""Receipt handles, by which a consumer acknowledges what it was given.

Signed handles (`signed_handles`) of version 2: u16 queue id, u64 queue offset, u64 receive id. They
are about a consumer group and a topic.
"""

from __future__ import annotations

import struct

from dledger.broker.commands import NUMBER_BOUND, LeaseRef
from dledger.errors import InvalidReceiptHandle
from dledger.requests.signed_handles import ForeignHandle, MalformedHandle, SignedHandles


class Receipts(SignedHandles):
    """The handles of one consumer group for one topic."""

    VERSION, FIELDS = 2, struct.Struct("<BHQQ")

    def encode(self, lease: LeaseRef) -> str:
        """Return the receipt handle of a delivered message."""
        return self._sign(lease.queue_id, lease.offset, lease.receive_id)

    def decode(self, handle: str) -> LeaseRef:
        """Return the lease that *handle* identifies.

        Raises:
            InvalidReceiptHandle: It is malformed, or was not issued to this group for this topic.
        """
        try:
            (queue_id, offset, receive_id), _ = self._verify(handle)
        except MalformedHandle:
            raise InvalidReceiptHandle(f"malformed receipt handle {handle[:80]!r}") from None
        except ForeignHandle:
            raise InvalidReceiptHandle(
                f"receipt handle {handle[:80]!r} was not given to group {self._group!r} for topic "
                f"{self._topic!r}"
            ) from None
        if max(offset, receive_id) >= NUMBER_BOUND:
            raise InvalidReceiptHandle(f"no message is where receipt handle {handle[:80]!r} says")
        return LeaseRef(queue_id, offset, receive_id)

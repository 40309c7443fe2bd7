"""Transaction ids: opaque to clients, readable by every node, signed by the group.

::

    0   u8   version, 1
    1   u32  hour of the half
    5   u32  its slot
    9   16 bytes of keyed BLAKE2b over the topic's name, its generation, and all before
    -- in URL-safe base64

The key is the group's secret, as for receipt handles (`receipts`). So nobody can end a transaction
of which he was not told. Hour and slot are the half's for good.
"""

from __future__ import annotations

import struct
from base64 import urlsafe_b64decode, urlsafe_b64encode
from hashlib import blake2b
from hmac import compare_digest
from typing import Final

from dledger.broker.held_refs import Ref
from dledger.rpc.status import Code, Rejected

_VERSION: Final = 1
_FIELDS: Final = struct.Struct("<BII")
_MAC_BYTES: Final = 16


class TransactionIds:
    """The ids for one topic.

    Args:
        secret: The group's secret; empty while it has none, and so has issued no id.
        topic: The topic's name.
        generation: The generation of the topic with that name.
    """

    def __init__(self, secret: bytes, *, topic: str, generation: int) -> None:
        self._topic = topic
        about = f"transaction\0{topic}\0{generation}\0".encode()
        self._keyed = blake2b(about, key=secret, digest_size=_MAC_BYTES) if secret else None

    def encode(self, ref: Ref) -> str:
        """Return the id of the transaction of a half."""
        fields = _FIELDS.pack(_VERSION, *ref)
        return urlsafe_b64encode(fields + self._mac(fields)).rstrip(b"=").decode()

    def decode(self, transaction_id: str) -> Ref:
        """Return which half *transaction_id* names.

        Raises:
            Rejected: It is malformed, or was not given for this topic.
        """
        try:
            raw = urlsafe_b64decode(transaction_id + "=" * (-len(transaction_id) % 4))
            version, hour, slot = _FIELDS.unpack_from(raw)
        except (ValueError, struct.error):
            raise no_transaction(f"malformed transaction id {transaction_id[:80]!r}") from None
        fields, mac = raw[: _FIELDS.size], raw[_FIELDS.size :]
        if version != _VERSION or not self._keyed or not compare_digest(mac, self._mac(fields)):
            raise no_transaction(
                f"transaction id {transaction_id[:80]!r} was not given for a message of topic "
                f"{self._topic!r}"
            )
        return Ref(hour, slot)

    def _mac(self, fields: bytes) -> bytes:
        if self._keyed is None:
            raise AssertionError("an id without a secret")
        mac = self._keyed.copy()
        mac.update(fields)
        return mac.digest()


def no_transaction(sentence: str) -> Rejected:
    """Return the error of a transaction that cannot be ended as is asked."""
    return Rejected(Code.INVALID_TRANSACTION_ID, sentence)

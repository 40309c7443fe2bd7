"""Transaction ids, by which a producer ends its transaction.

Signed handles (`signed_handles`) of version 1: u32 hour of the half, u32 its slot, which are the
half's for good. So nobody can end a transaction of which he was not told.
"""

from __future__ import annotations

import struct

from dledger.broker.held_refs import Ref
from dledger.requests.signed_handles import ForeignHandle, MalformedHandle, SignedHandles
from dledger.rpc.status import Code, Rejected


class TransactionIds(SignedHandles):
    """The ids for one topic."""

    KIND, VERSION, FIELDS = "transaction", 1, struct.Struct("<BII")

    def encode(self, ref: Ref) -> str:
        """Return the id of the transaction of a half."""
        return self._sign(*ref)

    def decode(self, transaction_id: str) -> Ref:
        """Return which half *transaction_id* names.

        Raises:
            Rejected: It is malformed, or was not given for this topic.
        """
        try:
            (hour, slot), _ = self._verify(transaction_id)
        except MalformedHandle:
            raise no_transaction(f"malformed transaction id {transaction_id[:80]!r}") from None
        except ForeignHandle:
            raise no_transaction(
                f"transaction id {transaction_id[:80]!r} was not given for a message of topic "
                f"{self._topic!r}"
            ) from None
        return Ref(hour, slot)


def no_transaction(sentence: str) -> Rejected:
    """Return the error of a transaction that cannot be ended as is asked."""
    return Rejected(Code.INVALID_TRANSACTION_ID, sentence)

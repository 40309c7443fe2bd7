"""Recall handles, by which a client takes back a message that is held.

Signed handles (`signed_handles`) of version 1: u32 hour of the held message, u32 its slot; the tail
is the message's id, UTF-8. Hour and slot are the message's for good: whether it is held, was
delivered or recalled, the same handle says which one is meant.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from dledger.broker.held_refs import Ref
from dledger.requests.signed_handles import ForeignHandle, MalformedHandle, SignedHandles
from dledger.rpc.status import Code, Rejected


class Recalled(NamedTuple):
    """Which message a handle names: where it is held, or was, and its id."""

    ref: Ref
    message_id: str


class RecallHandles(SignedHandles):
    """The handles for one topic."""

    KIND, VERSION, FIELDS = "recall", 1, struct.Struct("<BII")

    def encode(self, ref: Ref, message_id: str) -> str:
        """Return the handle of a held message."""
        return self._sign(*ref, tail=message_id.encode())

    def decode(self, handle: str) -> Recalled:
        """Return which message *handle* names.

        Raises:
            Rejected: It is malformed, or was not given for this topic.
        """
        try:
            (hour, slot), message_id = self._verify(handle)
        except MalformedHandle:
            raise _refusal(f"malformed recall handle {handle[:80]!r}") from None
        except ForeignHandle:
            raise _refusal(
                f"recall handle {handle[:80]!r} was not given for a message of topic "
                f"{self._topic!r}"
            ) from None
        return Recalled(Ref(hour, slot), message_id.decode())


def _refusal(sentence: str) -> Rejected:
    return Rejected(Code.BAD_REQUEST, sentence)

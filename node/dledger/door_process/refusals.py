"""The answers to requests that a door refuses unread, as the node's own port gives them."""

from __future__ import annotations

from dledger.calls.method import failed_by
from dledger.calls.service import refusal_of
from dledger.door.contract import Failed
from dledger.rocketmq.refused import refused_response


def refused_answer(name: str, refused: Failed, *, is_messaging: bool) -> bytes:
    """Return the answer of the method *name* of RocketMQ's service, or of another.

    Raises:
        Failed: The service has no answer for it: the call ends with our error's name in the
            trailers.
    """
    error = refusal_of(name, refused)
    if not is_messaging:
        raise failed_by(error)
    return bytes(refused_response(name, error).SerializeToString())
